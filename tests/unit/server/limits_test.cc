#include <future>
#include <thread>

#include "server/base/network_buffers.h"
#include "server/base/worker_pool.h"
#include "server/execution/transactions.h"
#include "tests/unit/server/server_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {

/// Little room and little patience, for one test.
struct SmallBuffers {
  SmallBuffers(TestServer& server, int64_t limit) : buffers(server.context().network_buffers()) {
    buffers.SetLimit(limit);
    buffers.SetStuckMicros(100'000);
  }
  NetworkBuffers& buffers;
};

/// testLarge: 12 MB.
void AddLarge(TestServer& server) {
  server.context().commands().Add(
      {.name = "testLarge",
       .help = "",
       .run = [](CommandContext&, const CommandRequest&, BsonBuilder& reply) -> Result<void> {
         reply.Append("x", std::string(12'000'000, 'x'));
         return Ok();
       }});
}

std::string LongPing(size_t bytes) {
  return RawClient::Message(R"({"ping": 1, "comment": ")" + std::string(bytes, 'x') +
                            R"(", "$db": "admin"})");
}

/// The front of a message of `bytes` bytes.
std::string HalfMessage(int32_t bytes) {
  std::string head(20, '\0');
  StoreLe<int32_t>(head.data(), bytes);
  StoreLe<int32_t>(head.data() + 12, static_cast<int32_t>(Opcode::kMsg));
  return head;
}

}  // namespace

TEST_CASE("Long jobs on every worker do not keep others waiting", "[server][limits]") {
  WorkerPool pool(
      2, [] {}, [] {});
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> held{0}, ran{0};
  for (int i = 0; i < 40; ++i)
    pool.Post([&] {
      ++held;
      released.wait();
    });
  for (int i = 0; i < 10; ++i) pool.Post([&] { ++ran; });
  Eventually([&] { return held == 40 && ran == 10; });
  CHECK(pool.extra_threads() >= 38);
  release.set_value();
  pool.Join();
}

TEST_CASE("Operations that hold every worker do not keep other clients waiting",
          "[server][limits]") {
  TestServer server;  // with two workers
  std::vector<std::unique_ptr<RawClient>> spinning;
  for (int i = 0; i < 6; ++i) {
    spinning.push_back(std::make_unique<RawClient>(server.port()));
    spinning.back()->Send(RawClient::Message(R"({"testSpin": 1, "$db": "admin"})"));
  }
  RawClient c(server.port());
  CHECK(Code(c.Command(R"({"testThrowOnWorker": 1, "$db": "admin"})")) == 1);
  server.context().operations().KillAll(ErrorCode::kInterrupted);
  for (auto& s : spinning) CHECK(Code(s->Reply()) == 11601);
}

TEST_CASE("Messages that never arrive make room for those that do", "[server][limits]") {
  TestServer server;
  SmallBuffers small(server, 200'000);
  RawClient half(server.port()), other(server.port()), c(server.port());
  half.Send(HalfMessage(40'000'000));
  CHECK(IsOk(other.Command(kPing)));  // it has been read
  CHECK(small.buffers.used() >= 40'000'000);
  // Small messages need no room.
  CHECK(IsOk(c.Command(kPing)));
  // A large one gets it when the one that does not get on has been ended.
  c.Send(LongPing(150'000));
  CHECK(IsOk(c.Reply()));
  CHECK(half.Closed());
  // Nobody is ended as long as nobody waits.
  RawClient patient(server.port());
  const std::string message = LongPing(150'000);
  patient.Send(message.substr(0, 1000));
  // Two looks are further apart than what counts as stuck.
  const int64_t looks = small.buffers.looks();
  Eventually([&] { return small.buffers.looks() >= looks + 2; });
  patient.Send(message.substr(1000));
  CHECK(IsOk(patient.Reply()));
}

TEST_CASE("Who has waited long for room is the next to get it", "[limits]") {
  constexpr int64_t kSecond = 1'000'000;
  WaitLine line;
  CHECK(line.empty());
  WaitLine::Place late(line);
  {
    WaitLine::Place first(line), second(line);
    first.Enter(kSecond);
    first.Enter(5 * kSecond);  // it is in the line already
    second.Enter(kSecond + 1);
    CHECK(line.Waited(2 * kSecond) == kSecond);
    // For a while it goes to whoever comes when there is some.
    CHECK((late.MayTake(kSecond + 2) && second.MayTake(kSecond + 2)));
    CHECK(first.MayTake(3 * kSecond));
    CHECK_FALSE(second.MayTake(3 * kSecond));
    CHECK_FALSE(late.MayTake(3 * kSecond));
  }
  CHECK(line.empty());
  CHECK(late.MayTake(3 * kSecond));
}

TEST_CASE("Neither replies nor large messages take all the room", "[limits]") {
  NetworkBuffers buffers;
  buffers.SetLimit(100 << 20);
  CHECK(buffers.ReplyRoom());
  buffers.TakeReply(50 << 20);
  CHECK_FALSE(buffers.ReplyRoom());
  CHECK_FALSE(buffers.TryTake(26 << 20));
  CHECK(buffers.TryTake(20 << 20));
  CHECK(buffers.TryTake(1 << 20));
  for (int i = 0; i < 29; ++i) CHECK(buffers.TryTake(1 << 20));
  CHECK_FALSE(buffers.TryTake(1 << 20));
  buffers.GiveReply(50 << 20);
  CHECK(buffers.used() == 50 << 20);
  CHECK(buffers.replies() == 0);
}

TEST_CASE("Compressed messages wait for the room of what is in them", "[server][limits]") {
  TestServer server;
  SmallBuffers small(server, 200'000);
  RawClient half(server.port()), c(server.port());
  CHECK(IsOk(c.Command(R"({"hello": 1, "compression": ["zlib"], "$db": "admin"})")));
  half.Send(HalfMessage(40'000'000));
  CHECK(IsOk(RawClient(server.port()).Command(kPing)));
  std::string packed = LongPing(1'000'000);
  REQUIRE(CompressMessage(packed, 0, Compressor::kZlib));
  CHECK(packed.size() < 10'000);
  c.Send(packed);
  CHECK(IsOk(c.Reply()));
  CHECK(half.Closed());
  Eventually([&] { return small.buffers.used() == 0; });
}

TEST_CASE("A client that does not read does not keep the server from stopping",
          "[server][limits]") {
  auto server = std::make_unique<TestServer>();
  AddLarge(*server);
  RawClient deaf(server->port()), c(server->port());
  for (int i = 0; i < 4; ++i) deaf.Send(RawClient::Message(R"({"testLarge": 1, "$db": "admin"})"));
  CHECK(IsOk(c.Command(kPing)));
  server.reset();  // it waited for ever
  CHECK(c.Closed());
}

TEST_CASE("Replies that nobody reads are given up when they take too much", "[server][limits]") {
  TestServer server;
  AddLarge(server);
  SmallBuffers small(server, 1'000'000);
  RawClient deaf(server.port()), c(server.port());
  std::string many;
  for (int i = 0; i < 4; ++i) many += RawClient::Message(R"({"testLarge": 1, "$db": "admin"})");
  deaf.Send(many);
  Eventually([&] { return server.context().metrics().connections.current.Get() == 1; });
  CHECK(IsOk(c.Command(kPing)));
  // A client that reads gets all of it, however large.
  BsonDocument r = c.Command(R"({"testLarge": 1, "$db": "admin"})");
  CHECK(r.view()["x"].String().size() == 12'000'000);
  Eventually([&] { return small.buffers.used() == 0; });
}

// One message, or those of two owners, had all the room: the writes of everybody else failed (112).
TEST_CASE("Writes that wait for transactions leave room for those of others", "[limits]") {
  TestServer server;
  Transactions transactions(server.context());
  constexpr int64_t kRoom = 400;
  std::vector<std::pair<std::string, int64_t>> waiting;
  const auto take = [&](const char* owner, int64_t bytes) {
    if (!transactions.TakeWaiting(owner, bytes, kRoom)) return false;
    waiting.emplace_back(owner, bytes);
    return true;
  };
  CHECK(take("a", 40));
  CHECK(take("a", 10));
  CHECK_FALSE(take("a", 1));
  CHECK(take("b", 25));
  CHECK_FALSE(take("b", 1));
  CHECK(take("c", 12));
  CHECK_FALSE(take("c", 1));
  CHECK(take("d", 6));
  for (const auto& [owner, bytes] : waiting) transactions.GiveWaiting(owner, bytes);
  // A large message waits where there is much room, and leaves some.
  CHECK_FALSE(take("a", 76));
  CHECK(take("a", 75));
  CHECK_FALSE(take("b", 13));
  CHECK(take("b", 12));
}

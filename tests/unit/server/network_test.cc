#include <ifaddrs.h>

#include <latch>
#include <thread>

#include "server/base/io_watchdog.h"
#include "server/base/network_buffers.h"
#include "server/http/request_origin.h"
#include "server/net/connection_gate.h"
#include "server/net/foreign_protocol.h"
#include "server/net/handshakes.h"
#include "tests/unit/server/server_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {

/// testBusy {micros}: keeps the thread it runs on busy for so much of the processor.
Result<void> Busy(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const int64_t micros = in.Int64("micros");
  MAYFLY_TRY(in.Finish());
  for (const int64_t end = ThreadMicros() + micros; ThreadMicros() < end;) {
  }
  return Ok();
}

void AddBusy(TestServer& server) {
  server.context().commands().Add({.name = "testBusy", .help = "", .run = &Busy});
}

/// A server whose io threads are watched.
struct Watched {
  explicit Watched(int64_t limit) : server([](ServerConfig&) {}, true) {
    server.context().io_watchdog().limit_micros = limit;
  }
  int64_t seen() { return server.context().io_watchdog().long_handlers; }
  TestServer server;
};

std::string LogText(TestServer& server) {
  size_t total = 0;
  std::string lines;
  for (const std::string& l : server.context().log().RecentLines(&total)) lines += l;
  return lines;
}

}  // namespace

TEST_CASE("A stream of hello that waits for nothing leaves others their turn", "[server]") {
  Watched watch(20'000);
  TestServer& server = watch.server;
  server.server().Start();
  RawClient c(server.port()), other(server.port());
  BsonDocument hello = c.Command(R"({"hello": 1, "$db": "admin"})");
  const std::string version = ToCanonicalJson(hello.view()["topologyVersion"].Document());
  c.Send(RawClient::Message(
      R"({"hello": 1, "topologyVersion": )" + version + R"(, "maxAwaitTimeMS": 0, "$db": "admin"})",
      kMsgExhaustAllowed));
  std::atomic<bool> stop{false};
  std::atomic<int> replies{0};
  std::thread reader([&] {
    for (; !stop && !c.Receive().empty(); ++replies) {
    }
  });
  Eventually([&] { return replies > 100; });
  // The other client is answered, again and again, while the stream goes on.
  for (int i = 0, before = replies; i < 200 || replies == before; ++i)
    CHECK(IsOk(other.Command(kPing)));
  Eventually([&, before = replies.load()] { return replies > before + 100; });
  stop = true;
  reader.join();
  c.Close();
  CHECK(watch.seen() == 0);
}

TEST_CASE("Requests sent together take turns with those of others", "[server]") {
  Watched watch(100'000);
  TestServer& server = watch.server;
  AddBusy(server);
  server.server().Start();
  RawClient c(server.port()), other(server.port());
  CHECK(IsOk(other.Command(kPing)));
  constexpr int kRequests = 800;
  std::string all;
  for (int i = 0; i < kRequests; ++i)
    all += RawClient::Message(R"({"testBusy": 1, "micros": 1000, "$db": "admin"})");
  std::thread sender([&] { c.Send(all); });
  int rounds = 0;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    for (int i = 0; i < kRequests; ++i) c.Receive();
    done = true;
  });
  // While 0.8 s of work wait in one buffer, the other client has a turn every few of them.
  for (; !done; ++rounds) CHECK(IsOk(other.Command(kPing)));
  sender.join();
  reader.join();
  CHECK(rounds > 50);
  CHECK(watch.seen() == 0);
}

TEST_CASE("The watchdog tells who kept an io thread busy", "[server]") {
  Watched watch(5000);
  TestServer& server = watch.server;
  AddBusy(server);
  server.server().Start();
  RawClient c(server.port());
  CHECK(IsOk(c.Command(R"({"testBusy": 1, "micros": 20000, "$db": "admin"})")));
  Eventually([&] { return watch.seen() == 1; });
  CHECK(server.context().io_watchdog().longest_micros >= 20'000);
  Eventually(
      [&] { return LogText(server).find("A handler held an io thread") != std::string::npos; });
  CHECK(LogText(server).find("testBusy") != std::string::npos);
}

TEST_CASE("A large reply is compressed, and gets its checksum, on a worker", "[server]") {
  Watched watch(150'000);
  TestServer& server = watch.server;
  server.context().commands().Add(
      {.name = "testNoise",
       .flags = kWorker,
       .help = "",
       .run = [](CommandContext&, const CommandRequest&, BsonBuilder& reply) -> Result<void> {
         // What zlib takes long for: 12 MB of letters without a pattern.
         std::string text(12'000'000, ' ');
         uint32_t x = 1;
         for (char& c : text) c = static_cast<char>('a' + ((x = x * 1664525 + 1013904223) >> 28));
         reply.Append("x", text);
         return Ok();
       }});
  server.server().Start();
  RawClient c(server.port());
  CHECK(IsOk(c.Command(R"({"hello": 1, "compression": ["zlib"], "$db": "admin"})")));
  std::string ask = RawClient::Message(R"({"testNoise": 1, "$db": "admin"})", kMsgChecksumPresent);
  REQUIRE(CompressMessage(ask, 0, Compressor::kZlib));
  for (int i = 0; i < 2; ++i) {
    c.Send(ask);
    const BsonDocument r = c.Reply();
    CHECK(c.compressed);
    CHECK(r.view()["x"].String().size() == 12'000'000);
  }
  CHECK(IsOk(c.Command(kPing)));
  CHECK(watch.seen() == 0);
}

TEST_CASE("A large request is in the log once, and written down by a worker", "[server]") {
  TestServer server;
  server.context().profiler().slow_ms = 0;
  RawClient c(server.port());
  // What the log shows of a large one takes long to find.
  for (const auto& [name, bytes] : {std::pair("short", 10), std::pair("large", 6000)}) {
    CAPTURE(name);
    const std::string comment = std::string(name) + "-" + std::string(bytes, 'x');
    CHECK(IsOk(c.Command(R"({"buildInfo": 1, "comment": ")" + comment + R"(", "$db": "admin"})")));
    CHECK(Code(c.Command(R"({"buildInfo": 1, "nonsense": 1, "comment": ")" + comment +
                         R"(", "$db": "admin"})")) == 40415);
    const std::string lines = LogText(server);
    size_t found = 0;
    for (size_t at = 0; (at = lines.find(std::string(name) + "-x", at)) != lines.npos; ++at)
      ++found;
    CHECK(found == 2);
  }
}

TEST_CASE("What was not configured is not unpacked", "[server]") {
  std::string m = RawClient::Message(R"({"ping": 1, "comment": ")" + std::string(2000, 'x') +
                                     R"(", "$db": "admin"})");
  REQUIRE(CompressMessage(m, 0, Compressor::kZlib));
  {
    TestServer server([](ServerConfig& c) { c.compressors.clear(); });
    RawClient c(server.port());
    c.Send(m);
    CHECK(c.Closed());
    std::string noop = m;
    noop[24] = 0;
    RawClient d(server.port());
    d.Send(noop);
    CHECK(d.Closed());
    CHECK(server.context().metrics().compression(2).decompressed_in == 0);
    CHECK(LogText(server).find("is not available") != std::string::npos);
  }
  TestServer only([](ServerConfig& c) { c.compressors = {"snappy"}; });
  RawClient c(only.port());
  c.Send(m);
  CHECK(c.Closed());
  // Configured, though not agreed in hello: answered without compression, as on MongoDB.
  TestServer all;
  RawClient d(all.port());
  d.Send(m);
  CHECK(IsOk(d.Reply()));
  CHECK_FALSE(d.compressed);
}

TEST_CASE("TLS and HTTP on the port of the drivers are told so", "[server]") {
  TestServer server;
  // A ClientHello: a record of 517 bytes, which as a length would be 33 MB.
  std::string hello("\x16\x03\x01\x02\x05\x01\x00\x02\x01\x03\x03", 11);
  hello += std::string(511, 'r');
  for (size_t first : {hello.size(), size_t{5}}) {
    RawClient c(server.port()), other(server.port());
    c.Send(hello.substr(0, first));
    CHECK(IsOk(other.Command(kPing)));
    c.Send(hello.substr(first));
    CHECK(c.ReadAll() == std::string("\x15\x03\x03\x00\x02\x02\x28", 7));
  }
  CHECK(LogText(server).find("SSL handshake received but server is started without SSL support") !=
        std::string::npos);
  RawClient h(server.port());
  h.Send("GET / HTTP/1.1\r\nHost: localhost:27017\r\n\r\n");
  const std::string answer = h.ReadAll();
  CHECK(answer.starts_with("HTTP/1.0 200 OK\r\n"));
  CHECK(
      answer.ends_with("It looks like you are trying to access MongoDB over HTTP on the native "
                       "driver port.\r\n"));
  // A message of a length that begins like a ClientHello is one.
  RawClient c(server.port());
  const size_t head = RawClient::Message(R"({"ping": 1, "comment": "", "$db": "admin"})").size();
  const std::string m = RawClient::Message(
      R"({"ping": 1, "comment": ")" + std::string(0x10316 - head, 'x') + R"(", "$db": "admin"})");
  REQUIRE(m.substr(0, 2) == "\x16\x03");
  c.Send(m.substr(0, 15));
  RawClient other(server.port());
  for (int i = 0; i < 2; ++i)
    CHECK(IsOk(other.Command(kPing)));  // the front has been read meanwhile
  c.Send(m.substr(15));
  CHECK(IsOk(c.Reply()));
  CHECK(RecognizeForeign(std::string_view("\x16\x03\x01\x02\x05\x02", 6)) ==
        ForeignProtocol::kNone);
}

TEST_CASE("The first bytes say whether TLS begins", "[server]") {
  std::string hello("\x16\x03\x01\x02\x05\x01\x00\x02\x01\x03\x03", 11);
  for (size_t n = 0; n <= hello.size(); ++n) {
    CAPTURE(n);
    CHECK(LooksLikeTls(hello.substr(0, n)) == (n < 10 ? TlsStart::kPerhaps : TlsStart::kYes));
  }
  CHECK(FirstTlsRecord(hello) == 5 + 0x205);
  CHECK(LooksLikeTls("GET / HTTP/1.1") == TlsStart::kNo);
  for (size_t at : {0, 1, 2, 5, 9}) {
    std::string other = hello;
    other[at] = 0x7F;
    CHECK(LooksLikeTls(other) == TlsStart::kNo);
  }
  // A message of a length that begins like it.
  const std::string m("\x16\x03\x01\x00\x01\x01\x00\x00\x00\x00\x00\x00\xDD\x07\x00\x00", 16);
  CHECK(LooksLikeTls(m) == TlsStart::kNo);
}

TEST_CASE("When there are too many handshakes the oldest goes", "[server]") {
  Handshakes all;
  std::vector<int> gone;
  {
    std::vector<std::unique_ptr<Handshakes::Place>> places;
    for (int i = 0; i < 5; ++i) {
      places.push_back(std::make_unique<Handshakes::Place>());
      all.Enter(*places.back(), 3, [&gone, i] { gone.push_back(i); });
    }
    CHECK(gone == std::vector<int>{0, 1});
    places[2]->Leave();
    places[0].reset();
    Handshakes::Place one, two;
    all.Enter(one, 3, [&gone] { gone.push_back(5); });
    CHECK(gone.size() == 2);
    all.Enter(two, 3, [&gone] { gone.push_back(6); });
    CHECK(gone == std::vector<int>{0, 1, 3});
  }
  all.Join();
}

// A crowd that never answers was computed in the order of its arrival, also whom the limits had
// ended meanwhile: an honest client waited behind it until its own time was over.
TEST_CASE("The newest handshake and the oldest take turns, and none that has ended", "[server]") {
  Handshakes all;
  const unsigned threads = std::max(1U, std::thread::hardware_concurrency() / 2);
  std::latch held(threads), first(1), others(1);
  std::vector<std::unique_ptr<Handshakes::Place>> places;
  const auto compute = [&](std::function<void()> work) {
    places.push_back(std::make_unique<Handshakes::Place>());
    all.Enter(*places.back(), 1000, [] {});
    places.back()->Compute(std::move(work));
  };
  for (unsigned i = 0; i < threads; ++i)
    compute([&, i] {
      held.count_down();
      (i == 0 ? first : others).wait();
    });
  held.wait();
  CHECK_FALSE(places[0]->TakeBack());  // it runs
  std::vector<int> order;              // of the one thread that goes on
  std::latch done(1);
  for (int i = 0; i < 5; ++i)
    compute([&, i] {
      order.push_back(i);
      if (i == 2) done.count_down();
    });
  CHECK(places[threads + 1]->TakeBack());
  CHECK_FALSE(places[threads + 1]->TakeBack());
  places[threads + 3]->Leave();
  first.count_down();
  done.wait();
  CHECK(order == std::vector<int>{0, 4, 2});  // its first was the newest
  others.count_down();
  all.Join();
}

TEST_CASE("Half messages below the size that waits for room count together", "[server]") {
  TestServer server;
  NetworkBuffers& buffers = server.context().network_buffers();
  RawClient other(server.port());
  std::string half = RawClient::Message(R"({"ping": 1, "comment": ")" + std::string(60'000, 'x') +
                                        R"(", "$db": "admin"})");
  half.resize(3000);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->Send(half);
  }
  Eventually([&] { return buffers.small() >= 40 * 60'000; });
  CHECK_FALSE(buffers.Short());
  buffers.SetStuckMicros(100'000);
  buffers.SetLimit(1 << 20);
  // Who does not get on while there is too much of it, goes.
  Eventually([&] { return server.context().metrics().connections.current < 30; });
  buffers.SetLimit(int64_t{512} << 20);
  buffers.SetStuckMicros(5'000'000);
  CHECK(IsOk(other.Command(kPing)));
  clients.clear();
  Eventually([&] { return buffers.small() == 0; });
}

TEST_CASE("Only who is on this machine may stop the server", "[server]") {
  std::string own;
  ifaddrs* all = nullptr;
  REQUIRE(::getifaddrs(&all) == 0);
  for (ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(a->ifa_addr)->sin_addr, text, sizeof text);
    if (!std::string_view(text).starts_with("127.")) own = text;
  }
  ::freeifaddrs(all);
  TestServer server([](ServerConfig& c) { c.bind_ips = {"0.0.0.0"}; });
  std::atomic<int> asked{0};
  server.context().set_shutdown_hook([&](bool, int) { ++asked; });
  constexpr std::string_view kShutdown = R"({"shutdown": 1, "$db": "admin"})";
  if (own.empty()) {
    WARN("SKIPPED: this machine has no address but loopback");
  } else {
    RawClient far(server.port(), own);
    const BsonDocument r = far.Command(kShutdown);
    CHECK(Code(r) == 13);
    CHECK(r.view()["errmsg"].String() ==
          "shutdown must run from localhost when running db without auth");
    CHECK(asked == 0);
    CHECK(IsOk(far.Command(kPing)));
  }
  RawClient here(server.port());
  CHECK(Code(here.Command(R"({"shutdown": 1, "$db": "test"})")) == 13);
  CHECK(asked == 0);
  CHECK(IsOk(here.Command(kShutdown)));
  CHECK(asked == 1);
}

TEST_CASE("Descriptors are shared out: the store has its own", "[server]") {
  const DescriptorPlan few = PlanDescriptors(1024, 320, 65536, false);
  CHECK(few.connections + few.store + few.http + few.other <= 1024);
  CHECK(few.connections >= 500);
  const DescriptorPlan member = PlanDescriptors(1024, 320, 65536, true);
  CHECK(member.members >= 150);
  CHECK(member.connections + member.members + member.store + member.http + member.other <= 1024);
  CHECK(PlanDescriptors(1024, 320, 100, false).connections == 100);
  CHECK(PlanDescriptors(1'000'000, 500'064, 65536, true).connections == 65536);
  CHECK(PlanDescriptors(64, 128, 65536, true).connections == 8);
}

TEST_CASE("Places for administrators are kept, and exempt clients count for nobody", "[server]") {
  const DescriptorPlan plan = PlanDescriptors(1024, 320, 100, false, true);
  CHECK(plan.connections == 100);
  CHECK(plan.room + plan.reserved + plan.store + plan.http + plan.other == 1024);
  CHECK(plan.reserved == ConnectionGate::kAdministrators + 2 * ConnectionGate::kStrangers);

  ConnectionGate gate(2, 1, 4, 2);
  auto a = gate.Enter("10.0.0.1:1"), b = gate.Enter("10.0.0.1:1");
  REQUIRE((a && b));
  CHECK_FALSE(b->extra());
  auto stranger = gate.Enter("10.0.0.1:1");
  REQUIRE((stranger && stranger->extra()));
  CHECK(stranger->Keep());
  CHECK(stranger->Keep());
  auto second = gate.Enter("10.0.0.1:1");
  REQUIRE(second);
  CHECK(second->Keep());
  auto third = gate.Enter("10.0.0.1:1");
  REQUIRE(third);
  CHECK_FALSE(third->Keep());
  stranger.reset();
  CHECK(third->Keep());
  // What was told to go may not stay.
  auto slow = gate.Enter("10.0.0.1:1"), next = gate.Enter("10.0.0.1:1");
  REQUIRE((slow && next));
  second.reset();
  CHECK_FALSE(slow->Keep());
  CHECK(next->Keep());

  auto exempt = gate.Enter("10.0.0.1:1", true), another = gate.Enter("10.0.0.1:1", true);
  REQUIRE((exempt && another));
  CHECK_FALSE(exempt->extra());
  auto beyond = gate.Enter("10.0.0.1:1", true);  // the descriptors leave room for four
  CHECK((!beyond || beyond->extra()));
  exempt.reset();
  beyond.reset();
  CHECK_FALSE(gate.Enter("10.0.0.1:1", true)->extra());
  a.reset();
  CHECK_FALSE(gate.Enter("10.0.0.1:1")->extra());
}

TEST_CASE("Above the limit a member alone is let in, and the oldest makes room", "[server]") {
  ConnectionGate standalone(2, 0);
  auto a = standalone.Enter("10.0.0.1:1"), b = standalone.Enter("10.0.0.1:1");
  REQUIRE((a && b));
  CHECK_FALSE(standalone.Enter("10.0.0.1:1"));
  a.reset();
  CHECK(standalone.Enter("10.0.0.1:1"));

  ConnectionGate gate(1, 2);
  auto client = gate.Enter("10.0.0.1:1");
  REQUIRE(client);
  CHECK_FALSE(client->extra());
  int evicted = 0;
  auto first = gate.Enter("10.0.0.1:1"), second = gate.Enter("10.0.0.1:1");
  REQUIRE((first && second));
  CHECK((first->extra() && second->extra()));
  first->OnEvict([&] { evicted = 1; });
  auto third = gate.Enter("10.0.0.1:1");
  REQUIRE(third);
  CHECK(evicted == 1);
  auto fourth = gate.Enter("10.0.0.1:1");  // second goes before it has said how
  REQUIRE(fourth);
  second->OnEvict([&] { evicted = 2; });
  CHECK(evicted == 2);
  CHECK_FALSE(gate.Enter("10.0.0.1:1"));  // those told to go are still there
  first.reset();
  second.reset();
  CHECK(gate.Enter("10.0.0.1:1"));
  client.reset();
  CHECK_FALSE(gate.Enter("10.0.0.1:1")->extra());
}

TEST_CASE("Above the limit, who takes most places makes room", "[server]") {
  // Once the oldest of all went: one stranger who came again and again kept administrators out.
  ConnectionGate gate(1, 3, 0, 1);
  auto client = gate.Enter("10.0.0.9:1");
  std::string evicted;
  auto enter = [&](const char* address, const char* name) {
    auto t = gate.Enter(address);
    REQUIRE(t);
    t->OnEvict([&evicted, name] { evicted += name; });
    return t;
  };
  auto administrator = enter("10.0.0.1:1", "administrator ");
  auto first = enter("10.0.0.2:1", "first "), second = enter("10.0.0.2:2", "second ");
  CHECK(evicted.empty());
  auto third = enter("10.0.0.2:3", "third ");
  CHECK(evicted == "first ");
  first.reset();
  auto fourth = enter("10.0.0.2:4", "fourth ");
  CHECK(evicted == "first second ");
  CHECK(administrator->Keep());
  // Where all have one, the oldest goes; the addresses of one IPv6 network are one.
  second.reset();
  third.reset();
  fourth.reset();
  evicted.clear();
  auto a = enter("[2001:db8::1]:1", "a "), b = enter("10.0.0.3:1", "b "),
       c = enter("10.0.0.4:1", "c ");
  auto d = enter("[2001:db8::2]:1", "d ");
  CHECK(evicted == "a ");
}

TEST_CASE("The HTTP endpoint knows its names", "[http]") {
  const std::vector<std::string> names = {"mayfly", "db.example"};
  for (const char* host :
       {"localhost", "localhost:28017", "LOCALHOST", "127.0.0.1:28017", "10.1.2.3", "[::1]:28017",
        "[fe80::1]", "mayfly:28017", "Mayfly", "db.example.", "db.example:1"})
    CHECK(KnownHost(host, names));
  for (const char* host :
       {"evil.example", "evil.example:28017", "localhost.evil.example", "127.0.0.1.evil",
        "127.0.0.1.nip.io:28017", "", "[::1", "[evil]", "mayfly.evil", "1.2.3.4x", "@"})
    CHECK_FALSE(KnownHost(host, names));
}

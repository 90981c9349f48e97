// The connection between two members: who proves first, versions, silence, and the copies that
// travel on it.
#include "replication/member_link.h"

#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "../patience.h"
#include "../storage/storage_fixture.h"
#include "../test_certificates.h"
#include "../test_ciphers.h"
#include "engine_fixture.h"
#include "replication/byte_text.h"
#include "replication/data_copy.h"
#include "security/tls.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"

namespace mayfly {
namespace asio = boost::asio;
namespace fs = std::filesystem;
using testing::ScratchDir;
using testing::TestMember;

namespace {

template <class T>
LinkTask<void> Keep(LinkTask<Result<T>> task, std::shared_ptr<std::optional<Result<T>>> out) {
  Result<T> r = co_await std::move(task);
  out->emplace(std::move(r));
}

/// Two ends of one connection, and the thread that works for both.
struct Pair {
  Pair() {
    int s[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) == 0);
    for (int i = 0; i < 2; ++i)
      end[i] = std::make_shared<MemberLink>(ByteStream(
          LinkSocket(io.get_executor(), asio::generic::stream_protocol(AF_UNIX, 0), s[i])));
  }
  template <class T>
  std::shared_ptr<std::optional<Result<T>>> Start(LinkTask<Result<T>> task) {
    auto out = std::make_shared<std::optional<Result<T>>>();
    asio::co_spawn(io.get_executor(), Keep(std::move(task), out), asio::detached);
    return out;
  }
  /// Until nothing is left to do; or a deadline, which only a hang misses.
  void Run() {
    io.restart();
    io.run_until(test::Deadline().at);
  }
  /// Until these have their results: the timers of a link that stays open never end.
  template <class... T>
  void RunUntil(const std::shared_ptr<std::optional<Result<T>>>&... results) {
    io.restart();
    const test::Deadline deadline;
    while (!(results->has_value() && ...) && io.run_one_until(deadline.at) > 0) {
    }
    REQUIRE((results->has_value() && ...));
  }
  asio::io_context io;
  std::shared_ptr<MemberLink> end[2];
};

LinkIdentity Self(const std::string& key_file, NodeId node, bool old = false) {
  LinkIdentity id;
  id.node = node;
  id.set_name = "rs0";
  id.key = key_file;
  id.link_keys = {MemberKey(key_file)};
  id.old_handshake = old;
  return id;
}

struct Greeting {
  Result<LinkPeer> dialler, acceptor;
};
Greeting Greet(const LinkIdentity& dialler, const LinkIdentity& acceptor, uint8_t version = 2) {
  Pair p;
  p.end[1]->CloseAfterSilence(500);  // a dialler that has seen a wrong proof says nothing more
  auto dialled = p.Start(p.end[0]->Dial(dialler, LinkPurpose::kStream, 0, version));
  auto accepted = p.Start(p.end[1]->Accept(acceptor));
  p.RunUntil(dialled, accepted);
  return {**dialled, **accepted};
}

}  // namespace

TEST_CASE("Members greet each other by the key, in the versions that both speak", "[link]") {
  auto same = Greet(Self("a key", 1), Self("a key", 2));
  REQUIRE(same.dialler);
  REQUIRE(same.acceptor);
  CHECK(same.dialler.value().info.id == 2);
  CHECK(same.acceptor.value().info.id == 1);
  auto other = Greet(Self("a key", 1), Self("another", 2));
  CHECK(other.dialler.error().code == ErrorCode::kAuthenticationFailed);
  CHECK(other.acceptor.error().code == ErrorCode::kAuthenticationFailed);
  CHECK(Greet(Self("", 1), Self("", 2)).dialler);
  CHECK_FALSE(Greet(Self("", 1), Self("a key", 2)).acceptor);

  // An earlier version dials: only where that is allowed, or where there is no key to be guessed.
  auto refused = Greet(Self("a key", 1), Self("a key", 2), 1);
  CHECK(refused.dialler.error().code == ErrorCode::kAuthenticationFailed);
  CHECK(refused.dialler.error().message.find("allowOldMemberHandshake") != std::string::npos);
  CHECK(Greet(Self("a key", 1), Self("a key", 2, true), 1).acceptor);
  CHECK_FALSE(Greet(Self("another", 1), Self("a key", 2, true), 1).acceptor);
  CHECK(Greet(Self("", 1), Self("", 2), 1).acceptor);
}

TEST_CASE("Members need one key in common", "[link]") {
  auto with = [](NodeId node, std::vector<std::string> keys) {
    LinkIdentity id = Self("", node);
    id.link_keys.clear();
    for (const std::string& k : keys) id.link_keys.push_back(MemberKey(k));
    return id;
  };
  using Keys = std::vector<std::string>;
  // Every step of a rotation, in both directions, and a set that gets its first key.
  const std::pair<Keys, Keys> same[] = {{{"old"}, {"old", "new"}},
                                        {{"old", "new"}, {"old", "new"}},
                                        {{"old", "new"}, {"new", "old"}},
                                        {{"new"}, {"old", "new"}},
                                        {{""}, {"new", ""}},
                                        {{"new", ""}, {"new", ""}},
                                        {{"new"}, {"new", ""}}};
  for (const auto& [a, b] : same) {
    CAPTURE(a, b);
    for (const auto& [dialler, acceptor] : {std::pair(a, b), std::pair(b, a)}) {
      auto g = Greet(with(1, dialler), with(2, acceptor));
      CHECK(g.dialler);
      CHECK(g.acceptor);
    }
  }
  const std::pair<Keys, Keys> different[] = {
      {{"old"}, {"new"}}, {{"a", "b"}, {"c", "d"}}, {{""}, {"new"}}, {{}, {"new"}}, {{}, {}}};
  for (const auto& [a, b] : different) {
    CAPTURE(a, b);
    auto g = Greet(with(1, a), with(2, b));
    CHECK_FALSE(g.acceptor);
    CHECK(g.dialler.error().code == ErrorCode::kAuthenticationFailed);
  }
  // More proofs than there can be keys.
  CHECK_FALSE(Greet(with(1, {"1", "2", "3", "4", "5", "new"}), with(2, {"new"})).acceptor);
}

namespace {

/// Both sides of a link with TLS between members of these two.
Greeting GreetByTls(Tls& dialler, Tls& acceptor, uint8_t version) {
  Pair p;
  boost::system::error_code ec;
  for (auto& end : p.end) end->stream().socket().native_non_blocking(true, ec);
  p.end[1]->stream().set_tls(acceptor.Accept(p.end[1]->stream().socket().native_handle(), {}));
  auto began = p.Start(p.end[0]->StartTls(dialler, "localhost"));
  auto ready = p.Start(p.end[1]->stream().Handshake());
  p.RunUntil(began, ready);
  REQUIRE(**began);
  REQUIRE(**ready);
  LinkIdentity self = Self("a key", 1), other = Self("a key", 2);
  self.tls = &dialler;
  other.tls = &acceptor;
  p.end[0]->CloseAfterSilence(500);
  p.end[1]->CloseAfterSilence(500);
  auto dialled = p.Start(p.end[0]->Dial(self, LinkPurpose::kStream, 0, version));
  auto accepted = p.Start(p.end[1]->Accept(other));
  p.RunUntil(dialled, accepted);
  return {**dialled, **accepted};
}

}  // namespace

TEST_CASE("Members greet by certificates, as their modes say", "[link]") {
  using enum ClusterAuthMode;
  ScratchDir dir;
  testing::Issuer issuer;
  int files = 0;
  auto make = [&](ClusterAuthMode mode, const char* unit, bool shows = true) {
    issuer.unit = {{"O", "Example"}, {"OU", unit}};
    TlsOptions o;
    o.mode = TlsMode::kRequire;
    o.certificate_key_file =
        issuer.Issue(dir.path() + "/" + std::to_string(++files) + ".pem", "member");
    o.ca_file = issuer.Write(dir.path() + "/ca.pem");
    o.cluster_auth = mode;
    o.allow_connections_without_certificates = !shows;
    return Tls::Make(o, [] { return ::time(nullptr); }).value();
  };
  constexpr uint8_t kByKey = 2, kByCertificate = 3;
  struct Case {
    ClusterAuthMode dialler, acceptor;
    uint8_t version;
    bool let_in;
  };
  for (const Case& c : {Case{kKeyFile, kSendKeyFile, kByKey, true},
                        {kSendKeyFile, kKeyFile, kByKey, true},
                        {kSendKeyFile, kSendX509, kByKey, true},
                        {kSendX509, kSendKeyFile, kByCertificate, true},
                        {kSendX509, kX509, kByCertificate, true},
                        {kX509, kSendX509, kByCertificate, true},
                        {kX509, kX509, kByCertificate, true},
                        {kSendX509, kKeyFile, kByCertificate, false},
                        {kSendKeyFile, kX509, kByKey, false},
                        {kKeyFile, kX509, 1, false}}) {
    CAPTURE(static_cast<int>(c.dialler), static_cast<int>(c.acceptor));
    const auto a = make(c.dialler, "members"), b = make(c.acceptor, "members");
    auto g = GreetByTls(*a, *b, c.version);
    CHECK(g.dialler.has_value() == c.let_in);
    CHECK(g.acceptor.has_value() == c.let_in);
    if (c.let_in)
      CHECK(g.acceptor.value().info.id == 1);
    else
      CHECK(g.dialler.error().code == ErrorCode::kAuthenticationFailed);
  }
  // A client's certificate is no member's, on either side.
  const auto member = make(kX509, "members"), client = make(kX509, "clients");
  auto in = GreetByTls(*client, *member, kByCertificate);
  CHECK(in.dialler.error().message.find("not a member's") != std::string::npos);
  CHECK_FALSE(in.acceptor);
  // Whoever does not look himself is refused by the other one.
  LinkIdentity self = Self("a key", 2);
  self.tls = member.get();
  CHECK_FALSE(Greet(Self("a key", 1), self).acceptor);
  Pair plain;
  auto dialled = plain.Start(plain.end[0]->Dial(self, LinkPurpose::kStream, 0, kByCertificate));
  plain.Run();
  CHECK((*dialled)->error().message.find("no TLS") != std::string::npos);
}

namespace {

std::unique_ptr<Tls> MakeTls(const ScratchDir& dir, const testing::Issuer& issuer) {
  TlsOptions o;
  o.mode = TlsMode::kRequire;
  o.certificate_key_file = issuer.Issue(dir.path() + "/member.pem", "member");
  o.ca_file = issuer.Write(dir.path() + "/ca.pem");
  return Tls::Make(o, [] { return ::time(nullptr); }).value();
}

/// Frames of these sizes, and then one more.
LinkTask<Result<size_t>> SendFrames(MemberLink& link, std::vector<size_t> sizes) {
  size_t sent = 0;
  for (const size_t n : sizes) {
    link.Add(77, std::string(n, static_cast<char>('a' + n % 20)));
    MAYFLY_CO_TRY(co_await link.Flush());
    sent += n;
  }
  co_return sent;
}
LinkTask<Result<size_t>> ReadFrames(MemberLink& link, std::vector<size_t> sizes) {
  size_t got = 0;
  for (const size_t n : sizes) {
    auto frame = co_await link.Read();
    if (!frame) co_return frame.error();
    if (frame.value().body == std::string(n, static_cast<char>('a' + n % 20))) got += n;
  }
  co_return got;
}

}  // namespace

TEST_CASE("Members greet and talk by TLS, in both directions at once", "[link]") {
  ScratchDir dir;
  testing::Issuer issuer;
  const auto tls = MakeTls(dir, issuer);
  Pair p;
  boost::system::error_code ec;
  for (auto& end : p.end) end->stream().socket().native_non_blocking(true, ec);
  p.end[1]->stream().set_tls(tls->Accept(p.end[1]->stream().socket().native_handle(), {}));
  auto began = p.Start(p.end[0]->StartTls(*tls, "localhost"));
  auto accepted = p.Start(p.end[1]->stream().Handshake());
  p.Run();
  REQUIRE((began->has_value() && **began));
  REQUIRE((accepted->has_value() && **accepted));
  CHECK(p.end[1]->stream().tls()->peer().subject.starts_with("CN=member"));

  auto dialled = p.Start(p.end[0]->Dial(Self("a key", 1), LinkPurpose::kStream, 0, 2));
  auto greeted = p.Start(p.end[1]->Accept(Self("a key", 2)));
  p.Run();
  REQUIRE((dialled->has_value() && **dialled));
  REQUIRE((greeted->has_value() && **greeted));
  const std::vector<size_t> sizes = {1, 0, 16'384, 9'000'000, 5, 300'000};
  auto sent0 = p.Start(SendFrames(*p.end[0], sizes));
  auto sent1 = p.Start(SendFrames(*p.end[1], sizes));
  auto got0 = p.Start(ReadFrames(*p.end[0], sizes));
  auto got1 = p.Start(ReadFrames(*p.end[1], sizes));
  p.Run();
  for (const auto& r : {sent0, sent1, got0, got1}) {
    REQUIRE(r->has_value());
    REQUIRE(**r);
    CHECK((*r)->value() == 9'316'390);
  }
  // On its way to another thread, with what it has.
  HandedConnection handed = p.end[1]->stream().Release();
  CHECK(handed.socket >= 0);
  REQUIRE(handed.tls);
  ByteStream stream(
      LinkSocket(p.io.get_executor(), asio::generic::stream_protocol(AF_UNIX, 0), handed.socket));
  stream.set_tls(std::move(handed.tls));
  auto moved = std::make_shared<MemberLink>(std::move(stream));
  moved->TakeKeys(*p.end[1]);
  auto later = p.Start(SendFrames(*p.end[0], sizes));
  auto came = p.Start(ReadFrames(*moved, sizes));
  p.Run();
  REQUIRE((came->has_value() && **came));
  CHECK((*came)->value() == 9'316'390);
}

TEST_CASE("A stranger is shown nothing that comes of the key", "[link]") {
  for (const bool old_allowed : {false, true}) {
    Pair p;
    auto accepted = p.Start(p.end[1]->Accept(Self("a key", 2, old_allowed)));
    struct Seen {
      std::vector<uint8_t> types;
      std::vector<size_t> sizes;
    } seen;
    auto stranger = [](MemberLink& link, Seen& seen) -> LinkTask<Result<void>> {
      std::string challenge("\x02\x01", 2);
      challenge.append(32 + 8 + 8, 'x').append(6, '\0');
      // No node is wanted.
      std::memset(challenge.data() + 2 + 32 + 8, 0, 8);
      link.Add(1, challenge);
      MAYFLY_CO_TRY(co_await link.Flush());
      MAYFLY_CO_TRY(MemberLink::Frame nonce, co_await link.Read());
      seen.types.push_back(nonce.type);
      seen.sizes.push_back(nonce.body.size());
      link.Add(3, std::string(32, 'p'));
      MAYFLY_CO_TRY(co_await link.Flush());
      MAYFLY_CO_TRY(MemberLink::Frame verdict, co_await link.Read());
      seen.types.push_back(verdict.type);
      co_return Ok();
    };
    auto told = p.Start(stranger(*p.end[0], seen));
    p.Run();
    REQUIRE(told->has_value());
    CHECK(seen.types == std::vector<uint8_t>{5, 4});
    CHECK(seen.sizes == std::vector<size_t>{32});
    CHECK((*accepted)->error().code == ErrorCode::kAuthenticationFailed);
  }
}

TEST_CASE("The key of the links is made once, at a cost", "[link]") {
  const int64_t begin = test::ThreadMicros();
  const std::string key = MemberKey("once");
  const int64_t first = test::ThreadMicros() - begin;
  CHECK(key.size() == 32);
  CHECK(MemberKey("").empty());
  CHECK(MemberKey("twice") != key);
  const int64_t again = test::ThreadMicros();
  for (int i = 0; i < 1000; ++i) CHECK(MemberKey("once") == key);
  CHECK(test::ThreadMicros() - again < 100 * first);
}

TEST_CASE("A link that falls silent ends itself", "[link]") {
  Pair p;
  p.end[0]->CloseAfterSilence(200);
  auto read = [](MemberLink& link) -> LinkTask<Result<void>> {
    MAYFLY_CO_TRY(co_await link.Read());
    MAYFLY_CO_TRY(co_await link.Read());
    co_return Ok();
  };
  auto silent = p.Start(read(*p.end[0]));
  // One frame in small pieces, more slowly than the silence is long altogether.
  std::string frame;
  AppendNumber(frame, uint32_t{9});
  frame.append(9, 'x');
  for (size_t i = 0; i < frame.size(); ++i) {
    REQUIRE(::send(p.end[1]->stream().socket().native_handle(), frame.data() + i, 1, 0) == 1);
    p.io.restart();
    p.io.run_for(std::chrono::milliseconds(40));  // clock: its ticks count, which run here
  }
  CHECK_FALSE(silent->has_value());
  p.Run();
  REQUIRE(silent->has_value());
  CHECK((*silent)->error().code == ErrorCode::kHostUnreachable);
  CHECK((*silent)->error().message.find("does not answer") != std::string::npos);
}

TEST_CASE("What nobody takes does not keep a link waiting", "[link]") {
  Pair p;
  p.end[0]->CloseAfterSilence(200);
  p.end[0]->Add(10, std::string(8 << 20, 'x'));
  auto flushed = p.Start(p.end[0]->Flush());
  p.Run();
  REQUIRE(flushed->has_value());
  CHECK((*flushed)->error().code == ErrorCode::kHostUnreachable);
}

TEST_CASE("A server that accepts and says nothing is given up", "[link]") {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  REQUIRE(::listen(listener, 4) == 0);
  socklen_t n = sizeof a;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&a), &n);
  Pair p;
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(a.sin_port));
  auto made = p.Start(MakeLink(address, Self("a key", 1), LinkPurpose::kFetch, 0));
  p.Run();
  REQUIRE(made->has_value());
  CHECK((*made)->error().code == ErrorCode::kHostUnreachable);
  ::close(listener);
}

TEST_CASE("A member of an earlier version is dialled again in its own way, if that is allowed",
          "[link]") {
  for (const bool allowed : {true, false}) {
    asio::io_context io;
    asio::ip::tcp::acceptor listener(io, {asio::ip::address_v4::loopback(), 0});
    const std::string address = "127.0.0.1:" + std::to_string(listener.local_endpoint().port());
    std::atomic<bool> stop{false};
    int connections = 0;
    // What the earlier version does: it ends a connection whose challenge it does not know.
    std::thread old([&] {
      while (true) {
        boost::system::error_code ec;
        asio::ip::tcp::socket s = listener.accept(ec);
        if (ec || stop) return;
        ++connections;
        char size[4];
        asio::read(s, asio::buffer(size), ec);
        std::string rest(LoadLe<uint32_t>(size) - 4, '\0');
        asio::read(s, asio::buffer(rest), ec);
        std::string reply;
        const BsonDocument body = BuildBson([](BsonBuilder& b) { b.Append("ok", 1.0); });
        for (int32_t v : {static_cast<int32_t>(21 + body.view().size()), 1, 1, 2013, 0})
          AppendNumber(reply, v);
        reply.push_back('\0');
        reply.append(body.view().data(), body.view().size());
        asio::write(s, asio::buffer(reply), ec);
        std::string head(5 + 1, '\0');
        asio::read(s, asio::buffer(head), ec);
        if (head[5] != 1) continue;
        asio::io_context own;
        MemberLink link(ByteStream(LinkSocket(
            own.get_executor(), asio::generic::stream_protocol(AF_INET, 0), s.release())));
        link.Unread(head);
        auto out = std::make_shared<std::optional<Result<LinkPeer>>>();
        asio::co_spawn(own.get_executor(), Keep(link.Accept(Self("a key", 2, true)), out),
                       asio::detached);
        own.run_until(test::Deadline().at);
      }
    });
    Pair p;
    auto made = p.Start(MakeLink(address, Self("a key", 1, allowed), LinkPurpose::kProbe, 0));
    p.Run();
    stop = true;
    asio::ip::tcp::socket last(io);
    last.connect(listener.local_endpoint());
    old.join();
    REQUIRE(made->has_value());
    CHECK(connections == (allowed ? 2 : 1));
    if (allowed) {
      REQUIRE((*made)->has_value());
      CHECK((*made)->value().peer.info.id == 2);
    } else {
      CHECK((*made)->error().code == ErrorCode::kHostUnreachable);
      CHECK((*made)->error().message.find("allowOldMemberHandshake") != std::string::npos);
    }
  }
}

namespace {

/// A clock whose monotonic time is moved by hand.
class SteppedClock final : public Clock {
 public:
  Instant Now() const override { return {us / 1000}; }
  int64_t MonotonicMicros() const override { return us; }
  void OnJump(std::function<void()>) override {}
  int64_t us = 1'000'000'000;
};

struct Donor {
  explicit Donor(FileCiphersPtr ciphers = nullptr) {
    KvOptions k;
    k.path = dir.path();
    k.cache_bytes = 16 << 20;
    kv = std::move(MakeRocksEngine(nullptr, ciphers)->Open(k).value());
    auto batch = kv->NewBatch();
    batch->Put(Keyspace::kRecords, "key", "", "value");
    REQUIRE(kv->Write(*batch, true));
    store = std::make_unique<CheckpointStore>(
        *kv, dir.path(), clock, 200,
        [this](char, std::string_view line) { lines.emplace_back(line); });
  }
  bool Told(std::string_view what) const {
    for (const std::string& l : lines)
      if (l.find(what) != std::string::npos) return true;
    return false;
  }
  ScratchDir dir;
  SteppedClock clock;
  std::vector<std::string> lines;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<CheckpointStore> store;
};

/// A joiner that asks for the list, and then for nothing.
LinkTask<Result<void>> AskForList(MemberLink& link, std::string id, uint8_t* type) {
  link.Add(20, id);
  MAYFLY_CO_TRY(co_await link.Flush());
  MAYFLY_CO_TRY(MemberLink::Frame frame, co_await link.Read());
  *type = frame.type;
  co_return Ok();
}
LinkTask<Result<void>> AskForPiece(MemberLink& link, uint8_t* type) {
  std::string ask;
  AppendNumber(ask, uint64_t{0});
  AppendNumber(ask, uint32_t{1});
  link.Add(22, ask, "CURRENT");
  MAYFLY_CO_TRY(co_await link.Flush());
  MAYFLY_CO_TRY(MemberLink::Frame frame, co_await link.Read());
  *type = frame.type;
  co_return Ok();
}

}  // namespace

TEST_CASE("A donor does not keep a copy for a joiner that has fallen silent", "[link]") {
  Donor d;
  const std::string id = d.store->Make({1, 7}).value();
  CHECK(d.store->KeepFrom() == 7);
  Pair p;
  asio::co_spawn(p.io.get_executor(), d.store->Serve(p.end[1]), asio::detached);
  uint8_t type = 0;
  auto asked = p.Start(AskForList(*p.end[0], id, &type));
  p.Run();  // ends when the donor has given the link up
  CHECK(type == 21);
  CHECK_FALSE(p.end[1]->stream().socket().is_open());
  d.store->RemoveStale();
  CHECK(d.store->Has(id));  // it may come back
  d.clock.us += 601'000'000;
  d.store->RemoveStale();
  CHECK_FALSE(d.store->Has(id));
  CHECK(d.store->KeepFrom() == UINT64_MAX);
  CHECK_FALSE(fs::exists(d.dir.path() + "/.checkpoints/" + id));
  CHECK(d.Told("nobody has asked for"));
}

TEST_CASE("A copy that keeps too much is given up while somebody takes it", "[link]") {
  Donor d;
  const std::string id = d.store->Make({1, 7}).value(), newer = d.store->Make({1, 9}).value();
  Pair p;
  asio::co_spawn(p.io.get_executor(), d.store->Serve(p.end[1]), asio::detached);
  uint8_t type = 0;
  auto asked = p.Start(AskForList(*p.end[0], id, &type));
  while (!asked->has_value()) p.io.run_one();
  CHECK(type == 21);
  auto piece = p.Start(AskForPiece(*p.end[0], &type));
  while (!piece->has_value()) p.io.run_one();
  CHECK(type == 23);
  d.store->GiveUp(8, "the log has grown");
  CHECK_FALSE(d.store->Has(id));
  CHECK(d.store->Has(newer));
  CHECK(d.store->KeepFrom() == 9);
  CHECK(d.Told("the log has grown"));
  auto refused = p.Start(AskForPiece(*p.end[0], &type));
  while (!refused->has_value()) p.io.run_one();
  CHECK(type == 4);
  p.Run();
}

TEST_CASE("A donor keeps a few copies, and drops the oldest unused one for a new one", "[link]") {
  Donor d;
  std::vector<std::string> ids;
  for (uint64_t i = 0; i < CheckpointStore::kMost + 1; ++i) {
    d.clock.us += 1000;
    ids.push_back(d.store->Make({1, i + 1}).value());
  }
  CHECK_FALSE(d.store->Has(ids[0]));
  CHECK(d.store->Has(ids[1]));
  CHECK_FALSE(d.store->Full());
  CHECK(d.store->KeepFrom() == 2);
}

TEST_CASE("A joiner whose donor falls silent goes on where it was, on a new link", "[link]") {
  Donor d;
  const std::string id = d.store->Make({1, 7}).value();
  ScratchDir to;
  DataCopy::Progress progress;
  DataCopy copy(MakeRocksEngine(), to.path(), id, progress);
  {
    Pair p;
    p.end[0]->CloseAfterSilence(200);
    // The donor answers the first request and nothing more.
    auto half = [](MemberLink& link) -> LinkTask<Result<void>> {
      MAYFLY_CO_TRY(co_await link.Read());
      std::string list;
      AppendNumber(list, uint32_t{1});
      AppendNumber(list, uint64_t{1});
      AppendNumber(list, uint16_t{7});
      link.Add(21, list, "CURRENT");
      co_return co_await link.Flush();
    };
    auto donor = p.Start(half(*p.end[1]));
    auto fetched = p.Start(copy.Fetch(*p.end[0]));
    p.Run();
    REQUIRE(fetched->has_value());
    CHECK((*fetched)->error().code == ErrorCode::kHostUnreachable);
  }
  Pair p;
  p.end[0]->CloseAfterSilence(5000);
  asio::co_spawn(p.io.get_executor(), d.store->Serve(p.end[1]), asio::detached);
  auto fetched = p.Start(copy.Fetch(*p.end[0]));
  p.Run();
  REQUIRE(fetched->has_value());
  REQUIRE(**fetched);
  CHECK(progress.done == progress.total);
  CHECK(d.store->KeepFrom() == UINT64_MAX);  // taken: forgotten
}

TEST_CASE("A copy is encrypted by the keys of whoever takes it", "[link]") {
  const bool from = GENERATE(false, true), to = GENERATE(false, true);
  CAPTURE(from, to);
  Donor d(from ? testing::MakeCiphers() : FileCiphersPtr());
  const std::string id = d.store->Make({1, 7}).value();
  ScratchDir dir;
  const KvEnginePtr engine = MakeRocksEngine(nullptr, to ? testing::MakeCiphers() : nullptr);
  DataCopy::Progress progress;
  DataCopy copy(engine, dir.path(), id, progress);
  {
    Pair p;
    p.end[0]->CloseAfterSilence(5000);
    asio::co_spawn(p.io.get_executor(), d.store->Serve(p.end[1]), asio::detached);
    auto fetched = p.Start(copy.Fetch(*p.end[0]));
    while (!fetched->has_value()) p.io.run_one();
    REQUIRE(**fetched);
    p.end[0]->Close();
    p.Run();
    CHECK(progress.done == progress.total);
  }
  const std::string incoming = dir.path() + "/.resync/incoming";
  std::ifstream in(incoming + "/CURRENT", std::ios::binary);
  char first[8] = {};
  in.read(first, sizeof first);
  CHECK(BeginsEncrypted({first, sizeof first}) == to);
  auto opened = engine->Open({.path = incoming, .cache_bytes = 16 << 20, .log = {}});
  if (!opened) FAIL(opened.error().message);
  PinnedValue v;
  CHECK(opened.value()->Get(Keyspace::kRecords, "key", &v, nullptr).value());
  CHECK(v.view() == "value");
}

TEST_CASE("Lists of files that no donor sends are refused", "[link]") {
  auto list = [](std::string_view name) {
    std::string out;
    AppendNumber(out, uint32_t{1});
    AppendNumber(out, uint64_t{5});
    AppendNumber(out, static_cast<uint16_t>(name.size()));
    return out.append(name);
  };
  CHECK(ParseCopyList(list("CURRENT")).value().front().size == 5);
  for (std::string_view bad : {"", ".", "..", ".resync", "a/b", "/etc/passwd"})
    CHECK_FALSE(ParseCopyList(list(bad)));
  CHECK_FALSE(ParseCopyList(list(std::string_view("a\0b", 3))));
  CHECK_FALSE(ParseCopyList(list("CURRENT") + "x"));
  CHECK_FALSE(ParseCopyList(std::string_view(list("CURRENT")).substr(0, 10)));
  CHECK_FALSE(ParseCopyList(std::string(4, '\xff')));
}

namespace {

/// A directory with a store of its own and a copy that waits to take its place.
struct Waiting {
  Waiting() : root(dir.path() + "/.resync") {
    Write(dir.path() + "/CURRENT", "MANIFEST-000001\n");
    Write(dir.path() + "/MANIFEST-000001", "own");
    Write(dir.path() + "/000007.sst", "own data");
    fs::create_directories(root + "/incoming");
    Write(root + "/incoming/CURRENT", "MANIFEST-000002\n");
    Write(root + "/incoming/MANIFEST-000002", "theirs");
    Write(root + "/incoming/000009.sst", "their data");
    DataCopy::Progress progress;
    REQUIRE(DataCopy(MakeRocksEngine(), dir.path(), "1-1-1", progress).MarkReady());
  }
  static void Write(const std::string& path, std::string_view text) { std::ofstream(path) << text; }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    std::string text;
    std::getline(in, text);
    return text;
  }
  /// Whether the member's own data is there, wherever.
  bool Own() const {
    return Read(dir.path() + "/000007.sst") == "own data" ||
           Read(root + "/old/000007.sst") == "own data";
  }
  ScratchDir dir;
  const std::string root;
};

}  // namespace

TEST_CASE("A copy takes the place of the data, also when that is interrupted", "[link]") {
  Waiting w;
  REQUIRE(ApplyPendingResync(*MakeRocksEngine(), w.dir.path()).value());
  CHECK(Waiting::Read(w.dir.path() + "/000009.sst") == "their data");
  CHECK(Waiting::Read(w.dir.path() + "/CURRENT") == "MANIFEST-000002");
  CHECK_FALSE(fs::exists(w.dir.path() + "/000007.sst"));
  CHECK_FALSE(fs::exists(w.root));
  CHECK_FALSE(ApplyPendingResync(*MakeRocksEngine(), w.dir.path()).value());

  Waiting half;
  fs::create_directories(half.root + "/old");
  for (const char* f : {"CURRENT", "MANIFEST-000001", "000007.sst"})
    fs::rename(half.dir.path() + "/" + f, half.root + "/old/" + f);
  fs::rename(half.root + "/ready", half.root + "/moving");
  fs::rename(half.root + "/incoming/000009.sst", half.dir.path() + "/000009.sst");
  REQUIRE(ApplyPendingResync(*MakeRocksEngine(), half.dir.path()).value());
  CHECK(Waiting::Read(half.dir.path() + "/000009.sst") == "their data");
  CHECK(Waiting::Read(half.dir.path() + "/CURRENT") == "MANIFEST-000002");
}

TEST_CASE("A copy that cannot be listed removes nothing", "[link]") {
  for (const bool moving : {false, true}) {
    Waiting w;
    if (moving) {
      fs::create_directories(w.root + "/old");
      for (const char* f : {"CURRENT", "MANIFEST-000001", "000007.sst"})
        fs::rename(w.dir.path() + "/" + f, w.root + "/old/" + f);
      fs::rename(w.root + "/ready", w.root + "/moving");
    }
    fs::rename(w.root + "/incoming", w.root + "/aside");
    fs::create_directory_symlink("incoming", w.root + "/incoming");  // leads to itself: ELOOP
    CHECK_FALSE(ApplyPendingResync(*MakeRocksEngine(), w.dir.path()));
    CHECK(w.Own());
    CHECK(Waiting::Read(w.root + "/aside/000009.sst") == "their data");
    // With the directory back it goes on.
    fs::remove(w.root + "/incoming");
    fs::rename(w.root + "/aside", w.root + "/incoming");
    REQUIRE(ApplyPendingResync(*MakeRocksEngine(), w.dir.path()).value());
    CHECK(Waiting::Read(w.dir.path() + "/000009.sst") == "their data");
  }
}

TEST_CASE("A copy that lacks a file does not take the place of the data", "[link]") {
  Waiting w;
  fs::remove(w.root + "/incoming/000009.sst");
  CHECK_FALSE(ApplyPendingResync(*MakeRocksEngine(), w.dir.path()).value());
  CHECK(Waiting::Read(w.dir.path() + "/000007.sst") == "own data");
  CHECK(Waiting::Read(w.dir.path() + "/CURRENT") == "MANIFEST-000001");

  Waiting cut;
  fs::resize_file(cut.root + "/incoming/000009.sst", 3);
  CHECK_FALSE(ApplyPendingResync(*MakeRocksEngine(), cut.dir.path()).value());
  CHECK(Waiting::Read(cut.dir.path() + "/000007.sst") == "own data");

  // Ours has begun to move: neither is complete in its place, both stay.
  Waiting half;
  fs::create_directories(half.root + "/old");
  for (const char* f : {"CURRENT", "MANIFEST-000001", "000007.sst"})
    fs::rename(half.dir.path() + "/" + f, half.root + "/old/" + f);
  fs::rename(half.root + "/ready", half.root + "/moving");
  fs::remove(half.root + "/incoming/MANIFEST-000002");
  auto applied = ApplyPendingResync(*MakeRocksEngine(), half.dir.path());
  REQUIRE_FALSE(applied);
  CHECK(applied.error().message.find("MANIFEST-000002") != std::string::npos);
  CHECK(half.Own());
}

TEST_CASE("A copy that an earlier version has made ready is taken", "[link]") {
  Waiting w;
  Waiting::Write(w.root + "/ready", "1-1-1\n");
  REQUIRE(ApplyPendingResync(*MakeRocksEngine(), w.dir.path()).value());
  CHECK(Waiting::Read(w.dir.path() + "/000009.sst") == "their data");
  Waiting bad;
  Waiting::Write(bad.root + "/ready", "1-1-1\n");
  fs::remove(bad.root + "/incoming/MANIFEST-000002");
  CHECK_FALSE(ApplyPendingResync(*MakeRocksEngine(), bad.dir.path()).value());
  CHECK(bad.Own());
}

}  // namespace mayfly

#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "tests/unit/server/server_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

TEST_CASE("Requests sent together are answered in order", "[server]") {
  TestServer server;
  RawClient c(server.port());
  std::string all;
  for (int i = 1; i <= 50; ++i)
    all += RawClient::Message(
        i % 5 ? R"({"ping": 1, "$db": "admin"})" : R"({"nonsense": 1, "$db": "admin"})", 0, i);
  c.Send(all);
  for (int i = 1; i <= 50; ++i) {
    BsonDocument r = c.Reply();
    CHECK(c.header.response_to == i);
    CHECK(IsOk(r) == (i % 5 != 0));
  }
}

TEST_CASE("Who connects before the server has started is served once it has", "[server]") {
  TestServer server([](ServerConfig&) {}, true);
  RawClient c(server.port());
  c.Send(RawClient::Message(R"({"ping": 1, "$db": "admin"})"));
  CHECK(server.context().metrics().connections.current == 0);
  server.server().Start();
  CHECK(IsOk(c.Reply()));
}

TEST_CASE("An exception in a command is an InternalError; the connection goes on", "[server]") {
  TestServer server;
  RawClient c(server.port());
  for (const char* name : {"testThrow", "testThrowOnWorker", "testThrowLater"}) {
    CAPTURE(name);
    for (const char* more : {"", R"("x": 1, )"}) {
      BsonDocument r =
          c.Command("{\"" + std::string(name) + "\": 1, " + more + R"("$db": "admin"})");
      CHECK(Code(r) == 1);
      CHECK(r.view()["codeName"].String() == "InternalError");
      CHECK(r.view()["halfway"].missing());
      CHECK(IsOk(c.Command(R"({"ping": 1, "$db": "admin"})")));
    }
  }
  // Jobs and timers that belong to no command.
  server.context().workers().Post([] { throw std::runtime_error("a worker's job"); });
  CHECK(IsOk(c.Command(R"({"ping": 1, "$db": "admin"})")));
  server.PostToIo([] { throw std::runtime_error("an io thread's timer"); });
  CHECK(IsOk(c.Command(R"({"ping": 1, "$db": "admin"})")));
  Eventually([&] { return server.context().log().counts(LogSeverity::kError) == 8; });
  size_t total = 0;
  std::string lines;
  for (const std::string& l : server.context().log().RecentLines(&total)) lines += l;
  for (const char* text : {"as the test asked", "a worker's job", "an io thread's timer"})
    CHECK(lines.find(text) != std::string::npos);
}

TEST_CASE("A message may come in any pieces", "[server]") {
  TestServer server;
  RawClient c(server.port()), other(server.port());
  const std::string m = RawClient::Message(R"({"ping": 1, "$db": "admin"})");
  for (size_t cut : {size_t{1}, size_t{15}, size_t{17}, m.size() - 1}) {
    c.Send(m.substr(0, cut));
    // The one io thread has read the piece before it answers the second of these.
    for (int i = 0; i < 2; ++i) CHECK(IsOk(other.Command(R"({"ping": 1, "$db": "admin"})")));
    c.Send(m.substr(cut) + m);
    CHECK(IsOk(c.Reply()));
    CHECK(IsOk(c.Reply()));
  }
}

TEST_CASE("A large message grows the buffer and is answered", "[server]") {
  TestServer server;
  RawClient c(server.port());
  for (int size : {3000, 70'000, 1'000'000, 9'000'000, 100}) {
    const std::string text(static_cast<size_t>(size), 'x');
    CHECK(IsOk(c.Command(R"({"ping": 1, "comment": ")" + text + R"(", "$db": "admin"})")));
  }
}

TEST_CASE("A broken frame ends its own connection and no other", "[server]") {
  TestServer server;
  RawClient other(server.port());
  CHECK(IsOk(other.Command(R"({"ping": 1, "$db": "admin"})")));
  auto header = [](int32_t length, int32_t opcode) {
    std::string h(16, '\0');
    StoreLe<int32_t>(h.data(), length);
    StoreLe<int32_t>(h.data() + 12, opcode);
    return h;
  };
  for (const std::string& bytes :
       {header(-1, 2013), header(5, 2013), header(48'000'001, 2013), header(INT32_MAX, 2013),
        header(26, 9999) + std::string(10, '\0'), header(26, 2012) + std::string(10, '\xff'),
        header(21, 2013) + std::string(5, '\0')}) {
    RawClient c(server.port());
    c.Send(bytes);
    CHECK(c.Closed());
  }
  CHECK(IsOk(other.Command(R"({"ping": 1, "$db": "admin"})")));
}

TEST_CASE("A request with moreToCome gets no reply", "[server]") {
  TestServer server;
  RawClient c(server.port());
  c.Send(RawClient::Message(R"({"ping": 1, "$db": "admin"})", kMsgMoreToCome, 1));
  c.Send(RawClient::Message(R"({"ping": 1, "$db": "admin"})", 0, 2));
  CHECK(IsOk(c.Reply()));
  CHECK(c.header.response_to == 2);
}

TEST_CASE("A document sequence that the command does not take is an unknown field", "[server]") {
  TestServer server;
  RawClient c(server.port());
  // They were ignored: a find whose filter came so gave everything.
  for (const char* command : {R"({"ping": 1, "$db": "admin"})", R"({"find": "c", "$db": "d"})",
                              R"({"delete": "c", "deletes": [], "$db": "d"})"}) {
    std::string message = RawClient::Message(command, 0, 1);
    const BsonDocument filter = ParseJson(R"({"_id": 1})").value();
    std::string section = "filter";
    section.push_back('\0');
    section.append(filter.bytes());
    char size[4];
    StoreLe<int32_t>(size, static_cast<int32_t>(section.size() + 4));
    message.push_back(1);
    message.append(size, 4).append(section);
    StoreLe<int32_t>(message.data(), static_cast<int32_t>(message.size()));
    c.Send(message);
    CHECK(Code(c.Reply()) == 40415);
  }
}

TEST_CASE("What lists a message's documents is charged until its reply", "[server]") {
  TestServer server;
  RawClient client(server.port());
  std::string documents;
  for (int i = 0; i < 200'000; ++i) documents += std::string("\x05\0\0\0\0", 5);
  std::string frame;
  const size_t start = BeginOpMsg(frame, 7, 0, 0);
  frame += ParseJson(kPing).value().bytes() + "\x01";
  const auto size = static_cast<int32_t>(4 + 2 + documents.size());
  frame.append(reinterpret_cast<const char*>(&size), 4).append("a").append(1, '\0') += documents;
  FinishMessage(frame, start);
  large_memory::Budget& memory = server.context().large_memory();
  // There is no room for it: the reply says so, and the connection goes on.
  memory.SetLimit(1 << 20);
  client.Send(frame);
  CHECK(Code(client.Reply()) == 146);
  Eventually([&] { return memory.used() == 0; });
  // A connection that waits for its next message does not keep the list of the last one.
  memory.SetLimit(64 << 20);
  client.Send(frame);
  CHECK(Code(client.Reply()) == 40415);
  Eventually([&] { return memory.used() == 0; });
  CHECK(IsOk(client.Command(kPing)));
}

TEST_CASE("A checksum is checked, and answered with one", "[server]") {
  TestServer server;
  RawClient c(server.port());
  CHECK(IsOk(c.Command(R"({"ping": 1, "$db": "admin"})", kMsgChecksumPresent)));
  CHECK((c.flags & kMsgChecksumPresent) != 0);
}

TEST_CASE("OP_QUERY is for greetings and logins only", "[server]") {
  TestServer server;
  auto query = [](std::string_view ns, std::string_view json) {
    std::string m(16, '\0');
    m.append(4, '\0').append(ns).push_back('\0');
    m.append(4, '\0').append("\xff\xff\xff\xff", 4).append(ParseJson(json).value().bytes());
    StoreLe<int32_t>(m.data(), static_cast<int32_t>(m.size()));
    StoreLe<int32_t>(m.data() + 4, 11);
    StoreLe<int32_t>(m.data() + 12, 2004);
    return m;
  };
  RawClient c(server.port());
  c.Send(query("admin.$cmd", R"({"isMaster": 1, "helloOk": true})"));
  BsonDocument r = c.Reply();
  CHECK(IsOk(r));
  CHECK(c.header.opcode == 1);
  CHECK(c.header.response_to == 11);
  CHECK(r.view()["ismaster"].Bool());
  CHECK(r.view()["helloOk"].Bool());
  c.Send(query("admin.$cmd", R"({"find": "c"})"));
  r = c.Reply();
  CHECK(Code(r) == 352);
}

TEST_CASE("Compression is agreed in hello and used for what asked for it", "[server]") {
  TestServer server;
  for (Compressor compressor : {Compressor::kSnappy, Compressor::kZlib, Compressor::kZstd}) {
    RawClient c(server.port());
    const std::string name(CompressorName(compressor));
    BsonDocument hello =
        c.Command(R"({"hello": 1, "compression": [")" + name + R"(", "lz4"], "$db": "admin"})");
    REQUIRE(hello.view()["compression"].IsArray());
    CHECK(hello.view().FindPath("compression.0").String() == name);
    CHECK(hello.view()["compression"].Document().Count() == 1);
    CHECK_FALSE(c.compressed);
    std::string m = RawClient::Message(R"({"listCommands": 1, "comment": ")" +
                                       std::string(2000, 'x') + R"(", "$db": "admin"})");
    REQUIRE(CompressMessage(m, 0, compressor));
    c.Send(m);
    CHECK(IsOk(c.Reply()));
    CHECK(c.compressed);
    c.compressed = false;
    CHECK(IsOk(c.Command(R"({"listCommands": 1, "$db": "admin"})")));
    CHECK_FALSE(c.compressed);
  }
}

TEST_CASE("An awaitable hello waits its time, and the stream of an exhaust hello goes on",
          "[server]") {
  TestServer server;
  RawClient c(server.port());
  BsonDocument hello = c.Command(R"({"hello": 1, "$db": "admin"})");
  const std::string version = ToCanonicalJson(hello.view()["topologyVersion"].Document());
  const std::string ask = R"({"hello": 1, "topologyVersion": )" + version +
                          R"(, "maxAwaitTimeMS": 30, "$db": "admin"})";
  const int64_t begin = server.clock().MonotonicMicros();
  CHECK(IsOk(c.Command(ask)));
  CHECK(server.clock().MonotonicMicros() - begin >= 30'000);  // clock: at least
  int32_t before = 0;
  c.Send(RawClient::Message(ask, kMsgExhaustAllowed, 99));
  for (int i = 0; i < 3; ++i) {
    CHECK(IsOk(c.Reply()));
    CHECK((c.flags & kMsgMoreToCome) != 0);
    CHECK(c.header.response_to == (i == 0 ? 99 : before));
    before = c.header.request_id;
  }
}

TEST_CASE("Client metadata comes once, and must be complete", "[server]") {
  TestServer server;
  const std::string good =
      R"({"hello": 1, "client": {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"},
                              "application": {"name": "app"}}, "$db": "admin"})";
  RawClient c(server.port());
  CHECK(IsOk(c.Command(good)));
  CHECK(Code(c.Command(good)) == 186);
  for (
      const auto& [client, code] : std::vector<std::pair<std::string, int>>{
          {R"({"os": {"type": "x"}})", 183},
          {R"({"driver": {"name": "d", "version": "1"}})", 183},
          {R"({"driver": {"name": "d", "version": "1"}, "os": {"type": ")" + std::string(600, 'x') +
               R"("}})",
           185},
          {R"({"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}, "application": {"name": ")" +
               std::string(129, 'x') + R"("}})",
           184}}) {
    RawClient bad(server.port());
    CHECK(Code(bad.Command(R"({"hello": 1, "client": )" + client + R"(, "$db": "admin"})")) ==
          code);
  }
}

TEST_CASE("Every command is checked alike before it runs", "[server]") {
  TestServer server;
  RawClient c(server.port());
  struct Case {
    const char* json;
    int code;
  };
  for (
      const Case& x : std::initializer_list<Case>{
          {R"({"nonsense": 1, "$db": "admin"})", 59},
          {R"({"ping": 1})", 40571},
          {R"({"ping": 1, "$db": "a.b"})", 73},
          {R"({"setParameter": 1, "logLevel": 0, "$db": "test"})", 13},
          {R"({"ping": 1, "apiVersion": "2", "$db": "admin"})", 322},
          {R"({"ping": 1, "apiStrict": true, "$db": "admin"})", 4886600},
          {R"({"getLog": "*", "apiVersion": "1", "apiStrict": true, "$db": "admin"})", 323},
          {R"({"ping": 1, "writeConcern": {"w": 1}, "$db": "admin"})", 72},
          {R"({"ping": 1, "readConcern": {"level": "majority"}, "$db": "admin"})", 72},
          {R"({"ping": 1, "readConcern": {"level": "snapshot"}, "$db": "admin"})", 123},
          {R"({"ping": 1, "readConcern": {"level": "x"}, "$db": "admin"})", 2},
          {R"({"ping": 1, "lsid": {"id": 5}, "$db": "admin"})", 14},
          {R"({"ping": 1, "lsid": {"id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a962"}, "id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a963"}}, "$db": "admin"})",
           40413},
          {R"({"endSessions": [{"id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a962"}, "id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a963"}}], "$db": "admin"})",
           40413},
          {R"({"ping": 1, "txnNumber": {"$numberLong": "1"}, "$db": "admin"})", 72},
          {R"({"ping": 1, "txnNumber": {"$numberLong": "1"}, "lsid": {"id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a962"}}, "$db": "admin"})",
           20},
          {R"({"ping": 1, "nonsense": 1, "$db": "admin"})", 40415},
          {R"({"replSetGetStatus": 1, "$db": "admin"})", 76},
          {R"({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "$db": "admin"})", 40414},
          {R"({"setParameter": 1, "ttlMonitorSleepSecs": 0, "$db": "admin"})", 2},
          {R"({"getParameter": 1, "nonsense": 1, "$db": "admin"})", 72}}) {
    CAPTURE(x.json);
    BsonDocument r = c.Command(x.json);
    CHECK(Code(r) == x.code);
    CHECK(r.view()["ok"].Double() == 0);
    CHECK(r.view()["errmsg"].String().size() > 3);
    CHECK(r.view()["codeName"].IsString());
  }
  CHECK(IsOk(c.Command(
      R"({"ping": 1, "lsid": {"id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a962"}}, "apiVersion": "1", "apiStrict": true, "$db": "admin"})")));
  CHECK(server.context().sessions().size() == 1);
  CHECK(IsOk(c.Command(
      R"({"endSessions": [{"id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a962"}}], "$db": "admin"})")));
  CHECK(server.context().sessions().size() == 0);
}

TEST_CASE("maxTimeMS ends a long command", "[server]") {
  TestServer server;
  RawClient c(server.port());
  CHECK(Code(c.Command(R"({"testSpin": 1, "maxTimeMS": 20, "$db": "admin"})")) == 50);
}

TEST_CASE("A long command holds no io thread, shows in currentOp and can be killed", "[server]") {
  TestServer server;
  RawClient busy(server.port()), c(server.port());
  for (const char* command : {R"({"testSpin": 1, "comment": "me", "$db": "admin"})",
                              R"({"testWait": 1, "ms": 60000, "comment": "me", "$db": "admin"})"}) {
    busy.Send(RawClient::Message(command));
    int64_t id = 0;
    Eventually([&] {
      BsonDocument r = c.Command(R"({"currentOp": 1, "command.comment": "me", "$db": "admin"})");
      REQUIRE(IsOk(r));
      id = r.view().FindPath("inprog.0.opid").NumberAsInt64();
      return id != 0;
    });
    CHECK(IsOk(c.Command(R"({"killOp": 1, "op": )" + std::to_string(id) + R"(, "$db": "admin"})")));
    CHECK(Code(busy.Reply()) == 11601);
  }
}

namespace {

std::atomic<int> secrets_running{0};

/// testSecret: shows its name only, and runs on a worker until it is interrupted.
Result<void> RunSecret(CommandContext& ctx, const CommandRequest&, BsonBuilder&) {
  ++secrets_running;
  while (true) {
    MAYFLY_TRY(ctx.op.CheckInterruptNow());
    std::this_thread::yield();
  }
}

}  // namespace

TEST_CASE("What is shown of a command stays the same from before it is decided about", "[server]") {
  TestServer server([](ServerConfig&) {}, true);
  ServerContext& context = server.context();
  context.commands().Add(
      {.name = "testSecret", .flags = kWorker | kSecret | kApiV1, .help = "", .run = &RunSecret});
  server.server().Start();
  RawClient c(server.port());
  CHECK(IsOk(c.Command(kPing)));
  std::set<const void*> shown;
  std::set<std::string> sessions;
  const auto look = [&] {
    context.operations().ForEach([&](const ClientSlot::View& v) {
      if (v.command_name != "testSecret") return;
      shown.insert(v.command.data());
      sessions.emplace(v.session);
    });
    return !shown.empty();
  };
  // A large request that is to be decided about waits for a worker, and all that there may ever be
  // are held.
  struct Held {
    std::atomic<bool> still{true};
    void Release() {
      still = false;
      still.notify_all();
    }
  };
  const auto held = std::make_shared<Held>();
  const std::unique_ptr<Held, void (*)(Held*)> released(held.get(), [](Held* h) { h->Release(); });
  for (unsigned i = 0; i < context.workers().threads() + WorkerPool::kMaxExtra; ++i)
    context.workers().Post([held] { held->still.wait(true); });
  c.Send(RawClient::Message(
      R"({"testSecret": 1, "apiVersion": "1", "apiStrict": true, "comment": ")" +
      std::string(20000, 'x') +
      R"(", "lsid": {"id": {"$uuid": "3b241101-e2bb-4255-8caf-4136c566a962"}}, "$db": "admin"})"));
  Eventually(look);
  CHECK(secrets_running == 0);
  held->Release();
  Eventually([&] { return look() && secrets_running == 1; });
  look();
  // Others read it meanwhile: nothing of it was made again, which freed the first.
  CHECK(shown.size() == 1);
  // Its session ends it at any time.
  REQUIRE(sessions.size() == 1);
  CHECK(sessions.begin()->size() == 16);
  CHECK(context.operations().KillSession(*sessions.begin()) == 1);
  CHECK(Code(c.Reply()) == 11601);
}

TEST_CASE("An operation whose client has gone is ended", "[server]") {
  TestServer server;
  RawClient c(server.port());
  for (const char* command :
       {R"({"testSpin": 1, "$db": "admin"})", R"({"testWait": 1, "ms": 60000, "$db": "admin"})"}) {
    RawClient gone(server.port());
    gone.Send(RawClient::Message(command));
    Eventually([&] { return server.context().operations().ActiveCount() == 1; });
    gone.Close();
    Eventually([&] { return server.context().operations().ActiveCount() == 0; });
  }
  CHECK(server.context().metrics().operation.disconnected == 2);
}

TEST_CASE("Connections beyond the limit are closed at once", "[server]") {
  TestServer server([](ServerConfig& c) { c.max_connections = 2; });
  RawClient a(server.port()), b(server.port());
  CHECK(IsOk(a.Command(R"({"ping": 1, "$db": "admin"})")));
  CHECK(IsOk(b.Command(R"({"ping": 1, "$db": "admin"})")));
  RawClient c(server.port());
  CHECK(c.Closed());
  a.Close();
  Eventually([&] { return server.context().metrics().connections.current == 1; });
  RawClient d(server.port());
  CHECK(IsOk(d.Command(R"({"ping": 1, "$db": "admin"})")));
}

TEST_CASE("Stopping finishes what runs, ends what waits and closes what is idle", "[server]") {
  auto server = std::make_unique<TestServer>();
  RawClient idle(server->port()), waiting(server->port()), running(server->port());
  CHECK(IsOk(idle.Command(R"({"ping": 1, "$db": "admin"})")));
  waiting.Send(RawClient::Message(R"({"testWait": 1, "ms": 60000, "$db": "admin"})"));
  running.Send(RawClient::Message(R"({"testSpin": 1, "maxTimeMS": 100, "$db": "admin"})"));
  Eventually([&] { return server->context().operations().ActiveCount() == 2; });
  std::thread stop([&] { server->server().Stop(5000); });
  CHECK(Code(waiting.Reply()) == 11600);
  CHECK(waiting.Closed());
  CHECK(Code(running.Reply()) == 50);
  CHECK(idle.Closed());
  stop.join();
}

TEST_CASE("The clock command moves the clock", "[server]") {
  TestServer server;
  RawClient c(server.port());
  CHECK(IsOk(c.Command(
      R"({"clock": {"set": {"$date": "2030-01-01T00:00:00Z"}, "freeze": true}, "$db": "admin"})")));
  BsonDocument r = c.Command(R"({"clock": {"advanceSeconds": 90}, "$db": "admin"})");
  CHECK(r.view()["now"].Date().millis == 1893456090000);
  CHECK(r.view()["frozen"].Bool());
  r = c.Command(R"({"hello": 1, "$db": "admin"})");
  CHECK(r.view()["localTime"].Date().millis == 1893456090000);
  CHECK(Code(c.Command(R"({"clock": {"set": 5}, "$db": "admin"})")) == 14);
  CHECK(Code(c.Command(R"({"clock": "unreal", "$db": "admin"})")) == 2);
  CHECK(IsOk(c.Command(R"({"clock": "real", "$db": "admin"})")));
}

TEST_CASE("Requests that want no reply are done although their client has closed", "[server]") {
  // All that had come behind a request for a worker was dropped, writes with w: 0 too.
  TestServer server;
  const auto done = [&](std::string_view name) {
    const CommandRow* row = server.context().commands().Find(name);
    return row->counters->total.load();
  };
  constexpr int kMany = 100;  // more than is read at once, less than the socket takes
  const std::string comment(200, 'x');
  std::string all = RawClient::Message(R"({"testSpin": 1, "$db": "admin"})");
  for (int i = 0; i < kMany; ++i) {
    all += RawClient::Message(R"({"ping": 1, "comment": ")" + comment + R"(", "$db": "admin"})",
                              kMsgMoreToCome);
    if (i % 40 == 20) all += RawClient::Message(R"({"buildInfo": 1, "$db": "admin"})");
  }
  RawClient c(server.port());
  c.Send(all);
  c.Close();
  Eventually([&] { return done("ping") == kMany; });
  CHECK(done("testSpin") == 1);
  CHECK(done("buildInfo") == 0);
  Eventually([&] { return server.context().metrics().connections.current == 0; });
}

TEST_CASE("A request that wants no reply is not ended when its client closes", "[server]") {
  TestServer server;
  RawClient c(server.port());
  c.Send(RawClient::Message(R"({"testWait": 1, "ms": 2500, "$db": "admin"})", kMsgMoreToCome));
  c.Close();
  Eventually([&] { return server.context().metrics().connections.current == 1; });
  Eventually([&] { return server.context().metrics().connections.current == 0; });
  const CommandRow* row = server.context().commands().Find("testWait");
  CHECK(row->counters->total.load() == 1);
  CHECK(row->counters->failed.load() == 0);
}

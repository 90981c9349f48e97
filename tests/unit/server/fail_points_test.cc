#include "server/dispatch/fail_points.h"

#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "tests/unit/server/server_fixture.h"
#include "tests/unit/storage/storage_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {

Result<int64_t> Set(FailPoints& points, std::string_view name, std::string_view mode,
                    std::string_view data = "{}") {
  const BsonDocument m = ParseJson("{\"m\": " + std::string(mode) + "}").value();
  const BsonDocument d = ParseJson(data).value();
  MAYFLY_TRY(FailPoints::Configured done, points.Configure(name, m.view()["m"], d.view()));
  return done.entered;
}

struct TestCommandsServer : TestServer {
  /// `late`: the test starts it.
  explicit TestCommandsServer(bool late = false) : TestServer([](ServerConfig&) {}, true) {
    context().settings().enable_test_commands = true;
    if (!late) server().Start();
  }
};

}  // namespace

TEST_CASE("A fail point fires as often as its mode says", "[failpoint]") {
  FailPoints points;
  CHECK(!points.any());
  CHECK(!points.Fire("failCommand"));
  REQUIRE(Set(points, "failCommand", "{\"times\": 2}"));
  CHECK(points.any());
  CHECK(points.Fire("failCommand"));
  // What it does not apply to does not count.
  CHECK(!points.Fire("failCommand", [](BsonView) { return false; }));
  CHECK(points.Fire("failCommand"));
  CHECK(!points.any());
  CHECK(!points.Fire("failCommand"));
  CHECK(Set(points, "failCommand", "{\"skip\": 1}").value() == 2);
  CHECK(!points.Fire("failCommand"));
  CHECK(points.Fire("failCommand"));
  CHECK(points.Fire("failCommand"));
  REQUIRE(Set(points, "failCommand", "{\"activationProbability\": 0.0}"));
  CHECK(!points.Fire("failCommand"));
  REQUIRE(Set(points, "failCommand", "{\"activationProbability\": 1.0}"));
  CHECK(points.Fire("failCommand"));
  REQUIRE(Set(points, "failCommand", "\"off\""));
  CHECK(!points.any());
  // The Go driver's tests send every field of the mode.
  REQUIRE(Set(points, "failCommand", "{\"times\": 1, \"skip\": 0}"));
  CHECK(points.Fire("failCommand"));
  CHECK(!points.Fire("failCommand"));
  REQUIRE(Set(points, "failCommand", "{\"times\": 0, \"skip\": 1}"));
  CHECK(!points.Fire("failCommand"));
  CHECK(points.Fire("failCommand"));
  REQUIRE(Set(points, "failCommand", "{\"times\": 0, \"skip\": 0}"));
  CHECK(!points.any());
}

TEST_CASE("maxTimeAlwaysTimeOut ends what has a time limit, maxTimeNeverTimeOut lets it run",
          "[failpoint]") {
  TestCommandsServer server;
  RawClient c(server.port());
  auto mode = [&](const std::string& name, const std::string& mode) {
    REQUIRE(IsOk(c.Command("{\"configureFailPoint\": \"" + name + "\", \"mode\": \"" + mode +
                           "\", \"$db\": \"admin\"}")));
  };
  mode("maxTimeAlwaysTimeOut", "alwaysOn");
  CHECK(IsOk(c.Command(R"({"ping": 1, "$db": "admin"})")));
  CHECK(Code(c.Command(R"({"ping": 1, "maxTimeMS": 100000, "$db": "admin"})")) == 50);
  mode("maxTimeAlwaysTimeOut", "off");
  mode("maxTimeNeverTimeOut", "alwaysOn");
  CHECK(IsOk(c.Command(R"({"testWait": 1, "ms": 30, "maxTimeMS": 1, "$db": "admin"})")));
  mode("maxTimeNeverTimeOut", "off");
  CHECK(Code(c.Command(R"({"testWait": 1, "ms": 30000, "maxTimeMS": 1, "$db": "admin"})")) == 50);
}

TEST_CASE("The time limit of a find holds for its getMores too", "[failpoint]") {
  TestCommandsServer server(true);
  mayfly::testing::ScratchDir dir;
  StorageOptions o;
  o.engine = MakeRocksEngine();
  o.path = dir.path();
  o.clock = &server.clock();
  std::unique_ptr<Storage> storage = Storage::Open(std::move(o)).value();
  server.context().set_storage(storage.get());
  server.server().Start();  // its threads look at the storage
  {
    RawClient c(server.port());
    REQUIRE(IsOk(c.Command(R"({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}],
                               "$db": "d"})")));
    auto always = [&](const std::string& mode) {
      REQUIRE(IsOk(c.Command(R"({"configureFailPoint": "maxTimeAlwaysTimeOut", "mode": ")" + mode +
                             R"(", "$db": "admin"})")));
    };
    for (const std::string limit : {R"(, "maxTimeMS": 100000)", ""}) {
      const BsonDocument first =
          c.Command(R"({"find": "c", "batchSize": 1)" + limit + R"(, "$db": "d"})");
      const int64_t id = first.view().FindPath("cursor.id").NumberAsInt64();
      REQUIRE(id != 0);
      const std::string more = R"({"getMore": {"$numberLong": ")" + std::to_string(id) +
                               R"("}, "collection": "c", "batchSize": 1, "$db": "d"})";
      CHECK(IsOk(c.Command(more)));
      always("alwaysOn");
      CHECK(Code(c.Command(more)) == (limit.empty() ? 0 : 50));
      always("off");
      // A cursor that ran out of time is gone.
      CHECK(Code(c.Command(more)) == (limit.empty() ? 0 : 43));
    }
  }
  server.server().Stop(1000);
  server.context().set_storage(nullptr);
}

TEST_CASE("failCommand ends the stream of an exhaust hello", "[failpoint]") {
  TestCommandsServer server;
  RawClient stream(server.port()), c(server.port());
  const BsonDocument first = stream.Command(R"({"hello": 1, "$db": "admin"})");
  const std::string version = ToCanonicalJson(first.view()["topologyVersion"].Document());
  stream.Send(RawClient::Message(R"({"hello": 1, "topologyVersion": )" + version +
                                     R"(, "maxAwaitTimeMS": 30, "$db": "admin"})",
                                 kMsgExhaustAllowed, 7));
  CHECK(IsOk(stream.Reply()));
  REQUIRE(IsOk(c.Command(R"({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data":
                             {"failCommands": ["hello"], "closeConnection": true},
                             "$db": "admin"})")));
  // At most one reply was on its way; then the end instead of a silence.
  bool closed = false;
  for (int i = 0; i < 3 && !closed; ++i) closed = stream.Closed();
  CHECK(closed);
}

TEST_CASE("A fail point that cannot be is refused and changes nothing", "[failpoint]") {
  FailPoints points;
  CHECK(static_cast<int>(Set(points, "noSuchPoint", "\"alwaysOn\"").error().code) == 266);
  CHECK(Set(points, "failCommand", "\"sometimes\"").error().code == ErrorCode::kBadValue);
  CHECK(Set(points, "failCommand", "1").error().code == ErrorCode::kTypeMismatch);
  CHECK(Set(points, "failCommand", "{\"times\": -1}").error().code == ErrorCode::kBadValue);
  CHECK(Set(points, "failCommand", "{\"times\": 1, \"skip\": 1}").error().code ==
        ErrorCode::kFailedToParse);
  CHECK(Set(points, "failCommand", "{\"activationProbability\": 2}").error().code ==
        ErrorCode::kBadValue);
  CHECK(Set(points, "failCommand", "\"alwaysOn\"", "{\"errorCode\": \"8\"}").error().code ==
        ErrorCode::kTypeMismatch);
  CHECK(Set(points, "failCommand", "\"alwaysOn\"", "{\"failCommands\": [1]}").error().code ==
        ErrorCode::kTypeMismatch);
  CHECK(Set(points, "failCommand", "\"alwaysOn\"", "{\"blockConnection\": true}").error().code ==
        ErrorCode::kInvalidOptions);
  CHECK(!points.any());
}

TEST_CASE("failCommand fails the commands it names", "[failpoint]") {
  TestCommandsServer server;
  RawClient c(server.port());
  auto fail = [&](const std::string& mode, const std::string& data) {
    REQUIRE(IsOk(c.Command("{\"configureFailPoint\": \"failCommand\", \"mode\": " + mode +
                           ", \"data\": " + data + ", \"$db\": \"admin\"}")));
  };
  const std::string ping = R"({"ping": 1, "$db": "admin"})";

  fail(R"({"times": 1})", R"({"failCommands": ["ping"], "errorCode": 262})");
  CHECK(IsOk(c.Command(R"({"buildInfo": 1, "$db": "admin"})")));
  BsonDocument r = c.Command(ping);
  CHECK(Code(r) == 262);
  CHECK(r.view()["codeName"].String() == "ExceededTimeLimit");
  CHECK(r.view()["errorLabels"].missing());
  CHECK(IsOk(c.Command(ping)));

  SECTION("with labels and more about the error") {
    fail("\"alwaysOn\"", R"({"failCommands": ["ping"], "errorCode": 8,
         "errorLabels": ["A", "B"], "errorExtraInfo": {"extra": 1}})");
    r = c.Command(ping);
    CHECK(r.view().FindPath("errorLabels.1").String() == "B");
    CHECK(r.view()["extra"].NumberAsInt64() == 1);
  }
  SECTION("an error that ends change streams for good says so, also of another cursor") {
    fail("\"alwaysOn\"", R"({"failCommands": ["getMore", "ping"], "errorCode": 280})");
    r = c.Command(R"({"getMore": {"$numberLong": "1"}, "collection": "c", "$db": "d"})");
    CHECK(Code(r) == 280);
    CHECK(r.view().FindPath("errorLabels.0").String() == "NonResumableChangeStreamError");
    CHECK(c.Command(ping).view()["errorLabels"].missing());
  }
  SECTION("only of one application or namespace") {
    fail("\"alwaysOn\"", R"({"failCommands": ["ping"], "errorCode": 8, "appName": "other"})");
    CHECK(IsOk(c.Command(ping)));
    fail("\"alwaysOn\"", R"({"failCommands": ["ping"], "errorCode": 8, "namespace": "a.b"})");
    CHECK(IsOk(c.Command(ping)));
    fail("\"alwaysOn\"", R"({"failCommands": ["ping"], "errorCode": 8, "threadName": "conn1"})");
    CHECK(Code(c.Command(ping)) == 8);
    fail("\"alwaysOn\"", R"({"failCommands": ["ping"], "errorCode": 8, "threadName": "conn2"})");
    CHECK(IsOk(c.Command(ping)));
  }
  SECTION("by an alias, and in the handshake by its application") {
    fail("\"alwaysOn\"", R"({"failCommands": ["isMaster"], "errorCode": 8, "appName": "me"})");
    CHECK(Code(c.Command(R"({"ismaster": 1, "$db": "admin", "client": {"application":
          {"name": "me"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "o"}}})")) == 8);
  }
  SECTION("all commands but the one that switches it off") {
    fail("\"alwaysOn\"", R"({"failAllCommands": true, "errorCode": 8})");
    CHECK(Code(c.Command(R"({"buildInfo": 1, "$db": "admin"})")) == 8);
    fail("\"off\"", "{}");
    CHECK(IsOk(c.Command(ping)));
  }
  SECTION("by closing the connection") {
    fail(R"({"times": 1})", R"({"failCommands": ["ping"], "closeConnection": true})");
    c.Send(RawClient::Message(ping));
    CHECK(c.Closed());
    RawClient again(server.port());
    CHECK(IsOk(again.Command(ping)));
  }
  SECTION("by closing the connection in the middle of a slow command") {
    fail(R"({"times": 1})", R"({"failCommands": ["testWait"], "closeConnection": true,
         "blockConnection": true, "blockTimeMS": 1})");
    c.Send(RawClient::Message(R"({"testWait": 1, "ms": 0, "$db": "admin"})"));
    CHECK(c.Closed());
  }
  SECTION("by making it wait first") {
    fail(R"({"times": 1})",
         R"({"failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 30})");
    const int64_t begin = server.clock().MonotonicMicros();
    CHECK(IsOk(c.Command(ping)));
    CHECK(server.clock().MonotonicMicros() - begin >= 30'000);  // clock: at least
    // maxTimeMS ends the wait.
    fail(R"({"times": 1})",
         R"({"failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 60000})");
    CHECK(Code(c.Command(R"({"ping": 1, "maxTimeMS": 5, "$db": "admin"})")) == 50);
  }
}

TEST_CASE("Data of a fail point has no schema: what it does not know is taken, and logged",
          "[failpoint]") {
  TestCommandsServer server;
  RawClient c(server.port());
  // A slip in a driver's test, which passes on MongoDB.
  REQUIRE(IsOk(c.Command(R"({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data":
      {"failCommands": ["ping"], "errorCode": 8, "appname": "x"}, "$db": "admin"})")));
  size_t total = 0;
  std::string lines;
  for (const std::string& l : server.context().log().RecentLines(&total)) lines += l;
  CAPTURE(lines);
  CHECK(lines.find("ignoredDataFields") != std::string::npos);
  CHECK(lines.find("appname") != std::string::npos);
  CHECK(Code(c.Command(R"({"ping": 1, "$db": "admin"})")) == 8);
}

TEST_CASE("waitForFailPoint returns when a fail point was entered so often, or with 50",
          "[failpoint]") {
  TestCommandsServer server;
  RawClient c(server.port()), waits(server.port());
  const BsonDocument set = c.Command(R"({"configureFailPoint": "failCommand", "mode": "alwaysOn",
      "data": {"failCommands": ["ping"], "errorCode": 8}, "$db": "admin"})");
  CHECK(set.view()["count"].NumberAsInt64() == 0);
  waits.Send(RawClient::Message(R"({"waitForFailPoint": "failCommand", "timesEntered": 2,
                                    "maxTimeMS": 60000, "$db": "admin"})"));
  for (int i = 0; i < 2; ++i) CHECK(Code(c.Command(R"({"ping": 1, "$db": "admin"})")) == 8);
  CHECK(IsOk(waits.Reply()));
  CHECK(Code(c.Command(R"({"waitForFailPoint": "failCommand", "timesEntered": 3, "maxTimeMS": 5,
                           "$db": "admin"})")) == 50);
  CHECK(Code(c.Command(R"({"waitForFailPoint": "failCommand", "timesEntered": 1,
                           "$db": "admin"})")) == 40414);
  CHECK(Code(c.Command(R"({"waitForFailPoint": "none", "timesEntered": 1, "maxTimeMS": 5,
                           "$db": "admin"})")) == 266);
  // The count goes on when the point is set anew.
  CHECK(c.Command(R"({"configureFailPoint": "failCommand", "mode": "off", "$db": "admin"})")
            .view()["count"]
            .NumberAsInt64() == 2);
}

TEST_CASE("Without enableTestCommands there are no fail points", "[failpoint]") {
  TestServer server;
  RawClient c(server.port());
  CHECK(Code(c.Command(
            R"({"configureFailPoint": "failCommand", "mode": "off", "$db": "admin"})")) == 59);
}

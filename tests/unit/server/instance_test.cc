#include "server/instance.h"

#include "query/plan/query_state.h"
#include "server/execution/transactions.h"
#include "storage/schema/schema_watch.h"
#include "storage/storage.h"
#include "tests/unit/scratch_dir.h"
#include "tests/unit/server/server_fixture.h"

using namespace mayfly;
using namespace mayfly::test;
using mayfly::testing::ScratchDir;

namespace {

/// A server in this process, on a directory of its own, with a clock and a log of its own.
class InProcess {
 public:
  explicit InProcess(const std::string& path, std::vector<std::string> more = {}) {
    std::vector<std::string> argv = {"mayflyd",   "--dbpath",       path + "/data", "--port",
                                     "0",         "--nounixsocket", "--httpPort",   "0",
                                     "--logpath", path + "/log"};
    argv.insert(argv.end(), more.begin(), more.end());
    auto parsed = ParseConfig(argv);
    REQUIRE(parsed);
    config_ = std::move(parsed.value().config);
    log_ = Log::Open(config_.log, clock_).value();
    instance_ = std::make_unique<Instance>(config_, clock_, *log_, nullptr,
                                           [this](int code) { asked_ = code; });
  }
  Instance& operator*() { return *instance_; }
  Instance* operator->() { return instance_.get(); }
  ServerContext& context() { return instance_->context(); }
  int asked() const { return asked_; }

 private:
  ServerConfig config_;
  SystemClock clock_;
  std::unique_ptr<Log> log_;
  std::atomic<int> asked_{-1};
  std::unique_ptr<Instance> instance_;
};

large_memory::Hold* g_hold = nullptr;

/// testHold: the test's hold takes 8 MB.
Result<void> RunHold(CommandContext&, const CommandRequest&, BsonBuilder&) {
  return g_hold->Set(8'000'000);
}

/// testBegin {of, first, count}: a find begins a transaction in each of `count` sessions of the
/// user whose digest is that letter, from number `first` on, and they stay open. The reply: how
/// many have `begun` and the `refusal` of the next one, which is the last.
Awaitable<Result<void>> RunBegin(CommandContext& ctx, const CommandRequest& req,
                                 BsonBuilder& reply) {
  co_await ctx.MoveToWorker();
  const std::string uid(kSessionUidBytes, req.body["of"].String().front());
  const int64_t first = req.body["first"].NumberAsInt64();
  const int64_t count = req.body["count"].NumberAsInt64();
  CommandRequest find;
  find.name = "find";
  find.body = req.body;
  find.db = req.db;
  find.generic.txn_number = 1;
  find.generic.autocommit_given = find.generic.start_transaction = true;
  const CommandRow& row = *ctx.server.commands().Find("find");
  Transactions& transactions = *TransactionsOf(ctx.data);
  Session* const own = ctx.session;
  int64_t begun = 0, refusal = 0;
  for (; begun < count && refusal == 0; ++begun) {
    std::string key(kSessionIdBytes, '\0');
    const int64_t n = first + begun;
    std::memcpy(key.data(), &n, sizeof n);
    MAYFLY_CO_TRY(const SessionPtr session,
                  ctx.data.sessions().Use(key + uid, ctx.data.clock().Now(), ctx.client->address));
    ctx.session = session.get();
    TransactionPtr taken;
    Result<void> began = co_await transactions.Begin(ctx, row, find, &taken);
    if (taken != nullptr) transactions.End(ctx, taken, &began);
    ctx.session = own;
    if (!began) refusal = static_cast<int64_t>(began.error().code);
  }
  reply.Append("begun", refusal == 0 ? begun : begun - 1).Append("refusal", refusal);
  co_return Ok();
}

int64_t Items(const BsonDocument& reply, const char* path) {
  int64_t n = 0;
  const BsonValue list = reply.view().FindPath(path);
  REQUIRE(list.IsArray());
  for ([[maybe_unused]] const BsonElement& e : list.Document()) ++n;
  return n;
}

}  // namespace

TEST_CASE("Two servers in one process share nothing", "[instance]") {
  ScratchDir one, other;
  InProcess a(one.path(), {"--setParameter", "ioThreadWatchdogMicros=50000000"}), b(other.path());
  REQUIRE_FALSE(a->Start());
  REQUIRE_FALSE(b->Start());
  REQUIRE(a->port() != b->port());
  for (InProcess* s : {&a, &b})
    s->context().commands().Add(
        {.name = "testHold", .flags = kWorker | kReadOnly, .help = "", .run = &RunHold});
  RawClient to_a(a->port()), to_b(b->port());

  // Data, plans that were chosen, index filters.
  for (RawClient* c : {&to_a, &to_b}) {
    CHECK(IsOk(c->Command(
        R"({"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}, {"key": {"y": 1}, "name": "y"}], "$db": "d"})")));
    CHECK(IsOk(c->Command(
        R"({"insert": "c", "documents": [{"_id": 1, "x": 1, "y": 1}, {"_id": 2, "x": 1, "y": 2}], "$db": "d"})")));
  }
  CHECK(IsOk(
      to_a.Command(R"({"insert": "c", "documents": [{"_id": 3, "x": 1, "y": 1}], "$db": "d"})")));
  constexpr auto kFind = R"({"find": "c", "filter": {"x": 1, "y": 1}, "$db": "d"})";
  CHECK(Items(to_a.Command(kFind), "cursor.firstBatch") == 2);
  constexpr auto kPlans =
      R"({"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}, "$db": "d"})";
  CHECK(Items(to_a.Command(kPlans), "cursor.firstBatch") == 1);
  CHECK(Items(to_b.Command(kPlans), "cursor.firstBatch") == 0);
  CHECK(&QueryState::Of(a.context().storage()) != &QueryState::Of(b.context().storage()));
  CHECK(IsOk(to_a.Command(
      R"({"planCacheSetFilter": "c", "query": {"x": 1}, "indexes": ["x"], "$db": "d"})")));
  CHECK(QueryState::Of(a.context().storage()).filters.any());
  CHECK_FALSE(QueryState::Of(b.context().storage()).filters.any());

  // The watchdog.
  CHECK(a.context().io_watchdog().limit_micros == 50'000'000);
  CHECK(b.context().io_watchdog().limit_micros == 0);
  CHECK(to_a.Command(R"({"serverStatus": 1, "$db": "admin"})")
            .view()
            .FindPath("network.ioThreadWatchdog")
            .IsDocument());
  CHECK(to_b.Command(R"({"serverStatus": 1, "$db": "admin"})")
            .view()
            .FindPath("network.ioThreadWatchdog")
            .missing());

  // Room for messages.
  {
    std::string half = RawClient::Message(R"({"ping": 1, "comment": ")" +
                                          std::string(1'000'000, 'x') + R"(", "$db": "admin"})");
    half.resize(500'000);
    RawClient slow(a->port());
    slow.Send(half);
    Eventually([&] { return a.context().network_buffers().used() >= 1'000'000; });
    CHECK(b.context().network_buffers().used() == 0);
  }
  Eventually([&] { return a.context().network_buffers().used() == 0; });

  // Large values.
  const int64_t own = large_memory::Used();
  {
    large_memory::Hold hold;
    g_hold = &hold;
    CHECK(IsOk(to_a.Command(R"({"testHold": 1, "$db": "admin"})")));
    CHECK(a.context().large_memory().used() == 8'000'000);
    CHECK(b.context().large_memory().used() == 0);
    CHECK(large_memory::Used() == own);
  }
  CHECK(a.context().large_memory().used() == 0);
  a.context().large_memory().SetLimit(1 << 20);
  for (RawClient* c : {&to_a, &to_b}) {
    large_memory::Hold hold;
    g_hold = &hold;
    CHECK(Code(c->Command(R"({"testHold": 1, "$db": "admin"})")) == (c == &to_a ? 146 : 0));
  }

  // Machine code of patterns, and constants that validators keep.
  const auto machine_code = [](InProcess& s) {
    return s.context().large_memory().machine_code_bytes->load();
  };
  const auto folded = [](InProcess& s) { return s.context().large_memory().folded_bytes.load(); };
  REQUIRE(machine_code(a) == 0);
  REQUIRE(folded(a) == 0);
  CHECK(IsOk(to_a.Command(
      R"({"create": "v", "validator": {"t": {"$regex": "^a[bc]+d"}, "$expr": {"$ne": ["$t", {"$concat": [")" +
      std::string(1000, 'x') + R"(", "y"]}]}}, "$db": "d"})")));
  CHECK(IsOk(to_a.Command(R"({"insert": "v", "documents": [{"t": "abcd"}], "$db": "d"})")));
  CHECK(machine_code(a) > 0);
  CHECK(machine_code(b) == 0);
  CHECK(folded(a) > 1000);
  CHECK(folded(b) == 0);
  CHECK(IsOk(to_a.Command(R"({"drop": "v", "$db": "d"})")));
  Eventually([&] { return machine_code(a) == 0 && folded(a) == 0; });

  // The end of one is not the other's.
  a->Stop(1000);
  CHECK(to_a.Closed());
  CHECK(Items(to_b.Command(kFind), "cursor.firstBatch") == 1);
  InProcess again(one.path());
  REQUIRE_FALSE(again->Start());
  RawClient to_again(again->port());
  CHECK(Items(to_again.Command(kFind), "cursor.firstBatch") == 2);
  to_again.Send(RawClient::Message(R"({"shutdown": 1, "force": true, "$db": "admin"})"));
  Eventually([&] { return again.asked() == 0; });
  CHECK(b.asked() == -1);
}

TEST_CASE("A hold sends no reads of other collections to workers", "[instance][expiry]") {
  ScratchDir dir;
  // No read is long here, however busy the machine.
  InProcess server(dir.path(), {"--setParameter", "shortReadSliceMicros=100000"});
  REQUIRE_FALSE(server->Start());
  RawClient client(server->port());
  auto run = [&](const std::string& fields) {
    CAPTURE(fields);
    CHECK(IsOk(client.Command("{" + fields + R"(, "$db": "d"})")));
  };
  auto on_workers = [&] {
    const BsonDocument status = client.Command(R"({"serverStatus": 1, "$db": "admin"})");
    const BsonValue n = status.view().FindPath("metrics.operation.readsOnWorkers");
    REQUIRE(n.IsNumber());
    return n.NumberAsInt64();
  };
  for (const char* name : {"held", "expiring", "plain"}) {
    const std::string c = name;
    if (c != "plain")
      run(R"("createIndexes": ")" + c +
          R"(", "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 0}])");
    run(R"("createIndexes": ")" + c + R"(", "indexes": [{"key": {"a": 1}, "name": "a_1"}])");
    run(R"("insert": ")" + c +
        R"(", "documents": [{"_id": 1, "a": 1, "at": {"$date": "2999-01-01T00:00:00Z"}}])");
  }
  run(R"("ttlHold": "held", "filter": {"_id": 1})");
  auto read = [&](const std::string& c) {
    run(R"("find": ")" + c + R"(", "filter": {"_id": 1})");
    run(R"("find": ")" + c + R"(", "filter": {"a": 1})");
    run(R"("count": ")" + c + R"(", "query": {"a": 1})");
    run(R"("distinct": ")" + c + R"(", "key": "a", "query": {"a": 1})");
    run(R"("aggregate": ")" + c + R"(", "pipeline": [{"$match": {"a": 1}}], "cursor": {})");
  };
  const int64_t before = on_workers();
  read("plain");
  read("expiring");
  CHECK(on_workers() == before);
  // A hold's filter may be any, and here it may have to be asked.
  read("held");
  CHECK(on_workers() == before + 5);
}

// An error, maxTimeMS or killOp in the middle left some of the views.
TEST_CASE("A drop of system.views drops all views or none", "[instance][catalog]") {
  ScratchDir dir;
  InProcess server(dir.path());
  REQUIRE_FALSE(server->Start());
  RawClient client(server->port());
  for (const char* name : {"v1", "v2", "v3"})
    REQUIRE(IsOk(client.Command(R"({"create": ")" + std::string(name) +
                                R"(", "viewOn": "c", "pipeline": [], "$db": "d"})")));
  Storage& storage = server.context().storage();
  const auto drop = [&] { return client.Command(R"({"drop": "system.views", "$db": "d"})"); };

  WatchSchema(storage, {.may_change = [](Operation&, const CollectionInfo* before,
                                         const CollectionInfo*) -> Result<void> {
                if (before->name != "v2") return Ok();
                return Error{ErrorCode::kBadValue, "as the test asked"};
              }});
  CHECK(Code(drop()) == static_cast<int64_t>(ErrorCode::kBadValue));
  CHECK(storage.catalog().List("d").size() == 3);

  // Interrupted when the first is about to go.
  WatchSchema(storage, {.may_change = [](Operation& op, const CollectionInfo*,
                                         const CollectionInfo*) -> Result<void> {
                op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
                return Ok();
              }});
  drop();
  const size_t left = storage.catalog().List("d").size();
  CHECK((left == 0 || left == 3));

  WatchSchema(storage, {});
  CHECK((left == 0 || IsOk(drop())));
  CHECK(storage.catalog().List("d").empty());
}

TEST_CASE("A start that fails leaves the directory and the address to the next one", "[instance]") {
  ScratchDir dir, busy_dir;
  InProcess busy(busy_dir.path());
  REQUIRE_FALSE(busy->Start());
  const std::string taken = std::to_string(busy->port());
  struct Case {
    std::vector<std::string> args;
    int code;
    std::string_view what;
  };
  const std::string key = dir.path() + "/key";
  const std::vector<Case> cases = {
      {{"--setParameter", "noSuchParameter=1"}, kExitBadOptions, "Bad --setParameter"},
      {{"--dbpath", busy_dir.path() + "/data"},
       kExitDataDirectory,
       "Cannot open the data directory"},
      {{"--auditPath", "/proc/nowhere/audit"}, kExitBadOptions, "Cannot open the audit log"},
      {{"--replSet", "rs", "--keyFile", key}, kExitBadOptions, "Cannot take part in the set"},
      {{"--port", taken}, kExitAddressInUse, "Cannot listen"},
      {{"--replSet", "rs", "--port", taken}, kExitAddressInUse, "Cannot listen"},
      {{"--httpPort", taken}, kExitAddressInUse, "Cannot listen"},
      {{"--replSet", "rs", "--httpPort", taken}, kExitAddressInUse, "Cannot listen"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.args[0], c.args.back());
    InProcess failing(dir.path(), c.args);
    const std::optional<StartFailure> failed = failing->Start();
    REQUIRE(failed);
    CHECK(failed->exit_code == c.code);
    CHECK(failed->what == c.what);
    // At once, while what is left of the failed one still lives.
    InProcess next(dir.path());
    REQUIRE_FALSE(next->Start());
    RawClient client(next->port());
    CHECK(IsOk(client.Command(R"({"ping": 1, "$db": "admin"})")));
  }
  RawClient client(busy->port());
  CHECK(IsOk(client.Command(R"({"ping": 1, "$db": "admin"})")));
}

// They counted for an address: one user behind a proxy took them from all others there.
TEST_CASE("Open transactions count for the user whose session it is, not for an address",
          "[instance][transactions]") {
  ScratchDir dir;
  InProcess server(dir.path(), {"--replSet", "rs"});
  REQUIRE_FALSE(server->Start());
  server.context().commands().Add(
      {.name = "testBegin", .flags = kCommandNone, .help = "", .run_async = &RunBegin});
  RawClient client(server->port());
  REQUIRE(IsOk(client.Command(
      R"({"replSetInitiate": {"_id": "rs", "members": [{"_id": 0, "host": "127.0.0.1:)" +
      std::to_string(server->port()) + R"("}]}, "$db": "admin"})")));
  Eventually([&] {
    return client.Command(R"({"hello": 1, "$db": "admin"})").view()["isWritablePrimary"].Truthy();
  });
  struct Answer {
    int64_t begun, refusal;
    bool operator==(const Answer&) const = default;
  };
  const auto begin = [&](char of, int64_t first, int64_t count) {
    const BsonDocument r = client.Command(
        R"({"testBegin": 1, "of": ")" + std::string(1, of) + R"(", "first": )" +
        std::to_string(first) + R"(, "count": )" + std::to_string(count) + R"(, "$db": "d"})");
    CAPTURE(ToRelaxedJson(r.view()));
    REQUIRE(IsOk(r));
    return Answer{r.view()["begun"].NumberAsInt64(), r.view()["refusal"].NumberAsInt64()};
  };
  constexpr auto kShare = static_cast<int64_t>(kMaxTransactionsOfClient);
  // All by one connection, so of one address: ann takes her share, and bob finds his.
  CHECK(begin('a', 0, kShare + 1) == Answer{kShare, 146});
  CHECK(begin('b', 0, 10) == Answer{10, 0});
  CHECK(begin('a', kShare + 1, 1) == Answer{0, 146});
  // What is hers comes back to her.
  TransactionsOf(server.context())->AbortSessions([](std::string_view session) {
    return SessionUid(session) == std::string(kSessionUidBytes, 'a');
  });
  CHECK(begin('a', 2 * kShare, 10) == Answer{10, 0});
  CHECK(TransactionsOf(server.context())->totals().open == 20);
}

TEST_CASE("Stages are undone once, in reverse order", "[instance]") {
  std::string undone;
  {
    StartStages stages;
    stages.Add([&] { undone += "a"; });
    stages.Add([&] { undone += "b"; });
    stages.Undo();
    CHECK(undone == "ba");
    stages.Add([&] { undone += "c"; });
  }
  CHECK(undone == "bac");
}

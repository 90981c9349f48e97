#include "server/execution/statement_runner.h"

#include "protocol/large_memory.h"
#include "server/execution/write_ops.h"
#include "storage/catalog/catalog.h"
#include "storage/read/read_view.h"
#include "storage/storage.h"
#include "tests/unit/server/server_fixture.h"
#include "tests/unit/storage/storage_fixture.h"

using namespace mayfly;
using namespace mayfly::test;
using mayfly::testing::ScratchDir;

namespace {

BsonDocument Doc(std::string_view json) { return ParseJson(json).value(); }

/// A server with storage, and write commands on d.c of which each is given the same longer unit.
class LongUnit {
 public:
  LongUnit() : server_([](ServerConfig&) {}, true) {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = dir_.path();
    o.clock = &server_.clock();
    storage_ = Storage::Open(std::move(o)).value();
    server_.context().set_storage(storage_.get());
    server_.server().Start();  // its threads look at the storage
    op_.emplace(server_.clock());
    coll_ = storage_->catalog().GetOrCreate(*op_, "d", "c").value();
  }
  ~LongUnit() {
    unit_.reset();
    op_->view.reset();
    server_.server().Stop(1000);
    server_.context().set_storage(nullptr);
  }
  void Begin() {
    unit_.emplace(*storage_, *op_);
    unit_->OwnDocuments();
  }
  WriteUnit& unit() { return *unit_; }
  /// For one statement: it sees what those before it have staged.
  WriteCommand Command() {
    if (unit_)
      op_->view = std::make_shared<ReadView>(ReadView(storage_->kv().Snapshot()).With(*unit_));
    WriteCommand c(WriteServicesOf(server_.context()), *op_, "d", "c");
    c.set_unit(unit_ ? &*unit_ : nullptr);
    REQUIRE(c.Open());
    return c;
  }
  int64_t Insert(std::vector<std::string> json, std::vector<size_t>* failed = nullptr) {
    std::vector<BsonDocument> docs;
    std::vector<BsonView> views;
    for (const std::string& j : json) docs.push_back(Doc(j));
    for (const BsonDocument& d : docs) views.push_back(d.view());
    WriteCommand c = Command();
    return c
        .Insert(views,
                [&](size_t i, Error) {
                  if (failed) failed->push_back(i);
                  return true;
                })
        .value();
  }
  Result<UpdateResult> Update(std::string_view filter, std::string_view change, bool multi = false,
                              bool upsert = false) {
    const BsonDocument q = Doc(filter), u = Doc(std::string("{\"u\":") + std::string(change) + "}");
    UpdateStatement s;
    s.filter = q;
    s.update = u.view()["u"];
    s.multi = multi;
    s.upsert = upsert;
    WriteCommand c = Command();
    return c.Update(s);
  }
  Result<int64_t> Delete(std::string_view filter, bool multi = true) {
    const BsonDocument q = Doc(filter);
    WriteCommand c = Command();
    return c.Delete({.filter = q, .multi = multi});
  }
  Result<void> Commit() {
    op_->view.reset();
    Result<void> done = storage_->committer().Commit(std::move(*unit_));
    unit_.reset();
    return done;
  }
  void Drop() {
    op_->view.reset();
    unit_.reset();
  }
  /// What others see.
  int64_t Count(std::string_view filter = "{}") {
    RawClient client(server_.port());
    return client.Command(R"({"count": "c", "query": )" + std::string(filter) + R"(, "$db": "d"})")
        .view()["n"]
        .NumberAsInt64();
  }
  /// Of another client, which does not wait long for locks.
  BsonDocument Other(std::string_view json) {
    RawClient client(server_.port());
    return client.Command(json);
  }
  Storage& storage() { return *storage_; }
  Operation& op() { return *op_; }
  TestServer& server() { return server_; }

 private:
  ScratchDir dir_;
  TestServer server_;
  std::unique_ptr<Storage> storage_;
  std::optional<Operation> op_;
  CollectionInfoPtr coll_;
  std::optional<WriteUnit> unit_;
};

}  // namespace

TEST_CASE("Statements in a unit that outlives them", "[runner]") {
  LongUnit t;
  REQUIRE(t.Insert({R"({"_id": 1, "x": 1})", R"({"_id": 2, "x": 1})"}) == 2);
  REQUIRE(t.Count() == 2);
  t.Begin();
  CHECK(t.Insert({R"({"_id": 3, "x": 1})"}) == 1);
  CHECK(t.Update(R"({"x": 1})", R"({"$inc": {"x": 10}})", true).value().modified == 3);
  CHECK(t.Update(R"({"_id": 4})", R"({"$set": {"x": 11}})", false, true)
            .value()
            .upserted_id.view()
            .NumberAsInt64() == 4);
  CHECK(t.Delete(R"({"_id": 1})").value() == 1);
  CHECK(t.Delete(R"({"_id": 1})").value() == 0);
  // Nobody else sees any of it.
  CHECK(t.Count() == 2);
  CHECK(t.Count(R"({"x": 1})") == 2);
  SECTION("it is committed as one") {
    REQUIRE(t.Commit());
    CHECK(t.Count() == 3);
    CHECK(t.Count(R"({"x": 11})") == 3);
  }
  SECTION("or it was never there") {
    t.Drop();
    CHECK(t.Count() == 2);
    CHECK(t.Count(R"({"x": 1})") == 2);
  }
  SECTION("what a failed step has staged is taken back, and no more") {
    std::vector<size_t> failed;
    CHECK(t.Insert({R"({"_id": 5})", R"({"_id": 3})", R"({"_id": 6, "z": 1})"}, &failed) == 2);
    CHECK(failed == std::vector<size_t>{1});
    // The second of the two cannot be: neither is.
    CHECK_FALSE(t.Update(R"({"_id": {"$in": [5, 6]}})", R"({"$push": {"z": 1}})", true));
    CHECK(t.Update(R"({"z": [1]})", R"({"$set": {"y": 1}})").value().matched == 0);
    REQUIRE(t.Commit());
    CHECK(t.Count() == 5);
    CHECK(t.Count(R"({"x": 11})") == 3);
  }
}

namespace {

/// Two updates in a unit that outlives them; of the first, the last document fails.
class TwoUpdates final : public WriteStatements {
 public:
  TwoUpdates(CommandContext& ctx, WriteUnit& unit)
      : ctx_(ctx), unit_(unit), command_(WriteServicesOf(ctx.server), ctx.op, "d", "c") {
    all_.update = change_.view()["u"];
    all_.multi = true;
    one_.filter = first_;
    one_.update = change_.view()["u"];
  }
  size_t size() const override { return 2; }
  Result<void> Open(StatementRunner& runner) override {
    runner.Attach(command_);
    return command_.Open();
  }
  size_t Until(size_t i) const override { return i + 1; }
  WriteStatement At(size_t i, size_t) override {
    ctx_.op.view =
        std::make_shared<ReadView>(ReadView(ctx_.server.storage().kv().Snapshot()).With(unit_));
    return {.command = &command_, .update = i == 0 ? &all_ : &one_};
  }
  Result<void> Replayed(size_t, const StatementResult&) override { return Ok(); }
  Result<void> Inserted(size_t, size_t) override { return Ok(); }
  Result<void> Done(size_t i, StatementOutcome o) override {
    if (i == 1) modified = o.update.modified;
    return Ok();
  }
  Result<bool> Failed(size_t i, Error) override {
    failed += std::to_string(i);
    return true;
  }
  int64_t modified = 0;
  std::string failed;

 private:
  CommandContext& ctx_;
  WriteUnit& unit_;
  WriteCommand command_;
  const BsonDocument change_ = Doc(R"({"u": {"$inc": {"x": 1}}})"), first_ = Doc(R"({"_id": 0})");
  UpdateStatement all_, one_;
};

Awaitable<Result<void>> RunTwoUpdates(CommandContext& ctx, const CommandRequest&,
                                      BsonBuilder& reply) {
  WriteUnit unit(ctx.server.storage(), ctx.op);
  unit.OwnDocuments();
  TwoUpdates statements(ctx, unit);
  StatementRunner runner(ctx);
  runner.set_unit(&unit);
  const StatementIds none;
  MAYFLY_CO_TRY(co_await runner.RunStatements(statements, none));
  ctx.op.view.reset();
  reply.Append("failed", statements.failed).Append("modified", statements.modified);
  co_return co_await ctx.Commit(std::move(unit));
}

}  // namespace

TEST_CASE("The runner takes a failed statement back to its beginning, and goes on", "[runner]") {
  LongUnit t;
  std::vector<std::string> docs;  // more than one step of the update takes
  for (int i = 0; i < 250; ++i)
    docs.push_back("{\"_id\": " + std::to_string(i) + ", \"x\": " + (i < 249 ? "0" : "\"s\"") +
                   "}");
  REQUIRE(t.Insert(docs) == 250);
  t.server().context().commands().Add(
      {.name = "testTwoUpdates", .help = "", .run_async = &RunTwoUpdates});
  const BsonDocument r = t.Other(R"({"testTwoUpdates": 1, "$db": "d"})");
  CHECK(IsOk(r));
  CHECK(r.view()["failed"].String() == "0");
  CHECK(r.view()["modified"].NumberAsInt64() == 1);
  CHECK(t.Count(R"({"x": 1})") == 1);
  CHECK(t.Count(R"({"_id": 0, "x": 1})") == 1);
}

TEST_CASE("A conflict is the unit's end, not a wait", "[runner]") {
  LongUnit t;
  REQUIRE(t.Insert({R"({"_id": 1, "x": 1})"}) == 1);
  t.Begin();
  // Somebody else holds the document's lock.
  Operation op(t.server().clock());
  WriteUnit other(t.storage(), op);
  const CollectionInfoPtr coll = t.storage().catalog().Find("d", "c");
  std::string key;
  const BsonDocument id = Doc(R"({"_id": 1})");
  Storage::AppendRecordKey(*coll, id.view()["_id"], key);
  WriteUnit::Locked locked;
  REQUIRE(other.LockAndRead(*coll, key, &locked).value());
  const Result<UpdateResult> r = t.Update(R"({"_id": 1})", R"({"$set": {"x": 2}})");
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kWriteConflict);
  CHECK(t.op().write_conflicts == 1);  // it was not tried again
}

TEST_CASE("What failed statements say has a limit, and is charged", "[server]") {
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  const Error long_one{
      ErrorCode::kBadValue, std::string(300'000, 'm'),
      BuildBson([](BsonBuilder& b) { b.Append("errInfo", std::string(400'000, 'd')); }).bytes()};
  {
    WriteErrors errors;
    for (size_t i = 0; i < 100; ++i) REQUIRE(errors.Add(i, long_one));
    const BsonDocument reply = BuildBson([&](BsonBuilder& b) { errors.AppendTo(b); });
    CHECK(reply.view().size() < 2'500'000);
    const BsonView list = reply.view()["writeErrors"].Document();
    CHECK(list.Count() == 100);
    CHECK(list["1"].Document()["errInfo"].IsString());
    CHECK(list["2"].Document()["errInfo"].missing());
    CHECK(list["2"].Document()["errmsg"].String().size() == 300'000);
    CHECK(list["3"].Document()["errmsg"].String().empty());
    CHECK(list["99"].Document()["code"].Int32() == 2);
    CHECK(budget.used() > 1'000'000);
    budget.SetLimit(1'000'000);
    Result<void> more = Ok();
    for (size_t i = 0; more && i < 100'000; ++i) more = errors.Add(i, BadValue("m"));
    REQUIRE(!more);
    CHECK(more.error().code == ErrorCode::kExceededMemoryLimit);
  }
  CHECK(budget.used() == 0);
}

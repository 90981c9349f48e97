#include "storage/read/visibility.h"

#include <catch2/catch.hpp>

#include "storage/write/tombstone.h"
#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

constexpr int64_t kStart = 1'900'000'000'000;

struct Expiring : CatalogStore {
  Expiring() {
    clock.Freeze(true);  // first: no millisecond passes in between
    clock.Set({kStart});
    op = std::make_unique<Operation>(clock);
  }
  void Advance(int64_t ms) {
    clock.Advance(ms);
    op = std::make_unique<Operation>(clock);
  }
  int64_t Visible() {
    CollectionInfoPtr c = Coll();
    return Visibility(*storage, *c, op->now).CountVisible(*op).value();
  }
  std::vector<Tombstone> Tombstones() {
    std::vector<Tombstone> out;
    std::string position;
    REQUIRE(ForEachTombstone(*storage, *op, 0, &position, [&](const Tombstone& t) -> Result<bool> {
      out.push_back({t.at, t.collection, Value::Copy(t.id.view()), t.cause});
      return true;
    }));
    return out;
  }
};

}  // namespace

TEST_CASE("A document is there before its deadline and absent at it", "[expiry]") {
  Expiring s;
  auto c = s.Make();
  REQUIRE(s.Insert(*c, R"({"_id": 1})", Instant{kStart + 10}));
  REQUIRE(s.Insert(*c, R"({"_id": 2})"));
  struct Step {
    int64_t by, visible;
    bool may_hide;
  };
  for (Step step : {Step{0, 2, false}, {9, 2, false}, {1, 1, true}, {100, 1, true}}) {
    s.Advance(step.by);
    CHECK(s.Visible() == step.visible);
    CHECK(Visibility(*s.storage, *c, s.op->now).MayHide() == step.may_hide);
  }
  CHECK(Visibility(*s.storage, *c, s.op->now, true).CountVisible(*s.op).value() == 2);
  s.storage->expiry_policy().suspended = true;
  CHECK(s.Visible() == 2);
}

TEST_CASE("What is overdue is known again after a restart", "[expiry]") {
  Expiring s;
  auto c = s.Make();
  auto other = s.Make("other");
  REQUIRE(s.Insert(*c, R"({"_id": 1})", Instant{kStart + 10}));
  REQUIRE(s.Insert(*c, R"({"_id": 2})", Instant{kStart + 5}));
  REQUIRE(s.catalog().SetDatabaseMaxTtl(*s.op, "db", 77));
  s.Open();
  c = s.Coll();
  CHECK(c->document_expiry->Earliest() == kStart + 5);
  CHECK(s.Coll("other")->document_expiry->Earliest() == INT64_MAX);
  CHECK(s.catalog().DatabaseMaxTtl("db") == 77);
  CHECK(c->database_max_ttl->load() == 77);
  s.Advance(5);
  CHECK(s.Visible() == 1);
  REQUIRE(s.catalog().DropDatabase(*s.op, "db"));
  CHECK(s.catalog().DatabaseMaxTtl("db") == 0);
}

TEST_CASE("An expired document makes way, in the same unit, and is on record as expired",
          "[expiry]") {
  Expiring s;
  auto c = s.Make();
  REQUIRE(s.catalog().CreateIndexes(
      *s.op, *c, {Spec(R"({"key": {"u": 1}, "unique": true})"), Spec(R"({"key": {"a": 1}})")}));
  c = s.Coll();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "u": 1, "a": [1, 2]})", Instant{kStart + 10}));
  REQUIRE(s.Insert(*c, R"({"_id": 2, "u": 2, "a": [1, 2]})", Instant{kStart + 10}));
  REQUIRE(s.Insert(*c, R"({"_id": 3, "u": 3, "a": 5})", Instant{kStart + 20}));
  CHECK(CodeOf(s.Insert(*c, R"({"_id": 9, "u": 2})")) == ErrorCode::kDuplicateKey);
  s.Advance(10);
  SECTION("one insert over both its _id and its unique key") {
    REQUIRE(s.Insert(*c, R"({"_id": 1, "u": 2, "a": 7})"));
    auto t = s.Tombstones();
    REQUIRE(t.size() == 2);
    for (auto& x : t) {
      CHECK(x.cause.reason == DeleteReason::kExpiredDocument);
      CHECK(x.cause.deadline == Instant{kStart + 10});
      CHECK(x.at == Instant{kStart + 10});
    }
    CHECK(s.Scan(c).size() == 2);
  }
  SECTION("an update into its unique key") {
    REQUIRE(s.Change(*c, Json(R"({"_id": 3, "u": 1, "a": [1, 2, 3]})"), false).value());
    CHECK(s.Scan(c).size() == 2);
  }
  SECTION("several in one unit, one after another in the same place") {
    BsonDocument a = Json(R"({"_id": 1, "u": 10})"), b = Json(R"({"_id": 4, "u": 2})"),
                 d = Json(R"({"_id": 5, "u": 2})");
    WriteUnit u(*s.storage, *s.op);
    REQUIRE(u.Insert(*c, a));
    REQUIRE(u.Insert(*c, b, Instant{kStart}));  // expired already: makes way itself
    REQUIRE(u.Insert(*c, d));
    CHECK(CodeOf(u.Insert(*c, b)) == ErrorCode::kDuplicateKey);
    REQUIRE(s.storage->committer().Commit(std::move(u)));
    CHECK(s.Scan(c).size() == 3);
  }
  SECTION("a unit that is dropped removes nothing") {
    BsonDocument a = Json(R"({"_id": 1, "u": 10})");
    WriteUnit u(*s.storage, *s.op);
    REQUIRE(u.Insert(*c, a));
  }
  s.RequireValid(s.Coll());
  CHECK(Storage::DocumentCount(*s.Coll()) == static_cast<int64_t>(s.Scan(s.Coll()).size()));
}

TEST_CASE("A held document neither hides nor makes way", "[expiry]") {
  struct Hold final : ExpiryPolicy {
    bool HasHolds() const override { return true; }
    bool Held(const CollectionInfo&, BsonView doc, Instant) const override {
      return doc["held"].Truthy();
    }
  };
  Expiring s;
  s.storage->set_expiry_policy(std::make_unique<Hold>());
  auto c = s.Make();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "held": true})", Instant{kStart}));
  REQUIRE(s.Insert(*c, R"({"_id": 2})", Instant{kStart}));
  CHECK(s.Visible() == 1);
  CHECK(CodeOf(s.Insert(*c, R"({"_id": 1})")) == ErrorCode::kDuplicateKey);
  CHECK(s.Insert(*c, R"({"_id": 2})"));
  CHECK(s.Visible() == 2);
}

namespace {

/// A filter in the middle of which its operation is killed: it says "does not match".
class KilledFilter final : public RecordFilter {
 public:
  bool Matches(BsonView) const override {
    if (Operation* op = FilteringFor::Asked())
      op->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    return false;
  }
};

}  // namespace

TEST_CASE("A filter that is interrupted says nothing of the document", "[expiry]") {
  struct Hold final : ExpiryPolicy {
    bool hold = false;
    bool HasHolds() const override { return hold; }
    // As TtlControls: what may be held stays.
    bool Held(const CollectionInfo&, BsonView doc, Instant) const override {
      return !KilledFilter().Matches(doc);
    }
  };
  Expiring s;
  auto policy = std::make_unique<Hold>();
  Hold& holds = *policy;
  s.storage->set_expiry_policy(std::move(policy));
  auto c = s.Make();
  const bool held = GENERATE(false, true);
  CAPTURE(held);
  IndexInfo at = Spec(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  at.expire_reads = ExpireReads::kExact;
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c, {at}));
  c = s.Coll();
  const BsonDocument doc =
      BuildBson([&](BsonBuilder& b) { b.Append("_id", 1).Append("at", Instant{kStart - 1}); });
  REQUIRE(s.Insert(*c, doc, held ? std::optional(Instant{kStart - 1}) : std::nullopt));
  if (held) {
    holds.hold = true;
  } else {
    auto& index = const_cast<IndexInfo&>(*c->FindIndex("at_1"));
    index.has_partial_filter = true;
    index.filter = std::make_shared<KilledFilter>();
  }
  const std::optional<Instant> deadline = held ? std::optional(Instant{kStart - 1}) : std::nullopt;
  const Visibility visible(*s.storage, *c, *s.op);
  CHECK(CodeOf(visible.Expired(doc, deadline)) == ErrorCode::kInterrupted);
  s.op->kill_code = 0;
  CHECK_FALSE(visible.Shows(doc, deadline));
  CHECK(CodeOf(visible.Stopped()) == ErrorCode::kInterrupted);
  CHECK(CodeOf(visible.CountVisible(*s.op)) == ErrorCode::kInterrupted);
  s.op->kill_code = 0;
  CHECK(visible.Stopped());
  CHECK(FilteringFor::Asked() == nullptr);
}

TEST_CASE("Of several deadlines the earliest counts, each document once", "[expiry]") {
  Expiring s;
  auto c = s.Make();
  IndexInfo up = Spec(R"({"key": {"at": 1}, "expireAfterSeconds": 1})");
  IndexInfo down = Spec(R"({"key": {"b": -1}, "expireAfterSeconds": 0})");
  up.expire_reads = down.expire_reads = ExpireReads::kExact;
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c, {up, down}));
  c = s.Coll();
  auto doc = [](int id, int64_t at, int64_t b) {
    return BuildBson([&](BsonBuilder& o) {
      o.Append("_id", id).Append("at", Instant{at});
      auto list = o.OpenArray("b");
      list.Append(Instant{b}).Append(Instant{b + 1000}).Append(Instant{b + 2000});
    });
  };
  REQUIRE(s.Insert(*c, doc(1, kStart, kStart + 5000), Instant{kStart + 3000}));
  REQUIRE(s.Insert(*c, doc(2, kStart + 9000, kStart + 2000), Instant{kStart + 3000}));
  REQUIRE(s.Insert(*c, doc(3, kStart + 9000, kStart + 9000)));
  struct Step {
    int64_t to, visible;
  };
  for (Step step :
       {Step{999, 3}, {1000, 2}, {1999, 2}, {2000, 1}, {3000, 1}, {8999, 1}, {9000, 0}}) {
    s.clock.Set({kStart + step.to});
    s.op = std::make_unique<Operation>(s.clock);
    CAPTURE(step.to);
    CHECK(s.Visible() == step.visible);
  }
  s.storage->expiry_policy().monitor_enabled = false;
  CHECK(s.Visible() == 1);  // only their own deadlines hide
}

TEST_CASE("Marks for readers hold while the reaper works", "[expiry]") {
  ExpiryState state;
  CHECK(state.Earliest() == INT64_MIN);
  state.SetEarliest(100);
  // The reaper has raised its own marks and is about to remove what it found.
  state.resume_millis = 201;
  state.next_millis = INT64_MAX;
  CHECK(state.Earliest() == 100);
  state.Lower(150);  // a writer, meanwhile
  CHECK(state.Earliest() == 100);
  state.next_millis = 150;  // it has looked again
  state.Settled();
  CHECK(state.Earliest() == 150);
  state.next_millis = INT64_MAX;
  state.Settled();
  CHECK(state.Earliest() == INT64_MAX);
  state.Lower(7);
  CHECK(state.Earliest() == 7);
}

TEST_CASE("Tombstones keep an _id of any type and are purged by time", "[expiry]") {
  Expiring s;
  auto c = s.Make();
  const char* ids[] = {R"({"_id": 1})",
                       R"({"_id": {"$numberLong": "2"}})",
                       R"({"_id": 3.5})",
                       R"({"_id": {"$numberDecimal": "4.50"}})",
                       R"({"_id": "five"})",
                       R"({"_id": null})",
                       R"({"_id": {"a": [1, {"$numberLong": "2"}]}})"};
  for (const char* id : ids) {
    REQUIRE(s.Insert(*c, id));
    REQUIRE(s.Change(*c, Json(id), true).value());
    s.Advance(1000);
  }
  auto t = s.Tombstones();
  REQUIRE(t.size() == std::size(ids));
  for (size_t i = 0; i < t.size(); ++i) {
    BsonDocument want = Json(ids[i]);
    CHECK(t[i].id.view().BinaryEquals(want.view()["_id"]));
    CHECK(t[i].at == Instant{kStart + static_cast<int64_t>(i) * 1000});
    CHECK(t[i].collection == c->id);
    CHECK_FALSE(t[i].cause.expired());
  }
  s.storage->expiry_policy().tombstone_seconds = 4;
  CHECK(PurgeTombstones(*s.storage, *s.op).value());
  CHECK(s.Tombstones().size() == 4);  // of the last four seconds, both ends included
  CHECK_FALSE(PurgeTombstones(*s.storage, *s.op).value());
  s.storage->expiry_policy().tombstone_seconds = 0;
  CHECK(PurgeTombstones(*s.storage, *s.op).value());
  CHECK(s.Tombstones().empty());
  REQUIRE(s.Insert(*c, R"({"_id": 1})"));
  REQUIRE(s.Change(*c, Json(R"({"_id": 1})"), true).value());
  CHECK(s.Tombstones().empty());
}

// How the monitor divides its time: turns, groups and batches, waiting for controls, holds, errors.
#include <atomic>
#include <catch2/catch.hpp>

#include "storage/kv/store_activity.h"
#include "storage/write/expiry_cover.h"
#include "tests/unit/ttl/reaping_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

/// Every look at it takes a millisecond.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(SystemClock& base) : base_(base) {}
  Instant Now() const override { return base_.Now(); }
  int64_t MonotonicMicros() const override { return micros_ += 1000; }
  void OnJump(std::function<void()> wake) override { base_.OnJump(std::move(wake)); }

 private:
  SystemClock& base_;
  mutable std::atomic<int64_t> micros_{0};
};

class Holding final : public ExpiryPolicy {
 public:
  std::atomic<bool> on{true};
  bool Held(const CollectionInfo&, BsonView doc, Instant) const override {
    return on && doc["keep"].Truthy();
  }
  bool HasHolds() const override { return on; }
};

TtlRule RuleOf(Reaping& r, std::string_view index) {
  std::vector<InvalidTtlRule> invalid;
  for (TtlRule& rule : ListTtlRules(r.catalog(), &invalid))
    if (rule.index && rule.index->name == index) return rule;
  FAIL("no rule " << index);
  return {};
}

}  // namespace

TEST_CASE("A small rule does not wait for a large backlog", "[ttl][turns]") {
  Reaping r;
  auto a = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})", "a");
  auto b = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})", "b");
  r.parameters.monitor_enabled = false;
  r.parameters.index_delete_target_docs = 100;
  std::vector<std::string> visits;
  r.environment.begin_operation = [&](const CollectionInfo& c, BsonView) {
    visits.push_back(c.name);
    return std::shared_ptr<Operation>();
  };
  for (int64_t i = 0; i < 2000; ++i) REQUIRE(r.Insert(*a, r.Doc(i, kStart - 5000)));
  for (int64_t i = 0; i < 5; ++i) REQUIRE(r.Insert(*b, r.Doc(i, kStart - 1)));
  r.Start();
  r.parameters.monitor_enabled = true;
  r.monitor->Settle();
  CHECK(r.Count("a") + r.Count("b") == 0);
  REQUIRE(visits.size() == 21);
  CHECK(std::count(visits.begin(), visits.begin() + 2, "b") == 1);
}

TEST_CASE("What comes in behind the place a visit ended at is not missed", "[ttl][turns]") {
  Reaping r;
  const char* key = GENERATE("1", "-1");
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key + "}, \"expireAfterSeconds\": 0}");
  r.parameters.monitor_enabled = false;
  r.parameters.index_delete_target_docs = 100;
  int visits = 0;
  r.environment.begin_operation = [&](const CollectionInfo&, BsonView) {
    // All of one date: ids before and behind those that are gone, and an earlier date.
    if (++visits == 3) {
      REQUIRE(r.Insert(*c, r.Doc(-1, kStart)));
      REQUIRE(r.Insert(*c, r.Doc(5000, kStart)));
    }
    if (visits == 5) REQUIRE(r.Insert(*c, r.Doc(-2, kStart - 1000)));
    return std::shared_ptr<Operation>();
  };
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart)));
  r.Start();
  r.parameters.monitor_enabled = true;
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(visits >= 11);
  r.RequireValid(r.Coll());
}

TEST_CASE("With thousands of rules only the one that is due is visited", "[ttl][turns]") {
  Reaping r;
  for (int i = 0; i < 300; ++i)
    r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})", "c" + std::to_string(i));
  int visits = 0;
  r.environment.begin_operation = [&](const CollectionInfo&, BsonView) {
    ++visits;
    return std::shared_ptr<Operation>();
  };
  r.Start();
  for (int i = 0; i < 300; ++i)
    REQUIRE(r.Insert(*r.Coll("c" + std::to_string(i)), r.Doc(1, kStart + 1000 * (i + 1))));
  r.monitor->Settle();
  CHECK(visits == 0);
  r.clock.Advance(1000);
  r.monitor->Settle();
  CHECK(visits == 1);
  r.clock.Advance(2000);
  r.monitor->Settle();
  CHECK(visits == 3);
}

TEST_CASE("batchedDeletesTargetBatchTimeMS, Docs and StagedDocBytes end a batch", "[ttl][turns]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  SlowClock slow(r.clock);
  r.monitor_clock = &slow;
  for (int64_t i = 0; i < 100; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 1)));
  const int64_t each = r.Doc(0, 0).view().size();
  struct Row {
    int64_t docs, millis, bytes, batches;
  };
  // With no target of documents the time is looked at every 16.
  Row row = GENERATE_COPY(Row{10, 0, 0, 10}, Row{0, 0, 0, 1}, Row{0, 5, 0, 2}, Row{7, 0, 0, 15},
                          Row{0, 0, each * 25, 4}, Row{30, 2, 0, 4});
  r.parameters.batch_target_docs = row.docs;
  r.parameters.batch_target_time_ms = row.millis;
  r.parameters.batch_target_staged_bytes = row.bytes;
  r.Start();
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(r.batched.docs == 100);
  CHECK(r.batched.batches == row.batches);
  CHECK(r.batched.staged_size_bytes == 100 * each);
  CHECK(r.metrics.bytes_deleted == 100 * each);
  r.monitor.reset();  // before the clock that its thread reads
}

TEST_CASE("Large documents, of which a unit takes few, are not all read for each unit",
          "[ttl][turns]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  constexpr int64_t kDocuments = 400;
  for (int64_t i = 0; i < kDocuments; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 1)));
  REQUIRE(r.storage->kv().Flush());
  const auto looked_up = [&] {
    const KvCounters n = ActivityOf(r.storage->kv())->Counters();
    return n.data_hits + n.data_misses;
  };
  const uint64_t before = looked_up();
  r.parameters.batch_target_staged_bytes = 1;  // one document is enough
  r.Start();
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(looked_up() - before < 20 * kDocuments);
}

TEST_CASE("A rule that may not be reaped waits until it may, or until it is told", "[ttl][turns]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  std::atomic<int64_t> from{kStart + 5000};
  int asked = 0;
  r.environment.may_reap = [&](const TtlRule& rule, Instant) {
    if (rule.index) ++asked;
    return Instant{from.load()};
  };
  r.Start();
  REQUIRE(r.Insert(*c, r.Doc(1, kStart)));
  for (int i = 0; i < 4; ++i) r.monitor->Settle();
  CHECK(r.Count() == 1);
  CHECK(asked == 1);
  CHECK(r.monitor->Figures(RuleOf(r, "at_1")).waits_for == TtlWait::kControl);
  CHECK(r.monitor->Figures(RuleOf(r, "at_1")).waits_until == kStart + 5000);
  r.clock.Advance(5000);
  r.monitor->Settle();
  CHECK(r.Count() == 0);

  from = INT64_MAX;
  REQUIRE(r.Insert(*c, r.Doc(1, kStart)));
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  from = INT64_MIN;
  r.monitor->ControlsChanged();
  r.monitor->Settle();
  CHECK(r.Count() == 0);
}

TEST_CASE("Held documents stay and do not keep the others, and go when the hold ends",
          "[ttl][turns]") {
  Reaping r;
  auto owned = std::make_unique<Holding>();
  Holding& policy = *owned;
  r.storage->set_expiry_policy(std::move(owned));
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  std::atomic<int64_t> ends{INT64_MAX};
  r.environment.hold_ends = [&](const CollectionInfo&, Instant) { return Instant{ends.load()}; };
  int visits = 0;
  r.environment.begin_operation = [&](const CollectionInfo&, BsonView) {
    ++visits;
    return std::shared_ptr<Operation>();
  };
  r.Start();
  auto put = [&](int64_t id, bool keep) {
    return r.Insert(*c, BuildBson([&](BsonBuilder& b) {
      b.Append("_id", id).Append("at", Instant{kStart - id}).Append("keep", keep);
    }));
  };
  for (int64_t i = 0; i < 20; ++i) REQUIRE(put(i, i % 2 == 0));
  r.monitor->Settle();
  CHECK(r.Count() == 10);
  CHECK(r.monitor->Figures(RuleOf(r, "at_1")).left_behind);
  const int before = visits;
  for (int i = 0; i < 3; ++i) r.monitor->Settle();
  CHECK(visits == before);  // it does not come back to them by itself
  REQUIRE(put(21, false));
  r.monitor->Settle();
  CHECK(r.Count() == 10);

  SECTION("told") {
    policy.on = false;
    r.monitor->ControlsChanged();
  }
  SECTION("by the clock") {
    ends = kStart + 500;
    r.monitor->ControlsChanged();
    r.monitor->Settle();
    CHECK(r.Count() == 10);
    policy.on = false;
    r.clock.Advance(500);
  }
  SECTION("at the next pass") {
    policy.on = false;
    r.monitor->RunPass();
  }
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  r.RequireValid(r.Coll());
}

TEST_CASE("The middle of a backlog is covered up to the entry that was reached", "[ttl][turns]") {
  Reaping r;
  const char* key = GENERATE("1", "-1");
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key +
                       "}, \"name\": \"i\", \"expireAfterSeconds\": 0}");
  for (int64_t i = 0; i < 100; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart)));
  TtlRule rule = RuleOf(r, "i");
  rule.state().resume_millis = kStart + 1;
  TtlCursor cursor(*r.storage, rule, INT64_MIN, kStart);
  std::string last;
  std::vector<int64_t> gone;
  for (int i = 0; i < 40; ++i) {
    REQUIRE(cursor.Next().value());
    cursor.EntryKey(&last);
    Storage::Record record;
    REQUIRE(r.storage->Fetch(*c, cursor.record_key(), &record).value());
    gone.push_back(record.doc["_id"].NumberAsInt64());
  }
  for (int64_t id : gone) REQUIRE(r.Change(*c, r.Doc(id, 0), true));
  REQUIRE(CoverReaped(*r.storage, *r.op, *c, *rule.index, kStart, last).value());
  CHECK(r.Count() == 60);
  CHECK(r.CountEntries(*rule.index) == 60);
  r.RequireValid(r.Coll());
}

TEST_CASE("Expired documents move to the archive with their removal", "[ttl][archive]") {
  Reaping r;
  CollectionInfo def;
  def.db = "db";
  def.name = "c";
  def.options = Json(R"({"onExpire": {"action": "archive", "into": {"db": "db", "coll": "old"}}})");
  REQUIRE(r.catalog().Create(*r.op, std::move(def)));
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  auto old = r.Make("old");
  REQUIRE(r.catalog().CreateIndexes(
      *r.op, *old, {Spec(R"({"key": {"u": 1}, "unique": true, "sparse": true})")}));
  old = r.Coll("old");
  REQUIRE(r.Insert(*old, R"({"_id": 3, "from": "an earlier life"})"));
  REQUIRE(r.Insert(*old, R"({"_id": "x", "u": 1})"));
  r.Start();
  for (int64_t i = 0; i < 50; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart)));
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(r.Count("old") == 51);
  Storage::Record record;
  REQUIRE(r.storage->FindById(*old, Json(R"({"_id": 3})").view().First().value, &record).value());
  CHECK(record.doc["at"].Date() == Instant{kStart});
  r.RequireValid(r.Coll("old"));

  // One that the archive cannot take stays, and the others go.
  REQUIRE(r.Insert(*c, BuildBson([](BsonBuilder& b) {
    b.Append("_id", 1000).Append("at", Instant{kStart}).Append("u", 1);
  })));
  for (int64_t i = 100; i < 150; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart)));
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  CHECK(r.Count("old") == 101);
  CHECK(r.monitor->Figures(RuleOf(r, "at_1")).last_error.find("E11000") != std::string::npos);
  REQUIRE(r.Change(*old, Json(R"({"_id": "x"})"), true));
  r.monitor->RunPass();
  CHECK(r.Count() == 0);
  CHECK(r.monitor->Figures(RuleOf(r, "at_1")).last_error.empty());

  // Without its target nothing goes, and the rule says why; a new target is found at once.
  REQUIRE(r.catalog().Drop(*r.op, "db", "old"));
  for (int64_t i = 0; i < 20; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart)));
  r.monitor->Settle();
  r.monitor->Settle();
  CHECK(r.Count() == 20);
  CHECK(r.monitor->Figures(RuleOf(r, "at_1")).last_error.find("db.old") != std::string::npos);
  CHECK(r.Logged("E TTL deletion failed") == 2);  // each reason once
  r.Make("old");
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(r.Count("old") == 20);
  r.RequireValid(r.Coll());
}

// Records that lie in the order of an index are walked instead of looked up: the same answers, and
// no walk where they lie apart.
#include <algorithm>

#include "query/plan/query_state.h"
#include "storage/read/record_walk.h"
#include "tests/unit/query/plan_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

constexpr int kWalked = 600;

/// `a`: as `_id` grows; `far`: from one to the next 371 on, up and down; `few`: one value, of every
/// twentieth document.
void FillWalked(PlanStore& s) {
  s.CreateIndex(R"({"key": {"a": 1}})");
  s.CreateIndex(R"({"key": {"far": 1}})");
  s.CreateIndex(R"({"key": {"few": 1}})");
  for (int i = 0; i < kWalked; ++i)
    s.Insert("{\"_id\": " + std::to_string(i) + ", \"a\": " + std::to_string(i) + ", \"far\": " +
             std::to_string(i * 131 % kWalked) + ", \"few\": " + std::to_string(i % 20) + "}");
}

std::vector<std::string> By(PlanStore& s, const char* index, const char* filter, const char* sort,
                            int pause = 0) {
  BsonDocument f = PlanJson(filter), o = PlanJson(sort);
  BsonDocument hint = PlanJson("{\"hint\": \"" + std::string(index) + "\"}");
  QuerySpec spec;
  spec.filter = f;
  spec.sort = o;
  spec.hint = hint.view().First().value;
  return s.Run(std::move(spec), pause);
}

bool Lucky(PlanStore& s, const char* index) {
  return QueryState::Of(*s.storage).neighbours.Ask(s.Coll()->FindIndex(index)->id) ==
         Neighbours::Try::kNow;
}

}  // namespace

TEST_CASE("Records in the order of an index are walked in both directions", "[plan]") {
  PlanStore s;
  FillWalked(s);
  const bool gaps = GENERATE(false, true), own_order = GENERATE(false, true);
  const int pause = GENERATE(0, 7, 101);
  CAPTURE(gaps, own_order, pause);
  if (gaps)
    for (int i = 100; i < 500; i += i % 3 == 0 ? 2 : 1) {
      Operation op(s.clock);
      WriteUnit unit(*s.storage, op);
      WriteUnit::Locked l;
      std::string key;
      Storage::AppendRecordKey(
          *s.Coll(), BuildBson([&](BsonBuilder& b) { b.Append("_id", i); }).view()["_id"], key);
      REQUIRE(unit.LockAndRead(*s.Coll(), key, &l).value());
      REQUIRE(unit.Delete(*s.Coll(), l, DeleteReason::kDeleted));
      REQUIRE(s.storage->committer().Commit(std::move(unit)));
    }
  const char* const filter = R"({"a": {"$gte": 20, "$lt": 580}})";
  const char* const sort = own_order ? R"({"a": 1})" : R"({"a": -1})";
  CHECK_FALSE(Lucky(s, "a_1"));
  const std::vector<std::string> walked = By(s, "a_1", filter, sort, pause);
  // Between so many pauses none is long enough to say so.
  CHECK(Lucky(s, "a_1") == (pause != 7));
  std::vector<std::string> expected = By(s, "far_1", filter, sort);
  CHECK(walked == expected);
  CHECK(By(s, "a_1", filter, sort, pause) == expected);  // begun at once, the second time
}

TEST_CASE("Records that lie apart are looked up after one walk in vain", "[plan]") {
  PlanStore s;
  FillWalked(s);
  // In order, with nineteen others between any two.
  const std::vector<std::string> found = By(s, "few_1", R"({"few": 3})", "{}");
  CHECK(found.size() == kWalked / 20);
  CHECK(QueryState::Of(*s.storage).neighbours.Ask(s.Coll()->FindIndex("few_1")->id) ==
        Neighbours::Try::kNo);
  // Not in order: never tried.
  CHECK(By(s, "far_1", R"({"far": {"$lt": 300}})", "{}").size() == 300);
  CHECK(QueryState::Of(*s.storage).neighbours.Ask(s.Coll()->FindIndex("far_1")->id) ==
        Neighbours::Try::kLater);
}

TEST_CASE("Where walks failed they are tried ever less, until one goes well", "[plan]") {
  Neighbours n;
  REQUIRE(n.Ask(7) == Neighbours::Try::kLater);
  n.Walked(7, false);
  CHECK(n.Ask(7) == Neighbours::Try::kNo);
  REQUIRE(n.Ask(7) == Neighbours::Try::kLater);
  n.Walked(7, false);
  for (int i = 0; i < 3; ++i) CHECK(n.Ask(7) == Neighbours::Try::kNo);
  REQUIRE(n.Ask(7) == Neighbours::Try::kLater);
  for (int i = 0; i < 20; ++i) n.Walked(7, false);
  for (int i = 0; i < 127; ++i) CHECK(n.Ask(7) == Neighbours::Try::kNo);
  CHECK(n.Ask(7) == Neighbours::Try::kLater);
  n.Walked(7, true);
  CHECK(n.Ask(7) == Neighbours::Try::kNow);
}

TEST_CASE("A walk ends where too much lies between its keys, deleted entries too", "[plan]") {
  PlanStore s;
  for (int i = 0; i < 300; ++i) s.Insert("{\"_id\": " + std::to_string(i) + "}");
  auto key = [&](int id) {
    std::string k;
    const BsonDocument d = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
    Storage::AppendRecordKey(*s.Coll(), d.view()["_id"], k);
    return k;
  };
  const bool gone = GENERATE(false, true);
  if (gone)
    for (int i = 5; i < 290; ++i) {
      Operation op(s.clock);
      WriteUnit unit(*s.storage, op);
      WriteUnit::Locked l;
      REQUIRE(unit.LockAndRead(*s.Coll(), key(i), &l).value());
      REQUIRE(unit.Delete(*s.Coll(), l, DeleteReason::kDeleted));
      REQUIRE(s.storage->committer().Commit(std::move(unit)));
    }
  RecordWalk walk;
  walk.Begin(s.storage->kv(), *s.Coll(), ReadView(s.storage->kv().Snapshot()), key(0), false, true);
  std::string_view record;
  for (int i = 0; i < 5; ++i) CHECK(walk.Find(key(i), &record) == RecordWalk::Verdict::kFound);
  CHECK(walk.Find(key(295), &record) == RecordWalk::Verdict::kFar);
  CHECK_FALSE(walk.walking());
  CHECK(walk.found() == 5);
}

TEST_CASE("A walk does not read large records that nobody asked for", "[plan]") {
  PlanStore s;
  const bool large = GENERATE(false, true);
  const std::string text(large ? 100'000 : 100, 'x');
  for (int i = 0; i < 40; ++i)  // the second of each two
    s.Insert("{\"_id\": " + std::to_string(i) + ", \"t\": \"" + (i % 2 == 0 ? "" : text) + "\"}");
  auto find = [&](RecordWalk& walk, int id) {
    std::string k;
    const BsonDocument d = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
    Storage::AppendRecordKey(*s.Coll(), d.view()["_id"], k);
    if (!walk.walking())
      walk.Begin(s.storage->kv(), *s.Coll(), ReadView(s.storage->kv().Snapshot()), k, false, true);
    std::string_view record;
    return walk.Find(k, &record);
  };
  RecordWalk asked, beside;
  for (int i = 1; i < 40; ++i) CHECK(find(asked, i) == RecordWalk::Verdict::kFound);
  CHECK(find(beside, 0) == RecordWalk::Verdict::kFound);
  CHECK(find(beside, 2) == (large ? RecordWalk::Verdict::kFar : RecordWalk::Verdict::kFound));
}

#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "query/plan/query_state.h"
#include "tests/unit/query/plan_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

// A scan that others help gives what a scan by one thread gives, in the same order and with the
// same counts.

namespace {

/// A thread for each call, or threads that do not come before the end.
class TestHelpers final : public ScanHelpers {
 public:
  int64_t most() const override { return most_; }
  int64_t after() const override { return 300; }
  bool TryRun(std::function<void()> f) override {
    std::lock_guard l(mutex_);
    ++asked;
    if (refuses) return false;
    if (late) {
      kept_.push_back(std::move(f));
    } else {
      threads_.emplace_back(std::move(f));
    }
    return true;
  }
  bool Wanted() const override { return often_wanted && ++looks_ % 3 == 0; }
  void SetMost(int64_t n) { most_ = n; }
  /// Everything that was asked for has run.
  void Finish() {
    for (std::thread& t : threads_) t.join();
    threads_.clear();
    for (auto& f : kept_) f();
    kept_.clear();
  }
  ~TestHelpers() override { Finish(); }

  bool late = false, refuses = false, often_wanted = false;
  std::atomic<int> asked{0};

 private:
  std::atomic<int64_t> most_{3};
  mutable std::atomic<int> looks_{0};
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::vector<std::function<void()>> kept_;
};

constexpr int kLargeStore = 6000;

/// Keys of one kind, or of several that are hard to divide.
std::string IdOf(int kind, int i) {
  const std::string n = std::to_string(i);
  const std::string padded = std::string(6 - n.size(), '0') + n;
  switch (kind) {
    case 0:
      return n;
    case 1:
      return "\"a prefix that all of them have: " + padded + "\"";
    case 2:
      return "{\"$oid\": \"65a1b2c3d4e5f60718" + padded + "\"}";
    case 3:  // few numbers, then strings with a common prefix, then documents
      return i % 3 == 0   ? std::to_string(i) + ".5"
             : i % 3 == 1 ? "\"customer " + padded + "\""
                          : "{\"a\": {\"b\": " + n + "}}";
    default:  // far apart
      return std::to_string(int64_t{i} * i * i * i);
  }
}

void FillLarge(PlanStore& store, int kind) {
  const std::string text(150, 'x');
  std::mt19937 random(7);
  for (int i = 0; i < kLargeStore; ++i)
    store.Insert("{\"_id\": " + IdOf(kind, i) + ", \"r\": " + std::to_string(random() % 100) +
                 ", \"i\": " + std::to_string(i) + ", \"text\": \"" + text +
                 std::to_string(random()) + "\"}");
  REQUIRE(store.storage->kv().Flush());
}

/// The scan's node without what only help has.
std::string Stats(PlanStore& store, const BsonDocument& filter, int64_t limit = 0) {
  QuerySpec spec;
  spec.filter = filter;
  spec.limit = limit;
  const BsonDocument explained = store.Explain(std::move(spec));
  const BsonView stats = explained.view()["executionStats"].Document();
  std::string out = ToRelaxedJson(BuildBson([&](BsonBuilder& b) {
    for (const char* name : {"nReturned", "totalKeysExamined", "totalDocsExamined"})
      b.Append(name, stats[name]);
    BsonView stage = stats["executionStages"].Document();
    while (stage.Has("inputStage") && stage["stage"].String() != "FETCH")
      stage = stage["inputStage"].Document();
    for (const char* name : {"works", "advanced", "needTime", "docsExamined"})
      b.Append(name, stage[name]);
  }));
  return out;
}

int64_t Count(PlanStore& store, const BsonDocument& filter, int64_t limit = 0) {
  QuerySpec spec;
  spec.coll = store.Coll();
  spec.filter = filter;
  spec.limit = limit;
  auto count = MakeCountExecutor(*store.storage, *store.op, std::move(spec));
  REQUIRE(count);
  auto n = count.value()->Count();
  REQUIRE(n);
  return n.value();
}

const char* const kFilters[] = {
    "{}",
    "{\"r\": {\"$lt\": 3}}",
    "{\"text\": {\"$regex\": \"77\"}}",
    "{\"$expr\": {\"$lt\": [\"$r\", {\"$mod\": [\"$i\", 50]}]}}",
    "{\"i\": {\"$gte\": 5990}}",
    "{\"nothing\": 1}",
    "{\"_id\": {\"$gt\": 100, \"$lte\": 5500}, \"r\": {\"$ne\": 5}}",
    "{\"_id\": {\"$in\": [3, 4, 7]}}",
};

}  // namespace

TEST_CASE("a scan with help gives the same as one without", "[parallel]") {
  const int kind = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(kind);
  TestHelpers helpers;
  PlanStore store;
  FillLarge(store, kind);
  QueryState& state = QueryState::Of(*store.storage);
  for (const char* text : kFilters) {
    CAPTURE(text);
    const BsonDocument filter = PlanJson(text);
    const auto spec = [&] {
      QuerySpec s;
      s.filter = filter;
      return s;
    };
    state.helpers = nullptr;
    const auto rows = store.Run(spec());
    const int64_t n = Count(store, filter), some = Count(store, filter, 77);
    const std::string stats = Stats(store, filter), limited = Stats(store, filter, 3);
    state.helpers = &helpers;
    for (int how = 0; how < 4; ++how) {
      CAPTURE(how);
      helpers.late = how == 1;
      helpers.refuses = how == 2;
      helpers.often_wanted = how == 3;
      CHECK(store.Run(spec()) == rows);
      CHECK(store.Run(spec(), 700) == rows);
      CHECK(Count(store, filter) == n);
      CHECK(Count(store, filter, 77) == some);
      CHECK(Stats(store, filter) == stats);
      CHECK(Stats(store, filter, 3) == limited);
      helpers.Finish();
    }
  }
  CHECK(helpers.asked > 0);
  state.helpers = nullptr;
}

TEST_CASE("helpers do read", "[parallel]") {
  TestHelpers helpers;
  PlanStore store;
  FillLarge(store, 0);
  QueryState& state = QueryState::Of(*store.storage);
  state.helpers = &helpers;
  const BsonDocument filter = PlanJson("{\"text\": {\"$regex\": \"x{20}y\"}}");
  // Whether a thread comes in time is for the system to say.
  for (int i = 0; i < 1000 && state.parts_of_helpers == 0; ++i) {
    CHECK(Count(store, filter) == 0);
    helpers.Finish();
  }
  CHECK(state.parts_of_helpers > 0);
  SECTION("and explain says so") {
    bool said = false;
    for (int i = 0; i < 1000 && !said; ++i) {
      QuerySpec spec;
      spec.filter = filter;
      const BsonDocument explained = store.Explain(std::move(spec));
      said = explained.view().FindPath("executionStats.executionStages.parallelRanges").IsNumber();
      helpers.Finish();
    }
    CHECK(said);
  }
  SECTION("and not when there are to be none") {
    helpers.asked = 0;
    helpers.SetMost(0);
    CHECK(Count(store, filter) == 0);
    CHECK(helpers.asked == 0);
  }
  SECTION("and not in a slice") {
    helpers.asked = 0;
    store.op->BeginSlice(60'000'000);
    CHECK(Count(store, filter) == 0);
    store.op->EndSlice(true);
    CHECK(helpers.asked == 0);
  }
  state.helpers = nullptr;
}

TEST_CASE("what fails in a scan with help fails behind the same documents", "[parallel]") {
  TestHelpers helpers;
  PlanStore store;
  FillLarge(store, 0);
  QueryState& state = QueryState::Of(*store.storage);
  const BsonDocument filter =
      PlanJson("{\"$expr\": {\"$gt\": [{\"$divide\": [1, {\"$subtract\": [\"$i\", 4321]}]}, 0]}}");
  for (const bool helped : {false, true}) {
    state.helpers = helped ? &helpers : nullptr;
    for (int round = 0; round < 20; ++round) {
      QuerySpec spec;
      spec.filter = filter;
      auto e = store.Open(std::move(spec));
      int rows = 0;
      auto next = e->Next();
      for (; next && next.value() == PlanExecutor::State::kAdvanced; next = e->Next()) ++rows;
      REQUIRE(!next);
      CHECK(next.error().message.find("divide by zero") != std::string::npos);
      CHECK(rows == 0);  // 1 / (i - 4321) is above 0 behind it only
      e.reset();
      helpers.Finish();
    }
  }
  state.helpers = nullptr;
}

TEST_CASE("documents larger than a part of a scan come in their turn", "[parallel]") {
  TestHelpers helpers;
  PlanStore store;
  const std::string small(400, 'x'), large(3 << 20, 'y');
  for (int i = 0; i < 2000; ++i)
    store.Insert("{\"_id\": " + std::to_string(i) + ", \"text\": \"" +
                 (i > 400 && i % 150 < 2 ? large : small) + "\"}");
  REQUIRE(store.storage->kv().Flush());
  QueryState& state = QueryState::Of(*store.storage);
  for (int round = 0; round < 2; ++round) {
    state.helpers = &helpers;
    const BsonDocument all = PlanJson("{\"text\": {\"$exists\": true}}");
    QuerySpec spec;
    spec.filter = all;
    auto e = store.Open(std::move(spec));
    int64_t n = 0;
    for (auto next = e->Next(); next && next.value() == PlanExecutor::State::kAdvanced;
         next = e->Next()) {
      std::string bytes;
      BsonArrayBuilder batch(bytes);
      REQUIRE(e->AppendResult(batch));
      batch.Done();
      const BsonView doc = BsonView(bytes.data()).First().value.Document();
      REQUIRE(doc["_id"].NumberAsInt64() == n);
      const size_t size = n > 400 && n % 150 < 2 ? large.size() : small.size();
      REQUIRE(doc["text"].String().size() == size);
      ++n;
    }
    CHECK(n == 2000);
    e.reset();
    helpers.Finish();
    state.helpers = nullptr;
  }
}

TEST_CASE("what one thread has the memory for, several give up to one of them", "[parallel]") {
  TestHelpers helpers;
  PlanStore store;
  FillLarge(store, 0);
  QueryState& state = QueryState::Of(*store.storage);
  // About 11 MB each. Thirteen fit into what an operation may use, twice as many do not.
  const auto arrays = [](int n) {
    std::string variables, sizes;
    for (int i = 0; i < n; ++i) {
      const std::string name = "v" + std::to_string(i);
      variables += (i > 0 ? ", \"" : "\"") + name +
                   "\": {\"$concatArrays\": [{\"$range\": [0, 900000]}, [" + std::to_string(i) +
                   "]]}";
      sizes += (i > 0 ? ", {\"$size\": \"$$" : "{\"$size\": \"$$") + name + "\"}";
    }
    return PlanJson(
        "{\"$expr\": {\"$cond\": [{\"$eq\": [{\"$mod\": [\"$i\", 1000]}, 999]}, "
        "{\"$let\": {\"vars\": {" +
        variables + "}, \"in\": {\"$gt\": [{\"$add\": [" + sizes + "]}, 0]}}}, false]}}");
  };
  state.helpers = &helpers;
  CHECK(Count(store, arrays(13)) == kLargeStore / 1000);
  helpers.Finish();
  QuerySpec spec;
  spec.coll = store.Coll();
  const BsonDocument too_many = arrays(30);
  spec.filter = too_many;
  auto count = MakeCountExecutor(*store.storage, *store.op, std::move(spec));
  REQUIRE(count);
  const auto n = count.value()->Count();
  REQUIRE(!n);
  CHECK(n.error().code == ErrorCode::kExceededMemoryLimit);
  count.value().reset();
  helpers.Finish();
  state.helpers = nullptr;
}

TEST_CASE("a scan with help can be stopped, and given up, at any time", "[parallel]") {
  TestHelpers helpers;
  PlanStore store;
  FillLarge(store, 0);
  QueryState& state = QueryState::Of(*store.storage);
  state.helpers = &helpers;
  const BsonDocument filter = PlanJson("{\"r\": {\"$lt\": 90}}");
  for (int stop = 1; stop < 5000; stop += 371) {
    QuerySpec spec;
    spec.filter = filter;
    auto e = store.Open(std::move(spec));
    for (int i = 0; i < stop; ++i) REQUIRE(e->Next());
    if (stop % 2 == 0) {
      store.op->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
      auto next = e->Next();
      for (int i = 0; i < 1000 && next; ++i) next = e->Next();
      REQUIRE(!next);
      CHECK(next.error().code == ErrorCode::kInterrupted);
      store.op->kill_code = 0;
    }
    e.reset();
    helpers.Finish();
  }
  state.helpers = nullptr;
}

TEST_CASE("all parts of a scan see one point in time, and no overdue documents", "[parallel]") {
  TestHelpers helpers;
  PlanStore store;
  FillLarge(store, 0);
  for (int i = 0; i < 500; ++i)
    REQUIRE(store.Insert(PlanJson("{\"_id\": " + std::to_string(i * 11) + ".25, \"r\": 1}"),
                         Instant{store.op->now.millis - 1000}));
  QueryState& state = QueryState::Of(*store.storage);
  state.helpers = &helpers;
  for (int round = 0; round < 20; ++round) {
    QuerySpec spec;
    const BsonDocument filter = PlanJson("{\"r\": {\"$gte\": 0}}");
    spec.filter = filter;
    auto e = store.Open(std::move(spec));
    int rows = 0;
    for (;; ++rows) {
      auto next = e->Next();
      REQUIRE(next);
      if (next.value() == PlanExecutor::State::kEof) break;
      // Behind what was read, in front of it, and everywhere.
      if (rows % 1000 == 400)
        store.Insert("{\"_id\": " + std::to_string((rows * 7) % kLargeStore) + ".5" +
                     std::to_string(round) + std::to_string(rows) + ", \"r\": -1}");
    }
    CHECK(rows == kLargeStore);
    e.reset();
    helpers.Finish();
  }
  state.helpers = nullptr;
}

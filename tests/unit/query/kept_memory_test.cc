// Stages and commands that keep values charge for them, and end with their operation.
#include "protocol/large_memory.h"
#include "query/plan/distinct_scan.h"
#include "tests/unit/query/pipeline_fixture.h"
#include "tests/unit/query/plan_fixture.h"

using namespace mayfly;
using namespace mayfly::test;
using namespace mayfly::testing;

namespace {

/// {_id: `id`, a: [`n` different numbers]}
BsonDocument Numbers(int id, int n) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("_id", id);
    BsonArrayBuilder list = b.OpenArray("a");
    for (int i = 0; i < n; ++i) list.Append(i);
  });
}

/// {_id: 1, a: …}: a path of many numbers leads through it in 2^40 ways.
std::string Ways() {
  std::string nested = "1";
  for (int i = 0; i < 40; ++i) nested = "[{\"0\": " + nested + "}]";
  return "{\"_id\": 1, \"a\": " + nested + "}";
}

std::string WaysPath() {
  std::string path = "a";
  for (int i = 0; i < 60; ++i) path += ".0";
  return path;
}

}  // namespace

TEST_CASE("The values of distinct are charged while they are kept", "[plan]") {
  PlanStore store;
  REQUIRE(store.Insert(Numbers(1, 60'000)));
  const auto run = [&]() -> Result<int64_t> {
    QuerySpec spec;
    spec.coll = store.Coll();
    MAYFLY_TRY(auto distinct, MakeDistinctExecutor(*store.storage, *store.op, spec, "a"));
    int64_t held = 0;
    MAYFLY_TRY(distinct->Run([&](BsonValue) -> Result<void> {
      held = large_memory::Used();
      return Ok();
    }));
    return held;
  };
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  const Result<int64_t> held = run();
  REQUIRE(held);
  CHECK(held.value() >= 60'000 * static_cast<int64_t>(sizeof(Value)));
  CHECK(budget.used() == 0);
  budget.SetLimit(2 << 20);
  const Result<int64_t> refused = run();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(budget.used() == 0);
}

TEST_CASE("distinct ends where its path leads too many ways, and with its operation",
          "[plan][limits]") {
  PlanStore store;
  store.Insert(Ways());
  QuerySpec spec;
  spec.coll = store.Coll();
  const auto run = [&](int32_t kill) {
    auto distinct = MakeDistinctExecutor(*store.storage, *store.op, spec, WaysPath());
    REQUIRE(distinct);
    store.op->kill_code = kill;
    const Result<void> r = distinct.value()->Run([](BsonValue) -> Result<void> { return Ok(); });
    REQUIRE_FALSE(r);
    return static_cast<int>(r.error().code);
  };
  CHECK(run(0) == static_cast<int>(ErrorCode::kBadValue));
  CHECK(run(11601) == 11601);
}

TEST_CASE("The values that $graphLookup looks for are charged", "[pipeline]") {
  Runner runner;
  runner.env.collections["c"].push_back(Numbers(1, 60'000));
  runner.env.Insert("o", R"([{"_id": 1, "x": 1}])");
  constexpr std::string_view kStages =
      R"([{"$graphLookup": {"from": "o", "startWith": "$a", "connectFromField": "q",)"
      R"( "connectToField": "y", "as": "r"}}, {"$project": {"r": 1}}])";
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  CHECK(Squeeze(runner.Run(kStages)) == R"({"_id":1,"r":[]})");
  CHECK(budget.used() == 0);
  budget.SetLimit(6 << 20);
  CHECK(runner.Run(kStages) == "error 146");
  CHECK(budget.used() == 0);
}

TEST_CASE("$lookup ends where its foreign field leads too many ways, and with its operation",
          "[pipeline][limits]") {
  Runner runner;
  runner.env.has_index = false;
  runner.env.Insert("c", R"([{"_id": 1, "x": 5}])");
  runner.env.Insert("o", "[" + Ways() + R"(, {"_id": 2, "b": [{"0": 5}]}])");
  const auto run = [&](const std::string& foreign) {
    return runner.Run(R"([{"$lookup": {"from": "o", "localField": "x", "foreignField": ")" +
                      foreign + R"(", "as": "r"}}])");
  };
  CHECK(run("b.0") == Lines(R"([{"_id": 1, "x": 5, "r": [{"_id": 2, "b": [{"0": 5}]}]}])"));
  CHECK(run(WaysPath()) == "error 2");
  runner.op.kill_code = 11601;
  CHECK(run(WaysPath()) == "error 11601");
}

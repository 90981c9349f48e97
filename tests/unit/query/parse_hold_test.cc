// What a request is parsed into counts as large memory for as long as the parsed form lives, once.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "query/match/match_expression.h"
#include "query/match/record_filter.h"
#include "query/pipeline/pipeline.h"
#include "query/plan/executor.h"
#include "query/projection/projection.h"
#include "query/update/update.h"
#include "tests/unit/query/plan_fixture.h"
#include "tests/unit/query/query_test_util.h"

using namespace mayfly;

namespace {

constexpr int kMany = 50'000;
constexpr int64_t kMegabyte = int64_t{1} << 20;
/// What each of the parsed forms below takes at least.
constexpr int64_t kLeast = 4 * kMegabyte;
/// A hold counts in steps: it may be one below the number of bytes.
constexpr int64_t kStep = large_memory::kLarge;

/// {$max: ["$v", "$v", …]}
BsonDocument LongExpression() {
  return BuildBson([](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("$max");
    for (int i = 0; i < kMany; ++i) list.Append(std::string_view("$v"));
  });
}

/// {$nor: [{<path>: 0}, {<path>: 1}, …]}
BsonDocument LongFilter(std::string_view path) {
  return BuildBson([&](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("$nor");
    for (int i = 0; i < kMany; ++i) list.OpenDocument().Append(path, i);
  });
}

/// {field0: 1, field1: 1, …}
BsonDocument ManyFields() {
  return BuildBson([](BsonBuilder& b) {
    for (int i = 0; i < kMany; ++i) b.Append("field" + std::to_string(i), 1);
  });
}

/// {list: ["field0", "field1", …]}
BsonDocument ManyNames() {
  return BuildBson([](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("list");
    for (int i = 0; i < kMany; ++i) list.Append("field" + std::to_string(i));
  });
}

/// {$jsonSchema: {properties: {field0: {bsonType: "int"}, …}}}
BsonDocument LongSchema() {
  return BuildBson([](BsonBuilder& b) {
    BsonBuilder schema = b.OpenDocument("$jsonSchema");
    BsonBuilder properties = schema.OpenDocument("properties");
    for (int i = 0; i < kMany; ++i)
      properties.OpenDocument("field" + std::to_string(i)).Append("bsonType", "int");
  });
}

BsonDocument HeldField(std::string_view name, BsonView value) {
  return BuildBson([&](BsonBuilder& b) { b.Append(name, value); });
}

/// {list: [{<stage>: <spec>}]}
BsonDocument HeldStages(std::string_view stage, BsonView spec) {
  return BuildBson([&](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("list");
    list.OpenDocument().Append(stage, spec);
  });
}

/// A parsed form, whatever it is; null on an error, of which it has the code.
struct HeldForm {
  std::shared_ptr<void> form;
  ErrorCode code = ErrorCode::kOk;
};

template <class T>
HeldForm Keep(Result<T> parsed) {
  if (!parsed) return {nullptr, parsed.error().code};
  return {std::make_shared<T>(std::move(parsed).value())};
}

HeldForm AsUpdate(BsonValue u, std::vector<BsonView> array_filters = {}) {
  VariableScope scope;
  return Keep(Update::Parse(u, array_filters, scope));
}

HeldForm AsPipeline(BsonView wrapped) {
  PipelineOptions options;
  options.db = "test";
  options.collection = "c";
  return Keep(Pipeline::Parse(wrapped["list"].Document(), options));
}

struct Kind {
  const char* name;
  std::function<HeldForm()> parse;
};

std::vector<Kind> Kinds() {
  const BsonDocument computed = HeldField("x", LongExpression());
  const BsonDocument filter = LongFilter("a"), fields = ManyFields();
  return {
      {"a filter", [=] { return Keep(ParseMatch(filter)); }},
      {"a stored filter", [=] { return Keep(CompileRecordFilter(filter, false)); }},
      {"a stored schema",
       [schema = LongSchema()] { return Keep(CompileRecordFilter(schema, false)); }},
      {"an update's pipeline",
       [u = HeldStages("$set", computed)] { return AsUpdate(u.view()["list"]); }},
      {"an update's operators",
       [u = HeldField("$set", fields)] { return AsUpdate(u.view().AsValue()); }},
      {"a replacement", [u = BuildBson([](BsonBuilder& b) {
                           b.Append("x", std::string(8 << 20, 'x'));
                         })] { return AsUpdate(u.view().AsValue()); }},
      {"array filters",
       [u = Json("{'$set': {'a.$[x].b': 1}}"), on_x = LongFilter("x.a")] {
         return AsUpdate(u.view().AsValue(), {on_x});
       }},
      {"a find's projection that computes",
       [=] {
         VariableScope scope;
         return Keep(ParseFindProjection(computed, nullptr, scope));
       }},
      {"a find's projection of many fields",
       [=] {
         VariableScope scope;
         return Keep(ParseFindProjection(fields, nullptr, scope));
       }},
      {"$project",
       [=] {
         VariableScope scope;
         return Keep(ParseAggProject(fields, scope));
       }},
      {"$unset",
       [names = ManyNames()] {
         VariableScope scope;
         return Keep(ParseUnset(names.view()["list"], scope));
       }},
      {"$addFields", [of = HeldStages("$addFields", computed)] { return AsPipeline(of); }},
      {"$match", [of = HeldStages("$match", filter)] { return AsPipeline(of); }},
      {"$replaceWith", [of = HeldStages("$replaceWith", computed)] { return AsPipeline(of); }},
      {"$facet", [of = HeldStages("$facet", BuildBson([&](BsonBuilder& b) {
                                    BsonArrayBuilder list = b.OpenArray("f");
                                    list.OpenDocument().Append("$addFields", computed);
                                  }))] { return AsPipeline(of); }},
      {"$unionWith", [of = HeldStages("$unionWith", BuildBson([&](BsonBuilder& b) {
                                        b.Append("coll", "d");
                                        BsonArrayBuilder list = b.OpenArray("pipeline");
                                        list.OpenDocument().Append("$addFields", computed);
                                      }))] { return AsPipeline(of); }},
  };
}

/// {v0: {$range: [0, 40000]}, v1: …}: values of 440 kB each.
BsonDocument ManyVariables(int n) {
  return BuildBson([&](BsonBuilder& b) {
    for (int i = 0; i < n; ++i) {
      BsonBuilder of = b.OpenDocument("v" + std::to_string(i));
      of.OpenArray("$range").Append(0).Append(40'000);
    }
  });
}

}  // namespace

TEST_CASE("A parsed form counts as large memory for as long as it lives", "[limits]") {
  for (const Kind& kind : Kinds()) {
    CAPTURE(kind.name);
    large_memory::Budget budget;
    const large_memory::BudgetScope scope(budget);
    HeldForm first = kind.parse();
    REQUIRE(first.form != nullptr);
    const int64_t used = budget.used();
    CHECK(used >= kLeast);
    // Another one counts as well, and is refused where there is no room.
    HeldForm second = kind.parse();
    CHECK(budget.used() == 2 * used);
    second = {};
    CHECK(budget.used() == used);
    budget.SetLimit(used + used / 2);
    second = kind.parse();
    CHECK(second.form == nullptr);
    CHECK(second.code == ErrorCode::kExceededMemoryLimit);
    CHECK(budget.used() == used);
    first = {};
    CHECK(budget.used() == 0);
  }
}

TEST_CASE("What a parsed form holds does not count for the parse around it", "[limits]") {
  for (const Kind& kind : Kinds()) {
    CAPTURE(kind.name);
    large_memory::Budget budget;
    const large_memory::BudgetScope scope(budget);
    HeldForm form = kind.parse();
    const int64_t used = budget.used();
    form = {};
    {
      ParseWork outer(nullptr);
      form = kind.parse();
      REQUIRE(ParseWork::Look());
      CHECK(budget.used() >= used - kStep);
      CHECK(budget.used() <= used + kStep);
      CHECK(outer.bytes() >= static_cast<uint64_t>(kLeast));
      CHECK(outer.kept_bytes() <= outer.bytes());
      CHECK(outer.bytes() - outer.kept_bytes() < large_memory::kLarge);
      // Dropped while the parse around it goes on: given back now.
      const HeldForm other = kind.parse();
      CHECK(budget.used() >= 2 * used - 2 * kStep);
      CHECK(budget.used() <= 2 * used + 2 * kStep);
    }
    CHECK(budget.used() == used);
    form = {};
    CHECK(budget.used() == 0);
  }
}

TEST_CASE("Small parsed forms take nothing", "[limits]") {
  large_memory::Budget budget;
  budget.SetLimit(0);  // whoever takes anything is refused
  const large_memory::BudgetScope scope(budget);
  const BsonDocument u = Json("{'list': [{'$set': {'a': {'$add': ['$b', 1]}}}]}");
  for (const HeldForm& parsed :
       {AsUpdate(u.view()["list"]), AsPipeline(u), Keep(ParseMatch(Json("{'a': {'$gt': 1}}"))),
        AsUpdate(Json("{'$set': {'a.$[x]': 1}}").view().AsValue(), {Json("{'x': 1}").view()})})
    CHECK(parsed.form != nullptr);
  CHECK(budget.used() == 0);
}

TEST_CASE("A parse that many forms share still ends at its own limit", "[limits]") {
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  const ParseWork outer(nullptr);
  const BsonDocument filter = LongFilter("a");
  bool ended = false;
  for (int i = 0; i < 100 && !ended; ++i) {
    const Result<MatchPtr> match = ParseMatch(filter);
    ended = !match;
    if (ended) CHECK(match.error().code == ErrorCode::kExceededMemoryLimit);
  }
  CHECK(ended);
}

TEST_CASE("Values of variables that are large only together count", "[limits]") {
  large_memory::Budget budget;
  const large_memory::BudgetScope on(budget);
  SystemClock clock;
  Operation op(clock);
  {
    VariableScope scope;
    std::vector<Value> variables;
    REQUIRE(EvaluateLet(ManyVariables(20), op, &scope, &variables));
    CHECK(budget.used() > 8 * kMegabyte);
    CHECK(budget.used() < 10 * kMegabyte);
  }
  CHECK(budget.used() == 0);
  {
    const BsonDocument let = ManyVariables(20), none = Json("{'list': []}");
    PipelineOptions options;
    options.db = "test";
    options.collection = "c";
    options.let = let;
    const auto pipeline = Pipeline::Parse(none.view()["list"].Document(), options);
    REQUIRE(pipeline);
    CHECK(budget.used() > 8 * kMegabyte);
  }
  CHECK(budget.used() == 0);
  budget.SetLimit(4 * kMegabyte);
  {
    VariableScope scope;
    std::vector<Value> variables;
    const Result<void> refused = EvaluateLet(ManyVariables(20), op, &scope, &variables);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
  }
  CHECK(budget.used() == 0);
}

TEST_CASE("The plan of a find counts as long as it is there", "[limits]") {
  large_memory::Budget budget;
  const large_memory::BudgetScope on(budget);
  testing::PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  const BsonDocument filter = BuildBson([](BsonBuilder& b) {
    BsonBuilder a = b.OpenDocument("a");
    BsonArrayBuilder list = a.OpenArray("$in");
    for (int i = 0; i < kMany; ++i) list.Append(i);
  });
  const int64_t before = budget.used();
  int64_t match = 0;
  {
    const MatchPtr parsed = ParseMatch(filter).value();
    match = budget.used() - before;
  }
  CHECK(match > kMegabyte);
  for (const bool explain : {false, true}) {
    CAPTURE(explain);
    QuerySpec spec;
    spec.filter = filter;
    spec.explain = explain;
    std::unique_ptr<PlanExecutor> executor = store.Open(std::move(spec));
    CHECK(budget.used() - before >= match);
    executor.reset();
    CHECK(budget.used() == before);
  }
}

#include "protocol/large_memory.h"
#include "query/plan/index_filter.h"
#include "query/plan/plan_cache.h"
#include "tests/unit/query/plan_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

using Strings = std::vector<std::string>;

/// The stages from the top, as "LIMIT FETCH IXSCAN(a_1)".
std::string Stages(BsonView plan) {
  std::string out(plan["stage"].String());
  if (plan.Has("indexName")) out += "(" + std::string(plan["indexName"].String()) + ")";
  if (plan.Has("inputStage")) out += " " + Stages(plan["inputStage"].Document());
  if (plan.Has("inputStages")) {
    out += " [";
    for (const auto& e : plan["inputStages"].Document())
      out += (e.name == "0" ? "" : ", ") + Stages(e.value.Document());
    out += "]";
  }
  return out;
}

std::string SqueezedJson(BsonValue v) {
  std::string text = ToRelaxedJson(v);
  std::erase(text, ' ');
  return text;
}

struct Query {
  const char* filter = "{}";
  const char* sort = "{}";
  const char* projection = "{}";
  const char* hint = "{}";
  int skip = 0, limit = 0;
};

/// Owns what a QuerySpec borrows.
struct OwnedSpec {
  BsonDocument filter, sort, projection, hint;
  QuerySpec spec;
  explicit OwnedSpec(const Query& q)
      : filter(PlanJson(q.filter)),
        sort(PlanJson(q.sort)),
        projection(PlanJson(q.projection)),
        hint(PlanJson(q.hint)) {
    spec.filter = filter;
    spec.sort = sort;
    spec.projection = projection;
    spec.hint = hint.view().AsValue();
    spec.skip = q.skip;
    spec.limit = q.limit;
  }
};

std::string PlanOf(PlanStore& store, const Query& q) {
  OwnedSpec o(q);
  BsonDocument d = store.Explain(o.spec, ExplainVerbosity::kQueryPlanner);
  return Stages(d.view()["queryPlanner"].Document()["winningPlan"].Document());
}

ErrorCode ErrorOf(PlanStore& store, QuerySpec spec) {
  spec.coll = store.Coll();
  auto r = MakeFindExecutor(*store.storage, *store.op, std::move(spec));
  return r ? ErrorCode::kOk : r.error().code;
}

void Fill(PlanStore& store, int n = 40) {
  for (int i = 0; i < n; ++i) {
    auto r = store.Insert(BuildBson([&](BsonBuilder& b) {
      b.Append("_id", i).Append("a", i % 10).Append("b", i).Append("c", "s" + std::to_string(i));
    }));
    REQUIRE(r.has_value());
  }
}

}  // namespace

TEST_CASE("The plan that is chosen", "[plan]") {
  static PlanStore store;
  static bool ready = false;
  if (!ready) {
    ready = true;
    store.Reset();
    store.CreateIndex(R"({"key": {"a": 1, "b": 1}})");
    store.CreateIndex(R"({"key": {"c": 1}, "unique": true})");
    store.CreateIndex(R"({"key": {"h": 1}, "hidden": true})");
    store.CreateIndex(R"({"key": {"m": 1}})");
    Fill(store);
    store.Insert(R"({"_id": 100, "m": [1, 2, 3]})");
  }
  struct Case {
    Query query;
    const char* plan;
  };
  const auto c = GENERATE(values<Case>({
      {{.filter = R"({"z": 1})"}, "COLLSCAN"},
      {{}, "COLLSCAN"},
      {{.filter = R"({"_id": 5})"}, "EXPRESS_IXSCAN(_id_)"},
      {{.filter = R"({"_id": {"$eq": 5}})"}, "EXPRESS_IXSCAN(_id_)"},
      {{.filter = R"({"_id": 5})", .projection = R"({"a": 1})"},
       "PROJECTION_SIMPLE EXPRESS_IXSCAN(_id_)"},
      {{.filter = R"({"_id": 5, "a": 1})"}, "FETCH IXSCAN(_id_)"},
      {{.filter = R"({"_id": {"$gt": 5}})"}, "FETCH IXSCAN(_id_)"},
      {{.filter = R"({"_id": {"$in": [5, 7]}})"}, "FETCH IXSCAN(_id_)"},
      {{.sort = R"({"_id": -1})"}, "FETCH IXSCAN(_id_)"},
      {{.filter = R"({"a": 1})"}, "FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"a": 1})", .limit = 2}, "LIMIT FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"a": 1})", .skip = 1, .limit = 2}, "LIMIT FETCH SKIP IXSCAN(a_1_b_1)"},
      {{.filter = R"({"a": 1})", .sort = R"({"b": -1})"}, "FETCH IXSCAN(a_1_b_1)"},
      // What only the document decides is read before it is skipped.
      {{.filter = R"({"a": 1, "b": {"$mod": [3, 1]}})", .skip = 1}, "FETCH SKIP IXSCAN(a_1_b_1)"},
      {{.filter = R"({"a": 1, "z": 1})", .skip = 1}, "SKIP FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"m": {"$mod": [3, 1]}})", .skip = 1}, "FETCH SKIP IXSCAN(m_1)"},
      // Keys are less to read than documents, if they say it all.
      {{.filter = R"({"c": {"$not": {"$regex": "1"}}})", .projection = R"({"_id": 0, "c": 1})"},
       "PROJECTION_COVERED IXSCAN(c_1)"},
      {{.filter = R"({"c": {"$not": {"$regex": "1"}}})"}, "COLLSCAN"},
      {{.filter = R"({"a": {"$in": [1, 2]}})", .sort = R"({"b": 1})"},
       "FETCH SORT_MERGE [IXSCAN(a_1_b_1), IXSCAN(a_1_b_1)]"},
      {{.filter = R"({"a": {"$gt": 1}})", .sort = R"({"b": 1})"}, "SORT FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"z": 1})", .sort = R"({"z": 1})", .limit = 3}, "SORT COLLSCAN"},
      {{.sort = R"({"a": -1, "b": -1})"}, "FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"b": 1})"}, "COLLSCAN"},
      {{.filter = R"({"h": 1})"}, "COLLSCAN"},
      {{.filter = R"({"a": 1, "c": "s1"})"}, "FETCH IXSCAN(c_1)"},
      {{.filter = R"({"a": 1})", .projection = R"({"_id": 0, "a": 1, "b": 1})"},
       "PROJECTION_COVERED IXSCAN(a_1_b_1)"},
      {{.filter = R"({"a": 1})", .projection = R"({"a": 1, "b": 1})"},
       "PROJECTION_SIMPLE FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"m": 1})", .projection = R"({"_id": 0, "m": 1})"},
       "PROJECTION_SIMPLE FETCH IXSCAN(m_1)"},
      {{.filter = R"({"a": 1})", .projection = R"({"x.y": 1})"},
       "PROJECTION_DEFAULT FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"$or": [{"a": 1}, {"c": "s5"}]})"},
       "SUBPLAN FETCH OR [IXSCAN(a_1_b_1), IXSCAN(c_1)]"},
      {{.filter = R"({"$or": [{"a": 1}, {"z": 5}]})"}, "COLLSCAN"},
      {{.filter = R"({"z": 1, "$or": [{"a": 1}, {"c": "s5"}]})"},
       "FETCH OR [IXSCAN(a_1_b_1), IXSCAN(c_1)]"},
      // Branches on one field are one scan; those that come in the order wanted are merged.
      {{.filter = R"({"$or": [{"a": 1}, {"a": {"$in": [2, 3]}}]})"}, "FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"$or": [{"a": 1}, {"a": 2}]})", .sort = R"({"b": 1})"},
       "FETCH SORT_MERGE [IXSCAN(a_1_b_1), IXSCAN(a_1_b_1)]"},
      {{.filter = R"({"$or": [{"a": 1}, {"m": 3}]})", .sort = R"({"b": 1})"},
       "SUBPLAN SORT FETCH OR [IXSCAN(a_1_b_1), IXSCAN(m_1)]"},
      // Comparisons in expressions, with the constant on either side; not on arrays.
      {{.filter = R"({"$expr": {"$eq": ["$a", 1]}})"}, "FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"$expr": {"$gt": ["s3", "$c"]}})"}, "FETCH IXSCAN(c_1)"},
      {{.filter =
            R"({"$expr": {"$and": [{"$eq": ["$a", {"$add": [1, 1]}]}, {"$lt": ["$b", 20]}]}})"},
       "FETCH IXSCAN(a_1_b_1)"},
      {{.filter = R"({"$expr": {"$eq": ["$m", 1]}})"}, "COLLSCAN"},
      {{.filter = R"({"$expr": {"$eq": ["$a", "$b"]}})"}, "COLLSCAN"},
      {{.filter = R"({"$expr": {"$lt": ["$a", {"$rand": {}}]}})"}, "COLLSCAN"},
      {{.filter = R"({"a": 1})", .hint = R"({"$natural": 1})"}, "COLLSCAN"},
      {{.filter = R"({"a": 1})", .hint = R"({"c": 1})"}, "FETCH IXSCAN(c_1)"},
      {{.filter = R"({"a": 1})", .sort = R"({"$natural": -1})"}, "COLLSCAN"},
      {{.filter = R"({"$alwaysFalse": 1})"}, "EOF"},
  }));
  CAPTURE(c.query.filter, c.query.sort, c.query.projection, c.query.hint);
  CHECK(PlanOf(store, c.query) == c.plan);
}

TEST_CASE("Results, order, skip and limit through every kind of plan", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1, "b": 1}})");
  Fill(store, 20);
  CHECK(store.Find(R"({"a": 3})", R"({"b": -1})", R"({"_id": 0, "a": 1, "b": 1})") ==
        Strings{R"({"a":3,"b":13})", R"({"a":3,"b":3})"});
  CHECK(store.Find(R"({"a": {"$in": [3, 4]}})", R"({"b": 1})", R"({"_id": 1})") ==
        Strings{R"({"_id":3})", R"({"_id":4})", R"({"_id":13})", R"({"_id":14})"});
  OwnedSpec o(Query{.sort = R"({"c": 1})", .projection = R"({"_id": 1})", .skip = 1, .limit = 3});
  CHECK(store.Run(o.spec) == Strings{R"({"_id":1})", R"({"_id":10})", R"({"_id":11})"});
  CHECK(store.Run(o.spec, 1) == Strings{R"({"_id":1})", R"({"_id":10})", R"({"_id":11})"});
}

TEST_CASE("Explain shows the plan and what it did", "[plan][explain]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  store.CreateIndex(R"({"key": {"b": -1}})");
  Fill(store);
  OwnedSpec o(Query{.filter = R"({"a": 3, "b": {"$lt": 20}})"});
  BsonDocument d = store.Explain(o.spec, ExplainVerbosity::kAllPlansExecution);
  BsonView planner = d.view()["queryPlanner"].Document();
  CHECK(d.view()["explainVersion"].String() == "1");
  CHECK(planner["namespace"].String() == "db.c");
  CHECK(planner["parsedQuery"].IsDocument());
  CHECK(planner["planCacheShapeHash"].String().size() == 8);
  BsonView winner = planner["winningPlan"].Document();
  CHECK(winner.First().name == "isCached");
  CHECK(Stages(winner) == "FETCH IXSCAN(a_1)");
  CHECK(SqueezedJson(winner["filter"]) == R"({"b":{"$lt":20}})");
  BsonView scan = winner["inputStage"].Document();
  CHECK(SqueezedJson(scan.AsValue()) ==
        R"({"stage":"IXSCAN","keyPattern":{"a":1},"indexName":"a_1","isMultiKey":false,)"
        R"("multiKeyPaths":{"a":[]},"isUnique":false,"isSparse":false,"isPartial":false,)"
        R"("indexVersion":2,"direction":"forward","indexBounds":{"a":["[3,3]"]}})");
  REQUIRE(planner["rejectedPlans"].Document().Count() == 1);
  BsonView rejected = planner["rejectedPlans"].Document()["0"].Document();
  CHECK(Stages(rejected) == "FETCH IXSCAN(b_-1)");
  CHECK(SqueezedJson(rejected["inputStage"].Document()["indexBounds"]) ==
        R"({"b":["(20,-inf.0]"]})");
  BsonView stats = d.view()["executionStats"].Document();
  CHECK(stats["executionSuccess"].Bool());
  CHECK(stats["nReturned"].NumberAsInt64() == 2);
  CHECK(stats["totalKeysExamined"].NumberAsInt64() == 4);
  CHECK(stats["totalDocsExamined"].NumberAsInt64() == 4);
  BsonView stages = stats["executionStages"].Document();
  CHECK(stages["nReturned"].NumberAsInt64() == 2);
  CHECK(stages["works"].NumberAsInt64() == 5);
  CHECK(stages["needTime"].NumberAsInt64() == 2);
  CHECK(stages["isEOF"].NumberAsInt64() == 1);
  CHECK(stages["docsExamined"].NumberAsInt64() == 4);
  CHECK(stages["inputStage"].Document()["keysExamined"].NumberAsInt64() == 4);
  CHECK(stats["allPlansExecution"].Document().Count() == 2);

  std::string bytes;
  BsonBuilder b(bytes);
  auto e = store.Open(o.spec);
  ExplainStage update{"UPDATE", nullptr, [](BsonBuilder& f) { f.Append("nMatched", 2); }, 0};
  REQUIRE(e->RunToEnd().value() == 2);
  REQUIRE(e->Explain(ExplainVerbosity::kExecutionStats, {update}, b).has_value());
  b.Done();
  CHECK(Stages(BsonView(bytes)["queryPlanner"].Document()["winningPlan"].Document()) ==
        "UPDATE FETCH IXSCAN(a_1)");
  CHECK(BsonView(bytes)["executionStats"].Document()["nReturned"].NumberAsInt64() == 0);
}

TEST_CASE("An index scan skips what cannot match", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1, "b": 1}})");
  for (int i = 0; i < 300; ++i)
    REQUIRE(store
                .Insert(BuildBson([&](BsonBuilder& b) {
                  b.Append("_id", i).Append("a", i % 3).Append("b", i / 3);
                }))
                .has_value());
  OwnedSpec o(Query{.filter = R"({"a": {"$gte": 0, "$lte": 2}, "b": 7})"});
  BsonDocument d = store.Explain(o.spec);
  BsonView stats = d.view()["executionStats"].Document();
  CHECK(stats["nReturned"].NumberAsInt64() == 3);
  CHECK(stats["totalKeysExamined"].NumberAsInt64() < 15);
  CHECK(stats["totalDocsExamined"].NumberAsInt64() == 3);
}

TEST_CASE("Hints, min and max", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  store.CreateIndex(R"({"key": {"h": 1}, "hidden": true})");
  Fill(store, 20);
  struct Case {
    Query query;
    ErrorCode code;
  };
  for (const auto& c : std::vector<Case>{
           {{.hint = R"({"a": 1})"}, ErrorCode::kOk},
           {{.hint = R"({"a": -1})"}, ErrorCode::kBadValue},
           {{.hint = R"({"h": 1})"}, ErrorCode::kBadValue},
           {{.hint = R"({"$natural": 2})"}, ErrorCode::kBadValue},
           {{.sort = R"({"$natural": 1, "a": 1})"}, ErrorCode::kBadValue},
       }) {
    OwnedSpec o(c.query);
    CAPTURE(c.query.hint, c.query.sort);
    CHECK(ErrorOf(store, o.spec) == c.code);
  }
  BsonDocument low = PlanJson(R"({"a": 2})"), high = PlanJson(R"({"a": 4})");
  BsonDocument wrong = PlanJson(R"({"b": 4})"), ids = PlanJson(R"({"_id": 7})");
  OwnedSpec o(Query{.projection = R"({"_id": 0, "a": 1})", .hint = R"({"a": 1})"});
  o.spec.min = low;
  o.spec.max = high;
  CHECK(store.Run(o.spec) == Strings{R"({"a":2})", R"({"a":2})", R"({"a":3})", R"({"a":3})"});
  o.spec.hint = {};
  CHECK(ErrorOf(store, o.spec) == LocationCode(51173));
  o.spec.hint = o.hint.view().AsValue();
  o.spec.max = wrong;
  CHECK(ErrorOf(store, o.spec) == LocationCode(51174));
  o.spec.max = low;
  CHECK(ErrorOf(store, o.spec) == LocationCode(51175));
  OwnedSpec by_id(Query{.projection = R"({"_id": 1})", .hint = R"({"_id": 1})"});
  by_id.spec.max = ids;
  CHECK(store.Run(by_id.spec).size() == 7);
}

TEST_CASE("Counts from the counter, from keys alone, or from documents", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  Fill(store);
  struct Case {
    const char* filter;
    int skip, limit;
    int64_t n;
    const char* plan;
  };
  for (const auto& c : std::vector<Case>{
           {"{}", 0, 0, 40, "RECORD_STORE_FAST_COUNT"},
           {"{}", 35, 0, 5, "RECORD_STORE_FAST_COUNT"},
           {"{}", 0, 7, 7, "RECORD_STORE_FAST_COUNT"},
           {R"({"a": 3})", 0, 0, 4, "COUNT COUNT_SCAN(a_1)"},
           {R"({"a": {"$gte": 3, "$lt": 5}})", 1, 5, 5, "COUNT COUNT_SCAN(a_1)"},
           {R"({"a": {"$in": [1, 2]}})", 0, 0, 8, "COUNT IXSCAN(a_1)"},
           {R"({"a": 3, "b": {"$gt": 10}})", 0, 0, 3, "COUNT FETCH IXSCAN(a_1)"},
           {R"({"b": {"$gt": 30}})", 0, 0, 9, "COUNT COLLSCAN"},
       }) {
    CAPTURE(c.filter);
    OwnedSpec o(Query{.filter = c.filter, .skip = c.skip, .limit = c.limit});
    o.spec.coll = store.Coll();
    o.spec.explain = true;
    auto e = MakeCountExecutor(*store.storage, *store.op, o.spec);
    REQUIRE(e.has_value());
    CHECK(e.value()->Count().value() == c.n);
    std::string bytes;
    BsonBuilder b(bytes);
    REQUIRE(e.value()->Explain(ExplainVerbosity::kExecutionStats, b).has_value());
    b.Done();
    CHECK(Stages(BsonView(bytes)["queryPlanner"].Document()["winningPlan"].Document()) == c.plan);
    BsonView stages = BsonView(bytes)["executionStats"].Document()["executionStages"].Document();
    CHECK(stages["nCounted"].NumberAsInt64() == c.n);
  }
}

TEST_CASE("Distinct values skip through an index", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1, "b": 1}})");
  Fill(store, 200);
  store.Insert(R"({"_id": 1000, "a": null})");
  store.Insert(R"({"_id": 1001})");
  OwnedSpec o(Query{.filter = R"({"a": {"$lt": 3}})"});
  auto run = [&](const QuerySpec& base, std::string_view key, std::string* plan) {
    QuerySpec spec = base;
    spec.coll = store.Coll();
    auto e = MakeDistinctExecutor(*store.storage, *store.op, spec, key);
    REQUIRE(e.has_value());
    Strings out;
    REQUIRE(e.value()
                ->Run([&](BsonValue v) -> Result<void> {
                  out.push_back(SqueezedJson(v));
                  return Ok();
                })
                .has_value());
    *plan = e.value()->PlanSummary();
    return out;
  };
  std::string plan;
  store.op->keys_examined = 0;
  CHECK(run(o.spec, "a", &plan) == Strings{"0", "1", "2"});
  CHECK(plan == "DISTINCT_SCAN { a: 1, b: 1 }");
  CHECK(store.op->keys_examined < 10);
  QuerySpec all;
  CHECK(run(all, "a", &plan).size() == 11);
  CHECK(plan == "DISTINCT_SCAN { a: 1, b: 1 }");
  CHECK(run(all, "b", &plan).size() == 200);
  CHECK(plan == "COLLSCAN");
  CHECK_FALSE(store.Insert(PlanJson(R"({"_id": 1, "a": [1]})")).has_value());
  store.Insert(R"({"_id": 1002, "a": [50, [51]]})");
  store.Insert(R"({"_id": 1003, "a": []})");
  CHECK(run(all, "a", &plan).size() == 13);
  CHECK(plan == "DISTINCT_SCAN { a: 1, b: 1 }");
  CHECK(run(o.spec, "a", &plan) == Strings{"0", "1", "2"});
}

TEST_CASE("The winner of a trial is remembered by query shape until the catalog changes",
          "[plan][cache]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  store.CreateIndex(R"({"key": {"b": 1}})");
  Fill(store);
  auto cached = [&] {
    int n = 0;
    ForEachCachedPlan(*store.storage, *store.Coll(), [&](BsonView) { ++n; });
    return n;
  };
  OwnedSpec first(Query{.filter = R"({"a": 3, "b": 13})"});
  CHECK(cached() == 0);
  CHECK(store.Run(first.spec).size() == 1);
  CHECK(cached() == 1);
  OwnedSpec second(Query{.filter = R"({"a": 4, "b": 14})"});
  CHECK(store.Run(second.spec).size() == 1);
  CHECK(cached() == 1);
  OwnedSpec other(Query{.filter = R"({"a": 4, "b": {"$gt": 3}})"});
  CHECK(store.Run(other.spec).size() == 4);
  CHECK(cached() == 2);
  ClearPlanCache(*store.storage, *store.Coll());
  CHECK(cached() == 0);
  store.Run(first.spec);
  CHECK(cached() == 1);
  store.CreateIndex(R"({"key": {"c": 1}})");
  CHECK(cached() == 0);
  CHECK(store.Run(first.spec).size() == 1);
}

TEST_CASE("A cached plan that turns out bad is raced again", "[plan][cache]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  store.CreateIndex(R"({"key": {"b": 1}})");
  for (int i = 0; i < 2000; ++i)
    REQUIRE(store
                .Insert(BuildBson([&](BsonBuilder& b) {
                  b.Append("_id", i).Append("a", i < 1000 ? i : -1).Append("b", i < 1000 ? -1 : i);
                }))
                .has_value());
  OwnedSpec by_a(Query{.filter = R"({"a": 5, "b": -1})"});
  CHECK(store.Run(by_a.spec).size() == 1);  // a is the better one here
  store.op->docs_examined = 0;
  OwnedSpec by_b(Query{.filter = R"({"a": -1, "b": 1500})"});
  CHECK(store.Run(by_b.spec).size() == 1);
  CHECK(store.op->docs_examined < 500);  // the trial of the cached one, then b
  store.op->docs_examined = 0;
  CHECK(store.Run(by_b.spec).size() == 1);
  CHECK(store.op->docs_examined < 10);
}

TEST_CASE("A sort above its memory fails or spills", "[plan]") {
  PlanStore store;
  std::string filler(2000, 'x');
  for (int i = 0; i < 100; ++i)
    REQUIRE(store
                .Insert(BuildBson([&](BsonBuilder& b) {
                  b.Append("_id", i).Append("s", (i * 37) % 100).Append("f", filler);
                }))
                .has_value());
  OwnedSpec o(Query{.sort = R"({"s": 1})", .projection = R"({"_id": 0, "s": 1})"});
  o.spec.memory_limit = 50'000;
  o.spec.allow_disk_use = false;
  auto e = store.Open(o.spec);
  auto state = e->Next();
  REQUIRE_FALSE(state.has_value());
  CHECK(state.error().code == ErrorCode::kQueryExceededMemoryLimitNoDiskUseAllowed);
  o.spec.allow_disk_use = true;
  auto all = store.Run(o.spec, 10);
  REQUIRE(all.size() == 100);
  CHECK(all[0] == R"({"s":0})");
  CHECK(all[99] == R"({"s":99})");
  BsonDocument d = store.Explain(o.spec);
  CHECK(ToRelaxedJson(d).find(R"("usedDisk" : true)") != std::string::npos);
  o.spec.limit = 5;
  o.spec.allow_disk_use = false;
  CHECK(store.Run(o.spec).size() == 5);
}

TEST_CASE("FillBatch keeps to its limits and loses nothing", "[plan]") {
  PlanStore store;
  Fill(store, 30);
  auto e = store.Open({});
  int total = 0, rounds = 0;
  for (bool end = false; !end; ++rounds) {
    std::string bytes;
    BsonArrayBuilder batch(bytes);
    auto r = e->FillBatch(batch, 0, 400);
    REQUIRE(r.has_value());
    end = r.value();
    CHECK(batch.size() <= 400);
    total += batch.count();
    e->SaveState();
    REQUIRE(e->RestoreState(*store.op).has_value());
  }
  CHECK(total == 30);
  CHECK(rounds > 3);
}

TEST_CASE("A getMore sees what was written in between", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  for (int i = 0; i < 5; ++i) store.Insert("{\"_id\": " + std::to_string(i) + ", \"a\": 1}");
  OwnedSpec o(Query{.filter = R"({"a": 1})"});
  auto e = store.Open(o.spec);
  REQUIRE(e->Next().value() == PlanExecutor::State::kAdvanced);
  REQUIRE(e->Next().value() == PlanExecutor::State::kAdvanced);
  e->SaveState();
  store.Insert(R"({"_id": 9, "a": 1})");
  Operation next(store.clock);
  REQUIRE(e->RestoreState(next).has_value());
  CHECK(e->RunToEnd().value() == 4);
  CHECK(next.docs_examined == 4);
}

TEST_CASE("A getMore never returns a document that has left the bounds", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1, "b": 1}})");
  for (int i = 0; i < 8; ++i)
    store.Insert("{\"_id\": " + std::to_string(i) + ", \"a\": " + std::to_string(i % 2) +
                 ", \"b\": " + std::to_string(i) + "}");
  const char* filter = GENERATE(R"({"a": {"$in": [0, 1]}})", R"({"a": {"$gte": 0}})", "{}");
  CAPTURE(filter);
  OwnedSpec o(Query{.filter = filter, .sort = R"({"b": 1})"});
  auto e = store.Open(o.spec);
  REQUIRE(e->Next().value() == PlanExecutor::State::kAdvanced);
  e->SaveState();
  for (int i = 1; i < 8; ++i) {
    std::string key;
    BsonDocument id = PlanJson("{\"_id\": " + std::to_string(i) + "}");
    Storage::AppendRecordKey(*store.Coll(), id.view().First().value, key);
    BsonDocument next = PlanJson("{\"_id\": " + std::to_string(i) + ", \"a\": -5}");
    Operation op(store.clock);
    WriteUnit unit(*store.storage, op);
    WriteUnit::Locked locked;
    REQUIRE(unit.LockAndRead(*store.Coll(), key, &locked).value());
    REQUIRE(unit.Update(*store.Coll(), locked, next).has_value());
    REQUIRE(store.storage->committer().Commit(std::move(unit)).has_value());
  }
  REQUIRE(e->RestoreState(*store.op).has_value());
  bool blocking = std::string_view(filter) != R"({"a": {"$in": [0, 1]}})";
  while (true) {
    auto state = e->Next();
    REQUIRE(state.has_value());
    if (state.value() == PlanExecutor::State::kEof) break;
    // A blocking sort has read everything before the update.
    if (!blocking) CHECK(e->input_doc()["a"].NumberAsInt64() != -5);
  }
}

TEST_CASE("No more keys and documents are looked at than a limit needs", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"b": 1}})");
  Fill(store, 40);
  struct Case {
    Query query;
    int keys, documents;
  };
  for (const auto& c : std::vector<Case>{
           {{.filter = R"({"b": {"$gte": 0}})", .limit = 5}, 5, 5},
           {{.filter = R"({"b": {"$gte": 0}})", .skip = 3, .limit = 6}, 9, 6},
           {{.filter = R"({"b": {"$gte": 0}, "a": 3})", .limit = 2}, 14, 14},
           {{.filter = R"({"b": {"$gte": 1}})"}, 39, 39},
           {{.filter = R"({"b": {"$gte": 1}, "a": 3})"}, 39, 39},
       }) {
    CAPTURE(c.query.filter, c.query.limit);
    OwnedSpec o(c.query);
    BsonDocument d = store.Explain(o.spec);
    BsonView stats = d.view()["executionStats"].Document();
    CHECK(stats["totalKeysExamined"].NumberAsInt64() == c.keys);
    CHECK(stats["totalDocsExamined"].NumberAsInt64() == c.documents);
  }
}

TEST_CASE("Keys that were read ahead of a pause are looked up anew", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"b": 1}})");
  Fill(store, 40);
  const int pause = GENERATE(1, 2, 3, 4, 5, 8, 16, 20);
  CAPTURE(pause);
  OwnedSpec o(Query{.filter = R"({"b": {"$gte": 0}})"});
  auto e = store.Open(o.spec);
  std::vector<int64_t> got;
  auto next = [&] {
    auto state = e->Next();
    REQUIRE(state.has_value());
    if (state.value() == PlanExecutor::State::kEof) return false;
    got.push_back(e->input_doc()["b"].NumberAsInt64());
    return true;
  };
  for (int i = 0; i < pause; ++i) REQUIRE(next());
  e->SaveState();
  // Of those to come: one goes, one leaves the bounds, one moves to the end, one changes otherwise.
  auto change = [&](int id, const char* to) {
    BsonDocument named = PlanJson("{\"_id\": " + std::to_string(id) + "}");
    std::string key;
    Storage::AppendRecordKey(*store.Coll(), named.view().First().value, key);
    Operation op(store.clock);
    WriteUnit unit(*store.storage, op);
    WriteUnit::Locked locked;
    REQUIRE(unit.LockAndRead(*store.Coll(), key, &locked).value());
    BsonDocument next;
    if (to == nullptr) {
      REQUIRE(unit.Delete(*store.Coll(), locked).has_value());
    } else {
      next = PlanJson("{\"_id\": " + std::to_string(id) + ", \"b\": " + to + "}");
      REQUIRE(unit.Update(*store.Coll(), locked, next).has_value());
    }
    REQUIRE(store.storage->committer().Commit(std::move(unit)).has_value());
  };
  change(pause, nullptr);
  change(pause + 1, "-1");
  change(pause + 2, "100");
  change(pause + 3, std::to_string(pause + 3).c_str());
  REQUIRE(e->RestoreState(*store.op).has_value());
  while (next()) {
  }
  std::vector<int64_t> wanted;
  for (int i = 0; i < 40; ++i)
    if (i < pause || i > pause + 2) wanted.push_back(i);
  wanted.push_back(100);
  CHECK(got == wanted);
}

TEST_CASE("A tailable cursor follows a capped collection", "[plan]") {
  PlanStore store;
  QuerySpec plain;
  plain.tailable = true;
  CHECK(ErrorOf(store, plain) == ErrorCode::kBadValue);
  store.Reset(true);
  store.Insert(R"({"_id": 1})");
  auto e = store.Open(plain);
  CHECK(e->tailable());
  CHECK(e->Next().value() == PlanExecutor::State::kAdvanced);
  CHECK(e->Next().value() == PlanExecutor::State::kEof);
  CHECK_FALSE(e->IsEof());
  e->SaveState();
  store.Insert(R"({"_id": 2})");
  REQUIRE(e->RestoreState(*store.op).has_value());
  CHECK(e->Next().value() == PlanExecutor::State::kAdvanced);
  CHECK(SqueezedJson(e->doc().value().AsValue()) == R"({"_id":2})");
  CHECK(e->Next().value() == PlanExecutor::State::kEof);
}

TEST_CASE("Point reads", "[plan]") {
  PlanStore store;
  Fill(store, 5);
  struct Case {
    Query query;
    bool point;
    const char* found;
  };
  for (const auto& c : std::vector<Case>{
           {{.filter = R"({"_id": 3})", .projection = R"({"a": 1})"}, true, R"([{"_id":3,"a":3}])"},
           {{.filter = R"({"_id": {"$eq": 3}})", .projection = R"({"_id": 1})"},
            true,
            R"([{"_id":3}])"},
           {{.filter = R"({"_id": 77})"}, true, "[]"},
           {{.filter = R"({"_id": {"$gt": 3}})"}, false, ""},
           {{.filter = R"({"_id": [3]})"}, false, ""},
           {{.filter = R"({"_id": 3, "a": 3})"}, false, ""},
           {{.filter = R"({"a": 3})"}, false, ""},
           {{.filter = R"({"_id": 3})", .hint = R"({"a": 1})"}, false, ""},
           {{.filter = R"({"_id": 3})", .skip = 1}, false, ""},
       }) {
    CAPTURE(c.query.filter);
    OwnedSpec o(c.query);
    o.spec.coll = store.Coll();
    BsonValue id;
    REQUIRE(IsPointRead(o.spec, &id) == c.point);
    if (!c.point) continue;
    std::string bytes;
    BsonArrayBuilder batch(bytes);
    auto n = RunPointRead(*store.storage, *store.op, o.spec, id, batch);
    batch.Done();
    REQUIRE(n.has_value());
    CHECK(SqueezedJson(BsonValue(BsonType::kArray, bytes.data(),
                                 static_cast<uint32_t>(bytes.size()))) == c.found);
  }
}

TEST_CASE("A point read leaves a document alone that is longer than its limits", "[plan]") {
  PlanStore store;
  const std::string text(1000, 'x');
  REQUIRE(store.Insert(PlanJson(R"({"_id": 1, "a": 1, "s": ")" + text + R"("})")).has_value());
  for (const bool projected : {false, true}) {
    OwnedSpec o(projected ? Query{.filter = R"({"_id": 1})", .projection = R"({"a": 1})"}
                          : Query{.filter = R"({"_id": 1})"});
    o.spec.coll = store.Coll();
    BsonValue id;
    REQUIRE(IsPointRead(o.spec, &id));
    const int64_t examined = store.op->docs_examined;
    for (const size_t most : {size_t{500}, size_t{2000}}) {
      PointReadLimits limits{.whole = projected ? 0 : most, .projected = projected ? most : 0};
      std::string bytes;
      BsonArrayBuilder batch(bytes);
      auto n = RunPointRead(*store.storage, *store.op, o.spec, id, batch, &limits);
      batch.Done();
      REQUIRE(n.has_value());
      CHECK(n.value() == (most == 500 ? 0 : 1));
      CHECK((limits.longer > 1000) == (most == 500));
      CHECK(store.op->docs_examined - examined == n.value());
    }
  }
}

TEST_CASE("A variable of a command's let is there once", "[plan]") {
  PlanStore store;
  const auto code = [&](const std::string& let) {
    VariableScope scope;
    std::vector<Value> variables;
    const Result<void> r = EvaluateLet(PlanJson(let), *store.op, &scope, &variables);
    return r ? 0 : static_cast<int>(r.error().code);
  };
  CHECK(code(R"({"x": 1, "y": "$$x"})") == 0);
  CHECK(code(R"({"x": 1, "x": 2})") == 40413);
  std::string many;
  for (int i = 0; i < 40; ++i) many += "\"v" + std::to_string(i) + "\": 1, ";
  CHECK(code("{" + many + R"("w": 1})") == 0);
  CHECK(code("{" + many + R"("v39": 1})") == 40413);
}

TEST_CASE("A document past its own deadline is never found", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"a": 1}})");
  REQUIRE(
      store.Insert(PlanJson(R"({"_id": 1, "a": 1})"), Instant{store.op->now.millis}).has_value());
  REQUIRE(store.Insert(PlanJson(R"({"_id": 2, "a": 1})"), Instant{store.op->now.millis + 1000})
              .has_value());
  CHECK(store.Find("{}").size() == 1);
  CHECK(store.Find(R"({"a": 1})").size() == 1);
  CHECK(store.Find(R"({"_id": 1})").empty());
  CHECK(store.Find(R"({"_id": {"$in": [1, 2]}})").size() == 1);
  OwnedSpec o(Query{.filter = R"({"_id": 1})"});
  o.spec.include_expired = true;
  CHECK(store.Run(o.spec).size() == 1);
}

TEST_CASE("A query on a collection that does not exist finds nothing", "[plan]") {
  PlanStore store;
  QuerySpec spec;
  spec.ns = "db.none";
  auto e = MakeFindExecutor(*store.storage, *store.op, spec);
  REQUIRE(e.has_value());
  CHECK(e.value()->Next().value() == PlanExecutor::State::kEof);
  std::string bytes;
  BsonBuilder b(bytes);
  REQUIRE(e.value()->Explain(ExplainVerbosity::kQueryPlanner, {}, b).has_value());
  b.Done();
  CHECK(Stages(BsonView(bytes)["queryPlanner"].Document()["winningPlan"].Document()) == "EOF");
}

TEST_CASE("Index filters are limited in number and size, and go with their collection", "[plan]") {
  IndexFilters filters;
  auto collection = [] {
    auto c = std::make_shared<CollectionInfo>();
    c->uuid = RandomUuid();
    c->counters = std::make_shared<CollectionCounters>();
    return c;
  };
  auto filter = [](size_t bytes) {
    return IndexFilter{PlanJson(R"({"a": ")" + std::string(bytes, 'x') + R"("})"), BsonDocument(),
                       BsonDocument(), PlanJson(R"({"0": "a_1"})")};
  };
  auto code = [](const Result<void>& r) { return r ? ErrorCode{} : r.error().code; };
  std::vector<std::shared_ptr<CollectionInfo>> collections{collection()};
  CHECK(code(filters.Set(*collections[0], "shape", filter(IndexFilters::kMaxBytes))) ==
        ErrorCode::kBSONObjectTooLarge);
  CHECK(code(filters.Set(*collections[0], std::string(IndexFilters::kMaxBytes, 's'), filter(1))) ==
        ErrorCode::kBSONObjectTooLarge);
  CHECK_FALSE(filters.any());
  for (size_t i = 0; i < IndexFilters::kMaxOfCollection; ++i)
    REQUIRE(filters.Set(*collections[0], std::to_string(i), filter(1)));
  CHECK(code(filters.Set(*collections[0], "one more", filter(1))) ==
        ErrorCode::kExceededMemoryLimit);
  CHECK(filters.Set(*collections[0], "0", filter(2)));  // takes the place of another
  while (collections.size() < IndexFilters::kMax / IndexFilters::kMaxOfCollection) {
    collections.push_back(collection());
    for (size_t i = 0; i < IndexFilters::kMaxOfCollection; ++i)
      REQUIRE(filters.Set(*collections.back(), std::to_string(i), filter(1)));
  }
  const auto other = collection();
  CHECK(code(filters.Set(*other, "a", filter(1))) == ErrorCode::kExceededMemoryLimit);
  // A new version of a definition keeps them; a dropped collection's make room.
  const auto changed = std::make_shared<CollectionInfo>(*collections[1]);
  collections[1] = nullptr;
  CHECK(code(filters.Set(*other, "a", filter(1))) == ErrorCode::kExceededMemoryLimit);
  CHECK(filters.Find(changed->uuid, "1") != nullptr);
  const Uuid gone = collections[2]->uuid;
  collections[2] = nullptr;
  CHECK(filters.Set(*other, "a", filter(1)));
  CHECK(filters.Find(gone, "1") == nullptr);
  for (const auto& c : collections)
    if (c != nullptr) filters.Clear(c->uuid, nullptr);
  filters.Clear(changed->uuid, nullptr);
  filters.Clear(other->uuid, nullptr);
  CHECK_FALSE(filters.any());
}

TEST_CASE("The plan cache is limited in bytes", "[plan]") {
  PlanCache cache;
  const auto coll = std::make_shared<CollectionInfo>();
  coll->uuid = RandomUuid();
  auto shape = [](int i, size_t bytes) { return std::to_string(i) + std::string(bytes, 's'); };
  cache.Put(coll, shape(0, size_t{300} << 10), {});
  CHECK_FALSE(cache.Find(coll, shape(0, size_t{300} << 10)));
  constexpr int kShapes = 400;
  constexpr size_t kBytes = size_t{200} << 10;  // 80 MB together
  for (int i = 0; i < kShapes; ++i) cache.Put(coll, shape(i, kBytes), {});
  size_t n = 0;
  cache.ForEach(*coll, [&](const PlanCache::Entry&) { ++n; });
  CHECK(n > 100);
  CHECK(n * kBytes <= size_t{32} << 20);
  CHECK(cache.Find(coll, shape(kShapes - 1, kBytes)));
  CHECK_FALSE(cache.Find(coll, shape(0, kBytes)));
  cache.Clear(*coll);
  // What went does not count any more.
  for (int i = 0; i < 100; ++i) cache.Put(coll, shape(i, kBytes), {});
  CHECK(cache.Find(coll, shape(0, kBytes)));
}

TEST_CASE("What validators and partial filters are parsed into is limited", "[plan]") {
  const int64_t before = large_memory::Limit();
  large_memory::SetLimit(4 << 20);
  std::vector<std::shared_ptr<const RecordFilter>> filters;
  std::string text = R"({"$and": [)";
  for (int i = 0; i < 1000; ++i) text += R"({"a": {"$ne": 1}}, )";
  const BsonDocument large = PlanJson(text + R"({"b": 1}]})");
  CHECK(CheckRecordFilters());
  while (CheckRecordFilters() && filters.size() < 1000)
    filters.push_back(CompileRecordFilter(large, false).value());
  CHECK(filters.size() < 20);
  CHECK(CheckRecordFilters().error().code == ErrorCode::kExceededMemoryLimit);
  filters.clear();
  CHECK(CheckRecordFilters());
  large_memory::SetLimit(before);
}

#include "query/expression/parse_work.h"
#include "query/pipeline/stage.h"
#include "tests/unit/query/pipeline_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

TEST_CASE("Bad pipelines get MongoDB's codes", "[pipeline]") {
  struct Case {
    const char* stages;
    int code;
  };
  for (
      Case c : std::vector<Case>{
          {R"([{"$foo": 1}])", 40324},
          {R"([{}])", 40323},
          {R"([{"$match": {}, "$limit": 1}])", 40323},
          {R"([1])", 14},
          {R"([{"$match": 1}])", 15959},
          {R"([{"$match": {"$foo": 1}}])", 2},
          {R"([{"$limit": 0}])", 15958},
          {R"([{"$limit": -1}])", 5107201},
          {R"([{"$limit": "x"}])", 5107201},
          {R"([{"$skip": -1}])", 5107200},
          {R"([{"$group": {"n": {"$sum": 1}}}])", 15955},
          {R"([{"$group": {"_id": 1, "n": {"$foo": 1}}}])", 15952},
          {R"([{"$group": {"_id": 1, "n": 1}}])", 40234},
          {R"([{"$group": {"_id": 1, "a.b": {"$sum": 1}}}])", 40235},
          {R"([{"$group": {"_id": 1, "$a": {"$sum": 1}}}])", 40236},
          {R"([{"$group": {"_id": 1, "a": {"$sum": 1, "$avg": 1}}}])", 40238},
          {R"([{"$group": {"_id": 1, "a": {"$sum": [1, 2]}}}])", 40237},
          {R"([{"$group": {"_id": 1, "a": {"$firstN": {"input": "$x"}}}}])", 5787906},
          {R"([{"$group": {"_id": 1, "a": {"$firstN": {"input": "$x", "n": 0}}}}])", 5787908},
          {R"([{"$group": 1}])", 15947},
          {R"([{"$project": {}}])", 51272},
          {R"([{"$sort": {}}])", 15976},
          {R"([{"$sort": 1}])", 15973},
          {R"([{"$sort": {"a": 2}}])", 15975},
          {R"([{"$sort": {"a": "x"}}])", 15974},
          {R"([{"$unwind": "a"}])", 28818},
          {R"([{"$unwind": {}}])", 28812},
          {R"([{"$unwind": {"path": "$a", "x": 1}}])", 28811},
          {R"([{"$unwind": 1}])", 15981},
          {R"([{"$count": ""}])", 40157},
          {R"([{"$count": "$a"}])", 40158},
          {R"([{"$count": "a.b"}])", 40160},
          {R"([{"$sample": {}}])", 28749},
          {R"([{"$sample": {"size": 0}}])", 28747},
          {R"([{"$facet": {}}])", 40169},
          {R"([{"$facet": {"a": 1}}])", 40170},
          {R"([{"$facet": {"a": [{"$out": "x"}]}}])", 40600},
          {R"([{"$facet": {"a": [{"$facet": {"b": []}}]}}])", 40600},
          {R"([{"$facet": {"a": [{"$collStats": {}}]}}])", 40600},
          {R"([{"$out": "x"}, {"$limit": 1}])", 40601},
          {R"([{"$limit": 1}, {"$collStats": {}}])", 40602},
          {R"([{"$replaceRoot": {"newRoot": "$a", "newRoot": "$b"}}])", 40413},
          {R"([{"$lookup": {"from": "o", "let": {"x": 1, "x": 2}, "pipeline": [], "as": "z"}}])",
           40413},
          {R"([{"$merge": {"into": "t", "let": {"x": 1, "x": 2}, "whenMatched": []}}])", 40413},
          {R"([{"$fill": {"output": {"a": {"value": 1, "value": 2}}}}])", 40413},
          {R"([{"$densify": {"field": "a", "range": {"step": 1, "step": 2, "bounds": "full"}}}])",
           40413},
          {R"([{"$setWindowFields": {"output": {"x": {"$sum": 1, "window": {}, "window": {}}}}}])",
           40413},
          {R"([{"$setWindowFields": {"output": {"x": {"$sum": 1, "window": {"documents": [0, 1], "documents": [0, 2]}}}}}])",
           40413},
          {R"([{"$group": {"_id": 1, "x": {"$sum": 1}, "x": {"$sum": 2}}}])", 40413},
          {R"([{"$group": {"_id": 1, "x": {"$sum": 1}, "_id": 2}}])", 15948},
          {R"([{"$group": {"_id": {"a": 1, "a": 2}}}])", 40413},
          {R"([{"$group": {"_id": 1, "x": {"$sum": 1, "$sum": 2}}}])", 40238},
          {R"([{"$group": {"_id": 1, "x": {"$topN": {"n": 1, "n": 2, "sortBy": {"a": 1}, "output": "$a"}}}}])",
           40413},
          {R"([{"$group": {"_id": 1, "x": {"$top": {"sortBy": {"a": 1}, "sortBy": {"a": -1}, "output": "$a"}}}}])",
           40413},
          {R"([{"$group": {"_id": 1, "x": {"$firstN": {"n": 1, "input": "$a", "input": "$b"}}}}])",
           40413},
          {R"([{"$group": {"_id": 1, "x": {"$median": {"input": "$b", "input": "$a", "method": "approximate"}}}}])",
           40413},
          {R"([{"$bucket": {"groupBy": "$a", "boundaries": [0, 5], "output": {"x": {"$sum": 1}, "x": {"$sum": 2}}}}])",
           40413},
          {R"([{"$bucketAuto": {"groupBy": "$a", "buckets": 2, "output": {"x": {"$sum": 1}, "x": {"$sum": 2}}}}])",
           40413},
          {R"([{"$setWindowFields": {"output": {"x": {"$sum": 1}, "x": {"$sum": 2}}}}])", 40176},
          {R"([{"$setWindowFields": {"output": {"x": {"$sum": 1, "$sum": 2}}}}])", 40413},
          {R"([{"$setWindowFields": {"sortBy": {"a": 1}, "output": {"x": {"$shift": {"output": "$a", "by": 1, "by": 2}}}}}])",
           40413},
          {R"([{"$setWindowFields": {"sortBy": {"a": 1}, "output": {"x": {"$expMovingAvg": {"input": "$a", "N": 1, "N": 2}}}}}])",
           40413},
          {R"([{"$fill": {"partitionBy": {"a": "$a", "a": "$b"}, "output": {"b": {"value": 1}}}}])",
           40413},
          {R"([{"$fill": {"output": {"a": {"value": 1}, "a": {"value": 2}}}}])", 40176},
          {R"([{"$densify": {"field": "a", "field": "b", "range": {"step": 1, "bounds": "full"}}}])",
           40413},
          {R"([{"$lookup": {"from": "o", "from": "p", "as": "x", "pipeline": []}}])", 40413},
          {R"([{"$unionWith": {"coll": "o", "coll": "p"}}])", 40413},
          {R"([{"$merge": {"into": {"db": "t", "coll": "o", "coll": "p"}}}])", 40413},
          {R"([{"$out": {"db": "t", "coll": "o", "coll": "p"}}])", 40413},
          {R"([{"$project": {"a": 1, "a": 1}}])", 31250},
          {R"([{"$addFields": {"a": 1, "a": 2}}])", 40176},
          {R"([{"$replaceWith": {"a": 1, "a": 2}}])", 40413},
          {R"([{"$redact": {"$cond": {"if": true, "then": "$$KEEP", "then": "$$PRUNE", "else": "$$KEEP"}}}])",
           40413},
          {R"([{"$out": 1}])", 16990},
          {R"([{"$out": "system.x"}])", 17385},
          {R"([{"$merge": {"into": "t", "whenMatched": "fail", "whenNotMatched": "fail"}}])",
           51181},
          {R"([{"$merge": {"into": "t", "whenMatched": "x"}}])", 2},
          {R"([{"$merge": {"into": "t", "whenMatched": [{"$limit": 1}]}}])", 72},
          {R"([{"$merge": {}}])", 40414},
          {R"([{"$merge": {"into": "t", "x": 1}}])", 40415},
          {R"([{"$lookup": {"from": "a"}}])", 9},
          {R"([{"$lookup": {"from": "a", "as": "b", "localField": "x"}}])", 9},
          {R"([{"$lookup": {"from": "a", "as": "b", "pipeline": [{"$out": "x"}]}}])", 51047},
          {R"([{"$lookup": {"from": "a", "as": "b", "pipeline": [{"$match": {"$expr": "$$no"}}]}}])",
           17276},
          {R"([{"$unionWith": {"coll": "a", "pipeline": [{"$merge": "x"}]}}])", 31441},
          {R"([{"$unionWith": {"pipeline": []}}])", 9},
          {R"([{"$graphLookup": {"from": "a"}}])", 40105},
          {R"([{"$bucket": {"groupBy": "$a", "boundaries": [1]}}])", 40192},
          {R"([{"$bucket": {"groupBy": "$a", "boundaries": [2, 1]}}])", 40194},
          {R"([{"$bucket": {"groupBy": "$a", "boundaries": [1, "a"]}}])", 40193},
          {R"([{"$bucket": {"groupBy": "a", "boundaries": [1, 2]}}])", 40202},
          {R"([{"$bucketAuto": {"groupBy": "$a", "buckets": 0}}])", 40243},
          {R"([{"$replaceRoot": {}}])", 40231},
          {R"([{"$changeStream": {}}])", 40573},
          {R"([{"$geoNear": {}}])", 238},
          {R"([{"$setWindowFields": {}}])", 40414},
          {R"([{"$setWindowFields": 1}])", 9},
          {R"([{"$setWindowFields": {"output": {}, "x": 1}}])", 40415},
          {R"([{"$setWindowFields": {"output": {"a": {"$foo": 1}}}}])", 9},
          {R"([{"$setWindowFields": {"output": {"a": {"$mergeObjects": "$x"}}}}])", 9},
          {R"([{"$setWindowFields": {"output": {"a": {"$sum": 1, "$avg": 1}}}}])", 9},
          {R"([{"$setWindowFields": {"output": {"a": {"$count": {}}, "a.b": {"$count": {}}}}}])",
           40176},
          {R"([{"$setWindowFields": {"output": {"a": {"$sum": 1, "window": {"documents": [-1, 0]}}}}}])",
           5339901},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1}, "output": {"a": {"$sum": 1, "window": {"documents": [1, 0]}}}}}])",
           5339900},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1}, "output": {"a": {"$sum": 1, "window": {"documents": [0.5, 1]}}}}}])",
           9},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1, "y": 1}, "output": {"a": {"$sum": 1, "window": {"range": [0, 1]}}}}}])",
           5339902},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1}, "output": {"a": {"$sum": 1, "window": {"range": [0, 1], "documents": [0, 1]}}}}}])",
           9},
          {R"([{"$setWindowFields": {"output": {"a": {"$rank": {}}}}}])", 5371602},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1}, "output": {"a": {"$rank": {}, "window": {}}}}}])",
           5371601},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1}, "output": {"a": {"$derivative": {"input": "$x"}}}}}])",
           9},
          {R"([{"$setWindowFields": {"sortBy": {"x": 1}, "output": {"a": {"$expMovingAvg": {"input": "$x", "N": 0}}}}}])",
           9},
          {R"([{"$fill": {}}])", 40414},
          {R"([{"$fill": {"output": {"a": {"method": "best"}}}}])", 6050202},
          {R"([{"$fill": {"output": {"a": {"method": "linear"}}}}])", 6050201},
          {R"([{"$densify": {"field": "a"}}])", 40414},
          {R"([{"$densify": {"field": "a", "range": {"step": 0, "bounds": "full"}}}])", 5733401},
          {R"([{"$densify": {"field": "a", "range": {"step": 1, "bounds": "all"}}}])", 5946802},
          {R"([{"$densify": {"field": "a", "range": {"step": 1, "bounds": "partition"}}}])",
           5733408},
          {R"([{"$densify": {"field": "a", "range": {"step": 1, "bounds": [1]}}}])", 5733403},
          {R"([{"$densify": {"field": "$a", "range": {"step": 1, "bounds": "full"}}}])", 16410},
          {R"([{"$group": {"_id": 1, "a": {"$median": {"input": "$x"}}}}])", 40414},
          {R"([{"$group": {"_id": 1, "a": {"$median": {"input": "$x", "method": "exact"}}}}])", 2},
          {R"([{"$group": {"_id": 1, "a": {"$percentile": {"input": "$x", "p": [2], "method": "approximate"}}}}])",
           7750303},
          {R"([{"$search": {}}])", 31082},
          {R"([{"$listSearchIndexes": {}}])", 31082},
          {R"([{"$currentOp": {}}])", 73},
          {R"([{"$documents": []}])", 73},
          {R"([{"$addFields": {"a": {"$foo": 1}}}])", 168}}) {
    INFO(c.stages);
    Runner r;
    CHECK(r.Run(c.stages) == "error " + std::to_string(c.code));
  }
}

TEST_CASE("Failures while running come out of Next", "[pipeline]") {
  struct Case {
    const char* stages;
    int code;
  };
  for (Case c :
       std::vector<Case>{{R"([{"$project": {"x": {"$divide": [1, "$zero"]}}}])", 2},
                         {R"([{"$replaceWith": "$zero"}])", 40228},
                         {R"([{"$redact": 1}])", 17053},
                         {R"([{"$bucket": {"groupBy": "$zero", "boundaries": [1, 2]}}])", 40066},
                         {R"([{"$set": {"q": 1}}, {"$sort": {"l": 1, "m": 1}}])", 2},
                         {R"([{"$group": {"_id": 1, "m": {"$mergeObjects": "$zero"}}}])", 40400},
                         {R"([{"$out": "x"}])", 0}}) {
    INFO(c.stages);
    Runner r;
    r.env.Insert("c", R"([{"_id": 1, "zero": 0, "l": [1, 2], "m": [3, 4]}])");
    CHECK(r.Run(c.stages) == (c.code ? "error " + std::to_string(c.code) : ""));
  }
}

TEST_CASE("Pipelines that need no collection", "[pipeline]") {
  Runner r;
  r.options.collection = "";
  CHECK(r.Run(R"([{"$documents": [{"a": 1}, {"a": {"$add": [1, 1]}}]}, {"$match": {"a": 2}}])") ==
        Lines(R"([{"a": 2}])"));
  CHECK(r.Run(R"([{"$match": {}}])") == "error 73");
  CHECK(r.Run("[]") == "error 73");
  CHECK(r.Run(R"([{"$currentOp": {}}])") == "error 73");
  r.options.db = "admin";
  CHECK(r.Run(R"([{"$currentOp": {}}])") == Lines(R"([{"stage": "$currentOp", "coll": ""}])"));
}

TEST_CASE("The documents of a stage about the server are charged", "[pipeline][limits]") {
  Runner r;
  r.options.db = "admin";
  r.options.collection = "";
  r.env.more_of_stages = 300;
  const std::string stages = R"([{"$currentOp": {}}, {"$match": {"stage": {"$exists": true}}}])";
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  {
    auto opened = r.Open(stages);
    REQUIRE(opened);
    StreamDocument doc;
    REQUIRE(opened.value()->Next(&doc));
    CHECK(budget.used() >= 3'000'000);
  }
  CHECK(budget.used() == 0);
  budget.SetLimit(2 << 20);
  CHECK(r.Run(stages) == "error 146");
  CHECK(budget.used() == 0);
  r.env.more_of_stages = 100;
  CHECK(r.Run(stages) == Lines(R"([{"stage": "$currentOp", "coll": ""}])"));
}

TEST_CASE("The command's let is seen everywhere", "[pipeline]") {
  Runner r;
  BsonDocument let = Json(R"({"x": 2, "y": {"$add": [1, 2]}})");
  r.options.let = let;
  r.env.Insert("c", R"([{"_id": 1}, {"_id": 2}, {"_id": 3}])");
  r.env.Insert("o", R"([{"_id": 7}])");
  CHECK(r.Run(R"([{"$match": {"$expr": {"$eq": ["$_id", "$$x"]}}}, {"$set": {"y": "$$y"}}])") ==
        Lines(R"([{"_id": 2, "y": 3}])"));
  CHECK(
      r.Run(
          R"([{"$limit": 1}, {"$lookup": {"from": "o", "pipeline": [{"$set": {"y": "$$y"}}], "as": "o"}}])") ==
      Lines(R"([{"_id": 1, "o": [{"_id": 7, "y": 3}]}])"));
  BsonDocument bad = Json(R"({"x": "$a"})");
  r.options.let = bad;
  CHECK(r.Run("[]") == "error 4890500");
  BsonDocument twice = Json(R"({"x": 1, "x": 2})");
  r.options.let = twice;
  CHECK(r.Run("[]") == "error 40413");
}

TEST_CASE("A killed operation stops a blocking stage", "[pipeline]") {
  Runner r;
  r.env.Insert("c", R"([{"_id": 1}])");
  r.op.kill_code = 11601;
  CHECK(r.Run(R"([{"$group": {"_id": "$_id"}}])") == "error 11601");
  CHECK(r.Run(R"([{"$out": "x"}])") == "error 11601");
  CHECK(r.env.abandoned == 1);
}

TEST_CASE("An option of a stage that is there twice is found among very many", "[pipeline]") {
  const auto options = [](int distinct, const std::string& again) {
    return BuildBson([&](BsonBuilder& b) {
      for (int i = 0; i < distinct; ++i) b.Append("o" + std::to_string(i), i);
      if (!again.empty()) b.Append(again, 1);
    });
  };
  const std::string longest = "o" + std::string(5000, 'x');
  for (const int distinct : {1, 20, 5000}) {
    CAPTURE(distinct);
    CHECK(CheckOptionsOnce("$s", options(distinct, "").view().AsValue()));
    CHECK(CheckOptionsOnce("$s", options(distinct, longest).view().AsValue()));
    for (const std::string& twice : {std::string("o0"), "o" + std::to_string(distinct - 1)}) {
      const Result<void> r = CheckOptionsOnce("$s", options(distinct, twice).view().AsValue());
      REQUIRE_FALSE(r);
      CHECK(static_cast<int>(r.error().code) == 40413);
      CHECK(r.error().message == "BSON field '$s." + twice + "' is a duplicate field");
    }
  }
  // It is interrupted, and charged.
  const SystemClock clock;
  Operation op(clock);
  const BsonDocument many = options(5000, "");
  {
    const ParseWork work(&op);
    CHECK(CheckOptionsOnce("$s", many.view().AsValue()));
    CHECK(work.bytes() >= 5000 * 32);
  }
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  const ParseWork work(&op);
  CHECK_FALSE(CheckOptionsOnce("$s", many.view().AsValue()));
}

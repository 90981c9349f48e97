#include "query/pipeline/accumulator.h"
#include "tests/unit/query/pipeline_fixture.h"
#include "timeseries/bucket_control.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {
struct PipelineCase {
  const char* name;
  const char* documents;
  const char* stages;
  const char* expected;
};
}  // namespace

TEST_CASE("Stages give what they say", "[pipeline]") {
  const std::vector<PipelineCase> cases = {
      {"match and project", R"([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])",
       R"([{"$match": {"a": {"$gt": 1}}}, {"$project": {"_id": 0, "b": {"$add": ["$a", 10]}}}])",
       R"([{"b": 12}])"},
      {"addFields and unset", R"([{"_id": 1, "a": 1, "b": 2}])",
       R"([{"$set": {"c.d": "$a"}}, {"$unset": ["a", "b"]}])", R"([{"_id": 1, "c": {"d": 1}}])"},
      {"limit and skip", R"([{"_id": 1}, {"_id": 2}, {"_id": 3}, {"_id": 4}])",
       R"([{"$limit": 3}, {"$skip": 1}])", R"([{"_id": 2}, {"_id": 3}])"},
      {"limit smaller than the skip behind it", R"([{"_id": 1}, {"_id": 2}, {"_id": 3}])",
       R"([{"$limit": 1}, {"$skip": 2}])", "[]"},
      {"sorted, cut and skipped to nothing", R"([{"_id": 1}, {"_id": 2}, {"_id": 3}])",
       R"([{"$sort": {"_id": -1}}, {"$limit": 1}, {"$skip": 2}])", "[]"},
      {"sort, skip, limit", R"([{"_id": 3}, {"_id": 1}, {"_id": 2}, {"_id": 4}])",
       R"([{"$sort": {"_id": 1}}, {"$skip": 1}, {"$limit": 2}])", R"([{"_id": 2}, {"_id": 3}])"},
      {"sort behind a stage, top-k", R"([{"_id": 3}, {"_id": 1}, {"_id": 2}])",
       R"([{"$set": {"n": {"$subtract": [0, "$_id"]}}}, {"$sort": {"n": 1}}, {"$limit": 2}])",
       R"([{"_id": 3, "n": -3}, {"_id": 2, "n": -2}])"},
      {"count", R"([{"_id": 1}, {"_id": 2}])", R"([{"$count": "n"}])", R"([{"n": 2}])"},
      {"count of nothing", "[]", R"([{"$count": "n"}])", "[]"},
      {"unwind",
       R"([{"_id": 1, "a": [1, 2]}, {"_id": 2, "a": []}, {"_id": 3}, {"_id": 4, "a": null}, {"_id": 5, "a": 7}])",
       R"([{"$unwind": "$a"}])", R"([{"_id": 1, "a": 1}, {"_id": 1, "a": 2}, {"_id": 5, "a": 7}])"},
      {"unwind that keeps empty ones, with index",
       R"([{"_id": 1, "a": {"b": [1, 2]}}, {"_id": 2, "a": {"b": []}}, {"_id": 3}, {"_id": 5, "a": {"b": 7}}])",
       R"([{"$unwind": {"path": "$a.b", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": true}}])",
       R"([{"_id": 1, "a": {"b": 1}, "i": 0}, {"_id": 1, "a": {"b": 2}, "i": 1}, {"_id": 2, "a": {}, "i": null}, {"_id": 3, "i": null}, {"_id": 5, "a": {"b": 7}, "i": null}])"},
      {"group", R"([{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x", "v": 3}])",
       R"([{"$group": {"_id": "$k", "sum": {"$sum": "$v"}, "all": {"$push": "$v"}}}, {"$sort": {"_id": 1}}])",
       R"([{"_id": "x", "sum": 4, "all": [1, 3]}, {"_id": "y", "sum": 2, "all": [2]}])"},
      {"group of everything", R"([{"v": 1}, {"v": 2}])",
       R"([{"$group": {"_id": null, "n": {"$sum": 1}, "a": {"$avg": "$v"}}}])",
       R"([{"_id": null, "n": 2, "a": 1.5}])"},
      {"group by numbers that are equal",
       R"([{"v": 1}, {"v": 1.0}, {"v": {"$numberLong": "1"}}, {}])",
       R"([{"$group": {"_id": "$v", "n": {"$count": {}}}}, {"$sort": {"n": 1}}])",
       R"([{"_id": null, "n": 1}, {"_id": 1, "n": 3}])"},
      {"n by the group's key",
       R"([{"k": "x", "v": 1}, {"k": "x", "v": 2}, {"k": "y", "v": 3}, {"k": "y", "v": 4}])",
       R"([{"$group": {"_id": {"k": "$k"}, "f": {"$firstN": {"input": "$v", "n": {"$cond": [{"$eq": ["$k", "x"]}, 1, 2]}}}}}, {"$sort": {"_id": 1}}])",
       R"([{"_id": {"k": "x"}, "f": [1]}, {"_id": {"k": "y"}, "f": [3, 4]}])"},
      {"sortByCount", R"([{"k": "x"}, {"k": "y"}, {"k": "y"}])", R"([{"$sortByCount": "$k"}])",
       R"([{"_id": "y", "count": 2}, {"_id": "x", "count": 1}])"},
      {"bucket", R"([{"v": 1}, {"v": 5}, {"v": 10}, {"v": 99}])",
       R"([{"$bucket": {"groupBy": "$v", "boundaries": [0, 5, 20], "default": "rest", "output": {"n": {"$sum": 1}}}}])",
       R"([{"_id": 0, "n": 1}, {"_id": 5, "n": 2}, {"_id": "rest", "n": 1}])"},
      {"bucketAuto", R"([{"v": 5}, {"v": 1}, {"v": 3}, {"v": 4}, {"v": 2}])",
       R"([{"$bucketAuto": {"groupBy": "$v", "buckets": 2}}])",
       R"([{"_id": {"min": 1, "max": 4}, "count": 3}, {"_id": {"min": 4, "max": 5}, "count": 2}])"},
      {"facet", R"([{"_id": 1}, {"_id": 2}, {"_id": 3}])",
       R"([{"$facet": {"n": [{"$count": "n"}], "big": [{"$match": {"_id": {"$gt": 1}}}, {"$limit": 1}], "none": [{"$match": {"_id": 9}}]}}])",
       R"([{"n": [{"n": 3}], "big": [{"_id": 2}], "none": []}])"},
      {"replaceRoot", R"([{"_id": 1, "a": {"b": 2}}])", R"([{"$replaceRoot": {"newRoot": "$a"}}])",
       R"([{"b": 2}])"},
      {"replaceWith", R"([{"_id": 1, "a": {"b": 2}}])",
       R"([{"$replaceWith": {"$mergeObjects": ["$a", {"c": 3}]}}])", R"([{"b": 2, "c": 3}])"},
      {"redact",
       R"([{"l": 1, "a": {"l": 2, "x": 1}, "b": {"l": 1, "y": [{"l": 2}, {"l": 1}, 5]}}])",
       R"([{"$redact": {"$cond": [{"$eq": ["$l", 1]}, "$$DESCEND", "$$PRUNE"]}}])",
       R"([{"l": 1, "b": {"l": 1, "y": [{"l": 1}, 5]}}])"},
      {"unionWith", R"([{"_id": 1}])",
       R"([{"$unionWith": {"coll": "other", "pipeline": [{"$match": {"x": 2}}, {"$project": {"x": 1}}]}}])",
       R"([{"_id": 1}, {"_id": 12, "x": 2}])"},
      {"lookup", R"([{"_id": 1, "a": 1}, {"_id": 2, "a": [1, 2]}, {"_id": 3}, {"_id": 4, "a": 9}])",
       R"([{"$lookup": {"from": "other", "localField": "a", "foreignField": "x", "as": "o.found"}}])",
       R"([{"_id": 1, "a": 1, "o": {"found": [{"_id": 11, "x": 1}]}}, {"_id": 2, "a": [1, 2], "o": {"found": [{"_id": 11, "x": 1}, {"_id": 12, "x": 2, "y": 5}]}}, {"_id": 3, "o": {"found": [{"_id": 13}]}}, {"_id": 4, "a": 9, "o": {"found": []}}])"},
      {"lookup with a pipeline", R"([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])",
       R"([{"$lookup": {"from": "other", "let": {"v": "$a"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$x", "$$v"]}}}, {"$project": {"_id": 0, "t": {"$add": ["$x", "$$v"]}}}], "as": "o"}}])",
       R"([{"_id": 1, "a": 1, "o": [{"t": 2}]}, {"_id": 2, "a": 2, "o": [{"t": 4}]}])"},
      {"lookup with both", R"([{"_id": 1, "a": [1, 2]}])",
       R"([{"$lookup": {"from": "other", "localField": "a", "foreignField": "x", "pipeline": [{"$match": {"y": 5}}, {"$project": {"_id": 1}}], "as": "o"}}])",
       R"([{"_id": 1, "a": [1, 2], "o": [{"_id": 12}]}])"},
      {"graphLookup", R"([{"_id": 1, "start": "a"}])",
       R"([{"$graphLookup": {"from": "graph", "startWith": "$start", "connectFromField": "to", "connectToField": "_id", "as": "r", "depthField": "d", "maxDepth": 2}}, {"$project": {"r": {"$sortArray": {"input": "$r", "sortBy": {"_id": 1}}}}}])",
       R"([{"_id": 1, "r": [{"_id": "a", "to": ["b", "c"], "d": 0}, {"_id": "b", "to": "a", "d": 1}, {"_id": "c", "to": "d", "d": 1}, {"_id": "d", "to": "e", "d": 2}]}])"},
      {"collStats of the environment", "[]", R"([{"$collStats": {"count": {}}}])",
       R"([{"stage": "$collStats", "coll": "c"}])"},
  };
  for (const PipelineCase& c : cases) {
    INFO(c.name);
    Runner r;
    r.env.Insert("c", c.documents);
    r.env.Insert("other", R"([{"_id": 11, "x": 1}, {"_id": 12, "x": 2, "y": 5}, {"_id": 13}])");
    r.env.Insert(
        "graph",
        R"([{"_id": "a", "to": ["b", "c"]}, {"_id": "b", "to": "a"}, {"_id": "c", "to": "d"}, {"_id": "d", "to": "e"}, {"_id": "e", "to": "a"}])");
    CHECK(r.Run(c.stages) == Lines(c.expected));
  }
}

TEST_CASE("Accumulators give what their examples say, in memory and when every document spills",
          "[pipeline]") {
  for (const AccumulatorDef& def : AllAccumulators())
    for (bool spill : {false, true}) {
      INFO(def.name << (spill ? " spilling" : ""));
      std::string example(def.example);
      size_t over = example.rfind(" over "), arrow = example.rfind(" => ");
      REQUIRE(arrow > over);
      Runner r;
      if (spill) r.options.memory_limit = 1;
      r.env.Insert("c", example.substr(over + 6, arrow - over - 6));
      CHECK(r.Run("[{\"$group\": {\"_id\": 1, \"r\": {\"" + std::string(def.name) +
                  "\": " + example.substr(0, over) + "}}}]") ==
            Lines("[{\"_id\": 1, \"r\": " + example.substr(arrow + 4) + "}]"));
    }
}

TEST_CASE("A group over the memory limit spills and gives the same, or is refused", "[pipeline]") {
  std::string documents = "[";
  for (int i = 0; i < 2000; ++i)
    documents += std::string(i ? "," : "") + "{\"k\": " + std::to_string(i % 97) +
                 ", \"v\": " + std::to_string(i) + "}";
  documents += "]";
  const char* stages =
      R"([{"$group": {"_id": "$k", "n": {"$sum": 1}, "s": {"$sum": "$v"}, "first": {"$first": "$v"}, "last": {"$last": "$v"}, "all": {"$push": "$v"}}}, {"$sort": {"_id": 1}}])";
  Runner memory, disk, refused;
  for (Runner* r : {&memory, &disk, &refused}) r->env.Insert("c", documents);
  disk.options.memory_limit = 4000;
  refused.options.memory_limit = 4000;
  refused.options.allow_disk_use = false;
  std::string expected = memory.Run(stages);
  CHECK(std::count(expected.begin(), expected.end(), '\n') == 96);
  CHECK(disk.Run(stages) == expected);
  CHECK(refused.Run(stages) == "error 292");
  CHECK(refused.Run(R"([{"$set": {"x": 1}}, {"$sort": {"x": 1, "v": -1}}])") == "error 292");
  CHECK(
      disk.Run(
          R"([{"$set": {"x": 1}}, {"$sort": {"x": 1, "v": -1}}, {"$limit": 1}, {"$project": {"v": 1}}])") ==
      Lines(R"([{"v": 1999}])"));
}

TEST_CASE("The front of a pipeline becomes the find it is", "[pipeline]") {
  struct PipelineCase {
    const char* stages;
    const char* request;
    const char* remaining;
  };
  for (
      PipelineCase c : std::vector<PipelineCase>{
          {R"([])", R"({  } {  } 0 0 *)", ""},
          {R"([{"$match": {"a": 1}}, {"$sort": {"b": 1}}, {"$skip": 2}, {"$limit": 3}])",
           R"({ "a" : 1 } { "b" : 1 } 2 3 *)", ""},
          {R"([{"$sort": {"b": 1}}, {"$match": {"a": 1}}, {"$limit": 3}])",
           R"({ "a" : 1 } { "b" : 1 } 0 3 *)", ""},
          {R"([{"$match": {"a": 1}}, {"$match": {"b": 2}}])",
           R"({ "$and" : [ { "a" : 1 }, { "b" : 2 } ] } {  } 0 0 *)", ""},
          {R"([{"$count": "n"}])", R"({  } {  } 0 0 )", "$count "},
          {R"([{"$set": {"x": {"$mergeObjects": ["$$ROOT", "$b"]}}}, {"$group": {"_id": "$x"}}])",
           R"({  } {  } 0 0 *)", "$set $group "},
          {R"([{"$set": {"x": 1}}, {"$group": {"_id": "$y.z"}}])", R"({  } {  } 0 0 y,)",
           "$set $group "},
          {R"([{"$match": {"a": 1}}, {"$group": {"_id": "$b.c", "n": {"$sum": "$d"}}}])",
           R"({ "a" : 1 } {  } 0 0 b,d,)", "$group "},
          {R"([{"$addFields": {"x": 1}}, {"$match": {"a": 1, "x": 1}}])",
           R"({ "a" : 1 } {  } 0 0 *)", "$addFields $match "},
          {R"([{"$project": {"a": 1, "b": "$z"}}, {"$match": {"a": 1}}])",
           R"({ "a" : 1 } {  } 0 0 _id,a,z,)", "$project "},
          {R"([{"$unwind": "$t"}, {"$match": {"a": 1, "t.x": 2}}])", R"({ "a" : 1 } {  } 0 0 *)",
           "$unwind $match "},
          {R"([{"$limit": 10}, {"$skip": 4}, {"$limit": 3}])", R"({  } {  } 4 3 *)", ""},
          {R"([{"$set": {"a": 1}}, {"$limit": 5}])", R"({  } {  } 0 5 *)", "$set "},
          // A sort that keeps a few goes before a projection, by the names that fields have there.
          {R"([{"$project": {"z": "$a", "y": "$b"}}, {"$sort": {"z": 1, "y.x": -1}}, {"$limit": 3}])",
           R"({  } { "a" : 1, "b.x" : -1 } 0 3 _id,a,b,)", "$project "},
          {R"([{"$set": {"z": "$a", "a": "$z"}}, {"$sort": {"a": 1}}, {"$limit": 3}])",
           R"({  } { "z" : 1 } 0 3 *)", "$set "},
          {R"([{"$set": {"z": "$a"}}, {"$sort": {"z": 1, "a": 1}}, {"$limit": 3}])",
           R"({  } {  } 0 0 *)", "$set $sort "},
          {R"([{"$project": {"z": "$a.b"}}, {"$sort": {"z": 1}}, {"$limit": 3}])",
           R"({  } {  } 0 0 _id,a,)", "$project $sort "},
          {R"([{"$project": {"z": "$a"}}, {"$sort": {"z": 1}}])", R"({  } {  } 0 0 _id,a,)",
           "$project $sort "},
          {R"([{"$project": {"z": {"$abs": "$a"}}}, {"$sort": {"z": 1}}, {"$limit": 3}])",
           R"({  } {  } 0 0 _id,a,)", "$project $sort "},
          // The first of all is a sort with a limit; not where others count or could be errors.
          {R"([{"$sort": {"b": 1}}, {"$group": {"_id": null, "x": {"$first": "$c"}}}])",
           R"({  } { "b" : 1 } 0 1 c,)", "$group "},
          {R"([{"$sort": {"b": 1}}, {"$group": {"_id": null, "x": {"$last": "$c"}}}])",
           R"({  } { "b" : 1 } 0 0 c,)", "$group "},
          {R"([{"$sort": {"b": 1}}, {"$group": {"_id": "$a", "x": {"$first": "$c"}}}])",
           R"({  } { "b" : 1 } 0 0 a,c,)", "$group "},
          {R"([{"$sort": {"b": 1}},
               {"$group": {"_id": null, "x": {"$first": "$c"}, "n": {"$sum": "$d"}}}])",
           R"({  } { "b" : 1 } 0 0 c,d,)", "$group "},
          {R"([{"$sort": {"b": 1}}, {"$group": {"_id": null, "x": {"$first": {"$abs": "$c"}}}}])",
           R"({  } { "b" : 1 } 0 0 c,)", "$group "},
          {R"([{"$group": {"_id": "$a"}}, {"$match": {"_id": 1}}])", R"({ "a" : 1 } {  } 0 0 a,)",
           "$group "},
          {R"([{"$match": {"$expr": {"$eq": ["$a", "$$ROOT.b"]}}}, {"$project": {"c": 1, "_id": 0}}])",
           R"({ "$expr" : { "$eq" : [ "$a", "$$ROOT.b" ] } } {  } 0 0 c,)", "$project "}}) {
    INFO(c.stages);
    Runner r;
    REQUIRE(r.Open(c.stages));
    CHECK(Squeeze(r.request) == Squeeze(c.request));
    CHECK(r.remaining == c.remaining);
  }
}

TEST_CASE("A group asks for one document of each value only if one will do", "[pipeline]") {
  struct GroupCase {
    const char* stages;
    const char* one_per;  ///< with "<" for the last document; empty: every document is wanted
  };
  for (GroupCase c : std::vector<GroupCase>{
           {R"([{"$group": {"_id": "$a"}}])", "a"},
           {R"([{"$match": {"b": 1}}, {"$group": {"_id": "$a.b"}}])", "a.b"},
           {R"([{"$sort": {"a": 1, "b": 1}}, {"$group": {"_id": "$a", "x": {"$first": "$c"}}}])",
            "a"},
           {R"([{"$sort": {"b": 1}}, {"$group": {"_id": "$a", "x": {"$last": "$$ROOT"}}}])", "a<"},
           // Without an order any document is as good as another, but it stays the first one met.
           {R"([{"$group": {"_id": "$a", "x": {"$first": "$c"}}}])", ""},
           {R"([{"$sort": {"b": 1}}, {"$group": {"_id": "$a", "n": {"$sum": 1}}}])", ""},
           {R"([{"$sort": {"b": 1}}, {"$limit": 9},
                {"$group": {"_id": "$a", "x": {"$first": "$$ROOT"}}}])",
            ""},
           {R"([{"$sort": {"b": 1}}, {"$skip": 9}, {"$group": {"_id": "$a"}}])", ""},
           {R"([{"$sort": {"b": 1}},
                {"$group": {"_id": "$a", "x": {"$first": "$c"}, "y": {"$last": "$c"}}}])",
            ""},
           // {_id: {x: null}} and {_id: {}} are two groups, with one key of the index.
           {R"([{"$group": {"_id": {"x": "$a"}}}])", ""},
           {R"([{"$group": {"_id": {"$ifNull": ["$a", 1]}}}])", ""},
           {R"([{"$group": {"_id": "$$NOW"}}])", ""},
           {R"([{"$sort": {"b": 1}},
                {"$group": {"_id": "$a", "x": {"$first": {"$meta": "recordId"}}}}])",
            ""}}) {
    INFO(c.stages);
    Runner r;
    BsonDocument wrapped = Json("{\"a\": " + std::string(c.stages) + "}");
    auto pipeline = Pipeline::Parse(wrapped.view()["a"].Document(), r.options);
    REQUIRE(pipeline.has_value());
    const SourceRequest request = pipeline.value()->TakeSource();
    CHECK(request.one_per + (request.one_per_last ? "<" : "") == c.one_per);
  }
}

TEST_CASE("A lookup asks once for the same value in a row, by the value it has", "[pipeline]") {
  Runner r;
  r.env.Insert("c", R"([{"_id": 1, "a": 1}, {"_id": 2, "a": 1}, {"_id": 3, "a": 2}])");
  r.Run(R"([{"$lookup": {"from": "other", "localField": "a", "foreignField": "x", "as": "o"}}])");
  CHECK(r.env.opened == 3);  // the source and two look-ups
  CHECK(Squeeze(r.env.filters[1]) == R"({"x":{"$eq":1}})");
}

TEST_CASE("A lookup without an index reads the collection once and finds the same", "[pipeline]") {
  const char* foreign =
      R"([{"_id": 1, "x": 1}, {"_id": 2, "x": [1, 2]}, {"_id": 3}, {"_id": 4, "x": null}, {"_id": 5, "x": 1.0},
    {"_id": 6, "x": []}, {"_id": 7, "x": [{"y": 1}, {"y": 2}]}, {"_id": 8, "x": {"y": 2}}, {"_id": 9, "x": [[1, 2]]}])";
  const char* local =
      R"([{"_id": 1, "a": 1}, {"_id": 2, "a": [1, 2]}, {"_id": 3}, {"_id": 4, "a": null}, {"_id": 5, "a": []},
    {"_id": 6, "a": [[1, 2]]}, {"_id": 7, "a": "none"}, {"_id": 8, "a": {"y": 2}}, {"_id": 9, "a": {"$numberLong": "2"}}])";
  for (const char* field : {"x", "x.y", "_id"}) {
    INFO(field);
    std::string stages =
        std::string(R"([{"$lookup": {"from": "o", "localField": "a", "foreignField": ")") + field +
        R"(", "as": "f"}}])";
    Runner seeking, hashing, small;
    for (Runner* r : {&seeking, &hashing, &small}) {
      r->env.Insert("c", local);
      r->env.Insert("o", foreign);
    }
    hashing.env.has_index = small.env.has_index = false;
    small.options.memory_limit = 450;
    std::string expected = seeking.Run(stages);
    CHECK(hashing.Run(stages) == expected);
    CHECK(hashing.env.opened == 2);
    CHECK(small.Run(stages) == expected);
    CHECK(small.env.opened > 5);
  }
}

// Issue 29: $facet left its pipelines' sources as they were, with what they had pinned and the
// operation that was over by the next batch.
TEST_CASE("Between batches nothing that a pipeline has opened runs", "[pipeline]") {
  for (const char* stages :
       {R"([{"$match": {"a": 1}}])", R"([{"$unionWith": "d"}])",
        R"([{"$lookup": {"from": "d", "localField": "a", "foreignField": "a", "as": "x"}}])",
        R"([{"$lookup": {"from": "d", "pipeline": [], "as": "x"}}, {"$unwind": "$x"}])",
        R"([{"$lookup": {"from": "d", "localField": "a", "foreignField": "a", "as": "x"}},
            {"$unwind": "$x"}])",
        R"([{"$graphLookup": {"from": "d", "startWith": "$a", "connectFromField": "b",
                              "connectToField": "a", "as": "x"}}])",
        R"([{"$facet": {"x": [{"$unionWith": "d"}, {"$limit": 4}]}}, {"$unwind": "$x"}])",
        R"([{"$facet": {"x": [{"$lookup": {"from": "d", "pipeline": [], "as": "y"}},
                              {"$unwind": "$y"}, {"$limit": 2}]}}, {"$unwind": "$x"}])",
        R"([{"$lookup": {"from": "d", "as": "x", "pipeline": [
              {"$facet": {"y": [{"$unionWith": "d"}, {"$limit": 3}]}}, {"$unwind": "$y"}]}},
            {"$unwind": "$x"}])",
        R"([{"$unionWith": {"coll": "d", "pipeline": [
              {"$facet": {"y": [{"$unionWith": "c"}, {"$limit": 4}]}}, {"$unwind": "$y"}]}}])"}) {
    INFO(stages);
    Runner r;
    r.env.has_index = true;
    r.env.Insert("c", R"([{"_id": 1, "a": 1}, {"_id": 2, "a": 1}])");
    r.env.Insert("d", R"([{"_id": 3, "a": 1, "b": 1}, {"_id": 4, "a": 1}, {"_id": 5, "a": 1}])");
    const std::string all = r.Run(stages);
    CHECK(r.env.running == 0);
    std::string text;
    auto opened = r.Open(stages);
    REQUIRE(opened);
    // Each document is a batch, read by an operation of its own.
    for (StreamState state = StreamState::kAdvanced; state == StreamState::kAdvanced;) {
      Operation op(r.clock);
      opened.value()->Attach(&op, &r.env);
      StreamDocument doc;
      auto next = opened.value()->Next(&doc);
      REQUIRE(next);
      state = next.value();
      if (state == StreamState::kAdvanced)
        text += (text.empty() ? "" : "\n") + ToRelaxedJson(doc.doc);
      opened.value()->SaveState();
      CHECK(r.env.running == 0);
    }
    CHECK(text == all);
  }
}

TEST_CASE("$out replaces a collection, $merge writes into one", "[pipeline]") {
  struct PipelineCase {
    const char* name;
    const char* stages;
    const char* result;  ///< of Run
    const char* target;
  };
  for (
      PipelineCase c : std::vector<PipelineCase>{
          {"out", R"([{"$out": "t"}])", "", R"([{"_id": 1, "v": 10}, {"_id": 2, "v": 20}])"},
          {"merge: default", R"([{"$merge": "t"}])", "",
           R"([{"_id": 1, "v": 10, "old": true}, {"_id": 2, "v": 20}])"},
          {"merge: replace", R"([{"$merge": {"into": "t", "whenMatched": "replace"}}])", "",
           R"([{"_id": 1, "v": 10}, {"_id": 2, "v": 20}])"},
          {"merge: keepExisting", R"([{"$merge": {"into": "t", "whenMatched": "keepExisting"}}])",
           "", R"([{"_id": 1, "v": 1, "old": true}, {"_id": 2, "v": 20}])"},
          {"merge: fail", R"([{"$merge": {"into": "t", "whenMatched": "fail"}}])", "error 11000",
           R"([{"_id": 1, "v": 1, "old": true}])"},
          {"merge: discard", R"([{"$merge": {"into": "t", "whenNotMatched": "discard"}}])", "",
           R"([{"_id": 1, "v": 10, "old": true}])"},
          {"merge: not matched fails", R"([{"$merge": {"into": "t", "whenNotMatched": "fail"}}])",
           "error 13113", R"([{"_id": 1, "v": 10, "old": true}])"},
          {"merge: pipeline",
           R"([{"$merge": {"into": "t", "whenMatched": [{"$set": {"v": {"$add": ["$v", "$$new.v"]}}}]}}])",
           "", R"([{"_id": 1, "v": 11, "old": true}, {"_id": 2, "v": 20}])"},
          {"merge: pipeline with let",
           R"([{"$merge": {"into": "t", "let": {"w": "$v"}, "whenMatched": [{"$set": {"v": "$$w"}}]}}])",
           "", R"([{"_id": 1, "v": 10, "old": true}, {"_id": 2, "v": 20}])"},
          {"merge: on without unique index", R"([{"$merge": {"into": "t", "on": "v"}}])",
           "error 51183", R"([{"_id": 1, "v": 1, "old": true}])"},
          {"merge: missing on field", R"([{"$merge": {"into": "t", "on": "u"}}])", "error 51132",
           R"([{"_id": 1, "v": 1, "old": true}])"},
          {"merge: _id changed",
           R"([{"$set": {"u": 1}}, {"$limit": 1}, {"$set": {"_id": 5}}, {"$merge": {"into": "u", "on": "u"}}])",
           "error 66", R"([{"_id": 1, "v": 1, "old": true}])"}}) {
    INFO(c.name);
    Runner r;
    r.env.Insert("c", R"([{"_id": 1, "v": 10}, {"_id": 2, "v": 20}])");
    r.env.Insert("t", R"([{"_id": 1, "v": 1, "old": true}])");
    r.env.Insert("u", R"([{"_id": 1, "u": 1}])");
    CHECK(r.Run(c.stages) == c.result);
    std::string text;
    for (auto& doc : r.env.collections["t"])
      text += (text.empty() ? "" : "\n") + ToRelaxedJson(doc);
    CHECK(text == Lines(c.target));
  }
  Runner r;
  REQUIRE(r.Open(R"([{"$out": {"db": "d", "coll": "x.y"}}])"));
  auto p = r.Open(
      R"([{"$lookup": {"from": "o", "pipeline": [{"$unionWith": "q"}], "as": "z"}}, {"$merge": "m"}])");
  REQUIRE(p);
  std::string db, coll;
  CHECK(p.value()->WritesTo(&db, &coll));
  CHECK(db + "/" + coll == "test/m");
  CHECK(p.value()->InvolvedNamespaces() == std::set<std::string>{"test.o", "test.q", "test.m"});
}

TEST_CASE("Every stage's serialization parses to the same stage", "[pipeline]") {
  for (
      const char* stages :
      {R"([{"$group": {"_id": {"a": "$a"}, "n": {"$sum": 1}, "t": {"$topN": {"n": 2, "sortBy": {"x": -1}, "output": "$y"}}, "c": {"$count": {}}, "f": {"$firstN": {"input": "$x", "n": 3}}}}])",
       R"([{"$set": {"z": 1}}, {"$sort": {"z": 1}}, {"$limit": 4}])",
       R"([{"$unwind": {"path": "$a.b", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": true}}])",
       R"([{"$bucketAuto": {"groupBy": "$a", "buckets": 3, "output": {"n": {"$avg": "$x"}}}}])",
       R"([{"$facet": {"x": [{"$count": "n"}]}}])",
       R"([{"$lookup": {"from": "o", "let": {"v": "$a"}, "pipeline": [{"$match": {"x": 1}}], "as": "z"}}])",
       R"([{"$graphLookup": {"from": "g", "startWith": "$s", "connectFromField": "f", "connectToField": "t", "as": "r", "maxDepth": 3}}])",
       R"([{"$unionWith": {"coll": "o", "pipeline": [{"$limit": 1}]}}])",
       R"([{"$sample": {"size": 5}}])", R"([{"$redact": {"$cond": [true, "$$KEEP", "$$PRUNE"]}}])",
       R"([{"$merge": {"into": "t", "on": ["_id"], "whenMatched": [{"$set": {"a": "$$new.b"}}], "whenNotMatched": "discard"}}])",
       R"([{"$project": {"a": 1, "b": {"$add": ["$c", 1]}}}, {"$replaceRoot": {"newRoot": "$b"}}])"}) {
    INFO(stages);
    Runner r;
    auto first = r.Open(stages);
    if (!first) FAIL(first.error().message);
    auto text = [](const Pipeline& p) {
      std::string bytes;
      BsonArrayBuilder out(bytes);
      p.Serialize(out);
      out.Done();
      return ToRelaxedJson(BsonView(bytes.data()).AsValue(BsonType::kArray));
    };
    std::string once = text(*first.value());
    auto second = r.Open(once);
    if (!second) FAIL(once + ": " + second.error().message);
    CHECK(text(*second.value()) == once);
  }
}

TEST_CASE("A cursor counts the points that a pipeline within its own has unpacked", "[pipeline]") {
  // A bucket of a few bytes becomes many megabytes of points, which a limit for each client's
  // cursors must see.
  constexpr size_t kText = 100'000, kPoints = 200;
  const std::string text(kText, 'x');
  std::vector<BsonDocument> points;
  std::vector<BsonView> views;
  for (size_t i = 0; i < kPoints; ++i)
    points.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("t", Instant{static_cast<int64_t>(60'000 + i)}).Append("v", text);
    }));
  for (const BsonDocument& point : points) views.emplace_back(point);
  const BsonDocument bucket = BuildBson([&](BsonBuilder& b) {
    REQUIRE(AppendBucketDocument(b, views, {"t", ""}, std::string(12, 'b'), BsonValue(),
                                 Instant{60'000}, BucketForm::kColumns));
  });
  REQUIRE(bucket.view().size() < 5 * kText);
  const std::string unpack =
      R"({"coll": "system.buckets.s", "from": "system.buckets.s", "as": "p", "pipeline": [)"
      R"({"$_internalUnpackBucket": {"timeField": "t"}}]})";
  const auto only = [&](std::initializer_list<std::string_view> names) {
    const BsonDocument all = Json(unpack);
    return ToRelaxedJson(BuildBson([&](BsonBuilder& b) {
      for (const BsonElement& e : all.view())
        if (std::find(names.begin(), names.end(), e.name) != names.end()) b.Append(e);
    }));
  };
  for (const std::string& stages :
       {R"([{"$unionWith": )" + only({"coll", "pipeline"}) + "}]",
        R"([{"$lookup": )" + only({"from", "as", "pipeline"}) + R"(}, {"$unwind": "$p"}])"}) {
    INFO(stages);
    Runner r;
    r.env.Insert("c", R"([{"_id": 1}])");
    r.env.collections["system.buckets.s"].push_back(bucket);
    auto opened = r.Open(stages);
    if (!opened) FAIL(opened.error().message);
    // Some 64 points are unpacked together then.
    for (size_t i = 0; i < kPoints / 2; ++i) {
      StreamDocument doc;
      const Result<StreamState> state = opened.value()->Next(&doc);
      REQUIRE(state);
      REQUIRE(state.value() == StreamState::kAdvanced);
    }
    large_memory::Kept kept;
    opened.value()->AddKept(&kept);
    // $lookup itself keeps a megabyte or two for the next document with the same values.
    CHECK(kept.bytes > 50 * kText);
  }
}

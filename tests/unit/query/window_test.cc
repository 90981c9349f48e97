#include "tests/unit/query/pipeline_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {

struct WindowCase {
  const char* name;
  const char* documents;
  const char* stages;
  const char* expected;
};

constexpr char kSales[] =
    R"([{"_id": 0, "k": "a", "t": 1, "q": 10}, {"_id": 1, "k": "b", "t": 2, "q": 5},
        {"_id": 2, "k": "a", "t": 3, "q": 20}, {"_id": 3, "k": "a", "t": 3, "q": 1},
        {"_id": 4, "k": "b", "t": 9, "q": 7}])";

void Check(const std::vector<WindowCase>& cases, bool spill) {
  for (const WindowCase& c : cases) {
    INFO(c.name);
    Runner r;
    r.env.Insert("c", c.documents);
    if (spill) r.options.memory_limit = 4096;
    CHECK(r.Run(c.stages) == Lines(c.expected));
  }
}

}  // namespace

TEST_CASE("Window functions see the documents of their window", "[pipeline][window]") {
  const std::vector<WindowCase> cases = {
      {"the whole partition", kSales,
       R"([{"$setWindowFields": {"partitionBy": "$k", "output": {"s": {"$sum": "$q"}}}}, {"$project": {"s": 1}}])",
       R"([{"_id": 0, "s": 31}, {"_id": 2, "s": 31}, {"_id": 3, "s": 31}, {"_id": 1, "s": 12}, {"_id": 4, "s": 12}])"},
      {"everything, when there is no partition and no order", kSales,
       R"([{"$setWindowFields": {"output": {"n": {"$count": {}}}}}, {"$project": {"n": 1}}])",
       R"([{"_id": 0, "n": 5}, {"_id": 1, "n": 5}, {"_id": 2, "n": 5}, {"_id": 3, "n": 5}, {"_id": 4, "n": 5}])"},
      {"so far", kSales,
       R"([{"$setWindowFields": {"partitionBy": "$k", "sortBy": {"t": 1}, "output": {
            "s": {"$sum": "$q", "window": {"documents": ["unbounded", "current"]}},
            "p": {"$push": "$q", "window": {"documents": ["unbounded", "current"]}}}}},
           {"$project": {"s": 1, "p": 1}}])",
       R"([{"_id": 0, "s": 10, "p": [10]}, {"_id": 2, "s": 30, "p": [10, 20]}, {"_id": 3, "s": 31, "p": [10, 20, 1]}, {"_id": 1, "s": 5, "p": [5]}, {"_id": 4, "s": 12, "p": [5, 7]}])"},
      {"neighbours, and none of them at an end", kSales,
       R"([{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {
            "max": {"$max": "$q", "window": {"documents": [-1, 1]}},
            "next": {"$min": "$q", "window": {"documents": [1, 2]}},
            "none": {"$sum": "$q", "window": {"documents": [1, "unbounded"]}}}}},
           {"$project": {"max": 1, "next": 1, "none": 1}}])",
       R"([{"_id": 0, "max": 10, "next": 5, "none": 33}, {"_id": 1, "max": 20, "next": 1, "none": 28}, {"_id": 2, "max": 20, "next": 1, "none": 8}, {"_id": 3, "max": 20, "next": 7, "none": 7}, {"_id": 4, "max": 7, "next": null, "none": 0}])"},
      {"a range of numbers has all that are equal", kSales,
       R"([{"$setWindowFields": {"sortBy": {"t": 1}, "output": {"s": {"$sum": "$q", "window": {"range": [-1, 0]}}, "r": {"$sum": "$q", "window": {"range": ["current", "unbounded"]}}}}},
           {"$project": {"s": 1, "r": 1}}])",
       R"([{"_id": 0, "s": 10, "r": 43}, {"_id": 1, "s": 15, "r": 33}, {"_id": 2, "s": 26, "r": 28}, {"_id": 3, "s": 26, "r": 28}, {"_id": 4, "s": 7, "r": 7}])"},
      {"a range of dates",
       R"([{"_id": 1, "d": {"$date": "2024-01-31T00:00:00Z"}}, {"_id": 2, "d": {"$date": "2024-02-29T00:00:00Z"}}, {"_id": 3, "d": {"$date": "2024-04-01T00:00:00Z"}}])",
       R"([{"$setWindowFields": {"sortBy": {"d": 1}, "output": {"n": {"$count": {}, "window": {"range": [-1, 0], "unit": "month"}}}}}, {"$project": {"n": 1}}])",
       R"([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}, {"_id": 3, "n": 1}])"},
      {"a range of dates, in days",
       R"([{"_id": 1, "d": {"$date": "2024-01-31T00:00:00Z"}}, {"_id": 2, "d": {"$date": "2024-02-01T12:00:00Z"}}, {"_id": 3, "d": {"$date": "2024-02-02T00:00:00Z"}}])",
       R"([{"$setWindowFields": {"sortBy": {"d": 1}, "output": {"n": {"$count": {}, "window": {"range": [-2, -1], "unit": "day"}}}}}, {"$project": {"n": 1}}])",
       R"([{"_id": 1, "n": 0}, {"_id": 2, "n": 1}, {"_id": 3, "n": 1}])"},
      {"top, firstN, median and percentile", kSales,
       R"([{"$setWindowFields": {"partitionBy": "$k", "sortBy": {"_id": 1}, "output": {
            "best": {"$top": {"sortBy": {"q": -1}, "output": "$_id"}, "window": {"documents": ["unbounded", "current"]}},
            "two": {"$firstN": {"input": "$q", "n": 2}},
            "mid": {"$median": {"input": "$q", "method": "approximate"}, "window": {"documents": [-1, 0]}},
            "p": {"$percentile": {"input": "$q", "p": [0.9], "method": "approximate"}}}}},
           {"$project": {"best": 1, "two": 1, "mid": 1, "p": 1}}])",
       R"([{"_id": 0, "best": 0, "two": [10, 20], "mid": 10.0, "p": [20.0]}, {"_id": 2, "best": 2, "two": [10, 20], "mid": 10.0, "p": [20.0]}, {"_id": 3, "best": 2, "two": [10, 20], "mid": 1.0, "p": [20.0]}, {"_id": 1, "best": 1, "two": [5, 7], "mid": 5.0, "p": [7.0]}, {"_id": 4, "best": 4, "two": [5, 7], "mid": 5.0, "p": [7.0]}])"},
      {"ranks", kSales,
       R"([{"$setWindowFields": {"sortBy": {"t": -1}, "output": {"r": {"$rank": {}}, "d": {"$denseRank": {}}, "n": {"$documentNumber": {}}}}},
           {"$project": {"r": 1, "d": 1, "n": 1}}])",
       R"([{"_id": 4, "r": 1, "d": 1, "n": 1}, {"_id": 2, "r": 2, "d": 2, "n": 2}, {"_id": 3, "r": 2, "d": 2, "n": 3}, {"_id": 1, "r": 4, "d": 3, "n": 4}, {"_id": 0, "r": 5, "d": 4, "n": 5}])"},
      {"shift", kSales,
       R"([{"$setWindowFields": {"partitionBy": "$k", "sortBy": {"_id": 1}, "output": {"before": {"$shift": {"output": "$q", "by": -1}}, "after": {"$shift": {"output": "$q", "by": 1, "default": "end"}}}}},
           {"$project": {"before": 1, "after": 1}}])",
       R"([{"_id": 0, "before": null, "after": 20}, {"_id": 2, "before": 10, "after": 1}, {"_id": 3, "before": 20, "after": "end"}, {"_id": 1, "before": null, "after": 7}, {"_id": 4, "before": 5, "after": "end"}])"},
      {"exponential moving average",
       R"([{"_id": 1, "x": 8}, {"_id": 2, "x": 4}, {"_id": 3, "x": "no"}, {"_id": 4, "x": 10}])",
       R"([{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"n": {"$expMovingAvg": {"input": "$x", "N": 3}}, "a": {"$expMovingAvg": {"input": "$x", "alpha": 0.25}}}}}, {"$project": {"n": 1, "a": 1}}])",
       R"([{"_id": 1, "n": 8.0, "a": 8.0}, {"_id": 2, "n": 6.0, "a": 7.0}, {"_id": 3, "n": 6.0, "a": 7.0}, {"_id": 4, "n": 8.0, "a": 7.75}])"},
      {"derivative and integral over time",
       R"([{"_id": 1, "d": {"$date": "2024-01-01T00:00:00Z"}, "km": 0}, {"_id": 2, "d": {"$date": "2024-01-01T00:30:00Z"}, "km": 30}, {"_id": 3, "d": {"$date": "2024-01-01T02:00:00Z"}, "km": 60}])",
       R"([{"$setWindowFields": {"sortBy": {"d": 1}, "output": {
            "speed": {"$derivative": {"input": "$km", "unit": "hour"}, "window": {"documents": [-1, 0]}},
            "area": {"$integral": {"input": "$km", "unit": "hour"}, "window": {"documents": ["unbounded", "current"]}}}}},
           {"$project": {"speed": 1, "area": 1}}])",
       R"([{"_id": 1, "speed": null, "area": 0.0}, {"_id": 2, "speed": 60.0, "area": 7.5}, {"_id": 3, "speed": 20.0, "area": 75.0}])"},
      {"covariance",
       R"([{"_id": 1, "x": 1, "y": 2}, {"_id": 2, "x": 2, "y": 4}, {"_id": 3, "x": 3, "y": 9}])",
       R"([{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"p": {"$covariancePop": ["$x", "$y"], "window": {"documents": ["unbounded", "current"]}}, "s": {"$covarianceSamp": ["$x", "$y"], "window": {"documents": [-1, "current"]}}}}},
           {"$project": {"p": 1, "s": 1}}])",
       R"([{"_id": 1, "p": 0.0, "s": null}, {"_id": 2, "p": 0.5, "s": 1.0}, {"_id": 3, "p": 2.3333333333333335, "s": 2.5}])"},
      {"nested output beside what is there", R"([{"_id": 1, "a": {"x": 1}}])",
       R"([{"$setWindowFields": {"output": {"a.n": {"$count": {}}, "b.c": {"$sum": "$a.x"}}}}])",
       R"([{"_id": 1, "a": {"x": 1, "n": 1}, "b": {"c": 1}}])"},
      {"missing and null are one partition",
       R"([{"_id": 1}, {"_id": 2, "k": null}, {"_id": 3, "k": 0}])",
       R"([{"$setWindowFields": {"partitionBy": "$k", "output": {"n": {"$count": {}}}}}, {"$project": {"n": 1}}])",
       R"([{"_id": 1, "n": 2}, {"_id": 2, "n": 2}, {"_id": 3, "n": 1}])"},
      {"of nothing", "[]", R"([{"$setWindowFields": {"output": {"n": {"$count": {}}}}}])", "[]"},
  };
  Check(cases, false);
  Check(cases, true);
}

TEST_CASE("$fill fills what is null or missing", "[pipeline][window]") {
  const std::vector<WindowCase> cases = {
      {"with a value", R"([{"_id": 1, "a": 5}, {"_id": 2}, {"_id": 3, "a": null}])",
       R"([{"$fill": {"output": {"a": {"value": {"$add": ["$_id", 10]}}}}}])",
       R"([{"_id": 1, "a": 5}, {"_id": 2, "a": 12}, {"_id": 3, "a": 13}])"},
      {"with the last one",
       R"([{"_id": 1}, {"_id": 2, "a": 7}, {"_id": 3, "a": null}, {"_id": 4}])",
       R"([{"$fill": {"sortBy": {"_id": 1}, "output": {"a": {"method": "locf"}}}}])",
       R"([{"_id": 1, "a": null}, {"_id": 2, "a": 7}, {"_id": 3, "a": 7}, {"_id": 4, "a": 7}])"},
      {"on a line",
       R"([{"_id": 1, "t": 0, "a": 10}, {"_id": 2, "t": 1}, {"_id": 3, "t": 4, "a": 50}, {"_id": 4, "t": 5}])",
       R"([{"$fill": {"sortBy": {"t": 1}, "output": {"a": {"method": "linear"}}}}, {"$unset": "t"}])",
       R"([{"_id": 1, "a": 10}, {"_id": 2, "a": 20.0}, {"_id": 3, "a": 50}, {"_id": 4, "a": null}])"},
      {"in each partition",
       R"([{"_id": 1, "k": "x", "a": 1}, {"_id": 2, "k": "y"}, {"_id": 3, "k": "x"}])",
       R"([{"$fill": {"partitionByFields": ["k"], "sortBy": {"_id": 1}, "output": {"a": {"method": "locf"}, "b": {"value": "none"}}}}, {"$unset": "k"}])",
       R"([{"_id": 1, "a": 1, "b": "none"}, {"_id": 3, "a": 1, "b": "none"}, {"_id": 2, "a": null, "b": "none"}])"},
  };
  Check(cases, false);
}

TEST_CASE("$densify adds what is missing in a sequence", "[pipeline][window]") {
  const std::vector<WindowCase> cases = {
      {"over all", R"([{"_id": 1, "v": 1}, {"_id": 2, "v": 4}, {"_id": 3, "v": 4}, {"_id": 4}])",
       R"([{"$densify": {"field": "v", "range": {"step": 1, "bounds": "full"}}}])",
       R"([{"_id": 4}, {"_id": 1, "v": 1}, {"v": 2}, {"v": 3}, {"_id": 2, "v": 4}, {"_id": 3, "v": 4}])"},
      {"between what is off the steps",
       R"([{"_id": 1, "v": 0}, {"_id": 2, "v": 2.5}, {"_id": 3, "v": 4}])",
       R"([{"$densify": {"field": "v", "range": {"step": 2, "bounds": "full"}}}])",
       R"([{"_id": 1, "v": 0}, {"v": 2}, {"_id": 2, "v": 2.5}, {"_id": 3, "v": 4}])"},
      {"in each partition, over the whole range",
       R"([{"_id": 1, "k": "a", "v": 1}, {"_id": 2, "k": "a", "v": 2}, {"_id": 3, "k": "b", "v": 3}])",
       R"([{"$densify": {"field": "v", "partitionByFields": ["k"], "range": {"step": 1, "bounds": "full"}}}])",
       R"([{"_id": 1, "k": "a", "v": 1}, {"_id": 2, "k": "a", "v": 2}, {"k": "a", "v": 3}, {"k": "b", "v": 1}, {"k": "b", "v": 2}, {"_id": 3, "k": "b", "v": 3}])"},
      {"in each partition, over its own range",
       R"([{"_id": 1, "k": {"x": "a"}, "v": 1}, {"_id": 2, "k": {"x": "a"}, "v": 3}, {"_id": 3, "k": {"x": "b"}, "v": 9}])",
       R"([{"$densify": {"field": "v", "partitionByFields": ["k.x"], "range": {"step": 1, "bounds": "partition"}}}])",
       R"([{"_id": 1, "k": {"x": "a"}, "v": 1}, {"k": {"x": "a"}, "v": 2}, {"_id": 2, "k": {"x": "a"}, "v": 3}, {"_id": 3, "k": {"x": "b"}, "v": 9}])"},
      {"between given bounds, the upper one left out",
       R"([{"_id": 1, "v": 0}, {"_id": 2, "v": 3}, {"_id": 3, "v": 9}])",
       R"([{"$densify": {"field": "v", "range": {"step": 1, "bounds": [2, 5]}}}])",
       R"([{"_id": 1, "v": 0}, {"v": 2}, {"_id": 2, "v": 3}, {"v": 4}, {"_id": 3, "v": 9}])"},
      {"dates",
       R"([{"_id": 1, "d": {"$date": "2024-01-31T00:00:00Z"}}, {"_id": 2, "d": {"$date": "2024-04-30T00:00:00Z"}}])",
       R"([{"$densify": {"field": "d", "range": {"step": 1, "unit": "month", "bounds": "full"}}}])",
       R"([{"_id": 1, "d": {"$date": "2024-01-31T00:00:00Z"}}, {"d": {"$date": "2024-02-29T00:00:00Z"}}, {"d": {"$date": "2024-03-31T00:00:00Z"}}, {"_id": 2, "d": {"$date": "2024-04-30T00:00:00Z"}}])"},
  };
  Check(cases, false);
  Check(cases, true);
}

TEST_CASE("A partition that does not fit in memory is refused", "[pipeline][window]") {
  Runner r;
  std::string documents = "[";
  for (int i = 0; i < 200; ++i)
    documents += std::string(i ? "," : "") + "{\"_id\": " + std::to_string(i) +
                 ", \"k\": " + std::to_string(i / 10) + ", \"s\": \"" + std::string(100, 'x') +
                 "\"}";
  r.env.Insert("c", documents + "]");
  r.options.memory_limit = 8000;
  CHECK(r.Run(R"([{"$setWindowFields": {"partitionBy": "$k", "output": {"n": {"$count": {}}}}},
                 {"$match": {"n": 10}}, {"$count": "all"}])") == Lines(R"([{"all": 200}])"));
  CHECK(r.Run(R"([{"$setWindowFields": {"output": {"n": {"$count": {}}}}}])") == "error 146");
}

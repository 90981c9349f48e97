#include "query/pipeline/bucket_test.h"

#include <rapidcheck.h>

#include "protocol/extended_json.h"
#include "query/pipeline/bucket_filter.h"
#include "tests/unit/query/query_test_util.h"
#include "tests/unit/timeseries/random_points.h"
#include "timeseries/bucket_control.h"

using namespace mayfly;

namespace {

const SeriesFields kFields{"t", "m"};
const std::string kId = "\x70\xdb\xd8\x80" + std::string(8, 'a');

BsonDocument BucketOf(const std::vector<BsonDocument>& points, BsonValue meta, Instant floor,
                      BucketForm form = BucketForm::kRows) {
  const std::vector<BsonView> views(points.begin(), points.end());
  return BuildBson([&](BsonBuilder& b) {
    REQUIRE(AppendBucketDocument(b, views, kFields, kId, meta, floor, form).has_value());
  });
}

/// The verdict on these points, which are of 1970 from second 100 on, and have the meta value 1.
BucketVerdict Verdict(const std::vector<const char*>& points, const char* filter) {
  std::vector<BsonDocument> docs;
  for (const char* p : points) docs.push_back(Json(p));
  const BsonDocument meta = Json(R"({"m": 1})");
  const BsonDocument bucket = BucketOf(docs, meta.view()["m"], Instant{100'000});
  const auto match = ParseMatch(Json(filter));
  REQUIRE(match.has_value());
  return TestBucket(*match.value(), bucket, kFields, nullptr).value();
}

std::string Filter(const char* filter, int64_t span = 60, bool extended = false,
                   std::vector<std::string> indexed = {}) {
  const BsonDocument f = Json(filter);
  const auto of_buckets = FilterOfBuckets(f, {kFields, span, extended, std::move(indexed)});
  if (!of_buckets) return "nothing";
  std::string text = ToRelaxedJson(of_buckets->filter);
  std::erase(text, ' ');
  return (of_buckets->exact ? "exact " : "") + text;
}

}  // namespace

TEST_CASE("What control tells of a filter on measurements", "[bucket]") {
  using enum BucketVerdict;
  const std::vector<const char*> numbers = {
      R"({"t": {"$date": {"$numberLong": "100000"}}, "v": 1, "d": {"x": 5}})",
      R"({"t": {"$date": {"$numberLong": "101000"}}, "v": 3.5})"};
  CHECK(Verdict(numbers, R"({"v": 0})") == kNone);
  CHECK(Verdict(numbers, R"({"v": 2})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$gt": 3.5}})") == kNone);
  CHECK(Verdict(numbers, R"({"v": {"$gte": 3.5}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$lt": 1}})") == kNone);
  CHECK(Verdict(numbers, R"({"v": {"$lte": 1}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": "a"})") == kNone);
  CHECK(Verdict(numbers, R"({"v": null})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$ne": 0}})") == kAll);
  CHECK(Verdict(numbers, R"({"v": {"$ne": 1}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, 9, "a"]}})") == kNone);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, 3.5]}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, 2, 9]}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0.5, 3.75]}})") == kNone);
  CHECK(Verdict(numbers, R"({"v": {"$in": []}})") == kNone);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, {"$numberDouble": "NaN"}]}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, {"x": 1}]}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$in": [9, [1], [2], {"$maxKey": 1}]}})") == kSome);
  CHECK(Verdict(numbers, R"({"w": {"$in": [1, 2, "a"]}})") == kNone);
  CHECK(Verdict(numbers, R"({"w": {"$in": [1, null]}})") == kSome);
  CHECK(Verdict(numbers, R"({"d": {"$in": [1, 2]}})") == kSome);
  CHECK(Verdict(numbers, R"({"t": {"$in": [1, null, "a"]}})") == kNone);
  CHECK(Verdict({R"({"t": {"$date": {"$numberLong": "100000"}}})"},
                R"({"t": {"$in": [1, {"$date": {"$numberLong": "100000"}}]}})") == kAll);
  CHECK(Verdict(numbers, R"({"v": {"$nin": [0, 9]}})") == kAll);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, null]}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$in": [0, {"$regularExpression":
                                              {"pattern": "a", "options": ""}}]}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$lt": {"$minKey": 1}}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$gte": {"$numberDouble": "NaN"}}})") == kSome);
  CHECK(Verdict(numbers, R"({"v": {"$exists": true}})") == kSome);
  CHECK(Verdict(numbers, R"({"w": {"$exists": true}})") == kNone);
  CHECK(Verdict(numbers, R"({"w": {"$exists": false}})") == kAll);
  CHECK(Verdict(numbers, R"({"w": 1})") == kNone);
  CHECK(Verdict(numbers, R"({"w": null})") == kSome);
  CHECK(Verdict(numbers, R"({"w": {"$type": "int"}})") == kNone);
  CHECK(Verdict(numbers, R"({"d.x": 6})") == kNone);
  CHECK(Verdict(numbers, R"({"d.x": 5})") == kSome);
  CHECK(Verdict(numbers, R"({"d.y": 5})") == kNone);
  CHECK(Verdict(numbers, R"({"d": 5})") == kSome);  // documents may be anything
  CHECK(Verdict(numbers, R"({"v.x": 5})") == kNone);
  CHECK(Verdict(numbers, R"({"$or": [{"v": 0}, {"w": 1}]})") == kNone);
  CHECK(Verdict(numbers, R"({"$nor": [{"v": 0}, {"w": 1}]})") == kAll);
  CHECK(Verdict(numbers, R"({"$or": [{"v": 0}, {"d.x": 5}]})") == kSome);
  CHECK(Verdict(numbers, R"({"v": 2, "w": 1})") == kNone);
}

TEST_CASE("Values of several classes, arrays and documents exclude nothing", "[bucket]") {
  using enum BucketVerdict;
  const std::vector<const char*> mixed = {
      R"({"t": {"$date": {"$numberLong": "100000"}}, "v": 1, "a": [1], "n": null, "d": {"x": 1}, "e": {"x": 1}})",
      R"({"t": {"$date": {"$numberLong": "101000"}}, "v": "a", "a": [2], "n": null, "d": 1, "e": {"x": "a"}})"};
  for (const char* filter :
       {R"({"v": 7})", R"({"v": true})", R"({"a": 7})", R"({"a": [7]})", R"({"n": 7})",
        R"({"d.x": 7})", R"({"e.x": 7})", R"({"a.0": 7})", R"({"v": {"$ne": 1}})"})
    CHECK(Verdict(mixed, filter) == kSome);
}

TEST_CASE("What control and meta tell of times and of the meta field", "[bucket]") {
  using enum BucketVerdict;
  const std::vector<const char*> points = {R"({"t": {"$date": {"$numberLong": "110000"}}})",
                                           R"({"t": {"$date": {"$numberLong": "120000"}}})"};
  CHECK(Verdict(points, R"({"t": {"$gte": {"$date": {"$numberLong": "100000"}}}})") == kAll);
  CHECK(Verdict(points, R"({"t": {"$gte": {"$date": {"$numberLong": "110000"}}}})") ==
        kSome);  // the floor is below
  CHECK(Verdict(points, R"({"t": {"$lte": {"$date": {"$numberLong": "120000"}}}})") == kAll);
  CHECK(Verdict(points, R"({"t": {"$lt": {"$date": {"$numberLong": "120000"}}}})") == kSome);
  CHECK(Verdict(points, R"({"t": {"$lt": {"$date": {"$numberLong": "100000"}}}})") == kNone);
  CHECK(Verdict(points, R"({"t": {"$gt": {"$date": {"$numberLong": "120000"}}}})") == kNone);
  CHECK(Verdict(points, R"({"t": 5})") == kNone);
  CHECK(Verdict(points, R"({"t": null})") == kNone);
  CHECK(Verdict(points, R"({"t": {"$exists": true}})") == kAll);
  CHECK(Verdict(points, R"({"m": 1})") == kAll);
  CHECK(Verdict(points, R"({"m": 2})") == kNone);
  CHECK(Verdict(points, R"({"m.x": {"$exists": false}})") == kAll);
  CHECK(Verdict(points, R"({"m": 1, "v": {"$exists": false}})") == kAll);
  CHECK(Verdict(points, R"({"$or": [{"m": 1}, {"v": 5}]})") == kAll);
}

TEST_CASE("Verdicts are those of the filter on the points", "[bucket]") {
  // How often something was decided, so that a test that decides nothing does not pass.
  int decided = 0, asked = 0;
  CHECK(rc::check("a verdict agrees with every point", [&] {
    RandomPoints random(*rc::gen::arbitrary<uint64_t>());
    const size_t n = 1 + random.Below(4);
    std::vector<BsonDocument> points;
    for (size_t i = 0; i < n; ++i) {
      BsonDocument point = random.Point(static_cast<int64_t>(i) + 5);
      // A bucket has one meta value.
      if (i == 0 || point.view()["m"].BinaryEquals(points[0].view()["m"]))
        points.push_back(std::move(point));
    }
    const BsonDocument bucket =
        BucketOf(points, points[0].view()["m"], Instant{0},
                 random.Below(2) == 0 ? BucketForm::kRows : BucketForm::kColumns);
    std::string bytes;
    std::vector<size_t> ends;
    large_memory::Hold hold;
    RC_ASSERT(PointsOfBucketDocument(bucket, kFields, bytes, ends, hold).has_value());
    const BsonDocument other = random.Point(static_cast<int64_t>(random.Below(10)));
    for (const BsonElement& e : other.view()) {
      const char* ops[] = {"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"};
      const size_t op = random.Below(8);
      const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
        auto of = b.OpenDocument(std::string(e.name));
        if (op < 6) {
          of.Append(ops[op], e.value);
          return;
        }
        auto list = of.OpenArray(op == 6 ? "$in" : "$nin");
        for (const BsonElement& any : other.view()) list.Append(any.value);
      });
      const auto match = ParseMatch(filter);
      if (!match) continue;  // $ne of a pattern and the like
      ++asked;
      const BucketVerdict verdict = TestBucket(*match.value(), bucket, kFields, nullptr).value();
      if (verdict == BucketVerdict::kSome) continue;
      ++decided;
      size_t begin = 0;
      for (const size_t end : ends) {
        const BsonView point(bytes.data() + begin);
        begin = end;
        if (match.value()->Matches(point).value() != (verdict == BucketVerdict::kAll))
          RC_FAIL(ToRelaxedJson(filter) + " on " + ToRelaxedJson(BsonDocument(point)));
      }
    }
  }));
  CHECK(decided * 10 > asked);
}

TEST_CASE("Filters on points as filters on buckets", "[bucket]") {
  CHECK(Filter(R"({"m": 1})") == R"(exact {"meta":1})");
  CHECK(Filter(R"({"m.x": {"$in": [1, 2]}, "$comment": "c"})") ==
        R"(exact {"meta.x":{"$in":[1,2]}})");
  CHECK(Filter(R"({"$nor": [{"m": 1}, {"m.x": 2}]})") ==
        R"(exact {"$nor":[{"meta":1},{"meta.x":2}]})");
  CHECK(Filter(R"({"v": 1})") == "nothing");
  CHECK(Filter(R"({"mx": 1})") == "nothing");
  CHECK(Filter(R"({"$or": [{"m": 1}, {"v": 1}]})") == "nothing");
  CHECK(Filter(R"({"$or": [{"m": 1, "v": 1}, {"m": 2}]})") == R"({"$or":[{"meta":1},{"meta":2}]})");
  CHECK(Filter(R"({"$and": [{"m": 1}, {"v": 1}]})") == R"({"meta":1})");
  CHECK(Filter(R"({"$expr": {"$eq": ["$m.x", 1]}})") == R"({"$expr":{"$eq":["$meta.x",1]}})");
  CHECK(Filter(R"({"$expr": {"$eq": ["$m.x", "$v"]}})") == "nothing");
  CHECK(Filter(R"({"t": {"$gt": {"$date": {"$numberLong": "100000"}}}})", 60, true) ==
        R"({"$and":[{"control.max.t":{"$gt":{"$date":"1970-01-01T00:01:40Z"}}},)"
        R"({"control.min.t":{"$gt":{"$date":"1970-01-01T00:00:40Z"}}}]})");
  CHECK(Filter(R"({"t": {"$lte": {"$date": {"$numberLong": "100000"}}}})") ==
        R"({"$and":[{"control.min.t":{"$lte":{"$date":"1970-01-01T00:01:40Z"}}},)"
        R"({"_id":{"$lte":{"$oid":"00000064ffffffffffffffff"}}}]})");
  CHECK(Filter(R"({"t": {"$not": {"$lte": {"$date": {"$numberLong": "100000"}}}}})") == "nothing");
}

TEST_CASE("Comparisons of indexed measurements as bounds of buckets", "[bucket]") {
  const auto indexed = [](const char* filter) { return Filter(filter, 60, false, {"v", "w"}); };
  // The greatest value of a bucket with numbers and arrays is an array, so above the bound.
  CHECK(indexed(R"({"v": {"$gt": 5}})") ==
        R"({"$and":[{"control.min.v":{"$exists":true}},)"
        R"({"$expr":{"$gt":["$control.max.v",{"$literal":5}]}}]})");
  CHECK(indexed(R"({"v": {"$lt": true}})") ==
        R"({"$and":[{"control.min.v":{"$exists":true}},)"
        R"({"$expr":{"$lt":["$control.min.v",{"$literal":true}]}}]})");
  // Its least value may be one, too, which is above, though 4 is in it.
  CHECK(indexed(R"({"v": {"$lt": 5}})") ==
        R"({"$and":[{"control.min.v":{"$exists":true}},)"
        R"({"$expr":{"$or":[{"$lt":["$control.min.v",{"$literal":5}]},)"
        R"({"$and":[{"$gte":["$control.max.v",{"$literal":{}}]},{"$lt":["$control.min.v",)"
        R"({"$literal":{"$binary":{"base64":"","subType":"00"}}}]}]}]}}]})");
  CHECK(indexed(R"({"v": {"$gte": 1, "$gt": 3, "$in": [2, "a"]}, "m": 1})") ==
        R"({"$and":[{"control.min.v":{"$exists":true}},)"
        R"({"$expr":{"$gt":["$control.max.v",{"$literal":3}]}},)"
        R"({"$expr":{"$or":[{"$lte":["$control.min.v",{"$literal":"a"}]},)"
        R"({"$and":[{"$gte":["$control.max.v",{"$literal":{}}]},{"$lt":["$control.min.v",)"
        R"({"$literal":{"$binary":{"base64":"","subType":"00"}}}]}]}]}},{"meta":1}]})");
  for (const char* filter :
       {R"({"v": null})", R"({"v": {"$ne": 5}})", R"({"v": {"$in": [1, null]}})",
        R"({"v": {"$not": {"$gt": 5}}})", R"({"v.x": 5})", R"({"v": [1]})", R"({"v": {"a": 1}})",
        R"({"v": {"$gt": {"$minKey": 1}}})", R"({"x": 5})", R"({"$or": [{"v": 5}, {"x": 1}]})"})
    CHECK(indexed(filter) == "nothing");
  // A very long filter does not become one that is several times as long.
  std::string many = R"({"$and": [{"v": 1})";
  for (int i = 0; i < 1000; ++i) many += R"(, {"v": 1})";
  CHECK(indexed((many + "]}").c_str()).size() < 100'000);
}

TEST_CASE("A bucket with a match passes the bounds of an indexed field", "[bucket]") {
  int excluded = 0, asked = 0;
  CHECK(rc::check("no bucket with a match is left out", [&] {
    RandomPoints random(*rc::gen::arbitrary<uint64_t>());
    const size_t n = 1 + random.Below(4);
    std::vector<BsonDocument> points;
    for (size_t i = 0; i < n; ++i) {
      BsonDocument point = random.Point(static_cast<int64_t>(i) + 5);
      if (i == 0 || point.view()["m"].BinaryEquals(points[0].view()["m"]))
        points.push_back(std::move(point));
    }
    const BsonDocument bucket = BucketOf(points, points[0].view()["m"], Instant{0});
    const SeriesShape shape{kFields, 60, false, {"a", "b", "c", "d", "e"}};
    const BsonDocument other = random.Point(static_cast<int64_t>(random.Below(10)));
    for (const BsonElement& e : other.view()) {
      if (e.name == "m" || e.name == "t" || e.name == "_id") continue;
      const char* ops[] = {"$eq", "$gt", "$gte", "$lt", "$lte"};
      const size_t op = random.Below(6);
      const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
        auto of = b.OpenDocument(std::string(e.name));
        if (op < 5) {
          of.Append(ops[op], e.value);
          return;
        }
        auto list = of.OpenArray("$in");
        list.Append(e.value);
        list.Append(5);
      });
      const auto match = ParseMatch(filter);
      const auto of_buckets = FilterOfBuckets(filter, shape);
      if (!match || !of_buckets) continue;
      ++asked;
      VariableScope scope;
      const auto match_buckets = ParseMatch(of_buckets->filter, {.scope = &scope});
      RC_ASSERT(match_buckets.has_value());
      EvalContext eval;
      eval.variables.resize(static_cast<size_t>(scope.slots()));
      if (match_buckets.value()->Matches(bucket, &eval).value()) continue;
      ++excluded;
      for (const BsonDocument& point : points)
        if (match.value()->Matches(point).value())
          RC_FAIL(ToRelaxedJson(filter) + " on " + ToRelaxedJson(point));
    }
  }));
  CHECK(excluded * 20 > asked);
}

#include "timeseries/header_match.h"

#include <rapidcheck.h>

#include "protocol/extended_json.h"
#include "query/match/match_expression.h"
#include "tests/unit/query/query_test_util.h"
#include "tests/unit/timeseries/random_points.h"
#include "timeseries/bucket_codec.h"

using namespace mayfly;

namespace {

const SeriesFields kMatchFields{"t", "m"};

struct Condition {
  HeaderCondition condition;
  const char* op;
};
constexpr Condition kConditions[] = {
    {HeaderCondition::kEq, "$eq"},         {HeaderCondition::kNe, "$ne"},
    {HeaderCondition::kGt, "$gt"},         {HeaderCondition::kGte, "$gte"},
    {HeaderCondition::kLt, "$lt"},         {HeaderCondition::kLte, "$lte"},
    {HeaderCondition::kIn, "$in"},         {HeaderCondition::kNin, "$nin"},
    {HeaderCondition::kExists, "$exists"}, {HeaderCondition::kNotExists, "$exists"}};

BucketHeader HeaderOf(const std::vector<BsonDocument>& points) {
  const std::vector<BsonView> views(points.begin(), points.end());
  auto bucket = SealBucket(views, kMatchFields, {}, Instant{0});
  REQUIRE(bucket.has_value());
  auto header = BucketHeader::Decode(bucket.value().header);
  REQUIRE(header.has_value());
  return header.value();
}

bool May(const std::vector<const char*>& points, const char* path, HeaderCondition c,
         const char* operand, bool collated = false) {
  std::vector<BsonDocument> docs;
  for (const char* p : points) docs.push_back(Json(p));
  const BsonDocument o = Json(operand);
  return MayMatch(HeaderOf(docs), kMatchFields, path, c, o.view()["v"], collated);
}

}  // namespace

TEST_CASE("Headers never exclude what the filter finds", "[bucket]") {
  // How often something was excluded, so that a header that decides nothing does not pass.
  int excluded = 0, asked = 0;
  CHECK(rc::check("pruning agrees with the filter", [&] {
    RandomPoints random(*rc::gen::arbitrary<uint64_t>());
    // Buckets of few points, and of few kinds of values, so that some can be excluded.
    const size_t n = 1 + random.Below(4);
    const uint64_t kind = random.Below(21), other = random.OneIn(3) ? random.Below(21) : kind;
    std::vector<BsonDocument> points;
    for (size_t i = 0; i < n; ++i)
      points.push_back(BuildBson([&](BsonBuilder& b) {
        b.Append("t", Instant{static_cast<int64_t>(i)});
        if (!random.OneIn(5)) random.Any(b, "a", random.OneIn(2) ? kind : other, 2);
        if (random.OneIn(4)) random.Any(b, "a", kind, 1);
      }));
    const BucketHeader header = HeaderOf(points);
    for (int round = 0; round < 10; ++round) {
      const Condition c = kConditions[random.Below(std::size(kConditions))];
      const char* paths[] = {"a", "a", "a.x", "a.x.y", "a.0", "zz", "t"};
      const char* path = paths[random.Below(std::size(paths))];
      BsonDocument operand = BuildBson([&](BsonBuilder& b) {
        const uint64_t like = random.OneIn(2) ? kind : random.Below(21);
        if (c.condition == HeaderCondition::kIn || c.condition == HeaderCondition::kNin) {
          auto list = b.OpenArray("v");
          for (int i = 0; i < 2; ++i) random.Any(list.raw(), list.NextName(), like, 1);
        } else if (std::string_view(c.op) == "$exists") {
          b.Append("v", c.condition == HeaderCondition::kExists);
        } else {
          random.Any(b, "v", like, 1);
        }
      });
      const BsonValue v = operand.view()["v"];
      const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
        BsonBuilder f = b.OpenDocument(path);
        f.Append(c.op, v);
      });
      auto parsed = ParseMatch(filter);
      if (!parsed.has_value()) continue;  // $ne of a pattern and the like
      ++asked;
      if (MayMatch(header, kMatchFields, path, c.condition, v)) continue;
      ++excluded;
      for (const auto& p : points) {
        if (!parsed.value()->Matches(p).value()) continue;
        RC_FAIL(Text(filter) + " excludes " + Text(p));
      }
    }
  }));
  CHECK(excluded * 10 > asked);
}

TEST_CASE("Headers decide comparisons", "[bucket]") {
  using enum HeaderCondition;
  const std::vector<const char*> numbers = {R"({"a":1})", R"({"a":5.5})"};
  CHECK(May(numbers, "a", kEq, R"({"v":3})"));
  CHECK(!May(numbers, "a", kEq, R"({"v":6})"));
  CHECK(!May(numbers, "a", kEq, R"({"v":"x"})"));
  CHECK(!May(numbers, "a", kGt, R"({"v":5.5})"));
  CHECK(May(numbers, "a", kGte, R"({"v":5.5})"));
  CHECK(!May(numbers, "a", kLt, R"({"v":1})"));
  CHECK(May(numbers, "a", kLte, R"({"v":1})"));
  CHECK(!May(numbers, "a", kIn, R"({"v":[0,"x",6]})"));
  CHECK(May(numbers, "a", kIn, R"({"v":[0,2]})"));
  CHECK(May(numbers, "a", kNe, R"({"v":1})"));
  CHECK(!May({R"({"a":1})", R"({"a":1.0})"}, "a", kNe, R"({"v":1})"));
  CHECK(May({R"({"a":1})", R"({})"}, "a", kNe, R"({"v":1})"));
  CHECK(!May({R"({"a":1})"}, "a", kNin, R"({"v":[7,1]})"));
  CHECK(!May(numbers, "a", kNotExists, R"({"v":0})"));
  CHECK(!May(numbers, "b", kExists, R"({"v":0})"));
  CHECK(!May(numbers, "a", kEq, R"({"v":null})"));
  CHECK(May(numbers, "b", kEq, R"({"v":null})"));
  CHECK(!May(numbers, "b.c", kGt, R"({"v":1})"));
}

TEST_CASE("Headers with several kinds of values decide what they can", "[bucket]") {
  using enum HeaderCondition;
  const std::vector<const char*> mixed = {R"({"a":5})", R"({"a":"k"})", R"({"a":{"b":1}})"};
  // The least is a number, the greatest a string: of numbers the greatest is not known.
  CHECK(May(mixed, "a", kGt, R"({"v":100})"));
  CHECK(!May(mixed, "a", kLt, R"({"v":5})"));
  CHECK(!May(mixed, "a", kGt, R"({"v":"k"})"));
  CHECK(May(mixed, "a", kLt, R"({"v":"b"})"));
  CHECK(!May(mixed, "a", kEq, R"({"v":true})"));
  CHECK(May(mixed, "a", kGt, R"({"v":"z"})", true));  // by a collation
  CHECK(!May(mixed, "a.b", kGt, R"({"v":1})"));
  CHECK(May(mixed, "a.b", kEq, R"({"v":null})"));  // 5 has no b
  const std::vector<const char*> array = {R"({"a":[1,{"b":9}]})"};
  CHECK(May(array, "a", kGt, R"({"v":100})"));
  CHECK(May(array, "a.b", kEq, R"({"v":9})"));
  CHECK(May(array, "a.0", kEq, R"({"v":1})"));
  const std::vector<const char*> nan = {R"({"a":{"$numberDouble":"NaN"}})", R"({"a":2})"};
  CHECK(May(nan, "a", kEq, R"({"v":{"$numberDouble":"NaN"}})"));
  CHECK(May(nan, "a", kLt, R"({"v":3})"));
  CHECK(!May({R"({"a":2})"}, "a", kLte, R"({"v":{"$numberDouble":"NaN"}})"));
}

#include <catch2/catch.hpp>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "query/expression/parse_work.h"
#include "query/plan/bounds_builder.h"
#include "query/plan/index_bounds.h"
#include "query/plan/planner.h"
#include "storage/operation.h"
#include "tests/unit/query/counting_clock.h"

using namespace mayfly;

namespace {

BsonDocument ParsedJson(std::string_view text) {
  auto r = ParseJson(text);
  if (!r) FAIL("bad JSON in the test: " << text << ": " << r.error().message);
  return std::move(r).value();
}

MatchPtr Parsed(std::string_view text) {
  auto r = ParseMatch(ParsedJson(text));
  if (!r) FAIL(text << ": " << r.error().message);
  return std::move(r).value();
}

/// `multikey`: bits by field.
std::shared_ptr<IndexInfo> Index(std::string_view key, uint64_t multikey = 0) {
  auto index = std::make_shared<IndexInfo>();
  index->id = 1;
  index->name = "i";
  index->key = ParsedJson(key);
  for (const auto& e : index->key.view())
    index->fields.push_back({std::string(e.name), e.value.NumberAsInt64() < 0, ""});
  index->multikey = multikey;
  return index;
}

IndexAccess Access(std::string_view filter, const std::shared_ptr<IndexInfo>& index,
                   MatchPtr& keep) {
  keep = Parsed(filter);
  auto clauses = Clauses(*keep);
  return BuildIndexAccess(index, index->multikey, clauses, CollectPredicates(clauses));
}

std::string BoundsText(std::string_view filter, std::string_view key, uint64_t multikey = 0) {
  auto index = Index(key, multikey);
  MatchPtr keep;
  IndexAccess access = Access(filter, index, keep);
  std::string out;
  for (size_t i = 0; i < access.bounds.fields.size(); ++i) {
    if (i > 0) out += " | ";
    bool first = true;
    for (const auto& interval : access.bounds.fields[i].intervals) {
      if (!first) out += " ";
      first = false;
      out += interval.ToString();
    }
    if (access.bounds.fields[i].empty()) out += "nothing";
  }
  return out;
}

}  // namespace

TEST_CASE("A filter becomes the bounds MongoDB shows for it", "[plan]") {
  struct Case {
    const char* filter;
    const char* key;
    uint64_t multikey;
    const char* bounds;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"a": 1})", R"({"a": 1})", 0, "[1, 1]"},
      {R"({"a": {"$eq": "x"}})", R"({"a": 1})", 0, R"(["x", "x"])"},
      {R"({"a": {"$gt": 5}})", R"({"a": 1})", 0, "(5, inf.0]"},
      {R"({"a": {"$gte": 5}})", R"({"a": 1})", 0, "[5, inf.0]"},
      {R"({"a": {"$lt": 5}})", R"({"a": 1})", 0, "[-inf.0, 5)"},
      {R"({"a": {"$lte": 5.5}})", R"({"a": 1})", 0, "[-inf.0, 5.5]"},
      {R"({"a": {"$gt": 1, "$lt": 5}})", R"({"a": 1})", 0, "(1, 5)"},
      {R"({"a": {"$gt": 5, "$lt": 1}})", R"({"a": 1})", 0, "nothing"},
      {R"({"a": {"$gt": 1, "$lt": 5}})", R"({"a": 1})", 1, "(1, inf.0]"},
      {R"({"a": {"$elemMatch": {"$gt": 1, "$lt": 5}}})", R"({"a": 1})", 1, "(1, 5)"},
      {R"({"a": {"$elemMatch": {"$elemMatch": {"$gt": 1}}}})", R"({"a": 1})", 1,
       "[MinKey, MaxKey]"},
      {R"({"a": {"$gt": "m"}})", R"({"a": 1})", 0, R"(("m", {}))"},
      {R"({"a": {"$lt": "m"}})", R"({"a": 1})", 0, R"(["", "m"))"},
      {R"({"a": {"$gte": true}})", R"({"a": 1})", 0, "[true, true]"},
      {R"({"a": {"$lt": {"$date": "1970-01-01T00:00:05Z"}}})", R"({"a": 1})", 0,
       "[new Date(-9223372036854775808), new Date(5000))"},
      {R"({"a": {"$gt": {"$oid": "0102030405060708090a0b0c"}}})", R"({"a": 1})", 0,
       "(ObjectId('0102030405060708090a0b0c'), ObjectId('ffffffffffffffffffffffff')]"},
      {R"({"a": {"$gt": {"x": 1}}})", R"({"a": 1})", 0, "({ x: 1 }, [])"},
      {R"({"a": {"$in": [3, 1, 2, 1.0]}})", R"({"a": 1})", 0, "[1, 1] [2, 2] [3, 3]"},
      {R"({"a": {"$in": [1, null]}})", R"({"a": 1})", 0, "[null, null] [1, 1]"},
      {R"({"a": {"$in": [1, 2], "$gt": 1}})", R"({"a": 1})", 0, "[2, 2]"},
      {R"({"a": null})", R"({"a": 1})", 0, "[null, null]"},
      {R"({"a": {"$exists": true}})", R"({"a": 1})", 0, "[MinKey, MaxKey]"},
      {R"({"a": {"$exists": false}})", R"({"a": 1})", 0, "[null, null]"},
      {R"({"a": {"$ne": 1}})", R"({"a": 1})", 0, "[MinKey, 1) (1, MaxKey]"},
      {R"({"a": {"$nin": [1, 2]}})", R"({"a": 1})", 0, "[MinKey, 1) (1, 2) (2, MaxKey]"},
      {R"({"a": {"$not": {"$gt": 5}}})", R"({"a": 1})", 0, "[MinKey, 5] (inf.0, MaxKey]"},
      {R"({"a": {"$ne": null}})", R"({"a": 1})", 0, "[MinKey, null) (null, MaxKey]"},
      {R"({"a": {"$ne": null}})", R"({"a": 1})", 1, "[MinKey, MaxKey]"},
      {R"({"a": {"$type": "number"}})", R"({"a": 1})", 0, "[nan.0, inf.0]"},
      {R"({"a": {"$type": "string"}})", R"({"a": 1})", 0, R"(["", {}))"},
      {R"({"a": {"$regex": "^abc"}})", R"({"a": 1})", 0, R"(["abc", "abd") [/^abc/, /^abc/])"},
      {R"({"a": {"$regex": "^abc", "$options": "i"}})", R"({"a": 1})", 0,
       R"(["", {}) [/^abc/i, /^abc/i])"},
      {R"({"a": {"$regex": "b"}})", R"({"a": 1})", 0, R"(["", {}) [/b/, /b/])"},
      {R"({"a": {"$mod": [2, 0]}})", R"({"a": 1})", 0, "[nan.0, inf.0]"},
      {R"({"a": {"$size": 2}})", R"({"a": 1})", 1, "[MinKey, MaxKey]"},
      {R"({"a": [1, 2]})", R"({"a": 1})", 1, "[1, 1] [[ 1, 2 ], [ 1, 2 ]]"},
      {R"({"a": []})", R"({"a": 1})", 1, "[undefined, undefined] [[], []]"},
      {R"({"a": {"$gt": {"$minKey": 1}}})", R"({"a": 1})", 0, "(MinKey, MaxKey]"},
      {R"({"a": {"$gt": {"$minKey": 1}}})", R"({"a": 1})", 1, "[MinKey, MaxKey]"},
      {R"({"a": {"$lte": {"$maxKey": 1}}})", R"({"a": 1})", 0, "[MinKey, MaxKey]"},
      {R"({"a": {"$gte": {"$maxKey": 1}}})", R"({"a": 1})", 1, "[MaxKey, MaxKey]"},
      {R"({"a": 1, "b": {"$gt": 2}})", R"({"a": 1, "b": -1})", 0, "[1, 1] | (2, inf.0]"},
      {R"({"b": 2})", R"({"a": 1, "b": 1})", 0, "[MinKey, MaxKey] | [2, 2]"},
      {R"({"a": 1, "c": 3})", R"({"a": 1, "b": 1, "c": 1})", 0,
       "[1, 1] | [MinKey, MaxKey] | [3, 3]"},
      {R"({"a.x": 1, "a.y": 2})", R"({"a.x": 1, "a.y": 1})", 3, "[1, 1] | [MinKey, MaxKey]"},
      {R"({"a": {"$elemMatch": {"x": 1, "y": 2}}})", R"({"a.x": 1, "a.y": 1})", 3,
       "[1, 1] | [2, 2]"},
      {R"({"a.x": 1, "b": 2})", R"({"a.x": 1, "b": 1})", 1, "[1, 1] | [2, 2]"},
      {R"({"a": 1, "c": 2})", R"({"a": 1, "c": 1})", 3, "[1, 1] | [2, 2]"},
      {R"({"$and": [{"a": {"$gt": 1}}, {"a": {"$lte": 4}}]})", R"({"a": 1})", 0, "(1, 4]"},
      {R"({"a": {"$all": [1, 2]}})", R"({"a": 1})", 1, "[1, 1]"},
  }));
  CAPTURE(c.filter, c.key, c.multikey);
  REQUIRE(BoundsText(c.filter, c.key, c.multikey) == c.bounds);
}

TEST_CASE("The bounds of many arrays are sorted with looks at the time", "[plan]") {
  constexpr int kMany = 100'000;
  const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
    BsonBuilder a = b.OpenDocument("a");
    BsonArrayBuilder in = a.OpenArray("$in");
    for (int i = 0; i < kMany; ++i) {
      BsonArrayBuilder one = in.OpenArray();
      one.Append(i);
    }
  });
  const MatchPtr match = ParseMatch(filter).value();
  REQUIRE(match->kind == MatchKind::kIn);
  const test::CountingClock clock;
  Operation op(clock);
  op.deadline_micros = int64_t{1} << 40;
  {
    const ParseWork work(&op);
    const auto bounds = BoundsOf(*match, false);
    REQUIRE(bounds);
    // An array, and its first element.
    REQUIRE(bounds->list.intervals.size() == 2 * kMany);
    CHECK(bounds->list.intervals[0].ToString() == "[0, 0]");
    CHECK(bounds->list.intervals[kMany].ToString() == "[[ 0 ], [ 0 ]]");
  }
  // Making them takes one look for 128, and sorting them was one long step.
  CHECK(clock.looks > 2 * (2 * kMany / 256));
  // A deadline that passes while they are sorted ends it, and the planner finds it.
  op.deadline_micros = clock.looks + 2 * kMany / 256 + 50;
  const ParseWork work(&op);
  CHECK_FALSE(BoundsOf(*match, false));
  CHECK_FALSE(ParseWork::Step());
}

TEST_CASE("The literal beginning of a pattern", "[plan]") {
  struct Case {
    const char* pattern;
    const char* options;
    const char* prefix;
  };
  const auto c = GENERATE(values<Case>({
      {"^abc", "", "abc"},      {"\\Aabc", "", "abc"}, {"abc", "", ""},       {"^abc", "i", ""},
      {"^abc", "s", "abc"},     {"^ab*c", "", "a"},    {"^ab?c", "", "a"},    {"^ab+c", "", "ab"},
      {"^ab{0,2}", "", "a"},    {"^a.c", "", "a"},     {"^a\\.c", "", "a.c"}, {"^a\\dc", "", "a"},
      {"^a|b", "", ""},         {"^(a)", "", ""},      {"^a[bc]", "", "a"},   {"^abc$", "", "abc"},
      {"^a\xc3\xa9?", "", "a"}, {"^", "", ""},         {"", "", ""},          {"^a\\", "", "a"},
  }));
  CAPTURE(c.pattern, c.options);
  REQUIRE(RegexPrefix(c.pattern, c.options) == c.prefix);
}

TEST_CASE("A partial index serves only what implies its filter", "[plan]") {
  struct Case {
    const char* filter;
    const char* partial;
    bool implied;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"a": 5})", R"({"a": {"$gt": 3}})", true},
      {R"({"a": 3})", R"({"a": {"$gt": 3}})", false},
      {R"({"a": {"$gt": 3}})", R"({"a": {"$gt": 3}})", true},
      {R"({"a": {"$gte": 3}})", R"({"a": {"$gt": 3}})", false},
      {R"({"a": {"$in": [4, 5]}})", R"({"a": {"$gt": 3}})", true},
      {R"({"a": {"$in": [2, 5]}})", R"({"a": {"$gt": 3}})", false},
      {R"({"a": 5})", R"({"a": {"$exists": true}})", true},
      {R"({"a": null})", R"({"a": {"$exists": true}})", false},
      {R"({"a": {"$ne": 5}})", R"({"a": {"$exists": true}})", false},
      {R"({"b": 5})", R"({"a": {"$exists": true}})", false},
      {R"({"a": "x"})", R"({"a": {"$type": "string"}})", false},
      {R"({"a": 5})", R"({"a": {"$type": "number"}})", true},
      {R"({"a": 5})", R"({"a": {"$type": "string"}})", false},
      {R"({"a": 5})", R"({"a": {"$type": "int"}})", false},
      {R"({"a": 5, "b": 1})", R"({"a": {"$gt": 3}, "b": 1})", true},
      {R"({"a": 5})", R"({"a": {"$gt": 3}, "b": 1})", false},
      {R"({"$or": [{"a": 5}, {"a": 9}]})", R"({"a": {"$gt": 3}})", true},
      {R"({"$or": [{"a": 5}, {"b": 9}]})", R"({"a": {"$gt": 3}})", false},
      {R"({"s": "A"})", R"({"s": {"$in": ["A", "B"]}})", true},
      {R"({"s": "C"})", R"({"s": {"$in": ["A", "B"]}})", false},
      {R"({"a": {"$elemMatch": {"$gt": 5}}})", R"({"a": {"$exists": true}})", true},
      {R"({"x": 1, "active": true})", R"({"active": true})", true},
      {R"({"x": 1, "active": false})", R"({"active": true})", false},
  }));
  CAPTURE(c.filter, c.partial);
  auto filter = Parsed(c.filter);
  auto partial = Parsed(c.partial);
  REQUIRE(Implies(Clauses(*filter), *partial) == c.implied);
}

TEST_CASE("A sparse index serves only filters that need its fields", "[plan]") {
  struct Case {
    const char* filter;
    const char* key;
    bool safe;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"a": 5})", R"({"a": 1})", true},
      {R"({"a": {"$exists": true}})", R"({"a": 1})", true},
      {R"({"a": null})", R"({"a": 1})", false},
      {R"({"a": {"$exists": false}})", R"({"a": 1})", false},
      {R"({"a": {"$ne": 5}})", R"({"a": 1})", false},
      {R"({"a": {"$ne": null}})", R"({"a": 1})", true},
      {R"({})", R"({"a": 1})", false},
      {R"({"a": null, "b": 1})", R"({"a": 1, "b": 1})", true},
      {R"({"a": {"$in": [1, null]}})", R"({"a": 1})", false},
  }));
  CAPTURE(c.filter, c.key);
  auto index = Index(c.key);
  index->sparse = true;
  MatchPtr keep;
  REQUIRE(Access(c.filter, index, keep).safe == c.safe);
}

TEST_CASE("Index order serves a sort in either direction", "[plan]") {
  struct Case {
    const char* filter;
    const char* key;
    uint64_t multikey;
    const char* sort;
    SortProvision provision;
    size_t explode;
  };
  using P = SortProvision;
  const auto c = GENERATE(values<Case>({
      {R"({})", R"({"a": 1})", 0, R"({"a": 1})", P::kForward, 0},
      {R"({})", R"({"a": 1})", 0, R"({"a": -1})", P::kBackward, 0},
      {R"({})", R"({"a": 1, "b": -1})", 0, R"({"a": -1, "b": 1})", P::kBackward, 0},
      {R"({})", R"({"a": 1, "b": -1})", 0, R"({"a": 1, "b": 1})", P::kNo, 0},
      {R"({"a": 5})", R"({"a": 1, "b": 1})", 0, R"({"b": -1})", P::kBackward, 0},
      {R"({"a": {"$gt": 5}})", R"({"a": 1, "b": 1})", 0, R"({"b": -1})", P::kNo, 0},
      {R"({"a": {"$in": [1, 2]}})", R"({"a": 1, "b": 1})", 0, R"({"b": 1})", P::kForward, 1},
      {R"({"a": {"$in": [1, 2]}})", R"({"a": 1, "b": 1})", 0, R"({"a": 1, "b": 1})", P::kForward,
       0},
      {R"({"a": 5})", R"({"a": 1, "b": 1})", 0, R"({"a": -1, "b": 1})", P::kForward, 0},
      {R"({"a": 5})", R"({"a": 1})", 1, R"({"a": 1})", P::kNo, 0},
      {R"({})", R"({"a": 1})", 1, R"({"a": 1})", P::kForward, 0},
      {R"({"a.x": 5})", R"({"a.x": 1, "a.y": 1})", 3, R"({"a.y": 1})", P::kNo, 0},
      {R"({"a": 5})", R"({"a": 1, "b": 1})", 1, R"({"b": 1})", P::kForward, 0},
  }));
  CAPTURE(c.filter, c.key, c.multikey, c.sort);
  auto index = Index(c.key, c.multikey);
  MatchPtr keep;
  IndexAccess access = Access(c.filter, index, keep);
  auto sort = SortPattern::Parse(ParsedJson(c.sort));
  REQUIRE(sort.has_value());
  size_t explode;
  CHECK(ProvidesSort(access, sort.value(), &explode) == c.provision);
  CHECK(explode == c.explode);
}

TEST_CASE("Explain cuts long bounds, so that the plan of a long $in can be shown",
          "[bounds][explain]") {
  auto shown = [](std::string_view filter, std::string_view key, bool backward) {
    auto index = Index(key);
    MatchPtr keep;
    IndexAccess access = Access(filter, index, keep);
    return BuildBson([&](BsonBuilder& b) { access.bounds.Explain(*index, backward, b); });
  };
  std::string many = R"({"a": {"$in": [0)";
  for (int i = 1; i < 20000; ++i) many += "," + std::to_string(i);
  many += "]}}";
  for (bool backward : {false, true}) {
    const BsonDocument bounds = shown(many, R"({"a": 1})", backward);
    CHECK(bounds.view().size() < 70 * 1024);
    const BsonView list = bounds.view()["a"].Document();
    const int count = list.Count();
    CHECK(list.First().value.String() == (backward ? "[19999, 19999]" : "[0, 0]"));
    const BsonValue last = list.Find(std::to_string(count - 1));
    CHECK(last.String() == "... and " + std::to_string(20000 - (count - 1)) + " more");
  }
  // One long value, cut between two characters.
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "\xc3\xa9";
  const BsonDocument bounds = shown(R"({"a": "x)" + text + "\"}", R"({"a": 1})", false);
  const std::string_view one = bounds.view()["a"].Document().First().value.String();
  CHECK(one.size() <= 8 * 1024 + 3);
  CHECK(one.ends_with("\xc3\xa9..."));
}

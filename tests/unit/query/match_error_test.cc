#include <tuple>

#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "query/expression/regex.h"
#include "query/match/explain_mismatch.h"
#include "query/match/match_expression.h"
#include "query/match/record_filter.h"
#include "storage/operation.h"
#include "tests/unit/query/counting_clock.h"
#include "tests/unit/query/query_test_util.h"

using namespace mayfly;

TEST_CASE("A bad filter gets MongoDB's code and says why", "[match]") {
  struct Row {
    const char* filter;
    int code;
    const char* text;
  };
  const std::vector<Row> rows = {
      {"{'a': {'$foo': 1}}", 2, "unknown operator: $foo"},
      {"{'a': {'$regex': 'x', '$options': 'i', '$options': ''}}", 40413,
       "BSON field 'a.$options' is a duplicate field"},
      {"{'a': {'$not': {'$options': '', '$regex': 'x', '$options': 'i'}}}", 40413,
       "BSON field 'a.$options' is a duplicate field"},
      {"{'a': {'$gt': 1, 'b': 2}}", 2, "unknown operator: b"},
      {"{'a': {'$and': [{}]}}", 2, "unknown operator: $and"},
      {"{'a': {'$expr': 1}}", 2, "unknown operator: $expr"},
      {"{'$foo': 1}", 2,
       "unknown top level operator: $foo. If you have a field name that starts with a '$' symbol, "
       "consider using $getField or $setField."},
      {"{'$eq': 1}", 2, "unknown top level operator: $eq"},
      {"{'$and': 1}", 2, "$and must be an array"},
      {"{'$or': {}}", 2, "$or must be an array"},
      {"{'$and': []}", 2, "$and/$or/$nor must be a nonempty array"},
      {"{'$or': []}", 2, "$and/$or/$nor must be a nonempty array"},
      {"{'$nor': []}", 2, "$and/$or/$nor must be a nonempty array"},
      {"{'$or': [1]}", 2, "$or/$and/$nor entries need to be full objects"},
      {"{'a': {'$in': 1}}", 2, "$in needs an array"},
      {"{'a': {'$nin': {}}}", 2, "$nin needs an array"},
      {"{'a': {'$in': [{'$gt': 1}]}}", 2, "cannot nest $ under $in"},
      {"{'a': {'$in': [{'$undefined': true}]}}", 2, "cannot be undefined"},
      {"{'a': {'$undefined': true}}", 2, "cannot compare to undefined"},
      {"{'a': {'$gt': {'$undefined': true}}}", 2, "cannot compare to undefined"},
      {"{'a': {'$gt': {'$regularExpression': {'pattern': 'x', 'options': ''}}}}", 2,
       "Can't have RegEx as arg to predicate over field 'a'."},
      {"{'a': {'$ne': {'$regularExpression': {'pattern': 'x', 'options': ''}}}}", 2,
       "Can't have regex as arg to $ne."},
      {"{'a': {'$not': 1}}", 2, "$not needs a regex or a document"},
      {"{'a': {'$not': {}}}", 2, "$not cannot be empty"},
      {"{'a': {'$not': {'b': 1}}}", 2, "unknown operator: b"},
      {"{'a': {'$type': 'foo'}}", 2, "Unknown type name alias: foo"},
      {"{'a': {'$type': 99}}", 2, "Invalid numerical type code: 99"},
      {"{'a': {'$type': 0}}", 2, "Invalid numerical type code: 0. Instead use {$exists:false}."},
      {"{'a': {'$type': 1.5}}", 2, "Invalid numerical type code: 1.5"},
      {"{'a': {'$type': {}}}", 14, "type must be represented as a number or a string"},
      {"{'a': {'$type': []}}", 9, "a must match at least one type"},
      {"{'a': {'$all': 1}}", 2, "$all needs an array"},
      {"{'a': {'$all': [{'$gt': 1}]}}", 2, "no $ expressions in $all"},
      {"{'a': {'$all': [1, {'$elemMatch': {'b': 1}}]}}", 2, "no $ expressions in $all"},
      {"{'a': {'$all': [{'$elemMatch': {'b': 1}}, 1]}}", 2, "$all/$elemMatch has to be consistent"},
      {"{'a': {'$elemMatch': 1}}", 2, "$elemMatch needs an Object"},
      {"{'a': {'$elemMatch': {'$expr': 1}}}", 2,
       "$expr can only be applied to the top-level document"},
      {"{'a': {'$elemMatch': {'b': 1, '$expr': 1}}}", 2,
       "$expr can only be applied to the top-level document"},
      {"{'a': {'$elemMatch': {'$gt': 1, 'b': 1}}}", 2, "unknown operator: b"},
      {"{'a': {'$size': 'x'}}", 2, "Failed to parse $size. Expected a number in: $size:"},
      {"{'a': {'$size': -1}}", 2,
       "Failed to parse $size. Expected a non-negative number in: $size: -1"},
      {"{'a': {'$size': 1.5}}", 2, "Failed to parse $size. Expected an integer: $size: 1.5"},
      {"{'a': {'$size': 1e300}}", 2, "Failed to parse $size. Cannot represent as a 64-bit integer"},
      {"{'a': {'$mod': 1}}", 2, "malformed mod, needs to be an array"},
      {"{'a': {'$mod': [1]}}", 2, "malformed mod, not enough elements"},
      {"{'a': {'$mod': [1, 2, 3]}}", 2, "malformed mod, too many elements"},
      {"{'a': {'$mod': ['x', 1]}}", 2, "malformed mod, divisor not a number"},
      {"{'a': {'$mod': [1, 'x']}}", 2, "malformed mod, remainder not a number"},
      {"{'a': {'$mod': [0, 1]}}", 2, "divisor cannot be 0"},
      {"{'a': {'$mod': [0.5, 1]}}", 2, "divisor cannot be 0"},
      {"{'a': {'$mod': [{'$numberDouble': 'NaN'}, 1]}}", 2,
       "Unable to coerce NaN/Inf to integral type"},
      {"{'a': {'$mod': [1e300, 1]}}", 2, "Out of bounds coercing to integral value"},
      {"{'a': {'$regex': 1}}", 2, "$regex has to be a string"},
      {"{'a': {'$options': 'i'}}", 2, "$options needs a $regex"},
      {"{'a': {'$regex': 'x', '$options': 1}}", 2, "$options has to be a string"},
      {"{'a': {'$regex': 'x', '$options': 'g'}}", 51108, "invalid flag in regex options: g"},
      {"{'a': {'$regex': 'a\\u0000b'}}", 51109, "embedded null byte"},
      {"{'a': {'$regex': 'a', '$options': 'i\\u0000'}}", 51110, "embedded null byte"},
      {"{'a': {'$regex': '('}}", 51091, "Regular expression is invalid"},
      {"{'a': {'$in': [{'$regularExpression': {'pattern': '(', 'options': ''}}]}}", 51091,
       "Regular expression is invalid"},
      {"{'a': {'$regex': {'$regularExpression': {'pattern': 'x', 'options': 'i'}}, '$options': "
       "'m'}}",
       51075, "options set in both $regex and $options"},
      {"{'a': {'$options': 'm', '$regex': {'$regularExpression': {'pattern': 'x', 'options': "
       "'i'}}}}",
       51074, "options set in both $regex and $options"},
      {"{'a': {'$elemMatch': {'$where': '1'}}}", 2,
       "$where can only be applied to the top-level document"},
      {"{'a': {'$elemMatch': {'$text': 'x'}}}", 2,
       "$text can only be applied to the top-level document"},
      {"{'a': {'$bitsAllSet': 'x'}}", 2,
       "$bitsAllSet takes an Array, a number, or a BinData but received: $bitsAllSet:"},
      {"{'a': {'$bitsAllSet': -1}}", 9, "Expected a non-negative number in: $bitsAllSet: -1"},
      {"{'a': {'$bitsAllSet': 1.5}}", 9, "Expected an integer: $bitsAllSet: 1.5"},
      {"{'a': {'$bitsAnySet': [-1]}}", 2,
       "Failed to parse bit position. Expected a non-negative number in: 0: -1"},
      {"{'a': {'$bitsAnySet': ['x']}}", 2,
       "Failed to parse bit position. Expected a number in: 0:"},
      {"{'a': {'$bitsAnySet': [3000000000]}}", 2, "Failed to parse bit position."},
      {"{'$where': 'true'}", 2, "$where is not allowed in this context"},
      {"{'$text': {'$search': 'x'}}", 27, "text index required for $text query"},
      {"{'a': {'$near': [1, 2]}}", 291, "unable to find index for $geoNear query"},
      {"{'a': {'$geoWithin': {}}}", 238, "$geoWithin is not supported"},
      {"{'$expr': {'$nope': 1}}", 168, "Unrecognized expression '$nope'"},
      {"{'$alwaysTrue': 2}", 9, "$alwaysTrue must be an integer value of 1"},
      {"{'$jsonSchema': 1}", 14, "$jsonSchema must be an object"},
      {"{'$jsonSchema': {'foo': 1}}", 9, "Unknown $jsonSchema keyword: foo"},
      {"{'$jsonSchema': {'$ref': 'x'}}", 9,
       "$jsonSchema keyword '$ref' is not currently supported"},
      {"{'$jsonSchema': {'type': 'integer'}}", 2,
       "$jsonSchema type 'integer' is not currently supported."},
      {"{'$jsonSchema': {'bsonType': 'foo'}}", 2, "Unknown type name alias: foo"},
      {"{'$jsonSchema': {'bsonType': 1}}", 14, "must be either a string or an array of strings"},
      {"{'$jsonSchema': {'bsonType': 'int', 'type': 'number'}}", 9, "Cannot specify both"},
      {"{'$jsonSchema': {'required': []}}", 9, "cannot be an empty array"},
      {"{'$jsonSchema': {'required': ['a', 'a']}}", 9, "cannot contain duplicate values"},
      {"{'$jsonSchema': {'required': [1]}}", 14, "must be an array of strings"},
      {"{'$jsonSchema': {'minimum': 'x'}}", 14, "must be a number"},
      {"{'$jsonSchema': {'minLength': -1}}", 9, "Expected a non-negative number"},
      {"{'$jsonSchema': {'exclusiveMinimum': true}}", 9, "'minimum' must be a present"},
      {"{'$jsonSchema': {'multipleOf': 0}}", 9, "must have a positive value"},
      {"{'$jsonSchema': {'enum': []}}", 9, "cannot be an empty array"},
      {"{'$jsonSchema': {'enum': [{'a': 1, 'b': 2}, {'b': 2, 'a': 1}]}}", 9, "duplicate"},
      {"{'$jsonSchema': {'allOf': []}}", 2, "non-empty array"},
      {"{'$jsonSchema': {'properties': {'a': 1}}}", 14, "must be an object"},
      {"{'$jsonSchema': {'pattern': '('}}", 51091, "Regular expression is invalid"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.filter);
    auto r = ParseMatch(Json(row.filter));
    REQUIRE(r.has_error());
    CHECK(static_cast<int>(r.error().code) == row.code);
    CAPTURE(r.error().message);
    CHECK(r.error().message.find(row.text) != std::string::npos);
  }
}

TEST_CASE("$where where it is allowed says that there is no JavaScript", "[match]") {
  MatchParseOptions options;
  options.allow_where = true;
  auto r = ParseMatch(Json("{'$where': 'true'}"), options);
  REQUIRE(r.has_error());
  CHECK(static_cast<int>(r.error().code) == 6108304);
  CHECK(r.error().message.find("no server-side JavaScript") != std::string::npos);
}

TEST_CASE("A regular expression beyond a limit says which, and what to change", "[match]") {
  const auto said = [](const char* pattern, const std::string& subject) {
    const auto regex = CompiledRegex::Compile(pattern, "");
    REQUIRE(regex);
    const Result<bool> r = regex.value()->Matches(subject);
    REQUIRE_FALSE(r);
    CHECK(static_cast<int>(r.error().code) == 51156);
    return r.error().message;
  };
  // Once by the memory of repeats of a group, once by the number of steps.
  const std::string many(1'000'000, 'a');
  for (const std::string& m : {said("^(a|b)*$", many), said("(a+)+$", many.substr(0, 40) + "b")}) {
    CAPTURE(m);
    CHECK(m.find("the limit of one search") != m.npos);
    CHECK(m.find("possessive") != m.npos);
    CHECK(m.find("code") == m.npos);
  }
  // What it says helps.
  for (const char* pattern : {"^(a|b)*+$", "^[ab]*$"})
    CHECK(CompiledRegex::Compile(pattern, "").value()->Matches(many).value());
}

TEST_CASE("A catastrophic regular expression ends with an error, not with a hang", "[match]") {
  std::string subject(5000, 'a');
  for (const char* pattern : {"^(a+)+$", "^(a|a)*$", "(.*)*x", "(a?){40}a{40}$"}) {
    CAPTURE(pattern);
    auto regex = CompiledRegex::Compile(pattern, "");
    REQUIRE(regex.has_value());
    auto r = regex.value()->Matches(subject + "!");
    if (r.has_error()) CHECK(static_cast<int>(r.error().code) == 51156);
  }
  BsonDocument doc = BuildBson([&](BsonBuilder& b) { b.Append("a", subject + "!"); });
  auto filter = ParseMatch(Json("{'a': {'$regex': '^(a+)+$'}}"));
  auto r = filter.value()->Matches(doc);
  REQUIRE(r.has_error());
  CHECK(static_cast<int>(r.error().code) == 51156);
  // Neither does a negation turn the error into a match.
  CHECK(
      ParseMatch(Json("{'a': {'$not': {'$regex': '^(a+)+$'}}}")).value()->Matches(doc).has_error());
  CHECK(ParseMatch(Json("{'$nor': [{'a': {'$in': [1, {'$regularExpression': {'pattern': '^(a+)+$', "
                        "'options': ''}}]}}]}"))
            .value()
            ->Matches(doc)
            .has_error());
}

TEST_CASE("A search that may take long is interrupted, and ends by itself", "[match]") {
  // Machine code does not count the steps of repeated single characters.
  std::string subject;
  for (int i = 0; i < 30000; ++i) subject += "ab";
  SystemClock clock;
  for (const char* pattern :
       {"[ab]{1,900}[ab]{1,20000}[cd][xy]", "[ab]{1,20000}[cd][xy]", "([ab]{1,30000}){1,1}[xy]",
        "a?b?a?b?a?b?[ab]*[ab]*[ab]*[xy]", "([ab]*)([ab]*)\\1\\2[xy]", "(?:[ab]*[ab]*)*[xy]"}) {
    CAPTURE(pattern);
    const CompiledRegex::Ptr regex = CompiledRegex::Compile(pattern, "").value();
    Operation op(clock);
    op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    Result<bool> r = regex->Matches(subject, &op);
    REQUIRE(r.has_error());
    CHECK((r.error().code == ErrorCode::kInterrupted || static_cast<int>(r.error().code) == 51156));
  }
  // Whatever is asked of short subjects, or of long ones without repeats, takes few steps.
  Operation op(clock);
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  CHECK(CompiledRegex::Compile("b.*a.*b", "").value()->Matches("abab", &op).value());
  CHECK_FALSE(CompiledRegex::Compile("needle", "i").value()->Matches(subject, &op).value());
  CHECK(CompiledRegex::Compile("(a)(b)", "").value()->Matches(subject, &op).value());
}

TEST_CASE("A search for a long pattern is interrupted, and finds what one in one go finds",
          "[match]") {
  // 28,000 letters are compared at each of a million places, and nothing counts letters.
  const std::string pattern(28000, 'a'), subject(1'000'000, 'a');
  const CompiledRegex::Ptr regex = CompiledRegex::Compile(pattern + "b", "").value();
  SystemClock clock;
  Operation op(clock);
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  Result<bool> killed = regex->Matches(subject, &op);
  REQUIRE(killed.has_error());
  CHECK(killed.error().code == ErrorCode::kInterrupted);
  // The piece in which a match begins, the end of a piece, characters of several bytes.
  const std::string grouped = std::string(996, 'y') + "(..\\()";
  const size_t places = CompiledRegex::kPiece / grouped.size();
  for (const size_t at : {size_t{0}, places - 1, places, places + 1, 2 * places, 3 * places - 2}) {
    for (const char* filler : {"x", "ö"}) {
      CAPTURE(at, filler);
      std::string text;
      while (text.size() < at) text += filler;
      const size_t begin = text.size();
      text += std::string(998, 'y') + "(z)";
      const CompiledRegex::Ptr found = CompiledRegex::Compile(grouped, "").value();
      std::vector<CompiledRegex::Span> groups;
      Operation free(clock);
      CHECK(found->Find(text, 0, &groups, &free).value());
      REQUIRE(groups.size() == 2);
      CHECK(groups[0] == CompiledRegex::Span(begin, begin + 999));
      // What stands before the piece is seen from it.
      CHECK(CompiledRegex::Compile("(?<!y)" + std::string(990, 'y'), "")
                .value()
                ->Find(text, 0, &groups, &free)
                .value());
      CHECK(groups[0].first == begin);
      CHECK_FALSE(CompiledRegex::Compile("^" + std::string(990, 'y') + "n", "")
                      .value()
                      ->Matches(text, &free)
                      .value());
    }
  }
  // Where it matters where a search begins, it is in one go, or not at all.
  CHECK(CompiledRegex::Compile("\\G" + std::string(1000, 'y'), "").has_value());
  CHECK(CompiledRegex::Compile("(*COMMIT)" + std::string(9000, 'y'), "").error().code ==
        ErrorCode::kBadValue);
}

TEST_CASE("A search of many places is interrupted, however short its pattern is", "[match]") {
  const SystemClock clock;
  std::string classes;
  for (int i = 0; i < 127; ++i) classes += "[ab]";
  // 127 tests at each of a million places; 33 letters, whatever their case, at each of 16 million.
  for (const auto& [pattern, options, bytes] :
       {std::tuple(classes + "c", "", size_t{1'000'000}),
        std::tuple(std::string(32, 'a') + "c", "i", size_t{16'000'000})}) {
    CAPTURE(pattern);
    const std::string subject(bytes, 'a');
    const CompiledRegex::Ptr regex = CompiledRegex::Compile(pattern, options).value();
    Operation killed(clock);
    killed.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    const Result<bool> r = regex->Matches(subject, &killed);
    REQUIRE(r.has_error());
    CHECK(r.error().code == ErrorCode::kInterrupted);
    // On a thread that serves sockets, where documents are short.
    Operation slice(clock);
    slice.BeginSlice(int64_t{1} << 40);
    slice.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    CHECK(regex->Matches(subject.substr(0, 60'000), &slice).has_error());
    Operation free(clock);
    CHECK_FALSE(regex->Matches(subject.substr(0, 2'000'000), &free).value());
    CHECK(regex->Matches(subject + "c", &free).value());
  }
  // The pattern that is none.
  Operation free(clock);
  CHECK(CompiledRegex::Compile("", "").value()->Matches("abc", &free).value());
}

TEST_CASE("Only what is a verb or \\G keeps a pattern from being long", "[match]") {
  const std::string rest(9000, 'y');
  for (const char* text : {"\\(*", "\\(*y", "[(*]", "[a\\](*]", "\\\\G", "\\Q(*\\E", "\\Q\\G\\E",
                           "[\\Q](*\\E]", "(?:\\Q(*a)\\E)", "\\\\[(*]", "\\c[\\(*"}) {
    CAPTURE(text);
    CHECK(CompiledRegex::Compile(text + rest, "").has_value());
    CHECK(CompiledRegex::Compile(rest + text, "").has_value());
  }
  for (const char* text :
       {"(*COMMIT)", "\\\\(*COMMIT)", "[\\]](*COMMIT)", "[[:alpha:]](*COMMIT)", "[^]a](*COMMIT)",
        "[\\c\\](*COMMIT)]", "\\Qa\\E(*COMMIT)", "[\\Q]\\E](*COMMIT)", "(?#[)(*COMMIT)",
        "(?#\\Q)(*COMMIT)", "\\c\\(*COMMIT)", "(?C'[')(*COMMIT)", "\\E(*COMMIT)", "\\G", "\\\\\\G",
        "[(]\\G", "(?:a|\\G)"}) {
    CAPTURE(text);
    const auto refused = CompiledRegex::Compile(text + rest, "");
    REQUIRE(refused.has_error());
    CHECK(refused.error().code == ErrorCode::kBadValue);
    // A short one may have it.
    CHECK(CompiledRegex::Compile(text + rest.substr(0, 1000), "").has_value());
  }
  CHECK(CompiledRegex::Compile("# [\n(*COMMIT)" + rest, "x").has_error());
}

TEST_CASE("A long pattern without machine code reads its subject no hundred times", "[match]") {
  large_memory::Budget full;
  *full.machine_code_bytes = int64_t{64} << 20;
  const large_memory::BudgetScope scope(full);
  const CompiledRegex::Ptr regex = CompiledRegex::Compile(std::string(30'000, 'a'), "").value();
  const test::CountingClock clock;
  Operation op(clock);
  op.deadline_micros = int64_t{1} << 40;
  // Each piece begins with a look at all the rest of the subject, which were 1,200 of 4 MB.
  CHECK_FALSE(regex->Matches(std::string(4'000'000, 'b'), &op).value());
  CHECK(clock.looks > 20);
  CHECK(clock.looks < 200);
}

TEST_CASE("Strings that are not UTF-8 are matched without harm", "[match]") {
  BsonDocument doc = BuildBson([&](BsonBuilder& b) {
    b.Append("a", std::string("\xff\xfe"
                              "abc\xc3"));
  });
  CHECK(ParseMatch(Json("{'a': {'$regex': 'abc'}}")).value()->Matches(doc).value());
  CHECK_FALSE(ParseMatch(Json("{'a': {'$regex': 'abd'}}")).value()->Matches(doc).value());
}

TEST_CASE("Many operands of a filter are sorted with looks at the time", "[match]") {
  constexpr int kMany = 100'000;
  const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
    BsonBuilder a = b.OpenDocument("a");
    BsonArrayBuilder in = a.OpenArray("$in");
    for (int i = 0; i < kMany; ++i) in.Append(int64_t{i} * 7919 % kMany);
  });
  const test::CountingClock clock;
  Operation op(clock);
  op.deadline_micros = int64_t{1} << 40;
  {
    const ParseWork work(&op);
    const MatchPtr match = ParseMatch(filter).value();
    REQUIRE(match->list.size() == kMany);
    for (int i = 1; i < kMany; ++i)
      REQUIRE(match->list[static_cast<size_t>(i - 1)].view().Int64() <
              match->list[static_cast<size_t>(i)].view().Int64());
  }
  // Reading them takes one look for 256 of them, and sorting them more than half as many.
  CHECK(clock.looks > 3 * kMany / 512);
  // A deadline that passes while they are sorted ends it.
  op.deadline_micros = clock.looks + kMany / 256 + 50;
  const ParseWork work(&op);
  CHECK(ParseMatch(filter).error().code == ErrorCode::kMaxTimeMSExpired);
}

TEST_CASE("All $regex of a field take its $options", "[match]") {
  const MatchPtr match =
      ParseMatch(Json("{'a': {'$regex': 'x', '$options': 'i', '$regex': 'y'}}")).value();
  CHECK(match->Matches(Json("{'a': 'XY'}")).value());
  CHECK_FALSE(match->Matches(Json("{'a': 'X'}")).value());
  CHECK_FALSE(match->Matches(Json("{'a': 'Y'}")).value());
}

TEST_CASE("Partial index filters may use few operators", "[match]") {
  for (const char* good : {"{'a': 1}", "{'a': {'$gt': 1, '$lte': 5}}", "{'a': {'$exists': true}}",
                           "{'a': {'$type': 'int'}}", "{'$and': [{'a': 1}, {'b': {'$lt': 2}}]}",
                           "{'$or': [{'a': 1}, {'b': 2}]}", "{'a': {'$in': [1, 2]}}"}) {
    CAPTURE(good);
    CHECK(CompileRecordFilter(Json(good), true).has_value());
  }
  for (const char* bad :
       {"{'a': {'$ne': 1}}", "{'a': {'$exists': false}}", "{'a': {'$regex': 'x'}}",
        "{'a': {'$size': 1}}", "{'$nor': [{'a': 1}]}", "{'a': {'$nin': [1]}}",
        "{'a': {'$not': {'$gt': 1}}}", "{'$expr': true}", "{'a': {'$elemMatch': {'b': 1}}}",
        "{'$or': [{'a': {'$mod': [2, 0]}}, {'b': 1}]}"}) {
    CAPTURE(bad);
    auto r = CompileRecordFilter(Json(bad), true);
    REQUIRE(r.has_error());
    CHECK(r.error().code == ErrorCode::kCannotCreateIndex);
    CHECK(CompileRecordFilter(Json(bad), false).has_value());
  }
  auto filter = CompileRecordFilter(Json("{'$expr': {'$gt': ['$a', '$b']}}"), false).value();
  CHECK(filter->Matches(Json("{'a': 2, 'b': 1}")));
  CHECK_FALSE(filter->Matches(Json("{'a': 1, 'b': 2}")));
}

TEST_CASE("The position of the matching array element", "[match]") {
  struct Row {
    const char* filter;
    const char* doc;
    int position;
  };
  for (const Row& row : std::vector<Row>{
           {"{'a': 3}", "{'a': [1, 2, 3]}", 2},
           {"{'a': 3}", "{'a': 3}", -1},
           {"{'a': {'$gt': 1}}", "{'a': [1, 2, 3]}", 1},
           {"{'a': {'$elemMatch': {'b': 2}}}", "{'a': [{'b': 1}, {'b': 2}]}", 1},
           {"{'a': {'$elemMatch': {'$gte': 3}}}", "{'a': [1, 5]}", 1},
           {"{'a.b': 2}", "{'a': [{'b': 1}, {'b': [0, 2]}]}", 1},
           {"{'a.b': 2}", "{'a': {'b': [0, 1, 2]}}", 2},
           {"{'a.b': {'$elemMatch': {'c': 1}}}", "{'a': [{'b': []}, {'b': [{'c': 0}, {'c': 1}]}]}",
            1},
           {"{'x': 1, 'a': 'q'}", "{'x': 1, 'a': ['p', 'q']}", 1},
           {"{'a': {'$in': [7, 9]}}", "{'a': [1, 9]}", 1},
           {"{'a': {'$not': {'$gt': 5}}}", "{'a': [1, 2]}", -1},
           {"{'$or': [{'a': 7}, {'a': 2}]}", "{'a': [1, 2]}", 1},
           {"{'a': {'$regex': '^q'}}", "{'a': ['p', 'q']}", 1},
           {"{'a': [1, 2]}", "{'a': [1, 2]}", -1},
       }) {
    CAPTURE(row.filter, row.doc);
    int position = 7;
    auto m = ParseMatch(Json(row.filter));
    CHECK(m.value()->MatchesWithPosition(Json(row.doc), nullptr, &position).value());
    CHECK(position == row.position);
  }
}

TEST_CASE("Predicates on single values", "[match]") {
  struct Row {
    const char* filter;
    const char* value;  // in {'v': …}
    bool expected;
  };
  for (const Row& row : std::vector<Row>{
           {"{'': {'$gt': 5}}", "{'v': 6}", true},
           {"{'': {'$gt': 5}}", "{'v': 5}", false},
           {"{'': {'$gt': 5}}", "{'v': [1, 6]}", true},
           {"{'b': 1}", "{'v': {'b': 1}}", true},
           {"{'b': 1}", "{'v': {'b': 2}}", false},
           {"{'b': 1}", "{'v': 1}", false},
           {"{'0': 1}", "{'v': [1]}", true},
           {"{'b': 1, 'c': 2}", "{'v': {'b': 1, 'c': 2}}", true},
           {"{'$or': [{'': 1}, {'c': 2}]}", "{'v': {'c': 2}}", true},
           {"{'b': {'$exists': false}}", "{'v': 3}", true},
           {"{'': {'$ne': 3}}", "{'v': 3}", false},
           {"{'': {'$elemMatch': {'b': 1}}}", "{'v': [{'b': 1}]}", true},
           {"{'': {'$in': []}}", "{'v': 1}", false},
       }) {
    CAPTURE(row.filter, row.value);
    auto f = ParseMatch(Json(row.filter));
    REQUIRE(f.has_value());
    BsonDocument v = Json(row.value);
    CHECK(f.value()->MatchesValue(v.view()["v"]).value() == row.expected);
  }
}

TEST_CASE("Filters as explain shows them", "[match]") {
  struct Row {
    const char *filter, *shown;
  };
  for (const Row& row : std::vector<Row>{
           {"{}", "{}"},
           {"{'a': 1}", "{'a':{'$eq':1}}"},
           {"{'a': 1, 'b': {'$gt': 2, '$lt': 5}}",
            "{'$and':[{'a':{'$eq':1}},{'b':{'$gt':2}},{'b':{'$lt':5}}]}"},
           {"{'a': {'$ne': 1}}", "{'a':{'$not':{'$eq':1}}}"},
           {"{'a': {'$exists': false}}", "{'a':{'$not':{'$exists':true}}}"},
           {"{'a': {'$in': [2, 1, 2]}}", "{'a':{'$in':[1,2]}}"},
           {"{'a': {'$in': [2]}}", "{'a':{'$eq':2}}"},
           {"{'a': {'$in': []}}", "{'$alwaysFalse':1}"},
           {"{'$or': [{'a': 1}, {'b': 1}]}", "{'$or':[{'a':{'$eq':1}},{'b':{'$eq':1}}]}"},
           {"{'a': {'$all': [1, 2]}}", "{'$and':[{'a':{'$eq':1}},{'a':{'$eq':2}}]}"},
           {"{'a': {'$elemMatch': {'b': 1}}}", "{'a':{'$elemMatch':{'b':{'$eq':1}}}}"},
           {"{'a': {'$elemMatch': {'$gt': 1, '$lt': 5}}}",
            "{'a':{'$elemMatch':{'$gt':1,'$lt':5}}}"},
           {"{'a': {'$regex': '^x', '$options': 'i'}}", "{'a':{'$regex':'^x','$options':'i'}}"},
           {"{'a': {'$type': 'string'}}", "{'a':{'$type':[2]}}"},
           {"{'a': {'$bitsAllSet': 5}}", "{'a':{'$bitsAllSet':[0,2]}}"},
           {"{'a': {'$mod': [4, 1]}}", "{'a':{'$mod':[4,1]}}"},
           {"{'a': {'$not': {'$gt': 1, '$lt': 5}}}",
            "{'$nor':[{'$and':[{'a':{'$gt':1}},{'a':{'$lt':5}}]}]}"},
       }) {
    CAPTURE(row.filter);
    auto m = ParseMatch(Json(row.filter));
    BsonDocument shown = BuildBson([&](BsonBuilder& b) { m.value()->Serialize(b); });
    std::string text = Text(shown);
    std::erase(text, ' ');
    CHECK(text == row.shown);
  }
}

TEST_CASE("The shape of a filter leaves its constants out", "[match]") {
  auto shape = [](const char* f) {
    std::string out;
    ParseMatch(Json(f)).value()->AppendShape(out);
    return out;
  };
  CHECK(shape("{'a': 1, 'b': {'$gt': 2}}") == shape("{'a': 7, 'b': {'$gt': 9}}"));
  CHECK(shape("{'a': {'$in': [1, 2]}}") == shape("{'a': {'$in': [3, 4, 5]}}"));
  CHECK(shape("{'a': 1}") != shape("{'b': 1}"));
  CHECK(shape("{'a': 1}") != shape("{'a': null}"));
  CHECK(shape("{'a': {'$gt': 1}}") != shape("{'a': {'$lt': 1}}"));
  CHECK(shape("{'a': {'$exists': true}}") != shape("{'a': {'$exists': false}}"));
  CHECK(shape("{'$or': [{'a': 1}, {'b': 1}]}") != shape("{'a': 1, 'b': 1}"));
  CHECK(shape("{'a': {'$regex': '^x'}}") != shape("{'a': {'$regex': 'x'}}"));
}

TEST_CASE("An explanation copies the values of a document as far as they have room", "[match]") {
  // Each part of the path is a position and a name here, so the ways to the value double.
  const auto ways = [](int depth, const std::string& text) {
    BsonDocument inner = BuildBson([&](BsonBuilder& b) { b.Append("0", text); });
    for (int i = 0; i < depth; ++i)
      inner = BuildBson([&](BsonBuilder& b) { b.OpenArray("0").Append(inner.view()); });
    return BuildBson([&](BsonBuilder& b) { b.Append("a", inner.view()["0"]); });
  };
  const BsonDocument filter = Json("{'a.0.0.0.0.0.0': 1}");
  const auto explain = [&](size_t bytes) {
    return ExplainMismatch(filter, ways(12, std::string(bytes, 'x')), Instant{0});
  };
  const BsonDocument shown = explain(10), cut = explain(200'000);
  CHECK(shown.view()["operatorName"].String() == "$eq");
  CHECK(shown.view()["truncated"].missing());
  CHECK(cut.view()["truncated"].Truthy());
  CHECK(cut.view()["operatorName"].missing());

  // The same for what several clauses quote together, and for a schema's rules.
  const std::string text(200'000, 'x');
  const BsonDocument doc =
      BuildBson([&](BsonBuilder& b) { b.Append("a", text).Append("b", text).Append("c", text); });
  const auto of = [&](const char* f) { return ExplainMismatch(Json(f), doc, Instant{0}); };
  CHECK(of("{'a': 1, 'b': 1}").view()["truncated"].missing());
  CHECK(of("{'a': 1, 'b': 1, 'c': 1}").view()["truncated"].Truthy());
  CHECK(of("{'$jsonSchema': {'properties': {'a': {'bsonType': 'int'}}}}")
            .view()["truncated"]
            .missing());
  CHECK(of("{'$jsonSchema': {'properties': {'a': {'bsonType': 'int'}, 'b': {'bsonType': 'int'}, "
           "'c': {'bsonType': 'int'}}}}")
            .view()["truncated"]
            .Truthy());
}

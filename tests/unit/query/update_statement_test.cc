// Parsing of whole updates, replacements, pipelines, upserts, what indexes they touch, and inserts.
#include "protocol/object_id.h"
#include "query/expression/insert_prepare.h"
#include "query/update/expire.h"
#include "tests/unit/query/update_test_util.h"

namespace mayfly {
namespace {

const UpdateRow kParseRows[] = {
    {"{_id: 1}", "{$foo: {a: 1}}",
     "error 9 Unknown modifier: $foo. Expected a valid update modifier or pipeline-style update "
     "specified as an array"},
    {"{_id: 1}", "{$set: {a: 1}, b: 2}", "error 9 Unknown modifier: b."},
    {"{_id: 1}", "{$set: 5}",
     "error 9 Modifiers operate on fields but we found type int instead. For example: {$mod: "
     "{<field>: ...}} not {$set: 5}"},
    {"{_id: 1}", "{$set: [1]}", "error 9 Modifiers operate on fields but we found type array"},
    {"{_id: 1}", "{$rename: 'x'}", "error 9 Modifiers operate on fields but we found type string"},
    {"{_id: 1}", "5", "error 9"},
    {"{_id: 1}", "'x'", "error 9"},
    {"{_id: 1}", "{$set: {'': 1}}", "error 56 An empty update path is not valid."},
    {"{_id: 1}", "{$set: {'a..b': 1}}",
     "error 56 The update path 'a..b' contains an empty field name, which is not allowed."},
    {"{_id: 1}", "{$set: {'.a': 1}}", "error 56 The update path '.a' contains an empty field name"},
    {"{_id: 1}", "{$set: {'a.': 1}}", "error 56 The update path 'a.' contains an empty field name"},
    {"{_id: 1}", "{$set: {$a: 1}}",
     "error 52 The dollar ($) prefixed field '$a' in '$a' is not allowed in the context"},
    {"{_id: 1}", "{$set: {'$a.b': 1}}", "error 52 The dollar ($) prefixed field '$a' in '$a.b'"},
    {"{_id: 1}", "{$set: {'$id': 1}}", "error 52"},
    {"{_id: 1}", "{$set: {a: 1}, $inc: {a: 1}}",
     "error 40 Updating the path 'a' would create a conflict at 'a'"},
    {"{_id: 1}", "{$set: {a: 1, 'a.b': 1}}",
     "error 40 Updating the path 'a.b' would create a conflict at 'a'"},
    {"{_id: 1}", "{$set: {'a.b': 1, a: 1}}",
     "error 40 Updating the path 'a' would create a conflict at 'a'"},
    {"{_id: 1}", "{$set: {'a.b.c': 1}, $unset: {'a.b': 1}}",
     "error 40 Updating the path 'a.b' would create a conflict at 'a.b'"},
    {"{_id: 1}", "{$set: {'a.b': 1}, $unset: {'a.b.c': 1}}",
     "error 40 Updating the path 'a.b.c' would create a conflict at 'a.b'"},
    {"{_id: 1}", "{$set: {'a.b': 1}, $unset: {'a.bc': 1}}", "{_id: 1, a: {b: 1}}"},
    {"{_id: 1}", "{$expires: {at: 1}}", "error 9 Unknown modifier: $expires."},
    {"{_id: 1}", "{$expire: {at: 1}}",
     "error 14 BSON field '$expire.at' is the wrong type 'int', expected type 'date'"},
    {"{_id: 1}", "{$expire: {after: 1}}", "error 9 $expire takes one of"},
    // The last was taken.
    {"{_id: 1}", "{$expire: {afterSeconds: 9}, $set: {a: 1}, $expire: {never: true}}",
     "error 40413 BSON field 'update.$expire' is a duplicate field"},
    {"{_id: 1}", "{$expire: {afterSeconds: 9, afterSeconds: 8}}", "error 9 $expire takes one of"},
    // Both hold, unless they name the same field.
    {"{_id: 1}", "{$set: {a: 1}, $set: {b: 2}}", "{_id: 1, a: 1, b: 2}"},
    {"{_id: 1}", "{$set: {a: 1}, $set: {a: 2}}",
     "error 40 Updating the path 'a' would create a conflict at 'a'"},
    {"{_id: 1}", "{$set: {a: 1, a: 2}}",
     "error 40 Updating the path 'a' would create a conflict at 'a'"},
    {"{_id: 1}", "{$inc: {a: 1, b: 1, a: 1}}",
     "error 40 Updating the path 'a' would create a conflict at 'a'"},
};

const UpdateRow kReplaceRows[] = {
    {"{_id: 1, a: 1}", "{b: 2}", "{_id: 1, b: 2}"},
    {"{_id: 1, a: 1}", "{}", "{_id: 1}"},
    {"{_id: 1, a: 1}", "{a: 1}", "="},
    {"{_id: 1, a: 1}", "{_id: 1, a: 1}", "="},
    {"{_id: 1, a: 1}", "{a: 2, _id: 1}", "{_id: 1, a: 2}"},
    {"{_id: 1, a: 1}", "{_id: 1.0, a: 1}", "="},
    {"{_id: 1, a: 1}", "{_id: 2, a: 1}",
     "error 66 After applying the update, the (immutable) field '_id' was found to have been "
     "altered to _id: 2"},
    {"{_id: 1}", "{a: {$b: 1}, 'c.d': 2}", "{_id: 1, a: {$b: 1}, 'c.d': 2}"},
    {"{_id: 1}", "{a: 1, $b: 1}",
     "error 52 The dollar ($) prefixed field '$b' in '$b' is not allowed in the context of an "
     "update's replacement document."},
    {"{_id: 1}", "{a: 1, _id: 1, _id: 1}", "error 2"},
};

const UpdateRow kPipelineRows[] = {
    {"{_id: 1, a: 1}", "[{$set: {b: {$add: ['$a', 1]}}}]", "{_id: 1, a: 1, b: 2}"},
    {"{_id: 1, a: 1}", "[{$addFields: {b: '$$NOW'}}]",
     "{_id: 1, a: 1, b: {$date: '2030-01-01T00:00:00Z'}}"},
    {"{_id: 1, a: 1, b: 2}", "[{$unset: 'a'}]", "{_id: 1, b: 2}"},
    {"{_id: 1, a: 1, b: 2}", "[{$unset: ['a', 'b']}, {$set: {c: 3}}]", "{_id: 1, c: 3}"},
    {"{_id: 1, a: 1, b: 2}", "[{$project: {a: 1}}]", "{_id: 1, a: 1}"},
    {"{_id: 1, a: {x: 5}}", "[{$replaceWith: '$a'}]", "{_id: 1, x: 5}"},
    {"{_id: 1, a: {x: 5}}", "[{$replaceRoot: {newRoot: '$a'}}]", "{_id: 1, x: 5}"},
    {"{_id: 1, a: 1}", "[{$set: {a: 1}}]", "="},
    {"{_id: 1, a: 1}", "[]", "="},
    {"{_id: 1, a: 1}", "[{$set: {a: 2}}, {$set: {b: '$a'}}, {$set: {c: '$b'}}]",
     "{_id: 1, a: 2, b: 2, c: 2}"},
    {"{_id: 1, a: 1}", "[{$set: {_id: 2}}]",
     "error 66 After applying the update, the (immutable) field '_id' was found to have been "
     "altered to _id: 2"},
    {"{_id: 1, a: 1}", "[{$unset: '_id'}]", "="},
    {"{_id: 1, a: 1}", "[{$replaceWith: '$a'}]", "error 40228"},
    {"{_id: 1, a: 1}", "[{$replaceRoot: {}}]", "error 40231"},
    {"{_id: 1, a: 1}", "[{$replaceRoot: {x: 1}}]", "error 40230"},
    {"{_id: 1, a: 1}", "[{$replaceRoot: 1}]", "error 40229"},
    {"{_id: 1, a: 1}", "[{$match: {a: 1}}]",
     "error 72 $match is not allowed to be used within an update"},
    {"{_id: 1, a: 1}", "[{$foo: 1}]", "error 40324 Unrecognized pipeline stage name: '$foo'"},
    {"{_id: 1, a: 1}", "[{}]", "error 40323"},
    {"{_id: 1, a: 1}", "[{$set: {a: 1}, $unset: 'b'}]", "error 40323"},
    {"{_id: 1, a: 1}", "[1]", "error 14"},
    {"{_id: 1, a: 1}", "[{$set: {a: {$foo: 1}}}]", "error 168"},
};

struct UpsertRow {
  const char* filter;
  const char* update;
  const char* expected;  ///< "OID" in place of the generated `_id`
};

const UpsertRow kUpsertRows[] = {
    {"{_id: 5}", "{$set: {a: 1}}", "{_id: 5, a: 1}"},
    {"{_id: 5, b: 'x'}", "{$set: {a: 1}}", "{_id: 5, b: 'x', a: 1}"},
    {"{b: 1, a: 2, _id: 5}", "{$inc: {n: 1}}", "{_id: 5, a: 2, b: 1, n: 1}"},
    {"{_id: 5}", "{$setOnInsert: {a: 1}}", "{_id: 5, a: 1}"},
    {"{_id: 5}", "{$set: {b: 1}, $setOnInsert: {a: 2}}", "{_id: 5, a: 2, b: 1}"},
    {"{_id: 5, n: 10}", "{$inc: {n: 1}}", "{_id: 5, n: 11}"},
    {"{_id: 5, a: {$gt: 3}, b: {$eq: 4}, c: {$in: [1, 2]}, d: {$exists: true}}", "{$set: {z: 1}}",
     "{_id: 5, b: 4, z: 1}"},
    {"{$and: [{_id: 5}, {a: 1}]}", "{$set: {z: 1}}", "{_id: 5, a: 1, z: 1}"},
    {"{_id: 5, $or: [{a: 1}, {b: 2}]}", "{$set: {z: 1}}", "{_id: 5, z: 1}"},
    {"{_id: 5, $or: [{a: 1}]}", "{$set: {z: 1}}", "{_id: 5, a: 1, z: 1}"},
    {"{_id: 5, $nor: [{a: 1}]}", "{$set: {z: 1}}", "{_id: 5, z: 1}"},
    {"{_id: 5, a: {$ne: 1}}", "{$set: {z: 1}}", "{_id: 5, z: 1}"},
    {"{_id: 5, a: {$all: [7]}}", "{$set: {z: 1}}", "{_id: 5, a: 7, z: 1}"},
    {"{_id: 5, 'a.b': 1, 'a.c': 2}", "{$set: {z: 1}}", "{_id: 5, a: {b: 1, c: 2}, z: 1}"},
    {"{_id: 5, 'a.b': 1}", "{$set: {'a.c': 2}}", "{_id: 5, a: {b: 1, c: 2}}"},
    {"{_id: 5, a: null}", "{$set: {z: 1}}", "{_id: 5, a: null, z: 1}"},
    {"{_id: 5, a: [1, 2]}", "{$push: {a: 3}}", "{_id: 5, a: [1, 2, 3]}"},
    {"{_id: 5, a: {x: 1}}", "{$set: {'a.y': 2}}", "{_id: 5, a: {x: 1, y: 2}}"},
    {"{_id: {x: 1}}", "{$set: {a: 1}}", "{_id: {x: 1}, a: 1}"},
    {"{}", "{$set: {a: 1}}", "{_id: OID, a: 1}"},
    {"{a: 1}", "{$set: {b: 2}}", "{_id: OID, a: 1, b: 2}"},
    {"{a: 1}", "{$set: {_id: 7}}", "{_id: 7, a: 1}"},
    {"{a: 1}", "{$set: {_id: 7, B: 1}}", "{_id: 7, a: 1, B: 1}"},
    {"{a: 1}", "{$unset: {a: 1}}", "{_id: OID}"},
    {"{_id: 5}", "{$unset: {a: 1}}", "{_id: 5}"},
    {"{_id: 5, a: 1}", "{b: 2}", "{_id: 5, b: 2}"},
    {"{a: 1}", "{b: 2}", "{_id: OID, b: 2}"},
    {"{a: 1}", "{b: 2, _id: 8}", "{_id: 8, b: 2}"},
    {"{_id: 5}", "{}", "{_id: 5}"},
    {"{_id: 5, a: 1}", "[{$set: {b: '$a'}}]", "{_id: 5, a: 1, b: 1}"},
    {"{a: 1}", "[{$set: {b: 2}}]", "{_id: OID, a: 1, b: 2}"},
    {"{a: 1}", "[{$set: {_id: 3}}]", "{_id: 3, a: 1}"},
    {"{_id: 5}", "{$set: {_id: 6}}", "error 66"},
    {"{_id: 5}", "{_id: 6}", "error 66"},
    {"{_id: {$gt: 5}}", "{_id: 6}", "{_id: 6}"},
    {"{}", "{_id: [1]}", "error 53 The '_id' value cannot be of type array"},
    {"{}", "{$set: {_id: [1]}}", "error 53"},
    {"{a: 1, $and: [{a: 1}]}", "{$set: {b: 1}}",
     "error 54 cannot infer query fields to set, path 'a' is matched twice"},
    {"{a: {$all: [1, 2]}}", "{$set: {b: 1}}", "error 54"},
    {"{a: {b: 1}, 'a.b': 1}", "{$set: {z: 1}}",
     "error 54 cannot infer query fields to set, both paths 'a' and 'a.b' are matched"},
    {"{'_id.x': 1}", "{a: 1}",
     "error 111 field at '_id' must be exactly specified, field at sub-path '_id.x'found"},
    {"{'_id.x': 1}", "{$set: {a: 1}}", "{_id: {x: 1}, a: 1}"},
    {"{_id: 5, a: 1}", "{$set: {'b.$': 1}}",
     "error 2 The positional operator did not find the match"},
    {"{_id: 5, a: 1}", "{$set: {'a.b': 1}}", "error 28"},
    {"{_id: 5}", "{$set: {'b.$[]': 1}}", "error 2 The path 'b' must exist in the document"},
};

std::string RunUpsert(const UpsertRow& row) {
  VariableScope scope;
  auto update = ParseUpdate(row.update, "", scope, {.upsert = true});
  if (!update) return ErrorText(update.error());
  auto match = ParseMatch(Doc(row.filter), {.scope = &scope});
  if (!match) return ErrorText(match.error());
  EvalContext ctx = TestContext(scope);
  auto made = update.value()->MakeUpsert(match.value().get(), kTestNow, ctx);
  if (!made) return ErrorText(made.error());
  return ToCanonicalJson(BsonView(made.value().data()));
}

}  // namespace

TEST_CASE("Updates that do not parse", "[update]") {
  for (const UpdateRow& row : kParseRows) CheckRow(row);
}
TEST_CASE("Replacements keep the _id", "[update]") {
  for (const UpdateRow& row : kReplaceRows) CheckRow(row);
}
TEST_CASE("Pipelines compute the new document", "[update]") {
  for (const UpdateRow& row : kPipelineRows) CheckRow(row);
}

TEST_CASE("Upserts begin with what the filter says", "[update]") {
  for (const UpsertRow& row : kUpsertRows) {
    CAPTURE(row.filter, row.update);
    std::string got = RunUpsert(row);
    std::string expected = row.expected;
    if (expected.starts_with("error ")) {
      CHECK_THAT(got, Catch::StartsWith(expected));
      continue;
    }
    if (size_t at = expected.find("OID"); at != std::string::npos) {
      size_t oid = got.find("{\"$oid\"") == std::string::npos ? got.find("{ \"$oid\"")
                                                              : got.find("{\"$oid\"");
      REQUIRE(oid != std::string::npos);
      expected.replace(at, 3, got.substr(oid, got.find('}', oid) + 1 - oid));
    }
    CHECK(got == ToCanonicalJson(Doc(expected)));
  }
}

TEST_CASE("A replacement's empty timestamps become the current time", "[update]") {
  VariableScope scope;
  auto update = ParseUpdate(
      "{a: {$timestamp: {t: 0, i: 0}}, b: {c: {$timestamp: {t: 0, i: 0}}}, d: 1, e: {$timestamp: "
      "{t: 0, i: 0}}}",
      "", scope);
  EvalContext ctx = TestContext(scope);
  BsonDocument old = Doc("{_id: 1}");
  auto outcome = update.value()->Apply(old, -1, false, ctx);
  REQUIRE(outcome);
  BsonView made(outcome.value().bytes.data());
  CHECK(made["a"].Timestamp() >> 32 == static_cast<uint64_t>(kTestNow.millis / 1000));
  CHECK(made["e"].Timestamp() > made["a"].Timestamp());
  CHECK(made["b"].Document()["c"].Timestamp() == 0);
  CHECK(made["d"].Int32() == 1);
}

TEST_CASE("A replacement is not for multi updates", "[update]") {
  VariableScope scope;
  auto update = ParseUpdate("{a: 1}", "", scope, {.multi = true});
  REQUIRE(!update);
  CHECK(update.error().code == ErrorCode::kFailedToParse);
  CHECK(ParseUpdate("{$set: {a: 1}}", "", scope, {.multi = true}));
  CHECK(ParseUpdate("[{$set: {a: 1}}]", "", scope, {.multi = true}));
}

TEST_CASE("Updates say which kind they are and whether they need a position", "[update]") {
  VariableScope scope;
  CHECK(ParseUpdate("{$set: {a: 1}}", "", scope).value()->kind() == UpdateKind::kOperators);
  CHECK(ParseUpdate("{a: 1}", "", scope).value()->kind() == UpdateKind::kReplacement);
  CHECK(ParseUpdate("{}", "", scope).value()->kind() == UpdateKind::kReplacement);
  CHECK(ParseUpdate("[{$unset: 'a'}]", "", scope).value()->kind() == UpdateKind::kPipeline);
  CHECK(ParseUpdate("{$set: {'a.$.b': 1}}", "", scope).value()->NeedsPosition());
  CHECK_FALSE(ParseUpdate("{$set: {'a.$[].b': 1}}", "", scope).value()->NeedsPosition());
}

TEST_CASE("MayAffect tells which indexes can change", "[update]") {
  struct Row {
    const char* update;
    const char* path;
    bool affects;
  };
  const Row rows[] = {
      {"{$set: {a: 1}}", "a", true},
      {"{$set: {a: 1}}", "b", false},
      {"{$set: {a: 1}}", "a.b", true},
      {"{$set: {'a.b': 1}}", "a", true},
      {"{$set: {'a.b': 1}}", "a.c", false},
      {"{$set: {'a.b': 1}}", "ab", false},
      {"{$set: {'a.$.b': 1}}", "a.b", true},
      {"{$set: {'a.$.b': 1}}", "a.c", false},
      {"{$set: {'a.$[].b': 1}}", "a.b", true},
      {"{$set: {'a.$[].b': 1}}", "a.c", false},
      {"{$set: {'a.0.b': 1}}", "a.b", true},
      {"{$set: {'a.0.b': 1}}", "a.0.b", true},
      {"{$set: {'a.0.b': 1}}", "a.c", false},
      {"{$set: {'a.b': 1}}", "a.3.b", true},
      {"{$rename: {a: 'b'}}", "a", true},
      {"{$rename: {a: 'b'}}", "b", true},
      {"{$rename: {a: 'b'}}", "c", false},
      {"{$set: {a: 1}}", "$**", true},
      {"{b: 1}", "a", true},
      {"[{$set: {b: 1}}]", "a", true},
      {"{$set: {}}", "a", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.update, row.path);
    VariableScope scope;
    CHECK(ParseUpdate(row.update, "", scope).value()->MayAffect(row.path) == row.affects);
  }
}

TEST_CASE("An insert gets an _id, first", "[insert]") {
  std::string scratch;
  auto prepared = [&](const char* json) {
    BsonDocument doc = Doc(json);
    auto r = PrepareInsert(doc, kTestNow, &scratch);
    return r ? ToCanonicalJson(r.value()) : ErrorText(r.error());
  };
  SECTION("nothing to do: the same bytes") {
    BsonDocument doc = Doc("{_id: 1, a: 2, t: {x: {$timestamp: {t: 0, i: 0}}}}");
    auto r = PrepareInsert(doc, kTestNow, &scratch);
    REQUIRE(r);
    CHECK(r.value().data() == doc.view().data());
  }
  SECTION("moved first") {
    CHECK(prepared("{a: 1, _id: 5, b: 2}") == ToCanonicalJson(Doc("{_id: 5, a: 1, b: 2}")));
    CHECK(prepared("{$a: 1, _id: 5, 'b.c': 2}") ==
          ToCanonicalJson(Doc("{_id: 5, $a: 1, 'b.c': 2}")));
  }
  SECTION("generated") {
    BsonDocument doc = Doc("{a: 1}");
    auto r = PrepareInsert(doc, kTestNow, &scratch);
    REQUIRE(r);
    REQUIRE(r.value().First().name == "_id");
    CHECK(r.value()["_id"].Is(BsonType::kObjectId));
    CHECK(r.value()["a"].Int32() == 1);
    CHECK(r.value().Count() == 2);
  }
  SECTION("empty timestamps at the top") {
    BsonDocument doc =
        Doc("{_id: {$timestamp: {t: 0, i: 0}}, a: {$timestamp: {t: 0, i: 0}}, b: {$timestamp: {t: "
            "3, i: 1}}}");
    auto r = PrepareInsert(doc, kTestNow, &scratch);
    REQUIRE(r);
    CHECK(r.value()["_id"].Timestamp() == 0);
    CHECK(r.value()["a"].Timestamp() >> 32 == static_cast<uint64_t>(kTestNow.millis / 1000));
    CHECK(r.value()["b"].Timestamp() == (uint64_t{3} << 32 | 1));
  }
  SECTION("refused") {
    CHECK(prepared("{_id: [1]}") == "error 53 The '_id' value cannot be of type array");
    CHECK(prepared("{_id: {$regularExpression: {pattern: 'a', options: ''}}}") ==
          "error 53 The '_id' value cannot be of type regex");
    CHECK(prepared("{_id: {$undefined: true}}") ==
          "error 53 The '_id' value cannot be of type undefined");
    CHECK(prepared("{_id: {$a: 1}}") ==
          "error 52 _id fields may not contain '$'-prefixed fields: $a is not valid for storage.");
    CHECK_THAT(prepared("{_id: {b: [{$a: 1}]}}"), Catch::StartsWith("error 52"));
    CHECK_THAT(prepared("{_id: 1, a: 1, _id: 2}"), Catch::StartsWith("error 2"));
    BsonDocument big =
        BuildBson([&](BsonBuilder& b) { b.Append("a", std::string(16 << 20, 'x')); });
    auto r = PrepareInsert(big, kTestNow, &scratch);
    REQUIRE(!r);
    CHECK_THAT(r.error().message, Catch::StartsWith("object to insert too large. size in bytes: "));
  }
}

TEST_CASE("A deadline in a field of the document is there once", "[insert]") {
  ExpirySetting setting;
  std::string scratch;
  const BsonDocument once = Doc("{_id: 1, e: {$date: '2100-01-01T00:00:00Z'}, b: 1}");
  const Result<BsonView> rest = TakeDeadline(once.view(), "e", &setting, &scratch);
  REQUIRE(rest);
  CHECK(setting.given());
  CHECK(rest.value().Count() == 2);
  // The first was taken, and the others left out.
  const BsonDocument twice = Doc("{_id: 1, e: {$date: '2100-01-01T00:00:00Z'}, b: 1, e: null}");
  const Result<BsonView> refused = TakeDeadline(twice.view(), "e", &setting, &scratch);
  REQUIRE_FALSE(refused);
  CHECK(static_cast<int>(refused.error().code) == 40413);
  CHECK(refused.error().message == "BSON field 'e' is a duplicate field");
}

TEST_CASE("Timestamps of one second are unique and follow the clock", "[insert]") {
  uint64_t a = NextTimestamp({5'000}), b = NextTimestamp({5'999}), c = NextTimestamp({6'000}),
           d = NextTimestamp({2'000});
  CHECK(a >> 32 == 5);
  CHECK(b == a + 1);
  CHECK(c == (uint64_t{6} << 32 | 1));
  CHECK(d >> 32 == 2);
}

}  // namespace mayfly

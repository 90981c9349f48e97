#include "query/projection/projection.h"

#include "protocol/bson_builder.h"
#include "tests/unit/query/query_test_util.h"

using namespace mayfly;

namespace {

enum Dialect { kFind, kProject, kAddFields, kUnset };

Result<ProjectionPtr> Parse(Dialect dialect, BsonView spec, const MatchExpression* filter,
                            VariableScope& scope) {
  switch (dialect) {
    case kFind:
      return ParseFindProjection(spec, filter, scope);
    case kProject:
      return ParseAggProject(spec, scope);
    case kAddFields:
      return ParseAddFields(spec, scope);
    default:
      return ParseUnset(spec["u"], scope);
  }
}

struct ProjectionRow {
  Dialect dialect;
  const char *spec, *doc, *expected;
  const char* filter = "{}";
};

std::string Squeezed(BsonView doc) {
  std::string text = Text(doc);
  std::erase(text, ' ');
  return text;
}

void CheckProjections(const std::vector<ProjectionRow>& rows) {
  for (const ProjectionRow& row : rows) {
    CAPTURE(row.spec, row.doc, row.filter);
    VariableScope scope;
    MatchPtr filter = ParseMatch(Json(row.filter)).value();
    auto p = Parse(row.dialect, Json(row.spec), filter.get(), scope);
    if (!p.has_value()) FAIL(p.error().message);
    EvalContext ctx;
    ctx.variables.resize(static_cast<size_t>(scope.slots()));
    DocumentMetadata metadata;
    metadata.expire_at = Instant{5000};
    metadata.record_id = Value::Int64(77);
    metadata.index_key = Value::Copy(Json("{'k': 7}").view().AsValue());
    ctx.metadata = &metadata;
    ctx.now = Instant{1000};
    BsonDocument doc = Json(row.doc);
    auto r = p.value()->Apply(doc, ctx);
    if (!r.has_value()) FAIL(r.error().message);
    CHECK(Squeezed(r.value()) == Squeezed(Json(row.expected)));
  }
}

}  // namespace

TEST_CASE("Find projections: inclusion and exclusion", "[projection]") {
  CheckProjections({
      {kFind, "{}", "{'_id': 1, 'a': 2}", "{'_id': 1, 'a': 2}"},
      {kFind, "{'a': 1}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'a': 2}"},
      {kFind, "{'a': true}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'a': 2}"},
      {kFind, "{'a': 0.5}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'a': 2}"},
      {kFind, "{'b': 1, 'a': 1}", "{'_id': 1, 'a': 2, 'c': 0, 'b': 3}",
       "{'_id': 1, 'a': 2, 'b': 3}"},
      {kFind, "{'a': 1, '_id': 0}", "{'_id': 1, 'a': 2, 'b': 3}", "{'a': 2}"},
      {kFind, "{'_id': 0}", "{'_id': 1, 'a': 2}", "{'a': 2}"},
      {kFind, "{'_id': 1}", "{'_id': 1, 'a': 2}", "{'_id': 1}"},
      {kFind, "{'a': 0}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'b': 3}"},
      {kFind, "{'a': false, '_id': 1}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'b': 3}"},
      {kFind, "{'_id': 0, 'a': 0}", "{'_id': 1, 'a': 2, 'b': 3}", "{'b': 3}"},
      {kFind, "{'z': 1}", "{'_id': 1, 'a': 2}", "{'_id': 1}"},
      {kFind, "{'a.b': 1}", "{'_id': 1, 'a': {'b': 1, 'c': 2}, 'd': 3}",
       "{'_id': 1, 'a': {'b': 1}}"},
      {kFind, "{'a.b': 1}", "{'a': [{'b': 1, 'c': 2}, 5, {'c': 1}, [{'b': 3, 'c': 4}]]}",
       "{'a': [{'b': 1}, {}, [{'b': 3}]]}"},
      {kFind, "{'a.b': 1}", "{'a': 5}", "{}"},
      {kFind, "{'a.b': 1}", "{'a': {'c': 5}}", "{'a': {}}"},
      {kFind, "{'a': {'b': 1, 'c': 1}}", "{'a': {'b': 1, 'c': 2, 'd': 3}}",
       "{'a': {'b': 1, 'c': 2}}"},
      {kFind, "{'a': {'b': 1}, 'a.c': 1}", "{'a': {'b': 1, 'c': 2, 'd': 3}}",
       "{'a': {'b': 1, 'c': 2}}"},
      {kFind, "{'a.b': 0}", "{'a': {'b': 1, 'c': 2}, 'd': 3}", "{'a': {'c': 2}, 'd': 3}"},
      {kFind, "{'a.b': 0}", "{'a': [{'b': 1, 'c': 2}, 5, [{'b': 3}]]}",
       "{'a': [{'c': 2}, 5, [{}]]}"},
      {kFind, "{'a.b': 0}", "{'a': 5}", "{'a': 5}"},
      {kFind, "{'a.b.c': 1, 'a.d': 1}", "{'a': {'b': {'c': 1, 'x': 1}, 'd': 2, 'y': 1}}",
       "{'a': {'b': {'c': 1}, 'd': 2}}"},
      {kFind, "{'_id.x': 1}", "{'_id': {'x': 1, 'y': 2}, 'a': 1}", "{'_id': {'x': 1}}"},
      {kFind, "{'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': 1, 'f': 1, 'g': 1, 'h': 1, 'i': 1, 'j': 1}",
       "{'_id': 0, 'j': 1, 'x': 2, 'a': 3}", "{'_id': 0, 'j': 1, 'a': 3}"},
      {kFind, "{'a.$id': 1}", "{'a': {'$ref': 'c', '$id': 1}}", "{'a': {'$id': 1}}"},
  });
}

TEST_CASE("Find projections: $slice, $elemMatch, positional, $meta, expressions", "[projection]") {
  CheckProjections({
      {kFind, "{'a': {'$slice': 2}}", "{'_id': 1, 'a': [1, 2, 3], 'b': 4}",
       "{'_id': 1, 'a': [1, 2], 'b': 4}"},
      {kFind, "{'a': {'$slice': -2}}", "{'a': [1, 2, 3]}", "{'a': [2, 3]}"},
      {kFind, "{'a': {'$slice': 0}}", "{'a': [1, 2, 3]}", "{'a': []}"},
      {kFind, "{'a': {'$slice': 10}}", "{'a': [1, 2, 3]}", "{'a': [1, 2, 3]}"},
      {kFind, "{'a': {'$slice': -10}}", "{'a': [1, 2, 3]}", "{'a': [1, 2, 3]}"},
      {kFind, "{'a': {'$slice': [1, 1]}}", "{'a': [1, 2, 3]}", "{'a': [2]}"},
      {kFind, "{'a': {'$slice': [-2, 1]}}", "{'a': [1, 2, 3]}", "{'a': [2]}"},
      {kFind, "{'a': {'$slice': [-9, 2]}}", "{'a': [1, 2, 3]}", "{'a': [1, 2]}"},
      {kFind, "{'a': {'$slice': [9, 2]}}", "{'a': [1, 2, 3]}", "{'a': []}"},
      {kFind, "{'a': {'$slice': 1}}", "{'a': 'x'}", "{'a': 'x'}"},
      {kFind, "{'a': {'$slice': 1}, 'b': 1}", "{'_id': 1, 'a': [1, 2], 'b': 4, 'c': 5}",
       "{'_id': 1, 'a': [1], 'b': 4}"},
      {kFind, "{'a': {'$slice': 1}, 'b': 0}", "{'a': [1, 2], 'b': 4, 'c': 5}",
       "{'a': [1], 'c': 5}"},
      {kFind, "{'a.b': {'$slice': 1}}", "{'a': [{'b': [1, 2]}, {'b': [3, 4], 'c': 1}]}",
       "{'a': [{'b': [1]}, {'b': [3], 'c': 1}]}"},
      {kFind, "{'x': {'$slice': ['$a', 2]}}", "{'_id': 1, 'a': [1, 2, 3]}",
       "{'_id': 1, 'x': [1, 2]}"},
      {kFind, "{'a': {'$elemMatch': {'b': 2}}}",
       "{'_id': 1, 'a': [{'b': 1}, {'b': 2, 'c': 3}, {'b': 2}], 'd': 1}",
       "{'_id': 1, 'a': [{'b': 2, 'c': 3}]}"},
      {kFind, "{'a': {'$elemMatch': {'$gt': 5}}}", "{'_id': 1, 'a': [1, 7, 9]}",
       "{'_id': 1, 'a': [7]}"},
      {kFind, "{'a': {'$elemMatch': {'b': 9}}}", "{'_id': 1, 'a': [{'b': 1}]}", "{'_id': 1}"},
      {kFind, "{'a': {'$elemMatch': {'b': 9}}}", "{'_id': 1, 'a': 5}", "{'_id': 1}"},
      {kFind, "{'a': {'$elemMatch': {'b': 1}}, 'c': 1}", "{'_id': 1, 'a': [{'b': 1}], 'c': 2}",
       "{'_id': 1, 'c': 2, 'a': [{'b': 1}]}"},
      {kFind, "{'a.$': 1}", "{'_id': 1, 'a': [1, 2, 3], 'b': 1}", "{'_id': 1, 'a': [2]}",
       "{'a': 2}"},
      {kFind, "{'a.$': 1, 'b': 1}", "{'a': [{'x': 1}, {'x': 2}], 'b': 1, 'c': 1}",
       "{'a': [{'x': 2}], 'b': 1}", "{'a.x': 2}"},
      {kFind, "{'a.b.$': 1}", "{'a': {'b': [4, 5], 'c': 1}}", "{'a': {'b': [5]}}",
       "{'a.b': {'$gte': 5}}"},
      {kFind, "{'a.$': 1}", "{'a': [1, 2, 3]}", "{'a': [3]}", "{'a': {'$elemMatch': {'$gt': 2}}}"},
      {kFind, "{'a.$': 1}", "{'a': 2}", "{'a': 2}", "{'a': 2}"},
      {kFind, "{'e': {'$meta': 'expireAt'}}", "{'_id': 1, 'a': 2}",
       "{'_id': 1, 'a': 2, 'e': {'$date': {'$numberLong': '5000'}}}"},
      {kFind, "{'t': {'$meta': 'ttlMillis'}, 'a': 1}", "{'_id': 1, 'a': 2, 'b': 3}",
       "{'_id': 1, 'a': 2, 't': 4000}"},
      {kFind, "{'t': {'$meta': 'ttlMillis'}, 'a': 0}", "{'_id': 1, 'a': 2, 'b': 3}",
       "{'_id': 1, 'b': 3, 't': 4000}"},
      {kFind, "{'r': {'$meta': 'recordId'}, '_id': 0}", "{'_id': 1, 'a': 2}", "{'a': 2, 'r': 77}"},
      {kFind, "{'a': 1, 'r': {'$meta': 'indexKey'}, '_id': 0}", "{'_id': 1, 'a': 2}",
       "{'a': 2, 'r': {'k': 7}}"},
      {kFind, "{'x': '$a'}", "{'_id': 1, 'a': 2}", "{'_id': 1, 'x': 2}"},
      {kFind, "{'x': 'text'}", "{'_id': 1}", "{'_id': 1, 'x': 'text'}"},
      {kFind, "{'x': {'$add': ['$a', 1]}, 'a': 1}", "{'_id': 1, 'a': 2}",
       "{'_id': 1, 'a': 2, 'x': 3}"},
      {kFind, "{'a': '$$REMOVE', 'b': 1}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'b': 3}"},
      {kFind, "{'x': ['$a', 5]}", "{'_id': 1, 'a': 2}", "{'_id': 1, 'x': [2, 5]}"},
      {kFind, "{'x': {'$literal': 1}}", "{'_id': 1, 'a': 2}", "{'_id': 1, 'x': 1}"},
      {kFind, "{'_id': {'$add': ['$_id', 1]}}", "{'_id': 1, 'a': 2}", "{'_id': 2}"},
      {kFind, "{'x.y': '$a'}", "{'_id': 1, 'a': 2}", "{'_id': 1, 'x': {'y': 2}}"},
      {kFind, "{'x': null}", "{'_id': 1}", "{'_id': 1, 'x': null}"},
  });
}

TEST_CASE("$project, $addFields and $unset", "[projection]") {
  CheckProjections({
      {kProject, "{'a': 1}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'a': 2}"},
      {kProject, "{'a': 0}", "{'_id': 1, 'a': 2, 'b': 3}", "{'_id': 1, 'b': 3}"},
      {kProject, "{'a': {'b': 1, 'c': '$x'}}", "{'a': {'b': 1, 'd': 2}, 'x': 5}",
       "{'a': {'b': 1, 'c': 5}}"},
      {kProject, "{'a.c': '$x'}", "{'a': [1, {'b': 1}, [2]], 'x': 5}",
       "{'a': [{'c': 5}, {'c': 5}, [{'c': 5}]]}"},
      {kProject, "{'x': '$a', 'y': {'$slice': ['$b', 1]}}", "{'_id': 1, 'a': 2, 'b': [3, 4]}",
       "{'_id': 1, 'x': 2, 'y': [3]}"},
      {kProject, "{'_id': 0, 'x': '$missing'}", "{'a': 1}", "{}"},
      {kProject, "{'a': '$b', 'c': 1}", "{'a': 1, 'b': 2, 'c': 3}", "{'c': 3, 'a': 2}"},
      {kAddFields, "{'b': 5}", "{'_id': 1, 'a': 2}", "{'_id': 1, 'a': 2, 'b': 5}"},
      {kAddFields, "{'a': '$b'}", "{'a': 1, 'b': 2}", "{'a': 2, 'b': 2}"},
      {kAddFields, "{'a': '$$REMOVE'}", "{'a': 1, 'b': 2}", "{'b': 2}"},
      {kAddFields, "{'a.c': 5}", "{'a': {'b': 1}}", "{'a': {'b': 1, 'c': 5}}"},
      {kAddFields, "{'a.c': 5}", "{'a': 7}", "{'a': {'c': 5}}"},
      {kAddFields, "{'a.c': 5}", "{}", "{'a': {'c': 5}}"},
      {kAddFields, "{'a.c': '$z'}", "{}", "{'a': {}}"},
      {kAddFields, "{'a.c': 5}", "{'a': [1, {'b': 2}, {'c': 1}]}",
       "{'a': [{'c': 5}, {'b': 2, 'c': 5}, {'c': 5}]}"},
      {kAddFields, "{'a': {'b': {'c': '$x'}}}", "{'a': {'b': {'d': 1}}, 'x': 3}",
       "{'a': {'b': {'d': 1, 'c': 3}}, 'x': 3}"},
      {kAddFields, "{'a': '$b', 'b': '$a'}", "{'a': 1, 'b': 2}", "{'a': 2, 'b': 1}"},
      {kAddFields, "{'a': []}", "{}", "{'a': []}"},
      {kUnset, "{'u': 'a'}", "{'_id': 1, 'a': 1, 'b': 2}", "{'_id': 1, 'b': 2}"},
      {kUnset, "{'u': ['a.b', '_id']}", "{'_id': 1, 'a': {'b': 1, 'c': 2}}", "{'a': {'c': 2}}"},
  });
}

TEST_CASE("Bad projections get MongoDB's codes", "[projection]") {
  struct Bad {
    Dialect dialect;
    const char* spec;
    int code;
    const char* text;
  };
  for (const Bad& row : std::vector<Bad>{
           {kFind, "{'a': 0, 'b': 1}", 31253,
            "Cannot do inclusion on field b in exclusion projection"},
           {kFind, "{'a': 1, 'b': 0}", 31254,
            "Cannot do exclusion on field b in inclusion projection"},
           {kFind, "{'a': 1, 'b.c': 0}", 31254,
            "Cannot do exclusion on field b.c in inclusion projection"},
           {kFind, "{'a': 1, 'a.b': 1}", 31249, "Path collision at a.b remaining portion b"},
           {kFind, "{'a.b': 1, 'a': 1}", 31250, "Path collision at a"},
           {kFind, "{'a': 0, 'x': '$y'}", 31252,
            "Cannot use expression other than $meta in exclusion projection"},
           {kFind, "{'a': {}}", 51270, "An empty sub-projection is not a valid value"},
           {kFind, "{'a': {'$foo': 1}}", 31325, "Unknown expression $foo"},
           {kFind, "{'$a': 1}", 16410, "FieldPath field names may not start with '$'"},
           {kFind, "{'a.': 1}", 40353, "FieldPath must not end with a '.'."},
           {kFind, "{'a..b': 1}", 15998, "FieldPath field names may not be empty strings."},
           {kFind, "{'': 1}", 40352, "FieldPath cannot be constructed with empty string"},
           {kFind, "{'a': {'$slice': 'x'}}", 28667, "Invalid $slice syntax"},
           {kFind, "{'a': {'$slice': [1]}}", 28667, "Invalid $slice syntax"},
           {kFind, "{'a': {'$slice': [1, 0]}}", 28724, "First argument to $slice must be an array"},
           {kFind, "{'a': {'$elemMatch': 1}}", 31274,
            "elemMatch: Invalid argument, object required, but got int"},
           {kFind, "{'a.b': {'$elemMatch': {'c': 1}}}", 31255,
            "Cannot use $elemMatch projection on a nested field."},
           {kFind, "{'a': {'$elemMatch': {'$foo': 1}}}", 2, "unknown operator: $foo"},
           {kFind, "{'a.$': 1, 'b.$': 1}", 31276,
            "Cannot specify more than one positional projection per query."},
           {kFind, "{'a.$': 1, 'b': {'$elemMatch': {'c': 1}}}", 31256,
            "Cannot specify positional operator and $elemMatch."},
           {kFind, "{'a.$': 0}", 31395, "positional projection cannot be used with exclusion"},
           {kFind, "{'a.$': 'x'}", 31308, "positional projection cannot be used with a literal"},
           {kFind, "{'a.$.b': 1}", 31394, "Positional projection may only be used at the end"},
           {kFind, "{'a.$': {'$slice': 1}}", 31271,
            "positional projection cannot be used with an expression or sub object"},
           {kFind, "{'a': {'$meta': 'foo'}}", 17308, "Unsupported argument to $meta: foo"},
           {kFind, "{'a': {'$meta': 'textScore'}}", 40218,
            "query requires text score metadata, but it is not available"},
           {kProject, "{}", 51272,
            "Invalid $project :: caused by :: projection specification must have at least one "
            "field"},
           {kProject, "{'a': 1, 'b': 0}", 31254,
            "Invalid $project :: caused by :: Cannot do exclusion"},
           {kProject, "{'a.$': 1}", 31324,
            "Cannot use positional projection in aggregation projection"},
           {kProject, "{'a': {'$foo': 1}}", 31325,
            "Invalid $project :: caused by :: Unknown expression $foo"},
           {kProject, "{'a': 1, 'a.b': '$x'}", 31249, "Path collision"},
           {kAddFields, "{}", 40177, "must have at least one field"},
           {kAddFields, "{'a': {}}", 40180, "an empty object is not a valid value"},
           {kAddFields, "{'a': 1, 'a.b': 2}", 40176, "Cannot specify both 'a.b' and 'a'"},
           {kAddFields, "{'a.b': 1, 'a': 2}", 40176, "Cannot specify both 'a' and 'a.b'"},
           {kAddFields, "{'a': {'b': {'c': 1}}, 'a.b': 2}", 40176,
            "Cannot specify both 'a.b' and 'a.b.c'"},
           {kAddFields, "{'a': {'$foo': 1}}", 168, "Unrecognized expression '$foo'"},
           {kAddFields, "{'a.$': 1}", 16410, "may not start with '$'"},
           {kUnset, "{'u': 1}", 31002, "must be a string or an array"},
           {kUnset, "{'u': []}", 31119, "at least one field"},
           {kUnset, "{'u': [1]}", 31120, "only string values"},
           {kUnset, "{'u': ['a', 'a.b']}", 31249, "Path collision"},
       }) {
    CAPTURE(row.spec);
    VariableScope scope;
    MatchPtr filter = ParseMatch(Json("{'a': 1}")).value();
    auto r = Parse(row.dialect, Json(row.spec), filter.get(), scope);
    REQUIRE(r.has_error());
    CAPTURE(r.error().message);
    CHECK(static_cast<int>(r.error().code) == row.code);
    CHECK(r.error().message.find(row.text) != std::string::npos);
  }
}

TEST_CASE("A positional projection needs a position", "[projection]") {
  VariableScope scope;
  MatchPtr filter = ParseMatch(Json("{'b': 1}")).value();
  auto p = ParseFindProjection(Json("{'a.$': 1}"), filter.get(), scope);
  EvalContext ctx;
  auto none = p.value()->Apply(Json("{'a': [1], 'b': 1}"), ctx);
  REQUIRE(none.has_error());
  CHECK(static_cast<int>(none.error().code) == 51246);
  auto outside = p.value()->Apply(Json("{'a': [1], 'b': [0, 1]}"), ctx);
  REQUIRE(outside.has_error());
  CHECK(static_cast<int>(outside.error().code) == 51247);
  CHECK(static_cast<int>(ParseFindProjection(Json("{'a.$': 1}"), nullptr, scope).error().code) ==
        51050);
}

TEST_CASE("What a projection reads, and what it leaves alone", "[projection]") {
  VariableScope scope;
  auto find = [&](const char* spec) {
    return ParseFindProjection(Json(spec), nullptr, scope).value();
  };
  CHECK(find("{}")->identity());
  CHECK(find("{}")->needs().whole_document);
  CHECK(find("{'a': 1, '_id': 0}")->coverable());
  CHECK(find("{'a': 1, '_id': 0}")->needs().paths == std::set<std::string>{"a"});
  CHECK(find("{'a.b': 1}")->needs().paths == std::set<std::string>{"_id", "a.b"});
  CHECK_FALSE(find("{'a.b': 1}")->needs().whole_document);
  CHECK_FALSE(find("{'a': 0}")->coverable());
  CHECK(find("{'a': 0}")->needs().whole_document);
  CHECK(find("{'x': '$a.b', '_id': 0}")->needs().paths == std::set<std::string>{"a.b"});
  CHECK_FALSE(find("{'x': '$a.b', '_id': 0}")->coverable());
  CHECK(find("{'x': '$$ROOT'}")->needs().whole_document);
  CHECK(find("{'x': {'$meta': 'ttlMillis'}}")->needs().expire_at);
  CHECK_FALSE(find("{'a': {'$slice': 1}, 'b': 1}")->coverable());

  CHECK_FALSE(find("{'a': 1}")->Touches("a.b"));
  CHECK(find("{'a': 1}")->Touches("b"));
  CHECK(find("{'a.b': 1}")->Touches("a"));
  CHECK_FALSE(find("{'a': 0}")->Touches("b"));
  CHECK(find("{'a': 0}")->Touches("a.b"));
  CHECK(find("{'a.b': 0}")->Touches("a"));
  CHECK_FALSE(find("{'a.b': 0}")->Touches("a.c"));
}

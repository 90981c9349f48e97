#include <catch2/catch.hpp>

#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "protocol/large_memory.h"
#include "query/expression/operator.h"

using namespace mayfly;

namespace {

BsonDocument JsonDoc(std::string_view text) {
  Result<BsonDocument> doc = ParseJson(text);
  INFO(text);
  if (!doc) FAIL(std::string(text) + ": " + doc.error().message);
  return doc.value();
}

/// Without blanks: JSON is the same with more or fewer of them.
std::string Squeeze(std::string text) {
  std::erase(text, ' ');
  return text;
}

/// The value of an expression, in relaxed extended JSON ("missing"), or "error <code>".
std::string Run(std::string_view expression, std::string_view document = "{}") {
  BsonDocument wrapped = JsonDoc("{\"e\": " + std::string(expression) + "}"),
               doc = JsonDoc(document);
  VariableScope scope;
  Result<ExpressionPtr> e = ParseExpression(wrapped.view()["e"], scope);
  if (!e) return "error " + std::to_string(static_cast<int>(e.error().code));
  EvalContext ctx;
  ctx.root = doc;
  ctx.now = Instant{1700000000000};
  ctx.variables.resize(scope.slots());
  Result<Value> v = e.value()->Evaluate(ctx);
  if (!v) return "error " + std::to_string(static_cast<int>(v.error().code));
  return ValueText(v.value());
}

}  // namespace

TEST_CASE("Many variables are found by name, the innermost first", "[expression]") {
  VariableScope scope;
  std::vector<VariableId> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(scope.Define("v" + std::to_string(i)));
  for (int i = 0; i < 200; ++i) CHECK(scope.Lookup("v" + std::to_string(i)) == ids[i]);
  const VariableId inner = scope.Define("v7");
  CHECK(scope.Lookup("v7") == inner);
  scope.Undefine(inner);
  CHECK(scope.Lookup("v7") == ids[7]);
  for (int i = 200; i-- > 3;) {
    scope.Undefine(ids[i]);
    CHECK_FALSE(scope.Lookup("v" + std::to_string(i)));
    CHECK(scope.Lookup("v2") == ids[2]);
  }
  CHECK(scope.Lookup("ROOT") == VariableScope::kRoot);
  CHECK_FALSE(scope.Lookup("v"));
}

TEST_CASE("Every operator's example gives what it says", "[expression]") {
  for (auto table : AllOperatorTables()) {
    std::string_view before;
    for (const OperatorDef& def : table) {
      INFO(def.name);
      CHECK(before < def.name);  // rows are sorted by name
      before = def.name;
      CHECK(!def.text.empty());
      CHECK((def.eval != nullptr) + (def.lazy != nullptr) + (def.parse != nullptr) == 1);
      if (def.example.empty()) {
        CHECK(def.text.starts_with("Refused"));
        continue;
      }
      size_t arrow = def.example.rfind(" => ");
      REQUIRE(arrow != std::string_view::npos);
      BsonDocument expected =
          JsonDoc("{\"r\": " + std::string(def.example.substr(arrow + 4)) + "}");
      BsonDocument wrapped = JsonDoc("{\"e\": " + std::string(def.example.substr(0, arrow)) + "}");
      VariableScope scope;
      Result<ExpressionPtr> e = ParseExpression(wrapped.view()["e"], scope);
      if (!e) FAIL(std::string(def.name) + ": " + e.error().message);
      EvalContext ctx;
      ctx.variables.resize(scope.slots());
      Result<Value> v = e.value()->Evaluate(ctx);
      if (!v) FAIL(std::string(def.name) + ": " + v.error().message);
      BsonDocument got = BuildBson([&](BsonBuilder& b) { b.Append("r", v.value().view()); });
      CHECK(ToCanonicalJson(got) == ToCanonicalJson(expected));
    }
  }
}

TEST_CASE("Operators serialize to something that parses to the same", "[expression]") {
  for (auto table : AllOperatorTables())
    for (const OperatorDef& def : table) {
      if (def.example.empty()) continue;
      INFO(def.name);
      size_t arrow = def.example.rfind(" => ");
      BsonDocument wrapped = JsonDoc("{\"e\": " + std::string(def.example.substr(0, arrow)) + "}");
      VariableScope scope;
      ExpressionPtr first = std::move(ParseExpression(wrapped.view()["e"], scope)).value();
      BsonDocument once = BuildBson([&](BsonBuilder& b) { first->Serialize(b, "e"); });
      Result<ExpressionPtr> second = ParseExpression(once.view()["e"], scope);
      if (!second) FAIL(second.error().message);
      BsonDocument twice = BuildBson([&](BsonBuilder& b) { second.value()->Serialize(b, "e"); });
      CHECK(ToCanonicalJson(once) == ToCanonicalJson(twice));
    }
}

TEST_CASE("Field paths go through documents and arrays", "[expression]") {
  struct Case {
    const char* path;
    const char* value;
  };
  const char* doc =
      R"({"a": 1, "b": {"c": 2}, "l": [{"x": 1}, {"x": [2, 3]}, 4, [{"x": 5}], {"y": 6}], "e": []})";
  for (Case c : std::vector<Case>{{"\"$a\"", "1"},
                                  {"\"$b.c\"", "2"},
                                  {"\"$$ROOT.b.c\"", "2"},
                                  {"\"$$CURRENT.b.c\"", "2"},
                                  {"\"$a.b\"", "missing"},
                                  {"\"$none\"", "missing"},
                                  {"\"$l.x\"", "[ 1, [ 2, 3 ] ]"},
                                  {"\"$l.0\"", "[  ]"},
                                  {"\"$e.x\"", "[  ]"},
                                  {"\"$\"", "error 16872"},
                                  {"\"$a.\"", "error 40353"},
                                  {"\"$a..b\"", "error 15998"},
                                  {"\"$a.$b\"", "error 16410"},
                                  {"\"$e.$id\"", "[  ]"},
                                  {"\"$a.$ref.$db\"", "missing"},
                                  {"\"$$unknown\"", "error 17276"},
                                  {"{\"k\": \"$none\", \"a\": \"$a\"}", "{ \"a\" : 1 }"},
                                  {"[\"$none\", \"$a\"]", "[ null, 1 ]"},
                                  {"{\"$nope\": 1}", "error 168"},
                                  {"{\"$add\": 1, \"$subtract\": 2}", "error 15983"},
                                  {"{\"a.b\": 1}", "error 16412"}}) {
    INFO(c.path);
    CHECK(Squeeze(Run(c.path, doc)) == Squeeze(c.value));
  }
}

TEST_CASE("An argument that is there twice is refused: the last was taken", "[expression]") {
  for (const char* expression :
       {R"({"$let": {"vars": {"a": 1, "a": 2}, "in": "$$a"}})",
        R"({"$let": {"vars": {"a": 1}, "vars": {"a": 2}, "in": "$$a"}})",
        R"({"$map": {"input": [1], "in": 1, "in": 2}})",
        R"({"$filter": {"input": [1], "input": [2], "cond": true}})",
        R"({"$filter": {"input": [1], "cond": true, "limit": 1, "limit": 2}})",
        R"({"$reduce": {"input": [1], "initialValue": 1, "initialValue": 2, "in": "$$value"}})",
        R"({"$map": {"input": [1], "arrayIndexAs": "i", "arrayIndexAs": "j", "in": 1}})",
        R"({"$cond": {"if": true, "then": 1, "then": 2, "else": 3}})",
        R"({"$switch": {"branches": [{"case": true, "then": 1, "then": 2}]}})",
        // Branches of both lists counted.
        R"({"$switch": {"branches": [{"case": true, "then": 1}], "branches": []}})",
        R"({"$switch": {"branches": [{"case": true, "then": 1}], "default": 1, "default": 2}})",
        R"({"$zip": {"inputs": [[1]], "inputs": [[2]]}})",
        R"({"$zip": {"inputs": [[1]], "useLongestLength": true, "useLongestLength": false}})",
        R"({"$sortArray": {"input": [1, 2], "sortBy": 1, "sortBy": -1}})",
        R"({"$getField": {"field": "a", "field": "b", "input": {}}})",
        R"({"$setField": {"field": "a", "input": {}, "value": 1, "value": 2}})",
        R"({"$unsetField": {"field": "a", "field": "b", "input": {}}})",
        R"({"$convert": {"input": "1", "to": "string", "to": "int"}})",
        R"({"$dateFromParts": {"year": 2000, "year": 2001}})",
        R"({"$year": {"date": "$a", "date": "$b"}})",
        R"({"$firstN": {"input": [1, 2], "n": 1, "n": 2}})",
        R"({"$regexMatch": {"input": "x", "regex": "X", "options": "", "options": "i"}})",
        R"({"a": 1, "a": 2})", R"({"a": {"b": "$x", "c": 1, "b": "$y"}})"}) {
    INFO(expression);
    CHECK(Run(expression) == "error 40413");
  }
  CHECK(Run(R"({"$sortArray": {"input": [], "sortBy": {"a": 1, "b": 1, "a": -1}}})") ==
        "error 7472500");
  // A literal is a value like any other.
  CHECK(Squeeze(Run(R"({"$literal": {"a": 1, "a": 2}})")) == R"({"a":1,"a":2})");
  CHECK(Run(R"({"$sum": [1, 1]})") == "2");
}

TEST_CASE("Numbers keep the narrowest type that holds the result", "[expression]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (
      Case c : std::vector<Case>{
          {R"({"$add": [2147483647, 1]})", "2147483648"},
          {R"({"$type": {"$add": [2147483647, 1]}})", "\"long\""},
          {R"({"$type": {"$add": [{"$numberLong": "9223372036854775807"}, 1]}})", "\"double\""},
          {R"({"$type": {"$multiply": [2, 3]}})", "\"int\""},
          {R"({"$type": {"$add": [1, {"$numberDecimal": "1.5"}]}})", "\"decimal\""},
          {R"({"$add": []})", "0"},
          {R"({"$add": [1, null]})", "null"},
          {R"({"$add": [1, "x"]})", "error 14"},
          {R"({"$divide": [1, 0]})", "error 2"},
          {R"({"$mod": [1, 0]})", "error 16610"},
          {R"({"$abs": "x"})", "error 28765"},
          {R"({"$abs": {"$numberLong": "-9223372036854775808"}})", "error 28680"},
          {R"({"$divide": [1]})", "error 16020"},
          {R"({"$round": [1, 2, 3]})", "error 28667"},
          {R"({"$round": [15, -1]})", "20"},
          {R"({"$round": 2.5})", "2.0"},
          {R"({"$pow": [2, 63]})", "9223372036854775808.0"},
          {R"({"$pow": [2, -1]})", "0.5"},
          {R"({"$subtract": [{"$date": {"$numberLong": "1000"}}, {"$date": {"$numberLong": "400"}}]})",
           "600"},
          {R"({"$subtract": [{"$date": {"$numberLong": "1000"}}, 400]})",
           R"({ "$date" : "1970-01-01T00:00:00.6Z" })"}}) {
    INFO(c.expression);
    std::string got = Run(c.expression);
    if (std::string_view(c.value).starts_with("{ \"$date\""))
      CHECK(got.find("$date") != got.npos);
    else
      CHECK(got == c.value);
  }
}

TEST_CASE("Variables are visible where they should be and nowhere else", "[expression]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (
      Case c : std::vector<Case>{
          {R"({"$let": {"vars": {"a": 1}, "in": {"$let": {"vars": {"a": 2, "b": "$$a"}, "in": ["$$a", "$$b"]}}}})",
           "[ 2, 1 ]"},
          {R"([{"$let": {"vars": {"a": 1}, "in": "$$a"}}, "$$a"])", "error 17276"},
          {R"({"$map": {"input": [[1, 2], [3]], "as": "r", "in": {"$map": {"input": "$$r", "in": {"$add": ["$$this", {"$size": "$$r"}]}}}}})",
           "[ [ 3, 4 ], [ 4 ] ]"},
          {R"({"$let": {"vars": {"CURRENT": {"z": 9}}, "in": "$z"}})", "9"},
          {R"({"$let": {"vars": {"Bad": 1}, "in": 1}})", "error 9"},
          {R"({"$filter": {"input": 3, "cond": true}})", "error 28651"},
          {R"({"$reduce": {"input": [1, 2, 3], "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}})",
           "6"},
          {R"({"$map": {"input": [7, 8], "in": ["$$this", "$$IDX"]}})", "[[7, 0], [8, 1]]"},
          {R"({"$map": {"input": [[1], [2]], "arrayIndexAs": "i", "in": {"$map": {"input": "$$this", "in": ["$$i", "$$IDX"]}}}})",
           "[[[0, 0]], [[1, 0]]]"},
          {R"({"$filter": {"input": [7, 8], "arrayIndexAs": "i", "cond": "$$i"}})", "[8]"},
          {R"({"$reduce": {"input": [5, 6], "initialValue": 1, "as": "x", "valueAs": "v", "arrayIndexAs": "i", "in": {"$add": ["$$v", "$$x", "$$i"]}}})",
           "13"},
          {R"({"$map": {"input": [7], "arrayIndexAs": "i", "in": "$$IDX"}})", "error 17276"},
          {R"({"$map": {"input": [7], "as": "i", "arrayIndexAs": "i", "in": 1}})", "error 9"},
          {R"({"$map": {"input": [7], "arrayIndexAs": 1, "in": 1}})", "error 14"},
          {R"({"$cond": [true, 1]})", "error 16020"},
          {R"({"$switch": {"branches": [{"case": false, "then": 1}]}})", "error 40066"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
}

TEST_CASE("Errors and null of the operators", "[expression]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (
      Case c : std::vector<Case>{
          {R"({"$arrayElemAt": [[1, 2], 5]})", "missing"},
          {R"({"$arrayElemAt": ["x", 0]})", "error 28689"},
          {R"({"$arrayElemAt": [[1], "x"]})", "error 28690"},
          {R"({"$arrayElemAt": [[1], 1.5]})", "error 28691"},
          {R"({"$first": [[]]})", "missing"},
          {R"({"$size": "$none"})", "error 17124"},
          {R"({"$in": [1, "x"]})", "error 40081"},
          {R"({"$concatArrays": [[1], null]})", "null"},
          {R"({"$concatArrays": [[1], 2]})", "error 28664"},
          {R"({"$slice": [[1, 2, 3], -2]})", "[2, 3]"},
          {R"({"$slice": [[1, 2, 3], -5, 2]})", "[1, 2]"},
          {R"({"$slice": [[1, 2, 3], 1, 0]})", "error 28729"},
          {R"({"$range": [0, 10, 0]})", "error 34449"},
          {R"({"$range": [5, 0, -2]})", "[5, 3, 1]"},
          {R"({"$range": [0, 2147483647]})", "error 146"},
          {R"({"$zip": {"inputs": []}})", "error 34465"},
          {R"({"$arrayToObject": [[["a", 1], {"k": "b", "v": 2}]]})", "error 40396"},
          {R"({"$arrayToObject": {"$literal": [{"k": "a"}]}})", "error 40392"},
          {R"({"$setUnion": [[1], 2]})", "error 17043"},
          {R"({"$concat": ["a", 1]})", "error 16702"},
          {R"({"$concat": ["a", null]})", "null"},
          {R"({"$substrBytes": ["é", 1, 1]})", "error 28656"},
          {R"({"$substrBytes": ["é", 0, 1]})", "error 28657"},
          {R"({"$substrCP": ["abc", -1, 1]})", "error 34455"},
          {R"({"$split": ["a", ""]})", "error 40087"},
          {R"({"$toUpper": null})", "\"\""},
          {R"({"$strLenCP": null})", "error 34471"},
          {R"({"$indexOfCP": ["abcb", "b", 2]})", "3"},
          {R"({"$indexOfBytes": ["abc", "b", 5]})", "-1"},
          {R"({"$replaceAll": {"input": "ab", "find": "", "replacement": "-"}})", "\"-a-b-\""},
          {R"({"$regexMatch": {"input": 1, "regex": "a"}})", "error 51104"},
          {R"({"$regexMatch": {"input": "a", "regex": "("}})", "error 51111"},
          {R"({"$regexMatch": {"input": null, "regex": "a"}})", "false"},
          {R"({"$regexFindAll": {"input": "éa", "regex": ""}})",
           R"([{"match": "", "idx": 0, "captures": []}, {"match": "", "idx": 1, "captures": []}])"},
          {R"({"$regexFindAll": {"input": "", "regex": ""}})",
           R"([{"match": "", "idx": 0, "captures": []}])"},
          {R"({"$toInt": "x"})", "error 241"},
          {R"({"$toInt": 3000000000})", "error 241"},
          {R"({"$toInt": null})", "null"},
          {R"({"$toLong": {"$date": {"$numberLong": "5"}}})", "5"},
          {R"({"$convert": {"input": "1", "to": "foo"}})", "error 2"},
          {R"({"$convert": {"input": null, "to": "int", "onNull": 7}})", "7"},
          {R"({"$toString": 100000})", "\"100000\""},
          {R"({"$toString": 1e20})", "\"1e+20\""},
          {R"({"$toString": {"$date": "2030-01-31T10:00:00.5Z"}})", "\"2030-01-31T10:00:00.500Z\""},
          {R"({"$year": "x"})", "error 16006"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "Nowhere/City"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "../zoneinfo/UTC"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "/etc/passwd"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "posix/UTC"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "right/Europe/Berlin"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "posixrules"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "libc:localtime"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "Fixed/UTC+01:00:00"}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "."}})",
           "error 40485"},
          {R"({"$year": {"date": {"$date": {"$numberLong": "0"}}, "timezone": "europe/berlin"}})",
           "error 40485"},
          // A skipped hour, a repeated one, and before there were zones.
          {R"({"$dateFromParts": {"year": 2030, "month": 3, "day": 31, "hour": 2, "minute": 30, "timezone": "Europe/Berlin"}})",
           R"({"$date": "2030-03-31T01:30:00Z"})"},
          {R"({"$dateFromParts": {"year": 2030, "month": 10, "day": 27, "hour": 2, "minute": 30, "timezone": "Europe/Berlin"}})",
           R"({"$date": "2030-10-27T00:30:00Z"})"},
          {R"({"$minute": {"date": {"$date": {"$numberLong": "-3000000000000"}}, "timezone": "Asia/Kolkata"}})",
           "1"},
          {R"({"$hour": {"date": {"$date": "2030-07-01T00:00:00Z"}, "timezone": "Europe/Berlin"}})",
           "2"},
          {R"({"$hour": {"date": {"$date": "2030-01-01T00:00:00Z"}, "timezone": "Europe/Berlin"}})",
           "1"},
          {R"({"$dayOfMonth": {"date": {"$date": {"$numberLong": "-1"}}}})", "31"},
          {R"({"$dateToString": {"date": {"$date": {"$numberLong": "0"}}, "format": "%q"}})",
           "error 18536"},
          {R"({"$dateToString": {"date": null, "onNull": "none"}})", "\"none\""},
          {R"({"$dateFromString": {"dateString": "nonsense"}})", "error 241"},
          {R"({"$dateFromString": {"dateString": "nonsense", "onError": 1}})", "1"},
          {R"({"$dateFromString": {"dateString": "2030-02-30"}})", "error 241"},
          {R"({"$dateFromParts": {"month": 1}})", "error 40516"},
          {R"({"$dateFromParts": {"year": 0}})", "error 40523"},
          {R"({"$toString": {"$dateAdd": {"startDate": {"$date": "2030-03-30T12:00:00Z"}, "unit": "day", "amount": 1, "timezone": "Europe/Berlin"}}})",
           "\"2030-03-31T11:00:00.000Z\""},
          {R"({"$toString": {"$dateTrunc": {"date": {"$date": "2030-03-20T11:37:00Z"}, "unit": "week", "startOfWeek": "monday"}}})",
           "\"2030-03-18T00:00:00.000Z\""},
          {R"({"$toString": {"$dateTrunc": {"date": {"$date": "1999-03-20T11:37:00Z"}, "unit": "quarter", "binSize": 2}}})",
           "\"1999-01-01T00:00:00.000Z\""},
          {R"({"$dateDiff": {"startDate": {"$date": "2030-01-05T00:00:00Z"}, "endDate": {"$date": "2030-01-06T00:00:00Z"}, "unit": "week"}})",
           "1"},
          {R"({"$dateAdd": {"startDate": {"$date": {"$numberLong": "0"}}, "unit": "eon", "amount": 1}})",
           "error 9"},
          {R"({"$asin": 2})", "error 50989"},
          {R"({"$sin": "x"})", "error 28765"},
          {R"({"$getField": "$a"})", "error 5654600"},
          {R"({"$getField": {"field": "x", "input": 5}})", "missing"},
          {R"({"$setField": {"field": "$a", "input": {}, "value": 1}})", "error 5654600"},
          {R"({"$mergeObjects": [{"a": 1}, 5]})", "error 40400"},
          {R"({"$meta": "foo"})", "error 17308"},
          {R"({"$function": {}})", "error 31264"},
          {R"({"$bsonSize": 5})", "error 31393"},
          {R"({"$sortArray": {"input": [3, 1, 2], "sortBy": -1}})", "[3, 2, 1]"},
          {R"({"$sortArray": {"input": [1], "sortBy": 0}})", "error 2942505"},
          {R"({"$firstN": {"n": 0, "input": [1]}})", "error 5787908"},
          {R"({"$cond": {"if": true, "then": 1}})", "error 17082"},
          {R"({"$ifNull": [1]})", "error 1257300"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
}

TEST_CASE("Documents and arrays become JSON text and come back", "[expression][json_text]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (Case c : std::vector<Case>{
           {R"({"$toString": {"a": [1, null, "x\"y"], "b": {}}})",
            R"("{\"a\":[1,null,\"x\\\"y\"],\"b\":{}}")"},
           {R"({"$toString": {"$literal": [{"$timestamp": {"t": 1, "i": 2}}, {"$minKey": 1}]}})",
            R"("[\"Timestamp(1, 2)\",\"MinKey\"]")"},
           {R"({"$toString": {"$regularExpression": {"pattern": "^a", "options": "i"}}})",
            R"("/^a/i")"},
           {R"({"$toArray": "[1, [2.0, {\"a\": \"\\u00e9\"}]]"})", R"([1, [2.0, {"a": "é"}]])"},
           {R"({"$toObject": "{\"a\": 1, \"b\": 2, \"a\": {\"x\": 1, \"x\": 3}}"})",
            R"({"a": {"x": 3}, "b": 2})"},
           {R"({"$type": {"$arrayElemAt": [{"$toArray": "[2147483648]"}, 0]}})", R"("long")"},
           {R"({"$type": {"$arrayElemAt": [{"$toArray": "[1e0]"}, 0]}})", R"("double")"},
           {R"({"$toObject": "[]"})", "error 241"},
           {R"({"$toArray": "[1,]"})", "error 241"},
           {R"({"$toArray": "[1] //"})", "error 241"},
           {R"({"$toObject": "{\"a\\u0000\": 1}"})", "error 241"},
           {R"({"$convert": {"input": "[", "to": "array", "onError": 1}})", "1"},
           {R"({"$convert": {"input": "+-1", "to": "int", "base": 10, "onError": 1}})", "1"},
           {R"({"$convert": {"input": {"$numberDecimal": "2.5"}, "to": "string", "base": 2}})",
            "error 241"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
  // Hostile text: deep, and long where BSON is longer. Neither takes a stack or a heap away.
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK(Run("{\"$toArray\": \"" + deep + "\"}") == "error 241");
  CHECK(Run(R"({"$toString": {"$range": [0, 3000000]}})") == "error 10334");
  CHECK(Run(R"({"$strLenBytes": {"$toString": {"$range": [0, 2000]}}})") == "8891");
}

TEST_CASE("Vectors become arrays, and arrays vectors", "[expression][binary_vector]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (Case c : std::vector<Case>{
           {R"({"$convert": {"input": [1, -1], "to": "binData"}})",
            R"({"$binary": {"base64": "AwAB/w==", "subType": "09"}})"},
           {R"({"$convert": {"input": [1.5], "to": {"type": "binData", "subtype": 9}}})",
            R"({"$binary": {"base64": "JwAAAMA/", "subType": "09"}})"},
           {R"({"$toArray": {"$binary": {"base64": "EAeA", "subType": "09"}}})", "[true]"},
           {R"({"$toArray": {"$convert": {"input": [-128, 127], "to": "binData"}}})",
            "[-128, 127]"},
           {R"({"$toArray": {"$convert": {"input": [-0.5, 2.0], "to": "binData"}}})",
            "[-0.5, 2.0]"},
           {R"({"$toArray": {"$binary": {"base64": "AwE=", "subType": "09"}}})", "error 241"},
           {R"({"$toArray": {"$binary": {"base64": "", "subType": "09"}}})", "error 241"},
           {R"({"$toArray": {"$binary": {"base64": "AwAB", "subType": "00"}}})", "error 241"},
           {R"({"$convert": {"input": [1, 2.5], "to": "binData"}})", "error 241"},
           {R"({"$convert": {"input": [128], "to": "binData"}})", "error 241"},
           {R"({"$convert": {"input": [1], "to": {"type": "binData", "subtype": 0}}})",
            "error 241"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
}

TEST_CASE("Hashes, subtypes, and values that are new each time", "[expression][value_ops]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (Case c : std::vector<Case>{
           {R"({"$hexHash": {"input": "a", "algorithm": "xxh64"}})", R"("D24EC4F1A98C6E5B")"},
           {R"({"$hexHash": {"input": "report.pdf", "algorithm": "sha256"}})",
            R"("6466E450A16B77B865C5829D6B6C56D9F892956475642DBEB9CCC4340FE01B15")"},
           {R"({"$hash": {"input": null, "algorithm": "md5"}})", "null"},
           {R"({"$hash": {"input": "a", "algorithm": "crc"}})", "error 2"},
           {R"({"$hash": {"input": 1, "algorithm": "md5"}})", "error 14"},
           {R"({"$hash": {"input": "a"}})", "error 9"},
           {R"({"$subtype": "a"})", "error 14"},
           {R"({"$toString": {"$currentDate": {}}})", R"("2023-11-14T22:13:20.000Z")"},
           {R"({"$currentDate": 1})", "error 9"},
           {R"({"$eq": [{"$createObjectId": {}}, {"$createObjectId": {}}]})", "false"},
           {R"({"$createObjectId": []})", "error 9"},
           {R"({"$sigmoid": {"$subtract": [1, 1]}})", "0.5"},
           {R"({"$sigmoid": "$none"})", "null"},
           {R"({"$sigmoid": {"input": null, "onNull": 7}})", "7"},
           {R"({"$sigmoid": {"input": 1, "input": 2}})", "error 40413"},
           {R"({"$sigmoid": "x"})", "error 14"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
}

TEST_CASE("Values become wrappers of extended JSON and come back", "[expression][extended_json]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (
      Case c : std::vector<Case>{
          {R"({"$toString": {"$serializeEJSON": {"input": {"a": [1, {"$minKey": 1}]}}}})",
           R"("{\"a\":[{\"$numberInt\":\"1\"},{\"$minKey\":1}]}")"},
          {R"({"$toString": {"$serializeEJSON": {"input": [1, 2.5], "relaxed": true}}})",
           R"("[1,2.5]")"},
          {R"({"$type": {"$deserializeEJSON": {"input": {"$toObject": "{\"$numberDecimal\": \"1\"}"}}}})",
           R"("decimal")"},
          {R"({"$type": {"$getField": {"field": "s", "input": {"$deserializeEJSON": {"input": {"$toObject": "{\"s\": {\"$code\": \"x\", \"$scope\": {\"a\": {\"$code\": \"y\", \"$scope\": {}}}}}"}}}}}})",
           R"("javascriptWithScope")"},
          {R"({"$deserializeEJSON": {"input": {"$toObject": "{\"$oid\": 1}"}}})", "error 241"},
          {R"({"$deserializeEJSON": {"input": {"$toObject": "{\"$oid\": 1}"}, "onError": 5}})",
           "5"},
          {R"({"$serializeEJSON": {"input": null}})", "null"},
          {R"({"$serializeEJSON": {"input": 1, "relaxed": 1}})", "error 14"},
          {R"({"$serializeEJSON": {"input": {"$range": [0, 600000]}}})", "error 10334"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
  // What is written is read back, whatever it is.
  const std::string all =
      R"({"i": 1, "l": {"$numberLong": "5"}, "d": 1.5, "m": {"$numberDecimal": "2"}, "t": {"$date": "2030-01-01T00:00:00Z"}, "b": {"$binary": {"base64": "AQI=", "subType": "02"}}, "r": {"$regularExpression": {"pattern": "a", "options": "im"}}, "s": {"$timestamp": {"t": 1, "i": 2}}, "c": {"$code": "x", "$scope": {"y": 1}}, "p": {"$dbPointer": {"$ref": "a.b", "$id": {"$oid": "5ab9c3da31c2ab715d421285"}}}, "u": {"$undefined": true}, "k": [{"$maxKey": 1}, null]})";
  for (const char* relaxed : {"true", "false"})
    CHECK(
        Run(R"({"$eq": ["$$ROOT", {"$deserializeEJSON": {"input": {"$serializeEJSON": {"input": "$$ROOT", "relaxed": )" +
                std::string(relaxed) + "}}}}]}",
            all) == "true");
}

TEST_CASE("Vectors are compared", "[expression][similarity]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (
      Case c : std::vector<Case>{
          {R"({"$similarityCosine": [[1, 0], [0, 1]]})", "0.0"},
          {R"({"$similarityCosine": [[0, 0], [0, 1]]})", "0.0"},
          {R"({"$similarityCosine": {"vectors": [[2, 0], [-1, 0]], "score": true}})", "0.0"},
          {R"({"$similarityDotProduct": [[1, 2], {"$binary": {"base64": "AwADBA==", "subType": "09"}}]})",
           "11.0"},
          {R"({"$similarityEuclidean": {"vectors": [[1], [1]], "score": true}})", "1.0"},
          {R"({"$similarityEuclidean": [[1], null]})", "null"},
          {R"({"$similarityEuclidean": [[1], [1, 2]]})", "error 2"},
          {R"({"$similarityEuclidean": [[1], ["x"]]})", "error 14"},
          {R"({"$similarityEuclidean": [[1]]})", "error 16020"},
          {R"({"$similarityEuclidean": {"vectors": [[1]]}})", "error 2"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
}

TEST_CASE("Large values of all operations together have a limit", "[expression][limits]") {
  // A stage or operator has a limit of its own, but there may be a thousand of them: it took 7 GB.
  REQUIRE(large_memory::Used() == 0);
  const int64_t before = large_memory::Limit();
  large_memory::SetLimit(10 << 20);
  const std::string range = R"({"$range": [0, 300000]})";  // 3.5 MB
  CHECK(Run("{\"$size\": " + range + "}") == "300000");
  const std::string three = "{\"a\": " + range + ", \"b\": " + range + ", \"c\": " + range + "}";
  CHECK(Run("{\"$let\": {\"vars\": " + three + ", \"in\": 1}}") == "error 146");
  CHECK(large_memory::Used() == 0);
  large_memory::SetLimit(before);
  CHECK(Run("{\"$let\": {\"vars\": " + three + ", \"in\": 1}}") == "1");
  CHECK(large_memory::Used() == 0);
}

TEST_CASE("A value never becomes deeper than what walks it can go", "[expression][limits]") {
  CHECK(
      Run(R"({"$reduce": {"input": {"$range": [0, 100]}, "initialValue": 1, "in": {"a": "$$value"}}})")
          .starts_with("{ \"a\""));
  CHECK(
      Run(R"({"$reduce": {"input": {"$range": [0, 100000]}, "initialValue": 1, "in": {"a": "$$value"}}})") ==
      "error 15");
}

#include <catch2/catch.hpp>

#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "query/expression/operator.h"

using namespace mayfly;

namespace {

BsonDocument Json(std::string_view text) {
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
  BsonDocument wrapped = Json("{\"e\": " + std::string(expression) + "}"), doc = Json(document);
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
      BsonDocument expected = Json("{\"r\": " + std::string(def.example.substr(arrow + 4)) + "}");
      BsonDocument wrapped = Json("{\"e\": " + std::string(def.example.substr(0, arrow)) + "}");
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
      BsonDocument wrapped = Json("{\"e\": " + std::string(def.example.substr(0, arrow)) + "}");
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

TEST_CASE("Numbers keep the narrowest type that holds the result", "[expression]") {
  struct Case {
    const char* expression;
    const char* value;
  };
  for (Case c : std::vector<Case>{
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
           {R"({"$subtract": [{"$date": 1000}, {"$date": 400}]})", "600"},
           {R"({"$subtract": [{"$date": 1000}, 400]})",
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
          {R"({"$cond": [true, 1]})", "error 16020"},
          {R"({"$switch": {"branches": [{"case": false, "then": 1}]}})", "error 40066"}}) {
    INFO(c.expression);
    CHECK(Squeeze(Run(c.expression)) == Squeeze(c.value));
  }
}

#include "server/execution/inline_writes.h"

#include <catch2/catch.hpp>

#include "protocol/extended_json.h"
#include "server/base/large_turns.h"

using namespace mayfly;

namespace {

bool Inline(const char* update, size_t document_bytes = 1000) {
  auto doc = ParseJson(std::string("{\"u\":") + update + "}");
  REQUIRE(doc);
  UpdateStatement s;
  s.update = doc.value().view()["u"];
  size_t compares = 0;
  return MayUpdateInline(s, &compares) && CompareInline(compares, document_bytes);
}

}  // namespace

TEST_CASE("Plain updates stay on io threads", "[inline_writes]") {
  CHECK(Inline(R"({"$inc": {"x": 1}})"));
  CHECK(Inline(R"({"$set": {"a.b.12.c": "v", "y": {"$z": [1, 2]}}, "$unset": {"q": 1}})"));
  CHECK(Inline(R"({"a": 1, "b": [1, 2, 3]})"));
  CHECK(Inline(R"({})"));
  CHECK(Inline(R"({"$push": {"a": {"$each": [1, 2], "$slice": -10}}})"));
  CHECK(Inline(R"({"$addToSet": {"a": {"$each": [1, 2]}}})"));
  CHECK(Inline(R"({"$pull": {"a": {"id": 5}}})"));
  CHECK(Inline(R"({"$rename": {"a": "b"}})"));
  CHECK(Inline(R"({"$set": {"a1000": 1, "b.2024x": 1}})"));
}

TEST_CASE("Updates that may take long do not", "[inline_writes]") {
  CHECK_FALSE(Inline(R"([{"$set": {"a": 1}}])"));
  CHECK_FALSE(Inline(R"({"$push": {"a": {"$each": [], "$sort": 1}}})"));
  CHECK_FALSE(Inline(R"({"$pull": {"a": {"$gt": 1}}})"));
  CHECK_FALSE(Inline(R"({"$pull": {"a": {"b": {"$elemMatch": {"c": 1}}}}})"));
  CHECK_FALSE(
      Inline(R"({"$pull": {"a": {"$regularExpression": {"pattern": "x", "options": ""}}}})"));
  CHECK_FALSE(Inline(R"({"$set": {"a.1499999": 1}})"));
  CHECK_FALSE(Inline(R"({"$rename": {"b": "a.1499999"}})"));
  CHECK_FALSE(Inline(R"({"$set": {"a.100.b": 1}})"));
  CHECK_FALSE(Inline(R"({"$addToSet": {"a": {"$each": [1, 2, 3, 4, 5]}}})", 60'000));
  std::string many = "{\"$set\": {";
  for (int i = 0; i < 101; ++i) many += (i ? ",\"f" : "\"f") + std::to_string(i) + "\": 1";
  CHECK_FALSE(Inline((many + "}}").c_str()));

  auto filters = ParseJson(R"({"x": 1})");
  UpdateStatement s;
  auto u = ParseJson(R"({"u": {"$set": {"a.$[x]": 1}}})");
  s.update = u.value().view()["u"];
  s.array_filters.push_back(filters.value().view());
  size_t compares = 0;
  CHECK_FALSE(MayUpdateInline(s, &compares));
  s.array_filters.clear();
  CHECK(MayUpdateInline(s, &compares));
  s.constants = filters.value().view();
  CHECK_FALSE(MayUpdateInline(s, &compares));
}

TEST_CASE("Turns of large inserts go around, and who is stopped does not wait", "[inline_writes]") {
  SystemClock clock;
  Operation op(clock), stopped(clock);
  LargeTurns turns;
  LargeTurn a(turns), b(turns), c(turns);
  REQUIRE(a.Take(op));
  stopped.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  REQUIRE(a.Take(op));  // has it already
  REQUIRE(b.Take(op));
  CHECK(c.Take(stopped).error().code == ErrorCode::kInterrupted);
  a.Give();
  CHECK(c.Take(op));
}

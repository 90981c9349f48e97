// The paths every document of a scan goes through: they must not allocate.
#include <cstdlib>
#include <new>

#include "protocol/bson_builder.h"
#include "query/match/match_expression.h"
#include "query/projection/projection.h"
#include "tests/unit/query/query_test_util.h"

namespace {
thread_local size_t allocations = 0;
}

void* operator new(size_t n) {
  ++allocations;
  void* p = std::malloc(n);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new(size_t n, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(n);
  } catch (...) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

using namespace mayfly;

TEST_CASE("Matching does not allocate", "[match]") {
  BsonDocument doc = Json(
      "{'_id': 1, 'a': 'a string that is too long to be kept inline', 'n': 5, 'd': 1.5, 'l': [1, "
      "2, 3], 's': {'x': "
      "[{'y': 7}]}}");
  for (const char* text :
       {"{'_id': 1}", "{'a': 'a string that is too long to be kept inline'}",
        "{'n': {'$gt': 1, '$lt': 9}}", "{'d': {'$gte': 1}}", "{'l': 3}", "{'s.x.y': 7}",
        "{'n': {'$in': [1, 2, 3, 4, 5, 6, 7, 8]}}", "{'$or': [{'n': 4}, {'a': {'$exists': true}}]}",
        "{'l': {'$elemMatch': {'$gt': 2}}}", "{'s.x': {'$elemMatch': {'y': {'$ne': 1}}}}",
        "{'n': {'$type': 'number', '$mod': [5, 0]}}", "{'a': {'$regex': 'too long'}}"}) {
    CAPTURE(text);
    size_t start = allocations;
    MatchPtr m = ParseMatch(Json(text)).value();
    REQUIRE(allocations > start);  // they are counted
    REQUIRE(
        m->Matches(doc).value());  // regular expressions set up their thread's scratch memory once
    size_t before = allocations;
    bool matched = m->Matches(doc).value();
    size_t after = allocations;
    CHECK(matched);
    CHECK(after == before);
  }
}

TEST_CASE("Projecting into a buffer does not allocate", "[projection]") {
  BsonDocument doc =
      Json("{'_id': 1, 'a': {'b': [1, 2, 3], 'c': [{'x': 1}, {'x': 2, 'y': 3}]}, 'z': 'text'}");
  VariableScope scope;
  EvalContext ctx;
  std::string out;
  out.reserve(4096);
  for (const char* text : {"{}", "{'a': 1}", "{'a': 0}", "{'a.c.x': 1, '_id': 0}", "{'a.c.y': 0}",
                           "{'z': 1, 'a.b': {'$slice': 2}}"}) {
    CAPTURE(text);
    auto p = ParseFindProjection(Json(text), nullptr, scope).value();
    size_t before = allocations;
    out.clear();
    BsonBuilder b(out);
    bool ok = p->Apply(doc, ctx, b).has_value();
    b.Done();
    size_t after = allocations;
    CHECK(ok);
    CHECK(after == before);
  }
}

#include <catch2/catch.hpp>

#include "protocol/extended_json.h"
#include "server/dispatch/short_reads.h"

using namespace mayfly;

namespace {

uint32_t ShapeOf(const char* filter) {
  auto doc = ParseJson(filter);
  REQUIRE(doc);
  return ReadShape("find", "d", "c", {doc.value().view()});
}

}  // namespace

TEST_CASE("Reads that differ in constants have one shape", "[short_reads]") {
  CHECK(ShapeOf("{\"a\": 1}") == ShapeOf("{\"a\": \"x\"}"));
  CHECK(ShapeOf("{\"a\": {\"$in\": [1, 2]}}") == ShapeOf("{\"a\": {\"$in\": [1, 2, 3]}}"));
  CHECK(ShapeOf("{\"a\": 1}") != ShapeOf("{\"b\": 1}"));
  CHECK(ShapeOf("{\"a\": {\"$gt\": 1}}") != ShapeOf("{\"a\": {\"$lt\": 1}}"));
  CHECK(ReadShape("find", "d", "c", {}) != ReadShape("count", "d", "c", {}));
  CHECK(ReadShape("find", "d", "c", {}) != ReadShape("find", "d", "e", {}));
}

TEST_CASE("What may take long on one document is never tried on an io thread", "[short_reads]") {
  CHECK(ShapeOf("{}") != 0);
  CHECK(ShapeOf("{\"a\": {\"$regularExpression\": {\"pattern\": \"x\", \"options\": \"\"}}}") == 0);
  CHECK(ShapeOf("{\"a\": {\"$regex\": \"x\"}}") == 0);
  CHECK(ShapeOf("{\"$or\": [{\"a\": {\"$regex\": \"x\"}}]}") == 0);
  CHECK(ShapeOf("{\"$expr\": {\"$gt\": [\"$a\", \"$b\"]}}") == 0);
  CHECK(ShapeOf("{\"$where\": \"true\"}") == 0);
  CHECK(ShapeOf("{\"$lookup\": {}}") == 0);
  CHECK(ShapeOf("{\"$out\": \"c\"}") == 0);
  CHECK(ShapeOf("{\"a.0.b.1\": 1}") != 0);
  CHECK(ShapeOf("{\"a.0.0.0.0.0\": 1}") == 0);
  std::string names = "{\"x\": 1";
  for (int i = 0; i < 60; ++i) names += ", \"a." + std::string(1, 'a' + i % 26) + "\": 1";
  CHECK(ShapeOf((names + "}").c_str()) == 0);
  const std::string large = "{\"a\": \"" + std::string(4000, 'x') + "\"}";
  CHECK(ShapeOf(large.c_str()) == 0);
}

TEST_CASE("The path of distinct is a part of its shape", "[short_reads]") {
  const auto of = [](std::string_view path) { return ReadShape("distinct", "d", "c", {}, path); };
  CHECK(of("a") != 0);
  CHECK(of("a") != of("b"));
  CHECK(of("a.0.b.1") != 0);
  CHECK(of("a.0.0.0.0") == 0);  // each number is a position or a name
  CHECK(of(std::string(4000, 'a')) == 0);
}

TEST_CASE("Reads that did not finish go to a worker, ever longer", "[short_reads]") {
  ShortReads reads;
  CHECK_FALSE(reads.ShouldTry(0));
  REQUIRE(reads.ShouldTry(7));
  reads.Tried(7, false);
  CHECK_FALSE(reads.ShouldTry(7));
  REQUIRE(reads.ShouldTry(7));
  reads.Tried(7, false);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(reads.ShouldTry(7));
  REQUIRE(reads.ShouldTry(7));
  CHECK(reads.ShouldTry(8));  // another shape

  SECTION("a success makes it less so") {
    reads.Tried(7, true);
    reads.Tried(7, false);
    for (int i = 0; i < 3; ++i) CHECK_FALSE(reads.ShouldTry(7));
    CHECK(reads.ShouldTry(7));
  }
  SECTION("one that was short on a worker is tried again") {
    reads.Tried(7, false);
    CHECK_FALSE(reads.ShouldTry(7));
    reads.Took(7, 10'000);
    CHECK_FALSE(reads.ShouldTry(7));
    reads.Took(7, 50);
    CHECK(reads.ShouldTry(7));
  }
  SECTION("a slice of nothing") {
    reads.slice_micros = 0;
    CHECK_FALSE(reads.ShouldTry(8));
  }
}

TEST_CASE("Where a large document was met no read is short for a minute", "[short_reads]") {
  CollectionInfo coll;
  coll.counters = std::make_shared<CollectionCounters>();
  coll.counters->documents = 1000;
  coll.counters->bytes = 20 << 20;
  const Instant now{1'000'000};
  CHECK(ReadIsShort(coll, now));
  MetDocument(coll, 1 << 20, now);
  CHECK(ReadIsShort(coll, now));
  MetDocument(coll, (1 << 20) + 1, now);
  CHECK_FALSE(ReadIsShort(coll, now));
  CHECK_FALSE(ReadIsShort(coll, Instant{now.millis + 59'999}));
  CHECK(ReadIsShort(coll, Instant{now.millis + 60'000}));
  coll.counters->bytes = int64_t{1000} << 20;  // all of them are large
  CHECK_FALSE(ReadIsShort(coll, Instant{now.millis + 60'000}));
}

#include "server/execution/index_spec.h"

#include <catch2/catch.hpp>

#include "tests/unit/server/server_fixture.h"

using namespace mayfly;

TEST_CASE("A TTL index is refused where nothing expires by one", "[index][ttl]") {
  struct Case {
    const char* name;
    CollectionKind kind;
    int code;
  };
  // create takes capped and clusteredIndex together from nobody; the code of that collection is its
  // own (docs/expiry.md, "What is refused").
  const auto c =
      GENERATE(values<Case>({{"plain", CollectionKind::kOrdinary, 0},
                             {"clustered", CollectionKind::kClustered, 0},
                             {"capped", CollectionKind::kCapped, 67},
                             {"capped and clustered", CollectionKind::kCappedClustered, 6049202}}));
  CAPTURE(c.name);
  test::TestServer server;
  CollectionInfo coll;
  coll.ns = "db.c";
  coll.kind = c.kind;
  std::string note;
  const BsonDocument ttl =
      ParseJson(R"({"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 60})").value();
  Result<IndexInfo> made = ParseIndexSpec(server.context(), &coll, ttl, &note);
  if (c.code == 0) {
    REQUIRE(made);
    CHECK(made.value().expire_after_seconds == 60);
  } else {
    REQUIRE(!made);
    CHECK(static_cast<int>(made.error().code) == c.code);
  }
  // Without the seconds it is an index like any other everywhere.
  const BsonDocument plain = ParseJson(R"({"key": {"at": 1}, "name": "at_1"})").value();
  CHECK(ParseIndexSpec(server.context(), &coll, plain, &note));
}

TEST_CASE("A field of an index specification is there once", "[index]") {
  test::TestServer server;
  CollectionInfo coll;
  coll.ns = "db.c";
  std::string note;
  for (const char* spec :
       {R"({"key": {"a": 1}, "name": "a", "unique": true, "unique": false})",
        R"({"key": {"d": 1}, "key": {"e": 1}, "name": "d"})",
        R"({"key": {"d": 1}, "name": "d", "name": "e"})",
        R"({"key": {"d": 1}, "name": "d", "collation": {"locale": "simple", "locale": "de"}})",
        R"({"key": {"d": 1}, "name": "d", "expireAfterSeconds": 1, "expireAfterSeconds": 9})"}) {
    CAPTURE(spec);
    const auto made = ParseIndexSpec(server.context(), &coll, ParseJson(spec).value(), &note);
    REQUIRE(!made);
    CHECK(static_cast<int>(made.error().code) == 40413);
  }
}

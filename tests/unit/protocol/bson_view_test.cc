#include <catch2/catch.hpp>

#include "protocol/bson_builder.h"

using namespace mayfly;

TEST_CASE("A built document reads back field by field", "[bson]") {
  BsonDocument doc = BuildBson([](BsonBuilder& b) {
    b.Append("i", 7).Append("s", "text").Append("d", 1.5);
    auto sub = b.OpenDocument("sub");
    sub.Append("x", int64_t{9});
    sub.Done();
    auto arr = b.OpenArray("a");
    for (int i = 0; i < 12; ++i) arr.Append(i);
    arr.Done();
    b.AppendRegex("r", "^a", "i");
  });
  BsonView v = doc;
  CHECK(v["i"].Int32() == 7);
  CHECK(v["s"].String() == "text");
  CHECK(v["d"].Double() == 1.5);
  CHECK(v.FindPath("sub.x").Int64() == 9);
  CHECK(v.FindPath("a.11").Int32() == 11);
  CHECK(v["r"].RegexPattern() == "^a");
  CHECK(v["r"].RegexOptions() == "i");
  CHECK(v["none"].missing());
  CHECK(v.Count() == 6);
}

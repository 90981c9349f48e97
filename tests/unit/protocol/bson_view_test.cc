#include <catch2/catch.hpp>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"

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

TEST_CASE("The elements of an array are named by their numbers, however they are added", "[bson]") {
  constexpr int kElements = 100'020;  // each number of digits from one to six
  const BsonDocument doc = BuildBson([](BsonBuilder& b) {
    auto a = b.OpenArray("a");
    for (int i = 0; i < kElements; ++i) {
      CHECK(a.count() == i);
      switch (i % 5) {
        case 0:
          a.Append(BuildBson([&](BsonBuilder& d) { d.Append("i", i); }).view());
          break;
        case 1:
          a.OpenDocument().Append("i", i);
          break;
        case 2:
          a.OpenArray().Append(i);
          break;
        case 3:
          a.raw().AppendNull(a.NextName());
          break;
        default:
          a.Append(i);
      }
    }
  });
  REQUIRE(ValidateBson(doc.view().bytes()));
  int i = 0;
  for (const BsonElement& e : doc.view()["a"].Document()) {
    if (e.name != std::to_string(i)) FAIL("element " << i << " is called " << e.name);
    ++i;
  }
  CHECK(i == kElements);
  CHECK(doc.view().FindPath("a.100016.i").Int32() == 100'016);
  CHECK(doc.view().FindPath("a.1000.i").Int32() == 1000);
}

TEST_CASE("A field is found by its whole name only", "[bson]") {
  const std::string longest(300, 'n'), longer = longest + "x";
  const std::vector<std::string> names = {
      "", "a", "ab", "abc", "b", "name_of_12_b", "name_of_13_by", "name_of_13_bz", longest, longer};
  BsonDocument doc = BuildBson([&](BsonBuilder& b) {
    // One of each kind of size lies between.
    b.AppendNull("null")
        .Append("bool", true)
        .Append("date", Instant{5})
        .AppendRegex("re", "a", "i");
    int i = 0;
    for (const std::string& n : names) b.Append(n, i++).Append("s" + n, "text");
  });
  for (size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    CHECK(doc.view()[names[i]].Int32() == static_cast<int>(i));
    CHECK(doc.view()["s" + names[i]].String() == "text");
  }
  for (std::string_view none : {"abcd", "c", "name_of_12_", "name_of_13_b", "nul", "nulll"})
    CHECK(doc.view()[none].missing());
  CHECK(doc.view()[longer + "x"].missing());
  CHECK(doc.view()[std::string_view("a\0b", 3)].missing());
  CHECK(doc.view()[std::string_view("\0", 1)].missing());
  CHECK(BsonView()["a"].missing());
  CHECK(BsonView()[""].missing());
}

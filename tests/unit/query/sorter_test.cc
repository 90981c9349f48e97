#include <random>

#include "tests/unit/query/pipeline_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {
std::string SortAll(Sorter& sorter, const std::vector<BsonDocument>& docs, const char* field) {
  for (auto& d : docs) REQUIRE(sorter.Add(d));
  REQUIRE(sorter.Finish());
  std::string text;
  StreamDocument next;
  while (true) {
    Result<bool> more = sorter.Next(&next);
    REQUIRE(more);
    if (!more.value()) break;
    text += ValueText(next.doc[field]) + " ";
  }
  return text;
}
SortPattern Pattern(std::string_view json) {
  return std::move(SortPattern::Parse(Json(json))).value();
}
}  // namespace

TEST_CASE("Sort order: types, arrays, missing fields, compound keys", "[sorter]") {
  std::vector<BsonDocument> docs;
  for (const char* d :
       {R"({"_id": 1, "a": [3, 7]})", R"({"_id": 2, "a": 5})", R"({"_id": 3})",
        R"({"_id": 4, "a": "x"})", R"({"_id": 5, "a": []})", R"({"_id": 6, "a": null})",
        R"({"_id": 7, "a": {"b": 1}})", R"({"_id": 8, "a": 4.5})"})
    docs.push_back(Json(d));
  Sorter up(Pattern(R"({"a": 1})"), {}), down(Pattern(R"({"a": -1})"), {});
  CHECK(SortAll(up, docs, "_id") == "5 3 6 1 8 2 4 7 ");
  CHECK(SortAll(down, docs, "_id") == "7 4 1 2 8 3 6 5 ");
  std::vector<BsonDocument> pairs;
  for (const char* d : {R"({"_id": 1, "l": [{"x": 1, "y": 9}, {"x": 2, "y": 1}]})",
                        R"({"_id": 2, "l": [{"x": 1, "y": 5}]})"})
    pairs.push_back(Json(d));
  // x and y come from one element: (1, 9) of the first document, not (1, 1).
  Sorter same(Pattern(R"({"l.x": 1, "l.y": 1})"), {});
  CHECK(SortAll(same, pairs, "_id") == "2 1 ");
}

TEST_CASE("Sorting with a limit, on disk and both gives the same as in memory", "[sorter]") {
  std::mt19937 random(7);
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 3000; ++i)
    docs.push_back(BuildBson(
        [&](BsonBuilder& b) { b.Append("_id", i).Append("k", static_cast<int>(random() % 50)); }));
  Sorter all(Pattern(R"({"k": 1})"), {});
  std::string expected = SortAll(all, docs, "_id");
  CHECK(all.spills() == 0);
  Sorter spilled(Pattern(R"({"k": 1})"), {.memory_limit = 10000});
  CHECK(SortAll(spilled, docs, "_id") == expected);
  CHECK(spilled.spills() > 20);
  Sorter tiny(Pattern(R"({"k": 1})"), {.memory_limit = 1});
  CHECK(SortAll(tiny, std::vector<BsonDocument>(docs.begin(), docs.begin() + 300), "k").size() >
        300);
  CHECK(tiny.spills() == 300);
  size_t cut = 0;
  for (int i = 0; i < 20; ++i) cut = expected.find(' ', cut) + 1;
  Sorter top(Pattern(R"({"k": 1})"), {.limit = 20});
  CHECK(SortAll(top, docs, "_id") == expected.substr(0, cut));
  Sorter both(Pattern(R"({"k": 1})"), {.limit = 20, .memory_limit = 1500});
  CHECK(SortAll(both, docs, "_id") == expected.substr(0, cut));
  CHECK(both.spills() > 1);
}

TEST_CASE("The sorter keeps metadata and the caller's bytes beside a document", "[sorter]") {
  for (size_t limit : {size_t{1} << 20, size_t{1}}) {
    Sorter sorter(Pattern(R"({"e": {"$meta": "expireAt"}})"),
                  {.memory_limit = limit, .want_sort_key = true});
    for (int i : {3, 1, 2}) {
      DocumentMetadata m;
      m.expire_at = Instant{i * 1000};
      m.record_id = Value::String("record " + std::to_string(i));
      REQUIRE(sorter.Add(Json("{\"_id\": " + std::to_string(i) + "}"), &m,
                         "extra " + std::to_string(i)));
    }
    REQUIRE(sorter.Finish());
    for (int i : {1, 2, 3}) {
      StreamDocument d;
      REQUIRE(sorter.Next(&d).value());
      CHECK(d.doc["_id"].Int32() == i);
      REQUIRE(d.metadata);
      CHECK(d.metadata->expire_at == Instant{i * 1000});
      CHECK(d.metadata->record_id.view().String() == "record " + std::to_string(i));
      CHECK(d.metadata->sort_key.view().IsArray());
      CHECK(sorter.extra() == "extra " + std::to_string(i));
    }
  }
}

TEST_CASE("Bad sort specifications", "[sorter]") {
  struct Case {
    const char* spec;
    int code;
  };
  for (Case c : std::vector<Case>{{"{}", 15976},
                                  {R"({"a": 0})", 15975},
                                  {R"({"a": "1"})", 15974},
                                  {R"({"a": {"$foo": 1}})", 17312},
                                  {R"({"a": {"$meta": "x"}})", 31138},
                                  {R"({"a.": 1})", 40353}}) {
    INFO(c.spec);
    Result<SortPattern> p = SortPattern::Parse(Json(c.spec));
    REQUIRE(!p);
    CHECK(static_cast<int>(p.error().code) == c.code);
  }
}

TEST_CASE("Spill files have a limit for one operation and one for all", "[sorter][spill]") {
  struct Restore {
    ~Restore() { TheSpillLimits().total = TheSpillLimits().per_operation = 0; }
  } restore;
  const std::string megabyte(1 << 20, 'x');
  const SpillPlace place;
  const SpillPlace same = place, other;
  REQUIRE(SpilledBytes() == 0);
  TheSpillLimits().per_operation = 6 << 20;
  {
    Result<SpillFile> a = SpillFile::Create(place), b = SpillFile::Create(same),
                      c = SpillFile::Create(other);
    REQUIRE(a);
    REQUIRE(b);
    REQUIRE(c);
    CHECK(a.value().Write("k", megabyte));
    CHECK(b.value().Write("k", megabyte));
    CHECK(SpilledBytes() == 4 << 20);
    CHECK(b.value().Write("k", megabyte));
    Result<void> refused = a.value().Write("k", std::string(2 << 20, 'x'));  // one of both
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kOutOfDiskSpace);
    CHECK(refused.error().message.find("spillMaxBytesPerOperation") != std::string::npos);
    CHECK(c.value().Write("k", megabyte));
    TheSpillLimits().total = 8 << 20;
    refused = c.value().Write("k", megabyte + megabyte);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.find("spillMaxBytes)") != std::string::npos);
  }
  CHECK(SpilledBytes() == 0);
  CHECK(*place.used == 0);
  // A sort gives everything back when it fails.
  TheSpillLimits().per_operation = 1 << 20;
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 3000; ++i)
    docs.push_back(
        BuildBson([&](BsonBuilder& b) { b.Append("_id", i).Append("s", std::string(1000, 'x')); }));
  {
    Sorter sorter(Pattern(R"({"s": 1})"), {.memory_limit = 200'000});
    bool failed = false;
    for (auto& d : docs) failed = failed || !sorter.Add(d);
    CHECK(failed);
    CHECK(SpilledBytes() > 0);
  }
  CHECK(SpilledBytes() == 0);
}

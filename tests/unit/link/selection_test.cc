#include "link/selection.h"

#include <catch2/catch.hpp>

#include "link/change_reader.h"
#include "link/definitions.h"
#include "protocol/extended_json.h"

using namespace mayfly;

namespace {

Selection Chosen(const std::vector<std::string>& include, const std::vector<std::string>& exclude) {
  auto made = Selection::Make(include, exclude);
  REQUIRE(made);
  return std::move(made).value();
}

/// JSON without its spaces; no value here has one.
std::string Json(BsonView doc) {
  std::string text = ToRelaxedJson(doc);
  std::erase(text, ' ');
  return text;
}

std::string Moved(std::string_view filter) {
  auto parsed = ParseJson(filter);
  REQUIRE(parsed);
  auto moved = EventMatch(parsed.value());
  if (!moved) return moved.error().message;
  return Json(moved.value());
}

}  // namespace

TEST_CASE("A link is about all databases but the internal ones, unless some are named") {
  const Selection all = Chosen({}, {});
  CHECK(all.Has("app", "c"));
  CHECK(all.HasWholeDatabase("app"));
  for (const char* db : {"admin", "local", "config", "mayflyLink"}) {
    CHECK_FALSE(all.Has(db, "c"));
    CHECK_FALSE(all.HasDatabase(db));
  }
  CHECK_FALSE(all.Has("app", "system.views"));
}

TEST_CASE("What is no name, or would be another one at the target, is never part of a link") {
  const Selection all = Chosen({}, {});
  // As a source may send them: a C string ends at the NUL, and a namespace begins at its first dot.
  for (std::string_view db : {std::string_view("admin\0x", 7), std::string_view("admin.system"),
                              std::string_view("mayflyLink.x"), std::string_view()}) {
    CHECK_FALSE(all.Has(db, "users"));
    CHECK_FALSE(all.HasDatabase(db));
    CHECK_FALSE(all.HasWholeDatabase(db));
  }
  CHECK_FALSE(all.Has("app", ""));
  CHECK_FALSE(all.Has("app", std::string_view("c\0d", 3)));
}

TEST_CASE("Names choose databases and collections, and others are left out") {
  const Selection s = Chosen({"app", "b.*", "one.c"}, {"app.no", "b.x.y"});
  CHECK(s.Has("app", "c"));
  CHECK_FALSE(s.Has("app", "no"));
  CHECK(s.Has("b", "x"));
  CHECK_FALSE(s.Has("b", "x.y"));
  CHECK(s.Has("one", "c"));
  CHECK_FALSE(s.Has("one", "d"));
  CHECK_FALSE(s.Has("two", "c"));
  CHECK(s.HasDatabase("one"));
  CHECK_FALSE(s.HasWholeDatabase("one"));
  CHECK_FALSE(s.HasWholeDatabase("app"));
  CHECK_FALSE(Chosen({}, {"app"}).HasDatabase("app"));
}

TEST_CASE("Names that name nothing are refused") {
  for (const char* bad :
       {"", ".c", "app.", "a*", "app.c*", "admin", "local.c", "mayflyLink.links"}) {
    CAPTURE(bad);
    CHECK_FALSE(Selection::Make({bad}, {}));
    CHECK_FALSE(Selection::Make({}, {bad}));
  }
}

TEST_CASE("A filter of documents becomes one of events") {
  CHECK(
      Moved(
          R"({"a": 1, "$or": [{"b.c": {"$gt": 2}}, {"$nor": [{"d": null}]}], "$comment": "x"})") ==
      R"({"$or":[{"operationType":{"$nin":["insert","replace","update"]}},{"fullDocument":null},)"
      R"({"ns.db":"mayflyLink"},)"
      R"({"fullDocument.a":1,"$or":[{"fullDocument.b.c":{"$gt":2}},)"
      R"({"$nor":[{"fullDocument.d":null}]}]}]})");
}

TEST_CASE("A filter that cannot be moved is refused") {
  CHECK(Moved(R"({"$expr": {"$eq": ["$a", 1]}})").find("$expr") != std::string::npos);
  CHECK(Moved(R"({"$and": 1})").find("$and") != std::string::npos);
  CHECK(Moved(R"({"$and": [1]})").find("array of documents") != std::string::npos);
  std::string deep = R"({"a": 1})";
  for (int i = 0; i < 40; ++i) deep = R"({"$and": [)" + deep + "]}";
  CHECK(Moved(deep).find("levels") != std::string::npos);
}

TEST_CASE("What names a document leaves out newer ones when there are versions") {
  const BsonDocument values =
      ParseJson(R"({"id": 7, "v": {"$date": "2031-01-01T00:00:00Z"}})").value();
  const BsonView v = values;
  CHECK(Json(DocumentFilter(v["id"], {}, {}, false)) == R"({"_id":7})");
  CHECK(Json(DocumentFilter(v["id"], "v", v["v"], false)) ==
        R"({"_id":7,"v":{"$lt":{"$date":"2031-01-01T00:00:00Z"}}})");
  CHECK(Json(DocumentFilter(v["id"], "v", v["v"], true)).find("$lte") != std::string::npos);
}

TEST_CASE("A collection is made without the limits of its expiry") {
  const BsonDocument options =
      ParseJson(
          R"({"capped": true, "temp": true, "idIndex": {}, "expiry": {"maxTTL": 5, "field": "ttl"}})")
          .value();
  CHECK(Json(CreateCommand("c", options)) ==
        R"({"create":"c","capped":true,"expiry":{"field":"ttl"}})");
  const BsonDocument only = ParseJson(R"({"expiry": {"maxTTL": 5}})").value();
  CHECK(Json(CreateCommand("c", only)) == R"({"create":"c"})");
}

#include "link/definitions.h"

#include <catch2/catch.hpp>

#include "protocol/extended_json.h"

using namespace mayfly;

namespace {

BsonDocument Doc(std::string_view json) {
  auto parsed = ParseJson(json);
  REQUIRE(parsed);
  return std::move(parsed).value();
}

/// JSON without its spaces; no value here has one.
std::string JsonOf(const std::optional<BsonDocument>& doc) {
  if (!doc) return "none";
  std::string text = ToRelaxedJson(doc->view());
  std::erase(text, ' ');
  return text;
}

/// collMod of what is different, with all options of the later definition.
std::string Modify(std::string_view before, std::string_view after, bool whole = true) {
  return JsonOf(ModifyCommand("c", Doc(before), Doc(after), whole));
}

}  // namespace

TEST_CASE("Definitions that mean the same need no change") {
  CHECK(Modify("{}", "{}") == "none");
  CHECK(Modify("{}", R"({"validationLevel": "strict", "validationAction": "error"})") == "none");
  CHECK(Modify("{}", R"({"validator": {}})") == "none");
  CHECK(Modify(R"({"capped": true, "size": 4096})", R"({"capped": true, "size": 4096.0})") ==
        "none");
  CHECK(Modify(R"({"expiry": {"maxTTL": 5}})", "{}") == "none");
  CHECK(Modify("{}", R"({"expiry": {"maxTTL": 5}})") == "none");
  CHECK(Modify(R"({"viewOn": "a", "pipeline": []})", R"({"viewOn": "a", "pipeline": []})") ==
        "none");
  CHECK(Modify("{}", R"({"collation": {"locale": "simple"}, "idIndex": 1})") == "none");
}

TEST_CASE("What is different is set as collMod takes it") {
  CHECK(Modify("{}", R"({"validator": {"a": 1}, "validationLevel": "moderate"})") ==
        R"({"collMod":"c","validator":{"a":1},"validationLevel":"moderate"})");
  CHECK(
      Modify(R"({"capped": true, "size": 4096})", R"({"capped": true, "size": 8192, "max": 7})") ==
      R"({"collMod":"c","cappedSize":8192,"cappedMax":7})");
  CHECK(Modify(R"({"expiry": {"maxTTL": 5}})", R"({"expiry": {"maxTTL": 6, "field": "f"}})") ==
        R"({"collMod":"c","expiry":{"field":"f"}})");
  CHECK(Modify(R"({"viewOn": "a", "pipeline": []})", R"({"viewOn": "b", "pipeline": []})") ==
        R"({"collMod":"c","viewOn":"b","pipeline":[]})");
  CHECK(Modify(R"({"clusteredIndex": {}})", R"({"clusteredIndex": {}, "expireAfterSeconds": 9})") ==
        R"({"collMod":"c","expireAfterSeconds":9})");
}

TEST_CASE("What a whole definition lacks is set back, and of a change it says nothing") {
  const std::string_view all = R"({"validator": {"a": 1}, "validationLevel": "off",
      "validationAction": "warn", "expiry": {"field": "f", "onUpdate": "preserve",
      "recoverSeconds": 3, "maxTTL": 4}, "onExpire": {"action": "archive"},
      "changeStreamPreAndPostImages": {"enabled": true}})";
  CHECK(Modify(all, "{}") ==
        R"({"collMod":"c","validator":{},"validationLevel":"strict","validationAction":"error",)"
        R"("expiry":{"field":null,"onUpdate":"reset","recoverSeconds":0},)"
        R"("onExpire":{"action":"delete"},"changeStreamPreAndPostImages":{"enabled":false}})");
  CHECK(Modify(all, "{}", false) == "none");
  CHECK(Modify(R"({"clusteredIndex": {}, "expireAfterSeconds": 9})", R"({"clusteredIndex": {}})") ==
        R"({"collMod":"c","expireAfterSeconds":"off"})");
  CHECK(Modify(R"({"capped": true, "size": 1, "max": 2})", R"({"capped": true, "size": 1})") ==
        R"({"collMod":"c","cappedMax":0})");
  // As a server gives it that has only the change in its log.
  CHECK(Modify(R"({"capped": true, "size": 1})", R"({"cappedSize": 8192})", false) ==
        R"({"collMod":"c","cappedSize":8192})");
}

TEST_CASE("Types that are no definition's end nothing") {
  for (const char* odd : {R"({"expiry": 5, "validator": "x", "validationLevel": 7})",
                          R"({"viewOn": 5, "pipeline": {}})", R"({"capped": "x", "size": []})",
                          R"({"clusteredIndex": null, "expireAfterSeconds": {}})"}) {
    Modify(odd, "{}");
    Modify("{}", odd);
    SameKind(Doc(odd), Doc("{}"));
    IsTimeSeries(Doc(odd));
    CreateCommand("c", Doc(odd));
    ModifyIndexCommand("c", Doc(odd));
  }
}

TEST_CASE("collMod of an index has what the command knows") {
  CHECK(JsonOf(ModifyIndexCommand("c", Doc(R"({"name": "a_1", "hidden": true, "weights": 1})"))) ==
        R"({"collMod":"c","index":{"name":"a_1","hidden":true}})");
  CHECK(JsonOf(ModifyIndexCommand("c", Doc(R"({"name": "a_1", "v": 2})"))) == "none");
}

TEST_CASE("A collection can become another one only of its kind") {
  CHECK(SameKind(Doc("{}"), Doc(R"({"validator": {}})")));
  CHECK(SameKind(Doc(R"({"capped": false})"), Doc("{}")));
  CHECK_FALSE(SameKind(Doc("{}"), Doc(R"({"viewOn": "c"})")));
  CHECK_FALSE(SameKind(Doc("{}"), Doc(R"({"capped": true})")));
  CHECK_FALSE(SameKind(Doc("{}"), Doc(R"({"clusteredIndex": {}})")));
  CHECK_FALSE(SameKind(Doc("{}"), Doc(R"({"collation": {"locale": "de"}})")));
}

// What a configuration of a set may say.
#include "replication/repl_config.h"

#include <catch2/catch.hpp>
#include <string>

#include "protocol/extended_json.h"

using namespace mayfly;

namespace {

Result<ReplConfig> Parse(const std::string& json) {
  return ParseReplConfig(ParseJson(json).value().view());
}

}  // namespace

TEST_CASE("No field of a set's configuration is there twice", "[replication][config]") {
  struct Case {
    const char* json;
    const char* field;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"_id": "rs", "version": 99, "version": 98, "members": [{"_id": 0, "host": "a:1"}]})",
       "ReplSetConfig.version"},
      {R"({"_id": "rs", "_id": "rt", "version": 1, "members": [{"_id": 0, "host": "a:1"}]})",
       "ReplSetConfig._id"},
      {R"({"_id": "rs", "version": 1, "members": [], "members": [{"_id": 0, "host": "a:1"}]})",
       "ReplSetConfig.members"},
      {R"({"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1", "host": "b:1"}]})",
       "members.host"},
      {R"({"_id": "rs", "version": 1,
           "members": [{"_id": 0, "host": "a:1", "priority": 1, "priority": 2}]})",
       "members.priority"},
      {R"({"_id": "rs", "version": 1,
           "members": [{"_id": 0, "host": "a:1", "tags": {"x": "1", "x": "2"}}]})",
       "members.tags.x"},
      {R"({"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}],
           "settings": {"electionTimeoutMillis": 10000, "electionTimeoutMillis": 20000}})",
       "settings.electionTimeoutMillis"},
      {R"({"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}],
           "settings": {"getLastErrorModes": {"m": {"x": 1}, "m": {}}}})",
       "settings.getLastErrorModes.m"},
      {R"({"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}],
           "settings": {"getLastErrorModes": {"m": {"x": 1, "x": 2}}}})",
       "settings.getLastErrorModes.m.x"},
      {R"({"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}],
           "settings": {"getLastErrorDefaults": {"w": 1, "w": 2}}})",
       "settings.getLastErrorDefaults.w"},
  }));
  CAPTURE(c.json);
  const auto parsed = Parse(c.json);
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().code == LocationCode(40413));
  CHECK(parsed.error().message == "BSON field '" + std::string(c.field) + "' is a duplicate field");
}

TEST_CASE("A set's configuration is read as it was written", "[replication][config]") {
  const auto parsed = Parse(R"({"_id": "rs", "version": 3, "term": 2, "protocolVersion": 1,
      "members": [{"_id": 0, "host": "a:1", "tags": {"x": "1", "y": "2"}},
                  {"_id": 1, "host": "b:1", "tags": {"x": "2"}}],
      "settings": {"electionTimeoutMillis": 5000, "getLastErrorModes": {"m": {"x": 2}, "n": {"y": 1}},
                   "getLastErrorDefaults": {"w": 1, "wtimeout": 0}}})");
  REQUIRE(parsed.has_value());
  CHECK(parsed.value().members[0].tags.size() == 2);
  CHECK(parsed.value().modes.at("m").at("x") == 2);
  const auto again = ParseReplConfig(parsed.value().ToBson().view());
  REQUIRE(again.has_value());
  CHECK(again.value().ToBson().bytes() == parsed.value().ToBson().bytes());
}

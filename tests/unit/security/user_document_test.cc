#include "security/user_document.h"

#include <catch2/catch.hpp>

#include "protocol/bson_validate.h"
#include "protocol/extended_json.h"

using namespace mayfly;

namespace {

UserDocument Ann() {
  UserDocument u;
  u.name = {"ann", "shop"};
  u.id = std::string(16, '\x07');
  u.sha1 = ScramCredential{10000, std::string(16, 's'), std::string(20, 'k'), std::string(20, 'v')};
  u.sha256 =
      ScramCredential{15000, std::string(28, 's'), std::string(32, 'k'), std::string(32, 'v')};
  u.roles = {{"read", "shop"}, {"readWrite", "other"}};
  u.custom_data = ParseJson(R"({"badge": 7})").value();
  auto r = ParseJson(
      R"({"r": [{"clientSource": ["10.0.0.0/8", "::1"], "serverAddress": ["10.1.1.1"]}]})");
  u.restrictions = ParseRestrictions(r.value().view()["r"]).value();
  return u;
}

LoginOrigin From(const char* client, const char* server = "10.1.1.1") {
  return {ParseIpAddress(client), ParseIpAddress(server)};
}

bool Contains(const char* range, const char* address) {
  auto r = ParseAddressRange(range);
  REQUIRE(r.has_value());
  auto a = ParseIpAddress(address);
  REQUIRE(a.has_value());
  return r.value().Contains(*a);
}

}  // namespace

TEST_CASE("A user is read as it was stored", "[security][users]") {
  const UserDocument u = Ann();
  const BsonDocument stored = StoredUser(u);
  REQUIRE(ValidateBson(stored.view().bytes()).has_value());
  CHECK(stored.view()["_id"].String() == "shop.ann");
  CHECK(stored.view().FindPath("credentials.SCRAM-SHA-256.iterationCount").Int32() == 15000);
  auto again = ParseUserDocument(stored);
  REQUIRE(again.has_value());
  CHECK(again.value().name == u.name);
  CHECK(again.value().id == u.id);
  CHECK(again.value().sha1 == u.sha1);
  CHECK(again.value().sha256 == u.sha256);
  CHECK(again.value().roles == u.roles);
  CHECK(again.value().restrictions == u.restrictions);
  CHECK(again.value().custom_data->view().bytes() == u.custom_data->view().bytes());
}

TEST_CASE("What is shown of a user has no credentials", "[security][users]") {
  const auto shown = [](ShowUser show) {
    return BuildBson([&](BsonBuilder& b) { AppendShownUser(b, Ann(), show); }).bytes();
  };
  const std::string plain = shown({});
  CHECK(plain.find("storedKey") == std::string::npos);
  CHECK(plain.find("SCRAM-SHA-256") != std::string::npos);  // in mechanisms
  CHECK(plain.find("clientSource") == std::string::npos);
  CHECK(shown({.credentials = true}).find("storedKey") != std::string::npos);
  CHECK(shown({.restrictions = true}).find("10.0.0.0/8") != std::string::npos);
}

TEST_CASE("Stored users that are broken are refused, and their credentials not shown",
          "[security][users]") {
  const std::string good =
      R"({"_id": "a.u", "user": "u", "db": "a", "credentials": {"SCRAM-SHA-1": {"iterationCount": 10000,
          "salt": "c2FsdHNhbHRzYWx0c2FsdA==", "storedKey": "a2tra2tra2tra2tra2tra2tra2s=",
          "serverKey": "dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnY="}}, "roles": []})";
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    auto d = ParseJson(text);
    REQUIRE(d.has_value());
    auto r = ParseUserDocument(d.value());
    INFO(text);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().code == ErrorCode::kUnsupportedFormat);
    CHECK(r.error().message.find("a2tra2") == std::string::npos);
    CHECK(r.error().message.find("dnZ2dn") == std::string::npos);
  };
  REQUIRE(ParseUserDocument(ParseJson(good).value()).has_value());
  refused("\"a.u\"", "\"a.v\"");
  refused("\"user\": \"u\"", "\"user\": 1");
  refused("\"user\": \"u\", ", "");
  refused("10000", "0");
  refused("10000", "\"10000\"");
  refused("10000", "2000000000");
  refused("c2FsdHNhbHRzYWx0c2FsdA==", "");
  refused("c2FsdHNhbHRzYWx0c2FsdA==", "!!!");
  refused("a2tra2tra2tra2tra2tra2tra2s=", "a2tr");
  refused("\"roles\": []", "\"roles\": 1");
  refused("\"roles\": []", "\"roles\": [{\"role\": \"x\"}]");
  refused("\"roles\": []", "\"roles\": [], \"customData\": 1");
  refused("\"roles\": []", "\"roles\": [], \"userId\": 1");
  refused("\"roles\": []", "\"roles\": [], \"authenticationRestrictions\": [{}]");
  refused("\"credentials\": {", "\"x\": {");
}

TEST_CASE("A role is read as it was stored", "[security][users]") {
  RoleDocument r;
  r.name = {"clerk", "shop"};
  r.privileges = {{Resource::Collection("shop", "orders"), {Action::find, Action::insert}},
                  {Resource::Cluster(), {Action::listDatabases}}};
  r.roles = {{"read", "shop"}};
  auto again = ParseRoleDocument(StoredRole(r));
  REQUIRE(again.has_value());
  CHECK(again.value().name == r.name);
  CHECK(again.value().privileges == r.privileges);
  CHECK(again.value().roles == r.roles);
  CHECK(again.value().privilege_count == 2);
  CHECK(again.value().bytes == StoredRole(r).view().size());
  CHECK_FALSE(ParseRoleDocument(BsonView()).has_value());
  // Without its privileges, and with a word about their number.
  r.restrictions = Ann().restrictions;
  again = ParseRoleDocument(StoredRole(r), RoleParts::kWithoutPrivileges);
  REQUIRE(again.has_value());
  CHECK(again.value().privileges.empty());
  CHECK(again.value().privilege_count == 2);
  CHECK(again.value().roles == r.roles);
  CHECK(again.value().restrictions == r.restrictions);
}

TEST_CASE("Names of users and roles", "[security][users]") {
  const auto parse = [](const char* json) {
    return ParseRoleName(ParseJson(json).value().view()["r"], "shop");
  };
  CHECK(parse(R"({"r": "x"})").value() == RoleName{"x", "shop"});
  CHECK(parse(R"({"r": {"role": "x", "db": "y"}})").value() == RoleName{"x", "y"});
  for (const char* bad : {R"({"r": ""})", R"({"r": 1})", R"({"r": {"role": "x"}})", R"({"r": {}})",
                          R"({"r": {"role": "x", "db": ""}})", R"({"r": {"role": 1, "db": "y"}})",
                          R"({"r": {"role": "x", "db": "y", "z": 1}})", R"({"r": "a\u0000b"})"}) {
    INFO(bad);
    CHECK_FALSE(parse(bad).has_value());
  }
  // Of two, whoever looks might take another one than whoever acts.
  for (const char* twice : {R"({"r": {"role": "x", "db": "y", "db": "z"}})",
                            R"({"r": {"role": "x", "role": "z", "db": "y"}})"}) {
    INFO(twice);
    const auto role = parse(twice);
    REQUIRE_FALSE(role.has_value());
    CHECK(role.error().code == LocationCode(40413));
  }
  CHECK_FALSE(CheckPrincipalDatabase("local").has_value());
  CHECK_FALSE(CheckPrincipalDatabase("a.b").has_value());
  CHECK(CheckPrincipalDatabase("$external").has_value());
}

TEST_CASE("Addresses and ranges", "[security][restrictions]") {
  CHECK(Contains("10.0.0.0/8", "10.255.1.2"));
  CHECK_FALSE(Contains("10.0.0.0/8", "11.0.0.0"));
  CHECK(Contains("10.0.0.0/9", "10.127.1.2"));
  CHECK_FALSE(Contains("10.0.0.0/9", "10.128.0.0"));
  CHECK(Contains("192.168.1.7", "192.168.1.7"));
  CHECK_FALSE(Contains("192.168.1.7", "192.168.1.6"));
  CHECK(Contains("192.168.1.7", "::ffff:192.168.1.7"));
  CHECK(Contains("0.0.0.0/0", "1.2.3.4"));
  CHECK_FALSE(Contains("0.0.0.0/0", "::1"));
  CHECK(Contains("::/0", "1.2.3.4"));
  CHECK(Contains("::ffff:10.0.0.0/104", "10.9.9.9"));
  CHECK_FALSE(Contains("::ffff:10.0.0.0/104", "11.0.0.0"));
  CHECK(Contains("::ffff:0:0/96", "1.2.3.4"));
  CHECK(Contains("fe80::/10", "fe80::1%eth0"));
  CHECK(Contains("2001:db8::/33", "2001:db8:7fff::"));
  CHECK_FALSE(Contains("2001:db8::/33", "2001:db8:8000::"));
  for (const char* bad : {"", "x", "10.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "::/129",
                          "10.0.0.0/8x", "10.0.0.0/0008", "1.2.3.4.5", "fe80::1%eth0", "/8",
                          "01.2.3.4 ", "::ffff:10.0.0.0/8", "::ffff:a00:0/95"}) {
    INFO(bad);
    CHECK_FALSE(ParseAddressRange(bad).has_value());
  }
}

TEST_CASE("A part of a restriction is there once", "[security][restrictions]") {
  for (const char* json :
       {R"({"r": [{"clientSource": ["127.0.0.1"], "clientSource": ["10.0.0.1"]}]})",
        R"({"r": [{"serverAddress": ["127.0.0.1"], "clientSource": ["10.0.0.1"],
                   "serverAddress": ["127.0.0.1"]}]})"}) {
    INFO(json);
    const auto restrictions = ParseRestrictions(ParseJson(json).value().view()["r"]);
    REQUIRE_FALSE(restrictions.has_value());
    CHECK(restrictions.error().code == LocationCode(40413));
  }
}

TEST_CASE("Restrictions: both parts of one document, any of the documents",
          "[security][restrictions]") {
  const AuthenticationRestrictions r = Ann().restrictions;
  CHECK(Allows(r, From("10.2.3.4")));
  CHECK(Allows(r, From("::1")));
  CHECK_FALSE(Allows(r, From("11.2.3.4")));
  CHECK_FALSE(Allows(r, From("10.2.3.4", "10.1.1.2")));
  CHECK_FALSE(Allows(r, LoginOrigin{}));  // not known where from
  CHECK(Allows({}, LoginOrigin{}));
  auto two = ParseJson(R"({"r": [{"clientSource": "1.1.1.1"}, {"serverAddress": ["2.2.2.2"]}]})");
  const auto either = ParseRestrictions(two.value().view()["r"]).value();
  CHECK(Allows(either, From("1.1.1.1", "9.9.9.9")));
  CHECK(Allows(either, From("9.9.9.9", "2.2.2.2")));
  CHECK_FALSE(Allows(either, From("9.9.9.9", "9.9.9.9")));
  for (const char* bad :
       {R"({"r": 1})", R"({"r": [1]})", R"({"r": [{}]})", R"({"r": [{"clientSource": []}]})",
        R"({"r": [{"clientSource": [1]}]})", R"({"r": [{"from": ["1.1.1.1"]}]})",
        R"({"r": [{"clientSource": ["example.com"]}]})"}) {
    INFO(bad);
    CHECK_FALSE(ParseRestrictions(ParseJson(bad).value().view()["r"]).has_value());
  }
}

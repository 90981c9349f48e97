#include "security/privilege_set.h"

#include <catch2/catch.hpp>
#include <chrono>

#include "protocol/extended_json.h"
#include "security/builtin_roles.h"

using namespace mayfly;

namespace {

Result<Privilege> Parse(std::string_view json) {
  auto d = ParseJson("{\"p\": " + std::string(json) + "}");
  REQUIRE(d.has_value());
  return ParsePrivilege(d.value().view()["p"]);
}

PrivilegeSet SetOf(std::initializer_list<std::string_view> jsons) {
  std::vector<Privilege> all;
  for (std::string_view j : jsons) {
    auto p = Parse(j);
    INFO(j);
    REQUIRE(p.has_value());
    all.push_back(p.value());
  }
  return PrivilegeSet(all);
}

}  // namespace

TEST_CASE("Actions have names and are found by them", "[security]") {
  for (size_t i = 0; i < kActionCount; ++i) {
    const auto a = static_cast<Action>(i);
    CHECK(FindAction(ActionName(a)) == a);
  }
  CHECK_FALSE(FindAction("finD").has_value());
  CHECK_FALSE(FindAction("").has_value());
  CHECK_FALSE(FindAction("zzz").has_value());
  ActionSet s{Action::find, Action::viewUser};
  CHECK(s.size() == 2);
  CHECK(ActionSet::All().HasAll(s));
  CHECK(ActionSet::All().size() == kActionCount);
  CHECK_FALSE(s.HasAll({Action::find, Action::insert}));
  CHECK(s.HasAny({Action::find, Action::insert}));
  CHECK(s.HasAll({}));
}

TEST_CASE("Resources match as the manual says", "[security]") {
  const ActionSet find{Action::find}, insert{Action::insert};
  SECTION("one collection") {
    auto s = SetOf({R"({"resource": {"db": "a", "collection": "c"}, "actions": ["find"]})"});
    CHECK(s.Allows("a", "c", find));
    CHECK_FALSE(s.Allows("a", "c", insert));
    CHECK_FALSE(s.Allows("a", "d", find));
    CHECK_FALSE(s.Allows("b", "c", find));
    CHECK_FALSE(s.Allows("a", "", find));
    CHECK(s.AllowsSomewhereIn("a", find));
    CHECK_FALSE(s.AllowsSomewhereIn("b", find));
  }
  SECTION("a database: all but the system's") {
    auto s = SetOf({R"({"resource": {"db": "a", "collection": ""}, "actions": ["find"]})"});
    CHECK(s.Allows("a", "c", find));
    CHECK(s.Allows("a", "", find));
    CHECK_FALSE(s.Allows("a", "system.js", find));
    CHECK_FALSE(s.Allows("a", "system.users", find));
    CHECK_FALSE(s.Allows("b", "c", find));
  }
  SECTION("a collection of any database") {
    auto s = SetOf({R"({"resource": {"db": "", "collection": "system.js"}, "actions": ["find"]})"});
    CHECK(s.Allows("a", "system.js", find));
    CHECK(s.Allows("local", "system.js", find));
    CHECK_FALSE(s.Allows("a", "c", find));
    CHECK_FALSE(s.Allows("a", "", find));
  }
  SECTION("all databases: not local, not config, not the system's") {
    auto s = SetOf({R"({"resource": {"db": "", "collection": ""}, "actions": ["find"]})"});
    CHECK(s.Allows("a", "c", find));
    CHECK(s.Allows("admin", "c", find));
    CHECK_FALSE(s.Allows("admin", "system.users", find));
    CHECK_FALSE(s.Allows("local", "oplog.rs", find));
    CHECK_FALSE(s.Allows("config", "c", find));
    CHECK_FALSE(s.AllowsOnCluster(find));
    CHECK(s.Allows(Resource::Database(""), find));
  }
  SECTION("local") {
    auto s = SetOf({R"({"resource": {"db": "local", "collection": ""}, "actions": ["find"]})"});
    CHECK(s.Allows("local", "oplog.rs", find));
    CHECK_FALSE(s.Allows("local", "replset.minvalid", find));
  }
  SECTION("the cluster") {
    auto s = SetOf({R"({"resource": {"cluster": true}, "actions": ["find", "shutdown"]})"});
    CHECK(s.AllowsOnCluster({Action::shutdown}));
    CHECK_FALSE(s.Allows("a", "c", find));
    CHECK_FALSE(s.Allows(Resource::Any(), find));
  }
  SECTION("anything") {
    auto s = SetOf({R"({"resource": {"anyResource": true}, "actions": ["find"]})"});
    CHECK(s.Allows("admin", "system.users", find));
    CHECK(s.Allows("local", "oplog.rs", find));
    CHECK(s.AllowsOnCluster(find));
    CHECK(s.Allows(Resource::Any(), find));
    CHECK_FALSE(s.Allows("a", "c", insert));
  }
  SECTION("buckets of time series") {
    auto s = SetOf({R"({"resource": {"db": "a", "system_buckets": "t"}, "actions": ["find"]})"});
    CHECK(s.Allows("a", "system.buckets.t", find));
    CHECK_FALSE(s.Allows("a", "t", find));
    CHECK_FALSE(s.Allows("a", "system.buckets.u", find));
  }
  SECTION("several grants join") {
    auto s = SetOf({R"({"resource": {"db": "a", "collection": "c"}, "actions": ["find"]})",
                    R"({"resource": {"db": "", "collection": ""}, "actions": ["insert"]})",
                    R"({"resource": {"anyResource": true}, "actions": ["update"]})"});
    CHECK(s.Allows("a", "c", {Action::find, Action::insert, Action::update}));
    CHECK_FALSE(s.Allows("a", "d", {Action::find, Action::insert, Action::update}));
  }
  SECTION("a grant on one is none on all") {
    auto s = SetOf({R"({"resource": {"db": "a", "collection": ""}, "actions": ["grantRole"]})"});
    CHECK_FALSE(s.Allows(Resource::Database(""), {Action::grantRole}));
    CHECK_FALSE(s.Allows(Resource::Any(), {Action::grantRole}));
    CHECK(s.Allows(Resource::Collection("a", "x"), {Action::grantRole}));
  }
  CHECK(PrivilegeSet::Everything().Allows("admin", "system.users", ActionSet::All()));
  CHECK(PrivilegeSet::Everything().AllowsOnCluster(ActionSet::All()));
  CHECK_FALSE(PrivilegeSet().Allows("a", "c", find));
}

TEST_CASE("Privileges that are none", "[security]") {
  for (const char* bad : {
           R"(1)",
           R"({"resource": {"db": "a", "collection": "c"}})",
           R"({"actions": ["find"]})",
           R"({"resource": {"db": "a", "collection": "c"}, "actions": []})",
           R"({"resource": {"db": "a", "collection": "c"}, "actions": ["fly"]})",
           R"({"resource": {"db": "a", "collection": "c"}, "actions": [1]})",
           R"({"resource": {"db": "a", "collection": "c"}, "actions": "find"})",
           R"({"resource": {"db": "a"}, "actions": ["find"]})",
           R"({"resource": {"collection": "a"}, "actions": ["find"]})",
           R"({"resource": {}, "actions": ["find"]})",
           R"({"resource": {"cluster": false}, "actions": ["find"]})",
           R"({"resource": {"cluster": true, "anyResource": true}, "actions": ["find"]})",
           R"({"resource": {"cluster": true, "db": "", "collection": ""}, "actions": ["find"]})",
           R"({"resource": {"db": 1, "collection": ""}, "actions": ["find"]})",
           R"({"resource": {"db": "a\u0000", "collection": ""}, "actions": ["find"]})",
           R"({"resource": {"db": "a", "collection": "", "more": 1}, "actions": ["find"]})",
           R"({"resource": {"db": "a", "collection": ""}, "actions": ["find"], "more": 1})",
       }) {
    INFO(bad);
    CHECK_FALSE(Parse(bad).has_value());
  }
}

TEST_CASE("No field of a privilege is there twice", "[security]") {
  for (const char* twice :
       {R"({"resource": {"db": "a", "db": "b", "collection": "c"}, "actions": ["find"]})",
        R"({"resource": {"db": "a", "collection": "c", "collection": "d"}, "actions": ["find"]})",
        R"({"resource": {"cluster": true, "cluster": true}, "actions": ["top"]})",
        R"({"resource": {"cluster": true}, "resource": {"cluster": true}, "actions": ["top"]})",
        R"({"resource": {"cluster": true}, "actions": ["top"], "actions": ["fsync"]})"}) {
    INFO(twice);
    const auto p = Parse(twice);
    REQUIRE_FALSE(p.has_value());
    CHECK(p.error().code == LocationCode(40413));
  }
}

TEST_CASE("Privileges are shown as they are written", "[security]") {
  const char* text =
      R"({"privileges":[{"resource":{"db":"","collection":"x"},"actions":["find","insert"]},)"
      R"({"resource":{"db":"a","system_buckets":"t"},"actions":["find"]},)"
      R"({"resource":{"cluster":true},"actions":["shutdown"]},)"
      R"({"resource":{"anyResource":true},"actions":["anyAction"]}]})";
  auto d = ParseJson(text);
  auto p = ParsePrivileges(d.value().view()["privileges"]);
  REQUIRE(p.has_value());
  auto shown = BuildBson([&](BsonBuilder& b) { AppendPrivileges(b, "privileges", p.value()); });
  auto again = ParsePrivileges(shown.view()["privileges"]);
  CHECK(again.value() == p.value());
  CHECK(p.value().size() == 4);
  CHECK(shown.view().bytes() == d.value().view().bytes());
  // Those with the same resource are one.
  auto twice = ParseJson(
      R"({"p": [{"resource": {"cluster": true}, "actions": ["top"]}, {"resource": {"cluster": true}, "actions": ["fsync", "top"]}]})");
  CHECK(ParsePrivileges(twice.value().view()["p"]).value().size() == 1);
}

TEST_CASE("What asking a privilege set costs", "[.bench]") {
  std::vector<Privilege> all = BuiltinPrivileges({"root", "admin"});
  std::erase_if(all, [](const Privilege& p) { return p.resource.kind == Resource::Kind::kAny; });
  for (int i = 0; i < 1000; ++i)
    all.push_back({Resource::Collection("db" + std::to_string(i), "c"), {Action::find}});
  const PrivilegeSet set(all);
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kAsked = 5'000'000;
  int allowed = 0;
  for (int i = 0; i < kAsked; ++i) allowed += set.Allows("shop", "orders", {Action::find});
  const auto ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count();
  WARN(static_cast<double>(ns) / kAsked << " ns a question");
  CHECK(allowed == kAsked);
}

// What each command needs (tests/data/privileges.txt) against the functions of the command table,
// with a plain reading of privileges of its own that shares no code with PrivilegeSet.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "protocol/extended_json.h"
#include "security/builtin_roles.h"
#include "server/commands/register.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/authorization.h"
#include "server/dispatch/inner_requests.h"
#include "server/dispatch/redacted_command.h"
#include "tests/unit/server/allocations.h"

namespace {
thread_local size_t allocations = 0;
thread_local bool out_of_memory = false;
}  // namespace
size_t mayfly::test::Allocations() { return allocations; }
mayfly::test::NoMemory::NoMemory() { out_of_memory = true; }
mayfly::test::NoMemory::~NoMemory() { out_of_memory = false; }

[[gnu::noinline]] void* operator new(size_t n) {
  ++allocations;
  void* p = out_of_memory ? nullptr : std::malloc(n);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(n);
  } catch (...) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

using namespace mayfly;

namespace {

/// One part of what a command needs: an action on a resource, or that it is not allowed.
struct Need {
  bool absent = false;
  Action action = Action::find;
  Resource resource;
};
/// All of them; none: whoever has logged in.
using Needs = std::vector<Need>;

struct Case {
  std::string line, db, json;
  std::vector<Needs> alternatives;
};

std::string Replace(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

Resource ParsePlace(const std::string& place) {
  if (place == "cluster") return Resource::Cluster();
  if (place == "every") return Resource::Database("");
  const size_t dot = place.find('.');
  if (dot == place.npos) return Resource::Database(place);
  return Resource::Collection(place.substr(0, dot), place.substr(dot + 1));
}

std::vector<Needs> ParseNeeds(const std::string& text) {
  std::vector<Needs> alternatives(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "or") {
      alternatives.emplace_back();
      continue;
    }
    if (word == "login") continue;
    Need need;
    if (word[0] == '!') {
      need.absent = true;
      word.erase(0, 1);
    }
    const size_t at = word.find('@');
    need.resource = ParsePlace(word.substr(at + 1));
    std::istringstream actions(word.substr(0, at));
    for (std::string action; std::getline(actions, action, ',');) {
      const auto found = FindAction(action);
      INFO(word);
      REQUIRE(found);
      need.action = *found;
      alternatives.back().push_back(need);
    }
  }
  return alternatives;
}

std::vector<Case> ReadCases(const std::string& db, const std::string& other) {
  std::ifstream in(MAYFLY_SOURCE_DIR "/tests/data/privileges.txt");
  REQUIRE(in);
  std::vector<Case> cases;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    Case c;
    c.line = line;
    line = Replace(Replace(line, "<db>", db), "<other>", other);
    const size_t brace = line.find('{'), bar = line.rfind(" | ");
    REQUIRE(bar != line.npos);
    c.db = brace == 0 ? db : line.substr(0, line.find(':'));
    c.json = line.substr(brace, bar - brace);
    c.alternatives = ParseNeeds(line.substr(bar + 3));
    cases.push_back(std::move(c));
  }
  return cases;
}

bool IsSystem(const std::string& db, const std::string& c) {
  return c.rfind("system.", 0) == 0 || (db == "local" && c.rfind("replset.", 0) == 0);
}

/// As the manual's page "Resource Document" says it.
bool Covers(const Resource& granted, const Resource& asked) {
  if (granted.kind == Resource::Kind::kAny) return true;
  if (granted.kind == Resource::Kind::kBuckets && asked.kind == Resource::Kind::kCollection) {
    const std::string buckets = "system.buckets.";
    if (asked.collection.rfind(buckets, 0) != 0) return false;
    return (granted.db.empty() || granted.db == asked.db) &&
           (granted.collection.empty() || buckets + granted.collection == asked.collection);
  }
  if (granted.kind != asked.kind) return false;
  if (granted.kind == Resource::Kind::kCluster) return true;
  if (granted.kind != Resource::Kind::kCollection) return false;
  const bool ordinary = asked.db != "local" && asked.db != "config";
  if (granted.db.empty() && granted.collection.empty())
    return ordinary && !IsSystem(asked.db, asked.collection);
  if (granted.collection.empty())
    return granted.db == asked.db && !IsSystem(asked.db, asked.collection);
  if (granted.db.empty()) return granted.collection == asked.collection;
  return granted == asked;
}

bool Has(const std::vector<Privilege>& privileges, const Need& need) {
  for (const Privilege& p : privileges)
    if (p.actions.Has(need.action) && Covers(p.resource, need.resource)) return !need.absent;
  return need.absent;
}

bool Expected(const std::vector<Privilege>& privileges, const Case& c) {
  for (const Needs& needs : c.alternatives) {
    bool all = true;
    for (const Need& n : needs) all = all && Has(privileges, n);
    if (all) return true;
  }
  return false;
}

const CommandRegistry& Registry() {
  static const CommandRegistry& registry = [&]() -> const CommandRegistry& {
    static CommandRegistry r;
    RegisterAllCommands(r);
    return r;
  }();
  return registry;
}

const UserName kMe{"me", "shop"};

/// What the row's function says to a command.
Result<void> Ask(BsonView command, const std::string& db, const std::vector<Privilege>& privileges,
                 const UserName* user = &kMe) {
  CommandRequest req;
  // What every command takes is read before anybody asks.
  if (Result<void> read = ParseCommandFields(command, &req, db); !read) return read;
  const CommandRow* row = Registry().Find(req.name);
  INFO(req.name);
  REQUIRE(row != nullptr);
  REQUIRE(row->privileges != nullptr);
  const PrivilegeSet set(privileges);
  return row->privileges({req, set, user});
}

bool Allowed(const std::string& json, const std::string& db,
             const std::vector<Privilege>& privileges) {
  const BsonDocument command = ParseJson(json).value();
  const Result<void> answer = Ask(command, db, privileges);
  if (!answer) {
    CHECK(answer.error().code == ErrorCode::kUnauthorized);
    CHECK(answer.error().message.rfind("not authorized on " + db + " to execute command {", 0) ==
          0);
  }
  return answer.has_value();
}

std::vector<Privilege> Exactly(const Needs& needs) {
  std::vector<Privilege> privileges;
  for (const Need& n : needs)
    if (!n.absent) AddPrivilege(privileges, {n.resource, {n.action}});
  return privileges;
}

std::vector<RoleName> Roles() {
  std::vector<RoleName> roles;
  for (const char* db : {"shop", "other", "admin"})
    for (const RoleName& r : BuiltinRoles(db)) roles.push_back(r);
  return roles;
}

std::vector<Privilege> On(const std::string& db, const std::string& collection, ActionSet actions) {
  return {{Resource::Collection(db, collection), actions}};
}

}  // namespace

TEST_CASE("Every command is either allowed before a login or says what it needs", "[privileges]") {
  std::set<std::string> described, before_login;
  for (const Case& c : ReadCases("shop", "other"))
    described.insert(std::string(ParseJson(c.json).value().view().First().name));
  for (const CommandRow& row : Registry().rows()) {
    INFO(row.name);
    CHECK(((row.flags & kNoAuth) != 0) == (row.privileges == nullptr));
    if (row.flags & kNoAuth)
      before_login.insert(std::string(row.name));
    else
      CHECK(described.contains(std::string(row.name)));
  }
  // Drivers need them before a login, and logging in is done by them. A member's stream proves
  // itself by the key file.
  CHECK(before_login == std::set<std::string>{"_mayflyMember", "authenticate", "buildInfo",
                                              "connectionStatus", "endSessions", "hello",
                                              "isMaster", "listCommands", "logout", "ping",
                                              "saslContinue", "saslStart", "whatsmyuri"});
}

TEST_CASE("Every built-in role may run what the manual lets it run", "[privileges]") {
  size_t allowed = 0, refused = 0;
  for (const RoleName& role : Roles()) {
    const std::vector<Privilege> privileges = BuiltinPrivileges(role);
    for (const auto& [db, other] : {std::pair("shop", "other"), std::pair("third", "shop")})
      for (Case& c : ReadCases(db, other)) {
        // The user is one of the database of the command, whatever that is.
        const UserName me{"me", db};
        const BsonDocument command = ParseJson(c.json).value();
        const bool is = Ask(command, c.db, privileges, &me).has_value();
        INFO(role.Shown() << ", " << db << ": " << c.line);
        CHECK(is == Expected(privileges, c));
        ++(is ? allowed : refused);
      }
  }
  // The table decides both ways.
  CHECK(allowed > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("What a command needs is enough, and nothing of it can be missing", "[privileges]") {
  for (const Case& c : ReadCases("shop", "other")) {
    INFO(c.line);
    for (const Needs& needs : c.alternatives) {
      const std::vector<Privilege> exact = Exactly(needs);
      CHECK(Allowed(c.json, c.db, exact) == Expected(exact, c));
      CHECK(Expected(exact, c));
      for (size_t leave_out = 0; leave_out < needs.size(); ++leave_out) {
        Needs fewer = needs;
        fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(leave_out));
        const std::vector<Privilege> less = Exactly(fewer);
        INFO("without " << ActionName(needs[leave_out].action));
        CHECK(Allowed(c.json, c.db, less) == Expected(less, c));
      }
    }
    // Who may do everything, and who may do nothing.
    CHECK(Allowed(c.json, c.db, {{Resource::Any(), ActionSet::All()}}));
    CHECK(Allowed(c.json, c.db, {}) == Expected({}, c));
    // A client that has not logged in.
    const BsonDocument command = ParseJson(c.json).value();
    CHECK_FALSE(Ask(command, c.db, {}, nullptr));
  }
}

TEST_CASE("Arguments of the wrong type, or none, allow nothing", "[privileges]") {
  // Answered by the command itself, which cannot do anything with them; or about the client's own.
  const std::set<std::string> own = {"aggregate",     "bulkWrite", "explain",
                                     "listDatabases", "rolesInfo", "usersInfo"};
  for (const Case& c : ReadCases("shop", "other")) {
    if (Expected({}, c)) continue;
    INFO(c.line);
    const BsonDocument command = ParseJson(c.json).value();
    const std::string name(command.view().First().name);
    if (own.contains(name)) continue;
    for (const char* value : {"1", "0", "null", "{}", "[]", "[1]", "true", "\"\"", "1.5",
                              "{\"db\": 1}", "[{\"user\": 1}]", "[null]"}) {
      const BsonDocument other = ParseJson("{\"v\": " + std::string(value) + "}").value();
      int at = 0;
      for (const BsonElement& changed : command.view()) {
        // Each field in turn is something else, or is missing.
        const BsonDocument wrong = BuildBson([&](BsonBuilder& b) {
          for (const BsonElement& e : command.view()) {
            if (e.name == changed.name)
              b.Append(e.name, other.view()["v"]);
            else
              b.Append(e);
          }
        });
        INFO(changed.name << ": " << value);
        CHECK_FALSE(Ask(wrong, c.db, {}));
        if (at++ == 0) continue;
        const BsonDocument without = BuildBson([&](BsonBuilder& b) {
          for (const BsonElement& e : command.view())
            if (e.name != changed.name) b.Append(e);
        });
        CHECK_FALSE(Ask(without, c.db, {}));
      }
    }
  }
}

TEST_CASE("Nobody reads a foreign collection through a pipeline", "[privileges]") {
  const auto privileges = On("shop", "c", {Action::find});
  auto allowed = [&](const std::string& stages) {
    return Allowed(R"({"aggregate": "c", "cursor": {}, "pipeline": [)" + stages + "]}", "shop",
                   privileges);
  };
  CHECK(allowed(""));
  CHECK(allowed(R"({"$match": {"$lookup": {"from": "d"}}})"));
  // Fields that are there twice, stages with two fields, collections of other databases.
  CHECK_FALSE(allowed(R"({"$lookup": {"from": "c", "from": "d", "pipeline": [], "as": "x"}})"));
  CHECK_FALSE(allowed(R"({"$lookup": {"from": "d", "from": "c", "pipeline": [], "as": "x"}})"));
  CHECK_FALSE(allowed(R"({"$match": {}, "$unionWith": "d"})"));
  CHECK_FALSE(allowed(R"({"$unionWith": {"coll": "c", "coll": "d"}})"));
  CHECK_FALSE(allowed(R"({"$unionWith": {"coll": "c", "pipeline": [{"$unionWith": "d"}]}})"));
  CHECK_FALSE(
      allowed(R"({"$unionWith": {"pipeline": [{"$documents": []}, {"$unionWith": "d"}]}})"));
  CHECK_FALSE(allowed(R"({"$graphLookup": {"from": "d"}})"));
  CHECK_FALSE(allowed(R"({"$facet": {"a": [], "b": [{"$facet": {"c": [{"$unionWith": "d"}]}}]}})"));
  CHECK_FALSE(allowed(
      R"({"$lookup": {"as": "x", "pipeline": [{"$lookup": {"as": "x", "from": "d", "pipeline": []}}], "from": "c"}})"));
  // Figures and controls of a collection that may only be read.
  for (const char* stage : {"$collStats", "$indexStats", "$planCacheStats", "$ttlForecast",
                            "$tombstones", "$changeStream"}) {
    INFO(stage);
    CHECK_FALSE(allowed("{\"" + std::string(stage) + "\": {}}"));
    CHECK_FALSE(allowed("{\"$unionWith\": {\"coll\": \"c\", \"pipeline\": [{\"" +
                        std::string(stage) + "\": {}}]}}"));
    CHECK_FALSE(allowed("{\"$lookup\": {\"as\": \"x\", \"pipeline\": [{\"" + std::string(stage) +
                        "\": {}}]}}"));
  }
  // Sessions: one's own, and nobody else's however that is said.
  for (const std::string stage : {"$listSessions", "$listLocalSessions"}) {
    INFO(stage);
    const auto of = [&](std::string_view spec) {
      return allowed("{\"" + stage + "\": " + std::string(spec) + "}");
    };
    CHECK(of("{}"));
    CHECK(of(R"({"users": [{"user": "me", "db": "shop"}]})"));
    CHECK(of(R"({"allUsers": false})"));
    for (const char* others :
         {R"({"allUsers": true})", R"({"allUsers": 1})", R"({"allUsers": false, "allUsers": true})",
          R"({"users": [{"user": "me", "db": "other"}]})", R"({"users": ["me"]})",
          R"({"users": [{"user": "me", "db": "shop"}, {"user": "x", "db": "shop"}]})",
          R"({"users": [{"user": "me", "db": "shop"}], "users": [{"user": "x", "db": "shop"}]})",
          R"({"users": [1]})"}) {
      INFO(others);
      CHECK_FALSE(of(others));
      CHECK_FALSE(allowed("{\"$unionWith\": {\"coll\": \"c\", \"pipeline\": [{\"" + stage +
                          "\": " + others + "}]}}"));
    }
  }
  // Writes.
  CHECK_FALSE(allowed(R"({"$out": "c"})"));
  CHECK_FALSE(allowed(R"({"$out": {"coll": "c", "db": "shop"}})"));
  CHECK_FALSE(allowed(R"({"$merge": {"into": "c"}})"));
  CHECK_FALSE(
      allowed(R"({"$merge": {"into": "c", "whenMatched": "fail", "whenNotMatched": "fail"}})"));
  CHECK_FALSE(allowed(R"({"$facet": {"a": [{"$out": "d"}]}})"));
  // What is deeper than the parser goes is looked at all the same.
  std::string deep = R"({"$unionWith": "d"})";
  for (int i = 0; i < 40; ++i)
    deep = R"({"$unionWith": {"coll": "c", "pipeline": [)" + deep + "]}}";
  CHECK_FALSE(allowed(deep));
}

TEST_CASE("The last value of whenMatched decides, as in the stage", "[privileges]") {
  const auto reads = On("shop", "c", {Action::find, Action::insert});
  CHECK(Allowed(
      R"({"aggregate": "c", "cursor": {}, "pipeline": [{"$merge": {"into": "c", "whenMatched": "replace", "whenMatched": "fail"}}]})",
      "shop", reads));
  CHECK_FALSE(Allowed(
      R"({"aggregate": "c", "cursor": {}, "pipeline": [{"$merge": {"into": "c", "whenMatched": "fail", "whenMatched": "replace"}}]})",
      "shop", reads));
}

TEST_CASE("Names with a NUL, and names that only look like others, are other names",
          "[privileges]") {
  const auto privileges = On("shop", "c", ActionSet::All());
  for (std::string name :
       {std::string("c\0d", 3), std::string("c\0", 2), std::string("\0c", 2), std::string("C"),
        std::string("c "), std::string("shop.c"), std::string("c."), std::string(".c")}) {
    for (const char* command : {"find", "insert", "update", "delete", "count", "drop", "create",
                                "collMod", "createIndexes", "validate", "ttlHold", "touch"}) {
      const BsonDocument b =
          BuildBson([&](BsonBuilder& out) { out.Append(command, std::string_view(name)); });
      INFO(command);
      CHECK_FALSE(Ask(b, "shop", privileges));
    }
    const BsonDocument rename = BuildBson([&](BsonBuilder& out) {
      out.Append("renameCollection", "shop.c").Append("to", std::string_view("shop." + name));
    });
    CHECK_FALSE(Ask(rename, "admin", privileges));
  }
  // The users' collection, by what a database's administrator has.
  const auto owner = BuiltinPrivileges({"dbOwner", "admin"});
  for (
      const char* json :
      {R"({"insert": "system.users", "documents": []})", R"({"find": "system.users"})",
       R"({"update": "system.users", "updates": []})",
       R"({"delete": "system.users", "deletes": []})", R"({"drop": "system.users"})",
       R"({"create": "system.users"})", R"({"collMod": "system.users"})",
       R"({"convertToCapped": "system.users", "size": 1})",
       R"({"renameCollection": "admin.a", "to": "admin.system.users"})",
       R"({"renameCollection": "admin.system.users", "to": "admin.a"})",
       R"({"cloneCollectionAsCapped": "a", "toCollection": "system.users", "size": 1})",
       R"({"cloneCollectionAsCapped": "system.users", "toCollection": "a", "size": 1})",
       R"({"aggregate": "a", "pipeline": [{"$out": "system.users"}], "cursor": {}})",
       R"({"aggregate": "a", "pipeline": [{"$merge": "system.roles"}], "cursor": {}})",
       R"({"aggregate": "a", "pipeline": [{"$unionWith": "system.users"}], "cursor": {}})",
       R"({"create": "v", "viewOn": "system.users", "pipeline": []})",
       R"({"create": "x", "onExpire": {"action": "archive", "into": {"db": "admin", "coll": "system.users"}}})",
       R"({"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "admin.system.users"}]})",
       R"({"explain": {"find": "system.users"}})"}) {
    INFO(json);
    CHECK_FALSE(Allowed(json, "admin", owner));
  }
}

TEST_CASE("A role or user whose database is there twice is not of the one that is allowed",
          "[privileges]") {
  const auto admin = BuiltinPrivileges({"userAdmin", "shop"});
  for (const std::string dbs :
       {R"("db": "shop", "db": "admin")", R"("db": "admin", "db": "shop")"}) {
    const std::string role = R"({"role": "root", )" + dbs + "}", roles = "[" + role + "]",
                      user = R"({"user": "x", )" + dbs + "}";
    for (const std::string& json :
         {R"({"createUser": "x", "pwd": "p", "roles": )" + roles + "}",
          R"({"grantRolesToUser": "x", "roles": )" + roles + "}",
          R"({"revokeRolesFromUser": "x", "roles": )" + roles + "}",
          R"({"createRole": "x", "privileges": [], "roles": )" + roles + "}",
          R"({"grantRolesToRole": "x", "roles": )" + roles + "}",
          R"({"revokeRolesFromRole": "x", "roles": )" + roles + "}",
          R"({"rolesInfo": )" + role + "}", R"({"rolesInfo": )" + roles + "}",
          R"({"usersInfo": )" + user + "}", R"({"usersInfo": [)" + user + "]}"}) {
      INFO(json);
      CHECK_FALSE(Allowed(json, "shop", admin));
    }
  }
}

TEST_CASE("An archive takes the place of what is there", "[privileges]") {
  const std::string create =
      R"({"create": "c", "onExpire": {"action": "archive", "into": {"db": "other", "coll": "old"}}})";
  auto privileges = On("shop", "c", ActionSet::All());
  privileges.push_back({Resource::Collection("other", "old"), {Action::insert}});
  CHECK_FALSE(Allowed(create, "shop", privileges));
  privileges.push_back({Resource::Collection("other", "old"), {Action::update}});
  CHECK(Allowed(create, "shop", privileges));
  // And it shows what goes there.
  privileges[0].actions = {Action::createCollection, Action::insert};
  CHECK_FALSE(Allowed(create, "shop", privileges));
}

TEST_CASE("A bulkWrite is judged by all of its ops", "[privileges]") {
  const auto privileges = On("shop", "c", {Action::insert});
  auto allowed = [&](const std::string& ops, const std::string& namespaces) {
    return Allowed(R"({"bulkWrite": 1, "ops": [)" + ops + R"(], "nsInfo": [)" + namespaces + "]}",
                   "admin", privileges);
  };
  const std::string c = R"({"ns": "shop.c"})", both = R"({"ns": "shop.c"}, {"ns": "shop.d"})";
  CHECK(allowed(R"({"insert": 0, "document": {}})", c));
  CHECK(allowed(R"({"insert": 0, "document": {}})", both));
  CHECK_FALSE(allowed(R"({"insert": 0, "document": {}}, {"insert": 1, "document": {}})", both));
  CHECK_FALSE(allowed(R"({"insert": 0.9, "document": {}}, {"insert": 1.9, "document": {}})", both));
  CHECK_FALSE(allowed(R"({"insert": 0, "document": {}}, {"delete": 0, "filter": {}})", c));
  CHECK_FALSE(allowed(R"({"update": 0, "filter": {}, "updateMods": {}})", c));
  // Two names for one collection are one collection.
  CHECK_FALSE(
      allowed(R"({"insert": 0, "document": {}}, {"delete": 1, "filter": {}})", c + "," + c));
  // The command counts on the documents alone; what is none it refuses.
  CHECK(allowed(R"({"insert": 7, "document": {}})", c));
  // As sequences of a message, which go before fields.
  const BsonDocument body = ParseJson(R"({"bulkWrite": 1, "nsInfo": [{"ns": "shop.c"}]})").value(),
                     op = ParseJson(R"({"insert": 0, "document": {}})").value(),
                     d = ParseJson(R"({"ns": "shop.d"})").value();
  CommandRequest req;
  REQUIRE(ParseCommandFields(body, &req));
  req.db = "admin";
  req.sequences = {{"ops", {op.view()}}, {"nsInfo", {d.view()}}};
  const PrivilegeSet set(privileges);
  CHECK_FALSE(Registry().Find("bulkWrite")->privileges({req, set, &kMe}));
}

TEST_CASE("applyOps allows no more than what is in it", "[privileges]") {
  std::vector<Privilege> privileges = On("shop", "", ActionSet::All());
  privileges.push_back({Resource::Cluster(), {Action::applyOps}});
  auto allowed = [&](const std::string& entries) {
    return Allowed("{\"applyOps\": [" + entries + "]}", "admin", privileges);
  };
  CHECK(allowed(R"({"op": "i", "ns": "shop.c", "o": {"_id": 1}})"));
  CHECK_FALSE(allowed(
      R"({"op": "i", "ns": "shop.c", "o": {"_id": 1}}, {"op": "d", "ns": "other.c", "o": {"_id": 1}})"));
  CHECK_FALSE(allowed(R"({"op": "i", "ns": "admin.system.users", "o": {"_id": 1}})"));
  CHECK_FALSE(allowed(R"({"op": "i", "ns": "shop.system.users", "o": {"_id": 1}})"));
  // Which collection a UUID names, the entry does not say.
  CHECK_FALSE(allowed(
      R"({"op": "i", "ns": "shop.c", "ui": {"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}, "o": {"_id": 1}})"));
  // Nor does that of a command, whose error would tell whether there is one.
  const std::string ui = R"("ui": {"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}, )";
  for (const char* o :
       {R"({"drop": "c"})", R"({"collMod": "c"})", R"({"dropIndexes": "c", "index": "a_1"})",
        R"({"createIndexes": "c", "v": 2, "key": {"a": 1}, "name": "a_1"})",
        R"({"renameCollection": "shop.c", "to": "shop.d"})", R"({"create": "x"})",
        R"({"applyOps": [{"op": "d", "ns": "shop.c", "o": {"_id": 1}}]})"}) {
    INFO(o);
    const std::string begin = R"({"op": "c", "ns": "shop.$cmd", )",
                      end = std::string("\"o\": ") + o + "}";
    CHECK(allowed(begin + end));
    CHECK_FALSE(allowed(begin + ui + end));
    CHECK_FALSE(allowed(R"({"op": "c", "ns": "shop.$cmd", "o": {"applyOps": [)" + begin + ui + end +
                        "]}}"));
  }
  CHECK_FALSE(allowed(R"({"op": "c", "ns": "other.$cmd", "o": {"create": "x"}})"));
  CHECK_FALSE(allowed(
      R"({"op": "c", "ns": "shop.$cmd", "o": {"create": "v", "viewOn": "system.users", "pipeline": []}})"));
  CHECK_FALSE(allowed(
      R"({"op": "c", "ns": "shop.$cmd", "o": {"renameCollection": "shop.x", "to": "admin.system.users"}})"));
  std::string nested = R"({"op": "i", "ns": "other.c", "o": {"_id": 1}})";
  for (int i = 0; i < 20; ++i)
    nested = R"({"op": "c", "ns": "shop.$cmd", "o": {"applyOps": [)" + nested + "]}}";
  CHECK_FALSE(allowed(nested));
}

TEST_CASE("A view over what one may not read", "[privileges]") {
  std::vector<Privilege> privileges =
      On("shop", "v", {Action::createCollection, Action::collMod, Action::find});
  CHECK_FALSE(
      Allowed(R"({"create": "v", "viewOn": "secret", "pipeline": []})", "shop", privileges));
  CHECK_FALSE(
      Allowed(R"({"collMod": "v", "viewOn": "secret", "pipeline": []})", "shop", privileges));
  CHECK_FALSE(
      Allowed(R"({"collMod": "v", "pipeline": [{"$unionWith": "secret"}]})", "shop", privileges));
  CHECK_FALSE(Allowed(
      R"({"create": "v", "viewOn": "v", "pipeline": [{"$lookup": {"from": "secret", "pipeline": [], "as": "x"}}]})",
      "shop", privileges));
  // A view that is there is asked for alone.
  CHECK(Allowed(R"({"find": "v"})", "shop", privileges));
  CHECK(Allowed(R"({"aggregate": "v", "pipeline": [], "cursor": {}})", "shop", privileges));
}

TEST_CASE("Nobody grants what is not his to grant", "[privileges]") {
  const auto admin = BuiltinPrivileges({"userAdmin", "shop"});
  for (
      const char* json :
      {R"({"grantRolesToUser": "me", "roles": [{"role": "root", "db": "admin"}]})",
       R"({"grantRolesToUser": "me", "roles": ["read", {"role": "read", "db": "other"}]})",
       R"({"createUser": "x", "pwd": "p", "roles": [{"role": "readAnyDatabase", "db": "admin"}]})",
       R"({"updateUser": "me", "roles": [{"role": "root", "db": "admin"}]})",
       R"({"updateUser": "me", "roles": ["dbOwner"]})",
       R"({"createRole": "x", "privileges": [{"resource": {"db": "other", "collection": ""}, "actions": ["find"]}], "roles": []})",
       R"({"createRole": "x", "privileges": [{"resource": {"anyResource": true}, "actions": ["anyAction"]}], "roles": []})",
       R"({"createRole": "x", "privileges": [], "roles": [{"role": "root", "db": "admin"}]})",
       R"({"createRole": "x", "privileges": [{"resource": {"db": 1}}], "roles": []})",
       R"({"createRole": "x", "privileges": 1, "roles": []})",
       R"({"createUser": "x", "pwd": "p", "roles": [1]})",
       R"({"createUser": "x", "pwd": "p", "roles": [{"role": "root"}]})",
       R"({"createUser": "x", "pwd": "p", "roles": [{"role": "root", "db": ""}]})",
       R"({"createUser": "x", "pwd": "p", "roles": {"role": "root", "db": "admin"}})",
       R"({"grantPrivilegesToRole": "x", "privileges": [{"resource": {"cluster": true}, "actions": ["shutdown"]}]})",
       R"({"grantRolesToRole": "x", "roles": [{"role": "userAdmin", "db": "admin"}]})"}) {
    INFO(json);
    CHECK_FALSE(Allowed(json, "shop", admin));
  }
  // In a database of somebody else, and as somebody else.
  CHECK_FALSE(Allowed(R"({"createUser": "x", "pwd": "p", "roles": []})", "other", admin));
  std::vector<Privilege> own = On("shop", "", {Action::changeOwnPassword});
  CHECK(Allowed(R"({"updateUser": "me", "pwd": "p"})", "shop", own));
  CHECK_FALSE(Allowed(R"({"updateUser": "me", "pwd": "p", "roles": []})", "shop", own));
  CHECK_FALSE(Allowed(R"({"updateUser": "me", "pwd": "p", "customData": {}})", "shop", own));
  CHECK_FALSE(Allowed(R"({"updateUser": "me"})", "shop", own));
  CHECK_FALSE(Allowed(R"({"updateUser": "you", "pwd": "p"})", "shop", own));
  CHECK_FALSE(Allowed(R"({"updateUser": "me", "pwd": "p"})", "other", own));
}

TEST_CASE("rolesInfo about any of many roles of one's own needs no action", "[privileges]") {
  std::vector<RoleName> roles;
  for (const char* db : {"other", "shop"})
    for (int i = 0; i < 500; ++i) roles.push_back({"r" + std::to_string(i), db});
  std::ranges::sort(roles);
  const PrivilegeSet none;
  const auto allowed = [&](const BsonDocument& names, const std::vector<RoleName>* own) {
    const BsonDocument command =
        BuildBson([&](BsonBuilder& b) { b.Append("rolesInfo", names.view()["v"]); });
    CommandRequest req;
    REQUIRE(ParseCommandFields(command, &req, "shop"));
    return Registry().Find("rolesInfo")->privileges({req, none, &kMe, own}).has_value();
  };
  const BsonDocument all = BuildBson([&](BsonBuilder& b) {
    BsonArrayBuilder names = b.OpenArray("v");
    for (const RoleName& r : roles) {
      BsonBuilder name = names.OpenDocument();
      AppendRoleName(name, r);
    }
  });
  CHECK(allowed(all, &roles));
  CHECK_FALSE(allowed(all, nullptr));
  for (const RoleName& r : roles) {
    const BsonDocument one = BuildBson([&](BsonBuilder& b) {
      BsonBuilder name = b.OpenDocument("v");
      AppendRoleName(name, r);
    });
    INFO(r.Shown());
    CHECK(allowed(one, &roles));
  }
  // The last of each is another's.
  for (const char* json :
       {R"({"v": "r500"})", R"({"v": ["r0", "r500"]})", R"({"v": {"role": "r0", "db": "third"}})",
        R"({"v": [{"role": "r0", "db": "other"}, {"role": "r0", "db": "third"}]})",
        R"({"v": ["r0", 1]})",
        R"({"v": ["r0", {"role": "r1", "db": "shop", "forAllDBs": true}]})"}) {
    INFO(json);
    CHECK_FALSE(allowed(ParseJson(json).value(), &roles));
  }
}

TEST_CASE("currentOp's own operations are a wish that must be clear", "[privileges]") {
  CHECK(Allowed(R"({"currentOp": 1, "$ownOps": true})", "admin", {}));
  CHECK_FALSE(Allowed(R"({"currentOp": 1, "$ownOps": false})", "admin", {}));
  CHECK_FALSE(Allowed(R"({"currentOp": 1})", "admin", {}));
}

TEST_CASE("A command is about one database, also one within another", "[privileges]") {
  // What was allowed in one was once done in the other (explain, applyOps).
  const auto code = [](const char* json, std::string_view db) {
    const BsonDocument body = ParseJson(json).value();
    CommandRequest request;
    const Result<void> parsed = ParseCommandFields(body, &request, db);
    return parsed ? ErrorCode::kOk : parsed.error().code;
  };
  CHECK(code(R"({"find": "c", "$db": "other"})", "shop") == ErrorCode::kInvalidNamespace);
  CHECK(code(R"({"find": "c", "$db": "shop"})", "shop") == ErrorCode::kOk);
  CHECK(code(R"({"find": "c"})", "shop") == ErrorCode::kOk);
  std::vector<Privilege> own = On("shop", "", {Action::dropCollection, Action::dropDatabase});
  own.push_back({Resource::Cluster(), {Action::applyOps}});
  CHECK(Allowed(R"({"applyOps": [{"op": "c", "ns": "shop.$cmd", "o": {"drop": "c"}}]})", "admin",
                own));
  // What is not carried out needs nothing; what is, is what was decided about.
  const BsonDocument elsewhere =
      ParseJson(
          R"({"applyOps": [{"op": "c", "ns": "shop.$cmd", "o": {"drop": "c", "$db": "other"}}]})")
          .value();
  CommandRequest request;
  REQUIRE(ParseCommandFields(elsewhere, &request, "admin"));
  const InnerRequests& inner = InnerRequests::Of(request);
  REQUIRE(inner.entries.size() == 1);
  CHECK(inner.entries[0].command == nullptr);
  REQUIRE(inner.entries[0].refused != nullptr);
  CHECK(inner.entries[0].refused->code == ErrorCode::kInvalidNamespace);
}

TEST_CASE("A refusal shows the command without its secrets", "[privileges]") {
  const std::string canary = "canary-4711";
  for (const std::string& json :
       {R"({"createUser": "x", "pwd": ")" + canary + R"(", "roles": []})",
        R"({"updateUser": "x", "pwd": {"a": ")" + canary + R"("}})",
        R"({"createUser": "x", "password": ")" + canary + R"(", "roles": []})",
        R"({"setParameter": 1, "tlsClusterPassword": ")" + canary + R"("})",
        R"({"explain": {"createUser": "x", "pwd": ")" + canary + R"("}})"}) {
    const BsonDocument command = ParseJson(json).value();
    const Result<void> refused = Ask(command, "shop", {});
    INFO(json);
    // What cannot be explained needs no more than a login.
    if (!refused) CHECK(refused.error().message.find(canary) == std::string::npos);
    CHECK(ShortCommandText(command).find(canary) == std::string::npos);
    CHECK(ToRelaxedJson(RedactedCommand(command)).find(canary) == std::string::npos);
    CHECK(ToRelaxedJson(RedactedCommand(command)).find("xxx") != std::string::npos);
  }
  // Long ones are cut.
  const BsonDocument big = BuildBson([](BsonBuilder& b) {
    b.Append("insert", "c").Append("x", std::string(100'000, 'x'));
    for (int i = 0; i < 900; ++i) b.Append("field" + std::to_string(i), std::string(50, 'y'));
  });
  CHECK(ShortCommandText(big).size() < 2000);
  CHECK(Ask(big, "shop", {})
            .error()
            .message.rfind(
                R"(not authorized on shop to execute command { insert: "c", x: ..., field0: )",
                0) == 0);
}

namespace {

const char* const kFrequent[] = {
    R"({"find": "c", "filter": {"_id": 1}, "limit": 1, "singleBatch": true})",
    R"({"insert": "c", "documents": [{"_id": 1, "a": 1}], "ordered": true})",
    R"({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]})",
    R"({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})",
    R"({"getMore": 1, "collection": "c"})",
    R"({"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$group": {"_id": "$b"}}], "cursor": {}})"};

/// A user with roles on a thousand databases, one of them the right one.
PrivilegeSet ManyRoles() {
  std::vector<Privilege> privileges;
  for (int i = 0; i < 1000; ++i)
    for (const Privilege& p : BuiltinPrivileges({"readWrite", "db" + std::to_string(i)}))
      privileges.push_back(p);
  for (const Privilege& p : BuiltinPrivileges({"readWrite", "shop"})) privileges.push_back(p);
  return PrivilegeSet(privileges);
}

}  // namespace

TEST_CASE("Asking for what clients do all the time allocates nothing", "[privileges]") {
  const PrivilegeSet set = ManyRoles();
  for (const char* json : kFrequent) {
    INFO(json);
    const BsonDocument command = ParseJson(json).value();
    CommandRequest req;
    REQUIRE(ParseCommandFields(command, &req));
    req.db = "shop";
    const CommandRow* row = Registry().Find(req.name);
    const size_t before = allocations;
    const bool allowed = row->privileges({req, set, &kMe}).has_value();
    const size_t after = allocations;
    CHECK(allowed);
    CHECK(after == before);
  }
}

TEST_CASE("How long it takes to ask", "[.bench]") {
  const PrivilegeSet set = ManyRoles();
  for (const char* json : kFrequent) {
    const BsonDocument command = ParseJson(json).value();
    CommandRequest req;
    REQUIRE(ParseCommandFields(command, &req));
    req.db = "shop";
    const CommandRow* row = Registry().Find(req.name);
    constexpr int kTimes = 1'000'000;
    int allowed = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) allowed += row->privileges({req, set, &kMe}).has_value();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    CHECK(allowed == kTimes);
    std::cout << req.name << ": " << took.count() / kTimes << " ns\n";
  }
}

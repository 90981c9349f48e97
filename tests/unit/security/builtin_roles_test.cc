#include "security/builtin_roles.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "security/privilege_set.h"

using namespace mayfly;

namespace {

PrivilegeSet Of(const char* role, const char* db = "admin") {
  return PrivilegeSet(BuiltinPrivileges({role, db}));
}

/// Resources as text, each with the names of its actions.
using Grants = std::map<std::string, std::set<std::string>>;

std::string Shown(const Resource& r) {
  if (r.kind == Resource::Kind::kAny) return "any";
  if (r.kind == Resource::Kind::kCluster) return "cluster";
  if (r.kind == Resource::Kind::kBuckets) return "buckets";
  const std::string db = r.db.empty() ? "all" : r.db;
  return r.collection.empty() ? db : db + "." + r.collection;
}

Grants Granted(const std::string& role, const std::string& db) {
  Grants grants;
  for (const Privilege& p : BuiltinPrivileges({role, db}))
    p.actions.ForEach(
        [&](Action a) { grants[Shown(p.resource)].insert(std::string(ActionName(a))); });
  return grants;
}

/// tests/data/builtin_roles.txt: lines of each role.
struct Line {
  std::string on, names;
};
std::map<std::string, std::vector<Line>> ReadManual() {
  std::ifstream in(MAYFLY_SOURCE_DIR "/tests/data/builtin_roles.txt");
  REQUIRE(in);
  std::map<std::string, std::vector<Line>> roles;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    INFO(line);
    if (line[0] == '+') line.erase(0, line.find(' ') + 1);
    const size_t first = line.find(" | "), second = line.find(" | ", first + 3);
    REQUIRE(second != line.npos);
    roles[line.substr(0, first)].push_back(
        {line.substr(first + 3, second - first - 3), line.substr(second + 3)});
  }
  return roles;
}

/// What the manual gives to a role of `db`; "all": to each of these.
void Collect(const std::map<std::string, std::vector<Line>>& manual, const std::string& role,
             const std::string& db, Grants& out) {
  INFO(role);
  REQUIRE(manual.contains(role));
  for (const Line& line : manual.at(role)) {
    std::istringstream words(line.names);
    std::string on = line.on;
    if (on.starts_with("<db>")) on = db + on.substr(4);
    for (std::string word; words >> word;) {
      if (on.starts_with("includes"))
        Collect(manual, word, on == "includes" ? db : "all", out);
      else
        out[on].insert(word);
    }
  }
}

}  // namespace

TEST_CASE("Built-in roles have the manual's actions, no fewer and no more", "[security][roles]") {
  const auto manual = ReadManual();
  std::set<std::string> described, there;
  for (const auto& [role, unused] : manual) described.insert(role);
  for (const std::string db : {"shop", "admin"})
    for (const RoleName& name : BuiltinRoles(db)) {
      there.insert(name.role);
      INFO(name.Shown());
      Grants expected;
      Collect(manual, name.role, name.db, expected);
      const Grants granted = Granted(name.role, name.db);
      for (const auto& [on, actions] : expected) {
        INFO(on);
        CHECK(granted.contains(on));
        if (granted.contains(on) && name.role != "__system") CHECK(granted.at(on) == actions);
      }
      for (const auto& [on, actions] : granted) {
        INFO(on);
        CHECK(expected.contains(on));
      }
    }
  CHECK(there == described);
}

TEST_CASE("Time series are dumped and restored by their buckets", "[security][roles]") {
  const auto may = [](const char* role, Action action) {
    const PrivilegeSet set(BuiltinPrivileges({role, "admin"}));
    return set.On("shop", "system.buckets.weather").Has(action);
  };
  for (const char* role : {"backup", "root"}) CHECK(may(role, Action::find));
  for (const char* role : {"restore", "root"}) {
    CHECK(may(role, Action::insert));
    CHECK(may(role, Action::createIndex));
  }
  CHECK_FALSE(may("restore", Action::find));
  for (const char* role : {"readWriteAnyDatabase", "dbAdminAnyDatabase"}) {
    CHECK_FALSE(may(role, Action::find));
    CHECK_FALSE(may(role, Action::insert));
  }
}

TEST_CASE("Built-in roles are where the manual has them", "[security][roles]") {
  for (const char* role : {"read", "readWrite", "dbAdmin", "dbOwner", "userAdmin"}) {
    CHECK(IsBuiltinRole({role, "shop"}));
    CHECK(IsBuiltinRole({role, "admin"}));
    CHECK_FALSE(BuiltinPrivileges({role, "shop"}).empty());
  }
  for (const char* role :
       {"clusterAdmin", "clusterManager", "clusterMonitor", "hostManager", "backup", "restore",
        "readAnyDatabase", "readWriteAnyDatabase", "userAdminAnyDatabase", "dbAdminAnyDatabase",
        "enableSharding", "root", "__system", "expiryAdmin"}) {
    INFO(role);
    CHECK(IsBuiltinRole({role, "admin"}));
    CHECK_FALSE(IsBuiltinRole({role, "shop"}));
    CHECK(BuiltinPrivileges({role, "shop"}).empty());
    CHECK_FALSE(BuiltinPrivileges({role, "admin"}).empty());
  }
  CHECK_FALSE(IsBuiltinRole({"reader", "admin"}));
  CHECK_FALSE(IsBuiltinRole({"", "admin"}));
  CHECK(BuiltinRoles("shop").size() == 5);
  CHECK(BuiltinRoles("admin").size() == 21);
}

TEST_CASE("read, readWrite and the roles for administration of one database", "[security][roles]") {
  const auto read = Of("read", "shop"), write = Of("readWrite", "shop"),
             admin = Of("dbAdmin", "shop"), users = Of("userAdmin", "shop"),
             owner = Of("dbOwner", "shop");
  CHECK(read.Allows("shop", "orders", {Action::find, Action::listIndexes, Action::changeStream}));
  CHECK(read.Allows("shop", "system.js", {Action::find}));
  CHECK_FALSE(read.Allows("shop", "system.profile", {Action::find}));
  CHECK_FALSE(read.Allows("shop", "orders", {Action::insert}));
  CHECK_FALSE(read.Allows("other", "orders", {Action::find}));
  CHECK(write.Allows("shop", "orders",
                     {Action::find, Action::insert, Action::update, Action::remove,
                      Action::createCollection, Action::createIndex, Action::dropCollection}));
  CHECK_FALSE(write.Allows("shop", "", {Action::dropDatabase}));
  CHECK_FALSE(write.Allows("shop", "orders", {Action::collMod}));
  CHECK_FALSE(write.Allows("shop", "orders", {Action::bypassDocumentValidation}));
  CHECK(admin.Allows("shop", "", {Action::dropDatabase, Action::enableProfiler, Action::collMod}));
  CHECK(admin.Allows("shop", "system.profile", {Action::find, Action::dropCollection}));
  CHECK_FALSE(admin.Allows("shop", "orders", {Action::find}));
  CHECK_FALSE(admin.Allows("shop", "orders", {Action::insert}));
  CHECK(users.Allows("shop", "", {Action::createUser, Action::grantRole, Action::viewUser}));
  CHECK_FALSE(users.Allows("shop", "orders", {Action::find}));
  CHECK_FALSE(users.Allows("admin", "", {Action::createUser}));
  CHECK(owner.Allows("shop", "orders", {Action::insert, Action::collMod, Action::readExpired}));
  CHECK(owner.Allows("shop", "", {Action::createUser}));
  for (const auto* s : {&read, &write, &admin, &users, &owner}) {
    CHECK_FALSE(s->AllowsOnCluster({Action::shutdown}));
    CHECK_FALSE(s->Allows("shop", "system.users", {Action::insert}));
    CHECK_FALSE(s->AllowsOnCluster({Action::viewExpiry}));
  }
}

TEST_CASE("Roles for all databases leave out local and config", "[security][roles]") {
  const auto read = Of("readAnyDatabase"), write = Of("readWriteAnyDatabase"),
             users = Of("userAdminAnyDatabase"), admin = Of("dbAdminAnyDatabase");
  CHECK(read.Allows("shop", "orders", {Action::find}));
  CHECK(read.AllowsOnCluster({Action::listDatabases}));
  CHECK_FALSE(read.Allows("local", "oplog.rs", {Action::find}));
  CHECK_FALSE(read.Allows("config", "settings", {Action::find}));
  CHECK_FALSE(read.Allows("admin", "system.users", {Action::find}));
  CHECK(write.Allows("shop", "orders", {Action::insert}));
  CHECK_FALSE(write.Allows("config", "settings", {Action::insert}));
  CHECK_FALSE(write.Allows("admin", "system.users", {Action::insert}));
  CHECK(users.Allows("shop", "", {Action::createUser}));
  CHECK(users.Allows("admin", "", {Action::createUser}));
  CHECK(users.Allows("admin", "system.users", {Action::find}));
  CHECK_FALSE(users.Allows("admin", "system.users", {Action::insert}));
  CHECK_FALSE(users.Allows("shop", "orders", {Action::find}));
  CHECK(admin.Allows("shop", "", {Action::dropDatabase}));
  CHECK(admin.AllowsOnCluster({Action::applyOps}));
}

TEST_CASE("Roles for the cluster, for backups and for everything", "[security][roles]") {
  const auto monitor = Of("clusterMonitor"), manager = Of("clusterManager"),
             host = Of("hostManager"), cluster = Of("clusterAdmin"), backup = Of("backup"),
             restore = Of("restore"), root = Of("root"), expiry = Of("expiryAdmin"),
             system = Of("__system");
  CHECK(
      monitor.AllowsOnCluster({Action::serverStatus, Action::inprog, Action::top, Action::getLog}));
  CHECK(monitor.Allows("shop", "orders", {Action::collStats, Action::indexStats}));
  CHECK(monitor.Allows("shop", "system.profile", {Action::find}));
  CHECK(monitor.Allows("local", "oplog.rs", {Action::find}));
  CHECK_FALSE(monitor.Allows("shop", "orders", {Action::find}));
  CHECK_FALSE(monitor.AllowsOnCluster({Action::shutdown}));
  CHECK_FALSE(monitor.AllowsOnCluster({Action::killop}));
  CHECK(manager.AllowsOnCluster({Action::replSetConfigure, Action::replSetStateChange}));
  CHECK_FALSE(manager.AllowsOnCluster({Action::shutdown}));
  CHECK(host.AllowsOnCluster({Action::shutdown, Action::setParameter, Action::killop}));
  CHECK_FALSE(host.AllowsOnCluster({Action::replSetConfigure}));
  CHECK(
      cluster.AllowsOnCluster({Action::shutdown, Action::replSetConfigure, Action::serverStatus}));
  CHECK(cluster.Allows("shop", "", {Action::dropDatabase}));
  CHECK_FALSE(cluster.Allows("shop", "orders", {Action::find}));
  CHECK(backup.Allows("shop", "orders", {Action::find, Action::listIndexes}));
  CHECK(backup.Allows("admin", "system.users", {Action::find}));
  CHECK_FALSE(backup.Allows("shop", "orders", {Action::insert}));
  CHECK(restore.Allows("shop", "orders", {Action::insert, Action::createIndex, Action::collMod}));
  CHECK(restore.Allows("admin", "system.users", {Action::insert, Action::update, Action::remove}));
  CHECK_FALSE(restore.Allows("shop", "orders", {Action::find}));
  CHECK(expiry.Allows("shop", "orders", {Action::holdExpiry, Action::readExpired}));
  CHECK(expiry.AllowsOnCluster({Action::reviewGuard}));
  CHECK_FALSE(expiry.Allows("shop", "orders", {Action::find}));
  CHECK_FALSE(expiry.Allows("shop", "orders", {Action::remove}));
  CHECK(root.Allows("shop", "orders", {Action::find, Action::insert, Action::createUser}));
  CHECK(root.AllowsOnCluster({Action::shutdown, Action::applyOps, Action::reviewGuard}));
  CHECK(root.Allows("shop", "system.anything", {Action::validate}));
  CHECK_FALSE(root.AllowsOnCluster({Action::internal}));
  CHECK_FALSE(root.Allows(Resource::Any(), {Action::find}));
  CHECK(system.Allows(Resource::Any(), ActionSet::All()));
}

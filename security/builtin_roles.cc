#include "security/builtin_roles.h"

#include <boost/assert.hpp>
#include <map>
#include <string>

namespace mayfly {

namespace {

/// One row: what a role may do on one resource, or (`on` is "role") which roles it contains. `on`
/// is "cluster", "any", "db" (the role's own database and its collections), "db:NAME" (one
/// collection of that database), "all" (every database except `local` and `config`), or else the
/// name of a database.
struct Row {
  std::string_view role, on, names;
};

// The lists of MongoDB's manual ("Built-In Roles"), and Mayfly's actions for expiry: readers of a
// collection see what will expire in it; its administrators may set and hold its expiry; only
// owners of the database see overdue documents and tombstones.
constexpr Row kRows[] = {
    {"read", "db",
     "changeStream collStats dbHash dbStats find killCursors listCollections listIndexes "
     "listSearchIndexes planCacheRead viewExpiry"},
    {"read", "db:system.js",
     "changeStream collStats dbHash dbStats find killCursors listCollections listIndexes "
     "listSearchIndexes planCacheRead"},
    {"readWrite", "role", "read"},
    {"readWrite", "db",
     "cleanupStructuredEncryptionData compactStructuredEncryptionData convertToCapped "
     "createCollection createIndex createSearchIndexes dropCollection dropIndex dropSearchIndex "
     "insert performRawDataOperations remove renameCollectionSameDB update updateSearchIndex"},
    {"readWrite", "db:system.js",
     "cleanupStructuredEncryptionData compactStructuredEncryptionData convertToCapped "
     "createCollection createIndex createSearchIndexes dropCollection dropIndex dropSearchIndex "
     "insert performRawDataOperations remove renameCollectionSameDB update updateSearchIndex"},
    {"dbAdmin", "db:system.profile",
     "changeStream collStats convertToCapped createCollection dbHash dbStats dropCollection find "
     "killCursors listCollections listIndexes listSearchIndexes planCacheRead"},
    {"dbAdmin", "db",
     "bypassDocumentValidation changeExpiry collMod collStats compact convertToCapped "
     "createCollection createIndex createSearchIndexes dbStats dropCollection dropDatabase "
     "dropIndex dropSearchIndex enableProfiler holdExpiry listCollections listIndexes "
     "listSearchIndexes planCacheIndexFilter planCacheRead planCacheWrite reIndex "
     "renameCollectionSameDB storageDetails updateSearchIndex validate viewExpiry"},
    {"userAdmin", "db",
     "changeCustomData changePassword createRole createUser dropRole dropUser grantRole revokeRole "
     "setAuthenticationRestriction viewRole viewUser"},
    {"dbOwner", "role", "readWrite dbAdmin userAdmin"},
    {"dbOwner", "db", "readExpired"},

    {"clusterManager", "cluster",
     "addShard appendOplogNote applicationMessage backup checkMetadataConsistency cleanupOrphaned "
     "flushRouterConfig getClusterParameter getDefaultRWConcern listSessions listShards "
     "moveCollection removeShard replSetConfigure replSetGetConfig replSetGetStatus "
     "replSetStateChange resync setClusterParameter setDefaultRWConcern "
     "setFeatureCompatibilityVersion transitionFromDedicatedConfigServer "
     "transitionToDedicatedConfigServer unshardCollection"},
    {"clusterManager", "all",
     "analyzeShardKey clearJumboFlag configureQueryAnalyzer enableSharding moveChunk "
     "refineCollectionShardKey reshardCollection splitChunk"},
    {"clusterManager", "config",
     "collStats dbHash dbStats enableSharding find insert killCursors listCollections listIndexes "
     "listSearchIndexes moveChunk planCacheRead remove update"},
    {"clusterManager", "config:system.js",
     "collStats dbHash dbStats find killCursors listCollections listIndexes listSearchIndexes "
     "planCacheRead"},
    {"clusterManager", "local", "enableSharding insert moveChunk remove update"},
    {"clusterManager", "local:system.replset",
     "collStats dbHash dbStats find killCursors listCollections listIndexes listSearchIndexes "
     "planCacheRead"},

    {"clusterMonitor", "cluster",
     "checkFreeMonitoringStatus connPoolStats getCmdLineOpts getDefaultRWConcern getLog "
     "getParameter getShardMap hostInfo inprog listClusterCatalog listDatabases listSessions "
     "listShards netstat replSetGetConfig replSetGetStatus serverStatus shardingState top "
     "viewExpiry"},
    {"clusterMonitor", "all", "collStats dbStats getShardVersion indexStats useUUID viewExpiry"},
    {"clusterMonitor", "all:system.profile", "find"},
    {"clusterMonitor", "config",
     "collStats dbHash dbStats find getShardVersion indexStats killCursors listCollections "
     "listIndexes listSearchIndexes planCacheRead"},
    {"clusterMonitor", "config:system.js",
     "collStats dbHash dbStats find killCursors listCollections listIndexes planCacheRead"},
    {"clusterMonitor", "local",
     "collStats dbHash dbStats find getShardVersion indexStats killCursors listCollections "
     "listIndexes listSearchIndexes planCacheRead"},
    {"clusterMonitor", "local:system.js",
     "collStats dbHash dbStats find killCursors listCollections listIndexes listSearchIndexes "
     "planCacheRead"},
    {"clusterMonitor", "local:system.replset", "find"},

    {"hostManager", "cluster",
     "applicationMessage closeAllDatabases compact connPoolSync flushRouterConfig fsync "
     "invalidateUserCache killAnyCursor killAnySession killop logRotate oidReset resync "
     "reviewGuard rotateCertificates setParameter shutdown touch unlock"},
    {"hostManager", "all", "killCursors"},

    {"clusterAdmin", "role", "clusterManager clusterMonitor hostManager"},
    {"clusterAdmin", "all", "dropDatabase"},

    {"enableSharding", "all",
     "analyzeShardKey enableSharding moveCollection refineCollectionShardKey reshardCollection "
     "unshardCollection"},
    {"directShardOperations", "cluster", "issueDirectShardOperations"},
    {"searchCoordinator", "role", "readAnyDatabase"},
    {"searchCoordinator", "cluster", "bypassDefaultMaxTimeMS"},
    {"searchCoordinator", "__mdb_internal_search",
     "createCollection createIndex dropCollection dropIndex find insert remove update"},

    {"backup", "any", "listCollections listDatabases listIndexes listSearchIndexes"},
    {"backup", "cluster",
     "appendOplogNote backup getParameter listDatabases serverStatus setUserWriteBlockMode"},
    {"backup", "all", "find"},
    {"backup", "config", "find"},
    {"backup", "local", "find"},
    {"backup", "all:system.js", "find"},
    {"backup", "all:system.profile", "find"},
    {"backup", "all:system.users", "find"},
    {"backup", "admin:system.users", "find"},
    {"backup", "admin:system.roles", "find"},
    // mongodump reads it before users and roles. The manual does not list it.
    {"backup", "admin:system.version", "find"},
    {"backup", "config:settings", "find insert update"},
    // Time series are dumped and restored by their buckets.
    {"backup", "buckets", "find"},

    {"restore", "cluster", "bypassWriteBlockingMode getParameter setUserWriteBlockMode"},
    {"restore", "any", "listCollections"},
    {"restore", "all",
     "bypassDocumentValidation changeCustomData changePassword collMod "
     "convertToCapped createCollection createIndex createRole createSearchIndexes createUser "
     "dropCollection dropRole dropUser grantRole insert revokeRole setAuthenticationRestriction "
     "updateSearchIndex viewRole viewUser"},
    {"restore", "all", "changeExpiry"},
    {"restore", "buckets",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection insert"},
    {"restore", "all:system.js",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection insert "
     "updateSearchIndex"},
    {"restore", "config",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection insert "
     "updateSearchIndex"},
    {"restore", "local",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection insert "
     "updateSearchIndex"},
    {"restore", "admin:system.version",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection find insert "
     "updateSearchIndex"},
    {"restore", "admin:system.roles", "createIndex"},
    {"restore", "admin:system.users",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection find insert "
     "remove update updateSearchIndex"},
    {"restore", "all:system.users",
     "bypassDocumentValidation collMod createCollection createIndex dropCollection find insert "
     "remove update updateSearchIndex"},
    {"restore", "all:system.views", "dropCollection"},

    {"readAnyDatabase", "everywhere", "read"},
    {"readAnyDatabase", "cluster", "listDatabases"},
    {"readWriteAnyDatabase", "everywhere", "readWrite"},
    {"readWriteAnyDatabase", "cluster", "listDatabases"},
    {"userAdminAnyDatabase", "everywhere", "userAdmin"},
    {"userAdminAnyDatabase", "cluster", "authSchemaUpgrade invalidateUserCache listDatabases"},
    {"userAdminAnyDatabase", "admin:system.users",
     "collStats createIndex createSearchIndexes dbHash dbStats dropIndex dropSearchIndex find "
     "killCursors planCacheRead"},
    {"userAdminAnyDatabase", "admin:system.roles",
     "collStats createIndex createSearchIndexes dbHash dbStats dropIndex dropSearchIndex find "
     "killCursors planCacheRead"},
    {"userAdminAnyDatabase", "all:system.users",
     "collStats createIndex createSearchIndexes dbHash dbStats dropIndex dropSearchIndex find "
     "killCursors planCacheRead"},
    {"dbAdminAnyDatabase", "everywhere", "dbAdmin"},
    {"dbAdminAnyDatabase", "cluster", "applyOps listDatabases"},

    {"expiryAdmin", "all", "changeExpiry holdExpiry readExpired viewExpiry"},
    {"expiryAdmin", "cluster", "changeExpiry holdExpiry listDatabases reviewGuard viewExpiry"},

    {"root", "role",
     "readWriteAnyDatabase dbAdminAnyDatabase userAdminAnyDatabase clusterAdmin restore backup "
     "expiryAdmin"},
    // `validate` on the system's collections.
    {"root", "any", "validate"},
    {"root", "config:system.preimages", "find remove"},
    {"__system", "any", "anyAction"},
};

constexpr std::string_view kOfEachDatabase[] = {"read", "readWrite", "dbAdmin", "dbOwner",
                                                "userAdmin"};

bool IsOfEachDatabase(std::string_view role) {
  for (std::string_view r : kOfEachDatabase)
    if (r == role) return true;
  return false;
}

template <class F>
void ForEachWord(std::string_view text, F&& f) {
  while (!text.empty()) {
    const size_t space = text.find(' ');
    f(text.substr(0, space));
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  }
}

ActionSet ParseActions(std::string_view names) {
  if (names == "anyAction") return ActionSet::All();
  ActionSet set;
  ForEachWord(names, [&](std::string_view name) {
    const auto action = FindAction(name);
    BOOST_ASSERT_MSG(action.has_value(), "the table above names only actions there are");
    set.Add(*action);
  });
  return set;
}

/// `db` is the role's database, or empty for all databases.
Resource ParseOn(std::string_view on, std::string_view db) {
  if (on == "cluster") return Resource::Cluster();
  if (on == "any") return Resource::Any();
  if (on == "buckets") return {Resource::Kind::kBuckets, "", ""};
  const size_t colon = on.find(':');
  const std::string_view place = on.substr(0, colon);
  const std::string_view collection =
      colon == std::string_view::npos ? std::string_view() : on.substr(colon + 1);
  if (place == "db") return Resource::Collection(std::string(db), std::string(collection));
  if (place == "all") return Resource::Collection("", std::string(collection));
  return Resource::Collection(std::string(place), std::string(collection));
}

/// The table is at most three levels deep.
void Collect(std::string_view role, std::string_view db, std::vector<Privilege>& out) {
  for (const Row& row : kRows) {
    if (row.role != role) continue;
    if (row.on == "role" || row.on == "everywhere") {
      const std::string_view where = row.on == "everywhere" ? std::string_view() : db;
      ForEachWord(row.names, [&](std::string_view other) { Collect(other, where, out); });
    } else {
      AddPrivilege(out, {ParseOn(row.on, db), ParseActions(row.names)});
    }
  }
}

}  // namespace

bool IsBuiltinRole(const RoleName& name) {
  if (IsOfEachDatabase(name.role)) return true;
  if (name.db != "admin") return false;
  for (const Row& row : kRows)
    if (row.role == name.role) return true;
  return false;
}

std::vector<Privilege> BuiltinPrivileges(const RoleName& name) {
  std::vector<Privilege> all;
  if (IsBuiltinRole(name)) Collect(name.role, name.db, all);
  return all;
}

std::vector<RoleName> BuiltinRoles(std::string_view db) {
  std::map<std::string, RoleName> roles;
  for (const Row& row : kRows)
    if (RoleName name{std::string(row.role), std::string(db)}; IsBuiltinRole(name))
      roles.emplace(name.role, name);
  std::vector<RoleName> all;
  for (auto& [unused, name] : roles) all.push_back(std::move(name));
  return all;
}

}  // namespace mayfly

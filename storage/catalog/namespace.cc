#include "storage/catalog/namespace.h"

#include "protocol/cut_text.h"
#include "protocol/system_names.h"
#include "protocol/utf8.h"

namespace mayfly {
namespace {

Error Invalid(std::string message) { return {ErrorCode::kInvalidNamespace, std::move(message)}; }

bool IsKnownSystemCollection(std::string_view db, std::string_view c) {
  // Once, every database had its own users, and clients still delete them.
  if (c == kProfileCollection || c == "system.js" || c == "system.users") return true;
  if (db == "admin")
    return c == "system.roles" || c == "system.version" || c == "system.keys" ||
           c == "system.backup_users" || c == "system.new_users";
  if (db == "config")
    return c == "system.sessions" || c == "system.indexBuilds" || c == "system.preimages";
  if (db == "local")
    return c == "system.replset" || c == "system.healthlog" ||
           c == "system.tenantMigration.oplogView";
  return false;
}

}  // namespace

std::string JoinNamespace(std::string_view db, std::string_view collection) {
  std::string s;
  s.reserve(db.size() + 1 + collection.size());
  s.append(db).push_back('.');
  s.append(collection);
  return s;
}

NamespaceParts SplitNamespace(std::string_view ns) {
  const size_t dot = ns.find('.');
  if (dot == std::string_view::npos) return {ns, {}};
  return {ns.substr(0, dot), ns.substr(dot + 1)};
}

bool IsCollectionName(std::string_view c) {
  return !c.empty() && c.size() <= kMaxNamespace && c.front() != '.' &&
         c.find('\0') == std::string_view::npos && IsUtf8(c);
}

Result<void> ValidateDatabaseName(std::string_view db) {
  if (IsDatabaseName(db)) [[likely]]
    return Ok();
  if (db.empty()) return Invalid("Invalid database name: '' (it must not be empty)");
  if (db.size() > kMaxDatabaseName)
    return Invalid("Invalid database name: '" + ShownText(db, kMaxNamespace) +
                   "' (at most 63 bytes)");
  if (!IsUtf8(db)) return Invalid("Invalid database name: it is not valid UTF-8");
  return Invalid("Invalid database name: '" + std::string(db.substr(0, db.find('\0'))) + "'");
}

Result<void> ValidateNamespace(std::string_view db, std::string_view c) {
  MAYFLY_TRY(ValidateDatabaseName(db));
  // First, because the checks below read the whole name, which may be as long as a message.
  if (c.size() > kMaxNamespace)
    return Invalid("Fully qualified namespace is too long. Namespace: " +
                   JoinNamespace(db, ShownText(c, kMaxNamespace)) + " Max: 255");
  auto bad = [&](const char* why) {
    return Invalid("Invalid namespace specified '" + JoinNamespace(db, c.substr(0, c.find('\0'))) +
                   "'" + why);
  };
  if (c.empty()) return bad("");
  if (c.find('\0') != std::string_view::npos)
    return bad(" (collection names cannot contain a null byte)");
  if (!IsUtf8(c)) return bad(" (collection names must be valid UTF-8)");
  if (c.front() == '.') return bad(" (collection names cannot start with '.')");
  if (c.back() == '.') return bad(" (collection names cannot end with '.')");
  if (c.find('$') != std::string_view::npos && c != "oplog.$main")
    return bad(" (collection names cannot contain '$')");
  if (db.size() + 1 + c.size() > kMaxNamespace)
    return Invalid("Fully qualified namespace is too long. Namespace: " + JoinNamespace(db, c) +
                   " Max: 255");
  return Ok();
}

Result<void> ValidateNewNamespace(std::string_view db, std::string_view c) {
  MAYFLY_TRY(ValidateNamespace(db, c));
  if (c.starts_with(kBucketsPrefix))
    return Invalid("Invalid system namespace: " + JoinNamespace(db, c) +
                   " (it is for the buckets of a time series: create '" +
                   std::string(c.substr(kBucketsPrefix.size())) +
                   "' with the option 'timeseries', and it is made too)");
  if (c.starts_with("system.") && !IsKnownSystemCollection(db, c))
    return Invalid("Invalid system namespace: " + JoinNamespace(db, c));
  return Ok();
}

}  // namespace mayfly

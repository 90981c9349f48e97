#pragma once
#include <cstddef>
#include <string_view>

namespace mayfly {

inline constexpr size_t kMaxDatabaseName = 63;

/// Users whose password another system keeps belong to it. It holds no collections, so it is no
/// database by IsDatabaseName.
inline constexpr std::string_view kExternalDatabase = "$external";

/// Whether a database can have the name (MongoDB's manual: "Naming Restrictions"). Hot: every
/// command asks.
bool IsDatabaseName(std::string_view db);

/// config and local: they hold what the server writes for itself.
constexpr bool IsConfigOrLocal(std::string_view db) { return db == "config" || db == "local"; }

/// admin, config and local: every server has them, and users keep no data of their own there.
constexpr bool IsInternalDatabase(std::string_view db) {
  return db == "admin" || IsConfigOrLocal(db);
}

}  // namespace mayfly

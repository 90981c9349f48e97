#pragma once
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

inline constexpr size_t kMaxDatabaseName = 63;
inline constexpr size_t kMaxNamespace = 255;  ///< bytes of "db.collection"

/// "db.collection".
std::string JoinNamespace(std::string_view db, std::string_view collection);

/// Rules of MongoDB's manual ("Naming Restrictions"). Errors: InvalidNamespace 73.
Result<void> ValidateDatabaseName(std::string_view db);
/// Database and collection name of anything a client may read or write.
Result<void> ValidateNamespace(std::string_view db, std::string_view collection);
/// Also: may a client create (or rename to) it? Of system.* only what the server knows.
Result<void> ValidateNewNamespace(std::string_view db, std::string_view collection);

}  // namespace mayfly

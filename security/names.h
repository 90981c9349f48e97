#pragma once
#include <compare>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/seeded_hash.h"

namespace mayfly {

inline constexpr size_t kMaxPrincipalName = 1024;  ///< bytes of a user's or a role's name

/// A user: the name and the database in which it is defined.
struct UserName {
  std::string user, db;
  /// "db.user", which is its `_id`.
  std::string Id() const { return db + "." + user; }
  /// "user@db", as errors and logs show it.
  std::string Shown() const { return user + "@" + db; }
  auto operator<=>(const UserName&) const = default;
};

/// A role: the name and the database in which it is defined.
struct RoleName {
  std::string role, db;
  std::string Id() const { return db + "." + role; }
  std::string Shown() const { return role + "@" + db; }
  auto operator<=>(const RoleName&) const = default;
};

/// Whether `name` may be that of a user or role: 1 to kMaxPrincipalName bytes of UTF-8 without NUL.
/// `what` is "User" or "Role". Errors: BadValue 2.
Result<void> CheckPrincipalName(std::string_view name, std::string_view what);
/// Whether users and roles may belong to `db`. Errors: BadValue 2 (also for `local`, which is no
/// database of users since it is not replicated).
Result<void> CheckPrincipalDatabase(std::string_view db);

/// {user: , db: } or a text, which is a user of `default_db`. Errors: BadValue 2, TypeMismatch 14.
Result<UserName> ParseUserName(BsonValue value, std::string_view default_db);
/// {role: , db: } or a text, which is a role of `default_db`. Errors: BadValue 2, TypeMismatch 14.
Result<RoleName> ParseRoleName(BsonValue value, std::string_view default_db);
void AppendUserName(BsonBuilder& out, const UserName& name);  ///< the fields user and db
void AppendRoleName(BsonBuilder& out, const RoleName& name);  ///< the fields role and db

}  // namespace mayfly

/// Users and roles are looked up by name, which clients choose.
template <>
struct std::hash<mayfly::UserName> {
  size_t operator()(const mayfly::UserName& n) const noexcept {
    return mayfly::SeededHash(n.user, mayfly::SeededHash(n.db));
  }
};
/// As that of a user's name.
template <>
struct std::hash<mayfly::RoleName> {
  size_t operator()(const mayfly::RoleName& n) const noexcept {
    return mayfly::SeededHash(n.role, mayfly::SeededHash(n.db));
  }
};

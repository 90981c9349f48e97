#pragma once
#include <optional>
#include <string>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "security/names.h"
#include "security/privilege.h"
#include "security/restrictions.h"
#include "security/scram.h"

namespace mayfly {

inline constexpr size_t kMaxRoles = 1000;  ///< that one user or one role is granted directly

/// A user as `admin.system.users` has it.
struct UserDocument {
  UserName name;
  std::string id;  ///< userId: a UUID, 16 bytes
  std::optional<ScramCredential> sha1, sha256;
  bool external = false;  ///< of `$external`: has no password here
  std::vector<RoleName> roles;
  std::optional<BsonDocument> custom_data;
  AuthenticationRestrictions restrictions;

  /// None: the user cannot log in by this mechanism. Refers into this document.
  const std::optional<ScramCredential>& credential(ScramMechanism m) const {
    return m == ScramMechanism::kSha1 ? sha1 : sha256;
  }
};

/// A role that is not built in, as `admin.system.roles` has it.
struct RoleDocument {
  RoleName name;
  std::vector<Privilege> privileges;
  std::vector<RoleName> roles;
  AuthenticationRestrictions restrictions;
  size_t privilege_count = 0;  ///< as stored; also of one that was read without its privileges
  size_t bytes = 0;            ///< of the stored document
};
/// How much of a role is read. Without its privileges it takes little time, however many it has.
enum class RoleParts : uint8_t { kAll, kWithoutPrivileges };

/// A stored document. It may have been restored from elsewhere, so everything is checked. Errors:
/// UnsupportedFormat 12, which names the user and what is wrong with it, never a credential.
Result<UserDocument> ParseUserDocument(BsonView document);
Result<RoleDocument> ParseRoleDocument(BsonView document, RoleParts parts = RoleParts::kAll);

/// The whole document to store.
BsonDocument StoredUser(const UserDocument& user);
BsonDocument StoredRole(const RoleDocument& role);

/// An array of names of roles, as commands bring them. Errors: BadValue 2, TypeMismatch 14.
Result<std::vector<RoleName>> ParseRoleNames(BsonValue value, std::string_view default_db);
void AppendRoleNames(BsonBuilder& out, std::string_view name, const std::vector<RoleName>& roles);

/// What `usersInfo` shows.
struct ShowUser {
  bool credentials = false, restrictions = false;
};
/// _id, userId, user, db, customData, credentials (if asked for), roles, mechanisms,
/// authenticationRestrictions (if asked for). Whoever shows privileges appends them behind.
void AppendShownUser(BsonBuilder& out, const UserDocument& user, const ShowUser& show);

}  // namespace mayfly

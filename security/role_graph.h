#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "protocol/error.h"
#include "security/names.h"
#include "security/user_document.h"

namespace mayfly {

inline constexpr size_t kMaxResolvedRoles = 10'000;       ///< of one user, nested ones too
inline constexpr size_t kMaxResolvedPrivileges = 20'000;  ///< of all of them together
/// Bytes of the documents of all of them, also of those whose privileges do not fit.
inline constexpr size_t kMaxResolvedRoleBytes = 32 << 20;

/// Reads one role that is not built in from where roles are kept; none if there is no such role.
using RoleReader =
    std::function<Result<std::optional<RoleDocument>>(const RoleName&, RoleParts parts)>;

/// The total of a few roles: those roles, the roles in them, and so on.
struct ResolvedRoles {
  std::vector<RoleName> roles;        ///< all of them, sorted; also those that do not exist
  std::vector<RoleName> missing;      ///< named somewhere, but dropped: they grant nothing
  std::vector<RoleName> left_out;     ///< sorted: their privileges do not fit (ResolveSomeRoles)
  std::vector<Privilege> privileges;  ///< of all of them, one per resource, sorted
  std::vector<AuthenticationRestrictions> restrictions;  ///< of each role that has some
};

/// Follows roles into roles. Each is read once, so cycles (which only a restored catalog can have)
/// and many ways to the same role end. Errors: those of `read`; ExceededMemoryLimit 146 beyond
/// kMaxResolvedRoles, kMaxResolvedPrivileges and kMaxResolvedRoleBytes.
Result<ResolvedRoles> ResolveRoles(const std::vector<RoleName>& from, const RoleReader& read);
/// The same for a login, which must not fail because roles have more privileges than when they were
/// granted. Roles and restrictions of all are there, but privileges only of as many as
/// kMaxResolvedPrivileges allows: first the built-in roles, then the others in such an order that
/// nobody who makes roles of one database can displace those of another one: the database whose
/// roles have taken least is next. Of its roles those that are granted directly come before nested
/// ones, and small ones before large ones. With roles of n databases, those of one that together
/// have no more than an n-th of what built-in roles leave are never left out.
/// Errors: those of `read`; ExceededMemoryLimit 146 beyond kMaxResolvedRoles and
/// kMaxResolvedRoleBytes, since the restrictions of the others are unknown then.
Result<ResolvedRoles> ResolveSomeRoles(const std::vector<RoleName>& from, const RoleReader& read);

/// Refuses to make a role part of itself: `role` is to contain `members`. Errors:
/// InvalidRoleModification 80; those of ResolveRoles; RoleNotFound 31 when a member does not exist.
Result<void> CheckNoCycle(const RoleName& role, const std::vector<RoleName>& members,
                          const RoleReader& read);

}  // namespace mayfly

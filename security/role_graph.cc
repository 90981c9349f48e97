#include "security/role_graph.h"

#include <algorithm>
#include <unordered_set>

#include "security/builtin_roles.h"

namespace mayfly {

Result<ResolvedRoles> ResolveRoles(const std::vector<RoleName>& from, const RoleReader& read) {
  ResolvedRoles out;
  std::unordered_set<RoleName> seen;
  std::vector<RoleName> open;
  const auto meet = [&](const std::vector<RoleName>& names) {
    for (const RoleName& n : names)
      if (seen.insert(n).second) open.push_back(n);
  };
  meet(from);
  while (!open.empty()) {
    if (seen.size() > kMaxResolvedRoles)
      return Error{ErrorCode::kExceededMemoryLimit,
                   "these roles are made of more than 10,000 roles: grant fewer"};
    const RoleName name = std::move(open.back());
    open.pop_back();
    std::vector<Privilege> privileges;
    if (IsBuiltinRole(name)) {
      privileges = BuiltinPrivileges(name);
    } else {
      MAYFLY_TRY(auto role, read(name));
      if (!role) {
        out.missing.push_back(name);
        continue;
      }
      meet(role->roles);
      privileges = std::move(role->privileges);
      if (!role->restrictions.empty()) out.restrictions.push_back(std::move(role->restrictions));
    }
    std::move(privileges.begin(), privileges.end(), std::back_inserter(out.privileges));
    if (out.privileges.size() > kMaxResolvedPrivileges) {
      UnitePrivileges(out.privileges);
      if (out.privileges.size() > kMaxResolvedPrivileges)
        return Error{ErrorCode::kExceededMemoryLimit,
                     "these roles have more than 100,000 privileges: use resources of whole "
                     "databases"};
    }
  }
  UnitePrivileges(out.privileges);
  out.roles.assign(seen.begin(), seen.end());
  std::sort(out.roles.begin(), out.roles.end());
  std::sort(out.missing.begin(), out.missing.end());
  return out;
}

Result<void> CheckNoCycle(const RoleName& role, const std::vector<RoleName>& members,
                          const RoleReader& read) {
  for (const RoleName& m : members)
    if (m == role)
      return Error{ErrorCode::kInvalidRoleModification,
                   "Cannot grant role " + role.Shown() + " to itself."};
  MAYFLY_TRY(auto resolved, ResolveRoles(members, read));
  for (const RoleName& m : members)
    if (std::binary_search(resolved.missing.begin(), resolved.missing.end(), m))
      return Error{ErrorCode::kRoleNotFound, "Role: " + m.Shown() + " does not exist"};
  if (std::binary_search(resolved.roles.begin(), resolved.roles.end(), role))
    return Error{ErrorCode::kInvalidRoleModification,
                 "Granting these roles to " + role.Shown() +
                     " would introduce a cycle: one of them is made of it"};
  return Ok();
}

}  // namespace mayfly

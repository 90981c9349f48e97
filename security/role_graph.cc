#include "security/role_graph.h"

#include <algorithm>
#include <deque>
#include <unordered_set>

#include "security/builtin_roles.h"

namespace mayfly {

namespace {

Error TooManyRoles() {
  return {ErrorCode::kExceededMemoryLimit, "these roles are made of more than " +
                                               std::to_string(kMaxResolvedRoles) +
                                               " roles: grant fewer"};
}

Error TooManyPrivileges() {
  return {ErrorCode::kExceededMemoryLimit, "these roles have more than " +
                                               std::to_string(kMaxResolvedPrivileges) +
                                               " privileges: use resources of whole databases"};
}

/// Roles on their way to their total.
class Resolving {
 public:
  Resolving(const RoleReader& read, bool some) : read_(read), some_(some) {}

  Result<ResolvedRoles> All(const std::vector<RoleName>& from) {
    Meet(from);
    // What is built in is never left out.
    while (!built_in_.empty() || !open_.empty()) {
      if (built_in_.empty()) {
        MAYFLY_TRY(TakeRole());
        continue;
      }
      const RoleName name = std::move(built_in_.back());
      built_in_.pop_back();
      MAYFLY_TRY(Add(BuiltinPrivileges(name)));
    }
    UnitePrivileges(out_.privileges);
    out_.roles.assign(seen_.begin(), seen_.end());
    std::ranges::sort(out_.roles);
    std::ranges::sort(out_.missing);
    std::ranges::sort(out_.left_out);
    return std::move(out_);
  }

 private:
  void Meet(const std::vector<RoleName>& names) {
    for (const RoleName& n : names) {
      if (!seen_.insert(n).second) continue;
      if (IsBuiltinRole(n))
        built_in_.push_back(n);
      else
        open_.push_back(n);
    }
  }

  Result<void> TakeRole() {
    const RoleName name = std::move(open_.front());
    open_.pop_front();
    if (seen_.size() > kMaxResolvedRoles) {
      if (!some_) return TooManyRoles();
      full_ = true;
    }
    if (full_) {
      out_.left_out.push_back(name);
      return Ok();
    }
    MAYFLY_TRY(auto role, read_(name));
    if (!role) {
      out_.missing.push_back(name);
      return Ok();
    }
    // It is left out whole, as if it were not granted.
    if (some_ && !HasRoomFor(role->privileges.size())) {
      full_ = true;
      out_.left_out.push_back(name);
      return Ok();
    }
    Meet(role->roles);
    if (!role->restrictions.empty()) out_.restrictions.push_back(std::move(role->restrictions));
    return Add(std::move(role->privileges));
  }

  bool HasRoomFor(size_t more) {
    if (out_.privileges.size() + more > kMaxResolvedPrivileges) UnitePrivileges(out_.privileges);
    return out_.privileges.size() + more <= kMaxResolvedPrivileges;
  }

  Result<void> Add(std::vector<Privilege> privileges) {
    const bool fits = HasRoomFor(privileges.size());
    std::ranges::move(privileges, std::back_inserter(out_.privileges));
    if (fits || some_) return Ok();
    UnitePrivileges(out_.privileges);
    if (out_.privileges.size() > kMaxResolvedPrivileges) return TooManyPrivileges();
    return Ok();
  }

  const RoleReader& read_;
  const bool some_;
  bool full_ = false;  ///< no further role that is not built in counts
  ResolvedRoles out_;
  std::unordered_set<RoleName> seen_;
  std::vector<RoleName> built_in_;
  std::deque<RoleName> open_;
};

}  // namespace

Result<ResolvedRoles> ResolveRoles(const std::vector<RoleName>& from, const RoleReader& read) {
  return Resolving(read, false).All(from);
}

Result<ResolvedRoles> ResolveSomeRoles(const std::vector<RoleName>& from, const RoleReader& read) {
  return Resolving(read, true).All(from);
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

#include "security/role_graph.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "security/builtin_roles.h"

namespace mayfly {

namespace {

Error TooMany(const std::string& what) { return {ErrorCode::kExceededMemoryLimit, what}; }

struct ResourceHash {
  size_t operator()(const Resource& r) const {
    return SeededHash(r.collection, SeededHash(r.db, static_cast<uint64_t>(r.kind)));
  }
};

/// Roles on their way to their total.
class Resolving {
 public:
  Resolving(const RoleReader& read, bool some) : read_(read), some_(some) {}

  Result<ResolvedRoles> All(const std::vector<RoleName>& from) {
    MAYFLY_TRY(Meet(from, 0));
    // All that are granted directly come before the first that is nested.
    for (size_t i = 0; i < open_.size(); ++i) {
      MAYFLY_TRY(TakeRole(i));
    }
    MAYFLY_TRY(AddWhatFits());
    out_.privileges.reserve(united_.size());
    while (!united_.empty()) {
      auto node = united_.extract(united_.begin());
      out_.privileges.push_back({std::move(node.key()), node.mapped()});
    }
    std::ranges::sort(out_.privileges, {}, &Privilege::resource);
    out_.roles.assign(seen_.begin(), seen_.end());
    std::ranges::sort(out_.roles);
    std::ranges::sort(out_.missing);
    std::ranges::sort(out_.left_out);
    return std::move(out_);
  }

 private:
  struct Open {
    RoleName name;
    size_t depth;  ///< 0: granted directly
  };
  /// A role with privileges, before these are read.
  struct Found {
    size_t depth, privileges;
    RoleName name;
    auto operator<=>(const Found&) const = default;
  };
  struct OfDatabase {
    std::vector<Found> roles;  ///< in the order in which they are added
    size_t next = 0;
    size_t added = 0;  ///< privileges
  };

  Result<void> Meet(const std::vector<RoleName>& names, size_t depth) {
    for (const RoleName& n : names) {
      if (!seen_.insert(n).second) continue;
      // Each that is met is read: beyond the limit their restrictions remain unknown.
      if (seen_.size() > kMaxResolvedRoles)
        return TooMany("these roles are made of more than " + std::to_string(kMaxResolvedRoles) +
                       " roles: grant fewer");
      if (!IsBuiltinRole(n)) {
        open_.push_back({n, depth});
        continue;
      }
      MAYFLY_TRY(Add(BuiltinPrivileges(n)));  // what is built in is never left out
    }
    return Ok();
  }

  Result<void> TakeRole(size_t i) {
    MAYFLY_TRY(auto role,
               read_(open_[i].name, some_ ? RoleParts::kWithoutPrivileges : RoleParts::kAll));
    if (!role) {
      out_.missing.push_back(open_[i].name);
      return Ok();
    }
    bytes_ += role->bytes;
    if (bytes_ > kMaxResolvedRoleBytes)
      return TooMany("the documents of these roles take more than " +
                     std::to_string(kMaxResolvedRoleBytes >> 20) +
                     " MB: use privileges on whole databases");
    const size_t depth = open_[i].depth;
    if (some_ && role->privilege_count > 0)
      found_[open_[i].name.db].roles.push_back({depth, role->privilege_count, open_[i].name});
    MAYFLY_TRY(Meet(role->roles, depth + 1));  // open_ grows
    if (!role->restrictions.empty()) out_.restrictions.push_back(std::move(role->restrictions));
    if (some_) return Ok();
    return Add(std::move(role->privileges));
  }

  Result<void> Add(std::vector<Privilege> privileges) {
    for (Privilege& p : privileges) united_[std::move(p.resource)] |= p.actions;
    if (some_ || united_.size() <= kMaxResolvedPrivileges) return Ok();
    return TooMany("these roles have more than " + std::to_string(kMaxResolvedPrivileges) +
                   " privileges: use resources of whole databases");
  }

  /// The database that would have least with its next role is next. So nobody's roles are displaced
  /// by more privileges of another database than they and those before them have themselves.
  Result<void> AddWhatFits() {
    using Turn = std::tuple<size_t, std::string_view, OfDatabase*>;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    const auto queue = [&](std::string_view db, OfDatabase& of) {
      if (of.next < of.roles.size())
        turns.emplace(of.added + of.roles[of.next].privileges, db, &of);
    };
    for (auto& [db, of] : found_) {
      std::ranges::sort(of.roles);
      queue(db, of);
    }
    while (!turns.empty()) {
      const auto [reaches, db, of] = turns.top();
      turns.pop();
      const Found& role = of->roles[of->next++];
      MAYFLY_TRY(bool added, AddIfItFits(role));
      if (added)
        of->added = reaches;
      else
        out_.left_out.push_back(role.name);
      queue(db, *of);
    }
    return Ok();
  }

  /// It is left out whole, as if it were not granted.
  Result<bool> AddIfItFits(const Found& found) {
    // Whether it has the same privileges as others only shows when it is read, and roles that do
    // not fit could have any number of them.
    const bool fits = united_.size() + found.privileges <= kMaxResolvedPrivileges;
    if (!fits && looked_ > 2 * kMaxResolvedPrivileges) return false;
    MAYFLY_TRY(auto role, read_(found.name, RoleParts::kAll));
    if (!role) {  // dropped just now
      out_.missing.push_back(found.name);
      return true;
    }
    const auto fresh = static_cast<size_t>(std::ranges::count_if(
        role->privileges, [&](const Privilege& p) { return !united_.contains(p.resource); }));
    if (united_.size() + fresh > kMaxResolvedPrivileges) {
      looked_ += role->privileges.size();
      return false;
    }
    MAYFLY_TRY(Add(std::move(role->privileges)));
    return true;
  }

  const RoleReader& read_;
  const bool some_;  ///< only the privileges that fit
  ResolvedRoles out_;
  std::unordered_map<Resource, ActionSet, ResourceHash> united_;
  std::unordered_set<RoleName> seen_;
  std::vector<Open> open_;  ///< to be read, and before those the ones that were
  std::map<std::string, OfDatabase, std::less<>> found_;
  size_t bytes_ = 0;   ///< of the documents that were read
  size_t looked_ = 0;  ///< privileges that were read of roles that did not fit
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

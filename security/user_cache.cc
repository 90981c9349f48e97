#include "security/user_cache.h"

namespace mayfly {

void UserCache::Invalidate() {
  // The number first: whoever reads from now on and stores afterwards has the new one.
  std::unordered_map<UserName, UserAccessPtr> old;
  {
    std::lock_guard l(mutex_);
    generation_.fetch_add(1, std::memory_order_acq_rel);
    old.swap(users_);
  }
}

Result<UserAccessPtr> UserCache::Read(const UserName& name, uint64_t generation) {
  MAYFLY_TRY(auto user, source_.ReadUser(name));
  if (!user) return UserAccessPtr();
  user->sha1.reset();
  user->sha256.reset();
  MAYFLY_TRY(auto roles, ResolveRoles(user->roles, [&](const RoleName& role) {
               return source_.ReadRole(role);
             }));
  auto access = std::make_shared<UserAccess>();
  access->user = std::move(*user);
  access->privileges = PrivilegeSet(roles.privileges);
  access->roles = std::move(roles);
  access->generation = generation;
  return UserAccessPtr(std::move(access));
}

Result<UserAccessPtr> UserCache::Find(const UserName& name) {
  const uint64_t now = generation();
  {
    std::lock_guard l(mutex_);
    if (const auto at = users_.find(name); at != users_.end()) return at->second;
  }
  MAYFLY_TRY(auto access, Read(name, now));
  if (access == nullptr) return access;
  std::lock_guard l(mutex_);
  if (generation() != now) return access;  // it says so itself: its next command reads again
  if (users_.size() >= kMaxUsers) users_.erase(users_.begin());
  users_[name] = access;
  return access;
}

Result<UserAccessPtr> UserCache::Again(const UserAccess& was) {
  MAYFLY_TRY(auto access, Find(was.user.name));
  if (access != nullptr && access->user.id != was.user.id) return UserAccessPtr();
  return access;
}

size_t UserCache::size() const {
  std::lock_guard l(mutex_);
  return users_.size();
}

}  // namespace mayfly

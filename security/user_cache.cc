#include "security/user_cache.h"

namespace mayfly {

namespace {

/// [{_id: "db.role", role, db}], as MongoDB's manual shows $$USER_ROLES.
Value RoleDocuments(const std::vector<RoleName>& roles) {
  std::string bytes;
  BsonArrayBuilder all(bytes);
  for (const RoleName& role : roles) {
    BsonBuilder one = all.OpenDocument();
    one.Append("_id", role.Id());
    AppendRoleName(one, role);
  }
  all.Done();
  return Value::Array(std::move(bytes));
}

}  // namespace

void UserCache::Invalidate() {
  // The number is raised first: any thread that reads the user from now on stores the result under
  // the new number.
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
  user->custom_data.reset();  // may be large, and no command looks at it
  MAYFLY_TRY(std::shared_ptr<UserAccess> access, Resolve(std::move(*user), generation));
  return UserAccessPtr(std::move(access));
}

Result<std::shared_ptr<UserAccess>> UserCache::Resolve(UserDocument user, uint64_t generation) {
  MAYFLY_TRY(auto roles, ResolveRoles(user.roles, [&](const RoleName& role) {
               return source_.ReadRole(role);
             }));
  auto access = std::make_shared<UserAccess>();
  access->user = std::move(user);
  access->privileges = PrivilegeSet(roles.privileges);
  access->role_documents = RoleDocuments(roles.roles);
  access->roles = std::move(roles);
  access->generation = generation;
  return access;
}

Result<UserAccessPtr> UserCache::OfCertificate(const UserName& name,
                                               const std::vector<RoleName>& roles) {
  UserDocument user;
  user.name = name;
  user.external = true;
  user.roles = roles;
  MAYFLY_TRY(std::shared_ptr<UserAccess> access, Resolve(std::move(user), generation()));
  access->by_certificate = true;
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
  // Outdated already: the next command of the connection reads the user again.
  if (generation() != now) return access;
  if (users_.size() >= kMaxUsers) users_.erase(users_.begin());
  users_[name] = access;
  return access;
}

Result<UserAccessPtr> UserCache::Again(const UserAccess& was) {
  if (was.by_certificate) return OfCertificate(was.user.name, was.user.roles);
  MAYFLY_TRY(auto access, Find(was.user.name));
  if (access != nullptr && access->user.id != was.user.id) return UserAccessPtr();
  return access;
}

size_t UserCache::size() const {
  std::lock_guard l(mutex_);
  return users_.size();
}

}  // namespace mayfly

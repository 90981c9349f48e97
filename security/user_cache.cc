#include "security/user_cache.h"

#include <algorithm>

#include "security/crypto.h"

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

/// Of both forms of them, and of what tables need besides.
size_t BytesOfRoles(const ResolvedRoles& roles) {
  constexpr size_t kNode = 64;
  size_t bytes = roles.roles.size() * (sizeof(RoleName) + kNode);
  for (const Privilege& p : roles.privileges)
    bytes += 2 * (sizeof p + p.resource.db.size() + p.resource.collection.size()) + kNode;
  return bytes;
}

/// A digest of sorted names.
std::string KeyOf(const std::vector<RoleName>& roles) {
  std::string names;
  for (const RoleName& r : roles) names.append(r.db).append(1, '\0').append(r.role).append(1, '\0');
  return std::string(HashOf(HashKind::kSha256, names).view());
}

}  // namespace

Result<std::shared_ptr<void>> PrivilegeMemory::Take(const std::shared_ptr<PrivilegeMemory>& of,
                                                    size_t bytes) {
  {
    std::lock_guard l(of->mutex_);
    const auto all = static_cast<size_t>(of->bytes_) + bytes;
    if (bytes > kAlwaysFits && static_cast<int64_t>(all) > Most())
      return Error{ErrorCode::kExceededMemoryLimit,
                   "the privileges of the users who are logged in take " +
                       std::to_string(of->bytes_ >> 20) + " MB, and with " +
                       std::to_string(bytes >> 20) + " MB more they would exceed the " +
                       std::to_string(Most() >> 20) + " MB they may"};
    const Result<void> room = of->hold_.Set(all);
    if (!room && bytes > kAlwaysFits) return room.error();
    of->bytes_ = static_cast<int64_t>(all);
  }
  // It gives them back at once when there is no memory for itself.
  return std::shared_ptr<void>(nullptr, [of, bytes](void*) { of->Give(bytes); });
}

void PrivilegeMemory::Give(size_t bytes) {
  std::lock_guard l(mutex_);
  bytes_ -= static_cast<int64_t>(bytes);
  (void)hold_.Set(static_cast<size_t>(bytes_));  // less is never refused
}

int64_t PrivilegeMemory::bytes() const {
  std::lock_guard l(mutex_);
  return bytes_;
}

void UserCache::Invalidate(bool roles) {
  // The number is raised first: any thread that reads the user from now on stores the result under
  // the new number.
  std::unordered_map<UserName, Kept> old;
  if (roles) roles_generation_.fetch_add(1, std::memory_order_acq_rel);
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

GrantedRolesPtr UserCache::KnownRoles(const std::string& key, uint64_t generation,
                                      uint64_t place) const {
  std::lock_guard l(mutex_);
  const auto at = granted_.find(key);
  if (at == granted_.end() || at->second.generation != generation || at->second.place != place)
    return nullptr;
  return at->second.roles.lock();
}

Result<GrantedRolesPtr> UserCache::GrantedTo(std::vector<RoleName> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string key = KeyOf(names);
  std::lock_guard working(working_[static_cast<unsigned char>(key[0]) % working_.size()]);
  const uint64_t generation = roles_generation_.load(std::memory_order_acquire);
  const uint64_t place = source_.PlaceOfRoles();
  if (GrantedRolesPtr known = KnownRoles(key, generation, place)) return known;
  MAYFLY_TRY(ResolvedRoles roles,
             ResolveSomeRoles(names, [&](const RoleName& role, RoleParts parts) {
               return source_.ReadRole(role, parts);
             }));
  auto granted = std::make_shared<GrantedRoles>();
  granted->bytes = BytesOfRoles(roles);
  MAYFLY_TRY(granted->share, PrivilegeMemory::Take(memory_, granted->bytes));
  granted->privileges = PrivilegeSet(roles.privileges);
  granted->role_documents = RoleDocuments(roles.roles);
  granted->roles = std::move(roles);
  std::lock_guard l(mutex_);
  if (granted_.size() >= prune_at_) {
    std::erase_if(granted_, [](const auto& g) { return g.second.roles.expired(); });
    prune_at_ = 2 * granted_.size() + 100;
  }
  // An outdated one is not found.
  granted_[key] = {granted, generation, place};
  return GrantedRolesPtr(std::move(granted));
}

Result<std::shared_ptr<UserAccess>> UserCache::Resolve(UserDocument user, uint64_t generation) {
  MAYFLY_TRY(GrantedRolesPtr granted, GrantedTo(user.roles));
  auto access = std::make_shared<UserAccess>(std::move(granted));
  access->user = std::move(user);
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
    if (const auto at = users_.find(name); at != users_.end())
      if (UserAccessPtr known = at->second.user.lock()) return known;
  }
  MAYFLY_TRY(auto access, Read(name, now));
  if (access == nullptr) return access;
  std::lock_guard l(mutex_);
  // Outdated already: the next command of the connection reads the user again.
  if (generation() != now) return access;
  if (users_.size() >= kMaxUsers) users_.erase(users_.begin());
  const bool small = access->granted->bytes <= PrivilegeMemory::kAlwaysFits;
  users_[name] = {access, small ? access : nullptr};
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

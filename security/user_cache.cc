#include "security/user_cache.h"

#include <algorithm>

#include "protocol/fair_share.h"
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

constexpr size_t kNode = 64;  ///< what a table or an allocation needs besides, about

size_t BytesOfRanges(const AuthenticationRestrictions& restrictions) {
  size_t bytes = 0;
  for (const AuthenticationRestriction& r : restrictions) {
    bytes += sizeof r + kNode;
    for (const auto* ranges : {&r.client_source, &r.server_address})
      for (const AddressRange& range : *ranges) bytes += sizeof range + range.text.size();
  }
  return bytes;
}

/// `copies`: how often the text is there.
size_t BytesOfNames(const std::vector<RoleName>& names, size_t copies) {
  size_t bytes = 0;
  for (const RoleName& r : names)
    bytes += sizeof r + kNode + copies * (r.role.size() + r.db.size());
  return bytes;
}

/// Of both forms of them, and of what tables need besides.
size_t BytesOfRoles(const ResolvedRoles& roles) {
  // Each name is also in its document of $$USER_ROLES: in the _id, and again in two fields.
  size_t bytes = BytesOfNames(roles.roles, 4) + BytesOfNames(roles.missing, 1) +
                 BytesOfNames(roles.left_out, 1);
  for (const Privilege& p : roles.privileges)
    bytes += 2 * (sizeof p + p.resource.db.size() + p.resource.collection.size()) + kNode;
  for (const AuthenticationRestrictions& r : roles.restrictions)
    bytes += sizeof r + BytesOfRanges(r);
  return bytes;
}

size_t BytesOfUser(const UserDocument& user) {
  return sizeof(UserAccess) + kNode + user.name.user.size() + user.name.db.size() +
         BytesOfNames(user.roles, 1) + BytesOfRanges(user.restrictions);
}

/// Whoever can give everybody room again: by ending operations, or by granting and revoking roles.
bool IsAdministrator(const PrivilegeSet& privileges) {
  return privileges.AllowsOnCluster({Action::killop}) ||
         privileges.Allows("admin", "", {Action::grantRole});
}

/// Their users are made by administrators.
bool IsOfAdministrators(std::string_view db) { return db == "admin" || db == "$external"; }

/// A digest of sorted names.
std::string KeyOf(const std::vector<RoleName>& roles) {
  std::string names;
  for (const RoleName& r : roles) names.append(r.db).append(1, '\0').append(r.role).append(1, '\0');
  return std::string(HashOf(HashKind::kSha256, names).view());
}

}  // namespace

Result<void> PrivilegeMemory::Check(const Claim& claim) const {
  if (claim.administrator) return Ok();
  const auto bytes = static_cast<int64_t>(claim.bytes);
  const int64_t all = bytes_ + bytes, most = Most();
  const auto refused = [&](const std::string& whose, int64_t now) {
    return Error{ErrorCode::kExceededMemoryLimit,
                 "the privileges of " + whose + " who are logged in take " +
                     std::to_string(now >> 10) + " KB, and with " + std::to_string(bytes >> 10) +
                     " KB more they would exceed what they may of the " +
                     std::to_string(most >> 20) +
                     " MB of all: use privileges on whole databases in large roles, or try again "
                     "when others have logged out"};
  };
  if (all > (claim.bytes > kSmall ? most - most / 4 : most)) return refused("all users", bytes_);
  if (IsOfAdministrators(claim.db)) return Ok();
  const auto at = of_databases_.find(claim.db);
  const int64_t has = at == of_databases_.end() ? 0 : at->second;
  if (!FitsFairShare(has + bytes, all, most, most / 2, false))
    return refused("users of the database " + claim.db, has);
  return Ok();
}

Result<std::shared_ptr<void>> PrivilegeMemory::Take(const std::shared_ptr<PrivilegeMemory>& of,
                                                    Claim claim) {
  {
    std::lock_guard l(of->mutex_);
    MAYFLY_TRY(of->Check(claim));
    int64_t& of_database = of->of_databases_[claim.db];
    const auto all = static_cast<size_t>(of->bytes_) + claim.bytes;
    const Result<void> room = of->hold_.Set(all);
    if (!room && claim.bytes > kSmall && !claim.administrator) {
      (void)of->hold_.Set(static_cast<size_t>(of->bytes_));  // a refused one has counted all
      if (of_database == 0) of->of_databases_.erase(claim.db);
      return room.error();
    }
    of->bytes_ = static_cast<int64_t>(all);
    of_database += static_cast<int64_t>(claim.bytes);
  }
  // It gives them back at once when there is no memory for itself.
  return std::shared_ptr<void>(nullptr, [of, claim = std::move(claim)](void*) { of->Give(claim); });
}

void PrivilegeMemory::Give(const Claim& claim) {
  std::lock_guard l(mutex_);
  bytes_ -= static_cast<int64_t>(claim.bytes);
  (void)hold_.Set(static_cast<size_t>(bytes_));  // less is never refused
  if (const auto at = of_databases_.find(claim.db);
      at != of_databases_.end() && (at->second -= static_cast<int64_t>(claim.bytes)) <= 0)
    of_databases_.erase(at);
}

int64_t PrivilegeMemory::bytes() const {
  std::lock_guard l(mutex_);
  return bytes_;
}

UserAccessPtr WithoutPrivileges(const UserAccess& was) {
  auto only_who = std::make_shared<UserAccess>();
  only_who->user.name = was.user.name;
  only_who->user.id = was.user.id;
  only_who->user.external = was.user.external;
  only_who->by_certificate = was.by_certificate;
  // Those of a certificate are stored nowhere.
  if (was.by_certificate) only_who->user.roles = was.user.roles;
  return only_who;
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

Result<std::shared_ptr<void>> UserCache::Charge(const PrivilegeMemory::Claim& claim) {
  auto taken = PrivilegeMemory::Take(memory_, claim);
  if (taken) return taken;
  std::vector<UserAccessPtr> unused;  // until after the lock
  {
    std::lock_guard l(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now < unused_go_at_) return taken;
    unused_go_at_ = now + std::chrono::seconds(1);
    unused.reserve(users_.size());
    for (auto& [name, kept] : users_) unused.push_back(std::move(kept.small));
  }
  unused.clear();
  return PrivilegeMemory::Take(memory_, claim);
}

UserCache::Granted UserCache::KnownRoles(const std::string& key, uint64_t generation,
                                         uint64_t place) const {
  std::lock_guard l(mutex_);
  const auto at = granted_.find(key);
  if (at == granted_.end() || at->second.generation != generation || at->second.place != place)
    return {};
  return at->second;
}

Result<GrantedRolesPtr> UserCache::GrantedTo(const std::vector<RoleName>& names,
                                             const std::string& db) {
  const std::string key = KeyOf(names);
  std::lock_guard working(working_[static_cast<unsigned char>(key[0]) % working_.size()]);
  const uint64_t generation = roles_generation_.load(std::memory_order_acquire);
  const uint64_t place = source_.PlaceOfRoles();
  Granted known = KnownRoles(key, generation, place);
  if (GrantedRolesPtr roles = known.roles.lock()) return roles;
  if (known.refused) {
    known.refused->db = db;
    MAYFLY_TRY(auto room, Charge(*known.refused));
    room.reset();
  }
  MAYFLY_TRY(ResolvedRoles roles,
             ResolveSomeRoles(names, [&](const RoleName& role, RoleParts parts) {
               return source_.ReadRole(role, parts);
             }));
  auto granted = std::make_shared<GrantedRoles>();
  granted->privileges = PrivilegeSet(roles.privileges);
  granted->administrator = IsAdministrator(granted->privileges);
  granted->bytes = BytesOfRoles(roles);
  const auto keep = [&](Granted found) {
    std::lock_guard l(mutex_);
    if (granted_.size() >= prune_at_) {
      std::erase_if(granted_, [](const auto& g) { return g.second.roles.expired(); });
      prune_at_ = 2 * granted_.size() + 100;
    }
    granted_[key] = std::move(found);  // an outdated one is not found
  };
  const PrivilegeMemory::Claim claim{db, granted->bytes, granted->administrator};
  auto room = Charge(claim);
  if (!room) {
    keep({{}, generation, place, claim});
    return room.error();
  }
  granted->share = std::move(room).value();
  granted->role_documents = RoleDocuments(roles.roles);
  granted->roles = std::move(roles);
  keep({granted, generation, place, {}});
  return GrantedRolesPtr(std::move(granted));
}

Result<std::shared_ptr<UserAccess>> UserCache::Resolve(UserDocument user, uint64_t generation) {
  std::ranges::sort(user.roles);
  user.roles.erase(std::unique(user.roles.begin(), user.roles.end()), user.roles.end());
  MAYFLY_TRY(GrantedRolesPtr granted, GrantedTo(user.roles, user.name.db));
  const bool administrator = granted->administrator;
  auto access = std::make_shared<UserAccess>(std::move(granted));
  access->bytes = BytesOfUser(user);
  MAYFLY_TRY(access->share, Charge({user.name.db, access->bytes, administrator}));
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
  const bool keep = access->granted->bytes + access->bytes <= PrivilegeMemory::kSmall &&
                    memory_->bytes() <= PrivilegeMemory::Most() / 2;
  users_[name] = {access, keep ? access : nullptr};
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

#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"
#include "protocol/value.h"
#include "security/privilege_set.h"
#include "security/role_graph.h"
#include "security/user_document.h"

namespace mayfly {

/// The memory that the privileges of all users take, for the limit on their sum. It counts to
/// large_memory. Threads: any.
class PrivilegeMemory {
 public:
  /// The part that whoever else needs memory leaves to it.
  static int64_t Most() { return large_memory::Limit() / 8; }
  /// Larger sets leave a quarter of all for those of at most so many bytes.
  static constexpr size_t kSmall = 64 << 10;

  /// What somebody's roles, or names of roles, take.
  struct Claim {
    std::string db;  ///< of the user who has them, or of the first of them
    size_t bytes = 0;
    bool administrator = false;  ///< never refused: may end operations of others, or grant roles
  };
  /// So much more, until the result goes. Users of one database other than `admin` and `$external`,
  /// whom its owner can make at will, have no more together than FitsFairShare allows. Errors:
  /// ExceededMemoryLimit 146.
  static Result<std::shared_ptr<void>> Take(const std::shared_ptr<PrivilegeMemory>& of,
                                            Claim claim);
  int64_t bytes() const;

 private:
  /// REQUIRES: mutex_.
  Result<void> Check(const Claim& claim) const;
  void Give(const Claim& claim);
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;
  ClientStringMap<int64_t> of_databases_;
  large_memory::Hold hold_;
};

/// What a set of roles comes to. Immutable, shared by all users who have these roles.
struct GrantedRoles {
  ResolvedRoles roles;
  PrivilegeSet privileges;
  Value role_documents;         ///< what $$USER_ROLES shows of `roles`: an array
  size_t bytes = 0;             ///< of memory, about
  bool administrator = false;   ///< PrivilegeMemory::Claim
  std::shared_ptr<void> share;  ///< of PrivilegeMemory; none of what is made by hand
};
using GrantedRolesPtr = std::shared_ptr<const GrantedRoles>;

/// What a login gives: who it is and what it may do. Immutable, shared by all connections of the
/// user.
struct UserAccess {
  explicit UserAccess(GrantedRolesPtr what = std::make_shared<GrantedRoles>())
      : granted(std::move(what)),
        roles(granted->roles),
        privileges(granted->privileges),
        role_documents(granted->role_documents) {}
  UserAccess(const UserAccess&) = delete;

  UserDocument user;  ///< without its credentials; its roles are sorted, and each is there once
  const GrantedRolesPtr granted;
  const ResolvedRoles& roles;  ///< this and the next two are parts of `granted`
  const PrivilegeSet& privileges;
  const Value& role_documents;
  uint64_t generation = 0;      ///< of the cache, when it was read; 0: WithoutPrivileges
  bool by_certificate = false;  ///< `user` and its roles are of a certificate, and not stored
  size_t bytes = 0;             ///< of `user`, about
  std::shared_ptr<void> share;  ///< of PrivilegeMemory, for `bytes`
};
using UserAccessPtr = std::shared_ptr<const UserAccess>;

/// Who `was` is, for UserCache::Again, and nothing of what it may do: of somebody who is logged in
/// while there is no memory for the privileges as they are now.
UserAccessPtr WithoutPrivileges(const UserAccess& was);

/// Where users and roles are kept. Threads: any, several at once.
class UserSource {
 public:
  virtual ~UserSource() = default;
  /// None if there is no such user.
  virtual Result<std::optional<UserDocument>> ReadUser(const UserName& name) = 0;
  virtual Result<std::optional<RoleDocument>> ReadRole(const RoleName& name, RoleParts parts) = 0;
  /// Another number when roles are kept elsewhere or in another way: their collection was dropped
  /// and made again, another one has taken its name, or its definition has changed, which may make
  /// documents expire. Reads memory only.
  virtual uint64_t PlaceOfRoles() const { return 0; }
};

/// Users as they were read last, with a number that every change of any user or role raises.
/// A connection keeps its user and compares the number before each command (one load), so a change
/// applies to open connections from the next command on. A user read before the change that arrives
/// after it is not kept. What roles come to is worked out once for all users who have the same
/// ones, and again only after a change of roles. Threads: any.
class UserCache {
 public:
  explicit UserCache(UserSource& source) : source_(source) {}

  /// Raised by each change; starts at 1.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  /// After the change is visible to reads: everything is read again. `roles` false: no role has
  /// changed, so only users are.
  void Invalidate(bool roles = true);

  /// The user as it is now; none if there is no such user. May read storage: not for threads that
  /// serve sockets. Errors: those of the source, ExceededMemoryLimit 146 (PrivilegeMemory).
  Result<UserAccessPtr> Find(const UserName& name);
  /// A user who is not stored: `roles` are those that a certificate grants. Errors: as Find.
  Result<UserAccessPtr> OfCertificate(const UserName& name, const std::vector<RoleName>& roles);
  /// As Find, for a client that logged in as `was`. None also if that user was dropped and another
  /// one has its name.
  Result<UserAccessPtr> Again(const UserAccess& was);
  /// With the credentials, for a login: always read. None if there is no such user.
  Result<std::optional<UserDocument>> ForLogin(const UserName& name) {
    return source_.ReadUser(name);
  }
  /// How many users are kept now: at most kMaxUsers.
  size_t size() const;
  /// Bytes that the privileges of all who are logged in take.
  int64_t privilege_bytes() const { return memory_->bytes(); }

  static constexpr size_t kMaxUsers = 10'000;  ///< kept at once

 private:
  /// A user with many privileges, or any when there are many such users, is kept only as long as
  /// somebody is logged in as that.
  struct Kept {
    std::weak_ptr<const UserAccess> user;
    UserAccessPtr small;
  };
  struct Granted {
    std::weak_ptr<const GrantedRoles> roles;
    uint64_t generation = 0, place = 0;
    /// There was no room for them: what they would have taken. Nothing is worked out again before
    /// there is.
    std::optional<PrivilegeMemory::Claim> refused;
  };
  Result<UserAccessPtr> Read(const UserName& name, uint64_t generation);
  Result<std::shared_ptr<UserAccess>> Resolve(UserDocument user, uint64_t generation);
  /// What these roles, sorted and each once, of a user of `db` come to now. Errors: as Find.
  Result<GrantedRolesPtr> GrantedTo(const std::vector<RoleName>& roles, const std::string& db);
  /// PrivilegeMemory::Take. What is kept though nobody uses it makes room first, once a second.
  Result<std::shared_ptr<void>> Charge(const PrivilegeMemory::Claim& claim);
  /// Empty if nothing is known of now.
  Granted KnownRoles(const std::string& key, uint64_t generation, uint64_t place) const;

  UserSource& source_;
  const std::shared_ptr<PrivilegeMemory> memory_ = std::make_shared<PrivilegeMemory>();
  std::atomic<uint64_t> generation_{1}, roles_generation_{1};
  mutable std::mutex mutex_;
  std::unordered_map<UserName, Kept> users_;
  ClientStringMap<Granted> granted_;  ///< by a digest of the roles' names
  size_t prune_at_ = 100;             ///< entries of granted_
  std::chrono::steady_clock::time_point unused_go_at_{};
  /// While a set is worked out, others who need it wait for it: one lock for some of all sets.
  std::array<std::mutex, 16> working_;
};

}  // namespace mayfly

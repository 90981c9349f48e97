#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "protocol/value.h"
#include "security/privilege_set.h"
#include "security/role_graph.h"
#include "security/user_document.h"

namespace mayfly {

/// What a login gives: who it is and what it may do. Immutable, shared by all connections of the
/// user.
struct UserAccess {
  UserDocument user;  ///< without its credentials
  ResolvedRoles roles;
  PrivilegeSet privileges;
  uint64_t generation = 0;      ///< of the cache, when it was read
  bool by_certificate = false;  ///< `user` and its roles are of a certificate, and not stored
  Value role_documents;         ///< what $$USER_ROLES shows of `roles`: an array
};
using UserAccessPtr = std::shared_ptr<const UserAccess>;

/// Where users and roles are kept. Threads: any, several at once.
class UserSource {
 public:
  virtual ~UserSource() = default;
  /// None if there is no such user.
  virtual Result<std::optional<UserDocument>> ReadUser(const UserName& name) = 0;
  virtual Result<std::optional<RoleDocument>> ReadRole(const RoleName& name) = 0;
};

/// Users as they were read last, with a number that every change of any user or role raises.
/// A connection keeps its user and compares the number before each command (one load), so a change
/// applies to open connections from the next command on. A user read before the change that arrives
/// after it is not kept. Threads: any.
class UserCache {
 public:
  explicit UserCache(UserSource& source) : source_(source) {}

  /// Raised by each change; starts at 1.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  /// After the change is visible to reads: everything is read again.
  void Invalidate();

  /// The user as it is now; none if there is no such user. May read storage: not for threads that
  /// serve sockets. Errors: those of the source and of ResolveRoles.
  Result<UserAccessPtr> Find(const UserName& name);
  /// A user who is not stored: `roles` are those that a certificate grants. Reads their contents
  /// each time. Errors: as Find.
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

  static constexpr size_t kMaxUsers = 10'000;  ///< kept at once

 private:
  Result<UserAccessPtr> Read(const UserName& name, uint64_t generation);
  Result<std::shared_ptr<UserAccess>> Resolve(UserDocument user, uint64_t generation);

  UserSource& source_;
  std::atomic<uint64_t> generation_{1};
  mutable std::mutex mutex_;
  std::unordered_map<UserName, UserAccessPtr> users_;
};

}  // namespace mayfly

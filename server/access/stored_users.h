#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "security/user_cache.h"
#include "storage/clock.h"

namespace mayfly {

struct CollectionInfo;
class Operation;
class Storage;

inline constexpr std::string_view kUsersDatabase = "admin";
inline constexpr std::string_view kUsersCollection = "system.users";
inline constexpr std::string_view kRolesCollection = "system.roles";
inline constexpr std::string_view kTimeKeysCollection = "system.keys";

/// Users and roles as `admin.system.users` and `admin.system.roles` have them: ordinary
/// collections, which a replica set's log carries to every member. Reads storage: not for threads
/// that serve sockets. Threads: any.
class StoredUsers final : public UserSource {
 public:
  /// Null: no users (before storage is open, and after it).
  void set_storage(Storage* storage) { storage_ = storage; }

  /// Errors: UnsupportedFormat 12 for a document that is no user's; the store's.
  Result<std::optional<UserDocument>> ReadUser(const UserName& name) override;
  Result<std::optional<RoleDocument>> ReadRole(const RoleName& name,
                                               RoleParts parts = RoleParts::kAll) override;
  uint64_t PlaceOfRoles() const override;

  /// Every document of the collection (kUsersCollection or kRolesCollection) in the order of `_id`;
  /// `visit` answers whether to go on. A document that is no user's is given as it is.
  Result<void> ForEach(Operation& op, std::string_view collection,
                       const std::function<Result<bool>(BsonView document)>& visit);
  /// Whether there is any user or role. Looks at counters in memory.
  bool Any() const;

 private:
  Result<std::optional<BsonDocument>> Read(std::string_view collection, const std::string& id);
  Storage* storage_ = nullptr;
  /// The roles' definition as PlaceOfRoles saw it last, and how many there have been. It is only
  /// compared, and nothing of it is kept alive.
  mutable std::mutex place_mutex_;
  mutable std::weak_ptr<const CollectionInfo> place_;
  mutable uint64_t places_ = 0;
};

}  // namespace mayfly

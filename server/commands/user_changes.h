#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "security/role_graph.h"
#include "security/user_document.h"
#include "server/access/change_queue.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// Reads roles for one command, which can be interrupted before each. Valid as long as `ctx`.
RoleReader InterruptibleRoles(CommandContext& ctx);

/// A change of users or roles while it is made: it has the lock of such changes, so what it reads
/// is what it changes. Blocking: on a worker. One thread.
class UserChange {
 public:
  /// Errors: Unauthorized 13 when a client that has not logged in is too late for the localhost
  /// exception; those of ChangeQueue::Take.
  static Result<UserChange> Begin(CommandContext& ctx);

  /// Errors: UserNotFound 11.
  Result<UserDocument> User(const UserName& name);
  /// Errors: RoleNotFound 31; InvalidRoleModification 80 for a built-in one.
  Result<RoleDocument> Role(const RoleName& name);
  RoleReader reader();
  /// Errors: RoleNotFound 31 for one that does not exist.
  Result<void> CheckRolesExist(const std::vector<RoleName>& roles);
  /// Whether one may have all of these: a login would leave out what is too much. Errors:
  /// ExceededMemoryLimit 146.
  Result<void> CheckPrivileges(const UserDocument& user);
  /// The same for a role as it is to be.
  Result<void> CheckPrivileges(const RoleDocument& role);

  Result<void> Add(const UserDocument& user);  ///< Errors: Location51003 when there is one
  Result<void> Add(const RoleDocument& role);  ///< Errors: Location51002 when there is one
  /// In the place of the one with this name, or as a new one. Committed when it returns. Errors:
  /// those of a write.
  Result<void> Store(const UserDocument& user);
  Result<void> Store(const RoleDocument& role);
  Result<bool> Drop(const UserName& name);  ///< false: there was none
  /// How many were dropped.
  Result<int64_t> DropUsersOf(std::string_view db);
  /// Drops the roles and revokes them from all holders. Returns their number.
  Result<int64_t> DropRoles(const std::vector<RoleName>& roles);

  /// After the last write: makes it survive a power loss, and writes the audit entry. `param`: of
  /// the event, which is named after the command.
  Result<void> Finish(std::string_view command, const std::function<void(BsonBuilder&)>& param);
  /// The same without an entry.
  Result<void> Finish();

 private:
  UserChange(CommandContext& ctx, ChangeQueue::Turn lock) : ctx_(&ctx), lock_(std::move(lock)) {}
  Result<void> Insert(std::string_view collection, BsonView document, Error exists);
  Result<void> Replace(std::string_view collection, BsonView document);
  Result<int64_t> Delete(std::string_view collection, BsonView filter, bool many);
  Result<void> KeepSchema();

  CommandContext* ctx_;
  ChangeQueue::Turn lock_;
};

/// The first field of a user's or role's command: a name. Errors: BadValue 2, TypeMismatch 14.
Result<std::string> ReadPrincipal(const CommandRequest& req, std::string_view what);
/// `authenticationRestrictions`; none if it is not given.
Result<std::optional<AuthenticationRestrictions>> ReadRestrictions(BsonValue value);
/// `roles`, which is required and not empty in commands that grant and revoke.
Result<std::vector<RoleName>> ReadGrantedRoles(const CommandRequest& req, BsonValue value);
/// Adds to a sorted list what is not in it, or takes away what is.
void AddRoles(std::vector<RoleName>& to, const std::vector<RoleName>& roles);
void RemoveRoles(std::vector<RoleName>& from, const std::vector<RoleName>& roles);

}  // namespace mayfly

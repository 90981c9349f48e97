#pragma once
#include "server/dispatch/inner_requests.h"
#include "server/privileges/check.h"

/// The privileges of each command, for the rows of the command table (CommandRow::privileges): the
/// manual's "Access Control" sections and "Privilege Actions". Rows whose need is a few actions on
/// one resource name a template of check.h instead. All functions: any thread, no storage, time
/// that the request bounds. Errors: Unauthorized 13. What is missing or has the wrong type is never
/// a reason to allow: either it is refused here, or the command refuses it before it does anything.
namespace mayfly::privileges {

// Reading.
Result<void> Aggregate(const AuthorizationRequest& r);
Result<void> Explain(const AuthorizationRequest& r);   ///< what the explained command needs
Result<void> Find(const AuthorizationRequest& r);      ///< readExpired for includeExpired
Result<void> DataSize(const AuthorizationRequest& r);  ///< its first field is "db.coll"
Result<void> FileMd5(const AuthorizationRequest& r);   ///< `root`.chunks

// Writing.
Result<void> Insert(const AuthorizationRequest& r);
Result<void> Update(const AuthorizationRequest& r);
Result<void> FindAndModify(const AuthorizationRequest& r);
Result<void> BulkWrite(const AuthorizationRequest& r);  ///< each namespace by what is done to it
Result<void> ApplyOps(const AuthorizationRequest& r);   ///< `applyOps`, and what each entry needs
/// The actions of an applyOps entry of this kind on its collection. REQUIRES: an insert, update or
/// delete. If an entry names a collection by UUID, the command checks again, because only the
/// catalog knows it.
ActionSet ApplyOpsActions(OplogEntry::Kind kind, bool upsert);

// Collections and databases.
Result<void> Create(const AuthorizationRequest& r);
Result<void> CollMod(const AuthorizationRequest& r);
Result<void> CreateIndexes(const AuthorizationRequest& r);
/// For a UUID, useUUID: the command and each getMore ask again for the collection that has it
/// (NeedsOfUuid).
Result<void> ListIndexes(const AuthorizationRequest& r);
Result<void> RenameCollection(const AuthorizationRequest& r);
Result<void> CloneCollectionAsCapped(const AuthorizationRequest& r);
Result<void> ListCollections(const AuthorizationRequest& r);
Result<void> ListDatabases(const AuthorizationRequest& r);
Result<void> ValidateDBMetadata(const AuthorizationRequest& r);

// Administration.
Result<void> CurrentOp(const AuthorizationRequest& r);
Result<void> KillAllSessionsByPattern(const AuthorizationRequest& r);
Result<void> Profile(const AuthorizationRequest& r);

// Users and roles.
Result<void> CreateUser(const AuthorizationRequest& r);
Result<void> UpdateUser(const AuthorizationRequest& r);  ///< own password and own customData
Result<void> GrantRoles(
    const AuthorizationRequest& r);  ///< to a user or a role: each role's database
Result<void> RevokeRoles(const AuthorizationRequest& r);
Result<void> CreateRole(const AuthorizationRequest& r);
Result<void> UpdateRole(const AuthorizationRequest& r);
Result<void> GrantPrivilegesToRole(const AuthorizationRequest& r);
Result<void> RevokePrivilegesFromRole(const AuthorizationRequest& r);
Result<void> UsersInfo(const AuthorizationRequest& r);  ///< everybody sees what is about himself
Result<void> RolesInfo(const AuthorizationRequest& r);
inline constexpr auto DropUser = &OnDatabase<Action::dropUser>;
inline constexpr auto DropAllUsersFromDatabase = &OnDatabase<Action::dropUser>;
inline constexpr auto DropRole = &OnDatabase<Action::dropRole>;
inline constexpr auto DropAllRolesFromDatabase = &OnDatabase<Action::dropRole>;
inline constexpr auto InvalidateUserCache = &OnCluster<Action::invalidateUserCache>;

}  // namespace mayfly::privileges

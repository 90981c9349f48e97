#include "server/commands/user_changes.h"

#include <algorithm>

#include "security/builtin_roles.h"
#include "server/access/access_documents.h"
#include "server/access/login.h"
#include "server/base/client_of.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/server_context.h"
#include "server/execution/write_ops.h"
#include "storage/storage.h"

namespace mayfly {

Result<std::string> ReadPrincipal(const CommandRequest& req, std::string_view what) {
  const BsonValue v = req.fields[0].value;
  if (!v.IsString())
    return Error{ErrorCode::kTypeMismatch, "BSON field '" + std::string(req.name) + "." +
                                               std::string(req.name) + "' is the wrong type '" +
                                               std::string(BsonTypeName(v.type())) +
                                               "', expected type 'string'"};
  MAYFLY_TRY(CheckPrincipalName(v.String(), what));
  MAYFLY_TRY(CheckPrincipalDatabase(req.db));
  return std::string(v.String());
}

Result<std::optional<AuthenticationRestrictions>> ReadRestrictions(BsonValue value) {
  std::optional<AuthenticationRestrictions> none;
  if (value.missing()) return none;
  MAYFLY_TRY(auto restrictions, ParseRestrictions(value));
  return std::optional(std::move(restrictions));
}

Result<std::vector<RoleName>> ReadGrantedRoles(const CommandRequest& req, BsonValue value) {
  if (value.missing())
    return Error{ErrorCode::kMissingField, "BSON field '" + std::string(req.name) +
                                               ".roles' is missing but a required field"};
  MAYFLY_TRY(auto roles, ParseRoleNames(value, req.db));
  if (roles.empty())
    return Error{ErrorCode::kBadValue,
                 std::string(req.name) + " command requires a non-empty \"roles\" array"};
  return roles;
}

void AddRoles(std::vector<RoleName>& to, const std::vector<RoleName>& roles) {
  to.insert(to.end(), roles.begin(), roles.end());
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
}

void RemoveRoles(std::vector<RoleName>& from, const std::vector<RoleName>& roles) {
  std::vector<RoleName> sorted = roles;
  std::sort(sorted.begin(), sorted.end());
  std::erase_if(
      from, [&](const RoleName& r) { return std::binary_search(sorted.begin(), sorted.end(), r); });
}

Result<UserChange> UserChange::Begin(CommandContext& ctx) {
  AccessControl& access = ctx.server.access();
  // Whoever owns a database can make users there, but only there: all of them take turns as one.
  const std::string db = ctx.access != nullptr ? ctx.access->user.name.db : std::string();
  MAYFLY_TRY(
      ChangeQueue::Turn lock,
      access.changes().Take(
          ctx.op, OwnerOf(db, ctx.client != nullptr ? std::string_view(ctx.client->address) : "")));
  // Two clients may have used the localhost exception at once: it allows only one.
  if (ctx.access.get() == &NobodysAccess() && !access.LocalhostMayMakeUsers())
    return Error{ErrorCode::kUnauthorized,
                 "Command requires authentication: there is a user or a role already"};
  MAYFLY_TRY(access.KeepDecoySecret(ctx.op));
  UserChange change(ctx, std::move(lock));
  MAYFLY_TRY(change.KeepSchema());
  return change;
}

Result<void> UserChange::KeepSchema() {
  MAYFLY_TRY(const auto stored, ReadAccessDocument(ctx_->server.storage(), kVersionCollection,
                                                   std::string(kAuthSchemaId)));
  if (stored) return Ok();
  const BsonDocument schema = BuildBson([](BsonBuilder& b) {
    b.Append("_id", kAuthSchemaId).Append("currentVersion", kAuthSchemaVersion);
  });
  return Insert(kVersionCollection, schema, {ErrorCode::kDuplicateKey, "authSchema"});
}

Result<UserDocument> UserChange::User(const UserName& name) {
  MAYFLY_TRY(auto user, ctx_->server.access().stored().ReadUser(name));
  if (!user)
    return Error{ErrorCode::kUserNotFound,
                 "Could not find user \"" + name.user + "\" for db \"" + name.db + "\""};
  return std::move(*user);
}

Result<RoleDocument> UserChange::Role(const RoleName& name) {
  if (IsBuiltinRole(name))
    return Error{ErrorCode::kInvalidRoleModification,
                 name.Shown() + " is a built-in role and cannot be modified"};
  MAYFLY_TRY(auto role, ctx_->server.access().stored().ReadRole(name));
  if (!role) return Error{ErrorCode::kRoleNotFound, "Could not find role: " + name.Shown()};
  return std::move(*role);
}

RoleReader InterruptibleRoles(CommandContext& ctx) {
  return [&ctx](const RoleName& name, RoleParts parts) -> Result<std::optional<RoleDocument>> {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    return ctx.server.access().stored().ReadRole(name, parts);
  };
}

RoleReader UserChange::reader() { return InterruptibleRoles(*ctx_); }

Result<void> UserChange::CheckRolesExist(const std::vector<RoleName>& roles) {
  for (const RoleName& name : roles) {
    if (IsBuiltinRole(name)) continue;
    MAYFLY_TRY(ctx_->op.CheckInterrupt());
    MAYFLY_TRY(auto role, ctx_->server.access().stored().ReadRole(name));
    if (!role) return Error{ErrorCode::kRoleNotFound, "Could not find role: " + name.Shown()};
  }
  return Ok();
}

Result<void> UserChange::CheckPrivileges(const UserDocument& user) {
  MAYFLY_TRY(ResolveRoles(user.roles, reader()));
  return Ok();
}

Result<void> UserChange::CheckPrivileges(const RoleDocument& role) {
  MAYFLY_TRY(ResolveRoles({role.name},
                          [&, others = reader()](const RoleName& name, RoleParts parts)
                              -> Result<std::optional<RoleDocument>> {
                            if (name == role.name) return std::optional(role);
                            return others(name, parts);
                          }));
  return Ok();
}

Result<void> UserChange::Insert(std::string_view collection, BsonView document, Error exists) {
  WriteCommand write(WriteServicesOf(ctx_->server), ctx_->op, kUsersDatabase, collection);
  MAYFLY_TRY(write.OpenOrCreate());
  std::optional<Error> failed;
  const BsonView documents[] = {document};
  MAYFLY_TRY(write.Insert(documents, [&](size_t, Error e) {
    failed = std::move(e);
    return false;
  }));
  if (!failed) return Ok();
  return failed->code == ErrorCode::kDuplicateKey ? std::move(exists) : std::move(*failed);
}

Result<void> UserChange::Replace(std::string_view collection, BsonView document) {
  WriteCommand write(WriteServicesOf(ctx_->server), ctx_->op, kUsersDatabase, collection);
  MAYFLY_TRY(write.OpenOrCreate());
  const BsonDocument query =
      BuildBson([&](BsonBuilder& b) { b.OpenDocument("_id").Append("$eq", document["_id"]); });
  return write.Merge(query, [&](std::optional<BsonView>) -> Result<std::optional<BsonDocument>> {
    return std::optional(BsonDocument(document));
  });
}

Result<int64_t> UserChange::Delete(std::string_view collection, BsonView filter, bool many) {
  WriteCommand write(WriteServicesOf(ctx_->server), ctx_->op, kUsersDatabase, collection);
  MAYFLY_TRY(write.Open());
  if (!write.coll()) return int64_t{0};
  DeleteStatement s;
  s.filter = filter;
  s.multi = many;
  return write.Delete(s);
}

Result<void> UserChange::Add(const UserDocument& user) {
  return Insert(kUsersCollection, StoredUser(user),
                {LocationCode(51003), "User \"" + user.name.Shown() + "\" already exists"});
}

Result<void> UserChange::Add(const RoleDocument& role) {
  return Insert(kRolesCollection, StoredRole(role),
                {LocationCode(51002), "Role \"" + role.name.Shown() + "\" already exists"});
}

Result<void> UserChange::Store(const UserDocument& user) {
  return Replace(kUsersCollection, StoredUser(user));
}

Result<void> UserChange::Store(const RoleDocument& role) {
  return Replace(kRolesCollection, StoredRole(role));
}

Result<bool> UserChange::Drop(const UserName& name) {
  const BsonDocument filter = BuildBson([&](BsonBuilder& b) { b.Append("_id", name.Id()); });
  MAYFLY_TRY(int64_t n, Delete(kUsersCollection, filter, false));
  return n > 0;
}

Result<int64_t> UserChange::DropUsersOf(std::string_view db) {
  const BsonDocument filter = BuildBson([&](BsonBuilder& b) { b.Append("db", db); });
  return Delete(kUsersCollection, filter, true);
}

Result<int64_t> UserChange::DropRoles(const std::vector<RoleName>& roles) {
  // First revoke them from all holders: a later role of the same name must not belong to them.
  StoredUsers& stored = ctx_->server.access().stored();
  std::vector<RoleName> sorted = roles;
  std::sort(sorted.begin(), sorted.end());
  const auto is_dropped = [&](const RoleName& r) {
    return std::binary_search(sorted.begin(), sorted.end(), r);
  };
  std::vector<UserDocument> users;
  MAYFLY_TRY(stored.ForEach(ctx_->op, kUsersCollection, [&](BsonView d) -> Result<bool> {
    auto user = ParseUserDocument(d);
    if (user && std::any_of(user.value().roles.begin(), user.value().roles.end(), is_dropped))
      users.push_back(std::move(user).value());
    return true;
  }));
  for (UserDocument& user : users) {
    MAYFLY_TRY(ctx_->op.CheckInterrupt());
    RemoveRoles(user.roles, sorted);
    MAYFLY_TRY(Store(user));
  }
  std::vector<RoleDocument> holders;
  MAYFLY_TRY(stored.ForEach(ctx_->op, kRolesCollection, [&](BsonView d) -> Result<bool> {
    auto role = ParseRoleDocument(d);
    if (role && !is_dropped(role.value().name) &&
        std::any_of(role.value().roles.begin(), role.value().roles.end(), is_dropped))
      holders.push_back(std::move(role).value());
    return true;
  }));
  for (RoleDocument& role : holders) {
    MAYFLY_TRY(ctx_->op.CheckInterrupt());
    RemoveRoles(role.roles, sorted);
    MAYFLY_TRY(Store(role));
  }
  int64_t dropped = 0;
  for (const RoleName& name : sorted) {
    const BsonDocument filter = BuildBson([&](BsonBuilder& b) { b.Append("_id", name.Id()); });
    MAYFLY_TRY(int64_t n, Delete(kRolesCollection, filter, false));
    dropped += n;
  }
  return dropped;
}

Result<void> UserChange::Finish() {
  // A set acknowledges what most members have on disk.
  if (ctx_->server.replica_set() == nullptr) {
    MAYFLY_TRY(ctx_->server.storage().kv().SyncWal());
  }
  return Ok();
}

Result<void> UserChange::Finish(std::string_view command,
                                const std::function<void(BsonBuilder&)>& param) {
  // The change is there and holds, whether or not it outlives a loss of power.
  Result<void> synced = Finish();
  Audit(*ctx_, command, param, synced ? ErrorCode::kOk : synced.error().code);
  return synced;
}

}  // namespace mayfly

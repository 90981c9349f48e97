#include <array>

#include "protocol/database_name.h"
#include "security/crypto.h"
#include "security/tls.h"
#include "server/base/session_registry.h"
#include "server/commands/user_changes.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

constexpr ScramMechanism kMechanisms[] = {ScramMechanism::kSha1, ScramMechanism::kSha256};

/// The arguments of createUser and updateUser. The password is a view of the request.
struct UserArgs {
  std::optional<std::string_view> password;
  std::optional<BsonDocument> custom_data;
  std::optional<std::vector<RoleName>> roles;
  std::optional<AuthenticationRestrictions> restrictions;
  std::optional<std::array<bool, 2>> mechanisms;
  bool digest = true;  ///< the server digests the password

  bool Wants(ScramMechanism m) const { return (*mechanisms)[static_cast<size_t>(m)]; }
};

Result<std::array<bool, 2>> ReadMechanisms(AccessControl& access, BsonView list) {
  std::array<bool, 2> wanted{};
  if (list.empty()) return Error{ErrorCode::kBadValue, "mechanisms field must not be empty"};
  for (const BsonElement& e : list) {
    if (!e.value.IsString())
      return Error{ErrorCode::kTypeMismatch, "mechanisms field must be an array of strings"};
    const auto m = FindScramMechanism(e.value.String());
    if (!m)
      return Error{ErrorCode::kBadValue,
                   "Unknown auth mechanism '" + ShownName(e.value.String()) + "'"};
    if (!access.parameters().Offers(*m))
      return Error{ErrorCode::kBadValue, "auth mechanism '" + std::string(e.value.String()) +
                                             "' is not enabled on this server"};
    wanted[static_cast<size_t>(*m)] = true;
  }
  return wanted;
}

Result<UserArgs> ReadUserArgs(CommandContext& ctx, const CommandRequest& req) {
  ArgReader in(req);
  UserArgs a;
  a.password = in.OptString("pwd");
  if (auto data = in.OptDocument("customData")) a.custom_data.emplace(*data);
  const BsonValue roles = in.Any("roles");
  a.digest = in.BoolOr("digestPassword", true);
  const BsonValue restrictions = in.Any("authenticationRestrictions");
  const std::optional<BsonView> mechanisms = in.OptArray("mechanisms");
  MAYFLY_TRY(in.Finish());
  if (!roles.missing()) {
    MAYFLY_TRY(auto names, ParseRoleNames(roles, req.db));
    a.roles = std::move(names);
  }
  MAYFLY_TRY(a.restrictions, ReadRestrictions(restrictions));
  AccessControl& access = ctx.server.access();
  if (mechanisms) {
    MAYFLY_TRY(auto wanted, ReadMechanisms(access, *mechanisms));
    a.mechanisms = wanted;
  }
  if (a.password && req.db == kExternalDatabase)
    return Error{ErrorCode::kBadValue,
                 "Cannot set the password for users defined on the '$external' database"};
  if (a.mechanisms && !a.digest && a.Wants(ScramMechanism::kSha256))
    return Error{ErrorCode::kBadValue, "Use of SCRAM-SHA-256 requires undigested passwords"};
  return a;
}

/// The credentials of a new password, one for each mechanism. Takes milliseconds.
Result<void> MakeCredentials(CommandContext& ctx, const UserArgs& a, UserDocument* user) {
  const AccessParameters& p = ctx.server.access().parameters();
  std::optional<ScramCredential> made[2];
  bool any = false;
  for (ScramMechanism m : kMechanisms) {
    const bool wanted =
        a.mechanisms ? a.Wants(m) : p.Offers(m) && (a.digest || m == ScramMechanism::kSha1);
    if (!wanted) continue;
    MAYFLY_TRY(made[static_cast<size_t>(m)],
               MakeScramCredential(m, user->name, *a.password, !a.digest, p.iterations(m)));
    any = true;
  }
  if (!any)
    return Error{ErrorCode::kBadValue,
                 "there is no mechanism for this password: digestPassword false goes with "
                 "SCRAM-SHA-1 only, and it must be enabled"};
  user->sha1 = std::move(made[0]);
  user->sha256 = std::move(made[1]);
  return Ok();
}

/// Appends the user to an audit event. `changed`: the user existed before. A new password is only
/// mentioned.
void AppendUserAudit(BsonBuilder& p, const UserName& name, const UserArgs& a, bool changed) {
  AppendUserName(p, name);
  if (changed) p.Append("passwordChanged", a.password.has_value());
  if (a.custom_data && a.custom_data->view().size() <= kMaxAuditValue)
    p.Append("customData", ShownCustomData(*a.custom_data));
  else if (a.custom_data)
    p.Append("customData", "...");
  if (a.roles) AppendRoleNames(p, "roles", *a.roles);
  if (a.restrictions) AppendRestrictions(p, "authenticationRestrictions", *a.restrictions);
}

Result<void> CreateUser(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  UserDocument user;
  user.name.db = req.db;
  MAYFLY_TRY(UserArgs a, ReadUserArgs(ctx, req));
  MAYFLY_TRY(user.name.user, ReadPrincipal(req, "User"));
  if (!a.roles)
    return Error{ErrorCode::kMissingField,
                 "BSON field 'createUser.roles' is missing but a required field"};
  user.external = req.db == kExternalDatabase;
  if (user.external && ctx.server.access().parameters().members_are_no_users &&
      ctx.server.tls().IsMemberName(user.name.user))
    return Error{ErrorCode::kBadValue,
                 "Cannot create an x.509 user with a subjectname that would be recognized as an "
                 "internal cluster member"};
  if (!user.external && !a.password)
    return Error{ErrorCode::kBadValue,
                 "Must provide a 'pwd' field for all user documents, except those with '$external' "
                 "as the user's source db"};
  if (a.password) {
    MAYFLY_TRY(MakeCredentials(ctx, a, &user));
  }
  MAYFLY_TRY(user.id, NewUuidBytes());
  user.roles = *a.roles;
  user.custom_data = a.custom_data;
  if (a.restrictions) user.restrictions = *a.restrictions;
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(change.CheckRolesExist(user.roles));
  MAYFLY_TRY(change.CheckPrivileges(user));
  MAYFLY_TRY(change.Add(user));
  return change.Finish("createUser",
                       [&](BsonBuilder& p) { AppendUserAudit(p, user.name, a, false); });
}

Result<void> UpdateUser(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  UserName name;
  name.db = req.db;
  MAYFLY_TRY(UserArgs a, ReadUserArgs(ctx, req));
  MAYFLY_TRY(name.user, ReadPrincipal(req, "User"));
  if (!a.password && !a.custom_data && !a.roles && !a.restrictions && !a.mechanisms)
    return Error{ErrorCode::kBadValue, "Must specify at least one field to update in updateUser"};
  UserDocument fresh;
  fresh.name = name;
  if (a.password) {
    MAYFLY_TRY(MakeCredentials(ctx, a, &fresh));
  }
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(UserDocument user, change.User(name));
  if (a.password) {
    user.sha1 = std::move(fresh.sha1);
    user.sha256 = std::move(fresh.sha256);
  } else if (a.mechanisms) {
    for (ScramMechanism m : kMechanisms)
      if (a.Wants(m) && !user.credential(m))
        return Error{ErrorCode::kBadValue,
                     "mechanisms field must be a subset of previously set mechanisms"};
    if (!a.Wants(ScramMechanism::kSha1)) user.sha1.reset();
    if (!a.Wants(ScramMechanism::kSha256)) user.sha256.reset();
  }
  if (a.roles) {
    MAYFLY_TRY(change.CheckRolesExist(*a.roles));
    user.roles = *a.roles;
    MAYFLY_TRY(change.CheckPrivileges(user));
  }
  if (a.custom_data) user.custom_data = a.custom_data;
  if (a.restrictions) user.restrictions = *a.restrictions;
  MAYFLY_TRY(change.Store(user));
  return change.Finish("updateUser", [&](BsonBuilder& p) { AppendUserAudit(p, name, a, true); });
}

Result<void> DropUser(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  UserName name;
  name.db = req.db;
  MAYFLY_TRY(name.user, ReadPrincipal(req, "User"));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(bool dropped, change.Drop(name));
  if (!dropped) return Error{ErrorCode::kUserNotFound, "User '" + name.Shown() + "' not found"};
  return change.Finish("dropUser", [&](BsonBuilder& p) { AppendUserName(p, name); });
}

Result<void> DropAllUsers(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(int64_t n, change.DropUsersOf(req.db));
  reply.Append("n", static_cast<int32_t>(n));
  return change.Finish("dropAllUsersFromDatabase", [&](BsonBuilder& p) { p.Append("db", req.db); });
}

Result<void> ChangeRolesOfUser(CommandContext& ctx, const CommandRequest& req, bool grant) {
  ArgReader in(req);
  const BsonValue given = in.Any("roles");
  MAYFLY_TRY(in.Finish());
  UserName name;
  name.db = req.db;
  MAYFLY_TRY(name.user, ReadPrincipal(req, "User"));
  MAYFLY_TRY(auto roles, ReadGrantedRoles(req, given));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(UserDocument user, change.User(name));
  if (grant) {
    MAYFLY_TRY(change.CheckRolesExist(roles));
    AddRoles(user.roles, roles);
    if (user.roles.size() > kMaxRoles)
      return Error{ErrorCode::kBadValue, "a user has at most 1,000 roles: make a role of them"};
    MAYFLY_TRY(change.CheckPrivileges(user));
  } else {
    RemoveRoles(user.roles, roles);
  }
  MAYFLY_TRY(change.Store(user));
  return change.Finish(grant ? "grantRolesToUser" : "revokeRolesFromUser", [&](BsonBuilder& p) {
    AppendUserName(p, name);
    AppendRoleNames(p, "roles", roles);
  });
}

Result<void> GrantRolesToUser(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  return ChangeRolesOfUser(ctx, req, true);
}

Result<void> RevokeRolesFromUser(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  return ChangeRolesOfUser(ctx, req, false);
}

Result<void> InvalidateUserCache(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  ctx.server.access().users().Invalidate();
  return Ok();
}

}  // namespace

void RegisterUserCommands(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kWrites | kTakesWriteConcern | kWorker;
  registry.Add({.name = "createUser",
                .flags = kFlags | kSecret | kNoProfile,
                .help = "Makes a user of this database.",
                .run = &CreateUser,
                .privileges = &privileges::CreateUser});
  registry.Add({.name = "updateUser",
                .flags = kFlags | kSecret | kNoProfile,
                .help = "Changes a user: what is given takes the place of what was.",
                .run = &UpdateUser,
                .privileges = &privileges::UpdateUser});
  registry.Add({.name = "dropUser",
                .flags = kFlags,
                .help = "Drops a user of this database.",
                .run = &DropUser,
                .privileges = privileges::DropUser});
  registry.Add({.name = "dropAllUsersFromDatabase",
                .flags = kFlags,
                .help = "Drops all users of this database.",
                .run = &DropAllUsers,
                .privileges = privileges::DropAllUsersFromDatabase});
  registry.Add({.name = "grantRolesToUser",
                .flags = kFlags,
                .help = "Gives roles to a user.",
                .run = &GrantRolesToUser,
                .privileges = &privileges::GrantRoles});
  registry.Add({.name = "revokeRolesFromUser",
                .flags = kFlags,
                .help = "Takes roles from a user.",
                .run = &RevokeRolesFromUser,
                .privileges = &privileges::RevokeRoles});
  registry.Add({.name = "invalidateUserCache",
                .flags = kSecondaryOk | kAdminOnly,
                .help = "Users are read again.",
                .run = &InvalidateUserCache,
                .privileges = privileges::InvalidateUserCache});
}

}  // namespace mayfly

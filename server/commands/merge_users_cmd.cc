#include "server/access/access_documents.h"
#include "server/commands/user_changes.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/check.h"

namespace mayfly {

namespace {

constexpr std::string_view kTempOf = "admin.";

/// mongorestore sends this after it has put the users and roles of a dump into temporary
/// collections (mongo-tools, `RestoreUsersOrRoles`).
struct MergeArgs {
  std::string_view users, roles;  ///< collections of `admin`; empty: not given
  std::string_view db;            ///< only users and roles of this database; empty: of all
  bool drop = false;              ///< those that are not in the collections go

  bool Of(BsonView document) const {
    const BsonValue of = document["db"];
    return db.empty() || (of.IsString() && of.String() == db);
  }
};

Result<std::string_view> ReadTemp(ArgReader& in, std::string_view field) {
  const std::optional<std::string_view> given = in.OptString(field);
  if (!given || given->empty()) return std::string_view();
  const std::string_view name =
      given->starts_with(kTempOf) ? given->substr(kTempOf.size()) : std::string_view();
  if (name.empty() || name.starts_with("system."))
    return Error{ErrorCode::kBadValue, std::string(field) +
                                           " must be a collection of admin that is not one of the "
                                           "system, for example 'admin.tempusers'"};
  return name;
}

Result<MergeArgs> ReadMergeArgs(const CommandRequest& req) {
  ArgReader in(req);
  MergeArgs a;
  MAYFLY_TRY(a.users, ReadTemp(in, "tempUsersCollection"));
  MAYFLY_TRY(a.roles, ReadTemp(in, "tempRolesCollection"));
  a.db = in.StringOr("db");  // check_names: compared with what documents have
  a.drop = in.BoolOr("drop", false);
  MAYFLY_TRY(in.Finish());
  if (a.users.empty() && a.roles.empty())
    return Error{ErrorCode::kBadValue,
                 "Must provide at least one of \"tempUsersCollection\" and "
                 "\"tempRolesCollection\""};
  return a;
}

void AppendAuditOf(BsonBuilder& p, const UserDocument& user, bool changed) {
  AppendUserName(p, user.name);
  if (changed) p.Append("passwordChanged", true);
  if (user.custom_data && user.custom_data->view().size() <= kMaxAuditValue)
    p.Append("customData", ShownCustomData(*user.custom_data));
  else if (user.custom_data)
    p.Append("customData", "...");
  AppendRoleNames(p, "roles", user.roles);
  if (!user.restrictions.empty())
    AppendRestrictions(p, "authenticationRestrictions", user.restrictions);
}

void AppendAuditOf(BsonBuilder& p, const RoleDocument& role, bool) {
  AppendRoleName(p, role.name);
  AppendRoleNames(p, "roles", role.roles);
  AppendPrivileges(p, "privileges", role.privileges);
  if (!role.restrictions.empty())
    AppendRestrictions(p, "authenticationRestrictions", role.restrictions);
}

/// What differs between users and roles.
struct OfUsers {
  static constexpr std::string_view kCollection = kUsersCollection;
  static constexpr std::string_view kMade = "createUser", kChanged = "updateUser",
                                    kDropped = "dropUser";
  static Result<UserDocument> Parse(BsonView d) { return ParseUserDocument(d); }
};
struct OfRoles {
  static constexpr std::string_view kCollection = kRolesCollection;
  static constexpr std::string_view kMade = "createRole", kChanged = "updateRole",
                                    kDropped = "dropRole";
  static Result<RoleDocument> Parse(BsonView d) { return ParseRoleDocument(d); }
};

/// Nothing is changed when one of them cannot be used.
template <class Of>
Result<void> CheckAll(CommandContext& ctx, const MergeArgs& a, std::string_view from) {
  return ctx.server.access().stored().ForEach(ctx.op, from, [&](BsonView d) -> Result<bool> {
    if (!a.Of(d)) return true;
    MAYFLY_TRY(Of::Parse(d));
    return true;
  });
}

template <class Of>
Result<void> MergeAll(CommandContext& ctx, UserChange& change, const MergeArgs& a,
                      std::string_view from) {
  StoredUsers& stored = ctx.server.access().stored();
  return stored.ForEach(ctx.op, from, [&](BsonView d) -> Result<bool> {
    if (!a.Of(d)) return true;
    MAYFLY_TRY(auto document, Of::Parse(d));
    MAYFLY_TRY(const auto before,
               ReadAccessDocument(ctx.server.storage(), Of::kCollection, document.name.Id()));
    MAYFLY_TRY(change.Store(document));
    Audit(ctx, before ? Of::kChanged : Of::kMade,
          [&](BsonBuilder& p) { AppendAuditOf(p, document, before.has_value()); });
    return true;
  });
}

Result<void> Drop(UserChange& change, const UserName& name) {
  MAYFLY_TRY(change.Drop(name));
  return Ok();
}
Result<void> Drop(UserChange& change, const RoleName& name) {
  MAYFLY_TRY(change.DropRoles({name}));
  return Ok();
}
void AppendName(BsonBuilder& p, const UserName& name) { AppendUserName(p, name); }
void AppendName(BsonBuilder& p, const RoleName& name) { AppendRoleName(p, name); }

template <class Of>
Result<void> DropOthers(CommandContext& ctx, UserChange& change, const MergeArgs& a,
                        std::string_view from) {
  StoredUsers& stored = ctx.server.access().stored();
  return stored.ForEach(ctx.op, Of::kCollection, [&](BsonView d) -> Result<bool> {
    if (!a.Of(d)) return true;
    const auto document = Of::Parse(d);
    if (!document) return true;  // it belongs to no user; usersInfo reports it
    const auto& name = document.value().name;
    MAYFLY_TRY(const auto stays, ReadAccessDocument(ctx.server.storage(), from, name.Id()));
    if (stays) return true;
    MAYFLY_TRY(Drop(change, name));
    Audit(ctx, Of::kDropped, [&](BsonBuilder& p) { AppendName(p, name); });
    return true;
  });
}

template <class Of>
Result<void> Merge(CommandContext& ctx, UserChange& change, const MergeArgs& a,
                   std::string_view from) {
  if (from.empty()) return Ok();
  MAYFLY_TRY(MergeAll<Of>(ctx, change, a, from));
  return a.drop ? DropOthers<Of>(ctx, change, a, from) : Ok();
}

Result<void> MergeAuthzCollections(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(const MergeArgs a, ReadMergeArgs(req));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  if (!a.roles.empty()) {
    MAYFLY_TRY(CheckAll<OfRoles>(ctx, a, a.roles));
  }
  if (!a.users.empty()) {
    MAYFLY_TRY(CheckAll<OfUsers>(ctx, a, a.users));
  }
  // The roles first: no user has for a moment less than before.
  MAYFLY_TRY(Merge<OfRoles>(ctx, change, a, a.roles));
  MAYFLY_TRY(Merge<OfUsers>(ctx, change, a, a.users));
  return change.Finish();
}

/// A client that imports users and roles can grant anything: it needs all actions on users, on all
/// databases. The role `restore` has them.
Result<void> MayMerge(const AuthorizationRequest& r) {
  constexpr ActionSet kNeeded{
      Action::changeCustomData, Action::changePassword, Action::createRole,
      Action::createUser,       Action::dropRole,       Action::dropUser,
      Action::grantRole,        Action::revokeRole,     Action::setAuthenticationRestriction};
  return privileges::Decide(r.privileges.Allows(Resource::Database(""), kNeeded), r);
}

}  // namespace

void RegisterMergeUsers(CommandRegistry& registry) {
  registry.Add({.name = "_mergeAuthzCollections",
                .flags = kWrites | kTakesWriteConcern | kWorker | kAdminOnly,
                .help = "Users and roles from collections that mongorestore has filled.",
                .run = &MergeAuthzCollections,
                .privileges = &MayMerge});
}

}  // namespace mayfly

#include "query/match/record_filter.h"
#include "security/builtin_roles.h"
#include "security/role_graph.h"
#include "server/commands/user_changes.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/index_keys.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

/// Names that one command may ask for.
constexpr size_t kMaxAskedNames = 10'000;

/// A list of many may be larger than a reply can be: no more is read then.
Result<void> CheckSize(const BsonBuilder& reply) {
  if (reply.size() <= static_cast<size_t>(kMaxBsonUserSize)) return Ok();
  return Error{ErrorCode::kBSONObjectTooLarge,
               "the users or roles are more than a reply can have: ask for fewer at once, with a "
               "filter or by database"};
}

/// A list of each role's list.
void AppendRestrictionLists(BsonBuilder& out, std::string_view name,
                            const std::vector<AuthenticationRestrictions>& restrictions) {
  BsonArrayBuilder all = out.OpenArray(name);
  for (const AuthenticationRestrictions& r : restrictions) {
    if (r.empty()) continue;
    const BsonDocument one = BuildBson([&](BsonBuilder& b) { AppendRestrictions(b, "r", r); });
    all.Append(one.view()["r"]);
  }
}

/// What a login with these roles has, and which of them have too many privileges to count.
void AppendInherited(BsonBuilder& out, const ResolvedRoles& resolved,
                     const std::vector<Privilege>& privileges) {
  AppendPrivileges(out, "inheritedPrivileges", privileges);
  if (!resolved.left_out.empty()) AppendRoleNames(out, "rolesLeftOut", resolved.left_out);
}

// --- usersInfo -----------------------------------------------------------------------------------

/// What usersInfo asks for.
struct UsersQuery {
  bool all_databases = false, whole_database = false;
  std::vector<UserName> names;
  bool credentials = false, custom_data = true, privileges = false, restrictions = false;
  std::shared_ptr<const RecordFilter> filter;
};

Result<void> ReadWhich(const CommandRequest& req, UsersQuery* q) {
  const BsonValue v = req.fields[0].value;
  if (v.IsNumber()) {
    q->whole_database = true;
    return Ok();
  }
  if (v.IsDocument() && !v.Document()["forAllDBs"].missing()) {
    ArgReader in("usersInfo", v.Document());
    q->all_databases = in.LooseBoolOr("forAllDBs", false);
    MAYFLY_TRY(in.Finish());
    if (!q->all_databases)
      return Error{ErrorCode::kBadValue, "forAllDBs must be true when it is given"};
    return Ok();
  }
  if (!v.IsArray()) {
    MAYFLY_TRY(UserName name, ParseUserName(v, req.db));
    q->names.push_back(std::move(name));
    return Ok();
  }
  for (const BsonElement& e : v.Document()) {
    if (q->names.size() == kMaxAskedNames)
      return Error{ErrorCode::kBadValue, "usersInfo takes at most 10,000 names at once"};
    MAYFLY_TRY(UserName name, ParseUserName(e.value, req.db));
    q->names.push_back(std::move(name));
  }
  return Ok();
}

Result<UsersQuery> ReadUsersQuery(CommandContext& ctx, const CommandRequest& req) {
  UsersQuery q;
  ArgReader in(req);
  q.credentials = in.LooseBoolOr("showCredentials", false);
  q.custom_data = in.LooseBoolOr("showCustomData", true);
  q.privileges = in.LooseBoolOr("showPrivileges", false);
  q.restrictions = in.LooseBoolOr("showAuthenticationRestrictions", false);
  const std::optional<BsonView> filter = in.OptDocument("filter");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(ReadWhich(req, &q));
  if ((q.privileges || q.restrictions) && (q.all_databases || q.whole_database))
    return Error{ErrorCode::kFailedToParse,
                 "Privilege or restriction details require exact-match usersInfo queries"};
  if (q.privileges && filter)
    return Error{ErrorCode::kFailedToParse,
                 "usersInfo: filter and showPrivileges exclude each other"};
  if (filter && !filter->empty()) {
    MAYFLY_TRY(q.filter, CompileRecordFilter(*filter, false, &ctx.data.clock()));
  }
  return q;
}

Result<void> AppendUser(CommandContext& ctx, const UsersQuery& q, UserDocument user,
                        BsonArrayBuilder& out) {
  if (!q.custom_data) user.custom_data.reset();
  const BsonDocument shown = BuildBson([&](BsonBuilder& b) {
    AppendShownUser(b, user, {.credentials = q.credentials, .restrictions = q.restrictions});
  });
  if (q.filter) {
    const FilteringFor filtering(&ctx.op);
    if (!q.filter->Matches(shown)) return ctx.op.CheckInterruptNow();
  }
  if (!q.privileges && !q.restrictions) {
    out.Append(shown.view().AsValue());
    return Ok();
  }
  MAYFLY_TRY(ResolvedRoles resolved, ResolveSomeRoles(user.roles, InterruptibleRoles(ctx)));
  BsonBuilder one = out.OpenDocument();
  one.AppendAll(shown);
  AppendRoleNames(one, "inheritedRoles", resolved.roles);
  AppendInherited(one, resolved, resolved.privileges);
  AppendRestrictionLists(one, "inheritedAuthenticationRestrictions", resolved.restrictions);
  return Ok();
}

Result<void> UsersInfo(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(UsersQuery q, ReadUsersQuery(ctx, req));
  StoredUsers& stored = ctx.server.access().stored();
  BsonArrayBuilder users = reply.OpenArray("users");
  for (const UserName& name : q.names) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(std::optional<UserDocument> user, stored.ReadUser(name));
    if (!user) continue;
    MAYFLY_TRY(AppendUser(ctx, q, std::move(*user), users));
    MAYFLY_TRY(CheckSize(reply));
  }
  if (q.names.empty() && (q.all_databases || q.whole_database)) {
    MAYFLY_TRY(stored.ForEach(ctx.op, kUsersCollection, [&](BsonView d) -> Result<bool> {
      const BsonValue db = d["db"];
      if (q.whole_database && !(db.IsString() && db.String() == req.db)) return true;
      MAYFLY_TRY(UserDocument user, ParseUserDocument(d));
      MAYFLY_TRY(AppendUser(ctx, q, std::move(user), users));
      MAYFLY_TRY(CheckSize(reply));
      return true;
    }));
  }
  users.Done();
  return Ok();
}

// --- rolesInfo -----------------------------------------------------------------------------------

/// What rolesInfo asks for.
struct RolesQuery {
  bool whole_database = false;
  std::vector<RoleName> names;
  bool privileges = false, fragment = false, builtin = false, restrictions = false;
};

Result<RolesQuery> ReadRolesQuery(const CommandRequest& req) {
  RolesQuery q;
  ArgReader in(req);
  const BsonValue privileges = in.Any("showPrivileges");
  q.builtin = in.LooseBoolOr("showBuiltinRoles", false);
  q.restrictions = in.LooseBoolOr("showAuthenticationRestrictions", false);
  MAYFLY_TRY(in.Finish());
  if (privileges.IsString()) {
    if (privileges.String() != "asUserFragment")
      return Error{ErrorCode::kFailedToParse,
                   "Failed to parse 'showPrivileges'. 'asUserFragment' is the only text it can be"};
    q.fragment = q.privileges = true;
  } else if (privileges.Is(BsonType::kBool) || privileges.IsNumber()) {
    q.privileges = privileges.Truthy();
  } else if (!privileges.IsNullish() && !privileges.missing()) {
    return in.WrongType("showPrivileges", privileges.type(), "[bool, string]");
  }
  const BsonValue v = req.fields[0].value;
  if (v.IsNumber()) {
    q.whole_database = true;
    if (q.fragment)
      return Error{ErrorCode::kBadValue,
                   "Cannot get user fragment for all roles in a database: name them"};
    return q;
  }
  if (!v.IsArray()) {
    MAYFLY_TRY(RoleName name, ParseRoleName(v, req.db));
    q.names.push_back(std::move(name));
    return q;
  }
  for (const BsonElement& e : v.Document()) {
    if (q.names.size() == kMaxAskedNames)
      return Error{ErrorCode::kBadValue, "rolesInfo takes at most 10,000 names at once"};
    MAYFLY_TRY(RoleName name, ParseRoleName(e.value, req.db));
    q.names.push_back(std::move(name));
  }
  return q;
}

Result<void> AppendRole(CommandContext& ctx, const RolesQuery& q, const RoleDocument& role,
                        bool builtin, BsonArrayBuilder& out) {
  MAYFLY_TRY(ResolvedRoles resolved, ResolveSomeRoles(role.roles, InterruptibleRoles(ctx)));
  BsonBuilder one = out.OpenDocument();
  one.Append("_id", role.name.Id());
  AppendRoleName(one, role.name);
  if (q.privileges) AppendPrivileges(one, "privileges", role.privileges);
  AppendRoleNames(one, "roles", role.roles);
  // As the manual's example shows a role's own: in a list of lists, like the inherited ones.
  if (q.restrictions)
    AppendRestrictionLists(one, "authenticationRestrictions", {role.restrictions});
  one.Append("isBuiltin", builtin);
  AppendRoleNames(one, "inheritedRoles", resolved.roles);
  if (q.privileges) {
    std::vector<Privilege> all = role.privileges;
    all.insert(all.end(), resolved.privileges.begin(), resolved.privileges.end());
    UnitePrivileges(all);
    AppendInherited(one, resolved, all);
  }
  if (q.restrictions) {
    resolved.restrictions.insert(resolved.restrictions.begin(), role.restrictions);
    AppendRestrictionLists(one, "inheritedAuthenticationRestrictions", resolved.restrictions);
  }
  return Ok();
}

RoleDocument BuiltinDocument(const RoleName& name) {
  RoleDocument role;
  role.name = name;
  role.privileges = BuiltinPrivileges(name);
  return role;
}

/// {showPrivileges: "asUserFragment"}: what a user with these roles would have.
Result<void> AppendFragment(CommandContext& ctx, const RolesQuery& q, BsonBuilder& reply) {
  std::vector<RoleName> roles;
  for (const RoleName& name : q.names) {
    if (!IsBuiltinRole(name)) {
      MAYFLY_TRY(auto role, ctx.server.access().stored().ReadRole(name));
      if (!role) continue;
    }
    roles.push_back(name);
  }
  MAYFLY_TRY(ResolvedRoles resolved, ResolveSomeRoles(roles, InterruptibleRoles(ctx)));
  BsonBuilder fragment = reply.OpenDocument("userFragment");
  AppendRoleNames(fragment, "roles", roles);
  AppendRoleNames(fragment, "inheritedRoles", resolved.roles);
  AppendInherited(fragment, resolved, resolved.privileges);
  AppendRestrictionLists(fragment, "inheritedAuthenticationRestrictions", resolved.restrictions);
  return Ok();
}

Result<void> RolesInfo(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(RolesQuery q, ReadRolesQuery(req));
  if (q.fragment) return AppendFragment(ctx, q, reply);
  StoredUsers& stored = ctx.server.access().stored();
  BsonArrayBuilder roles = reply.OpenArray("roles");
  for (const RoleName& name : q.names) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    if (IsBuiltinRole(name)) {
      MAYFLY_TRY(AppendRole(ctx, q, BuiltinDocument(name), true, roles));
    } else {
      MAYFLY_TRY(std::optional<RoleDocument> role, stored.ReadRole(name));
      if (!role) continue;
      MAYFLY_TRY(AppendRole(ctx, q, *role, false, roles));
    }
    MAYFLY_TRY(CheckSize(reply));
  }
  if (q.whole_database) {
    MAYFLY_TRY(stored.ForEach(ctx.op, kRolesCollection, [&](BsonView d) -> Result<bool> {
      const BsonValue db = d["db"];
      if (!(db.IsString() && db.String() == req.db)) return true;
      MAYFLY_TRY(RoleDocument role, ParseRoleDocument(d));
      MAYFLY_TRY(AppendRole(ctx, q, role, false, roles));
      MAYFLY_TRY(CheckSize(reply));
      return true;
    }));
    if (q.builtin)
      for (const RoleName& name : BuiltinRoles(req.db)) {
        MAYFLY_TRY(AppendRole(ctx, q, BuiltinDocument(name), true, roles));
      }
  }
  roles.Done();
  return Ok();
}

}  // namespace

void RegisterUsersInfo(CommandRegistry& registry) {
  registry.Add({.name = "usersInfo",
                .flags = kSecondaryOk | kSecondaryOptIn | kWorker,
                .help = "Users, of a database or by their names.",
                .run = &UsersInfo,
                .privileges = &privileges::UsersInfo});
  registry.Add({.name = "rolesInfo",
                .flags = kSecondaryOk | kSecondaryOptIn | kWorker,
                .help = "Roles, of a database or by their names.",
                .run = &RolesInfo,
                .privileges = &privileges::RolesInfo});
}

}  // namespace mayfly

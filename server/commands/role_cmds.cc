#include <algorithm>

#include "protocol/database_name.h"
#include "security/builtin_roles.h"
#include "server/commands/user_changes.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

/// A role of another database than admin is for that database alone.
Result<void> CheckOwnDatabase(const RoleName& name, const std::vector<Privilege>& privileges) {
  if (name.db == "admin") return Ok();
  for (const Privilege& p : privileges) {
    const Resource& r = p.resource;
    const bool own =
        (r.kind == Resource::Kind::kCollection || r.kind == Resource::Kind::kBuckets) &&
        r.db == name.db;
    if (!own)
      return Error{ErrorCode::kUnauthorized,
                   "Roles on the '" + name.db +
                       "' database cannot be granted privileges that target other databases or "
                       "the cluster"};
  }
  return Ok();
}

Result<void> CheckOwnDatabase(const RoleName& name, const std::vector<RoleName>& roles) {
  if (name.db == "admin") return Ok();
  for (const RoleName& r : roles)
    if (r.db != name.db)
      return Error{ErrorCode::kUnauthorized, "Roles on the '" + name.db +
                                                 "' database cannot be granted roles from other "
                                                 "databases"};
  return Ok();
}

/// What createRole and updateRole bring.
struct RoleArgs {
  std::optional<std::vector<Privilege>> privileges;
  std::optional<std::vector<RoleName>> roles;
  std::optional<AuthenticationRestrictions> restrictions;
};

Result<RoleArgs> ReadRoleArgs(const CommandRequest& req) {
  ArgReader in(req);
  const BsonValue privileges = in.Any("privileges"), roles = in.Any("roles"),
                  restrictions = in.Any("authenticationRestrictions");
  MAYFLY_TRY(in.Finish());
  RoleArgs a;
  if (!privileges.missing()) {
    MAYFLY_TRY(auto list, ParsePrivileges(privileges));
    a.privileges = std::move(list);
  }
  if (!roles.missing()) {
    MAYFLY_TRY(auto list, ParseRoleNames(roles, req.db));
    a.roles = std::move(list);
  }
  MAYFLY_TRY(a.restrictions, ReadRestrictions(restrictions));
  return a;
}

Result<RoleName> ReadRoleName(const CommandRequest& req) {
  RoleName name;
  name.db = req.db;
  MAYFLY_TRY(name.role, ReadPrincipal(req, "Role"));
  if (name.db == kExternalDatabase)
    return Error{ErrorCode::kBadValue, "Cannot create roles in the $external database"};
  return name;
}

void AppendRoleAudit(BsonBuilder& p, const RoleName& name, const RoleArgs& a) {
  AppendRoleName(p, name);
  if (a.roles) AppendRoleNames(p, "roles", *a.roles);
  if (a.privileges) AppendPrivileges(p, "privileges", *a.privileges);
  if (a.restrictions) AppendRestrictions(p, "authenticationRestrictions", *a.restrictions);
}

Error MissingField(const CommandRequest& req, std::string_view field) {
  return {ErrorCode::kMissingField, "BSON field '" + std::string(req.name) + "." +
                                        std::string(field) + "' is missing but a required field"};
}

Result<void> CreateRole(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(RoleArgs a, ReadRoleArgs(req));
  MAYFLY_TRY(RoleName name, ReadRoleName(req));
  if (!a.privileges) return MissingField(req, "privileges");
  if (!a.roles) return MissingField(req, "roles");
  if (IsBuiltinRole(name))
    return Error{ErrorCode::kBadValue, "Cannot create roles with the same name as a built-in role"};
  MAYFLY_TRY(CheckOwnDatabase(name, *a.privileges));
  MAYFLY_TRY(CheckOwnDatabase(name, *a.roles));
  RoleDocument role;
  role.name = name;
  role.privileges = *a.privileges;
  role.roles = *a.roles;
  if (a.restrictions) role.restrictions = *a.restrictions;
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(change.CheckRolesExist(role.roles));
  MAYFLY_TRY(change.CheckPrivileges(role));
  MAYFLY_TRY(change.Add(role));
  return change.Finish("createRole", [&](BsonBuilder& p) { AppendRoleAudit(p, name, a); });
}

Result<void> UpdateRole(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(RoleArgs a, ReadRoleArgs(req));
  MAYFLY_TRY(RoleName name, ReadRoleName(req));
  if (!a.privileges && !a.roles && !a.restrictions)
    return Error{ErrorCode::kBadValue, "Must specify at least one field to update in updateRole"};
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(RoleDocument role, change.Role(name));
  if (a.privileges) {
    MAYFLY_TRY(CheckOwnDatabase(name, *a.privileges));
    role.privileges = *a.privileges;
  }
  if (a.roles) {
    MAYFLY_TRY(CheckOwnDatabase(name, *a.roles));
    MAYFLY_TRY(change.CheckRolesExist(*a.roles));
    MAYFLY_TRY(CheckNoCycle(name, *a.roles, change.reader()));
    role.roles = *a.roles;
  }
  if (a.privileges || a.roles) {
    MAYFLY_TRY(change.CheckPrivileges(role));
  }
  if (a.restrictions) role.restrictions = *a.restrictions;
  MAYFLY_TRY(change.Store(role));
  return change.Finish("updateRole", [&](BsonBuilder& p) { AppendRoleAudit(p, name, a); });
}

Result<void> DropRole(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(RoleName name, ReadRoleName(req));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(change.Role(name));
  MAYFLY_TRY(change.DropRoles({name}));
  return change.Finish("dropRole", [&](BsonBuilder& p) { AppendRoleName(p, name); });
}

Result<void> DropAllRoles(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  std::vector<RoleName> roles;
  MAYFLY_TRY(ctx.server.access().stored().ForEach(
      ctx.op, kRolesCollection, [&](BsonView d) -> Result<bool> {
        const BsonValue db = d["db"], role = d["role"];
        if (db.IsString() && role.IsString() && db.String() == req.db)
          roles.push_back({std::string(role.String()), std::string(db.String())});
        return true;
      }));
  MAYFLY_TRY(int64_t n, change.DropRoles(roles));
  reply.Append("n", static_cast<int32_t>(n));
  return change.Finish("dropAllRolesFromDatabase", [&](BsonBuilder& p) { p.Append("db", req.db); });
}

/// Takes actions away; a privilege with none left goes.
void RemovePrivileges(std::vector<Privilege>& from, const std::vector<Privilege>& privileges) {
  for (const Privilege& p : privileges)
    for (Privilege& has : from)
      if (has.resource == p.resource) has.actions -= p.actions;
  std::erase_if(from, [](const Privilege& p) { return p.actions.empty(); });
}

Result<void> ChangePrivileges(CommandContext& ctx, const CommandRequest& req, bool grant) {
  ArgReader in(req);
  const BsonValue given = in.Any("privileges");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(RoleName name, ReadRoleName(req));
  if (given.missing()) return MissingField(req, "privileges");
  MAYFLY_TRY(auto privileges, ParsePrivileges(given));
  if (privileges.empty())
    return Error{ErrorCode::kBadValue,
                 std::string(req.name) + " command requires a non-empty \"privileges\" array"};
  MAYFLY_TRY(CheckOwnDatabase(name, privileges));
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(RoleDocument role, change.Role(name));
  if (grant) {
    role.privileges.insert(role.privileges.end(), privileges.begin(), privileges.end());
    UnitePrivileges(role.privileges);
    if (role.privileges.size() > kMaxPrivileges)
      return Error{ErrorCode::kBadValue, "a role has at most 10,000 privileges"};
    MAYFLY_TRY(change.CheckPrivileges(role));
  } else {
    RemovePrivileges(role.privileges, privileges);
  }
  MAYFLY_TRY(change.Store(role));
  return change.Finish(grant ? "grantPrivilegesToRole" : "revokePrivilegesFromRole",
                       [&](BsonBuilder& p) {
                         AppendRoleName(p, name);
                         AppendPrivileges(p, "privileges", privileges);
                       });
}

Result<void> ChangeRolesOfRole(CommandContext& ctx, const CommandRequest& req, bool grant) {
  ArgReader in(req);
  const BsonValue given = in.Any("roles");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(RoleName name, ReadRoleName(req));
  MAYFLY_TRY(auto roles, ReadGrantedRoles(req, given));
  if (grant) {
    MAYFLY_TRY(CheckOwnDatabase(name, roles));
  }
  MAYFLY_TRY(UserChange change, UserChange::Begin(ctx));
  MAYFLY_TRY(RoleDocument role, change.Role(name));
  if (grant) {
    MAYFLY_TRY(change.CheckRolesExist(roles));
    MAYFLY_TRY(CheckNoCycle(name, roles, change.reader()));
    AddRoles(role.roles, roles);
    if (role.roles.size() > kMaxRoles)
      return Error{ErrorCode::kBadValue, "a role is made of at most 1,000 roles"};
    MAYFLY_TRY(change.CheckPrivileges(role));
  } else {
    RemoveRoles(role.roles, roles);
  }
  MAYFLY_TRY(change.Store(role));
  return change.Finish(grant ? "grantRolesToRole" : "revokeRolesFromRole", [&](BsonBuilder& p) {
    AppendRoleName(p, name);
    AppendRoleNames(p, "roles", roles);
  });
}

Result<void> GrantPrivileges(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  return ChangePrivileges(ctx, req, true);
}
Result<void> RevokePrivileges(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  return ChangePrivileges(ctx, req, false);
}
Result<void> GrantRolesToRole(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  return ChangeRolesOfRole(ctx, req, true);
}
Result<void> RevokeRolesFromRole(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  return ChangeRolesOfRole(ctx, req, false);
}

}  // namespace

void RegisterRoleCommands(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kWrites | kTakesWriteConcern | kWorker;
  registry.Add({.name = "createRole",
                .flags = kFlags,
                .help = "Makes a role of this database.",
                .run = &CreateRole,
                .privileges = &privileges::CreateRole});
  registry.Add({.name = "updateRole",
                .flags = kFlags,
                .help = "Changes a role: what is given takes the place of what was.",
                .run = &UpdateRole,
                .privileges = &privileges::UpdateRole});
  registry.Add({.name = "dropRole",
                .flags = kFlags,
                .help = "Drops a role, and takes it from whoever has it.",
                .run = &DropRole,
                .privileges = privileges::DropRole});
  registry.Add({.name = "dropAllRolesFromDatabase",
                .flags = kFlags,
                .help = "Drops all roles of this database.",
                .run = &DropAllRoles,
                .privileges = privileges::DropAllRolesFromDatabase});
  registry.Add({.name = "grantPrivilegesToRole",
                .flags = kFlags,
                .help = "Gives privileges to a role.",
                .run = &GrantPrivileges,
                .privileges = &privileges::GrantPrivilegesToRole});
  registry.Add({.name = "revokePrivilegesFromRole",
                .flags = kFlags,
                .help = "Takes privileges from a role.",
                .run = &RevokePrivileges,
                .privileges = &privileges::RevokePrivilegesFromRole});
  registry.Add({.name = "grantRolesToRole",
                .flags = kFlags,
                .help = "Makes roles part of a role.",
                .run = &GrantRolesToRole,
                .privileges = &privileges::GrantRoles});
  registry.Add({.name = "revokeRolesFromRole",
                .flags = kFlags,
                .help = "Takes roles out of a role.",
                .run = &RevokeRolesFromRole,
                .privileges = &privileges::RevokeRoles});
}

}  // namespace mayfly

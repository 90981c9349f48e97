#include <algorithm>
#include <utility>

#include "server/privileges/privileges.h"

namespace mayfly::privileges {

namespace {

constexpr std::string_view kAdmin = "admin";
/// Reading a privilege, of many actions, takes the time of so many names.
constexpr size_t kPrivilegeSteps = 8;

bool OnAllDatabases(const AuthorizationRequest& r, ActionSet actions) {
  return r.privileges.Allows(Resource::Database(""), actions);
}

bool On(const AuthorizationRequest& r, std::string_view db, ActionSet actions) {
  // The resource of all databases has an empty name, which no database has: `admin` stands for it.
  return r.privileges.Allows(db.empty() ? kAdmin : db, {}, actions);
}

/// `actions` on the database of the role, as the command reads its name. What it cannot read it
/// refuses; until then `admin`, where the least is allowed.
bool OnRole(const AuthorizationRequest& r, BsonValue name, ActionSet actions) {
  const Result<RoleName> role = ParseRoleName(name, r.req.db);
  return On(r, role ? std::string_view(role.value().db) : kAdmin, actions);
}

/// Whether `action` is allowed on the database of each role in the array.
bool OnRolesOf(const AuthorizationRequest& r, std::string_view field, ActionSet action) {
  const BsonValue roles = Field(r.req, field);
  if (roles.IsNullish()) return true;
  if (!roles.IsArray()) return On(r, kAdmin, action);
  for (const BsonElement& e : roles.Document())
    if (!ParseWork::Step() || !OnRole(r, e.value, action)) return false;
  return true;
}

/// Whether `action` is allowed on the database of each privilege in the array. `admin` stands for
/// the cluster, and for resources that span several databases.
bool OnPrivilegesOf(const AuthorizationRequest& r, std::string_view field, ActionSet action) {
  const BsonValue privileges = Field(r.req, field);
  if (privileges.IsNullish()) return true;
  if (!privileges.IsArray()) return On(r, kAdmin, action);
  for (const BsonElement& e : privileges.Document()) {
    if (!ParseWork::Step(kPrivilegeSteps)) return false;
    const Result<Privilege> p = ParsePrivilege(e.value);
    // A privilege that cannot be read is refused by the command later. Only users who could grant
    // anything get that far.
    if (!On(r, p ? std::string_view(p.value().resource.db) : kAdmin, action)) return false;
  }
  return true;
}

bool RestrictionsAllowed(const AuthorizationRequest& r) {
  return Field(r.req, "authenticationRestrictions").IsNullish() ||
         On(r, r.req.db, {Action::setAuthenticationRestriction});
}

}  // namespace

Result<void> CreateUser(const AuthorizationRequest& r) {
  return Decide(On(r, r.req.db, {Action::createUser}) &&
                    OnRolesOf(r, "roles", {Action::grantRole}) && RestrictionsAllowed(r),
                r);
}

Result<void> UpdateUser(const AuthorizationRequest& r) {
  const auto has = [&](Action a) { return On(r, r.req.db, {a}); };
  const auto given = [&](std::string_view f) { return !Field(r.req, f).missing(); };
  const bool own = r.user != nullptr && r.user->db == r.req.db && r.user->user == FirstText(r.req);
  bool asked = false;
  bool allowed = true;
  const auto need = [&](bool when, bool what) {
    asked = asked || when;
    allowed = allowed && (!when || what);
  };
  need(given("pwd") || given("mechanisms") || given("digestPassword"),
       has(Action::changePassword) || (own && has(Action::changeOwnPassword)));
  need(given("customData"),
       has(Action::changeCustomData) || (own && has(Action::changeOwnCustomData)));
  need(given("roles"),
       OnAllDatabases(r, {Action::revokeRole}) && OnRolesOf(r, "roles", {Action::grantRole}));
  need(given("authenticationRestrictions"), has(Action::setAuthenticationRestriction));
  // A request without changes is an error; only users who could make changes get that error.
  return Decide(asked ? allowed : has(Action::changePassword), r);
}

namespace {

/// Whether the list is present. An empty list refers to the command's database.
bool Named(const AuthorizationRequest& r, std::string_view field, ActionSet action) {
  const BsonValue list = Field(r.req, field);
  if (list.IsArray() && !list.Document().empty()) return r.user != nullptr;
  return On(r, r.req.db, action);
}

}  // namespace

Result<void> GrantRoles(const AuthorizationRequest& r) {
  constexpr ActionSet kGrant{Action::grantRole};
  return Decide(Named(r, "roles", kGrant) && OnRolesOf(r, "roles", kGrant), r);
}

Result<void> RevokeRoles(const AuthorizationRequest& r) {
  constexpr ActionSet kRevoke{Action::revokeRole};
  return Decide(Named(r, "roles", kRevoke) && OnRolesOf(r, "roles", kRevoke), r);
}

Result<void> CreateRole(const AuthorizationRequest& r) {
  return Decide(On(r, r.req.db, {Action::createRole}) &&
                    OnRolesOf(r, "roles", {Action::grantRole}) &&
                    OnPrivilegesOf(r, "privileges", {Action::grantRole}) && RestrictionsAllowed(r),
                r);
}

Result<void> UpdateRole(const AuthorizationRequest& r) {
  return Decide(OnAllDatabases(r, {Action::revokeRole}) &&
                    OnRolesOf(r, "roles", {Action::grantRole}) &&
                    OnPrivilegesOf(r, "privileges", {Action::grantRole}) && RestrictionsAllowed(r),
                r);
}

Result<void> GrantPrivilegesToRole(const AuthorizationRequest& r) {
  constexpr ActionSet kGrant{Action::grantRole};
  return Decide(Named(r, "privileges", kGrant) && OnPrivilegesOf(r, "privileges", kGrant), r);
}

Result<void> RevokePrivilegesFromRole(const AuthorizationRequest& r) {
  constexpr ActionSet kRevoke{Action::revokeRole};
  return Decide(Named(r, "privileges", kRevoke) && OnPrivilegesOf(r, "privileges", kRevoke), r);
}

namespace {

/// Whether the user named by one part of usersInfo's argument may be shown.
bool MayView(const AuthorizationRequest& r, BsonValue name) {
  if (name.IsDocument() && name.Document().Has("forAllDBs"))
    return OnAllDatabases(r, {Action::viewUser});
  const Result<UserName> user = ParseUserName(name, r.req.db);
  if (!user) return On(r, kAdmin, {Action::viewUser});
  return On(r, user.value().db, {Action::viewUser}) ||
         (r.user != nullptr && user.value() == *r.user && !Given(r.req, "showCredentials"));
}

}  // namespace

Result<void> UsersInfo(const AuthorizationRequest& r) {
  const BsonValue which = r.req.fields.empty() ? BsonValue() : r.req.fields[0].value;
  if (which.IsArray()) {
    for (const BsonElement& e : which.Document())
      if (!ParseWork::Step() || !MayView(r, e.value)) return NotAuthorized(r);
    return LoggedIn(r);
  }
  if (which.IsString() || which.IsDocument()) return Decide(MayView(r, which), r);
  return Decide(On(r, r.req.db, {Action::viewUser}), r);
}

Result<void> RolesInfo(const AuthorizationRequest& r) {
  const BsonValue which = r.req.fields.empty() ? BsonValue() : r.req.fields[0].value;
  const auto view = [&](BsonValue name) {
    if (name.IsDocument() && name.Document().Has("forAllDBs"))
      return OnAllDatabases(r, {Action::viewRole});
    const Result<RoleName> role = ParseRoleName(name, r.req.db);
    if (!role) return On(r, kAdmin, {Action::viewRole});
    // Manual, rolesInfo, "Required Access": those that one was granted oneself need no action.
    return On(r, role.value().db, {Action::viewRole}) ||
           (r.roles != nullptr && std::ranges::binary_search(*r.roles, role.value()));
  };
  if (which.IsArray()) {
    for (const BsonElement& e : which.Document())
      if (!ParseWork::Step() || !view(e.value)) return NotAuthorized(r);
    return LoggedIn(r);
  }
  if (which.IsString() || which.IsDocument()) return Decide(view(which), r);
  return Decide(On(r, r.req.db, {Action::viewRole}), r);
}

}  // namespace mayfly::privileges

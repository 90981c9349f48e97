#include "security/user_document.h"

#include <algorithm>

#include "protocol/base64.h"
#include "protocol/utf8.h"

namespace mayfly {

namespace {

Error Broken(BsonView document, std::string_view what) {
  std::string id;
  if (const BsonValue v = document["_id"]; v.IsString())
    id = PrintableUtf8(v.String().substr(0, 256));
  return {ErrorCode::kUnsupportedFormat,
          "the stored document '" + id + "' cannot be used: " + std::string(what)};
}

/// The text of a field, empty if it has none.
std::string_view Text(BsonView document, std::string_view field) {
  const BsonValue v = document[field];
  return v.IsString() ? v.String() : std::string_view();
}

bool ParseCredential(BsonValue value, ScramMechanism m, std::optional<ScramCredential>& out) {
  if (value.missing()) return true;
  if (!value.IsDocument()) return false;
  const BsonView d = value.Document();
  int64_t iterations = 0;
  ScramCredential c;
  if (!d["iterationCount"].ExactInt64(&iterations) || iterations < 1 ||
      iterations > kMaxScramIterations)
    return false;
  c.iterations = static_cast<int>(iterations);
  if (!DecodeBase64(Text(d, "salt"), c.salt) || !DecodeBase64(Text(d, "storedKey"), c.stored_key) ||
      !DecodeBase64(Text(d, "serverKey"), c.server_key))
    return false;
  const size_t n = DigestSize(ScramHash(m));
  if (c.salt.empty() || c.salt.size() > 1024 || c.stored_key.size() != n ||
      c.server_key.size() != n)
    return false;
  out = std::move(c);
  return true;
}

void AppendCredentials(BsonBuilder& out, const UserDocument& user) {
  BsonBuilder all = out.OpenDocument("credentials");
  if (user.external) {
    all.Append("external", true);
    return;
  }
  for (ScramMechanism m : {ScramMechanism::kSha1, ScramMechanism::kSha256}) {
    const auto& c = user.credential(m);
    if (!c) continue;
    BsonBuilder one = all.OpenDocument(ScramMechanismName(m));
    one.Append("iterationCount", static_cast<int32_t>(c->iterations))
        .Append("salt", Base64(c->salt))
        .Append("storedKey", Base64(c->stored_key))
        .Append("serverKey", Base64(c->server_key));
  }
}

}  // namespace

Result<std::vector<RoleName>> ParseRoleNames(BsonValue value, std::string_view default_db) {
  if (!value.IsArray())
    return Error{ErrorCode::kTypeMismatch,
                 "'roles' must be an array, not " + std::string(BsonTypeName(value.type()))};
  std::vector<RoleName> roles;
  for (const BsonElement& e : value.Document()) {
    if (roles.size() == kMaxRoles)
      return Error{ErrorCode::kBadValue,
                   "at most 1,000 roles can be granted at once: make a role of them"};
    MAYFLY_TRY(auto role, ParseRoleName(e.value, default_db));
    roles.push_back(std::move(role));
  }
  std::sort(roles.begin(), roles.end());
  roles.erase(std::unique(roles.begin(), roles.end()), roles.end());
  return roles;
}

void AppendRoleNames(BsonBuilder& out, std::string_view name, const std::vector<RoleName>& roles) {
  BsonArrayBuilder list = out.OpenArray(name);
  for (const RoleName& r : roles) {
    BsonBuilder one = list.OpenDocument();
    AppendRoleName(one, r);
  }
}

Result<UserDocument> ParseUserDocument(BsonView document) {
  UserDocument u;
  u.name = {std::string(Text(document, "user")), std::string(Text(document, "db"))};
  if (!CheckPrincipalName(u.name.user, "User") || u.name.db.empty())
    return Broken(document, "it needs 'user' and 'db'");
  if (Text(document, "_id") != u.name.Id()) return Broken(document, "its _id is not 'db.user'");
  if (const BsonValue id = document["userId"]; !id.missing()) {
    if (!id.Is(BsonType::kBinary) || id.BinarySubtype() != 4 || id.BinaryData().size() != 16)
      return Broken(document, "userId is no UUID");
    u.id = id.BinaryData();
  }
  const BsonValue credentials = document["credentials"];
  if (!credentials.IsDocument()) return Broken(document, "it has no 'credentials'");
  u.external = credentials.Document()["external"].Truthy();
  if (!ParseCredential(credentials.Document()["SCRAM-SHA-1"], ScramMechanism::kSha1, u.sha1) ||
      !ParseCredential(credentials.Document()["SCRAM-SHA-256"], ScramMechanism::kSha256, u.sha256))
    return Broken(document, "its credentials are no SCRAM credentials");
  auto roles = ParseRoleNames(document["roles"], "");
  if (!roles) return Broken(document, roles.error().message);
  u.roles = std::move(roles.value());
  if (const BsonValue data = document["customData"]; !data.missing()) {
    if (!data.IsDocument()) return Broken(document, "customData is no document");
    u.custom_data = BsonDocument(data.Document());
  }
  if (const BsonValue r = document["authenticationRestrictions"]; !r.missing()) {
    auto restrictions = ParseRestrictions(r);
    if (!restrictions) return Broken(document, restrictions.error().message);
    u.restrictions = std::move(restrictions.value());
  }
  return u;
}

Result<RoleDocument> ParseRoleDocument(BsonView document, RoleParts parts) {
  RoleDocument r;
  r.name = {std::string(Text(document, "role")), std::string(Text(document, "db"))};
  if (!CheckPrincipalName(r.name.role, "Role") || r.name.db.empty())
    return Broken(document, "it needs 'role' and 'db'");
  if (Text(document, "_id") != r.name.Id()) return Broken(document, "its _id is not 'db.role'");
  r.bytes = document.size();
  const BsonValue privileges = document["privileges"];
  if (privileges.IsArray())
    for ([[maybe_unused]] const BsonElement& e : privileges.Document()) ++r.privilege_count;
  if (parts == RoleParts::kAll || !privileges.IsArray()) {
    auto parsed = ParsePrivileges(privileges);
    if (!parsed) return Broken(document, parsed.error().message);
    r.privileges = std::move(parsed.value());
  }
  auto roles = ParseRoleNames(document["roles"], "");
  if (!roles) return Broken(document, roles.error().message);
  r.roles = std::move(roles.value());
  if (const BsonValue v = document["authenticationRestrictions"]; !v.missing()) {
    auto restrictions = ParseRestrictions(v);
    if (!restrictions) return Broken(document, restrictions.error().message);
    r.restrictions = std::move(restrictions.value());
  }
  return r;
}

BsonDocument StoredUser(const UserDocument& user) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("_id", user.name.Id());
    if (!user.id.empty()) b.AppendBinary("userId", 4, user.id);
    AppendUserName(b, user.name);
    AppendCredentials(b, user);
    AppendRoleNames(b, "roles", user.roles);
    if (user.custom_data) b.Append("customData", *user.custom_data);
    if (!user.restrictions.empty())
      AppendRestrictions(b, "authenticationRestrictions", user.restrictions);
  });
}

BsonDocument StoredRole(const RoleDocument& role) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("_id", role.name.Id());
    AppendRoleName(b, role.name);
    AppendPrivileges(b, "privileges", role.privileges);
    AppendRoleNames(b, "roles", role.roles);
    if (!role.restrictions.empty())
      AppendRestrictions(b, "authenticationRestrictions", role.restrictions);
  });
}

void AppendShownUser(BsonBuilder& out, const UserDocument& user, const ShowUser& show) {
  out.Append("_id", user.name.Id());
  if (!user.id.empty()) out.AppendBinary("userId", 4, user.id);
  AppendUserName(out, user.name);
  if (user.custom_data) out.Append("customData", *user.custom_data);
  if (show.credentials) AppendCredentials(out, user);
  AppendRoleNames(out, "roles", user.roles);
  {
    BsonArrayBuilder mechanisms = out.OpenArray("mechanisms");
    if (user.external) mechanisms.Append("external");
    for (ScramMechanism m : {ScramMechanism::kSha1, ScramMechanism::kSha256})
      if (user.credential(m)) mechanisms.Append(ScramMechanismName(m));
  }
  if (show.restrictions) AppendRestrictions(out, "authenticationRestrictions", user.restrictions);
}

}  // namespace mayfly

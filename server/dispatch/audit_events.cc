#include "server/dispatch/audit_events.h"

#include <algorithm>

#include "query/expression/parse_work.h"
#include "security/user_cache.h"
#include "server/access/stored_users.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

constexpr std::string_view kLeftOut = "...";

bool IsOfUsers(std::string_view collection) {
  return collection == kUsersCollection || collection == kRolesCollection;
}

/// Commands whose first field is the name of a user or a role.
constexpr std::string_view kOfPrincipals[] = {
    "createRole",
    "createUser",
    "dropRole",
    "dropUser",
    "grantPrivilegesToRole",
    "grantRolesToRole",
    "grantRolesToUser",
    "revokePrivilegesFromRole",
    "revokeRolesFromRole",
    "revokeRolesFromUser",
    "rolesInfo",
    "updateRole",
    "updateUser",
    "usersInfo",
};
static_assert(std::ranges::is_sorted(kOfPrincipals));

/// The collection that a command is about, where its first field names one. `name`: of the
/// command; `fields`: what it has, or what the command has that it explains.
template <class Fields>
std::string AuditedNamespace(std::string_view name, std::string_view db, const Fields& fields) {
  BsonValue named;
  for (const auto& f : fields) {
    if (name == "getMore" ? f.name == "collection" : true) {
      named = f.value;
      break;
    }
  }
  if (!named.IsString()) return {};
  // "db.coll" already.
  if (name == "renameCollection" || name == "dataSize") return std::string(named.String());
  if (std::ranges::binary_search(kOfPrincipals, name)) return {};
  return JoinNamespace(db, named.String());  // check_names: a value in an entry
}

std::string AuditedNamespace(const CommandRow& row, const CommandRequest& req) {
  const BsonValue first = req.fields[0].value;
  if (row.name == "explain" && first.IsDocument() && !first.Document().empty())
    return AuditedNamespace(first.Document().First().name, req.db, first.Document());
  if ((row.flags & kAdminOnly) != 0 && row.name != "renameCollection") return {};
  return AuditedNamespace(row.name, req.db, req.fields);
}

void AppendCheck(CommandContext& ctx, const CommandRow& row, const CommandRequest& req,
                 BsonBuilder& p) {
  p.Append("command", row.name);
  if (const std::string ns = AuditedNamespace(row, req); !ns.empty())
    p.Append("ns", std::string_view(ns).substr(0, kMaxAuditValue));
  BsonBuilder args = p.OpenDocument("args");
  AppendAuditArguments(ctx.server.has_storage() ? &ctx.server.storage().catalog() : nullptr, req,
                       args);
}

}  // namespace

/// applyOps tells of its own writes: its entries name collections by UUID as well.
Result<UsersCollections> UsersWritten(const CommandRow& row, const CommandRequest& req) {
  UsersCollections written;
  if (req.db != kUsersDatabase || req.fields.empty()) return written;
  const auto note = [&](std::string_view collection) {
    written.users = written.users || collection == kUsersCollection;
    written.roles = written.roles || collection == kRolesCollection;
  };
  const auto look = [&](BsonView of) {
    const BsonValue ns = of["ns"];
    if (!ns.IsString()) return;
    const NamespaceParts parts = SplitNamespace(ns.String());  // check_names: of two
    if (parts.db == kUsersDatabase) note(parts.collection);
  };
  if (row.name == "bulkWrite") {
    if (const DocumentSequence* s = req.Sequence("nsInfo"))
      for (const BsonView d : s->documents) {
        MAYFLY_TRY(ParseWork::Step());
        look(d);
      }
    for (const CommandField& f : req.fields) {
      if (f.name != "nsInfo" || !f.value.IsArray()) continue;
      for (const BsonElement& e : f.value.Document()) {
        MAYFLY_TRY(ParseWork::Step());
        if (e.value.IsDocument()) look(e.value.Document());
      }
    }
  } else if (row.name == "insert" || row.name == "update" || row.name == "delete" ||
             row.name == "findAndModify" || row.name == "touch" || row.name == "persist" ||
             row.name == "ttlRecover") {
    // Also a deadline is written: with one, a user goes by himself.
    const BsonValue first = req.fields[0].value;
    if (first.IsString()) note(first.String());
  }
  return written;
}

void AppendAuditValue(BsonBuilder& out, std::string_view name, BsonValue value) {
  if (value.size() > kMaxAuditValue)
    out.Append(name, kLeftOut);
  else
    out.Append(name, value);
}

void AppendAuditArguments(Catalog* catalog, const CommandRequest& req, BsonBuilder& out) {
  size_t room = kMaxAuditArguments;
  const std::vector<Uuid> uuids =
      catalog != nullptr ? CredentialUuids(*catalog) : std::vector<Uuid>();
  const ShownCommand shown(req.body, {.sequences = &req.sequences, .uuids = uuids});
  for (const CommandField& f : req.fields) {
    if (f.name == "lsid" || f.name == "$clusterTime" || f.name == "$readPreference") continue;
    if (f.value.size() + f.name.size() > room || f.name.size() > kMaxAuditValue) {
      out.Append("$truncated", true);
      return;
    }
    if (f.value.size() > kMaxAuditValue) {
      out.Append(f.name, IsHidden({f.name, f.value}) ? kRedacted : kLeftOut);
    } else {
      shown.Append({f.name, f.value}, out);
      room -= f.value.size() + f.name.size();
    }
  }
  for (const DocumentSequence& s : req.sequences) {
    size_t bytes = 0;
    for (const BsonView d : s.documents)
      if ((bytes += d.size()) > kMaxAuditValue) break;
    if (bytes > kMaxAuditValue || bytes > room) {
      out.Append(s.name.substr(0, kMaxAuditValue), kLeftOut);
      continue;
    }
    room -= bytes;
    BsonArrayBuilder list = out.OpenArray(s.name);
    for (const BsonView d : s.documents) shown.AppendDocument(s.name, d, list);
  }
}

Result<void> AuditAllowedCommand(CommandContext& ctx, const CommandRow& row,
                                 const CommandRequest& req, UsersCollections written) {
  AuditLog* log = ctx.server.audit();
  if (log == nullptr) return Ok();
  MAYFLY_TRY(CheckAudit(ctx.server, row.name));
  if (written.any()) {
    MAYFLY_TRY(CheckAudit(ctx.server));
  }
  // Commands open to everybody are not checked.
  if (!log->all_checks() || (row.flags & kNoAuth) != 0) return Ok();
  log->Write(&ctx, "authCheck", [&](BsonBuilder& p) { AppendCheck(ctx, row, req, p); });
  return CheckAudit(ctx.server);
}

void AuditRefusedCommand(CommandContext& ctx, const CommandRow* row, const CommandRequest& req,
                         ErrorCode code) {
  AuditLog* log = ctx.server.audit();
  if (log == nullptr || row == nullptr || req.fields.empty()) return;
  const bool anonymous = ctx.access == nullptr || ctx.access->user.name.user.empty();
  if (anonymous && !log->AdmitAnonymous()) return;
  log->WriteRefused(
      AuditActor::Of(&ctx), [&](BsonBuilder& p) { AppendCheck(ctx, *row, req, p); }, code);
}

void AuditDirectMutation(CommandContext& ctx, const CommandRow& row, UsersCollections written,
                         ErrorCode result) {
  if (written.users) AuditDirectWrite(ctx, kUsersDatabase, kUsersCollection, row.name, result);
  if (written.roles) AuditDirectWrite(ctx, kUsersDatabase, kRolesCollection, row.name, result);
}

void AuditDirectWrite(CommandContext& ctx, std::string_view db, std::string_view collection,
                      std::string_view operation, ErrorCode result) {
  if (db != kUsersDatabase || !IsOfUsers(collection) || ctx.server.audit() == nullptr) return;
  // Not the documents: credentials are among what was written.
  Audit(
      ctx, "directAuthMutation",
      [&](BsonBuilder& p) {
        p.Append("ns", JoinNamespace(db, collection));  // check_names: one of two
        p.Append("operation", operation);
      },
      result);
}

bool ConfiguresAudit(std::string_view parameter) {
  return parameter == "auditFilter" || parameter == "auditAuthorizationSuccess" ||
         parameter == "auditFailClosed" || parameter == "auditRefusedPerMinute";
}

BsonDocument AuditConfiguration(ServerContext& server) {
  return BuildBson([&](BsonBuilder& b) {
    AuditLog* log = server.audit();
    b.Append("filter", log != nullptr ? log->filter() : BsonDocument());
    b.Append("auditAuthorizationSuccess", log != nullptr && log->all_checks());
    b.Append("auditFailClosed", server.settings().audit_fail_closed.load());
    b.Append("auditRefusedPerMinute", server.settings().audit_refused_per_minute.load());
  });
}

void AuditConfigured(CommandContext& ctx, BsonView previous, BsonView config) {
  if (AuditLog* log = ctx.server.audit())
    log->WriteAlways(AuditActor::Of(&ctx), "auditConfigure", [&](BsonBuilder& p) {
      p.Append("previous", previous).Append("config", config);
    });
}

}  // namespace mayfly

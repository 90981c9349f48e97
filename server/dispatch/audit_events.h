#pragma once
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"

namespace mayfly {

class Catalog;

/// Of the collections of users and of roles.
struct UsersCollections {
  bool users = false, roles = false;
  bool any() const { return users || roles; }
};
/// Those that the command writes to as such. Looks through the names of a bulkWrite; cheap where
/// the database is not admin. Errors: those of ParseWork::Step, for who has not seen all names does
/// not know.
Result<UsersCollections> UsersWritten(const CommandRow& row, const CommandRequest& req);

/// Before an allowed command, while AuditLog::watches_commands: writes authCheck, and refuses the
/// command if the entry cannot be written. `written`: UsersWritten. Errors: OperationFailed 96.
Result<void> AuditAllowedCommand(CommandContext& ctx, const CommandRow& row,
                                 const CommandRequest& req, UsersCollections written);

/// authCheck of a command that was refused as not authorized. `row`: null if there is none.
void AuditRefusedCommand(CommandContext& ctx, const CommandRow* row, const CommandRequest& req,
                         ErrorCode code);

/// directAuthMutation: a command has written to the collections of users and roles as such
/// (UsersWritten), and has ended with `result`.
void AuditDirectMutation(CommandContext& ctx, const CommandRow& row, UsersCollections written,
                         ErrorCode result);
/// The same of one write, where only the command knows what it has written to. Looks whether the
/// collection is one of these.
void AuditDirectWrite(CommandContext& ctx, std::string_view db, std::string_view collection,
                      std::string_view operation, ErrorCode result);

/// {previous: …, config: …}: auditFilter, auditAuthorizationSuccess or auditFailClosed was set. Its
/// entry is written whatever the filter says.
void AuditConfigured(CommandContext& ctx, BsonView previous, BsonView config);
/// Whether a parameter is one of these.
bool ConfiguresAudit(std::string_view parameter);
/// What these are now.
BsonDocument AuditConfiguration(ServerContext& server);

/// The part of a command for an entry: no secrets, no session, and long values only as a mark. At
/// most about 20 kB. `catalog`: where collections are known by their UUIDs; null for none.
inline constexpr size_t kMaxAuditValue = 4 * 1024, kMaxAuditArguments = 16 * 1024;
void AppendAuditArguments(Catalog* catalog, const CommandRequest& req, BsonBuilder& out);
/// A value that fits (kMaxAuditValue), or "...".
void AppendAuditValue(BsonBuilder& out, std::string_view name, BsonValue value);

}  // namespace mayfly

#pragma once
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// Before an allowed command, while AuditLog::watches_commands: writes authCheck, and refuses the
/// command if the entry cannot be written. Errors: OperationFailed 96.
Result<void> AuditAllowedCommand(CommandContext& ctx, const CommandRow& row,
                                 const CommandRequest& req);

/// authCheck of a command that was refused as not authorized. `row`: null if there is none.
void AuditRefusedCommand(CommandContext& ctx, const CommandRow* row, const CommandRequest& req,
                         ErrorCode code);

/// directAuthMutation: a command has written to the collections of users and roles as such, and has
/// ended with `result`. Looks whether it is one that does; cheap where the database is another one.
void AuditDirectMutation(CommandContext& ctx, const CommandRow& row, const CommandRequest& req,
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
/// most about 20 kB.
inline constexpr size_t kMaxAuditValue = 4 * 1024, kMaxAuditArguments = 16 * 1024;
void AppendAuditArguments(const CommandRequest& req, BsonBuilder& out);
/// A value that fits (kMaxAuditValue), or "...".
void AppendAuditValue(BsonBuilder& out, std::string_view name, BsonValue value);

}  // namespace mayfly

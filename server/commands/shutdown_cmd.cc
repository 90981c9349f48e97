#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

Result<void> Shutdown(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const bool force = in.LooseBoolOr("force", false);
  in.NonNegativeOr("timeoutSecs", 15);  // unused: a primary hands over, with a limit of its own
  MAYFLY_TRY(in.Finish());
  // As on MongoDB: without access control, only who is on the machine may stop the server.
  if (ctx.access == nullptr && ctx.connection != nullptr && !ctx.connection->FromThisMachine())
    return Error{ErrorCode::kUnauthorized,
                 "shutdown must run from localhost when running db without auth"};
  ctx.data.log().Write(LogSeverity::kInfo, LogComponent::kCommand, 4695400,
                       "Shutdown command received",
                       BuildBson([&](BsonBuilder& b) { b.Append("force", force); }));
  Audit(ctx, "shutdown", [](BsonBuilder&) {});
  ctx.server.RequestShutdown(force);
  return Ok();
}

}  // namespace

void RegisterShutdown(CommandRegistry& registry) {
  registry.Add({.name = "shutdown",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Finishes running operations and stops the server.",
                .run = &Shutdown,
                .privileges = &privileges::OnCluster<Action::shutdown>});
}

}  // namespace mayfly

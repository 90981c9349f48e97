#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"
#include "server/dispatch/config.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

Result<void> GetLog(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  const BsonValue v = req.fields[0].value;
  if (!v.IsString())
    return Error{ErrorCode::kTypeMismatch, "Argument to getLog must be of type String; found " +
                                               std::string(BsonTypeName(v.type()))};
  const std::string_view name = v.String();
  if (name == "*") {
    BsonArrayBuilder names = reply.OpenArray("names");
    names.Append("global").Append("startupWarnings");
    return Ok();
  }
  std::vector<std::string> lines;
  size_t total = 0;
  if (name == "global") {
    lines = ctx.data.log().RecentLines(&total);
  } else if (name == "startupWarnings") {
    lines = ctx.data.log().StartupWarnings();
    total = lines.size();
  } else {
    return Error{ErrorCode::kOperationFailed, "No log named '" + std::string(name) + "'"};
  }
  reply.Append("totalLinesWritten", static_cast<int32_t>(total));
  BsonArrayBuilder log = reply.OpenArray("log");
  for (const std::string& line : lines) log.Append(line);
  return Ok();
}

/// {logRotate: 1}: all there are; "server" or "audit": that one (manual "logRotate").
Result<void> LogRotate(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  const BsonValue v = req.fields[0].value;
  const std::string_view type = v.IsString() ? v.String() : "";
  if (v.IsString() && type != "server" && type != "audit")
    return Error{ErrorCode::kBadValue,
                 "Unknown log type '" + std::string(type) + "': there are 'server' and 'audit'"};
  if (!v.IsString() && !v.IsNumber())
    return Error{ErrorCode::kTypeMismatch, "logRotate takes 1, 'server' or 'audit'"};
  const bool server = !ctx.server.config().log.path.empty(),
             audit = ctx.server.config().audit.destination == AuditDestination::kFile;
  if (type == "server" ? !server : type == "audit" ? !audit : !server && !audit)
    return Error{ErrorCode::kIllegalOperation,
                 type == "audit" ? "there is no audit log to rotate"
                                 : "the log goes to standard output, there is no file to rotate"};
  if (server && type != "audit") {
    MAYFLY_TRY(ctx.data.log().Rotate());
  }
  if (audit && type != "server") {
    MAYFLY_TRY(ctx.server.audit()->Rotate(&ctx));
  }
  return Ok();
}

Result<void> GetCmdLineOpts(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  {
    BsonArrayBuilder argv = reply.OpenArray("argv");
    for (const std::string& a : ctx.server.config().shown_argv) argv.Append(a);
  }
  reply.Append("parsed", ctx.server.config().parsed);
  return Ok();
}

}  // namespace

void RegisterGetLog(CommandRegistry& registry) {
  registry.Add(
      {.name = "getLog",
       .flags = kAdminOnly | kSecondaryOk,
       .help = "Recent lines of the log: 'global', 'startupWarnings', or '*' for the names.",
       .run = &GetLog,
       .privileges = &privileges::OnCluster<Action::getLog>});
}

void RegisterLogRotate(CommandRegistry& registry) {
  registry.Add({.name = "logRotate",
                .flags = kAdminOnly | kSecondaryOk | kWorker,
                .help = "Starts new log files: 1, 'server' or 'audit'.",
                .run = &LogRotate,
                .privileges = &privileges::OnCluster<Action::logRotate>});
}

void RegisterGetCmdLineOpts(CommandRegistry& registry) {
  registry.Add({.name = "getCmdLineOpts",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "The command line and configuration file, as given and as understood.",
                .run = &GetCmdLineOpts,
                .privileges = &privileges::OnCluster<Action::getCmdLineOpts>});
}

}  // namespace mayfly

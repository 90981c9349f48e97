#include "server/arg_reader.h"
#include "server/command.h"
#include "server/config.h"
#include "server/server_context.h"

namespace mayfly {

namespace {

Result<void> GetLog(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
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
    lines = ctx.server.log().RecentLines(&total);
  } else if (name == "startupWarnings") {
    lines = ctx.server.log().StartupWarnings();
    total = lines.size();
  } else {
    return Error{ErrorCode::kOperationFailed, "No log named '" + std::string(name) + "'"};
  }
  reply.Append("totalLinesWritten", static_cast<int32_t>(total));
  BsonArrayBuilder log = reply.OpenArray("log");
  for (const std::string& line : lines) log.Append(line);
  return Ok();
}

Result<void> LogRotate(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  const BsonValue v = req.fields[0].value;
  if (v.IsString() && v.String() != "server")
    return Error{ErrorCode::kBadValue,
                 "Unknown log type '" + std::string(v.String()) + "': there is only 'server'"};
  if (ctx.server.config().log.path.empty())
    return Error{ErrorCode::kIllegalOperation,
                 "the log goes to standard output, there is no file to rotate"};
  return ctx.server.log().Rotate();
}

Result<void> GetCmdLineOpts(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  {
    BsonArrayBuilder argv = reply.OpenArray("argv");
    for (const std::string& a : ctx.server.config().argv) argv.Append(a);
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
       .run = &GetLog});
}

void RegisterLogRotate(CommandRegistry& registry) {
  registry.Add({.name = "logRotate",
                .flags = kAdminOnly | kSecondaryOk | kWorker,
                .help = "Starts a new log file.",
                .run = &LogRotate});
}

void RegisterGetCmdLineOpts(CommandRegistry& registry) {
  registry.Add({.name = "getCmdLineOpts",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "The command line and configuration file, as given and as understood.",
                .run = &GetCmdLineOpts});
}

}  // namespace mayfly

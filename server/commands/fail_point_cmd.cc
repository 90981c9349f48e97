#include "server/arg_reader.h"
#include "server/command.h"
#include "server/fail_points.h"
#include "server/server_context.h"

namespace mayfly {

namespace {

Result<void> ConfigureFailPoint(CommandContext& ctx, const CommandRequest& req,
                                BsonBuilder& reply) {
  ArgReader in(req);
  const std::string_view name = in.String("configureFailPoint");
  const BsonValue mode = in.Any("mode");
  const BsonView data = in.DocumentOr("data");
  MAYFLY_TRY(in.Finish());
  if (mode.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field 'configureFailPoint.mode' is missing but a required field"};
  MAYFLY_TRY(int64_t met, ctx.server.fail_points().Configure(name, mode, data));
  ctx.server.log().Write(
      LogSeverity::kWarning, LogComponent::kControl, 23829, "Set failpoint",
      BuildBson([&](BsonBuilder& b) { b.Append("failPointName", name).Append("mode", mode); }));
  reply.Append("count", met);
  return Ok();
}

/// testDeprecation and testVersion2 exist to be refused: MongoDB's commands for tests of the Stable
/// API.
Result<void> Nothing(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  in.Any(req.name);
  return in.Finish();
}

}  // namespace

void RegisterFailPoint(CommandRegistry& registry) {
  registry.Add({.name = "configureFailPoint",
                .flags = kAdminOnly | kNoAuth | kSecondaryOk | kTestCommand,
                .help = "Makes commands fail on purpose (with enableTestCommands).",
                .run = &ConfigureFailPoint});
  registry.Add({.name = "testDeprecation",
                .flags = kSecondaryOk | kTestCommand | kApiV1 | kDeprecatedInV1,
                .help = "Does nothing; deprecated in API version 1 (with enableTestCommands).",
                .run = &Nothing});
  registry.Add({.name = "testVersion2",
                .flags = kSecondaryOk | kTestCommand,
                .help = "Does nothing; not in API version 1 (with enableTestCommands).",
                .run = &Nothing});
}

}  // namespace mayfly

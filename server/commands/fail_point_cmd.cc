#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/fail_points.h"
#include "server/privileges/privileges.h"

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
  MAYFLY_TRY(FailPoints::Configured done, ctx.data.fail_points().Configure(name, mode, data));
  ctx.data.log().Write(LogSeverity::kWarning, LogComponent::kControl, 23829, "Set failpoint",
                       BuildBson([&](BsonBuilder& b) {
                         b.Append("failPointName", name).Append("mode", mode);
                         if (done.ignored.empty()) return;
                         auto ignored = b.OpenArray("ignoredDataFields");
                         for (const std::string& field : done.ignored) ignored.Append(field);
                       }));
  reply.Append("count", done.entered);
  return Ok();
}

/// Returns when a fail point has been entered that many times; maxTimeMS, which it must have, ends
/// it with 50 before (https://github.com/mongodb/mongo/wiki/The-failCommand-fail-point).
Awaitable<Result<void>> WaitForFailPoint(CommandContext& ctx, const CommandRequest& req,
                                         BsonBuilder&) {
  constexpr int64_t kPollMicros = 2000;
  ArgReader in(req);
  const std::string_view name = in.String("waitForFailPoint");
  const int64_t times = in.Int64("timesEntered");
  MAYFLY_CO_TRY(in.Finish());
  if (req.generic.max_time_ms == 0)
    co_return Error{ErrorCode::kMissingField,
                    "BSON field 'waitForFailPoint.maxTimeMS' is missing but a required field"};
  for (;;) {
    MAYFLY_CO_TRY(const int64_t entered, ctx.data.fail_points().Entered(name));
    if (entered >= times) co_return Ok();
    MAYFLY_CO_TRY(co_await ctx.SleepUntil(ctx.data.clock().MonotonicMicros() + kPollMicros));
  }
}

/// testDeprecation and testVersion2 exist to be refused: MongoDB's commands for tests of the Stable
/// API.
Result<void> Nothing(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  in.Any(req.name);  // unused: the command's name
  return in.Finish();
}

}  // namespace

void RegisterFailPoint(CommandRegistry& registry) {
  registry.Add({.name = "configureFailPoint",
                .flags = kAdminOnly | kSecondaryOk | kTestCommand,
                .help = "Makes commands fail on purpose (with enableTestCommands).",
                .run = &ConfigureFailPoint,
                .privileges = &privileges::OnCluster<Action::setParameter>});
  registry.Add({.name = "waitForFailPoint",
                .flags = kAdminOnly | kSecondaryOk | kTestCommand,
                .help = "Waits until a fail point has been entered (with enableTestCommands).",
                .run_async = &WaitForFailPoint,
                .privileges = &privileges::OnCluster<Action::setParameter>});
  registry.Add({.name = "testDeprecation",
                .flags = kSecondaryOk | kTestCommand | kApiV1 | kDeprecatedInV1,
                .help = "Does nothing; deprecated in API version 1 (with enableTestCommands).",
                .run = &Nothing,
                .privileges = &privileges::LoggedIn});
  registry.Add({.name = "testVersion2",
                .flags = kSecondaryOk | kTestCommand,
                .help = "Does nothing; not in API version 1 (with enableTestCommands).",
                .run = &Nothing,
                .privileges = &privileges::LoggedIn});
}

}  // namespace mayfly

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

Result<void> RunTop(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  BsonBuilder totals = reply.OpenDocument("totals");
  totals.Append("note", "all times in microseconds");
  ctx.data.top().Append(totals);
  return Ok();
}

}  // namespace

void RegisterTop(CommandRegistry& registry) {
  registry.Add({.name = "top",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Time and count of operations by namespace.",
                .run = &RunTop,
                .privileges = &privileges::OnCluster<Action::top>});
}

}  // namespace mayfly

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

namespace {

Result<void> RunTop(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  BsonBuilder totals = reply.OpenDocument("totals");
  totals.Append("note", "all times in microseconds");
  ctx.server.top().Append(totals);
  return Ok();
}

}  // namespace

void RegisterTop(CommandRegistry& registry) {
  registry.Add({.name = "top",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Time and count of operations by namespace.",
                .run = &RunTop});
}

}  // namespace mayfly

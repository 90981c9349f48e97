#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

/// For monitoring tools. Members use dedicated links, which `replSetGetStatus` shows, so no pool
/// keeps a connection to another server.
Result<void> ConnPoolStats(CommandContext&, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  for (std::string_view count :
       {"numClientConnections", "numAScopedConnections", "totalInUse", "totalAvailable",
        "totalLeased", "totalCreated", "totalRefreshing", "totalRefreshed"})
    reply.Append(count, 0);
  reply.OpenDocument("pools").Done();
  reply.OpenDocument("hosts").Done();
  reply.OpenDocument("replicaSets").Done();
  return Ok();
}

}  // namespace

void RegisterConnPoolStats(CommandRegistry& registry) {
  registry.Add({.name = "connPoolStats",
                .flags = kSecondaryOk,
                .help = "Connections to other servers that are kept in pools: none.",
                .run = &ConnPoolStats,
                .privileges = &privileges::OnCluster<Action::connPoolStats>});
}

}  // namespace mayfly

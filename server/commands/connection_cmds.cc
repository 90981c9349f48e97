#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"

namespace mayfly {

namespace {

Result<void> WhatsMyUri(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  reply.Append("you", ctx.connection ? ctx.connection->remote() : std::string());
  return Ok();
}

Result<void> ConnectionStatus(CommandContext&, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const bool privileges = in.LooseBoolOr("showPrivileges", false);
  MAYFLY_TRY(in.Finish());
  // Nobody can log in: there is no access control.
  BsonBuilder info = reply.OpenDocument("authInfo");
  info.OpenArray("authenticatedUsers").Done();
  info.OpenArray("authenticatedUserRoles").Done();
  if (privileges) info.OpenArray("authenticatedUserPrivileges").Done();
  return Ok();
}

}  // namespace

void RegisterWhatsMyUri(CommandRegistry& registry) {
  registry.Add({.name = "whatsmyuri",
                .flags = kNoAuth | kSecondaryOk,
                .help = "The client's address as the server sees it.",
                .run = &WhatsMyUri});
}

void RegisterConnectionStatus(CommandRegistry& registry) {
  registry.Add({.name = "connectionStatus",
                .flags = kNoAuth | kSecondaryOk | kApiV1,
                .help = "Who is logged in on this connection.",
                .run = &ConnectionStatus});
}

}  // namespace mayfly

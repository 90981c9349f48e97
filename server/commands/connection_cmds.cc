#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"

namespace mayfly {

namespace {

Result<void> WhatsMyUri(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  reply.Append("you", ctx.connection ? ctx.connection->remote() : std::string());
  return Ok();
}

/// On a worker: it shows the user as it is now.
Result<void> ConnectionStatus(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const bool privileges = in.LooseBoolOr("showPrivileges", false);
  MAYFLY_TRY(in.Finish());
  UserAccessPtr access;
  if (ctx.connection != nullptr && ctx.connection->login.access != nullptr) {
    MAYFLY_TRY(ctx.connection->RefreshLogin(ctx));
    access = ctx.connection->login.access;
  }
  BsonBuilder info = reply.OpenDocument("authInfo");
  {
    BsonArrayBuilder users = info.OpenArray("authenticatedUsers");
    if (access != nullptr) {
      BsonBuilder one = users.OpenDocument();
      AppendUserName(one, access->user.name);
    }
  }
  const UserAccess& shown = access != nullptr ? *access : NobodysAccess();
  AppendRoleNames(info, "authenticatedUserRoles", shown.roles.roles);
  if (privileges) {
    AppendPrivileges(info, "authenticatedUserPrivileges", shown.roles.privileges);
    if (!shown.roles.left_out.empty())
      AppendRoleNames(info, "authenticatedUserRolesLeftOut", shown.roles.left_out);
  }
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
                .flags = kNoAuth | kSecondaryOk | kApiV1 | kWorker,
                .help = "Who is logged in on this connection.",
                .run = &ConnectionStatus});
}

}  // namespace mayfly

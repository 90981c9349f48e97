#include <algorithm>

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

namespace {

Result<void> ListCommands(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  std::vector<const CommandRow*> rows;
  for (const CommandRow& r : ctx.server.commands().rows())
    if (!(r.flags & kHidden) &&
        (!(r.flags & kTestOnly) || ctx.server.config_allows_test_commands()) &&
        (!(r.flags & kTestCommand) || ctx.data.settings().enable_test_commands))
      rows.push_back(&r);
  std::sort(rows.begin(), rows.end(), [](auto* a, auto* b) { return a->name < b->name; });
  BsonBuilder commands = reply.OpenDocument("commands");
  for (const CommandRow* r : rows) {
    BsonBuilder c = commands.OpenDocument(r->name);
    c.Append("help", r->help).Append("requiresAuth", !(r->flags & kNoAuth));
    c.Append("secondaryOk", (r->flags & kSecondaryOk) != 0)
        .Append("adminOnly", (r->flags & kAdminOnly) != 0);
    BsonArrayBuilder versions = c.OpenArray("apiVersions");
    if (r->flags & kApiV1) versions.Append("1");
    versions.Done();
    c.OpenArray("deprecatedApiVersions").Done();
  }
  return Ok();
}

}  // namespace

void RegisterListCommands(CommandRegistry& registry) {
  registry.Add({.name = "listCommands",
                .flags = kNoAuth | kSecondaryOk,
                .help = "Every command with its facts.",
                .run = &ListCommands});
}

}  // namespace mayfly

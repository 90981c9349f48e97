#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"

namespace mayfly {

namespace {
Result<void> Ping(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  return NoArguments(req);
}
}  // namespace

void RegisterPing(CommandRegistry& registry) {
  registry.Add({.name = "ping",
                .flags = kNoAuth | kSecondaryOk | kApiV1,
                .help = "Answers; for checking that the server is there.",
                .run = &Ping});
}

}  // namespace mayfly

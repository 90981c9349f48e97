#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "security/user_cache.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// The context for HTTP code that runs a command without a connection. `origin` lives as long.
struct LocalOperation {
  LocalOperation(ServerContext& server, IoExecutor io, const HttpOrigin* origin,
                 UserAccessPtr access = nullptr);
  LocalOperation(const LocalOperation&) = delete;

  Operation op;
  OperationReport report;
  CommandContext ctx;
};

/// Runs a command of the command table for the HTTP endpoint, without a connection: same code, same
/// errors, same place in the profiler as a client's. The body needs no `$db`. What may take long
/// runs on a worker thread; the coroutine comes back on `io`. The reply carries no `ok`.
/// Errors: CommandNotFound 59, and whatever the command answers.
Awaitable<Result<BsonDocument>> RunLocalCommand(ServerContext& server, IoExecutor io,
                                                std::string_view db, BsonDocument command,
                                                const HttpOrigin* origin = nullptr,
                                                UserAccessPtr access = nullptr);

}  // namespace mayfly

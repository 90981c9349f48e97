#include "server/http/local_command.h"

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

namespace {
constexpr int64_t kMaxMicros = 10'000'000;  // nobody waits longer for a page
}

Awaitable<Result<BsonDocument>> RunLocalCommand(ServerContext& server, IoExecutor io,
                                                std::string_view db, BsonDocument command,
                                                const HttpOrigin* origin) {
  CommandRequest request;
  auto parsed = ParseCommandFields(command.view(), &request);
  if (!parsed) co_return parsed.error();
  request.db = db;
  const CommandRow* row = server.commands().Find(request.name);
  if (row == nullptr)
    co_return Error{ErrorCode::kCommandNotFound,
                    "no such command: '" + std::string(request.name) + "'"};
  if (server.shutting_down())
    co_return Error{ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"};
  Operation op(server.clock(), server.operations().NextOperationId());
  op.deadline_micros = server.clock().MonotonicMicros() + kMaxMicros;
  OperationReport report;
  CommandContext ctx{.server = server,
                     .op = op,
                     .connection = nullptr,
                     .io = io,
                     .http = origin,
                     .report = report};
  std::string bytes;
  Result<void> result = Ok();
  {
    BsonBuilder reply(bytes);
    if (row->run == nullptr) {
      if (row->flags & kWorker) co_await ctx.MoveToWorker();
      result = co_await row->run_async(ctx, request, reply);
    } else {
      // Reading status may walk a catalog or an index: never on the thread that serves sockets.
      co_await ctx.MoveToWorker();
      result = row->run(ctx, request, reply);
    }
    if (ctx.on_worker) co_await ctx.MoveToIo();
    reply.Done();
  }
  if (!result) co_return std::move(result).error();
  co_return BsonDocument(BsonView(bytes.data()));
}

}  // namespace mayfly

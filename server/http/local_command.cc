#include "server/http/local_command.h"

#include "server/access/login.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/authorization.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

namespace {
constexpr int64_t kMaxMicros = 10'000'000;  // nobody waits longer for a page
}

LocalOperation::LocalOperation(ServerContext& server, IoExecutor io, const HttpOrigin* origin,
                               UserAccessPtr access)
    : op(server.clock(), server.operations().NextOperationId()),
      ctx{.data = server,
          .expiry = server,
          .server = server,
          .op = op,
          .connection = nullptr,
          .io = io,
          .http = origin,
          .report = report} {
  if (access != nullptr) RunFor(op, std::move(access));
}

Awaitable<Result<BsonDocument>> RunLocalCommand(ServerContext& server, IoExecutor io,
                                                std::string_view db, BsonDocument command,
                                                const HttpOrigin* origin, UserAccessPtr access) {
  CommandRequest request;
  auto parsed = ParseCommandFields(command.view(), &request, db);
  if (!parsed) co_return parsed.error();
  const CommandRow* row = server.commands().Find(request.name);
  if (row == nullptr)
    co_return Error{ErrorCode::kCommandNotFound,
                    "no such command: '" + std::string(request.name) + "'"};
  if (access != nullptr) {
    if (row->privileges == nullptr) co_return Error{ErrorCode::kUnauthorized, "not authorized"};
  }
  if (server.shutting_down())
    co_return Error{ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"};
  LocalOperation local(server, io, origin, access);
  local.op.deadline_micros = server.clock().MonotonicMicros() + kMaxMicros;
  CommandContext& ctx = local.ctx;
  if (access != nullptr) {
    const Result<void> allowed =
        row->privileges({request, access->privileges, &access->user.name, &access->user.roles});
    if (!allowed) {
      AuditRefusedCommand(ctx, row, request, allowed.error().code);
      co_return allowed.error();
    }
  }
  // The page's own requests are no user's actions.
  if (origin != nullptr && server.audit() != nullptr && server.audit()->watches_commands()) {
    MAYFLY_CO_TRY(const UsersCollections written, UsersWritten(*row, request));
    MAYFLY_CO_TRY(AuditAllowedCommand(ctx, *row, request, written));
  }
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

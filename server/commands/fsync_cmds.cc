#include <boost/asio/use_awaitable.hpp>

#include "protocol/micros.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

/// Operations that write and began before the lock.
int RunningWrites(ServerContext& server) {
  int n = 0;
  server.operations().ForEach([&](const ClientSlot::View& v) {
    if (v.op == nullptr || v.waiting) return;
    const CommandRow* row = server.commands().Find(v.command_name);
    if (v.writes || (row != nullptr && (row->flags & kWrites))) ++n;
  });
  return n;
}

Awaitable<Result<void>> Fsync(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const bool lock = in.LooseBoolOr("lock", false);
  const int64_t timeout = in.NonNegativeOr("fsyncLockAcquisitionTimeoutMillis", 90'000);
  in.LooseBoolOr("async", false);  // unused: without effect since 4.2
  MAYFLY_CO_TRY(in.Finish());
  ServerContext& server = ctx.server;
  if (lock) {
    server.fsync_locks.fetch_add(1);
    // Running writes finish first; later ones wait from here on.
    const int64_t deadline = server.clock().MonotonicMicros() + MicrosOf(timeout);
    while (RunningWrites(server) > 0) {
      Result<void> slept = co_await ctx.SleepUntil(server.clock().MonotonicMicros() + 2'000);
      if (slept && server.clock().MonotonicMicros() > deadline)
        slept = Error{ErrorCode::kLockTimeout, "Fsync lock timed out"};
      if (!slept) {
        server.fsync_locks.fetch_sub(1);
        co_return slept;
      }
    }
  }
  co_await ctx.MoveToWorker();
  Result<void> done = server.storage().kv().SyncWal();
  if (done) done = server.storage().kv().Flush();
  if (!done) {
    if (lock) server.fsync_locks.fetch_sub(1);
    co_return done;
  }
  if (lock) {
    reply.Append("info", "now locked against writes, use db.fsyncUnlock() to unlock");
    reply.Append("lockCount", int64_t{server.fsync_locks.load()});
    reply.Append("seeAlso", "http://dochub.mongodb.org/core/fsynccommand");
    server.log().Write(LogSeverity::kWarning, LogComponent::kStorage, 20469,
                       "instance is locked, blocking all writes");
  } else {
    reply.Append("numFiles", int32_t{1});
  }
  co_return Ok();
}

Result<void> FsyncUnlock(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  std::atomic<int>& locks = ctx.server.fsync_locks;
  int n = locks.load();
  do {
    if (n == 0) return Error{ErrorCode::kIllegalOperation, "fsyncUnlock called when not locked"};
  } while (!locks.compare_exchange_weak(n, n - 1));
  reply.Append("info", n == 1 ? "fsyncUnlock completed" : "fsyncUnlock completed; locks remain");
  reply.Append("lockCount", int64_t{n - 1});
  return Ok();
}

}  // namespace

void RegisterFsync(CommandRegistry& registry) {
  registry.Add(
      {.name = "fsync",
       .flags = kAdminOnly | kSecondaryOk,
       .help = "Writes everything to disk; with lock: true, also blocks writes until fsyncUnlock.",
       .run_async = &Fsync,
       .privileges = &privileges::OnCluster<Action::fsync>});
  registry.Add({.name = "fsyncUnlock",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Ends one fsync lock.",
                .run = &FsyncUnlock,
                .privileges = &privileges::OnCluster<Action::unlock>});
}

}  // namespace mayfly

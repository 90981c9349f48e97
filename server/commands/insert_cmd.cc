#include "server/base/network_buffers.h"
#include "server/commands/write_statements.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/write_ops.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

constexpr size_t kInlineDocuments = 16,
                 kInlineBytes = 64 << 10;  ///< more than that goes to a worker
constexpr size_t kLargeBytes = 4 << 20;    ///< more than that waits for memory

size_t TotalBytes(const std::vector<BsonView>& documents) {
  size_t bytes = 0;
  for (const BsonView& d : documents) bytes += d.size();
  return bytes;
}

/// Where memory is short a large insert waits a while before it begins: for those under way to be
/// done with theirs.
Awaitable<Result<void>> WaitForMemory(CommandContext& ctx) {
  constexpr int64_t kPollMicros = 5000;
  const int64_t patience = ctx.server.clock().MonotonicMicros() + MemoryPressure::kMostMicros;
  while (TheMemoryPressure().High() && ctx.server.clock().MonotonicMicros() < patience) {
    MAYFLY_CO_TRY(co_await ctx.SleepUntil(ctx.server.clock().MonotonicMicros() + kPollMicros));
  }
  co_return Ok();
}

Awaitable<Result<void>> RunInsert(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  ArgReader in(req);
  const WriteBatchFields batch = ReadWriteBatchFields(in);
  std::vector<BsonView> documents = in.Documents("documents");
  in.OptBool("bypassEmptyTsReplacement");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  MAYFLY_CO_TRY(in.Finish());
  MAYFLY_CO_TRY(ExpirySetting expiry, ParseExpiryFields(after, at, false, ctx.op.now, "insert"));
  MAYFLY_CO_TRY(CheckWriteBatchSize(documents.size()));
  ctx.EditReport([&](OperationReport& r) {
    r.op = "insert";
    r.ns = JoinNamespace(req.db, batch.collection);
  });
  ctx.server.metrics().opcounters.insert.Add(static_cast<int64_t>(documents.size()));
  WriteCommand command(ctx.server, ctx.op, req.db, batch.collection);
  command.set_bypass_validation(batch.bypass_validation);
  command.set_expiry(expiry);
  RetryableWrite retry(ctx);
  if (ctx.txn_number) {
    MAYFLY_CO_TRY(retry.SetStatementIds(batch.statement_ids, batch.statement_id, documents.size()));
    MAYFLY_CO_TRY(co_await retry.Begin());
    command.set_observer(&retry);
  }
  MAYFLY_CO_TRY(command.Open());

  const size_t bytes = TotalBytes(documents);
  if (bytes > kLargeBytes) {
    MAYFLY_CO_TRY(co_await WaitForMemory(ctx));
  }

  int64_t inserted = 0;
  WriteErrors errors;
  bool done = false;
  // What a first try has done is not done again: the rest is, run by run.
  std::vector<std::pair<size_t, size_t>> runs;  // begin, end
  int64_t done_before = 0;
  if (retry.active()) {
    for (size_t i = 0; i < documents.size(); ++i) {
      if (retry.Find(i) != nullptr)
        ++done_before;
      else if (!runs.empty() && runs.back().second == i)
        ++runs.back().second;
      else
        runs.emplace_back(i, i + 1);
    }
  }
  if (done_before == static_cast<int64_t>(documents.size())) {
    done = true;
  } else if (done_before == 0 && command.coll() && !ctx.on_worker &&
             documents.size() <= kInlineDocuments && bytes <= kInlineBytes) {
    // All or nothing here; a batch with an error goes the long way, which knows how to stop in the
    // middle.
    WriteUnit unit(ctx.server.storage(), ctx.op);
    std::optional<Result<void>> staged = command.TryStageInsert(documents, unit);
    if (staged && *staged) {
      MAYFLY_CO_TRY(retry.BeforeCommit(
          unit, {.kind = UnitResult::Kind::kInsert, .documents = documents.size()}));
      Result<void> committed = co_await ctx.Commit(std::move(unit));
      retry.AfterCommit(committed.has_value());
      if (committed) {
        inserted = static_cast<int64_t>(documents.size());
        ctx.op.n_inserted += inserted;
        command.NotifyInserted();
        done = true;
      } else if (!IsRetryable(committed.error())) {
        co_return committed.error();
      }
    } else if (staged && documents.size() == 1) {
      if (EndsCommand(staged->error())) co_return staged->error();
      errors.Add(0, staged->error());
      done = true;
    }
  }
  if (!done) {
    co_await ctx.MoveToWorker();
    MAYFLY_CO_TRY(command.OpenOrCreate());
    if (done_before == 0) runs.assign(1, {0, documents.size()});
    for (auto [begin, end] : runs) {
      retry.SetStatement(begin);
      Result<int64_t> r = command.Insert(std::span(documents).subspan(begin, end - begin),
                                         [&, first = begin](size_t index, Error e) {
                                           errors.Add(first + index, std::move(e));
                                           return !batch.ordered;
                                         });
      if (!r) co_return r.error();
      inserted += r.value();
      if (batch.ordered && !errors.empty()) break;
    }
    if (inserted > 0 && ctx.write_concern.journal) {
      MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.server.storage(), ctx.op)));
    }
  }
  ctx.server.metrics().documents.inserted.Add(inserted);
  if (ctx.write_concern.unacknowledged) co_return Ok();  // w: 0 is told nothing, as by MongoDB
  reply.Append("n", static_cast<int32_t>(inserted + done_before));
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  errors.AppendTo(reply);
  retry.AppendRetried(reply);
  co_return Ok();
}

}  // namespace

void RegisterInsert(CommandRegistry& registry) {
  registry.Add({.name = "insert",
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Stores documents; creates the collection when it does not exist.",
                .run_async = &RunInsert});
}

}  // namespace mayfly

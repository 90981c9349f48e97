#include "server/commands/write_statements.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/execution/statement_runner.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

constexpr size_t kLargeInsertBytes = 4 << 20;  ///< more than that waits for memory

size_t TotalBytes(std::span<const BsonView> documents) {
  size_t bytes = 0;
  for (const BsonView& d : documents) bytes += d.size();
  return bytes;
}

/// When memory is short, a large insert waits a while before it begins, so that inserts in progress
/// can release theirs.
Awaitable<Result<void>> WaitForMemory(CommandContext& ctx) {
  constexpr int64_t kPollMicros = 5000;
  const int64_t patience = ctx.data.clock().MonotonicMicros() + MemoryPressure::kMaxMicros;
  while (ctx.data.memory_pressure().High() && ctx.data.clock().MonotonicMicros() < patience) {
    MAYFLY_CO_TRY(co_await ctx.SleepUntil(ctx.data.clock().MonotonicMicros() + kPollMicros));
  }
  co_return Ok();
}

class InsertStatements final : public WriteStatements {
 public:
  InsertStatements(WriteCommand& command, std::span<const BsonView> documents, bool ordered)
      : command_(command), documents_(documents), ordered_(ordered) {}

  size_t size() const override { return documents_.size(); }
  Result<void> Open(StatementRunner& runner) override {
    runner.Attach(command_);
    return command_.Open();
  }
  size_t Until(size_t) const override { return documents_.size(); }
  WriteStatement At(size_t i, size_t end) override {
    return {.command = &command_, .documents = documents_.subspan(i, end - i)};
  }
  Result<void> Replayed(size_t, const StatementResult&) override {
    ++replayed;
    return Ok();
  }
  Result<void> Inserted(size_t, size_t count) override {
    inserted += static_cast<int64_t>(count);
    return Ok();
  }
  Result<void> Done(size_t, StatementOutcome) override { return Ok(); }
  Result<bool> Failed(size_t i, Error e) override {
    MAYFLY_TRY(errors.Add(i, std::move(e)));
    return !ordered_;
  }

  int64_t inserted = 0, replayed = 0;
  WriteErrors errors;

 private:
  WriteCommand& command_;
  const std::span<const BsonView> documents_;
  const bool ordered_;
};

Awaitable<Result<void>> RunInsert(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  ArgReader in(req);
  const WriteBatchFields batch = ReadWriteBatchFields(in);
  const DocumentList list = in.Documents("documents");
  const std::span<const BsonView> documents = list.documents();
  const bool keep_empty_timestamps = in.BoolOr("bypassEmptyTsReplacement", false);
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  MAYFLY_CO_TRY(in.Finish());
  MAYFLY_CO_TRY(ExpirySetting expiry, ParseExpiryFields(after, at, false, ctx.op.now, "insert"));
  MAYFLY_CO_TRY(CheckWriteBatchSize(documents.size()));
  ctx.EditReport([&](OperationReport& r) {
    r.op = "insert";
    r.ns = JoinNamespace(req.db, batch.collection);
  });
  ctx.data.metrics().opcounters.insert.Add(static_cast<int64_t>(documents.size()));
  WriteCommand command(WriteServicesOf(ctx.data), ctx.op, req.db, batch.collection);
  command.set_bypass_validation(batch.bypass_validation);
  command.set_keep_empty_timestamps(keep_empty_timestamps);
  command.set_expiry(expiry);
  command.set_deadline_field(DeadlineFieldOf(ctx));
  if (TotalBytes(documents) > kLargeInsertBytes) {
    MAYFLY_CO_TRY(co_await WaitForMemory(ctx));
  }
  InsertStatements statements(command, documents, batch.ordered);
  StatementRunner runner(ctx);
  MAYFLY_CO_TRY(co_await runner.RunStatements(statements, batch.statement_ids));
  ctx.data.metrics().documents.inserted.Add(statements.inserted);
  if (ctx.write_concern.unacknowledged) co_return Ok();  // w: 0 gets no result, as in MongoDB
  reply.Append("n", static_cast<int32_t>(statements.inserted + statements.replayed));
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  statements.errors.AppendTo(reply);
  runner.retry().AppendRetried(reply);
  co_return Ok();
}

}  // namespace

void RegisterInsert(CommandRegistry& registry) {
  registry.Add({.name = "insert",
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Stores documents; creates the collection when it does not exist.",
                .run_async = &RunInsert,
                .privileges = &privileges::Insert});
}

}  // namespace mayfly

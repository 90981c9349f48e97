#include "query/update/update_pipeline.h"
#include "server/commands/write_statements.h"
#include "server/dispatch/arg_reader.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/write_ops.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

WriteBatchFields ReadWriteBatchFields(ArgReader& in) {
  WriteBatchFields f;
  f.collection = in.Collection();
  f.ordered = in.BoolOr("ordered", true);
  // Delete takes it too, although it has nothing to validate: PyMongo's bulk writes send it.
  f.bypass_validation = in.LooseBoolOr("bypassDocumentValidation", false);
  f.statement_ids = in.OptArray("stmtIds");
  f.statement_id = in.OptInt64("stmtId");
  return f;
}

Result<void> CheckWriteBatchSize(size_t writes) {
  constexpr size_t kMost = 100'000;
  if (writes >= 1 && writes <= kMost) return Ok();
  return Error{ErrorCode::kInvalidLength, "Write batch sizes must be between 1 and 100000. Got " +
                                              std::to_string(writes) + " operations."};
}

Result<UpdateStatement> ParseUpdateStatement(BsonView doc, Instant now,
                                             const ExpirySetting& command) {
  ArgReader in("update.updates", doc);
  UpdateStatement s;
  s.filter = in.Document("q");
  s.update = in.Any("u");
  if (s.update.missing())
    in.Fail({ErrorCode::kMissingField,
             "BSON field 'update.updates.u' is missing but a required field"});
  s.multi = in.BoolOr("multi", false);
  s.upsert = in.BoolOr("upsert", false);
  in.BoolOr("upsertSupplied", false);
  in.SimpleCollation();
  if (auto filters = in.OptArray("arrayFilters"))
    for (const BsonElement& e : *filters) {
      if (!e.value.IsDocument())
        in.Fail({ErrorCode::kTypeMismatch, "BSON field 'update.updates.arrayFilters." +
                                               std::string(e.name) + "' is the wrong type '" +
                                               std::string(BsonTypeName(e.value.type())) +
                                               "', expected type 'object'"});
      else
        s.array_filters.push_back(e.value.Document());
    }
  s.hint = in.Any("hint");
  s.sort = in.DocumentOr("sort");
  s.constants = in.OptDocument("c");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  std::optional<bool> preserve = in.OptBool("preserveExpiry");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(s.expiry, ParseExpiryFields(after, at, preserve.value_or(false), now, in.where()));
  // A statement that says anything says it all.
  if (after.missing() && at.missing() && !preserve) s.expiry = command;
  if (!s.hint.missing() && !s.hint.IsString() && !s.hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  if (s.constants && !s.update.IsArray())
    return Error{LocationCode(51198), "Constant values may only be specified for pipeline updates"};
  if (s.multi && !s.sort.empty())
    return Error{ErrorCode::kFailedToParse, "Cannot specify sort with multi=true"};
  return s;
}

Result<DeleteStatement> ParseDeleteStatement(BsonView doc) {
  ArgReader in("delete.deletes", doc);
  DeleteStatement s;
  s.filter = in.Document("q");
  int64_t limit = in.Int64("limit");
  in.SimpleCollation();
  s.hint = in.Any("hint");
  MAYFLY_TRY(in.Finish());
  if (limit != 0 && limit != 1)
    return Error{ErrorCode::kFailedToParse,
                 "The limit field in delete objects must be 0 or 1. Got " + std::to_string(limit)};
  if (!s.hint.missing() && !s.hint.IsString() && !s.hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  s.multi = limit == 0;
  return s;
}

namespace {

/// Whether reading the statements alone takes longer than an io thread has for it.
bool IsLarge(const CommandRequest& req) {
  constexpr size_t kInlineStatements = 500, kInlineBytes = 64 << 10;
  size_t statements = 0;
  for (const DocumentSequence& s : req.sequences) statements += s.documents.size();
  return statements > kInlineStatements || req.body.size() > kInlineBytes;
}

/// Whether a batch has been on the io thread long enough and goes on on a worker.
bool SliceOver(const CommandContext& ctx, int64_t* slice_end) {
  constexpr int64_t kSliceMicros = 500;
  if (ctx.on_worker) return false;
  const int64_t now = ctx.server.clock().MonotonicMicros();
  if (*slice_end == 0) *slice_end = now + kSliceMicros;
  return now >= *slice_end;
}

struct UpdateArgs {
  WriteBatchFields batch;
  BsonView let;
  std::vector<UpdateStatement> statements;
};

Result<UpdateArgs> ReadUpdate(const CommandRequest& req, Instant now) {
  ArgReader in(req);
  UpdateArgs a;
  a.batch = ReadWriteBatchFields(in);
  std::vector<BsonView> updates = in.Documents("updates");
  in.OptBool("bypassEmptyTsReplacement");
  a.let = in.DocumentOr("let");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  bool preserve = in.BoolOr("preserveExpiry", false);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(ExpirySetting expiry, ParseExpiryFields(after, at, preserve, now, "update"));
  MAYFLY_TRY(CheckWriteBatchSize(updates.size()));
  a.statements.reserve(updates.size());
  for (BsonView u : updates) {
    MAYFLY_TRY(UpdateStatement s, ParseUpdateStatement(u, now, expiry));
    if (s.update.IsArray()) {
      MAYFLY_TRY(CheckStageNames(s.update.Document()));
    }
    a.statements.push_back(std::move(s));
  }
  return a;
}

struct DeleteArgs {
  WriteBatchFields batch;
  BsonView let;
  std::vector<DeleteStatement> statements;
};

Result<DeleteArgs> ReadDelete(const CommandRequest& req) {
  ArgReader in(req);
  DeleteArgs a;
  a.batch = ReadWriteBatchFields(in);
  std::vector<BsonView> deletes = in.Documents("deletes");
  a.let = in.DocumentOr("let");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CheckWriteBatchSize(deletes.size()));
  a.statements.reserve(deletes.size());
  for (BsonView d : deletes) {
    MAYFLY_TRY(DeleteStatement s, ParseDeleteStatement(d));
    a.statements.push_back(s);
  }
  return a;
}

/// A staged write could not be committed: it is to be done again on a worker, or the error is its
/// result.
template <class T>
void AfterFailedCommit(const Error& e, std::optional<Result<T>>* result) {
  if (IsRetryable(e))
    result->reset();
  else
    *result = e;
}

Awaitable<Result<void>> RunUpdate(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  if (IsLarge(req)) co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(const UpdateArgs args, ReadUpdate(req, ctx.op.now));
  const auto& [batch, let, statements] = args;
  ctx.EditReport([&](OperationReport& r) {
    r.op = "update";
    r.ns = JoinNamespace(req.db, batch.collection);
  });
  ctx.server.metrics().opcounters.update.Add(static_cast<int64_t>(statements.size()));
  WriteCommand command(ctx.server, ctx.op, req.db, batch.collection);
  command.set_bypass_validation(batch.bypass_validation);
  RetryableWrite retry(ctx);
  if (ctx.txn_number) {
    MAYFLY_CO_TRY(
        retry.SetStatementIds(batch.statement_ids, batch.statement_id, statements.size()));
    MAYFLY_CO_TRY(co_await retry.Begin());
    command.set_observer(&retry);
  }
  if (!let.empty()) co_await ctx.MoveToWorker();  // expressions
  MAYFLY_CO_TRY(command.SetLet(let));
  MAYFLY_CO_TRY(command.Open());

  int64_t n = 0, modified = 0;
  std::vector<std::pair<int32_t, Value>> upserted;
  WriteErrors errors;
  bool wrote_unsynced = false;
  int64_t slice_end = 0;
  for (size_t i = 0; i < statements.size(); ++i) {
    std::optional<Result<UpdateResult>> r;
    if (retry.active()) {
      if (const StatementResult* before = retry.Find(i)) {
        ++n;
        if (before->kind == StatementResult::Kind::kUpserted)
          upserted.emplace_back(static_cast<int32_t>(i),
                                Value::Copy(before->document.view()["_id"]));
        else
          ++modified;
        continue;
      }
      retry.SetStatement(i);
      if (statements[i].multi) r = NotRetryable("multi=true");
    }
    if (i > 0 && SliceOver(ctx, &slice_end)) co_await ctx.MoveToWorker();
    if (!r && !ctx.on_worker) {
      WriteUnit unit(ctx.server.storage(), ctx.op);
      r = command.TryStageUpdate(statements[i], unit);
      if (r && *r && !unit.empty()) {
        // What it met was past its deadline and goes: nothing that a retry should know of.
        const bool wrote = r->value().modified > 0;
        if (wrote) {
          MAYFLY_CO_TRY(
              retry.BeforeCommit(unit, {.kind = UnitResult::Kind::kUpdate, .update = &r->value()}));
        }
        Result<void> committed = co_await ctx.Commit(std::move(unit));
        if (wrote) retry.AfterCommit(committed.has_value());
        if (!committed) AfterFailedCommit(committed.error(), &r);
      }
    }
    if (!r) {
      co_await ctx.MoveToWorker();
      r = command.Update(statements[i]);
      wrote_unsynced = true;
    }
    if (*r) {
      UpdateResult& u = r->value();
      n += u.matched;
      modified += u.modified;
      if (!u.upserted_id.missing()) {
        ++n;
        upserted.emplace_back(static_cast<int32_t>(i), std::move(u.upserted_id));
      }
      continue;
    }
    if (EndsCommand(r->error())) co_return r->error();
    errors.Add(i, r->error());
    if (batch.ordered) break;
  }
  if (wrote_unsynced && ctx.write_concern.journal) {
    MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.server.storage(), ctx.op)));
  }
  ctx.server.metrics().documents.updated.Add(modified);
  ctx.server.metrics().documents.inserted.Add(static_cast<int64_t>(upserted.size()));
  ctx.EditReport([&](OperationReport& r) {
    r.plan_summary = command.plan_summary();
    r.upsert = !upserted.empty();
  });
  if (ctx.write_concern.unacknowledged) co_return Ok();  // w: 0 is told nothing, as by MongoDB
  reply.Append("n", static_cast<int32_t>(n));
  errors.AppendTo(reply);
  if (!upserted.empty()) {
    BsonArrayBuilder list = reply.OpenArray("upserted");
    for (auto& [index, id] : upserted)
      list.OpenDocument().Append("index", index).Append("_id", id.view());
  }
  reply.Append("nModified", static_cast<int32_t>(modified));
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  retry.AppendRetried(reply);
  co_return Ok();
}

Awaitable<Result<void>> RunDelete(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  if (IsLarge(req)) co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(const DeleteArgs args, ReadDelete(req));
  const auto& [batch, let, statements] = args;
  ctx.EditReport([&](OperationReport& r) {
    r.op = "remove";
    r.ns = JoinNamespace(req.db, batch.collection);
  });
  ctx.server.metrics().opcounters.remove.Add(static_cast<int64_t>(statements.size()));
  WriteCommand command(ctx.server, ctx.op, req.db, batch.collection);
  RetryableWrite retry(ctx);
  if (ctx.txn_number) {
    MAYFLY_CO_TRY(
        retry.SetStatementIds(batch.statement_ids, batch.statement_id, statements.size()));
    MAYFLY_CO_TRY(co_await retry.Begin());
    command.set_observer(&retry);
  }
  if (!let.empty()) co_await ctx.MoveToWorker();  // expressions
  MAYFLY_CO_TRY(command.SetLet(let));
  MAYFLY_CO_TRY(command.Open());

  int64_t n = 0;
  WriteErrors errors;
  bool wrote_unsynced = false;
  int64_t slice_end = 0;
  for (size_t i = 0; i < statements.size(); ++i) {
    std::optional<Result<int64_t>> r;
    if (retry.active()) {
      if (retry.Find(i) != nullptr) {
        ++n;
        continue;
      }
      retry.SetStatement(i);
      if (statements[i].multi) r = NotRetryable("limit=0");
    }
    if (i > 0 && SliceOver(ctx, &slice_end)) co_await ctx.MoveToWorker();
    if (!r && !ctx.on_worker) {
      WriteUnit unit(ctx.server.storage(), ctx.op);
      r = command.TryStageDelete(statements[i], unit);
      if (r && *r && !unit.empty()) {
        const bool wrote = r->value() > 0;
        if (wrote) {
          MAYFLY_CO_TRY(retry.BeforeCommit(unit, {.kind = UnitResult::Kind::kDelete}));
        }
        Result<void> committed = co_await ctx.Commit(std::move(unit));
        if (wrote) retry.AfterCommit(committed.has_value());
        if (!committed) AfterFailedCommit(committed.error(), &r);
      }
    }
    if (!r) {
      co_await ctx.MoveToWorker();
      r = command.Delete(statements[i]);
      wrote_unsynced = true;
    }
    if (*r) {
      n += r->value();
      continue;
    }
    if (EndsCommand(r->error())) co_return r->error();
    errors.Add(i, r->error());
    if (batch.ordered) break;
  }
  if (wrote_unsynced && ctx.write_concern.journal) {
    MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.server.storage(), ctx.op)));
  }
  ctx.server.metrics().documents.deleted.Add(n);
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = command.plan_summary(); });
  if (ctx.write_concern.unacknowledged) co_return Ok();  // w: 0 is told nothing, as by MongoDB
  reply.Append("n", static_cast<int32_t>(n));
  errors.AppendTo(reply);
  retry.AppendRetried(reply);
  co_return Ok();
}

}  // namespace

void RegisterUpdate(CommandRegistry& registry) {
  registry.Add({.name = "update",
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Changes documents by operators, replacement or pipeline.",
                .run_async = &RunUpdate});
}

void RegisterDelete(CommandRegistry& registry) {
  registry.Add({.name = "delete",
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Removes documents.",
                .run_async = &RunDelete});
}

}  // namespace mayfly

#include "server/execution/statement_runner.h"

#include "server/dispatch/server_context.h"

namespace mayfly {
namespace {

/// Inserts that are more go to a worker.
constexpr size_t kInlineDocuments = 16, kInlineBytes = 64 << 10;

bool FitsHere(std::span<const BsonView> documents) {
  if (documents.size() > kInlineDocuments) return false;
  size_t bytes = 0;
  for (const BsonView& d : documents) bytes += d.size();
  return bytes <= kInlineBytes;
}

}  // namespace

void StatementRunner::Attach(WriteCommand& command) {
  if (retry_.active()) command.set_observer(&retry_);
  command.set_unit(unit_);
}

/// Whether the statements have been on the io thread long enough and go on on a worker.
bool StatementRunner::SliceOver() {
  constexpr int64_t kSliceMicros = 500;
  const int64_t now = ctx_.server.clock().MonotonicMicros();
  if (slice_end_ == 0) slice_end_ = now + kSliceMicros;
  return now >= slice_end_;
}

/// What a first try has done is not done again: neighbours end where one was done.
size_t StatementRunner::End(const WriteStatements& statements, size_t i) const {
  const size_t until = statements.Until(i);
  if (!retry_.active()) return until;
  size_t end = i + 1;
  while (end < until && retry_.Find(end) == nullptr) ++end;
  return end;
}

/// Why the statement cannot be one of a retryable write.
std::optional<Error> StatementRunner::Refused(const WriteStatement& s) const {
  if (!retry_.active()) return std::nullopt;
  if (s.update != nullptr && s.update->multi) return NotRetryable("multi=true");
  if (s.remove != nullptr && s.remove->multi) return NotRetryable("limit=0");
  return std::nullopt;
}

StatementRunner::Outcome StatementRunner::TryStage(const WriteStatement& s, WriteUnit& unit) {
  if (s.want_documents || s.open) return std::nullopt;
  if (std::optional<Error> refused = Refused(s)) return *refused;
  StatementOutcome o;
  if (s.update != nullptr) {
    std::optional<Result<UpdateResult>> r = s.command->TryStageUpdate(*s.update, unit);
    if (!r) return std::nullopt;
    if (!*r) return r->error();
    o.update = std::move(r->value());
  } else if (s.remove != nullptr) {
    std::optional<Result<int64_t>> r = s.command->TryStageDelete(*s.remove, unit);
    if (!r) return std::nullopt;
    if (!*r) return r->error();
    o.deleted = r->value();
  } else {
    if (!s.command->coll() || !FitsHere(s.documents)) return std::nullopt;
    std::optional<Result<void>> r = s.command->TryStageInsert(s.documents, unit);
    // All or nothing: the long way knows how to stop in the middle.
    if (!r || (!*r && s.documents.size() > 1)) return std::nullopt;
    if (!*r) return r->error();
  }
  return o;
}

Result<void> StatementRunner::BeforeCommit(const WriteStatement& s, WriteUnit& unit,
                                           const StatementOutcome& o) {
  using Kind = UnitResult::Kind;
  if (s.update != nullptr)
    return retry_.BeforeCommit(unit, {.kind = Kind::kUpdate, .update = &o.update});
  if (s.remove != nullptr) return retry_.BeforeCommit(unit, {.kind = Kind::kDelete});
  return retry_.BeforeCommit(unit, {.kind = Kind::kInsert, .documents = s.documents.size()});
}

Result<void> StatementRunner::AfterCommit(const WriteStatement& s, Result<void> committed,
                                          Outcome* done) {
  if (!committed && IsRetryable(committed.error())) {
    done->reset();
  } else if (!committed) {
    if (!s.documents.empty()) return committed.error();  // as where documents fill several units
    *done = committed.error();
  } else if (!s.documents.empty()) {
    ctx_.op.n_inserted += static_cast<int64_t>(s.documents.size());
    s.command->NotifyInserted();
  }
  return Ok();
}

Result<bool> StatementRunner::Tell(WriteStatements& statements, const WriteStatement& s, size_t i,
                                   size_t end, Result<StatementOutcome> outcome) {
  if (!outcome) {
    if (EndsCommand(outcome.error())) return outcome.error();
    return statements.Failed(i, outcome.error());
  }
  if (s.documents.empty())
    statements.Done(i, std::move(outcome).value());
  else
    statements.Inserted(i, end - i);
  return true;
}

Result<bool> StatementRunner::InsertBlocking(WriteStatements& statements, const WriteStatement& s,
                                             size_t i, size_t end) {
  bool go_on = true;
  if (Result<void> open = s.command->OpenOrCreate(); !open) {
    if (!s.open || EndsCommand(open.error())) return open.error();
    for (; i < end && go_on; ++i) {
      MAYFLY_TRY(go_on, statements.Failed(i, open.error()));
    }
    return go_on;
  }
  // Failures come in order, each before the documents behind it.
  size_t next = i;
  auto stored = [&](size_t until) {
    if (until > next) statements.Inserted(next, until - next);
    next = until;
  };
  std::optional<Error> ends;
  MAYFLY_TRY(s.command->Insert(s.documents, [&](size_t index, Error e) {
    stored(i + index);
    Result<bool> told = statements.Failed(next++, std::move(e));
    if (!told) ends = told.error();
    go_on = told && told.value();
    return go_on;
  }));
  if (ends) return *ends;
  if (go_on) stored(end);
  return go_on;
}

Result<StatementOutcome> StatementRunner::RunOne(const WriteStatement& s) {
  if (s.open) {
    MAYFLY_TRY(s.command->Open());
  }
  if (std::optional<Error> refused = Refused(s)) return *refused;
  StatementOutcome o;
  if (s.update != nullptr) {
    MAYFLY_TRY(o.update, s.command->Update(*s.update, s.want_documents));
  } else {
    MAYFLY_TRY(o.deleted, s.command->Delete(*s.remove, s.want_documents ? &o.document : nullptr));
  }
  return o;
}

Result<bool> StatementRunner::RunBlocking(WriteStatements& statements, size_t i, size_t end) {
  MAYFLY_TRY(ctx_.op.CheckInterrupt());
  const WriteStatement s = statements.At(i, end);
  if (!s.documents.empty()) return InsertBlocking(statements, s, i, end);
  std::optional<WriteUnit::Savepoint> begin;
  if (unit_ != nullptr) begin = unit_->Mark();
  Result<StatementOutcome> o = RunOne(s);
  if (!o && begin) unit_->RollBackTo(*begin);
  return Tell(statements, s, i, end, std::move(o));
}

Awaitable<Result<void>> StatementRunner::RunStatements(WriteStatements& statements,
                                                       const StatementIds& ids) {
  if (ctx_.txn_number) {
    MAYFLY_CO_TRY(retry_.SetStatementIds(ids.ids, ids.first, statements.size()));
    MAYFLY_CO_TRY(co_await retry_.Begin());
  }
  // What a transaction has staged may be large: what is done with it is for a worker.
  if (statements.NeedsWorker() || unit_ != nullptr) co_await ctx_.MoveToWorker();
  MAYFLY_CO_TRY(statements.Open(*this));
  bool go_on = true;
  for (size_t i = 0, end = 0; i < statements.size() && go_on; i = end) {
    end = i + 1;
    if (const StatementResult* before = retry_.Find(i)) {
      retry_.CountRetried(i);
      MAYFLY_CO_TRY(statements.Replayed(i, *before));
      sync_ = true;  // the first try may not have come to its wait
      continue;
    }
    retry_.SetStatement(i);
    end = End(statements, i);
    if (i > 0 && !ctx_.on_worker && SliceOver()) co_await ctx_.MoveToWorker();
    if (!ctx_.on_worker) {
      const WriteStatement s = statements.At(i, end);
      WriteUnit unit(ctx_.server.storage(), ctx_.op);
      Outcome done = TryStage(s, unit);
      if (done && *done && !unit.empty()) {
        // Else what it met was past its deadline and goes: nothing that a retry should know of.
        const StatementOutcome& o = done->value();
        const bool wrote = !s.documents.empty() || o.update.modified > 0 || o.deleted > 0;
        if (wrote) {
          MAYFLY_CO_TRY(BeforeCommit(s, unit, o));
        }
        Result<void> committed = Ok();
        if (ctx_.op.commit_deadline_micros != 0) {
          committed = co_await ctx_.Commit(std::move(unit));
        } else {
          SubmittedCommit commit = ctx_.Submit(std::move(unit));
          if (commit.done())
            committed = commit.Take();
          else
            committed = co_await ctx_.Wait(std::move(commit));
        }
        if (wrote) retry_.AfterCommit(committed.has_value());
        MAYFLY_CO_TRY(AfterCommit(s, std::move(committed), &done));
      }
      if (done) {
        MAYFLY_CO_TRY(go_on, Tell(statements, s, i, end, std::move(*done)));
        continue;
      }
    }
    co_await ctx_.MoveToWorker();
    sync_ = true;
    MAYFLY_CO_TRY(go_on, RunBlocking(statements, i, end));
  }
  if (sync_ && ctx_.write_concern.journal && unit_ == nullptr) {
    MAYFLY_CO_TRY(co_await ctx_.Commit(WriteUnit(ctx_.server.storage(), ctx_.op)));
  }
  co_return Ok();
}

}  // namespace mayfly

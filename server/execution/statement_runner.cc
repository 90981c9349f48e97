#include "server/execution/statement_runner.h"

#include "security/user_cache.h"
#include "server/base/client_of.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/server_context.h"
#include "server/execution/transactions.h"
#include "storage/write/transaction_holdings.h"

namespace mayfly {
namespace {

/// Larger inserts go to a worker.
constexpr size_t kInlineDocuments = 16, kInlineInsertBytes = 64 << 10;

/// A statement that fails with a conflict has done nothing, or says how far it has come.
bool CanBeginAnew(const WriteStatement& s) {
  if (s.update != nullptr) return !s.update->multi;
  if (s.remove != nullptr) return !s.remove->multi;
  constexpr size_t kOneUnitDocuments = 1000, kOneUnitBytes = 3 << 20;
  if (s.documents.size() > kOneUnitDocuments) return false;
  size_t bytes = 0;
  for (const BsonView& d : s.documents) bytes += d.size();
  return bytes <= kOneUnitBytes;
}

/// The command's error in a transaction: a retry of the whole may succeed, or it can only
/// end.
bool ErrorEndsTransaction(const Error& e) {
  return IsTransientTransactionError(e.code, false) || e.code == ErrorCode::kQueryPlanKilled ||
         e.code == ErrorCode::kTransactionTooLarge || e.code == ErrorCode::kExceededMemoryLimit ||
         e.code == ErrorCode::kOperationNotSupportedInTransaction;
}

bool FitsHere(std::span<const BsonView> documents) {
  if (documents.size() > kInlineDocuments) return false;
  size_t bytes = 0;
  for (const BsonView& d : documents) bytes += d.size();
  return bytes <= kInlineInsertBytes;
}

/// A waiting write's share of the room for messages, as long as this lives.
class WaitingRoom {
 public:
  explicit WaitingRoom(CommandContext& ctx) : ctx_(ctx) {}
  ~WaitingRoom() {
    if (held_) TransactionsOf(ctx_.data)->GiveWaiting(client_, bytes_);
  }
  WaitingRoom(const WaitingRoom&) = delete;
  /// Whether it may wait: Transactions::TakeWaiting.
  bool Take() {
    bytes_ = ctx_.message_room;
    if (held_ || bytes_ == 0) return true;
    client_ = OwnerOf(ctx_.access != nullptr ? ctx_.access->user.name.Id() : std::string(),
                      ctx_.client != nullptr ? std::string_view(ctx_.client->address) : "");
    held_ = TransactionsOf(ctx_.data)->TakeWaiting(client_, bytes_,
                                                   ctx_.server.network_buffers().limit());
    return held_;
  }

 private:
  CommandContext& ctx_;
  std::string client_;
  int64_t bytes_ = 0;
  bool held_ = false;
};

}  // namespace

void StatementRunner::Attach(WriteCommand& command) {
  if (retry_.active()) command.set_observer(&retry_);
  command.set_unit(unit_);
}

/// Whether the statements have used up their time on the io thread and must continue on a worker.
bool StatementRunner::SliceOver() {
  constexpr int64_t kSliceMicros = 500;
  const int64_t now = ctx_.data.clock().MonotonicMicros();
  if (slice_end_ == 0) slice_end_ = now + kSliceMicros;
  return now >= slice_end_;
}

/// Work of the first attempt is not repeated: a group of neighbours ends at the first finished
/// statement.
size_t StatementRunner::End(const WriteStatements& statements, size_t i) const {
  const size_t until = statements.Until(i);
  if (!retry_.active()) return until;
  size_t end = i + 1;
  while (end < until && retry_.Find(end) == nullptr) ++end;
  return end;
}

/// The reason why the statement cannot be part of a retryable write.
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
    // All documents or none: only the long way can stop in the middle.
    if (!r || (!*r && s.documents.size() > 1)) return std::nullopt;
    if (!*r) return r->error();
  }
  return o;
}

StatementRunner::Outcome StatementRunner::TryInTransaction(const WriteStatement& s) {
  if (!transaction_->IsSmall()) return std::nullopt;
  transaction_->BeginStatement(ctx_.op);
  const WriteUnit::Savepoint begin = unit_->Mark();
  std::vector<std::string> none;
  const size_t locks = HoldingsOf(*unit_, 0, &none).locks;
  const int documents = unit_->DocumentCount();
  const int64_t conflicts = ctx_.op.write_conflicts;
  Outcome done = TryStage(s, *unit_);
  EndShort(*unit_);
  // With a newer snapshot it may succeed; a worker takes one.
  if (done && !*done && transaction_->MayRenew() && IsStale(*unit_)) done.reset();
  if (!done || !*done) unit_->RollBackTo(begin);
  // The statement changed nothing: no other writer has to wait for its locks.
  if (unit_->DocumentCount() == documents) ReleaseLocksSince(*unit_, locks);
  if (!done)
    ctx_.op.write_conflicts = conflicts;  // the worker starts over
  else if (*done)
    ctx_.op.n_inserted += static_cast<int64_t>(s.documents.size());
  return done;
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
    // The same as where documents fill several units.
    if (!s.documents.empty()) return committed.error();
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
    if (transaction_ != nullptr) transaction_->Fail();
    if (EndsCommand(outcome.error()) || (transaction_ && ErrorEndsTransaction(outcome.error())))
      return outcome.error();
    return statements.Failed(i, outcome.error());
  }
  const Result<void> told = s.documents.empty() ? statements.Done(i, std::move(outcome).value())
                                                : statements.Inserted(i, end - i);
  if (told) return true;
  if (transaction_ != nullptr) transaction_->Fail();
  return told.error();
}

Result<bool> StatementRunner::InsertBlocking(WriteStatements& statements, const WriteStatement& s,
                                             size_t* begin, size_t end) {
  bool go_on = true;
  size_t i = *begin;
  if (Result<void> open = s.command->OpenOrCreate(); !open) {
    if (!s.open || EndsCommand(open.error())) return open.error();
    if (transaction_ != nullptr) return open.error();
    for (; i < end && go_on; ++i) {
      MAYFLY_TRY(go_on, statements.Failed(i, open.error()));
    }
    return go_on;
  }
  // Failures come in order, and each is recorded before the documents that follow it.
  size_t next = i;
  std::optional<Error> ends;
  auto stored = [&](size_t until) {
    if (until > next)
      if (Result<void> told = statements.Inserted(next, until - next); !told)
        ends = std::move(told).error();
    if (ends && transaction_ != nullptr) transaction_->Fail();
    next = until;
    return !ends;
  };
  Result<int64_t> inserted = s.command->Insert(s.documents, [&](size_t index, Error e) {
    if (!stored(i + index)) return false;
    if (transaction_ != nullptr) {
      transaction_->Fail();
      if (ErrorEndsTransaction(e)) {
        ends = std::move(e);
        return false;
      }
    }
    Result<bool> told = statements.Failed(next++, std::move(e));
    if (!told) ends = told.error();
    go_on = told && told.value();
    return go_on;
  });
  // One unit, but for those that ended with a failure: nothing is stored that was not told.
  *begin = next;
  if (!inserted) return inserted.error();
  if (!ends && go_on) stored(end);
  if (ends) return *ends;
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

Result<bool> StatementRunner::RunBlocking(WriteStatements& statements, size_t* i, size_t end) {
  const size_t begin = *i;
  for (;;) {
    Result<bool> r = RunOnce(statements, i, end);
    // The first statement of a transaction: nobody has seen anything of it yet.
    if (r || transaction_ == nullptr || begin != 0 || *i != 0 ||
        !transaction_->Renew(ctx_, r.error()))
      return r;
    MAYFLY_TRY(statements.At(begin, end).command->Open());
  }
}

Result<bool> StatementRunner::RunOnce(WriteStatements& statements, size_t* i, size_t end) {
  MAYFLY_TRY(ctx_.op.CheckInterrupt());
  const WriteStatement s = statements.At(*i, end);
  met_ = false;
  s.command->set_met_transaction(unit_ == nullptr && CanBeginAnew(s) ? &met_ : nullptr);
  if (transaction_ != nullptr) transaction_->BeginStatement(ctx_.op);
  if (!s.documents.empty()) {
    Result<bool> inserted = InsertBlocking(statements, s, i, end);
    if (!inserted && met_ && IsRetryable(inserted.error())) return true;
    met_ = false;
    return inserted;
  }
  std::optional<WriteUnit::Savepoint> begin;
  if (unit_ != nullptr) begin = unit_->Mark();
  Result<StatementOutcome> o = RunOne(s);
  if (!o && begin) unit_->RollBackTo(*begin);
  if (!o && met_ && IsRetryable(o.error())) return true;
  met_ = false;
  return Tell(statements, s, *i, end, std::move(o));
}

Result<bool> StatementRunner::FailWaiting(WriteStatements& statements, size_t i, size_t end) {
  met_ = false;
  ++ctx_.op.write_conflicts;
  bool go_on = true;
  for (; i < end && go_on; ++i) {
    MAYFLY_TRY(go_on,
               statements.Failed(
                   i, {ErrorCode::kWriteConflict,
                       "an open transaction has written what this statement writes, and too many "
                       "large messages wait for transactions already: try again once it has "
                       "ended, or send smaller messages"}));
  }
  return go_on;
}

Awaitable<Result<void>> StatementRunner::WaitForTransactions(int attempt) {
  ++ctx_.op.write_conflicts;
  const LockWait waits(ctx_.op);
  CollectionNotifier::Watch watch(ctx_.data.notifier(), Transactions::kEnded);
  // It may have ended before the watch began.
  const int64_t wait = int64_t{5000} << std::min(attempt, 6);
  Result<bool> woken = co_await watch.WaitFor(ctx_, ctx_.data.clock().MonotonicMicros() + wait);
  if (!woken) co_return woken.error();
  // Documents that fell due meanwhile were hidden from others, and must not come back
  // (docs/expiry.md, "Exact reads").
  ctx_.op.now = ctx_.data.clock().Now();
  co_await ctx_.MoveToWorker();
  co_return Ok();
}

Awaitable<Result<void>> StatementRunner::RunStatements(WriteStatements& statements,
                                                       const StatementIds& ids) {
  if (ids.ids || ids.first) {
    // They are looked through, and sorted: few of them here.
    constexpr uint32_t kInlineIdBytes = 4096;
    if (ids.ids && ids.ids->size() > kInlineIdBytes) co_await ctx_.MoveToWorker();
    MAYFLY_CO_TRY(retry_.SetStatementIds(ids.ids, ids.first, statements.size()));
  }
  if (ctx_.txn_number) {
    MAYFLY_CO_TRY(co_await retry_.Begin());
  }
  if (ctx_.op.view != nullptr && ctx_.op.view->has_own_writes()) [[unlikely]] {
    transaction_ = TransactionsOf(ctx_.data)->Running(ctx_);
    if (transaction_ != nullptr) unit_ = &transaction_->unit();
  }
  // A transaction may have staged a lot, so work on it is done by a worker.
  if (statements.NeedsWorker() || (transaction_ != nullptr && !transaction_->IsSmall()))
    co_await ctx_.MoveToWorker();
  MAYFLY_CO_TRY(statements.Open(*this));
  bool go_on = true;
  for (size_t i = 0, end = 0; i < statements.size() && go_on; i = end) {
    end = i + 1;
    if (const StatementResult* before = retry_.Find(i)) {
      retry_.CountRetried(i);
      MAYFLY_CO_TRY(statements.Replayed(i, *before));
      sync_ = true;  // the first attempt may have ended before it waited for the sync
      continue;
    }
    retry_.SetStatement(i);
    end = End(statements, i);
    if (i > 0 && !ctx_.on_worker && SliceOver()) co_await ctx_.MoveToWorker();
    if (!ctx_.on_worker && transaction_ != nullptr) {
      if (Outcome done = TryInTransaction(statements.At(i, end))) {
        MAYFLY_CO_TRY(go_on, Tell(statements, statements.At(i, end), i, end, std::move(*done)));
        continue;
      }
    } else if (!ctx_.on_worker) {
      const WriteStatement s = statements.At(i, end);
      WriteUnit unit(ctx_.data.storage(), ctx_.op);
      Outcome done = TryStage(s, unit);
      if (done && *done && !unit.empty()) {
        // Otherwise the document that it met was past its deadline and is removed. A retry must not
        // find a record of that.
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
    size_t begin = i;
    MAYFLY_CO_TRY(go_on, RunBlocking(statements, &begin, end));
    WaitingRoom room(ctx_);
    for (int attempt = 0; met_; ++attempt) {
      if (!room.Take()) {
        MAYFLY_CO_TRY(go_on, FailWaiting(statements, begin, end));
        break;
      }
      MAYFLY_CO_TRY(co_await WaitForTransactions(attempt));
      MAYFLY_CO_TRY(go_on, RunBlocking(statements, &begin, end));
    }
  }
  if (sync_ && ctx_.write_concern.journal && unit_ == nullptr) {
    MAYFLY_CO_TRY(co_await ctx_.Commit(WriteUnit(ctx_.data.storage(), ctx_.op)));
  }
  co_return Ok();
}

}  // namespace mayfly

#include "server/execution/transactions.h"

#include <algorithm>
#include <functional>

#include "protocol/error_labels.h"
#include "protocol/fair_share.h"
#include "protocol/micros.h"
#include "replication/replica_set.h"
#include "security/user_cache.h"
#include "server/base/client_of.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/replication_gate.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/session_store.h"
#include "server/execution/transaction_rules.h"
#include "storage/schema/transaction_schema.h"
#include "storage/storage.h"
#include "storage/write/transaction_holdings.h"

namespace mayfly {
namespace {

/// How often the first statement of a transaction starts again with a newer snapshot: each time
/// another writer was first.
constexpr int kMaxRenewals = 100;
std::string ShownNumber(int64_t number) { return "{ txnNumber: " + std::to_string(number) + " }"; }

Error NoSuchTransaction(std::string message) {
  return {ErrorCode::kNoSuchTransaction, std::move(message)};
}

/// Errors: IllegalOperation 20, as where there are no transactions at all.
Result<void> CheckMembersKnow(DataServices& server) {
  ReplicaSet& set = *server.replica_set();
  if (set.LogsTransactions()) [[likely]]
    return Ok();
  // It may have been upgraded just now.
  if (set.ReadByAll() >= kLogEntryWithTransaction) return Ok();
  return Error{ErrorCode::kIllegalOperation,
               "a member of the set runs an earlier version, which does not know transactions and "
               "would stop at the first one: upgrade it first"};
}

Result<void> CheckReadConcern(const CommandContext& ctx, const CommandRow& row,
                              const GenericArguments& g) {
  if (g.read_concern.missing() || EndsTransaction(row.name)) return Ok();
  if (!g.start_transaction)
    return Error{ErrorCode::kInvalidOptions,
                 "Only the first command in a transaction may specify a readConcern"};
  if (ctx.read_concern == ReadConcernLevel::kLinearizable ||
      ctx.read_concern == ReadConcernLevel::kAvailable)
    return Error{ErrorCode::kInvalidOptions,
                 "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' "
                 "in order to run in a transaction"};
  return Ok();
}

}  // namespace

bool IsTransientTransactionError(ErrorCode code, bool ends) {
  switch (code) {
    case ErrorCode::kWriteConflict:
    case ErrorCode::kLockTimeout:
    case ErrorCode::kPreparedTransactionInProgress:
    case ErrorCode::kSnapshotUnavailable:
    case ErrorCode::kNoSuchTransaction:
    case ErrorCode::kTransactionExceededLifetimeLimitSeconds:
      return true;
    default:
      return !ends && IsRetryableWriteError(code);
  }
}

Transactions* TransactionsOf(DataServices& server) {
  return server.snapshot_reads().transactions();
}

std::string TransactionCursors(std::string_view session, int64_t number) {
  return std::string(session).append("/").append(std::to_string(number));
}

namespace {

/// The session of a command that begins: free again at the end, unless the command has `taken` a
/// transaction, which End gives back with the session.
class CheckedOut {
 public:
  CheckedOut(Session& session, const TransactionPtr& taken) : session_(session), taken_(taken) {}
  ~CheckedOut() {
    if (taken_ == nullptr) session_.CheckIn();
  }
  CheckedOut(const CheckedOut&) = delete;

 private:
  Session& session_;
  const TransactionPtr& taken_;
};

}  // namespace

void Transaction::BeginStatement(Operation& op) {
  op.view = std::make_shared<const ReadView>(view_.With(*unit_));
  op.read_ts = read_ts_;
}

Awaitable<Result<void>> Transactions::Begin(CommandContext& ctx, const CommandRow& row,
                                            const CommandRequest& req, TransactionPtr* taken) {
  const GenericArguments& g = req.generic;
  MAYFLY_CO_TRY(CheckTransactionCommand(row, req));
  MAYFLY_CO_TRY(CheckReadConcern(ctx, row, g));
  if (!server_.writable()) co_return Error{ErrorCode::kNotWritablePrimary, "not primary"};
  const bool ends = EndsTransaction(row.name);
  // The first try may still run, on a connection that the client has given up.
  for (int64_t wait = 200;; wait = std::min<int64_t>(wait * 2, 10'000)) {
    // Not the first try: an old one may have much to release.
    if (wait > 200) co_await ctx.MoveToWorker();
    if (ctx.session->TryCheckOut()) {
      // Also when one of the next steps throws.
      const CheckedOut turn(*ctx.session, *taken);
      const uint64_t reign = server_.replica_set()->committer().Reign();
      Result<void> begun =
          LoadTransactionState(server_, ctx.session->id(), &ctx.session->transaction());
      if (begun) begun = BeginLocked(ctx, req, ends, taken);
      if (begun && *taken != nullptr) begun = CheckTransactionRead(row, req);
      // Only a primary knows that there is none, and only while it is primary.
      if (!begun && begun.error().code == ErrorCode::kNoSuchTransaction &&
          (!server_.writable() || server_.replica_set()->committer().Reign() != reign))
        begun = Error{ErrorCode::kNotWritablePrimary, "not primary"};
      // Else it is in use, or an old one had to go first.
      if (!begun || *taken != nullptr) {
        if (begun && !ends) (*taken)->BeginStatement(ctx.op);
        co_return begun;
      }
    }
    MAYFLY_CO_TRY(co_await ctx.SleepUntil(server_.clock().MonotonicMicros() + wait));
  }
}

Result<void> Transactions::BeginLocked(CommandContext& ctx, const CommandRequest& req, bool ends,
                                       TransactionPtr* taken) {
  const int64_t number = *req.generic.txn_number;
  TransactionState& state = ctx.session->transaction();
  const std::string& key = ctx.session->id();
  const uint64_t epoch = server_.sessions().transaction_epoch();
  std::unique_lock l(mutex_);
  TransactionPtr t;
  if (auto it = by_session_.find(key); it != by_session_.end()) t = it->second;
  if (t != nullptr && t->taken_) return Ok();
  const int64_t known = std::max(state.number, t != nullptr ? t->number : -1);
  if (number < known)
    return Error{ErrorCode::kTransactionTooOld,
                 "Cannot start transaction with " + ShownNumber(number) + " on session " +
                     UuidToString(key) + " because a newer transaction with " + ShownNumber(known) +
                     " has already started on this session."};
  // The row has the outcome of a failed commit, or of one from an earlier time as primary; the
  // outcome of a running one is not known yet.
  if (t != nullptr && t->state_ == Transaction::State::kAborted && t->commit_error_) {
    by_session_.erase(key);
    t = nullptr;
  }
  const bool under_way =
      t != nullptr && t->state_ == Transaction::State::kCommitting && t->number == number;
  if (t != nullptr && !under_way && (t->epoch_ != epoch || t->number < number)) {
    if (!ctx.on_worker && t->state_ == Transaction::State::kOpen && !t->IsSmall()) return Ok();
    by_session_.erase(key);
    if (t->state_ == Transaction::State::kOpen) {
      t->taken_ = true;
      l.unlock();
      Drop(t, TransactionEnd::kNewer);
      return Ok();
    }
    t = nullptr;
  }
  if (req.generic.start_transaction) {
    if (t != nullptr || number == state.number)
      return Error{LocationCode(50911), "Cannot start a transaction at given transaction number " +
                                            std::to_string(number) +
                                            " a transaction with the same number is in use"};
    return StartLocked(ctx, req, epoch, std::move(l), taken);
  }
  if (t == nullptr && number == state.number && IsCommittedTransaction(state)) {
    t = std::make_shared<Transaction>(key, number);
    t->state_ = Transaction::State::kCommitted;
    t->epoch_ = epoch;
    by_session_[key] = t;
  }
  if (t == nullptr) {
    return NoSuchTransaction(number == state.number
                                 ? "Transaction with " + ShownNumber(number) + " has been aborted."
                                 : "Given transaction number " + std::to_string(number) +
                                       " does not match any in-progress transactions. The active "
                                       "transaction number is " +
                                       std::to_string(state.number));
  }
  const bool commits = ends && req.name == "commitTransaction";
  if (t->state_ == Transaction::State::kAborted)
    return NoSuchTransaction("Transaction with " + ShownNumber(number) + " has been aborted.");
  if (t->state_ != Transaction::State::kOpen && !commits)
    return Error{ErrorCode::kTransactionCommitted,
                 "Transaction with " + ShownNumber(number) + " has been committed."};
  t->taken_ = true;
  t->running_ = &ctx.op;
  t->active_since_ = server_.clock().MonotonicMicros();
  t->connection_id_ = ctx.client != nullptr ? ctx.client->connection_id : 0;
  t->renewals_left_ = 0;
  if (t->state_ == Transaction::State::kOpen) {
    t->unit_->Attach(ctx.op);
    if (!ends) ctx.op.now = t->now_;
  }
  *taken = std::move(t);
  return Ok();
}

Result<void> Transactions::StartLocked(CommandContext& ctx, const CommandRequest& req,
                                       uint64_t epoch, std::unique_lock<std::mutex> l,
                                       TransactionPtr* taken) {
  const int64_t number = *req.generic.txn_number;
  const std::string& key = ctx.session->id();
  MAYFLY_TRY(CheckMembersKnow(server_));
  auto t = std::make_shared<Transaction>(key, number);
  t->client_ =
      OwnerOf(SessionUid(key), ctx.client != nullptr ? std::string_view(ctx.client->address) : "");
  t->session_use_ = SessionUse(ctx.session->shared_from_this());
  t->db_ = req.db;
  if (ctx.access != nullptr) t->user_ = ctx.access->user.name;
  if (!req.generic.read_concern.missing())
    t->read_concern_ = BsonDocument(req.generic.read_concern.Document());
  by_session_[key] = t;
  Result<void> share = Ok();
  try {
    share = TakeShareLocked(t->client_);
  } catch (...) {
    by_session_.erase(key);
    throw;
  }
  if (!share) {
    by_session_.erase(key);
    return share;
  }
  // Nothing fails before the caller has it to give back.
  t->taken_ = true;
  t->running_ = &ctx.op;
  t->epoch_ = epoch;
  t->reign_ = server_.replica_set()->committer().Reign();
  t->event_ = kFirstCommitEvent + next_event_.fetch_add(1) % kCommitEvents;
  t->now_ = ctx.op.now;
  t->began_ = server_.clock().Now();
  t->began_micros_ = t->active_since_ = server_.clock().MonotonicMicros();
  t->connection_id_ = ctx.client != nullptr ? ctx.client->connection_id : 0;
  list_.push_back(*t);
  open_.fetch_add(1);
  started_.fetch_add(1);
  *taken = t;
  l.unlock();
  BeginTransactionNumber(number, &ctx.session->transaction());
  t->snapshot_reads_ = ctx.read_concern == ReadConcernLevel::kSnapshot;
  t->local_ = ctx.read_concern == ReadConcernLevel::kLocal;
  // A moment that was asked for is not left.
  if (ctx.at_cluster_time == 0) t->renewals_left_ = kMaxRenewals;
  return t->Open(ctx, ctx.op.view);
}

Result<void> Transaction::Open(CommandContext& ctx, ReadViewPtr base) {
  DataServices& server = ctx.data;
  Storage& storage = server.storage();
  if (base == nullptr) {
    MAYFLY_TRY(const std::shared_ptr<ReadPoint> point, server.replica_set()->TakeReadPoint());
    base = point->View();
  }
  point_ts_ = base->point()->ts();
  read_ts_ = snapshot_reads_ ? point_ts_.load() : 0;
  catalog_ = std::make_shared<TransactionCatalog>(*base, storage.catalog());
  view_ = ReadView(base->snapshot(), catalog_, base->point());
  unit_.emplace(storage, ctx.op);
  reign_ = server.replica_set()->committer().Reign();
  BeginTransactionUnit(
      *unit_, base->snapshot(), catalog_,
      server.snapshot_reads().transaction_parameters().lock_wait_millis.load() * 1000, reign_);
  return Ok();
}

Result<void> Transaction::CheckDefines(std::string_view command) const {
  if (local_) return Ok();
  return Error{ErrorCode::kInvalidOptions,
               "Command " + std::string(command) +
                   " does not support this transaction's readConcern: begin it with level 'local'"};
}

bool Transaction::Renew(CommandContext& ctx, const Error& why) {
  if (renewals_left_ == 0 || !unit_ || !IsStale(*unit_) ||
      (why.code != ErrorCode::kWriteConflict && why.code != ErrorCode::kSnapshotUnavailable))
    return false;
  --renewals_left_;
  failed_ = false;
  // Its locks first: the writer that was first may have been waiting for one.
  ctx.op.view.reset();
  unit_.reset();
  if (!Open(ctx, nullptr)) return false;
  BeginStatement(ctx.op);
  return true;
}

void Transactions::End(CommandContext& ctx, const TransactionPtr& taken, Result<void>* result) {
  // Whatever happens: nothing may point to the command afterwards, and its session must be free.
  struct Leaving {
    Transactions& of;
    CommandContext& ctx;
    const TransactionPtr& taken;
    std::optional<TransactionEnd> abort = TransactionEnd::kError;
    ~Leaving() { of.Leave(ctx, taken, abort); }
  } leaving{*this, ctx, taken};
  leaving.abort = Settle(ctx, *taken, result);
}

Transactions::Taken::~Taken() {
  if (transaction_ != nullptr && !ended_)
    TransactionsOf(ctx_.data)->Leave(ctx_, transaction_, TransactionEnd::kError);
}

void Transactions::Taken::End(Result<void>* result) {
  ended_ = true;
  TransactionsOf(ctx_.data)->End(ctx_, transaction_, result);
}

std::optional<TransactionEnd> Transactions::Settle(CommandContext& ctx, Transaction& t,
                                                   Result<void>* result) {
  bool abort = false;
  TransactionEnd why = TransactionEnd::kError;
  {
    std::lock_guard l(mutex_);
    if (t.state_ == Transaction::State::kOpen) {
      abort = !*result || t.failed_ || t.doomed_.has_value();
      if (!*result && result->error().code == ErrorCode::kWriteConflict) {
        why = TransactionEnd::kConflict;
        conflicts_ += std::max<int64_t>(1, ctx.op.write_conflicts);
      } else {
        conflicts_ += ctx.op.write_conflicts;
      }
      if (t.doomed_) why = t.doom_;
      const size_t had = t.costs_.bytes;
      CountLocked(t, ctx.op);
      // One that takes no more now does not end because others have.
      if (Result<void> share = CheckShareLocked(t); t.costs_.bytes > had && !share && !abort) {
        *result = share;
        abort = true;
      }
      if (t.doomed_ && *result)
        *result = Error{*t.doomed_, "Transaction with " + ShownNumber(t.number) +
                                        " has been aborted while an operation of it ran."};
    }
  }
  if (!abort && t.unit_) {
    if (Result<void> room = t.memory_.Set(t.unit_->MemoryBytes()); !room) {
      *result = room;
      abort = true;
    }
  }
  return abort ? std::optional(why) : std::nullopt;
}

void Transactions::Leave(CommandContext& ctx, const TransactionPtr& taken,
                         std::optional<TransactionEnd> abort_as) noexcept {
  Transaction& t = *taken;
  bool abort = false;
  if (abort_as) {
    std::lock_guard l(mutex_);
    abort = t.state_ == Transaction::State::kOpen;
  }
  if (abort) Drop(taken, *abort_as);
  ctx.op.view.reset();
  {
    std::lock_guard l(mutex_);
    t.taken_ = false;
    t.running_ = nullptr;
    // Ended by the thread that found it taken, after Settle's check.
    abort = t.state_ == Transaction::State::kOpen && t.doomed_.has_value();
    if (abort) t.taken_ = true;
  }
  if (abort) {
    Drop(taken, t.doom_);
    std::lock_guard l(mutex_);
    t.taken_ = false;
  }
  ctx.session->CheckIn();
}

void Transactions::Drop(const TransactionPtr& t, TransactionEnd end) {
  std::optional<WriteUnit> unit;
  bool ended = false;
  {
    std::lock_guard l(mutex_);
    if (t->state_ == Transaction::State::kOpen) {
      EndLocked(*t, end);
      ended = true;
    }
  }
  // What it holds is given back whatever these throw. Each is tried: cursors of a transaction that
  // nobody has ended never time out.
  try {
    if (ended) TellEnd(*t, end);
  } catch (...) {
  }
  try {
    server_.cursors().KillSession(TransactionCursors(t->session, t->number));
  } catch (...) {
  }
  if (ended) {
    std::lock_guard l(mutex_);
    StripLocked(*t);
  }
  if (t->unit_) unit.emplace(std::move(*t->unit_));
  t->unit_.reset();
  t->view_ = ReadView();
  t->catalog_.reset();
  t->memory_.Release();
  unit.reset();
  Tell(kEnded);
}

void Transactions::Tell(uint32_t event) noexcept {
  try {
    server_.notifier().Notify(event);
  } catch (...) {
    // Whoever waits for it looks again after a while.
  }
}

Transaction* Transactions::Running(const CommandContext& ctx) {
  if (ctx.session == nullptr) return nullptr;
  std::lock_guard l(mutex_);
  auto it = by_session_.find(ctx.session->id());
  return it != by_session_.end() && it->second->running_ == &ctx.op ? it->second.get() : nullptr;
}

// --- the end -------------------------------------------------------------------------------------

Result<void> Transactions::StageCommit(CommandContext& ctx, Transaction& t) {
  MAYFLY_TRY(ctx.CheckNow());
  {
    std::lock_guard l(mutex_);
    if (t.doomed_ || t.epoch_ != server_.sessions().transaction_epoch())
      return NoSuchTransaction("Transaction with " + ShownNumber(t.number) + " has been aborted.");
  }
  WriteUnit& unit = *t.unit_;
  if (HasNothingToCommit(unit)) return Ok();
  MAYFLY_TRY(CheckMembersKnow(server_));
  // Before anything is made of it.
  const size_t bytes = TransactionEntryBytes(unit);
  if (bytes > kMaxTransactionEntryBytes)
    return TransactionTooLarge("Total size of all transaction operations must be less than " +
                               std::to_string(kMaxTransactionEntryBytes) + ". Actual size is " +
                               std::to_string(bytes));
  t.entry_bytes_ = static_cast<int64_t>(bytes);
  t.changes_ = unit.DocumentCount();
  MAYFLY_TRY(PrepareTransactionCommit(server_.storage(), unit, ctx.op));
  MAYFLY_TRY(StageCreated(server_.storage(), unit, ctx.op));
  MAYFLY_TRY(t.memory_.Set(unit.MemoryBytes()));
  StageCommittedTransaction(server_, unit, t.session, t.number, ctx.session->transaction(),
                            ctx.op.now);
  const BsonDocument lsid = BuildBson([&](BsonBuilder& b) { AppendSessionId(b, t.session); });
  unit.SetLogSession(lsid.view(), t.number);
  return Ok();
}

/// A command that waits for a commit, from Begin on. Once it has given up another thread must
/// report the new collections.
class Transactions::Waiter {
 public:
  Waiter(Transactions& of, Transaction& t) : of_(of), t_(t) {}
  ~Waiter() { GiveUp(); }
  Waiter(const Waiter&) = delete;
  /// REQUIRES: the registry's lock.
  void BeginLocked() {
    ++t_.waiting_;
    waits_ = true;
  }
  /// Whether the outcome is still unknown: then it waits no more.
  bool GiveUp() {
    if (!waits_) return false;
    std::lock_guard l(of_.mutex_);
    if (t_.state_ != Transaction::State::kCommitting) return false;
    --t_.waiting_;
    waits_ = false;
    return true;
  }

 private:
  Transactions& of_;
  Transaction& t_;
  bool waits_ = false;
};

Awaitable<Result<void>> Transactions::Commit(CommandContext& ctx) {
  TransactionPtr t;
  {
    std::lock_guard l(mutex_);
    t = by_session_.at(ctx.session->id());
  }
  Waiter waiter(*this, *t);
  Transaction::State state;
  {
    std::lock_guard l(mutex_);
    state = t->state_;
    if (state == Transaction::State::kCommitting) waiter.BeginLocked();
  }
  if (state == Transaction::State::kCommitted) {
    ctx.op.commit_ts = t->commit_ts_;
    co_return Ok();
  }
  if (state == Transaction::State::kCommitting) co_return co_await WaitForCommit(ctx, t, waiter);
  MAYFLY_CO_TRY(co_await ctx.WaitToWrite());
  if (!t->IsSmall()) co_await ctx.MoveToWorker();
  // A failure here is answered once the transaction is gone: Drop is End's.
  t->write_concern_ = ctx.write_concern;
  MAYFLY_CO_TRY(StageCommit(ctx, *t));
  if (HasNothingToCommit(*t->unit_)) {
    Drop(t, TransactionEnd::kCommitted);
    co_return Ok();
  }
  // The store knows better, from here on.
  ctx.session->transaction().loaded = false;
  server_.cursors().KillSession(TransactionCursors(t->session, t->number));
  // All that may throw comes before its state says that it is on its way: from there on the
  // committer's answer alone ends it.
  t->commit_op_ = std::make_unique<Operation>(ctx.op.clock(), ctx.op.id);
  t->commit_op_->SetUser(ctx.op.user(), ctx.op.user_roles());
  t->made_ = t->catalog_->Own();
  MadeTeller tell = !t->made_.empty() && on_made_ ? on_made_(ctx.op) : MadeTeller();
  std::function<void(Result<void>)> done = [this, t, tell = std::move(tell)](Result<void> r) {
    Committed(t, tell, std::move(r));
  };
  Error no_memory{ErrorCode::kExceededMemoryLimit,
                  "there is not enough memory to commit the transaction now: try again later"};
  t->unit_->Attach(*t->commit_op_);
  WriteUnit unit = std::move(*t->unit_);
  t->unit_.reset();
  t->view_ = ReadView();
  t->catalog_.reset();
  {
    std::lock_guard l(mutex_);
    t->state_ = Transaction::State::kCommitting;
    waiter.BeginLocked();
  }
  const CommitOptions options = ctx.write_concern.commit_options();
  try {
    server_.storage().committer().Submit(std::move(unit), options, std::move(done));
  } catch (...) {
    // Whether it is on its way is in the log: a retry finds out.
    Committed(t, nullptr, std::move(no_memory));
    throw;
  }
  Result<void> committed = co_await WaitForCommit(ctx, t, waiter);
  // The next transaction of the session need not read its row.
  if (committed && !ctx.op.commit_timed_out)
    SetCommittedTransaction(t->number, t->epoch_, &ctx.session->transaction());
  co_return committed;
}

Awaitable<Result<void>> Transactions::WaitForCommit(CommandContext& ctx, TransactionPtr t,
                                                    Waiter& waiter) {
  constexpr int64_t kLookAgain = 500'000;
  for (;;) {
    CollectionNotifier::Watch watch(server_.notifier(), t->event_);
    {
      std::lock_guard l(mutex_);
      if (t->state_ != Transaction::State::kCommitting) break;
    }
    const int64_t now = server_.clock().MonotonicMicros();
    const int64_t deadline = ctx.op.commit_deadline_micros;
    if (deadline != 0 && now >= deadline && waiter.GiveUp()) {
      ctx.op.commit_timed_out = true;
      co_return Ok();
    }
    const int64_t until = std::min(now + kLookAgain, deadline != 0 ? deadline : INT64_MAX);
    const Result<bool> waited = co_await watch.WaitFor(ctx, until);
    if (!waited && waiter.GiveUp()) co_return waited.error();
  }
  t->memory_.Release();
  if (t->commit_error_) {
    // The log shows whether it was written: a retry finds out from the row.
    std::lock_guard l(mutex_);
    if (auto it = by_session_.find(t->session); it != by_session_.end() && it->second == t)
      by_session_.erase(it);
    co_return *t->commit_error_;
  }
  ctx.op.commit_ts = t->commit_ts_;
  std::vector<CollectionInfoPtr> made;
  {
    std::lock_guard l(mutex_);
    made.swap(t->made_);
  }
  if (!made.empty()) {
    co_await ctx.MoveToWorker();
    TellCreated(server_.storage(), ctx.op, made);
  }
  co_return Ok();
}

Awaitable<Result<void>> Transactions::Abort(CommandContext& ctx) {
  TransactionPtr t;
  {
    std::lock_guard l(mutex_);
    t = by_session_.at(ctx.session->id());
  }
  if (!t->IsSmall()) co_await ctx.MoveToWorker();
  Drop(t, TransactionEnd::kClient);
  co_return Ok();
}

// --- from outside --------------------------------------------------------------------------------

void Transactions::Doom(const TransactionPtr& t, ErrorCode code, TransactionEnd why,
                        std::vector<TransactionPtr>* ended) {
  t->doom_ = why;
  if (t->taken_) {
    t->doomed_ = code;
    if (t->running_ != nullptr) t->running_->kill_code = static_cast<int32_t>(code);
  } else {
    ended->push_back(t);  // first: what is taken and not in there stays so
    t->taken_ = true;
  }
}

void Transactions::DropAll(const std::vector<TransactionPtr>& ended) noexcept {
  for (const TransactionPtr& t : ended) {
    Drop(t, t->doom_);
    std::lock_guard l(mutex_);
    t->taken_ = false;
  }
}

void Transactions::AbortWhere(const std::function<bool(const Transaction&)>& of, ErrorCode code,
                              TransactionEnd why) {
  Ending ended{*this};
  std::lock_guard l(mutex_);
  for (Transaction& t : list_)
    if (t.state_ == Transaction::State::kOpen && of(t))
      Doom(t.shared_from_this(), code, why, &ended.list);
}

bool Transactions::AbortBefore(std::string_view session, int64_t number) {
  if (open_.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  Ending ended{*this};
  std::lock_guard l(mutex_);
  auto it = by_session_.find(std::string(session));
  if (it == by_session_.end()) return false;
  if (it->second->state_ == Transaction::State::kOpen && it->second->number < number)
    Doom(it->second, ErrorCode::kNoSuchTransaction,
         number == INT64_MAX ? TransactionEnd::kSession : TransactionEnd::kNewer, &ended.list);
  return it->second->number == number;
}

bool Transactions::IsTransaction(std::string_view session, int64_t number) {
  std::lock_guard l(mutex_);
  auto it = by_session_.find(std::string(session));
  return it != by_session_.end() && it->second->number == number;
}

void Transactions::AbortSessions(const std::function<bool(std::string_view)>& of) {
  AbortWhere([&](const Transaction& t) { return of(t.session); }, ErrorCode::kNoSuchTransaction,
             TransactionEnd::kSession);
}

void Transactions::AbortAll(TransactionEnd why) {
  AbortWhere([](const Transaction&) { return true; }, ErrorCode::kInterruptedDueToReplStateChange,
             why);
}

void Transactions::AbortFormer() {
  const uint64_t reign = server_.replica_set()->committer().Reign();
  AbortWhere([&](const Transaction& t) { return t.reign_ != reign; },
             ErrorCode::kInterruptedDueToReplStateChange, TransactionEnd::kStepDown);
}

void Transactions::Sweep() {
  const int64_t limit = server_.snapshot_reads().transaction_parameters().lifetime_secs.load();
  const int64_t micros = server_.clock().MonotonicMicros() - limit * 1'000'000;
  const int64_t millis = server_.clock().Now().millis - limit * 1000;
  AbortWhere(
      [&](const Transaction& t) { return t.began_micros_ <= micros || t.began_.millis <= millis; },
      ErrorCode::kTransactionExceededLifetimeLimitSeconds, TransactionEnd::kLifetime);
  // Nobody asks for the outcome of transactions whose sessions have ended.
  std::lock_guard l(mutex_);
  std::erase_if(by_session_, [&](const auto& entry) {
    const Transaction& t = *entry.second;
    return !t.taken_ && t.state_ != Transaction::State::kOpen &&
           t.state_ != Transaction::State::kCommitting &&
           server_.sessions().Find(entry.first) == nullptr;
  });
}

void Transactions::Forget(std::string_view session) {
  AbortBefore(session, INT64_MAX);
  std::lock_guard l(mutex_);
  auto it = by_session_.find(std::string(session));
  // A retry finds one in use, or on its way into the log.
  if (it != by_session_.end() && !it->second->taken_ &&
      it->second->state_ != Transaction::State::kCommitting)
    by_session_.erase(it);
}

bool Transactions::TakeWaiting(const std::string& client, int64_t bytes, int64_t room) {
  if (bytes == 0) return true;
  std::lock_guard l(waiting_mutex_);
  const auto of = waiting_.find(client);
  const bool first = of == waiting_.end();
  if (!FitsFairShare((first ? 0 : of->second) + bytes, waiting_bytes_ + bytes, room / 4, room / 8,
                     first))
    return false;
  waiting_[client] += bytes;
  waiting_bytes_ += bytes;
  return true;
}

void Transactions::GiveWaiting(const std::string& client, int64_t bytes) {
  if (bytes == 0) return;
  std::lock_guard l(waiting_mutex_);
  waiting_bytes_ -= bytes;
  if (const auto of = waiting_.find(client); (of->second -= bytes) == 0) waiting_.erase(of);
}

}  // namespace mayfly

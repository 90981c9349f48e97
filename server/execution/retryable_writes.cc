#include "server/execution/retryable_writes.h"

#include <algorithm>
#include <functional>

#include "replication/replica_set.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/fail_points.h"
#include "server/execution/session_store.h"
#include "server/execution/transactions.h"
#include "storage/keys/key_format.h"
#include "storage/storage.h"
#include "storage/write/session_row.h"

namespace mayfly {

// Rows: storage/write/session_row.h. The first row is rewritten with each statement; what grows
// beyond kInlineEntryBytes moves to chunk rows, so that a batch of n statements writes O(n) bytes.

namespace {

constexpr size_t kChunkBytes = 4;
constexpr size_t kInlineEntryBytes = 1024;

std::string ChunkKey(std::string_view id, uint32_t chunk) {
  std::string key = SessionRowKey(id);
  char b[kChunkBytes];
  StoreBe32(b, chunk);
  return key.append(b, kChunkBytes);
}

/// Whether rows get their place in the log: everybody who may have to read them knows such rows.
bool RowsArePlaced(DataServices& server) {
  return server.replica_set() != nullptr && server.replica_set()->PlacesSessionRows();
}

constexpr size_t kEntryHead = 1 + 4 + 4;

bool HasDocument(StatementResult::Kind k) {
  return k == StatementResult::Kind::kUpserted || k == StatementResult::Kind::kFoundAndModified;
}

}  // namespace

void AppendStatementResult(const StatementResult& r, std::string* entries, size_t* last) {
  if (!HasDocument(r.kind) && *last < entries->size()) {
    char* e = entries->data() + *last;
    const int32_t first = LoadLe<int32_t>(e + 1), count = LoadLe<int32_t>(e + 5);
    if (e[0] == static_cast<char>(r.kind) && static_cast<int64_t>(first) + count == r.first) {
      StoreLe<int32_t>(e + 5, count + r.count);
      return;
    }
  }
  *last = entries->size();
  char head[kEntryHead];
  head[0] = static_cast<char>(r.kind);
  StoreLe<int32_t>(head + 1, r.first);
  StoreLe<int32_t>(head + 5, r.count);
  entries->append(head, kEntryHead);
  if (HasDocument(r.kind)) entries->append(r.document.view().bytes());
}

Result<void> ReadStatementResults(std::string_view in, std::vector<StatementResult>* out) {
  const Error damaged{ErrorCode::kInternalError, "a session's kept results are damaged"};
  while (!in.empty()) {
    if (in.size() < kEntryHead) return damaged;
    StatementResult r;
    const auto kind = static_cast<uint8_t>(in[0]);
    if (kind < 1 || kind > 6) return damaged;
    r.kind = static_cast<StatementResult::Kind>(kind);
    r.first = LoadLe<int32_t>(in.data() + 1);
    r.count = LoadLe<int32_t>(in.data() + 5);
    if (r.count < 1) return damaged;
    in.remove_prefix(kEntryHead);
    if (HasDocument(r.kind)) {
      if (in.size() < 5) return damaged;
      const int32_t size = LoadLe<int32_t>(in.data());
      if (size < 5 || static_cast<size_t>(size) > in.size()) return damaged;
      r.document = BsonDocument(BsonView(in.data()));
      in.remove_prefix(static_cast<size_t>(size));
    }
    out->push_back(std::move(r));
  }
  return Ok();
}

Error NotRetryable(std::string_view why) {
  return {ErrorCode::kInvalidOptions, "Cannot use retryable writes with " + std::string(why)};
}

RetryableWrite::~RetryableWrite() {
  if (active()) ctx_.session->CheckIn();
}

Result<void> RetryableWrite::SetStatementIds(std::optional<BsonView> ids,
                                             std::optional<int64_t> first, size_t statements) {
  auto valid = [](int64_t id) { return id >= 0 && id <= INT32_MAX - 1'000'000; };
  if (ids && first)
    return Error{ErrorCode::kInvalidOptions,
                 "May not specify both stmtId and stmtIds in write command"};
  if (first) {
    if (!valid(*first))
      return Error{ErrorCode::kBadValue, "stmtId must be a non-negative 32-bit number"};
    first_id_ = static_cast<int32_t>(*first);
  }
  if (!ids) return Ok();
  for (const BsonElement& e : *ids) {
    int64_t id = 0;
    if (!e.value.IsNumber() || !e.value.ExactInt64(&id) || !valid(id))
      return Error{ErrorCode::kTypeMismatch, "stmtIds must hold non-negative 32-bit numbers"};
    ids_.push_back(static_cast<int32_t>(id));
  }
  if (ids_.size() != statements)
    return Error{ErrorCode::kInvalidLength,
                 "Number of statement ids must match the number of batch entries. Got " +
                     std::to_string(ids_.size()) + " statement ids but " +
                     std::to_string(statements) + " operations."};
  // Results are kept by id: the second statement would take the first one's place in a retry.
  if (std::adjacent_find(ids_.begin(), ids_.end(), std::greater_equal<int32_t>()) == ids_.end())
    return Ok();
  std::vector<int32_t> sorted = ids_;
  std::sort(sorted.begin(), sorted.end());
  if (auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    return Error{ErrorCode::kBadValue, "stmtIds has " + std::to_string(*twice) +
                                           " more than once: give each statement an id of its "
                                           "own"};
  return Ok();
}

Awaitable<Result<void>> RetryableWrite::Begin() {
  if (!ctx_.txn_number) co_return Ok();
  // The first attempt may still be running, on a connection that the client has given up. This is
  // rare, and nobody else waits for it.
  for (int64_t wait = 200; !ctx_.session->TryCheckOut();
       wait = std::min<int64_t>(wait * 2, 10'000)) {
    MAYFLY_CO_TRY(co_await ctx_.SleepUntil(ctx_.data.clock().MonotonicMicros() + wait));
  }
  state_ = &ctx_.session->transaction();
  MAYFLY_CO_TRY(Load());
  const int64_t number = *ctx_.txn_number;
  if (number < state_->number)
    co_return Error{ErrorCode::kTransactionTooOld,
                    "Retryable write with txnNumber " + std::to_string(number) +
                        " is prohibited on session " + UuidToString(ctx_.session->id()) +
                        " because a newer retryable write with txnNumber " +
                        std::to_string(state_->number) + " has already started on this session."};
  // One look-up among the transactions: every write of a driver comes here.
  bool of_transaction = false;
  if (Transactions* const transactions = TransactionsOf(ctx_.data)) {
    if (number > state_->number)
      of_transaction = transactions->AbortBefore(ctx_.session->id(), number);
    else if (!IsCommittedTransaction(*state_))
      of_transaction = transactions->IsTransaction(ctx_.session->id(), number);
  }
  if (of_transaction)
    co_return Error{ErrorCode::kInvalidOptions,
                    "txnNumber " + std::to_string(number) +
                        " is that of a transaction: all of its operations must specify "
                        "autocommit: false, and a retryable write needs a number of its own"};
  if (number > state_->number) {
    BeginTransactionNumber(number, state_);
  } else if (IsCommittedTransaction(*state_)) {
    co_return Error{ErrorCode::kTransactionCommitted,
                    "txnNumber " + std::to_string(number) +
                        " is that of a transaction that has been "
                        "committed: a retryable write cannot use it"};
  } else if (!state_->entries.empty() || state_->chunks > 0) {
    MAYFLY_CO_TRY(ReadDone());
  }
  co_return Ok();
}

Result<void> RetryableWrite::Load() {
  return LoadTransactionState(ctx_.data, ctx_.session->id(), state_);
}

Result<void> LoadTransactionState(DataServices& server, const std::string& session,
                                  TransactionState* state) {
  const uint64_t epoch = server.sessions().transaction_epoch();
  if (state->loaded && state->epoch == epoch) return Ok();
  *state = TransactionState();
  PinnedValue value;
  MAYFLY_TRY(bool found,
             server.storage().kv().Get(Keyspace::kCatalog, SessionRowKey(session), &value));
  if (found) {
    MAYFLY_TRY(const SessionRow head, DecodeSessionRow(value.view()));
    state->number = head.number;
    state->chunks = head.chunks;
    state->entries = head.entries;
    // The position of the last entry is not kept, so the next entry begins a new run.
    state->last = state->entries.size();
  }
  state->epoch = epoch;
  state->loaded = true;
  return Ok();
}

void BeginTransactionNumber(int64_t number, TransactionState* state) {
  state->number = number;
  state->stale_chunks = std::max(state->stale_chunks, state->chunks);
  state->chunks = 0;
  state->entries.clear();
  state->last = 0;
}

bool HoldsCommittedTransaction(std::string_view entries) {
  return !entries.empty() && entries[0] == static_cast<char>(StatementResult::Kind::kTransaction);
}

bool IsCommittedTransaction(const TransactionState& state) {
  return HoldsCommittedTransaction(state.entries);
}

void SetCommittedTransaction(int64_t number, uint64_t epoch, TransactionState* state) {
  *state = TransactionState();
  state->number = number;
  size_t last = 0;
  AppendStatementResult({.kind = StatementResult::Kind::kTransaction}, &state->entries, &last);
  state->last = state->entries.size();
  state->epoch = epoch;
  state->loaded = true;
}

void StageCommittedTransaction(DataServices& server, WriteUnit& unit, const std::string& session,
                               int64_t number, const TransactionState& state, Instant now) {
  std::string entries;
  size_t last = 0;
  AppendStatementResult({.kind = StatementResult::Kind::kTransaction}, &entries, &last);
  for (uint32_t c = 0; c < std::max(state.stale_chunks, state.chunks); ++c)
    unit.Erase(Keyspace::kCatalog, ChunkKey(session, c));
  unit.Put(Keyspace::kCatalog, SessionRowKey(session),
           EncodeSessionRow({.number = number, .last_write = now.millis, .entries = entries},
                            RowsArePlaced(server)));
}

Result<void> RetryableWrite::ReadDone() {
  for (uint32_t c = 0; c < state_->chunks; ++c) {
    PinnedValue value;
    MAYFLY_TRY(bool found, ctx_.data.storage().kv().Get(Keyspace::kCatalog,
                                                        ChunkKey(ctx_.session->id(), c), &value));
    if (!found) return Error{ErrorCode::kInternalError, "a session's kept results are incomplete"};
    MAYFLY_TRY(ReadStatementResults(value.view(), &done_));
  }
  MAYFLY_TRY(ReadStatementResults(state_->entries, &done_));
  std::sort(done_.begin(), done_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return Ok();
}

const StatementResult* RetryableWrite::Find(size_t statement) const {
  if (done_.empty()) return nullptr;
  const int32_t wanted = id(statement);
  auto it = std::upper_bound(done_.begin(), done_.end(), wanted,
                             [](int32_t v, const StatementResult& r) { return v < r.first; });
  if (it == done_.begin()) return nullptr;
  --it;
  if (wanted >= static_cast<int64_t>(it->first) + it->count) return nullptr;
  return &*it;
}

void RetryableWrite::CountRetried(size_t statement) {
  if (retried_.empty()) ctx_.data.metrics().retried_commands.Add();
  ctx_.data.metrics().retried_statements.Add();
  retried_.push_back(id(statement));
}

void RetryableWrite::BeginUnit(WriteUnit& unit) {
  if (!active()) return;
  const BsonDocument lsid =
      BuildBson([&](BsonBuilder& b) { AppendSessionId(b, ctx_.session->id()); });
  unit.SetLogSession(lsid.view(), *ctx_.txn_number);
}

Result<void> RetryableWrite::BeforeCommit(WriteUnit& unit, const UnitResult& u) {
  if (!active()) return Ok();
  if (ctx_.data.fail_points().any()) [[unlikely]] {
    // `times` and `skip` count documents, including those that are committed together.
    std::optional<BsonDocument> fired;
    for (size_t n = std::max<size_t>(u.documents, 1); n > 0 && !fired; --n)
      fired = ctx_.data.fail_points().Fire("onPrimaryTransactionalWrite");
    if (fired) {
      const BsonView data = fired->view();
      const BsonValue close = data["closeConnection"];
      close_after_commit_ = close.missing() || close.Truthy();
      if (const BsonValue code = data["failBeforeCommitExceptionCode"]; code.IsNumber()) {
        ctx_.close_connection = close_after_commit_;
        return Error{static_cast<ErrorCode>(code.NumberAsInt64()),
                     "Failing write for onPrimaryTransactionalWrite failpoint"};
      }
    }
  }
  using Kind = StatementResult::Kind;
  StatementResult r;
  r.first = id(statement_ + u.first_document);
  next_entries_ = state_->entries;
  next_last_ = state_->last;
  next_chunks_ = state_->chunks;
  auto overflow = [&] {
    unit.Put(Keyspace::kCatalog, ChunkKey(ctx_.session->id(), next_chunks_++), next_entries_);
    next_entries_.clear();
    next_last_ = 0;
  };
  auto add = [&] {
    if (next_entries_.size() > kInlineEntryBytes) overflow();
    AppendStatementResult(r, &next_entries_, &next_last_);
    if (next_entries_.size() > kInlineEntryBytes && HasDocument(r.kind)) overflow();
  };
  if (keep_documents_) {
    const UpdateResult* update = u.update;
    r.kind = Kind::kFoundAndModified;
    r.document = BuildBson([&](BsonBuilder& b) {
      if (update == nullptr) {
        b.Append("n", int32_t{1}).Append("value", u.deleted);
        return;
      }
      const bool upserted = !update->upserted_id.missing();
      b.Append("n", int32_t{1}).Append("existing", !upserted);
      if (upserted) b.Append("upserted", update->upserted_id.view());
      const std::optional<BsonDocument>& value = return_new_ ? update->after : update->before;
      if (value) b.Append("value", *value);
    });
    add();
  } else if (u.kind == UnitResult::Kind::kInsert) {
    r.kind = Kind::kInserted;
    if (ids_.empty()) {
      r.count = static_cast<int32_t>(u.documents);
      add();
    } else {
      for (size_t i = 0; i < u.documents; ++i) {
        r.first = id(statement_ + u.first_document + i);
        add();
      }
    }
  } else if (u.kind == UnitResult::Kind::kDelete) {
    r.kind = Kind::kDeleted;
    add();
  } else if (!u.update->upserted_id.missing()) {
    r.kind = Kind::kUpserted;
    r.document = BuildBson([&](BsonBuilder& b) { b.Append("_id", u.update->upserted_id.view()); });
    add();
  } else {
    r.kind = Kind::kUpdated;
    add();
  }
  for (uint32_t c = next_chunks_; c < state_->stale_chunks; ++c)
    unit.Erase(Keyspace::kCatalog, ChunkKey(ctx_.session->id(), c));
  unit.Put(Keyspace::kCatalog, SessionRowKey(ctx_.session->id()),
           EncodeSessionRow({.number = state_->number,
                             .last_write = ctx_.op.now.millis,
                             .chunks = next_chunks_,
                             .entries = next_entries_},
                            RowsArePlaced(ctx_.data)));
  if (ctx_.data.replica_set() != nullptr) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < std::max<size_t>(1, u.documents); ++i)
      ids.push_back(
          id(statement_ + u.first_document + (u.kind == UnitResult::Kind::kInsert ? i : 0)));
    unit.SetStatements(ids);
  }
  return Ok();
}

void RetryableWrite::AfterCommit(bool committed) {
  if (!active()) return;
  if (!committed || ctx_.op.commit_timed_out) {
    // The outcome may be unknown, so the state is read from the store again.
    state_->loaded = false;
    return;
  }
  if (Transactions* transactions = TransactionsOf(ctx_.data)) transactions->CountRow();
  state_->entries.swap(next_entries_);
  state_->last = next_last_;
  state_->chunks = next_chunks_;
  state_->stale_chunks = 0;
  if (close_after_commit_) ctx_.close_connection = true;
}

void RetryableWrite::AppendRetried(BsonBuilder& reply) const {
  if (retried_.empty()) return;
  BsonArrayBuilder list = reply.OpenArray("retriedStmtIds");
  for (int32_t id : retried_) list.Append(id);
}

Result<int> SweepTransactions(DataServices& server, Operation& op, int64_t timeout_millis) {
  if (!server.writable()) return 0;
  Storage& storage = server.storage();
  SessionRegistry& sessions = server.sessions();
  std::string upper(kSessionRowPrefix);
  ++upper.back();
  auto it = storage.kv().NewIterator(
      Keyspace::kCatalog,
      {.lower = std::string(kSessionRowPrefix), .upper = std::move(upper), .fill_cache = false});
  constexpr int kPerUnit = 1000;
  int removed = 0;
  std::vector<std::string> dead;
  /// While a row is being removed, nobody may begin a write with it.
  struct Held {
    std::vector<SessionPtr> sessions;
    ~Held() { GiveBack(); }
    /// Checks the session out, if nobody has it.
    bool Take(SessionPtr session) {
      sessions.push_back(std::move(session));
      if (sessions.back()->TryCheckOut()) return true;
      sessions.pop_back();
      return false;
    }
    void GiveBack() {
      for (const SessionPtr& s : sessions) {
        s->transaction().loaded = false;
        s->CheckIn();
      }
      sessions.clear();
    }
  } held;
  auto flush = [&]() -> Result<void> {
    Result<void> done = Ok();
    if (!dead.empty()) {
      WriteUnit unit(storage, op);
      for (const std::string& key : dead) unit.Erase(Keyspace::kCatalog, key);
      done = storage.committer().Commit(std::move(unit));
    }
    dead.clear();
    held.GiveBack();
    return done;
  };
  Result<void> result = Ok();
  /// The latest head, and whether it is removed with its chunks. Chunks of a session without a user
  /// may lie between those of sessions with the same id, so both kinds have their own.
  struct Current {
    std::string head;
    bool drop = false;
  } current[2];
  for (it->SeekToFirst(); it->Valid() && result; it->Next()) {
    result = op.CheckInterrupt();
    const std::string_view key = it->key();
    bool drop = false;
    if (IsSessionRowKey(key)) {
      if (dead.size() >= kPerUnit && result) result = flush();
      Current& of = current[key.size() - kSessionRowPrefix.size() == kSessionKeyBytes];
      of.head = key;
      of.drop = false;
      Result<SessionRow> head = DecodeSessionRow(it->value());
      if (!head) {
        result = head.error();
        break;
      }
      const std::string_view id = key.substr(kSessionRowPrefix.size());
      if (head.value().last_write + timeout_millis > op.now.millis || sessions.Find(id)) continue;
      // The session gets the age of its last write, so that this sweep does not keep it alive.
      Result<SessionPtr> session = sessions.Use(id, {head.value().last_write});
      if (!session || !held.Take(std::move(session).value())) continue;
      drop = of.drop = true;
      ++removed;
    } else {
      const std::string_view head = key.substr(0, key.size() - kChunkBytes);
      const Current& of = current[head.size() - kSessionRowPrefix.size() == kSessionKeyBytes];
      // A chunk without a head: an earlier sweep was interrupted.
      drop = of.drop || of.head != head;
    }
    if (drop) dead.emplace_back(key);
  }
  if (result) result = it->status();
  Result<void> last = flush();
  if (!result) return result.error();
  if (!last) return last.error();
  return removed;
}

}  // namespace mayfly

#pragma once
#include <optional>
#include <string>
#include <vector>

#include "server/base/session_registry.h"
#include "server/dispatch/command.h"
#include "server/execution/write_ops.h"

namespace mayfly {

/// The stored result of a statement of a retryable write: the same for a run of statements.
struct StatementResult {
  enum class Kind : uint8_t {
    kInserted = 1,
    kUpdated = 2,
    kUpserted = 3,
    kDeleted = 4,
    kFoundAndModified = 5,
    kTransaction = 6  ///< the number is a transaction's, which was committed
  };
  Kind kind = Kind::kInserted;
  int32_t first = 0, count = 1;  ///< statement ids first … first + count - 1
  /// kUpserted: {_id}; kFoundAndModified: {n, existing, upserted, value}. The other kinds did one
  /// document a statement: a statement that changed nothing is not kept.
  BsonDocument document;
};

/// Appends the row format of `r` (grammar: storage/write/session_row.h), joining it with the
/// entry before it, which begins at `*last`, where the two are one run.
void AppendStatementResult(const StatementResult& r, std::string* entries, size_t* last);
/// Errors: InternalError 1 for damaged bytes.
Result<void> ReadStatementResults(std::string_view entries, std::vector<StatementResult>* out);

/// The retryable half of a write command (driver specification "Retryable Writes"): it has the
/// session for itself while it lives, knows which statements of this transaction number were done
/// before, and stages the results of the others into the units that do them, so that a retry (also
/// after a restart, or on another member) answers what the first try would have. Without a
/// txnNumber it does nothing. One thread at a time.
class RetryableWrite final : public UnitObserver {
 public:
  explicit RetryableWrite(CommandContext& ctx) : ctx_(ctx) {}
  ~RetryableWrite() override;
  RetryableWrite(const RetryableWrite&) = delete;

  bool active() const { return state_ != nullptr; }
  /// Statement ids as the command brings them; without any they count from 0. Before Begin.
  /// Errors: BadValue 2 for an id that is there twice, InvalidLength 16, InvalidOptions 72,
  /// TypeMismatch 14.
  Result<void> SetStatementIds(std::optional<BsonView> ids, std::optional<int64_t> first,
                               size_t statements);
  /// Waits for another operation of the session to end. Errors: TransactionTooOld 225.
  Awaitable<Result<void>> Begin();

  /// The id by which a statement's result is kept. `statement`: its place in the command, from 0,
  /// less than SetStatementIds was told.
  int32_t id(size_t statement) const {
    return ids_.empty() ? first_id_ + static_cast<int32_t>(statement) : ids_[statement];
  }
  /// The statement's result from the first time; null: not yet done.
  const StatementResult* Find(size_t statement) const;
  /// The statement is answered from what Find has: the reply and the counters say so. Once each.
  void CountRetried(size_t statement);
  /// The next unit does this statement (an insert: this one and those behind it).
  void SetStatement(size_t statement) { statement_ = statement; }
  /// Keep what findAndModify answers: the new or the old document.
  void KeepDocuments(bool return_new) {
    keep_documents_ = true;
    return_new_ = return_new;
  }

  void BeginUnit(WriteUnit& unit) override;
  Result<void> BeforeCommit(WriteUnit& unit, const UnitResult& r) override;
  void AfterCommit(bool committed) override;

  /// `retriedStmtIds`, if any.
  void AppendRetried(BsonBuilder& reply) const;
  const std::vector<int32_t>& retried() const { return retried_; }

 private:
  Result<void> Load();
  Result<void> ReadDone();

  CommandContext& ctx_;
  TransactionState* state_ = nullptr;  ///< of the session, while checked out
  std::vector<int32_t> ids_;
  int32_t first_id_ = 0;
  size_t statement_ = 0;
  bool keep_documents_ = false, return_new_ = false;
  bool close_after_commit_ = false;
  std::vector<StatementResult> done_;  ///< sorted by `first`
  std::vector<int32_t> retried_;
  // The state after the unit that is being committed.
  std::string next_entries_;
  size_t next_last_ = 0;
  uint32_t next_chunks_ = 0;
};

/// The store's data on the session's latest transaction number, read if not known yet. REQUIRES:
/// the session is checked out. Errors: InternalError 1 for a damaged row.
Result<void> LoadTransactionState(DataServices& server, const std::string& session,
                                  TransactionState* state);
/// `state` is of a new transaction number from now on, which has done nothing yet.
void BeginTransactionNumber(int64_t number, TransactionState* state);
/// Whether a row's entries say that its number is that of a transaction that was committed.
bool HoldsCommittedTransaction(std::string_view entries);
/// The same of what is known of a session.
bool IsCommittedTransaction(const TransactionState& state);
/// Sets `state` to the row that StageCommittedTransaction stages, once it is applied. `epoch`:
/// SessionRegistry::transaction_epoch() when the transaction began.
void SetCommittedTransaction(int64_t number, uint64_t epoch, TransactionState* state);
/// Stages into the unit that this number is a committed transaction.
void StageCommittedTransaction(DataServices& server, WriteUnit& unit, const std::string& session,
                               int64_t number, const TransactionState& state, Instant now);

/// Error of a statement that cannot be retried: one that may change many documents.
/// InvalidOptions 72.
Error NotRetryable(std::string_view why);

/// Removes records of sessions unused for `timeout_millis`. Blocking. Only where writes are
/// possible.
Result<int> SweepTransactions(DataServices& server, Operation& op, int64_t timeout_millis);

}  // namespace mayfly

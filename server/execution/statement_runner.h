#pragma once
#include <optional>
#include <span>

#include "server/dispatch/command.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/write_ops.h"

namespace mayfly {

/// One statement of a write command. Its data lives until the runner has ended.
struct WriteStatement {
  WriteCommand* command = nullptr;
  // One of these three:
  std::span<const BsonView> documents;  ///< inserts: this statement's and those behind it
  const UpdateStatement* update = nullptr;
  const DeleteStatement* remove = nullptr;

  bool want_documents = false;  ///< findAndModify: what it changed
  /// Looks up the collection before it runs; a failure is the statement's error. Else the command
  /// is open.
  bool open = false;
};

/// The result of one update or delete.
struct StatementOutcome {
  UpdateResult update;
  int64_t deleted = 0;
  std::optional<BsonDocument> document;  ///< that was deleted, if it was wanted
};

/// The stmtIds and stmtId of a command.
struct StatementIds {
  std::optional<BsonView> ids;
  std::optional<int64_t> first;
};

class StatementRunner;
class Transaction;

/// The statements of a write command, as it has read them, and what is made of their results. The
/// runner calls it, on one thread at a time.
class WriteStatements {
 public:
  virtual ~WriteStatements() = default;
  /// How many statements there are; the same for the whole command.
  virtual size_t size() const = 0;
  /// Whether Open and all statements are for a worker.
  virtual bool NeedsWorker() const { return false; }
  /// Attaches the commands to the runner, and opens those whose statements do not (open). Once.
  virtual Result<void> Open(StatementRunner& runner) = 0;
  /// How far the statements from `i` on are inserts that may share write units; else i + 1.
  virtual size_t Until(size_t i) const = 0;
  /// Statement `i`; if it is an insert, with those behind it up to `end`.
  virtual WriteStatement At(size_t i, size_t end) = 0;

  // Their results, in order, each reported once. An error ends the command with it; what is written
  // by then stays.
  virtual Result<void> Replayed(size_t i, const StatementResult& before) = 0;
  virtual Result<void> Inserted(size_t i, size_t count) = 0;
  virtual Result<void> Done(size_t i, StatementOutcome outcome) = 0;
  /// Whether the next one runs.
  virtual Result<bool> Failed(size_t i, Error e) = 0;
};

/// Runs the statements of a write command one after another: each on the io thread if it can be
/// done there at once, else on a worker, and the rest with it; with the bookkeeping of retryable
/// writes, the command's journal wait, and the errors that end a whole command. insert, update,
/// delete, findAndModify and bulkWrite come through it. Used by one coroutine; the session of a
/// retryable write is held while the runner lives.
class StatementRunner {
 public:
  explicit StatementRunner(CommandContext& ctx) : ctx_(ctx), retry_(ctx) {}
  StatementRunner(const StatementRunner&) = delete;

  /// The statements are staged into this unit, which outlives the command: nothing is committed,
  /// and a statement that fails is taken back (WriteCommand::set_unit has what the unit must be).
  /// Before RunStatements.
  void set_unit(WriteUnit* unit) { unit_ = unit; }
  /// Runs them all. Errors: those that concern the whole command.
  Awaitable<Result<void>> RunStatements(WriteStatements& statements, const StatementIds& ids);

  /// The command's statements come through this runner. From WriteStatements::Open.
  void Attach(WriteCommand& command);
  RetryableWrite& retry() { return retry_; }

 private:
  using Outcome = std::optional<Result<StatementOutcome>>;
  bool SliceOver();
  size_t End(const WriteStatements& statements, size_t i) const;
  std::optional<Error> Refused(const WriteStatement& s) const;
  /// Stages the statement here; nothing: a worker has to run it. Not blocking.
  Outcome TryStage(const WriteStatement& s, WriteUnit& unit);
  /// The same into the transaction's unit, while that is small.
  Outcome TryInTransaction(const WriteStatement& s);
  Result<void> BeforeCommit(const WriteStatement& s, WriteUnit& unit, const StatementOutcome& o);
  /// The result of a staged statement; nothing: a worker has to run it again. An error ends the
  /// command.
  Result<void> AfterCommit(const WriteStatement& s, Result<void> committed, Outcome* done);
  // On a worker, to the end; blocking. Whether the next one runs. `*i`: what is left of an insert
  // that has met a transaction (met_).
  Result<bool> RunBlocking(WriteStatements& statements, size_t* i, size_t end);
  /// One try of it.
  Result<bool> RunOnce(WriteStatements& statements, size_t* i, size_t end);
  Result<bool> InsertBlocking(WriteStatements& statements, const WriteStatement& s, size_t* i,
                              size_t end);
  /// Until a transaction has ended, or for a while.
  Awaitable<Result<void>> WaitForTransactions(int attempt);
  /// The statements that met a transaction and may not wait for it fail.
  Result<bool> FailWaiting(WriteStatements& statements, size_t i, size_t end);
  Result<StatementOutcome> RunOne(const WriteStatement& s);
  Result<bool> Tell(WriteStatements& statements, const WriteStatement& s, size_t i, size_t end,
                    Result<StatementOutcome> outcome);

  CommandContext& ctx_;
  RetryableWrite retry_;
  WriteUnit* unit_ = nullptr;
  Transaction* transaction_ = nullptr;  ///< whose unit it is
  bool met_ = false;  ///< the statement waits for a lock that a transaction has, to begin again
  int64_t slice_end_ = 0;
  bool sync_ = false;  ///< something has been written that no journal wait has followed
};

}  // namespace mayfly

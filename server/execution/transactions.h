#pragma once
#include <array>
#include <atomic>
#include <boost/intrusive/list.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"
#include "server/base/session_registry.h"
#include "server/dispatch/command.h"
#include "server/execution/transaction_report.h"
#include "storage/read/read_view.h"
#include "storage/write/transaction_unit.h"

namespace mayfly {

/// Whether the command is one of the two that end a transaction.
inline bool EndsTransaction(std::string_view command) {
  return command == "commitTransaction" || command == "abortTransaction";
}

/// Open at once on one server.
inline constexpr size_t kMaxOpenTransactions = 20'000;
/// The share of one client (OwnerOf) of these, and of the memory of large values.
inline constexpr size_t kMaxTransactionsOfClient = 5'000;
inline int64_t MaxTransactionBytesOfClient() { return large_memory::Limit() / 4; }
/// What all of them may have staged.
inline int64_t MaxTransactionBytes() { return large_memory::Limit() / 2; }

/// A transaction of a session: one write unit, one point in time, and their outcome. Threads: the
/// one that has taken it (Transactions); the state under its registry's lock.
class Transaction : public std::enable_shared_from_this<Transaction>,
                    public boost::intrusive::list_base_hook<> {
 public:
  enum class State : uint8_t { kOpen, kCommitting, kCommitted, kAborted };

  Transaction(std::string session, int64_t number) : session(std::move(session)), number(number) {}

  /// Later changes belong to a new statement, which sees everything staged before.
  void BeginStatement(Operation& op);
  /// Takes its moment: `base`, or that of now. Errors: the store's.
  Result<void> Open(CommandContext& ctx, ReadViewPtr base);
  WriteUnit& unit() { return *unit_; }
  /// It has staged so little that an io thread may work on all of it. By the thread that has it.
  bool IsSmall() const {
    return !unit_ ||
           (unit_->DocumentCount() <= kSmallDocuments && StagedBytes(*unit_) <= kSmallBytes);
  }
  /// The first statement of its first command has failed because another writer was first since the
  /// snapshot: whether a newer one was taken, for another try. Then nothing is staged or locked.
  /// REQUIRES: nothing has been answered from it, and no view of the unit is in use.
  bool Renew(CommandContext& ctx, const Error& why);
  /// Whether that is still possible. By whoever has it.
  bool MayRenew() const { return renewals_left_ > 0; }
  /// Whether it may make collections and indexes by name. Errors: InvalidOptions 72 unless its read
  /// concern is local.
  Result<void> CheckDefines(std::string_view command) const;
  /// One of its statements has failed in a way that its reply tells: it cannot go on.
  void Fail() { failed_ = true; }

  const std::string session;  ///< its key
  const int64_t number;

 private:
  friend class Transactions;
  static constexpr int kSmallDocuments = 64;
  static constexpr size_t kSmallBytes = 64 << 10;
  State state_ = State::kOpen;
  bool taken_ = false;               ///< by a command
  Operation* running_ = nullptr;     ///< whose
  std::optional<ErrorCode> doomed_;  ///< the thread that has taken it must abort it with this code
  TransactionEnd doom_ = TransactionEnd::kSession;  ///< and why
  uint64_t epoch_ = 0;              ///< SessionRegistry::transaction_epoch() when it began
  std::atomic<uint64_t> reign_{0};  ///< the committer's when it began
  Instant now_;    ///< its one reading of the clock: of its beginning, or of its atClusterTime
  Instant began_;  ///< for its lifetime, and as it is shown
  int64_t began_micros_ = 0;
  uint64_t read_ts_ = 0;
  bool failed_ = false;
  int renewals_left_ = 0;  ///< 0 after its first command, or when its moment was asked for
  bool snapshot_reads_ = false;
  bool local_ = true;  ///< its read concern is no other than local
  std::shared_ptr<TransactionCatalog> catalog_;
  ReadView view_;
  std::optional<WriteUnit> unit_;
  large_memory::Hold memory_;
  std::unique_ptr<Operation> commit_op_;  ///< of its unit on its way into the log
  std::vector<CollectionInfoPtr> made_;   ///< by its commit; empty once that was told
  SessionUse session_use_;                ///< until it has ended
  int waiting_ = 0;                       ///< for its commit
  std::optional<Error> commit_error_;
  uint64_t commit_ts_ = 0;
  uint32_t event_ = 0;  ///< waiters for its commit watch this (CollectionNotifier)
  // What is shown of it; under the registry's lock.
  TransactionCosts costs_;
  std::string db_;
  std::optional<UserName> user_;  ///< whose session it is
  BsonDocument read_concern_;
  WriteConcern write_concern_;  ///< of its commit
  std::atomic<uint64_t> point_ts_{0};
  int64_t active_since_ = 0;  ///< while it is running
  int64_t connection_id_ = 0;
  std::string client_;                     ///< who began it (OwnerOf)
  int64_t entry_bytes_ = 0, changes_ = 0;  ///< of its commit
};
using TransactionPtr = std::shared_ptr<Transaction>;

/// What serverStatus counts of transactions.
struct TransactionTotals {
  /// The latest commit.
  struct Last {
    int64_t operations = 0, bytes = 0;  ///< changes of documents; of its entry in the oplog
    WriteConcern write_concern;
  };
  int64_t open = 0, active = 0, started = 0, conflicts = 0;
  int64_t rows = 0;           ///< written of sessions: by retryable writes and commits
  int64_t oldest_micros = 0;  ///< how long the oldest is open; 0: none is
  int64_t bytes = 0;          ///< that the open ones have in memory
  std::array<int64_t, kTransactionEnds> ended{};
  std::optional<Last> last;
  int64_t aborted() const;
};

/// The multi-document transactions of a replica set's member (manual: Transactions). The dispatcher
/// begins and ends each command of one here. Threads: any.
class Transactions {
 public:
  explicit Transactions(DataServices& server) : server_(server) {}

  /// A command of a transaction, before it runs: checks what may run in one, waits for the session,
  /// begins or finds the transaction, and makes the operation read and write in it. `*taken`, if
  /// there is one, is given back by End, also after an error or an exception. Errors:
  /// OperationNotSupportedInTransaction 263, TransactionTooOld 225, NoSuchTransaction 251,
  /// TransactionCommitted 256, InvalidOptions 72, and others.
  Awaitable<Result<void>> Begin(CommandContext& ctx, const CommandRow& row,
                                const CommandRequest& req, TransactionPtr* taken);
  /// After the command: its transaction goes on, or is aborted when the command has failed.
  void End(CommandContext& ctx, const TransactionPtr& taken, Result<void>* result);
  /// What a command has taken, given back as a failed one's if End was not reached: nothing may
  /// point to the command once that is gone, whatever was thrown.
  class Taken {
   public:
    /// `ctx` must outlive it.
    explicit Taken(CommandContext& ctx) : ctx_(ctx) {}
    ~Taken();
    Taken(const Taken&) = delete;
    TransactionPtr* slot() { return &transaction_; }
    explicit operator bool() const { return transaction_ != nullptr; }
    Transaction* operator->() const { return transaction_.get(); }
    /// Transactions::End, once.
    void End(Result<void>* result);

   private:
    CommandContext& ctx_;
    TransactionPtr transaction_;
    bool ended_ = false;
  };

  // The two commands. REQUIRES: within Begin and End.
  Awaitable<Result<void>> Commit(CommandContext& ctx);
  Awaitable<Result<void>> Abort(CommandContext& ctx);

  /// The transaction that the operation runs in; null: none. Costs a comparison outside of one.
  Transaction* Running(const CommandContext& ctx);

  /// Aborts those that are open: of some sessions; of one, with a lower number (an atomic load
  /// while there are none at all), and says whether `number` is that of its latest transaction;
  /// all; those past their time.
  void AbortSessions(const std::function<bool(std::string_view session)>& of);
  bool AbortBefore(std::string_view session, int64_t number);
  void AbortAll(TransactionEnd why);
  /// Those of an earlier time as primary than this one.
  void AbortFormer();
  /// Whether the number is that of the session's latest transaction, however that ended.
  bool IsTransaction(std::string_view session, int64_t number);
  void Sweep();
  /// The session has ended: nothing of it is kept.
  void Forget(std::string_view session);

  /// A plain write that waits for a transaction keeps its message, and so takes room that others
  /// need for theirs. Those of one client may keep an eighth of the room, all together a quarter,
  /// by FitsFairShare; the first of a client may keep more than the eighth. `bytes`: of the
  /// message's, in a room of `room`. False: it must not wait. Else GiveWaiting of the same, once it
  /// goes on.
  bool TakeWaiting(const std::string& client, int64_t bytes, int64_t room);
  void GiveWaiting(const std::string& client, int64_t bytes);

  /// What serverStatus shows, of one moment.
  TransactionTotals totals();
  /// A session's record was written: by a retryable write, by a commit.
  void CountRow() { rows_.fetch_add(1, std::memory_order_relaxed); }
  /// Those that are open, the oldest first.
  std::vector<TransactionView> List();
  /// Told of each that ends, with the microseconds since its beginning and what makes a copy of it;
  /// on the thread that ends it, must not block. Before the first client.
  using EndHook = std::function<void(int64_t, const std::function<FinishedTransaction()>&)>;
  void OnEnd(EndHook f) { on_end_ = std::move(f); }

  /// Reports new collections of a transaction when nobody waits for its commit any more; any
  /// thread, must not block.
  using MadeTeller = std::function<void(std::vector<CollectionInfoPtr> made)>;
  /// Called before a commit to remember its client; empty: not needed. Before the first
  /// client.
  void OnMade(std::function<MadeTeller(const Operation& op)> f) { on_made_ = std::move(f); }

  /// Waiters for the end of a transaction watch this (CollectionNotifier).
  static constexpr uint32_t kEnded = 0xFFFF'FF10;
  /// The first of those of commits; several may share one. No collection has an id as high.
  static constexpr uint32_t kFirstCommitEvent = 0xFFFE'0000, kCommitEvents = 1 << 16;

 private:
  Result<void> BeginLocked(CommandContext& ctx, const CommandRequest& req, bool ends,
                           TransactionPtr* taken);
  /// Its first statement, in the reign of `epoch`. REQUIRES: no transaction of its session is open.
  Result<void> StartLocked(CommandContext& ctx, const CommandRequest& req, uint64_t epoch,
                           std::unique_lock<std::mutex> l, TransactionPtr* taken);
  /// What End has to do with an outcome: counts the command, and decides whether the transaction is
  /// aborted, and why; `*result` tells the client. None: it goes on, or has ended already.
  std::optional<TransactionEnd> Settle(CommandContext& ctx, Transaction& t, Result<void>* result);
  /// The rest of End, which cannot fail: aborts it if it is open and `abort` says so, and gives it
  /// and its session back.
  void Leave(CommandContext& ctx, const TransactionPtr& taken,
             std::optional<TransactionEnd> abort) noexcept;
  Result<void> StageCommit(CommandContext& ctx, Transaction& t);
  class Waiter;
  /// REQUIRES: the waiter has begun.
  Awaitable<Result<void>> WaitForCommit(CommandContext& ctx, TransactionPtr t, Waiter& waiter);
  /// The outcome of a commit, from any thread: ends it, once, and tells of it.
  void Committed(const TransactionPtr& t, const MadeTeller& tell, Result<void> r) noexcept;
  /// Releases everything it holds. REQUIRES: taken, or found open and not taken under the lock.
  void Drop(const TransactionPtr& t, TransactionEnd end);
  /// It has ended: counts it, and tells of it, which is done without the lock.
  void EndLocked(Transaction& t, TransactionEnd end);
  void TellEnd(const Transaction& t, TransactionEnd end);
  /// It was reported: keeps only what a retry needs, as long as the session.
  void StripLocked(Transaction& t);
  TransactionView ViewOf(const Transaction& t, int64_t now_micros) const;
  /// Adds the command's costs and the transaction's present holdings.
  void CountLocked(Transaction& t, const Operation& op);
  /// One more is open. Errors: ExceededMemoryLimit 146: there are too many, or the client has.
  Result<void> TakeShareLocked(const std::string& client);
  /// Whether its client's transactions are within their limit (FitsFairShare). Errors:
  /// ExceededMemoryLimit 146.
  Result<void> CheckShareLocked(const Transaction& t) const;
  /// Aborts those that `of` is true for; their commands answer `code`.
  void AbortWhere(const std::function<bool(const Transaction&)>& of, ErrorCode code,
                  TransactionEnd why);
  /// An open one, under the lock: whoever has it aborts it, or it joins `ended`.
  void Doom(const TransactionPtr& t, ErrorCode code, TransactionEnd why,
            std::vector<TransactionPtr>* ended);
  void DropAll(const std::vector<TransactionPtr>& ended) noexcept;
  /// What Doom has added is dropped, without the lock, also when the next one throws. Made before
  /// the lock is taken.
  struct Ending {
    Transactions& of;
    std::vector<TransactionPtr> list{};
    ~Ending() { of.DropAll(list); }
  };
  /// Wakes who waits for the event, if there is the memory for it.
  void Tell(uint32_t event) noexcept;

  DataServices& server_;
  std::mutex mutex_;
  ClientStringMap<TransactionPtr> by_session_;
  /// What the open ones of a client have.
  struct Share {
    int64_t open = 0, bytes = 0;
  };
  ClientStringMap<Share> by_client_;
  boost::intrusive::list<Transaction> list_;  ///< open or being committed, the oldest first
  std::array<int64_t, kTransactionEnds> ended_{};
  std::optional<TransactionTotals::Last> last_;
  int64_t bytes_ = 0, conflicts_ = 0;
  EndHook on_end_;
  std::function<MadeTeller(const Operation&)> on_made_;
  std::atomic<uint32_t> next_event_{0};
  std::atomic<int64_t> open_{0}, started_{0}, rows_{0};
  std::mutex waiting_mutex_;
  ClientStringMap<int64_t> waiting_;  ///< bytes of messages, by client; none of 0
  int64_t waiting_bytes_ = 0;
};

/// Null on a standalone.
Transactions* TransactionsOf(DataServices& server);
/// The owner of a transaction's cursors: a separate session, so that no other getMore finds them
/// and they end with it.
std::string TransactionCursors(std::string_view session, int64_t number);

/// Whether the error says that the whole transaction may be tried again. `ends`: of
/// commitTransaction or abortTransaction.
bool IsTransientTransactionError(ErrorCode code, bool ends);

}  // namespace mayfly

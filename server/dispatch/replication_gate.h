#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "replication/replica_set.h"
#include "server/dispatch/command.h"
#include "storage/read/any_hidden.h"
#include "storage/read/read_view.h"

namespace mayfly {

class Transactions;  // server/execution/transactions.h
struct RequestState;

/// setDefaultRWConcern: kept in the set's catalog, so that every member has the same. Threads: any.
class RWConcernDefaults {
 public:
  static constexpr std::string_view kSetting = "rwConcernDefaults";
  struct Values {
    BsonDocument read, write;  ///< empty: not set
    uint64_t update_op_time = 0;
    int64_t update_wall_millis = 0, local_wall_millis = 0;
  };
  /// As last loaded or set; never null, and never changed afterwards.
  std::shared_ptr<const Values> get() const;
  /// Reads the setting again.
  void Load(Storage& storage);
  /// Errors: as PutSetting.
  Result<void> Set(Storage& storage, Operation& op, Values values);
  /// The write concern of writes without one: the majority, unless another default was
  /// set.
  WriteConcern write_concern() const {
    if (custom_.load(std::memory_order_relaxed)) [[unlikely]]
      return CustomWriteConcern();
    WriteConcern wc;
    wc.majority = true;
    return wc;
  }

 private:
  WriteConcern CustomWriteConcern() const;

  std::atomic<bool> custom_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const Values> values_ = std::make_shared<Values>();
};

/// Parameters of transactions. They are there before a set is, and on a standalone. Threads: any.
struct TransactionParameters {
  std::atomic<int64_t> lifetime_secs{60}, lock_wait_millis{5};
  /// How often transactions past their lifetime are looked for: one lives at most 50% longer.
  int64_t LookEveryMillis() const {
    return std::min<int64_t>(4000, std::max<int64_t>(1, lifetime_secs.load()) * 500);
  }
};

/// The points in time of recent snapshot reads. They are kept for a while, so that other reads and
/// later batches of cursors can use the same point. A point keeps the documents it shows in the
/// store, also those that were removed since. It is released when its window
/// (minSnapshotHistoryWindowInSeconds) ends, even if somebody still reads there. Threads: any.
class SnapshotReads {
 public:
  /// `window_seconds`: minSnapshotHistoryWindowInSeconds. Both outlive it.
  SnapshotReads(const SystemClock& clock, const std::atomic<int64_t>& window_seconds)
      : clock_(clock), window_seconds_(window_seconds) {}
  /// `at` 0: now. REQUIRES: the set's member has applied `at`. Errors: SnapshotTooOld 239 when no
  /// read has begun there within the window.
  Result<ReadViewPtr> Open(ReplicaSet& set, uint64_t at);
  /// The point for the next batches of a cursor opened at `point`. Errors: SnapshotTooOld 239.
  Result<ReadViewPtr> Continue(ReadPoint& point);
  /// Ends the windows that are over.
  void Sweep();
  /// Before the storage closes.
  void Clear();
  /// For serverStatus: points kept, age of the oldest in seconds, reads that came too late.
  struct Totals {
    int64_t points = 0, oldest_seconds = 0, too_old = 0;
  };
  /// Any thread.
  Totals totals() const;
  /// The transactions that read at points of their own; null on a standalone. Set before the first
  /// client.
  Transactions* transactions() const { return transactions_.get(); }
  void set_transactions(std::shared_ptr<Transactions> t) { transactions_ = std::move(t); }
  TransactionParameters& transaction_parameters() { return transaction_parameters_; }
  /// Whether a snapshot read of the present has to take the log's time there first.
  AnyHidden& any_hidden() { return any_hidden_; }

 private:
  static constexpr size_t kMost = 256;       ///< that no cursor uses
  static constexpr size_t kMaxTotal = 4096;  ///< and together with those that cursors use
  struct Kept {
    std::shared_ptr<ReadPoint> point;
    int64_t taken_micros;  ///< Clock::MonotonicMicros()
    Instant taken;         ///< tests move this clock
  };
  void SweepLocked(std::vector<Kept>* gone);
  Error TooOld(uint64_t ts);
  const SystemClock& clock_;
  const std::atomic<int64_t>& window_seconds_;
  mutable std::mutex mutex_;
  std::vector<Kept> kept_;  ///< the oldest first
  std::atomic<int64_t> too_old_{0};
  TransactionParameters transaction_parameters_;
  AnyHidden any_hidden_;
  std::shared_ptr<Transactions> transactions_;
};

/// The dispatcher's checks of each command on a replica set's member. None of it is called on a
/// standalone.
namespace replication_gate {

/// Whether this member, as it is now, may run the command. Errors: 10107, 13435, 13436.
Result<void> CheckState(ReplicaSet& set, const CommandRow& row, const CommandRequest& req,
                        bool legacy_secondary_ok);
/// Checks the set's time from the client. With access control on, one that is ahead of this
/// member's must be signed by a member, unless `access` allows advanceClusterTime; this member then
/// knows that the time has been, but its own does not follow it. Errors: BadValue 2, NoSuchKey 4,
/// TypeMismatch 14, KeyNotFound 211, TimeProofMismatch 204.
Result<void> CheckClusterTime(ServerContext& server, BsonView cluster_time,
                              const UserAccess* access, Instant now);
/// Reads `readConcern` into the context. `transaction`: of a command that runs in one. Errors:
/// TypeMismatch 14, BadValue 2, InvalidOptions 72; of a server that belongs to no set,
/// NotAReplicaSet 123 for what only a set can do.
Result<void> ParseReadConcern(CommandContext& ctx, const CommandRow& row, BsonView rc,
                              bool transaction = false);
/// Whether WaitBefore has something to wait for.
bool MustWaitBefore(ReplicaSet& set, const CommandContext& ctx);
/// afterClusterTime, linearizable, and a snapshot read's point in time, whose clock becomes the
/// operation's. `transaction`: of a command that runs in one. Errors: as CommandContext::CheckNow,
/// the consensus engine's, and those of SnapshotReads::Open.
Awaitable<Result<void>> WaitBefore(CommandContext& ctx, bool transaction);
/// Whether the write concern needs a wait beyond the majority that every write has. A write that
/// changed nothing has no entry in the log: with an explicit w: "majority", this member confirms
/// that it still leads, so that "nothing matched" does not come from a replaced primary.
inline bool MustWaitAfter(const CommandContext& ctx) {
  const WriteConcern& wc = ctx.write_concern;
  return !wc.unacknowledged &&
         ((!wc.majority && (wc.w > 1 || !wc.mode.empty())) ||
          (wc.given && wc.majority && ctx.op.commit_ts == 0) || ctx.op.commit_timed_out);
}
/// Whether the write concern applies to a command that has failed with `code`. It does when the
/// command may have changed something before, or when the cause of the failure (a duplicate key)
/// may not be on enough members yet. It does not for a command that did not run or was interrupted.
bool WriteConcernAppliesToError(const Operation& op, ErrorCode code);
/// Waits for the write concern's members beyond the majority, and reports failures in `reply` (a
/// writeConcernError).
Awaitable<void> WaitForWriteConcern(CommandContext& ctx, BsonBuilder& reply);
/// $clusterTime, signed with access control on, and operationTime.
void AppendTimes(ServerContext& server, const Operation& op, BsonBuilder& reply);
/// Makes the keys that sign cluster times from `seconds` on, if they are missing, and says in the
/// log why not. Only on a primary. Reads and writes storage.
void KeepTimeKeys(ServerContext& server, int64_t seconds);
/// `writeConcern` as replies and serverStatus show it.
void AppendWriteConcern(const WriteConcern& wc, BsonBuilder& out);
/// Adds the topology version to an error reply when the client should refresh its view of the set.
void AppendErrorDetails(CommandContext& ctx, ErrorCode code, BsonBuilder& reply);

}  // namespace replication_gate

}  // namespace mayfly

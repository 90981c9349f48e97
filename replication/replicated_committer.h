#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "replication/consensus.h"
#include "storage/write/log_apply.h"
#include "storage/write/log_format.h"
#include "storage/write/submitted_unit.h"

namespace mayfly {

/// Makes write units permanent through a replica set's log: a unit is visible, its locks are
/// released and its caller is told once a majority has it on disk. Units that wait while others are
/// on their way become one entry. What is each member's own (collections of `local`, profiles) goes
/// to this store alone. Threads: any.
class ReplicatedCommitter final : public Committer {
 public:
  ReplicatedCommitter(Storage& storage, int sync_interval_ms);
  ~ReplicatedCommitter() override;
  /// Before the first Submit; outlives this, or is taken away again with null (then every unit is
  /// refused).
  void set_consensus(Consensus* consensus);

  /// Errors besides those of the local committer: NotWritablePrimary 10107 (nothing was written),
  /// PrimarySteppedDown 189 (it may or may not come to be), BSONObjectTooLarge 10334.
  void Submit(WriteUnit unit, CommitOptions options,
              std::function<void(Result<void>)> done) override;
  /// Puts {msg: …} into the log.
  void SubmitNoop(BsonView o, std::function<void(Result<void>)> done);

  /// This member became primary, or ceased to be. Units of an earlier time as primary fail by the
  /// consensus engine.
  void SetWritable(bool on);
  bool writable() const { return writable_.load(std::memory_order_relaxed); }

  /// No entry after this gets a timestamp before `ts`: somebody has seen it.
  void AdvanceTo(uint64_t ts);
  /// A timestamp that no member comes to before its time is `millis`: the newest one if this
  /// primary has logged that time already, else that of a note in the log, which is then on its
  /// way. Where the clock has gone back behind `millis`, the newest one.
  uint64_t TimestampBehind(int64_t millis);
  /// The newest timestamp given out or seen.
  uint64_t last_ts() const { return last_ts_.load(std::memory_order_relaxed); }

  /// Where the time of entries (milliseconds) comes from instead of the storage's clock; any
  /// thread. Before the first Submit.
  void set_wall(std::function<int64_t()> wall) { wall_ = std::move(wall); }

  /// The units that travelled in an entry, as CommittedEntry::context.
  static std::span<WriteUnit> UnitsOf(void* context);

  /// What was proposed since the process began; bytes as encoded.
  struct Totals {
    int64_t entries = 0, units = 0, bytes = 0;
  };
  Totals totals() const;

 private:
  using Done = std::function<void(Result<void>)>;
  struct Group {
    std::string data;
    std::vector<WriteUnit> units;
    std::vector<Done> done;
  };
  void Enqueue(std::string bytes, EncodedUnit encoded, std::optional<WriteUnit> unit, Operation* op,
               Done done);
  /// Sends what may be sent, in order. REQUIRES: mutex_ held by `l`; may give it up in between.
  void Send(std::unique_lock<std::mutex>& l);
  void Finished(Group& group, const Result<LogPosition>& result);

  Storage& storage_;
  Consensus* consensus_ = nullptr;
  const std::unique_ptr<Committer> local_;  ///< of what stays on this member
  const uint64_t origin_;
  std::function<int64_t()> wall_;

  std::atomic<bool> writable_{false};
  std::atomic<uint64_t> last_ts_{0};
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Group>> waiting_;
  int on_their_way_ = 0;
  bool sending_ = false;
  uint64_t sequence_ = 0;
  int64_t last_wall_ = INT64_MIN;  ///< the latest time that was given to an entry
  Totals totals_;
};

}  // namespace mayfly

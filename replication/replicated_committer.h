#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/large_memory.h"
#include "replication/consensus.h"
#include "storage/write/log_apply.h"
#include "storage/write/log_format.h"
#include "storage/write/submitted_unit.h"

namespace mayfly {

/// Makes write units permanent through a replica set's log: a unit is visible, its locks are
/// released and its caller is told once a majority has it on disk. Units that come while the engine
/// writes earlier entries become one entry, which the engine takes when it is done. Large units go
/// into the log in chunks that nobody sees, and take effect with their end entry. They take turns,
/// one chunk each: at most one of these entries is in the log and not applied, so a small unit,
/// which comes after the entries in the log, waits for one chunk, or for the application of one
/// unit. They also wait until the store has room. Local data (collections of `local`, profiles)
/// goes only to this store. Threads: any.
class ReplicatedCommitter final : public Committer {
 public:
  ReplicatedCommitter(Storage& storage, int sync_interval_ms);
  ~ReplicatedCommitter() override;
  /// Before the first Submit; outlives this, or is taken away again with null (then every unit is
  /// refused).
  void set_consensus(Consensus* consensus);

  /// Errors besides those of the local committer: NotWritablePrimary 10107 (nothing was written),
  /// PrimarySteppedDown 189 (it may or may not come to be), BSONObjectTooLarge 10334 or, of a
  /// transaction, 257; ExceededMemoryLimit 146.
  void Submit(WriteUnit unit, CommitOptions options,
              std::function<void(Result<void>)> done) override;
  /// What goes into the log is encoded by Submit.
  bool OwnedOnceSubmitted(WriteUnit& unit) const override { return !SubmittedUnit(unit).local(); }
  /// Puts {msg: …} into the log.
  void SubmitNoop(BsonView o, std::function<void(Result<void>)> done);

  /// This member became primary in a term of the consensus engine (0: of none), or ceased to be.
  /// Units of an earlier time as primary are refused, wherever they wait: what they were made from
  /// may have changed.
  void SetWritable(bool on, uint64_t term = 0);
  /// Goes up with each of these changes.
  uint64_t Reign() const { return reign_.load(std::memory_order_relaxed); }
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

  /// The latest version of entries that all members read; any thread. Before the first Submit;
  /// without it, all of them. Below kLogEntryEnd, a unit is one entry of kMaxProposalBytes at most;
  /// below kLogEntryEndMoves, deadlines in chunks count from when their unit was made ready.
  void set_read_by_all(std::function<int()> version) { all_read_ = std::move(version); }

  /// The units that travelled in an entry, as CommittedEntry::context.
  static std::span<WriteUnit> UnitsOf(void* context);
  /// Likewise: the large unit that ends in the entry, made ready; null: none.
  static ReadyUnit* ReadyOf(void* context);

  /// Proposals since the process began; bytes as encoded.
  struct Totals {
    int64_t entries = 0, units = 0, bytes = 0;
  };
  /// Any thread.
  Totals totals() const;

 private:
  using Done = std::function<void(Result<void>)>;
  struct Group {
    std::string data;
    std::vector<WriteUnit> units;
    std::vector<Done> done;
    uint64_t reign = 0;   ///< that its units were made in
    uint64_t term = 0;    ///< as Proposal::term
    bool alone = false;   ///< it takes no more units
    bool sealed = false;  ///< likewise; under mutex_
    std::unique_ptr<ReadyUnit> ready = nullptr;
    large_memory::Hold hold = {};  ///< of `ready`
  };
  /// `reign`: of the unit; what was made in an earlier one is refused.
  void Enqueue(std::string bytes, EncodedUnit encoded, std::optional<WriteUnit> unit, Operation* op,
               uint64_t reign, Done done);
  /// The next timestamps of the log, for `ticks` records, and the time that goes with them.
  /// REQUIRES: mutex_ is held until what gets them is in waiting_.
  uint64_t TakeTime(uint32_t ticks, int64_t wall, Operation* op);
  int64_t Wall() const { return wall_ ? wall_() : storage_.clock().Now().millis; }
  /// The newest group that gets the next units, in order. REQUIRES: mutex_ held.
  void AddLocked(std::shared_ptr<Group> group);
  /// Whether the newest group takes one more unit. REQUIRES: mutex_ held.
  bool TakesLocked(uint64_t reign, size_t bytes) const;
  /// The engine makes the entry now: no more units. False: it is of an earlier reign.
  bool Seal(Group& group, std::string* data);
  /// Sends ready entries, in order. REQUIRES: mutex_ held by `l`; may give it up in between.
  void Send(std::unique_lock<std::mutex>& l);
  void Finished(Group& group, const Result<LogPosition>& result);
  struct Large {
    std::string bytes;  ///< the unit, and what chunks say besides
    size_t unit_bytes;
    EncodedUnit encoded;
    WriteUnit unit;
    Operation* op;  ///< null: the waiter may be gone by its turn
    Done done;
    uint64_t reign;
    bool in_chunks;
    large_memory::Hold hold;  ///< of `bytes`
    uint64_t sequence = 0;    ///< of its entries, once it has one
    uint64_t term = 0;        ///< in which its chunks are
    size_t sent = 0;          ///< of `bytes`, in chunks that are applied
    std::vector<uint64_t> chunks = {};
    std::chrono::steady_clock::time_point until = {};  ///< it waits for room no longer
  };
  using LargePtr = std::shared_ptr<Large>;
  /// Puts large units into the log, each in its turn.
  void LargeLoop();
  /// Its next part: a chunk, the end, or all of it. REQUIRES: large_on_its_way_, not
  /// mutex_.
  void SendLarge(const LargePtr& one);
  void SendChunk(const LargePtr& one);
  void SendEnd(const LargePtr& one);
  /// Nothing of it was written, nor will be.
  void Refuse(Large& one, Error why);
  void LargeArrived();
  /// A unit whose chunks may be in the log, but whose end never will be. While its term lasts,
  /// every member keeps its log from there on, so the log must record this.
  struct GivenUp {
    uint64_t sequence, term;
    uint64_t tried = UINT64_MAX;  ///< in which reign
  };
  /// Notes one. REQUIRES: mutex_ held.
  void GiveUpLocked(uint64_t sequence, uint64_t term);
  /// Whether the log can be told of one. REQUIRES: mutex_ held.
  bool HasGivenUp() const;
  void SendGivenUp(std::unique_lock<std::mutex>& l);

  Storage& storage_;
  Consensus* consensus_ = nullptr;
  const std::unique_ptr<Committer> local_;  ///< of what stays on this member
  const uint64_t origin_;
  std::function<int64_t()> wall_;

  std::atomic<bool> writable_{false};
  std::atomic<uint64_t> last_ts_{0};
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Group>> waiting_;
  std::shared_ptr<Group> newest_;  ///< waiting, or on its way and not sealed, or null
  int on_their_way_ = 0;
  bool sending_ = false;
  uint64_t sequence_ = 0;
  int64_t last_wall_ = INT64_MIN;  ///< the latest time that was given to an entry
  Totals totals_;

  std::function<int()> all_read_;
  std::deque<LargePtr> large_;
  bool large_on_its_way_ = false;
  bool closed_ = false;
  std::atomic<uint64_t> reign_{0};  ///< changed under mutex_
  uint64_t term_ = 0;
  std::condition_variable large_wake_;
  std::vector<GivenUp> given_up_;
  std::thread large_thread_;
};

}  // namespace mayfly

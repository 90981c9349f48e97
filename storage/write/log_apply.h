#pragma once
#include <atomic>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "storage/core/open_storage.h"
#include "storage/keys/key_format.h"
#include "storage/write/log_format.h"

namespace mayfly {

/// A large unit, prepared before its turn comes: this would take long, and everything behind it in
/// the log would wait.
struct ReadyUnit {
  std::string bytes;               ///< as EncodeLogUnit appended it
  std::vector<LogUnit> units;      ///< the one, decoded: views into `bytes`
  std::unique_ptr<KvBatch> batch;  ///< with its effects
  /// Errors: InternalError 1 when `bytes` are damaged. Any thread.
  Result<void> Make(KvStore& kv);
  /// As SetUnitTime, also for the decoded changes.
  void SetTime(uint64_t ts, int64_t wall_millis);
};

/// Applies entries of the replication log (storage/write/log_format.h): on every member the same,
/// without reading the store. One thread: the one that drives the log.
class LogApplier {
 public:
  explicit LogApplier(Storage& storage) : storage_(storage) {}

  /// One committed entry of the log.
  struct Entry {
    std::string_view data;
    /// The units it was made of, when this process still waits for them; else empty.
    std::span<WriteUnit> units;
    /// A prepared unit, whose batch is the `batch` of Prepare. REQUIRES: it is the only entry.
    ReadyUnit* ready = nullptr;
    uint64_t term = 0;
  };
  /// Adds the effects of the entries, in order, to `batch`. Errors: InternalError 1 when an entry
  /// is damaged; then nothing must be written.
  Result<void> Prepare(std::span<const Entry> entries, KvBatch& batch);
  /// After the batch of the last Prepare is visible, which is still there: brings catalog and
  /// counters in memory up to date, runs the OnCommit functions of this process' own units and
  /// releases their locks.
  void Applied(std::span<const Entry> entries);

  /// Bytes of the lists that the entries of the last Prepare were read into, until Forget.
  size_t ListBytes() const;
  /// After Applied: lets go of the memory of large entries.
  void Forget() { units_.clear(); }

  /// Changes that came from other members, since the process began. Any thread.
  struct Counts {
    std::atomic<int64_t> inserts{0}, updates{0}, deletes{0}, commands{0};
  };
  const Counts& counts() const { return applied_counts_; }

  /// The time of the last applied record; 0 if none.
  uint64_t last_ts() const { return last_ts_; }
  int64_t last_wall() const { return last_wall_; }
  /// Capped collections that got documents from other members' entries in the last Applied: their
  /// tails may be waited for.
  const std::vector<uint32_t>& grown() const { return grown_; }
  /// Whether the last Applied changed settings that other members' entries carried.
  const std::vector<std::string>& settings() const { return settings_; }

 private:
  struct Counted {
    CounterRow row;
    int64_t first_sequence = 0;
  };
  /// Updates memory with the unit before its batch is visible.
  void Note(const LogUnit& unit);
  /// WatchCollections, of what another member wrote.
  void TellWatch(const LogUnit& unit) const;

  Storage& storage_;
  std::vector<std::vector<LogUnit>> units_;  ///< of the entries of the last Prepare
  std::unordered_map<uint32_t, Counted> counts_;
  Counts applied_counts_;
  std::vector<uint32_t> grown_;
  std::vector<std::string> settings_;
  const KvBatch* batch_ = nullptr;  ///< of the last Prepare, until Applied
  uint64_t last_ts_ = 0;
  int64_t last_wall_ = 0;
};

}  // namespace mayfly

#pragma once
#include <array>
#include <cstdint>

#include "storage/kv/kv.h"

namespace mayfly {

/// What a store has counted since the process began, over all of the process's stores. Bytes are
/// bytes of files, compressed.
struct KvCounters {
  /// Look-ups in the block cache, by what the block holds.
  uint64_t data_hits = 0, data_misses = 0, index_hits = 0, index_misses = 0, filter_hits = 0,
           filter_misses = 0;
  uint64_t missed_bytes = 0;  ///< of blocks that were read into the cache, in memory
  /// Filters of keys: files they left out, files they did not, and how many of those had the key.
  uint64_t key_filters_useful = 0, key_filters_passed = 0, key_filters_right = 0;
  /// Filters of groups (KvOptions::index_group), of table files.
  uint64_t group_filters_asked = 0, group_filters_useful = 0;
  uint64_t written_bytes = 0;  ///< what batches held
  uint64_t log_bytes = 0, flushed_bytes = 0, compaction_read_bytes = 0,
           compaction_written_bytes = 0;
  uint64_t stall_micros = 0;           ///< that writers were made to wait
  uint64_t slowdowns = 0, stalls = 0;  ///< how often a keyspace came to delay writers, or stop them

  /// Bytes written to files for a byte written by a batch; 0: nothing was written.
  double WriteAmplification() const {
    if (written_bytes == 0) return 0;
    const uint64_t all = log_bytes + flushed_bytes + compaction_written_bytes;
    return static_cast<double>(all) / static_cast<double>(written_bytes);
  }
};

/// The parts of a keyspace: a look-up may have to search each of its sorted runs.
struct KvShape {
  static constexpr size_t kLevels = 7;
  std::array<uint32_t, kLevels> files{};  ///< of each level; those of level 0 overlap
  uint32_t memtables = 0;                 ///< with those that wait to be flushed
  /// Memtables, files of level 0, and levels below it that have files.
  uint32_t sorted_runs() const {
    uint32_t runs = memtables + files[0];
    for (size_t i = 1; i < kLevels; ++i) runs += files[i] != 0 ? 1 : 0;
    return runs;
  }
};

/// A store that reports its background work and cache efficiency. Threads: any.
class StoreActivity {
 public:
  virtual ~StoreActivity() = default;
  /// Since the store was opened.
  virtual KvCounters Counters() = 0;
  /// The shape of one keyspace, now.
  virtual KvShape Shape(Keyspace ks) = 0;
  /// How many compactions run at this moment, over all keyspaces.
  virtual uint32_t RunningCompactions() = 0;
};

/// Null: this store reports nothing.
inline StoreActivity* ActivityOf(KvStore& store) { return dynamic_cast<StoreActivity*>(&store); }

}  // namespace mayfly

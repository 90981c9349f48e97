#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "protocol/error.h"

namespace mayfly {

/// A disk that can fail, for tests: passed to Storage as StorageOptions::rocksdb_env. Sits between
/// RocksDB and the system's files and knows what has been synced. Threads: any. Outlives the
/// Storage that uses it.
class FaultDisk {
 public:
  /// Over the system's files, with no fault set.
  static std::unique_ptr<FaultDisk> Make();
  virtual ~FaultDisk() = default;
  /// A rocksdb::Env*.
  virtual void* env() = 0;

  /// Room for this many more bytes: an append that does not fit is written in part, as a real disk
  /// does, and answers "no space". None: no limit.
  virtual void SetFreeBytes(std::optional<int64_t> bytes) = 0;
  /// Every append, or every sync, fails with an I/O error while set.
  virtual void FailWrites(bool on) = 0;
  virtual void FailSyncs(bool on) = 0;
  /// Every sync takes so much longer; 0: none does.
  virtual void SlowSyncs(int64_t millis) = 0;
  virtual uint64_t Syncs() const = 0;  ///< file syncs so far
  /// Blocks that the calling thread has read from tables so far, of all disks.
  virtual uint64_t ReadsHere() const = 0;

  /// The process dies here: nothing reaches the files any more, whatever the store still tries.
  /// Close it, then choose: RestorePower alone is `kill -9` (the operating system had everything);
  /// DropUnsynced before it is losing power.
  virtual void CutPower() = 0;
  /// Cuts every file back to what was synced and removes files never made durable.
  virtual Result<void> DropUnsynced() = 0;
  virtual void RestorePower() = 0;
};

}  // namespace mayfly

#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/instant.h"
#include "storage/clock.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// The point in time at which a cursor reads all its batches. The store keeps data removed since,
/// so its time is limited: HeldSnapshots::Sweep. Threads: any.
class HeldSnapshot {
 public:
  explicit HeldSnapshot(KvSnapshotPtr snapshot) : snapshot_(std::move(snapshot)) {}
  /// Null once its time was up.
  KvSnapshotPtr Get() const {
    std::lock_guard l(mutex_);
    return snapshot_;
  }
  /// The store need not keep it any more.
  void Release() {
    KvSnapshotPtr gone;  // let go of outside the lock
    std::lock_guard l(mutex_);
    gone.swap(snapshot_);
  }

 private:
  mutable std::mutex mutex_;
  KvSnapshotPtr snapshot_;
};

/// All of a store's, the oldest first. Threads: any.
class HeldSnapshots {
 public:
  /// Lives as long as the caller keeps it, or until it is too old.
  std::shared_ptr<HeldSnapshot> Hold(KvSnapshotPtr snapshot, const Clock& clock);
  /// Releases what was taken more than `seconds` ago, by either clock.
  void Sweep(const Clock& clock, int64_t seconds);
  /// How many there are. For tests.
  size_t size() const;

 private:
  struct Entry {
    std::weak_ptr<HeldSnapshot> held;
    int64_t taken_micros;  ///< Clock::MonotonicMicros()
    Instant taken;         ///< tests move this clock
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace mayfly

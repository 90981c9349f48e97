#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace mayfly {

/// The keys at the head of a time-ordered index (or of a clustered collection) that the reaper has
/// emptied. Scans skip this range instead of stepping over one deletion for each removed document.
/// After a million removals, this is the difference between 20 us and tens of milliseconds.
///
/// The range is exact. It is not valid for snapshots that are older than itself. A writer whose
/// batch has an earlier date lowers it *before* the batch is visible. Only the thread that applies
/// batches raises it, so no batch comes in between. In memory only: nothing is known after a start.
/// Threads: any.
class ExpiryHead {
 public:
  enum class Order : uint8_t {
    kAscending,
    kDescending,
    kRecords,  ///< clustered, by `_id`
    kBuckets   ///< of a time series, by `_id`
  };
  struct Stretch {
    std::string begin, end;  ///< keys of the keyspace, [begin, end)
    int64_t millis = 0;      ///< nothing is earlier than this
    uint64_t sequence = 0;   ///< for snapshots from this one on
    uint64_t epoch = 0;      ///< as long as this is what is given
  };

  /// No entry comes before `entry`, whose date is `millis`. If `entry` is empty, no entry has an
  /// earlier date. `id`: of the index, or of the collection.
  void Raise(Order order, uint32_t id, int64_t millis, std::string_view entry, uint64_t sequence,
             uint64_t epoch);
  /// An entry with this date is about to become visible. Hot: one comparison where it is later.
  void Lower(int64_t millis) {
    if (millis <= millis_.load(std::memory_order_relaxed)) [[unlikely]]
      LowerTo(millis);
  }
  /// Null: nothing is known. A result with an older `sequence` or another `epoch` than the caller's
  /// must not be used. A reader takes its snapshot first, then calls this.
  std::shared_ptr<const Stretch> Read() const {
    if (millis_.load(std::memory_order_relaxed) == INT64_MIN) return nullptr;
    std::lock_guard l(mutex_);
    return stretch_;
  }
  /// Nothing is known from now on: no reaper here keeps it correct.
  void Forget();

 private:
  void LowerTo(int64_t millis);
  void Publish(std::shared_ptr<const Stretch> s);

  std::atomic<int64_t> millis_{INT64_MIN};  ///< of stretch_; INT64_MIN: none
  mutable std::mutex mutex_;
  std::shared_ptr<const Stretch> stretch_;
  Order order_ = Order::kAscending;
  uint32_t id_ = 0;
};

}  // namespace mayfly

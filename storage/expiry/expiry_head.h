#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace mayfly {

/// The keys at the head of a time-ordered index (or of a clustered collection) among which nothing
/// is left, because the reaper has been there. Who walks the index steps over them instead of over
/// a deletion for each document that has gone: after a million of them the difference between 20 us
/// and tens of milliseconds.
///
/// Exact: it says nothing of snapshots older than itself, and a writer whose batch brings an
/// earlier date takes it back *before* the batch is visible. It is raised by whoever applies
/// batches, one at a time, so no batch is between the two. In memory only: after a start nothing is
/// known. Threads: any.
class ExpiryHead {
 public:
  enum class Order : uint8_t {
    kAscending,
    kDescending,
    kRecords
  };  ///< kRecords: clustered, by `_id`
  struct Stretch {
    std::string begin, end;  ///< keys of the keyspace, [begin, end)
    int64_t millis = 0;      ///< nothing is earlier than this
    uint64_t sequence = 0;   ///< for snapshots from this one on
    uint64_t epoch = 0;      ///< as long as this is what is given
  };

  /// No entry comes before `entry`, whose date is `millis`; empty: no entry has an earlier date.
  /// `id`: the index's, or the collection's.
  void Raise(Order order, uint32_t id, int64_t millis, std::string_view entry, uint64_t sequence,
             uint64_t epoch);
  /// An entry with this date is about to become visible. Hot: one comparison where it is later.
  void Lower(int64_t millis) {
    if (millis <= millis_.load(std::memory_order_relaxed)) [[unlikely]]
      LowerTo(millis);
  }
  /// Null: nothing is known. Of one with an older `sequence` or another `epoch` than the caller's
  /// nothing follows. A reader takes its snapshot first, then calls this.
  std::shared_ptr<const Stretch> Read() const {
    if (millis_.load(std::memory_order_relaxed) == INT64_MIN) return nullptr;
    std::lock_guard l(mutex_);
    return stretch_;
  }
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

#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "server/dispatch/command.h"

namespace mayfly {

/// Wakes tailable awaitData cursors when their collection gets documents. Threads: any. Costs an
/// insert one relaxed load while nobody waits.
class CollectionNotifier {
 public:
  /// After a commit that added documents.
  void Notify(uint32_t collection_id) {
    if (waiters_.load(std::memory_order_seq_cst) != 0) NotifySlow(collection_id);
  }
  /// The number of notifications while somebody watched the collection. Read it before looking for
  /// documents: WaitFor then returns at once if the number has changed.
  class Watch {
   public:
    Watch(CollectionNotifier& n, uint32_t collection_id);
    ~Watch();
    Watch(const Watch&) = delete;
    /// Waits for the next Notify since construction (or since the last WaitFor), the deadline
    /// (Clock::MonotonicMicros), or the kill of the operation. True: notified; false: time is up.
    /// Errors: as Operation::CheckInterrupt.
    Awaitable<Result<bool>> WaitFor(CommandContext& ctx, int64_t deadline_micros);

   private:
    CollectionNotifier& n_;
    const uint32_t id_;
    uint64_t seen_;
  };

 private:
  struct Entry {
    uint64_t version = 0;
    int watchers = 0;
    std::unordered_map<uint64_t, std::function<void()>> waiting;
  };
  void NotifySlow(uint32_t collection_id);

  std::atomic<int64_t> waiters_{0};
  std::mutex mutex_;
  uint64_t next_token_ = 1;
  std::unordered_map<uint32_t, Entry> entries_;
};

}  // namespace mayfly

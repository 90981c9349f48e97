#pragma once
#include <atomic>
#include <cstdint>

namespace mayfly {

/// A watchdog for the io threads, used by tests (parameter ioThreadWatchdogMicros). A handler that
/// runs longer than the limit makes all clients of its thread wait; it is logged, counted, and
/// shown in serverStatus.network. Threads: any.
struct IoWatchdog {
  std::atomic<int64_t> limit_micros{0};  ///< 0: nothing is watched; read when a thread starts
  std::atomic<int64_t> long_handlers{0}, longest_micros{0};

  /// A handler above the limit has ended. `micros`: processor time of its thread, not time that
  /// passed.
  void Saw(int64_t micros) {
    long_handlers.fetch_add(1, std::memory_order_relaxed);
    for (int64_t longest = longest_micros.load();
         longest < micros && !longest_micros.compare_exchange_weak(longest, micros);) {
    }
  }
};

}  // namespace mayfly

#pragma once
#include <atomic>
#include <cstdint>

namespace mayfly {

/// A counter that any thread adds to and serverStatus reads. Relaxed, because it orders no other
/// memory: it is only shown, and a reader of two counters may see them a moment apart.
class Counter {
 public:
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t Get() const { return value_.load(std::memory_order_relaxed); }
  operator int64_t() const { return Get(); }

 private:
  std::atomic<int64_t> value_{0};
};

}  // namespace mayfly

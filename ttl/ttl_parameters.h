#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "storage/counter.h"

namespace mayfly {

/// MongoDB's parameters of the TTL monitor and of batched deletes, with Mayfly's own beside them.
/// Names, defaults and ranges: manual "TTL Indexes" and "MongoDB Server Parameters". Read at every
/// turn, so a change takes effect at once.
struct TtlParameters {
  std::atomic<bool> monitor_enabled{true};
  std::atomic<int64_t> monitor_sleep_secs{60};
  std::atomic<bool> batch_deletes{true};
  std::atomic<int64_t> sub_pass_target_secs{60};
  std::atomic<int64_t> index_delete_target_time_ms{1000};
  std::atomic<int64_t> index_delete_target_docs{50'000};
  std::atomic<int64_t> batch_target_docs{10};
  std::atomic<int64_t> batch_target_time_ms{5};
  std::atomic<int64_t> batch_target_staged_bytes{2'097'152};
  std::atomic<int> monitor_mode{0};      ///< 0 precise, 1 interval
  std::atomic<int> compound_indexes{0};  ///< 0 reject, 1 ignore
  /// Set once, before the first client: runs after each change (any thread, must not block); the
  /// monitor looks again.
  std::function<void()> on_change;
  void Changed() {
    if (on_change) on_change();
  }
};

/// serverStatus.metrics.ttl.
struct TtlMetrics {
  Counter deleted_documents, invalid_index_skips, passes, sub_passes;
};

/// serverStatus.batchedDeletes.
struct BatchedDeleteMetrics {
  Counter batches, docs, staged_size_bytes, time_in_batch_millis, refetches_due_to_yield;
};

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>

#include "storage/write/counter.h"

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
  // Passed on to storage's ExpiryPolicy, which explains them.
  std::atomic<bool> read_filter{false};
  std::atomic<int64_t> metadata_purge_secs{259'200};
  std::atomic<int> monitor_mode{0};             ///< 0 precise, 1 interval
  std::atomic<int> compound_indexes{0};         ///< 0 reject, 1 ignore
  std::atomic<int64_t> max_docs_per_second{0};  ///< over all rules; 0: no limit
  std::atomic<int64_t> max_clock_jump_secs{3600};
  /// How long the server may have been off, by the clock at start-up; 0: any time.
  std::atomic<int64_t> max_downtime_secs{0};
  // The guard (docs/expiry-control.md): ttl_guard.h says what they mean.
  std::atomic<double> guard_max_fraction{0.5};
  std::atomic<int64_t> guard_min_docs{10'000};
  std::atomic<int> guard_action{0};  ///< TtlGuardAction
  /// Set once, before the first client: runs after each change (any thread, must not block); the
  /// monitor looks again.
  std::function<void()> on_change;
  void Changed() {
    if (on_change) on_change();
  }
};

/// How late documents were removed, in milliseconds after their deadline. Eight counts for each
/// power of two, so a percentile is right to 13%. Since start-up. Threads: any.
class LagHistogram {
 public:
  /// Adds `documents` that were `millis` late; less than 0 counts as 0.
  void Record(int64_t millis, int64_t documents = 1) {
    if (millis < 0) millis = 0;
    counts_[Bucket(millis)].Add(documents);
    for (int64_t m = max_.load(std::memory_order_relaxed);
         millis > m && !max_.compare_exchange_weak(m, millis, std::memory_order_relaxed);) {
    }
  }
  /// The least lag that a share `p` of the documents did not exceed; 0 when there were none.
  int64_t Percentile(double p) const {
    int64_t total = 0, seen = 0;
    for (const Counter& c : counts_) total += c;
    if (total == 0) return 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (static_cast<double>(seen) >= p * static_cast<double>(total))
        return std::min(Highest(i), Max());
    }
    return Max();
  }
  int64_t Max() const { return max_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kSteps = 8;
  static size_t Bucket(int64_t millis) {
    if (millis < kSteps) return static_cast<size_t>(millis);
    int shift = 60 - std::countl_zero(static_cast<uint64_t>(millis));  // leaves 4 bits: 8..15
    return static_cast<size_t>(shift * kSteps + (millis >> shift));
  }
  static int64_t Highest(size_t bucket) {
    if (bucket < 2 * kSteps) return static_cast<int64_t>(bucket);
    int shift = static_cast<int>(bucket) / kSteps - 1;
    // Unsigned: behind the last bucket lies 2^63.
    return static_cast<int64_t>(
        ((static_cast<uint64_t>(bucket) - static_cast<uint64_t>(shift * kSteps) + 1) << shift) - 1);
  }
  std::array<Counter, 63 * kSteps> counts_;
  std::atomic<int64_t> max_{0};
};

/// serverStatus.metrics.ttl.
struct TtlMetrics {
  Counter deleted_documents, invalid_index_skips, passes, sub_passes;
  Counter bytes_deleted;  ///< BSON bytes of deleted_documents
  /// The monitor's visits: index entries and documents that they looked at, index entries that they
  /// removed, and how long they took. What others remove is only in deleted_documents.
  Counter examined_keys, examined_documents, deleted_keys, duration_micros;
  Counter archived_documents;
  Counter clock_holds;  ///< times that the clock guard stepped in
  LagHistogram lag;
};

/// serverStatus.batchedDeletes.
struct BatchedDeleteMetrics {
  Counter batches, docs, staged_size_bytes, time_in_batch_millis, refetches_due_to_yield;
};

}  // namespace mayfly

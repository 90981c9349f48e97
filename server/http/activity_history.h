#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "server/base/metrics.h"

namespace mayfly {

/// The server's recent activity, for the charts of the expiry page: documents removed because they
/// were due, operations, and how long they took, in slots of three widths. In memory only, some 20
/// kB; begins empty at start-up. Not thread-safe: the HTTP thread's own.
class ActivityHistory {
 public:
  static constexpr int kSlots = 60;
  /// A minute, 24 minutes and 12 hours a slot: an hour, a day and 30 days together.
  static constexpr std::array<int64_t, 3> kSlotMillis = {60'000, 24 * 60'000, 12 * 3'600'000};

  struct Slot {
    int64_t start_millis = 0;  ///< 0: not used yet
    int64_t reaped = 0, reads = 0, writes = 0;
    int64_t read_p99_micros = 0, write_p99_micros = 0;  ///< of the worst sample in the slot
  };
  /// What changed between two samples.
  struct Sample {
    int64_t reaped = 0, reads = 0, writes = 0;
    int64_t read_p50_micros = 0, read_p99_micros = 0, write_p99_micros = 0;
  };

  /// Reads the counters and adds what has changed to the slots of `now_millis` (wall clock). A
  /// clock that went back adds to the newest slot. The first call only remembers where the counters
  /// stand.
  Sample Take(const ServerMetrics& metrics, int64_t now_millis);
  /// Oldest first, only used ones. `width`: index into kSlotMillis.
  std::vector<Slot> Slots(int width) const;

 private:
  struct Counts {
    int64_t reaped = 0;
    std::array<int64_t, LatencyHistogram::kBuckets> reads{}, writes{};
  };
  static Counts Read(const ServerMetrics& metrics);

  bool started_ = false;
  Counts last_;
  std::array<std::array<Slot, kSlots>, 3> rings_{};
  std::array<int, 3> newest_{};
};

/// The latency below which this share of the operations stayed, in microseconds, read off counts by
/// powers of two: within a bucket they are taken as evenly spread. 0 without operations.
int64_t Quantile(const std::array<int64_t, LatencyHistogram::kBuckets>& buckets, double share);

}  // namespace mayfly

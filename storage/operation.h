#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "protocol/error.h"
#include "protocol/instant.h"
#include "storage/clock.h"

namespace mayfly {

class KvSnapshot;

/// One client operation (or one pass of the reaper) as the layers below the server see it: its single
/// clock reading, how to stop it, and what it has cost so far. Owned by whoever runs the operation;
/// killOp, maxTimeMS and shutdown reach it from other threads through the atomics only.
class Operation {
 public:
  Operation(const Clock& clock, uint64_t id = 0) : now(clock.Now()), id(id), clock_(clock) {}
  Operation(const Operation&) = delete;

  /// Ok, or why the work must stop: Interrupted 11601, MaxTimeMSExpired 50, InterruptedAtShutdown 11600.
  /// Cheap (two relaxed loads; the clock is read every 64th call): call it once a document in every loop.
  Result<void> CheckInterrupt() {
    int32_t k = kill_code.load(std::memory_order_relaxed);
    if (k != 0) [[unlikely]] return Killed(static_cast<ErrorCode>(k));
    if (deadline_micros != 0 && (++checks_ & 63) == 0 && clock_.MonotonicMicros() > deadline_micros) [[unlikely]]
      return Killed(ErrorCode::kMaxTimeMSExpired);
    return Ok();
  }
  const Clock& clock() const { return clock_; }

  const Instant now;                       ///< the clock reading for all this operation does
  const uint64_t id;                       ///< as currentOp shows it
  std::atomic<int32_t> kill_code{0};       ///< 0, or the ErrorCode to stop with
  int64_t deadline_micros = 0;             ///< Clock::MonotonicMicros() when maxTimeMS is up; 0 = none

  /// On a replica set: when the client no longer waits for its write concern (Clock::MonotonicMicros()); 0: never. A commit whose wait ends
  /// there reports success and sets `commit_timed_out`: its outcome is not known yet.
  int64_t commit_deadline_micros = 0;
  bool commit_timed_out = false;
  /// Read everything at this point (readConcern snapshot), which is the set's time `read_ts`; null: now.
  std::shared_ptr<const KvSnapshot> read_snapshot;
  uint64_t read_ts = 0;
  /// Timestamp of the last unit this operation submitted to the log; 0: none. Its operationTime.
  uint64_t commit_ts = 0;

  // What currentOp, the profiler and explain report. Written by the thread that runs the operation.
  int64_t keys_examined = 0;
  int64_t docs_examined = 0;
  int64_t n_returned = 0;
  int64_t n_inserted = 0, n_deleted = 0, n_matched = 0, n_modified = 0;
  int64_t keys_inserted = 0, keys_deleted = 0;
  int64_t write_conflicts = 0;
  int64_t yields = 0;

 private:
  static Error Killed(ErrorCode code);
  const Clock& clock_;
  uint32_t checks_ = 0;
};

}  // namespace mayfly

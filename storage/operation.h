#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/error.h"
#include "protocol/instant.h"
#include "protocol/value.h"
#include "storage/clock.h"

namespace mayfly {

class ReadView;
struct UserAccess;  // security/user_cache.h; this layer only keeps it alive

/// One client operation (or one pass of the reaper) as the layers below the server see it: its
/// single clock reading, how to stop it, and its costs so far. Owned by the code that runs the
/// operation; killOp, maxTimeMS and shutdown reach it from other threads through the atomics only.
class Operation {
 public:
  Operation(const Clock& clock, uint64_t id = 0) : now(clock.Now()), id(id), clock_(clock) {}
  Operation(const Operation&) = delete;

  /// Ok, or why the work must stop: Interrupted 11601, MaxTimeMSExpired 50, InterruptedAtShutdown
  /// 11600, or an error without a meaning of its own when a slice is spent.
  /// Cheap (a relaxed load and a count; the clock is read every 64th call): call it once a document
  /// in every loop.
  Result<void> CheckInterrupt() {
    int32_t k = kill_code.load(std::memory_order_relaxed);
    if (k != 0) [[unlikely]]
      return Killed(static_cast<ErrorCode>(k));
    if (--checks_left_ <= 0) [[unlikely]]
      return CheckTime();
    return Ok();
  }
  /// The same, but always reads the clock: before or after a long step.
  Result<void> CheckInterruptNow() {
    checks_left_ = 0;
    return CheckInterrupt();
  }
  const Clock& clock() const { return clock_; }
  /// The user that it runs for; null: access control is off, or it is the server's own. The
  /// operation owns what it is given, so a login of its connection that changes or ends meanwhile
  /// takes nothing away from it. What outlives the operation (a cursor) asks the operation that
  /// runs then. By the thread that runs the operation.
  const std::shared_ptr<const UserAccess>& user() const { return user_; }
  /// The user's roles ($$USER_ROLES), an array; null: no particular user. Part of user().
  const Value* user_roles() const { return user_roles_; }
  void SetUser(std::shared_ptr<const UserAccess> user, const Value* roles) {
    user_ = std::move(user);
    user_roles_ = roles;
  }
  /// After a wait for something that comes before the operation, which has done nothing yet: its
  /// time is that of now. By the thread that runs it.
  void ReadClock() { now = clock_.Now(); }

  // --- a slice: work that is tried on a thread others wait for, and restarted elsewhere if it
  // proves long. By the thread that runs the operation only.

  /// From now on CheckInterrupt fails once `micros` (of Clock::MonotonicMicros) have passed, and
  /// goes on failing.
  void BeginSlice(int64_t micros);
  /// The work is no longer bounded. `finished` false: its counts are taken back, because it starts
  /// again.
  void EndSlice(bool finished);
  bool in_slice() const { return slice_end_ != 0; }
  /// Bytes of the largest document of the last slice; 0: all were small.
  size_t largest_in_slice() const { return largest_in_slice_; }
  /// Before a document is looked into: in a slice a large one lets the clock be looked at sooner,
  /// and a very large one, on which a single step may take long, ends the slice.
  Result<void> Charge(size_t bytes) {
    if (bytes < kLargeDocument || !in_slice()) [[likely]]
      return Ok();
    return ChargeLarge(bytes);
  }
  /// Adds one to `counter`, a member of `*owner`; in a slice, once it has finished.
  template <class Owner>
  void CountUse(const std::shared_ptr<Owner>& owner, std::atomic<int64_t>& counter) {
    if (!in_slice())
      counter.fetch_add(1, std::memory_order_relaxed);
    else
      uses_.emplace_back(owner, &counter);
  }

  /// The clock reading for all this operation does: of when it began or, if it reads at a point in
  /// time that is older, of that point (ReadPoint::now) or transaction.
  Instant now;
  const uint64_t id;                        ///< as currentOp shows it
  std::atomic<int32_t> kill_code{0};        ///< 0, or the ErrorCode to stop with
  std::atomic<bool> waits_for_lock{false};  ///< set by LockWait
  /// It reads documents that have credentials, by whatever name or view: neither its command nor
  /// its error is shown whole. A cursor hands it on to its getMores.
  std::atomic<bool> reads_credentials{false};
  int64_t deadline_micros = 0;  ///< Clock::MonotonicMicros() when maxTimeMS is up; 0 = none

  /// On a replica set: when the client no longer waits for its write concern
  /// (Clock::MonotonicMicros()); 0: never. A commit whose wait ends there reports success and sets
  /// `commit_timed_out`: its outcome is not known yet.
  int64_t commit_deadline_micros = 0;
  bool commit_timed_out = false;
  /// The snapshot of all reads of this operation (read concern snapshot, transactions), at the
  /// set's time `read_ts`; null: each takes the latest.
  std::shared_ptr<const ReadView> view;
  uint64_t read_ts = 0;
  /// On a replica set: its time when the operation began ($$CLUSTER_TIME); 0: a standalone.
  uint64_t cluster_time = 0;
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
  /// Of sorts that no index did: the documents, their bytes, and how often one went to disk.
  int64_t sorted_keys = 0, sorted_bytes = 0, sort_spills = 0;
  /// It has results of such a sort; something of it is on disk; plans have raced for it, though the
  /// slice may have ended behind the race.
  bool has_sort_stage = false, used_disk = false, from_multi_planner = false;

 private:
  static constexpr int32_t kChecks = 64, kChecksInSlice = 8;  ///< between looks at the clock
  static Error Killed(ErrorCode code);
  static constexpr size_t kLargeDocument = 8 << 10, kVeryLargeDocument = 64 << 10;
  Result<void> CheckTime();
  Result<void> ChargeLarge(size_t bytes);
  const Clock& clock_;
  int32_t checks_left_ = kChecks;
  int64_t slice_end_ = 0;  ///< Clock::MonotonicMicros(); 0: no slice
  size_t largest_in_slice_ = 0;
  std::vector<std::shared_ptr<std::atomic<int64_t>>> uses_;
  std::shared_ptr<const UserAccess> user_;
  const Value* user_roles_ = nullptr;
};

/// While it lives its operation waits for a lock: what currentOp shows as waitingForLock.
class LockWait {
 public:
  explicit LockWait(Operation& op) : op_(op) { Set(true); }
  ~LockWait() { Set(false); }
  LockWait(const LockWait&) = delete;

 private:
  void Set(bool waits) { op_.waits_for_lock.store(waits, std::memory_order_relaxed); }
  Operation& op_;
};

}  // namespace mayfly

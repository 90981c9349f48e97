#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "protocol/seeded_hash.h"
#include "storage/storage.h"
#include "ttl/clock_guard.h"
#include "ttl/ttl_environment.h"
#include "ttl/ttl_parameters.h"
#include "ttl/ttl_reaper.h"
#include "ttl/ttl_schedule.h"

namespace mayfly {

/// Removes what is due. One thread, which sleeps until the next deadline of any rule (precise mode)
/// and runs MongoDB's passes and sub-passes every ttlMonitorSleepSecs (docs/expiry.md T1-T8).
/// Deletes go through write units like a client's. The clock is the injected one; a clock moved by
/// hand wakes it.
///
/// In precise mode rules that have something due take turns of some milliseconds, so that a small
/// one does not wait for a large one; a pass then ends when nothing is due. In interval mode passes
/// have MongoDB's limits.
///
/// Threads: the public functions, any. Owned by main; stopped before the storage closes.
class TtlMonitor {
 public:
  TtlMonitor(Storage& storage, Clock& clock, const TtlParameters& parameters, TtlMetrics& metrics,
             BatchedDeleteMetrics& batched, TtlEnvironment environment);
  ~TtlMonitor();
  /// Opens the clock guard, listens for changes of catalog and clock, and starts the thread. Once,
  /// with the storage open.
  void Start();
  void
  Stop();  ///< stops in the middle of a visit, between batches; returns when the thread has ended

  /// Looks again: a parameter changed.
  void Wake();
  /// What TtlEnvironment's may_reap or held answer has changed (a pause, hold or guard was set or
  /// released): rules that waited and documents that were left behind are looked at again.
  void ControlsChanged();
  /// Runs one pass and returns when it is over, or when `op` (null: nobody) is interrupted; the
  /// pass goes on then. Blocking; not for io threads.
  void RunPass(Operation* op = nullptr);
  /// Returns when everything due at the clock's present reading has been removed (in interval
  /// mode: when the passes due by now have run), except what must wait (paused, held, limited), or
  /// when `op` (null: nobody) is interrupted. Blocking.
  void Settle(Operation* op = nullptr);

  /// What is known of a rule (ListTtlRules names them all).
  TtlRuleFigures Figures(const TtlRule& rule) const { return states_.Figures(rule, clock_.Now()); }
  ClockGuard& clock_guard() { return guard_; }
  /// Takes the clock as right after it had jumped; false when expiry was not suspended.
  bool ConfirmClock();

 private:
  void Run();
  /// Until `*count` is `wanted`. REQUIRES: `l` holds mutex_.
  void Await(std::unique_lock<std::mutex>& l, const uint64_t* count, uint64_t wanted,
             Operation* op);
  bool Enabled() const;
  bool Stopping() const { return stop_.load(std::memory_order_relaxed); }
  bool KeepOn() const { return !Stopping() && Enabled(); }
  void IntervalPass(Instant at);
  void PrecisePass();
  /// Removes what is due, rule by rule in turns, until nothing is. `pass`: it is part of a pass,
  /// whose sub-passes are counted. False when the work was interrupted.
  bool WorkOff(bool pass);
  /// One visit, and where the rule goes from there. False when the rule must wait.
  bool VisitSlot(TtlSlot& slot, Instant now, VisitLimits limits, Visit* visit);
  /// Whether the rule may be worked on now; else puts it where it has to wait.
  bool Admit(TtlSlot& slot, Instant now, VisitLimits* limits);
  void ReportInvalid();
  /// Drops the tombstones that are old enough.
  void Purge();
  void Log(char severity, std::string_view message, const TtlRule* rule,
           const std::function<void(BsonBuilder&)>& more = {});

  Storage& storage_;
  Clock& clock_;
  const TtlParameters& parameters_;
  TtlMetrics& metrics_;
  const TtlEnvironment env_;
  TtlRuleStates states_;
  ClockGuard guard_;

  // The thread's own.
  TtlSchedule schedule_;
  TtlReaper reaper_;
  RateLimiter limiter_;                ///< of ttlMaxDocsPerSecond
  int64_t limited_until_ = INT64_MIN;  ///< ms
  ClientStringSet reported_;           ///< index and reason: logged once
  int64_t next_pass_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  bool woken_ = false, reconsider_ = false;
  uint64_t passes_wanted_ = 0, passes_done_ = 0, settles_wanted_ = 0, settles_done_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mayfly

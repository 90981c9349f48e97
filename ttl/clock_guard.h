#pragma once
#include <atomic>
#include <functional>
#include <mutex>

#include "storage/storage.h"
#include "ttl/ttl_parameters.h"

namespace mayfly {

/// Watches the wall clock, by which documents expire. The guard compares it with the elapsed time
/// and, at start-up, with the latest time of the previous run. A jump in either direction beyond
/// ttlMaxClockJumpSecs suspends reaping and read filtering (ExpiryPolicy::suspended), until
/// somebody confirms the new time or the clock comes back (docs/expiry.md, "When the clock goes
/// wrong"). After a long downtime the clock is ahead without a jump. So at start-up a clock ahead
/// of the mark counts only beyond ttlMaxDowntimeSecs, if that is set. A suspension survives a
/// restart.
///
/// Threads: Open() first, Check() by the monitor; the others by any.
class ClockGuard {
 public:
  /// `elapsed_micros`: time that has really passed, sleep of the machine included; differences
  /// only.
  ClockGuard(Storage& storage, Clock& clock, const TtlParameters& parameters, TtlMetrics& metrics,
             std::function<int64_t()> elapsed_micros,
             std::function<void(char severity, std::string_view message, BsonView)> log);

  /// Compares the clock with the high-water mark that the previous run stored, and takes up its
  /// suspension if there was one. Once, with the storage open, before the first Check().
  void Open();
  /// Compares; call it at least about every second. Writes the high-water mark once a minute, and
  /// all changes, unless the store must not be written to now (`may_write`).
  void Check(bool may_write);
  /// The clock is right as it is now; the next Check() makes it permanent. False when nothing was
  /// suspended.
  bool Confirm();
  /// The clock is about to be moved by hand (--testClock); until AfterJump() nothing is compared.
  void AboutToMove();
  /// It was moved: this is no jump, unless TakeNextAsJump was called.
  void AfterJump();
  void TakeNextAsJump();

  /// The time for data that cannot be corrected later: what is sent to the members of a replica
  /// set. It is the clock's time or, while the clock is beyond the limit (also before Check() has
  /// noticed), the last right time plus the elapsed time. Any thread; no lock.
  Instant RightTime() const;

  /// For ttlStatus and the page.
  struct State {
    bool suspended = false;
    bool downtime = false;  ///< because at start-up the clock said that the server was off too long
    Instant since{};        ///< what the clock read when it was found to have jumped
    Instant expected{};     ///< what it should read now
  };
  /// A copy; `expected` is worked out at the call.
  State state() const;

 private:
  void Suspend(Instant now, int64_t expected, bool downtime = false);
  /// The error of the clock at which expiry resumes, ms. 0: no suspension for this reason.
  int64_t Limit() const {
    return (downtime_ ? parameters_.max_downtime_secs : parameters_.max_clock_jump_secs).load() *
           1000;
  }
  void Release(const char* why);
  void Save();
  int64_t Expected() const { return base_wall_ + (elapsed_() - base_elapsed_) / 1000; }
  void SetBase(int64_t wall_millis);
  void Log(char severity, std::string_view message, int64_t expected);

  Storage& storage_;
  Clock& clock_;
  const TtlParameters& parameters_;
  TtlMetrics& metrics_;
  const std::function<int64_t()> elapsed_;
  const std::function<void(char, std::string_view, BsonView)> log_;

  mutable std::mutex mutex_;
  int64_t base_wall_ = 0, base_elapsed_ = 0;  ///< a time that was right; ms and us
  static constexpr int64_t kNoBase = INT64_MIN;
  std::atomic<int64_t> base_us_{kNoBase};  ///< base_wall_ less base_elapsed_
  int64_t saved_ = INT64_MIN;              ///< the mark as it is stored, ms
  bool dirty_ = false;                     ///< the stored state is out of date
  bool suspended_ = false, downtime_ = false;
  Instant since_{};
  int moving_ = 0;      ///< threads that move the clock just now
  bool moved_ = false;  ///< the time is not the system's any more: it leaves no mark
  bool excused_ = false, take_as_jump_ = false, jumped_ = false;
};

}  // namespace mayfly

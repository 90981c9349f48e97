#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <vector>

#include "protocol/instant.h"

namespace mayfly {

/// The only source of time. One Clock per process, passed to all code that needs it. Nothing else
/// reads the system's clock, so tests and replay choose the time. Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  /// UTC wall clock.
  virtual Instant Now() const = 0;
  /// Microseconds that only go forward; differences only. Timeouts and latencies use it.
  virtual int64_t MonotonicMicros() const = 0;
  /// Calls `wake` (from any thread, must not block) whenever Now() was moved by hand, so that
  /// threads that sleep until a deadline look again. Registered for the life of the process.
  virtual void OnJump(std::function<void()> wake) = 0;
  /// Calls `about_to` before Now() is moved by hand; each call is followed by one of OnJump's.
  virtual void BeforeJump(std::function<void()> about_to) { (void)about_to; }
};

/// The system's clocks, optionally shifted or frozen: `--testClock` and tests move it, production
/// never does.
class SystemClock final : public Clock {
 public:
  Instant Now() const override {
    int64_t frozen = frozen_.load(std::memory_order_acquire);
    if (frozen != kRunning) return {frozen};
    return {RealMillis() + offset_.load(std::memory_order_relaxed)};
  }
  int64_t MonotonicMicros() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void OnJump(std::function<void()> wake) override {
    std::lock_guard l(mutex_);
    listeners_.push_back(std::move(wake));
  }
  void BeforeJump(std::function<void()> about_to) override {
    std::lock_guard l(mutex_);
    before_.push_back(std::move(about_to));
  }
  bool frozen() const { return frozen_ != kRunning; }
  /// Sets the wall clock to `t`; it stays frozen if it was.
  void Set(Instant t) {
    Notify(before_);
    if (frozen()) frozen_ = t.millis;
    offset_ = t.millis - RealMillis();
    Notify(listeners_);
  }
  void Advance(int64_t millis) { Set({Now().millis + millis}); }
  /// Stops the wall clock at what it shows, or lets it go on from there; the monotonic one always
  /// runs. Harmless when repeated.
  void Freeze(bool on) {
    Notify(before_);
    if (on && !frozen())
      frozen_ = Now().millis;
    else if (!on && frozen()) {
      offset_ = frozen_ - RealMillis();
      frozen_ = kRunning;
    }
    Notify(listeners_);
  }
  /// Back to the system's time.
  void Reset() {
    Notify(before_);
    frozen_ = kRunning;
    offset_ = 0;
    Notify(listeners_);
  }

 private:
  static constexpr int64_t kRunning = INT64_MIN;
  static int64_t RealMillis() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  void Notify(const std::vector<std::function<void()>>& whom) {
    std::vector<std::function<void()>> copy;
    {
      std::lock_guard l(mutex_);
      copy = whom;
    }
    for (auto& f : copy) f();
  }
  std::atomic<int64_t> offset_{0};
  std::atomic<int64_t> frozen_{kRunning};
  std::mutex mutex_;
  std::vector<std::function<void()>> listeners_, before_;
};

}  // namespace mayfly

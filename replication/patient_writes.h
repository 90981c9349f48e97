#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

/// Waits for a store that has no room now (a full disk, no file descriptors) and will have some
/// again: a member must not end for that, because it often happens to all members at once. These
/// writes give the same result however often they are tried. Threads: any.
class PatientWrites {
 public:
  /// `log`: severity and line, when a wait begins and ends; any of the waiting threads.
  explicit PatientWrites(std::function<void(char, std::string_view)> log) : log_(std::move(log)) {}

  /// Whether a later try may succeed without any action in this process.
  static bool MaySucceedLater(const Error& e) { return e.code == ErrorCode::kOutOfDiskSpace; }

  /// Tries again, ten times a second, until it succeeds or fails for good. `meanwhile` runs before
  /// each try and may be empty. REQUIRES: the first try has failed with `why`, which
  /// MaySucceedLater. Errors: InterruptedAtShutdown after Stop, what `attempt` says for good.
  Result<void> Await(const Error& why, const std::function<Result<void>()>& attempt,
                     const std::function<void()>& meanwhile = {});
  /// A thread waits: this member acknowledges nothing and must not lead.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  /// All waiters give up, now and later.
  void Stop();

 private:
  const std::function<void(char, std::string_view)> log_;
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
};

}  // namespace mayfly

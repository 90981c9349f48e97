#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace mayfly {

/// How much the reaper does at once, and how long it rests in between. While clients are served
/// (some hundred requests a second), a group of deletes lasts about half a millisecond and a pause
/// follows; on a machine with more work than cores, where the group took longer than its own CPU
/// time or the rest ended late, the pause grows with that. While nobody else is there, groups are
/// large and there are no pauses. Rests are outside any lock, batch or write unit. The monitor
/// thread's own, but for Stop().
class ReapPacer {
 public:
  /// `requests`: of clients so far; empty: nobody is there.
  explicit ReapPacer(std::function<int64_t()> requests);

  /// Documents for the next group, 1 to kLargest.
  size_t GroupSize() const;
  void Begin();
  /// A group is done and nothing is held: rests if it should.
  void End(size_t documents);
  void Stop();  ///< ends a rest; any thread

  static constexpr size_t kLargest = 512;

 private:
  void Rest(int64_t micros);
  std::function<int64_t()> requests_;
  bool busy_ = false;
  int64_t window_begin_ = 0, window_requests_ = 0;
  int64_t begin_wall_ = 0, begin_cpu_ = 0;
  double micros_per_document_ = 10;
  int64_t late_ = 0;  ///< how much longer than asked for the latest rests were, microseconds
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
};

}  // namespace mayfly

#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace mayfly {

/// Sets the size of the reaper's groups and the pauses between them. While clients are active (some
/// hundred requests a second), a group of deletes takes about half a millisecond and a pause
/// follows. The pause grows on a busy machine, where a group takes longer than its CPU time or a
/// pause ends late. Without clients, groups are large and there are no pauses. Pauses are outside
/// any lock, batch or write unit. Threads: the monitor's; Stop() from any.
class ReapPacer {
 public:
  /// `requests`: number of client requests so far; empty: no clients.
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

#include "ttl/reap_pacer.h"

#include <time.h>

#include <algorithm>
#include <chrono>

namespace mayfly {
namespace {

constexpr int64_t kSliceMicros = 500;  ///< of a group while clients are served
constexpr int64_t kPauseMicros = 300;  ///< after it
constexpr int64_t kLongestPause = 3'000;
constexpr size_t kSmallest = 32;
constexpr int64_t kWindow =
    20'000;  ///< microseconds between two checks whether clients are being served
/// Requests per second from which on clients count as being served.
constexpr int64_t kBusyRate = 200;

int64_t Micros(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

}  // namespace

// Pauses depend on the machine, not on the time of the data. So they use the system's clocks, not
// the injected one.
ReapPacer::ReapPacer(std::function<int64_t()> requests) : requests_(std::move(requests)) {}

size_t ReapPacer::GroupSize() const {
  if (!busy_) return kLargest;
  const double fit = static_cast<double>(kSliceMicros) / micros_per_document_;
  return std::clamp(static_cast<size_t>(fit), kSmallest, kLargest);
}

void ReapPacer::Begin() {
  begin_wall_ = Micros(CLOCK_MONOTONIC);
  begin_cpu_ = Micros(CLOCK_THREAD_CPUTIME_ID);
}

void ReapPacer::End(size_t documents) {
  const int64_t now = Micros(CLOCK_MONOTONIC);
  const int64_t wall = now - begin_wall_, cpu = Micros(CLOCK_THREAD_CPUTIME_ID) - begin_cpu_;
  // Judged by CPU time: a group that had to wait for the processor would not have been quicker with
  // fewer documents.
  if (documents > 0)
    micros_per_document_ =
        0.8 * micros_per_document_ +
        0.2 * std::clamp(static_cast<double>(cpu) / static_cast<double>(documents), 1.0, 1000.0);
  if (requests_) {
    if (const int64_t passed = now - window_begin_; passed >= kWindow) {
      const int64_t requests = requests_();
      busy_ = (requests - window_requests_) * 1'000'000 >= kBusyRate * passed;
      window_begin_ = now;
      window_requests_ = requests;
    }
  }
  if (!busy_) return;
  // The time in which this thread did not run: others needed the processor, or the disk was slow.
  const int64_t waited = std::max<int64_t>(wall - cpu - 100, 0);
  const int64_t pause = std::min(kPauseMicros + waited + 2 * late_, kLongestPause);
  Rest(pause);
  // Threads that serve clients wait for the processor as this one has just done. On a machine with
  // few cores they mostly wait for the store, which flushes and compacts what is deleted here.
  const int64_t late = std::max<int64_t>(Micros(CLOCK_MONOTONIC) - now - pause - 100, 0);
  late_ = (3 * late_ + late) / 4;
}

void ReapPacer::Stop() {
  {
    std::lock_guard l(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void ReapPacer::Rest(int64_t micros) {
  std::unique_lock l(mutex_);
  wake_.wait_for(l, std::chrono::microseconds(micros), [this] { return stop_; });
}

}  // namespace mayfly

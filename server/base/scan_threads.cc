#include "server/base/scan_threads.h"

#include <system_error>
#include <utility>

#include "storage/kv/thread_scheduling.h"

namespace mayfly {

namespace {
/// As that of the workers which are added when all are held.
constexpr int kScanNice = 5;
}  // namespace

ScanThreads::ScanThreads(const WorkerPool& workers, const std::atomic<int64_t>& most,
                         const std::atomic<int64_t>& after, std::function<void()> begin)
    : workers_(workers), most_(most), after_(after), begin_(std::move(begin)) {}

ScanThreads::~ScanThreads() {
  {
    std::lock_guard l(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

bool ScanThreads::TryRun(std::function<void()> f) {
  std::lock_guard l(mutex_);
  const auto taken = busy_ + static_cast<int64_t>(asked_.size());
  if (stop_ || taken >= most()) return false;
  if (taken >= static_cast<int64_t>(threads_.size())) {
    try {
      // bounded: by the parameter's range
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {
      return false;  // there are no more threads
    }
  }
  asked_.push_back(std::move(f));
  wake_.notify_one();
  return true;
}

void ScanThreads::Loop() {
  begin_();
  UseBackgroundScheduling(kScanNice);
  std::unique_lock l(mutex_);
  for (;;) {
    wake_.wait(l, [this] { return stop_ || !asked_.empty(); });
    if (stop_) return;
    {
      const std::function<void()> f = std::exchange(asked_.front(), nullptr);
      asked_.pop_front();
      ++busy_;
      l.unlock();
      f();
      l.lock();
    }
    --busy_;
  }
}

}  // namespace mayfly

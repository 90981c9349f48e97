#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "query/plan/scan_helpers.h"
#include "server/base/worker_pool.h"

namespace mayfly {

/// The threads that help long scans. They run at lower priority than all that serve clients, begin
/// when the first scan asks for one, and stay out of the way while clients wait for a worker.
class ScanThreads final : public ScanHelpers {
 public:
  /// `most`, `after`: parameters, read each time. `begin` is called first on each thread. All of
  /// them outlive it.
  ScanThreads(const WorkerPool& workers, const std::atomic<int64_t>& most,
              const std::atomic<int64_t>& after, std::function<void()> begin);
  /// What runs is waited for; what has not begun does not run. REQUIRES: no scan is left.
  ~ScanThreads() override;

  int64_t most() const override { return most_.load(std::memory_order_relaxed); }
  int64_t after() const override { return after_.load(std::memory_order_relaxed); }
  bool TryRun(std::function<void()> f) override;
  /// Threads have joined the pool because all others were held.
  bool Wanted() const override { return workers_.extra_threads() > 0; }

 private:
  void Loop();

  const WorkerPool& workers_;
  const std::atomic<int64_t>&most_, &after_;
  const std::function<void()> begin_;
  std::mutex mutex_;  ///< of what follows
  std::condition_variable wake_;
  std::deque<std::function<void()>> asked_;
  std::vector<std::thread> threads_;
  int64_t busy_ = 0;
  bool stop_ = false;
};

}  // namespace mayfly

#pragma once
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace mayfly {

/// Threads for work that may take long or block: scans, sorts, builds, lock waits. One queue, first
/// come first served. A few threads keep the cores busy; when all of them are held by long jobs and
/// others wait, more threads join for a while, so that a few slow queries never keep everybody else
/// waiting.
class WorkerPool {
 public:
  /// `begin` is called first on each of its threads. `report` is called inside a catch block when a
  /// posted job has thrown: a bug, which ends that job alone.
  WorkerPool(unsigned threads, std::function<void()> begin, std::function<void()> report);
  ~WorkerPool() { Join(); }
  using Executor = boost::asio::io_context::executor_type;
  Executor executor() { return io_.get_executor(); }
  /// Runs `f` on one of the threads. It is moved, not copied, and what it throws goes to `report`.
  template <class F>
  void Post(F&& f) {
    // Counted before it is posted: the thread that takes it counts it down.
    Queued();
    boost::asio::post(io_, [this, f = std::forward<F>(f)]() mutable {
      Started();
      try {
        f();
      } catch (...) {
        report_();
      }
    });
  }
  /// Who posts to executor() says so before, and first thing on the thread.
  void Queued() {
    waiting_.fetch_add(1);
    if (!watching_.load()) Watch();
  }
  /// On the pool's thread; one call for each of Queued.
  void Started() {
    started_.fetch_add(1, std::memory_order_relaxed);
    waiting_.fetch_sub(1);
  }
  unsigned threads() const { return threads_; }
  static constexpr unsigned kMaxExtra = 512;  ///< extra_threads() at most
  /// Threads that have joined because all others were held.
  unsigned extra_threads() const { return extra_.load(std::memory_order_relaxed); }
  /// Waits for what was posted; nothing may be posted afterwards.
  void Join();

 private:
  void Watch();
  void WatchLoop();
  void AddExtra();

  const unsigned threads_;
  const std::function<void()> begin_, report_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<Executor> work_;
  std::atomic<int64_t> waiting_{0};
  std::atomic<uint64_t> started_{0};
  std::atomic<unsigned> extra_{0};
  std::atomic<bool> watching_{false};
  std::mutex mutex_;  ///< of stop_ and the lists
  std::condition_variable wake_;
  bool stop_ = false;
  struct Extra {
    std::thread thread;
    std::atomic<bool> done{false};
  };
  std::list<std::thread> base_;
  std::list<Extra> extras_;
  std::thread watcher_;
};

}  // namespace mayfly

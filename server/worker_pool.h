#pragma once
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>

namespace mayfly {

/// Threads for what may take long or block: scans, sorts, builds, lock waits. One queue, first come
/// first served.
class WorkerPool {
 public:
  /// `report` is called inside a catch block when a posted job has thrown: a bug, which ends that
  /// job alone.
  WorkerPool(unsigned threads, std::function<void()> report)
      : threads_(threads), report_(std::move(report)), pool_(threads) {}
  ~WorkerPool() { Join(); }
  using Executor = boost::asio::thread_pool::executor_type;
  Executor executor() { return pool_.get_executor(); }
  template <class F>
  void Post(F&& f) {
    boost::asio::post(pool_, [this, f = std::forward<F>(f)]() mutable {
      try {
        f();
      } catch (...) {
        report_();
      }
    });
  }
  unsigned threads() const { return threads_; }
  /// Waits for what was posted; nothing may be posted afterwards.
  void Join() { pool_.join(); }

 private:
  const unsigned threads_;
  const std::function<void()> report_;
  boost::asio::thread_pool pool_;
};

}  // namespace mayfly

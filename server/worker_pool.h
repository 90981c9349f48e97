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
  explicit WorkerPool(unsigned threads) : threads_(threads), pool_(threads) {}
  ~WorkerPool() { Join(); }
  using Executor = boost::asio::thread_pool::executor_type;
  Executor executor() { return pool_.get_executor(); }
  template <class F>
  void Post(F&& f) {
    boost::asio::post(pool_, std::forward<F>(f));
  }
  unsigned threads() const { return threads_; }
  /// Waits for what was posted; nothing may be posted afterwards.
  void Join() { pool_.join(); }

 private:
  const unsigned threads_;
  boost::asio::thread_pool pool_;
};

}  // namespace mayfly

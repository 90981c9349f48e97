#pragma once
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace mayfly {

/// Where TLS handshakes of clients are computed: threads of their own that give way to all others,
/// half as many as there are processors. So a flood of handshakes keeps no client waiting that has
/// its connection already. And a count of those under way: when there are too many, the oldest goes
/// for the new one, because a client that means it answers at once. Threads: any.
class Handshakes {
 public:
  /// A handshake that is under way, until it is destroyed. Belongs to one Handshakes, which
  /// outlives it.
  class Place {
   public:
    Place() = default;
    Place(const Place&) = delete;
    ~Place() { Leave(); }
    /// The handshake is over; once this returns, `evict` is not called any more. Harmless when
    /// repeated. Not from `evict`, which is called under the lock.
    void Leave();

   private:
    friend class Handshakes;
    struct Entry {
      std::function<void()> evict;
      bool told = false;
    };
    Handshakes* all_ = nullptr;
    std::list<Entry>::iterator at_;
  };

  Handshakes();
  ~Handshakes();
  using Executor = boost::asio::io_context::executor_type;
  Executor executor() { return context_.get_executor(); }
  /// `evict` is called at most once, from any thread and under a lock, when the place is needed for
  /// another one; it must not block. Above `most` the oldest is told to go. REQUIRES: `place` is of
  /// none yet.
  void Enter(Place& place, size_t most, std::function<void()> evict);
  /// Waits for what was posted; nothing may be posted afterwards.
  void Join();

 private:
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<Executor> work_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::list<Place::Entry> under_way_;  ///< the oldest first
  std::list<Place::Entry> told_;       ///< to go, and not gone yet
};

}  // namespace mayfly

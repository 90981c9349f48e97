#pragma once
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace mayfly {

/// Where TLS handshakes of clients are computed: threads of their own that give way to all others,
/// half as many as there are processors. So a flood of handshakes does not delay clients that are
/// already connected. Handshakes in progress are counted: if there are too many, the oldest is
/// closed for the new one, because an honest client answers at once. For the same reason what came
/// last takes turns with what has waited longest: a crowd that is silent afterwards keeps nobody
/// waiting. What is closed is not computed. Threads: any.
class Handshakes {
 public:
  /// A handshake that is under way, until it is destroyed. Belongs to one Handshakes, which
  /// outlives it.
  class Place {
   public:
    Place() = default;
    Place(const Place&) = delete;
    ~Place() { Leave(); }
    /// The handshake is over; once this returns, `evict` is not called any more, nor is work that
    /// has not begun. Harmless when repeated. Not from `evict`, which is called under the lock.
    void Leave();
    /// Runs `work` on one of the threads: this handshake's next step. REQUIRES: a place; the former
    /// step has ended, or was taken back.
    void Compute(std::function<void()> work);
    /// Takes back work that has not begun. False: there is none; it runs or has run.
    bool TakeBack();

   private:
    friend class Handshakes;
    struct Entry {
      std::function<void()> evict;
      bool told = false;
    };
    struct Work {
      Place* of;
      std::function<void()> run;
    };
    Handshakes* all_ = nullptr;
    std::list<Entry>::iterator at_;
    std::optional<std::list<Work>::iterator> work_;  ///< under the lock
  };

  Handshakes();
  ~Handshakes();
  /// `evict` is called at most once, from any thread and under a lock, when the place is needed for
  /// another one; it must not block. Above `most` the oldest is told to go. REQUIRES: `place` is of
  /// none yet.
  void Enter(Place& place, size_t most, std::function<void()> evict);
  /// Waits for what was posted; nothing may be posted afterwards.
  void Join();

 private:
  using Executor = boost::asio::io_context::executor_type;
  /// The newest step and the oldest in turn.
  void RunNext();

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<Executor> work_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::list<Place::Entry> under_way_;  ///< the oldest first
  std::list<Place::Entry> told_;       ///< to go, and not gone yet
  std::list<Place::Work> waiting_;     ///< to be computed, the newest last
};

}  // namespace mayfly

#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/error.h"

namespace mayfly {

class Operation;

/// The order in which changes of users and roles are made, one after another. Owners take turns,
/// whoever has waited longest since his last one first, so that many changes of one do not keep
/// those of others waiting for more than the one that runs; each owner's come in their order.
/// Threads: any.
class ChangeQueue {
 public:
  /// How long Take waits.
  static constexpr auto kWait = std::chrono::seconds(30);

  /// The right to make a change, until it goes. Outlived by its queue.
  class Turn {
   public:
    Turn() = default;
    Turn(Turn&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)) {}
    Turn& operator=(Turn&& other) noexcept {
      std::swap(queue_, other.queue_);
      return *this;
    }
    ~Turn() {
      if (queue_ != nullptr) queue_->Give();
    }

   private:
    friend class ChangeQueue;
    explicit Turn(ChangeQueue* queue) : queue_(queue) {}
    ChangeQueue* queue_ = nullptr;
  };

  /// Waits for a turn of `owner`. Errors: those of CheckInterruptNow; LockTimeout 24 after kWait.
  Result<Turn> Take(Operation& op, std::string_view owner);
  /// How many wait now.
  size_t waiting() const;

 private:
  struct Waiter {
    std::string owner;
    bool called = false;  ///< it has the turn
    std::condition_variable wake{};
  };
  void Give();
  /// Calls the next, if the turn is free. REQUIRES: mutex_ held.
  void CallLocked();

  mutable std::mutex mutex_;
  bool taken_ = false;
  std::list<Waiter*> waiting_;  ///< in the order of their arrival
  /// When the turn of each who waits, or has it, last ended, or since when it waits. Counted in
  /// turns that have ended.
  std::map<std::string, uint64_t, std::less<>> last_;
  std::string owner_;  ///< of the turn
  uint64_t ended_ = 0;
};

}  // namespace mayfly

#include "server/access/change_queue.h"

#include <algorithm>

#include "storage/operation.h"

namespace mayfly {
namespace {

/// How soon an interruption of who waits is seen.
constexpr auto kLook = std::chrono::milliseconds(10);

}  // namespace

Result<ChangeQueue::Turn> ChangeQueue::Take(Operation& op, std::string_view owner) {
  const auto end = std::chrono::steady_clock::now() + kWait;
  Waiter me{std::string(owner)};
  std::unique_lock l(mutex_);
  last_.try_emplace(me.owner, ended_);
  const auto place = waiting_.insert(waiting_.end(), &me);
  CallLocked();
  Result<void> goes_on = Ok();
  while (!me.called && goes_on) {
    me.wake.wait_for(l, kLook);
    if (me.called) break;
    l.unlock();
    goes_on = op.CheckInterruptNow();
    if (goes_on && std::chrono::steady_clock::now() >= end)
      goes_on = Error{ErrorCode::kLockTimeout,
                      "other changes of users or roles have taken half a minute: try again later"};
    l.lock();
  }
  if (me.called) return Turn(this);  // also if it was called at the last moment
  waiting_.erase(place);
  return std::move(goes_on).error();
}

size_t ChangeQueue::waiting() const {
  std::lock_guard l(mutex_);
  return waiting_.size();
}

void ChangeQueue::Give() {
  std::lock_guard l(mutex_);
  taken_ = false;
  last_[owner_] = ++ended_;
  CallLocked();
}

void ChangeQueue::CallLocked() {
  if (taken_) return;
  // Whoever waits no more is forgotten. When it comes again, it counts from then on.
  std::erase_if(last_, [&](const auto& owner) {
    return std::none_of(waiting_.begin(), waiting_.end(),
                        [&](const Waiter* w) { return w->owner == owner.first; });
  });
  if (waiting_.empty()) return;
  // Of equals the first that came.
  const auto next = std::min_element(
      waiting_.begin(), waiting_.end(),
      [&](const Waiter* a, const Waiter* b) { return last_.at(a->owner) < last_.at(b->owner); });
  Waiter& w = **next;
  waiting_.erase(next);
  taken_ = true;
  owner_ = w.owner;
  w.called = true;
  w.wake.notify_one();
}

}  // namespace mayfly

#include "server/net/handshakes.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "server/base/log.h"
#include "storage/kv/thread_scheduling.h"

namespace mayfly {

Handshakes::Handshakes() : work_(context_.get_executor()) {}

Handshakes::~Handshakes() { Join(); }

void Handshakes::Enter(Place& place, size_t most, std::function<void()> evict) {
  std::lock_guard l(mutex_);
  // Most servers never need them.
  if (threads_.empty()) {
    const unsigned n = std::max(1U, std::thread::hardware_concurrency() / 2);
    for (unsigned i = 0; i < n; ++i)
      threads_.emplace_back([this, i] {
        Log::SetThreadContext("handshake" + std::to_string(i));
        UseBackgroundScheduling();
        context_.run();
      });
  }
  while (!under_way_.empty() && under_way_.size() >= most) {
    const auto oldest = under_way_.begin();
    oldest->told = true;
    oldest->evict();
    told_.splice(told_.end(), under_way_, oldest);
  }
  place.all_ = this;
  place.at_ = under_way_.insert(under_way_.end(), {std::move(evict)});
}

void Handshakes::Place::Leave() {
  if (all_ == nullptr) return;
  TakeBack();
  {
    std::lock_guard l(all_->mutex_);
    (at_->told ? all_->told_ : all_->under_way_).erase(at_);
  }
  all_ = nullptr;
}

void Handshakes::Place::Compute(std::function<void()> work) {
  {
    std::lock_guard l(all_->mutex_);
    work_ = all_->waiting_.insert(all_->waiting_.end(), {this, std::move(work)});
  }
  boost::asio::post(all_->context_, [all = all_] { all->RunNext(); });
}

bool Handshakes::Place::TakeBack() {
  std::lock_guard l(all_->mutex_);
  if (!work_) return false;
  all_->waiting_.erase(*work_);
  work_.reset();
  return true;
}

void Handshakes::RunNext() {
  // The newest alone would let some wait for ever where others keep coming.
  thread_local bool newest = false;
  std::function<void()> run;
  {
    std::lock_guard l(mutex_);
    if (waiting_.empty()) return;  // it was taken back
    newest = !newest;
    const auto next = newest ? std::prev(waiting_.end()) : waiting_.begin();
    next->of->work_.reset();
    run = std::move(next->run);
    waiting_.erase(next);
  }
  run();
}

void Handshakes::Join() {
  work_.reset();
  for (std::thread& t : threads_)
    if (t.joinable()) t.join();
}

}  // namespace mayfly

#include "link/progress.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mayfly {

LinkProgress::Times LinkProgress::Now() {
  using namespace std::chrono;
  return {duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count(),
          duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()};
}

LinkProgress::LinkProgress(std::function<Times()> now) : now_(std::move(now)) {
  advanced_ = heard_ = now_().steady;
}

void LinkProgress::SetSkew(int64_t millis) {
  std::lock_guard l(mutex_);
  skew_ = millis;
}

void LinkProgress::StandBy() {
  std::lock_guard l(mutex_);
  stands_by_ = true;
  reads_ = false;
  oldest_.reset();
  last_lag_ = 0;
}

void LinkProgress::Advanced() {
  std::lock_guard l(mutex_);
  stands_by_ = false;
  advanced_ = now_().steady;
}

void LinkProgress::Copies(std::optional<int64_t> since) {
  std::lock_guard l(mutex_);
  copies_since_ = since;
  if (since) reads_ = false;
}

void LinkProgress::Reads() {
  std::lock_guard l(mutex_);
  // Another attempt to reach a source that does not answer is no answer.
  if (!std::exchange(reads_, true)) heard_ = now_().steady;
}

void LinkProgress::Heard(std::optional<int64_t> oldest) {
  std::lock_guard l(mutex_);
  heard_ = now_().steady;
  if (!oldest_) oldest_ = oldest;
}

void LinkProgress::Written(int64_t lag, std::optional<int64_t> oldest) {
  std::lock_guard l(mutex_);
  last_lag_ = std::max<int64_t>(0, lag);
  oldest_ = oldest;
}

int64_t LinkProgress::SourceNow() const {
  std::lock_guard l(mutex_);
  return now_().wall + skew_;
}

LinkProgress::Shown LinkProgress::Look() const {
  std::lock_guard l(mutex_);
  Shown out;
  if (stands_by_) return out;
  const auto [steady, wall] = now_();
  const int64_t since_heard = steady - heard_, since_advanced = steady - advanced_;
  const auto age = [&](int64_t then) { return std::max<int64_t>(0, wall + skew_ - then); };
  // With changes at hand, the reader may be waiting for room.
  const bool silent = reads_ && !oldest_ && since_heard > kSilentMillis;
  if (copies_since_)
    out.lag_millis = age(*copies_since_);
  else if (oldest_)
    out.lag_millis = age(*oldest_);
  else
    out.lag_millis = silent ? std::max(last_lag_, since_heard) : last_lag_;
  if (silent && since_heard > kStalledMillis)
    out.stalled = "the source has not answered for " + std::to_string(since_heard / 1000) + " s";
  else if (since_advanced > kStalledMillis)
    out.stalled =
        "nothing has reached the target for " + std::to_string(since_advanced / 1000) + " s";
  return out;
}

}  // namespace mayfly

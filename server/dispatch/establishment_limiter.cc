#include "server/dispatch/establishment_limiter.h"

#include <algorithm>
#include <cmath>

#include "server/dispatch/parameters.h"

namespace mayfly {
namespace {
// Of those that wait: how many are served, and how many are looked at, before other work of the
// thread gets its turn.
constexpr int kServedAtOnce = 64, kLookedAtAtOnce = 256;
/// How often it is looked whether those that wait are still there, and how soon it goes on when
/// they are many.
constexpr int64_t kLookEveryMicros = 250'000, kGoOnMicros = 1'000;
}  // namespace

void EstablishmentLimiter::RegisterParameters(ParameterRegistry& parameters) {
  const auto changed = [this] {
    std::lock_guard l(mutex_);
    if (changed_) changed_();
  };
  parameters.AddBool("ingressConnectionEstablishmentRateLimiterEnabled", &enabled_,
                     "Limit how many new connections are taken up in a second.", changed);
  parameters.AddInt("ingressConnectionEstablishmentRatePerSec", &rate_, 1, INT32_MAX,
                    "New connections in a second.", changed);
  parameters.AddDouble("ingressConnectionEstablishmentBurstCapacitySecs", &burst_secs_, 0, 1e9,
                       "Seconds whose unused rate is kept for a burst of connections.", changed);
  parameters.AddInt("ingressConnectionEstablishmentMaxQueueDepth", &most_waiting_, 0, INT32_MAX,
                    "New connections that wait for their turn; further ones are closed.", changed);
}

void EstablishmentLimiter::OnChange(std::function<void()> changed) {
  std::lock_guard l(mutex_);
  changed_ = std::move(changed);
}

double EstablishmentLimiter::TokensAt(int64_t now) const {
  const double rate = static_cast<double>(rate_.load(std::memory_order_relaxed));
  // A bucket that is too small for one token would never let anybody in.
  const double most = std::max(1.0, rate * burst_secs_.load(std::memory_order_relaxed));
  const int64_t at = filled_at_.load(std::memory_order_relaxed);
  if (at < 0) return most;
  const double since = static_cast<double>(std::max<int64_t>(0, now - at)) / 1e6;
  return std::min(most, tokens_.load(std::memory_order_relaxed) + rate * since);
}

int64_t EstablishmentLimiter::Tokens() const {
  return static_cast<int64_t>(std::min(TokensAt(clock_.MonotonicMicros()), 9e18));
}

bool EstablishmentLimiter::TakeToken() {
  const int64_t now = clock_.MonotonicMicros();
  const double tokens = TokensAt(now);
  const bool taken = tokens >= 1;
  tokens_.store(taken ? tokens - 1 : tokens, std::memory_order_relaxed);
  filled_at_.store(now, std::memory_order_relaxed);
  return taken;
}

EstablishmentLimiter::Outcome EstablishmentLimiter::Arrived(
    std::unique_ptr<NewConnection> connection, bool exempt) {
  if (!enabled_.load(std::memory_order_relaxed)) {
    connection->Serve();
    return Outcome::kServed;
  }
  if (exempt) {
    figures_.exempted.Add();
    connection->Serve();
    return Outcome::kServed;
  }
  figures_.attempted.Add();
  // Nobody overtakes those that wait.
  if (line_.empty() && TakeToken()) {
    figures_.served.Add();
    connection->Serve();
    return Outcome::kServed;
  }
  if (static_cast<int64_t>(line_.size()) >= most_waiting_.load(std::memory_order_relaxed)) {
    figures_.refused.Add();
    return Outcome::kRefused;
  }
  line_.push_back({std::move(connection), clock_.MonotonicMicros()});
  figures_.queued.Add();
  figures_.waiting.Add();
  return Outcome::kWaits;
}

std::list<EstablishmentLimiter::Waiting>::iterator EstablishmentLimiter::Remove(
    std::list<Waiting>::iterator at) {
  const bool looked = look_at_ == at;
  figures_.waiting.Add(-1);
  const auto next = line_.erase(at);
  if (looked) look_at_ = next;
  return next;
}

void EstablishmentLimiter::DropGone() {
  const int64_t now = clock_.MonotonicMicros();
  if (look_at_ == line_.end()) {
    if (now - looked_at_ < kLookEveryMicros) return;
    looked_at_ = now;
    look_at_ = line_.begin();
  }
  for (int n = 0; n < kLookedAtAtOnce && look_at_ != line_.end(); ++n) {
    const auto at = look_at_++;
    if (!at->connection->Gone()) continue;
    figures_.gone.Add();
    Remove(at);
  }
}

std::optional<int64_t> EstablishmentLimiter::Advance() {
  DropGone();
  for (int served = 0; !line_.empty(); ++served) {
    if (served == kServedAtOnce) return 0;
    const auto first = line_.begin();
    if (first->connection->Gone()) {
      figures_.gone.Add();
      Remove(first);
      continue;
    }
    if (enabled_.load(std::memory_order_relaxed) && !TakeToken()) break;
    const std::unique_ptr<NewConnection> connection = std::move(first->connection);
    figures_.waited_micros.Add(clock_.MonotonicMicros() - first->since);
    figures_.dequeued.Add();
    figures_.served.Add();
    Remove(first);
    connection->Serve();
  }
  if (line_.empty()) return std::nullopt;
  if (look_at_ != line_.end()) return kGoOnMicros;
  const double wait = (1 - tokens_) * 1e6 / static_cast<double>(rate_.load());
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(wait)), 1, kLookEveryMicros);
}

void EstablishmentLimiter::Clear() {
  while (!line_.empty()) Remove(line_.begin());
}

}  // namespace mayfly

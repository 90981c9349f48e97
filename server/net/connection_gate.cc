#include "server/net/connection_gate.h"

#include <algorithm>

namespace mayfly {

int64_t HttpConnections(int64_t limit) { return std::clamp<int64_t>(limit / 16, 4, 128); }

DescriptorPlan PlanDescriptors(int64_t limit, int64_t store, int64_t wished, bool member) {
  constexpr int64_t kMostMembers = 192, kOther = 80, kLeast = 8;
  DescriptorPlan p;
  p.store = store;
  p.http = HttpConnections(limit);
  p.members = member ? std::clamp<int64_t>(limit / 5, 16, kMostMembers) : 0;
  p.other = kOther;
  p.connections =
      std::min(wished, std::max(kLeast, limit - p.store - p.http - p.members - p.other));
  return p;
}

ConnectionGate::Ticket::~Ticket() {
  if (gate_ == nullptr) return;
  if (extra_ == nullptr) {
    gate_->clients_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  std::lock_guard l(gate_->mutex_);
  --gate_->extra_count_;
  std::erase(gate_->extras_, extra_);
}

void ConnectionGate::Ticket::OnEvict(std::function<void()> evict) {
  std::lock_guard l(gate_->mutex_);
  if (extra_->evicted)
    evict();
  else
    extra_->evict = std::move(evict);
}

std::optional<ConnectionGate::Ticket> ConnectionGate::Enter() {
  Ticket t;
  if (clients_.fetch_add(1, std::memory_order_relaxed) < limit_) {
    t.gate_ = this;
    return t;
  }
  clients_.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard l(mutex_);
  // Those told to go have their descriptors for a moment more.
  if (extra_count_ >= 2 * extra_limit_) return std::nullopt;
  if (static_cast<int64_t>(extras_.size()) >= extra_limit_) {
    const std::shared_ptr<Ticket::Extra> oldest = extras_.front();
    extras_.pop_front();
    oldest->evicted = true;
    if (oldest->evict) oldest->evict();
  }
  ++extra_count_;
  t.gate_ = this;
  t.extra_ = std::make_shared<Ticket::Extra>();
  extras_.push_back(t.extra_);
  return t;
}

}  // namespace mayfly

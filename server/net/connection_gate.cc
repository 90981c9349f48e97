#include "server/net/connection_gate.h"

#include <algorithm>

#include "server/base/client_of.h"

namespace mayfly {

int64_t HttpConnections(int64_t limit) { return std::clamp<int64_t>(limit / 16, 4, 128); }

DescriptorPlan PlanDescriptors(int64_t limit, int64_t store, int64_t wished, bool member,
                               bool access) {
  constexpr int64_t kMaxMembers = 192, kOther = 80, kLeast = 8;
  DescriptorPlan p;
  p.store = store;
  p.http = HttpConnections(limit);
  p.members = member ? std::clamp<int64_t>(limit / 5, 16, kMaxMembers) : 0;
  p.other = kOther;
  // Evicted sockets keep their descriptors for a moment.
  if (access) p.reserved = ConnectionGate::kAdministrators + 2 * ConnectionGate::kStrangers;
  p.room = std::max(kLeast, limit - p.store - p.http - p.members - p.other - p.reserved);
  p.connections = std::min(wished, p.room);
  return p;
}

ConnectionGate::Ticket::~Ticket() {
  if (gate_ == nullptr) return;
  if (extra_ == nullptr) {
    (exempt_ ? gate_->exempt_ : gate_->clients_).fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  std::lock_guard l(gate_->mutex_);
  if (extra_->kept) {
    --gate_->kept_;
    return;
  }
  --gate_->extra_count_;
  std::erase(gate_->extras_, extra_);
}

bool ConnectionGate::Ticket::Keep() {
  std::lock_guard l(gate_->mutex_);
  if (extra_->kept) return true;
  if (extra_->evicted || gate_->kept_ >= gate_->keep_limit_) return false;
  extra_->kept = true;
  ++gate_->kept_;
  --gate_->extra_count_;
  std::erase(gate_->extras_, extra_);
  return true;
}

void ConnectionGate::Ticket::OnEvict(std::function<void()> evict) {
  std::lock_guard l(gate_->mutex_);
  if (extra_->evicted)
    evict();
  else
    extra_->evict = std::move(evict);
}

/// Takes out who is to go: the oldest of the address with the most places. REQUIRES: mutex_, and
/// that there is one.
std::shared_ptr<ConnectionGate::Ticket::Extra> ConnectionGate::TakeOne() {
  const auto places = [&](const std::shared_ptr<Ticket::Extra>& e) {
    return std::ranges::count(extras_, e->client, &Ticket::Extra::client);
  };
  const auto one = std::ranges::max_element(extras_, {}, places);  // of equals the oldest
  std::shared_ptr<Ticket::Extra> taken = *one;
  extras_.erase(one);
  return taken;
}

std::optional<ConnectionGate::Ticket> ConnectionGate::Enter(std::string_view address, bool exempt) {
  Ticket t;
  std::atomic<int64_t>& mine = exempt ? exempt_ : clients_;
  const int64_t others = (exempt ? clients_ : exempt_).load(std::memory_order_relaxed);
  const int64_t most = std::min(room_ - others, exempt ? room_ : limit_);
  if (mine.fetch_add(1, std::memory_order_relaxed) < most) {
    t.gate_ = this;
    t.exempt_ = exempt;
    return t;
  }
  mine.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard l(mutex_);
  // Evicted sockets keep their descriptors for a moment.
  if (extra_count_ >= 2 * extra_limit_) return std::nullopt;
  if (static_cast<int64_t>(extras_.size()) >= extra_limit_) {
    const std::shared_ptr<Ticket::Extra> gone = TakeOne();
    gone->evicted = true;
    if (gone->evict) gone->evict();
  }
  ++extra_count_;
  t.gate_ = this;
  t.extra_ = std::make_shared<Ticket::Extra>();
  t.extra_->client = ClientOf(address);
  extras_.push_back(t.extra_);
  return t;
}

}  // namespace mayfly

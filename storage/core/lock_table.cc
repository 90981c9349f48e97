#include "storage/core/lock_table.h"

#include <algorithm>
#include <chrono>

#include "protocol/seeded_hash.h"

namespace mayfly {

uint64_t LockHash(Keyspace ks, std::string_view key) {
  return SeededHash(key, static_cast<uint64_t>(ks));
}

LockTable::LockTable(size_t stripes) : stripes_(stripes) {}

LockTable::Outcome LockTable::TryLocked(Stripe& s, uint64_t hash, LockOwner owner) {
  for (const Entry& e : s.entries)
    if (e.hash == hash) {
      if (e.owner == owner) return Outcome::kHeldAlready;
      return (e.owner & kTransactionOwner) != 0 ? Outcome::kBusyTransaction : Outcome::kBusy;
    }
  s.entries.push_back({hash, owner});
  return Outcome::kTaken;
}

LockTable::Outcome LockTable::TryLock(uint64_t hash, LockOwner owner) {
  Stripe& s = StripeOf(hash);
  std::lock_guard l(s.mutex);
  return TryLocked(s, hash, owner);
}

LockTable::Outcome LockTable::Lock(uint64_t hash, LockOwner owner, int64_t timeout_us) {
  Stripe& s = StripeOf(hash);
  std::unique_lock l(s.mutex);
  Outcome o = TryLocked(s, hash, owner);
  auto busy = [&] { return o == Outcome::kBusy || o == Outcome::kBusyTransaction; };
  if (!busy() || timeout_us <= 0) return o;
  auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  ++s.waiters;
  do {
    bool in_time = s.free.wait_until(l, until) == std::cv_status::no_timeout;
    o = TryLocked(s, hash, owner);
    if (!in_time) break;
  } while (busy());
  --s.waiters;
  return o;
}

void LockTable::Unlock(uint64_t hash, LockOwner owner, uint64_t changed) {
  Stripe& s = StripeOf(hash);
  bool wake;
  {
    std::lock_guard l(s.mutex);
    auto it = std::find_if(s.entries.begin(), s.entries.end(),
                           [&](const Entry& e) { return e.hash == hash; });
    if (it == s.entries.end() || it->owner != owner) return;
    if (uint64_t& before = s.ChangedOf(hash); before < changed) before = changed;
    *it = s.entries.back();
    s.entries.pop_back();
    wake = s.waiters > 0;
  }
  if (wake) s.free.notify_all();
}

void LockTable::BeginReign(uint64_t reign, uint64_t now) {
  if (reign_.load(std::memory_order_acquire) == reign) [[likely]]
    return;
  std::lock_guard l(reign_mutex_);
  // A late caller with an earlier reign raises it once more, which is never wrong.
  const uint64_t before = known_from_.load();
  known_from_ = before == UINT64_MAX ? now : std::max(before, now);
  reign_.store(reign, std::memory_order_release);
}

bool LockTable::UnchangedSince(uint64_t hash, uint64_t sequence) {
  if (sequence < known_from_.load(std::memory_order_acquire)) return false;
  Stripe& s = StripeOf(hash);
  std::lock_guard l(s.mutex);
  return s.ChangedOf(hash) <= sequence;
}

void LockTable::NoteChanged(uint64_t hash, uint64_t sequence) {
  Stripe& s = StripeOf(hash);
  std::lock_guard l(s.mutex);
  s.noted[s.next++ % s.noted.size()] = {hash, sequence};
}

bool LockTable::KnownChanged(uint64_t hash, uint64_t sequence) {
  Stripe& s = StripeOf(hash);
  std::lock_guard l(s.mutex);
  return std::any_of(s.noted.begin(), s.noted.end(), [&](const Stripe::Noted& n) {
    return n.hash == hash && n.sequence > sequence;
  });
}

GateTable::Gate& GateTable::Find(Stripe& s, uint32_t collection) {
  for (Gate& g : s.gates)
    if (g.collection == collection) return g;
  return s.gates.emplace_back(Gate{collection});
}

void GateTable::DropIfIdle(Stripe& s, Gate& g) {
  if (g.shared || g.exclusive || g.waiting_exclusive || g.waiting_shared) return;
  g = s.gates.back();
  s.gates.pop_back();
}

bool GateTable::LockShared(uint32_t collection, int64_t timeout_us, bool transaction) {
  Stripe& s = StripeOf(collection);
  std::unique_lock l(s.mutex);
  Gate* g = &Find(s, collection);
  auto open = [&] { return !g->exclusive && (g->waiting_exclusive == 0 || g->transactions > 0); };
  if (!open() && timeout_us > 0) {
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
    ++g->waiting_shared;
    bool in_time = true;
    while (!open() && in_time) {
      in_time = s.changed.wait_until(l, until) == std::cv_status::no_timeout;
      g = &Find(s, collection);  // the vector may have moved
    }
    --g->waiting_shared;
  }
  if (open()) {
    ++g->shared;
    g->transactions += transaction ? 1 : 0;
    return true;
  }
  DropIfIdle(s, *g);
  return false;
}

void GateTable::UnlockShared(uint32_t collection, bool transaction) {
  Stripe& s = StripeOf(collection);
  bool wake;
  {
    std::lock_guard l(s.mutex);
    Gate& g = Find(s, collection);
    --g.shared;
    g.transactions -= transaction ? 1 : 0;
    wake = g.waiting_exclusive > 0;
    DropIfIdle(s, g);
  }
  if (wake) s.changed.notify_all();
}

bool GateTable::LockExclusive(uint32_t collection, int64_t timeout_us, int shared_held) {
  Stripe& s = StripeOf(collection);
  std::unique_lock l(s.mutex);
  Gate* g = &Find(s, collection);
  auto open = [&] { return !g->exclusive && g->shared == shared_held; };
  bool waited = false;
  if (!open() && timeout_us > 0) {
    waited = true;
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
    ++g->waiting_exclusive;
    bool in_time = true;
    while (!open() && in_time) {
      in_time = s.changed.wait_until(l, until) == std::cv_status::no_timeout;
      g = &Find(s, collection);
    }
    --g->waiting_exclusive;
  }
  bool taken = open();
  if (taken)
    g->exclusive = true;
  else
    DropIfIdle(s, *g);
  l.unlock();
  if (waited && !taken) s.changed.notify_all();  // writers that made room for it
  return taken;
}

void GateTable::UnlockExclusive(uint32_t collection) {
  Stripe& s = StripeOf(collection);
  {
    std::lock_guard l(s.mutex);
    Gate& g = Find(s, collection);
    g.exclusive = false;
    DropIfIdle(s, g);
  }
  s.changed.notify_all();
}

}  // namespace mayfly

#include "query/plan/held_snapshots.h"

namespace mayfly {

std::shared_ptr<HeldSnapshot> HeldSnapshots::Hold(KvSnapshotPtr snapshot, const Clock& clock) {
  auto held = std::make_shared<HeldSnapshot>(std::move(snapshot));
  std::lock_guard l(mutex_);
  entries_.push_back({held, clock.MonotonicMicros(), clock.Now()});
  return held;
}

void HeldSnapshots::Sweep(const Clock& clock, int64_t seconds) {
  const int64_t micros = clock.MonotonicMicros() - seconds * 1'000'000;
  const int64_t millis = clock.Now().millis - seconds * 1000;
  std::vector<std::shared_ptr<HeldSnapshot>> over;
  {
    std::lock_guard l(mutex_);
    std::erase_if(entries_, [&](const Entry& e) {
      std::shared_ptr<HeldSnapshot> held = e.held.lock();
      if (held == nullptr) return true;
      if (e.taken_micros >= micros && e.taken.millis >= millis) return false;
      over.push_back(std::move(held));
      return true;
    });
  }
  for (const auto& held : over) held->Release();
}

size_t HeldSnapshots::size() const {
  std::lock_guard l(mutex_);
  return entries_.size();
}

}  // namespace mayfly

#include "server/dispatch/snapshot_points.h"

#include <algorithm>
#include <map>

#include "protocol/fair_share.h"

namespace mayfly {

void SnapshotPoints::Sweep(int64_t micros, Instant time, Gone* gone) {
  std::erase_if(kept_, [&](Kept& k) {
    if (k.taken_micros >= micros && k.taken.millis >= time.millis) return false;
    gone->push_back(std::move(k.point));
    return true;
  });
  SweepUnused(gone);
}

void SnapshotPoints::SweepUnused(Gone* gone) {
  size_t unused =
      std::count_if(kept_.begin(), kept_.end(), [](const Kept& k) { return !k.used(); });
  if (unused <= kMostUnused) return;
  // Keys are copies: erasing moves the owners' names.
  std::map<std::string, size_t> of_owner;
  for (const Kept& k : kept_)
    if (!k.used()) ++of_owner[k.owner];
  for (; unused > kMostUnused; --unused) {
    const auto most =
        std::max_element(of_owner.begin(), of_owner.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto first = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) {
      return k.owner == most->first && !k.used();
    });
    // Whoever used a point a moment ago may have ended, but nobody begins to use one meanwhile.
    gone->push_back(std::move(first->point));
    kept_.erase(first);
    --most->second;
  }
}

ReadViewPtr SnapshotPoints::Find(uint64_t ts) {
  for (Kept& k : kept_)
    if (k.point->ts() == ts) return k.point->View();
  return nullptr;
}

bool SnapshotPoints::MayTake(std::string_view owner) const {
  int64_t of_owner = 0, all = 0;
  for (const Kept& k : kept_) {
    if (!k.used()) continue;
    ++all;
    of_owner += k.owner == owner;
  }
  return FitsFairShare(of_owner + 1, all + 1, kMostUsed, kMostUsedOfOwner, of_owner == all);
}

void SnapshotPoints::Add(std::shared_ptr<ReadPoint> point, std::string_view owner, int64_t micros,
                         Instant time, bool of_transaction) {
  kept_.push_back({std::move(point), std::string(owner), micros, time, of_transaction});
}

bool SnapshotPoints::Use(uint64_t ts, std::string_view owner) {
  for (Kept& k : kept_) {
    if (k.point->ts() != ts || !k.of_transaction) continue;
    if (!MayTake(owner)) return false;
    k.owner = owner;
    k.of_transaction = false;
  }
  return true;
}

SnapshotPoints::Gone SnapshotPoints::Clear() {
  Gone gone;
  for (Kept& k : kept_) gone.push_back(std::move(k.point));
  kept_.clear();
  return gone;
}

}  // namespace mayfly

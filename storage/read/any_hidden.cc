#include "storage/read/any_hidden.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "storage/catalog/catalog.h"
#include "storage/catalog/expire_reads.h"
#include "storage/operation.h"
#include "storage/read/visibility.h"

namespace mayfly {

/// What to look at while the catalog has this version and ttlReadFilter says `by_default`.
/// Immutable.
struct AnyHidden::Collections {
  uint64_t version = 0;
  bool by_default = false;
  /// There is a time series that hides points before their bucket is due: which ones, only the
  /// points say.
  bool hides_points = false;
  /// Those with rules that hide what is past its deadline, if it is. Not kept alive: a dropped
  /// definition counts for the memory of definitions until it is gone.
  std::vector<std::weak_ptr<const CollectionInfo>> ruled;
  /// The marks of documents' own deadlines, of each collection.
  std::vector<std::shared_ptr<const ExpiryState>> queues;
  /// Marks and rules that an answer may have to look at.
  size_t looks = 0;

  static std::shared_ptr<const Collections> Of(Storage& storage) {
    auto all = std::make_shared<Collections>();
    // Both first: if they change before the walk is over, what it finds is good for one look.
    all->version = storage.catalog().Version();
    all->by_default =
        storage.expiry_policy().index_reads_exact_default.load(std::memory_order_relaxed);
    for (const CollectionInfoPtr& c : storage.catalog().ListAll()) {
      if (c->is_view() || c->source != nullptr) continue;
      all->queues.push_back(c->document_expiry);
      ++all->looks;
      if (!c->HasTtlRules() || !MayHaveHidingRules(*c, all->by_default)) continue;
      all->ruled.push_back(c);
      all->looks += 1 + c->indexes.size();
      if (!c->is_buckets()) continue;
      all->hides_points = true;
      all->ruled.clear();
      all->queues.clear();
      all->looks = 0;
      break;
    }
    return all;
  }

  static bool MayHaveHidingRules(const CollectionInfo& coll, bool by_default) {
    return HidesDue(ExpireReadsOf(coll), by_default) ||
           std::any_of(coll.indexes.begin(), coll.indexes.end(), [&](const IndexInfoPtr& i) {
             return i->expire_after_seconds && HidesDue(i->expire_reads, by_default);
           });
  }

  /// The answer. `go_on` is asked once a collection, and may end the look with an error.
  template <class GoOn>
  Result<bool> Ask(Storage& storage, Instant now, const GoOn& go_on) const {
    if (storage.expiry_policy().suspended.load(std::memory_order_relaxed)) return false;
    if (hides_points) return true;
    for (const auto& r : ruled) {
      MAYFLY_TRY(go_on());
      const CollectionInfoPtr coll = r.lock();
      if (coll != nullptr && Visibility(storage, *coll, now).MayHide()) return true;
    }
    for (const auto& q : queues) {
      MAYFLY_TRY(go_on());
      if (q->Earliest() <= now.millis) return true;
    }
    return false;
  }
};

std::shared_ptr<const AnyHidden::Collections> AnyHidden::Remembered(Storage& storage,
                                                                    size_t most) const {
  const uint64_t version = storage.catalog().Version();
  const bool by_default =
      storage.expiry_policy().index_reads_exact_default.load(std::memory_order_relaxed);
  std::lock_guard l(mutex_);
  // Whoever holds them last frees them: a thread that others wait for takes none that are many.
  if (remembered_ == nullptr || remembered_->version != version ||
      remembered_->by_default != by_default || remembered_->looks > most)
    return nullptr;
  return remembered_;
}

std::optional<bool> AnyHidden::Known(Storage& storage, Instant now) const {
  const auto all = Remembered(storage, most_known_);
  if (all == nullptr) return std::nullopt;
  return all->Ask(storage, now, [] { return Result<void>(Ok()); }).value();
}

Result<bool> AnyHidden::Look(Storage& storage, Operation& op) {
  auto all = Remembered(storage, SIZE_MAX);
  if (all == nullptr) {
    all = Collections::Of(storage);
    MAYFLY_TRY(op.CheckInterruptNow());
    auto kept = all;
    std::lock_guard l(mutex_);
    // An older walk that ends later replaces nothing.
    if (remembered_ == nullptr || remembered_->version <= all->version) remembered_.swap(kept);
  }
  return all->Ask(storage, op.now, [&] { return op.CheckInterrupt(); });
}

void AnyHidden::Forget() {
  std::shared_ptr<const Collections> gone;  // dies outside the lock
  std::lock_guard l(mutex_);
  gone.swap(remembered_);
}

}  // namespace mayfly

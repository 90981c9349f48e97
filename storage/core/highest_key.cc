#include "storage/core/highest_key.h"

#include <algorithm>

#include "storage/keys/key_format.h"

namespace mayfly {
namespace {
/// The most that a look passes over: it may run on a thread that serves connections.
constexpr size_t kMostDeleted = 1000;
constexpr int kInsertsBetweenLooks = 10'000;
}  // namespace

bool HighestKey::Passes(KvStore& kv, uint32_t collection, std::string_view key) {
  std::lock_guard l(mutex_);
  const bool known = known_ || Look(kv, collection);
  if (key <= highest_) return false;
  highest_.assign(key);
  return known;
}

bool HighestKey::Look(KvStore& kv, uint32_t collection) {
  if (wait_ > 0) {
    --wait_;
    return false;
  }
  KvIterOptions o;
  o.lower = IdPrefix(collection);
  o.upper = IdPrefixEnd(collection);
  o.forward = false;
  o.max_skipped = kMostDeleted;
  const auto last = kv.NewIterator(Keyspace::kRecords, std::move(o));
  last->SeekToLast();
  if (last->Valid()) {
    if (last->key() > highest_) highest_.assign(last->key());
  } else if (!last->status()) {
    wait_ = kInsertsBetweenLooks;
    return false;
  }
  known_ = true;
  return true;
}

std::shared_ptr<HighestKey> HighestKeys::Of(const CollectionInfo& coll) {
  std::lock_guard l(mutex_);
  if (entries_.size() >= sweep_at_) {
    std::erase_if(entries_, [](const auto& e) { return e.second.collection.expired(); });
    sweep_at_ = std::max<size_t>(64, entries_.size() * 2);
  }
  Entry& e = entries_[coll.id];
  if (!e.key || e.collection.expired()) e = {coll.counters, std::make_shared<HighestKey>()};
  return e.key;
}

}  // namespace mayfly

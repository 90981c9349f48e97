#include "storage/schema/garbage.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {
/// Up to this many keys are deleted one by one: every range tombstone costs all later reads of its
/// keyspace a little until compaction has removed it, and dropping many small collections would
/// leave as many.
constexpr int kFewKeys = 2000;
constexpr auto kTendEvery = std::chrono::minutes(1);
constexpr int kTendsOfAnHour = 60;
/// The catalog's files are rewritten when they have grown to twice what they were, and by this; and
/// once an hour if they are larger than this and not as they were.
constexpr uint64_t kCatalogSlack = 8 << 20;
/// Dropped data is compacted away from this size on, and up to a size that does not delay a stop.
constexpr uint64_t kLeastReclaimed = 1 << 20, kMaxReclaimed = 128 << 20;
}  // namespace

void GarbageCollector::Add(GarbageRow row) {
  std::lock_guard l(mutex_);
  rows_.push_back(std::move(row));
  failed_ = false;
  changed_.notify_all();
}

void GarbageCollector::Start() {
  std::lock_guard l(mutex_);
  if (!thread_.joinable() && !stop_)
    thread_ = std::thread(large_memory::WithThisBudget([this] { Loop(); }));
}

void GarbageCollector::Stop() {
  {
    std::lock_guard l(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void GarbageCollector::WaitIdle() {
  std::unique_lock l(mutex_);
  changed_.wait(l, [this] { return stop_ || failed_ || (rows_.empty() && !busy_); });
}

void GarbageCollector::Loop() {
  std::unique_lock l(mutex_);
  auto next_tend = std::chrono::steady_clock::now() + kTendEvery;
  for (;;) {
    // After a failure (a full disk) the rest waits for the next drop or the next open.
    const bool work =
        changed_.wait_until(l, next_tend, [this] { return stop_ || (!rows_.empty() && !failed_); });
    if (stop_) return;
    if (!work || std::chrono::steady_clock::now() >= next_tend) {
      l.unlock();
      Tend();
      l.lock();
      next_tend = std::chrono::steady_clock::now() + kTendEvery;
      continue;
    }
    GarbageRow row = rows_.front();
    busy_ = true;
    l.unlock();
    Result<void> r = Remove(row);
    l.lock();
    busy_ = false;
    if (r) {
      rows_.pop_front();
    } else {
      failed_ = true;
      storage_.impl().Log('W', "Could not remove the data of a dropped collection or index yet",
                          BuildBson([&](BsonBuilder& b) {
                            b.Append("namespace", row.ns).Append("error", r.error().message);
                          }));
    }
    changed_.notify_all();
  }
}

void GarbageCollector::CompactCatalog() {
  KvStore& kv = storage_.kv();
  const uint64_t bytes = kv.Stats(Keyspace::kCatalog).live_bytes;
  ++tends_;
  const bool grown = bytes >= 2 * catalog_bytes_ + kCatalogSlack;
  const bool old = tends_ >= kTendsOfAnHour && bytes >= kCatalogSlack && bytes != catalog_bytes_;
  if (!grown && !old) return;
  tends_ = 0;
  if (!kv.Compact(Keyspace::kCatalog, {}, {})) return;
  catalog_bytes_ = kv.Stats(Keyspace::kCatalog).live_bytes;
}

void GarbageCollector::Reclaim() {
  std::vector<Range> ranges = std::exchange(emptied_, {});
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 0, next; i < ranges.size(); i = next) {
    // Neighbours lie in the same files.
    for (next = i + 1; next < ranges.size() && ranges[next].keyspace == ranges[i].keyspace &&
                       ranges[next].begin <= ranges[i].end && ranges[i].bytes < kMaxReclaimed;
         ++next) {
      ranges[i].end = std::max(ranges[i].end, ranges[next].end);
      ranges[i].bytes += ranges[next].bytes;
    }
    if (storage_.impl().closing) return;
    (void)storage_.kv().Compact(ranges[i].keyspace, ranges[i].begin, ranges[i].end);
  }
}

Result<void> GarbageCollector::Remove(const GarbageRow& row) {
  KvStore& kv = storage_.kv();
  std::string begin = IdPrefix(row.id), end = IdPrefixEnd(row.id);
  const uint64_t bytes = kv.ApproximateBytes(row.keyspace, begin, end);
  auto batch = kv.NewBatch();
  bool small;
  {
    KvIterOptions o;
    o.lower = begin;
    o.upper = end;
    o.fill_cache = false;
    auto it = kv.NewIterator(row.keyspace, std::move(o));
    std::string deadline_key;
    int n = 0;
    for (it->SeekToFirst(); it->Valid() && n < kFewKeys; it->Next(), ++n) {
      batch->Delete(row.keyspace, it->key());
      if (row.kind != GarbageKind::kCollection) continue;
      BsonView doc;
      std::optional<Instant> expire_at;
      if (!DecodeRecord(it->value(), &doc, &expire_at) || !expire_at) continue;
      deadline_key.clear();
      AppendDeadlineKey(*expire_at, it->key(), deadline_key);
      batch->Delete(Keyspace::kExpiry, deadline_key);
    }
    MAYFLY_TRY(it->status());
    small = !it->Valid();
  }
  if (!small) {
    batch->Clear();
    batch->DeleteRange(row.keyspace, begin, end);
    if (row.kind == GarbageKind::kCollection) {
      KvIterOptions o;
      o.lower = DeadlinePrefix(row.id);
      o.upper = DeadlinePrefixEnd(row.id);
      auto it = kv.NewIterator(Keyspace::kExpiry, std::move(o));
      it->SeekToFirst();
      MAYFLY_TRY(it->status());
      if (it->Valid())
        batch->DeleteRange(Keyspace::kExpiry, DeadlinePrefix(row.id), DeadlinePrefixEnd(row.id));
    }
  }
  batch->Delete(Keyspace::kCatalog, GarbageRowKey(row.kind, row.id));
  MAYFLY_TRY(kv.Write(*batch, false));
  if (bytes >= kLeastReclaimed && bytes <= kMaxReclaimed) {
    std::lock_guard l(tend_mutex_);
    emptied_.push_back({row.keyspace, std::move(begin), std::move(end), bytes});
  }
  return Ok();
}

}  // namespace mayfly

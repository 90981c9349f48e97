#include "storage/garbage.h"

#include "protocol/bson_builder.h"
#include "storage/key_format.h"
#include "storage/storage_impl.h"

namespace mayfly {
namespace {
/// Up to this many keys are deleted one by one: every range tombstone costs all later reads of its
/// keyspace a little until compaction has removed it, and dropping many small collections would
/// leave as many.
constexpr int kSmall = 2000;
constexpr auto kTendEvery = std::chrono::minutes(1);
/// The catalog's files are rewritten when they have grown to twice what they were, and by this.
constexpr uint64_t kCatalogSlack = 8 << 20;
}  // namespace

void GarbageCollector::Add(GarbageRow row) {
  std::lock_guard l(mutex_);
  rows_.push_back(std::move(row));
  failed_ = false;
  changed_.notify_all();
}

void GarbageCollector::Start() {
  std::lock_guard l(mutex_);
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { Loop(); });
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
  for (;;) {
    // After a failure (a full disk) the rest waits for the next drop or the next open.
    const bool work = changed_.wait_for(
        l, kTendEvery, [this] { return stop_ || (!rows_.empty() && !failed_); });
    if (stop_) return;
    if (!work) {
      l.unlock();
      TendCatalog();
      l.lock();
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

void GarbageCollector::TendCatalog() {
  KvStore& kv = storage_.kv();
  if (kv.Stats(Keyspace::kCatalog).live_bytes < 2 * catalog_bytes_ + kCatalogSlack) return;
  if (!kv.Compact(Keyspace::kCatalog, {}, {})) return;
  catalog_bytes_ = kv.Stats(Keyspace::kCatalog).live_bytes;
}

Result<void> GarbageCollector::Remove(const GarbageRow& row) {
  KvStore& kv = storage_.kv();
  std::string begin = IdPrefix(row.id), end = IdPrefixEnd(row.id);
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
    for (it->SeekToFirst(); it->Valid() && n < kSmall; it->Next(), ++n) {
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
  return kv.Write(*batch, false);
}

}  // namespace mayfly

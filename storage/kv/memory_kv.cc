#include "storage/kv/memory_kv.h"

#include "storage/kv/batch_number.h"

#include <algorithm>
#include <iterator>

namespace mayfly {
namespace {

using Map = MemoryKv::Map;
using MapPtr = MemoryKv::MapPtr;

class MemoryBatch final : public KvBatch, public NumberedBatch {
 public:
  std::vector<MemoryKv::Op> ops;
  size_t bytes = 0;
  uint64_t sequence = 0;

  void Put(Keyspace ks, std::string_view k, std::string_view v) override {
    bytes += k.size() + v.size();
    ops.push_back({MemoryKv::Op::kPut, ks, std::string(k), std::string(v)});
  }
  void Put(Keyspace ks, std::string_view k, std::string_view head, std::string_view tail) override {
    Put(ks, k, std::string(head).append(tail));
  }
  void Delete(Keyspace ks, std::string_view k) override {
    bytes += k.size();
    ops.push_back({MemoryKv::Op::kDelete, ks, std::string(k), {}});
  }
  void DeleteRange(Keyspace ks, std::string_view begin, std::string_view end) override {
    if (end <= begin) return;
    bytes += begin.size() + end.size();
    ops.push_back({MemoryKv::Op::kRange, ks, std::string(begin), std::string(end)});
  }
  void Clear() override {
    ops.clear();
    bytes = 0;
    sequence = 0;
  }
  size_t SizeBytes() const override { return bytes; }
  int Count() const override { return static_cast<int>(ops.size()); }
  uint64_t Number() const override { return sequence; }
};

class MemorySnapshot final : public KvSnapshot {
 public:
  MemorySnapshot(MemoryKv::Maps maps, uint64_t sequence)
      : maps_(std::move(maps)), sequence_(sequence) {}
  uint64_t sequence() const override { return sequence_; }
  const MapPtr& map(Keyspace ks) const { return maps_[static_cast<size_t>(ks)]; }

 private:
  const MemoryKv::Maps maps_;
  const uint64_t sequence_;
};

class MemoryIterator final : public KvIterator {
 public:
  MemoryIterator(MapPtr map, const KvIterOptions& o) : map_(std::move(map)) {
    begin_ = o.lower.empty() ? map_->begin() : map_->lower_bound(o.lower);
    end_ = o.upper.empty() ? map_->end() : map_->lower_bound(o.upper);
    if (!o.lower.empty() && !o.upper.empty() && o.upper <= o.lower) end_ = begin_;
    at_ = end_;
  }
  void Seek(std::string_view key) override { at_ = From(map_->lower_bound(key)); }
  void SeekForPrev(std::string_view key) override { at_ = Before(From(map_->upper_bound(key))); }
  void SeekToFirst() override { at_ = begin_; }
  void SeekToLast() override { at_ = Before(end_); }
  void Next() override { ++at_; }
  void Prev() override { at_ = Before(at_); }
  bool Valid() const override { return at_ != end_; }
  std::string_view key() const override { return at_->first; }
  std::string_view value() const override { return at_->second; }
  Result<void> status() const override { return Ok(); }

 private:
  using Place = Map::const_iterator;
  /// The place within the bounds that is nearest to `at`.
  Place From(Place at) const {
    if (begin_ == end_) return end_;
    if (at == map_->end() || (end_ != map_->end() && at->first >= end_->first)) return end_;
    return at->first < begin_->first ? begin_ : at;
  }
  Place Before(Place at) const { return at == begin_ ? end_ : std::prev(at); }

  const MapPtr map_;
  Place begin_, end_, at_;
};

/// Changes `map`, or a copy of it where somebody else looks at it.
void Apply(MapPtr& map, const MemoryKv::Op& op) {
  if (map.use_count() > 1) map = std::make_shared<Map>(*map);
  Map& m = const_cast<Map&>(*map);  // nobody else has it
  switch (op.kind) {
    case MemoryKv::Op::kPut:
      m.insert_or_assign(op.key, op.value);
      break;
    case MemoryKv::Op::kDelete:
      m.erase(op.key);
      break;
    case MemoryKv::Op::kRange:
      m.erase(m.lower_bound(op.key), m.lower_bound(op.value));
      break;
  }
}

void Apply(MemoryKv::Maps& maps, const std::vector<MemoryKv::Op>& ops) {
  for (const MemoryKv::Op& op : ops) Apply(maps[static_cast<size_t>(op.ks)], op);
}

/// A copy that shares nothing with the maps: what is written to either is not in the other.
MemoryKv::Maps Clone(const MemoryKv::Maps& maps) {
  MemoryKv::Maps out;
  for (size_t i = 0; i < maps.size(); ++i) out[i] = std::make_shared<Map>(*maps[i]);
  return out;
}

}  // namespace

MemoryKv::MemoryKv() {
  for (MapPtr& m : now_) m = std::make_shared<Map>();
  for (MapPtr& m : synced_) m = std::make_shared<Map>();
}

void MemoryKv::LosePower(size_t unsynced) {
  std::lock_guard l(mutex_);
  for (size_t i = 0; i < std::min(unsynced, pending_.size()); ++i) Apply(synced_, pending_[i]);
  pending_.clear();
  now_ = Clone(synced_);
}

size_t MemoryKv::unsynced() const {
  std::lock_guard l(mutex_);
  return pending_.size();
}

std::unique_ptr<MemoryKv> MemoryKv::Copy() const {
  std::lock_guard l(mutex_);
  auto copy = std::make_unique<MemoryKv>();
  copy->now_ = Clone(now_);
  copy->synced_ = Clone(now_);
  return copy;
}

MapPtr MemoryKv::map(Keyspace ks) const { return MapAt(ks, nullptr); }

MapPtr MemoryKv::MapAt(Keyspace ks, const KvSnapshot* at) const {
  if (at != nullptr) return static_cast<const MemorySnapshot*>(at)->map(ks);
  std::lock_guard l(mutex_);
  return now_[static_cast<size_t>(ks)];
}

Result<bool> MemoryKv::Get(Keyspace ks, std::string_view key, PinnedValue* out,
                           const KvSnapshot* at) {
  const MapPtr m = MapAt(ks, at);
  const auto it = m->find(key);
  if (it == m->end()) {
    out->Reset();
    return false;
  }
  out->Assign(it->second);
  return true;
}

Result<void> MemoryKv::MultiGet(Keyspace ks, std::span<const std::string_view> keys,
                                std::span<PinnedValue> out, const KvSnapshot* at) {
  const MapPtr m = MapAt(ks, at);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const auto it = m->find(keys[i]); it != m->end())
      out[i].Assign(it->second);
    else
      out[i].Reset();
  }
  return Ok();
}

std::unique_ptr<KvIterator> MemoryKv::NewIterator(Keyspace ks, KvIterOptions options) {
  return std::make_unique<MemoryIterator>(MapAt(ks, options.snapshot.get()), options);
}

KvSnapshotPtr MemoryKv::Snapshot() {
  std::lock_guard l(mutex_);
  return std::make_shared<MemorySnapshot>(now_, sequence_);
}

uint64_t MemoryKv::LatestSequence() {
  std::lock_guard l(mutex_);
  return sequence_;
}

std::unique_ptr<KvBatch> MemoryKv::NewBatch() { return std::make_unique<MemoryBatch>(); }

Result<void> MemoryKv::Write(KvBatch& batch, bool sync) {
  auto& b = static_cast<MemoryBatch&>(batch);
  std::lock_guard l(mutex_);
  Apply(now_, b.ops);
  sequence_ += b.ops.size();
  b.sequence = b.ops.empty() ? 0 : sequence_;
  pending_.push_back(b.ops);
  if (sync) Sync();
  return Ok();
}

Result<void> MemoryKv::SyncWal() {
  std::lock_guard l(mutex_);
  Sync();
  return Ok();
}

void MemoryKv::Sync() {
  if (lies) return;
  for (const auto& ops : pending_) Apply(synced_, ops);
  pending_.clear();
}

Result<void> MemoryKv::Checkpoint(const std::string&) {
  return Error{ErrorCode::kNotImplemented, "a store in memory has no files"};
}

uint64_t MemoryKv::ApproximateBytes(Keyspace ks, std::string_view begin, std::string_view end) {
  const MapPtr m = map(ks);
  uint64_t bytes = 0;
  for (auto it = m->lower_bound(begin); it != m->end() && it->first < end; ++it)
    bytes += it->first.size() + it->second.size();
  return bytes;
}

KvStats MemoryKv::Stats(Keyspace ks) {
  KvStats s;
  const MapPtr m = map(ks);
  s.estimated_keys = m->size();
  for (const auto& [key, value] : *m) s.live_bytes += key.size() + value.size();
  return s;
}

namespace {

/// The state that a closed store leaves to the next one at its path.
class MemoryEngine final : public KvEngine {
 public:
  Result<std::unique_ptr<KvStore>> Open(KvOptions options) const override;
  bool IsStoreFile(std::string_view) const override { return false; }
  std::string_view RootFile() const override { return {}; }
  std::string FileNamedByRoot(const std::string&) const override { return {}; }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<MemoryKv>> stores_;
};

/// A store that others may have open after it.
class SharedStore final : public KvStore {
 public:
  explicit SharedStore(std::shared_ptr<MemoryKv> kv) : kv_(std::move(kv)) {}
  Result<bool> Get(Keyspace ks, std::string_view key, PinnedValue* out,
                   const KvSnapshot* at) override {
    return kv_->Get(ks, key, out, at);
  }
  Result<void> MultiGet(Keyspace ks, std::span<const std::string_view> keys,
                        std::span<PinnedValue> out, const KvSnapshot* at) override {
    return kv_->MultiGet(ks, keys, out, at);
  }
  std::unique_ptr<KvIterator> NewIterator(Keyspace ks, KvIterOptions options) override {
    return kv_->NewIterator(ks, std::move(options));
  }
  KvSnapshotPtr Snapshot() override { return kv_->Snapshot(); }
  uint64_t LatestSequence() override { return kv_->LatestSequence(); }
  std::unique_ptr<KvBatch> NewBatch() override { return kv_->NewBatch(); }
  Result<void> Write(KvBatch& batch, bool sync) override { return kv_->Write(batch, sync); }
  Result<void> SyncWal() override { return kv_->SyncWal(); }
  Result<void> Flush() override { return kv_->Flush(); }
  Result<void> Flush(Keyspace ks) override { return kv_->Flush(ks); }
  Result<void> Compact(Keyspace ks, std::string_view begin, std::string_view end) override {
    return kv_->Compact(ks, begin, end);
  }
  Result<void> Checkpoint(const std::string& d) override { return kv_->Checkpoint(d); }
  uint64_t ApproximateBytes(Keyspace ks, std::string_view begin, std::string_view end) override {
    return kv_->ApproximateBytes(ks, begin, end);
  }
  KvStats Stats(Keyspace ks) override { return kv_->Stats(ks); }
  uint64_t MemoryBytes() override { return kv_->MemoryBytes(); }
  Result<void> Resume() override { return kv_->Resume(); }

 private:
  const std::shared_ptr<MemoryKv> kv_;
};

Result<std::unique_ptr<KvStore>> MemoryEngine::Open(KvOptions options) const {
  std::lock_guard l(mutex_);
  std::shared_ptr<MemoryKv>& kv = stores_[options.path];
  if (kv != nullptr && kv.use_count() > 1)
    return Error{ErrorCode::kLockBusy,
                 "another process is using the data directory " + options.path};
  if (kv == nullptr) kv = std::make_shared<MemoryKv>();
  return std::unique_ptr<KvStore>(std::make_unique<SharedStore>(kv));
}

}  // namespace

KvEnginePtr MakeMemoryEngine() { return std::make_shared<MemoryEngine>(); }

}  // namespace mayfly

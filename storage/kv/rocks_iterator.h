#pragma once
#include <rocksdb/db.h>
#include <rocksdb/perf_level.h>

#include <memory>

#include "storage/kv/kv.h"

/// Reads from RocksDB: snapshots and iterators, and conversions of its byte ranges.
namespace mayfly {

/// The same bytes; their owner does not change.
inline rocksdb::Slice S(std::string_view s) { return {s.data(), s.size()}; }
/// Likewise.
inline std::string_view V(const rocksdb::Slice& s) { return {s.data(), s.size()}; }

/// RocksDB counts key comparisons in thread-local memory, which costs as much as the comparison.
/// Called by what is hot.
inline void DisablePerfCounters() {
  thread_local const bool done = (rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable), true);
  (void)done;
}

/// A snapshot of RocksDB, released with it. `db` outlives it.
class RocksSnapshot final : public KvSnapshot {
 public:
  explicit RocksSnapshot(rocksdb::DB* db) : db_(db), snapshot_(db->GetSnapshot()) {}
  ~RocksSnapshot() override { db_->ReleaseSnapshot(snapshot_); }
  const rocksdb::Snapshot* get() const { return snapshot_; }
  uint64_t sequence() const override { return snapshot_->GetSequenceNumber(); }

 private:
  rocksdb::DB* db_;
  const rocksdb::Snapshot* snapshot_;
};

/// Null of null. REQUIRES: the snapshot is of a RocksDB store.
inline const rocksdb::Snapshot* RawSnapshot(const KvSnapshot* s) {
  return s ? static_cast<const RocksSnapshot*>(s)->get() : nullptr;
}

/// An iterator over a family. `group`: how its keys group (KvOptions::index_group); null: they do
/// not. `db` outlives it.
std::unique_ptr<KvIterator> MakeRocksIterator(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* cf,
                                              KvIterOptions options, KvGroupSize group);

}  // namespace mayfly

#pragma once
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "storage/kv/kv.h"

namespace mayfly {

/// An ordered store in memory, for tests: the promises of kv.h, as simply as possible, and a disk
/// that loses unsynced data when its machine loses power. While a snapshot or an iterator is held,
/// the next write copies its keyspace. Threads: any.
class MemoryKv final : public KvStore {
 public:
  using Map = std::map<std::string, std::string, std::less<>>;
  using MapPtr = std::shared_ptr<const Map>;
  using Maps = std::array<MapPtr, kKeyspaceCount>;
  /// One change of a batch.
  struct Op {
    enum Kind { kPut, kDelete, kRange } kind;
    Keyspace ks;
    std::string key, value;
  };

  MemoryKv();

  // --- the disk
  /// Keeps what was synced and the first `unsynced` batches after it.
  void LosePower(size_t unsynced);
  /// Batches that losing power may take away.
  size_t unsynced() const;
  /// The store of a member that copies this one: all data, synced.
  std::unique_ptr<MemoryKv> Copy() const;
  /// What is in a keyspace now.
  MapPtr map(Keyspace ks) const;
  bool lies = false;  ///< says that it has synced and has not; set before it is used

  Result<bool> Get(Keyspace ks, std::string_view key, PinnedValue* out,
                   const KvSnapshot* at) override;
  Result<void> MultiGet(Keyspace ks, std::span<const std::string_view> keys,
                        std::span<PinnedValue> out, const KvSnapshot* at) override;
  std::unique_ptr<KvIterator> NewIterator(Keyspace ks, KvIterOptions options) override;
  KvSnapshotPtr Snapshot() override;
  uint64_t LatestSequence() override;
  std::unique_ptr<KvBatch> NewBatch() override;
  Result<void> Write(KvBatch& batch, bool sync) override;
  Result<void> SyncWal() override;
  Result<void> Flush() override { return Ok(); }
  Result<void> Flush(Keyspace) override { return Ok(); }
  Result<void> Compact(Keyspace, std::string_view, std::string_view) override { return Ok(); }
  Result<void> Checkpoint(const std::string& directory) override;
  uint64_t ApproximateBytes(Keyspace ks, std::string_view begin, std::string_view end) override;
  KvStats Stats(Keyspace ks) override;
  uint64_t MemoryBytes() override { return 0; }
  Result<void> Resume() override { return Ok(); }

 private:
  MapPtr MapAt(Keyspace ks, const KvSnapshot* at) const;
  void Sync();  ///< REQUIRES: mutex_

  mutable std::mutex mutex_;
  Maps now_, synced_;
  std::vector<std::vector<Op>> pending_;  ///< batches since the last sync
  uint64_t sequence_ = 0;
};

/// Opens stores in memory: each Open of a path gets what the last one of that path left, for as
/// long as the engine lives.
KvEnginePtr MakeMemoryEngine();

}  // namespace mayfly

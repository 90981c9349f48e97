#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "replication/raft_node.h"

/// A replica set in one thread: its network, clock, disks and crashes come from one seed, so a
/// history that fails can be run again. What runs is the engine's own RaftNode, LogStore and
/// Applier; only threads, sockets and RocksDB are not.
namespace mayfly::testing {

/// An ordered store in memory that forgets what was not synced when its machine loses power.
class SimKv final : public KvStore {
 public:
  struct Op {
    enum Kind { kPut, kDelete, kRange } kind;
    Keyspace ks;
    std::string key, value;
  };
  using Maps = std::array<std::map<std::string, std::string>, kKeyspaceCount>;

  /// Keeps what was synced and the first `unsynced` batches after it.
  void LosePower(size_t unsynced);
  size_t unsynced() const { return pending_.size(); }
  std::unique_ptr<SimKv> Copy() const;
  const Maps& maps() const { return now_; }
  bool lies = false;  ///< says that it has synced and has not

  Result<bool> Get(Keyspace ks, std::string_view key, PinnedValue* out, const KvSnapshot*) override;
  Result<void> MultiGet(Keyspace, std::span<const std::string_view>, std::span<PinnedValue>,
                        const KvSnapshot*) override;
  std::unique_ptr<KvIterator> NewIterator(Keyspace ks, KvIterOptions options) override;
  KvSnapshotPtr Snapshot() override { return nullptr; }
  uint64_t LatestSequence() override { return 0; }
  std::unique_ptr<KvBatch> NewBatch() override;
  Result<void> Write(KvBatch& batch, bool sync) override;
  Result<void> SyncWal() override { return Ok(); }
  Result<void> Flush() override { return Ok(); }
  Result<void> Flush(Keyspace) override { return Ok(); }
  Result<void> Compact(Keyspace, std::string_view, std::string_view) override { return Ok(); }
  Result<void> Checkpoint(const std::string&) override { return Ok(); }
  uint64_t ApproximateBytes(Keyspace, std::string_view, std::string_view) override { return 0; }
  KvStats Stats(Keyspace) override { return {}; }
  uint64_t MemoryBytes() override { return 0; }
  Result<void> Resume() override { return Ok(); }

 private:
  Maps now_, synced_;
  std::vector<std::vector<Op>> pending_;
};

struct SimOptions {
  uint64_t seed = 1;
  int nodes = 3;
  int steps = 4000;      ///< of 10 ms
  bool faults = true;    ///< loss, partitions, crashes, nodes that sleep, wall clocks that jump
  bool changes = false;  ///< members leave and come back, lose and get their votes, are emptied
  bool trimming = true;  ///< logs are cut short, so members need copies
  bool data_is_empty = true;
  bool lying_disk = false;
};

struct SimResult {
  std::string failure;  ///< empty: every invariant held
  int acknowledged = 0, elections = 0, crashes = 0, partitions = 0, copies = 0, sleeps = 0;
  int changes = 0, emptied = 0;
  uint64_t digest = 0;  ///< of the whole history: equal seeds, equal digests
};

SimResult Simulate(const SimOptions& options);

}  // namespace mayfly::testing

#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

/// The narrow seam to the ordered key-value store. Only storage/kv/rocks_*.cc know that it is
/// RocksDB; tests put a faulty file layer or an in-memory fake under it.
namespace mayfly {

/// One RocksDB column family each. DO NOT RENUMBER.
enum class Keyspace : uint8_t {
  kCatalog = 0,
  kRecords = 1,
  kIndexes = 2,
  kExpiry = 3,
  kOplog = 4,
  kTombstones = 5
};
inline constexpr int kKeyspaceCount = 6;

/// A consistent point in time. Held by shared_ptr; releasing the last one lets old versions go.
class KvSnapshot {
 public:
  virtual ~KvSnapshot() = default;
  /// It shows the batches numbered up to this (KvStore::LatestSequence).
  virtual uint64_t sequence() const = 0;
};
using KvSnapshotPtr = std::shared_ptr<const KvSnapshot>;

/// Bytes pinned in the store's cache: no copy is made. Valid until Reset, reuse or destruction.
/// Reusable: Get into the same one again. Not thread-safe.
class PinnedValue {
 public:
  PinnedValue();
  PinnedValue(PinnedValue&&) noexcept;
  PinnedValue& operator=(PinnedValue&&) noexcept;
  ~PinnedValue();
  std::string_view view() const { return view_; }
  void Reset();
  void Assign(std::string_view bytes);  ///< holds a copy of these bytes instead

 private:
  friend class RocksKv;
  alignas(16) std::byte impl_[112];  // a PinnableSlice; size asserted in rocks_kv.cc
  std::string_view view_;
};

/// How to scan one keyspace.
struct KvIterOptions {
  KvSnapshotPtr snapshot;  ///< null: the state when the iterator was made
  std::string lower;       ///< inclusive; empty: none
  std::string upper;       ///< exclusive; empty: none
  bool fill_cache = true;  ///< false for scans that would wash the block cache
  size_t readahead = 0;    ///< bytes; 0: automatic
  /// A move that would have to pass more deleted entries than this fails (status()); 0: never.
  size_t max_skipped = 0;
};

/// Keys in byte order. Not thread-safe. key() and value() are valid until the next move.
class KvIterator {
 public:
  virtual ~KvIterator() = default;
  virtual void Seek(std::string_view key) = 0;         ///< first key >= key
  virtual void SeekForPrev(std::string_view key) = 0;  ///< last key <= key
  virtual void SeekToFirst() = 0;
  virtual void SeekToLast() = 0;
  virtual void Next() = 0;
  virtual void Prev() = 0;
  virtual bool Valid() const = 0;
  virtual std::string_view key() const = 0;
  virtual std::string_view value() const = 0;
  virtual Result<void> status() const = 0;  ///< an I/O error or corruption once Valid() is false
};

/// Changes that happen together or not at all. Copies keys and values. Reusable after Clear().
class KvBatch {
 public:
  virtual ~KvBatch() = default;
  virtual void Put(Keyspace ks, std::string_view key, std::string_view value) = 0;
  /// The value in two pieces, so that a header need not be copied in front of a document.
  virtual void Put(Keyspace ks, std::string_view key, std::string_view value_head,
                   std::string_view value_tail) = 0;
  virtual void Delete(Keyspace ks, std::string_view key) = 0;
  virtual void DeleteRange(Keyspace ks, std::string_view begin, std::string_view end) = 0;
  virtual void Clear() = 0;
  virtual size_t SizeBytes() const = 0;
  virtual int Count() const = 0;
};

/// Of one keyspace; estimates of the store.
struct KvStats {
  uint64_t estimated_keys = 0, live_bytes = 0, memtable_bytes = 0, memtable_entries = 0,
           pending_compaction_bytes = 0;
};

/// Snapshots that somebody holds.
struct KvSnapshotStats {
  uint64_t held = 0, oldest_age_seconds = 0;
};

/// Threads: any. Blocking: yes (a Get may read from disk; a Write appends to the WAL).
/// Errors: storage failures come back as OutOfDiskSpace 14031, InternalError 1 or
/// InterruptedAtShutdown 11600.
class KvStore {
 public:
  virtual ~KvStore() = default;
  /// False when the key is absent.
  virtual Result<bool> Get(Keyspace ks, std::string_view key, PinnedValue* out,
                           const KvSnapshot* at = nullptr) = 0;
  /// out[i] is engaged (view().data() != nullptr) when keys[i] is present. Keys sorted: faster.
  virtual Result<void> MultiGet(Keyspace ks, std::span<const std::string_view> keys,
                                std::span<PinnedValue> out, const KvSnapshot* at = nullptr) = 0;
  virtual std::unique_ptr<KvIterator> NewIterator(Keyspace ks, KvIterOptions options) = 0;
  virtual KvSnapshotPtr Snapshot() = 0;
  virtual KvSnapshotStats Snapshots() { return {}; }
  /// Goes up with every batch; a snapshot taken now has at least this one.
  virtual uint64_t LatestSequence() = 0;
  virtual std::unique_ptr<KvBatch> NewBatch() = 0;
  /// Applies the batch and hands its log record to the operating system; `sync` also forces it to
  /// the disk.
  virtual Result<void> Write(KvBatch& batch, bool sync) = 0;
  virtual Result<void> SyncWal() = 0;           ///< everything written so far survives power loss
  virtual Result<void> Flush() = 0;             ///< memtables to files
  virtual Result<void> Flush(Keyspace ks) = 0;  ///< likewise, of one keyspace
  virtual Result<void> Compact(Keyspace ks, std::string_view begin, std::string_view end) = 0;
  virtual Result<void> Checkpoint(const std::string& directory) = 0;
  virtual uint64_t ApproximateBytes(Keyspace ks, std::string_view begin, std::string_view end) = 0;
  virtual KvStats Stats(Keyspace ks) = 0;
  virtual uint64_t MemoryBytes() = 0;  ///< block cache and memtables now
  /// After a write error (full disk): tries to go on; Ok once writes are possible again. The store
  /// tries by itself, four times a second.
  virtual Result<void> Resume() = 0;
};

}  // namespace mayfly

#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

/// The narrow interface to the ordered key-value store. Only storage/kv/rocks_* know RocksDB; the
/// code that opens a Storage chooses the store (KvEngine). tests/unit/storage/kv_contract_test.cc
/// tests the promises of every store.
namespace mayfly {

/// Kept apart by the store, each in an order of its own. DO NOT RENUMBER.
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

/// A value that was read: bytes that the store keeps in place where it can, so that no copy is
/// made. Valid until Reset, reuse or destruction. Reusable: Get into the same one again. Not
/// thread-safe.
class PinnedValue {
 public:
  PinnedValue() = default;
  PinnedValue(PinnedValue&& o) noexcept { TakeOver(o); }
  PinnedValue& operator=(PinnedValue&& o) noexcept {
    if (this != &o) TakeOver(o);
    return *this;
  }
  ~PinnedValue() {
    if (kind_ != nullptr) kind_->destroy(holder_);
  }
  std::string_view view() const { return view_; }
  /// Releases the bytes, which may pin a block of the store's cache; keeps the holder for the next
  /// read.
  void Reset() {
    if (kind_ != nullptr) kind_->release(holder_);
    view_ = {};
  }
  void Assign(std::string_view bytes);  ///< holds a copy of these bytes instead

  /// For stores. The object that keeps the bytes, made when it is first asked for; one of another
  /// type goes. `T` is default-constructible and has Release() (keeps nothing any more),
  /// TakeOver(T&) and View().
  template <class T>
  T& Holder() {
    static_assert(sizeof(T) <= kHolderSize && alignof(T) <= kHolderAlign);
    if (kind_ != &kKindOf<T>) [[unlikely]] {
      if (kind_ != nullptr) kind_->destroy(holder_);
      new (holder_) T;
      kind_ = &kKindOf<T>;
      view_ = {};
    }
    return *In<T>(holder_);
  }
  /// For stores: what the holder keeps is the value; its data() is not null, also of no bytes.
  void Show(std::string_view bytes) { view_ = bytes; }

 private:
  static constexpr size_t kHolderSize = 112, kHolderAlign = 16;
  struct Kind {
    void (*make)(std::byte*);
    void (*destroy)(std::byte*);
    void (*release)(std::byte*);
    std::string_view (*take_over)(std::byte* to, std::byte* from);
  };
  template <class T>
  static T* In(std::byte* p) {
    return std::launder(reinterpret_cast<T*>(p));
  }
  template <class T>
  static constexpr Kind kKindOf = {[](std::byte* p) { new (p) T; },
                                   [](std::byte* p) { In<T>(p)->~T(); },
                                   [](std::byte* p) { In<T>(p)->Release(); },
                                   [](std::byte* to, std::byte* from) {
                                     In<T>(to)->TakeOver(*In<T>(from));
                                     return In<T>(to)->View();
                                   }};
  void TakeOver(PinnedValue& o);

  alignas(kHolderAlign) std::byte holder_[kHolderSize];
  const Kind* kind_ = nullptr;  ///< of what is in holder_; null: nothing
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
  /// Only Seek, SeekToFirst and Next will be used: a store may then skip files that by its filters
  /// have nothing between the bounds (KvOptions::index_group). The other moves work too: they start
  /// again, and without a snapshot see the later state.
  bool forward = false;
};

/// Keys in byte order. Not thread-safe. key() and value() are valid until the next move.
class KvIterator {
 public:
  virtual ~KvIterator() = default;
  virtual void Seek(std::string_view key) = 0;         ///< first key >= key
  virtual void SeekForPrev(std::string_view key) = 0;  ///< last key <= key
  /// Within the bounds of KvIterOptions. REQUIRES for Next, Prev, key and value: Valid().
  virtual void SeekToFirst() = 0;
  virtual void SeekToLast() = 0;
  virtual void Next() = 0;
  virtual void Prev() = 0;
  virtual bool Valid() const = 0;
  virtual std::string_view key() const = 0;
  virtual std::string_view value() const = 0;
  virtual Result<void> status() const = 0;  ///< an I/O error or corruption once Valid() is false
  /// Next, or Prev where `backward`, and what is there; false, and nothing shown, where nothing is.
  /// One call instead of four: for scans, which step millions of times. REQUIRES: Valid() was true
  /// after the last move.
  virtual bool Step(bool backward, std::string_view* key, std::string_view* value);
};

/// Changes that happen together or not at all. Copies keys and values. Reusable after Clear().
class KvBatch {
 public:
  virtual ~KvBatch() = default;
  /// If a batch changes one key several times, the last change counts.
  virtual void Put(Keyspace ks, std::string_view key, std::string_view value) = 0;
  /// The value in two pieces, so that a header need not be copied in front of a document.
  virtual void Put(Keyspace ks, std::string_view key, std::string_view value_head,
                   std::string_view value_tail) = 0;
  virtual void Delete(Keyspace ks, std::string_view key) = 0;
  /// [begin, end); nothing when `end` is not behind `begin`.
  virtual void DeleteRange(Keyspace ks, std::string_view begin, std::string_view end) = 0;
  virtual void Clear() = 0;
  virtual size_t SizeBytes() const = 0;
  virtual int Count() const = 0;
};

/// Figures of one keyspace, as the store estimates them.
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
  /// Whether the store takes writes now; else the error that they are answered with. Never waits
  /// for the disk.
  virtual Result<void> WritesPossible() { return Ok(); }
  /// After a write error (full disk): tries to resume; Ok once writes are possible again. The store
  /// retries by itself, four times a second.
  virtual Result<void> Resume() = 0;
};

/// The size of the prefix that all keys of a key's group share; 0: the key is in no group. Exactly
/// the keys that begin with this prefix are in the group. The prefix alone is in its own group, and
/// any bytes may be passed. Only reads these bytes.
using KvGroupSize = size_t (*)(std::string_view key);

/// How to open a store.
struct KvOptions {
  std::string path;  ///< data directory; created if absent
  uint64_t cache_bytes =
      0;  ///< for cached blocks and what is not yet in files; 0: the store's choice
  /// How keys of Keyspace::kIndexes group, for filters that say which files have nothing of a
  /// group; null: no such filters. Files that were written with it can be read without, and the
  /// other way round. Another grammar of groups needs another name in rocks_tuning.cc.
  KvGroupSize index_group = nullptr;
  /// Severity 'I' 'W' 'E' and one line: background errors and recoveries. Any thread. May be null.
  std::function<void(char severity, std::string_view message)> log;
};

/// A kind of store: opens one, and knows the files that it and its checkpoints consist of.
/// Immutable; any thread.
class KvEngine {
 public:
  virtual ~KvEngine() = default;
  /// Opens or creates the store. Errors, each naming the directory or the file at fault: another
  /// process has it open, it cannot be written, a file is corrupt or missing, keyspaces that this
  /// version does not know.
  virtual Result<std::unique_ptr<KvStore>> Open(KvOptions options) const = 0;
  /// Whether a store has files of this name.
  virtual bool IsStoreFile(std::string_view name) const = 0;
  /// The file without which a directory is no store.
  virtual std::string_view RootFile() const = 0;
  /// The other required file that the root file in `directory` names; empty: it cannot be read, or
  /// names none.
  virtual std::string FileNamedByRoot(const std::string& directory) const = 0;
};
using KvEnginePtr = std::shared_ptr<const KvEngine>;

}  // namespace mayfly

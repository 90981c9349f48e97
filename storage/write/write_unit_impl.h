#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/catalog/index_keys.h"
#include "storage/core/lock_table.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/write/own_writes.h"
#include "storage/write/transaction_unit.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// What one that needs a collection for itself waits at a time (TouchExclusive); then it looks
/// whether it is interrupted.
inline constexpr int64_t kExclusiveWaitMicros = 200'000;

/// Memory that goes all at once; keeps its first block for the next unit.
class Arena {
 public:
  /// Not initialised and not aligned: for bytes only. Good until Reset, also when the arena grows.
  char* Allocate(size_t n) {
    if (n > left_) Grow(n);
    used_ += n;
    char* p = next_;
    next_ += n;
    left_ -= n;
    return p;
  }
  /// The view is good until Reset.
  std::string_view Copy(std::string_view s) {
    if (s.empty()) return {};
    char* p = Allocate(s.size());
    std::memcpy(p, s.data(), s.size());
    return {p, s.size()};
  }
  /// Everything handed out ends; only the block inside the arena is kept.
  void Reset();
  size_t used() const { return used_; }

 private:
  void Grow(size_t n);
  char first_[2048];
  char* next_ = first_;
  size_t left_ = sizeof first_;
  size_t used_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
};

/// One staged change. Key and head are in the unit's arena; the tail is there or in the caller's
/// document.
struct StagedOp {
  enum Kind : uint8_t { kPut, kDelete, kDeleteRange };
  Kind kind = kPut;
  bool looked_up = false;  ///< later calls of the unit may ask for this key (an index entry that is
                           ///< not unique: never)
  bool moves = false;      ///< the time in it counts from the unit's time in the log
  uint8_t head_size = 0;
  uint32_t key_size = 0, tail_size = 0;
  uint32_t sequence = 0;  ///< order among the unit's operations (ranges against single keys)
  const char* key_data = nullptr;
  const char* head_data = nullptr;
  const char* tail_data = nullptr;  ///< rest of the value; kDeleteRange: the end of the range

  std::string_view key() const { return {key_data, key_size}; }
  std::string_view head() const { return {head_data, head_size}; }
  std::string_view tail() const { return {tail_data, tail_size}; }
};

/// One changed document, for log entries and statistics. Views live as long as the
/// unit.
struct DocumentChange {
  enum Kind : uint8_t { kInsert, kUpdate, kDelete };
  Kind kind;
  DeleteCause cause;    ///< of a kDelete
  uint16_t collection;  ///< index into WriteUnit::Impl::collections
  std::string_view record_key;
  BsonView doc;  ///< as it is now; empty for kDelete
  // For the log only, in the unit's arena.
  uint32_t effect = 0;  ///< kInsert, kUpdate: which of ops[kRecords] holds the document
  int32_t stmt_id = -1;
  std::string_view detail{};  ///< kUpdate: the diff, empty: a replacement; kDelete: {_id: …}
  std::string_view rule{};    ///< kDelete by a TTL index: its name
  std::string_view field{};   ///< and its field; empty: there is no date in it any more
  int64_t date = 0;           ///< from which the deadline counts (milliseconds)
  std::string_view
      before{};  ///< kUpdate, kDelete: the document as it was, if the collection keeps that
};

/// An entry `c` of the log. Views are into the unit's arena.
struct LoggedCommand {
  std::string_view db, o, o2;
  Uuid uuid{};
  bool has_uuid = false;
};

/// A collection the unit has touched: its gate is held, and this is its definition as long as it
/// is.
struct TouchedCollection {
  CollectionInfoPtr coll;
  uint32_t id = 0;
  bool shared = false, exclusive = false;  ///< which side of the gate is held
  bool counted = false;                    ///< the counters change
  int64_t documents = 0, bytes = 0;
  int64_t first_sequence = 0;  ///< capped: no record before it will be left; 0: not changed
  int64_t last_sequence = 0;   ///< capped: the newest number given out; 0: none
  std::shared_ptr<HighestKey> highest;  ///< once something was inserted
};

/// All of a unit's state until it is committed: locks, staged changes by keyspace, what readers of
/// the unit see.
struct WriteUnit::Impl {
  Storage::Impl* storage = nullptr;
  Operation* op = nullptr;
  LockOwner owner = 0;
  bool no_wait = false;
  bool merges_buckets = false;
  bool keep_short = false;  ///< KeepShort: the two below hold
  int64_t keys_left = 0;    ///< may be below 0

  std::vector<uint64_t> locks;
  std::vector<TouchedCollection> collections;
  std::array<std::vector<StagedOp>, kKeyspaceCount> ops;
  std::vector<DocumentChange> changes;
  bool logged =
      false;  ///< the store is a replica set's member: changes carry what the log shows of them
  bool local = false;  ///< but this unit stays out of it
  std::vector<LoggedCommand> commands;
  std::string_view log_session;  ///< BSON, in the arena; empty: none
  int64_t txn_number = 0;
  bool replacement = false;
  std::string log_scratch;
  struct MultikeyChange {
    const IndexInfo* index;  ///< kept alive by `collections`
    uint64_t bits;
  };
  std::vector<MultikeyChange> multikey;
  std::vector<std::function<void()>> on_commit;
  /// Run once by the committing thread, before the batch is visible and once it is irrevocable.
  std::vector<std::function<void()>> before_visible;
  /// Dates that enter a TTL index or clustered collection: told to the reaper once they are
  /// visible.
  struct ExpiryNote {
    ExpiryState* state;  ///< kept alive by `collections`
    int64_t millis, deadline;
  };
  std::vector<ExpiryNote> expiry_notes;
  Arena arena;
  uint32_t sequence = 0;
  size_t staged_bytes = 0;
  std::vector<StagedOp> ranges;  ///< the kDeleteRange ones again, for look-ups
  bool owns_documents = false;   ///< WriteUnit::OwnDocuments
  /// Set only for a transaction (storage/write/transaction_unit.h); else null.
  std::unique_ptr<TransactionUnit> transaction;
  bool* met_transaction = nullptr;  ///< LeaveToTransactions
  int transactions_met = 0;         ///< TransactionsMet
  std::shared_ptr<OwnWrites> own_writes;
  /// The document as the unit keeps it.
  BsonView Keep(BsonView doc) { return owns_documents ? BsonView(arena.Copy(doc.bytes())) : doc; }

  // --- locks -------------------------------------------------------------------------------------
  /// Locks one key for the life of the unit. Errors: WriteConflict 112.
  Result<void> Lock(Keyspace ks, std::string_view key);
  /// For a transaction: locks a unique key that its own record gives up. Others cannot have it
  /// before the commit, and may get it if there is none. Errors: WriteConflict 112.
  Result<void> LockFreed(const IndexInfo& index, std::string_view values);
  /// Without waiting; false when another unit has it.
  bool TryLock(Keyspace ks, std::string_view key);
  /// Takes the collection's gate as a writer (once) and returns its current definition. The pointer
  /// is good until the next Touch. Errors: WriteConflict 112 when the gate stays shut,
  /// QueryPlanKilled 175 when the collection was dropped meanwhile: look it up again.
  Result<TouchedCollection*> Touch(const CollectionInfo& coll);
  /// Whether no record can have this key, which is locked and about to be staged: the `_id` of an
  /// insert is then free. False if only a look-up can tell.
  bool IsAboveAll(TouchedCollection& t, std::string_view key) {
    // On a member of a set records come by the log as well.
    if (logged || transaction) return false;
    if (!t.highest) t.highest = storage->highest_keys.Of(*t.coll);
    return t.highest->Passes(*storage->kv, t.id, key);
  }
  /// Takes the gate to change the definition: no writer is inside. Errors: WriteConflict 112 after
  /// `timeout_us`.
  Result<void> TouchExclusive(const CollectionInfo& coll, int64_t timeout_us);
  /// For an id that has no CollectionInfo yet, or none any more.
  Result<void> TouchExclusiveId(uint32_t collection, int64_t timeout_us);
  void ReleaseLocks();
  /// For a transaction: checks that the key just locked, under `hash`, is as in its snapshot.
  /// Errors: WriteConflict 112.
  Result<void> CheckUnchanged(Keyspace ks, std::string_view key, uint64_t hash) const;
  /// For a transaction: checks that it writes by the definition that it reads by. Errors:
  /// SnapshotUnavailable 246.
  Result<void> CheckDefinition(const CollectionInfo& now) const;
  /// Before the batch is visible: updates memory that its readers need.
  void BecomesVisible() {
    for (const ExpiryNote& n : expiry_notes) n.state->head.Lower(n.millis);
    for (auto& f : before_visible) f();
    before_visible.clear();
  }
  /// After the commit: tells the watch of collections, if it is one of its own.
  void TellWatch() const;

  // --- staging -----------------------------------------------------------------------------------
  /// `tail` is not copied; key and head are.
  void StagePut(Keyspace ks, std::string_view key, std::string_view head, std::string_view tail,
                bool looked_up);
  void StageDelete(Keyspace ks, std::string_view key, bool looked_up);
  /// One entry of an index: the key is index id + values (+ record id), the value as key_format.h
  /// says.
  void StageIndexPut(const IndexInfo& index, std::string_view values, std::string_view bits,
                     std::string_view record_id);
  void StageIndexDelete(const IndexInfo& index, std::string_view values,
                        std::string_view record_id);
  /// Before the keys of documents of so many bytes are extracted into `before` and `after`, which
  /// have room for them afterwards. Errors: WriteConflict 112, when the unit is to be short and
  /// that may take long.
  Result<void> BeginKeys(const CollectionInfo& coll, size_t bytes);
  /// After such extractions and before as many look-ups of unique keys. Errors: the same.
  Result<void> CheckShort(size_t unique_keys = 0) {
    if (!keep_short) [[likely]]
      return Ok();
    keys_left -= static_cast<int64_t>(unique_keys) * 3;
    return keys_left >= 0 ? Ok() : TooLong();
  }
  /// WriteConflict 112: the work is begun again on a worker thread.
  static Result<void> TooLong();
  /// Deletes what is in `before` and not in `after`, index by index.
  Result<void> StageRemovals(const CollectionInfo& coll, std::string_view record_id);
  /// The document before the newest of `changes`, if the collection keeps it for change streams.
  /// Copied: the writer may release it before the unit is encoded.
  void NoteBefore(const CollectionInfo& coll, BsonView doc) {
    if (!coll.pre_images) [[likely]]
      return;
    changes.back().before = arena.Copy(doc.bytes());
    staged_bytes += doc.size();
  }
  /// Completes the newest of `changes` for the log.
  void NoteChange() {
    changes.back().effect =
        static_cast<uint32_t>(ops[static_cast<size_t>(Keyspace::kRecords)].size()) - 1;
  }
  /// Moves a document in its collection's queue; nothing when both are the same. `key`: the full
  /// record key.
  void StageDeadlineChange(const CollectionInfo& coll, std::string_view key,
                           std::optional<Instant> was, std::optional<Instant> is);
  /// The tombstone of a removal, at the operation's time. Nothing where none are kept
  /// (tombstone_seconds 0), or for what a capped collection pushes out.
  void StageTombstone(const CollectionInfo& coll, std::string_view record_key, BsonView doc,
                      const DeleteCause& cause);
  /// Removes a document that is in the way of another when it is past its deadline; false: it is
  /// not. REQUIRES: its record is locked and just read: into `*own`, or `pinned` when that is null.
  Result<bool> RemoveIfExpired(WriteUnit& unit, const CollectionInfo& coll,
                               std::string_view record_key, const StagedOp* own);
  /// Likewise for the owner of a unique key, which is not locked yet; true also when it is gone.
  Result<bool> RemoveExpiredOwner(WriteUnit& unit, const CollectionInfo& coll,
                                  std::string_view record_id);
  void MoveDeadline(const TransactionUnit::FromCommit& d);
  /// Notes that these fields of the index met an array: the flag and its row are part of the
  /// commit.
  void StageMultikey(const IndexInfo& index, uint64_t bits);
  /// Errors: DuplicateKey 11000 unless these values are free or belong to `record_id`; locks them.
  /// Works on unique indexes and on those that are to become so (prepareUnique).
  /// A holder past its deadline is removed, given the unit (an index build gives none at
  /// first).
  Result<void> CheckUnique(WriteUnit* unit, const CollectionInfo& coll, const IndexInfo& index,
                           std::string_view values, std::string_view bits,
                           std::string_view record_id);

  // --- own writes --------------------------------------------------------------------------------
  enum class Own : uint8_t { kUnknown, kAbsent, kPresent };  ///< kUnknown: ask the store
  /// `deep`: also among index entries that are not unique (searches them all).
  Own FindOwn(Keyspace ks, std::string_view key, const StagedOp** found, bool deep = false);
  /// The latest version, own writes first. False when absent. The value is in `**own` if that is
  /// set, else in `*out`.
  Result<bool> Read(Keyspace ks, std::string_view key, PinnedValue* out, const StagedOp** own,
                    bool deep = false);

  /// No change of a row is staged; log commands do not count.
  bool empty() const;
  /// How many changes are staged.
  size_t OpCount() const {
    size_t n = 0;
    for (const auto& list : ops) n += list.size();
    return n;
  }
  /// Sorts the staged changes by key, in each keyspace except records: before the commit, on the
  /// committing thread, so that others do not wait for it. Nothing may be staged or looked up
  /// afterwards.
  void SortForCommit();
  /// For another unit: locks are released, what was staged is forgotten, buffers stay.
  void Reset();

  // Finds staged operations by key; filled when the first look-up comes, so that a unit of one
  // document never pays for it.
  struct Slot {
    uint32_t hash = 0;
    uint32_t position = 0;  ///< keyspace << 28 | index in ops + 1; 0: free
  };
  std::vector<Slot> slots;
  size_t slots_used = 0;
  std::array<uint32_t, kKeyspaceCount> indexed{};  ///< so many of ops[ks] are in `slots`
  /// The hash table of looked-up keys: FillSlots adds what was staged since the last time, Grow
  /// doubles it, FindSlot returns the key's place or the free one where it belongs. REQUIRES for
  /// FindSlot: `slots` is not empty.
  void FillSlots(size_t ks);
  void Grow();
  Slot* FindSlot(uint32_t hash, size_t ks, std::string_view key);

  // Buffers kept from one document to the next.
  std::string record_key, index_key, index_value;
  std::vector<KeySet> before, after;
  PinnedValue pinned;
  bool sorted = false;   ///< SortForCommit
  bool applied = false;  ///< a committer has made it permanent
  /// By which batch (NumberOf); 0: one that was numbered up to now.
  uint64_t applied_by = 0;
};

/// `E11000 duplicate key error collection: …` with keyPattern and keyValue as details.
Error DuplicateKeyError(const CollectionInfo& coll, std::string_view index_name,
                        BsonView key_pattern, BsonView key_value);

/// The common part of all committers: puts write units into a batch and updates memory around its
/// write. One at a time: counters are kept exact by the order of batches.
class UnitApplier {
 public:
  explicit UnitApplier(Storage::Impl& storage) : storage_(storage) {}
  /// Fills `batch` with the changes of the units, keyspace by keyspace, and the new counters of
  /// what they touch.
  void Prepare(std::span<WriteUnit> units, KvBatch& batch);
  /// After the batch is visible: counters, then each unit's OnCommit functions; its locks are
  /// released.
  void Applied(std::span<WriteUnit> units);
  /// The batch was not written: nothing has changed. Locks are released.
  void Failed(std::span<WriteUnit> units);

 private:
  struct Count {
    uint32_t id;
    CollectionCounters* counters;
    CounterRow row;
  };
  Storage::Impl& storage_;
  std::vector<Count> counts_;
  std::vector<const StagedOp*> sorted_;
  /// Flags set in memory whose rows were in a batch that failed: they go with the next one, because
  /// units that found the flag set have not written it again.
  std::vector<std::string> multikey_owed_;
  std::vector<std::string> multikey_now_;
};

}  // namespace mayfly

#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"
#include "storage/expiry/delete_cause.h"
#include "storage/kv/kv.h"
#include "storage/operation.h"

namespace mayfly {

class Storage;

/// Everything one command (or one batch of it) changes: documents, index entries, counters, catalog
/// rows and, on a replica set, log entries. It holds its locks, sees its own writes, and commits as
/// one batch through the Committer. All or nothing: destroying an uncommitted unit changes nothing.
///
/// Threads: one at a time. Blocking: taking a lock may wait (bounded; then WriteConflict 112, and
/// the caller retries the whole unit). A coroutine on an io thread uses TryLock… first and moves to
/// a worker when it fails.
class WriteUnit {
 public:
  WriteUnit(Storage& storage, Operation& op);
  ~WriteUnit();
  WriteUnit(WriteUnit&&) noexcept;

  /// When set before the first write, a lock that is not free at once fails with WriteConflict
  /// instead of waiting.
  void set_no_wait(bool on);

  // --- documents; each call is atomic within the unit: on error it has changed nothing -----------

  /// Adds the document with its index entries. `doc` must have an `_id` as first field and
  /// have passed validation, and must live until the unit is committed or destroyed (its bytes
  /// are not copied before that). `expire_at`: the per-document deadline for the record
  /// header. If a document past its deadline (storage/read/visibility.h) has the same `_id` or
  /// unique key, it is first removed as expired. The same goes for Update. Errors:
  /// DuplicateKey 11000 (details: keyPattern, keyValue), CannotIndexParallelArrays 171;
  /// Location5930501 (indexed_arrays.h).
  Result<void> Insert(const CollectionInfo& coll, BsonView doc,
                      std::optional<Instant> expire_at = {});

  /// A document locked and read for change. The bytes are pinned by the record.
  struct Locked {
    std::string record_key;  ///< full key in Keyspace::kRecords
    PinnedValue pinned;
    BsonView doc;
    std::optional<Instant> expire_at;
  };
  /// Locks the record and reads its latest version (own writes included); false when it is gone.
  Result<bool> LockAndRead(const CollectionInfo& coll, std::string_view record_key, Locked* out);

  /// From now on Insert gets buckets of points that the collection has already, merged anew: no
  /// index refuses their arrays. While an index on measurements is built, Insert fails with
  /// WriteConflict 112: the build could pass by points that it has yet to look at.
  void set_merges_buckets();
  /// Replaces a locked document by `next` (same `_id`; lives until commit), changing only the index
  /// entries that differ.
  Result<void> Update(const CollectionInfo& coll, const Locked& current, BsonView next,
                      std::optional<Instant> expire_at = {});
  Result<void> Delete(const CollectionInfo& coll, const Locked& current,
                      const DeleteCause& cause = {});
  /// As Delete, for a document past its deadline that a writer other than the reaper finds: counted
  /// as expired once committed.
  Result<void> DeleteExpired(const CollectionInfo& coll, const Locked& current,
                             const DeleteCause& cause);

  /// Locks and reads many records at once (one MultiGet): what the reaper and multi-deletes use.
  /// Keys that are gone are left out of `out`. With no_wait, keys whose lock is taken are left out
  /// too and counted in `*busy`.
  Result<void> LockAndReadMany(const CollectionInfo& coll,
                               std::span<const std::string_view> record_keys,
                               std::vector<Locked>* out, int* busy);

  // --- raw changes, for storage's own catalog and for the layers that keep state of their own
  void Put(Keyspace ks, std::string_view key, std::string_view value);
  void Erase(Keyspace ks, std::string_view key);
  void EraseRange(Keyspace ks, std::string_view begin, std::string_view end);
  Result<bool> Get(Keyspace ks, std::string_view key, PinnedValue* out);  ///< sees own writes

  /// Runs after the batch is applied, before locks are released. Not on other members of a replica
  /// set, and not if this one stopped being primary before the outcome was known: actions needed
  /// there too follow from the rows (storage/write/log_apply.h).
  void OnCommit(std::function<void()> f);

  // --- a unit of several statements: a transaction -----------------------------------------------
  /// From now on documents are copied into the unit, so it may outlive their owner.
  void OwnDocuments();
  /// Goes on for another operation: its clock reading, its interrupts, its counts.
  void Attach(Operation& op);
  /// What it has staged so far in key order; for ReadView::With. The same object for the unit's
  /// life.
  std::shared_ptr<class OwnWrites> own_writes();
  /// The unit's progress so far.
  struct Savepoint {
    struct Counts {
      bool counted;
      int64_t documents, bytes, first_sequence, last_sequence;
    };
    uint32_t ops[kKeyspaceCount], sequence;
    size_t changes, commands, multikey, on_commit, expiry_notes, ranges, staged_bytes;
    std::vector<Counts> collections;
    bool local;
  };
  /// A copy of counts, not of what is staged. Good for RollBackTo until the unit is rolled back to
  /// an earlier one, or committed.
  Savepoint Mark() const;
  /// Rolls back changes staged since then. The unit keeps its locks, and its copies stay in its
  /// memory.
  void RollBackTo(const Savepoint& savepoint);
  /// Bytes of memory it holds: more than SizeBytes after a rollback.
  size_t MemoryBytes() const;

  // --- what the log entry says besides the changes themselves; without effect unless the store is
  // a member of a replica set ---------
  /// The session and transaction number of a retryable write; `lsid` is the oplog's {id, uid}.
  /// Copied.
  void SetLogSession(BsonView lsid, int64_t txn_number);
  /// The statements that the changes so far belong to, one a document in order; the last is also
  /// that of all further ones.
  void SetStatements(std::span<const int32_t> ids);
  /// The following updates put a whole document in place of another (`o` is the document, not a
  /// diff).
  void SetReplacement(bool on);
  /// An entry `c` in `db`.$cmd: {create: …}, {drop: …} and the like. `collection`: whose uuid it
  /// carries; may be null. Copied.
  void LogCommand(std::string_view db, const CollectionInfo* collection, BsonView o,
                  BsonView o2 = {});
  /// This unit's changes stay on this member and are in no log: rows that differ from member to
  /// member.
  void SetLocal();

  /// Nothing of the store would change; log commands do not count.
  bool empty() const;
  size_t SizeBytes() const;   ///< staged so far
  int DocumentCount() const;  ///< documents changed so far

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// How strong an acknowledgement must be.
struct CommitOptions {
  bool journal = false;  ///< j:true: synced to disk before `done`
};

/// Makes write units permanent. The local one writes RocksDB batches, combining the units that wait
/// at the same moment; a replicated one (replication/) puts them through the log first. Threads:
/// any.
class Committer {
 public:
  virtual ~Committer() = default;
  /// `done` runs exactly once: before Submit returns if it need not wait, else on another thread.
  /// It must not block. Locks are released once the unit is visible, before a journal sync is
  /// waited for.
  virtual void Submit(WriteUnit unit, CommitOptions options,
                      std::function<void(Result<void>)> done) = 0;
  /// Submit and wait, for no longer than the unit's Operation::commit_deadline_micros if the unit
  /// is OwnedOnceSubmitted. Not for io threads.
  Result<void> Commit(WriteUnit unit, CommitOptions options = {});
  /// Whether Submit copies all that is to be written: then the documents that the unit refers to,
  /// and its operation, may end before the outcome is known.
  virtual bool OwnedOnceSubmitted(WriteUnit&) const { return false; }
};

}  // namespace mayfly

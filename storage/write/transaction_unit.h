#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/seeded_hash.h"
#include "storage/catalog/catalog.h"
#include "storage/expiry/kept_documents.h"
#include "storage/read/read_view.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// The limits of a transaction's staged data, and of all its entries in the oplog.
inline constexpr size_t kMaxTransactionBytes = size_t{256} << 20;
inline constexpr size_t kMaxTransactionEntryBytes = size_t{128} << 20;
/// Collections that one transaction may write to, including new ones: each costs work at the
/// commit, and others wait for some of it.
inline constexpr size_t kMaxTransactionCollections = 10'000;
/// TransactionTooLarge 257.
Error TransactionTooLarge(std::string message);
/// The same, of kMaxTransactionCollections.
Error TooManyCollections();

/// The catalog as a transaction sees it: that of its moment, and the collections that it has made
/// since (storage/schema/transaction_schema.h), which nobody else sees before it is committed.
/// Threads: any.
class TransactionCatalog final : public CatalogMoment {
 public:
  /// `view`: with a moment of `catalog`.
  TransactionCatalog(ReadView view, Catalog& catalog)
      : view_(std::move(view)), catalog_(catalog), version_(catalog.Version()) {}
  uint64_t version() const override { return version_; }
  Result<CollectionInfoPtr> Find(std::string_view db, std::string_view collection) const override;
  /// A collection that the transaction makes, or its newest definition. REQUIRES: the moment has no
  /// collection of this name.
  void Adopt(CollectionInfoPtr coll);
  /// One of these; null: it is none.
  CollectionInfoPtr FindOwn(uint32_t id) const;
  /// All of them, in the order in which they were made.
  std::vector<CollectionInfoPtr> Own() const;
  size_t OwnCount() const { return count_.load(std::memory_order_relaxed); }
  /// The size of the definitions: in memory, with their data until the commit; and estimated as
  /// operations in the oplog.
  size_t MemoryBytes() const { return memory_.load(std::memory_order_relaxed); }
  size_t EntryBytes() const { return entry_.load(std::memory_order_relaxed); }

 private:
  const ReadView view_;
  Catalog& catalog_;
  const uint64_t version_;
  mutable std::mutex mutex_;
  std::vector<CollectionInfoPtr> adopted_;
  ClientViewMap<size_t> by_ns_;  ///< their places; keys point into the definitions
  std::unordered_map<uint32_t, size_t> by_id_;
  std::atomic<size_t> count_{0}, memory_{0}, entry_{0};
};

/// The additional state of a transaction's write unit. Snapshot isolation: what it locks must equal
/// its snapshot; otherwise another writer has changed it since and was first. Versions with the
/// same bytes are the same.
struct TransactionUnit {
  KvSnapshotPtr snapshot;
  std::shared_ptr<TransactionCatalog> catalog;
  int64_t lock_wait_micros = 0;  ///< for locks of others that are no transactions
  uint64_t reign = 0;            ///< the committer's when it was begun
  bool logged = false;           ///< its entry in the log says that it is one
  /// Records that archives have put there, perhaps in place of ones past their deadline.
  ClientStringSet archived;
  /// Deadlines that count from the commit: which of the unit's changes of records has one, what it
  /// is so far and by which reading of the clock, and the latest that it may be.
  struct FromCommit {
    uint32_t record;
    uint16_t collection;
    Instant deadline, read, latest;
  };
  std::vector<FromCommit> from_commit;
  /// The latest allowed time of deadlines moved to the commit, by StagedOp::sequence.
  std::unordered_map<uint32_t, Instant> latest;
  /// Conditions of its documents' deadlines on its time; made when it is prepared for its commit.
  std::shared_ptr<KeptUnit> kept;
  /// A call failed because another writer was first since the snapshot: a newer one may succeed.
  bool stale = false;
};

/// Makes the unit that of a transaction that reads `snapshot` and `catalog`. Before its first call.
/// Its locks fail with WriteConflict 112: at once if another transaction has them, else after
/// `lock_wait_micros`; LockTimeout 24 while a collection's definition is being changed;
/// SnapshotUnavailable 246 where it has changed since the snapshot.
/// `reign`: the committer's by now; it is committed in no other.
void BeginTransactionUnit(WriteUnit& unit, KvSnapshotPtr snapshot,
                          std::shared_ptr<TransactionCatalog> catalog, int64_t lock_wait_micros,
                          uint64_t reign = 0);
/// A collection that the transaction makes, or its newest definition: it writes by that from now
/// on.
void AdoptCollection(WriteUnit& unit, CollectionInfoPtr coll);
/// Whether a call has failed because another writer was first since the snapshot: with a newer one
/// it may succeed.
bool IsStale(WriteUnit& unit);
/// Its staged data and locks, in bytes, without the spare capacity of its lists that earlier units
/// have left (WriteUnit::MemoryBytes).
size_t StagedBytes(const WriteUnit& unit);
/// Whether there is nothing to commit: no document was written, no collection made.
bool HasNothingToCommit(WriteUnit& unit);
/// WriteConflict 112.
Error TransactionConflict();

/// The deadline that the last insert or update gave its document counts from the commit, and is
/// `latest` at most. REQUIRES: it gave one.
void CountFromCommit(WriteUnit& unit, Instant latest);

/// Before its commit, of a session and number (WriteUnit::SetLogSession): the log has the unit as
/// one entry. `op`: of the commit, by whose reading of the clock deadlines count and tombstones are
/// dated, until its time in the log is known (MoveLogTimes). Nothing is read from the unit
/// afterwards. Errors: WriteConflict 112 when a document that it changes was past its deadline for
/// others by now.
Result<void> PrepareTransactionCommit(Storage& storage, WriteUnit& unit, Operation& op);
/// About how long its entries are in the oplog together, in bytes; what it makes counts at once.
size_t TransactionEntryBytes(const WriteUnit& unit);
/// Whether the unit may go on: what it has staged, and what it makes, are within its limits. Takes
/// no time in proportion to them. Errors: TransactionTooLarge 257. (A unit of no transaction may.)
Result<void> CheckTransactionSize(const WriteUnit& unit);
/// How many operations, of what it makes and of its changes, each of its entries in the oplog has,
/// in order: as many as about 16 MiB take, or one that is larger.
std::vector<uint32_t> TransactionParts(const WriteUnit& unit);

/// Do not wait for a transaction's lock: the call fails with WriteConflict 112, and `*met` is true.
/// Before the first call of a unit that is not a transaction's.
void LeaveToTransactions(WriteUnit& unit, bool* met);
/// How many locks of transactions its calls that do not wait have met so far.
int TransactionsMet(WriteUnit& unit);

}  // namespace mayfly

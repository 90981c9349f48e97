#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "protocol/error.h"
#include "protocol/instant.h"
#include "storage/catalog/catalog_types.h"
#include "storage/kv/kv.h"

namespace mayfly {

class Catalog;
class CatalogMoment;
class Operation;
class Overlay;
class ReadPoint;
class Storage;
class WriteUnit;

/// What one operation sees: a point in time of the store, the catalog of that moment, and, inside a
/// write unit that is not committed yet, what the unit has changed so far, merged in key order.
/// Copied by value; a copy without own writes costs one count of references. Threads: one at a time
/// with own writes, any without.
class ReadView {
 public:
  /// Everything as it is at each look-up, and the catalog of now.
  ReadView() = default;
  ReadView(std::nullptr_t) {}  // NOLINT: "now" may be said so
  /// The store at one point in time, and the catalog of now: what an operation takes for itself.
  ReadView(KvSnapshotPtr snapshot) : snapshot_(std::move(snapshot)) {}  // NOLINT: a view by itself
  /// A point that an earlier batch of the same cursor has taken, and the catalog of now.
  static ReadView OfEarlierBatch(KvSnapshotPtr snapshot) {
    ReadView view(std::move(snapshot));
    view.of_earlier_batch_ = true;
    return view;
  }
  /// A point in time that is older than the operation. REQUIRES: both belong together (ReadPoint).
  ReadView(KvSnapshotPtr snapshot, std::shared_ptr<const CatalogMoment> catalog,
           std::shared_ptr<ReadPoint> point)
      : snapshot_(std::move(snapshot)), catalog_(std::move(catalog)), point_(std::move(point)) {}

  /// This view with what `unit` has changed up to now. What it changes later is not seen by the
  /// copy, so that a statement that writes does not meet its own writes. The unit need not outlive
  /// the view: reads then fail with InternalError 1.
  ReadView With(WriteUnit& unit) const;  // storage/write/own_writes.cc

  /// Null: now.
  const KvSnapshotPtr& snapshot() const { return snapshot_; }
  bool has_own_writes() const { return own_ != nullptr; }
  /// The point was taken by an earlier operation, or is a transaction's: it still has documents
  /// that the reaper has removed since, so present marks of overdue documents do not apply.
  bool earlier() const { return catalog_ != nullptr || own_ != nullptr || of_earlier_batch_; }
  /// What cursors keep to go on at the same point; null: each batch has its own.
  const std::shared_ptr<ReadPoint>& point() const { return point_; }

  // --- the store: as KvStore's, with the own writes ----------------------------------------------
  Result<bool> Get(KvStore& kv, Keyspace ks, std::string_view key, PinnedValue* out) const {
    if (own_ == nullptr) [[likely]]
      return kv.Get(ks, key, out, snapshot_.get());
    return GetOwn(kv, ks, key, out);
  }
  /// One store access for all keys, unless there are own writes.
  Result<void> MultiGet(KvStore& kv, Keyspace ks, std::span<const std::string_view> keys,
                        std::span<PinnedValue> out) const {
    if (own_ == nullptr) [[likely]]
      return kv.MultiGet(ks, keys, out, snapshot_.get());
    return MultiGetOwn(kv, ks, keys, out);
  }
  /// options.snapshot is set here.
  std::unique_ptr<KvIterator> NewIterator(KvStore& kv, Keyspace ks, KvIterOptions options) const;
  /// Puts the own writes between `lower` and `upper` (as in KvIterOptions) over what `base` has.
  std::unique_ptr<KvIterator> Merge(std::unique_ptr<KvIterator> base, Keyspace ks,
                                    std::string_view lower, std::string_view upper) const;

  // --- the catalog, and what it keeps in memory --------------------------------------------------
  /// As Catalog::Find, of the view's moment. Errors: SnapshotUnavailable 246.
  Result<CollectionInfoPtr> Find(Catalog& catalog, std::string_view db,
                                 std::string_view collection) const;
  /// Which fields of the index have met an array, also by the own writes.
  uint64_t Multikey(const IndexInfo& index) const {
    const uint64_t known = index.multikey.load(std::memory_order_acquire);
    return own_ == nullptr ? known : known | OwnMultikey(index);
  }
  /// By how much the own writes change the number of the collection's documents.
  int64_t OwnDocuments(const CollectionInfo& coll) const;
  /// Whether the own writes gave a document of the collection a deadline of its own.
  bool OwnDeadlines(const CollectionInfo& coll) const;

 private:
  Result<bool> GetOwn(KvStore& kv, Keyspace ks, std::string_view key, PinnedValue* out) const;
  Result<void> MultiGetOwn(KvStore& kv, Keyspace ks, std::span<const std::string_view> keys,
                           std::span<PinnedValue> out) const;
  uint64_t OwnMultikey(const IndexInfo& index) const;

  KvSnapshotPtr snapshot_;
  std::shared_ptr<const CatalogMoment> catalog_;
  std::shared_ptr<ReadPoint> point_;
  std::shared_ptr<Overlay> own_;
  bool of_earlier_batch_ = false;
  uint32_t own_until_ = 0;  ///< what the unit numbered higher is not seen
};
using ReadViewPtr = std::shared_ptr<const ReadView>;

/// A point in time that several operations share: the statements of a snapshot session, the batches
/// of a cursor, later the statements of a transaction. The store keeps what the point shows until
/// the point is released, at the latest with its last holder. Threads: any.
class ReadPoint : public std::enable_shared_from_this<ReadPoint> {
 public:
  /// The present point. `ts`: the set's time that it stands for; 0: none. `now`: the clock of that
  /// time. The catalog is never newer than the store's part: all it names exists.
  static std::shared_ptr<ReadPoint> Take(Storage& storage, uint64_t ts, Instant now = {});
  uint64_t ts() const { return ts_; }
  /// The reading of the clock by which each read at this point hides what is past its deadline,
  /// whenever and on whichever member it reads (docs/expiry.md, X10).
  Instant now() const { return now_; }
  /// Null once it was released.
  ReadViewPtr View();
  void Release();
  bool held() const;

 private:
  ReadPoint(uint64_t ts, Instant now) : ts_(ts), now_(now) {}
  const uint64_t ts_;
  const Instant now_;
  mutable std::mutex mutex_;
  KvSnapshotPtr snapshot_;
  std::shared_ptr<const CatalogMoment> catalog_;
};

/// The collection that the operation means by a name: of its view's moment, or of now.
/// Errors: SnapshotUnavailable 246.
Result<CollectionInfoPtr> FindCollection(Catalog& catalog, const Operation& op, std::string_view db,
                                         std::string_view collection);

}  // namespace mayfly

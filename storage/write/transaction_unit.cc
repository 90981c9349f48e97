#include "storage/write/transaction_unit.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "storage/catalog/namespace.h"
#include "storage/keys/key_format.h"
#include "storage/read/visibility.h"
#include "storage/write/transaction_holdings.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {

Error TransactionConflict() {
  return {ErrorCode::kWriteConflict,
          "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please "
          "retry your operation or multi-document transaction."};
}

Error TransactionTooLarge(std::string message) {
  return {ErrorCode::kTransactionTooLarge, std::move(message)};
}

Error TooManyCollections() {
  return TransactionTooLarge("a transaction makes and writes to at most " +
                             std::to_string(kMaxTransactionCollections) +
                             " collections: use several transactions");
}

namespace {

/// Of one entry of a transaction in the oplog, which is a document.
constexpr size_t kOplogDocumentBytes = size_t{16} << 20;

/// What `coll` is in memory: as options and as the filters made of them, and the row and the
/// operations of the log that it becomes.
size_t MemoryOf(const CollectionInfo& coll) {
  constexpr size_t kOfOne = 2048, kOfIndex = 1024;
  size_t bytes = kOfOne + coll.ns.size() * 2 + coll.options.view().size() +
                 coll.view_pipeline.view().size() + coll.validator.view().size() * 2;
  for (const IndexInfoPtr& i : coll.indexes)
    bytes += kOfIndex + i->name.size() + i->key.view().size() * 2 + i->extra.view().size() +
             i->partial_filter.view().size() * 2;
  return bytes;
}

/// About how long its operations are: a create, and one for each index.
size_t EntryBytes(const CollectionInfo& coll) {
  constexpr size_t kOfOne = 256, kOfIndex = 192;
  size_t bytes = kOfOne + coll.ns.size() + coll.options.view().size();
  for (const IndexInfoPtr& i : coll.indexes)
    bytes += kOfIndex + coll.ns.size() + i->name.size() + i->key.view().size() +
             i->extra.view().size() + i->partial_filter.view().size();
  return bytes;
}

size_t EntryBytes(const LoggedCommand& c) {
  constexpr size_t kOfOne = 128;  // names, uuid
  return kOfOne + c.db.size() + c.o.size() + c.o2.size();
}

/// About how long the change is in its entry.
size_t EntryBytes(const WriteUnit::Impl& u, const DocumentChange& c) {
  constexpr size_t kOfOne = 128;  // names, uuid, o2
  const bool whole = c.detail.empty() && c.kind != DocumentChange::kDelete;
  return kOfOne + c.record_key.size() + u.collections[c.collection].coll->ns.size() +
         (whole ? c.doc.size() : c.detail.size());
}

}  // namespace

Result<CollectionInfoPtr> TransactionCatalog::Find(std::string_view db,
                                                   std::string_view collection) const {
  MAYFLY_TRY(CollectionInfoPtr found, view_.Find(catalog_, db, collection));
  if (found) return found;
  std::lock_guard l(mutex_);
  const auto own = by_ns_.find(JoinNamespace(db, collection));
  return own == by_ns_.end() ? CollectionInfoPtr() : adopted_[own->second];
}

void TransactionCatalog::Adopt(CollectionInfoPtr coll) {
  std::lock_guard l(mutex_);
  memory_ += MemoryOf(*coll);
  entry_ += mayfly::EntryBytes(*coll);
  const auto [own, made] = by_id_.emplace(coll->id, adopted_.size());
  if (made) {
    adopted_.push_back(coll);
    ++count_;
  } else {
    CollectionInfoPtr& before = adopted_[own->second];
    memory_ -= MemoryOf(*before);
    entry_ -= mayfly::EntryBytes(*before);
    by_ns_.erase(before->ns);
    before = coll;
  }
  by_ns_.emplace(coll->ns, own->second);
}

CollectionInfoPtr TransactionCatalog::FindOwn(uint32_t id) const {
  std::lock_guard l(mutex_);
  const auto own = by_id_.find(id);
  return own == by_id_.end() ? nullptr : adopted_[own->second];
}

std::vector<CollectionInfoPtr> TransactionCatalog::Own() const {
  std::lock_guard l(mutex_);
  return adopted_;
}

void BeginTransactionUnit(WriteUnit& unit, KvSnapshotPtr snapshot,
                          std::shared_ptr<TransactionCatalog> catalog, int64_t lock_wait_micros,
                          uint64_t reign) {
  WriteUnit::Impl& u = unit.impl();
  u.owner |= kTransactionOwner;
  u.transaction = std::make_unique<TransactionUnit>();
  u.transaction->snapshot = std::move(snapshot);
  u.transaction->catalog = std::move(catalog);
  u.transaction->lock_wait_micros = lock_wait_micros;
  u.transaction->reign = reign;
  unit.OwnDocuments();
}

void AdoptCollection(WriteUnit& unit, CollectionInfoPtr coll) {
  for (TouchedCollection& t : unit.impl().collections)
    if (t.id == coll->id) t.coll = coll;
  unit.impl().transaction->catalog->Adopt(std::move(coll));
}

bool IsStale(WriteUnit& unit) { return unit.impl().transaction->stale; }

bool HasNothingToCommit(WriteUnit& unit) {
  return unit.DocumentCount() == 0 && unit.impl().transaction->catalog->OwnCount() == 0;
}

void LeaveToTransactions(WriteUnit& unit, bool* met) { unit.impl().met_transaction = met; }

int TransactionsMet(WriteUnit& unit) { return unit.impl().transactions_met; }

Result<void> WriteUnit::Impl::CheckUnchanged(Keyspace ks, std::string_view key) const {
  PinnedValue is, was;
  MAYFLY_TRY(const bool there, storage->kv->Get(ks, key, &is));
  MAYFLY_TRY(const bool before, storage->kv->Get(ks, key, &was, transaction->snapshot.get()));
  if (there == before && (!there || is.view() == was.view())) return Ok();
  if (op) ++op->write_conflicts;
  transaction->stale = true;
  return TransactionConflict();
}

Result<void> WriteUnit::Impl::CheckDefinition(const CollectionInfo& now) const {
  MAYFLY_TRY(CollectionInfoPtr seen, transaction->catalog->Find(now.db, now.name));
  // The current one is the same object as long as nothing has changed it.
  if (seen.get() == &now && storage->catalog->FindById(now.id).get() == &now) return Ok();
  transaction->stale = true;
  return Error{ErrorCode::kSnapshotUnavailable,
               "Unable to write to collection '" + now.ns +
                   "' due to catalog changes; please retry the operation. The definition of the "
                   "collection has changed since the transaction began."};
}

void CountFromCommit(WriteUnit& unit, Instant latest) {
  WriteUnit::Impl& u = unit.impl();
  const std::vector<StagedOp>& records = u.ops[static_cast<size_t>(Keyspace::kRecords)];
  u.transaction->from_commit.push_back(
      {static_cast<uint32_t>(records.size()) - 1, u.changes.back().collection,
       LoadTime64(records.back().head_data + 1), u.op->now, latest});
}

namespace {

/// Of bytes in a unit's arena, which nobody else has.
void OverwriteTime64(const char* at, Instant time) {
  StoreBe64(const_cast<char*>(at), static_cast<uint64_t>(time.millis) ^ kTimeSign);
}

}  // namespace

/// The deadline of a document counts from now, unless something else came after it.
void WriteUnit::Impl::MoveDeadline(const TransactionUnit::FromCommit& d) {
  const StagedOp& set = ops[static_cast<size_t>(Keyspace::kRecords)][d.record];
  const StagedOp* last;
  // A later statement may have kept it; or it has been moved already.
  if (FindOwn(Keyspace::kRecords, set.key(), &last) != Own::kPresent ||
      last->head_size != kMaxRecordHeader || LoadTime64(last->head_data + 1) != d.deadline)
    return;
  const int64_t passed = op->now.millis - d.read.millis;
  const Instant now{std::min(d.latest.millis, d.deadline.millis + passed)};
  if (now <= d.deadline) return;
  const std::string key(set.key());
  StageDeadlineChange(*collections[d.collection].coll, key, d.deadline, now);
  OverwriteTime64(last->head_data + 1, now);
}

Result<void> PrepareTransactionCommit(Storage& storage, WriteUnit& unit, Operation& op) {
  WriteUnit::Impl& u = unit.impl();
  std::vector<std::optional<Visibility>> visible(u.collections.size());
  std::unordered_set<std::string_view> removed;  // as expired: gone for everybody, as it should be
  for (const DocumentChange& c : u.changes) {
    const TouchedCollection& t = u.collections[c.collection];
    std::optional<Visibility>& of = visible[c.collection];
    if (!of) of.emplace(storage, *t.coll, op.now);
    if (!of->MayHide()) continue;
    MAYFLY_TRY(op.CheckInterrupt());
    if (c.kind == DocumentChange::kDelete && c.cause.expired()) removed.insert(c.record_key);
    if (removed.contains(c.record_key) ||
        u.transaction->archived.contains(std::string(c.record_key)))
      continue;
    PinnedValue stored;
    MAYFLY_TRY(const bool found, storage.kv().Get(Keyspace::kRecords, c.record_key, &stored));
    if (!found) continue;
    BsonView doc;
    std::optional<Instant> expire_at;
    if (!DecodeRecord(stored.view(), &doc, &expire_at))
      return Error{ErrorCode::kInternalError, "a damaged record in " + t.coll->ns};
    MAYFLY_TRY(const std::optional<DeleteCause> expired, of->Expired(doc, expire_at));
    if (expired) return TransactionConflict();
  }
  for (const TransactionUnit::FromCommit& d : u.transaction->from_commit) u.MoveDeadline(d);
  // All are of the same reading until now, so their order stays.
  for (StagedOp& o : u.ops[static_cast<size_t>(Keyspace::kTombstones)])
    if (o.kind == StagedOp::kPut) OverwriteTime64(o.key_data, op.now);
  u.transaction->logged = true;
  return Ok();
}

TransactionHoldings HoldingsOf(WriteUnit& unit, size_t most, std::vector<std::string>* names) {
  const WriteUnit::Impl& u = unit.impl();
  // In the order in which they were locked, and never fewer.
  for (size_t i = names->size(); i < std::min(u.collections.size(), most); ++i)
    names->push_back(u.collections[i].coll->ns);
  return {u.locks.size(), u.changes.size()};
}

void EndShort(WriteUnit& unit) {
  unit.set_no_wait(false);
  unit.impl().keep_short = false;
}

void ReleaseLocksSince(WriteUnit& unit, size_t locks) {
  WriteUnit::Impl& u = unit.impl();
  for (size_t i = locks; i < u.locks.size(); ++i) u.storage->locks.Unlock(u.locks[i], u.owner);
  u.locks.resize(std::min(locks, u.locks.size()));
}

size_t TransactionEntryBytes(const WriteUnit& unit) {
  const WriteUnit::Impl& u = const_cast<WriteUnit&>(unit).impl();
  size_t bytes = u.transaction->catalog->EntryBytes();
  for (const DocumentChange& c : u.changes) bytes += EntryBytes(u, c);
  return bytes;
}

Result<void> CheckTransactionSize(const WriteUnit& unit) {
  const auto& t = const_cast<WriteUnit&>(unit).impl().transaction;
  if (!t) return Ok();
  const TransactionCatalog& catalog = *t->catalog;
  if (const size_t bytes = unit.SizeBytes() + catalog.MemoryBytes(); bytes > kMaxTransactionBytes)
    return TransactionTooLarge("the changes of this transaction take " + std::to_string(bytes) +
                               " bytes so far; they may take " +
                               std::to_string(kMaxTransactionBytes));
  if (catalog.EntryBytes() > kMaxTransactionEntryBytes)
    return TransactionTooLarge("what this transaction makes takes " +
                               std::to_string(catalog.EntryBytes()) +
                               " bytes in the oplog so far; all of it may take " +
                               std::to_string(kMaxTransactionEntryBytes));
  return Ok();
}

std::vector<uint32_t> TransactionParts(const WriteUnit& unit) {
  const WriteUnit::Impl& u = const_cast<WriteUnit&>(unit).impl();
  std::vector<uint32_t> parts(1, 0);
  size_t bytes = 0;
  const auto add = [&](size_t more) {
    if (parts.back() > 0 && bytes + more > kOplogDocumentBytes) {
      parts.push_back(0);
      bytes = 0;
    }
    bytes += more;
    ++parts.back();
  };
  // What it makes comes before what it writes there, as in the log.
  for (const LoggedCommand& c : u.commands) add(EntryBytes(c));
  for (const DocumentChange& c : u.changes) add(EntryBytes(u, c));
  return parts;
}

}  // namespace mayfly

#include "storage/write/transaction_unit.h"

#include <algorithm>
#include <optional>

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

/// The size of one oplog entry of a transaction, which is a document.
constexpr size_t kOplogDocumentBytes = size_t{16} << 20;

/// The memory of `coll`: its options and compiled filters, its row, and its operations in the
/// log.
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
  u.storage->locks.Watch(1);
  u.storage->locks.BeginReign(reign, u.storage->kv->LatestSequence());
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

size_t StagedBytes(const WriteUnit& unit) {
  const WriteUnit::Impl& u = const_cast<WriteUnit&>(unit).impl();
  return u.arena.used() + u.OpCount() * sizeof(StagedOp) +
         u.changes.size() * sizeof(DocumentChange) + u.locks.size() * sizeof(uint64_t) +
         u.transaction->catalog->MemoryBytes();
}

void LeaveToTransactions(WriteUnit& unit, bool* met) { unit.impl().met_transaction = met; }

int TransactionsMet(WriteUnit& unit) { return unit.impl().transactions_met; }

Result<void> WriteUnit::Impl::CheckUnchanged(Keyspace ks, std::string_view key,
                                             uint64_t hash) const {
  // Nobody changes a record without its lock. An index entry is removed with its record: a writer
  // that frees a unique key has not locked it.
  const uint64_t sequence = transaction->snapshot->sequence();
  if (ks == Keyspace::kRecords && logged && storage->locks.UnchangedSince(hash, sequence))
    return Ok();
  // Changed and changed back is a conflict too, as far as it is remembered.
  if (ks != Keyspace::kRecords || !storage->locks.KnownChanged(hash, sequence)) {
    PinnedValue is, was;
    MAYFLY_TRY(const bool there, storage->kv->Get(ks, key, &is));
    MAYFLY_TRY(const bool before, storage->kv->Get(ks, key, &was, transaction->snapshot.get()));
    if (there == before && (!there || is.view() == was.view())) return Ok();
  }
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

/// For bytes in a unit's arena, which no one else uses.
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
  const Instant now{
      std::max(d.deadline.millis, std::min(d.latest.millis, d.deadline.millis + passed))};
  if (now >= d.latest) {
    const std::string key(set.key());
    StageDeadlineChange(*collections[d.collection].coll, key, d.deadline, now);
    OverwriteTime64(last->head_data + 1, now);
    return;
  }
  // Anew, even if it is the same so far: its time in the log will be later.
  index_key.clear();
  AppendDeadlineKey(d.deadline, set.key(), index_key);
  StageDelete(Keyspace::kExpiry, index_key, false);
  const std::string key(set.key());
  StageDeadlineChange(*collections[d.collection].coll, key, std::nullopt, now);
  OverwriteTime64(last->head_data + 1, now);
  StagedOp& entry = ops[static_cast<size_t>(Keyspace::kExpiry)].back();
  StagedOp& record =
      ops[static_cast<size_t>(Keyspace::kRecords)]
         [static_cast<size_t>(last - ops[static_cast<size_t>(Keyspace::kRecords)].data())];
  for (StagedOp* o : {&entry, &record}) {
    o->moves = true;
    if (d.latest.millis != INT64_MAX) transaction->latest[o->sequence] = d.latest;
  }
}

namespace {

/// Later deadlines are not looked for: a commit that takes longer into the log is refused if it
/// changes collections that may have any.
constexpr int64_t kLookAheadMillis = 600'000;

/// The unit's result for the document with this key, in the collection of `visible`.
Result<KeptDocument> KeptBy(WriteUnit::Impl& u, const StagedOp& is, const Visibility& visible,
                            int64_t deadline) {
  KeptDocument d{LockHash(Keyspace::kRecords, is.key()), deadline, INT64_MAX, INT64_MIN};
  std::optional<Instant> expire_at;
  if (is.head_size == kMaxRecordHeader) expire_at = LoadTime64(is.head_data + 1);
  MAYFLY_TRY(const std::optional<DeleteCause> due, visible.Expired(BsonView(is.tail()), expire_at));
  if (due) d.until = due->deadline.millis;
  if (!is.moves) return d;
  const auto latest = u.transaction->latest.find(is.sequence);
  d.latest = latest == u.transaction->latest.end() ? INT64_MAX : latest->second.millis;
  return d;
}

/// The conditions on its time in the log, from the deadlines of the documents that it changes.
/// Errors: WriteConflict 112 when one is past its deadline by now.
Result<void> NoteDeadlines(Storage& storage, WriteUnit::Impl& u, Operation& op) {
  auto kept = std::make_shared<KeptUnit>();
  kept->prepared = op.now.millis;
  const Instant horizon{op.now.millis + kLookAheadMillis};
  std::vector<std::optional<Visibility>> visible(u.collections.size());
  ClientViewSet removed;  // as expired: gone for everybody, as it should be
  ClientViewSet seen;
  for (const DocumentChange& c : u.changes) {
    const TouchedCollection& t = u.collections[c.collection];
    std::optional<Visibility>& of = visible[c.collection];
    if (!of) of.emplace(Visibility::Until(storage, *t.coll, op.now, horizon));
    if (t.coll->HasTtlRules() || t.coll->document_expiry->HadEntries())
      kept->looked_to = horizon.millis;
    if (!of->MayHide()) continue;
    MAYFLY_TRY(op.CheckInterrupt());
    if (c.kind == DocumentChange::kDelete && c.cause.expired()) removed.insert(c.record_key);
    if (removed.contains(c.record_key) || !seen.insert(c.record_key).second ||
        u.transaction->archived.contains(std::string(c.record_key)))
      continue;
    PinnedValue stored;
    MAYFLY_TRY(const bool found, storage.kv().Get(Keyspace::kRecords, c.record_key, &stored));
    if (!found) continue;
    BsonView doc;
    std::optional<Instant> expire_at;
    if (!DecodeRecord(stored.view(), &doc, &expire_at))
      return Error{ErrorCode::kInternalError, "a damaged record in " + t.coll->ns};
    MAYFLY_TRY(const std::optional<DeleteCause> due, of->Expired(doc, expire_at));
    if (!due) continue;
    if (due->deadline <= op.now) return TransactionConflict();
    kept->earliest = std::min(kept->earliest, due->deadline.millis);
    const StagedOp* is;
    // A document that it deletes may be absent earlier.
    if (u.FindOwn(Keyspace::kRecords, c.record_key, &is) != WriteUnit::Impl::Own::kPresent)
      continue;
    MAYFLY_TRY(kept->documents.emplace_back(), KeptBy(u, *is, *of, due->deadline.millis));
  }
  std::sort(kept->documents.begin(), kept->documents.end(),
            [](const KeptDocument& a, const KeptDocument& b) { return a.hash < b.hash; });
  if (kept->looked_to != INT64_MAX) u.transaction->kept = std::move(kept);
  return Ok();
}

}  // namespace

Result<void> PrepareTransactionCommit(Storage& storage, WriteUnit& unit, Operation& op) {
  WriteUnit::Impl& u = unit.impl();
  for (const TransactionUnit::FromCommit& d : u.transaction->from_commit) u.MoveDeadline(d);
  MAYFLY_TRY(NoteDeadlines(storage, u, op));
  // All are of the same reading until now, so their order stays.
  for (StagedOp& o : u.ops[static_cast<size_t>(Keyspace::kTombstones)]) {
    if (o.kind != StagedOp::kPut) continue;
    OverwriteTime64(o.key_data, op.now);
    o.moves = true;
  }
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
  // New collections come before the writes to them, as in the log.
  for (const LoggedCommand& c : u.commands) add(EntryBytes(c));
  for (const DocumentChange& c : u.changes) add(EntryBytes(u, c));
  return parts;
}

}  // namespace mayfly

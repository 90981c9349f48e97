#include "storage/schema/transaction_schema.h"

#include "protocol/shown_namespace.h"
#include "storage/catalog/index_conflict.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/core/storage_impl.h"
#include "storage/schema/catalog_impl.h"
#include "storage/schema/catalog_log.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

/// The number of ids that are logged at once.
constexpr uint32_t kIdsAtOnce = 64;

CatalogImpl& CatalogOf(Storage& storage) {
  return static_cast<CatalogImpl&>(*storage.impl().catalog);
}

/// No collection has a row of this key: it is only locked.
std::string NameLock(std::string_view db, std::string_view name) {
  return std::string("name ").append(db).append(".").append(name);
}

/// If another one has made it meanwhile, a transaction can only start again.
Error AsConflict(Error e, TransactionUnit& t) {
  if (e.code != ErrorCode::kNamespaceExists) return e;
  t.stale = true;
  return TransactionConflict();
}

}  // namespace

Result<uint32_t> CatalogImpl::TransactionId(Operation& op) {
  std::lock_guard pool(transaction_ids_mutex_);
  if (transaction_id_ == transaction_ids_end_) {
    // The row must say so before one of them is used: the unit that uses it may be in the log after
    // others that have later ids.
    std::lock_guard l(ddl_mutex_);
    const uint32_t first = next_id_.fetch_add(kIdsAtOnce);
    WriteUnit unit(storage_, op);
    StageNextId(unit, false);
    MAYFLY_TRY(storage_.committer().Commit(std::move(unit)));
    transaction_id_ = first;
    transaction_ids_end_ = first + kIdsAtOnce;
  }
  return transaction_id_++;
}

Result<CollectionInfoPtr> CreateInTransaction(Storage& storage, WriteUnit& unit, Operation& op,
                                              CollectionInfo definition) {
  return CatalogOf(storage).CreateIn(unit, op, std::move(definition));
}

Result<CollectionInfoPtr> CatalogImpl::CreateIn(WriteUnit& unit, Operation& op,
                                                CollectionInfo definition) {
  MAYFLY_TRY(ValidateNewNamespace(definition.db, definition.name));
  TransactionUnit& t = *unit.impl().transaction;
  if (t.catalog->OwnCount() >= kMaxTransactionCollections) return TooManyCollections();
  // Another transaction that makes it fails here; what is there already was not for the snapshot.
  MAYFLY_TRY(unit.impl().Lock(Keyspace::kCatalog, NameLock(definition.db, definition.name)));
  if (Result<void> free = CheckFree(definition.db, definition.name); !free)
    return AsConflict(free.error(), t);
  MAYFLY_TRY(const uint32_t id, TransactionId(op));
  uint32_t id_index = 0;
  if (definition.capped()) {
    MAYFLY_TRY(id_index, TransactionId(op));
  }
  CollectionInfoPtr coll = Define(std::move(definition), op.now, id, id_index);
  MAYFLY_TRY(memory_.Check(nullptr, *coll));
  AdoptCollection(unit, coll);
  MAYFLY_TRY(CheckTransactionSize(unit));
  return coll;
}

Result<CollectionInfoPtr> CreateIndexesInTransaction(Storage& storage, WriteUnit& unit,
                                                     Operation& op, const CollectionInfo& coll,
                                                     std::vector<IndexInfo> specs) {
  return CatalogOf(storage).CreateIndexesIn(unit, op, coll, std::move(specs));
}

Result<CollectionInfoPtr> CatalogImpl::CreateIndexesIn(WriteUnit& unit, Operation& op,
                                                       const CollectionInfo& coll,
                                                       std::vector<IndexInfo> specs) {
  const CollectionInfoPtr own = unit.impl().transaction->catalog->FindOwn(coll.id);
  auto next = std::make_shared<CollectionInfo>(own ? *own : coll);
  const size_t before = next->indexes.size();
  for (const IndexInfo& spec : specs) {
    if (IsIdIndexKey(spec.key)) continue;
    MAYFLY_TRY(IndexInfoPtr existing, MatchExistingIndex(*next, spec));
    if (existing) continue;
    if (!own)
      return Error{ErrorCode::kOperationNotSupportedInTransaction,
                   "Cannot create new indexes on existing collection " + ShownNamespace(coll.ns) +
                       " in a multi-document transaction."};
    for (const TouchedCollection& t : unit.impl().collections)
      if (t.id == coll.id && t.documents != 0)
        return Error{ErrorCode::kOperationNotSupportedInTransaction,
                     "Cannot create new indexes on non-empty collection " +
                         ShownNamespace(coll.ns) + " in a multi-document transaction."};
    MAYFLY_TRY(CheckRoomForIndex(*next, spec));
    MAYFLY_TRY(const uint32_t id, TransactionId(op));
    next->indexes.push_back(DefineIndex(*next, spec, id, true, op.now));
  }
  if (next->indexes.size() == before) return own ? own : FindById(coll.id);
  CollectionInfoPtr made = memory_.Charge(std::move(next));
  MAYFLY_TRY(memory_.Check(own.get(), *made));
  AdoptCollection(unit, made);
  MAYFLY_TRY(CheckTransactionSize(unit));
  return made;
}

Result<void> StageCreated(Storage& storage, WriteUnit& unit, Operation& op) {
  return CatalogOf(storage).StageCreated(unit, op);
}

Result<void> CatalogImpl::StageCreated(WriteUnit& unit, Operation& op) {
  WriteUnit::Impl& u = unit.impl();
  const std::vector<CollectionInfoPtr> made = u.transaction->catalog->Own();
  if (made.empty()) return Ok();
  auto claims = std::make_shared<std::vector<NameClaims::ClaimPtr>>();
  std::vector<Replacement> changes;
  for (const CollectionInfoPtr& coll : made) {
    MAYFLY_TRY(op.CheckInterrupt());
    claims->push_back(names_.TryTake(coll->db, coll->name));
    if (claims->back() == nullptr) return TransactionConflict();
    if (Result<void> free = CheckFree(coll->db, coll->name); !free)
      return AsConflict(free.error(), *u.transaction);
    changes.push_back({nullptr, coll});
    std::lock_guard l(ddl_mutex_);
    MAYFLY_TRY(MayChange(op, {changes.back()}));
  }
  for (const CollectionInfoPtr& coll : made) {
    MAYFLY_TRY(op.CheckInterrupt());
    CollectionInfo bare = *coll;
    std::erase_if(bare.indexes, [](const IndexInfoPtr& i) { return !i->is_id(); });
    StageRow(unit, *coll);
    LogCreate(unit, bare);
    LogCreateIndexes(unit, bare, *coll);
  }
  // Before the documents can be seen: who finds those of one collection finds the others too.
  u.before_visible.push_back([this, changes] { Publish(changes); });
  unit.OnCommit([claims] {});  // which end with the unit
  return Ok();
}

void TellCreated(Storage& storage, Operation& op, const std::vector<CollectionInfoPtr>& made) {
  CatalogOf(storage).TellCreated(op, made);
}

void CatalogImpl::TellCreated(Operation& op, const std::vector<CollectionInfoPtr>& made) {
  SchemaWatch watch;
  {
    std::lock_guard l(ddl_mutex_);
    watch = watch_;
  }
  // There may be many, and reporting each may wait for the disk.
  if (!watch.changed) return;
  for (const CollectionInfoPtr& coll : made) watch.changed(op, nullptr, coll.get());
}

}  // namespace mayfly

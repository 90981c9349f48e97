#include <sys/random.h>

#include "protocol/bson_builder.h"
#include "protocol/shown_namespace.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/schema/catalog_impl.h"
#include "storage/schema/catalog_log.h"
#include "storage/schema/view_rows.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

Error NotFound() { return {ErrorCode::kNamespaceNotFound, "ns not found"}; }

/// Calls `f(key, value)` for every catalog row with this prefix.
template <class F>
Result<void> ForEachRow(KvStore& kv, std::string_view prefix, F&& f) {
  KvIterOptions o;
  o.lower = std::string(prefix);
  o.upper = PrefixEnd(prefix);
  o.fill_cache = false;  // nobody reads these rows again
  auto it = kv.NewIterator(Keyspace::kCatalog, std::move(o));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    MAYFLY_TRY(f(it->key(), it->value()));
  }
  return it->status();
}

}  // namespace

Uuid RandomUuid() {
  Uuid u;
  while (getrandom(u.data(), u.size(), 0) != static_cast<ssize_t>(u.size())) {
  }
  u[6] = (u[6] & 0x0F) | 0x40;  // version 4, variant 1 (RFC 4122)
  u[8] = (u[8] & 0x3F) | 0x80;
  return u;
}

std::optional<Uuid> UuidOf(BsonValue value) {
  if (!value.Is(BsonType::kBinary) || value.BinarySubtype() != 4) return std::nullopt;
  const auto bytes = value.BinaryData();
  Uuid uuid;
  if (bytes.size() != uuid.size()) return std::nullopt;
  std::memcpy(uuid.data(), bytes.data(), uuid.size());
  return uuid;
}

Result<std::unique_ptr<OpenedCatalog>> OpenCatalog(Storage& storage) {
  auto catalog = std::make_unique<CatalogImpl>(storage);
  MAYFLY_TRY(catalog->Load());
  return std::unique_ptr<OpenedCatalog>(std::move(catalog));
}

Result<void> CatalogImpl::Load() {
  KvStore& kv = storage_.kv();
  LoadedIds ids;
  MAYFLY_TRY(LoadCollections(kv, &ids));
  for (auto& [id, coll] : by_id_) {
    MAYFLY_TRY(LoadCounters(kv, *coll));
  }
  MAYFLY_TRY(LoadDeadlines(kv));
  MAYFLY_TRY(LoadSettings(kv));
  MAYFLY_TRY(LoadMultikey(kv, ids));
  MAYFLY_TRY(LoadNextIds(kv, ids));
  return ForEachRow(kv, kGarbagePrefix,
                    [&](std::string_view key, std::string_view value) -> Result<void> {
                      MAYFLY_TRY(GarbageRow row, DecodeGarbageRow(key, value));
                      garbage_.Add(std::move(row));
                      return Ok();
                    });
}

Result<void> CatalogImpl::LoadCollections(KvStore& kv, LoadedIds* ids) {
  auto used = [&](uint32_t id) {
    uint32_t& mark = id < kFirstLocalId ? ids->highest : ids->highest_local;
    mark = std::max(mark, id);
  };
  return ForEachRow(
      kv, kCollectionPrefix, [&](std::string_view key, std::string_view value) -> Result<void> {
        MAYFLY_TRY(auto coll, DecodeCollectionRow(key, value, storage_.options().compile_filter,
                                                  storage_.clock().Now()));
        coll->counters = std::make_shared<CollectionCounters>();
        coll->document_expiry->SetEmpty();
        coll->database_max_ttl = DatabaseMaxTtlOf(coll->db);
        used(coll->id);
        for (auto& i : coll->indexes) {
          used(i->id);
          ids->indexes[i->id] = i.get();
          if (i->expiry_repaired)
            storage_.impl().Log('W',
                                "TTL index with an invalid expireAfterSeconds: it is inactive, as "
                                "with 2147483647; set it with collMod",
                                BuildBson([&](BsonBuilder& b) {
                                  b.Append("namespace", coll->ns).Append("index", i->name);
                                }));
        }
        InsertLocked(memory_.Charge(std::move(coll)));
        return Ok();
      });
}

Result<void> CatalogImpl::LoadCounters(KvStore& kv, const CollectionInfo& coll) {
  PinnedValue pinned;
  MAYFLY_TRY(bool found, kv.Get(Keyspace::kCatalog, CountersKey(coll.id), &pinned));
  CounterRow row;
  if (found && !DecodeCounterRow(pinned.view(), &row))
    return Error{ErrorCode::kInternalError, "corrupt counters of collection " + coll.ns};
  if (coll.capped()) {
    KvIterOptions o;
    o.lower = IdPrefix(coll.id);
    o.upper = IdPrefixEnd(coll.id);
    auto it = kv.NewIterator(Keyspace::kRecords, std::move(o));
    it->SeekToLast();
    if (it->Valid() && it->key().size() == kIdPrefixSize + 8)
      row.last_sequence = std::max(row.last_sequence, CappedSequenceOf(it->key()));
    it->SeekToFirst();
    if (it->Valid()) coll.counters->first_sequence = CappedSequenceOf(it->key());
    MAYFLY_TRY(it->status());
  }
  coll.counters->documents = row.documents;
  coll.counters->bytes = row.bytes;
  coll.counters->last_sequence = row.last_sequence;
  return Ok();
}

Result<void> CatalogImpl::LoadDeadlines(KvStore& kv) {
  KvIterOptions o;
  o.lower = IdPrefix(kDeadlineQueueId);
  o.upper = IdPrefixEnd(kDeadlineQueueId);
  auto it = kv.NewIterator(Keyspace::kExpiry, std::move(o));
  for (it->SeekToFirst(); it->Valid();) {
    uint32_t id;
    Instant deadline;
    std::string_view record_id;
    if (!DecodeDeadlineKey(it->key(), &id, &deadline, &record_id))
      return Error{ErrorCode::kInternalError, "corrupt entry in a queue of deadlines"};
    if (auto coll = by_id_.find(id); coll != by_id_.end())
      coll->second->document_expiry->SetEarliest(deadline.millis);
    it->Seek(DeadlinePrefixEnd(id));
  }
  return it->status();
}

Result<void> CatalogImpl::LoadSettings(KvStore& kv) {
  return ForEachRow(kv, kSettingPrefix,
                    [&](std::string_view key, std::string_view value) -> Result<void> {
                      key.remove_prefix(kSettingPrefix.size());
                      if (!key.starts_with(kDatabaseExpiryPrefix) || value.size() != 8) return Ok();
                      key.remove_prefix(kDatabaseExpiryPrefix.size());
                      *DatabaseMaxTtlOf(key) = LoadLe<int64_t>(value.data());
                      return Ok();
                    });
}

Result<void> CatalogImpl::LoadMultikey(KvStore& kv, const LoadedIds& ids) {
  return ForEachRow(kv, kMultikeyPrefix,
                    [&](std::string_view key, std::string_view) -> Result<void> {
                      key.remove_prefix(kMultikeyPrefix.size());
                      if (key.size() != 5)
                        return Error{ErrorCode::kInternalError, "corrupt multikey row"};
                      auto it = ids.indexes.find(LoadBe32(key.data()));
                      if (it != ids.indexes.end())
                        it->second->multikey |= uint64_t{1} << (static_cast<uint8_t>(key[4]) & 63);
                      return Ok();
                    });
}

Result<void> CatalogImpl::LoadNextIds(KvStore& kv, const LoadedIds& ids) {
  PinnedValue pinned;
  auto load = [&](std::string_view key, uint32_t highest,
                  std::atomic<uint32_t>* next) -> Result<void> {
    MAYFLY_TRY(bool found, kv.Get(Keyspace::kCatalog, key, &pinned));
    if (found && pinned.view().size() == 4) *next = LoadLe<uint32_t>(pinned.view().data());
    *next = std::max(next->load(), highest + 1);
    return Ok();
  };
  MAYFLY_TRY(load(kNextIdKey, ids.highest, &next_id_));
  return load(kNextLocalIdKey, ids.highest_local, &next_local_id_);
}

// --- reads -------------------------------------------------------------------------------------

CollectionInfoPtr CatalogImpl::Find(std::string_view db, std::string_view collection) {
  std::shared_lock l(mutex_);
  auto it = by_ns_.find({db, collection});
  return it == by_ns_.end() ? ShownLocked(db, collection) : it->second;
}

CollectionInfoPtr CatalogImpl::ShownLocked(std::string_view db, std::string_view collection) {
  if (collection != kViewsCollection) [[likely]]
    return nullptr;
  return views_.contains(db) ? ViewsCollection(*this, db) : nullptr;
}

CollectionInfoPtr CatalogImpl::FindByUuid(const Uuid& uuid) {
  std::shared_lock l(mutex_);
  auto it = by_uuid_.find(uuid);
  return it == by_uuid_.end() ? nullptr : it->second;
}

CollectionInfoPtr CatalogImpl::FindById(uint32_t id) {
  std::shared_lock l(mutex_);
  auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

std::vector<CollectionInfoPtr> CatalogImpl::List(std::string_view db) {
  std::vector<CollectionInfoPtr> r;
  std::shared_lock l(mutex_);
  auto it = by_name_.find(db);
  if (it == by_name_.end()) return r;
  for (auto& [name, coll] : it->second) r.push_back(coll);
  return r;
}

std::vector<CollectionInfoPtr> CatalogImpl::ListAll() {
  std::vector<CollectionInfoPtr> r;
  std::shared_lock l(mutex_);
  for (auto& [db, collections] : by_name_)
    for (auto& [name, coll] : collections) r.push_back(coll);
  return r;
}

std::vector<std::string> CatalogImpl::Databases() {
  std::vector<std::string> r;
  std::shared_lock l(mutex_);
  for (auto& [db, collections] : by_name_) r.push_back(db);
  return r;
}

void CatalogImpl::OnChange(std::function<void()> f) {
  std::lock_guard l(listeners_mutex_);
  listeners_.push_back(std::move(f));
}

// --- how changes become visible ------------------------------------------------------------------

void CatalogImpl::InsertLocked(const CollectionInfoPtr& coll) {
  by_ns_[{coll->db, coll->name}] = coll;
  by_id_[coll->id] = coll;
  by_uuid_[coll->uuid] = coll;
  by_name_[coll->db][coll->name] = coll;
  if (coll->is_view()) ++views_[coll->db];
}

void CatalogImpl::EraseLocked(const CollectionInfo& coll) {
  by_ns_.erase({coll.db, coll.name});
  by_id_.erase(coll.id);
  by_uuid_.erase(coll.uuid);
  if (auto views = views_.find(coll.db);
      coll.is_view() && views != views_.end() && --views->second == 0)
    views_.erase(views);
  auto db = by_name_.find(coll.db);
  if (db == by_name_.end()) return;
  db->second.erase(coll.name);
  if (db->second.empty()) by_name_.erase(db);
}

void CatalogImpl::Publish(const std::vector<Replacement>& changes) {
  {
    std::unique_lock l(mutex_);
    const uint64_t version = version_.load(std::memory_order_relaxed) + 1;
    for (auto& c : changes) {
      if (c.before) c.before->superseded.store(true, std::memory_order_release);
      if (!moments_.empty()) KeepPastLocked(version, c);
    }
    TrimPastLocked();
    // Removals first: a rename may replace a dropped target. Keys of by_ns_ point into the old
    // values.
    for (auto& c : changes)
      if (c.before) EraseLocked(*c.before);
    for (auto& c : changes)
      if (c.after) InsertLocked(c.after);
    version_.fetch_add(1, std::memory_order_acq_rel);
  }
  std::vector<std::function<void()>> listeners;
  {
    std::lock_guard l(listeners_mutex_);
    listeners = listeners_;
  }
  for (auto& f : listeners) f();
}

Result<void> CatalogImpl::Commit(WriteUnit unit, std::vector<Replacement> changes,
                                 std::vector<GarbageRow> garbage) {
  Operation& op = *unit.impl().op;
  MAYFLY_TRY(MayChange(op, changes));
  unit.OnCommit([this, changes] { Publish(changes); });
  // Synced before it becomes known: a definition that a write finds must survive a power loss, and
  // catalog changes are rare. The caller waits for it, because the next step needs to know whether
  // it happened.
  const int64_t deadline = std::exchange(op.commit_deadline_micros, 0);
  Result<void> committed = storage_.committer().Commit(std::move(unit), {.journal = true});
  op.commit_deadline_micros = deadline;
  MAYFLY_TRY(std::move(committed));
  for (auto& g : garbage) garbage_.Add(std::move(g));
  TellWatch(op, changes);
  return Ok();
}

Result<void> CatalogImpl::Gate(WriteUnit& unit, Operation& op, const CollectionInfo& coll) {
  MAYFLY_TRY(CheckUse(coll, CollectionUse::kChange));
  const LockWait waits(op);
  for (;;) {
    Result<void> r = unit.impl().TouchExclusive(coll, kExclusiveWaitMicros);
    if (r) return r;
    if (r.error().code == ErrorCode::kQueryPlanKilled) return NotFound();
    if (r.error().code != ErrorCode::kWriteConflict) return r;
    MAYFLY_TRY(op.CheckInterruptNow());
    if (storage_.impl().closing)
      return Error{ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"};
  }
}

Result<CollectionInfoPtr> CatalogImpl::Current(const CollectionInfo& coll) {
  CollectionInfoPtr now = FindById(coll.id);
  if (!now) return NotFound();
  return now;
}

void CatalogImpl::StageRow(WriteUnit& unit, const CollectionInfo& coll) {
  unit.Put(Keyspace::kCatalog, CollectionRowKey(coll.id), EncodeCollectionRow(coll).bytes());
}

void CatalogImpl::StageNextId(WriteUnit& unit, bool local) {
  char b[4];
  StoreLe<uint32_t>(b, NextId(local));
  unit.Put(Keyspace::kCatalog, local ? kNextLocalIdKey : kNextIdKey, {b, 4});
  if (local) unit.SetLocal();
}

void CatalogImpl::StageDropIndex(WriteUnit& unit, const CollectionInfo& coll,
                                 const IndexInfo& index, std::vector<GarbageRow>* garbage) {
  uint64_t multikey = index.multikey;
  for (int f = 0; f < 64; ++f)
    if (multikey >> f & 1) unit.Erase(Keyspace::kCatalog, MultikeyKey(index.id, f));
  if (index.state == IndexState::kBuilding) unit.Erase(Keyspace::kCatalog, BuildRowKey(index.id));
  GarbageRow g{GarbageKind::kIndex, index.id, index.keyspace, coll.ns};
  unit.Put(Keyspace::kCatalog, GarbageRowKey(g.kind, g.id), EncodeGarbageRow(g).bytes());
  garbage->push_back(std::move(g));
}

void CatalogImpl::StageDrop(WriteUnit& unit, const CollectionInfo& coll,
                            std::vector<GarbageRow>* garbage) {
  unit.Erase(Keyspace::kCatalog, CollectionRowKey(coll.id));
  if (!coll.traits().stored) return;
  unit.Erase(Keyspace::kCatalog, CountersKey(coll.id));
  GarbageRow g{GarbageKind::kCollection, coll.id, Keyspace::kRecords, coll.ns};
  unit.Put(Keyspace::kCatalog, GarbageRowKey(g.kind, g.id), EncodeGarbageRow(g).bytes());
  garbage->push_back(std::move(g));
  for (auto& i : coll.indexes) StageDropIndex(unit, coll, *i, garbage);
}

Result<void> CatalogImpl::CheckFree(std::string_view db, std::string_view collection) {
  std::shared_lock l(mutex_);
  if (auto it = by_ns_.find({db, collection}); it != by_ns_.end()) {
    if (it->second->is_view())
      return Error{ErrorCode::kNamespaceExists, "A view already exists. NS: " + it->second->ns};
    return Error{ErrorCode::kNamespaceExists, "Collection " + it->second->ns + " already exists."};
  }
  if (by_name_.find(db) == by_name_.end()) {
    for (auto& [name, collections] : by_name_)
      if (EqualIgnoringCase(name, db))
        return Error{LocationCode(13297), "db already exists with different case already have: [" +
                                              name + "] trying to create [" + std::string(db) +
                                              "]"};
  }
  return Ok();
}

// --- changes -------------------------------------------------------------------------------------

CollectionInfoPtr CatalogImpl::Define(CollectionInfo definition, Instant now, uint32_t id,
                                      uint32_t id_index) {
  auto coll = std::make_shared<CollectionInfo>(std::move(definition));
  coll->id = id;
  coll->ns = JoinNamespace(coll->db, coll->name);
  coll->counters = std::make_shared<CollectionCounters>();
  coll->expiry = std::make_shared<ExpiryState>();
  coll->document_expiry = std::make_shared<ExpiryState>();
  coll->document_expiry->SetEmpty();
  coll->database_max_ttl = DatabaseMaxTtlOf(coll->db);
  coll->indexes.clear();
  if (coll->uuid == Uuid{}) coll->uuid = RandomUuid();
  coll->unreplicated = IsUnreplicated(coll->db, coll->name);
  if (coll->capped()) {
    // Keyed by insertion order, so `_id` needs an index of its own.
    auto of_id = std::make_shared<IndexInfo>();
    of_id->id = id_index;
    of_id->name = "_id_";
    of_id->key = BuildBson([](BsonBuilder& b) { b.Append("_id", 1); });
    of_id->fields = {{"_id", false, ""}};
    of_id->unique = true;
    of_id->accesses_since = now.millis;
    coll->indexes.push_back(std::move(of_id));
  }
  FitDefinition(*coll);
  return memory_.Charge(std::move(coll));
}

Result<CollectionInfoPtr> CatalogImpl::Create(Operation& op, CollectionInfo definition) {
  MAYFLY_TRY(ValidateNewNamespace(definition.db, definition.name));
  if (definition.is_series()) return CreateSeries(op, std::move(definition));
  // A transaction that makes it may be on its way into the log.
  MAYFLY_TRY(const NameClaims::ClaimPtr claim,
             names_.Take(op, storage_.impl().closing, definition.db, definition.name));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CheckFree(definition.db, definition.name));
  if (definition.uuid != Uuid{} && FindByUuid(definition.uuid))
    return Error{ErrorCode::kNamespaceExists, "A collection with this UUID already exists."};
  std::atomic<uint32_t>& next_id = NextId(IsUnreplicated(definition.db, definition.name));
  const uint32_t id = next_id++, id_index = definition.capped() ? next_id++ : 0;
  CollectionInfoPtr coll = Define(std::move(definition), op.now, id, id_index);
  MAYFLY_TRY(memory_.Check(nullptr, *coll));
  WriteUnit unit(storage_, op);
  StageRow(unit, *coll);
  StageNextId(unit, coll->unreplicated);
  LogCreate(unit, *coll);
  MAYFLY_TRY(Commit(std::move(unit), {{nullptr, coll}}));
  return coll;
}

Result<CollectionInfoPtr> CatalogImpl::GetOrCreate(Operation& op, std::string_view db,
                                                   std::string_view collection) {
  for (;;) {
    if (CollectionInfoPtr found = Find(db, collection)) return found;
    CollectionInfo plain;
    plain.db = std::string(db);
    plain.name = std::string(collection);
    Result<CollectionInfoPtr> made = Create(op, std::move(plain));
    if (made || made.error().code != ErrorCode::kNamespaceExists) return made;
    MAYFLY_TRY(op.CheckInterrupt());  // somebody else made it just now
  }
}

Result<void> CatalogImpl::Drop(Operation& op, std::string_view db, std::string_view collection) {
  CollectionInfoPtr coll = Find(db, collection);
  if (!coll) return NotFound();
  if (coll->is_series()) return DropSeries(op, *coll);
  WriteUnit unit(storage_, op);
  MAYFLY_TRY(Gate(unit, op, *coll));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CollectionInfoPtr now, Current(*coll));
  if (now->db != db || now->name != collection) return NotFound();  // renamed meanwhile
  std::vector<GarbageRow> garbage;
  StageDrop(unit, *now, &garbage);
  LogDrop(unit, *now);
  return Commit(std::move(unit), {{now, nullptr}}, std::move(garbage));
}

Result<void> CatalogImpl::DropDatabase(Operation& op, std::string_view db) {
  for (;;) {
    std::vector<CollectionInfoPtr> all = List(db);
    if (all.empty()) return Ok();
    // Gates in the order of ids, so that two changes of several collections cannot wait for each
    // other.
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a->id < b->id; });
    WriteUnit unit(storage_, op);
    bool changed = false;
    for (auto& coll : all) {
      Result<void> r = Gate(unit, op, *coll);
      if (!r && r.error().code == ErrorCode::kNamespaceNotFound) {
        changed = true;
        break;
      }
      MAYFLY_TRY(std::move(r));
    }
    if (changed) continue;
    std::lock_guard l(ddl_mutex_);
    std::vector<CollectionInfoPtr> now = List(db);
    std::set<uint32_t> gated;
    for (auto& c : all) gated.insert(c->id);
    for (auto& c : now) changed = changed || !gated.contains(c->id);
    if (changed) continue;
    std::vector<GarbageRow> garbage;
    std::vector<Replacement> changes;
    // Profiles are each member's own, and so are their rows: they go by a unit of their own.
    for (auto& c : now) {
      if (c->unreplicated == (db == "local")) {
        StageDrop(unit, *c, &garbage);
        LogDrop(unit, *c);
        changes.push_back({c, nullptr});
      }
    }
    if (changes.size() < now.size()) {
      if (changes.empty()) {
        for (auto& c : now) {
          StageDrop(unit, *c, &garbage);
          changes.push_back({c, nullptr});
        }
        unit.SetLocal();
        return Commit(std::move(unit), std::move(changes), std::move(garbage));
      }
      LogDropDatabase(unit, db);
      MAYFLY_TRY(Commit(std::move(unit), std::move(changes), std::move(garbage)));
      continue;
    }
    LogDropDatabase(unit, db);
    unit.Erase(Keyspace::kCatalog, DatabaseExpiryKey(db));
    unit.OnCommit([max = DatabaseMaxTtlOf(db)] { *max = 0; });
    return Commit(std::move(unit), std::move(changes), std::move(garbage));
  }
}

Result<void> CatalogImpl::DropViews(Operation& op, std::vector<CollectionInfoPtr> views) {
  // Gates in the order of ids, as for a database.
  std::sort(views.begin(), views.end(), [](auto& a, auto& b) { return a->id < b->id; });
  for (;;) {
    if (views.empty()) return Ok();
    WriteUnit unit(storage_, op);
    bool gone = false;
    for (const CollectionInfoPtr& view : views) {
      MAYFLY_TRY(op.CheckInterrupt());
      Result<void> r = Gate(unit, op, *view);
      gone = !r && r.error().code == ErrorCode::kNamespaceNotFound;
      if (gone) break;
      MAYFLY_TRY(std::move(r));
    }
    if (gone) {
      std::erase_if(views, [&](const CollectionInfoPtr& v) { return FindById(v->id) == nullptr; });
      continue;
    }
    std::lock_guard l(ddl_mutex_);
    std::vector<GarbageRow> garbage;
    std::vector<Replacement> changes;
    for (const CollectionInfoPtr& view : views) {
      MAYFLY_TRY(CollectionInfoPtr now, Current(*view));
      StageDrop(unit, *now, &garbage);
      LogDrop(unit, *now);
      changes.push_back({std::move(now), nullptr});
    }
    return Commit(std::move(unit), std::move(changes), std::move(garbage));
  }
}

Result<void> CatalogImpl::Rename(Operation& op, const CollectionInfo& from, std::string_view to_db,
                                 std::string_view to_collection, bool drop_target, const Uuid* uuid,
                                 const std::function<Result<void>()>& fill) {
  MAYFLY_TRY(ValidateNewNamespace(to_db, to_collection));
  MAYFLY_TRY(CheckUse(from, CollectionUse::kRename));
  if (from.unreplicated != IsUnreplicated(to_db, to_collection))
    return Error{ErrorCode::kIllegalOperation,
                 "Cannot rename collections between a replicated and an unreplicated database"};
  if (from.db == to_db && from.name == to_collection)
    return Error{ErrorCode::kIllegalOperation, "Can't rename a collection to itself"};
  for (;;) {
    CollectionInfoPtr target = Find(to_db, to_collection);
    if (target && (!drop_target || target->is_view()))
      return Error{ErrorCode::kNamespaceExists,
                   target->is_view() ? "a view already exists with that name: " + target->ns
                                     : "target namespace exists"};
    WriteUnit unit(storage_, op);
    if (target && target->id < from.id) {
      MAYFLY_TRY(Gate(unit, op, *target));
    }
    if (fill) {
      // What is filled is newer than what it replaces, so its gate comes second and is still open.
      if (!target || target->id > from.id) return NotFound();
      MAYFLY_TRY(fill());
    }
    MAYFLY_TRY(Gate(unit, op, from));
    if (target && target->id > from.id) {
      MAYFLY_TRY(Gate(unit, op, *target));
    }
    MAYFLY_TRY(const NameClaims::ClaimPtr claim,
               names_.Take(op, storage_.impl().closing, to_db, to_collection));
    std::lock_guard l(ddl_mutex_);
    MAYFLY_TRY(CollectionInfoPtr now, Current(from));
    if (now->ns != from.ns) return NotFound();
    CollectionInfoPtr target_now = Find(to_db, to_collection);
    if ((target_now ? target_now->id : 0) != (target ? target->id : 0)) {
      if (fill) return NotFound();
      continue;
    }
    std::vector<Replacement> changes;
    std::vector<GarbageRow> garbage;
    if (target_now) {
      StageDrop(unit, *target_now, &garbage);
      changes.push_back({target_now, nullptr});
    } else {
      MAYFLY_TRY(CheckFree(to_db, to_collection));
    }
    auto next = std::make_shared<CollectionInfo>(*now);
    next->db = std::string(to_db);
    next->name = std::string(to_collection);
    next->ns = JoinNamespace(to_db, to_collection);
    next->database_max_ttl = DatabaseMaxTtlOf(next->db);
    next->temporary = false;
    // In MongoDB a rename into another database copies: the collection there is a new one.
    if (to_db != now->db) next->uuid = uuid != nullptr ? *uuid : RandomUuid();
    StageRow(unit, *next);
    LogRename(unit, *now, *next, target_now.get());
    changes.push_back({now, memory_.Charge(std::move(next))});
    return Commit(std::move(unit), std::move(changes), std::move(garbage));
  }
}

Result<CollectionInfoPtr> CatalogImpl::Modify(Operation& op, const CollectionInfo& coll,
                                              std::function<Result<void>(CollectionInfo&)> change) {
  WriteUnit unit(storage_, op);
  MAYFLY_TRY(Gate(unit, op, coll));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CollectionInfoPtr now, Current(coll));
  auto next = std::make_shared<CollectionInfo>(*now);
  MAYFLY_TRY(change(*next));
  if (next->id != now->id || next->uuid != now->uuid || next->ns != now->ns ||
      next->db != now->db || next->name != now->name || next->kind != now->kind ||
      next->counters != now->counters)
    return Error{ErrorCode::kInternalError,
                 "a modification may not change the identity of a collection"};
  FitDefinition(*next);
  const CollectionInfoPtr after = memory_.Charge(std::move(next));
  MAYFLY_TRY(memory_.Check(now.get(), *after));
  StageRow(unit, *after);
  LogModify(unit, *now, *after);
  MAYFLY_TRY(Commit(std::move(unit), {{now, after}}));
  return after;
}

Result<CollectionInfoPtr> CatalogImpl::ModifyIndex(Operation& op, const CollectionInfo& coll,
                                                   std::string_view index_name,
                                                   std::function<Result<void>(IndexInfo&)> change) {
  std::shared_ptr<IndexInfo> rebuild;
  Result<CollectionInfoPtr> r = Modify(op, coll, [&](CollectionInfo& c) -> Result<void> {
    IndexInfoPtr* found = nullptr;
    for (auto& i : c.indexes) {
      if (i->name != index_name) continue;
      if (i->state == IndexState::kBuilding)
        return Error{ErrorCode::kConflictingOperationInProgress,
                     "index " + i->name + " of " + ShownNamespace(c.ns) + " is being built"};
      found = &i;
    }
    if (!found)
      return Error{ErrorCode::kIndexNotFound, "cannot find index " + std::string(index_name) +
                                                  " for ns " + ShownNamespace(c.ns)};
    IndexInfoPtr& i = *found;
    auto next = std::make_shared<IndexInfo>(*i);
    MAYFLY_TRY(change(*next));
    if (next->id != i->id || next->name != i->name || next->keyspace != i->keyspace ||
        next->state != i->state || next->key.bytes() != i->key.bytes())
      return Error{ErrorCode::kInternalError,
                   "a modification may not change the identity of an index"};
    if (next->unique != i->unique && i->kind->maintained()) {
      // Entries of unique indexes are laid out in another way: a new index takes this one's place.
      rebuild = std::move(next);
      return Error{ErrorCode::kInternalError, "to be rebuilt"};
    }
    i = std::move(next);
    return Ok();
  });
  if (!rebuild) return r;
  r = ReplaceIndex(op, coll, *rebuild);
  if (!r && r.error().code == ErrorCode::kDuplicateKey)
    return Error{ErrorCode::kCannotConvertIndexToUnique,
                 "Cannot convert the index to unique. Please resolve conflicting documents before "
                 "running collMod "
                 "again. :: caused by :: " +
                     r.error().message,
                 r.error().details};
  return r;
}

std::shared_ptr<std::atomic<int64_t>> CatalogImpl::DatabaseMaxTtlOf(std::string_view db) {
  std::lock_guard l(max_ttl_mutex_);
  auto it = max_ttl_.find(db);
  if (it == max_ttl_.end())
    it = max_ttl_.emplace(std::string(db), std::make_shared<std::atomic<int64_t>>(0)).first;
  return it->second;
}

int64_t CatalogImpl::DatabaseMaxTtl(std::string_view db) {
  // A question makes no cell: the number of nonexistent database names is unlimited.
  std::lock_guard l(max_ttl_mutex_);
  auto it = max_ttl_.find(db);
  return it == max_ttl_.end() ? 0 : it->second->load();
}

Result<void> CatalogImpl::SetDatabaseMaxTtl(Operation& op, std::string_view db, int64_t seconds) {
  WriteUnit unit(storage_, op);
  char value[8];
  StoreLe<int64_t>(value, seconds);
  if (seconds == 0)
    unit.Erase(Keyspace::kCatalog, DatabaseExpiryKey(db));
  else
    unit.Put(Keyspace::kCatalog, DatabaseExpiryKey(db), {value, sizeof value});
  unit.OnCommit([max = DatabaseMaxTtlOf(db), seconds] { *max = seconds; });
  return storage_.committer().Commit(std::move(unit));
}

Result<std::optional<std::string>> CatalogImpl::GetSetting(std::string_view name) {
  PinnedValue v;
  MAYFLY_TRY(bool found, storage_.kv().Get(Keyspace::kCatalog,
                                           std::string(kSettingPrefix) + std::string(name), &v));
  if (!found) return std::optional<std::string>();
  return std::optional<std::string>(std::string(v.view()));
}

Result<void> CatalogImpl::PutSetting(Operation& op, std::string_view name, std::string_view value) {
  WriteUnit unit(storage_, op);
  unit.Put(Keyspace::kCatalog, std::string(kSettingPrefix) + std::string(name), value);
  return storage_.committer().Commit(std::move(unit), {.journal = true});
}

Result<void> CatalogImpl::PutLocalSetting(Operation& op, std::string_view name,
                                          std::string_view value) {
  WriteUnit unit(storage_, op);
  unit.SetLocal();
  unit.Put(Keyspace::kCatalog, std::string(kSettingPrefix) + std::string(name), value);
  return storage_.committer().Commit(std::move(unit));
}

}  // namespace mayfly

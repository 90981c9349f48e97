#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "protocol/shown_namespace.h"
#include "storage/catalog/index_conflict.h"
#include "storage/catalog/index_keys.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/schema/catalog_impl.h"
#include "storage/schema/catalog_log.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

constexpr size_t kMaxIndexes = 64;  // the `_id` index included

Error AtShutdown() { return {ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"}; }

}  // namespace

Result<void> CatalogImpl::CheckRoomForIndex(const CollectionInfo& coll, const IndexInfo& spec) {
  if (coll.indexes.size() + (coll.capped() ? 0 : 1) < kMaxIndexes) return Ok();
  return Error{ErrorCode::kCannotCreateIndex, "add index fails, too many indexes for " +
                                                  ShownNamespace(coll.ns) + " key:" + spec.name};
}

std::shared_ptr<IndexInfo> CatalogImpl::DefineIndex(const CollectionInfo& coll,
                                                    const IndexInfo& spec, uint32_t id, bool empty,
                                                    Instant now) {
  auto index = std::make_shared<IndexInfo>(spec);
  index->id = id;
  index->measured = MeasuredFields(coll, index->fields);
  index->keyspace = index->expire_after_seconds ? Keyspace::kExpiry : Keyspace::kIndexes;
  index->state = empty || !index->kind->maintained() ? IndexState::kReady : IndexState::kBuilding;
  index->multikey = 0;
  index->accesses = 0;
  index->accesses_since = now.millis;
  return index;
}

Result<void> CatalogImpl::CreateIndexes(Operation& op, const CollectionInfo& coll,
                                        std::vector<IndexInfo> specs) {
  std::shared_ptr<IndexBuild> build;
  for (;;) {
    bool wait = false;
    {
      WriteUnit unit(storage_, op);
      MAYFLY_TRY(Gate(unit, op, coll));
      std::lock_guard l(ddl_mutex_);
      MAYFLY_TRY(CollectionInfoPtr now, Current(coll));
      auto next = std::make_shared<CollectionInfo>(*now);
      // Exact: no writer is inside the gate.
      bool empty = now->counters->documents == 0;
      build = nullptr;
      std::atomic<uint32_t>& next_id = NextId(now->unreplicated);
      uint32_t id = next_id;
      for (IndexInfo& spec : specs) {
        if (IsIdIndexKey(spec.key)) continue;
        MAYFLY_TRY(IndexInfoPtr existing, MatchExistingIndex(*next, spec));
        if (existing) {
          wait = wait || (existing->state == IndexState::kBuilding && existing->id < next_id);
          continue;
        }
        MAYFLY_TRY(CheckRoomForIndex(*next, spec));
        std::shared_ptr<IndexInfo> index = DefineIndex(*next, spec, id++, empty, op.now);
        if (index->state == IndexState::kBuilding) {
          if (!build) build = std::make_shared<IndexBuild>();
          build->ids.push_back(index->id);
          build->names.push_back(index->name);
        }
        next->indexes.push_back(std::move(index));
      }
      if (!wait) {
        if (next->indexes.size() == now->indexes.size()) return Ok();
        const CollectionInfoPtr after = memory_.Charge(std::move(next));
        MAYFLY_TRY(memory_.Check(now.get(), *after));
        next_id = id;
        StageRow(unit, *after);
        StageNextId(unit, now->unreplicated);
        LogCreateIndexes(unit, *now, *after);
        if (build) {
          build->collection = now->id;
          build->ns = now->ns;
          build->op_id = op.id;
          build->total = now->counters->documents.load();
          std::lock_guard b(builds_mutex_);
          builds_.push_back(build);
        }
        Result<void> r = Commit(std::move(unit), {{now, after}});
        if (!r) {
          if (build) EndBuild(build);
          return r;
        }
        break;
      }
    }
    // One of them is being built already: wait for its result.
    MAYFLY_TRY(op.CheckInterruptNow());
    if (storage_.impl().closing) return AtShutdown();
    std::unique_lock l(builds_mutex_);
    builds_changed_.wait_for(l, std::chrono::milliseconds(20));
  }
  if (!build) return Ok();
  return RunBuild(op, std::move(build));
}

Result<CollectionInfoPtr> CatalogImpl::ReplaceIndex(Operation& op, const CollectionInfo& coll,
                                                    const IndexInfo& wanted) {
  auto build = std::make_shared<IndexBuild>();
  {
    WriteUnit unit(storage_, op);
    MAYFLY_TRY(Gate(unit, op, coll));
    std::lock_guard l(ddl_mutex_);
    MAYFLY_TRY(CollectionInfoPtr now, Current(coll));
    IndexInfoPtr old = now->FindIndex(wanted.name);
    if (!old || old->id != wanted.id)
      return Error{ErrorCode::kIndexNotFound,
                   "cannot find index " + wanted.name + " for ns " + ShownNamespace(now->ns)};
    for (const IndexInfoPtr& i : now->indexes)
      if (i->name == wanted.name && i->state == IndexState::kBuilding)
        return Error{ErrorCode::kConflictingOperationInProgress,
                     "index " + i->name + " of " + ShownNamespace(now->ns) + " is being built"};
    auto next = std::make_shared<CollectionInfo>(*now);
    auto index = std::make_shared<IndexInfo>(wanted);
    index->id = NextId(now->unreplicated)++;
    index->replaces = old->id;
    index->keyspace = index->expire_after_seconds ? Keyspace::kExpiry : Keyspace::kIndexes;
    index->state = IndexState::kBuilding;
    index->multikey = 0;
    next->indexes.push_back(index);
    build->collection = now->id;
    build->ns = now->ns;
    build->ids = {index->id};
    build->names = {index->name};
    build->op_id = op.id;
    build->total = now->counters->documents.load();
    StageRow(unit, *next);
    StageNextId(unit, now->unreplicated);
    LogCreateIndexes(unit, *now, *next);
    {
      std::lock_guard b(builds_mutex_);
      builds_.push_back(build);
    }
    Result<void> r = Commit(std::move(unit), {{now, memory_.Charge(std::move(next))}});
    if (!r) {
      EndBuild(build);
      return r.error();
    }
  }
  MAYFLY_TRY(RunBuild(op, build));
  return Current(coll);
}

Result<void> CatalogImpl::RebuildIndexes(Operation& op, const CollectionInfo& coll) {
  for (const IndexInfoPtr& i : coll.indexes) {
    if (i->is_id() || !i->kind->maintained()) continue;
    IndexInfo anew = *i;
    anew.expiry = std::make_shared<ExpiryState>();
    MAYFLY_TRY(ReplaceIndex(op, coll, anew));
  }
  return Ok();
}

Result<void> CatalogImpl::DropIndexes(Operation& op, const CollectionInfo& coll,
                                      const std::vector<std::string>& names) {
  WriteUnit unit(storage_, op);
  MAYFLY_TRY(Gate(unit, op, coll));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CollectionInfoPtr now, Current(coll));
  auto next = std::make_shared<CollectionInfo>(*now);
  std::vector<GarbageRow> garbage;
  for (const std::string& name : names) {
    if (name == "_id_" || (now->clustered() && name == now->clustered_index_name))
      return Error{ErrorCode::kInvalidOptions, "cannot drop _id index"};
    // Two while one is being built in place of the other.
    size_t dropped = std::erase_if(next->indexes, [&](const IndexInfoPtr& i) {
      if (i->name != name) return false;
      StageDropIndex(unit, *now, *i, &garbage);
      return true;
    });
    if (dropped == 0)
      return Error{ErrorCode::kIndexNotFound, "index not found with name [" + name + "]"};
  }
  if (garbage.empty()) return Ok();
  StageRow(unit, *next);
  LogDropIndexes(unit, *now, *next);
  return Commit(std::move(unit), {{now, memory_.Charge(std::move(next))}}, std::move(garbage));
}

Result<void> CatalogImpl::DropIndexIds(Operation& op, const CollectionInfo& coll,
                                       const std::vector<uint32_t>& ids) {
  WriteUnit unit(storage_, op);
  MAYFLY_TRY(Gate(unit, op, coll));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CollectionInfoPtr now, Current(coll));
  auto next = std::make_shared<CollectionInfo>(*now);
  std::vector<GarbageRow> garbage;
  std::erase_if(next->indexes, [&](const IndexInfoPtr& i) {
    if (std::find(ids.begin(), ids.end(), i->id) == ids.end()) return false;
    StageDropIndex(unit, *now, *i, &garbage);
    return true;
  });
  if (garbage.empty()) return Ok();
  StageRow(unit, *next);
  LogDropIndexes(unit, *now, *next);
  return Commit(std::move(unit), {{now, memory_.Charge(std::move(next))}}, std::move(garbage));
}

Result<void> CatalogImpl::FinishBuild(Operation& op, const IndexBuild& build) {
  CollectionInfoPtr coll = FindById(build.collection);
  if (!coll)
    return Error{ErrorCode::kNamespaceNotFound,
                 "collection dropped. ns: " + ShownNamespace(build.ns)};
  WriteUnit unit(storage_, op);
  MAYFLY_TRY(Gate(unit, op, *coll));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CollectionInfoPtr now, Current(*coll));
  auto next = std::make_shared<CollectionInfo>(*now);
  size_t ready = 0;
  std::vector<GarbageRow> garbage;
  for (uint32_t id : build.ids) {
    auto at = std::find_if(next->indexes.begin(), next->indexes.end(),
                           [&](auto& i) { return i->id == id; });
    if (at == next->indexes.end()) break;
    auto done = std::make_shared<IndexInfo>(**at);
    done->state = IndexState::kReady;
    done->accesses_since = op.now.millis;
    *at = done;
    ++ready;
    if (done->replaces == 0) continue;
    auto old = std::find_if(next->indexes.begin(), next->indexes.end(),
                            [&](auto& i) { return i->id == done->replaces; });
    if (old == next->indexes.end()) continue;
    StageDropIndex(unit, *now, **old, &garbage);
    done->replaces = 0;
    *old = done;
    next->indexes.erase(at);
  }
  if (ready != build.ids.size())
    return Error{ErrorCode::kIndexBuildAborted,
                 "Index build aborted: an index was dropped while it was built"};
  unit.Erase(Keyspace::kCatalog, BuildRowKey(build.ids[0]));
  StageRow(unit, *next);
  LogCommitBuild(unit, *now, *next, build.ids);
  return Commit(std::move(unit), {{now, memory_.Charge(std::move(next))}}, std::move(garbage));
}

void CatalogImpl::EndBuild(const std::shared_ptr<IndexBuild>& build) {
  std::lock_guard l(builds_mutex_);
  std::erase(builds_, build);
  builds_changed_.notify_all();
}

std::vector<Catalog::BuildProgress> CatalogImpl::Builds() {
  std::vector<BuildProgress> r;
  std::lock_guard l(builds_mutex_);
  for (auto& b : builds_) r.push_back({b->ns, b->names, b->done, b->total, b->op_id});
  return r;
}

void CatalogImpl::StartBackground() {
  garbage_.Start();
  // A member of a replica set waits until it is primary.
  if (!storage_.impl().logged) ResumeBuilds();
}

void CatalogImpl::ResumeBuilds() {
  if (resume_thread_.joinable()) resume_thread_.join();
  auto found = FindUnfinishedBuilds();
  if (!found) {
    storage_.impl().Log('E', "Unfinished index builds cannot be resumed: " + found.error().message);
    return;
  }
  if (found.value().empty()) return;
  resume_thread_ =
      std::thread(large_memory::WithThisBudget([this, builds = std::move(found).value()] {
        for (auto& build : builds) {
          Operation op(storage_.clock());
          (void)RunBuild(op, build);  // it logs how it ended
        }
      }));
}

void CatalogImpl::StopBackground() {
  if (resume_thread_.joinable()) resume_thread_.join();
  garbage_.Stop();
}

}  // namespace mayfly

#include <algorithm>
#include <utility>

#include "protocol/bson_builder.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/core/storage_impl.h"
#include "storage/schema/catalog_impl.h"
#include "storage/schema/catalog_log.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

Error SeriesNotFound() { return {ErrorCode::kNamespaceNotFound, "ns not found"}; }

/// The index that all buckets have (manual: "Add Secondary Indexes to Time Series Collections"):
/// on the meta field, if there is one, and the time.
Result<IndexInfo> IndexOfSeries(const SeriesOptions& s) {
  IndexInfo index;
  if (s.meta_field.empty()) {
    index.name = s.time_field + "_1";
  } else {
    index.name = s.meta_field + "_1_" + s.time_field + "_1";
  }
  index.key = BuildBson([&](BsonBuilder& b) {
    if (!s.meta_field.empty()) b.Append("meta", 1);
    b.Append("control.min." + s.time_field, 1).Append("control.max." + s.time_field, 1);
  });
  MAYFLY_TRY(index.fields, ParseIndexKey(index.key));
  index.kind = &KindOfKey(index.fields);
  return index;
}

/// The indexes of a collection, each as listIndexes has it, in order of their names.
std::vector<BsonDocument> IndexSpecs(const CollectionInfo& coll) {
  std::vector<IndexInfoPtr> indexes = coll.indexes;
  std::sort(indexes.begin(), indexes.end(), [](auto& a, auto& b) { return a->name < b->name; });
  std::vector<BsonDocument> specs;
  for (const IndexInfoPtr& i : indexes)
    specs.push_back(BuildBson([&](BsonBuilder& b) { AppendIndexSpec(*i, b); }));
  return specs;
}

/// Whether `by` may take the place of `there`, both buckets.
Result<void> CheckMayReplace(const CollectionInfo& there, const CollectionInfo& by,
                             const std::string& ns) {
  if (there.series->time_field != by.series->time_field ||
      there.series->meta_field != by.series->meta_field)
    return Error{ErrorCode::kCommandFailed,
                 "the time-series collection " + ns +
                     " was made anew with another timeField or metaField while $out ran"};
  const std::vector<BsonDocument> was = IndexSpecs(there), is = IndexSpecs(by);
  const bool same = std::equal(was.begin(), was.end(), is.begin(), is.end(),
                               [](auto& a, auto& b) { return a.bytes() == b.bytes(); });
  if (same) return Ok();
  return Error{ErrorCode::kCommandFailed,
               "indexes of target collection " + ns + " changed while processing $out: try again"};
}

}  // namespace

Result<CollectionInfoPtr> CatalogImpl::CreateSeries(Operation& op, CollectionInfo series) {
  CollectionInfo of_buckets;
  of_buckets.db = series.db;
  of_buckets.name = BucketsName(series.name);
  of_buckets.kind = CollectionKind::kBuckets;
  of_buckets.clustered_index_name = "_id_";
  of_buckets.series = series.series;
  of_buckets.expire_after_seconds = series.expire_after_seconds;
  of_buckets.temporary = series.temporary;
  of_buckets.options = std::exchange(series.options, {});
  series.expire_after_seconds.reset();
  series.view_on = of_buckets.name;
  MAYFLY_TRY(ValidateNamespace(of_buckets.db, of_buckets.name));
  MAYFLY_TRY(const NameClaims::ClaimPtr claim,
             names_.Take(op, storage_.impl().closing, series.db, series.name));
  MAYFLY_TRY(const NameClaims::ClaimPtr claim_of_buckets,
             names_.Take(op, storage_.impl().closing, of_buckets.db, of_buckets.name));
  std::lock_guard l(ddl_mutex_);
  MAYFLY_TRY(CheckFree(series.db, series.name));
  MAYFLY_TRY(CheckFree(of_buckets.db, of_buckets.name));
  if (IsUnreplicated(series.db, series.name))
    return Error{ErrorCode::kIllegalOperation,
                 "a time-series collection cannot be in the database 'local'"};
  MAYFLY_TRY(IndexInfo spec, IndexOfSeries(*series.series));
  const uint32_t id = next_id_.fetch_add(3);
  auto with_index = std::make_shared<CollectionInfo>(*Define(std::move(of_buckets), op.now, id, 0));
  with_index->indexes.push_back(DefineIndex(*with_index, spec, id + 1, true, op.now));
  const CollectionInfoPtr buckets = memory_.Charge(std::move(with_index));
  const CollectionInfoPtr coll = Define(std::move(series), op.now, id + 2, 0);
  MAYFLY_TRY(memory_.Check(nullptr, *buckets));
  MAYFLY_TRY(memory_.Check(nullptr, *coll));
  WriteUnit unit(storage_, op);
  StageRow(unit, *buckets);
  StageRow(unit, *coll);
  StageNextId(unit, false);
  LogCreateSeries(unit, *coll, *buckets);
  MAYFLY_TRY(Commit(std::move(unit), {{nullptr, buckets}, {nullptr, coll}}));
  return coll;
}

Result<void> CatalogImpl::DropSeries(Operation& op, const CollectionInfo& series) {
  for (;;) {
    const CollectionInfoPtr buckets = Find(series.db, series.view_on);
    const CollectionInfoPtr own = FindById(series.id);
    if (!own) return SeriesNotFound();
    WriteUnit unit(storage_, op);
    MAYFLY_TRY(const bool all_there, GateAll(unit, op, {buckets, own}));
    if (!all_there) {
      MAYFLY_TRY(op.CheckInterrupt());
      continue;
    }
    std::lock_guard l(ddl_mutex_);
    MAYFLY_TRY(CollectionInfoPtr now, Current(series));
    if (now->ns != series.ns) return SeriesNotFound();
    const CollectionInfoPtr buckets_now = Find(series.db, series.view_on);
    if ((buckets_now ? buckets_now->id : 0) != (buckets ? buckets->id : 0)) continue;
    std::vector<GarbageRow> garbage;
    std::vector<Replacement> changes;
    if (buckets_now) {
      StageDrop(unit, *buckets_now, &garbage);
      changes.push_back({buckets_now, nullptr});
    }
    StageDrop(unit, *now, &garbage);
    changes.push_back({now, nullptr});
    LogDrop(unit, *now);
    return Commit(std::move(unit), std::move(changes), std::move(garbage));
  }
}

Result<bool> CatalogImpl::GateAll(WriteUnit& unit, Operation& op,
                                  std::vector<CollectionInfoPtr> all) {
  // In the order of ids, as everywhere.
  std::erase(all, nullptr);
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a->id < b->id; });
  for (const CollectionInfoPtr& coll : all) {
    Result<void> gate = Gate(unit, op, *coll);
    if (gate) continue;
    if (gate.error().code == ErrorCode::kNamespaceNotFound) return false;
    return gate.error();
  }
  return true;
}

Result<void> CatalogImpl::PutSeries(Operation& op, const CollectionInfo& by,
                                    std::string_view name) {
  const std::string of_buckets = BucketsName(name);
  MAYFLY_TRY(ValidateNewNamespace(by.db, name));
  MAYFLY_TRY(ValidateNamespace(by.db, of_buckets));
  for (;;) {
    MAYFLY_TRY(op.CheckInterrupt());
    const CollectionInfoPtr target = Find(by.db, name), target_buckets = Find(by.db, of_buckets);
    const CollectionInfoPtr series = FindById(by.id), buckets = Find(by.db, by.view_on);
    if (!series || !buckets) return SeriesNotFound();
    if (target && !target->is_series())
      return Error{ErrorCode::kNamespaceExists,
                   target->ns + " is no time-series collection, but was made while $out ran"};
    WriteUnit unit(storage_, op);
    MAYFLY_TRY(const bool all_there, GateAll(unit, op, {target, target_buckets, series, buckets}));
    if (!all_there) continue;
    MAYFLY_TRY(const NameClaims::ClaimPtr claim,
               names_.Take(op, storage_.impl().closing, by.db, name));
    MAYFLY_TRY(const NameClaims::ClaimPtr claim_of_buckets,
               names_.Take(op, storage_.impl().closing, by.db, of_buckets));
    std::lock_guard l(ddl_mutex_);
    MAYFLY_TRY(const CollectionInfoPtr series_now, Current(*series));
    MAYFLY_TRY(const CollectionInfoPtr buckets_now, Current(*buckets));
    const CollectionInfoPtr target_now = Find(by.db, name), replaced = Find(by.db, of_buckets);
    const auto same = [](const CollectionInfoPtr& a, const CollectionInfoPtr& b) {
      return (a ? a->id : 0) == (b ? b->id : 0);
    };
    if (!same(target_now, target) || !same(replaced, target_buckets)) continue;
    auto next_buckets = std::make_shared<CollectionInfo>(*buckets_now);
    auto next = std::make_shared<CollectionInfo>(*series_now);
    std::vector<Replacement> changes;
    std::vector<GarbageRow> garbage;
    if (target_now && replaced) {
      MAYFLY_TRY(CheckMayReplace(*replaced, *buckets_now, target_now->ns));
      // What collMod has changed meanwhile goes for the new one. A span only grows.
      auto options = std::make_shared<SeriesOptions>(*replaced->series);
      options->suspended = options->suspended || buckets_now->series->suspended;
      next_buckets->series = std::move(options);
      next_buckets->expire_after_seconds = replaced->expire_after_seconds;
      next_buckets->options = replaced->options;
      next->series = target_now->series;
      StageDrop(unit, *replaced, &garbage);
      changes.push_back({replaced, nullptr});
    } else {
      MAYFLY_TRY(CheckFree(by.db, of_buckets));
    }
    if (target_now) {
      StageDrop(unit, *target_now, &garbage);
      changes.push_back({target_now, nullptr});
    } else {
      MAYFLY_TRY(CheckFree(by.db, name));
    }
    const auto rename = [&](CollectionInfo& c, std::string_view to) {
      c.name = std::string(to);
      c.ns = JoinNamespace(c.db, to);
      c.temporary = false;
    };
    rename(*next_buckets, of_buckets);
    rename(*next, name);
    next->view_on = of_buckets;
    StageRow(unit, *next_buckets);
    StageRow(unit, *next);
    LogPutSeries(unit, *series_now, *next, target_now.get());
    changes.push_back({buckets_now, memory_.Charge(std::move(next_buckets))});
    changes.push_back({series_now, memory_.Charge(std::move(next))});
    return Commit(std::move(unit), std::move(changes), std::move(garbage));
  }
}

}  // namespace mayfly

#include "storage/schema/catalog_log.h"

#include <algorithm>

#include "protocol/system_names.h"
#include "storage/catalog/catalog_format.h"
#include "storage/catalog/expire_reads.h"
#include "storage/core/storage_impl.h"
#include "storage/expiry/expiry_state.h"
#include "storage/keys/key_format.h"
#include "storage/schema/catalog_impl.h"
#include "storage/schema/definition_memory.h"
#include "storage/write/log_format.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

bool Silent(WriteUnit& unit) { return !unit.impl().logged; }

/// The builds of one collection are known by the ids of their indexes; the oplog's readers expect a
/// UUID.
void AppendBuildId(const CollectionInfo& coll, uint32_t first_index, BsonBuilder& out) {
  std::string id(reinterpret_cast<const char*>(coll.uuid.data()), coll.uuid.size());
  for (int i = 0; i < 4; ++i)
    id[static_cast<size_t>(i)] =
        static_cast<char>(id[static_cast<size_t>(i)] ^ static_cast<char>(first_index >> (8 * i)));
  out.AppendBinary("indexBuildUUID", 4, id);
}

/// What a collection's options were, also those that its `options` do not have, beside `o`: an
/// entry is one document of local.oplog.rs, and a change stream's event has both too, so together
/// they fit into one.
void AppendOldOptions(const CollectionInfo& before, BsonView o, BsonBuilder& out) {
  const BsonDocument old = BuildBson([&](BsonBuilder& b) {
    if (before.is_buckets()) return AppendSeriesOptions(before, b);
    b.AppendAll(before.options);
    if (before.is_view())
      b.Append("viewOn", before.view_on).AppendArray("pipeline", before.view_pipeline);
    if (before.expire_after_seconds) b.Append("expireAfterSeconds", *before.expire_after_seconds);
  });
  if (std::ssize(o.bytes()) + std::ssize(old.bytes()) <= DefinitionMemory::kMaxDefinition)
    out.Append("collectionOptions_old", old);
  else
    out.OpenDocument("collectionOptions_old").Append("$truncated", true);
}

/// The fields of collMod's `expiry` that make the one into the other. A limit (maxTTL) is named
/// like in the options; it cannot be given to collMod.
void AppendExpiryChanges(BsonView was, BsonView is, BsonBuilder& out) {
  for (const BsonElement& e : is)
    if (!was[e.name].BinaryEquals(e.value)) out.Append(e);
  const auto gone = [&](std::string_view n) { return is[n].missing() && !was[n].missing(); };
  if (gone("field")) out.AppendNull("field");
  if (gone("onUpdate")) out.Append("onUpdate", "reset");
  if (gone("recoverSeconds")) out.Append("recoverSeconds", 0);
}

/// What collMod was given, as its fields: those options that are other ones now. What it sets back
/// has no option, and is named with the value that the command takes for that.
void AppendChanges(const CollectionInfo& before, const CollectionInfo& after, BsonBuilder& out) {
  if (after.is_view()) {
    // Its options do not say what it shows.
    out.Append("viewOn", after.view_on).AppendArray("pipeline", after.view_pipeline);
    return;
  }
  const BsonView was = before.options, is = after.options;
  const auto document = [](BsonValue v) { return v.IsDocument() ? v.Document() : BsonView(); };
  for (const BsonElement& e : is) {
    if (was[e.name].BinaryEquals(e.value)) continue;
    if (e.name == "expiry") {
      BsonBuilder expiry = out.OpenDocument("expiry");
      AppendExpiryChanges(document(was["expiry"]), document(e.value), expiry);
    } else {
      out.Append(e.name == "size" ? "cappedSize" : e.name == "max" ? "cappedMax" : e.name, e.value);
    }
  }
  const auto gone = [&](std::string_view n) { return is[n].missing() && !was[n].missing(); };
  if (gone("validator")) out.OpenDocument("validator");
  if (gone("max")) out.Append("cappedMax", 0);
  if (gone("onExpire")) out.OpenDocument("onExpire").Append("action", "delete");
  if (gone("changeStreamPreAndPostImages"))
    out.OpenDocument("changeStreamPreAndPostImages").Append("enabled", false);
  if (gone("expiry")) {
    BsonBuilder expiry = out.OpenDocument("expiry");
    AppendExpiryChanges(document(was["expiry"]), {}, expiry);
  }
  if (before.expire_after_seconds == after.expire_after_seconds) return;
  if (after.expire_after_seconds)
    out.Append("expireAfterSeconds", *after.expire_after_seconds);
  else
    out.Append("expireAfterSeconds", "off");
}

/// `shown`: whose UUID the entry has; null: none.
void LogRenameOf(WriteUnit& unit, const CollectionInfo* shown, const CollectionInfo& from,
                 const CollectionInfo& to, const CollectionInfo* dropped_target) {
  if (Silent(unit)) return;
  unit.LogCommand(from.db, shown, BuildBson([&](BsonBuilder& b) {
                    b.Append("renameCollection", from.ns).Append("to", to.ns);
                    b.Append("stayTemp", false);
                    if (dropped_target != nullptr)
                      b.AppendBinary(
                          "dropTarget", 4,
                          {reinterpret_cast<const char*>(dropped_target->uuid.data()), 16});
                  }));
}

}  // namespace

void AppendIndexSpec(const IndexInfo& index, BsonBuilder& out) {
  out.Append("v", index.version()).Append("key", index.key).Append("name", index.name);
  if (index.unique) out.Append("unique", true);
  if (index.sparse) out.Append("sparse", true);
  if (index.hidden) out.Append("hidden", true);
  if (index.prepare_unique) out.Append("prepareUnique", true);
  if (index.expire_after_seconds) out.Append("expireAfterSeconds", *index.expire_after_seconds);
  if (index.expire_reads != ExpireReads::kDefault)
    out.Append(kExpireReadsOption, ExpireReadsName(index.expire_reads));
  if (index.has_partial_filter) out.Append("partialFilterExpression", index.partial_filter);
  index.AppendExtra(out);
}

void LogCreate(WriteUnit& unit, const CollectionInfo& coll) {
  if (Silent(unit)) return;
  unit.LogCommand(coll.db, coll.is_view() ? nullptr : &coll, BuildBson([&](BsonBuilder& b) {
                    b.Append("create", coll.name).AppendAll(coll.options);
                    if (coll.temporary) b.Append("temp", true);
                    if (coll.is_view()) {
                      b.Append("viewOn", coll.view_on);
                      b.AppendArray("pipeline", coll.view_pipeline.view());
                    }
                    if (coll.clustered()) {
                      auto clustered = b.OpenDocument("clusteredIndex");
                      clustered.Append("v", 2);
                      clustered.OpenDocument("key").Append("_id", 1);
                      clustered.Append("name", coll.clustered_index_name).Append("unique", true);
                      clustered.Done();
                      if (coll.expire_after_seconds)
                        b.Append("expireAfterSeconds", *coll.expire_after_seconds);
                    }
                    if (coll.is_view() || coll.clustered()) return;
                    auto id = b.OpenDocument("idIndex");
                    id.Append("v", 2);
                    id.OpenDocument("key").Append("_id", 1);
                    id.Append("name", "_id_");
                  }));
  if (coll.unreplicated) unit.SetLocal();
}

void LogCreateSeries(WriteUnit& unit, const CollectionInfo& series, const CollectionInfo& buckets) {
  if (Silent(unit)) return;
  unit.LogCommand(series.db, nullptr, BuildBson([&](BsonBuilder& b) {
                    b.Append("create", series.name);
                    AppendSeriesOptions(buckets, b);
                    if (series.temporary) b.Append("temp", true);
                  }));
}

void LogPutSeries(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& to,
                  const CollectionInfo* dropped_target) {
  LogRenameOf(unit, nullptr, from, to, dropped_target);
}

void LogDrop(WriteUnit& unit, const CollectionInfo& coll) {
  if (Silent(unit)) return;
  unit.LogCommand(coll.db, coll.is_view() ? nullptr : &coll,
                  BuildBson([&](BsonBuilder& b) { b.Append("drop", coll.name); }),
                  BuildBson([&](BsonBuilder& b) {
                    b.Append("numRecords", coll.counters ? coll.counters->documents.load() : 0);
                  }));
}

void LogDropDatabase(WriteUnit& unit, std::string_view db) {
  if (Silent(unit) || unit.impl().local) return;
  unit.LogCommand(db, nullptr, BuildBson([&](BsonBuilder& b) { b.Append("dropDatabase", 1); }));
}

void LogRename(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& to,
               const CollectionInfo* dropped_target) {
  LogRenameOf(unit, &from, from, to, dropped_target);
}

void LogModify(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after) {
  if (Silent(unit)) return;
  for (const IndexInfoPtr& now : after.indexes) {
    auto was = std::find_if(before.indexes.begin(), before.indexes.end(),
                            [&](const IndexInfoPtr& i) { return i->id == now->id; });
    if (was == before.indexes.end() || *was == now) continue;
    const BsonDocument o = BuildBson([&](BsonBuilder& b) {
      b.Append("collMod", after.name);
      auto i = b.OpenDocument("index");
      i.Append("name", now->name);
      const size_t bare = b.size();
      if (now->expire_after_seconds != (*was)->expire_after_seconds && now->expire_after_seconds)
        i.Append("expireAfterSeconds", int64_t{*now->expire_after_seconds});
      if (now->hidden != (*was)->hidden) i.Append("hidden", now->hidden);
      if (now->prepare_unique != (*was)->prepare_unique)
        i.Append("prepareUnique", now->prepare_unique);
      if (now->expire_reads != (*was)->expire_reads)
        i.Append(kExpireReadsOption, ExpireReadsName(now->expire_reads));
      if (now->extra.bytes() != (*was)->extra.bytes()) now->AppendExtra(i);
      // No limits any more: as collMod takes it.
      if (now->extra.view()["reap"].missing() && !(*was)->extra.view()["reap"].missing())
        i.OpenDocument("reap");
      // Nothing has changed: something that collMod takes all the same.
      if (b.size() == bare) i.Append("hidden", now->hidden);
    });
    unit.LogCommand(after.db, &after, o, BuildBson([&](BsonBuilder& b) {
                      AppendOldOptions(before, o, b);
                      auto old = b.OpenDocument("indexOptions_old");
                      if ((*was)->expire_after_seconds)
                        old.Append("expireAfterSeconds", int64_t{*(*was)->expire_after_seconds});
                      old.Append("hidden", (*was)->hidden);
                    }));
    return;
  }
  if (after.is_buckets()) {
    // As the client asked for it, of the time series.
    const BsonDocument o = BuildBson([&](BsonBuilder& b) {
      b.Append("collMod", after.name.substr(kBucketsPrefix.size()));
      AppendSeriesOptions(after, b);
      if (before.expire_after_seconds && !after.expire_after_seconds)
        b.Append("expireAfterSeconds", "off");
    });
    unit.LogCommand(after.db, &after, o,
                    BuildBson([&](BsonBuilder& b) { AppendOldOptions(before, o, b); }));
    return;
  }
  const BsonDocument o = BuildBson([&](BsonBuilder& b) {
    b.Append("collMod", after.name);
    AppendChanges(before, after, b);
  });
  unit.LogCommand(after.db, after.is_view() ? nullptr : &after, o,
                  BuildBson([&](BsonBuilder& b) { AppendOldOptions(before, o, b); }));
}

void LogCreateIndexes(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after) {
  if (Silent(unit)) return;
  std::vector<const IndexInfo*> building;
  for (const IndexInfoPtr& i : after.indexes) {
    if (std::any_of(before.indexes.begin(), before.indexes.end(),
                    [&](const IndexInfoPtr& b) { return b->id == i->id; }))
      continue;
    if (i->state == IndexState::kBuilding) {
      building.push_back(i.get());
      continue;
    }
    unit.LogCommand(after.db, &after, BuildBson([&](BsonBuilder& b) {
                      b.Append("createIndexes", after.name);
                      AppendIndexSpec(*i, b);
                    }));
  }
  if (building.empty()) return;
  unit.LogCommand(after.db, &after, BuildBson([&](BsonBuilder& b) {
                    b.Append("startIndexBuild", after.name);
                    AppendBuildId(after, building[0]->id, b);
                    auto list = b.OpenArray("indexes");
                    for (const IndexInfo* i : building) {
                      auto spec = list.OpenDocument();
                      AppendIndexSpec(*i, spec);
                    }
                  }));
}

void LogCommitBuild(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after,
                    const std::vector<uint32_t>& ids) {
  if (Silent(unit)) return;
  const auto of_id = [&](uint32_t id) {
    return std::find_if(before.indexes.begin(), before.indexes.end(),
                        [&](const IndexInfoPtr& i) { return i->id == id; });
  };
  // A client has not created it, but changed an index whose place it takes.
  if (const auto built = of_id(ids[0]); built != before.indexes.end() && (*built)->replaces != 0) {
    const auto was = of_id((*built)->replaces);
    const BsonDocument o = BuildBson([&](BsonBuilder& b) {
      b.Append("collMod", after.name);
      b.OpenDocument("index").Append("name", (*built)->name).Append("unique", (*built)->unique);
    });
    unit.LogCommand(after.db, &after, o, BuildBson([&](BsonBuilder& b) {
                      AppendOldOptions(before, o, b);
                      BsonBuilder old = b.OpenDocument("indexOptions_old");
                      if (was != before.indexes.end()) old.Append("unique", (*was)->unique);
                    }));
    return;
  }
  unit.LogCommand(after.db, &after, BuildBson([&](BsonBuilder& b) {
                    b.Append("commitIndexBuild", after.name);
                    AppendBuildId(after, ids[0], b);
                    auto list = b.OpenArray("indexes");
                    for (const IndexInfoPtr& i : after.indexes) {
                      if (std::find(ids.begin(), ids.end(), i->id) == ids.end()) continue;
                      auto spec = list.OpenDocument();
                      AppendIndexSpec(*i, spec);
                    }
                  }));
}

void LogDropIndexes(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after) {
  if (Silent(unit)) return;
  for (const IndexInfoPtr& i : before.indexes) {
    if (std::any_of(after.indexes.begin(), after.indexes.end(),
                    [&](const IndexInfoPtr& a) { return a->id == i->id; }))
      continue;
    if (i->state == IndexState::kBuilding) {
      unit.LogCommand(before.db, &before, BuildBson([&](BsonBuilder& b) {
                        b.Append("abortIndexBuild", before.name);
                        AppendBuildId(before, i->id, b);
                        auto list = b.OpenArray("indexes");
                        auto spec = list.OpenDocument();
                        AppendIndexSpec(*i, spec);
                      }));
      continue;
    }
    unit.LogCommand(before.db, &before, BuildBson([&](BsonBuilder& b) {
                      b.Append("dropIndexes", before.name).Append("index", i->name);
                    }),
                    BuildBson([&](BsonBuilder& b) { AppendIndexSpec(*i, b); }));
  }
}

// --- the log of others ---------------------------------------------------------------------------

void CatalogImpl::MarkMultikey(uint32_t index, uint64_t fields) {
  std::shared_lock l(mutex_);
  for (auto& [id, coll] : by_id_)
    for (const IndexInfoPtr& i : coll->indexes)
      if (i->id == index) i->multikey.fetch_or(fields, std::memory_order_acq_rel);
}

void CatalogImpl::ApplyLogged(const std::vector<LogEffect>& effects,
                              const std::vector<LogMultikey>& multikeys) {
  std::vector<Replacement> changes;
  std::vector<GarbageRow> garbage;
  auto id_behind = [](std::string_view key, std::string_view prefix) {
    return key.size() == prefix.size() + 4 ? LoadBe32(key.data() + prefix.size()) : 0;
  };
  for (const LogEffect& e : effects) {
    if (e.keyspace != Keyspace::kCatalog) continue;
    if (e.key.starts_with(kCollectionPrefix)) {
      CollectionInfoPtr before = FindById(id_behind(e.key, kCollectionPrefix));
      if (e.op == LogEffect::kDelete) {
        if (before) changes.push_back({before, nullptr});
        continue;
      }
      auto decoded = DecodeCollectionRow(e.key, e.value, storage_.options().compile_filter,
                                         storage_.clock().Now());
      if (!decoded) {
        storage_.impl().Log(
            'E', "A collection in the replication log cannot be used: " + decoded.error().message);
        continue;
      }
      std::shared_ptr<CollectionInfo> after = std::move(decoded).value();
      after->counters = before ? before->counters : std::make_shared<CollectionCounters>();
      after->database_max_ttl = DatabaseMaxTtlOf(after->db);
      if (before) {
        after->expiry = before->expiry;
        after->document_expiry = before->document_expiry;
      } else {
        after->document_expiry->SetEmpty();
      }
      for (IndexInfoPtr& index : after->indexes) {
        auto copy = std::make_shared<IndexInfo>(*index);
        if (before) {
          for (const IndexInfoPtr& old : before->indexes) {
            if (old->id != copy->id) continue;
            copy->multikey = old->multikey;
            copy->expiry = old->expiry;
            copy->accesses = old->accesses;
            copy->accesses_since = old->accesses_since;
          }
        }
        for (const LogMultikey& m : multikeys)
          if (m.index == copy->id) copy->multikey |= m.fields;
        index = std::move(copy);
      }
      // Only charged: a member cannot refuse what its primary has accepted.
      changes.push_back({before, memory_.Charge(std::move(after))});
    } else if (e.key == kNextIdKey && e.op == LogEffect::kPut && e.value.size() == 4) {
      const auto next = LoadLe<uint32_t>(e.value.data());
      uint32_t now = next_id_;
      while (now < next && !next_id_.compare_exchange_weak(now, next)) {
      }
    } else if (e.key.starts_with(kSettingPrefix) &&
               e.key.substr(kSettingPrefix.size()).starts_with(kDatabaseExpiryPrefix)) {
      *DatabaseMaxTtlOf(e.key.substr(kSettingPrefix.size() + kDatabaseExpiryPrefix.size())) =
          e.value.size() == 8 ? LoadLe<int64_t>(e.value.data()) : 0;
    } else if (e.key.starts_with(kGarbagePrefix) && e.op == LogEffect::kPut) {
      auto row = DecodeGarbageRow(e.key, e.value);
      if (row) garbage.push_back(std::move(row).value());
    }
  }
  if (!changes.empty()) Publish(changes);
  for (GarbageRow& g : garbage) garbage_.Add(std::move(g));
  // Reads hide by the queues' marks here too. The marks of TTL indexes say "not known" on a member
  // that does not reap.
  for (const LogEffect& e : effects) {
    uint32_t id;
    Instant deadline;
    std::string_view record_id;
    if (e.keyspace != Keyspace::kExpiry || e.op != LogEffect::kPut ||
        !DecodeDeadlineKey(e.key, &id, &deadline, &record_id))
      continue;
    if (CollectionInfoPtr coll = FindById(id)) coll->document_expiry->Lower(deadline.millis);
  }
}

void CatalogImpl::ForgetReaped() {
  for (const CollectionInfoPtr& coll : ListAll()) {
    auto forget = [](ExpiryState& s) {
      s.SetEarliest(INT64_MIN);
      s.head.Forget();
    };
    forget(*coll->expiry);
    forget(*coll->document_expiry);
    for (const IndexInfoPtr& i : coll->indexes) forget(*i->expiry);
  }
}

void CatalogImpl::BecomePrimary() {
  ForgetReaped();
  ResumeBuilds();
}

Result<std::vector<std::shared_ptr<IndexBuild>>> CatalogImpl::FindUnfinishedBuilds() {
  std::vector<std::shared_ptr<IndexBuild>> builds;
  std::map<uint32_t, CollectionInfoPtr> building;
  for (const CollectionInfoPtr& coll : ListAll())
    for (auto& i : coll->indexes)
      if (i->state == IndexState::kBuilding) building[i->id] = coll;
  if (building.empty()) return builds;
  // Builds with a position continue after it, the others begin again.
  std::set<uint32_t> resumed;
  KvIterOptions o;
  o.lower = std::string(kBuildPrefix);
  o.upper = PrefixEnd(kBuildPrefix);
  auto it = storage_.kv().NewIterator(Keyspace::kCatalog, std::move(o));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    MAYFLY_TRY(BuildRow row, DecodeBuildRow(it->value()));
    auto build = std::make_shared<IndexBuild>();
    for (uint32_t id : row.indexes) {
      auto found = building.find(id);
      if (found == building.end() || !resumed.insert(id).second) continue;
      build->collection = found->second->id;
      build->ids.push_back(id);
    }
    build->position = row.position;
    if (!build->ids.empty()) builds.push_back(std::move(build));
  }
  MAYFLY_TRY(it->status());
  std::map<uint32_t, std::shared_ptr<IndexBuild>> from_start;
  for (auto& [id, coll] : building) {
    if (resumed.contains(id)) continue;
    auto& b = from_start[coll->id];
    if (!b) {
      b = std::make_shared<IndexBuild>();
      b->collection = coll->id;
      builds.push_back(b);
    }
    b->ids.push_back(id);
  }
  std::map<uint32_t, CollectionInfoPtr> by_collection;
  for (auto& [id, coll] : building) by_collection[coll->id] = coll;
  for (auto& b : builds) {
    const CollectionInfoPtr& coll = by_collection.at(b->collection);
    b->ns = coll->ns;
    b->total = coll->counters->documents.load();
    std::sort(b->ids.begin(), b->ids.end());
    for (uint32_t id : b->ids)
      for (auto& i : coll->indexes)
        if (i->id == id) b->names.push_back(i->name);
  }
  std::lock_guard l(builds_mutex_);
  builds_ = builds;
  return builds;
}

}  // namespace mayfly

#include "server/execution/aggregate_stages.h"

#include "protocol/database_name.h"
#include "protocol/large_memory.h"
#include "query/plan/executor.h"
#include "security/privilege.h"
#include "server/access/login.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/bucket_sealer.h"
#include "server/execution/current_op.h"
#include "server/execution/series_definition.h"
#include "server/execution/session_store.h"
#include "server/execution/ttl_status.h"
#include "storage/catalog/expire_reads.h"
#include "storage/catalog/namespace.h"
#include "storage/read/record_source.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"
#include "storage/write/tombstone.h"

namespace mayfly {

void AppendIndexSpec(const CollectionInfo& coll, const IndexInfo* index, BsonBuilder& out) {
  out.Append("v", index == nullptr ? 2 : index->version());
  if (index == nullptr || index->is_id()) {
    BsonDocument key = BuildBson([](BsonBuilder& b) { b.Append("_id", 1); });
    out.Append("key", key);
    if (coll.clustered()) {
      out.Append("name", coll.clustered_index_name)
          .Append("unique", true)
          .Append("clustered", true);
    } else {
      out.Append("name", "_id_");
    }
    return;
  }
  out.Append("key", index->key).Append("name", index->name);
  if (index->hidden) out.Append("hidden", true);
  if (index->unique) out.Append("unique", true);
  if (index->prepare_unique) out.Append("prepareUnique", true);
  if (index->sparse) out.Append("sparse", true);
  if (index->has_partial_filter) out.Append("partialFilterExpression", index->partial_filter);
  if (index->expire_after_seconds) out.Append("expireAfterSeconds", *index->expire_after_seconds);
  if (index->expire_reads != ExpireReads::kDefault)
    out.Append(kExpireReadsOption, ExpireReadsName(index->expire_reads));
  index->AppendExtra(out);
}

void AppendCollectionStats(ExpiryServices& server, const CollectionInfo& coll, int64_t count,
                           int64_t scale, bool with_ns, BsonBuilder& out) {
  Storage& storage = server.storage();
  auto size = [&](int64_t bytes) { return bytes / scale; };
  if (with_ns) out.Append("ns", SeriesNamespace(coll));
  if (coll.is_view()) return;
  // Expired documents that are still stored count as bytes only.
  const int64_t bytes =
      coll.source ? static_cast<int64_t>(coll.source->Bytes()) : coll.counters->bytes.load();
  const auto stored = static_cast<int64_t>(storage.StorageBytes(coll));
  int64_t index_bytes = 0;
  std::vector<std::pair<std::string, int64_t>> sizes;
  // The _id index of an ordinary collection is its record keys, and has no bytes of its own.
  if (coll.traits().implicit_id_index) sizes.emplace_back("_id_", 0);
  for (const IndexInfoPtr& i : coll.indexes) {
    auto n = static_cast<int64_t>(storage.IndexBytes(coll, *i));
    index_bytes += n;
    sizes.emplace_back(i->name, n);
  }
  out.Append("size", size(bytes));
  if (coll.is_buckets()) {
    // Only the buckets know the number of points: count them with countDocuments.
    BsonBuilder series = out.OpenDocument("timeseries");
    series.Append("bucketsNs", coll.ns).Append("bucketCount", count);
    if (count > 0) series.Append("avgBucketSize", bytes / count);
    if (server.sealer() != nullptr) server.sealer()->AppendStats(coll.id, series);
  } else {
    out.Append("count", count);
    if (count > 0) out.Append("avgObjSize", bytes / count);
  }
  out.Append("numOrphanDocs", int32_t{0})
      .Append("storageSize", size(stored))
      .Append("freeStorageSize", int64_t{0});
  out.Append("capped", coll.capped());
  if (coll.capped())
    out.Append("max", coll.capped_documents > 0 ? coll.capped_documents : int64_t{INT32_MAX})
        .Append("maxSize", size(coll.capped_bytes));
  out.Append("nindexes", static_cast<int32_t>(sizes.size()));
  {
    auto details = out.OpenDocument("indexDetails");
    for (auto& [name, n] : sizes) details.OpenDocument(name).Append("metadata", BsonView());
  }
  {
    auto building_list = out.OpenArray("indexBuilds");
    for (const IndexInfoPtr& i : coll.indexes)
      if (i->state == IndexState::kBuilding) building_list.Append(i->name);
  }
  out.Append("totalIndexSize", size(index_bytes)).Append("totalSize", size(stored + index_bytes));
  {
    auto s = out.OpenDocument("indexSizes");
    for (auto& [name, n] : sizes) s.Append(name, size(n));
  }
  out.Append("scaleFactor", static_cast<int32_t>(scale));
}

namespace {

Result<CollectionInfoPtr> Existing(ExpiryServices& server, std::string_view db,
                                   std::string_view collection) {
  CollectionInfoPtr coll = server.storage().catalog().Find(db, collection);
  if (!coll)
    return Error{ErrorCode::kNamespaceNotFound,
                 "Collection [" + JoinNamespace(db, collection) + "] not found."};
  return coll;
}

Result<std::vector<BsonDocument>> CollStats(ExpiryServices& server, Operation& op,
                                            std::string_view db, std::string_view collection,
                                            BsonView spec) {
  ArgReader in("$collStats", spec);
  auto latency = in.OptDocument("latencyStats");
  auto storage_stats = in.OptDocument("storageStats");
  auto count = in.OptDocument("count");
  auto query_exec = in.OptDocument("queryExecStats");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, Existing(server, db, collection));
  const Top::Entry* used = server.top().Peek(coll->ns);
  bool histograms = false;
  if (latency) {
    ArgReader l("$collStats.latencyStats", *latency);
    histograms = l.BoolOr("histograms", false);
    MAYFLY_TRY(l.Finish());
  }
  int64_t scale = 1;
  if (storage_stats) {
    ArgReader s("$collStats.storageStats", *storage_stats);
    scale = s.Int64Or("scale", 1);
    MAYFLY_TRY(s.Finish());
    if (scale < 1) return Error{ErrorCode::kBadValue, "scale has to be >= 1"};
  }
  if (coll->is_view() && (storage_stats || count || query_exec))
    return Error{ErrorCode::kCommandNotSupportedOnView,
                 "Namespace " + coll->ns +
                     " is a view, not a collection: $collStats knows its latencyStats only"};
  int64_t documents = 0;
  if (count || storage_stats) {
    MAYFLY_TRY(documents, Visibility(server.storage(), *coll, op).CountVisible(op));
  }
  std::vector<BsonDocument> out;
  out.push_back(BuildBson([&](BsonBuilder& b) {
    b.Append("ns", coll->ns).Append("host", server.host_and_port()).Append("localTime", op.now);
    if (latency) {
      auto l = b.OpenDocument("latencyStats");
      static const LatencyHistogram kNone;
      AppendLatency(l, "reads", used ? used->reads : kNone, histograms);
      AppendLatency(l, "writes", used ? used->writes : kNone, histograms);
      AppendLatency(l, "commands", kNone, histograms);
      AppendLatency(l, "transactions", kNone, histograms);
    }
    if (storage_stats) {
      auto s = b.OpenDocument("storageStats");
      AppendCollectionStats(server, *coll, documents, scale, false, s);
    }
    if (count) b.Append("count", documents);
    if (query_exec) {
      auto q = b.OpenDocument("queryExecStats");
      q.OpenDocument("collectionScans")
          .Append("total", used ? used->collection_scans.Get() : 0)
          .Append("nonTailable",
                  used ? used->collection_scans.Get() - used->tailable_scans.Get() : 0);
    }
  }));
  return out;
}

Result<std::vector<BsonDocument>> IndexStats(ExpiryServices& server, Operation& op,
                                             std::string_view db, std::string_view collection,
                                             BsonView spec) {
  if (!spec.empty())
    return Error{LocationCode(28803),
                 "The $indexStats stage specification must be an empty object"};
  std::vector<BsonDocument> out;
  CollectionInfoPtr coll = server.storage().catalog().Find(db, collection);
  const bool of_series = coll && coll->is_series();
  if (of_series) coll = BucketsOf(server.storage().catalog(), *coll);
  if (!coll || coll->is_view()) return out;
  const std::vector<ListedTtlRule> rules = ListRulesFor(server, coll->db, coll->name);
  Result<void> failed = Ok();
  auto add = [&](const IndexInfo* i) {
    std::optional<IndexInfo> shown;
    if (of_series) shown = SeriesIndex(*coll->series, *i);
    out.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("name", i                   ? std::string_view(i->name)
                       : coll->clustered() ? std::string_view(coll->clustered_index_name)
                                           : "_id_");
      if (i)
        b.Append("key", shown ? shown->key : i->key);
      else
        b.OpenDocument("key").Append("_id", 1);
      b.Append("host", server.host_and_port());
      b.OpenDocument("accesses")
          .Append("ops", i ? i->accesses.load() : int64_t{0})
          .Append("since", i && i->accesses_since ? Instant{i->accesses_since} : server.started());
      auto s = b.OpenDocument("spec");
      AppendIndexSpec(*coll, shown ? &*shown : i, s);
      s.Done();
      if (i && i->state == IndexState::kBuilding) b.Append("building", true);
      // For each rule, the same fields as in ttlStatus.
      for (const ListedTtlRule& r : rules) {
        if (r.rule.index.get() != i) continue;
        BsonBuilder ttl = b.OpenDocument("ttl");
        if (failed = AppendRuleFacts(server, op, r, ttl); !failed) return;
      }
    }));
  };
  // The `_id` of a bucket is no index of the time series.
  if (!coll->capped() && !of_series) add(nullptr);
  for (const IndexInfoPtr& i : coll->indexes) add(i.get());
  MAYFLY_TRY(failed);
  return out;
}

/// Whose sessions $listSessions and $listLocalSessions show: everybody's, or those of users named
/// by their digests.
struct WhoseSessions {
  bool all = false;
  std::vector<std::string> digests;
  bool Covers(std::string_view uid) const {
    return all || std::find(digests.begin(), digests.end(), uid) != digests.end();
  }
};

/// Everybody's sessions without access control.
Result<WhoseSessions> ParseWhose(const Asker& asker, std::string_view stage, BsonView spec) {
  ArgReader in(stage, spec);
  WhoseSessions whose;
  whose.all = in.BoolOr("allUsers", false);
  const std::optional<BsonView> users = in.OptArray("users");
  MAYFLY_TRY(in.Finish());
  if (whose.all && users)
    return Error{ErrorCode::kUnsupportedFormat,
                 std::string(stage) + " may not specify {allUsers:true} and {users:[...]} at once"};
  if (!asker.access_control) whose.all = true;
  if (whose.all) return whose;
  if (!users) {
    whose.digests.push_back(UserDigestOf(asker.user));
    return whose;
  }
  for (const BsonElement& e : *users) {
    MAYFLY_TRY(UserName name, ParseUserName(e.value, "admin"));
    whose.digests.push_back(UserDigestOf(name));
  }
  return whose;
}

/// Errors: ExceededMemoryLimit 146; those of CheckInterrupt.
Result<std::vector<BsonDocument>> Sessions(DataServices& server, Operation& op,
                                           const WhoseSessions& whose) {
  std::vector<BsonDocument> out;
  size_t bytes = 0;
  large_memory::Hold hold;  // then the stage has one
  MAYFLY_TRY(
      server.sessions().ForEach([&](std::string_view key) { return whose.Covers(SessionUid(key)); },
                                [&](std::string_view key, Instant used) -> Result<void> {
                                  MAYFLY_TRY(op.CheckInterrupt());
                                  out.push_back(BuildBson([&](BsonBuilder& b) {
                                    BsonBuilder lsid = b.OpenDocument("_id");
                                    lsid.AppendBinary("id", 4, SessionUuid(key));
                                    if (!SessionUid(key).empty())
                                      lsid.AppendBinary("uid", 0, SessionUid(key));
                                    lsid.Done();
                                    b.Append("lastUse", used);
                                  }));
                                  bytes += sizeof(BsonDocument) + out.back().view().size();
                                  return hold.Set(bytes);
                                }));
  return out;
}

}  // namespace

Result<std::vector<BsonDocument>> AggregateStageDocuments(
    ExpiryServices& server, ServerContext* clients, Operation& op, std::string_view stage,
    std::string_view db, std::string_view collection, BsonView spec) {
  if (stage == "$collStats") return CollStats(server, op, db, collection, spec);
  if (stage == "$indexStats") return IndexStats(server, op, db, collection, spec);
  if (stage == "$ttlForecast") {
    ArgReader in("$ttlForecast", spec);
    const ForecastOptions options = ReadForecastOptions(in);
    MAYFLY_TRY(in.Finish());
    MAYFLY_TRY(Forecast f, ForecastCollection(server, op, db, collection, options));
    return std::vector<BsonDocument>{BuildBson([&](BsonBuilder& b) { AppendForecast(f, b); })};
  }
  if (stage == "$currentOp") {
    ArgReader in("$currentOp", spec);
    CurrentOpOptions options;
    const bool all_users = in.BoolOr("allUsers", false);
    options.idle_connections = in.BoolOr("idleConnections", false);
    options.idle_sessions = in.BoolOr("idleSessions", true);
    in.BoolOr("localOps", false);  // unused: matters on a router only
    options.idle_cursors = in.BoolOr("idleCursors", false);
    options.truncate = in.BoolOr("truncateOps", false);
    in.BoolOr("backtrace", false);  // unused: of latches, which this server does not record
    MAYFLY_TRY(in.Finish());
    if (db != "admin")
      return Error{ErrorCode::kInvalidNamespace,
                   "$currentOp must be run against the 'admin' database with {aggregate: 1}"};
    if (clients == nullptr) return std::vector<BsonDocument>();
    const Asker asker = AskerOf(*clients, op);
    // Without access control there is only one user: whoever can connect.
    options.own_only = asker.access_control && !all_users;
    return CollectOperations(*clients, asker, options);
  }
  if (stage == "$listLocalSessions" || stage == "$listSessions") {
    if (clients == nullptr) return std::vector<BsonDocument>();
    MAYFLY_TRY(WhoseSessions whose, ParseWhose(AskerOf(*clients, op), stage, spec));
    if (stage == "$listLocalSessions") return Sessions(server, op, whose);
    if (db != "config" || collection != "system.sessions")
      return Error{ErrorCode::kInvalidNamespace,
                   "$listSessions may only be run against config.system.sessions"};
    return ListSessionRecords(server, op, [&](BsonView record) {
      const BsonValue id = record["_id"];
      const BsonValue uid = id.IsDocument() ? id.Document()["uid"] : BsonValue();
      return whose.Covers(uid.Is(BsonType::kBinary) ? uid.BinaryData() : std::string_view());
    });
  }
  if (stage == "$planCacheStats") {
    if (!spec.empty())
      return Error{ErrorCode::kFailedToParse, "$planCacheStats parameters object must be empty"};
    MAYFLY_TRY(CollectionInfoPtr coll, Existing(server, db, collection));
    std::vector<BsonDocument> out;
    ForEachCachedPlan(server.storage(), *coll, [&](BsonView plan) { out.emplace_back(plan); });
    return out;
  }
  return Error{ErrorCode::kUnknownPipelineStage,
               "Unrecognized pipeline stage name: '" + std::string(stage) + "'"};
}

Result<std::vector<BsonDocument>> AggregateTombstones(ExpiryServices& server, Operation& op,
                                                      std::string_view db,
                                                      std::string_view collection, BsonView spec,
                                                      std::string* position) {
  constexpr size_t kPage = 1000;
  Catalog& catalog = server.storage().catalog();
  std::vector<BsonDocument> out;
  uint32_t only = 0;
  if (!collection.empty()) {
    CollectionInfoPtr coll = catalog.Find(db, collection);
    if (!coll) return out;
    only = coll->id;
  }
  if (position->empty() && spec["since"].IsDate()) AppendTime64(*position, spec["since"].Date());
  CollectionInfoPtr coll;
  MAYFLY_TRY(ForEachTombstone(
      server.storage(), op, only, position, [&](const Tombstone& t) -> Result<bool> {
        if (!coll || coll->id != t.collection) coll = catalog.FindById(t.collection);
        if (!coll || (coll->db != db && db != "admin")) return true;
        // Like a grant on databases, a list of all omits system collections: it would reveal names
        // of users.
        if (collection.empty() && !coll->is_buckets() &&
            (IsSystemCollection(coll->db, coll->name) ||
             (db == "admin" && IsConfigOrLocal(coll->db))))
          return true;
        out.push_back(BuildBson([&](BsonBuilder& b) {
          b.Append("ns", coll->ns).Append("id", t.id.view()).Append("at", t.at);
          b.Append("reason", t.cause.expired() ? "expired" : "deleted");
          if (!t.cause.expired()) return;
          std::string rule = "document";
          if (t.cause.reason == DeleteReason::kExpiredClustered) rule = "clustered";
          if (t.cause.reason == DeleteReason::kExpiredTtlIndex) {
            rule = "ttlIndex";  // the index was dropped in the meantime
            for (const IndexInfoPtr& i : coll->indexes)
              if (i->id == t.cause.index) rule = i->name;
          }
          b.Append("rule", rule).Append("expireAt", t.cause.deadline);
        }));
        return out.size() < kPage;
      }));
  return out;
}

}  // namespace mayfly

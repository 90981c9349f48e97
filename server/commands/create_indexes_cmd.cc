#include "query/expression/parse_work.h"
#include "query/plan/plan_stage.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/aggregate_stages.h"
#include "server/execution/existing_collection.h"
#include "server/execution/index_spec.h"
#include "server/execution/series_definition.h"
#include "server/execution/transactions.h"
#include "server/execution/ttl_preview.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/index_conflict.h"
#include "storage/catalog/namespace.h"
#include "storage/schema/transaction_schema.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// The `_id` index of a capped collection is in its list; of others it is the record key, which is
/// no index of a time series.
int IndexCount(const CollectionInfo& coll) {
  return coll.is_buckets() ? static_cast<int>(coll.indexes.size()) : coll.ShownIndexes();
}

/// An error of createIndexes on buckets as one of the time series. `wanted`: the indexes if they
/// were given for the time series; empty if for its buckets.
Error AsOfSeries(const CollectionInfo& coll, const std::vector<IndexInfo>& wanted, Error e) {
  if (!coll.is_buckets()) return e;
  if (e.code != ErrorCode::kIndexKeySpecsConflict && e.code != ErrorCode::kIndexOptionsConflict)
    return e;
  // The same conflict, of indexes as they were given.
  CollectionInfo shown = coll;
  for (IndexInfoPtr& i : shown.indexes)
    i = std::make_shared<IndexInfo>(SeriesIndex(*coll.series, *i));
  for (const IndexInfo& i : wanted) {
    const auto same = MatchExistingIndex(shown, SeriesIndex(*coll.series, i));
    if (!same && same.error().code == e.code) return same.error();
  }
  return e;
}

/// What createIndexes has done. `note`: instead of the one for no change; empty: none.
void AppendIndexCounts(BsonBuilder& reply, int before, int after, bool created,
                       std::string_view note) {
  reply.Append("numIndexesBefore", before).Append("numIndexesAfter", after);
  reply.Append("createdCollectionAutomatically", created);
  if (!note.empty())
    reply.Append("note", note);
  else if (after == before)
    reply.Append("note", "all indexes already exist");
}

/// dryRun: what the TTL indexes among `indexes` would remove. Nothing is made, not even the
/// collection.
Result<void> DryRunIndexes(CommandContext& ctx, const CollectionInfoPtr& coll,
                           std::vector<IndexInfo> indexes, BsonBuilder& reply) {
  std::vector<IndexInfoPtr> rules;
  for (IndexInfo& i : indexes) {
    if (coll && !IsIdIndexKey(i.key)) {
      MAYFLY_TRY(MatchExistingIndex(*coll, i));
    }
    if (i.expire_after_seconds) rules.push_back(std::make_shared<IndexInfo>(std::move(i)));
  }
  if (rules.empty())
    return Error{ErrorCode::kInvalidOptions,
                 "'dryRun' tells what a TTL index would remove: none of the indexes has "
                 "'expireAfterSeconds'"};
  auto one = [&](const IndexInfoPtr& i, BsonBuilder& out) -> Result<void> {
    if (!coll) {
      AppendDryRun(RuleCensus(), out);
      return Ok();
    }
    return DryRun(ctx,
                  TtlRule{TtlRule::Kind::kTtlIndex, coll, i,
                          *i->expire_after_seconds + coll->RuleSpanSeconds()},
                  out);
  };
  if (rules.size() == 1) return one(rules[0], reply);
  BsonArrayBuilder list = reply.OpenArray("indexes");
  for (const IndexInfoPtr& i : rules) {
    BsonBuilder d = list.OpenDocument();
    d.Append("name", i->name);
    MAYFLY_TRY(one(i, d));
  }
  return Ok();
}

/// The same in a transaction, whose collections have no documents yet, so that no rule has anything
/// to expire.
Result<void> CreateIndexesIn(CommandContext& ctx, Transaction& transaction, std::string_view db,
                             std::string_view collection, CollectionInfoPtr coll,
                             std::vector<IndexInfo> indexes, std::string_view note,
                             BsonBuilder& reply) {
  Storage& storage = ctx.data.storage();
  const bool created = !coll;
  if (created) {
    CollectionInfo plain;
    plain.db = db;
    plain.name = collection;
    MAYFLY_TRY(coll, CreateInTransaction(storage, transaction.unit(), ctx.op, std::move(plain)));
  }
  const int before = IndexCount(*coll);
  MAYFLY_TRY(coll, CreateIndexesInTransaction(storage, transaction.unit(), ctx.op, *coll,
                                              std::move(indexes)));
  AppendIndexCounts(reply, before, IndexCount(*coll), created, note);
  return Ok();
}

constexpr size_t kMaxSpecs = 1000;

/// One index as the client describes it; of a time series, as one on its buckets.
Result<IndexInfo> ParseOneSpec(CommandContext& ctx, const CollectionInfo* series,
                               const CollectionInfo* coll, BsonView spec, std::string* note,
                               bool ignore_unknown) {
  BsonDocument on_buckets;
  if (series != nullptr) {
    MAYFLY_TRY(on_buckets, BucketIndexSpec(*series->series, spec));
    spec = on_buckets.view();
  } else if (coll != nullptr && coll->is_buckets()) {
    MAYFLY_TRY(CheckBucketIndexSpec(*coll->series, spec));
  }
  return ParseIndexSpec(ctx.expiry, coll, spec, note, ignore_unknown);
}

/// Names of collections that have no indexes of users, also where they do not exist.
Result<void> CheckMayBeIndexed(const CommandContext& ctx, std::string_view db,
                               std::string_view collection) {
  if (collection.starts_with(kBucketsPrefix)) {
    MAYFLY_TRY(ValidateNamespace(db, collection));
    // An index makes no buckets. NamespaceNotFound is also what the replay of an oplog passes over.
    if (ctx.data.storage().catalog().Find(db, collection) == nullptr)
      return Error{ErrorCode::kNamespaceNotFound,
                   "ns does not exist: " + JoinNamespace(db, collection) +
                       ": create the time-series collection first"};
    return Ok();
  }
  MAYFLY_TRY(ValidateNewNamespace(db, collection));
  if (db == "config" && collection == "transactions")
    return Error{ErrorCode::kIllegalOperation,
                 "not allowed to create index on config.transactions: it is the server's own"};
  // The profiler makes it, with a size: one that an index brought about would grow without end.
  if (collection == kProfileCollection &&
      ctx.data.storage().catalog().Find(db, collection) == nullptr)
    return Error{ErrorCode::kInvalidNamespace,
                 "createIndexes does not make " + JoinNamespace(db, collection) +
                     ": set a profiling level, or create it as a capped collection"};
  return Ok();
}

Result<void> RunCreateIndexes(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view collection = in.Collection();
  const DocumentList specs = in.Documents("indexes");
  const BsonValue quorum = in.Any("commitQuorum");  // members that must be ready: there is this one
  const bool dry_run = in.BoolOr("dryRun", false);
  const bool ignore_unknown = in.LooseBoolOr("ignoreUnknownIndexOptions", false);
  MAYFLY_TRY(in.Finish());
  if (specs.empty())
    return Error{ErrorCode::kBadValue, "Must specify at least one index to create"};
  // More than a collection may have at all; the same one may be there twice.
  if (specs.size() > kMaxSpecs)
    return Error{ErrorCode::kCannotCreateIndex, "createIndexes takes no more than " +
                                                    std::to_string(kMaxSpecs) + " indexes at once"};
  MAYFLY_TRY(CheckMayBeIndexed(ctx, req.db, collection));
  ctx.EditReport([&](OperationReport& r) { r.ns = JoinNamespace(req.db, collection); });
  Catalog& catalog = ctx.data.storage().catalog();
  Transaction* const transaction =
      ctx.op.view != nullptr ? TransactionsOf(ctx.data)->Running(ctx) : nullptr;
  if (transaction != nullptr) {
    MAYFLY_TRY(transaction->CheckDefines(req.name));
  }
  MAYFLY_TRY(CollectionInfoPtr coll, FindCollection(catalog, ctx.op, req.db, collection));
  // The indexes of a time series are indexes of its buckets.
  const CollectionInfoPtr series = coll && coll->is_series() ? coll : nullptr;
  if (series) {
    MAYFLY_TRY(coll, ExistingCollection(ctx.data, req.db, collection));
  } else if (coll) {
    MAYFLY_TRY(CheckUse(*coll, CollectionUse::kCreateIndexes));
  }
  std::vector<IndexInfo> indexes;
  std::string note;
  size_t bytes = 0;
  for (BsonView s : specs) {
    // The log shows all of them in one document, which has to fit into a reply with all that is
    // around it.
    if ((bytes += s.size()) > kMaxBsonUserSize)
      return Error{ErrorCode::kBSONObjectTooLarge,
                   "the definitions of these indexes take more than the " +
                       std::to_string(kMaxBsonUserSize) +
                       " bytes that they may: create fewer of them at once"};
    MAYFLY_TRY(IndexInfo i, ParseOneSpec(ctx, series.get(), coll.get(), s, &note, ignore_unknown));
    for (const IndexInfo& other : indexes)
      if (other.name == i.name && other.key.bytes() != i.key.bytes())
        return Error{
            ErrorCode::kIndexKeySpecsConflict,
            "Identical index name '" + i.name + "' with different keys in one createIndexes"};
    indexes.push_back(std::move(i));
  }
  // A manual's example passes the seconds as a third argument of createIndex, which is the quorum
  // (docs/expiry.md R24).
  if (quorum.IsDocument() && quorum.Document().Has("expireAfterSeconds")) {
    note =
        "commitQuorum holds expireAfterSeconds: give it among the options of the index, in the "
        "same "
        "document as partialFilterExpression; as it is, this is no TTL index";
    ctx.data.log().Warn(LogComponent::kIndex, 9000305,
                        "expireAfterSeconds given as commitQuorum has no effect",
                        BuildBson([&](BsonBuilder& b) {
                          b.Append("namespace", JoinNamespace(req.db, collection));
                        }));
  }
  if (dry_run) return DryRunIndexes(ctx, coll, std::move(indexes), reply);
  if (transaction != nullptr)
    return CreateIndexesIn(ctx, *transaction, req.db, collection, coll, std::move(indexes), note,
                           reply);
  const bool created = !coll;
  if (!coll) {
    MAYFLY_TRY(coll, catalog.GetOrCreate(ctx.op, req.db, collection));
  }
  const int before = IndexCount(*coll);
  std::vector<std::string> new_rules;
  for (const IndexInfo& i : indexes)
    if (i.expire_after_seconds && !coll->FindIndex(i.name)) new_rules.push_back(i.name);
  RuleGuard guard(ctx);
  MAYFLY_TRY(guard.Begin(*coll, new_rules));
  const std::vector<IndexInfo> given = series ? indexes : std::vector<IndexInfo>();
  if (Result<void> made = catalog.CreateIndexes(ctx.op, *coll, std::move(indexes)); !made)
    return AsOfSeries(*coll, given, made.error());
  CollectionInfoPtr now = catalog.Find(req.db, series ? coll->name : std::string(collection));
  for (const std::string& name : new_rules) {
    IndexInfoPtr i = now ? now->FindIndex(name) : nullptr;
    if (!i || !i->expire_after_seconds) continue;
    if (guard.active()) {
      MAYFLY_TRY(guard.Judge(TtlRule{TtlRule::Kind::kTtlIndex, now, i,
                                     *i->expire_after_seconds + now->RuleSpanSeconds()}));
    }
  }
  AppendIndexCounts(reply, before, now ? IndexCount(*now) : before, created, note);
  guard.AppendTo(reply);
  return Ok();
}

Result<void> RunListIndexes(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view collection;
  NeedsOfUuid needs;
  // As the request has it: with rawData the field names the buckets by now (ApplyRawData).
  if (const std::optional<Uuid> uuid = UuidOf(req.body.First().value)) {
    CollectionInfoPtr c = ctx.data.storage().catalog().FindByUuid(*uuid);
    if (!c || c->db != req.db)
      return Error{ErrorCode::kNamespaceNotFound,
                   "Unable to resolve the UUID to a collection of this database"};
    // Only now it is known which collection that is.
    needs = {c->name, {Action::listIndexes}};
    MAYFLY_TRY(CheckNeedsOfUuid(ctx, needs, req.db));
    collection = needs.collection;
    const BsonValue first = in.Any("listIndexes");
    if (first.IsString())
      collection = first.String();  // check_names: of a collection that is there
  } else {
    collection = in.Collection();
  }
  auto cursor = in.OptDocument("cursor");
  in.BoolOr("includeBuildUUIDs", false);      // unused: an index is listed when it is built
  in.BoolOr("includeIndexBuildInfo", false);  // unused: as includeBuildUUIDs
  MAYFLY_TRY(in.Finish());
  int64_t batch = INT64_MAX;
  if (cursor) {
    ArgReader c("listIndexes.cursor", *cursor);
    if (c.Has("batchSize")) batch = c.NonNegativeOr("batchSize", 0);
    MAYFLY_TRY(c.Finish());
  }
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, req.db, collection));
  std::vector<BsonDocument> docs;
  size_t kept = 0;
  large_memory::Hold hold;  // filters of partial indexes may be long
  const bool of_series = coll->is_buckets() && coll->name != collection;
  auto add = [&](const IndexInfo* i) -> Result<void> {
    docs.push_back(BuildBson([&](BsonBuilder& b) {
      if (!of_series) return AppendIndexSpec(*coll, i, b);
      const IndexInfo shown = SeriesIndex(*coll->series, *i);
      AppendIndexSpec(*coll, &shown, b);
    }));
    kept += sizeof(BsonDocument) + docs.back().view().size();
    return hold.Set(kept);
  };
  if (!coll->capped() && !of_series) {
    MAYFLY_TRY(add(nullptr));
  }
  for (const IndexInfoPtr& i : coll->indexes)
    if (i->state == IndexState::kReady || i->replaces == 0) {
      MAYFLY_TRY(add(i.get()));
    }
  auto client = MakeClientCursor(ctx, req, of_series ? SeriesNamespace(*coll) : coll->ns);
  client->cursor = std::make_unique<ListCursor>(std::move(docs), nullptr, std::move(hold));
  client->needs = std::move(needs);
  MAYFLY_TRY(ReplyFirstBatch(ctx.data.cursors(), ctx.op, std::move(client), batch, reply));
  return Ok();
}

Result<void> RunDropIndexes(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view collection = in.Collection();
  BsonValue which = in.Any("index");
  MAYFLY_TRY(in.Finish());
  if (which.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field 'dropIndexes.index' is missing but a required field"};
  Result<CollectionInfoPtr> found = ExistingCollection(ctx.data, req.db, collection);
  // Drivers that are older than codes look for this text.
  if (!found && found.error().code == ErrorCode::kNamespaceNotFound)
    return Error{ErrorCode::kNamespaceNotFound,
                 "ns not found " + JoinNamespace(req.db, collection)};
  MAYFLY_TRY(CollectionInfoPtr coll, std::move(found));
  const int was = IndexCount(*coll);
  std::vector<std::string> names;
  auto by_name = [&](std::string_view name) -> Result<void> {
    MAYFLY_TRY(ParseWork::Step());
    ParseWork::Made(2 * sizeof(std::string) + name.size());
    if (name == "_id_" || (coll->clustered() && name == coll->clustered_index_name))
      return Error{ErrorCode::kInvalidOptions, "cannot drop _id index"};
    if (!coll->FindIndex(name))
      return Error{ErrorCode::kIndexNotFound,
                   "index not found with name [" + std::string(name) + "]"};
    names.emplace_back(name);
    return Ok();
  };
  bool all = false;
  if (which.IsString()) {
    if (which.String() == "*")
      all = true;
    else {
      MAYFLY_TRY(by_name(which.String()));
    }
  } else if (which.IsArray()) {
    for (const BsonElement& e : which.Document()) {
      if (!e.value.IsString())
        return Error{
            ErrorCode::kTypeMismatch,
            "BSON field 'dropIndexes.index' must be a string, an object or an array of strings"};
      MAYFLY_TRY(by_name(e.value.String()));
    }
  } else if (which.IsDocument()) {
    if (IsIdIndexKey(which.Document()))
      return Error{ErrorCode::kInvalidOptions, "cannot drop _id index"};
    BsonDocument key(which.Document());
    if (coll->is_buckets() && coll->name != collection) {
      MAYFLY_TRY(key, BucketIndexKey(*coll->series, which.Document()));
    }
    for (const IndexInfoPtr& i : coll->indexes) {
      if (!SameIndexKey(i->key, key)) continue;
      if (!names.empty())
        return Error{ErrorCode::kAmbiguousIndexKeyPattern,
                     std::to_string(2) +
                         " indexes found for key, identify by name instead. Conflicting indexes: " +
                         names[0] + ", " + i->name};
      names.push_back(i->name);
    }
    if (names.empty())
      return Error{ErrorCode::kIndexNotFound,
                   "can't find index with key: " + KeyPatternText(which.Document())};
  } else {
    return Error{ErrorCode::kTypeMismatch, "BSON field 'dropIndexes.index' is the wrong type '" +
                                               std::string(BsonTypeName(which.type())) +
                                               "', expected types '[string, object, array]'"};
  }
  if (all)
    for (const IndexInfoPtr& i : coll->indexes)
      if (!i->is_id()) names.push_back(i->name);
  if (!names.empty()) {
    MAYFLY_TRY(ctx.data.storage().catalog().DropIndexes(ctx.op, *coll, names));
    MAYFLY_TRY(ctx.expiry.ttl_controls().Forget(ctx.op, coll->uuid, names));
  }
  reply.Append("nIndexesWas", was);
  if (all) reply.Append("msg", "non-_id indexes dropped for collection");
  return Ok();
}

Result<void> RunReIndex(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view collection = in.Collection();
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, req.db, collection));
  const int was = IndexCount(*coll);
  Catalog& catalog = ctx.data.storage().catalog();
  MAYFLY_TRY(catalog.RebuildIndexes(ctx.op, *coll));
  reply.Append("nIndexesWas", was).Append("nIndexes", was);
  BsonArrayBuilder list = reply.OpenArray("indexes");
  if (CollectionInfoPtr now = catalog.Find(req.db, coll->name)) {
    const bool of_series = now->is_buckets() && now->name != collection;
    if (!now->capped() && !of_series) {
      auto d = list.OpenDocument();
      AppendIndexSpec(*now, nullptr, d);
    }
    for (const IndexInfoPtr& i : now->indexes) {
      auto d = list.OpenDocument();
      if (of_series) {
        const IndexInfo shown = SeriesIndex(*now->series, *i);
        AppendIndexSpec(*now, &shown, d);
      } else {
        AppendIndexSpec(*now, i.get(), d);
      }
    }
  }
  return Ok();
}

}  // namespace

void RegisterIndexCommands(CommandRegistry& registry) {
  registry.Add({.name = "createIndexes",
                .flags = kWrites | kWorker | kApiV1 | kTakesWriteConcern,
                .help = "Builds indexes; creates the collection when it does not exist.",
                .run = &RunCreateIndexes,
                .privileges = &privileges::CreateIndexes});
  registry.Add({.name = "listIndexes",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1,
                .help = "The indexes of a collection.",
                .run = &RunListIndexes,
                .privileges = &privileges::ListIndexes});
  registry.Add({.name = "dropIndexes",
                .aliases = {"deleteIndexes"},
                .flags = kWrites | kWorker | kApiV1 | kTakesWriteConcern,
                .help = "Drops indexes by name or key.",
                .run = &RunDropIndexes,
                .privileges = &privileges::OnCollection<Action::dropIndex>});
  registry.Add({.name = "reIndex",
                .flags = kWrites | kWorker,
                .help = "Builds all indexes of a collection anew.",
                .run = &RunReIndex,
                .privileges = &privileges::OnCollection<Action::reIndex>});
}

}  // namespace mayfly

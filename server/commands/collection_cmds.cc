#include <algorithm>
#include <functional>

#include "protocol/database_name.h"
#include "protocol/system_names.h"
#include "query/plan/query_state.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/dispatch/server_context.h"
#include "server/execution/aggregate.h"
#include "server/execution/series_definition.h"
#include "server/execution/ttl_preview.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"
#include "storage/write/archive.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

void CloseCursors(DataServices& server, std::string_view db, std::string_view collection) {
  server.cursors().KillNamespace(db, collection);
}

/// `drop` of `system.views`: as on MongoDB, the views go that it shows. A time series has more than
/// its definition and stays. All of them go, or with an error none. Errors: Unauthorized 13 if the
/// user may not drop each by its name.
Result<void> DropViews(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  Catalog& catalog = ctx.data.storage().catalog();
  std::vector<CollectionInfoPtr> views = catalog.List(req.db);
  std::erase_if(views, [](const CollectionInfoPtr& c) { return !c->is_view() || c->is_series(); });
  for (const CollectionInfoPtr& view : views)
    if (ctx.access != nullptr &&
        !ctx.access->privileges.Allows(view->db, view->name, {Action::dropCollection}))
      return Error{ErrorCode::kUnauthorized,
                   "not authorized to drop all views of " + std::string(req.db) +
                       ": to drop system.views needs dropCollection on each of them"};
  MAYFLY_TRY(catalog.DropViews(ctx.op, views));
  for (const CollectionInfoPtr& view : views) CloseCursors(ctx.data, view->db, view->name);
  reply.Append("nIndexesWas", 1).Append("ns", JoinNamespace(req.db, kViewsCollection));
  return Ok();
}

Result<void> RunDrop(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view name = in.Collection();
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(ValidateNamespace(req.db, name));
  Catalog& catalog = ctx.data.storage().catalog();
  CollectionInfoPtr coll = catalog.Find(req.db, name);
  if (!coll) {
    Audit(
        ctx, "dropCollection", [&](BsonBuilder& p) { p.Append("ns", JoinNamespace(req.db, name)); },
        ErrorCode::kNamespaceNotFound);
    return Ok();
  }
  if (name == kProfileCollection && ctx.server.profiler().Get(req.db).level > 0)
    return Error{ErrorCode::kIllegalOperation,
                 "turn off profiling before dropping system.profile collection"};
  if (name == kViewsCollection) return DropViews(ctx, req, reply);
  if (coll->is_buckets())
    return Error{ErrorCode::kIllegalOperation,
                 "'" + coll->ns + "' holds the buckets of a time-series collection: drop that one"};
  const CollectionInfoPtr buckets = coll->is_series() ? BucketsOf(catalog, *coll) : nullptr;
  const int indexes = buckets ? static_cast<int>(buckets->indexes.size()) : coll->ShownIndexes();
  Result<void> dropped = catalog.Drop(ctx.op, req.db, name);
  if (!dropped && dropped.error().code != ErrorCode::kNamespaceNotFound) return dropped;
  CloseCursors(ctx.data, req.db, name);
  QueryState::Of(ctx.data.storage()).filters.Clear(coll->uuid, nullptr);
  MAYFLY_TRY(ctx.expiry.ttl_controls().ForgetCollection(ctx.op, coll->uuid));
  if (buckets) {
    CloseCursors(ctx.data, req.db, buckets->name);
    QueryState::Of(ctx.data.storage()).filters.Clear(buckets->uuid, nullptr);
    MAYFLY_TRY(ctx.expiry.ttl_controls().ForgetCollection(ctx.op, buckets->uuid));
  }
  if (!coll->is_view() || coll->is_series()) reply.Append("nIndexesWas", indexes);
  reply.Append("ns", coll->ns);
  return Ok();
}

Result<void> RunDropDatabase(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  BsonValue one = in.Any("dropDatabase");
  MAYFLY_TRY(in.Finish());
  if (!one.IsNumber() || one.NumberAsDouble() != 1)
    return Error{ErrorCode::kBadValue, "have to pass 1 as db parameter"};
  if (IsInternalDatabase(req.db))
    return Error{ErrorCode::kIllegalOperation,
                 "Dropping the '" + std::string(req.db) + "' database is prohibited."};
  Catalog& catalog = ctx.data.storage().catalog();
  const std::vector<CollectionInfoPtr> there = catalog.List(req.db);
  const bool existed = !there.empty();
  const int64_t max_ttl = catalog.DatabaseMaxTtl(req.db);
  MAYFLY_TRY(catalog.DropDatabase(ctx.op, req.db));
  if (existed || max_ttl > 0)
    Audit(ctx, "dropDatabase", [&](BsonBuilder& p) {
      p.Append("ns", req.db);
      if (max_ttl == 0) return;
      p.OpenDocument("old").Append("maxTTL", max_ttl);
      p.AppendNull("new");
    });
  for (const CollectionInfoPtr& c : there) {
    QueryState::Of(ctx.data.storage()).filters.Clear(c->uuid, nullptr);
    MAYFLY_TRY(ctx.expiry.ttl_controls().ForgetCollection(ctx.op, c->uuid));
  }
  CloseCursors(ctx.data, req.db, {});
  if (existed) reply.Append("dropped", req.db);
  return Ok();
}

Result<void> RunRename(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  std::string_view from = in.String("renameCollection");
  std::string_view to = in.String("to");
  BsonValue drop = in.Any("dropTarget");
  in.OptBool("stayTemp");  // unused: no collection is temporary
  MAYFLY_TRY(in.Finish());
  if (!drop.missing() && !drop.Is(BsonType::kBool) && !drop.IsNumber() && !drop.IsNull() &&
      !drop.Is(BsonType::kBinary))
    return in.WrongType("dropTarget", drop.type(), "bool");
  auto split = [](std::string_view ns) -> Result<std::pair<std::string, std::string>> {
    const NamespaceParts parts = SplitNamespace(ns);
    if (!parts.whole())
      return Error{ErrorCode::kInvalidNamespace,
                   "Invalid namespace: '" + std::string(ns) + "' must be database.collection"};
    return std::pair(std::string(parts.db), std::string(parts.collection));
  };
  MAYFLY_TRY(auto source, split(from));
  MAYFLY_TRY(auto target, split(to));
  MAYFLY_TRY(ValidateNamespace(source.first, source.second));
  MAYFLY_TRY(ValidateNewNamespace(target.first, target.second));
  if (from == to) return Error{ErrorCode::kIllegalOperation, "Can't rename a collection to itself"};
  Catalog& catalog = ctx.data.storage().catalog();
  MAYFLY_TRY(CollectionInfoPtr coll,
             OpenCollection(catalog, source.first, source.second, CollectionUse::kRename));
  if (source.second.starts_with("system."))
    return Error{ErrorCode::kIllegalOperation, "Renaming system collections is not allowed"};
  MAYFLY_TRY(CheckArchiveUnderName(catalog, *coll, target.first, target.second));
  CollectionInfoPtr replaced = drop.Truthy() ? catalog.Find(target.first, target.second) : nullptr;
  if (source.first == target.first) {
    MAYFLY_TRY(catalog.Rename(ctx.op, *coll, target.first, target.second, drop.Truthy()));
  } else {
    // A new collection there, with the pauses and holds of this one.
    const Uuid uuid = RandomUuid();
    MAYFLY_TRY(ctx.expiry.ttl_controls().CarryOver(ctx.op, coll->uuid, uuid, target.first, [&] {
      return catalog.Rename(ctx.op, *coll, target.first, target.second, drop.Truthy(), &uuid);
    }));
  }
  if (replaced) {
    QueryState::Of(ctx.data.storage()).filters.Clear(replaced->uuid, nullptr);
    MAYFLY_TRY(ctx.expiry.ttl_controls().ForgetCollection(ctx.op, replaced->uuid));
  }
  ctx.data.cursors().KillNamespace(source.first, source.second,
                                   "collection renamed from '" +
                                       JoinNamespace(source.first, source.second) + "' to '" +
                                       JoinNamespace(target.first, target.second) + "'");
  if (drop.Truthy()) CloseCursors(ctx.data, target.first, target.second);
  return Ok();
}

BsonDocument DescribeCollection(Catalog& catalog, const CollectionInfo& c, bool name_only) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("name", c.name).Append("type", c.traits().type);
    if (name_only) return;
    {
      BsonBuilder o = b.OpenDocument("options");
      if (c.is_view() && !c.is_series())
        o.Append("viewOn", c.view_on).AppendArray("pipeline", c.view_pipeline);
      if (!c.is_buckets()) o.AppendAll(c.options);
      if (c.is_series()) {
        if (const CollectionInfoPtr buckets = BucketsOf(catalog, c))
          AppendSeriesOptions(*buckets, o);
      } else if (c.is_buckets()) {
        o.Append("clusteredIndex", true);
        AppendSeriesOptions(c, o);
      } else if (c.clustered()) {
        {
          BsonBuilder k = o.OpenDocument("clusteredIndex");
          k.Append("v", 2);
          k.OpenDocument("key").Append("_id", 1);
          k.Append("name", c.clustered_index_name).Append("unique", true);
        }
        if (c.expire_after_seconds) o.Append("expireAfterSeconds", *c.expire_after_seconds);
      }
    }
    BsonBuilder info = b.OpenDocument("info");
    info.Append("readOnly", c.is_view() && !c.is_series());
    if (!c.is_view())
      info.AppendBinary("uuid", 4,
                        std::string_view(reinterpret_cast<const char*>(c.uuid.data()), 16));
    info.Done();
    if (!c.is_view() && !c.clustered()) {
      BsonBuilder i = b.OpenDocument("idIndex");
      i.Append("v", 2);
      i.OpenDocument("key").Append("_id", 1);
      i.Append("name", "_id_");
    }
  });
}

/// Whether the user may see all collections of the database.
bool SeesAllCollections(const UserAccess& user, std::string_view db) {
  return user.privileges.Allows(db, {}, {Action::listCollections});
}

/// Whether the user may see the name of this one all the same.
bool SeesCollection(const UserAccess& user, std::string_view db, std::string_view name) {
  return !user.privileges.On(db, name).empty();
}

/// The collections that the user may see, if not all: `names` requests those with any
/// privilege.
std::function<bool(const CollectionInfo&)> CollectionsShownTo(const CommandContext& ctx,
                                                              std::string_view db, bool names) {
  if (ctx.access == nullptr || SeesAllCollections(*ctx.access, db)) return nullptr;
  return [user = ctx.access.get(), names](const CollectionInfo& c) {
    return names && SeesCollection(*user, c.db, c.name);
  };
}

/// The names that a later batch of listCollections may show, when everybody may run the command:
/// the reader's roles may have gone since the cursor was opened.
ListCursor::Shown NamesShownInBatch(const CommandContext& ctx, std::string_view db) {
  if (ctx.access == nullptr) return nullptr;
  return [db = std::string(db)](const Operation& reader, BsonView document) {
    const UserAccess* const user = reader.user().get();
    return user != nullptr &&  // check_names: compared
           (SeesAllCollections(*user, db) || SeesCollection(*user, db, document["name"].String()));
  };
}

/// The same with `expiry.databaseMaxTTL`: the limit of the database, which a dump has no other
/// place for. `create` sets it again.
BsonDocument WithDatabaseLimit(BsonView whole, int64_t limit) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : whole) {
      if (e.name != "options" || !e.value.IsDocument()) {
        b.Append(e);
        continue;
      }
      BsonBuilder options = b.OpenDocument(e.name);
      BsonView expiry;
      for (const BsonElement& o : e.value.Document())
        if (o.name == "expiry" && o.value.IsDocument())
          expiry = o.value.Document();
        else
          options.Append(o);
      options.OpenDocument("expiry").AppendAll(expiry).Append("databaseMaxTTL", limit);
    }
  });
}

Result<void> RunListCollections(CommandContext& ctx, const CommandRequest& req,
                                BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("listCollections");  // unused: the command's name
  BsonView filter = in.DocumentOr("filter");
  bool name_only = in.LooseBoolOr("nameOnly", false);
  const bool authorized = in.LooseBoolOr("authorizedCollections", false);
  auto cursor = in.OptDocument("cursor");
  MAYFLY_TRY(in.Finish());
  int64_t batch = INT64_MAX;
  if (cursor) {
    ArgReader c("listCollections.cursor", *cursor);
    if (c.Has("batchSize")) batch = c.NonNegativeOr("batchSize", 0);
    MAYFLY_TRY(c.Finish());
  }
  MatchPtr match;
  if (!filter.empty()) {
    MAYFLY_TRY(match, ParseMatch(filter));
  }
  EvalContext eval;
  eval.now = ctx.op.now;
  eval.op = &ctx.op;
  const auto shown = CollectionsShownTo(ctx, req.db, name_only && authorized);
  std::vector<BsonDocument> docs;
  size_t kept = 0;
  large_memory::Hold hold;
  const int64_t limit = name_only || DeadlineFieldOf(ctx).empty()
                            ? 0
                            : ctx.data.storage().catalog().DatabaseMaxTtl(req.db);
  std::vector<CollectionInfoPtr> there = ctx.data.storage().catalog().List(req.db);
  if (CollectionInfoPtr views = ctx.data.storage().catalog().Find(req.db, kViewsCollection)) {
    const auto at = std::find_if(there.begin(), there.end(), [](const CollectionInfoPtr& c) {
      return c->name > kViewsCollection;
    });
    there.insert(at, std::move(views));
  }
  for (const CollectionInfoPtr& c : there) {
    if (shown && !shown(*c)) continue;
    // A user who may see only names must not learn more by a filter.
    Catalog& catalog = ctx.data.storage().catalog();
    const bool names = shown != nullptr || (name_only && !match);
    BsonDocument whole = DescribeCollection(catalog, *c, names);
    MAYFLY_TRY(hold.Set(kept + whole.view().size()));  // views may have long pipelines
    if (match) {
      MAYFLY_TRY(bool matches, match->Matches(whole, &eval));
      if (!matches) continue;
    }
    // Only of those that can be made with `expiry`.
    if (limit != 0 && shown == nullptr && !c->is_view() && !c->is_buckets() && !c->capped())
      whole = WithDatabaseLimit(whole, limit);
    docs.push_back(name_only && !names ? DescribeCollection(catalog, *c, true) : std::move(whole));
    kept += sizeof(BsonDocument) + docs.back().view().size();
    MAYFLY_TRY(hold.Set(kept));
    MAYFLY_TRY(ctx.op.CheckInterrupt());
  }
  // The first batch is made twice.
  large_memory::Hold batch_hold;
  if (batch > 0) {
    MAYFLY_TRY(batch_hold.Set(2 * std::min(kept, kMaxBatchBytes)));
  }
  auto client = MakeClientCursor(ctx, req, std::string(req.db) + ".$cmd.listCollections");
  client->cursor = std::make_unique<ListCursor>(
      std::move(docs), name_only && authorized ? NamesShownInBatch(ctx, req.db) : nullptr,
      std::move(hold));
  std::string bytes;
  BsonBuilder b(bytes);
  MAYFLY_TRY(ReplyFirstBatch(ctx.data.cursors(), ctx.op, std::move(client), batch, b));
  b.Done();
  // This command's reply has id and ns before the batch.
  BsonView made = BsonView(bytes)["cursor"].Document();
  BsonBuilder out = reply.OpenDocument("cursor");
  out.Append("id", made["id"]).Append("ns", made["ns"]).Append("firstBatch", made["firstBatch"]);
  return Ok();
}

/// A collection takes this much at least, however small it is: what there is of it may still be in
/// memory alone.
constexpr uint64_t kLeastBytes = 4096;

uint64_t BytesOf(DataServices& server, std::string_view db, int64_t* collections) {
  uint64_t bytes = 0;
  for (const CollectionInfoPtr& c : server.storage().catalog().List(db)) {
    ++*collections;
    if (c->is_view()) continue;
    bytes += std::max(server.storage().StorageBytes(*c), kLeastBytes);
    for (const IndexInfoPtr& i : c->indexes) bytes += server.storage().IndexBytes(*c, *i);
  }
  return bytes;
}

Result<void> RunListDatabases(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("listDatabases");  // unused: the command's name
  BsonView filter = in.DocumentOr("filter");
  bool name_only = in.LooseBoolOr("nameOnly", false);
  const std::optional<bool> authorized = in.OptBool("authorizedDatabases");
  MAYFLY_TRY(in.Finish());
  // All, for users who may list them and do not request only their own.
  const bool own_only =
      ctx.access != nullptr && (authorized.value_or(false) ||
                                !ctx.access->privileges.AllowsOnCluster({Action::listDatabases}));
  MatchPtr match;
  if (!filter.empty()) {
    MAYFLY_TRY(match, ParseMatch(filter));
  }
  EvalContext eval;
  eval.now = ctx.op.now;
  eval.op = &ctx.op;
  std::vector<std::string> names = ctx.data.storage().catalog().Databases();
  // Every server has these two.
  for (const char* own : {"admin", "config", "local"})
    if (std::find(names.begin(), names.end(), own) == names.end()) names.emplace_back(own);
  std::sort(names.begin(), names.end());
  int64_t total = 0;
  {
    BsonArrayBuilder list = reply.OpenArray("databases");
    for (const std::string& name : names) {
      if (own_only && !ctx.access->privileges.AllowsSomewhereIn(name, ActionSet::All())) continue;
      int64_t collections = 0;
      const auto bytes = static_cast<int64_t>(BytesOf(ctx.data, name, &collections));
      BsonDocument whole = BuildBson([&](BsonBuilder& b) {
        b.Append("name", name).Append("sizeOnDisk", bytes).Append("empty", collections == 0);
      });
      if (match) {
        MAYFLY_TRY(bool matches, match->Matches(whole, &eval));
        if (!matches) continue;
      }
      total += bytes;
      if (name_only)
        list.OpenDocument().Append("name", name);
      else
        list.Append(whole);
    }
  }
  if (!name_only) reply.Append("totalSize", total).Append("totalSizeMb", total / (1 << 20));
  return Ok();
}

Result<void> RunValidate(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view name = in.Collection();
  bool full = in.LooseBoolOr("full", false);
  // unused: sent by drivers since 2.0; documents are read anyway
  in.LooseBoolOr("scandata", false);
  if (in.LooseBoolOr("repair", false) || in.LooseBoolOr("fixMultikey", false))
    in.Fail({ErrorCode::kNotImplemented,
             "validate cannot repair on this server: drop and build the index anew, or restore the "
             "collection"});
  const bool background = in.LooseBoolOr("background", false);
  if (background && full)
    in.Fail({ErrorCode::kInvalidOptions,
             "Running the validate command with both { background: true } and { full: true } is "
             "not supported."});
  const bool conformance = in.LooseBoolOr("checkBSONConformance", false);
  // The metadata is looked at by every validation; alone it is what the client asks for then.
  if (in.LooseBoolOr("metadata", false) && (background || full || conformance))
    in.Fail({ErrorCode::kInvalidOptions,
             "Running the validate command with { metadata: true } is not supported with any "
             "other options"});
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll,
             OpenCollection(ctx.data.storage().catalog(), req.db, name, CollectionUse::kValidate));
  return ctx.data.storage().Validate(ctx.op, coll, full || conformance, reply);
}

}  // namespace

void RegisterCollectionCommands(CommandRegistry& registry) {
  constexpr uint32_t kDdl = kWrites | kWorker | kTakesWriteConcern;
  registry.Add({.name = "drop",
                .flags = kDdl | kApiV1,
                .help = "Drops a collection or view.",
                .run = &RunDrop,
                .privileges = &privileges::OnCollection<Action::dropCollection>});
  registry.Add({.name = "dropDatabase",
                .flags = kDdl | kApiV1,
                .help = "Drops all collections of a database.",
                .run = &RunDropDatabase,
                .privileges = &privileges::OnDatabase<Action::dropDatabase>});
  registry.Add({.name = "renameCollection",
                .flags = kDdl | kAdminOnly,
                .help = "Renames a collection, also into another database.",
                .run = &RunRename,
                .privileges = &privileges::RenameCollection});
  registry.Add({.name = "listCollections",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kWorker,
                .help = "The collections and views of a database.",
                .run = &RunListCollections,
                .privileges = &privileges::ListCollections});
  registry.Add({.name = "listDatabases",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kAdminOnly | kWorker,
                .help = "The databases and their sizes.",
                .run = &RunListDatabases,
                .privileges = &privileges::ListDatabases});
  registry.Add({.name = "validate",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kWorker,
                .help = "Checks every document and every index entry.",
                .run = &RunValidate,
                .privileges = &privileges::OnCollection<Action::validate>});
}

}  // namespace mayfly

#include "query/plan/query_state.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/server_context.h"
#include "server/execution/aggregate.h"
#include "server/execution/ttl_preview.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"
#include "storage/write/archive.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

void CloseCursors(ServerContext& server, std::string_view db, std::string_view collection) {
  server.cursors().KillNamespace(db, collection);
}

Result<void> RunDrop(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view name = in.Collection();
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(ValidateNamespace(req.db, name));
  Catalog& catalog = ctx.server.storage().catalog();
  CollectionInfoPtr coll = catalog.Find(req.db, name);
  if (!coll) return Ok();
  if (name == "system.profile" && ctx.server.profiler().Get(req.db).level > 0)
    return Error{ErrorCode::kIllegalOperation,
                 "turn off profiling before dropping system.profile collection"};
  const int indexes = coll->ShownIndexes();
  Result<void> dropped = catalog.Drop(ctx.op, req.db, name);
  if (!dropped && dropped.error().code != ErrorCode::kNamespaceNotFound) return dropped;
  CloseCursors(ctx.server, req.db, name);
  QueryState::Of(ctx.server.storage()).filters.Clear(coll->uuid, nullptr);
  AuditDroppedRules(ctx, *coll);
  MAYFLY_TRY(ctx.server.ttl_controls().ForgetCollection(ctx.op, coll->uuid));
  if (!coll->is_view()) reply.Append("nIndexesWas", indexes);
  reply.Append("ns", coll->ns);
  return Ok();
}

Result<void> RunDropDatabase(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  BsonValue one = in.Any("dropDatabase");
  MAYFLY_TRY(in.Finish());
  if (!one.IsNumber() || one.NumberAsDouble() != 1)
    return Error{ErrorCode::kBadValue, "have to pass 1 as db parameter"};
  if (req.db == "admin" || req.db == "local" || req.db == "config")
    return Error{ErrorCode::kIllegalOperation,
                 "Dropping the '" + std::string(req.db) + "' database is prohibited."};
  Catalog& catalog = ctx.server.storage().catalog();
  const std::vector<CollectionInfoPtr> there = catalog.List(req.db);
  const bool existed = !there.empty();
  const int64_t max_ttl = catalog.DatabaseMaxTtl(req.db);
  MAYFLY_TRY(catalog.DropDatabase(ctx.op, req.db));
  if (max_ttl > 0)
    Audit(ctx, "dropDatabase", [&](BsonBuilder& p) {
      p.Append("db", req.db);
      p.OpenDocument("old").Append("maxTTL", max_ttl);
      p.AppendNull("new");
    });
  for (const CollectionInfoPtr& c : there) {
    QueryState::Of(ctx.server.storage()).filters.Clear(c->uuid, nullptr);
    AuditDroppedRules(ctx, *c);
    MAYFLY_TRY(ctx.server.ttl_controls().ForgetCollection(ctx.op, c->uuid));
  }
  CloseCursors(ctx.server, req.db, {});
  if (existed) reply.Append("dropped", req.db);
  return Ok();
}

Result<void> RunRename(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  std::string_view from = in.String("renameCollection");
  std::string_view to = in.String("to");
  BsonValue drop = in.Any("dropTarget");
  in.OptBool("stayTemp");
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
  Catalog& catalog = ctx.server.storage().catalog();
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
    MAYFLY_TRY(ctx.server.ttl_controls().CarryOver(ctx.op, coll->uuid, uuid, target.first, [&] {
      return catalog.Rename(ctx.op, *coll, target.first, target.second, drop.Truthy(), &uuid);
    }));
  }
  if (replaced) {
    QueryState::Of(ctx.server.storage()).filters.Clear(replaced->uuid, nullptr);
    AuditDroppedRules(ctx, *replaced);
    MAYFLY_TRY(ctx.server.ttl_controls().ForgetCollection(ctx.op, replaced->uuid));
  }
  ctx.server.cursors().KillNamespace(source.first, source.second,
                                     "collection renamed from '" +
                                         JoinNamespace(source.first, source.second) + "' to '" +
                                         JoinNamespace(target.first, target.second) + "'");
  if (drop.Truthy()) CloseCursors(ctx.server, target.first, target.second);
  return Ok();
}

BsonDocument DescribeCollection(const CollectionInfo& c, bool name_only) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("name", c.name).Append("type", c.traits().type);
    if (name_only) return;
    {
      BsonBuilder o = b.OpenDocument("options");
      if (c.is_view()) o.Append("viewOn", c.view_on).AppendArray("pipeline", c.view_pipeline);
      o.AppendAll(c.options);
      if (c.clustered()) {
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
    info.Append("readOnly", c.is_view());
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

Result<void> RunListCollections(CommandContext& ctx, const CommandRequest& req,
                                BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("listCollections");
  BsonView filter = in.DocumentOr("filter");
  bool name_only = in.LooseBoolOr("nameOnly", false);
  in.LooseBoolOr("authorizedCollections", false);
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
  std::vector<BsonDocument> docs;
  for (const CollectionInfoPtr& c : ctx.server.storage().catalog().List(req.db)) {
    BsonDocument whole = DescribeCollection(*c, false);
    if (match) {
      MAYFLY_TRY(bool matches, match->Matches(whole, &eval));
      if (!matches) continue;
    }
    docs.push_back(name_only ? DescribeCollection(*c, true) : std::move(whole));
  }
  auto client = MakeClientCursor(ctx, req, std::string(req.db) + ".$cmd.listCollections");
  client->cursor = std::make_unique<ListCursor>(std::move(docs));
  std::string bytes;
  BsonBuilder b(bytes);
  MAYFLY_TRY(ReplyFirstBatch(ctx.server.cursors(), ctx.op, std::move(client), batch, b));
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

uint64_t BytesOf(ServerContext& server, std::string_view db, int64_t* collections) {
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
  in.Any("listDatabases");
  BsonView filter = in.DocumentOr("filter");
  bool name_only = in.LooseBoolOr("nameOnly", false);
  in.OptBool("authorizedDatabases");
  MAYFLY_TRY(in.Finish());
  MatchPtr match;
  if (!filter.empty()) {
    MAYFLY_TRY(match, ParseMatch(filter));
  }
  EvalContext eval;
  eval.now = ctx.op.now;
  eval.op = &ctx.op;
  std::vector<std::string> names = ctx.server.storage().catalog().Databases();
  // Every server has these two.
  for (const char* own : {"admin", "config", "local"})
    if (std::find(names.begin(), names.end(), own) == names.end()) names.emplace_back(own);
  std::sort(names.begin(), names.end());
  int64_t total = 0;
  {
    BsonArrayBuilder list = reply.OpenArray("databases");
    for (const std::string& name : names) {
      int64_t collections = 0;
      const auto bytes = static_cast<int64_t>(BytesOf(ctx.server, name, &collections));
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
  in.LooseBoolOr("scandata", false);  // sent by drivers since 2.0; documents are read anyway
  if (in.LooseBoolOr("repair", false) || in.LooseBoolOr("fixMultikey", false))
    in.Fail({ErrorCode::kNotImplemented,
             "validate cannot repair on this server: drop and build the index anew, or restore the "
             "collection"});
  if (in.LooseBoolOr("background", false) && full)
    in.Fail({ErrorCode::kInvalidOptions,
             "Running the validate command with both { background: true } and { full: true } is "
             "not supported."});
  in.LooseBoolOr("metadata", false);
  in.LooseBoolOr("checkBSONConformance", false);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, OpenCollection(ctx.server.storage().catalog(), req.db, name,
                                                    CollectionUse::kValidate));
  return ctx.server.storage().Validate(ctx.op, coll, full, reply);
}

}  // namespace

void RegisterCollectionCommands(CommandRegistry& registry) {
  constexpr uint32_t kDdl = kWrites | kWorker | kTakesWriteConcern;
  registry.Add({.name = "drop",
                .flags = kDdl | kApiV1,
                .help = "Drops a collection or view.",
                .run = &RunDrop});
  registry.Add({.name = "dropDatabase",
                .flags = kDdl | kApiV1,
                .help = "Drops all collections of a database.",
                .run = &RunDropDatabase});
  registry.Add({.name = "renameCollection",
                .flags = kDdl | kAdminOnly,
                .help = "Renames a collection, also into another database.",
                .run = &RunRename});
  registry.Add({.name = "listCollections",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kWorker,
                .help = "The collections and views of a database.",
                .run = &RunListCollections});
  registry.Add({.name = "listDatabases",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kAdminOnly | kWorker,
                .help = "The databases and their sizes.",
                .run = &RunListDatabases});
  registry.Add({.name = "validate",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kWorker,
                .help = "Checks every document and every index entry.",
                .run = &RunValidate});
}

}  // namespace mayfly

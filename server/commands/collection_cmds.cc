#include "protocol/extended_json.h"
#include "query/match/record_filter.h"
#include "query/update/expire.h"
#include "server/aggregate.h"
#include "server/aggregate_stages.h"
#include "server/arg_reader.h"
#include "server/audit_log.h"
#include "server/commands/collection_options.h"
#include "server/cursor_manager.h"
#include "server/server_context.h"
#include "server/ttl_preview.h"
#include "server/view_definition.h"
#include "storage/archive.h"
#include "storage/namespace.h"
#include "storage/storage.h"
#include "storage/visibility.h"

namespace mayfly {

Result<void> SetValidator(ServerContext& server, CollectionInfo& c,
                          std::optional<BsonView> validator, std::optional<std::string_view> level,
                          std::optional<std::string_view> action) {
  std::string now_level = c.validator.view().empty() && !level
                              ? "strict"
                              : (c.options.view()["validationLevel"].IsString()
                                     ? std::string(c.options.view()["validationLevel"].String())
                                     : "strict");
  if (level) {
    if (*level != "off" && *level != "strict" && *level != "moderate")
      return Error{ErrorCode::kBadValue, "Enumeration value '" + std::string(*level) +
                                             "' for field 'validationLevel' is not a valid value."};
    now_level = *level;
    c.validation_moderate = *level == "moderate";
  }
  if (action) {
    if (*action != "error" && *action != "warn" && *action != "errorAndLog")
      return Error{ErrorCode::kBadValue,
                   "Enumeration value '" + std::string(*action) +
                       "' for field 'validationAction' is not a valid value."};
    c.validation_warn_only = *action == "warn";
  }
  if (validator) c.validator = BsonDocument(*validator);
  c.validator_filter = nullptr;
  if (!c.validator.view().empty()) {
    Result<std::shared_ptr<const RecordFilter>> f =
        CompileRecordFilter(c.validator, false, &server.clock());
    if (!f) return f.error();
    if (now_level != "off") c.validator_filter = f.value();
  }
  return Ok();
}

Result<int64_t> ParseClusteredExpiry(BsonValue v, Instant now) {
  auto bad = [](std::string why) {
    return Error{ErrorCode::kInvalidOptions,
                 "'expireAfterSeconds' of a clustered collection " + std::move(why)};
  };
  if (!v.IsNumber())
    return bad("must be a number, but is of type " + std::string(BsonTypeName(v.type())));
  double d = v.NumberAsDouble();
  if (d != d) return bad("must be a number, but is NaN");
  int64_t n = v.NumberAsInt64();
  if (d < 0) return bad("must not be negative, but is " + ToRelaxedJson(v));
  int64_t millis;
  if (d >= 9.2e18 || __builtin_mul_overflow(n, int64_t{1000}, &millis))
    return bad("is too large: " + ToRelaxedJson(v) + " seconds overflow milliseconds");
  if (millis > now.millis)
    return bad("must be within the time since 1970, but is " + ToRelaxedJson(v));
  return n;
}

Result<void> ParseExpiryOptions(BsonView given, bool change, ExpiryOptions* options) {
  const char* where = change ? "collMod.expiry" : "create.expiry";
  const std::string prefix = std::string(where) + ".";
  ArgReader in(where, given);
  BsonValue field = in.Any("field"), max = in.Any("maxTTL"), recover = in.Any("recoverSeconds");
  auto on_update = in.OptString("onUpdate");
  MAYFLY_TRY(in.Finish());
  if (change && !max.missing())
    return Error{ErrorCode::kInvalidOptions,
                 "a collection's maxTTL is fixed when it is created: make another collection, or "
                 "set one for the database with setDatabaseExpiry"};
  ExpiryOptions o = *options;
  if (change && field.IsNull()) {
    o.field.clear();
  } else if (!field.missing()) {
    if (!field.IsString()) return in.WrongType("field", field.type(), "string");
    std::string_view name = field.String();
    if (name.empty() || name == "_id" || name.starts_with('$') ||
        name.find('.') != std::string_view::npos || name.find('\0') != std::string_view::npos)
      return Error{ErrorCode::kBadValue,
                   prefix +
                       "field must be the name of a top-level field other than _id, but it is '" +
                       std::string(name) + "'"};
    o.field = name;
  }
  if (!max.missing()) {
    MAYFLY_TRY(o.max_ttl, ParseWholeSeconds(max, INT32_MAX, prefix + "maxTTL"));
  }
  if (!recover.missing()) {
    MAYFLY_TRY(o.recover_seconds, ParseWholeSeconds(recover, INT32_MAX, prefix + "recoverSeconds"));
  }
  if (on_update) {
    if (*on_update != "preserve" && *on_update != "reset")
      return Error{ErrorCode::kBadValue,
                   "Enumeration value '" + std::string(*on_update) + "' for field '" + prefix +
                       "onUpdate' is not a valid value: it is reset or preserve"};
    o.preserve = *on_update == "preserve";
  }
  *options = std::move(o);
  return Ok();
}

BsonDocument DescribeExpiryOptions(const ExpiryOptions& o) {
  return BuildBson([&](BsonBuilder& b) {
    if (!o.field.empty()) b.Append("field", o.field);
    if (o.max_ttl != 0) b.Append("maxTTL", o.max_ttl);
    if (o.preserve) b.Append("onUpdate", "preserve");
    if (o.recover_seconds != 0) b.Append("recoverSeconds", o.recover_seconds);
  });
}

Result<bool> ParsePreImages(std::string_view command, std::string_view db, BsonView given) {
  const std::string where = std::string(command) + ".changeStreamPreAndPostImages";
  ArgReader in(where, given);
  const std::optional<bool> enabled = in.OptBool("enabled");
  MAYFLY_TRY(in.Finish());
  if (!enabled)
    return Error{ErrorCode::kMissingField,
                 "BSON field '" + where + ".enabled' is missing but a required field"};
  if (*enabled && (db == "admin" || db == "local" || db == "config"))
    return Error{ErrorCode::kInvalidOptions, "Cannot create pre-images in the '" + std::string(db) +
                                                 "' database: it has no change streams"};
  return *enabled;
}

void AppendPreImages(BsonBuilder& options) {
  options.OpenDocument("changeStreamPreAndPostImages").Append("enabled", true);
}

Result<void> CreateCollection(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply,
                              std::optional<Uuid> uuid) {
  ArgReader in(req);
  CollectionInfo c;
  if (uuid) c.uuid = *uuid;
  c.db = req.db;
  c.name = in.Collection();
  c.capped = in.LooseBoolOr("capped", false);
  auto size = in.OptInt64("size");
  auto max = in.OptInt64("max");
  auto validator = in.OptDocument("validator");
  auto level = in.OptString("validationLevel");
  auto action = in.OptString("validationAction");
  auto view_on = in.OptString("viewOn");
  auto pipeline = in.OptArray("pipeline");
  BsonValue clustered = in.Any("clusteredIndex");
  BsonValue expire = in.Any("expireAfterSeconds");
  auto expiry = in.OptDocument("expiry");
  BsonValue on_expire = in.Any("onExpire");
  in.SimpleCollation();
  in.NotSupported("timeseries");
  in.NotSupported("encryptedFields");
  auto pre_images = in.OptDocument("changeStreamPreAndPostImages");
  auto storage_engine = in.OptDocument("storageEngine");
  auto index_defaults = in.OptDocument("indexOptionDefaults");
  auto id_index = in.OptDocument("idIndex");
  auto auto_index = in.OptBool("autoIndexId");
  in.OptInt64("flags");
  const bool dry_run = in.BoolOr("dryRun", false);
  MAYFLY_TRY(in.Finish());
  auto invalid = [](std::string why) { return Error{ErrorCode::kInvalidOptions, std::move(why)}; };
  MAYFLY_TRY(ValidateNewNamespace(req.db, c.name));
  if (pre_images) {
    MAYFLY_TRY(c.pre_images, ParsePreImages("create", req.db, *pre_images));
  }
  if (storage_engine && !storage_engine->empty())
    return invalid("storageEngine options are not known to this server's storage engine");
  if (index_defaults && !index_defaults->empty())
    return invalid("indexOptionDefaults are not known to this server's storage engine");
  if (auto_index && !*auto_index)
    return invalid("autoIndexId: false is not allowed: every collection has an _id index");
  if (id_index && !(*id_index)["key"].IsDocument())
    return Error{ErrorCode::kFailedToParse, "The 'key' field of idIndex must be an object"};
  if (view_on) {
    if (c.capped || size || max || validator || !clustered.missing() || !expire.missing() ||
        !on_expire.missing() || expiry || id_index)
      return invalid(
          "Cannot set capped, size, max, validator, clusteredIndex, expireAfterSeconds, expiry, "
          "onExpire or idIndex on a view");
    if (pre_images) return invalid("option not supported on a view: changeStreamPreAndPostImages");
    if (view_on->empty()) return Error{ErrorCode::kBadValue, "'viewOn' cannot be empty"};
    c.is_view = true;
    c.view_on = *view_on;
    c.view_pipeline = BsonDocument(pipeline ? *pipeline : BsonView());
    MAYFLY_TRY(CheckViewDefinition(ctx.server.storage().catalog(), req.db, c.name, c.view_on,
                                   c.view_pipeline));
  } else if (pipeline) {
    return invalid("'pipeline' requires 'viewOn' to also be specified");
  }
  if (c.capped) {
    if (!size) return invalid("the 'size' field is required when 'capped' is true");
    if (*size <= 0 || *size > (int64_t{1} << 50))
      return Error{ErrorCode::kBadValue,
                   "BSON field 'create.size' must be between 1 and 1125899906842624"};
    if (max && (*max > INT32_MAX))
      return Error{ErrorCode::kBadValue, "max in a capped collection has to be < 2^31 or not set"};
    c.capped_bytes = (*size + 255) / 256 * 256;
    c.capped_documents = max && *max > 0 ? *max : 0;
    if (!clustered.missing())
      return invalid("The 'clusteredIndex' option is not supported with 'capped'");
  } else if (size || max) {
    return invalid(
        "the 'capped' field needs to be true when either the 'size' or 'max' fields are present");
  }
  if (clustered.Is(BsonType::kBool))
    return invalid(
        "clusteredIndex: true is for the server's own collections; give {key: {_id: 1}, unique: "
        "true}");
  if (!clustered.missing()) {
    if (!clustered.IsDocument()) return in.WrongType("clusteredIndex", clustered.type(), "object");
    ArgReader k("create.clusteredIndex", clustered.Document());
    BsonView key = k.Document("key");
    bool unique = k.BoolOr("unique", false);
    c.clustered_index_name = k.StringOr("name", "_id_");
    k.OptInt64("v");
    MAYFLY_TRY(k.Finish());
    BsonElement e = key.First();
    if (key.Count() != 1 || e.name != "_id" || !e.value.IsNumber() || e.value.NumberAsDouble() != 1)
      return Error{LocationCode(5979701), "The clusteredIndex key must be {_id: 1}"};
    if (!unique)
      return Error{ErrorCode::kBadValue,
                   "The clusteredIndex option requires unique: true to be specified"};
    c.clustered = true;
  }
  if (expiry) {
    if (c.capped) return invalid("the 'expiry' option is not supported with 'capped'");
    MAYFLY_TRY(ParseExpiryOptions(*expiry, false, &c.expiry_options));
  }
  if (!expire.missing()) {
    if (!c.clustered)
      return invalid(
          "'expireAfterSeconds' is only supported on clustered collections: make a TTL index on a "
          "date field, or give clusteredIndex");
    MAYFLY_TRY(int64_t n, ParseClusteredExpiry(expire, ctx.op.now));
    c.expire_after_seconds = n;
  }
  std::optional<ArchiveTarget> archive;
  if (!on_expire.missing()) {
    if (c.capped) return invalid("onExpire is not supported on capped collections");
    MAYFLY_TRY(archive, ParseOnExpire(on_expire, ctx.server.storage().catalog(), req.db, c.name));
  }
  c.options = BuildBson([&](BsonBuilder& b) {
    if (archive) b.Append("onExpire", on_expire);
    if (c.capped) {
      // As an int where it fits: drivers compare what listCollections shows byte by byte.
      auto number = [&](std::string_view name, int64_t n) {
        if (n <= INT32_MAX)
          b.Append(name, static_cast<int32_t>(n));
        else
          b.Append(name, n);
      };
      b.Append("capped", true);
      number("size", c.capped_bytes);
      if (c.capped_documents > 0) number("max", c.capped_documents);
    }
    if (c.pre_images) AppendPreImages(b);
    if (c.expiry_options.set()) b.Append("expiry", DescribeExpiryOptions(c.expiry_options));
    if (validator) b.Append("validator", *validator);
    if (level)
      b.Append("validationLevel", *level);
    else if (validator)
      b.Append("validationLevel", "strict");
    if (action)
      b.Append("validationAction", *action);
    else if (validator)
      b.Append("validationAction", "error");
  });
  MAYFLY_TRY(SetValidator(ctx.server, c, validator, level, action));
  Catalog& catalog = ctx.server.storage().catalog();
  if (CollectionInfoPtr old = catalog.Find(req.db, c.name)) {
    // The same again is nothing new; another definition is.
    const bool same =
        old->is_view == c.is_view && old->options.bytes() == c.options.bytes() &&
        old->clustered == c.clustered && old->expire_after_seconds == c.expire_after_seconds &&
        old->view_on == c.view_on && old->view_pipeline.bytes() == c.view_pipeline.bytes();
    if (same && !dry_run) return Ok();
    return Error{ErrorCode::kNamespaceExists,
                 old->is_view ? "A view already exists. NS: " + old->ns
                              : "Collection " + old->ns + " already exists with other options"};
  }
  if (dry_run) {
    if (!c.expire_after_seconds)
      return Error{
          ErrorCode::kInvalidOptions,
          "'dryRun' tells what a rule would remove: the collection has no 'expireAfterSeconds'"};
    // There is nothing in it yet.
    AppendDryRun(RuleCensus(), reply);
    return Ok();
  }
  MAYFLY_TRY(CollectionInfoPtr made, catalog.Create(ctx.op, std::move(c)));
  if (made->clustered && made->expire_after_seconds)
    AuditRule(ctx, "createCollection", made->ns, "clustered", {}, made->expire_after_seconds);
  if (const BsonValue archive = made->options.view()["onExpire"]; !archive.missing())
    AuditOnExpire(ctx, "createCollection", *made, {}, archive);
  if (made->expiry_options.set())
    Audit(ctx, "createCollection", [&](BsonBuilder& p) {
      p.Append("ns", made->ns);
      p.OpenDocument("new").Append("expiry", DescribeExpiryOptions(made->expiry_options));
    });
  return Ok();
}

namespace {

Result<void> RunCreate(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  return CreateCollection(ctx, req, reply, std::nullopt);
}

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
  const int indexes = static_cast<int>(coll->indexes.size()) +
                      (coll->capped || coll->clustered || coll->is_view ? 0 : 1);
  Result<void> dropped = catalog.Drop(ctx.op, req.db, name);
  if (!dropped && dropped.error().code != ErrorCode::kNamespaceNotFound) return dropped;
  CloseCursors(ctx.server, req.db, name);
  AuditDroppedRules(ctx, *coll);
  MAYFLY_TRY(ctx.server.ttl_controls().ForgetCollection(ctx.op, coll->uuid));
  if (!coll->is_view) reply.Append("nIndexesWas", indexes);
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
  auto split = [](std::string_view ns) -> Result<std::pair<std::string, std::string>> {
    size_t dot = ns.find('.');
    if (dot == std::string_view::npos || dot == 0 || dot + 1 == ns.size())
      return Error{ErrorCode::kInvalidNamespace,
                   "Invalid namespace: '" + std::string(ns) + "' must be database.collection"};
    return std::pair(std::string(ns.substr(0, dot)), std::string(ns.substr(dot + 1)));
  };
  MAYFLY_TRY(auto source, split(from));
  MAYFLY_TRY(auto target, split(to));
  MAYFLY_TRY(ValidateNamespace(source.first, source.second));
  MAYFLY_TRY(ValidateNewNamespace(target.first, target.second));
  if (from == to) return Error{ErrorCode::kIllegalOperation, "Can't rename a collection to itself"};
  Catalog& catalog = ctx.server.storage().catalog();
  CollectionInfoPtr coll = catalog.Find(source.first, source.second);
  if (!coll)
    return Error{ErrorCode::kNamespaceNotFound,
                 "Source collection " + std::string(from) + " does not exist"};
  if (coll->is_view)
    return Error{ErrorCode::kCommandNotSupportedOnView, "cannot rename view: " + coll->ns};
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
    AuditDroppedRules(ctx, *replaced);
    MAYFLY_TRY(ctx.server.ttl_controls().ForgetCollection(ctx.op, replaced->uuid));
  }
  ctx.server.cursors().KillNamespace(
      source.first, source.second,
      "collection renamed from '" + JoinNamespace(source.first, source.second) + "' to '" +
          JoinNamespace(target.first, target.second) + "'");
  if (drop.Truthy()) CloseCursors(ctx.server, target.first, target.second);
  return Ok();
}

BsonDocument DescribeCollection(const CollectionInfo& c, bool name_only) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("name", c.name).Append("type", c.is_view ? "view" : "collection");
    if (name_only) return;
    {
      BsonBuilder o = b.OpenDocument("options");
      if (c.is_view) o.Append("viewOn", c.view_on).AppendArray("pipeline", c.view_pipeline);
      o.AppendAll(c.options);
      if (c.clustered) {
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
    info.Append("readOnly", c.is_view);
    if (!c.is_view)
      info.AppendBinary("uuid", 4,
                        std::string_view(reinterpret_cast<const char*>(c.uuid.data()), 16));
    info.Done();
    if (!c.is_view && !c.clustered) {
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
  std::vector<BsonDocument> docs;
  for (const CollectionInfoPtr& c : ctx.server.storage().catalog().List(req.db)) {
    BsonDocument whole = DescribeCollection(*c, false);
    if (match) {
      MAYFLY_TRY(bool matches, match->Matches(whole));
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

uint64_t BytesOf(ServerContext& server, std::string_view db, int64_t* collections) {
  uint64_t bytes = 0;
  for (const CollectionInfoPtr& c : server.storage().catalog().List(db)) {
    ++*collections;
    if (c->is_view) continue;
    bytes += server.storage().StorageBytes(*c);
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
        MAYFLY_TRY(bool matches, match->Matches(whole));
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

Result<int64_t> Scale(ArgReader& in) {
  int64_t scale = in.Int64Or("scale", 1);
  if (scale < 1)
    return Error{ErrorCode::kBadValue, "BSON field 'scale' value must be >= 1, actual value '" +
                                           std::to_string(scale) + "'"};
  return scale;
}

Result<void> RunDbStats(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("dbStats");
  in.Any("dbstats");
  MAYFLY_TRY(int64_t scale, Scale(in));
  const bool free_storage = in.LooseBoolOr("freeStorage", false);
  MAYFLY_TRY(in.Finish());
  Storage& storage = ctx.server.storage();
  int64_t collections = 0, views = 0, objects = 0, data = 0, indexes = 0;
  uint64_t stored = 0, index_bytes = 0;
  for (const CollectionInfoPtr& c : storage.catalog().List(req.db)) {
    if (c->is_view) {
      ++views;
      continue;
    }
    ++collections;
    MAYFLY_TRY(int64_t documents, Visibility(storage, *c, ctx.op.now).CountVisible(ctx.op));
    objects += documents;
    data += c->counters->bytes;
    stored += storage.StorageBytes(*c);
    indexes += static_cast<int64_t>(c->indexes.size()) + (c->capped || c->clustered ? 0 : 1);
    for (const IndexInfoPtr& i : c->indexes) index_bytes += storage.IndexBytes(*c, *i);
  }
  const double s = static_cast<double>(scale);
  reply.Append("db", req.db)
      .Append("collections", collections)
      .Append("views", views)
      .Append("objects", objects);
  reply.Append("avgObjSize",
               objects > 0 ? static_cast<double>(data) / static_cast<double>(objects) : 0.0);
  reply.Append("dataSize", static_cast<double>(data) / s)
      .Append("storageSize", static_cast<double>(stored) / s);
  // The store's files hold no free room: what is removed goes with the next compaction.
  if (free_storage) reply.Append("freeStorageSize", 0.0);
  reply.Append("indexes", indexes).Append("indexSize", static_cast<double>(index_bytes) / s);
  if (free_storage) reply.Append("indexFreeStorageSize", 0.0);
  reply.Append("totalSize", static_cast<double>(stored + index_bytes) / s);
  if (free_storage) reply.Append("totalFreeStorageSize", 0.0);
  reply.Append("scaleFactor", scale);
  uint64_t used = 0, total = 0;
  FileSystemBytes(storage.options().path, &used, &total);
  reply.Append("fsUsedSize", static_cast<double>(used) / s)
      .Append("fsTotalSize", static_cast<double>(total) / s);
  return Ok();
}

Result<void> RunCollStats(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view name = in.Collection();
  MAYFLY_TRY(int64_t scale, Scale(in));
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(ValidateNamespace(req.db, name));
  CollectionInfoPtr coll = ctx.server.storage().catalog().Find(req.db, name);
  if (coll) {
    if (coll->is_view)
      return Error{ErrorCode::kCommandNotSupportedOnView,
                   "Namespace " + coll->ns + " is a view, not a collection"};
    AppendCollectionStats(ctx.server, *coll, scale, true, reply);
    return Ok();
  }
  reply.Append("ns", JoinNamespace(req.db, name))
      .Append("size", int32_t{0})
      .Append("count", int32_t{0})
      .Append("numOrphanDocs", int32_t{0});
  reply.Append("storageSize", int32_t{0})
      .Append("totalSize", int32_t{0})
      .Append("nindexes", int32_t{0})
      .Append("totalIndexSize", int32_t{0});
  reply.Append("indexDetails", BsonView())
      .Append("indexSizes", BsonView())
      .Append("scaleFactor", static_cast<int32_t>(scale));
  return Ok();
}

Result<void> RunDataSize(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view ns = in.String("dataSize");
  BsonView pattern = in.DocumentOr("keyPattern");
  auto min = in.OptDocument("min");
  auto max = in.OptDocument("max");
  bool estimate = in.LooseBoolOr("estimate", false);
  MAYFLY_TRY(in.Finish());
  size_t dot = ns.find('.');
  if (dot == std::string_view::npos)
    return Error{ErrorCode::kInvalidNamespace,
                 "Invalid namespace specified '" + std::string(ns) + "'"};
  const int64_t begin = ctx.server.clock().MonotonicMicros();
  CollectionInfoPtr coll =
      ctx.server.storage().catalog().Find(ns.substr(0, dot), ns.substr(dot + 1));
  int64_t bytes = 0, objects = 0;
  if (coll && !coll->is_view) {
    if (!min && !max) {
      bytes = coll->counters->bytes;
      MAYFLY_TRY(objects, Visibility(ctx.server.storage(), *coll, ctx.op.now).CountVisible(ctx.op));
    } else {
      if (!min || !max) return Error{ErrorCode::kBadValue, "only one of min or max specified"};
      QuerySpec spec;
      spec.coll = coll;
      spec.min = *min;
      spec.max = *max;
      BsonDocument hint = pattern.empty() ? BuildBson([&](BsonBuilder& b) {
        for (const BsonElement& e : *min) b.Append(e.name, 1);
      })
                                          : BsonDocument(pattern);
      spec.hint = hint.view().AsValue();
      MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
                 MakeFindExecutor(ctx.server.storage(), ctx.op, spec));
      for (;;) {
        MAYFLY_TRY(PlanExecutor::State state, executor->Next());
        if (state == PlanExecutor::State::kEof) break;
        MAYFLY_TRY(BsonView doc, executor->doc());
        bytes += doc.size();
        ++objects;
      }
    }
  }
  reply.Append("estimate", estimate).Append("size", bytes).Append("numObjects", objects);
  reply.Append("millis", (ctx.server.clock().MonotonicMicros() - begin) / 1000)
      .Append("maxReached", false);
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
  MAYFLY_TRY(ValidateNamespace(req.db, name));
  CollectionInfoPtr coll = ctx.server.storage().catalog().Find(req.db, name);
  if (!coll)
    return Error{ErrorCode::kNamespaceNotFound,
                 "Collection '" + JoinNamespace(req.db, name) + "' does not exist to validate."};
  if (coll->is_view) return Error{ErrorCode::kCommandNotSupportedOnView, "Cannot validate a view"};
  return ctx.server.storage().Validate(ctx.op, coll, full, reply);
}

}  // namespace

void RegisterCollectionCommands(CommandRegistry& registry) {
  constexpr uint32_t kDdl = kWrites | kWorker | kTakesWriteConcern;
  registry.Add({.name = "create",
                .flags = kDdl | kApiV1,
                .help = "Creates a collection or view.",
                .run = &RunCreate});
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
                .flags = kReadOnly | kSecondaryOk | kApiV1,
                .help = "The collections and views of a database.",
                .run = &RunListCollections});
  registry.Add({.name = "listDatabases",
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kAdminOnly | kWorker,
                .help = "The databases and their sizes.",
                .run = &RunListDatabases});
  registry.Add({.name = "dbStats",
                .aliases = {"dbstats"},
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "Sizes of a database.",
                .run = &RunDbStats});
  registry.Add({.name = "collStats",
                .aliases = {"collstats"},
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "Sizes of a collection and its indexes.",
                .run = &RunCollStats});
  registry.Add({.name = "dataSize",
                .aliases = {"datasize"},
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "Bytes of the documents of a collection or a range of it.",
                .run = &RunDataSize});
  registry.Add({.name = "validate",
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "Checks every document and every index entry.",
                .run = &RunValidate});
}

}  // namespace mayfly

#include "protocol/extended_json.h"
#include "query/update/expire.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/aggregate.h"
#include "server/execution/collection_options.h"
#include "server/execution/index_spec.h"
#include "server/execution/series_definition.h"
#include "server/execution/transactions.h"
#include "server/execution/ttl_preview.h"
#include "server/execution/view_definition.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/expire_reads.h"
#include "storage/catalog/namespace.h"
#include "storage/schema/transaction_schema.h"
#include "storage/storage.h"
#include "storage/write/archive.h"

namespace mayfly {
namespace {

/// The fields of `create`, as given. Views point into the request.
struct CreateArgs {
  std::string_view name;
  bool capped = false, dry_run = false;
  std::optional<int64_t> size, max;
  std::optional<BsonView> validator, pipeline, expiry, pre_images, storage_engine, index_defaults,
      id_index, series;
  std::optional<std::string_view> level, action, view_on;
  std::optional<bool> auto_index;
  BsonValue clustered, expire, expire_reads, on_expire;
  int64_t database_max_ttl = 0;  ///< `expiry.databaseMaxTTL`; 0: not given
};

/// Takes `databaseMaxTTL` out of `expiry`, where a dump has the limit of the database
/// (RunListCollections shows it to tools that dump). `*rest` has what is left.
Result<void> TakeDatabaseLimit(CreateArgs& a, BsonDocument* rest) {
  if (!a.expiry || !a.expiry->Has("databaseMaxTTL")) return Ok();
  MAYFLY_TRY(ArgReader("create.expiry", *a.expiry).FinishLoose());
  MAYFLY_TRY(a.database_max_ttl, ParseWholeSeconds((*a.expiry)["databaseMaxTTL"], INT32_MAX,
                                                   "create.expiry.databaseMaxTTL"));
  *rest = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : *a.expiry)
      if (e.name != "databaseMaxTTL") b.Append(e);
  });
  a.expiry = rest->view();
  if (rest->view().empty()) a.expiry.reset();
  return Ok();
}

Result<CreateArgs> ReadCreateArgs(ArgReader& in) {
  CreateArgs a;
  a.name = in.Collection();
  a.capped = in.LooseBoolOr("capped", false);
  a.size = in.OptInt64("size");
  a.max = in.OptInt64("max");
  a.validator = in.OptDocument("validator");
  a.level = in.OptString("validationLevel");
  a.action = in.OptString("validationAction");
  // check_names: SetView looks
  a.view_on = in.OptString("viewOn");
  a.pipeline = in.OptArray("pipeline");
  a.clustered = in.Any("clusteredIndex");
  a.expire = in.Any("expireAfterSeconds");
  a.expire_reads = in.Any(kExpireReadsOption);
  a.expiry = in.OptDocument("expiry");
  a.on_expire = in.Any("onExpire");
  in.SimpleCollation();
  a.series = in.OptDocument("timeseries");
  in.NotSupported("encryptedFields");
  a.pre_images = in.OptDocument("changeStreamPreAndPostImages");
  a.storage_engine = in.OptDocument("storageEngine");
  a.index_defaults = in.OptDocument("indexOptionDefaults");
  a.id_index = in.OptDocument("idIndex");
  a.auto_index = in.OptBool("autoIndexId");
  in.OptInt64("flags");  // unused: of a storage engine of before 4.2; mongorestore still sends it
  a.dry_run = in.BoolOr("dryRun", false);
  MAYFLY_TRY(in.Finish());
  return a;
}

/// Options of MongoDB that are accepted only with the value that applies anyway.
Result<void> CheckFixedOptions(const CreateArgs& a) {
  if (a.storage_engine && !a.storage_engine->empty())
    return InvalidOptions("storageEngine options are not known to this server's storage engine");
  if (a.index_defaults && !a.index_defaults->empty())
    return InvalidOptions("indexOptionDefaults are not known to this server's storage engine");
  if (a.auto_index && !*a.auto_index)
    return InvalidOptions("autoIndexId: false is not allowed: every collection has an _id index");
  return Ok();
}

/// `idIndex`, which tools that restore send: every collection has this index, so it may only say
/// what is so anyway.
Result<void> CheckGivenIdIndex(ExpiryServices& server, const CreateArgs& a,
                               const CollectionInfo& c) {
  if (!a.id_index) return Ok();
  std::string note;
  MAYFLY_TRY(IndexInfo index, ParseIndexSpec(server, &c, *a.id_index, &note));
  if (index.fields.size() == 1 && index.fields[0].path == "_id" && !index.fields[0].descending)
    return Ok();
  return Error{ErrorCode::kBadValue, "The field 'key' for an _id index must be {_id: 1}, but got " +
                                         ToRelaxedJson(index.key)};
}

Result<void> SetView(Catalog& catalog, const CreateArgs& a, CollectionInfo& c) {
  if (!a.view_on) {
    if (a.pipeline) return InvalidOptions("'pipeline' requires 'viewOn' to also be specified");
    return Ok();
  }
  if (a.capped || a.size || a.max || a.validator || !a.clustered.missing() || !a.expire.missing() ||
      !a.expire_reads.missing() || !a.on_expire.missing() || a.expiry || a.id_index)
    return InvalidOptions(
        "Cannot set capped, size, max, validator, clusteredIndex, expireAfterSeconds, expireReads, "
        "expiry, onExpire or idIndex on a view");
  if (a.pre_images)
    return InvalidOptions("option not supported on a view: changeStreamPreAndPostImages");
  if (a.view_on->empty()) return Error{ErrorCode::kBadValue, "'viewOn' cannot be empty"};
  MAYFLY_TRY(ValidateNamespace(c.db, *a.view_on));
  c.kind = CollectionKind::kView;
  c.view_on = *a.view_on;
  c.view_pipeline = BsonDocument(a.pipeline ? *a.pipeline : BsonView());
  return CheckViewDefinition(catalog, c.db, c.name, c.view_on, c.view_pipeline);
}

/// `timeseries`. Sets what `expireAfterSeconds` says too.
Result<void> SetSeries(const CreateArgs& a, Instant now, CollectionInfo& c) {
  if (!a.series) return Ok();
  for (const auto& [name, given] :
       {std::pair{"capped", a.capped}, std::pair{"size", a.size.has_value()},
        std::pair{"max", a.max.has_value()}, std::pair{"validator", a.validator.has_value()},
        std::pair{"validationLevel", a.level.has_value()},
        std::pair{"validationAction", a.action.has_value()},
        std::pair{"viewOn", a.view_on.has_value()}, std::pair{"pipeline", a.pipeline.has_value()},
        std::pair{"expiry", a.expiry.has_value()}, std::pair{"idIndex", a.id_index.has_value()},
        std::pair{"changeStreamPreAndPostImages", a.pre_images.has_value()}})
    if (given)
      return InvalidOptions(std::string("'") + name + "' is not allowed with 'timeseries'");
  // MongoDB's own listCollections shows it as true, for the buckets.
  if (!a.clustered.missing() && !(a.clustered.Is(BsonType::kBool) && a.clustered.Bool()))
    return InvalidOptions(
        "'clusteredIndex' is not allowed with 'timeseries': buckets are clustered");
  if (c.name.starts_with("system."))
    return Error{ErrorCode::kInvalidNamespace,
                 "a time-series collection cannot have the name " + c.name};
  MAYFLY_TRY(SeriesOptions series, ParseSeriesOptions(*a.series));
  if (!a.expire.missing()) {
    MAYFLY_TRY(c.expire_after_seconds, ParseCollectionExpiry("time-series", a.expire, now));
  }
  c.kind = CollectionKind::kTimeSeries;
  c.series = std::make_shared<const SeriesOptions>(std::move(series));
  return Ok();
}

Result<void> SetCapped(const CreateArgs& a, CollectionInfo& c) {
  if (!a.capped) {
    if (a.size || a.max)
      return InvalidOptions(
          "the 'capped' field needs to be true when either the 'size' or 'max' fields are present");
    return Ok();
  }
  if (!a.size) return InvalidOptions("the 'size' field is required when 'capped' is true");
  if (*a.size <= 0 || *a.size > (int64_t{1} << 50))
    return Error{ErrorCode::kBadValue,
                 "BSON field 'create.size' must be between 1 and 1125899906842624"};
  if (a.max && *a.max > INT32_MAX)
    return Error{ErrorCode::kBadValue, "max in a capped collection has to be < 2^31 or not set"};
  c.kind = CollectionKind::kCapped;
  c.capped_bytes = (*a.size + 255) / 256 * 256;
  c.capped_documents = a.max && *a.max > 0 ? *a.max : 0;
  if (!a.clustered.missing())
    return InvalidOptions("The 'clusteredIndex' option is not supported with 'capped'");
  return Ok();
}

Result<void> SetClustered(ArgReader& in, BsonValue clustered, CollectionInfo& c) {
  if (clustered.missing()) return Ok();
  if (clustered.Is(BsonType::kBool))
    return InvalidOptions(
        "clusteredIndex: true is for the server's own collections; give {key: {_id: 1}, unique: "
        "true}");
  if (!clustered.IsDocument()) return in.WrongType("clusteredIndex", clustered.type(), "object");
  ArgReader k("create.clusteredIndex", clustered.Document());
  BsonView key = k.Document("key");
  bool unique = k.BoolOr("unique", false);
  c.clustered_index_name = k.StringOr("name", "_id_");
  const std::optional<int64_t> version = k.OptInt64("v");
  MAYFLY_TRY(k.Finish());
  MAYFLY_TRY(CheckIndexName(c.clustered_index_name));
  if (version && *version != 2)
    return Error{ErrorCode::kBadValue, "BSON field 'create.clusteredIndex.v' must be 2"};
  BsonElement e = key.First();
  if (key.Count() != 1 || e.name != "_id" || !e.value.IsNumber() || e.value.NumberAsDouble() != 1)
    return Error{LocationCode(5979701), "The clusteredIndex key must be {_id: 1}"};
  if (!unique)
    return Error{ErrorCode::kBadValue,
                 "The clusteredIndex option requires unique: true to be specified"};
  c.kind = CollectionKind::kClustered;
  return Ok();
}

/// `expiry`, `expireAfterSeconds` and `onExpire`. `*archives`: whether onExpire names an archive.
Result<void> SetExpiry(const CreateArgs& a, Catalog& catalog, Instant now, CollectionInfo& c,
                       bool* archives) {
  if (a.expiry) {
    if (c.capped()) return InvalidOptions("the 'expiry' option is not supported with 'capped'");
    MAYFLY_TRY(ParseExpiryOptions(*a.expiry, false, &c.expiry_options));
  }
  if (!a.expire.missing() && !c.is_series()) {
    if (!c.clustered())
      return InvalidOptions(
          "'expireAfterSeconds' is only supported on clustered collections: make a TTL index on a "
          "date field, or give clusteredIndex");
    MAYFLY_TRY(int64_t seconds, ParseCollectionExpiry("clustered", a.expire, now));
    c.expire_after_seconds = seconds;
  }
  if (!a.expire_reads.missing()) {
    MAYFLY_TRY(ParseCollectionExpireReads(a.expire_reads, "create.expireReads",
                                          c.clustered() || c.is_series()));
  }
  if (!a.on_expire.missing()) {
    if (c.capped()) return InvalidOptions("onExpire is not supported on capped collections");
    MAYFLY_TRY(std::optional<ArchiveTarget> archive,
               ParseOnExpire(a.on_expire, catalog, c.db, c.name, true, c.series.get()));
    *archives = archive.has_value();
  }
  return Ok();
}

/// The options for listCollections that are not kept elsewhere.
BsonDocument DescribeNewOptions(const CreateArgs& a, bool archives, const CollectionInfo& c) {
  return BuildBson([&](BsonBuilder& b) {
    if (archives) b.Append("onExpire", a.on_expire);
    if (!a.expire_reads.missing()) b.Append(kExpireReadsOption, a.expire_reads);
    if (c.capped()) {
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
    if (a.validator) b.Append("validator", *a.validator);
    if (a.level)
      b.Append("validationLevel", *a.level);
    else if (a.validator)
      b.Append("validationLevel", "strict");
    if (a.action)
      b.Append("validationAction", *a.action);
    else if (a.validator)
      b.Append("validationAction", "error");
  });
}

/// Whether both are no time series, or have the same options.
bool SameSeries(Catalog& catalog, const CollectionInfo& old, const CollectionInfo& wanted) {
  if (old.is_series() != wanted.is_series()) return false;
  if (!old.is_series()) return true;
  const CollectionInfoPtr buckets = BucketsOf(catalog, old);
  if (!buckets) return false;
  SeriesOptions now = *buckets->series;
  now.suspended = false;
  return now == *wanted.series && buckets->expire_after_seconds == wanted.expire_after_seconds &&
         buckets->options.bytes() == wanted.options.bytes();
}

bool SameDefinition(const CollectionInfo& a, const CollectionInfo& b) {
  return a.is_view() == b.is_view() && (a.is_series() || a.options.bytes() == b.options.bytes()) &&
         a.clustered() == b.clustered() &&
         (a.is_series() || a.expire_after_seconds == b.expire_after_seconds) &&
         (a.is_series() || a.view_on == b.view_on) &&
         a.view_pipeline.bytes() == b.view_pipeline.bytes();
}

/// Sets the database's limit unless it has one: restoring a dump into a database in use does not
/// change its limit.
Result<void> RestoreDatabaseLimit(CommandContext& ctx, std::string_view db, int64_t seconds) {
  Catalog& catalog = ctx.data.storage().catalog();
  if (seconds == 0 || catalog.DatabaseMaxTtl(db) != 0) return Ok();
  MAYFLY_TRY(catalog.SetDatabaseMaxTtl(ctx.op, db, seconds));
  Audit(ctx, "setDatabaseExpiry", [&](BsonBuilder& p) {
    p.Append("db", db);
    p.OpenDocument("old").Append("maxTTL", int64_t{0});
    p.OpenDocument("new").Append("maxTTL", seconds);
  });
  return Ok();
}

}  // namespace

Result<void> CreateCollection(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply,
                              std::optional<Uuid> uuid) {
  ArgReader in(req);
  MAYFLY_TRY(CreateArgs a, ReadCreateArgs(in));
  BsonDocument expiry;
  MAYFLY_TRY(TakeDatabaseLimit(a, &expiry));
  Catalog& catalog = ctx.data.storage().catalog();
  CollectionInfo c;
  if (uuid) c.uuid = *uuid;
  c.db = req.db;
  c.name = a.name;
  MAYFLY_TRY(ValidateNewNamespace(req.db, c.name));
  if (a.pre_images) {
    MAYFLY_TRY(c.pre_images, ParsePreImages("create", req.db, *a.pre_images));
  }
  MAYFLY_TRY(CheckFixedOptions(a));
  MAYFLY_TRY(SetView(catalog, a, c));
  MAYFLY_TRY(SetCapped(a, c));
  MAYFLY_TRY(SetSeries(a, ctx.op.now, c));
  if (!a.series) {
    MAYFLY_TRY(SetClustered(in, a.clustered, c));
  }
  bool archives = false;
  MAYFLY_TRY(SetExpiry(a, catalog, ctx.op.now, c, &archives));
  c.options = DescribeNewOptions(a, archives, c);
  // The log shows it in one document, which has to fit into a reply with all that is around it.
  if (const size_t bytes = c.options.view().size() + c.view_pipeline.view().size();
      bytes > kMaxBsonUserSize)
    return Error{ErrorCode::kBSONObjectTooLarge,
                 "the options of this collection take " + std::to_string(bytes) +
                     " bytes; they may take " + std::to_string(kMaxBsonUserSize)};
  MAYFLY_TRY(CheckGivenIdIndex(ctx.expiry, a, c));
  MAYFLY_TRY(SetValidator(ctx.data, c, a.validator, a.level, a.action));
  Transaction* const transaction =
      ctx.op.view != nullptr ? TransactionsOf(ctx.data)->Running(ctx) : nullptr;
  if (transaction != nullptr && (c.is_view() || c.name.starts_with("system.")))
    return Error{ErrorCode::kOperationNotSupportedInTransaction,
                 std::string("Cannot create a ") +
                     (c.is_series() ? "time-series collection"
                      : c.is_view() ? "view"
                                    : "system collection") +
                     " in a multi-document transaction."};
  if (transaction != nullptr) {
    MAYFLY_TRY(transaction->CheckDefines(req.name));
    if (a.database_max_ttl != 0)
      return Error{ErrorCode::kOperationNotSupportedInTransaction,
                   "Cannot set expiry.databaseMaxTTL in a multi-document transaction."};
  }
  MAYFLY_TRY(CollectionInfoPtr old, FindCollection(catalog, ctx.op, req.db, c.name));
  if (old) {
    // In a transaction, creating an existing collection is an error, whatever its options
    // (PyMongo's own tests of transactions expect that).
    if (transaction != nullptr && !old->is_view())
      return Error{ErrorCode::kNamespaceExists, "Collection already exists. NS: " + old->ns};
    if (SameDefinition(*old, c) && SameSeries(catalog, *old, c) && !a.dry_run)
      return RestoreDatabaseLimit(ctx, req.db, a.database_max_ttl);
    return Error{ErrorCode::kNamespaceExists,
                 old->is_series() ? "A timeseries collection already exists. NS: " + old->ns
                 : old->is_view() ? "A view already exists. NS: " + old->ns
                                  : "Collection " + old->ns + " already exists with other options"};
  }
  if (a.dry_run) {
    if (!c.expire_after_seconds)
      return Error{
          ErrorCode::kInvalidOptions,
          "'dryRun' tells what a rule would remove: the collection has no 'expireAfterSeconds'"};
    // There is nothing in it yet.
    AppendDryRun(RuleCensus(), reply);
    return Ok();
  }
  if (transaction == nullptr) {
    MAYFLY_TRY(catalog.Create(ctx.op, std::move(c)));
    MAYFLY_TRY(RestoreDatabaseLimit(ctx, req.db, a.database_max_ttl));
  } else {
    Result<CollectionInfoPtr> made =
        CreateInTransaction(ctx.data.storage(), transaction->unit(), ctx.op, std::move(c));
    if (!made && transaction->Renew(ctx, made.error()))
      return CreateCollection(ctx, req, reply, uuid);
    if (!made) return made.error();
  }
  return Ok();
}

namespace {

Result<void> RunCreate(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  return CreateCollection(ctx, req, reply, std::nullopt);
}

}  // namespace

void RegisterCreate(CommandRegistry& registry) {
  registry.Add({.name = "create",
                .flags = kWrites | kWorker | kTakesWriteConcern | kApiV1,
                .help = "Creates a collection or view.",
                .run = &RunCreate,
                .privileges = &privileges::Create});
}

}  // namespace mayfly

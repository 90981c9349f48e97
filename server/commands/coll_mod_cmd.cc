#include <cmath>

#include "protocol/extended_json.h"
#include "protocol/value.h"
#include "query/plan/find_executor.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/data_services.h"
#include "server/execution/collection_options.h"
#include "server/execution/index_spec.h"
#include "server/execution/series_definition.h"
#include "server/execution/ttl_preview.h"
#include "server/execution/view_definition.h"
#include "server/privileges/pipeline_privileges.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/expire_reads.h"
#include "storage/catalog/index_conflict.h"
#include "storage/catalog/namespace.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"
#include "storage/write/archive.h"
#include "timeseries/bucket_span.h"
#include "ttl/reap_limits.h"

namespace mayfly {

namespace {

constexpr std::string_view kDryRunIsFor =
    "The 'dryRun' option is only supported for a change of 'expireAfterSeconds' and for the "
    "conversion of an index to unique";

/// The `index` document of collMod.
struct IndexChange {
  std::optional<std::string_view> name;
  std::optional<BsonView> key;
  BsonValue expire, reap;
  std::optional<ExpireReads> reads;
  std::optional<bool> hidden, unique, prepare_unique;
  IndexInfoPtr index;   ///< what it is about
  int32_t seconds = 0;  ///< what `expire` comes to
};

Result<IndexInfoPtr> FindIndex(const CollectionInfo& coll, const IndexChange& c) {
  if (c.name && c.key) return InvalidOptions("Cannot specify both key pattern and name.");
  if (!c.name && !c.key) return InvalidOptions("Must specify either index name or key pattern.");
  if (c.name) {
    if (*c.name == "_id_") return IndexInfoPtr();
    if (IndexInfoPtr i = coll.FindIndex(*c.name)) return i;
    return Error{ErrorCode::kIndexNotFound,
                 "cannot find index " + std::string(*c.name) + " for ns " + SeriesNamespace(coll)};
  }
  if (IsIdIndexKey(*c.key)) return IndexInfoPtr();
  IndexInfoPtr found;
  for (const IndexInfoPtr& i : coll.indexes) {
    if (!SameIndexKey(i->key, *c.key)) continue;
    if (found)
      return Error{ErrorCode::kAmbiguousIndexKeyPattern,
                   "index keyPattern " + ToRelaxedJson(c.key->AsValue()) +
                       " matches 2 indexes, must use index name. Conflicting indexes: " +
                       found->name + ", " + i->name};
    found = i;
  }
  if (!found)
    return Error{ErrorCode::kIndexNotFound, "cannot find index " + ToRelaxedJson(c.key->AsValue()) +
                                                " for ns " + SeriesNamespace(coll)};
  return found;
}

/// An empty document: no limits any more.
void SetReap(IndexInfo& index, BsonView reap) {
  index.extra = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : index.extra.view())
      if (e.name != "reap") b.Append(e);
    if (!reap.empty()) b.Append("reap", reap);
  });
}

/// The documents of one key, and which of them are there: what FindDuplicates collects.
class Duplicates {
 public:
  static constexpr size_t kMaxBytes = 8 << 20;  ///< of what is listed, as in MongoDB
  Duplicates(CommandContext& ctx, const CollectionInfo& coll)
      : ctx_(ctx), coll_(coll), visible_(ctx.data.storage(), coll, ctx.op) {}
  /// One more document of the key; the same again is no conflict with itself.
  Result<void> Add(std::string_view record_key) {
    if (record_key == last_) return Ok();
    last_ = record_key;
    keys_.emplace_back(record_key);
    return keys_.size() < kAtOnce ? Ok() : Look();
  }
  /// The key's documents have all been added: they are listed if they are several.
  Result<void> EndKey(BsonArrayBuilder& list) {
    if (keys_.size() + ids_.size() > 1) {
      MAYFLY_TRY(Look());
    }
    if (ids_.size() > 1) {
      auto entry = list.OpenDocument();
      auto shown = entry.OpenArray("ids");
      for (const Value& id : ids_) shown.Append(id.view());
      any_ = true;
      listed_ += bytes_;
    }
    bytes_ = 0;
    keys_.clear();
    ids_.clear();
    last_.clear();
    return Ok();
  }
  bool any() const { return any_; }
  bool full() const { return listed_ + bytes_ >= kMaxBytes; }

 private:
  static constexpr size_t kAtOnce = 1000;  ///< a key may have millions of documents
  /// Looks up the keys that wait, and keeps the ids found. Two are kept in any case.
  Result<void> Look() {
    for (const std::string& key : keys_) {
      MAYFLY_TRY(ctx_.op.CheckInterrupt());
      Storage::Record record;
      MAYFLY_TRY(bool there, ctx_.data.storage().Fetch(coll_, key, &record));
      if (!there || (full() && ids_.size() > 1)) continue;
      if (!visible_.Shows(record.doc, record.expire_at)) {
        MAYFLY_TRY(visible_.Stopped());
        continue;
      }
      ids_.push_back(Value::Copy(record.doc["_id"]));
      bytes_ += record.doc["_id"].size() + kElement;
    }
    keys_.clear();
    return Ok();
  }
  static constexpr size_t kElement = 16;  ///< about what an element takes besides its value
  CommandContext& ctx_;
  const CollectionInfo& coll_;
  const Visibility visible_;
  std::vector<std::string> keys_;
  std::vector<Value> ids_;
  std::string last_;
  size_t listed_ = 0, bytes_ = 0;  ///< the second of this key
  bool any_ = false;
};

/// The violations of a unique index: {violations: [{ids: […]}, …]}, one entry per key that several
/// documents have; empty when there is none. At most about 8 MiB of it, as in MongoDB. What is past
/// its deadline conflicts with nothing: the build removes it.
Result<BsonDocument> FindDuplicates(CommandContext& ctx, const CollectionInfoPtr& coll,
                                    const IndexInfoPtr& index) {
  auto cursor = ctx.data.storage().ScanIndex(coll, index, {});
  std::string values, bytes;
  BsonBuilder out(bytes);
  auto list = out.OpenArray("violations");
  Duplicates duplicates(ctx, *coll);
  while (!duplicates.full()) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(bool more, cursor->Next());
    if (!more) break;
    if (cursor->encoded_values() != values) {
      MAYFLY_TRY(duplicates.EndKey(list));
      values = cursor->encoded_values();
    }
    MAYFLY_TRY(duplicates.Add(cursor->record_key()));
  }
  MAYFLY_TRY(duplicates.EndKey(list));
  list.Done();
  out.Done();
  if (!duplicates.any()) return BsonDocument();
  return BsonDocument(BsonView(bytes.data()));
}

/// Everything that can be wrong with the `index` document, before anything is changed.
Result<IndexChange> CheckIndexChange(CommandContext& ctx, const CollectionInfoPtr& coll,
                                     BsonView spec, bool dry_run) {
  ArgReader in("collMod.index", spec);
  IndexChange c;
  c.name = in.OptString("name");
  c.key = in.OptDocument("keyPattern");
  c.expire = in.Any("expireAfterSeconds");
  BsonValue reads = in.Any("expireReads");
  c.reap = in.Any("reap");
  c.hidden = in.OptBool("hidden");
  c.unique = in.OptBool("unique");
  c.prepare_unique = in.OptBool("prepareUnique");
  MAYFLY_TRY(in.Finish());
  if (!reads.missing()) {
    MAYFLY_TRY(c.reads, ParseExpireReads(reads, "collMod.index.expireReads"));
  }
  if (!c.name && !c.key) return InvalidOptions("Must specify either index name or key pattern.");
  if (c.expire.missing() && c.reap.missing() && !c.reads && !c.hidden && !c.unique &&
      !c.prepare_unique)
    return InvalidOptions("no expireAfterSeconds, reap, hidden, unique, or prepareUnique field");
  if (!c.expire.missing() && !c.expire.IsNumber())
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field 'collMod.index.expireAfterSeconds' is the wrong type '" +
                     std::string(BsonTypeName(c.expire.type())) +
                     "', expected types '[long, int, decimal, double]'"};
  if (c.unique && !*c.unique) return InvalidOptions("collMod does not support 'unique: false'");
  MAYFLY_TRY(IndexInfoPtr index, FindIndex(*coll, c));
  if (!index) {
    if (!c.expire.missing() || !c.reap.missing())
      return InvalidOptions(
          "the _id field does not support TTL indexes: use a clustered collection");
    return InvalidOptions(c.hidden ? "can't hide _id index" : "cannot change the _id index");
  }
  c.index = index;
  if (!c.expire.missing()) {
    double d = c.expire.NumberAsDouble();
    if (std::isnan(d))
      return InvalidOptions("index '" + index->name +
                            "': expireAfterSeconds must be a number, but it is NaN");
    if (d < 0)
      return InvalidOptions("index '" + index->name +
                            "': expireAfterSeconds cannot be negative, but it is " +
                            ToRelaxedJson(c.expire));
    // Beyond int32 it becomes the largest value, and the reply says so (docs/expiry.md R21).
    c.seconds = d >= 2147483647.0 ? INT32_MAX : static_cast<int32_t>(c.expire.NumberAsInt64());
    if (index->fields.size() != 1)
      return InvalidOptions(
          "index '" + index->name +
          "': TTL indexes are single-field indexes, compound indexes do not support TTL");
    if (coll->capped())
      return InvalidOptions("index '" + index->name +
                            "': TTL indexes are not supported for capped collections");
    if (!index->kind->in_value_order)
      return InvalidOptions("index '" + index->name +
                            "': only ascending and descending indexes can be TTL indexes");
  }
  if (!c.reap.missing()) {
    if (c.expire.missing() && !index->expire_after_seconds)
      return InvalidOptions("index '" + index->name +
                            "': reap is an option of TTL indexes: give expireAfterSeconds too");
    MAYFLY_TRY(ParseReapLimits(c.reap, ErrorCode::kInvalidOptions, index->name));
  }
  if (c.unique && !index->unique) {
    if (!index->prepare_unique && !dry_run)
      return InvalidOptions(
          "Cannot make index unique with 'prepareUnique=false'. Run collMod to set it first.");
    MAYFLY_TRY(BsonDocument violations, FindDuplicates(ctx, coll, index));
    if (!violations.view().empty())
      return Error{ErrorCode::kCannotConvertIndexToUnique,
                   "Cannot convert the index to unique. Please resolve conflicting documents "
                   "before running collMod again.",
                   violations.bytes()};
  }
  if (dry_run && c.expire.missing() && !c.unique) return InvalidOptions(std::string(kDryRunIsFor));
  if (!dry_run && c.reads && !index->expire_after_seconds && c.expire.missing())
    return InvalidOptions("index '" + index->name + "': expireReads is for TTL indexes");
  return c;
}

Result<void> ChangeIndex(CommandContext& ctx, CollectionInfoPtr coll, const IndexChange& c,
                         bool dry_run, BsonBuilder& reply) {
  // As it is now: other options of the same command may have changed the collection.
  IndexInfoPtr index = coll->FindIndex(c.index->name);
  if (!index)
    return Error{ErrorCode::kIndexNotFound,
                 "cannot find index " + c.index->name + " for ns " + SeriesNamespace(*coll)};
  const int32_t seconds = c.seconds;
  if (dry_run) {
    if (!c.expire.missing()) {
      MAYFLY_TRY(DryRun(ctx, TtlRule{TtlRule::Kind::kTtlIndex, coll, index, seconds}, reply));
    }
    return Ok();
  }
  RuleGuard guard(ctx);
  if (!c.expire.missing()) {
    MAYFLY_TRY(guard.Begin(*coll, {index->name}));
    if (guard.active()) {
      MAYFLY_TRY(guard.Judge(TtlRule{TtlRule::Kind::kTtlIndex, coll, index, seconds}));
    }
  }
  const std::optional<int32_t> old_seconds = index->expire_after_seconds;
  const ExpireReads old_reads = index->expire_reads;
  const bool old_hidden = index->hidden, old_prepare = index->prepare_unique,
             old_unique = index->unique;
  MAYFLY_TRY(ctx.data.storage().catalog().ModifyIndex(ctx.op, *coll, index->name,
                                                      [&](IndexInfo& i) -> Result<void> {
                                                        if (!c.expire.missing())
                                                          i.expire_after_seconds = seconds;
                                                        if (c.reads) i.expire_reads = *c.reads;
                                                        if (!c.reap.missing())
                                                          SetReap(i, c.reap.Document());
                                                        if (c.hidden) i.hidden = *c.hidden;
                                                        if (c.prepare_unique)
                                                          i.prepare_unique = *c.prepare_unique;
                                                        if (c.unique) {
                                                          i.unique = true;
                                                          i.prepare_unique = false;
                                                        }
                                                        return Ok();
                                                      }));
  if (!c.expire.missing()) {
    if (old_seconds) reply.Append("expireAfterSeconds_old", int64_t{*old_seconds});
    reply.Append("expireAfterSeconds_new", int64_t{seconds});
    AuditRule(ctx, "collMod", coll->ns, index->name, old_seconds, seconds);
  }
  if (c.reads && *c.reads != old_reads) {
    if (old_reads != ExpireReads::kDefault)
      reply.Append("expireReads_old", ExpireReadsName(old_reads));
    reply.Append("expireReads_new", ExpireReadsName(*c.reads));
  }
  if (!c.reap.missing()) {
    if (BsonValue old = index->extra.view()["reap"]; old.IsDocument())
      reply.Append("reap_old", old);
    reply.Append("reap_new", c.reap);
  }
  const BsonValue old_reap = index->extra.view()["reap"];
  if ((c.reads && *c.reads != old_reads) || !c.reap.missing())
    Audit(ctx, "collMod", [&](BsonBuilder& p) {
      p.Append("ns", coll->ns).Append("index", index->name);
      auto side = [&](std::string_view name, ExpireReads reads, BsonValue reap) {
        BsonBuilder d = p.OpenDocument(name);
        if (c.reads && reads == ExpireReads::kDefault)
          d.AppendNull("expireReads");
        else if (c.reads)
          d.Append("expireReads", ExpireReadsName(reads));
        if (c.reap.missing()) return;
        if (reap.IsDocument())
          d.Append("reap", reap);
        else
          d.AppendNull("reap");
      };
      side("old", old_reads, old_reap);
      side("new", c.reads.value_or(old_reads), c.reap);
    });
  if (c.hidden && *c.hidden != old_hidden)
    reply.Append("hidden_old", old_hidden).Append("hidden_new", *c.hidden);
  if (c.prepare_unique && *c.prepare_unique != old_prepare)
    reply.Append("prepareUnique_old", old_prepare).Append("prepareUnique_new", *c.prepare_unique);
  if (c.unique && !old_unique) reply.Append("unique_new", true);
  guard.AppendTo(reply);
  return Ok();
}

/// The fields of `collMod`, as given. Views point into the request.
struct CollModArgs {
  std::string_view name;
  std::optional<BsonView> index, expiry, validator, pipeline, pre_images, series;
  BsonValue expire, expire_reads, on_expire;
  std::optional<std::string_view> level, action, view_on;
  std::optional<int64_t> capped_size, capped_max;
  bool dry_run = false;

  /// Anything but `index`, what clustered collections and time series have, and what views have.
  bool ChangesStorage() const {
    return validator || level || action || capped_size || capped_max || expiry || pre_images;
  }
  bool ChangesOthers() const {
    return ChangesStorage() || !on_expire.missing() || !expire_reads.missing();
  }
};

Result<CollModArgs> ReadCollModArgs(const CommandRequest& req) {
  ArgReader in(req);
  CollModArgs a;
  a.name = in.Collection();
  a.index = in.OptDocument("index");
  a.expire = in.Any("expireAfterSeconds");
  a.expire_reads = in.Any(kExpireReadsOption);
  a.expiry = in.OptDocument("expiry");
  a.on_expire = in.Any("onExpire");
  a.validator = in.OptDocument("validator");
  a.level = in.OptString("validationLevel");
  a.action = in.OptString("validationAction");
  // check_names: ModifyView looks
  a.view_on = in.OptString("viewOn");
  a.pipeline = in.OptArray("pipeline");
  a.capped_size = in.OptInt64("cappedSize");
  a.capped_max = in.OptInt64("cappedMax");
  a.dry_run = in.BoolOr("dryRun", false);
  a.series = in.OptDocument("timeseries");
  a.pre_images = in.OptDocument("changeStreamPreAndPostImages");
  MAYFLY_TRY(in.Finish());
  return a;
}

Result<void> ModifyView(CommandContext& ctx, const CollectionInfo& view, const CollModArgs& a) {
  if (a.index || !a.expire.missing() || a.ChangesOthers())
    return InvalidOptions("option not supported on a view: " + view.ns);
  if (a.view_on && a.view_on->empty())
    return Error{ErrorCode::kBadValue, "'viewOn' cannot be empty"};
  // What is not given stays.
  const std::string_view on = a.view_on ? *a.view_on : std::string_view(view.view_on);
  const BsonView pipeline = a.pipeline ? *a.pipeline : view.view_pipeline.view();
  Catalog& catalog = ctx.data.storage().catalog();
  if (a.view_on) {
    MAYFLY_TRY(ValidateNamespace(view.db, on));
  }
  // Checked again as a whole: a new pipeline alone could show more of the collection below.
  if (ctx.access != nullptr &&
      !privileges::AllowsViewOf(ctx.access->privileges, view.db, view.name, on, pipeline))
    return Error{ErrorCode::kUnauthorized, "not authorized on " + view.db +
                                               " to change the view '" + view.name +
                                               "': it would show what you may not read"};
  MAYFLY_TRY(CheckViewDefinition(catalog, view.db, view.name, on, pipeline));
  MAYFLY_TRY(catalog.Modify(ctx.op, view, [&](CollectionInfo& c) -> Result<void> {
    if (a.view_on) c.view_on = *a.view_on;
    if (a.pipeline) c.view_pipeline = BsonDocument(*a.pipeline);
    return Ok();
  }));
  return Ok();
}

/// `timeseries` of an oplog's collMod, which has all options of the collection: what it changes. A
/// span only grows, and that of the collection may be newer than the entry. Empty: nothing.
BsonDocument SeriesChangeOfEntry(BsonView given, const SeriesOptions& now) {
  const BsonValue span = given["bucketMaxSpanSeconds"];
  if (span.IsNumber() && span.NumberAsInt64() <= now.max_span_seconds) return BsonDocument();
  const bool granular = given.Has("granularity");
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& f : given)
      if (f.name == "granularity" || (f.name.starts_with("bucket") && !granular)) b.Append(f);
  });
}

/// Turns collMod's change of a time series into one of its buckets. `*index`: the translated key
/// pattern of `a`.
Result<void> CheckSeriesChange(const CollectionInfo& series, const CollectionInfo& buckets,
                               CollModArgs& a, BsonDocument* index, SeriesOptions* to) {
  if (a.view_on || a.pipeline || a.ChangesStorage())
    return InvalidOptions(
        "collMod of a time-series collection takes timeseries, expireAfterSeconds, expireReads, "
        "onExpire and index, nothing else: " +
        series.ns);
  if (a.index) {
    if (a.index->Has("expireAfterSeconds"))
      return InvalidOptions(
          "index.expireAfterSeconds is not for time-series collections: give expireAfterSeconds "
          "of the collection, or drop the TTL index and create it anew");
    // As createIndexes: an entry is of a bucket, so two inserts with equal bounds would conflict.
    for (const char* option : {"unique", "prepareUnique"})
      if (const BsonValue v = (*a.index)[option];
          (v.Is(BsonType::kBool) || v.IsNumber()) && v.Truthy())
        return InvalidOptions(std::string("index.") + option +
                              " is not for time-series collections: unique indexes are not "
                              "supported on " +
                              series.ns);
    if (const BsonValue key = (*a.index)["keyPattern"]; key.IsDocument()) {
      MAYFLY_TRY(const BsonDocument moved, BucketIndexKey(*buckets.series, key.Document()));
      *index = BuildBson([&](BsonBuilder& b) {
        for (const BsonElement& e : *a.index)
          if (e.name == "keyPattern")
            b.Append(e.name, moved);
          else
            b.Append(e);
      });
      a.index = index->view();
    }
  }
  *to = *buckets.series;
  if (!a.series) return Ok();
  ArgReader in("collMod.timeseries", *a.series);
  const SpanOptions span = TakeSpanOptions(in);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(const SeriesSpan next,
             SpanForChange({{to->max_span_seconds, to->rounding_seconds}, to->granularity}, span));
  to->granularity = next.granularity;
  to->max_span_seconds = next.span.max_span_seconds;
  to->rounding_seconds = next.span.rounding_seconds;
  return Ok();
}

/// Whether there is a point whose date suspends all expiry.
Result<bool> HasSuspendingPoint(CommandContext& ctx, const CollectionInfoPtr& buckets) {
  const std::string& time = buckets->series->time_field;
  const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
    BsonArrayBuilder any = b.OpenArray("$or");
    any.OpenDocument().OpenDocument("control.min." + time).Append("$lt", Instant{0});
    any.OpenDocument()
        .OpenDocument("control.max." + time)
        .Append("$gt", Instant{int64_t{INT32_MAX} * 1000});
  });
  QuerySpec spec;
  spec.coll = buckets;
  spec.ns = buckets->ns;
  spec.filter = filter;
  spec.limit = 1;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
             MakeFindExecutor(ctx.data.storage(), ctx.op, std::move(spec)));
  MAYFLY_TRY(PlanExecutor::State state, found->Next());
  return state == PlanExecutor::State::kAdvanced;
}

/// The buckets as they would be with these options.
CollectionInfoPtr WithSeries(const CollectionInfo& buckets, const SeriesOptions& options) {
  auto changed = std::make_shared<CollectionInfo>(buckets);
  changed->series = std::make_shared<const SeriesOptions>(options);
  return changed;
}

/// `expireAfterSeconds` of a clustered collection; nothing for "off", or when it is not given.
Result<std::optional<int64_t>> ReadClusteredSeconds(const CollectionInfo& coll, BsonValue expire,
                                                    Instant now) {
  if (expire.missing()) return std::optional<int64_t>();
  if (!coll.clustered())
    return InvalidOptions(
        "'expireAfterSeconds' is only supported on clustered collections: change a TTL index "
        "with index: {keyPattern, expireAfterSeconds}");
  if (expire.IsString()) {
    if (expire.String() != "off")
      return InvalidOptions("the only string allowed for 'expireAfterSeconds' is 'off', not '" +
                            std::string(expire.String()) + "'");
    return std::optional<int64_t>();
  }
  MAYFLY_TRY(int64_t n,
             ParseCollectionExpiry(coll.is_buckets() ? "time-series" : "clustered", expire, now));
  return std::optional(n);
}

Result<void> CheckCappedSize(const CollectionInfo& coll, const CollModArgs& a) {
  if ((a.capped_size || a.capped_max) && !coll.capped())
    return InvalidOptions("cappedSize and cappedMax can only be set on a capped collection");
  if (a.capped_size && (*a.capped_size <= 0 || *a.capped_size > (int64_t{1} << 50)))
    return Error{ErrorCode::kBadValue, "BSON field 'collMod.cappedSize' is out of range"};
  return Ok();
}

/// The options of `next` for listCollections; its other members are final. `was`: the options so
/// far.
BsonDocument DescribeChangedOptions(BsonView was, const CollModArgs& a, bool archives,
                                    const CollectionInfo& next) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : was) {
      const bool replaced = (a.validator && e.name == "validator") ||
                            ((a.validator || a.level) && e.name == "validationLevel") ||
                            ((a.validator || a.action) && e.name == "validationAction") ||
                            (a.expiry && e.name == "expiry") ||
                            e.name == "changeStreamPreAndPostImages" || e.name == "onExpire" ||
                            e.name == kExpireReadsOption ||
                            (next.capped() && (e.name == "size" || e.name == "max"));
      if (!replaced) b.Append(e);
    }
    if (next.pre_images) AppendPreImages(b);
    if (a.expiry && next.expiry_options.set())
      b.Append("expiry", DescribeExpiryOptions(next.expiry_options));
    if (next.capped()) {
      b.Append("size", next.capped_bytes);
      if (next.capped_documents > 0) b.Append("max", next.capped_documents);
    }
    // In the order of create, which compares the options of a time series.
    if (archives || a.on_expire.missing())
      if (const BsonValue v = archives ? a.on_expire : was["onExpire"]; !v.missing())
        b.Append("onExpire", v);
    if (const BsonValue v = a.expire_reads.missing() ? was[kExpireReadsOption] : a.expire_reads;
        !v.missing())
      b.Append(kExpireReadsOption, v);
    auto as_it_was = [&](const char* field, const char* otherwise) {
      BsonValue v = was[field];
      return v.IsString() ? std::string(v.String()) : std::string(otherwise);
    };
    if (a.validator && !a.validator->empty()) b.Append("validator", *a.validator);
    if (a.validator || a.level)
      b.Append("validationLevel",
               a.level ? std::string(*a.level) : as_it_was("validationLevel", "strict"));
    if (a.validator || a.action)
      b.Append("validationAction",
               a.action ? std::string(*a.action) : as_it_was("validationAction", "error"));
  });
}

/// collMod's changes of a collection, besides one of its indexes.
struct NewSettings {
  std::optional<int64_t> seconds;  ///< of a clustered collection; with CollModArgs::expire
  ExpiryOptions expiry;
  bool pre_images = false;
  std::optional<SeriesOptions> series;  ///< of buckets
};

Result<void> ModifyCollection(CommandContext& ctx, const CollectionInfo& coll, const CollModArgs& a,
                              const NewSettings& to) {
  Catalog& catalog = ctx.data.storage().catalog();
  MAYFLY_TRY(catalog.Modify(ctx.op, coll, [&](CollectionInfo& c) -> Result<void> {
    std::optional<ArchiveTarget> archive;
    if (!a.on_expire.missing()) {
      // Again, now that nobody else can change a collection: two changes at once make no cycle.
      MAYFLY_TRY(archive, ParseOnExpire(a.on_expire, catalog, c.db, a.name, false, c.series.get()));
    }
    if (!a.expire.missing()) c.expire_after_seconds = to.seconds;
    if (to.series) c.series = std::make_shared<const SeriesOptions>(*to.series);
    if (a.expiry) c.expiry_options = to.expiry;
    if (a.pre_images) c.pre_images = to.pre_images;
    if (a.capped_size) c.capped_bytes = (*a.capped_size + 255) / 256 * 256;
    if (a.capped_max) c.capped_documents = std::max<int64_t>(*a.capped_max, 0);
    c.options = DescribeChangedOptions(coll.options, a, archive.has_value(), c);
    return SetValidator(ctx.data, c, a.validator, a.level, a.action);
  }));
  if (!a.expire.missing())
    AuditRule(ctx, "collMod", coll.ns, "clustered", coll.expire_after_seconds, to.seconds);
  if (a.expiry)
    Audit(ctx, "collMod", [&](BsonBuilder& p) {
      p.Append("ns", coll.ns);
      p.OpenDocument("old").Append("expiry", DescribeExpiryOptions(coll.expiry_options));
      p.OpenDocument("new").Append("expiry", DescribeExpiryOptions(to.expiry));
    });
  if (!a.on_expire.missing())
    AuditOnExpire(ctx, "collMod", coll, coll.options.view()["onExpire"], a.on_expire);
  if (!a.expire_reads.missing())
    Audit(ctx, "collMod", [&](BsonBuilder& p) {
      const BsonValue old = coll.options.view()[kExpireReadsOption];
      p.Append("ns", SeriesNamespace(coll));
      BsonBuilder was = p.OpenDocument("old");
      if (old.missing())
        was.AppendNull(kExpireReadsOption);
      else
        was.Append(kExpireReadsOption, old);
      was.Done();
      p.OpenDocument("new").Append(kExpireReadsOption, a.expire_reads);
    });
  return Ok();
}

Result<void> RunCollMod(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(CollModArgs a, ReadCollModArgs(req));
  Catalog& catalog = ctx.data.storage().catalog();
  std::string name(a.name);
  const auto open = [&] { return OpenCollection(catalog, req.db, name, CollectionUse::kChange); };
  MAYFLY_TRY(CollectionInfoPtr coll, open());
  if (coll->is_buckets())
    return Error{ErrorCode::kIllegalOperation,
                 coll->ns + " holds the buckets of a time-series collection: change that one"};
  std::optional<SeriesOptions> series;
  BsonDocument index_of_buckets, series_change;
  if (coll->is_series()) {
    const CollectionInfoPtr buckets = BucketsOf(catalog, *coll);
    if (!buckets) return Error{ErrorCode::kNamespaceNotFound, "ns does not exist: " + coll->ns};
    if (req.of_entry && a.series) {
      series_change = SeriesChangeOfEntry(*a.series, *buckets->series);
      a.series.reset();
      if (!series_change.view().empty()) a.series = series_change.view();
    }
    MAYFLY_TRY(CheckSeriesChange(*coll, *buckets, a, &index_of_buckets, &series.emplace()));
    coll = buckets;
    name = buckets->name;
    if (series->suspended && !a.expire.missing()) {
      MAYFLY_TRY(series->suspended, HasSuspendingPoint(ctx, buckets));
    }
  } else if (a.series) {
    return InvalidOptions("option only supported on a timeseries collection: timeseries");
  }
  NewSettings to{.seconds = {},
                 .expiry = coll->expiry_options,
                 .pre_images = coll->pre_images,
                 .series = std::move(series)};
  if (a.pre_images) {
    MAYFLY_TRY(to.pre_images, ParsePreImages("collMod", req.db, *a.pre_images));
  }
  if (a.dry_run &&
      (a.index.has_value() != a.expire.missing() || a.view_on || a.pipeline || a.ChangesOthers()))
    return InvalidOptions(std::string(kDryRunIsFor));
  if (a.expiry) {
    if (coll->capped())
      return InvalidOptions("the 'expiry' option is not supported on capped collections");
    MAYFLY_TRY(ParseExpiryOptions(*a.expiry, true, &to.expiry));
  }
  if (coll->is_view()) return ModifyView(ctx, *coll, a);
  if (a.view_on || a.pipeline)
    return InvalidOptions("'viewOn' and 'pipeline' are only valid for views, not for collection " +
                          coll->ns);
  MAYFLY_TRY(to.seconds, ReadClusteredSeconds(*coll, a.expire, ctx.op.now));
  if (!a.on_expire.missing()) {
    if (coll->capped()) return InvalidOptions("onExpire is not supported on capped collections");
    MAYFLY_TRY(ParseOnExpire(a.on_expire, catalog, req.db, a.name, false, coll->series.get()));
  }
  if (!a.expire_reads.missing()) {
    MAYFLY_TRY(
        ParseCollectionExpireReads(a.expire_reads, "collMod.expireReads", coll->clustered()));
  }
  MAYFLY_TRY(CheckCappedSize(*coll, a));
  // All of the command is looked at before the first part of it changes anything.
  IndexChange index_change;
  if (a.index) {
    MAYFLY_TRY(index_change, CheckIndexChange(ctx, coll, *a.index, a.dry_run));
  }
  RuleGuard guard(ctx);
  if (!a.expire.missing()) {
    const int64_t span = to.series ? to.series->max_span_seconds : 0;
    TtlRule rule{TtlRule::Kind::kClustered, coll, nullptr, to.seconds.value_or(0) + span};
    if (a.dry_run) {
      // A change of the rule ends a suspension once the points that caused it are gone.
      if (to.series) rule.coll = WithSeries(*coll, *to.series);
      if (to.seconds) return DryRun(ctx, rule, reply);
      AppendDryRun(RuleCensus(), reply);  // "off": nothing expires
      return Ok();
    }
    if (to.seconds) {
      MAYFLY_TRY(guard.Begin(*coll, {RuleIdentity(rule)}));
      if (guard.active()) {
        MAYFLY_TRY(guard.Judge(rule));
      }
    }
  }
  // A collMod without changes is in the oplog too: change streams show it.
  const bool bare = ctx.data.replica_set() != nullptr && !a.index && !a.dry_run;
  if (!a.expire.missing() || a.ChangesOthers() || a.series || bare) {
    MAYFLY_TRY(ModifyCollection(ctx, *coll, a, to));
    MAYFLY_TRY(coll, open());
  }
  guard.AppendTo(reply);
  if (a.index) return ChangeIndex(ctx, coll, index_change, a.dry_run, reply);
  return Ok();
}

}  // namespace

void RegisterCollMod(CommandRegistry& registry) {
  registry.Add({.name = "collMod",
                .flags = kWrites | kWorker | kApiV1 | kTakesWriteConcern,
                .help = "Changes options of a collection, view or index.",
                .run = &RunCollMod,
                .privileges = &privileges::CollMod});
}

}  // namespace mayfly

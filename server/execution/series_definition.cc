#include "server/execution/series_definition.h"

#include <algorithm>

#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "protocol/shown_namespace.h"
#include "protocol/system_names.h"
#include "query/plan/planner.h"
#include "server/dispatch/arg_reader.h"
#include "storage/catalog/expire_reads.h"
#include "timeseries/bucket_span.h"

namespace mayfly {
namespace {

Error NoBucketIndex(std::string why) { return {ErrorCode::kCannotCreateIndex, std::move(why)}; }

/// Whether a filter that only names the field `meta` asks for anything of it: an empty one is met
/// by all points, which expireAfterSeconds of the collection is for. `$or` does if all of its parts
/// do, `$and` if one does. As deep as a request may nest.
bool AsksForMeta(BsonView filter) {
  for (const BsonElement& e : filter) {
    if (e.name == "$comment") continue;
    if (!e.name.starts_with('$')) return true;
    if (!e.value.IsArray() || e.value.Document().empty()) continue;
    bool all = true, any = false;
    for (const BsonElement& part : e.value.Document()) {
      const bool asks = part.value.IsDocument() && AsksForMeta(part.value.Document());
      all = all && asks;
      any = any || asks;
    }
    if (e.name == "$and" ? any : all) return true;
  }
  return false;
}

/// The rule for a TTL index of a time series: it shortens the life of what its filter finds.
Result<void> CheckSeriesTtlIndex(const SeriesOptions& series, BsonView spec) {
  const BsonView key = spec["key"].Document();
  if (key.Count() != 1 || key.First().name != series.time_field || !key.First().value.IsNumber())
    return Error{ErrorCode::kInvalidOptions,
                 "TTL indexes of a time-series collection are on its timeField '" +
                     series.time_field + "' alone"};
  const BsonValue filter = spec["partialFilterExpression"];
  if (series.meta_field.empty() || !filter.IsDocument() || !AsksForMeta(filter.Document()))
    return Error{ErrorCode::kInvalidOptions,
                 "TTL indexes of a time-series collection need a partialFilterExpression on its "
                 "metaField: for all points set expireAfterSeconds of the collection"};
  return Ok();
}

}  // namespace

SpanOptions TakeSpanOptions(ArgReader& in) {
  SpanOptions span;
  if (const auto granularity = in.OptString("granularity"))
    span.granularity = std::string(*granularity);
  span.max_span_seconds = in.OptInt64("bucketMaxSpanSeconds");
  span.rounding_seconds = in.OptInt64("bucketRoundingSeconds");
  return span;
}

Result<SeriesOptions> ParseSeriesOptions(BsonView given, std::string_view where) {
  ArgReader in(where, given);
  SeriesOptions s;
  s.time_field = in.String("timeField");
  const std::optional<std::string_view> meta = in.OptString("metaField");
  SpanOptions span = TakeSpanOptions(in);
  MAYFLY_TRY(in.Finish());
  if (meta) s.meta_field = *meta;
  MAYFLY_TRY(CheckSeriesFields(s.time_field, meta ? &s.meta_field : nullptr));
  // As listCollections shows it beside a granularity, and tools that restore send it back.
  if (span.granularity && span.max_span_seconds && !span.rounding_seconds) {
    MAYFLY_TRY(const BucketSpan own, SpanOfGranularity(*span.granularity));
    if (own.max_span_seconds == *span.max_span_seconds) span.max_span_seconds.reset();
  }
  MAYFLY_TRY(const SeriesSpan made, SpanForCreate(span));
  s.granularity = made.granularity;
  s.max_span_seconds = made.span.max_span_seconds;
  s.rounding_seconds = made.span.rounding_seconds;
  return s;
}

CollectionInfoPtr BucketsOf(Catalog& catalog, const CollectionInfo& series) {
  CollectionInfoPtr buckets = catalog.Find(series.db, series.view_on);
  return buckets && buckets->is_buckets() ? buckets : nullptr;
}

SeriesShape ShapeOf(const CollectionInfo& buckets) {
  constexpr std::string_view kLeastOf = "control.min.";
  const SeriesOptions& series = *buckets.series;
  SeriesShape shape{.fields = {series.time_field, series.meta_field},
                    .max_span_seconds = series.max_span_seconds,
                    .extended_range = series.suspended};
  for (const IndexInfoPtr& i : buckets.indexes) {
    // Where an array was, an entry has its elements, and no bounds are right for these conditions.
    if (!IsUsable(*i) || i->is_multikey()) continue;
    for (const IndexField& f : i->fields) {
      if (!f.path.starts_with(kLeastOf)) continue;
      std::string field = f.path.substr(kLeastOf.size());
      if (field.empty() || field == series.time_field ||
          field.find_first_of(".$") != std::string::npos ||
          std::find(shape.indexed.begin(), shape.indexed.end(), field) != shape.indexed.end())
        continue;
      shape.indexed.push_back(std::move(field));  // bounded: by the indexes of a collection
    }
  }
  return shape;
}

std::optional<Instant> HiddenPoints::Of(BsonView bucket) const {
  std::optional<Instant> out = through;
  for (const OfIndex& i : by_index)
    if ((!out || *out < i.through) && i.index->filter->Matches(bucket)) out = i.through;
  return out;
}

HiddenPoints HiddenPointsOf(const ExpiryPolicy& policy, const CollectionInfo& buckets,
                            Instant now) {
  HiddenPoints out;
  if (!buckets.HasTtlRules() || !policy.monitor_enabled.load(std::memory_order_relaxed) ||
      policy.suspended.load(std::memory_order_relaxed) || buckets.ExpirySuspended() ||
      policy.HasHolds(buckets))
    return out;
  const bool by_default = policy.index_reads_exact_default.load(std::memory_order_relaxed);
  if (buckets.expire_after_seconds && HidesDue(ExpireReadsOf(buckets), by_default) &&
      policy.RuleActive(buckets, nullptr))
    out.through = Instant{SaturatingDeadline(now.millis, -*buckets.expire_after_seconds)};
  for (const IndexInfoPtr& i : buckets.indexes)
    if (i->expire_after_seconds && i->filter && i->state == IndexState::kReady &&
        HidesDue(i->expire_reads, by_default) && policy.RuleActive(buckets, i.get()))
      out.by_index.push_back(  // bounded: by the indexes of a collection
          {i.get(), Instant{SaturatingDeadline(now.millis, -*i->expire_after_seconds)}});
  return out;
}

BsonDocument SeriesReadPipeline(Catalog& catalog, const ExpiryPolicy& policy,
                                const CollectionInfo& series, Instant now, bool include_expired) {
  const CollectionInfoPtr buckets = BucketsOf(catalog, series);
  std::string bytes;
  BsonArrayBuilder stages(bytes);
  BsonBuilder stage = stages.OpenDocument();
  BsonBuilder spec = stage.OpenDocument("$_internalUnpackBucket");
  spec.Append("timeField", series.series->time_field);
  if (!series.series->meta_field.empty()) spec.Append("metaField", series.series->meta_field);
  if (buckets) {
    spec.Append("bucketMaxSpanSeconds", buckets->series->max_span_seconds);
    if (buckets->series->suspended) spec.Append("usesExtendedRange", true);
    if (const SeriesShape shape = ShapeOf(*buckets); !shape.indexed.empty()) {
      BsonArrayBuilder indexed = spec.OpenArray("indexedFields");
      for (const std::string& field : shape.indexed) indexed.Append(field);
    }
    const HiddenPoints hidden =
        include_expired ? HiddenPoints() : HiddenPointsOf(policy, *buckets, now);
    if (hidden.through) spec.Append("hideThrough", *hidden.through);
    if (!hidden.by_index.empty()) {
      BsonArrayBuilder list = spec.OpenArray("hideOf");
      for (const HiddenPoints::OfIndex& i : hidden.by_index)
        list.OpenDocument().Append("filter", i.index->partial_filter).Append("through", i.through);
    }
  }
  spec.Done();
  stage.Done();
  stages.Done();
  return BsonDocument(std::move(bytes));
}

std::optional<std::string> BucketMetaPath(const SeriesOptions& series, std::string_view path) {
  return MovedPath(series.meta_field, "meta", path);
}

std::optional<BsonDocument> BucketMetaFilter(const SeriesOptions& series, BsonView filter) {
  std::string bytes;
  BsonBuilder b(bytes);
  if (!AppendMovedFilter(series.meta_field, "meta", filter, b)) return std::nullopt;
  b.Done();
  return BsonDocument(std::move(bytes));
}

Result<BsonDocument> BucketIndexKey(const SeriesOptions& series, BsonView key) {
  std::string bytes;
  BsonBuilder b(bytes);
  for (const BsonElement& e : key) {
    if (std::optional<std::string> meta = BucketMetaPath(series, e.name)) {
      b.Append(*meta, e.value);
      continue;
    }
    if (!e.value.IsNumber())
      return NoBucketIndex("an index of a time-series collection on '" + std::string(e.name) +
                           "' must be ascending or descending: only the metaField may have "
                           "another kind");
    const std::string path(e.name);
    if (path == "_id" || path.starts_with("_id."))
      return NoBucketIndex(
          "time-series collections have no index on _id: values of _id need not "
          "be unique, and points are found by their time");
    const bool descending = e.value.NumberAsDouble() < 0;
    const std::string least = "control.min." + path, greatest = "control.max." + path;
    if (descending)
      b.Append(greatest, -1).Append(least, -1);
    else
      b.Append(least, 1).Append(greatest, 1);
  }
  b.Done();
  return BsonDocument(std::move(bytes));
}

Result<BsonValue> BucketHint(const CollectionInfo& buckets, BsonValue hint, BsonDocument* moved) {
  if (!hint.IsString() && !hint.IsDocument()) return hint;
  if (hint.IsDocument() && (hint.Document().empty() || hint.Document().Has("$natural")))
    return hint;
  const SeriesOptions& series = *buckets.series;
  const auto found = [&](BsonView key) {
    *moved = BsonDocument(key);
    return moved->view().AsValue();
  };
  // The pattern of a TTL index is that of one on the time too, which has an entry more: it is the
  // second choice.
  const IndexInfo* shown = nullptr;
  Result<BsonDocument> key = BsonDocument();
  if (hint.IsDocument()) key = BucketIndexKey(series, hint.Document());
  for (const IndexInfoPtr& i : buckets.indexes) {
    if (!IsUsable(*i)) continue;
    if (hint.IsString()) {
      if (i->name == hint.String()) return hint;
      continue;
    }
    if (key && CompareDocuments(i->key, key.value()) == 0) return found(i->key);
    if (CompareDocuments(SeriesIndexKey(series, i->key), hint.Document()) == 0) shown = i.get();
  }
  if (shown != nullptr) return found(shown->key);
  return Error{ErrorCode::kBadValue,
               "error processing query: ns=" + SeriesNamespace(buckets) +
                   " planner returned error :: caused by :: hint provided does not correspond to "
                   "an existing index"};
}

Result<BsonDocument> BucketIndexSpec(const SeriesOptions& series, BsonView spec) {
  const BsonValue key = spec["key"];
  if (!key.IsDocument()) return BsonDocument(spec);  // the parser says what is wrong
  if (spec["unique"].Truthy() || spec["prepareUnique"].Truthy())
    return Error{ErrorCode::kInvalidOptions,
                 "Unique indexes are not supported on time-series collections"};
  if (const BsonValue name = spec["name"];
      name.IsString() && name.String() == "_id_" && !key.Document().Has("_id"))
    return Error{ErrorCode::kBadValue,
                 "The index name '_id_' is reserved for the _id index, which must have key pattern "
                 "{_id: 1}, found key: " +
                     ToRelaxedJson(key)};
  if (spec["sparse"].Truthy())
    for (const BsonElement& e : key.Document())
      if (!BucketMetaPath(series, e.name))
        return Error{ErrorCode::kInvalidOptions,
                     "Sparse indexes of a time-series collection are on its metaField alone, not "
                     "on '" +
                         std::string(e.name) + "'"};
  const bool ttl = spec.Has("expireAfterSeconds");
  if (ttl) {
    MAYFLY_TRY(CheckSeriesTtlIndex(series, spec));
  }
  std::string bytes, name;
  BsonBuilder b(bytes);
  for (const BsonElement& e : spec) {
    if (e.name == "key" && ttl) {
      // One date an entry, from which the rule counts.
      b.OpenDocument("key").Append("control.min." + series.time_field,
                                   key.Document().First().value);
    } else if (e.name == "key") {
      MAYFLY_TRY(const BsonDocument moved, BucketIndexKey(series, key.Document()));
      b.Append("key", moved);
    } else if (e.name == "partialFilterExpression" && e.value.IsDocument()) {
      const auto moved = BucketMetaFilter(series, e.value.Document());
      if (!moved && ttl)
        return Error{ErrorCode::kInvalidOptions,
                     "the partialFilterExpression of a TTL index of a time-series collection may "
                     "only name its metaField '" +
                         series.meta_field + "'"};
      if (!moved)
        return NoBucketIndex(
            "the partialFilterExpression of an index of a time-series collection may only name "
            "its metaField");
      b.Append("partialFilterExpression", *moved);
    } else {
      b.Append(e);
    }
  }
  b.Done();
  return BsonDocument(std::move(bytes));
}

Result<void> CheckBucketIndexSpec(const SeriesOptions& series, BsonView spec) {
  if (spec["unique"].Truthy() || spec["prepareUnique"].Truthy())
    return Error{ErrorCode::kInvalidOptions,
                 "Unique indexes are not supported on the buckets of time-series collections"};
  if (!spec.Has("expireAfterSeconds")) return Ok();
  const BsonValue key = spec["key"], filter = spec["partialFilterExpression"];
  const std::string time = "control.min." + series.time_field;
  const auto on_meta = [&] {
    std::string bytes;
    BsonBuilder ignored(bytes);
    return !series.meta_field.empty() && filter.IsDocument() &&
           AppendMovedFilter("meta", "meta", filter.Document(), ignored) &&
           AsksForMeta(filter.Document());
  };
  if (!key.IsDocument() || key.Document().Count() != 1 || key.Document().First().name != time ||
      !on_meta())
    return Error{ErrorCode::kInvalidOptions,
                 "TTL indexes of the buckets of a time series are on '" + time +
                     "' alone, with a partialFilterExpression on 'meta': create them on the "
                     "time-series collection"};
  return Ok();
}

IndexInfo SeriesIndex(const SeriesOptions& series, const IndexInfo& index) {
  IndexInfo shown = index;
  if (BsonDocument key = SeriesIndexKey(series, index.key); !key.view().empty())
    shown.key = std::move(key);
  if (index.has_partial_filter) shown.partial_filter = SeriesFilter(series, index.partial_filter);
  return shown;
}

BsonDocument SeriesFilter(const SeriesOptions& series, BsonView filter) {
  std::string bytes;
  BsonBuilder b(bytes);
  if (series.meta_field.empty() || !AppendMovedFilter("meta", series.meta_field, filter, b))
    return BsonDocument(filter);
  b.Done();
  return BsonDocument(std::move(bytes));
}

std::string SeriesNamespace(const CollectionInfo& coll) { return ShownNamespace(coll.ns); }

BsonDocument SeriesIndexKey(const SeriesOptions& series, BsonView key) {
  constexpr std::string_view kLeastOf = "control.min.", kGreatestOf = "control.max.";
  if (key.Count() == 1 && key.First().name == std::string(kLeastOf) + series.time_field)
    return BuildBson(
        [&](BsonBuilder& b) { b.Append(series.time_field, key.First().value); });  // a TTL index
  std::string bytes, waits;  // for the second half of a pair
  BsonBuilder b(bytes);
  for (const BsonElement& e : key) {
    if (!waits.empty()) {
      if (e.name != waits) return BsonDocument();
      waits.clear();
      continue;
    }
    if (e.name == "meta" || e.name.starts_with("meta.")) {
      if (series.meta_field.empty()) return BsonDocument();
      b.Append(series.meta_field + std::string(e.name.substr(4)), e.value);
    } else if (e.name.starts_with(kLeastOf) || e.name.starts_with(kGreatestOf)) {
      const std::string path(e.name.substr(kLeastOf.size()));
      b.Append(path, e.value);
      waits = std::string(e.name.starts_with(kLeastOf) ? kGreatestOf : kLeastOf) + path;
    } else {
      return BsonDocument();
    }
  }
  b.Done();
  if (!waits.empty()) return BsonDocument();
  return BsonDocument(std::move(bytes));
}

}  // namespace mayfly

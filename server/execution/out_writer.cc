#include "server/execution/out_writer.h"

#include "protocol/extended_json.h"
#include "protocol/object_id.h"
#include "server/execution/series_definition.h"
#include "storage/catalog/namespace.h"
#include "storage/schema/replace_collection.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

/// `given`: `timeseries` of $out, for a time series that is there. What it does not say of the
/// buckets' span is as it is.
Result<void> CheckSameOptions(BsonView given, const CollectionInfo& series,
                              const CollectionInfo& buckets) {
  MAYFLY_TRY(const SeriesOptions wanted, ParseSeriesOptions(given, "$out.timeseries"));
  const SeriesOptions& now = *buckets.series;
  const bool says_span = given.Has("granularity") || given.Has("bucketMaxSpanSeconds");
  const bool same_span = wanted.granularity == now.granularity &&
                         wanted.max_span_seconds == now.max_span_seconds &&
                         wanted.rounding_seconds == now.rounding_seconds;
  if (wanted.time_field == now.time_field && wanted.meta_field == now.meta_field &&
      (!says_span || same_span))
    return Ok();
  const BsonDocument there = BuildBson([&](BsonBuilder& b) { AppendSeriesOptions(buckets, b); });
  return Error{ErrorCode::kInvalidOptions,
               "$out: 'timeseries' must be that of the time-series collection " + series.ns +
                   ", which it replaces: " + ToRelaxedJson(there.view()["timeseries"]) +
                   ". Leave it out, or write to another collection"};
}

}  // namespace

Result<void> OutWriter::Begin(Operation& op, std::string_view db, std::string_view collection,
                              std::optional<BsonView> series) {
  Abandon();
  MAYFLY_TRY(ValidateNewNamespace(db, collection));
  MAYFLY_TRY(const CollectionInfoPtr old,
             OpenCollection(server_.storage().catalog(), db, collection, CollectionUse::kReplace));
  if (series && old && !old->is_series())
    return Error{ErrorCode::kInvalidOptions,
                 "$out: " + old->ns +
                     " is no time-series collection, so that 'timeseries' cannot be given: drop "
                     "it first, or write to another collection"};
  db_ = db;
  target_ = collection;
  name_ = "tmp.agg_out." + ObjectIdToHex(NewObjectId(op.now));
  const bool of_series = series || (old && old->is_series());
  MAYFLY_TRY(const CollectionInfoPtr made,
             of_series ? CreateSeries(op, old.get(), series) : Create(op, old.get()));
  out_.emplace(WriteServicesOf(server_), op, made->db, made->name);
  out_->set_bypass_validation(bypass_validation_);
  MAYFLY_TRY(out_->Open());
  const CollectionInfoPtr buckets =
      old && of_series ? BucketsOf(server_.storage().catalog(), *old) : nullptr;
  const CollectionInfo* from = of_series ? buckets.get() : old.get();
  if (from == nullptr) return Ok();
  MAYFLY_TRY(CopyIndexes(op, *from, *out_->coll()));
  return out_->Open();
}

Result<CollectionInfoPtr> OutWriter::Create(Operation& op, const CollectionInfo* old) {
  CollectionInfo temporary;
  if (old != nullptr) temporary = *old;
  temporary.db = db_;
  temporary.temporary = true;
  temporary.name = name_;
  temporary.id = 0;
  temporary.uuid = {};
  temporary.counters = nullptr;
  temporary.indexes.clear();
  temporary.expiry = std::make_shared<ExpiryState>();
  return server_.storage().catalog().Create(op, std::move(temporary));
}

Result<CollectionInfoPtr> OutWriter::CreateSeries(Operation& op, const CollectionInfo* old,
                                                  std::optional<BsonView> given) {
  // What it is called in the end has to be possible before it is filled.
  MAYFLY_TRY(ValidateNamespace(db_, BucketsName(target_)));
  CollectionInfo temporary;
  temporary.db = db_;
  temporary.temporary = true;
  temporary.name = name_;
  temporary.kind = CollectionKind::kTimeSeries;
  if (old == nullptr) {
    MAYFLY_TRY(SeriesOptions options, ParseSeriesOptions(*given, "$out.timeseries"));
    temporary.series = std::make_shared<const SeriesOptions>(std::move(options));
    return server_.storage().catalog().Create(op, std::move(temporary));
  }
  const CollectionInfoPtr buckets = BucketsOf(server_.storage().catalog(), *old);
  if (!buckets)
    return Error{ErrorCode::kNamespaceNotFound,
                 "the buckets of " + old->ns + " are not there: it is being dropped"};
  if (given) {
    MAYFLY_TRY(CheckSameOptions(*given, *old, *buckets));
  }
  auto options = std::make_shared<SeriesOptions>(*buckets->series);
  options->suspended = false;  // PutSeries asks the one that is there then
  temporary.series = std::move(options);
  temporary.expire_after_seconds = buckets->expire_after_seconds;
  temporary.options = buckets->options;
  return server_.storage().catalog().Create(op, std::move(temporary));
}

Result<void> OutWriter::CopyIndexes(Operation& op, const CollectionInfo& from,
                                    const CollectionInfo& to) {
  Catalog& catalog = server_.storage().catalog();
  std::vector<std::string> own;  // of a time series
  for (const IndexInfoPtr& i : to.indexes) own.push_back(i->name);
  if (!own.empty()) {
    MAYFLY_TRY(catalog.DropIndexes(op, to, own));
  }
  std::vector<IndexInfo> specs;
  for (const IndexInfoPtr& i : from.indexes) {
    IndexInfo copy = *i;
    copy.id = 0;
    copy.multikey.store(0);
    copy.expiry = std::make_shared<ExpiryState>();
    specs.push_back(std::move(copy));
  }
  if (specs.empty()) return Ok();
  return catalog.CreateIndexes(op, to, std::move(specs));
}

Result<void> OutWriter::Write(std::span<const BsonView> documents) {
  std::optional<Error> failed;
  MAYFLY_TRY(out_->Insert(documents, [&](size_t, Error e) {
    failed = std::move(e);
    return false;
  }));
  if (failed) return *failed;
  return Ok();
}

Result<void> OutWriter::Commit(Operation& op) {
  Catalog& catalog = server_.storage().catalog();
  const CollectionInfoPtr temporary = catalog.Find(db_, name_);
  if (!temporary)
    return Error{ErrorCode::kNamespaceNotFound, "the temporary collection of $out was dropped"};
  const bool of_series = temporary->is_series();
  const auto replace = [&] {
    return of_series ? PutSeries(server_.storage(), op, *temporary, target_)
                     : catalog.Rename(op, *temporary, db_, target_, true);
  };
  // The new collection inherits the rules of the one that it replaces: they stay paused, and held
  // documents stay held.
  const auto with_rules = [&](std::string_view name) {
    return catalog.Find(db_, of_series ? BucketsName(name) : std::string(name));
  };
  const CollectionInfoPtr old = with_rules(target_), by = with_rules(name_);
  if (old && by) {
    MAYFLY_TRY(server_.ttl_controls().CarryOver(op, old->uuid, by->uuid, db_, replace));
  } else {
    MAYFLY_TRY(replace());
  }
  out_.reset();
  name_.clear();
  return Ok();
}

void OutWriter::Abandon() {
  out_.reset();
  if (name_.empty()) return;
  Operation op(server_.clock());
  (void)server_.storage().catalog().Drop(op, db_, std::exchange(name_, {}));
}

}  // namespace mayfly

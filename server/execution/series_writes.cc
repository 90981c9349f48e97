#include <set>
#include <utility>

#include "protocol/bson_compare.h"
#include "protocol/system_names.h"
#include "query/expression/parse_work.h"
#include "query/pipeline/bucket_filter.h"
#include "query/pipeline/bucket_test.h"
#include "server/execution/bucket_sealer.h"
#include "server/execution/inline_writes.h"
#include "server/execution/point_groups.h"
#include "server/execution/series_definition.h"
#include "server/execution/write_ops.h"
#include "server/execution/write_parts.h"
#include "storage/catalog/index_keys.h"
#include "storage/write/indexed_arrays.h"
#include "storage/write/inline_unit.h"
#include "timeseries/bucket_control.h"
#include "timeseries/bucket_span.h"

namespace mayfly {
namespace {

constexpr size_t kPointsPerUnit = 10'000;
constexpr size_t kPointBytesPerUnit = 4 << 20;

Error SeriesUpdateError(std::string why) { return {ErrorCode::kInvalidOptions, std::move(why)}; }

/// An update of the meta field as one of buckets. Errors: InvalidOptions 72 for any other.
Result<BsonDocument> BucketMetaUpdate(const SeriesOptions& series, BsonValue update) {
  if (!update.IsDocument())
    return SeriesUpdateError(
        "Cannot perform an update with a pipeline on a time-series collection: use update "
        "operators on the metaField");
  const BsonView operators = update.Document();
  if (operators.empty() || !operators.First().name.starts_with('$'))
    return SeriesUpdateError(
        "Cannot perform a replacement on a time-series collection: use update operators on the "
        "metaField");
  std::string bytes;
  BsonBuilder b(bytes);
  for (const BsonElement& op : operators) {
    if (op.name == "$expire")
      return SeriesUpdateError(
          "$expire is not for time-series collections, whose points go bucket by bucket: use "
          "expireAfterSeconds of the collection");
    if (!op.value.IsDocument()) {
      b.Append(op);  // the parser says what is wrong
      continue;
    }
    BsonBuilder d = b.OpenDocument(op.name);
    for (const BsonElement& e : op.value.Document()) {
      const std::optional<std::string> path = BucketMetaPath(series, e.name);
      std::optional<std::string> to;
      if (op.name == "$rename" && e.value.IsString()) to = BucketMetaPath(series, e.value.String());
      if (!path || (op.name == "$rename" && !to))
        return SeriesUpdateError("Cannot update '" + std::string(e.name) +
                                 "' of a time-series collection: only the metaField" +
                                 (series.meta_field.empty() ? ", which this one has not,"
                                                            : " '" + series.meta_field + "'") +
                                 " can be updated");
      if (to)
        d.Append(*path, *to);
      else
        d.Append(*path, e.value);
    }
  }
  b.Done();
  return BsonDocument(std::move(bytes));
}

/// Whether a point of this time is hidden (HiddenPoints).
bool IsPast(BsonValue time, Instant through) { return time.IsDate() && time.Date() <= through; }

/// How many points of a bucket are there for an update.
Result<int64_t> PointsThere(BsonView bucket, const SeriesFields& fields,
                            std::optional<Instant> hidden) {
  MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(bucket, fields));
  auto there = static_cast<int64_t>(facts.count);
  const BsonValue least = bucket.FindPath("control.min." + fields.time);
  if (!hidden || !IsPast(least, *hidden)) return there;
  const std::set<std::string> wanted{fields.time};
  BucketPoints points;
  MAYFLY_TRY(points.Open(bucket, fields, &wanted));
  for (;;) {
    MAYFLY_TRY(const std::optional<BsonView> point, points.Next());
    if (!point) return there;
    there -= IsPast((*point)[fields.time], *hidden);
  }
}

/// How a bucket is written again. Rows that a client has restored may have been packed.
BucketForm FormOf(const BucketFacts& facts, size_t bytes) {
  return facts.rows && bytes < static_cast<size_t>(kMaxBsonUserSize) / 2 ? BucketForm::kRows
                                                                         : BucketForm::kColumns;
}

/// The bucket with another meta value, missing: none. Each point keeps the place of it; points that
/// have had none get it at their end.
Result<std::string> WithMeta(BsonView bucket, BsonValue meta, const SeriesFields& fields,
                             const InterruptCheck& check) {
  MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(bucket, fields));
  const BsonValue floor = bucket.FindPath("control.min." + fields.time);
  if (!floor.IsDate() || !bucket["_id"].Is(BsonType::kObjectId))
    return Error{ErrorCode::kInternalError, "a bucket without the date from which it is"};
  std::string points, moved;
  std::vector<size_t> ends, begins;
  large_memory::Hold hold, hold_moved;
  MAYFLY_TRY(PointsOfBucketDocument(bucket, fields, points, ends, hold));
  // Each point has it while it is moved, and whenever the points are taken out again.
  const size_t size = points.size() + ends.size() * meta.size();
  if (size > kMaxBytesOfPoints)
    return Error{ErrorCode::kBSONObjectTooLarge, "a meta value of " + std::to_string(meta.size()) +
                                                     " bytes is too large for a " + "bucket of " +
                                                     std::to_string(ends.size()) + " points"};
  MAYFLY_TRY(hold_moved.Set(size));
  size_t begin = 0;
  for (const size_t end : ends) {
    begins.push_back(moved.size());
    BsonBuilder b(moved);
    bool there = false;
    for (const BsonElement& e : BsonView(points.data() + begin)) {
      if (there || e.name != fields.meta) {
        b.Append(e);
        continue;
      }
      there = true;
      if (!meta.missing()) b.Append(fields.meta, meta);
    }
    if (!there && !meta.missing()) b.Append(fields.meta, meta);
    b.Done();
    begin = end;
  }
  std::vector<BsonView> views;
  for (const size_t at : begins) views.emplace_back(moved.data() + at);
  std::string out;
  BsonBuilder b(out);
  MAYFLY_TRY(AppendBucketDocument(b, views, fields, bucket["_id"].ObjectId(), meta, floor.Date(),
                                  FormOf(facts, moved.size()), check));
  b.Done();
  if (out.size() > static_cast<size_t>(kMaxBsonUserSize))
    return Error{ErrorCode::kBSONObjectTooLarge,
                 "a bucket of " + std::to_string(out.size()) + " bytes would come of the update; " +
                     std::to_string(kMaxBsonUserSize) + " are possible"};
  return out;
}

}  // namespace

Result<void> WriteCommand::CheckMovedBucket(BsonView was, BsonView is) const {
  for (const IndexInfoPtr& index : coll_->indexes) {
    // The bucket is in all other indexes before and after.
    if (index->measured == 0 || !index->filter) continue;
    bool inside = false;
    {
      const FilteringFor filtering(&op_);
      inside = index->filter->Matches(was);
    }
    MAYFLY_TRY(op_.CheckInterruptNow());
    if (inside) continue;
    MAYFLY_TRY(CheckIndexedArrays(*coll_, *index, is, op_));
  }
  return Ok();
}

Result<void> WriteCommand::OpenSeries() {
  if (unit_ != nullptr)
    return Error{
        ErrorCode::kOperationNotSupportedInTransaction,
        "Cannot write to a time-series collection in a multi-document transaction: " + coll_->ns};
  CollectionInfoPtr series = coll_;
  coll_ = BucketsOf(storage_.catalog(), *series);
  if (!coll_)
    return Error{ErrorCode::kNamespaceNotFound,
                 "the buckets of " + series->ns + " are not there: it is being dropped"};
  series_ = std::move(series);
  return Ok();
}

Result<void> WriteCommand::RefuseExpiryOfPoints(const ExpirySetting& setting) const {
  if (!setting.given()) return Ok();
  return Error{ErrorCode::kInvalidOptions,
               "points of the time-series collection " + SeriesNamespace(*coll_) +
                   " have no expiration of their own, they go bucket by bucket: set "
                   "expireAfterSeconds of the collection with collMod"};
}

std::optional<Result<void>> WriteCommand::TryStagePoints(std::span<const BsonView> documents,
                                                         WriteUnit& unit) {
  if (Result<void> r = RefuseExpiryOfPoints(expiry_); !r) return r;
  if (!ExpiryIsShort(*coll_)) return std::nullopt;
  KeepShort(unit);
  Observe(unit);
  PointGroups groups(*coll_->series, [this] { return op_.CheckInterrupt(); });
  for (const BsonView doc : documents) {
    Result<BsonView> ready = Prepare(doc);
    if (!ready) return ready.error();
    if (Result<void> r = CheckIndexedArraysOfPoint(*coll_, ready.value(), op_); !r) return r;
    if (Result<void> r = groups.Add(ready.value()); !r) return r;
  }
  // The definition says so first, which takes its time.
  if (groups.suspends() && !coll_->series->suspended) return std::nullopt;
  const int64_t keys_before = op_.keys_inserted;
  Result<std::vector<PointGroups::Bucket>> buckets = groups.Buckets();
  if (!buckets) return buckets.error();
  for (PointGroups::Bucket& bucket : buckets.value()) {
    const BsonView stored(scratch_.Add(std::move(bucket.document)));
    if (Result<void> r = unit.Insert(*coll_, stored, std::nullopt); !r) {
      if (!IsRetryable(r.error())) return r;
      op_.keys_inserted = keys_before;  // the worker starts over
      return std::nullopt;
    }
  }
  TellSealer(unit, buckets.value());
  return Ok();
}

void WriteCommand::TellSealer(WriteUnit& unit,
                              const std::vector<PointGroups::Bucket>& buckets) const {
  if (services_.sealer == nullptr) return;
  std::vector<BucketSealer::Inserted> list;
  list.reserve(buckets.size());
  for (const PointGroups::Bucket& b : buckets) {
    BucketSealer::Inserted& i = list.emplace_back();
    i.meta.reserve(1 + b.meta.size());
    i.meta.push_back(static_cast<char>(b.meta.type()));
    if (!b.meta.missing()) i.meta.append(b.meta.data(), b.meta.size());
    i.floor = b.floor;
    std::copy_n(b.id.data(), i.ref.id.size(), i.ref.id.data());
    i.ref.points = static_cast<uint32_t>(b.points);
    i.ref.bytes = static_cast<uint32_t>(b.bytes);
  }
  unit.OnCommit(
      [sealer = services_.sealer, id = coll_->id, span = coll_->series->max_span_seconds,
       list = std::move(list)]() mutable { sealer->NoteInserted(id, span, std::move(list)); });
}

Result<void> WriteCommand::SuspendExpiry() {
  if (coll_->series->suspended) return Ok();
  MAYFLY_TRY(coll_, storage_.catalog().Modify(op_, *coll_, [](CollectionInfo& c) -> Result<void> {
    auto next = std::make_shared<SeriesOptions>(*c.series);
    next->suspended = true;
    c.series = std::move(next);
    return Ok();
  }));
  services_.log.Warn(LogComponent::kStorage, 9000137,
                     "Nothing of this time series expires any more: a point before 1970 or after "
                     "2038-01-19T03:14:07Z was inserted",
                     BuildBson([&](BsonBuilder& b) { b.Append("namespace", coll_->ns); }));
  return Ok();
}

Result<void> WriteCommand::InsertSomePoints(std::span<const BsonView> documents, size_t next,
                                            size_t most, size_t* until, bool* refused,
                                            std::optional<Error>* failed) {
  // SuspendExpiry puts another definition in the place of coll_, and nobody else may have this one.
  const std::shared_ptr<const SeriesOptions> series = coll_->series;
  PointGroups groups(*series, [this] { return op_.CheckInterrupt(); });
  size_t bytes = 0, i = next;
  for (; i < documents.size() && i - next < most && bytes < kPointBytesPerUnit; ++i) {
    MAYFLY_TRY(op_.CheckInterrupt());
    Result<BsonView> ready = Prepare(documents[i]);
    Result<void> r =
        ready ? CheckIndexedArraysOfPoint(*coll_, ready.value(), op_) : Result<void>(ready.error());
    if (r) r = groups.Add(ready.value());
    if (!r) {
      *failed = r.error();
      break;
    }
    bytes += documents[i].size();
  }
  *until = i;
  if (i == next) return Ok();
  if (groups.suspends()) {
    MAYFLY_TRY(SuspendExpiry());
  }
  UnitStep unit(*this);
  MAYFLY_TRY(std::vector<PointGroups::Bucket> buckets, groups.Buckets());
  for (PointGroups::Bucket& bucket : buckets) {
    MAYFLY_TRY(op_.CheckInterrupt());
    const BsonView stored(scratch_.Add(std::move(bucket.document)));
    if (Result<void> r = unit->Insert(*coll_, stored, std::nullopt); !r) {
      *refused = !IsRetryable(r.error());
      return r;
    }
  }
  TellSealer(*unit.operator->(), buckets);
  return unit.Commit(
      {.kind = UnitResult::Kind::kInsert, .first_document = next, .documents = i - next});
}

Result<int64_t> WriteCommand::InsertPoints(std::span<const BsonView> documents,
                                           const std::function<bool(size_t, Error)>& failed) {
  MAYFLY_TRY(RefuseExpiryOfPoints(expiry_));
  int64_t inserted = 0;
  size_t alone = 0;  // up to there each point has a unit of its own
  for (size_t next = 0; next < documents.size();) {
    size_t until = next;
    std::optional<Error> error;
    for (int attempt = 0;; ++attempt) {
      scratch_.Clear();
      error.reset();
      bool refused = false;
      Result<void> r = InsertSomePoints(documents, next, next < alone ? 1 : kPointsPerUnit, &until,
                                        &refused, &error);
      if (r) break;
      if (refused && until > next + 1) {
        alone = until;  // which of the points it is that no bucket can hold shows then
        continue;
      }
      if (refused) {
        until = next;
        error = r.error();
        break;
      }
      if (attempt > kWriteRetries || !MayTryAgain(r.error())) return r.error();
      MAYFLY_TRY(op_.CheckInterrupt());
      if (r.error().code == ErrorCode::kQueryPlanKilled) {
        MAYFLY_TRY(OpenOrCreate());
        if (!series_)
          return Error{ErrorCode::kNamespaceNotFound,
                       "the time-series collection was dropped during the insert"};
      }
      BackOff(op_, attempt);
    }
    const auto n = static_cast<int64_t>(until - next);
    inserted += n;
    op_.n_inserted += n;
    next = until;
    if (error && !failed(next++, std::move(*error))) break;
  }
  scratch_.Clear();
  return inserted;
}

Result<void> WriteCommand::DeletePointsOf(std::string_view record_key, const MatchExpression& match,
                                          const DeleteStatement& s, int64_t* gone) {
  *gone = 0;
  const bool one = !s.multi;
  UnitStep unit(*this);
  WriteUnit::Locked locked;
  MAYFLY_TRY(bool there, unit->LockAndRead(*coll_, record_key, &locked));
  if (!there) return Ok();
  MAYFLY_TRY(const auto expired, Visible().Expired(locked.doc, locked.expire_at));
  if (expired) return Ok();
  const SeriesFields fields = FieldsOf(*coll_->series);
  EvalContext eval = MakeEval();
  MAYFLY_TRY(const BucketVerdict verdict, TestBucket(match, locked.doc, fields, &eval));
  if (verdict == BucketVerdict::kNone) return Ok();
  std::string points;
  std::vector<size_t> ends;
  large_memory::Hold hold;
  MAYFLY_TRY(PointsOfBucketDocument(locked.doc, fields, points, ends, hold));
  const std::optional<Instant> hidden =
      HiddenPointsOf(storage_.expiry_policy(), *coll_, op_.now).Of(locked.doc);
  std::vector<BsonView> left;
  size_t begin = 0;
  BsonView removed;
  for (const size_t end : ends) {
    const BsonView point(points.data() + begin);
    begin = end;
    eval.root = point;
    bool matches = false;
    if ((!one || removed.empty()) && !(hidden && IsPast(point[fields.time], *hidden))) {
      MAYFLY_TRY(matches, match.Matches(point, &eval));
    }
    if (matches)
      removed = point;
    else
      left.push_back(point);
  }
  if (left.size() == ends.size()) return Ok();
  std::string rest;
  if (left.empty()) {
    MAYFLY_TRY(unit->Delete(*coll_, locked, s.cause()));
  } else {
    // In its place, so that a visit of all buckets meets each once.
    const BsonValue time = locked.doc.FindPath("control.min." + fields.time);
    if (!time.IsDate()) return DamagedRecord(*coll_);
    BsonBuilder b(rest);
    MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(locked.doc, fields));
    MAYFLY_TRY(AppendBucketDocument(b, left, fields, locked.doc["_id"].ObjectId(),
                                    locked.doc["meta"], time.Date(), FormOf(facts, points.size()),
                                    [this] { return op_.CheckInterrupt(); }));
    b.Done();
    MAYFLY_TRY(unit->Update(*coll_, locked, BsonView(rest), locked.expire_at));
  }
  MAYFLY_TRY(unit.Commit({.kind = UnitResult::Kind::kDelete, .deleted = removed}));
  *gone = static_cast<int64_t>(ends.size() - left.size());
  return Ok();
}

Result<int64_t> WriteCommand::DeletePoints(const DeleteStatement& s, bool want_document) {
  if (want_document)
    return SeriesUpdateError(
        "Cannot perform a findAndModify on a time-series collection: delete instead");
  BsonDocument moved_hint;
  MAYFLY_TRY(const BsonValue hint, BucketHint(*coll_, s.hint, &moved_hint));
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match, ParseFilter(s.filter));
  std::optional<BucketFilter> of_buckets = FilterOfBuckets(s.filter, ShapeOf(*coll_));
  const BsonDocument filter = of_buckets ? std::move(of_buckets->filter) : BsonDocument();
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match_buckets, ParseFilter(filter));
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
             Find(filter, std::move(match_buckets), {}, hint, 0));
  int64_t total = 0;
  for (;;) {
    MAYFLY_TRY(PlanExecutor::State state, found->Next());
    if (state == PlanExecutor::State::kEof) return total;
    const std::string key(found->record_key());
    for (int attempt = 0;; ++attempt) {
      int64_t gone = 0;
      Result<void> r = DeletePointsOf(key, *match, s, &gone);
      if (r) {
        total += gone;
        op_.n_deleted += gone;
        if (!s.multi && gone > 0) return total;
        break;
      }
      if (attempt > kWriteRetries || !MayTryAgain(r.error())) return r.error();
      MAYFLY_TRY(op_.CheckInterrupt());
      BackOff(op_, attempt);
    }
  }
}

Result<UpdateResult> WriteCommand::UpdateMeta(const UpdateStatement& s, bool want_documents) {
  if (!series_)
    return Error{ErrorCode::kIllegalOperation,
                 "Cannot update " + coll_->ns +
                     ", which holds the buckets of a time-series collection: update the metaField "
                     "of the collection itself"};
  if (want_documents)
    return SeriesUpdateError(
        "Cannot perform a findAndModify on a time-series collection: update its metaField with "
        "'multi: true'");
  MAYFLY_TRY(RefuseExpiryOfPoints(s.expiry));
  if (s.update.missing())
    return SeriesUpdateError("points of a time-series collection have no expiration of their own");
  if (s.upsert) return SeriesUpdateError("Cannot perform an upsert on a time-series collection");
  if (!s.multi)
    return SeriesUpdateError(
        "Cannot perform a non-multi update on a time-series collection: give 'multi: true'");
  BsonDocument moved_hint;
  MAYFLY_TRY(const BsonValue hint, BucketHint(*coll_, s.hint, &moved_hint));
  MAYFLY_TRY(const BsonDocument update, BucketMetaUpdate(*coll_->series, s.update));
  std::optional<BsonDocument> filter = BucketMetaFilter(*coll_->series, s.filter);
  if (!filter)
    return SeriesUpdateError(
        "Cannot perform an update on a time-series collection when querying on a field that is "
        "not the metaField" +
        (series_->series->meta_field.empty() ? "" : " '" + series_->series->meta_field + "'"));
  UpdateStatement on_buckets = s;
  on_buckets.filter = filter->view();
  on_buckets.update = update.view().AsValue();
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match, ParseFilter(on_buckets.filter));
  MAYFLY_TRY(std::unique_ptr<mayfly::Update> change, ParseUpdate(on_buckets));
  if (change->NeedsPosition())
    return SeriesUpdateError(
        "an update on a time-series collection takes no positional operator $: use $[] or "
        "arrayFilters");
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found, Find(on_buckets.filter, match, {}, hint, 0));
  UpdateResult result;
  // First all, then the changes: an update may move a bucket to where the plan comes again.
  std::vector<std::string> keys;
  large_memory::Hold hold;
  size_t held = 0;
  for (;;) {
    MAYFLY_TRY(PlanExecutor::State state, found->Next());
    if (state == PlanExecutor::State::kEof) break;
    const std::string_view key = found->record_key();
    held += 2 * sizeof(std::string) + key.size();  // twice: a vector that grows
    MAYFLY_TRY(hold.Set(held));
    keys.emplace_back(key);
  }
  EvalContext eval = MakeEval();
  const CollectionInfoPtr definition = coll_;  // to which `hidden` refers
  const HiddenPoints hidden = HiddenPointsOf(storage_.expiry_policy(), *definition, op_.now);
  for (const std::string& key : keys) {
    for (int attempt = 0;; ++attempt) {
      Result<void> r = [&]() -> Result<void> {
        scratch_.Clear();
        UnitStep unit(*this);
        WriteUnit::Locked locked;
        MAYFLY_TRY(bool there, unit->LockAndRead(*coll_, key, &locked));
        if (!there) return Ok();
        MAYFLY_TRY(const auto expired, Visible().Expired(locked.doc, locked.expire_at));
        if (expired) return Ok();
        eval.root = locked.doc;
        MAYFLY_TRY(bool matches, match->Matches(locked.doc, &eval));
        if (!matches) return Ok();
        const SeriesFields fields = FieldsOf(*coll_->series);
        MAYFLY_TRY(const int64_t there_now, PointsThere(locked.doc, fields, hidden.Of(locked.doc)));
        if (there_now == 0) return Ok();
        std::string& next = scratch_.Add();
        MAYFLY_TRY(bool changed, change->ApplyTo(locked.doc, -1, false, eval, &next));
        if (changed) {
          MAYFLY_TRY(std::string moved, WithMeta(locked.doc, BsonView(next)["meta"], fields,
                                                 [this] { return op_.CheckInterrupt(); }));
          MAYFLY_TRY(CheckMovedBucket(locked.doc, BsonView(moved)));
          next = std::move(moved);
          MAYFLY_TRY(unit->Update(*coll_, locked, BsonView(next), locked.expire_at));
          MAYFLY_TRY(unit.Commit({}));
          result.modified += there_now;
        }
        result.matched += there_now;
        return Ok();
      }();
      if (r) break;
      if (attempt > kWriteRetries || !MayTryAgain(r.error())) return r.error();
      MAYFLY_TRY(op_.CheckInterrupt());
      BackOff(op_, attempt);
    }
  }
  scratch_.Clear();
  op_.n_matched += result.matched;
  op_.n_modified += result.modified;
  return result;
}

Result<bool> WriteCommand::CheckBucket(BsonView doc) const {
  auto bad = [&](std::string why) {
    return Error{ErrorCode::kBadValue,
                 "this is no bucket of the time series of " + coll_->ns + ": " + std::move(why)};
  };
  const SeriesOptions& series = *coll_->series;
  const BsonValue id = doc["_id"], least = doc.FindPath("control.min." + series.time_field);
  if (!id.Is(BsonType::kObjectId)) return bad("_id must be an ObjectId");
  if (!least.IsDate())
    return bad("control.min." + series.time_field + " must be the date from which it is");
  if (BucketIdPrefix(least.Date()) != id.ObjectId().substr(0, 4))
    return bad("the seconds of _id must be those of control.min." + series.time_field);
  std::string points;
  std::vector<size_t> ends;
  large_memory::Hold hold;
  if (Result<void> r = PointsOfBucketDocument(doc, FieldsOf(series), points, ends, hold); !r) {
    if (r.error().code != ErrorCode::kBadValue && r.error().code != ErrorCode::kInternalError)
      return r.error();  // there is no memory to look
    return bad(r.error().message);
  }
  if (ends.empty()) return bad("it has no points");
  bool suspends = false;
  std::vector<BsonView> views;
  size_t begin = 0;
  for (const size_t end : ends) {
    const BsonView point = views.emplace_back(points.data() + std::exchange(begin, end));
    const BsonValue time = point[series.time_field];
    const BsonValue meta = series.meta_field.empty() ? BsonValue() : point[series.meta_field];
    if (!meta.BinaryEquals(doc["meta"])) return bad("`meta` is not the metaField of each point");
    if (!time.IsDate() ||
        !FitsBucket(time.Date(), least.Date(), {series.max_span_seconds, series.rounding_seconds}))
      return bad("a point has no date within its span");
    MAYFLY_TRY(CheckIndexedArraysOfPoint(*coll_, point, op_));
    suspends = suspends || SuspendsExpiry(time.Date());
  }
  // Queries skip buckets by their control: a wrong value there would hide points.
  MAYFLY_TRY(const bool right, ControlIsRight(doc, views, FieldsOf(series), least.Date(),
                                              [this] { return op_.CheckInterrupt(); }));
  if (!right) return bad("control is not that of its points, or it has other fields");
  return suspends;
}

}  // namespace mayfly

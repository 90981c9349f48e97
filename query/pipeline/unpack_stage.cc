#include "query/pipeline/unpack_stage.h"

#include <algorithm>

#include "protocol/system_names.h"
#include "query/expression/parse_work.h"
#include "timeseries/bucket_control.h"
#include "timeseries/bucket_span.h"

namespace mayfly {
namespace {

/// The least time of a bucket's points: `control` has only its lower bound. None when a point has
/// no date there: who names the stage may name a field that is not the collection's.
Result<std::optional<int64_t>> EarliestTime(BsonView bucket, const SeriesFields& fields) {
  const std::set<std::string> wanted{fields.time};
  BucketPoints points;
  MAYFLY_TRY(points.Open(bucket, fields, &wanted));
  int64_t earliest = INT64_MAX;
  for (;;) {
    MAYFLY_TRY(const std::optional<BsonView> point, points.Next());
    if (!point) return std::optional(earliest);
    const BsonValue time = (*point)[fields.time];
    if (!time.IsDate()) return std::optional<int64_t>();
    earliest = std::min(earliest, time.Date().millis);
  }
}

}  // namespace

void UnpackStage::Serialize(BsonBuilder& out) const {
  BsonBuilder spec = out.OpenDocument("$_internalUnpackBucket");
  spec.Append("timeField", shape_.fields.time);
  if (!shape_.fields.meta.empty()) spec.Append("metaField", shape_.fields.meta);
  if (shape_.max_span_seconds > 0) spec.Append("bucketMaxSpanSeconds", shape_.max_span_seconds);
  if (shape_.extended_range) spec.Append("usesExtendedRange", true);
  if (!shape_.indexed.empty()) {
    BsonArrayBuilder indexed = spec.OpenArray("indexedFields");
    for (const std::string& field : shape_.indexed) indexed.Append(field);
  }
  bool some = false;
  for (const Hides& h : rules_) {
    if (!h.match) spec.Append("hideThrough", h.through);
    some = some || h.match;
  }
  if (some) {
    BsonArrayBuilder list = spec.OpenArray("hideOf");
    for (const Hides& h : rules_)
      if (h.match) list.OpenDocument().Append("filter", h.filter).Append("through", h.through);
  }
  if (fields_) {
    BsonArrayBuilder include = spec.OpenArray("include");
    for (const std::string& field : *fields_) include.Append(field);
  }
  if (match_) spec.Append("eventFilter", filter_);
}

void UnpackStage::ExplainStats(BsonBuilder& out) const {
  out.Append("nBucketsExamined", examined_);
  out.Append("nBucketsUnpacked", unpacked_);
  if (summary_) out.Append("nBucketsSummarized", n_summarized_);
  out.Append("nBucketsExcluded", examined_ - unpacked_ - n_summarized_);
}

void UnpackStage::TakeFilter(BsonDocument filter, MatchPtr match) {
  filter_ = std::move(filter);
  match_ = std::move(match);
  std::set<std::string> paths;
  test_whole_ = !MatchDependencies(*match_, &paths) || paths.contains("");
  range_ = RangeOf(filter_, shape_.fields.time);
  // bounded: by the paths of the filter
  for (const std::string& path : paths) tested_fields_.insert(path.substr(0, path.find('.')));
}

void UnpackStage::Narrow(std::set<std::string> fields) {
  if (summary_) {
    fields.clear();
    if (summary_meta_) fields.insert(shape_.fields.meta);  // bounded: one
    for (const SummaryField& f : *summary_)
      if (!f.field.empty()) fields.insert(f.field);  // bounded: by the fields of a $group
  }
  fields_ = std::move(fields);
}

Result<void> UnpackStage::FindHidden(BsonView bucket) {
  hide_through_.reset();
  for (const Hides& h : rules_) {
    if (hide_through_ && *hide_through_ >= h.through) continue;
    bool hides = true;
    if (h.match) {
      MAYFLY_TRY(hides, h.match->Matches(bucket, &Eval({bucket, nullptr})));
    }
    if (hides) hide_through_ = h.through;
  }
  return Ok();
}

bool UnpackStage::Hidden(BsonView point) const {
  const BsonValue time = point[shape_.fields.time];
  return time.IsDate() && time.Date().millis <= hide_through_->millis;
}

Result<void> UnpackStage::Open(BsonView bucket) {
  ++examined_;
  floor_ = Instant{INT64_MIN};
  if (!rules_.empty()) [[unlikely]] {
    MAYFLY_TRY(FindHidden(bucket));
  }
  hides_ = hide_through_.has_value();
  const BsonValue control = bucket["control"];
  if (control.IsDocument()) {
    const BsonValue least = control.Document().FindPath("min." + shape_.fields.time);
    const BsonValue greatest = control.Document().FindPath("max." + shape_.fields.time);
    if (least.IsDate()) floor_ = least.Date();
    if (hides_ && greatest.IsDate() && greatest.Date().millis <= hide_through_->millis) return Ok();
    hides_ = hides_ && floor_.millis <= hide_through_->millis;
  }
  tests_ = false;
  if (match_) {
    MAYFLY_TRY(const BucketVerdict verdict,
               TestBucket(*match_, bucket, shape_.fields, &Eval({bucket, nullptr})));
    if (verdict == BucketVerdict::kNone) return Ok();
    tests_ = verdict == BucketVerdict::kSome;
  }
  if (summary_ && !tests_ && !hides_) {
    MAYFLY_TRY(summarized_, SummarizeBucket(bucket));
    if (summarized_) return Ok();
  }
  ++unpacked_;
  bucket_.assign(bucket.bytes());
  const BsonView whole(bucket_.data());
  tested_.reset();
  open_ = true;
  from_ = 0;
  to_ = SIZE_MAX;
  MAYFLY_TRY(points_.Open(whole, shape_.fields, fields_ ? &*fields_ : nullptr));
  if (tests_ && !hides_ && range_) {
    MAYFLY_TRY(const bool found, GoToRange());
    if (found) return edge_ == Edge::kNone ? Result<void>(Ok()) : GoToEdge();
  }
  if (hides_ || tests_) {
    const bool all = tests_ && test_whole_;
    tested_is_all_ = all || (fields_ && std::includes(tested_fields_.begin(), tested_fields_.end(),
                                                      fields_->begin(), fields_->end()));
    return tested_.emplace().Open(whole, shape_.fields, all ? nullptr : &tested_fields_);
  }
  return edge_ == Edge::kNone ? Result<void>(Ok()) : GoToEdge();
}

std::optional<UnpackStage::TimeRange> UnpackStage::RangeOf(BsonView filter, std::string_view time) {
  TimeRange range;
  for (const BsonElement& e : filter) {
    if (!e.value.IsDocument() && !e.value.IsArray()) return std::nullopt;
    if (e.name == "$and") {
      for (const BsonElement& part : e.value.Document()) {
        // One level: that is how conjuncts are joined.
        if (!part.value.IsDocument() || part.value.Document().Has("$and")) return std::nullopt;
        const auto inner = RangeOf(part.value.Document(), time);
        if (!inner) return std::nullopt;
        range.low = std::max(range.low, inner->low);
        range.high = std::min(range.high, inner->high);
      }
      continue;
    }
    if (e.name != time || !e.value.IsDocument()) return std::nullopt;
    for (const BsonElement& op : e.value.Document()) {
      if (!op.value.IsDate()) return std::nullopt;
      const int64_t millis = op.value.Date().millis;
      if (op.name == "$gte")
        range.low = std::max(range.low, millis);
      else if (op.name == "$gt" && millis < INT64_MAX)
        range.low = std::max(range.low, millis + 1);
      else if (op.name == "$lte")
        range.high = std::min(range.high, millis);
      else if (op.name == "$lt" && millis > INT64_MIN)
        range.high = std::min(range.high, millis - 1);
      else
        return std::nullopt;
    }
  }
  return range;
}

Result<bool> UnpackStage::GoToRange() {
  MAYFLY_TRY(const std::vector<BsonValue>* times, points_.Field(shape_.fields.time));
  if (times == nullptr) return false;
  size_t from = times->size(), to = 0, n = 0;
  for (size_t i = 0; i < times->size(); ++i) {
    if (!(*times)[i].IsDate()) return false;
    const int64_t millis = (*times)[i].Date().millis;
    if (millis < range_->low || millis > range_->high) continue;
    if (n++ == 0) from = i;
    to = i + 1;
  }
  if (n > 0 && n != to - from) return false;
  open_ = n > 0;
  from_ = from;
  to_ = to;
  if (n > 0) points_.Only(from, to);
  return true;
}

Result<void> UnpackStage::GoToEdge() {
  if (!open_) return Ok();
  MAYFLY_TRY(const std::vector<BsonValue>* times, points_.Field(shape_.fields.time));
  if (times == nullptr || times->empty()) return Ok();
  const size_t end = std::min(to_, times->size());
  size_t best = from_;
  for (size_t i = from_; i < end; ++i) {
    const BsonValue time = (*times)[i];
    if (!time.IsDate() || !(*times)[best].IsDate()) return Ok();
    const int64_t millis = time.Date().millis, most = (*times)[best].Date().millis;
    if (edge_ == Edge::kNewest ? millis > most : millis < most) best = i;
  }
  points_.Only(best, best + 1);
  from_ = best;
  to_ = best + 1;
  return Ok();
}

Result<StreamState> UnpackStage::NextColumns(const std::vector<std::string>& fields,
                                             std::vector<const std::vector<BsonValue>*>* columns) {
  columns->clear();
  while (!has_points()) {
    StreamDocument bucket;
    MAYFLY_TRY(StreamState state, Pull(&bucket));
    if (state != StreamState::kAdvanced) return state;
    MAYFLY_TRY(Open(bucket.doc));
  }
  if (!open_ || tested_ || summary_ || to_ != SIZE_MAX) return StreamState::kAdvanced;
  for (const std::string& field : fields) {
    MAYFLY_TRY(const std::vector<BsonValue>* values, points_.Field(field));
    if (values == nullptr) {
      columns->clear();
      return StreamState::kAdvanced;
    }
    columns->push_back(values);  // bounded: by `fields`
  }
  returned_ += static_cast<int64_t>(points_.count());
  open_ = false;
  return StreamState::kAdvanced;
}

Result<bool> UnpackStage::FindPoint() {
  for (;;) {
    MAYFLY_TRY(const std::optional<BsonView> next, tested_->Next());
    if (!next) return false;
    const StreamDocument point{*next, nullptr};
    bool comes = !hides_ || !Hidden(point.doc);
    if (comes && tests_) {
      MAYFLY_TRY(comes, match_->Matches(point.doc, &Eval(point)));
    }
    if (comes) {
      tested_point_ = *next;
      return true;
    }
    if (!tested_is_all_) {
      MAYFLY_TRY(points_.Skip());
    }
  }
}

bool UnpackStage::InOneInterval(BsonValue least, BsonValue greatest) const {
  if (!least.IsDate() || !greatest.IsDate()) return false;
  constexpr int64_t kYear2000 = 946'684'800'000;  // where $dateTrunc counts from
  constexpr int64_t kFar = int64_t{1} << 60;      // such dates are left to the points
  if (least.Date().millis < -kFar || greatest.Date().millis > kFar) return false;
  auto interval = [&](int64_t millis) {
    const int64_t since = millis - kYear2000;
    return since / summary_millis_ - (since % summary_millis_ < 0 ? 1 : 0);
  };
  return interval(least.Date().millis) == interval(greatest.Date().millis);
}

Result<bool> UnpackStage::SummarizeBucket(BsonView bucket) {
  using Kind = SummaryField::Kind;
  MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(bucket, shape_.fields));
  std::optional<int64_t> earliest;
  summary_point_.clear();
  BsonBuilder b(summary_point_);
  if (summary_meta_) b.Append(shape_.fields.meta, bucket["meta"]);
  for (const SummaryField& f : *summary_) {
    if (f.kind == Kind::kCount) {
      b.Append(f.name, static_cast<int32_t>(facts.count));
      continue;
    }
    BsonValue least, greatest;
    if (!ExtremesOfField(bucket, f.field, &least, &greatest)) return false;
    if (f.kind == Kind::kTime && !InOneInterval(least, greatest)) return false;
    if (f.kind == Kind::kGreatest || f.kind == Kind::kTime) {
      b.Append(f.name, greatest);
    } else if (f.field != shape_.fields.time) {
      b.Append(f.name, least);
    } else {
      if (!earliest) {
        MAYFLY_TRY(earliest, EarliestTime(bucket, shape_.fields));
        if (!earliest) return false;
      }
      b.Append(f.name, Instant{*earliest});
    }
  }
  b.Done();
  if (facts.count == 0) return false;
  ++n_summarized_;
  return true;
}

BsonView UnpackStage::SummaryOfPoint(BsonView point) {
  summary_point_.clear();
  BsonBuilder b(summary_point_);
  if (summary_meta_) b.Append(shape_.fields.meta, point[shape_.fields.meta]);
  for (const SummaryField& f : *summary_) {
    if (f.kind == SummaryField::Kind::kCount)
      b.Append(f.name, int32_t{1});
    else
      b.Append(f.name, point[f.field]);
  }
  b.Done();
  return BsonView(summary_point_.data());
}

Result<bool> UnpackStage::NextPoint(StreamDocument* out) {
  if (summarized_) {
    summarized_ = false;
    *out = {BsonView(summary_point_.data()), nullptr};
    return true;
  }
  if (open_ && tested_) {
    MAYFLY_TRY(open_, FindPoint());
  }
  if (!open_) return false;
  std::optional<BsonView> point;
  if (tested_ && tested_is_all_) {
    point = tested_point_;
  } else {
    MAYFLY_TRY(point, points_.Next());
  }
  open_ = point && ++from_ < to_;
  if (!point) return false;
  *out = {summary_ ? SummaryOfPoint(*point) : *point, nullptr};
  return true;
}

Result<StreamState> UnpackStage::GetNext(StreamDocument* out) {
  for (;;) {
    MAYFLY_TRY(const bool found, NextPoint(out));
    if (found) return StreamState::kAdvanced;
    StreamDocument bucket;
    MAYFLY_TRY(StreamState state, Pull(&bucket));
    if (state != StreamState::kAdvanced) return state;
    MAYFLY_TRY(Open(bucket.doc));
  }
}

namespace {

/// [{filter, through}, …]; false if it is anything else.
Result<bool> ParseHideOf(BsonValue list, std::vector<UnpackStage::Hides>& out) {
  if (!list.IsArray()) return false;
  for (const BsonElement& e : list.Document()) {
    if (!e.value.IsDocument()) return false;
    const BsonValue filter = e.value.Document()["filter"], through = e.value.Document()["through"];
    if (!filter.IsDocument() || !through.IsDate()) return false;
    MAYFLY_TRY(MatchPtr match, ParseMatch(filter.Document(), {}));
    MAYFLY_TRY(ParseWork::Step());
    ParseWork::Made(sizeof(UnpackStage::Hides) + filter.size());
    out.push_back({BsonDocument(filter.Document()), std::move(match), through.Date()});
  }
  return true;
}

}  // namespace

/// {timeField, metaField, bucketMaxSpanSeconds, usesExtendedRange, indexedFields, hideThrough,
/// hideOf}: points with a time up to `hideThrough` are past their own deadline, though their bucket
/// still stands; `hideOf`, of some buckets: [{filter, through}, …].
Result<void> ParseUnpackStage(StageParser& p, BsonValue spec) {
  auto bad = [](std::string why) {
    return Error{ErrorCode::kFailedToParse, "$_internalUnpackBucket " + std::move(why)};
  };
  if (!p.context.options.collection.starts_with(kBucketsPrefix))
    return bad("is for the buckets of time series only: read the time-series collection itself");
  if (!spec.IsDocument()) return bad("takes a document");
  SeriesShape shape;
  std::vector<UnpackStage::Hides> hides;
  for (const BsonElement& e : spec.Document()) {
    int64_t seconds = 0;
    if (e.name == "timeField" && e.value.IsString())
      shape.fields.time = e.value.String();
    else if (e.name == "metaField" && e.value.IsString())
      shape.fields.meta = e.value.String();
    else if (e.name == "hideThrough" && e.value.IsDate())
      hides.push_back({{}, nullptr, e.value.Date()});  // bounded: by the names of a document
    else if (e.name == "usesExtendedRange" && e.value.Is(BsonType::kBool))
      shape.extended_range = e.value.Bool();
    else if (e.name == "bucketMaxSpanSeconds" && e.value.ExactInt64(&seconds) && seconds > 0 &&
             seconds <= kMaxBucketSpanSeconds)
      shape.max_span_seconds = seconds;
    else if (e.name == "indexedFields" && e.value.IsArray()) {
      for (const BsonElement& field : e.value.Document()) {
        // No path, and no variable: they stand in expressions.
        if (!field.value.IsString() || field.value.String().empty() ||
            field.value.String().find_first_of(std::string_view(".$\0", 3)) !=
                std::string_view::npos)
          return bad("takes 'indexedFields' as a list of names without dots and dollars");
        shape.indexed.emplace_back(field.value.String());  // bounded: by the stage
      }
    } else if (e.name == "hideOf") {
      MAYFLY_TRY(const bool fits, ParseHideOf(e.value, hides));
      if (!fits) return bad("takes 'hideOf' as a list of filters and dates");
    } else
      return bad("does not take '" + std::string(e.name) + "' so");
  }
  if (shape.fields.time.empty()) return bad("needs a timeField");
  // The names become those of fields in points, and no builder looks at them again.
  const std::string& meta = shape.fields.meta;
  if (Result<void> r = CheckSeriesFields(shape.fields.time, meta.empty() ? nullptr : &meta); !r)
    return bad("takes names as create does: " + r.error().message);
  p.out.push_back(std::make_unique<UnpackStage>(p.context, std::move(shape), std::move(hides)));
  return Ok();
}

}  // namespace mayfly

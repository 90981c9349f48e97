#include "server/execution/point_groups.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "timeseries/bucket_control.h"
#include "timeseries/bucket_span.h"

namespace mayfly {
namespace {

/// A larger point is built at once, so that one without room in a bucket is that point's error.
constexpr size_t kLargePoint = 1 << 20;

uint64_t RandomStart() {
  uint64_t start = 0;
  while (getrandom(&start, sizeof start, 0) != sizeof start) {
  }
  return start;
}

Error PointTooLarge(const std::string& bytes) {
  return Error{ErrorCode::kBSONObjectTooLarge,
               "the measurement takes " + bytes +
                   " bytes with the least and greatest values that its bucket keeps; a bucket may "
                   "have " +
                   std::to_string(kMaxBsonUserSize) + ": store less in one measurement"};
}

BucketSpan SpanOf(const SeriesOptions& s) { return {s.max_span_seconds, s.rounding_seconds}; }

}  // namespace

std::string NewBucketId(Instant floor) {
  // Numbers in a row from a random one: those of one process all differ, and two processes would
  // have to begin within reach of each other.
  static std::atomic<uint64_t> next{RandomStart()};
  const uint64_t own = next.fetch_add(1, std::memory_order_relaxed);
  std::string id = BucketIdPrefix(floor);
  for (size_t i = 0; i < 8; ++i) id.push_back(static_cast<char>(own >> (56 - 8 * i)));
  return id;
}

std::vector<BucketCut> CutIntoBuckets(std::span<const TimedPoint> points, BucketSpan span) {
  std::vector<BucketCut> out;
  size_t begin = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const Instant time{points[i].millis};
    const size_t size = points[i].point.size();
    if (out.empty() || i - begin >= kMaxPointsOfBucket ||
        out.back().bytes + size > kMaxBytesOfBucket || !FitsBucket(time, out.back().floor, span)) {
      begin = i;
      out.push_back({i, BucketFloor(time, span), 0});
    }
    out.back().end = i + 1;
    out.back().bytes += size;
  }
  return out;
}

PointGroups::OfMeta& PointGroups::Find(BsonValue meta) {
  if (last_ != nullptr && last_->meta.BinaryEquals(meta)) return *last_;
  key_.assign(1, static_cast<char>(meta.type()));
  if (!meta.missing()) key_.append(meta.data(), meta.size());
  OfMeta*& found = by_meta_[key_];
  if (found == nullptr) found = &metas_.emplace_back(OfMeta{meta, {}, true});
  last_ = found;
  return *found;
}

Result<void> PointGroups::Add(BsonView point) {
  const BsonValue time = point[series_.time_field];
  if (!time.IsDate())
    return Error{
        ErrorCode::kBadValue,
        "'" + series_.time_field + "' must be present and contain a valid BSON UTC datetime value"};
  const BsonValue meta = series_.meta_field.empty() ? BsonValue() : point[series_.meta_field];
  if (point.size() > kLargePoint) {
    // Its values are its bucket's least and greatest ones: nothing need be built to see that these
    // alone are too much. (Unless fields are there twice, which count here all the same.)
    if (const size_t twice = 2 * (size_t{point.size()} - meta.size());
        twice > static_cast<size_t>(kMaxBsonUserSize))
      return PointTooLarge("more than " + std::to_string(twice));
    MAYFLY_TRY(const std::string alone,
               Document(std::span(&point, 1), meta, BucketFloor(time.Date(), SpanOf(series_)),
                        std::string(12, '\0')));
    if (alone.size() > static_cast<size_t>(kMaxBsonUserSize))
      return PointTooLarge(std::to_string(alone.size()));
  }
  suspends_ = suspends_ || SuspendsExpiry(time.Date());
  OfMeta& of = Find(meta);
  const int64_t millis = time.Date().millis;
  of.sorted = of.sorted && (of.points.empty() || of.points.back().millis <= millis);
  of.points.push_back({millis, point});
  return Ok();
}

Result<std::string> PointGroups::Document(std::span<const BsonView> points, BsonValue meta,
                                          Instant floor, std::string_view id) const {
  std::string bytes;
  BsonBuilder b(bytes);
  MAYFLY_TRY(AppendBucketDocument(b, points, {series_.time_field, series_.meta_field}, id, meta,
                                  floor, BucketForm::kRows, check_));
  b.Done();
  return bytes;
}

Result<std::vector<PointGroups::Bucket>> PointGroups::Buckets() {
  std::vector<Bucket> out;
  std::vector<BsonView> points;
  for (OfMeta& of : metas_) {
    if (!of.sorted)
      std::stable_sort(of.points.begin(), of.points.end(),
                       [](const auto& a, const auto& b) { return a.millis < b.millis; });
    size_t at = 0;
    for (const BucketCut& cut : CutIntoBuckets(of.points, SpanOf(series_))) {
      points.clear();
      for (; at < cut.end; ++at) points.push_back(of.points[at].point);
      std::string id = NewBucketId(cut.floor);
      MAYFLY_TRY(std::string document, Document(points, of.meta, cut.floor, id));
      out.push_back(
          {std::move(id), std::move(document), cut.floor, of.meta, points.size(), cut.bytes});
    }
  }
  return out;
}

}  // namespace mayfly

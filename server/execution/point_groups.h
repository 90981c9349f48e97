#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"
#include "protocol/seeded_hash.h"
#include "storage/catalog/catalog_types.h"
#include "timeseries/bucket_control.h"
#include "timeseries/bucket_span.h"

namespace mayfly {

/// The most points in one bucket, and bytes that they have together: a bucket with one point may
/// have more (manual: "About Time Series Data").
inline constexpr size_t kMaxPointsOfBucket = 1000, kMaxBytesOfBucket = 125 << 10;

inline SeriesFields FieldsOf(const SeriesOptions& s) { return {s.time_field, s.meta_field}; }

/// A new `_id` for a bucket that begins at `floor`: the seconds, then eight unique bytes. 12 bytes.
/// Threads: any.
std::string NewBucketId(Instant floor);

/// A point and its time.
struct TimedPoint {
  int64_t millis = 0;
  BsonView point;
};
/// One bucket of several that follow each other.
struct BucketCut {
  size_t end = 0;  ///< behind its last point
  Instant floor;
  size_t bytes = 0;  ///< of its points
};
/// The buckets that points in order of time make: each begins with the first point that the one
/// before has no room for, by its span, its number of points or their bytes. Threads: any.
std::vector<BucketCut> CutIntoBuckets(std::span<const TimedPoint> points, BucketSpan span);

/// The points of one write as the bucket documents that hold them: one for each meta value and
/// span, or several where they are many, in order of time. Keeps views of the points. One thread.
class PointGroups {
 public:
  /// `series` must outlive this. `check`: asked while large points are looked at.
  explicit PointGroups(const SeriesOptions& series, InterruptCheck check = {})
      : series_(series), check_(std::move(check)) {}
  /// One more point: a document with an `_id`, which must outlive this. Errors: BadValue 2 when its
  /// time is missing or no date; BSONObjectTooLarge 10334 for one that no bucket has room for; 146
  /// without memory for a large one; that of the check.
  Result<void> Add(BsonView point);
  /// Whether a point's date suspends all expiry of the collection (docs/expiry.md S1).
  bool suspends() const { return suspends_; }
  /// A bucket document with a new `_id`, and what it holds. `meta` is a view of the points.
  struct Bucket {
    std::string id, document;
    Instant floor;
    BsonValue meta;
    size_t points = 0, bytes = 0;
  };
  /// All of them; their points are rows. Once. Errors: 146 without memory; that of the check.
  Result<std::vector<Bucket>> Buckets();

 private:
  struct OfMeta {
    BsonValue meta;
    std::vector<TimedPoint> points;
    bool sorted = true;
  };
  Result<std::string> Document(std::span<const BsonView> points, BsonValue meta, Instant floor,
                               std::string_view id) const;
  OfMeta& Find(BsonValue meta);

  const SeriesOptions& series_;
  const InterruptCheck check_;
  std::string key_;  ///< of the point that is added
  std::deque<OfMeta> metas_;
  OfMeta* last_ = nullptr;  ///< of the point before
  ClientStringMap<OfMeta*> by_meta_;
  bool suspends_ = false;
};

}  // namespace mayfly

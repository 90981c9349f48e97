#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "timeseries/point_columns.h"

namespace mayfly {

/// Facts about a time series, for filters on its buckets.
struct SeriesShape {
  SeriesFields fields;
  /// The longest span of a bucket now; 0: unknown, so lower bounds do not limit the points.
  int64_t max_span_seconds = 0;
  /// Whether points may have dates whose seconds do not fit the `_id` of their bucket: before 1970
  /// or after 2038.
  bool extended_range = false;
  /// Measured fields (no dots) that an index on `control.min` and `control.max` has: a filter gets
  /// conditions on these.
  std::vector<std::string> indexed = {};
};

/// `path` with its beginning `from`, a field, replaced by `to`. Nothing if it begins otherwise.
std::optional<std::string> MovedPath(std::string_view from, std::string_view to,
                                     std::string_view path);
/// A filter on the field `from` alone as one on `to`; false, and a part of it is appended, if it
/// asks for anything else.
bool AppendMovedFilter(std::string_view from, std::string_view to, BsonView filter,
                       BsonBuilder& out);

/// The most conditions on measurements that one filter becomes: each is several times as long as
/// that of the client.
inline constexpr int kMaxMeasuredConditions = 100;

/// Turns a filter on points into one that each bucket with a match passes: conditions on the
/// metaField as they are, those on dates of the timeField as bounds of `control.min`, `control.max`
/// and `_id`, comparisons of indexed fields as bounds of `control.min` and `control.max`. `exact`:
/// all points of a bucket that passes match (the filter asks for the metaField alone). Nothing if
/// the filter has no such condition.
struct BucketFilter {
  BsonDocument filter;
  bool exact = false;
};
/// As BucketFilter says. Threads: any.
std::optional<BucketFilter> FilterOfBuckets(BsonView filter, const SeriesShape& shape);

}  // namespace mayfly

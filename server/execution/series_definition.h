#pragma once
#include <optional>
#include <vector>

#include "query/pipeline/bucket_filter.h"
#include "server/dispatch/command.h"
#include "storage/catalog/catalog.h"
#include "storage/expiry/expiry_policy.h"
#include "timeseries/bucket_span.h"

namespace mayfly {

class ArgReader;

/// `timeseries` of `create`, or of what else `where` names. Errors: those of ArgReader, of the
/// names and of the span (timeseries/bucket_span.h).
Result<SeriesOptions> ParseSeriesOptions(BsonView given,
                                         std::string_view where = "create.timeseries");
/// The three fields of `timeseries` about the span of a bucket, in `create` and collMod.
SpanOptions TakeSpanOptions(ArgReader& in);

/// The buckets of a time series; null while they are not there, which a crash cannot leave.
/// REQUIRES: is_series().
CollectionInfoPtr BucketsOf(Catalog& catalog, const CollectionInfo& series);

/// What filters on the buckets of a time series have to know of it: with the measured fields that
/// an index has, which a query may use. REQUIRES: is_buckets().
SeriesShape ShapeOf(const CollectionInfo& buckets);

/// Which points of a time series are past their own deadline though their bucket still stands, for
/// an operation with exact reads. Refers to the definition of the buckets.
struct HiddenPoints {
  struct OfIndex {
    const IndexInfo* index;  ///< a partial TTL index
    Instant through;
  };
  std::optional<Instant> through;  ///< points of this time and before, of all buckets
  std::vector<OfIndex> by_index;   ///< likewise, of the buckets that its filter finds

  /// Of one bucket.
  std::optional<Instant> Of(BsonView bucket) const;
};
/// As of `now`; nothing while expiry is suspended, paused, or held in part of the collection.
HiddenPoints HiddenPointsOf(const ExpiryPolicy& policy, const CollectionInfo& buckets, Instant now);

/// The pipeline that reads of a time series put before their own: the stage that unpacks the
/// buckets. `now`: with exact reads, points past their deadline then are left out. An array.
BsonDocument SeriesReadPipeline(Catalog& catalog, const ExpiryPolicy& policy,
                                const CollectionInfo& series, Instant now, bool include_expired);

/// A pattern of an index (or of a hint) on a time series as one on its buckets: the meta field and
/// what is in it by value, everything else by its least and greatest. Errors: CannotCreateIndex 67
/// for what buckets cannot have.
Result<BsonDocument> BucketIndexKey(const SeriesOptions& series, BsonView key);
/// A hint for reads and writes of a time series, as its buckets take it: the name of an index, or
/// its pattern as listIndexes shows it, of which `*moved` then has the bytes. Errors: BadValue 2 if
/// the time series has no such index that a query may use.
Result<BsonValue> BucketHint(const CollectionInfo& buckets, BsonValue hint, BsonDocument* moved);
/// The reverse of BucketIndexKey: the user's pattern. Empty: an index on buckets that no pattern of
/// the series makes.
BsonDocument SeriesIndexKey(const SeriesOptions& series, BsonView key);

/// An index as createIndexes takes it for a time series, as one on its buckets. Errors:
/// InvalidOptions 72 (unique; a TTL index that is not on the timeField with a filter on the
/// metaField), CannotCreateIndex 67.
Result<BsonDocument> BucketIndexSpec(const SeriesOptions& series, BsonView spec);
/// The same for an index that is created on system.buckets.X itself, as tools that restore do.
/// Errors: InvalidOptions 72 for what the series could not have.
Result<void> CheckBucketIndexSpec(const SeriesOptions& series, BsonView spec);
/// An index on buckets as listIndexes shows it for the time series.
IndexInfo SeriesIndex(const SeriesOptions& series, const IndexInfo& index);
/// A filter on the meta value of buckets as the user gave it for the time series.
BsonDocument SeriesFilter(const SeriesOptions& series, BsonView filter);
/// The name that users know: for buckets, the namespace of their time series.
std::string SeriesNamespace(const CollectionInfo& coll);

/// A filter on the meta field alone as one on buckets; nothing if it asks for anything else.
std::optional<BsonDocument> BucketMetaFilter(const SeriesOptions& series, BsonView filter);
/// `path` as one of a bucket if it is the meta field or within it.
std::optional<std::string> BucketMetaPath(const SeriesOptions& series, std::string_view path);

}  // namespace mayfly

#pragma once
#include <cstdint>

#include "protocol/bson_view.h"
#include "query/match/match_expression.h"
#include "timeseries/point_columns.h"

namespace mayfly {

/// The result of a filter for the points of a bucket, without looking at the points.
enum class BucketVerdict : uint8_t { kNone, kSome, kAll };

/// Whether the points of a bucket document match `match`, judging by `control` and `meta`: kNone
/// and kAll are certain, kSome is unknown. A condition on the metaField is decided by `meta`, one
/// on the timeField by the bucket's lower bound and greatest time, one on a measurement by its
/// least and greatest value: only if both are of one and the same class of comparison and neither
/// array, document nor pattern, since `control` says nothing of what is between classes, nor of
/// points without the field. REQUIRES: `control` is as AppendBucketDocument makes it. `eval`: its
/// operation is asked whether it goes on; may be null. Errors: its interrupts. Threads: any.
Result<BucketVerdict> TestBucket(const MatchExpression& match, BsonView bucket,
                                 const SeriesFields& fields, EvalContext* eval);

/// Scalars whose order is that of comparisons, and which equal nothing of another class: neither
/// null, arrays, documents and patterns, nor MinKey and MaxKey.
bool HasOrder(BsonValue v);

/// The least and greatest value of a field (no dots) over the points of a bucket, from `control`;
/// both missing if no point has it. False if `control` does not tell: of several classes, arrays,
/// documents, null, and of the time, whose least value is not there. Threads: any.
bool ExtremesOfField(BsonView bucket, std::string_view field, BsonValue* least,
                     BsonValue* greatest);

}  // namespace mayfly

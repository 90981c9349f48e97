#pragma once
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

class Operation;

/// The rule for arrays in indexes of time series: a point has no array where an index has a
/// measurement, because its bucket may have two of them there, as the least and the greatest value,
/// and one entry cannot stand for two arrays. The functions below are that rule for whatever brings
/// points under an index: inserts, restored and archived buckets, and an index that is built.

/// Whether a point may be in these buckets, as far as their indexes go. Errors: Location5930501;
/// those of an interrupt.
Result<void> CheckIndexedArraysOfPoint(const CollectionInfo& buckets, BsonView point,
                                       Operation& op);

/// The same for all points of a bucket and one of these indexes. `control` decides, unless there
/// may be an array between the least and the greatest value; then the points are looked at.
/// `may_unpack`: false where that would take too long. Errors: Location5930501; WriteConflict 112
/// where it must not unpack; those of BucketPoints; those of an interrupt.
Result<void> CheckIndexedArrays(const CollectionInfo& buckets, const IndexInfo& index,
                                BsonView bucket, Operation& op, bool may_unpack = true);

/// The code of their refusal.
inline constexpr int kIndexedArray = 5930501;

}  // namespace mayfly

#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "timeseries/point_columns.h"

namespace mayfly {

class PipelineStage;
class UnpackStage;
struct SeriesShape;
class VariableScope;

/// What a $group needs from a bucket instead of its points: their number, the minimum or maximum of
/// a field, or the time of one of them.
struct SummaryField {
  enum class Kind : uint8_t { kCount, kLeast, kGreatest, kTime } kind = Kind::kCount;
  std::string name;   ///< in the document that stands for the bucket
  std::string field;  ///< of the points; empty for kCount
};

/// Lets a $group take documents that stand for whole buckets, with the meta value and what `fields`
/// lists, if its accumulators count or ask for least and greatest values, and its `_id` is of the
/// metaField alone or of it and of intervals as FollowIntervals says. `*interval_millis`: the
/// length of these, counted from the year 2000; a document then stands for a bucket within one. 0:
/// none. Intervals of less than four times the longest bucket are left to FollowIntervals: most of
/// the work would be in buckets that two of them share. False, without any change, if `stage` is no
/// such $group.
bool SummarizeGroup(PipelineStage& stage, const SeriesShape& series, VariableScope& scope,
                    std::vector<SummaryField>* fields, int64_t* interval_millis);

/// Lets a $count take documents that stand for whole buckets, with what `fields` lists. False,
/// without any change, if `stage` is none.
bool SummarizeCount(PipelineStage& stage, std::vector<SummaryField>* fields);

/// Lets a $group behind the stage that unpacks find the group of a point by that of the point
/// before, if both are of one bucket and one interval of time: its `_id` is a $dateTrunc of the
/// timeField by units that have a fixed length, or a document of one and of paths within the
/// metaField, or of these alone. Some accumulators then take whole columns instead of points.
/// Nothing if `stage` is no such $group. `unpack` must outlive it.
void FollowIntervals(PipelineStage& stage, UnpackStage& unpack);

}  // namespace mayfly

#pragma once
#include <string>
#include <vector>

#include "timeseries/point_columns.h"

namespace mayfly {

class PipelineStage;
class UnpackStage;
class VariableScope;

/// What a $group needs from a bucket instead of its points: their number, or the minimum or maximum
/// of a field.
struct SummaryField {
  enum class Kind : uint8_t { kCount, kLeast, kGreatest } kind = Kind::kCount;
  std::string name;   ///< in the document that stands for the bucket
  std::string field;  ///< of the points; empty for kCount
};

/// Lets a $group take documents that stand for whole buckets, with the meta value and what `fields`
/// lists, if its `_id` is of the metaField alone and its accumulators count or ask for least and
/// greatest values. False, without any change, if `stage` is no such $group.
bool SummarizeGroup(PipelineStage& stage, const SeriesFields& series, VariableScope& scope,
                    std::vector<SummaryField>* fields);

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

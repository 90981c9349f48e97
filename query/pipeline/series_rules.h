#pragma once
#include "query/pipeline/stage.h"

namespace mayfly {

/// For a pipeline that unpacks the buckets of a time series: moves conditions on whole buckets
/// before the unpacking stage, and other conditions into it. After all other rules. Errors: none
/// that parsing has not met already.
Result<void> PushBelowUnpack(std::vector<StagePtr>& stages, PipelineContext& context,
                             VariableScope& scope);

}  // namespace mayfly

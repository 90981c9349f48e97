#pragma once
#include "query/pipeline/stage.h"

namespace mayfly {

/// Reorders and merges stages without changing what comes out: filters and limits to the front
/// where an index or a top-k sort can use them. Errors: none that parsing has not met already.
Result<void> OptimizeStages(std::vector<StagePtr>& stages, PipelineContext& context,
                            VariableScope& scope);

}  // namespace mayfly

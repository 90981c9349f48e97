#pragma once
#include "query/pipeline/stage.h"

namespace mayfly {

/// Reorders and merges stages without changing the output: filters and limits to the front where an
/// index or a top-k sort can use them. Errors: none that parsing has not met already.
Result<void> OptimizeStages(std::vector<StagePtr>& stages, PipelineContext& context,
                            VariableScope& scope);

/// The members of a filter that must all match, each a document.
void SplitConjuncts(BsonView filter, std::vector<BsonDocument>& out);
/// A $match of all of these. Errors: those of ParseMatch.
Result<StagePtr> MakeMatch(const std::vector<BsonDocument>& conjuncts, PipelineContext& context,
                           VariableScope& scope);

}  // namespace mayfly

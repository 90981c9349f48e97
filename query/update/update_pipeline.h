#pragma once
#include <memory>
#include <string>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "query/expression/expression.h"

namespace mayfly {

/// One document in, one document out. Immutable after parsing; threads: any, with an EvalContext
/// each.
class DocumentTransform {
 public:
  virtual ~DocumentTransform() = default;
  /// The new document's bytes. Sets ctx.root to the document each stage sees.
  virtual Result<std::string> Apply(BsonView in, EvalContext& ctx) const = 0;
};

/// Whether every stage's name is that of a stage, allowed in an update or not: an update command
/// with an unknown one fails as a whole, where other mistakes fail the statement. Errors:
/// Location40324.
Result<void> CheckStageNames(BsonView array);

/// Parses the pipeline of an update: $set, $addFields, $unset, $project, $replaceWith and
/// $replaceRoot, one after another. Errors: Location40324 "Unrecognized pipeline stage name: '$x'",
/// InvalidOptions 72 "$match is not allowed to be used within an update", Location40323 when a
/// stage has not exactly one field, and the stages' own.
Result<std::unique_ptr<DocumentTransform>> ParseUpdatePipeline(BsonView array,
                                                               VariableScope& scope);

}  // namespace mayfly

#include "query/update/update_pipeline.h"

#include <algorithm>
#include <array>
#include <vector>

#include "protocol/large_memory.h"
#include "query/expression/element_text.h"
#include "query/expression/nesting.h"
#include "query/projection/projection.h"

namespace mayfly {
namespace {

class ProjectionStage final : public DocumentTransform {
 public:
  explicit ProjectionStage(ProjectionPtr projection) : projection_(std::move(projection)) {}
  Result<std::string> Apply(BsonView in, EvalContext& ctx) const override {
    ctx.root = in;
    MAYFLY_TRY(BsonDocument out, projection_->Apply(in, ctx));
    return std::move(out.bytes());
  }

 private:
  ProjectionPtr projection_;
};

class ReplaceStage final : public DocumentTransform {
 public:
  ReplaceStage(ExpressionPtr expression, bool with)
      : expression_(std::move(expression)), with_(with) {}
  Result<std::string> Apply(BsonView in, EvalContext& ctx) const override {
    ctx.root = in;
    MAYFLY_TRY(Value made, expression_->Evaluate(ctx));
    if (!made.view().IsDocument())
      return Error{LocationCode(40228),
                   std::string(with_ ? "'replacement document' " : "'newRoot' expression ") +
                       " must evaluate to an object, but resulting value was: " +
                       (made.missing() ? "MISSING" : update::ValueText(made.view())) +
                       ". Type of resulting value: '" + std::string(BsonTypeName(made.type())) +
                       "'. Input document: " + update::ValueText(in.AsValue())};
    MAYFLY_TRY(CheckNesting(made.view()));
    return std::string(made.view().bytes());
  }

 private:
  ExpressionPtr expression_;
  bool with_;
};

class StageList final : public DocumentTransform {
 public:
  explicit StageList(std::vector<std::unique_ptr<DocumentTransform>> stages)
      : stages_(std::move(stages)) {}
  Result<std::string> Apply(BsonView in, EvalContext& ctx) const override {
    std::string current, next;
    large_memory::Hold hold;
    BsonView view = in;
    for (const auto& stage : stages_) {
      MAYFLY_TRY(next, stage->Apply(view, ctx));
      MAYFLY_TRY(hold.Set(current.capacity() + next.capacity()));
      std::swap(current,
                next);  // `next` holds what `view` was made of until the next stage is done
      view = BsonView(current.data());
    }
    return stages_.empty() ? in.ToString() : std::move(current);
  }

 private:
  std::vector<std::unique_ptr<DocumentTransform>> stages_;
};

using TransformPtr = std::unique_ptr<DocumentTransform>;

/// Stages that exist but change more than one document at a time, or read others.
constexpr std::array kOtherStages = {"$bucket",
                                     "$bucketAuto",
                                     "$changeStream",
                                     "$changeStreamSplitLargeEvent",
                                     "$collStats",
                                     "$count",
                                     "$currentOp",
                                     "$densify",
                                     "$documents",
                                     "$facet",
                                     "$fill",
                                     "$geoNear",
                                     "$graphLookup",
                                     "$group",
                                     "$indexStats",
                                     "$limit",
                                     "$listLocalSessions",
                                     "$listSampledQueries",
                                     "$listSearchIndexes",
                                     "$listSessions",
                                     "$lookup",
                                     "$match",
                                     "$merge",
                                     "$out",
                                     "$planCacheStats",
                                     "$querySettings",
                                     "$queryStats",
                                     "$redact",
                                     "$sample",
                                     "$search",
                                     "$searchMeta",
                                     "$setWindowFields",
                                     "$shardedDataDistribution",
                                     "$skip",
                                     "$sort",
                                     "$sortByCount",
                                     "$tombstones",
                                     "$unionWith",
                                     "$unwind",
                                     "$vectorSearch"};

constexpr std::array<std::string_view, 6> kUpdateStages = {
    "$addFields", "$project", "$replaceRoot", "$replaceWith", "$set", "$unset"};

Error UnknownStage(std::string_view name) {
  return {ErrorCode::kUnknownPipelineStage,
          "Unrecognized pipeline stage name: '" + std::string(name) + "'"};
}

Result<TransformPtr> ParseReplaceRoot(BsonValue spec, VariableScope& scope) {
  if (!spec.IsDocument())
    return Error{LocationCode(40229),
                 "expected an object as specification for $replaceRoot stage, got " +
                     std::string(BsonTypeName(spec.type()))};
  BsonValue new_root;
  for (const BsonElement& e : spec.Document()) {
    if (e.name != "newRoot")
      return Error{LocationCode(40230),
                   "unrecognized option to $replaceRoot stage: " + std::string(e.name) +
                       ", only valid option is 'newRoot'."};
    new_root = e.value;
  }
  if (!new_root)
    return Error{LocationCode(40231), "no newRoot specified for the $replaceRoot stage"};
  MAYFLY_TRY(ExpressionPtr expression, ParseExpression(new_root, scope));
  return TransformPtr(std::make_unique<ReplaceStage>(std::move(expression), false));
}

Result<TransformPtr> ParseStage(std::string_view name, BsonValue spec, VariableScope& scope) {
  auto project = [](ProjectionPtr p) {
    return TransformPtr(std::make_unique<ProjectionStage>(std::move(p)));
  };
  if (name == "$set" || name == "$addFields") {
    if (!spec.IsDocument())
      return Error{LocationCode(40272), std::string(name) +
                                            " specification stage must be an object, got " +
                                            std::string(BsonTypeName(spec.type()))};
    MAYFLY_TRY(ProjectionPtr p, ParseAddFields(spec.Document(), scope, name));
    return project(std::move(p));
  }
  if (name == "$unset") {
    MAYFLY_TRY(ProjectionPtr p, ParseUnset(spec, scope));
    return project(std::move(p));
  }
  if (name == "$project") {
    if (!spec.IsDocument())
      return Error{LocationCode(15969), "$project specification must be an object"};
    MAYFLY_TRY(ProjectionPtr p, ParseAggProject(spec.Document(), scope));
    return project(std::move(p));
  }
  if (name == "$replaceWith") {
    MAYFLY_TRY(ExpressionPtr expression, ParseExpression(spec, scope));
    return TransformPtr(std::make_unique<ReplaceStage>(std::move(expression), true));
  }
  if (name == "$replaceRoot") return ParseReplaceRoot(spec, scope);
  if (std::find(kOtherStages.begin(), kOtherStages.end(), name) != kOtherStages.end())
    return Error{ErrorCode::kInvalidOptions,
                 std::string(name) + " is not allowed to be used within an update"};
  return UnknownStage(name);
}

}  // namespace

Result<void> CheckStageNames(BsonView array) {
  for (const BsonElement& e : array) {
    if (!e.value.IsDocument() || e.value.Document().empty()) continue;
    const std::string_view name = e.value.Document().First().name;
    if (std::find(kUpdateStages.begin(), kUpdateStages.end(), name) == kUpdateStages.end() &&
        std::find(kOtherStages.begin(), kOtherStages.end(), name) == kOtherStages.end())
      return UnknownStage(name);
  }
  return Ok();
}

Result<std::unique_ptr<DocumentTransform>> ParseUpdatePipeline(BsonView array,
                                                               VariableScope& scope) {
  // Unlike an aggregation's, an update's constants have no errors before there is a document, nor
  // in a branch that is not taken. Errors noted earlier, in the aggregation that a $merge ends,
  // stay.
  Result<void> noted = scope.CheckConstants();
  std::vector<TransformPtr> stages;
  for (const BsonElement& e : array) {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch,
                   "Each element of the 'pipeline' array must be an object"};
    BsonView stage = e.value.Document();
    if (stage.Count() != 1)
      return Error{LocationCode(40323),
                   "A pipeline stage specification object must contain exactly one field."};
    MAYFLY_TRY(TransformPtr parsed, ParseStage(stage.First().name, stage.First().value, scope));
    stages.push_back(std::move(parsed));
  }
  (void)scope.CheckConstants();
  if (!noted) scope.NoteConstantError(std::move(noted).error());
  return std::unique_ptr<DocumentTransform>(std::make_unique<StageList>(std::move(stages)));
}

}  // namespace mayfly

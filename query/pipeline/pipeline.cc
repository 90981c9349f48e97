#include "query/pipeline/pipeline.h"

#include <algorithm>

#include "query/expression/parse_work.h"
#include "query/pipeline/bounded_sort.h"
#include "query/pipeline/edge_stage.h"
#include "query/pipeline/optimize.h"
#include "query/pipeline/series_rules.h"
#include "query/pipeline/stage.h"
#include "query/pipeline/unpack_stage.h"
#include "query/pipeline/view_boundary.h"

namespace mayfly {
namespace {

constexpr int kMaxStages = 1000;
constexpr int kMaxPipelineDepth = 20;  ///< of pipelines within pipelines

constexpr StageRow kStages[] = {
    {"$_internalInhibitOptimization", 0, nullptr, "Internal."},
    {"$_internalUnpackBucket", kStageNotInFacet, &ParseUnpackStage,
     "The points of a time series' buckets."},
    {"$addFields", kStageChangeStream, &ParseProjectStage,
     "Adds fields, or replaces their values."},
    {"$bucket", kStageOptions, &ParseBucketStage, "Groups by ranges of a value."},
    {"$bucketAuto", kStageOptions, &ParseBucketAutoStage,
     "Groups into a number of ranges of about one size."},
    {"$changeStream", kStageFirst | kStageNotInFacet | kStageAlsoCollectionless, nullptr,
     "Changes of a collection, a database or all.", LocationCode(40573),
     "The $changeStream stage is only supported on replica sets"},
    {"$changeStreamSplitLargeEvent", kStageLast | kStageChangeStream, nullptr,
     "Splits large change events.", ErrorCode::kIllegalOperation,
     "$changeStreamSplitLargeEvent can only be used in a $changeStream pipeline"},
    {"$collStats", kStageFirst | kStageNotInFacet | kStageOptions, &ParseEnvironmentStage,
     "Statistics of the collection."},
    {"$count", 0, &ParseCountStage, "Number of documents."},
    {"$currentOp",
     kStageFirst | kStageNotInFacet | kStageCollectionless | kStageAdmin | kStageOptions,
     &ParseEnvironmentStage, "Operations in progress."},
    {"$densify", kStageOptions, &ParseDensifyStage, "Fills gaps in a sequence."},
    {"$documents", kStageFirst | kStageNotInFacet | kStageCollectionless, &ParseDocumentsStage,
     "Documents from an expression."},
    {"$facet", kStageNotInFacet | kStageOptions, &ParseFacetStage,
     "Several pipelines over the same documents."},
    {"$fill", kStageOptions, &ParseFillStage, "Fills in missing values."},
    {"$geoNear", kStageFirst | kStageNotInFacet, nullptr, "Documents by distance."},
    {"$graphLookup", kStageOptions, &ParseGraphLookupStage,
     "Documents reached by following references."},
    {"$group", 0, &ParseGroupStage, "One document for each distinct key."},
    {"$indexStats", kStageFirst | kStageNotInFacet | kStageOptions, &ParseEnvironmentStage,
     "Use of the collection's indexes."},
    {"$limit", 0, &ParseLimitStage, "The first n documents."},
    {"$listLocalSessions", kStageFirst | kStageNotInFacet | kStageCollectionless | kStageOptions,
     &ParseEnvironmentStage, "Sessions this server knows."},
    {"$listSearchIndexes", kStageFirst | kStageNotInFacet, nullptr, "Search indexes.",
     ErrorCode::kSearchNotEnabled,
     "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires "
     "additional configuration."},
    {"$listSessions", kStageFirst | kStageNotInFacet | kStageOptions, &ParseEnvironmentStage,
     "Sessions on disk."},
    {"$lookup", kStageOptions, &ParseLookupStage,
     "Documents of another collection that belong to each."},
    {"$match", kStageChangeStream, &ParseMatchStage, "Documents that a filter matches."},
    {"$merge", kStageLast | kStageNotInFacet | kStageOptions, &ParseMergeStage,
     "Writes into a collection, document by document."},
    {"$out", kStageLast | kStageNotInFacet | kStageOptions, &ParseOutStage,
     "Replaces a collection."},
    {"$planCacheStats", kStageFirst | kStageNotInFacet | kStageOptions, &ParseEnvironmentStage,
     "The collection's cached plans."},
    {"$project", kStageChangeStream, &ParseProjectStage, "Fields kept, left out or computed."},
    {"$redact", kStageChangeStream, &ParseRedactStage,
     "Keeps or removes parts of documents by what is in them."},
    {"$replaceRoot", kStageChangeStream | kStageOptions, &ParseReplaceRootStage,
     "Replaces the document by a sub-document."},
    {"$replaceWith", kStageChangeStream, &ParseReplaceRootStage, "A shorter $replaceRoot."},
    {"$sample", kStageOptions, &ParseSampleStage, "Documents at random."},
    {"$search", kStageFirst | kStageNotInFacet, nullptr, "Full-text search.",
     ErrorCode::kSearchNotEnabled,
     "Using $search and $vectorSearch aggregation stages requires additional configuration."},
    {"$searchMeta", kStageFirst | kStageNotInFacet, nullptr, "Full-text search.",
     ErrorCode::kSearchNotEnabled,
     "Using $search and $vectorSearch aggregation stages requires additional configuration."},
    {"$set", kStageChangeStream, &ParseProjectStage, "The same as $addFields."},
    {"$setWindowFields", kStageOptions, &ParseSetWindowFieldsStage,
     "Computations over windows of documents."},
    {"$skip", 0, &ParseSkipStage, "All but the first n documents."},
    {"$sort", 0, &ParseSortStage, "Documents in order."},
    {"$sortByCount", 0, &ParseSortByCountStage, "Counts of distinct values, greatest first."},
    {"$tombstones", kStageFirst | kStageNotInFacet | kStageAlsoCollectionless | kStageOptions,
     &ParseTombstonesStage, "What was deleted or has expired, and why."},
    {"$ttlForecast", kStageFirst | kStageNotInFacet | kStageOptions, &ParseEnvironmentStage,
     "How many documents of the collection will expire when."},
    {"$unionWith", kStageOptions, &ParseUnionWithStage,
     "The documents, and those of another collection."},
    {"$unset", kStageChangeStream, &ParseProjectStage, "Removes fields."},
    {"$unwind", kStageOptions, &ParseUnwindStage, "One document for each element of an array."},
    {"$vectorSearch", kStageFirst | kStageNotInFacet, nullptr, "Vector search.",
     ErrorCode::kSearchNotEnabled,
     "Using $search and $vectorSearch aggregation stages requires additional configuration."},
};

}  // namespace

std::span<const StageRow> AllStages() { return kStages; }

const StageRow* FindStage(std::string_view name) {
  for (auto& row : kStages)
    if (row.name == name) return &row;
  return nullptr;
}

Result<void> CheckStageArray(BsonValue v, std::string_view what) {
  if (!v.IsArray())
    return TypeMismatch("'" + std::string(what) + "' option must be specified as an array");
  return Ok();
}

class PipelineParser {
 public:
  static Result<std::unique_ptr<Pipeline>> Parse(
      BsonView stages, const PipelineOptions& options,
      std::vector<std::pair<std::string, Value>> variables, const SubPipelineSpec* sub, int depth) {
    if (depth > kMaxPipelineDepth)
      return Error{ErrorCode::kMaxSubPipelineDepthExceeded,
                   "Maximum number of nested sub-pipelines exceeded. Limit is " +
                       std::to_string(kMaxPipelineDepth)};
    std::unique_ptr<Pipeline> pipeline(new Pipeline());
    PipelineContext& context = *pipeline->context_;
    context.options = options;
    context.options.let = BsonView();
    context.options.variables.clear();
    context.options.view_ends.clear();
    context.depth = depth;
    for (auto& [name, value] : variables) {
      VariableId id = pipeline->scope_.Define(name);
      context.eval.variables.resize(static_cast<size_t>(pipeline->scope_.slots()));
      context.eval.variables[static_cast<size_t>(id)] = value;
    }
    context.variables = std::move(variables);
    ParseWork work(nullptr);
    if (sub != nullptr)
      for (const auto& [name, value] : sub->variables) {
        MAYFLY_TRY(ParseWork::MadeVariable(name, value.view().size()));
      }
    int count = 0;
    auto view_end = options.view_ends.begin();
    const StageRow* last = nullptr;
    for (const BsonElement& e : stages) {
      if (++count > kMaxStages)
        return LocationError(7749501, "Pipeline length must be no longer than " +
                                          std::to_string(kMaxStages) + " stages");
      if (!e.value.IsDocument())
        return TypeMismatch("Each element of the 'pipeline' array must be an object");
      BsonView stage = e.value.Document();
      if (stage.Count() != 1)
        return LocationError(
            40323, "A pipeline stage specification object must contain exactly one field.");
      BsonElement spec = stage.First();
      const StageRow* row = FindStage(spec.name);
      if (!row)
        return Error{ErrorCode::kUnknownPipelineStage,
                     "Unrecognized pipeline stage name: '" + std::string(spec.name) + "'"};
      MAYFLY_TRY(CheckPlace(*row, count, last, sub, options));
      last = row;
      if (!row->parse)
        return Error{row->refused, row->why.empty() ? std::string(row->name) + " is not implemented"
                                                    : std::string(row->why)};
      if (row->flags & kStageOptions) {
        MAYFLY_TRY(CheckOptionsOnce(row->name, spec.value));
      }
      StageParser parser{*pipeline, context, pipeline->scope_, pipeline->stages_, row->name};
      MAYFLY_TRY(row->parse(parser, spec.value));
      if (view_end != options.view_ends.end() && *view_end == count) {
        pipeline->stages_.push_back(std::make_unique<ViewBoundary>(context));
        ++view_end;
      }
    }
    if (count == 0 && options.collection.empty() && !sub && !options.change_stream)
      return Error{ErrorCode::kInvalidNamespace,
                   "{aggregate: 1} is not valid for an empty pipeline."};
    MAYFLY_TRY(OptimizeStages(pipeline->stages_, context, pipeline->scope_));
    MAYFLY_TRY(CheckTextScore(pipeline->stages_));
    NoteSortKeys(pipeline->stages_);
    MAYFLY_TRY(PushBelowUnpack(pipeline->stages_, context, pipeline->scope_));
    context.eval.variables.resize(static_cast<size_t>(pipeline->scope_.slots()));
    MAYFLY_TRY(work.Keep(&pipeline->parsed_hold_));
    return pipeline;
  }

 private:
  static Result<void> CheckPlace(const StageRow& row, int position, const StageRow* before,
                                 const SubPipelineSpec* sub, const PipelineOptions& options) {
    std::string name(row.name);
    if (options.change_stream) {
      if (row.flags & kStageFirst)
        return LocationError(40602, name + " is only valid as the first stage in a pipeline.");
      if (!(row.flags & kStageChangeStream))
        return Error{ErrorCode::kIllegalOperation,
                     name + " is not permitted in a $changeStream pipeline"};
      return Ok();
    }
    if (sub && sub->in_facet && (row.flags & (kStageNotInFacet | kStageFirst)))
      return LocationError(40600, name + " is not allowed to be used within a $facet stage");
    if (sub && (row.flags & kStageLast))
      return LocationError(sub->stage == "$unionWith" ? 31441 : 51047,
                           name + " is not allowed within a " + sub->stage + "'s sub-pipeline");
    if (before && (before->flags & kStageLast))
      return LocationError(
          40601, std::string(before->name) + " can only be the final stage in the pipeline");
    if (position > 1) {
      if (row.flags & kStageFirst)
        return LocationError(40602, name + " is only valid as the first stage in a pipeline.");
      return Ok();
    }
    bool collectionless = options.collection.empty();
    if ((row.flags & kStageAdmin) && (!collectionless || options.db != "admin"))
      return Error{ErrorCode::kInvalidNamespace,
                   name + " must be run against the 'admin' database with {aggregate: 1}"};
    if ((row.flags & kStageCollectionless) && !collectionless)
      return Error{ErrorCode::kInvalidNamespace,
                   "'" + name + "' can only be run with {aggregate: 1}"};
    if (collectionless && !(sub && sub->in_facet) &&
        !(row.flags & (kStageCollectionless | kStageAlsoCollectionless)))
      return Error{ErrorCode::kInvalidNamespace,
                   "{aggregate: 1} is not valid for '" + name + "'; a collection is required."};
    return Ok();
  }

  /// Only a $text query gives documents a score, and there is none that is not refused.
  static Result<void> CheckTextScore(const std::vector<StagePtr>& stages) {
    for (const StagePtr& stage : stages) {
      std::set<std::string> fields;
      stage->AddDependencies(&fields);
      if (fields.contains(std::string(kMetaDependency) + "textScore"))
        return LocationError(40218, "query requires text score metadata, but it is not available");
    }
    return Ok();
  }

  /// A sort keeps its keys when something behind it asks for {$meta: "sortKey"}.
  static void NoteSortKeys(std::vector<StagePtr>& stages) {
    bool wanted = false;
    for (auto it = stages.rbegin(); it != stages.rend(); ++it) {
      if (auto* sort = dynamic_cast<PipelineSort*>(it->get()); sort && wanted) sort->WantSortKey();
      std::set<std::string> fields;
      (*it)->AddDependencies(&fields);
      wanted = wanted || fields.contains(std::string(kMetaDependency) + "sortKey");
    }
  }
};

Pipeline::Pipeline() : context_(std::make_unique<PipelineContext>()) {}
Pipeline::~Pipeline() = default;

Result<std::unique_ptr<Pipeline>> Pipeline::Parse(BsonView stages, const PipelineOptions& options) {
  ParseWork work(nullptr);
  std::vector<std::pair<std::string, Value>> variables = options.variables;
  MAYFLY_TRY(CheckOptionsOnce("let", options.let.AsValue()));
  for (const BsonElement& e : options.let) {
    MAYFLY_TRY(ParseWork::Step());
    MAYFLY_TRY(CheckVariableName(e.name));
    // A variable does not see the earlier ones, and it has no document.
    VariableScope scope;
    MAYFLY_TRY(ExpressionPtr expression, ParseExpression(e.value, scope));
    std::set<std::string> fields;
    expression->AddDependencies(&fields);
    if (!fields.empty())
      return LocationError(4890500,
                           "Command let Expression tried to access a field, but this is not "
                           "allowed because command let "
                           "Expressions run before the query examines any documents.");
    EvalContext ctx;
    ctx.now = options.now;
    ctx.cluster_time = options.cluster_time;
    ctx.op = ParseWork::Asked();
    ctx.variables.resize(static_cast<size_t>(scope.slots()));
    MAYFLY_TRY(Value v, expression->Evaluate(ctx));
    MAYFLY_TRY(CheckNesting(v.view()));
    variables.emplace_back(e.name, std::move(v).Own());
    MAYFLY_TRY(ParseWork::MadeVariable(e.name, variables.back().second.view().size()));
  }
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline,
             PipelineParser::Parse(stages, options, std::move(variables), nullptr, 0));
  MAYFLY_TRY(work.Keep(&pipeline->parsed_hold_));  // the variables
  return pipeline;
}

Result<std::unique_ptr<Pipeline>> ParseSubPipeline(BsonView stages, const PipelineContext& parent,
                                                   const SubPipelineSpec& spec) {
  PipelineOptions options = parent.options;
  options.db = spec.db;
  options.collection = spec.collection;
  options.allow_writes = false;
  std::vector<std::pair<std::string, Value>> variables = parent.variables;
  variables.insert(variables.end(), spec.variables.begin(), spec.variables.end());
  const ParseWork work(parent.op);  // it may be parsed for each document
  return PipelineParser::Parse(stages, options, std::move(variables), &spec, parent.depth + 1);
}

Result<void> OpenSubPipeline(Pipeline& pipeline, const PipelineContext& parent) {
  MAYFLY_TRY(pipeline.CheckConstants());
  if (!parent.env || !parent.op)
    return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
  pipeline.context().eval.now = parent.eval.now;
  pipeline.context().eval.cluster_time = parent.eval.cluster_time;
  if (pipeline.NeedsSource()) {
    const PipelineOptions& o = pipeline.context().options;
    MAYFLY_TRY(auto source,
               parent.env->OpenSource(*parent.op, o.db, o.collection, pipeline.TakeSource()));
    pipeline.SetSource(std::move(source));
  }
  pipeline.Attach(parent.op, parent.env);
  return Ok();
}

Result<void> Pipeline::CheckConstants() {
  Result<void> r = scope_.CheckConstants();
  if (!r)
    return Error{r.error().code,
                 "Failed to optimize pipeline :: caused by :: " + r.error().message};
  return r;
}

bool Pipeline::NeedsSource() const { return stages_.empty() || !stages_[0]->is_source(); }

namespace {

/// Metadata goes past stages that drop fields, so it is each stage that is asked.
void AskForMetadata(const std::vector<StagePtr>& stages, SourceRequest* request) {
  std::set<std::string> fields;
  for (const StagePtr& stage : stages) stage->AddDependencies(&fields);
  for (const std::string& field : fields) {
    if (!field.starts_with(kMetaDependency)) continue;
    request->needs_metadata = true;
    const std::string_view what = std::string_view(field).substr(kMetaDependency.size());
    if (what == "sortKey") request->needs_sort_key = !request->sort.view().empty();
    if (what == "recordId") request->needs_record_id = true;
    if (what == "indexKey") request->needs_index_key = true;
  }
}

/// The top-level fields of their input that these stages read, if later stages read `wanted` (null:
/// everything). Names only: a source that cut documents down inside arrays would change what a path
/// there means. Nothing: whole documents.
std::optional<std::set<std::string>> FieldsRead(std::span<const StagePtr> stages,
                                                const std::set<std::string>* wanted) {
  std::set<std::string> fields;
  bool whole = wanted == nullptr, end = true;
  for (const StagePtr& stage : stages) {
    const StageNeeds needs = stage->AddDependencies(&fields);
    if (needs == StageNeeds::kAlso) continue;
    whole = needs == StageNeeds::kWhole;
    end = false;
    break;
  }
  if (whole || fields.contains("")) return std::nullopt;
  std::set<std::string> names;
  for (const std::string& field : fields)
    // bounded: by the paths of the pipeline
    if (!field.starts_with(kMetaDependency)) names.insert(field.substr(0, field.find('.')));
  if (end) names.insert(wanted->begin(), wanted->end());
  return names;
}

}  // namespace

void Pipeline::NarrowUnpacking(const std::set<std::string>* wanted) {
  if (!context_->options.rewrite_series) return;
  for (size_t i = 0; i < stages_.size(); ++i) {
    auto* unpack = dynamic_cast<UnpackStage*>(stages_[i].get());
    auto* edge = dynamic_cast<EdgeStage*>(stages_[i].get());
    if (unpack == nullptr && edge == nullptr) continue;
    std::optional<std::set<std::string>> fields =
        FieldsRead(std::span(stages_).subspan(i + 1), wanted);
    if (fields && unpack != nullptr) unpack->Narrow(std::move(*fields));
    if (fields && edge != nullptr) edge->Narrow(std::move(*fields));
    return;
  }
}

SourceRequest Pipeline::TakeSource(const std::set<std::string>* wanted) {
  SourceRequest request;
  auto front = [&]<class T>(T*) {
    return stages_.empty() ? nullptr : dynamic_cast<T*>(stages_[0].get());
  };
  auto drop = [&] { stages_.erase(stages_.begin()); };
  if (auto* match = front(static_cast<PipelineMatch*>(nullptr))) {
    request.filter = BsonDocument(match->filter());
    request.match = match->TakeMatch();
    drop();
  }
  auto* sort = front(static_cast<PipelineSort*>(nullptr));
  bool sorted = sort != nullptr;
  int64_t sort_limit = 0;
  if (sort) {
    request.sort = sort->pattern().spec();
    sort_limit = sort->limit();
    std::set<std::string> meta;
    sort->AddDependencies(&meta);
    request.needs_metadata = sort->pattern().needs_metadata();
    drop();
  }
  if (auto* skip = front(static_cast<PipelineSkip*>(nullptr))) {
    request.skip = skip->skip();
    drop();
  }
  if (auto* limit = front(static_cast<PipelineLimit*>(nullptr))) {
    request.limit = limit->limit();
    drop();
  }
  // The limit that a sort has taken over counts from before the skip.
  if (sorted && sort_limit > 0) {
    int64_t rest = std::max<int64_t>(sort_limit - request.skip, 0);
    if (rest == 0) {
      // Nothing can come out: the smallest find that gives nothing is one with its limit skipped.
      request.skip = 0;
      request.limit = 1;
      stages_.insert(stages_.begin(), std::make_unique<PipelineSkip>(*context_, 1));
    } else {
      request.limit = request.limit > 0 ? std::min(request.limit, rest) : rest;
    }
  }
  NarrowUnpacking(wanted);
  if (stages_.size() > 1 && request.sort.view().empty() && request.limit == 0 && request.skip == 0)
    if (auto* sort = dynamic_cast<BoundedSortStage*>(stages_[1].get()))
      request.bucket_order = sort->Order();
  AskForMetadata(stages_, &request);
  request.fields = FieldsRead(stages_, wanted);
  if (!request.needs_metadata && !stages_.empty()) stages_[0]->AskSource(&request);
  request.variables = context_->eval.variables;
  request.named_variables = context_->variables;
  return request;
}

void Pipeline::SetSource(std::unique_ptr<DocumentSource> source) {
  source_ = std::move(source);
  linked_ = false;
}

void Pipeline::Link() {
  DocumentSource* input = source_.get();
  for (auto& stage : stages_) {
    stage->SetInput(input);
    input = stage.get();
  }
  linked_ = true;
}

void Pipeline::Attach(Operation* op, PipelineEnvironment* env) {
  // $$NOW and $$CLUSTER_TIME are one reading for all batches of a cursor.
  if (!context_->op && op && context_->eval.now == Instant{}) {
    context_->eval.now = op->now;
    context_->eval.cluster_time = op->cluster_time;
  }
  context_->op = op;
  context_->env = env;
  context_->eval.op = op;
  if (source_) source_->SetOperation(op);
  for (auto& stage : stages_) stage->OnAttach();
}

void Pipeline::SetOperation(Operation* op) { Attach(op, context_->env); }

Result<StreamState> Pipeline::Next(StreamDocument* out) {
  if (!linked_) Link();
  if (!stages_.empty()) {
    Result<StreamState> r = stages_.back()->Next(out);
    // Also where an earlier batch wrote it: it is still read from there.
    if (context_->op != nullptr &&
        context_->options.temp_dir.use->files.load(std::memory_order_relaxed) != 0) [[unlikely]]
      context_->op->used_disk = true;
    return r;
  }
  if (!source_) return StreamState::kEof;
  return source_->Next(out);
}

void Pipeline::AddKept(large_memory::Kept* kept) const {
  if (source_) source_->AddKept(kept);
  for (const auto& stage : stages_) stage->AddKept(kept);
}

void Pipeline::SaveState() {
  if (source_) source_->SaveState();
  for (auto& stage : stages_) stage->SaveState();
}

bool Pipeline::WritesTo(std::string* db, std::string* collection) const {
  if (stages_.empty()) return false;
  const StageRow* row = FindStage(stages_.back()->name());
  if (!row || !(row->flags & kStageLast)) return false;
  std::set<std::string> target;
  stages_.back()->AddNamespaces(&target);
  const std::string& ns = *target.begin();
  size_t dot = ns.find('.');
  if (db) *db = ns.substr(0, dot);
  if (collection) *collection = ns.substr(dot + 1);
  return true;
}

std::set<std::string> Pipeline::InvolvedNamespaces() const {
  std::set<std::string> r;
  for (auto& stage : stages_) stage->AddNamespaces(&r);
  return r;
}

void Pipeline::ExplainStages(BsonArrayBuilder& out, int verbosity) const {
  for (auto& stage : stages_) {
    BsonBuilder b = out.OpenDocument();
    stage->Serialize(b);
    if (verbosity > 0) {
      stage->ExplainStats(b);
      b.Append("nReturned", stage->returned());
      b.Append("executionTimeMillisEstimate", stage->micros() / 1000);
    }
  }
}

void Pipeline::Serialize(BsonArrayBuilder& out) const { ExplainStages(out, 0); }

}  // namespace mayfly

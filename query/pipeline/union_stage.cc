#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/pipeline/stage.h"
#include "storage/catalog/namespace.h"

#include <unordered_set>

namespace mayfly {
namespace {

// --- $unionWith ---

class UnionWithStage final : public PipelineStage {
 public:
  UnionWithStage(PipelineContext& context, std::string collection, BsonDocument stages,
                 std::unique_ptr<Pipeline> pipeline)
      : PipelineStage(context),
        collection_(std::move(collection)),
        stages_(std::move(stages)),
        pipeline_(std::move(pipeline)) {}
  std::string_view name() const override { return "$unionWith"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$unionWith");
    if (!collection_.empty()) sub.Append("coll", collection_);
    sub.AppendArray("pipeline", stages_);
  }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kWhole; }
  void AddNamespaces(std::set<std::string>* namespaces) const override {
    if (!collection_.empty()) namespaces->insert(JoinNamespace(options().db, collection_));
    namespaces->merge(pipeline_->InvolvedNamespaces());
  }
  void OnAttach() override {
    if (open_) pipeline_->Attach(context_->op, context_->env);
  }
  void SaveState() override {
    if (open_) pipeline_->SaveState();
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (!open_) {
      MAYFLY_TRY(StreamState state, Pull(out));
      if (state != StreamState::kEof) return state;
      MAYFLY_TRY(OpenSubPipeline(*pipeline_, *context_));
      open_ = true;
    }
    MAYFLY_TRY(Check());
    return pipeline_->Next(out);
  }
  void AddKeptByStage(large_memory::Kept* kept) const override {
    if (open_) pipeline_->AddKept(kept);
  }

 private:
  std::string collection_;
  BsonDocument stages_;
  std::unique_ptr<Pipeline> pipeline_;
  bool open_ = false;
};

// --- $graphLookup ---

struct GraphSpec {
  std::string from, as, connect_to, connect_from;
  std::vector<std::string> as_path, from_path;
  ExpressionPtr start;
  std::optional<int64_t> max_depth;
  std::string depth_field;
  BsonDocument restrict_match;
  bool has_restrict = false;
};

struct ValueHash {
  size_t operator()(const Value& v) const { return HashValue(v.view()); }
};
struct ValueEqual {
  bool operator()(const Value& a, const Value& b) const {
    return CompareValues(a.view(), b.view()) == 0;
  }
};
using ValueSet = std::unordered_set<Value, ValueHash, ValueEqual>;

/// A search by breadth: each level is one query for all values that the level before led to.
class GraphLookupStage final : public PipelineStage {
 public:
  GraphLookupStage(PipelineContext& context, GraphSpec spec)
      : PipelineStage(context), spec_(std::move(spec)) {}
  std::string_view name() const override { return "$graphLookup"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$graphLookup");
    sub.Append("from", spec_.from).Append("as", spec_.as);
    sub.Append("connectToField", spec_.connect_to).Append("connectFromField", spec_.connect_from);
    spec_.start->Serialize(sub, "startWith");
    if (!spec_.depth_field.empty()) sub.Append("depthField", spec_.depth_field);
    if (spec_.max_depth) sub.Append("maxDepth", *spec_.max_depth);
    if (spec_.has_restrict) sub.Append("restrictSearchWithMatch", spec_.restrict_match);
  }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    spec_.start->AddDependencies(fields);
    return StageNeeds::kAlso;
  }
  void AddNamespaces(std::set<std::string>* namespaces) const override {
    namespaces->insert(JoinNamespace(options().db, spec_.from));
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    StreamDocument in;
    MAYFLY_TRY(StreamState state, Pull(&in));
    if (state != StreamState::kAdvanced) return state;
    MAYFLY_TRY(Value found, Search(in));
    buffer_.clear();
    BsonBuilder b(buffer_);
    SetPath(in.doc, spec_.as_path, found.view(), b);
    b.Done();
    *out = {BsonView(buffer_.data()), in.metadata};
    return state;
  }

 private:
  /// Takes in the values to look for next. They count as the documents found do.
  Result<void> Follow(const Value& v, ValueSet& searched, ValueSet& frontier, size_t* memory) {
    auto add = [&](Value own) -> Result<void> {
      MAYFLY_TRY(Check());
      const size_t bytes = own.view().size() + 2 * sizeof(Value);
      if (!searched.insert(own).second) return Ok();
      *memory += bytes;
      if (*memory > options().memory_limit) return TooMuch();
      frontier.insert(std::move(own));
      return Ok();
    };
    if (v.view().IsArray()) {
      for (const BsonElement& e : v.view().Document()) {
        MAYFLY_TRY(add(Value::Copy(e.value)));
      }
    } else if (!v.view().IsNullish()) {
      MAYFLY_TRY(add(v.Own()));
    }
    return Ok();
  }

  static Error TooMuch() {
    return LocationError(40099, "$graphLookup reached maximum memory consumption");
  }

  Result<Value> Search(const StreamDocument& in) {
    if (!context_->env || !context_->op)
      return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
    MAYFLY_TRY(Value start, spec_.start->Evaluate(Eval(in)));
    ValueSet searched, visited, frontier;
    size_t memory = 0;
    MAYFLY_TRY(Follow(start, searched, frontier, &memory));
    std::string bytes;
    large_memory::Hold hold;
    BsonArrayBuilder out(bytes);
    for (int64_t depth = 0; !frontier.empty() && (!spec_.max_depth || depth <= *spec_.max_depth);
         ++depth) {
      SourceRequest request;
      request.filter = BuildBson([&](BsonBuilder& b) {
        if (spec_.has_restrict) {
          BsonArrayBuilder both = b.OpenArray("$and");
          both.Append(spec_.restrict_match);
          BsonBuilder one = both.OpenDocument();
          AppendIn(one, frontier);
        } else {
          AppendIn(b, frontier);
        }
      });
      const ParseWork work(context_->op);
      MAYFLY_TRY(request.match, ParseMatch(request.filter));
      frontier.clear();
      MAYFLY_TRY(auto source, context_->env->OpenSource(*context_->op, options().db, spec_.from,
                                                        std::move(request)));
      while (true) {
        StreamDocument doc;
        MAYFLY_TRY(Check());
        MAYFLY_TRY(StreamState state, source->Next(&doc));
        if (state != StreamState::kAdvanced) break;
        if (!visited.insert(Value::Copy(doc.doc["_id"])).second) continue;
        memory += doc.doc.size() + 2 * sizeof(Value);
        if (memory > options().memory_limit) return TooMuch();
        MAYFLY_TRY(hold.Set(memory));
        if (spec_.depth_field.empty()) {
          out.Append(doc.doc);
        } else {
          BsonBuilder b = out.OpenDocument();
          std::string path[] = {spec_.depth_field};
          Value level = Value::Int64(depth);
          SetPath(doc.doc, path, level.view(), b);
        }
        MAYFLY_TRY(
            Follow(ReadFieldPath(doc.doc.AsValue(), spec_.from_path), searched, frontier, &memory));
      }
    }
    out.Done();
    return Value::Array(std::move(bytes));
  }

  void AppendIn(BsonBuilder& b, const ValueSet& frontier) const {
    BsonBuilder in = b.OpenDocument(spec_.connect_to);
    BsonArrayBuilder list = in.OpenArray("$in");
    for (auto& v : frontier)
      if (!v.view().Is(BsonType::kRegex)) list.Append(v.view());
  }

  GraphSpec spec_;
  std::string buffer_;
};

}  // namespace

Result<void> ParseUnionWithStage(StageParser& p, BsonValue spec) {
  std::string collection;
  BsonDocument stages;
  if (spec.IsString()) {
    collection = spec.String();
  } else if (spec.IsDocument()) {
    for (const BsonElement& e : spec.Document()) {
      if (e.name == "coll") {
        if (!e.value.IsString())
          return TypeMismatch("BSON field '$unionWith.coll' is the wrong type '" +
                              TypeText(e.value) + "', expected type 'string'");
        collection = e.value.String();
      } else if (e.name == "pipeline") {
        MAYFLY_TRY(CheckStageArray(e.value, "pipeline"));
        stages = BsonDocument(e.value.Document());
      } else {
        return Error{ErrorCode::kUnknownField,
                     "BSON field '$unionWith." + std::string(e.name) + "' is an unknown field."};
      }
    }
  } else {
    return FailedToParse(
        "the $unionWith stage specification must be an object or string, but found " +
        TypeText(spec));
  }
  if (collection.empty() && stages.view().First().value.type() != BsonType::kDocument)
    return FailedToParse(
        "$unionWith stage without explicit collection must have a pipeline with $documents as "
        "first stage");
  if (!collection.empty()) {
    MAYFLY_TRY(ValidateNamespace(p.context.options.db, collection));
  }
  SubPipelineSpec sub{.stage = "$unionWith", .db = p.context.options.db, .collection = collection};
  MAYFLY_TRY(auto pipeline, ParseSubPipeline(stages, p.context, sub));
  p.out.push_back(std::make_unique<UnionWithStage>(p.context, std::move(collection),
                                                   std::move(stages), std::move(pipeline)));
  return Ok();
}

Result<void> ParseGraphLookupStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return FailedToParse("the $graphLookup stage specification must be an object, but found " +
                         TypeText(spec));
  GraphSpec graph;
  bool named = false;  // also by an empty name, which is no name of a collection
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "startWith") {
      MAYFLY_TRY(graph.start, ParseExpression(e.value, p.scope));
      continue;
    }
    if (e.name == "maxDepth") {
      int64_t n;
      if (!e.value.IsNumber())
        return LocationError(
            40100, "maxDepth requires numeric argument, found type: " + TypeText(e.value));
      if (e.value.NumberAsDouble() < 0)
        return LocationError(
            40101, "maxDepth requires a nonnegative argument, found: " + ValueText(e.value));
      if (!e.value.ExactInt64(&n))
        return LocationError(
            40102, "maxDepth could not be represented as a long long: " + ValueText(e.value));
      graph.max_depth = n;
      continue;
    }
    if (e.name == "restrictSearchWithMatch") {
      if (!e.value.IsDocument())
        return LocationError(
            40185, "restrictSearchWithMatch must be an object, found type: " + TypeText(e.value));
      MAYFLY_TRY(ParseMatch(e.value.Document()));
      graph.restrict_match = BsonDocument(e.value.Document());
      graph.has_restrict = true;
      continue;
    }
    bool known = e.name == "from" || e.name == "as" || e.name == "connectFromField" ||
                 e.name == "connectToField" || e.name == "depthField";
    if (!known)
      return LocationError(40104, "Unknown argument to $graphLookup: " + std::string(e.name));
    if (e.name == "from" && !e.value.IsString())
      return Error{
          ErrorCode::kFailedToParse,
          "$graphLookup 'from' must be the name of a collection, found: " + ValueText(e.value)};
    if (!e.value.IsString())
      return LocationError(40103, "expected string as argument for " + std::string(e.name) +
                                      ", found: " + ValueText(e.value));
    std::string text(e.value.String());
    if (e.name == "from") {
      graph.from = text;
      named = true;
    } else {
      MAYFLY_TRY(auto path, ParseFieldPath(text));
      if (e.name == "as") {
        graph.as = text;
        graph.as_path = std::move(path);
      } else if (e.name == "connectFromField") {
        graph.connect_from = text;
        graph.from_path = std::move(path);
      } else if (e.name == "connectToField") {
        graph.connect_to = text;
      } else {
        graph.depth_field = text;
      }
    }
  }
  if (!named || graph.as.empty() || !graph.start || graph.connect_from.empty() ||
      graph.connect_to.empty())
    return LocationError(40105,
                         "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and "
                         "'connectToField' to be specified.");
  MAYFLY_TRY(ValidateNamespace(p.context.options.db, graph.from));
  p.out.push_back(std::make_unique<GraphLookupStage>(p.context, std::move(graph)));
  return Ok();
}

}  // namespace mayfly

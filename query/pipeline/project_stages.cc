#include "query/pipeline/stage.h"
#include "query/projection/projection.h"

namespace mayfly {

class PipelineProject final : public PipelineStage {
 public:
  PipelineProject(PipelineContext& context, std::string name, ProjectionPtr projection)
      : PipelineStage(context), name_(std::move(name)), projection_(std::move(projection)) {}
  std::string_view name() const override { return name_; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument(name_);
    projection_->Serialize(sub);
  }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    const ProjectionNeeds& needs = projection_->needs();
    auto meta = [&](bool wanted, std::string_view what) {
      if (wanted) fields->insert(std::string(kMetaDependency) + std::string(what));
    };
    meta(needs.expire_at, "expireAt");
    meta(needs.sort_key, "sortKey");
    meta(needs.text_score, "textScore");
    meta(needs.record_id, "recordId");
    meta(needs.index_key, "indexKey");
    // An exclusion or $addFields hands everything else on, so it needs no field for itself but
    // those it reads.
    if (projection_->kind() == ProjectionKind::kInclusion) {
      if (needs.whole_document) return StageNeeds::kWhole;
      fields->insert(needs.paths.begin(), needs.paths.end());
      return StageNeeds::kOnly;
    }
    if (projection_->kind() == ProjectionKind::kExclusion) return StageNeeds::kAlso;
    fields->insert(needs.paths.begin(), needs.paths.end());
    return StageNeeds::kAlso;
  }
  const ProjectionExecutor& projection() const { return *projection_; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    StreamDocument in;
    MAYFLY_TRY(StreamState state, Pull(&in));
    if (state != StreamState::kAdvanced) return state;
    buffer_.clear();
    BsonBuilder b(buffer_);
    Result<void> applied = projection_->Apply(in.doc, Eval(in), b);
    if (!applied) {
      b.Abandon();
      return applied.error();
    }
    b.Done();
    if (buffer_.size() > size_t{2} * kMaxValueBytes) return ValueTooLarge(buffer_.size());
    *out = {BsonView(buffer_.data()), in.metadata};
    return state;
  }

 private:
  std::string name_;
  ProjectionPtr projection_;
  std::string buffer_;
};

std::optional<bool> ProjectionTouches(const PipelineStage& stage, std::string_view path) {
  auto* project = dynamic_cast<const PipelineProject*>(&stage);
  if (!project) return std::nullopt;
  return project->projection().Touches(path);
}

std::string ProjectionRenamedFrom(const PipelineStage& stage, std::string_view field) {
  auto* project = dynamic_cast<const PipelineProject*>(&stage);
  return project != nullptr ? project->projection().RenamedFrom(field) : std::string();
}

Result<void> ParseProjectStage(StageParser& p, BsonValue spec) {
  if (p.stage == "$unset") {
    MAYFLY_TRY(ProjectionPtr projection, ParseUnset(spec, p.scope));
    // Serialized as the exclusion that it is.
    p.out.push_back(
        std::make_unique<PipelineProject>(p.context, "$project", std::move(projection)));
    return Ok();
  }
  if (p.stage == "$project") {
    if (!spec.IsDocument()) return LocationError(15969, "$project specification must be an object");
    MAYFLY_TRY(ProjectionPtr projection, ParseAggProject(spec.Document(), p.scope));
    p.out.push_back(
        std::make_unique<PipelineProject>(p.context, "$project", std::move(projection)));
    return Ok();
  }
  std::string name(p.stage);
  if (!spec.IsDocument())
    return LocationError(40272,
                         name + " specification stage must be an object, got " + TypeText(spec));
  MAYFLY_TRY(ProjectionPtr projection, ParseAddFields(spec.Document(), p.scope, name));
  p.out.push_back(std::make_unique<PipelineProject>(p.context, name, std::move(projection)));
  return Ok();
}

// --- $replaceRoot, $replaceWith ---

namespace {

class ReplaceRootStage final : public PipelineStage {
 public:
  ReplaceRootStage(PipelineContext& context, ExpressionPtr root)
      : PipelineStage(context), root_(std::move(root)) {}
  std::string_view name() const override { return "$replaceRoot"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$replaceRoot");
    root_->Serialize(sub, "newRoot");
  }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    root_->AddDependencies(fields);
    return StageNeeds::kOnly;
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    StreamDocument in;
    MAYFLY_TRY(StreamState state, Pull(&in));
    if (state != StreamState::kAdvanced) return state;
    MAYFLY_TRY(value_, root_->Evaluate(Eval(in)));
    if (!value_.view().IsDocument())
      return LocationError(
          40228, "'newRoot' expression  must evaluate to an object, but resulting value was: " +
                     ValueText(value_) + ". Type of resulting value: '" + TypeText(value_) +
                     "'. Input document: " + ValueText(in.doc.AsValue()));
    *out = {value_.view().Document(), in.metadata};
    return state;
  }

 private:
  ExpressionPtr root_;
  Value value_;
};

}  // namespace

Result<void> ParseReplaceRootStage(StageParser& p, BsonValue spec) {
  BsonValue root = spec;
  if (p.stage == "$replaceRoot") {
    if (!spec.IsDocument())
      return LocationError(
          40229,
          "expected an object as specification for $replaceRoot stage, got " + TypeText(spec));
    root = {};
    for (const BsonElement& e : spec.Document()) {
      if (e.name != "newRoot")
        return LocationError(
            40415, "BSON field '$replaceRoot." + std::string(e.name) + "' is an unknown field.");
      root = e.value;
    }
    if (root.missing())
      return LocationError(40231, "no newRoot specified for the $replaceRoot stage");
  }
  MAYFLY_TRY(ExpressionPtr e, ParseExpression(root, p.scope));
  p.out.push_back(std::make_unique<ReplaceRootStage>(p.context, std::move(e)));
  return Ok();
}

// --- $redact ---

namespace {

class RedactStage final : public PipelineStage {
 public:
  RedactStage(PipelineContext& context, ExpressionPtr expression, VariableId descend,
              VariableId prune, VariableId keep)
      : PipelineStage(context),
        expression_(std::move(expression)),
        descend_(descend),
        prune_(prune),
        keep_(keep) {}
  std::string_view name() const override { return "$redact"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { expression_->Serialize(out, "$redact"); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kWhole; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    while (true) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
      if (state != StreamState::kAdvanced) return state;
      EvalContext& ctx = Eval(in);
      auto slots = static_cast<size_t>(std::max({descend_, prune_, keep_})) + 1;
      // bounded: by the variables of the pipeline
      if (ctx.variables.size() < slots) ctx.variables.resize(slots);
      ctx.variables[descend_] = Value::String("descend");
      ctx.variables[prune_] = Value::String("prune");
      ctx.variables[keep_] = Value::String("keep");
      buffer_.clear();
      BsonBuilder b(buffer_);
      Result<bool> kept = Redact(in.doc, ctx, b);
      ctx.variables[VariableScope::kCurrent] = Value();
      if (!kept) {
        b.Abandon();
        return kept.error();
      }
      if (!kept.value()) {
        b.Abandon();
        continue;
      }
      b.Done();
      *out = {BsonView(buffer_.data()), in.metadata};
      return state;
    }
  }

 private:
  /// Appends what is kept of `doc`; false when it goes as a whole.
  Result<bool> Redact(BsonView doc, EvalContext& ctx, BsonBuilder& out) {
    ctx.variables[VariableScope::kCurrent] = Value::Borrow(doc.AsValue());
    MAYFLY_TRY(Value v, expression_->Evaluate(ctx));
    BsonValue answer = v.view();
    std::string_view text = answer.IsString() ? answer.String() : "";
    if (text == "keep") {
      out.AppendAll(doc);
      return true;
    }
    if (text == "prune") return false;
    if (text != "descend")
      return LocationError(17053,
                           "$redact's expression should not return anything aside from the "
                           "variables $$KEEP, $$DESCEND, "
                           "and $$PRUNE, but returned " +
                               ValueText(v));
    for (const BsonElement& e : doc) {
      if (e.value.IsDocument()) {
        std::string bytes;
        BsonBuilder sub(bytes);  // bounded: a part of the document
        MAYFLY_TRY(bool kept, Redact(e.value.Document(), ctx, sub));
        sub.Done();
        if (kept) out.Append(e.name, BsonView(bytes.data()));
      } else if (e.value.IsArray()) {
        MAYFLY_TRY(Value array, RedactArray(e.value.Document(), ctx));
        out.Append(e.name, array.view());
      } else {
        out.Append(e);
      }
    }
    return true;
  }
  Result<Value> RedactArray(BsonView array, EvalContext& ctx) {
    std::string bytes;
    BsonArrayBuilder out(bytes);  // bounded: a part of the document
    for (const BsonElement& e : array) {
      if (e.value.IsDocument()) {
        std::string sub_bytes;
        BsonBuilder sub(sub_bytes);  // bounded: a part of the document
        MAYFLY_TRY(bool kept, Redact(e.value.Document(), ctx, sub));
        sub.Done();
        if (kept) out.Append(BsonView(sub_bytes.data()));
      } else if (e.value.IsArray()) {
        MAYFLY_TRY(Value inner, RedactArray(e.value.Document(), ctx));
        out.Append(inner.view());
      } else {
        out.Append(e.value);
      }
    }
    out.Done();
    return Value::Array(std::move(bytes));
  }

  ExpressionPtr expression_;
  VariableId descend_, prune_, keep_;
  std::string buffer_;
};

}  // namespace

Result<void> ParseRedactStage(StageParser& p, BsonValue spec) {
  VariableId descend = p.scope.Define("DESCEND"), prune = p.scope.Define("PRUNE"),
             keep = p.scope.Define("KEEP");
  Result<ExpressionPtr> e = ParseExpression(spec, p.scope);
  for (VariableId id : {descend, prune, keep}) p.scope.Undefine(id);
  if (!e) return e.error();
  p.out.push_back(
      std::make_unique<RedactStage>(p.context, std::move(e).value(), descend, prune, keep));
  return Ok();
}

}  // namespace mayfly

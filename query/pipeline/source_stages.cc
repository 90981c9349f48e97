#include <algorithm>
#include <initializer_list>

#include "query/pipeline/stage.h"

namespace mayfly {
namespace {

/// Documents that a stage has from the environment, charged.
class ChargedDocuments {
 public:
  /// Errors: ExceededMemoryLimit 146; then there are none.
  Result<void> Set(std::vector<BsonDocument> docs) {
    docs_ = std::move(docs);
    next_ = bytes_ = 0;
    for (const BsonDocument& d : docs_) bytes_ += sizeof d + d.view().size();
    Result<void> held = hold_.Set(bytes_);
    if (!held) docs_.clear();
    return held;
  }
  /// Null: the end. The view lives until the next Set.
  const BsonDocument* Next() { return next_ < docs_.size() ? &docs_[next_++] : nullptr; }
  void AddKept(large_memory::Kept* kept) const { kept->Add(bytes_, hold_); }

 private:
  std::vector<BsonDocument> docs_;
  size_t next_ = 0, bytes_ = 0;
  large_memory::Hold hold_;
};

/// $documents: an array that an expression gives.
class DocumentsStage final : public PipelineStage {
 public:
  DocumentsStage(PipelineContext& context, ExpressionPtr array)
      : PipelineStage(context), array_(std::move(array)) {}
  std::string_view name() const override { return "$documents"; }
  void Serialize(BsonBuilder& out) const override { array_->Serialize(out, "$documents"); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kOnly; }
  bool is_source() const override { return true; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (!started_) {
      MAYFLY_TRY(value_, array_->Evaluate(Eval({})));
      if (!value_.view().IsArray())
        return LocationError(5858203,
                             "an array is expected for $documents, found: " + TypeText(value_));
      value_ = std::move(value_).Own();
      next_ = value_.view().Document().begin();
      started_ = true;
    }
    if (next_ == std::default_sentinel) return StreamState::kEof;
    BsonValue v = (*next_).value;
    ++next_;
    if (!v.IsDocument())
      return LocationError(40228,
                           "$documents array elements must be objects, found: " + TypeText(v));
    *out = {v.Document(), nullptr};
    return StreamState::kAdvanced;
  }

 private:
  ExpressionPtr array_;
  Value value_;
  BsonView::Iterator next_;
  bool started_ = false;
};

/// A stage whose documents the environment makes.
class EnvironmentStage final : public PipelineStage {
 public:
  EnvironmentStage(PipelineContext& context, std::string name, BsonDocument spec)
      : PipelineStage(context), name_(std::move(name)), spec_(std::move(spec)) {}
  std::string_view name() const override { return name_; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { out.Append(name_, spec_); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kOnly; }
  bool is_source() const override { return true; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (!started_) {
      if (!context_->env || !context_->op)
        return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
      MAYFLY_TRY(std::vector<BsonDocument> made,
                 context_->env->StageDocuments(*context_->op, name_, options().db,
                                               options().collection, spec_));
      MAYFLY_TRY(docs_.Set(std::move(made)));
      started_ = true;
    }
    const BsonDocument* const next = docs_.Next();
    if (next == nullptr) return StreamState::kEof;
    *out = {next->view(), nullptr};
    return StreamState::kAdvanced;
  }
  void AddKeptByStage(large_memory::Kept* kept) const override { docs_.AddKept(kept); }

 private:
  std::string name_;
  BsonDocument spec_;
  ChargedDocuments docs_;
  bool started_ = false;
};

/// $tombstones: as many at a time as the environment hands out.
class TombstonesStage final : public PipelineStage {
 public:
  TombstonesStage(PipelineContext& context, BsonDocument spec)
      : PipelineStage(context), spec_(std::move(spec)) {}
  std::string_view name() const override { return "$tombstones"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { out.Append("$tombstones", spec_); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kOnly; }
  bool is_source() const override { return true; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (next_ == docs_.size()) {
      if (!context_->env || !context_->op)
        return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
      if (ended_) return StreamState::kEof;
      next_ = 0;
      MAYFLY_TRY(docs_, context_->env->Tombstones(*context_->op, options().db, options().collection,
                                                  spec_, &position_));
      ended_ = docs_.empty();
      if (ended_) return StreamState::kEof;
    }
    *out = {docs_[next_++].view(), nullptr};
    return StreamState::kAdvanced;
  }
  void AddKeptByStage(large_memory::Kept* kept) const override {
    for (const BsonDocument& d : docs_) kept->bytes += sizeof d + d.view().size();
  }

 private:
  BsonDocument spec_;
  std::vector<BsonDocument> docs_;
  size_t next_ = 0;
  std::string position_;
  bool ended_ = false;
};

}  // namespace

Result<void> ParseTombstonesStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return Error{
        ErrorCode::kTypeMismatch,
        "The $tombstones stage specification must be an object, but found: " + TypeText(spec)};
  for (const BsonElement& e : spec.Document()) {
    if (e.name != "since")
      return Error{ErrorCode::kFailedToParse,
                   "unrecognized option to $tombstones: " + std::string(e.name) +
                       "; it takes {} or {since: <date>}"};
    if (!e.value.IsDate())
      return Error{ErrorCode::kTypeMismatch,
                   "$tombstones.since must be a date, but found: " + TypeText(e.value)};
  }
  p.out.push_back(std::make_unique<TombstonesStage>(p.context, BsonDocument(spec.Document())));
  return Ok();
}

Result<void> ParseDocumentsStage(StageParser& p, BsonValue spec) {
  MAYFLY_TRY(ExpressionPtr array, ParseExpression(spec, p.scope));
  p.out.push_back(std::make_unique<DocumentsStage>(p.context, std::move(array)));
  return Ok();
}

/// That `spec` has no other fields than these, of these types (kInt64: any number). Null is absent.
Result<void> CheckFields(const std::string& where, BsonView spec,
                         std::initializer_list<std::pair<std::string_view, BsonType>> fields) {
  for (const BsonElement& e : spec) {
    const std::string field = "BSON field '" + where + "." + std::string(e.name);
    auto it = std::find_if(fields.begin(), fields.end(),
                           [&](const auto& f) { return f.first == e.name; });
    if (it == fields.end()) return LocationError(40415, field + "' is an unknown field.");
    if (e.value.Is(BsonType::kNull) || e.value.Is(it->second)) continue;
    if (it->second == BsonType::kInt64 && e.value.IsNumber()) continue;
    const std::string expected = it->second == BsonType::kInt64
                                     ? "types '[long, int, decimal, double]'"
                                     : "type '" + std::string(BsonTypeName(it->second)) + "'";
    return Error{ErrorCode::kTypeMismatch,
                 field + "' is the wrong type '" + TypeText(e.value) + "', expected " + expected};
  }
  return Ok();
}

/// For whoever keeps a pipeline without running it, such as the definition of a view.
Result<void> CheckCollStats(BsonView spec) {
  constexpr auto kDocument = BsonType::kDocument;
  MAYFLY_TRY(CheckFields("$collStats", spec,
                         {{"latencyStats", kDocument},
                          {"storageStats", kDocument},
                          {"count", kDocument},
                          {"queryExecStats", kDocument}}));
  if (const BsonValue v = spec["latencyStats"]; v.IsDocument()) {
    MAYFLY_TRY(
        CheckFields("$collStats.latencyStats", v.Document(), {{"histograms", BsonType::kBool}}));
  }
  const BsonValue v = spec["storageStats"];
  if (!v.IsDocument()) return Ok();
  MAYFLY_TRY(CheckFields("$collStats.storageStats", v.Document(), {{"scale", BsonType::kInt64}}));
  const BsonValue scale = v.Document()["scale"];
  if (scale.IsNumber() && scale.NumberAsInt64() < 1)
    return Error{ErrorCode::kBadValue, "scale has to be >= 1"};
  return Ok();
}

Result<void> ParseEnvironmentStage(StageParser& p, BsonValue spec) {
  std::string name(p.stage);
  if (!spec.IsDocument()) {
    int code = name == "$collStats" ? 5447000 : name == "$indexStats" ? 28803 : 9;
    return LocationError(
        code,
        "The " + name + " stage specification must be an object, but found: " + TypeText(spec));
  }
  if ((name == "$indexStats" || name == "$planCacheStats") && !spec.Document().empty()) {
    int code = name == "$indexStats" ? 28803 : 9;
    return LocationError(code, "The " + name + " stage specification must be an empty object");
  }
  if (name == "$collStats") {
    MAYFLY_TRY(CheckCollStats(spec.Document()));
  }
  p.out.push_back(std::make_unique<EnvironmentStage>(p.context, std::move(name),
                                                     BsonDocument(spec.Document())));
  return Ok();
}

}  // namespace mayfly

#include "query/pipeline/stage.h"

namespace mayfly {
namespace {

/// The input of $facet, kept so that each of its pipelines can read it from the start: in memory up
/// to the limit, then on disk.
class FacetBuffer {
 public:
  Result<void> Add(BsonView doc, const PipelineOptions& options) {
    const bool room = hold_.Set(memory_.capacity()).has_value();
    if (!file_ && (!room || memory_.size() + doc.size() > options.memory_limit)) {
      if (!options.allow_disk_use)
        return Error{ErrorCode::kQueryExceededMemoryLimitNoDiskUseAllowed,
                     "Exceeded memory limit for $facet, but didn't allow disk use. Pass "
                     "allowDiskUse:true to opt in."};
      MAYFLY_TRY(SpillFile file, SpillFile::Create(options.temp_dir));
      file_.emplace(std::move(file));
    }
    if (file_) return file_->Write({}, doc.bytes());
    memory_.append(doc.bytes());
    return Ok();
  }
  Result<void> Rewind() {
    at_ = 0;
    return file_ ? file_->Rewind() : Result<void>(Ok());
  }
  Result<StreamState> Next(StreamDocument* out) {
    if (at_ < memory_.size()) {
      *out = {BsonView(memory_.data() + at_), nullptr};
      at_ += out->doc.size();
      return StreamState::kAdvanced;
    }
    if (file_) {
      MAYFLY_TRY(bool more, file_->Read(&key_, &read_));
      if (more) {
        *out = {BsonView(read_.data()), nullptr};
        return StreamState::kAdvanced;
      }
    }
    return StreamState::kEof;
  }

  void AddKept(large_memory::Kept* kept) const { kept->Add(memory_.capacity(), hold_); }
  /// Nobody reads it any more.
  void Clear() {
    std::string().swap(memory_);
    hold_.Release();
    file_.reset();
  }

 private:
  std::string memory_;
  large_memory::Hold hold_;
  std::optional<SpillFile> file_;
  std::string key_, read_;
  size_t at_ = 0;
};

class FacetSource final : public DocumentSource {
 public:
  explicit FacetSource(FacetBuffer& buffer) : buffer_(buffer) {}
  Result<StreamState> Next(StreamDocument* out) override { return buffer_.Next(out); }
  void SetOperation(Operation*) override {}

 private:
  FacetBuffer& buffer_;
};

class FacetStage final : public PipelineStage {
 public:
  struct Facet {
    std::string name;
    std::unique_ptr<Pipeline> pipeline;  ///< null once it has run
    std::set<std::string> namespaces;
    BsonDocument stages;  ///< then: its stages, an array
    /// What it has opened and sorted goes: its documents are in the result.
    void Close() {
      std::string bytes;
      BsonArrayBuilder out(bytes);
      pipeline->Serialize(out);
      out.Done();
      stages = BsonDocument(std::move(bytes));
      pipeline.reset();
    }
  };
  FacetStage(PipelineContext& context, std::vector<Facet> facets)
      : PipelineStage(context), facets_(std::move(facets)) {}
  std::string_view name() const override { return "$facet"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$facet");
    for (auto& f : facets_) {
      if (!f.pipeline) {
        sub.AppendArray(f.name, f.stages);
        continue;
      }
      BsonArrayBuilder stages = sub.OpenArray(f.name);
      f.pipeline->Serialize(stages);
    }
  }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kWhole; }
  void AddNamespaces(std::set<std::string>* namespaces) const override {
    for (auto& f : facets_)
      namespaces->insert(f.namespaces.begin(), f.namespaces.end());  // bounded: parsed ones
  }
  void OnAttach() override {
    for (auto& f : facets_)
      if (f.pipeline) f.pipeline->Attach(context_->op, context_->env);
  }
  void SaveState() override {
    for (auto& f : facets_)
      if (f.pipeline) f.pipeline->SaveState();
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (done_) return StreamState::kEof;
    while (true) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
      if (state == StreamState::kPaused) return state;
      if (state == StreamState::kEof) break;
      MAYFLY_TRY(buffer_.Add(in.doc, options()));
    }
    done_ = true;
    large_memory::Hold hold;
    BsonBuilder b(result_);
    for (auto& f : facets_) {
      MAYFLY_TRY(buffer_.Rewind());
      f.pipeline->context().eval.now = context_->eval.now;
      f.pipeline->context().eval.cluster_time = context_->eval.cluster_time;
      f.pipeline->SetSource(std::make_unique<FacetSource>(buffer_));
      f.pipeline->Attach(context_->op, context_->env);
      BsonArrayBuilder documents = b.OpenArray(f.name);
      while (true) {
        StreamDocument in;
        MAYFLY_TRY(StreamState state, f.pipeline->Next(&in));
        if (state != StreamState::kAdvanced) break;
        documents.Append(in.doc);
        MAYFLY_TRY(hold.Set(result_.capacity()));
        if (result_.size() > options().memory_limit)
          return Error{ErrorCode::kExceededMemoryLimit,
                       "document constructed by $facet is larger than " +
                           std::to_string(options().memory_limit) + " bytes"};
      }
      documents.Done();
      f.Close();
    }
    b.Done();
    buffer_.Clear();
    *out = {BsonView(result_.data()), nullptr};
    return StreamState::kAdvanced;
  }
  void AddKeptByStage(large_memory::Kept* kept) const override {
    buffer_.AddKept(kept);
    kept->bytes += result_.capacity();
  }

 private:
  std::vector<Facet> facets_;
  FacetBuffer buffer_;
  std::string result_;
  bool done_ = false;
};

}  // namespace

Result<void> ParseFacetStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument() || spec.Document().empty())
    return LocationError(40169, "the $facet specification must be a non-empty object");
  std::vector<FacetStage::Facet> facets;
  for (const BsonElement& e : spec.Document()) {
    MAYFLY_TRY(ParseFieldPath(e.name));
    if (e.name.find('.') != e.name.npos)
      return LocationError(40412, "field path must not contain '.': " + std::string(e.name));
    if (!e.value.IsArray())
      return LocationError(40170, "arguments to $facet must be arrays, " + std::string(e.name) +
                                      " is type " + TypeText(e.value));
    SubPipelineSpec sub{.stage = "$facet",
                        .db = p.context.options.db,
                        .collection = p.context.options.collection,
                        .in_facet = true};
    MAYFLY_TRY(auto pipeline, ParseSubPipeline(e.value.Document(), p.context, sub));
    if (Result<void> r = pipeline->scope().CheckConstants(); !r)
      p.scope.NoteConstantError(std::move(r).error());
    std::set<std::string> namespaces = pipeline->InvolvedNamespaces();
    facets.push_back({std::string(e.name), std::move(pipeline), std::move(namespaces), {}});
  }
  p.out.push_back(std::make_unique<FacetStage>(p.context, std::move(facets)));
  return Ok();
}

}  // namespace mayfly

#include "query/pipeline/edge_stage.h"

namespace mayfly {

/// Hands buckets to the stage that unpacks until none can have a better point.
class EdgeStage::Gate final : public DocumentSource {
 public:
  explicit Gate(const EdgeStage& stage) : stage_(stage) {}
  void Open(std::unique_ptr<DocumentSource> buckets) { buckets_ = std::move(buckets); }
  void SetOperation(Operation* op) override {
    if (buckets_) buckets_->SetOperation(op);
  }
  void SaveState() override {
    if (buckets_) buckets_->SaveState();
  }
  void AddKept(large_memory::Kept* kept) const override {
    if (buckets_) buckets_->AddKept(kept);
  }
  Result<StreamState> Next(StreamDocument* out) override {
    for (;;) {
      if (!buckets_) return StreamState::kEof;
      MAYFLY_TRY(const StreamState state, buckets_->Next(out));
      const std::optional<int64_t>& best = stage_.best_millis_;
      if (state != StreamState::kAdvanced || !best) return state;
      const std::string& time = stage_.unpack_.shape().fields.time;
      const BsonValue floor = out->doc.FindPath("control.min." + time);
      if (!floor.IsDate()) return state;
      int64_t end = 0;
      const bool passed =
          stage_.newest_
              ? !__builtin_add_overflow(floor.Date().millis,
                                        stage_.unpack_.shape().max_span_seconds * 1000, &end) &&
                    end <= *best
              : floor.Date().millis > *best;
      if (passed) {
        buckets_.reset();
        continue;
      }
      const BsonValue greatest = out->doc.FindPath("control.max." + time);
      if (stage_.newest_ && greatest.IsDate() && greatest.Date().millis <= *best) continue;
      return state;
    }
  }

 private:
  const EdgeStage& stage_;
  std::unique_ptr<DocumentSource> buckets_;
};

EdgeStage::EdgeStage(PipelineContext& context, BsonDocument filter,
                     std::unique_ptr<PipelineStage> unpack, SortPattern pattern, bool newest)
    : PipelineStage(context),
      filter_(std::move(filter)),
      owned_(std::move(unpack)),
      unpack_(dynamic_cast<UnpackStage&>(*owned_)),
      pattern_(std::move(pattern)),
      newest_(newest),
      gate_(std::make_unique<Gate>(*this)) {
  unpack_.SetInput(gate_.get());
}
EdgeStage::~EdgeStage() = default;

void EdgeStage::Serialize(BsonBuilder& out) const {
  BsonBuilder spec = out.OpenDocument("$_internalEdgePoints");
  spec.Append("of", newest_ ? "newest" : "oldest");
  if (!filter_.view().empty()) spec.Append("bucketFilter", filter_);
  unpack_.Serialize(spec);
}

void EdgeStage::ExplainStats(BsonBuilder& out) const {
  unpack_.ExplainStats(out);
  out.Append("byIndex", sorter_ == nullptr);
}

void EdgeStage::OnAttach() { gate_->SetOperation(context_->op); }

void EdgeStage::SaveState() { gate_->SaveState(); }

void EdgeStage::Narrow(std::set<std::string> fields) {
  // bounded: by the parts of a sort
  for (const auto& part : pattern_.parts()) fields.insert(part.path);
  unpack_.Narrow(std::move(fields));
}

void EdgeStage::AddKeptByStage(large_memory::Kept* kept) const {
  gate_->AddKept(kept);
  unpack_.AddKept(kept);
  if (sorter_) sorter_->AddKept(kept);
  for (const Value& v : metas_) kept->bytes += sizeof v + v.view().size();
  kept->bytes += best_.capacity();
}

Result<void> EdgeStage::OpenBuckets(const Value* meta, bool one) {
  const std::string& time = unpack_.shape().fields.time;
  SourceRequest request;
  request.filter = meta == nullptr ? filter_ : BuildBson([&](BsonBuilder& b) {
    BsonArrayBuilder all = b.OpenArray("$and");
    {
      BsonBuilder of_meta = all.OpenDocument();
      of_meta.OpenDocument("meta").Append("$eq", meta->view());
    }
    if (!filter_.view().empty()) all.Append(filter_);
    int64_t floor = 0;
    if (!best_millis_) return;
    // The index has both, so that mostly no other bucket is even read.
    if (!newest_) {
      BsonBuilder earlier = all.OpenDocument();
      earlier.OpenDocument("control.min." + time).Append("$lt", Instant{*best_millis_});
    } else if (!__builtin_sub_overflow(*best_millis_, unpack_.shape().max_span_seconds * 1000,
                                       &floor)) {
      BsonBuilder later = all.OpenDocument();
      later.OpenDocument("control.min." + time).Append("$gt", Instant{floor});
      later.OpenDocument("control.max." + time).Append("$gt", Instant{*best_millis_});
    }
  });
  if (meta != nullptr) {
    request.sort =
        BuildBson([&](BsonBuilder& b) { b.Append("control.min." + time, newest_ ? -1 : 1); });
    request.limit = one ? 1 : 0;
    request.batch_hint = 1;
  }
  MAYFLY_TRY(auto buckets, context_->env->OpenSource(*context_->op, options().db,
                                                     options().collection, std::move(request)));
  gate_->Open(std::move(buckets));
  return Ok();
}

Result<void> EdgeStage::TakeBest() {
  unpack_.TakeEdges(newest_);
  for (;;) {
    StreamDocument in;
    MAYFLY_TRY(const StreamState state, unpack_.Next(&in));
    if (state != StreamState::kAdvanced) return Ok();
    const BsonValue time = in.doc[unpack_.shape().fields.time];
    const int64_t millis = time.IsDate() ? time.Date().millis : 0;
    if (best_millis_ && (newest_ ? millis <= *best_millis_ : millis >= *best_millis_)) continue;
    best_millis_ = millis;
    best_.assign(in.doc.bytes());
  }
}

Result<void> EdgeStage::SortAll() {
  sorter_ = std::make_unique<Sorter>(pattern_, options().Sorting());
  MAYFLY_TRY(OpenBuckets(nullptr, false));
  for (;;) {
    MAYFLY_TRY(Check());
    StreamDocument in;
    MAYFLY_TRY(const StreamState state, unpack_.Next(&in));
    if (state != StreamState::kAdvanced) break;
    MAYFLY_TRY(sorter_->Add(in.doc));
  }
  gate_->Open(nullptr);
  return sorter_->Finish();
}

Result<void> EdgeStage::Begin() {
  begun_ = true;
  if (!context_->env || !context_->op)
    return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
  MAYFLY_TRY(auto values,
             context_->env->LeadingValues(*context_->op, options().db, options().collection, "meta",
                                          "control.min." + unpack_.shape().fields.time));
  bool simple = values.has_value();
  if (simple) {
    for (Value& v : *values) {
      // Missing values are asked for as null, with which they make one group.
      if (v.view().IsNull()) continue;
      if (v.view().IsNullish() || v.view().IsArray()) simple = false;
      metas_.push_back(std::move(v));  // bounded: by what LeadingValues answers
    }
  }
  if (!simple) return SortAll();
  metas_.push_back(Value::Null());
  return Ok();
}

Result<StreamState> EdgeStage::GetNext(StreamDocument* out) {
  if (!begun_) {
    MAYFLY_TRY(Begin());
  }
  if (sorter_) {
    MAYFLY_TRY(Check());
    MAYFLY_TRY(const bool more, sorter_->Next(out));
    return more ? StreamState::kAdvanced : StreamState::kEof;
  }
  while (next_ < metas_.size()) {
    MAYFLY_TRY(Check());
    best_millis_.reset();
    const Value& meta = metas_[next_++];
    // One bucket of those that come first is mostly enough; plans that want more read ahead.
    for (const bool one : {true, false}) {
      MAYFLY_TRY(OpenBuckets(&meta, one));
      MAYFLY_TRY(TakeBest());
    }
    // best_ is a copy: nothing of the store stays pinned.
    gate_->Open(nullptr);
    if (!best_millis_) continue;
    *out = {BsonView(best_.data()), nullptr};
    return StreamState::kAdvanced;
  }
  return StreamState::kEof;
}

}  // namespace mayfly

#pragma once
#include "query/pipeline/stage.h"

namespace mayfly {

/// What documents of a view come without: the key that a sort within the view has given them, which
/// may be of fields that the view leaves out. One thread at a time.
class WithoutSortKey {
 public:
  /// Its metadata is valid until the next call.
  void Apply(StreamDocument* document) {
    if (document->metadata == nullptr || document->metadata->sort_key.missing()) return;
    shown_ = *document->metadata;
    shown_.sort_key = Value();
    document->metadata = &shown_;
  }

 private:
  DocumentMetadata shown_;
};

/// $_internalViewBoundary: between the stages of a view and those of its reader, where one of them
/// reads {$meta: "sortKey"}.
class ViewBoundary final : public PipelineStage {
 public:
  explicit ViewBoundary(PipelineContext& context) : PipelineStage(context) {}
  std::string_view name() const override { return "$_internalViewBoundary"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { out.OpenDocument(name()); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kAlso; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    MAYFLY_TRY(StreamState state, Pull(out));
    if (state == StreamState::kAdvanced) without_sort_key_.Apply(out);
    return state;
  }

 private:
  WithoutSortKey without_sort_key_;
};

}  // namespace mayfly

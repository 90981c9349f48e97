#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "query/pipeline/unpack_stage.h"

namespace mayfly {

/// Whether a $group of the metaField takes nothing but the first or the last point of each value:
/// its `_id` is the metaField as a whole, its accumulators are all $first (`*first` is true then)
/// or all $last.
bool TakesEdges(const PipelineStage& group, const SeriesFields& series, bool* first);

/// $_internalEdgePoints: of each value of a time series' metaField the newest or oldest point, from
/// the few buckets that can have it, found by an index on the metaField and the time. It stands for
/// a sort by time in front of a $group that takes these points. Without such an index all points
/// come, sorted.
class EdgeStage final : public PipelineStage {
 public:
  /// `filter`: on buckets, empty for all; it has no variables. `unpack`: of these buckets, as the
  /// optimiser has left it. `pattern`: of the sort that this stands for.
  EdgeStage(PipelineContext& context, BsonDocument filter, std::unique_ptr<PipelineStage> unpack,
            SortPattern pattern, bool newest);
  ~EdgeStage() override;
  std::string_view name() const override { return "$_internalEdgePoints"; }
  bool is_source() const override { return true; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override;
  void ExplainStats(BsonBuilder& out) const override;
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kWhole; }
  void OnAttach() override;
  void SaveState() override;
  /// As the stage that unpacks is narrowed.
  void Narrow(std::set<std::string> fields);

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;
  void AddKeptByStage(large_memory::Kept* kept) const override;

 private:
  class Gate;
  Result<void> Begin();
  /// The buckets of one meta value (null: all) that may have a better point than the best so far,
  /// in the order in which it comes soonest; `one`: the first of them alone.
  Result<void> OpenBuckets(const Value* meta, bool one);
  /// Keeps the best of all points of the buckets that are open.
  Result<void> TakeBest();
  Result<void> SortAll();

  const BsonDocument filter_;
  const std::unique_ptr<PipelineStage> owned_;
  UnpackStage& unpack_;
  const SortPattern pattern_;
  const bool newest_;
  std::unique_ptr<Gate> gate_;
  std::vector<Value> metas_;
  size_t next_ = 0;
  bool begun_ = false;
  std::unique_ptr<Sorter> sorter_;
  std::string best_;
  std::optional<int64_t> best_millis_;
};

}  // namespace mayfly

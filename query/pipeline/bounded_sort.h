#pragma once
#include <memory>
#include <string>
#include <vector>

#include "query/pipeline/unpack_stage.h"

namespace mayfly {

/// $_internalBoundedSort: a $sort by the time of a time series' points, and whatever else behind
/// it, of buckets that come in the order of their lower bounds. Only points of overlapping buckets
/// are kept: a point goes on once no later bucket can have an earlier one. A source without that
/// order, or with too much for memory, is sorted as by $sort.
class BoundedSortStage final : public PipelineStage {
 public:
  /// `unpack` is the stage before, and must outlive this. REQUIRES: the pattern begins with the
  /// time; no metadata in it.
  BoundedSortStage(PipelineContext& context, SortPattern pattern, int64_t limit,
                   const UnpackStage& unpack)
      : PipelineStage(context), pattern_(std::move(pattern)), limit_(limit), unpack_(unpack) {}
  std::string_view name() const override { return "$_internalBoundedSort"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override;
  void ExplainStats(BsonBuilder& out) const override;
  StageNeeds AddDependencies(std::set<std::string>* fields) const override;

  /// The requested order of the buckets; the source says in `kept` whether it provides it.
  BucketOrder Order() const;

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;
  void AddKeptByStage(large_memory::Kept* kept) const override;

 private:
  struct Entry {
    std::string key;
    int64_t millis;
    std::string point;
  };
  static bool Later(const Entry& a, const Entry& b) { return a.key > b.key; }
  bool descending() const { return pattern_.parts()[0].descending; }
  /// Whether no point still to come is before this one.
  bool Settled(const Entry& e) const;
  Result<void> Add(BsonView point);
  /// Forgets what is behind as many as are still wanted.
  void Trim();
  Result<StreamState> NextSorted(StreamDocument* out);

  const SortPattern pattern_;
  const int64_t limit_;
  const UnpackStage& unpack_;
  const std::shared_ptr<bool> kept_ = std::make_shared<bool>(false);
  std::vector<Entry> heap_;  ///< the first on top
  Entry current_;
  std::unique_ptr<Sorter> sorter_;  ///< has all that is still to come, once it is there
  size_t memory_ = 0, most_memory_ = 0;
  large_memory::Hold hold_;
  int64_t handed_on_ = 0;
  Instant floor_{INT64_MIN};
  bool end_ = false, begun_ = false;
};

}  // namespace mayfly

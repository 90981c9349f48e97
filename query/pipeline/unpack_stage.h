#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "query/pipeline/bucket_filter.h"
#include "query/pipeline/bucket_summary.h"
#include "query/pipeline/bucket_test.h"
#include "query/pipeline/stage.h"
#include "timeseries/bucket_control.h"

namespace mayfly {

/// $_internalUnpackBucket: the points of each bucket, one after the other. The optimiser can pass
/// it parts of later stages to save work: a filter, and the fields that are read.
class UnpackStage final : public PipelineStage {
 public:
  /// Points of this time and before are past their own deadline, if the filter finds their bucket.
  struct Hides {
    BsonDocument filter;
    MatchPtr match;  ///< null: all buckets
    Instant through;
  };
  UnpackStage(PipelineContext& context, SeriesShape shape, std::vector<Hides> hides)
      : PipelineStage(context),
        shape_(std::move(shape)),
        rules_(std::move(hides)),
        tested_fields_{shape_.fields.time} {}
  std::string_view name() const override { return "$_internalUnpackBucket"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override;
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kWhole; }
  void ExplainStats(BsonBuilder& out) const override;

  const SeriesShape& shape() const { return shape_; }
  bool filtered() const { return match_ != nullptr; }
  /// Only points that match come out; buckets without any are not unpacked. REQUIRES: !filtered().
  void TakeFilter(BsonDocument filter, MatchPtr match);
  /// Only these fields of the points are read; none: not even one. Once.
  void Narrow(std::set<std::string> fields);
  /// Documents that stand for whole buckets come out: these fields, with the meta value if it is
  /// asked for, and where a bucket does not tell, one such document for each point. So it is with
  /// `interval_millis` above 0 where a bucket's points are in several intervals of that length,
  /// which are counted from the year 2000 ($dateTrunc). Before Narrow.
  void Summarize(std::vector<SummaryField> fields, bool with_meta, int64_t interval_millis = 0) {
    summary_ = std::move(fields);
    summary_meta_ = with_meta;
    summary_millis_ = interval_millis;
  }
  /// From each bucket only its newest or oldest point that comes out, where it tells which one that
  /// is.
  void TakeEdges(bool newest) { edge_ = newest ? Edge::kNewest : Edge::kOldest; }
  /// The values of fields of a whole bucket, one for each of its points: kAdvanced with `columns`
  /// in the order of `fields`. With none of them, the points of the bucket are to be asked for one
  /// by one, as long as has_points(). kEof, kPaused: as Next. REQUIRES: !has_points().
  Result<StreamState> NextColumns(const std::vector<std::string>& fields,
                                  std::vector<const std::vector<BsonValue>*>* columns);
  bool has_points() const { return open_ || summarized_; }
  /// The next point of the bucket that is open; false at its end.
  Result<bool> NextPoint(StreamDocument* out);
  /// The lower bound of the bucket from which the last point came.
  Instant floor() const { return floor_; }
  /// A number of that bucket, which no other of this stage has.
  int64_t bucket() const { return unpacked_; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;
  void AddKeptByStage(large_memory::Kept* kept) const override {
    kept->bytes += bucket_.capacity() + summary_point_.capacity();
    points_.AddKept(kept);
    if (tested_) tested_->AddKept(kept);
  }

 private:
  /// Looks at a bucket and opens it if a point of it may come out.
  Result<void> Open(BsonView bucket);
  /// Sets hide_through_ for a bucket.
  Result<void> FindHidden(BsonView bucket);
  bool Hidden(BsonView point) const;
  /// Leaves only the points within range_ of a bucket by columns, if they follow each other there.
  Result<bool> GoToRange();
  /// Makes the edge of what is left the only point, if the bucket is by columns.
  Result<void> GoToEdge();
  /// Goes past points that are hidden or do not match. False at the end of the bucket.
  Result<bool> FindPoint();
  /// Whether a bucket with these times, and all between, is in one interval of summary_millis_.
  bool InOneInterval(BsonValue least, BsonValue greatest) const;
  /// The document that stands for a bucket, in summary_point_; false if the points have to be
  /// asked.
  Result<bool> SummarizeBucket(BsonView bucket);
  /// The document that stands for one point, in summary_point_.
  BsonView SummaryOfPoint(BsonView point);

  const SeriesShape shape_;
  const std::vector<Hides> rules_;
  std::optional<Instant> hide_through_;  ///< of the bucket that is open
  BsonDocument filter_;
  MatchPtr match_;
  std::optional<std::set<std::string>> fields_;  ///< that are read of what comes out
  std::set<std::string> tested_fields_;          ///< that the tests of points read
  bool test_whole_ = false;                      ///< the filter may read any field
  BucketPoints points_;
  /// With a filter on few of the fields: those alone, one point ahead of points_.
  std::optional<BucketPoints> tested_;
  /// tested_ has all fields that are read, so that points_ is not needed: its last point comes out.
  bool tested_is_all_ = false;
  BsonView tested_point_;
  bool open_ = false;
  enum class Edge : uint8_t { kNone, kNewest, kOldest } edge_ = Edge::kNone;
  /// The range of positions in points_ that come out, if not all do.
  size_t from_ = 0, to_ = SIZE_MAX;
  struct TimeRange {
    int64_t low = INT64_MIN, high = INT64_MAX;  ///< both are in it
  };
  /// `filter`, if it asks for nothing but this.
  static std::optional<TimeRange> RangeOf(BsonView filter, std::string_view time);
  std::optional<TimeRange> range_;
  std::string bucket_;  ///< a copy: the input may give up the original between batches
  Instant floor_;
  bool hides_ = false, tests_ = false;  ///< the points of this bucket one by one
  std::optional<std::vector<SummaryField>> summary_;
  bool summary_meta_ = false;   ///< with the meta value
  int64_t summary_millis_ = 0;  ///< a bucket within one interval of that length; 0: any
  std::string summary_point_;
  bool summarized_ = false;  ///< summary_point_ stands for this bucket
  int64_t examined_ = 0, unpacked_ = 0, n_summarized_ = 0;
};

}  // namespace mayfly

#pragma once
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "protocol/seeded_hash.h"
#include "query/plan/index_bounds.h"
#include "query/plan/key_filter.h"
#include "query/plan/parallel_scan.h"
#include "query/plan/plan_stage.h"
#include "query/sort/sorter.h"
#include "storage/catalog/index_keys.h"
#include "storage/read/fetch_many.h"
#include "storage/read/record_walk.h"

namespace mayfly {

/// What a set takes for each of the record keys it knows, about; in bytes.
inline constexpr size_t kSeenBytes = 96;

/// Finds nothing: the collection does not exist, or the filter cannot match.
class EofStage final : public PlanStage {
 public:
  explicit EofStage(PlanContext& ctx, const char* type = "nonExistentNamespace")
      : PlanStage(ctx, "EOF"), type_(type) {}

 protected:
  Result<StageState> DoWork(Row*) override { return StageState::kEof; }
  void ExplainFields(BsonBuilder& out) const override { out.Append("type", type_); }

 private:
  const char* type_;
};

/// The collection's counter instead of its documents, less the documents past their deadline: shown
/// as RECORD_STORE_FAST_COUNT. For callers that only count rows.
class CounterStage final : public PlanStage {
 public:
  CounterStage(PlanContext& ctx, int64_t skip, int64_t limit)
      : PlanStage(ctx, "RECORD_STORE_FAST_COUNT"), skip_(skip), limit_(limit) {}
  /// All at once. Errors: those of the store, or an interrupt.
  Result<int64_t> TakeAll();

 protected:
  Result<StageState> DoWork(Row* row) override;

 private:
  Result<void> Count();
  int64_t skip_, limit_, left_ = -1;
};

/// Records in key order: a whole collection, or the parts of it that bounds on `_id` leave.
class RecordScanStage final : public PlanStage {
 public:
  enum class Kind : uint8_t {
    kCollection,  ///< COLLSCAN
    kClustered,   ///< CLUSTERED_IXSCAN: bounds on a clustered collection
    kIdIndex,     ///< shown as FETCH over IXSCAN of _id_, which is what it stands for
    kIdLookup,    ///< EXPRESS_IXSCAN or IDHACK: one `_id`
  };
  RecordScanStage(PlanContext& ctx, Kind kind, IntervalList id_bounds, bool backward,
                  ResidualFilter filter, bool tailable);

  std::string Summary() const override;
  void Explain(bool stats, BsonBuilder& out) const override;
  void AddExamined(int64_t* keys, int64_t* docs) const override;
  const ResidualFilter* filter() const override { return &filter_; }
  Kind kind() const { return kind_; }
  /// It has reached its end for good.
  bool finished() const { return finished_; }

 protected:
  Result<StageState> DoWork(Row* row) override;
  void DoSave() override;
  void DoRestore() override;

 private:
  struct Range {
    std::string lower, upper;
    bool point;
  };
  /// Whether its current record must still exist after a pause: in a capped collection, later
  /// records may be gone too, and the scan would skip them.
  bool KeepsPosition() const {
    return ctx_.coll->capped() && started_ && !finished_ && kind_ == Kind::kCollection;
  }
  Result<bool> NextRecord();
  void LookForHelp();
  Result<StageState> NextInParallel(Row* row);
  void EndParallel();
  void EndRange();
  void AppendParallel(BsonBuilder& out) const;
  void FillRow(Row* row) const;
  void BuildRanges();
  void BuildSourceRanges();  ///< of CollectionInfo::source_key
  void AppendIdIndex(BsonBuilder& out) const;

  Kind kind_;
  IntervalList bounds_;
  bool backward_, tailable_;
  ResidualFilter filter_;
  std::vector<Range> ranges_;  ///< in scan order
  bool built_ = false, started_ = false, finished_ = false;
  size_t range_ = 0;
  std::unique_ptr<RecordCursor> cursor_;
  Storage::Record record_;  ///< points are looked up, not scanned
  std::string_view key_;
  BsonView doc_;
  std::optional<Instant> expire_at_;
  std::string last_key_;  ///< capped: what must still be there after a pause
  std::optional<Error> lost_;
  int64_t docs_examined_ = 0, seeks_ = 0;

  // Long scans. Most are short, and only compare a number.
  static constexpr int64_t kFirstLook = 256;
  int64_t look_at_;         ///< the docs_examined_ at which LookForHelp is called; -1: never
  int64_t looked_at_ = 0;   ///< docs_examined_ when it was at looked_key_
  std::string looked_key_;  ///< empty: nowhere yet in this range and batch
  std::string resume_;      ///< where the current range goes on, if not at its begin
  int64_t parts_of_helpers_ = 0;
  std::unique_ptr<ParallelScan> parallel_;  ///< last: it uses the filter
};

/// Index entries within bounds; each record once.
class IndexScanStage final : public PlanStage {
 public:
  /// What to scan and how.
  struct Params {
    IndexInfoPtr index;
    uint64_t multikey = 0;  ///< as the planner saw it
    IndexBounds bounds;
    bool backward = false;
    bool count_only = false;  ///< COUNT_SCAN: nothing above looks at the records
    bool distinct = false;    ///< DISTINCT_SCAN: one entry for each value of a field
    KeyFilter filter = {};    ///< which entries count; those it cannot decide come up too
  };
  IndexScanStage(PlanContext& ctx, Params&& params);

  std::string Summary() const override;
  void AddExamined(int64_t* keys, int64_t* docs) const override {
    *keys += keys_examined_;
    *docs += docs_examined_;
  }
  const IndexInfo* index() const override { return params_.index.get(); }
  bool gives_keys() const override { return true; }
  const Params& params() const { return params_; }
  void SetKeysOnly(bool on) override { keys_only_ = on; }
  const ResidualFilter* filter() const override { return &params_.filter.clauses(); }
  /// About how much of the index it visits; nothing when it goes from place to place in it.
  std::optional<uint64_t> ApproximateBytes() const;
  /// The next Work() goes on behind every entry that begins with these values.
  void SkipValues(std::string_view encoded_values);

 protected:
  Result<StageState> DoWork(Row* row) override;
  void DoSave() override;
  void DoRestore() override;
  void ExplainFields(BsonBuilder& out) const override;
  void ExplainStats(BsonBuilder& out) const override;

 private:
  /// Whether arrays can bring a record twice. For distinct, entries count and not records.
  bool MayRepeat() const { return !params_.distinct && !params_.bounds.AllSinglePoints(); }
  /// Whether the current entry counts, judging by its key and, if no later stage reads it, its
  /// record. `*matched`: the key alone has satisfied the filter.
  Result<bool> Counts(bool* matched);

  Params params_;
  EncodedBounds encoded_;
  Storage::Record record_;
  bool dedup_;
  bool keys_only_ = false;
  bool keys_decide_ = true;  ///< no field of the filter has met its first array since it was made
  bool done_ = false;
  std::unique_ptr<IndexCursor> cursor_;
  std::string seek_, last_seek_;
  ClientStringSet seen_;
  int64_t keys_examined_ = 0, docs_examined_ = 0, seeks_ = 0, dups_tested_ = 0, dups_dropped_ = 0;
};

/// Looks up the record of a key, and tests what the bounds could not.
class FetchStage final : public PlanStage {
 public:
  /// `wanted`: how many rows the caller will read; keys may be read ahead up to that number.
  /// INT64_MAX: all rows; 0: not known.
  /// `by_keys`: the clauses that the input has tested on keys where it could.
  FetchStage(PlanContext& ctx, PlanStagePtr child, ResidualFilter filter, int64_t wanted,
             ResidualFilter by_keys = {});
  void AddExamined(int64_t* keys, int64_t* docs) const override;
  const ResidualFilter* filter() const override { return &filter_; }

 protected:
  Result<StageState> DoWork(Row* row) override;
  void DoSave() override;
  void ExplainStats(BsonBuilder& out) const override;

 private:
  static constexpr int64_t kMaxAhead = 16;
  static constexpr size_t kMaxBytesAhead = 128 << 10;  ///< of records held at once
  static constexpr size_t kNone = SIZE_MAX;
  static constexpr int64_t kWorthIt = 8;  ///< records that pay for the begin of a walk
  struct KeyAhead {
    std::string record_key, key_values, type_bits;
    const IndexInfo* index = nullptr;
    int64_t examined = 0;  ///< keys that the scan looked at for this one
    bool stale = false;    ///< read before a pause
    bool key_matched = false;
  };
  bool StillHasKey(const Row& row);
  bool WalkAhead();
  Result<bool> WalkToNext(Row* row);
  void EndWalk();
  Result<StageState> NextOne(Row* row, bool* found);
  Result<StageState> NextAhead(Row* row, bool* found);
  Result<void> ReadAhead();
  Result<void> LookUpAhead();
  Result<bool> Matches(const Row& row);

  ResidualFilter filter_, by_keys_;
  Storage::Record record_;
  KeySet keys_;
  int64_t wanted_;
  int64_t ahead_ = 1;  ///< how many to read the next time; 1: none before it is asked for
  std::vector<KeyAhead> keys_ahead_;
  size_t next_ = 0,
         kept_ = 0;  ///< of keys_ahead_: the first not returned yet, and how many there are
  size_t looked_up_from_ = kNone;  ///< records_[0] belongs to this one; kNone: not looked up
  bool scan_ended_ = false;
  int64_t keys_at_end_ = 0;  ///< that the scan looked at before it found its end
  RecordBatch records_;
  RecordWalk walk_;
  bool may_walk_ = true, walks_down_ = false;
  std::string last_walked_;  ///< the last of the keys ahead that a walk was begun or went on for
  int64_t docs_examined_ = 0, already_has_doc_ = 0;
};

/// The union of its inputs, each record once.
class OrStage final : public PlanStage {
 public:
  OrStage(PlanContext& ctx, std::vector<PlanStagePtr> inputs);
  void AddKept(large_memory::Kept* kept) const override {
    kept->bytes += seen_.size() * kSeenBytes;
    PlanStage::AddKept(kept);
  }

 protected:
  Result<StageState> DoWork(Row* row) override;
  void ExplainStats(BsonBuilder& out) const override;

 private:
  size_t current_ = 0;
  ClientStringSet seen_;
  int64_t dups_tested_ = 0, dups_dropped_ = 0;
};

/// Merges index scans, of one index or of several, that each come in the order of `sort`. REQUIRES:
/// every part of the sort is a field of each index.
class SortMergeStage final : public PlanStage {
 public:
  SortMergeStage(PlanContext& ctx, std::vector<PlanStagePtr> inputs, SortPattern sort);

 protected:
  Result<StageState> DoWork(Row* row) override;
  void DoRestore() override {
    for (Input& in : inputs_) in.stale = in.loaded;
  }
  void ExplainFields(BsonBuilder& out) const override { out.Append("sortPattern", sort_.spec()); }
  void ExplainStats(BsonBuilder& out) const override;

 private:
  struct Input {
    Row row;
    std::string key;  ///< the encoded values of the sort's parts; memcmp order is the order wanted
    bool loaded = false, eof = false;
    std::string record_key, key_values, type_bits;  ///< survive Save
    bool stale = false;
  };
  void MakeKey(Input& in) const;

  std::vector<Input> inputs_;
  SortPattern sort_;
  ClientStringSet seen_;
  int64_t dups_tested_ = 0, dups_dropped_ = 0;
};

/// A blocking sort; keeps `limit` documents when it is not 0.
class SortStage final : public PlanStage {
 public:
  SortStage(PlanContext& ctx, PlanStagePtr child, SortPattern pattern, SorterOptions options,
            bool whole_records);
  void AddKept(large_memory::Kept* kept) const override {
    sorter_.AddKept(kept);
    PlanStage::AddKept(kept);
  }

 protected:
  Result<StageState> DoWork(Row* row) override;
  void ExplainFields(BsonBuilder& out) const override;
  void ExplainStats(BsonBuilder& out) const override;

 private:
  SorterOptions options_;
  Sorter sorter_;
  bool simple_;
  bool loaded_ = false;
  DocumentMetadata metadata_;
  std::string packed_;  ///< PlanContext::keep_keys: record key and index key as one
};

/// Drops the first `skip` rows without reading their records: it may stand below a FETCH.
class SkipStage final : public PlanStage {
 public:
  SkipStage(PlanContext& ctx, PlanStagePtr child, int64_t skip, bool below_fetch = false);
  bool gives_keys() const override { return children_[0]->gives_keys(); }

 protected:
  Result<StageState> DoWork(Row* row) override;
  void ExplainFields(BsonBuilder& out) const override { out.Append("skipAmount", amount_); }

 private:
  int64_t amount_, left_;
  bool below_fetch_;
};

/// Ends after `limit` rows.
class LimitStage final : public PlanStage {
 public:
  LimitStage(PlanContext& ctx, PlanStagePtr child, int64_t limit);
  bool reached() const { return left_ == 0; }

 protected:
  Result<StageState> DoWork(Row* row) override;
  void ExplainFields(BsonBuilder& out) const override { out.Append("limitAmount", amount_); }

 private:
  int64_t amount_, left_;
};

/// Stands for the projection in explain; the executor projects straight into the reply.
class ProjectionMarkStage final : public PlanStage {
 public:
  ProjectionMarkStage(PlanContext& ctx, PlanStagePtr child, const char* name,
                      BsonDocument transform);

 protected:
  Result<StageState> DoWork(Row* row) override { return children_[0]->Work(row); }
  void ExplainFields(BsonBuilder& out) const override {
    if (!transform_.view().empty()) out.Append("transformBy", transform_);
  }

 private:
  BsonDocument transform_;
};

/// Adds the subplanner's node to explain for filters that are one $or.
class SubplanStage final : public PlanStage {
 public:
  SubplanStage(PlanContext& ctx, PlanStagePtr child) : PlanStage(ctx, "SUBPLAN") {
    children_.push_back(std::move(child));
  }

 protected:
  Result<StageState> DoWork(Row* row) override { return children_[0]->Work(row); }
};

}  // namespace mayfly

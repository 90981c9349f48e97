#pragma once
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "query/plan/distinct_scan.h"
#include "query/plan/executor.h"
#include "query/plan/held_snapshots.h"
#include "query/plan/planner.h"

namespace mayfly {

/// A Row that owns its bytes.
struct OwnedRow {
  std::string record_key, doc, key_values, type_bits;
  bool has_doc = false, by_id = false;
  std::optional<Instant> expire_at;
  const IndexInfo* index = nullptr;
  std::optional<DocumentMetadata> metadata;

  /// Copies the bytes, so that the row outlives the next Work() of the stage that it came from.
  static OwnedRow Copy(const Row& row);
  /// Points into this object: valid until it is changed, moved or destroyed.
  Row View() const;
  size_t bytes() const { return record_key.size() + doc.size() + key_values.size(); }
};

/// A plan's results in a trial.
struct TrialResult {
  int64_t works = 0, advanced = 0;
  bool eof = false;
  double score = 0;
  std::optional<Error> error;
  std::list<OwnedRow> rows;
  size_t bytes = 0;
};

/// The executor of find; count and distinct are built on it.
class FindExecutor final : public PlanExecutor {
 public:
  explicit FindExecutor(Storage& storage, Operation& op);
  ~FindExecutor() override;

  /// Parses and plans. `count_only`: the caller only counts results.
  /// `choose` may take over planning (UsePlan) and answer true.
  using PlanChooser = std::function<bool(FindExecutor&)>;
  Result<void> Open(QuerySpec spec, bool count_only, const PlanChooser& choose = nullptr);

  Result<State> Next() override;
  Result<int64_t> CountRest(int64_t most) override;
  BsonView input_doc() const override { return row_.doc; }
  Result<BsonView> doc() override;
  std::string_view record_key() const override { return row_.record_key; }
  const DocumentMetadata& metadata() const override { return metadata_; }
  Result<void> AppendResult(BsonArrayBuilder& batch) override;
  Result<bool> FillBatch(BsonArrayBuilder& batch, int64_t max_documents, size_t max_bytes) override;
  void PushBack() override { pushed_back_ = true; }
  void SaveState() override;
  Result<void> RestoreState(Operation& op) override;
  size_t KeptBytes() const override;
  void AddKept(large_memory::Kept* kept) const override;
  bool tailable() const override { return tailable_; }
  bool IsEof() const override;
  bool HasSort() const override { return winner_.has_sort; }
  const MatchExpression* match() const override { return match_.get(); }
  Result<void> AppendQueryPlanner(const std::vector<ExplainStage>& on_top,
                                  ExplainVerbosity verbosity, BsonBuilder& out) override;
  Result<void> AppendExecutionStats(const std::vector<ExplainStage>& on_top,
                                    ExplainVerbosity verbosity, BsonBuilder& out) override;
  std::string PlanSummary() const override;
  std::vector<std::string> IndexesUsed() const override;
  bool MayGrow() const override;

  /// Takes over a plan that the caller has made (distinct).
  void UsePlan(CandidatePlan plan) { winner_ = std::move(plan); }
  PlannerInput& input() { return *input_; }
  PlanContext& context() { return ctx_; }
  const PlanStage* root() const { return winner_.root.get(); }
  const Row& row() const { return row_; }
  int64_t returned() const { return returned_; }

 private:
  /// The operation from now on.
  void Use(Operation& op);
  Result<void> Parse(QuerySpec& spec);
  /// Plans that need no candidates: the counter of documents, one entry per value.
  bool PlanShortcut(const QuerySpec& spec);
  /// `range`: min or max is given.
  Result<void> ParseSort(BsonView sort, BsonValue hint, bool range);
  Result<void> Plan();
  Result<void> Trial(std::vector<CandidatePlan>& plans, std::vector<TrialResult>& results,
                     int64_t max_works, bool stop_at_first);
  Result<bool> TryCached(std::vector<CandidatePlan>& plans);
  Result<void> Race(std::vector<CandidatePlan> plans);
  size_t PreferSmaller(const std::vector<CandidatePlan>& plans,
                       const std::vector<TrialResult>& results, size_t best) const;
  void MakeShape();
  Result<void> LoadCovered();
  /// Before the view is taken, unless it is an earlier one.
  void SetVisibility();
  /// Makes the operation's view, or one of now, that of the context, with the collection as it is
  /// there. Errors: NamespaceNotFound 26 when that is gone.
  Result<void> TakeView();
  /// The view of the batch before, with the collection as it is now. Errors: SnapshotTooOld 239.
  Result<void> TakeHeldView();
  /// Finds its collection again after a pause. Errors: QueryPlanKilled 175.
  Result<void> CheckPlanLives(const PlanStage& stage);
  /// Whether a row that an earlier operation has found is visible to this one.
  Result<bool> StillVisible();
  Result<void> SetMetadata();
  void AppendPlan(const CandidatePlan& plan, const std::vector<ExplainStage>& on_top, size_t at,
                  bool stats, bool first, BsonBuilder& out) const;
  /// The result, with its deadline if QuerySpec::deadline_field asks for it.
  Result<void> Project(BsonBuilder& out);
  /// Without the deadline.
  Result<void> ProjectFields(BsonBuilder& out);
  /// Appends the fields of the key that led to the row; none when that was a scan of all records.
  Result<void> AppendIndexKey(BsonBuilder& out) const;
  /// As `$recordId` shows it.
  Value RecordId() const;
  /// The result is not the row's document itself.
  bool Projects() const {
    return return_key_ || show_record_id_ || !ctx_.deadline_field.empty() ||
           (projection_ != nullptr && !input_->projection_is_hint);
  }

  Storage& storage_;
  PlanContext ctx_;
  const Clock* clock_ = nullptr;  ///< the operation's, which outlives it
  bool reads_earlier_ = false;    ///< the operation reads a point in time: Operation::view
  std::string ns_;
  std::shared_ptr<const MatchExpression> match_;
  std::optional<VariableScope> scope_;
  ProjectionPtr projection_;
  large_memory::Hold parsed_hold_;  ///< of the rest of what was parsed and planned
  Value hint_;
  std::unique_ptr<PlannerInput> input_;
  std::string shape_;
  int64_t batch_hint_ = 0;
  bool want_sort_key_ = false, want_record_id_ = false, want_index_key_ = false;
  bool tailable_ = false, return_key_ = false, show_record_id_ = false, explain_ = false;
  bool point_read_ = false, from_cache_ = false;
  bool include_expired_ = false;
  /// RestoreState was called: what was found earlier may be past its deadline by now.
  bool resumed_ = false;

  CandidatePlan winner_;
  std::optional<DistinctScan> one_per_;  ///< its plan is the winner
  std::vector<CandidatePlan> rejected_;
  std::vector<TrialResult> trial_;            ///< explain: of the winner, then of the rejected
  std::optional<BsonDocument> winner_trial_;  ///< explain: the winner's stages after the trial
  int64_t trial_keys_ = 0, trial_docs_ = 0;
  /// For a cursor over the buckets of a time series, between its batches. Buckets are merged, so
  /// with another snapshot it could return a point twice or never.
  std::shared_ptr<HeldSnapshot> held_snapshot_;
  /// Results of the trial so far. No deque: even an empty one allocates.
  std::list<OwnedRow> buffer_;
  OwnedRow held_;  ///< the current row when it comes from the buffer
  Row row_;
  DocumentMetadata metadata_;
  std::string covered_doc_, projected_;
  Storage::Record covered_record_;
  bool projected_valid_ = false, pushed_back_ = false, eof_ = false;
  bool trial_eof_ = false;  ///< the trial came to the end: there is nothing behind the buffer
  int64_t returned_ = 0;
  int64_t started_micros_ = 0, planning_micros_ = 0, run_micros_ = 0;
};

}  // namespace mayfly

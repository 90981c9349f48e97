#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "query/match/match_expression.h"
#include "storage/catalog/catalog_types.h"
#include "storage/read/cursors.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"

namespace mayfly {

/// What the stages of one plan share. Owned by the executor.
struct PlanContext {
  Storage* storage = nullptr;
  Operation* op = nullptr;
  CollectionInfoPtr coll;
  ReadView view;     ///< of the batch that runs; without a snapshot: none taken
  EvalContext eval;  ///< variables for $expr
  /// Which documents the operation sees; of the batch that runs.
  Visibility visible;
  /// Documents may be hidden now: a scan whose records no later stage reads must check them itself.
  bool check_keys = false;
  /// What a filter's `$meta` reads: of the record that is tested.
  DocumentMetadata scanned;
  bool fill_cache = true;
  /// Stages return after each unit of work, so that a trial can be fair; off, they loop until they
  /// have something.
  bool step = false;
  bool counts_only = false;  ///< nobody looks at a row that comes out
  bool keep_keys = false;    ///< somebody wants the index key: it outlives the sorting of its row
  bool timing = false;       ///< explain: stages measure the time they take
  /// QuerySpec::deadline_field.
  std::string deadline_field;

  /// Deleted entries that a scan may have to pass at once: in a slice few, since no check comes
  /// between them.
  size_t MaxSkipped() const { return op->in_slice() ? 1000 : 0; }
};

/// One record on its way up a plan. Views belong to the stages below and are valid until the next
/// Work() there.
struct Row {
  std::string_view record_key;
  BsonView doc;
  bool has_doc = false;
  std::optional<Instant> expire_at;
  const IndexInfo* index = nullptr;  ///< where the key below comes from
  std::string_view key_values, type_bits;
  bool by_id = false;        ///< found by its `_id`: that is its key, which the document has
  bool key_matched = false;  ///< its key has satisfied the KeyFilter of its scan
  const DocumentMetadata* metadata = nullptr;  ///< sort key
  /// The key was read at an earlier point in time than the document will be: it must be checked
  /// that the document still has it.
  bool stale = false;
};

/// The result of one call of a stage: a record, nothing yet, or the end.
enum class StageState : uint8_t { kAdvanced, kNeedTime, kEof };

/// What a stage has done, as executionStats shows it. Counts of calls; micros of time.
struct StageStats {
  int64_t works = 0, advanced = 0, need_time = 0, save_state = 0, restore_state = 0;
  int64_t micros = 0;  ///< with its inputs; measured for explain only
  bool eof = false;
};

/// The members of a conjunction that a stage still has to test. Does not own them.
struct ResidualFilter {
  std::vector<const MatchExpression*> clauses;
  bool empty() const { return clauses.empty(); }
  /// Whether all clauses hold; ends at the first that does not. Errors: those of $expr.
  Result<bool> Matches(BsonView doc, EvalContext& ctx) const {
    for (const auto* c : clauses) {
      MAYFLY_TRY(bool m, c->Matches(doc, &ctx));
      if (!m) return false;
    }
    return true;
  }
  void Explain(BsonBuilder& out) const;  ///< appends `filter` when there is one
};

/// A node of a plan: pulled one unit of work at a time. Made cheaply (nothing is opened before the
/// first Work()), so that candidates and rejected plans are trees of these too. Not thread-safe.
class PlanStage {
 public:
  PlanStage(PlanContext& ctx, const char* name) : ctx_(ctx), name_(name) {}
  virtual ~PlanStage() = default;
  PlanStage(const PlanStage&) = delete;

  /// One unit of work (or, outside of trials, until there is something), counted for explain.
  /// `*row` is filled for kAdvanced only and valid until the next call.
  Result<StageState> Work(Row* row) {
    ++stats_.works;
    Result<StageState> r = ctx_.timing ? TimedWork(row) : DoWork(row);
    if (!r) return r;
    switch (r.value()) {
      case StageState::kAdvanced:
        ++stats_.advanced;
        break;
      case StageState::kNeedTime:
        ++stats_.need_time;
        break;
      case StageState::kEof:
        stats_.eof = true;
        break;
    }
    return r;
  }
  /// Releases view and iterators here and below.
  void Save() {
    ++stats_.save_state;
    DoSave();
    for (auto& c : children_) c->Save();
  }
  /// The context has a new view.
  void Restore() {
    ++stats_.restore_state;
    DoRestore();
    for (auto& c : children_) c->Restore();
  }

  /// Tells index scans here and below whether nothing above reads the records of their keys.
  virtual void SetKeysOnly(bool on) {
    for (auto& c : children_) c->SetKeysOnly(on);
  }

  /// Appends `stage` and the stage's own fields, its statistics when asked, and its inputs.
  virtual void Explain(bool stats, BsonBuilder& out) const;
  /// Adds to totalKeysExamined and totalDocsExamined.
  virtual void AddExamined(int64_t* keys, int64_t* docs) const {
    for (const auto& c : children_) c->AddExamined(keys, docs);
  }
  /// "IXSCAN { a: 1 }" for leaves; empty for others.
  virtual std::string Summary() const { return {}; }
  virtual const IndexInfo* index() const { return nullptr; }
  /// Its rows are only keys, so that they can be kept while it goes on.
  virtual bool gives_keys() const { return false; }

  const StageStats& stats() const { return stats_; }
  const char* name() const { return name_; }
  std::vector<std::unique_ptr<PlanStage>>& children() { return children_; }
  const std::vector<std::unique_ptr<PlanStage>>& children() const { return children_; }

  /// Adds what it and those below keep in memory from one batch to the next.
  virtual void AddKept(large_memory::Kept* kept) const {
    for (const auto& c : children_) c->AddKept(kept);
  }

  virtual const ResidualFilter* filter() const { return nullptr; }

 protected:
  Result<StageState> TimedWork(Row* row);
  virtual Result<StageState> DoWork(Row* row) = 0;
  virtual void DoSave() {}
  virtual void DoRestore() {}
  /// Fields behind `stage`, in the plan and in its statistics.
  virtual void ExplainFields(BsonBuilder&) const {}
  virtual void ExplainStats(BsonBuilder&) const {}
  /// A unit of work inside a loop that does not return between them.
  void CountLoop() {
    ++stats_.works;
    ++stats_.need_time;
  }

  PlanContext& ctx_;
  const char* name_;
  StageStats stats_;
  std::vector<std::unique_ptr<PlanStage>> children_;
};
using PlanStagePtr = std::unique_ptr<PlanStage>;

/// Appends the counters every stage has in executionStats.
void AppendStageStats(const StageStats& stats, BsonBuilder& out);
/// "{ a: 1, b: -1 }" as plan summaries show a key pattern, behind `before`.
std::string KeyPatternText(BsonView key, std::string_view before = {});

}  // namespace mayfly

#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/value.h"
#include "query/expression/expression.h"
#include "query/match/match_expression.h"
#include "storage/catalog/catalog_types.h"
#include "storage/kv/kv.h"
#include "storage/operation.h"

namespace mayfly {

class Storage;

/// The request of a find (or the search part of an update, delete, findAndModify, count, distinct).
/// Views need to live during MakeFindExecutor only: the executor copies what it keeps. Validated
/// BSON; the executor checks the meaning.
struct QuerySpec {
  CollectionInfoPtr coll;  ///< null: the collection does not exist, nothing is found
  std::string_view ns;     ///< "db.coll" for explain and messages; may be empty when `coll` is set
  BsonView filter;
  /// The filter parsed already (an update parses it for `$` and upserts); then `filter` is not
  /// parsed again. Its `$expr` variables must come from `scope`.
  std::shared_ptr<const MatchExpression> match;
  BsonView projection;
  /// True: the projection only tells which fields are needed. Results then come as they are stored
  /// (nothing is projected), unless an index has all these fields: then they are made from its
  /// keys. What a pipeline asks for.
  bool projection_is_hint = false;
  /// The caller looks at no document: rows may be keys. `count_only`: it will call CountRest alone.
  bool keys_only = false, count_only = false;
  /// Not empty: for each value at this path (a missing one is null) the caller wants only the first
  /// document in the order of `sort`, or the last with `one_per_last`. The plan may return more,
  /// then in that order.
  std::string_view one_per;
  bool one_per_last = false;
  BsonView sort;                ///< {a: 1, "b.c": -1}, {$natural: ±1}, {x: {$meta: "…"}}
  BsonValue hint;               ///< string or document; missing: none
  BsonView min, max;            ///< empty: none; need a hint
  int64_t skip = 0, limit = 0;  ///< limit 0: none. Negative: BadValue
  /// How many documents the caller will take first (batchSize or limit): the trial of candidates
  /// stops there. 0: 101
  int64_t batch_hint = 0;
  bool tailable = false, await_data = false;  ///< capped collections only, in $natural order
  bool return_key = false, show_record_id = false;
  bool allow_disk_use = true;
  /// True: documents past their own deadline are found too (the reaper and validate).
  bool include_expired = false;
  /// metadata() tells these, beside what the projection asks for.
  bool want_sort_key = false, want_record_id = false, want_index_key = false;
  /// The command's `let`: evaluated once, with no document.
  BsonView let;
  /// Variables that are evaluated already (pipelines, $lookup): names in `scope`, values by
  /// VariableId. Not with `let`.
  VariableScope* scope = nullptr;
  const std::vector<Value>* variables = nullptr;
  /// Bytes that a blocking sort may hold before it spills or fails with 292.
  uint64_t memory_limit = 100ull * 1024 * 1024;
  std::string spill_directory;  ///< for sorts; empty: as SpillPlace
  bool allow_where = false;
  /// Stages measure time, rejected plans are kept, the plan cache is passed by.
  bool explain = false;
  /// Results end with their own deadlines in this field, a date; those without one do not have it.
  /// Entries of the oplog have it in `o`. Empty: none. A document that has such a field itself
  /// fails the query with BadValue 2.
  std::string_view deadline_field;
  bool fill_cache = true;  ///< false for scans that would wash the block cache
};

/// True when the query is `{_id: value}` on a collection keyed by `_id`: one store look-up, no
/// planner, may run on an io thread. False when there is a sort by $natural, hint other than _id_,
/// min/max, tailable, skip, or an `_id` that is an operator document, array, regex or undefined. A
/// projection does not matter. Allocates nothing. `*id` borrows from `filter`.
bool IsPointRead(const QuerySpec& spec, BsonValue* id);

/// What is too long for a thread that must not be held.
struct PointReadLimits {
  size_t whole, projected;  ///< bytes of a document to be returned as it is, or in part
  size_t longer = 0;        ///< out: the size of one that was left alone for its length
};

/// Runs a point read: appends the (projected) document, if there is one, straight to the batch.
/// Returns how many (0 or 1). With `limits`, a longer document is left alone: nothing is counted or
/// appended, and somebody else may read it. REQUIRES: IsPointRead(spec, &id).
Result<int> RunPointRead(Storage& storage, Operation& op, const QuerySpec& spec, BsonValue id,
                         BsonArrayBuilder& batch, PointReadLimits* limits = nullptr);

/// How much explain shows and runs: the plan; the plan and what it did; every candidate as well.
enum class ExplainVerbosity : uint8_t { kQueryPlanner, kExecutionStats, kAllPlansExecution };
/// "queryPlanner", "executionStats" or "allPlansExecution". Errors: BadValue 2.
Result<ExplainVerbosity> ParseVerbosity(std::string_view name);

/// A stage that a command puts on top of the plan in explain: UPDATE, DELETE, BATCHED_DELETE,
/// COUNT, … Outermost first.
struct ExplainStage {
  std::string stage;
  std::function<void(BsonBuilder&)>
      plan_fields;  ///< shown in queryPlanner and executionStats; may be empty
  std::function<void(BsonBuilder&)> stats_fields;  ///< shown in executionStats only; may be empty
  int64_t n_returned = 0;                          ///< what this stage returned (an update: 0)
};

/// A running plan. Not thread-safe; one thread after another may use it (a cursor between
/// getMores). It refers to the Operation given last (at creation or RestoreState), which must
/// outlive its use.
///
/// Life: Next()… SaveState() | (any time, any thread) | RestoreState(op) Next()… Between SaveState
/// and RestoreState it holds no view and no iterator. What is read is Operation::view, or, where
/// there is none, the latest state when the executor is made and at each RestoreState.
class PlanExecutor {
 public:
  enum class State : uint8_t { kAdvanced, kEof };
  virtual ~PlanExecutor() = default;

  /// The next result. kEof is final unless the cursor is tailable: then it means "nothing now", and
  /// Next() after SaveState and RestoreState looks again. Errors: what interrupts the operation,
  /// failing expressions, 292 for a sort above its memory, CappedPositionLost 136.
  virtual Result<State> Next() = 0;
  /// Counts the remaining results, up to `most`. Errors: as Next.
  virtual Result<int64_t> CountRest(int64_t most = INT64_MAX) = 0;

  // The result Next() stopped at; valid until the next call of anything that is not const.
  /// The stored document, before projection.
  virtual BsonView input_doc() const = 0;
  /// The document as the client gets it (projected; computed at the first call after Next()).
  virtual Result<BsonView> doc() = 0;
  /// Full key in Keyspace::kRecords, for WriteUnit::LockAndRead.
  virtual std::string_view record_key() const = 0;
  virtual const DocumentMetadata& metadata() const = 0;
  /// Appends doc() straight into a reply's batch: one copy, also through a projection.
  virtual Result<void> AppendResult(BsonArrayBuilder& batch) = 0;
  /// The next Next() returns this result again, also after SaveState: it did not fit.
  virtual void PushBack() = 0;
  /// True when doc() may be larger than input_doc(): a projection with computed fields.
  virtual bool MayGrow() const = 0;

  /// Appends results until `max_documents` (0: none) are in the batch, the batch would exceed
  /// `max_bytes` (at least one document goes in), or the end. True when the end was reached (never
  /// for tailable cursors). For single-batch and cursor replies alike.
  virtual Result<bool> FillBatch(BsonArrayBuilder& batch, int64_t max_documents,
                                 size_t max_bytes = kMaxBsonUserSize);

  /// Gives up views, iterators and the snapshot; keeps a copy of what was pushed back. Next() may
  /// be called again only after RestoreState().
  virtual void SaveState() = 0;
  /// Errors: QueryPlanKilled 175 when the collection or an index of the plan is gone or renamed.
  virtual Result<void> RestoreState(Operation& op) = 0;
  /// The memory of documents read ahead that it keeps between SaveState and RestoreState; 0 if
  /// none, or if they are counted elsewhere.
  virtual size_t KeptBytes() const { return 0; }
  /// The same for its stages, including sorts: large_memory may count it already.
  virtual void AddKept(large_memory::Kept* kept) const { (void)kept; }
  virtual bool tailable() const = 0;
  /// Whether all results are read and sorted before the first comes.
  virtual bool HasSort() const { return false; }
  /// True once the end is known (a limit is reached, the input has ended): no cursor need be kept.
  virtual bool IsEof() const = 0;

  /// The parsed filter; null for an empty one.
  virtual const MatchExpression* match() const = 0;

  // --- explain and statistics --------------------------------------------------------------------
  /// Runs to the end, or to that many results (0: all), and drops them: explain does so before
  /// kExecutionStats and kAllPlansExecution. Answers how many there were.
  Result<int64_t> RunToEnd(int64_t limit = 0);
  /// Appends explainVersion, queryPlanner and, by verbosity, executionStats. `on_top`: the
  /// command's own stages.
  Result<void> Explain(ExplainVerbosity verbosity, const std::vector<ExplainStage>& on_top,
                       BsonBuilder& out);
  /// The members alone, for aggregate's $cursor stage.
  virtual Result<void> AppendQueryPlanner(const std::vector<ExplainStage>& on_top,
                                          ExplainVerbosity verbosity, BsonBuilder& out) = 0;
  virtual Result<void> AppendExecutionStats(const std::vector<ExplainStage>& on_top,
                                            ExplainVerbosity verbosity, BsonBuilder& out) = 0;
  /// "COLLSCAN", "IXSCAN { a: 1 }", … as the profiler, currentOp and the slow query log show it.
  virtual std::string PlanSummary() const = 0;
  /// Names of the indexes that the plan uses ($indexStats counts them already).
  virtual std::vector<std::string> IndexesUsed() const = 0;
};

/// Parses, plans (racing candidates when there are several) and returns the executor before its
/// first result. Errors: BadValue 2 (filter, hint, sort), FailedToParse 9, TypeMismatch 14 and the
/// projection's own codes; Interrupted. Blocking: it may read; not for io threads (see
/// IsPointRead).
Result<std::unique_ptr<PlanExecutor>> MakeFindExecutor(Storage& storage, Operation& op,
                                                       QuerySpec spec);

/// The `count` command: skip and limit applied. Uses the collection's counter when there is no
/// filter, index keys alone when the bounds say it all, and a plan otherwise.
class CountExecutor {
 public:
  virtual ~CountExecutor() = default;
  /// To be called once. Errors: those of a plan's Next().
  virtual Result<int64_t> Count() = 0;
  /// After Count() for kExecutionStats and above.
  virtual Result<void> Explain(ExplainVerbosity verbosity, BsonBuilder& out) = 0;
  virtual std::string PlanSummary() const = 0;
};
/// Errors: as MakeFindExecutor. `storage` and `op` must outlive the result. Blocking.
Result<std::unique_ptr<CountExecutor>> MakeCountExecutor(Storage& storage, Operation& op,
                                                         QuerySpec spec);

/// The `distinct` command: each different value at `key` once, arrays on the path taken apart.
/// Skips from value to value of an index when one serves the query.
class DistinctExecutor {
 public:
  virtual ~DistinctExecutor() = default;
  /// Calls `each` once a value, in no particular order; the value is valid as long as the executor.
  /// An error from `each` ends the run.
  virtual Result<void> Run(const std::function<Result<void>(BsonValue)>& each) = 0;
  virtual Result<void> Explain(ExplainVerbosity verbosity, BsonBuilder& out) = 0;
  virtual std::string PlanSummary() const = 0;
};
/// As MakeCountExecutor.
Result<std::unique_ptr<DistinctExecutor>> MakeDistinctExecutor(Storage& storage, Operation& op,
                                                               QuerySpec spec,
                                                               std::string_view key);

/// Evaluates a command's `let` (constant expressions; a later one may use an earlier one), defines
/// the names in `scope` and puts their values into `variables`. Errors: 4890500 (reads a field),
/// FailedToParse 9 (name), those of the expressions.
Result<void> EvaluateLet(BsonView let, Operation& op, VariableScope* scope,
                         std::vector<Value>* variables);

/// Forgets the cached plans of one collection (planCacheClear).
void ClearPlanCache(Storage& storage, const CollectionInfo& coll);
/// Appends one document per cached plan, as $planCacheStats shows it, through `each`.
void ForEachCachedPlan(Storage& storage, const CollectionInfo& coll,
                       const std::function<void(BsonView)>& each);

}  // namespace mayfly

#pragma once
#include <string>
#include <vector>

#include "query/match/match_expression.h"
#include "query/plan/bounds_builder.h"
#include "query/plan/index_filter.h"
#include "query/plan/stages.h"
#include "query/projection/projection.h"
#include "query/sort/sorter.h"

namespace mayfly {

/// A parsed query, as the planner sees it. Refers to data of its owner (the executor).
struct PlannerInput {
  explicit PlannerInput(PlanContext& c) : ctx(c) {}
  PlanContext& ctx;
  const MatchExpression* filter = nullptr;  ///< null: matches all
  SortPattern sort;
  int natural = 0;  ///< ±1: {$natural: …} as sort or hint
  const ProjectionExecutor* projection = nullptr;
  bool projection_is_hint = false;  ///< used when an index covers it, and not at all otherwise
  bool simple_projection = false;   ///< for explain: top-level fields only
  BsonDocument projection_spec;
  BsonValue hint;                              ///< not $natural
  std::shared_ptr<const IndexFilter> allowed;  ///< null: every index; else hints count for nothing
  /// Whether the planner may choose the index.
  bool MayUse(const IndexInfo& index) const;
  /// Likewise the order of `_id` that the records have.
  bool MayUseId() const;
  BsonDocument min, max;
  int64_t skip = 0, limit = 0;
  bool tailable = false;
  bool count_only = false;   ///< documents need not be fetched when the bounds are exact
  bool need_record = false;  ///< the record itself is asked for: never covered
  SorterOptions sorter;
};

/// One way to answer a query.
struct CandidatePlan {
  PlanStagePtr root;
  std::string signature;  ///< the same for the same way, whatever the constants; the plan cache's
  double score = 0;       ///< a guess, for the order in which candidates are tried
  bool has_sort = false;
  bool has_fetch = false;
};

/// Whether a scan of the index can say all that the projection shows.
bool CanCover(const PlannerInput& in, const IndexInfo& index, uint64_t multikey);

/// Every plan worth trying, best guess first; never empty. Errors: BadValue 2 and others for hint,
/// min and max.
Result<std::vector<CandidatePlan>> EnumeratePlans(PlannerInput& in);

/// How one index serves a conjunction.
struct IndexAccess {
  IndexInfoPtr index;  ///< null: the records themselves, keyed by `_id`
  uint64_t multikey = 0;
  IndexBounds bounds;
  std::vector<const MatchExpression*> exact;  ///< clauses that need no second look
  bool useful = false;                        ///< the first field is bounded
  bool safe = true;  ///< false: a sparse or partial index that may lack matching documents
  double score = 0;
};

/// Bounds for `index` out of the predicates of a conjunction.
IndexAccess BuildIndexAccess(const IndexInfoPtr& index, uint64_t multikey_fields,
                             const std::vector<const MatchExpression*>& clauses,
                             const std::vector<PathPredicate>& predicates);
/// The same for records keyed by `_id`.
IndexAccess BuildIdAccess(const std::vector<PathPredicate>& predicates);
/// The bounds of a field that each document has once and never as an array.
IntervalList BoundsOnPath(std::string_view path, const std::vector<PathPredicate>& predicates);

/// Whether a scan of an index yields the order that a sort wants, and in which direction.
enum class SortProvision : uint8_t { kNo, kForward, kBackward };
/// Whether a scan comes in the order wanted. `*explode`: how many leading fields have several
/// points that must be scanned apart and merged for that; 0: none.
SortProvision ProvidesSort(const IndexAccess& access, const SortPattern& sort, size_t* explode);

/// True for an index that queries may use at all.
bool IsUsable(const IndexInfo& index);

}  // namespace mayfly

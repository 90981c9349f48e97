#pragma once
#include "query/plan/planner.h"
#include "query/plan/stages.h"
#include "storage/catalog/index_kind.h"

namespace mayfly {

/// How plans use an index of one kind: the planner's half of storage/catalog/index_kind.h, a row in
/// a table.
struct IndexPlanKind {
  IndexKindId id;
  /// Bounds out of the predicates of a conjunction.
  IndexAccess (*access)(const IndexInfoPtr& index, uint64_t multikey_fields,
                        const std::vector<const MatchExpression*>& clauses,
                        const std::vector<PathPredicate>& predicates);
  /// Whether a scan comes in the order wanted (ProvidesSort).
  SortProvision (*sort)(const IndexAccess& access, const SortPattern& sort, size_t* explode);
  /// The stage that walks the bounds.
  PlanStagePtr (*scan)(PlanContext& ctx, IndexScanStage::Params&& params);
  /// The values can be read off the keys.
  bool keys_hold_values;
};

// --- the ordinary kind (index_access.cc)
IndexAccess OrdinaryAccess(const IndexInfoPtr& index, uint64_t multikey_fields,
                           const std::vector<const MatchExpression*>& clauses,
                           const std::vector<PathPredicate>& predicates);
/// Also of the records themselves, keyed by `_id`.
SortProvision OrdinarySort(const IndexAccess& access, const SortPattern& sort, size_t* explode);

/// REQUIRES: IsUsable(index).
const IndexPlanKind& PlanKindOf(const IndexInfo& index);

}  // namespace mayfly

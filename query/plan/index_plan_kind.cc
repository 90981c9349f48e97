#include "query/plan/index_plan_kind.h"

#include "storage/catalog/catalog_types.h"

namespace mayfly {
namespace {

PlanStagePtr ScanOrdinary(PlanContext& ctx, IndexScanStage::Params&& params) {
  return std::make_unique<IndexScanStage>(ctx, std::move(params));
}

/// Indexed by IndexKindId. Only kinds that have entries are listed.
constexpr IndexPlanKind kKinds[] = {
    {IndexKindId::kOrdinary, &OrdinaryAccess, &OrdinarySort, &ScanOrdinary, true},
};

}  // namespace

const IndexPlanKind& PlanKindOf(const IndexInfo& index) {
  for (const IndexPlanKind& k : kKinds)
    if (k.id == index.kind->id) return k;
  return kKinds[0];  // not reached: IsUsable asks for a kind that has entries
}

bool IsUsable(const IndexInfo& index) {
  return index.state == IndexState::kReady && !index.hidden && index.kind->maintained() &&
         !index.HasMeasuredArrays();
}

IndexAccess BuildIndexAccess(const IndexInfoPtr& index, uint64_t multikey_fields,
                             const std::vector<const MatchExpression*>& clauses,
                             const std::vector<PathPredicate>& predicates) {
  return PlanKindOf(*index).access(index, multikey_fields, clauses, predicates);
}

SortProvision ProvidesSort(const IndexAccess& access, const SortPattern& sort, size_t* explode) {
  if (access.index == nullptr) return OrdinarySort(access, sort, explode);
  return PlanKindOf(*access.index).sort(access, sort, explode);
}

}  // namespace mayfly

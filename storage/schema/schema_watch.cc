#include "storage/schema/schema_watch.h"

#include <algorithm>

#include "storage/core/storage_impl.h"
#include "storage/schema/catalog_impl.h"

namespace mayfly {

void WatchSchema(Storage& storage, SchemaWatch watch) {
  static_cast<CatalogImpl&>(*storage.impl().catalog).SetWatch(std::move(watch));
}

bool CatalogImpl::FinishesBuilds(const Replacement& change) {
  if (!change.before || !change.after || change.before->ns != change.after->ns) return false;
  const CollectionInfo& before = *change.before;
  const CollectionInfo& after = *change.after;
  // An index that is being built is ready, or gone; nothing was added.
  bool any = false;
  for (const IndexInfoPtr& i : before.indexes) {
    if (i->state != IndexState::kBuilding) continue;
    const auto now = std::find_if(after.indexes.begin(), after.indexes.end(),
                                  [&](const IndexInfoPtr& x) { return x->id == i->id; });
    any = any || now == after.indexes.end() || (*now)->state != IndexState::kBuilding;
  }
  return any && after.indexes.size() <= before.indexes.size();
}

Result<void> CatalogImpl::MayChange(Operation& op, const std::vector<Replacement>& changes) {
  if (!watch_.may_change) return Ok();
  for (const Replacement& c : changes) {
    if (FinishesBuilds(c)) continue;
    MAYFLY_TRY(watch_.may_change(op, c.before.get(), c.after.get()));
  }
  return Ok();
}

void CatalogImpl::TellWatch(Operation& op, const std::vector<Replacement>& changes) {
  if (!watch_.changed) return;
  for (const Replacement& c : changes) watch_.changed(op, c.before.get(), c.after.get());
}

}  // namespace mayfly

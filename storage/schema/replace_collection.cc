#include "storage/schema/replace_collection.h"

#include "storage/core/storage_impl.h"
#include "storage/schema/catalog_impl.h"

namespace mayfly {

Result<void> ReplaceCollection(Storage& storage, Operation& op, const CollectionInfo& target,
                               const CollectionInfo& by,
                               const std::function<Result<void>()>& fill) {
  return static_cast<CatalogImpl&>(*storage.impl().catalog).ReplaceBy(op, target, by, fill);
}

Result<void> PutSeries(Storage& storage, Operation& op, const CollectionInfo& by,
                       std::string_view name) {
  return static_cast<CatalogImpl&>(*storage.impl().catalog).PutSeries(op, by, name);
}

}  // namespace mayfly

#include "storage/catalog/replace_collection.h"

#include "storage/catalog/catalog_impl.h"
#include "storage/storage_impl.h"

namespace mayfly {

Result<void> ReplaceCollection(Storage& storage, Operation& op, const CollectionInfo& target,
                               const CollectionInfo& by,
                               const std::function<Result<void>()>& fill) {
  return static_cast<CatalogImpl&>(*storage.impl().catalog).ReplaceBy(op, target, by, fill);
}

}  // namespace mayfly

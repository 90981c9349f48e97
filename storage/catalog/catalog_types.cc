#include "storage/catalog/catalog_types.h"

namespace mayfly {

Error DamagedRecord(const CollectionInfo& coll) {
  return {ErrorCode::kInternalError, "damaged record in " + coll.ns + ": run validate"};
}

Error DamagedEntry(const CollectionInfo& coll, const IndexInfo& index) {
  return {ErrorCode::kInternalError, "damaged entry in index " + index.name + " of " + coll.ns +
                                         ": run validate, then drop and build it again"};
}

}  // namespace mayfly

#include "server/execution/existing_collection.h"

#include "server/dispatch/data_services.h"
#include "storage/storage.h"

namespace mayfly {

Result<CollectionInfoPtr> ExistingCollection(DataServices& server, std::string_view db,
                                             std::string_view collection) {
  return OpenCollection(server.storage().catalog(), db, collection, CollectionUse::kIndexes);
}

}  // namespace mayfly

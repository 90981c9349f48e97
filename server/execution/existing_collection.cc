#include "server/execution/existing_collection.h"

#include "server/dispatch/server_context.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {

Result<CollectionInfoPtr> ExistingCollection(ServerContext& server, std::string_view db,
                                             std::string_view collection) {
  MAYFLY_TRY(ValidateNamespace(db, collection));
  CollectionInfoPtr coll = server.storage().catalog().Find(db, collection);
  if (!coll)
    return Error{ErrorCode::kNamespaceNotFound,
                 "ns does not exist: " + JoinNamespace(db, collection)};
  if (coll->is_view)
    return Error{ErrorCode::kCommandNotSupportedOnView,
                 "Namespace " + coll->ns + " is a view, not a collection"};
  return coll;
}

}  // namespace mayfly

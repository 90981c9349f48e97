#pragma once
#include <string_view>

#include "storage/catalog/catalog_types.h"

namespace mayfly {

class DataServices;

/// The collection that a command needs. Threads: any. Errors: InvalidNamespace 73,
/// NamespaceNotFound 26, CommandNotSupportedOnView 166.
Result<CollectionInfoPtr> ExistingCollection(DataServices& server, std::string_view db,
                                             std::string_view collection);

}  // namespace mayfly

#pragma once
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// What createIndexes does with a definition that resembles an existing one (manual:
/// "createIndexes", Behaviors; observed codes). The existing index when `spec` asks for the very
/// same, null when it is new. Two definitions are the same index when key, collation, partial
/// filter, sparse and unique agree; name and other options must then agree too. Errors:
/// IndexOptionsConflict 85 (the same index with other options, or under another name),
/// IndexKeySpecsConflict 86 (the name is taken by another index).
Result<IndexInfoPtr> MatchExistingIndex(const CollectionInfo& coll, const IndexInfo& spec);

/// Same fields in the same order with the same directions, whatever type the numbers are of.
bool SameIndexKey(BsonView a, BsonView b);

/// Whether the key is {_id: 1}: the index that every collection has.
bool IsIdIndexKey(BsonView key);

}  // namespace mayfly

#pragma once
#include <string_view>
#include <vector>

#include "server/dispatch/command.h"
#include "server/dispatch/expiry_services.h"

namespace mayfly {

/// What `$collStats`, `$indexStats`, `$currentOp`, `$listLocalSessions`, `$listSessions` and
/// `$planCacheStats` answer. `clients`: where to find who runs `op`; null: nobody asks, and what
/// belongs to clients is not shown. Errors: those of their arguments; NamespaceNotFound 26.
Result<std::vector<BsonDocument>> AggregateStageDocuments(
    ExpiryServices& server, ServerContext* clients, Operation& op, std::string_view stage,
    std::string_view db, std::string_view collection, BsonView spec);

/// The next documents of `$tombstones`; see PipelineEnvironment::Tombstones. Tombstones of
/// collections that were dropped are not shown.
Result<std::vector<BsonDocument>> AggregateTombstones(ExpiryServices& server, Operation& op,
                                                      std::string_view db,
                                                      std::string_view collection, BsonView spec,
                                                      std::string* position);

/// collStats' numbers, also of `$collStats: {storageStats: …}`. `count`: its documents as
/// Visibility::CountVisible counts them, which may take long; not used of a view. `scale` divides
/// sizes.
void AppendCollectionStats(ExpiryServices& server, const CollectionInfo& coll, int64_t count,
                           int64_t scale, bool with_ns, BsonBuilder& out);

/// An index as listIndexes and $indexStats show it.
void AppendIndexSpec(const CollectionInfo& coll, const IndexInfo* index, BsonBuilder& out);

}  // namespace mayfly

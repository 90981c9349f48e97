#pragma once
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "storage/catalog/catalog_types.h"
#include "storage/write/write_unit.h"

/// The oplog's entries (`c`) for changes of the catalog. The changes themselves are the rows in the
/// same unit. No-ops where there is no log.
namespace mayfly {

/// One entry each, in MongoDB's form of the command, with the collection's UUID; views have none.
/// `dropped_target`: what the rename has replaced; null: nothing. A create of a collection that is
/// not replicated makes its unit local.
void LogCreate(WriteUnit& unit, const CollectionInfo& coll);
/// A time series and its buckets: one entry for both.
void LogCreateSeries(WriteUnit& unit, const CollectionInfo& series, const CollectionInfo& buckets);
/// The entry of a rename, without a UUID.
void LogPutSeries(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& to,
                  const CollectionInfo* dropped_target);
void LogDrop(WriteUnit& unit, const CollectionInfo& coll);
void LogDropDatabase(WriteUnit& unit, std::string_view db);
void LogRename(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& to,
               const CollectionInfo* dropped_target);
void LogModify(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after);
/// Indexes of `after` that `before` has not: `createIndexes` when they are ready, else
/// `startIndexBuild`.
void LogCreateIndexes(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after);
/// `commitIndexBuild`; `collMod` when the index takes the place of another one (a conversion to a
/// unique one). `before` has it as it was built.
void LogCommitBuild(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after,
                    const std::vector<uint32_t>& ids);
/// Indexes of `before` that `after` has not.
void LogDropIndexes(WriteUnit& unit, const CollectionInfo& before, const CollectionInfo& after);

/// {v: 2, key, name, unique …} as listIndexes has it.
void AppendIndexSpec(const IndexInfo& index, BsonBuilder& out);

}  // namespace mayfly

#pragma once
#include "storage/core/open_storage.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// Lays one range delete over the head of a TTL index up to and with `through` (milliseconds), so
/// that readers in time order need not step over the reaper's point deletes. REQUIRES: no entry
/// that early is left as far as ExpiryState knows; it is checked again with all writers out. False
/// when writers were busy or an earlier entry came in: try again later. Blocking: shortly. With
/// `last_entry` (a key of the index's keyspace) the range goes from the earliest date to that entry
/// alone: the reaper's position in the middle of its work.
Result<bool> CoverReaped(Storage& storage, Operation& op, const CollectionInfo& coll,
                         const IndexInfo& index, int64_t through, std::string_view last_entry = {});
/// Likewise over the head of a collection's queue of deadlines.
Result<bool> CoverReapedDeadlines(Storage& storage, Operation& op, const CollectionInfo& coll,
                                  int64_t through, std::string_view last_entry = {});

/// Once the unit is applied, readers of the index (null: of the clustered collection) step over all
/// that is before `entry`, whose date is `millis` (empty: over every earlier date), as far as
/// ExpiryState knows of nothing there. REQUIRES: with this unit everything there has been dealt
/// with: removed, or a mark of the ExpiryState lowered. False for an empty unit where
/// it could not be done exactly: those of a replica set's member do not go through its log.
bool RaiseHeadOnCommit(Storage& storage, WriteUnit& unit, const CollectionInfoPtr& coll,
                       const IndexInfoPtr& index, int64_t millis, std::string entry);

}  // namespace mayfly

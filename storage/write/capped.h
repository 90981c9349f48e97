#pragma once
#include <vector>

#include "storage/write/write_unit_impl.h"

namespace mayfly {

/// Locks and reads the oldest records of a capped collection that must be removed so that a
/// document of `incoming_bytes` fits: number and BSON bytes both stay within the collection's
/// limits. The unit deletes them together with its insert, so no reader ever sees the collection
/// above its limits. REQUIRES: the unit holds the collection's insert lock. Errors: BadValue 2 when
/// the document alone is larger than the collection; WriteConflict 112.
Result<void> LockCappedVictims(WriteUnit& unit, const CollectionInfo& coll, uint32_t incoming_bytes,
                               std::vector<WriteUnit::Locked>* victims);

}  // namespace mayfly

#pragma once
#include <list>

#include "storage/write/write_unit_impl.h"

namespace mayfly {

/// Locks and reads the oldest records of a capped collection that must be removed so that a
/// document of `incoming_bytes` fits: number and BSON bytes both stay within the collection's
/// limits. The unit deletes them together with its insert, so no reader ever sees the collection
/// above its limits. A list, since a small document lives inside its place, which must not move.
/// REQUIRES: the unit holds the collection's insert lock. Errors: BadValue 2 when the document
/// alone is larger than the collection; WriteConflict 112, also for a unit that is to be kept short
/// if they are many; those of an interrupt.
Result<void> LockCappedVictims(WriteUnit& unit, const CollectionInfo& coll, uint32_t incoming_bytes,
                               std::list<WriteUnit::Locked>* victims);

}  // namespace mayfly

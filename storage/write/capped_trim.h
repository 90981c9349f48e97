#pragma once
#include "protocol/error.h"

namespace mayfly {

struct CollectionInfo;
class Operation;
class Storage;

/// Removes what a capped collection has beyond its limits, which collMod may have lowered, in units
/// of their own if it is more than one unit should remove; the rest goes with the next insert.
/// Cheap when there is nothing to do. Blocking; interruptible. Errors: WriteConflict 112, those of
/// an interrupt and of a commit.
Result<void> TrimCapped(Storage& storage, Operation& op, const CollectionInfo& coll);

}  // namespace mayfly

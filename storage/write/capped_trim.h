#pragma once
#include "protocol/error.h"

namespace mayfly {

struct CollectionInfo;
class Operation;
class Storage;

/// Removes documents of a capped collection beyond its limits, which collMod may have lowered, in
/// several units if they are too many for one; the next insert removes the rest. Cheap when there
/// is nothing to do. Blocking; interruptible. Errors: WriteConflict 112, those of an interrupt and
/// of a commit.
Result<void> TrimCapped(Storage& storage, Operation& op, const CollectionInfo& coll);

}  // namespace mayfly

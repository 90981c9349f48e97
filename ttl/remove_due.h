#pragma once
#include "storage/storage.h"

namespace mayfly {

/// Removes everything of one collection that is due at `op.now`, as the reaper would: held
/// documents stay, a suspended clock removes nothing, and without ttlMonitorEnabled only documents
/// past their own deadline go. Documents that others have locked are left to the reaper. Returns
/// their number. Blocking. Errors: what interrupts the operation, storage's.
Result<int64_t> RemoveDue(Storage& storage, Operation& op, const CollectionInfoPtr& coll);

}  // namespace mayfly

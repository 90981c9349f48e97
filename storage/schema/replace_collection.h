#pragma once
#include <functional>

#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

class Operation;
class Storage;

/// Puts `by` in the place of `target` (which is dropped), after `fill` has run: while it does,
/// nobody writes to `target`, so what `fill` copies from it is all there is. One atomic change of
/// the catalog at the end. `by` must have been made after `target`. Blocking. Errors:
/// NamespaceNotFound 26 when `target` is gone, and those of `fill`; then nothing has changed.
Result<void> ReplaceCollection(Storage& storage, Operation& op, const CollectionInfo& target,
                               const CollectionInfo& by, const std::function<Result<void>()>& fill);

}  // namespace mayfly

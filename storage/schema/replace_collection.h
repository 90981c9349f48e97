#pragma once
#include <functional>
#include <string_view>

#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

class Operation;
class Storage;

/// Puts `by` in place of `target` (which is dropped), after `fill` has run: while it does,
/// nobody writes to `target`, so what `fill` copies from it is all there is. One atomic change of
/// the catalog at the end. `by` must have been made after `target`. Blocking. Errors:
/// NamespaceNotFound 26 when `target` is gone, and those of `fill`; then nothing has changed.
Result<void> ReplaceCollection(Storage& storage, Operation& op, const CollectionInfo& target,
                               const CollectionInfo& by, const std::function<Result<void>()>& fill);

/// Gives the temporary time series `by`, and its buckets, the name `name` in its database, in one
/// atomic change. A time series that has this name is dropped in it: the new one takes over its
/// span, `expireAfterSeconds`, `onExpire`, and whether its expiry is suspended, as they are then.
/// Blocking. Errors: NamespaceExists 48 when the name is that of anything else; CommandFailed 125
/// when the one there has another time or meta field, or other indexes; NamespaceNotFound 26 when
/// `by` is gone; then nothing has changed.
Result<void> PutSeries(Storage& storage, Operation& op, const CollectionInfo& by,
                       std::string_view name);

}  // namespace mayfly

#pragma once
#include <functional>

#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

class Operation;
class Storage;

/// Sees every change of the catalog that this server makes itself, whatever the cause: a command, a
/// first insert, $out, the server. Changes from the replication log are not seen. `before` and
/// `after`: one collection, null where there was none, or is none any more. Both run on the thread
/// that makes the change, while nobody else makes one: they must not change the catalog. Of what a
/// transaction has made, `changed` runs while others may make changes.
struct SchemaWatch {
  /// Before the change is committed: an error stops it. Not for the steps that finish a build of an
  /// index, or take it back.
  std::function<Result<void>(Operation& op, const CollectionInfo* before,
                             const CollectionInfo* after)>
      may_change;
  /// After it was.
  std::function<void(Operation& op, const CollectionInfo* before, const CollectionInfo* after)>
      changed;
};

/// One watch a store; set before the first client, and taken away (an empty one) after the last.
void WatchSchema(Storage& storage, SchemaWatch watch);

}  // namespace mayfly

#pragma once
#include <memory>

#include "protocol/error.h"
#include "storage/catalog.h"

namespace mayfly {

/// What Storage itself needs beyond Catalog. Made by OpenCatalog, owned by Storage::Impl.
class OpenedCatalog : public Catalog {
 public:
  /// Starts what goes on in the background: removing what dropped collections and indexes left,
  /// resuming index builds. Called once, when the Storage is complete (committer set).
  virtual void StartBackground() = 0;
  /// Ends it and waits; builds stay unfinished and resume at the next open. Safe to call twice.
  /// After Storage::Impl::closing is set, before committer and store go.
  virtual void StopBackground() = 0;
  /// For tests: waits until what dropped collections and indexes left is gone.
  virtual void WaitForGarbage() = 0;
};

/// Reads all catalog rows: collections with their indexes, counters, multikey marks, what is left
/// to do. Errors: InternalError 1 naming the row that cannot be read.
Result<std::unique_ptr<OpenedCatalog>> OpenCatalog(class Storage& storage);

}  // namespace mayfly

#pragma once
#include <memory>

#include "protocol/error.h"
#include "storage/catalog/catalog.h"

namespace mayfly {

/// A replica set member's additional operations on the catalog. Threads: any.
class MemberCatalog {
 public:
  virtual ~MemberCatalog() = default;
  /// A collection that is not on disk (CollectionInfo::source): found and listed like any other,
  /// never changed.
  virtual void AddSource(CollectionInfoPtr coll) = 0;
  /// The same one with other options.
  virtual void ReplaceSource(CollectionInfoPtr was, CollectionInfoPtr now) = 0;
  /// This member became primary: forgets how far each index was reaped (the log moved on without
  /// the reaper), and goes on with the builds that the last primary began. Blocking.
  virtual void BecomePrimary() = 0;
  /// The reaper no longer works here: its knowledge of each index is no longer updated.
  virtual void ForgetReaped() = 0;
};

/// What Storage itself needs beyond Catalog. Made by OpenCatalog, owned by Storage::Impl.
class OpenedCatalog : public Catalog, public MemberCatalog {
 public:
  /// Starts the background work: removal of dropped collections' and indexes' data, unfinished
  /// index builds. Called once, when the Storage is complete (committer set).
  virtual void StartBackground() = 0;
  /// Ends it and waits; builds stay unfinished and resume at the next open. Safe to call twice.
  /// After Storage::Impl::closing is set, before committer and store go.
  virtual void StopBackground() = 0;
  /// For tests: waits until the data of dropped collections and indexes is gone.
  virtual void WaitForGarbage() = 0;
  /// For tests: what is done for the catalog's own files once a minute.
  virtual void CompactFiles() = 0;

  // --- on a replica set's member -----------------------------------------------------------------
  /// Brings the maps up to date with rows that an entry of the log has put or erased. The applier's
  /// thread, after they are visible; waits for nothing but the maps' lock.
  virtual void ApplyLogged(const std::vector<struct LogEffect>& effects,
                           const std::vector<struct LogMultikey>& multikeys) = 0;
  /// Sets the flags of an index; nothing when it is not known (yet).
  virtual void MarkMultikey(uint32_t index, uint64_t fields) = 0;
};

/// Reads all catalog rows: collections with their indexes, counters, multikey marks, what is left
/// to do. Errors: InternalError 1 naming the row that cannot be read.
Result<std::unique_ptr<OpenedCatalog>> OpenCatalog(class Storage& storage);

}  // namespace mayfly

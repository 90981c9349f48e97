#pragma once
#include <optional>

#include "query/update/update.h"
#include "server/execution/write_ops.h"

namespace mayfly {

/// How often a statement is tried again after conflicts with other writers.
inline constexpr int kWriteRetries = 1000;

/// Waits before a unit that met another writer is tried again: first not at all, then longer each
/// time. Blocking.
void BackOff(Operation& op, int attempt);

/// The expiration of a statement: its own, or `$expire` in its update. Errors: InvalidOptions 72.
Result<ExpirySetting> CombineExpiry(const UpdateStatement& s, const Update& update);

/// Whether a write that leaves the document's bytes as they are can move its deadline. A write that
/// sets an expiry can, and so can a replacement, which always counts as a mutation. Operators that
/// change nothing cannot.
bool MayMoveDeadline(const ExpirySetting& setting, bool whole, std::optional<Instant> current,
                     const CollectionInfo& coll);

/// One step of a statement: a write unit of its own, which Commit commits, or a part of a unit that
/// outlives the statement (WriteCommand::set_unit), in which Commit leaves what was staged.
/// Uncommitted changes are rolled back at the end of its life. Threads: one; blocking.
class UnitStep {
 public:
  explicit UnitStep(WriteCommand& command);
  ~UnitStep();
  UnitStep(const UnitStep&) = delete;
  WriteUnit& operator*() { return *unit_; }
  WriteUnit* operator->() { return unit_; }
  /// Once. Errors: the committer's and the observer's.
  Result<void> Commit(const UnitResult& r);

 private:
  WriteCommand& command_;
  std::optional<WriteUnit> own_;
  WriteUnit* unit_;
  std::optional<WriteUnit::Savepoint> begin_;  ///< in a longer unit, until Commit
};

}  // namespace mayfly

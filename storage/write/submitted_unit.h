#pragma once
#include <memory>
#include <optional>

#include "storage/write/write_unit.h"

namespace mayfly {

/// The interface of a unit for committers outside storage, such as a replica set's, which puts
/// units through its log (EncodeLogUnit) and has the log's entries applied (LogApplier). Borrows
/// the unit.
class SubmittedUnit {
 public:
  explicit SubmittedUnit(WriteUnit& unit) : unit_(unit) {}
  /// Its changes stay on this member, in no log.
  bool local() const;
  /// It changes nothing and has no log records.
  bool empty() const;
  /// Whose it is; null: nobody waits.
  Operation* operation() const;
  /// For a transaction: since when its changes hold, in the committer's own count (as at its
  /// begin); nullopt: since now.
  std::optional<uint64_t> reign() const;
  /// Fixes its time in the log by `clock`: documents that it has written again are not hidden from
  /// then on until it is visible. Errors: WriteConflict 112: one of its documents was past its
  /// deadline for others by then (docs/expiry.md X5).
  Result<int64_t> FixTime(const std::function<int64_t()>& clock);
  /// Sorts large sets of changes by key, so that they are written and applied faster. Takes
  /// processor time in proportion to the unit, so not on the thread that applies.
  void SortForCommit();
  /// For an empty unit: runs its OnCommit functions and releases its locks.
  void Finish();
  /// It was not written: its locks are released.
  void GiveUp();

 private:
  WriteUnit& unit_;
};

/// A committer for this store alone, like the one that Storage has from the start.
std::unique_ptr<Committer> MakeLocalCommitter(Storage& storage, int sync_interval_ms);

}  // namespace mayfly

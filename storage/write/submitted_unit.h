#pragma once
#include <memory>
#include <optional>

#include "storage/write/write_unit.h"

namespace mayfly {

/// What a committer that is not storage's own needs of the units it is given: a replica set's, for
/// one, which puts them through its log (EncodeLogUnit) and has the log's entries applied
/// (LogApplier). Borrows the unit.
class SubmittedUnit {
 public:
  explicit SubmittedUnit(WriteUnit& unit) : unit_(unit) {}
  /// Its changes stay on this member, in no log.
  bool local() const;
  /// It changes nothing and has nothing to say in the log.
  bool empty() const;
  /// Whose it is; null: nobody waits.
  Operation* operation() const;
  /// Of a transaction: since when its changes hold, in the committer's own count (as it was begun
  /// with); nullopt: since now.
  std::optional<uint64_t> reign() const;
  /// Puts what is much in the order of keys, in which it is written and applied sooner. Takes
  /// processor time in proportion to the unit, so not on the thread that applies.
  void SortForCommit();
  /// Of an empty unit: its OnCommit functions run, and its locks are released.
  void Finish();
  /// It was not written: its locks are released.
  void GiveUp();

 private:
  WriteUnit& unit_;
};

/// What writes units to this store alone. As the one that Storage has from the start.
std::unique_ptr<Committer> MakeLocalCommitter(Storage& storage, int sync_interval_ms);

}  // namespace mayfly

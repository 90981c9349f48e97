#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "replication/consensus.h"
#include "storage/write/log_format.h"

namespace mayfly {

/// Units of the log with applied chunks and no end yet: the part of the log that must be kept for
/// them. A unit whose leader's term has ended, or that its leader has abandoned, never ends; its
/// chunks then have no meaning, and are trimmed with the log. Kept in the store beside the log, so
/// that a member knows it after a start, and in a copy. Threads: one (the applier's), first_index()
/// any.
class OpenUnits {
 public:
  /// As of the applied position. Errors: InternalError 1 when the row is damaged, the store's.
  Result<void> Load(KvStore& kv);
  /// Before the entries are applied with `batch`.
  void Prepare(std::span<const CommittedEntry> entries, KvBatch& batch);
  /// After the batch of the last Prepare is visible.
  void Applied();
  /// The log is needed from this index on; UINT64_MAX: none of it is.
  uint64_t first_index() const { return first_.load(std::memory_order_acquire); }

 private:
  struct Unit {
    LogEntryHeader id;
    LogPosition first;
  };
  uint64_t First() const;
  std::vector<Unit> units_;
  std::atomic<uint64_t> first_{UINT64_MAX};
};

/// The unit that ends in the entry at hand of a log, as an entry of this unit alone
/// (JoinLogUnit). `chunks`: a cursor of its own, which is moved. Errors: one of IsTrimmed when the
/// log does not reach back to its first chunk; those of JoinLogUnit.
Result<std::string> JoinFromLog(std::string_view end, LogCursor& chunks);
/// Whether that is the error of JoinFromLog that says that the log begins behind a chunk.
bool IsTrimmed(const Error& e);

}  // namespace mayfly

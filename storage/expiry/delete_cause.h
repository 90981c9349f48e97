#pragma once
#include <cstdint>

#include "protocol/instant.h"

namespace mayfly {

/// Why a document is removed. Log entries and tombstones store the numbers: DO NOT RENUMBER. The
/// expiries stand together, so that one comparison of a range finds them.
enum class DeleteReason : uint8_t {
  kDeleted = 0,
  kExpiredTtlIndex = 1,
  kExpiredDocument = 2,
  kExpiredClustered = 3,
  kCapped = 4,
  kMerged =
      5  ///< its content is now in another document of the same unit: neither deleted nor expired
  // 6 is taken in log entries: kExpiredTtlIndex with the field of the index (log_format.h).
};

/// The reason with what a tombstone and a log entry say of it.
struct DeleteCause {
  DeleteCause() = default;
  DeleteCause(DeleteReason r) : reason(r) {}  // NOLINT: a reason alone is a cause
  DeleteReason reason = DeleteReason::kDeleted;
  uint32_t index = 0;  ///< kExpiredTtlIndex: its id
  Instant deadline{};  ///< of an expiry: since when it was due
  /// kDeleted: false leaves no tombstone. It is not stored: the log has no tombstones.
  bool tombstone = true;
  /// By the server on its own, because time was up: only such deletes have a deadline.
  bool expired() const {
    return reason >= DeleteReason::kExpiredTtlIndex && reason <= DeleteReason::kExpiredClustered;
  }
};

}  // namespace mayfly

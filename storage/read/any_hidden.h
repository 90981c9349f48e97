#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

class Operation;
class Storage;

/// Whether a read of a store may hide something at a moment, whichever collections it reads: false
/// only when Visibility hides nothing in any of them, nor a time series any of its points.
///
/// It remembers which collections have to be looked at, for as long as the catalog and
/// ttlReadFilter stay the same, and never an answer: deadlines arrive, entries come and go, and
/// rules are paused, held and switched off without a change of the catalog, so the marks and rules
/// of those collections are asked each time. Of collections that have been dropped it keeps nothing
/// but the marks. One object a store. Threads: any.
class AnyHidden {
 public:
  /// The most marks and rules that are looked at on a thread others wait for.
  static constexpr size_t kMostKnown = 256;
  /// `most_known`: kMostKnown, or fewer for a test.
  explicit AnyHidden(size_t most_known = kMostKnown) : most_known_(most_known) {}
  AnyHidden(const AnyHidden&) = delete;
  AnyHidden& operator=(const AnyHidden&) = delete;

  /// The answer where it costs at most some loads for each of `most_known` marks and rules;
  /// nullopt: Look must say, because the catalog has changed since its last call or has more. Does
  /// not block.
  std::optional<bool> Known(Storage& storage, Instant now) const;
  /// The answer at op.now, by a walk over all collections where the catalog has changed since.
  /// Blocking: for a worker. Errors: those of an interrupt.
  Result<bool> Look(Storage& storage, Operation& op);
  /// Before the store closes.
  void Forget();

 private:
  struct Collections;
  /// Those of the present catalog, if they are remembered; null: they are not, or are more than
  /// `most`.
  std::shared_ptr<const Collections> Remembered(Storage& storage, size_t most) const;

  const size_t most_known_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Collections> remembered_;  ///< guarded by mutex_
};

}  // namespace mayfly

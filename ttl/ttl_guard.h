#pragma once
#include <cstdint>

namespace mayfly {

/// What ttlGuardAction says. DO NOT REORDER: the parameter's values in this order.
enum class TtlGuardAction : int { kWarn = 0, kHold = 1, kOff = 2 };

/// Whether a new or changed rule would at once remove more than the guard allows
/// (docs/expiry-control.md): at least `min_docs` documents, and more than `max_fraction` of those
/// there are.
inline bool GuardTrips(double due, int64_t documents, double max_fraction, int64_t min_docs) {
  if (documents <= 0 || due < 1 || due < static_cast<double>(min_docs)) return false;
  return due > max_fraction * static_cast<double>(documents);
}

}  // namespace mayfly

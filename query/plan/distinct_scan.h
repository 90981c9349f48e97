#pragma once
#include <optional>
#include <string_view>

#include "query/plan/planner.h"

namespace mayfly {

/// The purpose of a scan from value to value.
struct DistinctWish {
  std::string_view path;  ///< whose values are to be different
  /// For $group: values are whole (an array is one), what is missing counts as a value, and of each
  /// value the first document in the order of PlannerInput::sort is wanted. Otherwise as the
  /// `distinct` command: the elements of arrays, what is missing has no value, any document.
  bool of_group = false;
  bool last = false;  ///< of_group: the last document in that order instead
};

/// A plan that visits one entry of an index for each value. Its caller tells the scan, after each
/// row, to skip entries that begin with the same values (SkipValues).
struct DistinctScan {
  CandidatePlan plan;
  IndexScanStage* scan = nullptr;  ///< in `plan`
  size_t field = 0;                ///< of the index: that of the path

  /// The prefix of entries with the same value as this row. `*value`: null also where it is
  /// missing or cut in the key, undefined also for an empty array. Errors: of a damaged key.
  Result<std::string_view> Prefix(const Row& row, Value* value) const;
};

/// Nothing where no index serves it: the filter must be decided by bounds and keys, and the fields
/// before the path must have single values.
std::optional<DistinctScan> PlanDistinctScan(PlannerInput& in, const DistinctWish& wish);

}  // namespace mayfly

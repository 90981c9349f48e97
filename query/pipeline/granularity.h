#pragma once
#include <string_view>

#include "protocol/error.h"
#include "protocol/value.h"

namespace mayfly {

/// A series of preferred numbers that the boundaries of $bucketAuto keep to: Renard series (ISO 3),
/// E series (IEC 60063), 1-2-5 and the powers of two (manual: "$bucketAuto", Granularity).
class Granularity {
 public:
  /// Errors: 40257 for a name there is not.
  static Result<Granularity> Parse(std::string_view name);
  std::string_view name() const { return name_; }

  /// A value that is grouped by it: a number, not NaN, not negative. Errors: 40258, 40259, 40260.
  static Result<void> Check(BsonValue v);
  /// The next number of the series above (below) `v`; zero stays. A double, or a decimal for a
  /// decimal. REQUIRES: Check.
  Value RoundUp(BsonValue v) const { return Round(v, true); }
  Value RoundDown(BsonValue v) const { return Round(v, false); }

 private:
  Value Round(BsonValue v, bool up) const;
  std::string_view name_;
  const struct NumberSeries* series_ = nullptr;  ///< null: powers of two
};

}  // namespace mayfly

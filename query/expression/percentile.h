#pragma once
#include <vector>

#include "protocol/value.h"
#include "query/expression/operator.h"

namespace mayfly {

/// $percentile and $median: the number below which a share of the numbers lies, which is always one
/// of them. Exact, where MongoDB's "approximate" estimates from a sketch.
class Percentiles {
 public:
  /// Anything but a number is left out.
  void Add(BsonValue v) {
    if (v.IsNumber()) numbers_.push_back(v.NumberAsDouble());
  }
  size_t size() const { return numbers_.size(); }
  const std::vector<double>& numbers() const { return numbers_; }
  void Merge(std::string_view raw);  ///< the bytes of another's numbers()

  /// The value at `p` (0 to 1), as a double; null without numbers. Sorts what there is.
  Value At(double p);
  /// $median's value, or $percentile's array.
  Value Answer(bool median, std::span<const double> ps);

 private:
  std::vector<double> numbers_;
  bool sorted_ = false;
};

/// `method` must be "approximate", the only method (manual: "$percentile"). Errors: TypeMismatch
/// 14, BadValue 2.
Result<void> CheckPercentileMethod(BsonValue method, std::string_view op);
/// `p`: an array of numbers from 0 to 1. Errors: 7750301, 7750302, 7750303.
Result<std::vector<double>> ParsePercentiles(BsonValue p);

}  // namespace mayfly

#pragma once
#include <cmath>

#include "protocol/decimal128.h"
#include "query/expression/operator.h"

namespace mayfly {

/// A sum of numbers of any type: exact for integers while they fit, compensated (Neumaier) for
/// doubles, decimal once a decimal was added. Other values are left out.
class NumberSum {
 public:
  /// Values that are not numbers are ignored and not counted.
  void Add(BsonValue v) {
    switch (v.type()) {
      case BsonType::kInt32:
        AddWhole(v.Int32());
        break;
      case BsonType::kInt64:
        wide_ = true;
        AddWhole(v.Int64());
        break;
      case BsonType::kDouble:
        has_double_ = true;
        AddReal(v.Double());
        break;
      case BsonType::kDecimal128:
        decimal_ = has_decimal_ ? decimal128::Add(decimal_, v.Decimal()) : v.Decimal();
        has_decimal_ = true;
        break;
      default:
        return;
    }
    ++count_;
  }
  int64_t count() const { return count_; }

  /// int32 if only int32 were added and it fits, else int64; double when one was added or int64
  /// overflowed.
  Value Total() const {
    if (has_decimal_) return Value::Decimal(DecimalTotal());
    if (has_double_ || overflowed_) return Value::Double(RealTotal());
    return MakeInteger(whole_, wide_);
  }
  /// A double, or a decimal once one was added; null without numbers.
  Value Average() const {
    if (count_ == 0) return Value::Null();
    if (has_decimal_)
      return Value::Decimal(decimal128::Divide(DecimalTotal(), decimal128::FromInt64(count_)));
    return Value::Double(RealTotal() / static_cast<double>(count_));
  }
  /// Without the decimals. The compensation is left out once the sum is not finite: with it
  /// infinity would become NaN.
  double RealTotal() const {
    double r = real_ + static_cast<double>(whole_);
    return std::isfinite(r) ? r + rest_ : r;
  }

  // As a value that another sum takes in: how a partial result is spilled.
  void Save(BsonArrayBuilder& out) const {
    out.Append(count_).Append(whole_).Append(real_).Append(rest_);
    out.Append((wide_ ? 1 : 0) | (has_double_ ? 2 : 0) | (overflowed_ ? 4 : 0) |
               (has_decimal_ ? 8 : 0));
    out.Append(Value::Decimal(decimal_).view());
  }
  /// `saved`: an array that Save() wrote; it is not checked.
  void Merge(BsonView saved) {
    std::vector<BsonValue> v = Elements(saved.AsValue(BsonType::kArray));
    count_ += v[0].Int64();
    AddWhole(v[1].Int64());
    AddReal(v[2].Double());
    rest_ += v[3].Double();
    int32_t flags = v[4].Int32();
    wide_ = wide_ || (flags & 1);
    has_double_ = has_double_ || (flags & 2);
    overflowed_ = overflowed_ || (flags & 4);
    if (flags & 8) {
      decimal_ = has_decimal_ ? decimal128::Add(decimal_, v[5].Decimal()) : v[5].Decimal();
      has_decimal_ = true;
    }
  }

 private:
  void AddWhole(int64_t n) {
    int64_t r;
    if (!__builtin_add_overflow(whole_, n, &r)) {
      whole_ = r;
    } else {
      overflowed_ = true;
      AddReal(static_cast<double>(n));
    }
  }
  void AddReal(double x) {
    double t = real_ + x;
    if (std::isfinite(t))
      rest_ += std::abs(real_) >= std::abs(x) ? (real_ - t) + x : (x - t) + real_;
    real_ = t;
  }
  Decimal128Bits DecimalTotal() const {
    Decimal128Bits d = decimal_;
    if (whole_ != 0) d = decimal128::Add(d, decimal128::FromInt64(whole_));
    if (has_double_ || overflowed_) d = decimal128::Add(d, decimal128::FromDouble(real_ + rest_));
    return d;
  }
  int64_t whole_ = 0, count_ = 0;
  double real_ = 0, rest_ = 0;
  Decimal128Bits decimal_;
  bool wide_ = false, has_double_ = false, overflowed_ = false, has_decimal_ = false;
};

/// Standard deviation by Welford's method.
class Deviation {
 public:
  /// Values that are not numbers are ignored; decimals count as doubles.
  void Add(BsonValue v) {
    if (!v.IsNumber()) return;
    double x = v.NumberAsDouble();
    ++count_;
    double delta = x - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (x - mean_);
  }
  /// `sample`: divides by n - 1 instead of n. Null when too few numbers were added.
  Value Result(bool sample) const {
    int64_t n = sample ? count_ - 1 : count_;
    if (n <= 0) return Value::Null();
    return Value::Double(std::sqrt(squares_ / static_cast<double>(n)));
  }
  void Save(BsonArrayBuilder& out) const { out.Append(count_).Append(mean_).Append(squares_); }
  /// `saved`: an array that Save() wrote; it is not checked.
  void Merge(BsonView saved) {
    std::vector<BsonValue> v = Elements(saved.AsValue(BsonType::kArray));
    int64_t n = v[0].Int64();
    if (n == 0) return;
    double delta = v[1].Double() - mean_;
    int64_t total = count_ + n;
    mean_ += delta * static_cast<double>(n) / static_cast<double>(total);
    squares_ += v[2].Double() + delta * delta * static_cast<double>(count_) *
                                    static_cast<double>(n) / static_cast<double>(total);
    count_ = total;
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

}  // namespace mayfly

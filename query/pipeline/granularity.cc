#include "query/pipeline/granularity.h"

#include <cmath>
#include <vector>

#include "protocol/decimal128.h"
#include "query/expression/convert.h"
#include "query/expression/operator.h"

namespace mayfly {

/// The numbers of one decade in hundredths, 100 to below 1000.
struct NumberSeries {
  std::vector<int> hundredths;
};

namespace {

/// Every `step`-th of the most rounded Renard series that ISO 3 has.
constexpr int kRenard80[] = {100, 103, 106, 109, 112, 115, 118, 122, 125, 128, 132, 136, 140, 145,
                             150, 155, 160, 165, 170, 175, 180, 185, 190, 195, 200, 206, 212, 218,
                             224, 230, 236, 243, 250, 258, 265, 272, 280, 290, 300, 307, 315, 325,
                             335, 345, 355, 365, 375, 387, 400, 412, 425, 437, 450, 462, 475, 487,
                             500, 515, 530, 545, 560, 580, 600, 615, 630, 650, 670, 690, 710, 730,
                             750, 775, 800, 825, 850, 875, 900, 925, 950, 975};
constexpr int kE24[] = {100, 110, 120, 130, 150, 160, 180, 200, 220, 240, 270, 300,
                        330, 360, 390, 430, 470, 510, 560, 620, 680, 750, 820, 910};

template <size_t N>
NumberSeries Every(const int (&all)[N], size_t step) {
  NumberSeries s;
  for (size_t i = 0; i < N; i += step) s.hundredths.push_back(all[i]);
  return s;
}

/// E48 and finer: the decade in equal ratios, to three digits; IEC 60063 has 9.20 where that
/// gives 9.19.
NumberSeries EqualRatios(int n) {
  NumberSeries s;
  for (int i = 0; i < n; ++i) {
    const auto x = static_cast<int>(std::lround(100 * std::pow(10.0, static_cast<double>(i) / n)));
    s.hundredths.push_back(x == 919 ? 920 : x);
  }
  return s;
}

struct NamedSeries {
  std::string_view name;
  NumberSeries series;
};

const std::vector<NamedSeries>& AllSeries() {
  static const auto* all = new std::vector<NamedSeries>{{"R5", Every(kRenard80, 16)},
                                                        {"R10", Every(kRenard80, 8)},
                                                        {"R20", Every(kRenard80, 4)},
                                                        {"R40", Every(kRenard80, 2)},
                                                        {"R80", Every(kRenard80, 1)},
                                                        {"1-2-5", {{100, 200, 500}}},
                                                        {"E6", Every(kE24, 4)},
                                                        {"E12", Every(kE24, 2)},
                                                        {"E24", Every(kE24, 1)},
                                                        {"E48", EqualRatios(48)},
                                                        {"E96", EqualRatios(96)},
                                                        {"E192", EqualRatios(192)},
                                                        {"POWERSOF2", {}}};
  return *all;
}

/// hundredths * 10^(power - 2), with one rounding.
double Scaled(int hundredths, int power) {
  const double p = std::pow(10.0, std::abs(power - 2));
  return power >= 2 ? hundredths * p : hundredths / p;
}

double RoundInSeries(const NumberSeries& s, double x, bool up) {
  int power = static_cast<int>(std::floor(std::log10(x)));
  // The logarithm may be off by one at a power of ten.
  while (Scaled(100, power) > x) --power;
  while (Scaled(100, power + 1) <= x) ++power;
  if (up) {
    for (int h : s.hundredths)
      if (Scaled(h, power) > x) return Scaled(h, power);
    return Scaled(100, power + 1);
  }
  for (auto h = s.hundredths.rbegin(); h != s.hundredths.rend(); ++h)
    if (Scaled(*h, power) < x) return Scaled(*h, power);
  return Scaled(s.hundredths.back(), power - 1);
}

double RoundToPowerOfTwo(double x, bool up) {
  int exponent = 0;
  const double fraction =
      std::frexp(x, &exponent);  // x = fraction * 2^exponent, fraction in [0.5, 1)
  if (up) return std::ldexp(1.0, exponent);
  return std::ldexp(1.0, fraction == 0.5 ? exponent - 2 : exponent - 1);
}

}  // namespace

Result<Granularity> Granularity::Parse(std::string_view name) {
  for (const NamedSeries& s : AllSeries()) {
    if (s.name != name) continue;
    Granularity g;
    g.name_ = s.name;
    g.series_ = s.series.hundredths.empty() ? nullptr : &s.series;
    return g;
  }
  return LocationError(40257, "Unknown rounding granularity '" + std::string(name) + "'");
}

Result<void> Granularity::Check(BsonValue v) {
  if (!v.IsNumber())
    return LocationError(
        40258,
        "$bucketAuto can specify a 'granularity' with numeric boundaries only, but "
        "found a value with type: " +
            TypeText(v));
  const double d = v.NumberAsDouble();
  if (std::isnan(d))
    return LocationError(
        40259,
        "$bucketAuto can specify a 'granularity' with numeric boundaries only, but "
        "found a NaN");
  if (d < 0)
    return LocationError(40260,
                         "$bucketAuto can specify a 'granularity' with non-negative numbers only, "
                         "but found a negative number");
  return Ok();
}

Value Granularity::Round(BsonValue v, bool up) const {
  const double x = v.NumberAsDouble();
  const double r = x == 0 || std::isinf(x) ? x
                   : series_ == nullptr    ? RoundToPowerOfTwo(x, up)
                                           : RoundInSeries(*series_, x, up);
  if (!v.Is(BsonType::kDecimal128)) return Value::Double(r);
  Result<Decimal128Bits> d = decimal128::Parse(DoubleText(r));
  return d ? Value::Decimal(d.value()) : Value::Double(r);
}

}  // namespace mayfly

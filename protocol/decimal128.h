#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// Decimal128 arithmetic by libintelrdfpmath, rounding half to even. Pure functions; threads: any.
namespace decimal128 {
/// Exact: 34 digits hold every int64.
Decimal128Bits FromInt64(int64_t v);
Decimal128Bits FromDouble(
    double v);  ///< to 15 significant digits, as $toDecimal and $convert show it
Decimal128Bits FromDoubleExact(double v);  ///< to 34 digits: what comparison uses
/// To the nearest double, ties to even; infinite beyond the largest one.
double ToDouble(Decimal128Bits v);
/// Rounded toward zero (at most the largest finite double); *exact: nothing was lost. REQUIRES:
/// finite.
double ToDoubleTowardZero(Decimal128Bits v, bool* exact);
/// A finite decimal taken apart: (-1)^negative * coefficient * 10^exponent. A coefficient that is
/// not canonical (above 10^34 - 1) is 0, as the standard has it.
struct Parts {
  unsigned __int128 coefficient = 0;
  int exponent = 0;
  bool negative = false;
};
/// False when NaN or infinite.
bool Unpack(Decimal128Bits v, Parts* out);
/// REQUIRES: coefficient below 10^34, exponent in -6176..6111.
Decimal128Bits Pack(const Parts& parts);
/// Truncates toward zero; false when NaN, infinite or out of range.
bool ToInt64(Decimal128Bits v, int64_t* out);
bool IsNan(Decimal128Bits v);
bool IsInfinite(Decimal128Bits v);
bool IsNegative(Decimal128Bits v);
bool IsZero(Decimal128Bits v);
Decimal128Bits Add(Decimal128Bits a, Decimal128Bits b);
Decimal128Bits Subtract(Decimal128Bits a, Decimal128Bits b);
Decimal128Bits Multiply(Decimal128Bits a, Decimal128Bits b);
Decimal128Bits Divide(Decimal128Bits a, Decimal128Bits b);
Decimal128Bits Modulo(Decimal128Bits a, Decimal128Bits b);  ///< sign of the dividend
Decimal128Bits Negate(Decimal128Bits a);
Decimal128Bits Abs(Decimal128Bits a);
Decimal128Bits Floor(Decimal128Bits a);
Decimal128Bits Ceil(Decimal128Bits a);
Decimal128Bits Truncate(Decimal128Bits a);
/// Half to even at `places` decimal places (negative: tens, hundreds, …).
Decimal128Bits Round(Decimal128Bits a, int places);
Decimal128Bits TruncatePlaces(Decimal128Bits a, int places);
Decimal128Bits Sqrt(Decimal128Bits a);
Decimal128Bits Exp(Decimal128Bits a);
Decimal128Bits Ln(Decimal128Bits a);
Decimal128Bits Log10(Decimal128Bits a);
Decimal128Bits Pow(Decimal128Bits a, Decimal128Bits b);
/// <0, 0, >0. NaN equals NaN and is below everything.
int Compare(Decimal128Bits a, Decimal128Bits b);
std::string ToString(Decimal128Bits v);  ///< as extended JSON's $numberDecimal
Result<Decimal128Bits> Parse(std::string_view text);
}  // namespace decimal128

}  // namespace mayfly

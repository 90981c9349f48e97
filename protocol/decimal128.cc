#include "protocol/decimal128.h"

#include <bson/bson.h>

#include <cmath>
#include <cstdio>

#include "protocol/bid128.h"

namespace mayfly::decimal128 {
namespace {

constexpr _IDEC_round kNearestEven = 0;
constexpr _IDEC_round kTowardZero = 3;

}  // namespace

#define FLAGS _IDEC_flags flags = 0

Decimal128Bits FromInt64(int64_t v) { return Out(bid128_from_int64(v)); }

Decimal128Bits FromDoubleExact(double v) {
  FLAGS;
  return Out(binary64_to_bid128(v, kNearestEven, &flags));
}

Decimal128Bits FromDouble(double v) {
  if (!std::isfinite(v)) return FromDoubleExact(v);
  char text[40];
  std::snprintf(text, sizeof text, "%.14e", v);
  FLAGS;
  BID_UINT128 exact = bid128_from_string(text, kNearestEven, &flags);
  return Out(exact);
}

double ToDouble(Decimal128Bits v) {
  FLAGS;
  return bid128_to_binary64(In(v), kNearestEven, &flags);
}

double ToDoubleTowardZero(Decimal128Bits v, bool* exact) {
  FLAGS;
  double d = bid128_to_binary64(In(v), kTowardZero, &flags);
  *exact = (flags & BID_INEXACT_EXCEPTION) == 0;
  return d;
}

namespace {
constexpr int kExponentBias = 6176;
constexpr unsigned __int128 Power10(int n) { return n == 0 ? 1 : Power10(n - 1) * 10; }
constexpr unsigned __int128 kMaxCoefficient = Power10(34) - 1;
}  // namespace

bool Unpack(Decimal128Bits v, Parts* out) {
  out->negative = (v.high >> 63) != 0;
  if ((v.high >> 59 & 0xF) == 0xF) return false;  // infinity or NaN
  if ((v.high >> 61 & 3) == 3) {  // the long form: its coefficients are all too large
    out->exponent = static_cast<int>(v.high >> 47 & 0x3FFF) - kExponentBias;
    out->coefficient = 0;
    return true;
  }
  out->exponent = static_cast<int>(v.high >> 49 & 0x3FFF) - kExponentBias;
  auto c = static_cast<unsigned __int128>(v.high & ((uint64_t{1} << 49) - 1)) << 64 | v.low;
  out->coefficient = c > kMaxCoefficient ? 0 : c;
  return true;
}

Decimal128Bits Pack(const Parts& p) {
  return {static_cast<uint64_t>(p.coefficient),
          static_cast<uint64_t>(p.negative) << 63 |
              static_cast<uint64_t>(p.exponent + kExponentBias) << 49 |
              static_cast<uint64_t>(p.coefficient >> 64)};
}

bool ToInt64(Decimal128Bits v, int64_t* out) {
  FLAGS;
  if (bid128_isNaN(In(v)) || bid128_isInf(In(v))) return false;
  *out = bid128_to_int64_int(In(v), &flags);
  return (flags & BID_INVALID_EXCEPTION) == 0;
}

bool IsNan(Decimal128Bits v) { return bid128_isNaN(In(v)); }
bool IsInfinite(Decimal128Bits v) { return bid128_isInf(In(v)); }
bool IsNegative(Decimal128Bits v) { return bid128_isSigned(In(v)); }
bool IsZero(Decimal128Bits v) { return bid128_isZero(In(v)); }
Decimal128Bits Add(Decimal128Bits a, Decimal128Bits b) {
  FLAGS;
  return Out(bid128_add(In(a), In(b), kNearestEven, &flags));
}
Decimal128Bits Subtract(Decimal128Bits a, Decimal128Bits b) {
  FLAGS;
  return Out(bid128_sub(In(a), In(b), kNearestEven, &flags));
}
Decimal128Bits Multiply(Decimal128Bits a, Decimal128Bits b) {
  FLAGS;
  return Out(bid128_mul(In(a), In(b), kNearestEven, &flags));
}
Decimal128Bits Divide(Decimal128Bits a, Decimal128Bits b) {
  FLAGS;
  return Out(bid128_div(In(a), In(b), kNearestEven, &flags));
}
Decimal128Bits Modulo(Decimal128Bits a, Decimal128Bits b) {
  FLAGS;
  return Out(bid128_fmod(In(a), In(b), &flags));
}
Decimal128Bits Negate(Decimal128Bits a) { return Out(bid128_negate(In(a))); }
Decimal128Bits Abs(Decimal128Bits a) { return Out(bid128_abs(In(a))); }
Decimal128Bits Floor(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_round_integral_negative(In(a), &flags));
}
Decimal128Bits Ceil(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_round_integral_positive(In(a), &flags));
}
Decimal128Bits Truncate(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_round_integral_zero(In(a), &flags));
}

namespace {
Decimal128Bits Quantize(Decimal128Bits a, int places, _IDEC_round mode) {
  FLAGS;
  if (IsNan(a) || IsInfinite(a)) return a;
  // The quantum is 10^-places: exponent field of a BID value, biased by 6176.
  if (places > 6176 || places < -6111) return a;
  BID_UINT128 quantum;
  quantum.w[0] = 1;
  quantum.w[1] = static_cast<uint64_t>(6176 - places) << 49;
  BID_UINT128 r = bid128_quantize(In(a), quantum, mode, &flags);
  if (bid128_isNaN(r)) return a;  // more digits than decimal128 has: nothing to round away
  return Out(r);
}
}  // namespace

Decimal128Bits Round(Decimal128Bits a, int places) { return Quantize(a, places, kNearestEven); }
Decimal128Bits TruncatePlaces(Decimal128Bits a, int places) {
  return Quantize(a, places, kTowardZero);
}
Decimal128Bits Sqrt(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_sqrt(In(a), kNearestEven, &flags));
}
Decimal128Bits Exp(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_exp(In(a), kNearestEven, &flags));
}
Decimal128Bits Ln(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_log(In(a), kNearestEven, &flags));
}
Decimal128Bits Log10(Decimal128Bits a) {
  FLAGS;
  return Out(bid128_log10(In(a), kNearestEven, &flags));
}
Decimal128Bits Pow(Decimal128Bits a, Decimal128Bits b) {
  FLAGS;
  return Out(bid128_pow(In(a), In(b), kNearestEven, &flags));
}

int Compare(Decimal128Bits a, Decimal128Bits b) {
  bool na = IsNan(a), nb = IsNan(b);
  if (na || nb) return static_cast<int>(nb) - static_cast<int>(na);
  FLAGS;
  if (bid128_quiet_less(In(a), In(b), &flags)) return -1;
  return bid128_quiet_equal(In(a), In(b), &flags) ? 0 : 1;
}

std::string ToString(Decimal128Bits v) {
  bson_decimal128_t d;
  d.low = v.low;
  d.high = v.high;
  char text[BSON_DECIMAL128_STRING];
  bson_decimal128_to_string(&d, text);
  return text;
}

Result<Decimal128Bits> Parse(std::string_view text) {
  bson_decimal128_t d;
  if (!bson_decimal128_from_string_w_len(text.data(), static_cast<int>(text.size()), &d))
    return Error{ErrorCode::kFailedToParse, "not a decimal128 number: '" + std::string(text) + "'"};
  return Decimal128Bits{d.low, d.high};
}

#undef FLAGS

}  // namespace mayfly::decimal128

#include "protocol/bson_compare.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "protocol/decimal128.h"
#include "protocol/seeded_hash.h"

namespace mayfly {
namespace {

constexpr std::array<uint8_t, 256> MakeTypeOrder() {
  std::array<uint8_t, 256> t{};
  t.fill(200);  // unknown types cannot pass validation; they only need some fixed place
  auto set = [&t](BsonType type, uint8_t order) { t[static_cast<uint8_t>(type)] = order; };
  set(BsonType::kMinKey, 0);
  set(BsonType::kMissing, 1);
  set(BsonType::kUndefined, 1);
  set(BsonType::kNull, 5);
  set(BsonType::kDouble, 10);
  set(BsonType::kInt32, 10);
  set(BsonType::kInt64, 10);
  set(BsonType::kDecimal128, 10);
  set(BsonType::kString, 15);
  set(BsonType::kSymbol, 15);
  set(BsonType::kDocument, 20);
  set(BsonType::kArray, 25);
  set(BsonType::kBinary, 30);
  set(BsonType::kObjectId, 35);
  set(BsonType::kBool, 40);
  set(BsonType::kDate, 45);
  set(BsonType::kTimestamp, 47);
  set(BsonType::kRegex, 50);
  set(BsonType::kDbPointer, 55);
  set(BsonType::kCode, 60);
  set(BsonType::kCodeWithScope, 65);
  set(BsonType::kMaxKey, 127);
  return t;
}
constexpr auto kTypeOrder = MakeTypeOrder();
inline int Order(BsonType t) { return kTypeOrder[static_cast<uint8_t>(t)]; }

template <class T>
inline int Three(T a, T b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

inline int CompareBytes(std::string_view a, std::string_view b) {
  int c = std::memcmp(a.data(), b.data(), std::min(a.size(), b.size()));
  if (c != 0) return c < 0 ? -1 : 1;
  return Three(a.size(), b.size());
}

int CompareDoubles(double a, double b) {
  if (a < b) return -1;
  if (a > b) return 1;
  if (a == b) return 0;
  return static_cast<int>(std::isnan(b)) - static_cast<int>(std::isnan(a));
}

int CompareIntDouble(int64_t i, double d) {
  if (std::isnan(d)) return 1;
  if (d >= 9223372036854775808.0) return -1;
  if (d < -9223372036854775808.0) return 1;
  auto t = static_cast<int64_t>(d);
  if (i != t) return i < t ? -1 : 1;
  double fraction = d - static_cast<double>(t);  // exact: a double with a fraction is below 2^53
  return fraction > 0 ? -1 : (fraction < 0 ? 1 : 0);
}

/// Exact, as real numbers: the decimal is rounded toward zero to a double, and what was cut off
/// decides a tie.
int CompareDecimalDouble(Decimal128Bits a, double b) {
  if (std::isnan(b) || decimal128::IsNan(a))
    return static_cast<int>(std::isnan(b)) - static_cast<int>(decimal128::IsNan(a));
  bool negative = decimal128::IsNegative(a);
  if (decimal128::IsInfinite(a)) return Three(negative ? -HUGE_VAL : HUGE_VAL, b);
  bool exact = false;
  double near = decimal128::ToDoubleTowardZero(a, &exact);
  if (near != b) return near < b ? -1 : 1;
  if (exact) return 0;
  return negative ? -1 : 1;
}

inline int64_t AsInt64(BsonValue v) { return v.type() == BsonType::kInt32 ? v.Int32() : v.Int64(); }

int CompareNumbers(BsonValue a, BsonValue b) {
  BsonType ta = a.type(), tb = b.type();
  if (ta == BsonType::kDecimal128) {
    if (tb == BsonType::kDecimal128) return decimal128::Compare(a.Decimal(), b.Decimal());
    if (tb == BsonType::kDouble) return CompareDecimalDouble(a.Decimal(), b.Double());
    return decimal128::Compare(a.Decimal(), decimal128::FromInt64(AsInt64(b)));
  }
  if (tb == BsonType::kDecimal128) return -CompareNumbers(b, a);
  if (ta == BsonType::kDouble) {
    if (tb == BsonType::kDouble) return CompareDoubles(a.Double(), b.Double());
    return -CompareIntDouble(AsInt64(b), a.Double());
  }
  if (tb == BsonType::kDouble) return CompareIntDouble(AsInt64(a), b.Double());
  return Three(AsInt64(a), AsInt64(b));
}

template <bool kNames>
int CompareFields(BsonView a, BsonView b) {
  auto ia = a.begin(), ib = b.begin();
  for (;; ++ia, ++ib) {
    if (ia == a.end()) return ib == b.end() ? 0 : -1;
    if (ib == b.end()) return 1;
    int c = Three(Order(ia->value.type()), Order(ib->value.type()));
    if (c != 0) return c;
    if constexpr (kNames) {
      c = CompareBytes(ia->name, ib->name);
      if (c != 0) return c;
    }
    c = CompareValues(ia->value, ib->value);
    if (c != 0) return c;
  }
}

}  // namespace

int CanonicalTypeOrder(BsonType type) { return Order(type); }

int CompareDocuments(BsonView a, BsonView b) { return CompareFields<true>(a, b); }

int CompareValues(BsonValue a, BsonValue b) {
  BsonType t = a.type();
  if (t != b.type()) {
    int c = Three(Order(t), Order(b.type()));
    if (c != 0) return c;
    if (a.IsNumber()) return CompareNumbers(a, b);
    if (t == BsonType::kString || t == BsonType::kSymbol)
      return CompareBytes(a.String(), b.String());
    return 0;  // missing and undefined
  }
  switch (t) {
    case BsonType::kInt32:
      return Three(a.Int32(), b.Int32());
    case BsonType::kInt64:
      return Three(a.Int64(), b.Int64());
    case BsonType::kDouble:
      return CompareDoubles(a.Double(), b.Double());
    case BsonType::kDecimal128:
      return decimal128::Compare(a.Decimal(), b.Decimal());
    case BsonType::kString:
    case BsonType::kSymbol:
    case BsonType::kCode:
      return CompareBytes(a.String(), b.String());
    case BsonType::kDocument:
      return CompareFields<true>(a.Document(), b.Document());
    case BsonType::kArray:
      return CompareFields<false>(a.Document(), b.Document());
    case BsonType::kBinary: {
      std::string_view da = a.BinaryData(), db = b.BinaryData();
      int c = Three(da.size(), db.size());
      if (c == 0) c = Three(a.BinarySubtype(), b.BinarySubtype());
      return c != 0 ? c : CompareBytes(da, db);
    }
    case BsonType::kObjectId:
      return CompareBytes(a.ObjectId(), b.ObjectId());
    case BsonType::kBool:
      return Three(a.Bool(), b.Bool());
    case BsonType::kDate:
      return Three(a.Date().millis, b.Date().millis);
    case BsonType::kTimestamp:
      return Three(a.Timestamp(), b.Timestamp());
    case BsonType::kRegex: {
      int c = CompareBytes(a.RegexPattern(), b.RegexPattern());
      return c != 0 ? c : CompareBytes(a.RegexOptions(), b.RegexOptions());
    }
    case BsonType::kDbPointer: {
      std::string_view na = a.DbPointerNamespace(), nb = b.DbPointerNamespace();
      int c = Three(na.size(), nb.size());
      if (c == 0) c = CompareBytes(na, nb);
      return c != 0 ? c : CompareBytes(a.DbPointerId(), b.DbPointerId());
    }
    case BsonType::kCodeWithScope: {
      int c = CompareBytes(a.CodeWithScopeCode(), b.CodeWithScopeCode());
      return c != 0 ? c : CompareFields<true>(a.CodeWithScopeScope(), b.CodeWithScopeScope());
    }
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kNull:
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return 0;
  }
  return 0;
}

namespace {

/// The finaliser of splitmix64: every input bit reaches every output bit.
inline uint64_t Mix(uint64_t h, uint64_t v) {
  h = (h ^ v) + 0x9E3779B97F4A7C15u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

inline uint64_t MixBytes(uint64_t h, std::string_view s) { return SeededHash(s, h); }

/// One representative for each numeric value: its int64 if it has one, else its double if that is
/// exact, else the decimal without trailing zeros.
uint64_t HashNumber(BsonValue v, uint64_t h) {
  int64_t i;
  if (v.ExactInt64(&i)) return Mix(h, static_cast<uint64_t>(i));
  double d;
  if (v.type() == BsonType::kDouble) {
    d = v.Double();
  } else {
    Decimal128Bits bits = v.Decimal();
    if (decimal128::IsNan(bits)) {
      d = std::nan("");
    } else {
      bool exact = true;
      d = decimal128::IsInfinite(bits) ? decimal128::ToDouble(bits)
                                       : decimal128::ToDoubleTowardZero(bits, &exact);
      if (!exact) {
        decimal128::Parts p;
        decimal128::Unpack(bits, &p);
        while (p.coefficient % 10 == 0) p.coefficient /= 10, ++p.exponent;
        h = Mix(h, static_cast<uint64_t>(p.coefficient));
        h = Mix(h, static_cast<uint64_t>(p.coefficient >> 64));
        return Mix(h, static_cast<uint64_t>(p.exponent) << 1 | p.negative);
      }
    }
  }
  if (std::isnan(d)) return Mix(h, 0x7FF8000000000000u);
  return Mix(h, std::bit_cast<uint64_t>(d));
}

template <bool kNames>
uint64_t HashFields(BsonView doc, uint64_t h) {
  for (const BsonElement& e : doc) {
    if constexpr (kNames) h = MixBytes(h, e.name);
    h = HashValue(e.value, h);
  }
  return Mix(h, 0xE0E0);  // the end: [[1], 2] is not [[1, 2]]
}

}  // namespace

uint64_t HashValue(BsonValue v, uint64_t seed) {
  uint64_t h = Mix(seed ^ kHashSeeds[0], static_cast<uint64_t>(Order(v.type())));
  switch (v.type()) {
    case BsonType::kInt32:
      return Mix(h, static_cast<uint64_t>(int64_t{v.Int32()}));
    case BsonType::kInt64:
      return Mix(h, static_cast<uint64_t>(v.Int64()));
    case BsonType::kDouble:
    case BsonType::kDecimal128:
      return HashNumber(v, h);
    case BsonType::kString:
    case BsonType::kSymbol:
    case BsonType::kCode:
      return MixBytes(h, v.String());
    case BsonType::kDocument:
      return HashFields<true>(v.Document(), h);
    case BsonType::kArray:
      return HashFields<false>(v.Document(), h);
    case BsonType::kCodeWithScope:
      return HashFields<true>(v.CodeWithScopeScope(), MixBytes(h, v.CodeWithScopeCode()));
    case BsonType::kBool:
      return Mix(h, v.Bool());
    case BsonType::kBinary:
    case BsonType::kObjectId:
    case BsonType::kDate:
    case BsonType::kTimestamp:
    case BsonType::kRegex:
    case BsonType::kDbPointer:
      return MixBytes(h, v.bytes());
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kNull:
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return h;
  }
  return h;
}

}  // namespace mayfly

#include "protocol/bson_compare.h"

#include <algorithm>
#include <cmath>

#include "protocol/decimal128.h"

namespace mayfly {

int CanonicalTypeOrder(BsonType type) {
  switch (type) {
    case BsonType::kMinKey: return -1;
    case BsonType::kMissing:
    case BsonType::kUndefined: return 0;
    case BsonType::kNull: return 5;
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128: return 10;
    case BsonType::kString:
    case BsonType::kSymbol: return 15;
    case BsonType::kDocument: return 20;
    case BsonType::kArray: return 25;
    case BsonType::kBinary: return 30;
    case BsonType::kObjectId: return 35;
    case BsonType::kBool: return 40;
    case BsonType::kDate: return 45;
    case BsonType::kTimestamp: return 47;
    case BsonType::kRegex: return 50;
    case BsonType::kDbPointer: return 55;
    case BsonType::kCode: return 60;
    case BsonType::kCodeWithScope: return 65;
    case BsonType::kMaxKey: return 127;
  }
  return 0;
}

namespace {

template <class T>
int Three(T a, T b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

int Three(std::string_view a, std::string_view b) {
  int c = a.compare(b);
  return c < 0 ? -1 : (c > 0 ? 1 : 0);
}

int CompareDoubles(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return static_cast<int>(std::isnan(b)) - static_cast<int>(std::isnan(a));
  return Three(a, b);
}

/// Exact: a double near 2^63 must not swallow the low bits of an int64.
int CompareInt64Double(int64_t a, double b) {
  if (std::isnan(b)) return 1;
  if (b >= 9223372036854775808.0) return -1;
  if (b < -9223372036854775808.0) return 1;
  int64_t whole = static_cast<int64_t>(b);
  if (a != whole) return a < whole ? -1 : 1;
  return Three(0.0, b - static_cast<double>(whole));
}

bool IsInteger(BsonType t) { return t == BsonType::kInt32 || t == BsonType::kInt64; }
int64_t AsInteger(BsonValue v) { return v.Is(BsonType::kInt32) ? v.Int32() : v.Int64(); }

/// Exact: both are compared as real numbers. The decimal is rounded toward zero to a double; whatever was cut off decides a tie.
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

int CompareNumbers(BsonValue a, BsonValue b) {
  if (IsInteger(a.type()) && IsInteger(b.type())) return Three(AsInteger(a), AsInteger(b));
  if (a.Is(BsonType::kDouble) && b.Is(BsonType::kDouble)) return CompareDoubles(a.Double(), b.Double());
  if (IsInteger(a.type()) && b.Is(BsonType::kDouble)) return CompareInt64Double(AsInteger(a), b.Double());
  if (a.Is(BsonType::kDouble) && IsInteger(b.type())) return -CompareInt64Double(AsInteger(b), a.Double());
  if (a.Is(BsonType::kDecimal128)) {
    if (b.Is(BsonType::kDecimal128)) return decimal128::Compare(a.Decimal(), b.Decimal());
    if (b.Is(BsonType::kDouble)) return CompareDecimalDouble(a.Decimal(), b.Double());
    return decimal128::Compare(a.Decimal(), decimal128::FromInt64(AsInteger(b)));
  }
  return -CompareNumbers(b, a);
}

int CompareElements(BsonView a, BsonView b, bool names) {
  auto i = a.begin(), j = b.begin();
  for (;; ++i, ++j) {
    bool end_a = i == a.end(), end_b = j == b.end();
    if (end_a || end_b) return static_cast<int>(end_b) - static_cast<int>(end_a);
    int c = Three(CanonicalTypeOrder(i->value.type()), CanonicalTypeOrder(j->value.type()));
    if (c == 0 && names) c = Three(i->name, j->name);
    if (c == 0) c = CompareValues(i->value, j->value);
    if (c != 0) return c;
  }
}

uint64_t Mix(uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ULL;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ULL;
  return h ^ (h >> 32);
}

uint64_t HashBytes(std::string_view s, uint64_t h) {
  while (s.size() >= 8) {
    h = Mix(h ^ LoadLe<uint64_t>(s.data()));
    s.remove_prefix(8);
  }
  uint64_t tail = s.size();
  for (char c : s) tail = tail << 8 | static_cast<uint8_t>(c);
  return Mix(h ^ tail);
}

}  // namespace

int CompareDocuments(BsonView a, BsonView b) { return CompareElements(a, b, true); }

int CompareValues(BsonValue a, BsonValue b) {
  int c = Three(CanonicalTypeOrder(a.type()), CanonicalTypeOrder(b.type()));
  if (c != 0) return c;
  switch (a.type()) {
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128: return CompareNumbers(a, b);
    case BsonType::kString:
    case BsonType::kSymbol: return Three(a.String(), b.String());
    case BsonType::kDocument: return CompareElements(a.Document(), b.Document(), true);
    case BsonType::kArray: return CompareElements(a.Document(), b.Document(), false);
    case BsonType::kBinary:
      if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
      if (a.BinarySubtype() != b.BinarySubtype()) return a.BinarySubtype() < b.BinarySubtype() ? -1 : 1;
      return Three(a.BinaryData(), b.BinaryData());
    case BsonType::kObjectId: return Three(a.bytes(), b.bytes());
    case BsonType::kBool: return Three(a.Bool(), b.Bool());
    case BsonType::kDate: return Three(a.Date().millis, b.Date().millis);
    case BsonType::kTimestamp: return Three(a.Timestamp(), b.Timestamp());
    case BsonType::kRegex:
      c = Three(a.RegexPattern(), b.RegexPattern());
      return c != 0 ? c : Three(a.RegexOptions(), b.RegexOptions());
    case BsonType::kDbPointer:
      c = Three(a.DbPointerNamespace().size(), b.DbPointerNamespace().size());
      if (c == 0) c = Three(a.DbPointerNamespace(), b.DbPointerNamespace());
      return c != 0 ? c : Three(a.DbPointerId(), b.DbPointerId());
    case BsonType::kCode: return Three(a.String(), b.String());
    case BsonType::kCodeWithScope:
      c = Three(a.CodeWithScopeCode(), b.CodeWithScopeCode());
      return c != 0 ? c : CompareDocuments(a.CodeWithScopeScope(), b.CodeWithScopeScope());
    default: return 0;
  }
}

uint64_t HashValue(BsonValue v, uint64_t seed) {
  uint64_t h = Mix(seed ^ static_cast<uint64_t>(CanonicalTypeOrder(v.type()) + 2) * 0x9e3779b97f4a7c15ULL);
  switch (v.type()) {
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128: {
      // Equal numbers convert to the same double, whatever their type.
      double d = v.NumberAsDouble();
      if (std::isnan(d)) return Mix(h ^ 0x7ff8);
      if (d == 0) d = 0;  // -0.0
      uint64_t bits;
      std::memcpy(&bits, &d, sizeof bits);
      return Mix(h ^ bits);
    }
    case BsonType::kDocument:
      for (const BsonElement& e : v.Document()) h = HashValue(e.value, HashBytes(e.name, h));
      return h;
    case BsonType::kArray:
      for (const BsonElement& e : v.Document()) h = HashValue(e.value, h);
      return h;
    case BsonType::kCodeWithScope: return HashBytes(v.CodeWithScopeCode(), h);
    default: return HashBytes(v.bytes(), h);
  }
}

}  // namespace mayfly

#include "protocol/bson_view.h"

#include <array>
#include <cmath>

#include "protocol/decimal128.h"

namespace mayfly {

std::string_view BsonTypeName(BsonType type) {
  switch (type) {
    case BsonType::kMissing:
      return "missing";
    case BsonType::kDouble:
      return "double";
    case BsonType::kString:
      return "string";
    case BsonType::kDocument:
      return "object";
    case BsonType::kArray:
      return "array";
    case BsonType::kBinary:
      return "binData";
    case BsonType::kUndefined:
      return "undefined";
    case BsonType::kObjectId:
      return "objectId";
    case BsonType::kBool:
      return "bool";
    case BsonType::kDate:
      return "date";
    case BsonType::kNull:
      return "null";
    case BsonType::kRegex:
      return "regex";
    case BsonType::kDbPointer:
      return "dbPointer";
    case BsonType::kCode:
      return "javascript";
    case BsonType::kSymbol:
      return "symbol";
    case BsonType::kCodeWithScope:
      return "javascriptWithScope";
    case BsonType::kInt32:
      return "int";
    case BsonType::kTimestamp:
      return "timestamp";
    case BsonType::kInt64:
      return "long";
    case BsonType::kDecimal128:
      return "decimal";
    case BsonType::kMaxKey:
      return "maxKey";
    case BsonType::kMinKey:
      return "minKey";
  }
  return "invalid";
}

uint32_t BsonValueSize(BsonType type, const char* p) {
  switch (type) {
    case BsonType::kDouble:
    case BsonType::kDate:
    case BsonType::kTimestamp:
    case BsonType::kInt64:
      return 8;
    case BsonType::kInt32:
      return 4;
    case BsonType::kBool:
      return 1;
    case BsonType::kObjectId:
      return 12;
    case BsonType::kDecimal128:
      return 16;
    case BsonType::kString:
    case BsonType::kCode:
    case BsonType::kSymbol:
      return 4 + static_cast<uint32_t>(LoadLe<int32_t>(p));
    case BsonType::kDocument:
    case BsonType::kArray:
    case BsonType::kCodeWithScope:
      return static_cast<uint32_t>(LoadLe<int32_t>(p));
    case BsonType::kBinary:
      return 5 + static_cast<uint32_t>(LoadLe<int32_t>(p));
    case BsonType::kDbPointer:
      return 4 + static_cast<uint32_t>(LoadLe<int32_t>(p)) + 12;
    case BsonType::kRegex: {
      size_t a = std::strlen(p) + 1;
      return static_cast<uint32_t>(a + std::strlen(p + a) + 1);
    }
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kNull:
    case BsonType::kMaxKey:
    case BsonType::kMinKey:
      return 0;
  }
  return 0;
}

double BsonValue::NumberAsDouble() const {
  switch (type_) {
    case BsonType::kDouble:
      return Double();
    case BsonType::kInt32:
      return Int32();
    case BsonType::kInt64:
      return static_cast<double>(Int64());
    case BsonType::kDecimal128:
      return decimal128::ToDouble(Decimal());
    default:
      return 0;
  }
}

namespace {
int64_t ClampDouble(double d) {
  if (std::isnan(d)) return 0;
  if (d >= 9223372036854775808.0) return INT64_MAX;
  if (d < -9223372036854775808.0) return INT64_MIN;
  return static_cast<int64_t>(d);
}
}  // namespace

int64_t BsonValue::NumberAsInt64() const {
  switch (type_) {
    case BsonType::kDouble:
      return ClampDouble(Double());
    case BsonType::kInt32:
      return Int32();
    case BsonType::kInt64:
      return Int64();
    case BsonType::kDecimal128: {
      int64_t v;
      if (decimal128::ToInt64(Decimal(), &v)) return v;
      return ClampDouble(decimal128::ToDouble(Decimal()));
    }
    default:
      return 0;
  }
}

bool BsonValue::ExactInt64(int64_t* out) const {
  switch (type_) {
    case BsonType::kInt32:
      *out = Int32();
      return true;
    case BsonType::kInt64:
      *out = Int64();
      return true;
    case BsonType::kDouble: {
      double d = Double();
      if (!(d >= -9223372036854775808.0 && d < 9223372036854775808.0) || d != std::trunc(d))
        return false;
      *out = static_cast<int64_t>(d);
      return true;
    }
    case BsonType::kDecimal128: {
      int64_t v;
      if (!decimal128::ToInt64(Decimal(), &v)) return false;
      if (decimal128::Compare(decimal128::FromInt64(v), Decimal()) != 0) return false;
      *out = v;
      return true;
    }
    default:
      return false;
  }
}

bool BsonValue::Truthy() const {
  switch (type_) {
    case BsonType::kMissing:
    case BsonType::kNull:
    case BsonType::kUndefined:
      return false;
    case BsonType::kBool:
      return Bool();
    case BsonType::kInt32:
      return Int32() != 0;
    case BsonType::kInt64:
      return Int64() != 0;
    case BsonType::kDouble:
      return Double() != 0;
    case BsonType::kDecimal128:
      return !decimal128::IsZero(Decimal());
    default:
      return true;
  }
}

namespace {

/// 1 + the size of values of a type where all have the same; 0: it is in the value.
constexpr auto kFixedSizes = [] {
  std::array<uint8_t, 256> sizes{};
  auto set = [&](BsonType t, uint8_t size) { sizes[static_cast<uint8_t>(t)] = size + 1; };
  for (BsonType t : {BsonType::kDouble, BsonType::kDate, BsonType::kTimestamp, BsonType::kInt64})
    set(t, 8);
  set(BsonType::kInt32, 4);
  set(BsonType::kBool, 1);
  set(BsonType::kObjectId, 12);
  set(BsonType::kDecimal128, 16);
  for (BsonType t : {BsonType::kUndefined, BsonType::kNull, BsonType::kMaxKey, BsonType::kMinKey})
    set(t, 0);
  return sizes;
}();

/// Longer ends of names are left to strlen.
constexpr size_t kShortName = 12;

}  // namespace

BsonValue BsonView::Find(std::string_view name) const {
  // Not the iterator, and no calls for names that differ soon: every filter and expression looks up
  // its fields here, in each document.
  for (const char* p = data_ + 4; *p != 0;) {
    const auto type = static_cast<uint8_t>(*p);
    const char* q = ++p;
    size_t same = 0;
    while (same < name.size() && *q == name[same] && *q != 0) ++q, ++same;
    const bool found = same == name.size() && *q == 0;
    for (const char* const far = q + kShortName; *q != 0; ++q) {
      if (q < far) continue;
      q += std::strlen(q);
      break;
    }
    const char* const v = q + 1;
    const uint8_t fixed = kFixedSizes[type];
    const uint32_t size =
        fixed != 0 ? fixed - uint32_t{1} : BsonValueSize(static_cast<BsonType>(type), v);
    if (found) return {static_cast<BsonType>(type), v, size};
    p = v + size;
  }
  return {};
}

BsonValue BsonView::FindPath(std::string_view dotted) const {
  BsonView d = *this;
  while (true) {
    size_t dot = dotted.find('.');
    BsonValue v = d.Find(dotted.substr(0, dot));
    if (dot == std::string_view::npos || v.missing()) return v;
    if (!v.IsDocument() && !v.IsArray()) return {};
    d = v.Document();
    dotted.remove_prefix(dot + 1);
  }
}

int BsonView::Count() const {
  int n = 0;
  for (auto it = begin(); it != end(); ++it) ++n;
  return n;
}

}  // namespace mayfly

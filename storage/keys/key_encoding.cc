#include "storage/keys/key_encoding.h"

#include <openssl/sha.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "protocol/decimal128.h"
#include "storage/keys/key_classes.h"

// clang-format off
// Order-preserving encoding of one value: memcmp order is CompareValues order. On disk; DO NOT
// RENUMBER. docs/on-disk-format.md repeats this.
//
//   key      := stored*                one per field; descending fields have every byte inverted
//   stored   := value | the first n bytes of a value that has more, and the SHA-256 of all of them;
//               n = LongestWhole(bytes of the key in front of it)
//   value    := class:u8 payload
//   payload of
//     MinKey 0A, undefined 10, null 14, NaN 16, zero 20, MaxKey F0 := (nothing)
//     number >= 2^63 29                := huge
//     number <= -2^63 17               := huge, inverted
//     other positive number 20 + n     := small               n = 1..8
//     other negative number 20 - n     := small, inverted
//     string and symbol 2D, code 5A    := text
//     document 32                      := (kind:u8 name 00 value)* 00
//     array 37                         := value* 00
//     binary 3C                        := length:be32 subtype:u8 bytes
//     objectId 41                      := 12 bytes
//     bool 46                          := 00 | 01
//     date 4B                          := millis:be64, sign bit flipped
//     timestamp 4D                     := be64
//     regex 50                         := pattern 00 options 00
//     dbPointer 55                     := length:be32 namespace 12 bytes
//     code with scope 5F               := text, then as document
//   kind     := the lowest class byte of the value's comparison class
//   small    := n bytes, big-endian, no leading zero byte: 2 * whole part + (1 if a fraction);
//               then, if a fraction, real
//   huge     := real
//   real     := double:be64 (00 | 01 decimal)    rounded toward zero; 00: the double is exact
//   decimal  := exponent:be16 (two digits + 1)* 00
//               0.d1d2... * 10^(exponent - 8192), d1 not 0, last pair not 00
//   text     := bytes with 00 written as 00 FF, then 00 00
//
// The whole part of a number below 2^63 costs 1 to 8 bytes (5 takes two with its class, a date in
// milliseconds seven), and only decimals ever reach `01 decimal`.
//
// Type bits lie apart from the key (in an index entry's value): one byte a value whose class holds
// several types, in order, nested values too; bytes that are missing read as 00.
//   number   := 00 int32 if integral and it fits, else int64 likewise, else double, else decimal
//             | 02 int64 | 05 double | 04 double -0.0
//             | 03 16 bytes of decimal as BSON has them, 01 | 06 8 bytes of a double NaN, 01
//   string   := 00 string | 01 symbol
// clang-format on

namespace mayfly {
namespace key {
namespace {

/// Lowest class byte of the type's comparison class.
uint8_t LowestClass(BsonType type) {
  switch (type) {
    case BsonType::kMinKey:
      return kClassMinKey;
    case BsonType::kMissing:
    case BsonType::kUndefined:
      return kClassUndefined;
    case BsonType::kNull:
      return kClassNull;
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128:
      return kClassNan;
    case BsonType::kString:
    case BsonType::kSymbol:
      return kClassString;
    case BsonType::kDocument:
      return kClassDocument;
    case BsonType::kArray:
      return kClassArray;
    case BsonType::kBinary:
      return kClassBinary;
    case BsonType::kObjectId:
      return kClassObjectId;
    case BsonType::kBool:
      return kClassBool;
    case BsonType::kDate:
      return kClassDate;
    case BsonType::kTimestamp:
      return kClassTimestamp;
    case BsonType::kRegex:
      return kClassRegex;
    case BsonType::kDbPointer:
      return kClassDbPointer;
    case BsonType::kCode:
      return kClassCode;
    case BsonType::kCodeWithScope:
      return kClassCodeWithScope;
    case BsonType::kMaxKey:
      return kClassMaxKey;
  }
  return kClassUndefined;
}

void PutByte(std::string& out, uint8_t b) { out.push_back(static_cast<char>(b)); }

template <class T>
void PutBe(std::string& out, T v) {
  char bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes[i] = static_cast<char>(v >> (8 * (sizeof(T) - 1 - i)));
  out.append(bytes, sizeof(T));
}

void PutKeyText(std::string& out, std::string_view s) {
  for (;;) {
    auto* nul = static_cast<const char*>(s.empty() ? nullptr : std::memchr(s.data(), 0, s.size()));
    if (nul == nullptr) break;
    auto n = static_cast<size_t>(nul - s.data());
    out.append(s.data(), n).append("\0\xFF", 2);
    s.remove_prefix(n + 1);
  }
  out.append(s).append(2, '\0');
}

/// Room for the longest number: class, 8 bytes, double, flag, exponent, 17 pairs of digits, end.
class NumberBuffer {
 public:
  void Byte(uint8_t b) { bytes_[size_++] = static_cast<char>(b); }
  void Be64(uint64_t v, size_t n = 8) {
    v = __builtin_bswap64(v << (64 - 8 * n));
    std::memcpy(bytes_ + size_, &v, 8);  // 8 bytes always: the rest is overwritten
    size_ += n;
  }
  void Flush(bool invert, std::string& out) {
    if (invert)
      for (size_t i = 1; i < size_; ++i) bytes_[i] = static_cast<char>(~bytes_[i]);
    out.append(bytes_, size_);
  }

 private:
  size_t size_ = 0;
  char bytes_[56];
};

/// `coefficient` * 10^`exponent`, not zero.
void PutDecimal(NumberBuffer& b, Wide coefficient, int exponent) {
  char digits[40];
  int n = 0;
  for (; coefficient != 0; coefficient /= 10)
    digits[n++] = static_cast<char>(coefficient % 10);  // last digit first
  auto biased = static_cast<unsigned>(exponent + n + kExponentBias);
  b.Byte(static_cast<uint8_t>(biased >> 8));
  b.Byte(static_cast<uint8_t>(biased));
  int last = 0;
  while (digits[last] == 0) ++last;
  for (int i = n - 1; i >= last; i -= 2)
    b.Byte(static_cast<uint8_t>(digits[i] * 10 + (i > last ? digits[i - 1] : 0) + 1));
  b.Byte(0);
}

/// The class byte and the whole part of a number below 2^63 in size.
inline void PutSmall(NumberBuffer& b, bool negative, uint64_t whole, bool fraction) {
  uint64_t v = whole << 1 | static_cast<uint64_t>(fraction);
  auto n = static_cast<size_t>(71 - std::countl_zero(v)) / 8;
  b.Byte(static_cast<uint8_t>(negative ? kClassZero - n : kClassZero + n));
  b.Be64(v, n);
}

void EncodeInt64(int64_t v, std::string& out) {
  if (v == 0) return PutByte(out, kClassZero);
  NumberBuffer b;
  if (v == INT64_MIN) {  // the one integer whose size takes 64 bits
    b.Byte(kClassNegativeHuge);
    b.Be64(std::bit_cast<uint64_t>(kTwo63));
    b.Byte(0);
  } else {
    PutSmall(b, v < 0, static_cast<uint64_t>(v < 0 ? -v : v), false);
  }
  b.Flush(v < 0, out);
}

void EncodeDouble(double v, std::string& out) {
  if (std::isnan(v)) return PutByte(out, kClassNan);
  if (v == 0) return PutByte(out, kClassZero);
  NumberBuffer b;
  double size = std::fabs(v);
  if (size >= kTwo63) {
    b.Byte(v < 0 ? kClassNegativeHuge : kClassPositiveHuge);
    b.Be64(std::bit_cast<uint64_t>(size));
    b.Byte(0);
  } else {
    auto whole = static_cast<uint64_t>(size);
    double fraction = size - static_cast<double>(whole);  // exact
    PutSmall(b, v < 0, whole, fraction != 0);
    if (fraction != 0) {
      b.Be64(std::bit_cast<uint64_t>(fraction));
      b.Byte(0);
    }
  }
  b.Flush(v < 0, out);
}

/// A positive decimal as `real`.
void PutReal(NumberBuffer& b, Wide coefficient, int exponent) {
  bool exact = false;
  double d =
      decimal128::ToDoubleTowardZero(decimal128::Pack({coefficient, exponent, false}), &exact);
  b.Be64(std::bit_cast<uint64_t>(d));
  b.Byte(exact ? 0 : 1);
  if (!exact) PutDecimal(b, coefficient, exponent);
}

void EncodeDecimal(Decimal128Bits v, std::string& out) {
  if (decimal128::IsNan(v)) return PutByte(out, kClassNan);
  decimal128::Parts p;
  if (!decimal128::Unpack(v, &p))
    return EncodeDouble(decimal128::IsNegative(v) ? -HUGE_VAL : HUGE_VAL, out);
  if (p.coefficient == 0) return PutByte(out, kClassZero);
  Wide whole = 0, rest = 0;
  if (p.exponent < 0) {
    Wide unit = p.exponent >= -34 ? Power10(-p.exponent) : 0;
    whole = unit ? p.coefficient / unit : 0;
    rest = unit ? p.coefficient % unit : p.coefficient;
  } else {
    // 10^34 * 10^4 still fits; what grows past 2^63 first is huge anyway.
    whole = p.coefficient;
    for (int i = 0; i < p.exponent && whole < Wide{1} << 63; ++i) whole *= 10;
  }
  NumberBuffer b;
  if (whole >= Wide{1} << 63) {
    b.Byte(p.negative ? kClassNegativeHuge : kClassPositiveHuge);
    PutReal(b, p.coefficient, p.exponent);
  } else {
    PutSmall(b, p.negative, static_cast<uint64_t>(whole), rest != 0);
    if (rest != 0) PutReal(b, rest, p.exponent);
  }
  b.Flush(p.negative, out);
}

void Encode(BsonValue v, std::string& out);

void EncodeDocumentPayload(BsonView doc, std::string& out) {
  for (const BsonElement& e : doc) {
    PutByte(out, LowestClass(e.value.type()));
    out.append(e.name).push_back('\0');
    Encode(e.value, out);
  }
  PutByte(out, 0);
}

void Encode(BsonValue v, std::string& out) {
  switch (v.type()) {
    case BsonType::kInt32:
      return EncodeInt64(v.Int32(), out);
    case BsonType::kInt64:
      return EncodeInt64(v.Int64(), out);
    case BsonType::kDouble:
      return EncodeDouble(v.Double(), out);
    case BsonType::kDecimal128:
      return EncodeDecimal(v.Decimal(), out);
    default:
      break;
  }
  PutByte(out, LowestClass(v.type()));
  switch (v.type()) {
    case BsonType::kString:
    case BsonType::kSymbol:
    case BsonType::kCode:
      return PutKeyText(out, v.String());
    case BsonType::kDocument:
      return EncodeDocumentPayload(v.Document(), out);
    case BsonType::kArray:
      for (const BsonElement& e : v.Document()) Encode(e.value, out);
      return PutByte(out, 0);
    case BsonType::kBinary:
      PutBe<uint32_t>(out, static_cast<uint32_t>(v.BinaryData().size()));
      PutByte(out, v.BinarySubtype());
      out.append(v.BinaryData());
      return;
    case BsonType::kObjectId:
      out.append(v.ObjectId());
      return;
    case BsonType::kBool:
      return PutByte(out, v.Bool() ? 1 : 0);
    case BsonType::kDate:
      return PutBe<uint64_t>(out, static_cast<uint64_t>(v.Date().millis) ^ (1ULL << 63));
    case BsonType::kTimestamp:
      return PutBe<uint64_t>(out, v.Timestamp());
    case BsonType::kRegex:
      out.append(v.RegexPattern()).push_back('\0');
      out.append(v.RegexOptions()).push_back('\0');
      return;
    case BsonType::kDbPointer:
      PutBe<uint32_t>(out, static_cast<uint32_t>(v.DbPointerNamespace().size()));
      out.append(v.DbPointerNamespace()).append(v.DbPointerId());
      return;
    case BsonType::kCodeWithScope:
      PutKeyText(out, v.CodeWithScopeCode());
      return EncodeDocumentPayload(v.CodeWithScopeScope(), out);
    default:
      return;
  }
}

void PutDoubleBits(double d, std::string& out) {
  if (d == 0) return PutByte(out, std::signbit(d) ? kBitNegativeZero : kBitDouble);
  if (std::isnan(d)) {
    auto raw = std::bit_cast<uint64_t>(d);
    if (raw == kPlainNan) return PutByte(out, kBitDefault);
    PutByte(out, kBitNan);
    out.append(reinterpret_cast<const char*>(&raw), 8);
    return PutByte(out, 1);
  }
  bool integral = d >= -kTwo63 && d < kTwo63 && d == std::trunc(d);
  PutByte(out, integral ? kBitDouble : kBitDefault);
}

}  // namespace
}  // namespace key

void EncodeKeyValue(BsonValue v, bool descending, std::string& out) {
  using namespace key;
  size_t start = out.size();
  Encode(v, out);
  if (descending)
    for (size_t i = start; i < out.size(); ++i) out[i] = static_cast<char>(~out[i]);
}

bool AppendStoredValue(BsonValue v, bool descending, size_t begin, std::string& out) {
  const size_t start = out.size();
  EncodeKeyValue(v, descending, out);
  const size_t size = out.size() - start;
  if (size <= kLeastCut) [[likely]]
    return false;
  const size_t longest = LongestWhole(start - begin);
  if (size <= longest) return false;
  unsigned char hash[SHA256_DIGEST_LENGTH];
  static_assert(sizeof hash == kCutHashSize);
  SHA256(reinterpret_cast<const unsigned char*>(out.data()) + start, size, hash);
  out.resize(start + longest);
  out.append(reinterpret_cast<const char*>(hash), sizeof hash);
  // A key of many values is kept for long: not with the room of what was cut.
  if (out.capacity() > 4 * out.size()) out.shrink_to_fit();
  return true;
}

void EncodeTypeBits(BsonValue v, std::string& out) {
  using namespace key;
  switch (v.type()) {
    case BsonType::kInt32:
      PutByte(out, kBitDefault);
      break;
    case BsonType::kDouble:
      PutDoubleBits(v.Double(), out);
      break;
    case BsonType::kInt64: {
      int64_t i = v.Int64();
      PutByte(out, i >= INT32_MIN && i <= INT32_MAX ? kBitInt64 : kBitDefault);
      break;
    }
    case BsonType::kDecimal128:
      PutByte(out, kBitDecimal);
      out.append(v.bytes());
      PutByte(out, 1);  // so that TrimTypeBits never cuts into the decimal
      break;
    case BsonType::kString:
      PutByte(out, kBitDefault);
      break;
    case BsonType::kSymbol:
      PutByte(out, kBitSymbol);
      break;
    case BsonType::kDocument:
    case BsonType::kArray:
      for (const BsonElement& e : v.Document()) EncodeTypeBits(e.value, out);
      break;
    case BsonType::kCodeWithScope:
      for (const BsonElement& e : v.CodeWithScopeScope()) EncodeTypeBits(e.value, out);
      break;
    default:
      break;
  }
}

void TrimTypeBits(std::string& bits, size_t from) {
  while (bits.size() > from && bits.back() == 0) bits.pop_back();
}

void EncodeTypeClassBegin(BsonType type, std::string& out) {
  using namespace key;
  PutByte(out, LowestClass(type));
}

void EncodeTypeClassEnd(BsonType type, std::string& out) {
  using namespace key;
  uint8_t kind = LowestClass(type);
  PutByte(out, kind == kClassNan ? kClassPositiveHuge + 1 : static_cast<uint8_t>(kind + 1));
}

}  // namespace mayfly

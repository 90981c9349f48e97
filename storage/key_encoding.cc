#include "storage/key_encoding.h"

#include <bit>
#include <cmath>

#include "protocol/decimal128.h"
#include "storage/expiry_state.h"

// Order-preserving encoding of one value. memcmp order is CompareValues order.
//
//   key        := value*                                 one a field, descending fields with every byte inverted
//   value      := class:u8 payload
//   payload of
//     MinKey 0A, undefined 10, null 14, NaN 1E, zero 22, MaxKey F0   := (nothing)
//     negative number 20                                 := inverted magnitude
//     positive number 24                                 := magnitude
//     string, symbol 2D; code 5A                         := text
//     document 32                                        := (kind:u8 name 00 value)* 00    kind: lowest class byte of the value's type class
//     array 37                                           := value* 00
//     binary 3C                                          := length:be32 subtype:u8 bytes
//     objectId 41                                        := 12 bytes
//     bool 46                                            := 00 | 01
//     date 4B                                            := millis:be64, sign bit flipped
//     timestamp 4D                                       := be64
//     regex 50                                           := pattern 00 options 00
//     dbPointer 55                                       := length:be32 namespace 12 bytes
//     code with scope 5F                                 := text document-payload
//   magnitude  := double:be64 (00 | 01 decimal)          the double is the magnitude rounded toward zero; 00: it is exact
//   decimal    := exponent:be16 (digit + 1)* 00          0.d1d2… * 10^(exponent - 8192), no leading or trailing zero digits
//   text       := bytes with 00 written as 00 FF, then 00 00
//
// Type bits: one byte a value of a class that holds several types, in order of the values (nested ones too); missing bytes read as 00.
//   number     := 00 int32 | 01 double | 02 int64 | 03 decimal + 16 bytes as BSON stores it + 01 | 04 double -0.0
//   string     := 00 string | 01 symbol

namespace mayfly {
namespace {

enum Class : uint8_t {
  kClassMinKey = 0x0A, kClassUndefined = 0x10, kClassNull = 0x14, kClassNan = 0x1E, kClassNegative = 0x20, kClassZero = 0x22,
  kClassPositive = 0x24, kClassString = 0x2D, kClassDocument = 0x32, kClassArray = 0x37, kClassBinary = 0x3C, kClassObjectId = 0x41,
  kClassBool = 0x46, kClassDate = 0x4B, kClassTimestamp = 0x4D, kClassRegex = 0x50, kClassDbPointer = 0x55, kClassCode = 0x5A,
  kClassCodeWithScope = 0x5F, kClassMaxKey = 0xF0,
};

constexpr int kExponentBias = 8192;

/// Lowest class byte of the type's comparison class.
uint8_t KindOf(BsonType type) {
  switch (type) {
    case BsonType::kMinKey: return kClassMinKey;
    case BsonType::kMissing:
    case BsonType::kUndefined: return kClassUndefined;
    case BsonType::kNull: return kClassNull;
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128: return kClassNan;
    case BsonType::kString:
    case BsonType::kSymbol: return kClassString;
    case BsonType::kDocument: return kClassDocument;
    case BsonType::kArray: return kClassArray;
    case BsonType::kBinary: return kClassBinary;
    case BsonType::kObjectId: return kClassObjectId;
    case BsonType::kBool: return kClassBool;
    case BsonType::kDate: return kClassDate;
    case BsonType::kTimestamp: return kClassTimestamp;
    case BsonType::kRegex: return kClassRegex;
    case BsonType::kDbPointer: return kClassDbPointer;
    case BsonType::kCode: return kClassCode;
    case BsonType::kCodeWithScope: return kClassCodeWithScope;
    case BsonType::kMaxKey: return kClassMaxKey;
  }
  return kClassUndefined;
}

void PutByte(std::string& out, uint8_t b) { out.push_back(static_cast<char>(b)); }

template <class T>
void PutBe(std::string& out, T v) {
  char bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(v >> (8 * (sizeof(T) - 1 - i)));
  out.append(bytes, sizeof(T));
}

void PutText(std::string& out, std::string_view s) {
  for (;;) {
    size_t nul = s.find('\0');
    out.append(s.substr(0, nul));
    if (nul == std::string_view::npos) break;
    PutByte(out, 0x00);
    PutByte(out, 0xFF);
    s.remove_prefix(nul + 1);
  }
  out.append(2, '\0');
}

/// The decimal form of a magnitude: digits without leading and trailing zeros, value 0.d1d2… * 10^exponent.
void PutDecimal(std::string& out, std::string_view digits, int exponent) {
  while (!digits.empty() && digits.back() == '0') digits.remove_suffix(1);
  PutBe<uint16_t>(out, static_cast<uint16_t>(exponent + kExponentBias));
  for (char c : digits) PutByte(out, static_cast<uint8_t>(c - '0' + 1));
  PutByte(out, 0);
}

/// Digits and exponent of a finite decimal, from its text ("-1.23E+5", "0.001", "123").
void DecimalDigits(Decimal128Bits v, std::string* digits, int* exponent) {
  std::string text = decimal128::ToString(v);
  int point = -1, e = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '.') point = static_cast<int>(digits->size());
    else if (c == 'E' || c == 'e') { e = std::atoi(text.c_str() + i + 1); break; }
    else if (c >= '0' && c <= '9') digits->push_back(c);
  }
  if (point < 0) point = static_cast<int>(digits->size());
  size_t zeros = digits->find_first_not_of('0');
  if (zeros == std::string::npos) zeros = digits->size();
  digits->erase(0, zeros);
  *exponent = point - static_cast<int>(zeros) + e;
}

void PutMagnitude(std::string& out, double d) {
  PutBe<uint64_t>(out, std::bit_cast<uint64_t>(d));
}

void EncodeInt64(int64_t v, std::string& out) {
  if (v == 0) return PutByte(out, kClassZero);
  bool negative = v < 0;
  uint64_t m = negative ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  PutByte(out, negative ? kClassNegative : kClassPositive);
  size_t start = out.size();
  int extra = 64 - std::countl_zero(m) - 53;
  uint64_t kept = extra > 0 ? m >> extra << extra : m;
  PutMagnitude(out, static_cast<double>(kept));
  if (kept == m) {
    PutByte(out, 0);
  } else {
    PutByte(out, 1);
    std::string digits = std::to_string(m);
    PutDecimal(out, digits, static_cast<int>(digits.size()));
  }
  if (negative)
    for (size_t i = start; i < out.size(); ++i) out[i] = static_cast<char>(~out[i]);
}

void EncodeDouble(double v, std::string& out) {
  if (std::isnan(v)) return PutByte(out, kClassNan);
  if (v == 0) return PutByte(out, kClassZero);
  PutByte(out, v < 0 ? kClassNegative : kClassPositive);
  size_t start = out.size();
  PutMagnitude(out, std::fabs(v));
  PutByte(out, 0);
  if (v < 0)
    for (size_t i = start; i < out.size(); ++i) out[i] = static_cast<char>(~out[i]);
}

void EncodeDecimal(Decimal128Bits v, std::string& out) {
  if (decimal128::IsNan(v)) return PutByte(out, kClassNan);
  if (decimal128::IsZero(v)) return PutByte(out, kClassZero);
  bool negative = decimal128::IsNegative(v);
  if (decimal128::IsInfinite(v)) return EncodeDouble(negative ? -INFINITY : INFINITY, out);
  PutByte(out, negative ? kClassNegative : kClassPositive);
  size_t start = out.size();
  bool exact = false;
  PutMagnitude(out, std::fabs(decimal128::ToDoubleTowardZero(v, &exact)));
  PutByte(out, exact ? 0 : 1);
  if (!exact) {
    std::string digits;
    int exponent = 0;
    DecimalDigits(v, &digits, &exponent);
    PutDecimal(out, digits, exponent);
  }
  if (negative)
    for (size_t i = start; i < out.size(); ++i) out[i] = static_cast<char>(~out[i]);
}

void Encode(BsonValue v, std::string& out);

void EncodeDocumentPayload(BsonView doc, std::string& out) {
  for (const BsonElement& e : doc) {
    PutByte(out, KindOf(e.value.type()));
    out.append(e.name).push_back('\0');
    Encode(e.value, out);
  }
  PutByte(out, 0);
}

void Encode(BsonValue v, std::string& out) {
  switch (v.type()) {
    case BsonType::kInt32: return EncodeInt64(v.Int32(), out);
    case BsonType::kInt64: return EncodeInt64(v.Int64(), out);
    case BsonType::kDouble: return EncodeDouble(v.Double(), out);
    case BsonType::kDecimal128: return EncodeDecimal(v.Decimal(), out);
    default: break;
  }
  PutByte(out, KindOf(v.type()));
  switch (v.type()) {
    case BsonType::kString:
    case BsonType::kSymbol:
    case BsonType::kCode: return PutText(out, v.String());
    case BsonType::kDocument: return EncodeDocumentPayload(v.Document(), out);
    case BsonType::kArray:
      for (const BsonElement& e : v.Document()) Encode(e.value, out);
      return PutByte(out, 0);
    case BsonType::kBinary:
      PutBe<uint32_t>(out, static_cast<uint32_t>(v.BinaryData().size()));
      PutByte(out, v.BinarySubtype());
      out.append(v.BinaryData());
      return;
    case BsonType::kObjectId: out.append(v.ObjectId()); return;
    case BsonType::kBool: return PutByte(out, v.Bool() ? 1 : 0);
    case BsonType::kDate: return PutBe<uint64_t>(out, static_cast<uint64_t>(v.Date().millis) ^ (1ULL << 63));
    case BsonType::kTimestamp: return PutBe<uint64_t>(out, v.Timestamp());
    case BsonType::kRegex:
      out.append(v.RegexPattern()).push_back('\0');
      out.append(v.RegexOptions()).push_back('\0');
      return;
    case BsonType::kDbPointer:
      PutBe<uint32_t>(out, static_cast<uint32_t>(v.DbPointerNamespace().size()));
      out.append(v.DbPointerNamespace()).append(v.DbPointerId());
      return;
    case BsonType::kCodeWithScope:
      PutText(out, v.CodeWithScopeCode());
      return EncodeDocumentPayload(v.CodeWithScopeScope(), out);
    default: return;
  }
}

/// Reads encoded bytes, inverted ones too, and never past their end: after a failure ok() is false and reads give zeros.
class Reader {
 public:
  Reader(std::string_view bytes, bool inverted) : p_(bytes.data()), end_(p_ + bytes.size()), mask_(inverted ? 0xFF : 0) {}

  uint8_t Byte() {
    if (p_ == end_) return Fail();
    return static_cast<uint8_t>(*p_++) ^ mask_;
  }
  uint8_t Peek() {
    if (p_ == end_) return Fail();
    return static_cast<uint8_t>(*p_) ^ mask_;
  }
  template <class T>
  T Be() {
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(T); ++i) v = v << 8 | Byte();
    return static_cast<T>(v);
  }
  void Bytes(size_t n, std::string* out) {
    if (static_cast<size_t>(end_ - p_) < n) {
      Fail();
      return;
    }
    if (out) for (size_t i = 0; i < n; ++i) out->push_back(static_cast<char>(static_cast<uint8_t>(p_[i]) ^ mask_));
    p_ += n;
  }
  /// Up to and without the next 00.
  void CString(std::string* out) {
    for (uint8_t b = Byte(); b != 0 && ok_; b = Byte())
      if (out) out->push_back(static_cast<char>(b));
  }
  void Text(std::string* out) {
    while (ok_) {
      uint8_t b = Byte();
      if (b == 0) {
        uint8_t next = Byte();
        if (next == 0) return;
        if (next != 0xFF) { Fail(); return; }
      }
      if (out) out->push_back(static_cast<char>(b));
    }
  }
  void Invert() { mask_ ^= 0xFF; }
  uint8_t Fail() {
    ok_ = false;
    p_ = end_;
    return 0;
  }
  bool ok() const { return ok_; }
  const char* position() const { return p_; }

 private:
  const char* p_;
  const char* end_;
  uint8_t mask_;
  bool ok_ = true;
};

struct TypeBits {
  std::string_view bytes;
  uint8_t Next() {
    if (bytes.empty()) return 0;
    uint8_t b = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    return b;
  }
};

void AppendLe(std::string* out, const void* p, size_t n) { out->append(static_cast<const char*>(p), n); }

/// A magnitude as read: the double, and the digits when it was not exact.
struct Magnitude {
  double d = 0;
  std::string digits;
  int exponent = 0;
};

Magnitude ReadMagnitude(Reader& r) {
  Magnitude m;
  m.d = std::bit_cast<double>(r.Be<uint64_t>());
  uint8_t tail = r.Byte();
  if (tail == 0) return m;
  if (tail != 1) { r.Fail(); return m; }
  m.exponent = static_cast<int>(r.Be<uint16_t>()) - kExponentBias;
  r.CString(&m.digits);
  if (m.digits.size() > 40) r.Fail();
  for (char& c : m.digits) {
    if (c < 1 || c > 10) { r.Fail(); return m; }
    c = static_cast<char>(c - 1 + '0');
  }
  return m;
}

/// Appends the value's raw bytes to *out (null: only skips) and returns its type.
BsonType Decode(Reader& r, TypeBits* bits, std::string* out, int depth);

BsonType DecodeNumber(uint8_t cls, Reader& r, TypeBits* bits, std::string* out) {
  Magnitude m;
  bool negative = cls == kClassNegative;
  if (negative) r.Invert();
  if (cls == kClassNegative || cls == kClassPositive) m = ReadMagnitude(r);
  if (negative) r.Invert();
  if (!out || !r.ok()) return BsonType::kDouble;
  uint8_t kind = bits->Next();
  if (kind == 3) {
    if (bits->bytes.size() < 17) { r.Fail(); return BsonType::kDecimal128; }
    out->append(bits->bytes.substr(0, 16));
    bits->bytes.remove_prefix(17);
    return BsonType::kDecimal128;
  }
  if (kind == 1 || kind == 4 || cls == kClassNan) {
    double d = cls == kClassNan ? NAN : (negative ? -m.d : m.d);
    if (kind == 4) d = -0.0;
    AppendLe(out, &d, 8);
    return BsonType::kDouble;
  }
  uint64_t u = 0;
  if (!m.digits.empty()) {
    for (int i = 0; i < m.exponent; ++i) u = u * 10 + (static_cast<size_t>(i) < m.digits.size() ? static_cast<uint64_t>(m.digits[static_cast<size_t>(i)] - '0') : 0);
  } else if (m.d < 18446744073709551616.0) {
    u = static_cast<uint64_t>(m.d);
  }
  int64_t v = static_cast<int64_t>(negative ? 0 - u : u);
  if (kind == 2) {
    AppendLe(out, &v, 8);
    return BsonType::kInt64;
  }
  int32_t small = static_cast<int32_t>(v);
  AppendLe(out, &small, 4);
  return BsonType::kInt32;
}

void DecodeDocument(Reader& r, TypeBits* bits, std::string* out, int depth, bool array) {
  size_t start = out ? out->size() : 0;
  if (out) out->append(4, '\0');
  for (int i = 0; r.ok(); ++i) {
    if (r.Peek() == 0) {
      r.Byte();
      break;
    }
    if (!array) r.Byte();  // kind
    size_t type_at = out ? out->size() : 0;
    if (out) out->push_back(0);
    if (!array) r.CString(out);
    else if (out) out->append(std::to_string(i));
    if (out) out->push_back(0);
    BsonType t = Decode(r, bits, out, depth + 1);
    if (out) (*out)[type_at] = static_cast<char>(t);
  }
  if (out) {
    out->push_back(0);
    StoreLe<int32_t>(out->data() + start, static_cast<int32_t>(out->size() - start));
  }
}

BsonType Decode(Reader& r, TypeBits* bits, std::string* out, int depth) {
  if (depth > kMaxBsonDepth + 2) {
    r.Fail();
    return BsonType::kNull;
  }
  auto text = [&](BsonType t) {
    size_t start = out ? out->size() : 0;
    if (out) out->append(4, '\0');
    r.Text(out);
    if (out) {
      out->push_back(0);
      StoreLe<int32_t>(out->data() + start, static_cast<int32_t>(out->size() - start - 4));
    }
    return t;
  };
  uint8_t cls = r.Byte();
  switch (cls) {
    case kClassMinKey: return BsonType::kMinKey;
    case kClassUndefined: return BsonType::kUndefined;
    case kClassNull: return BsonType::kNull;
    case kClassNan:
    case kClassNegative:
    case kClassZero:
    case kClassPositive: return DecodeNumber(cls, r, bits, out);
    case kClassString: return text(out && bits->Next() == 1 ? BsonType::kSymbol : BsonType::kString);
    case kClassCode: return text(BsonType::kCode);
    case kClassDocument: DecodeDocument(r, bits, out, depth, false); return BsonType::kDocument;
    case kClassArray: DecodeDocument(r, bits, out, depth, true); return BsonType::kArray;
    case kClassBinary: {
      int32_t n = r.Be<int32_t>();
      if (n < 0) r.Fail();
      uint8_t subtype = r.Byte();
      if (out && r.ok()) {
        AppendLe(out, &n, 4);
        out->push_back(static_cast<char>(subtype));
      }
      if (r.ok()) r.Bytes(static_cast<size_t>(n), out);
      return BsonType::kBinary;
    }
    case kClassObjectId: r.Bytes(12, out); return BsonType::kObjectId;
    case kClassBool: {
      uint8_t b = r.Byte();
      if (out) out->push_back(b != 0);
      return BsonType::kBool;
    }
    case kClassDate: {
      uint64_t v = r.Be<uint64_t>() ^ (1ULL << 63);
      if (out) AppendLe(out, &v, 8);
      return BsonType::kDate;
    }
    case kClassTimestamp: {
      uint64_t v = r.Be<uint64_t>();
      if (out) AppendLe(out, &v, 8);
      return BsonType::kTimestamp;
    }
    case kClassRegex:
      r.CString(out);
      if (out) out->push_back(0);
      r.CString(out);
      if (out) out->push_back(0);
      return BsonType::kRegex;
    case kClassDbPointer: {
      int32_t n = r.Be<int32_t>();
      if (n < 0) r.Fail();
      if (!r.ok()) return BsonType::kDbPointer;
      int32_t with_nul = n + 1;
      if (out) AppendLe(out, &with_nul, 4);
      r.Bytes(static_cast<size_t>(n), out);
      if (out) out->push_back(0);
      r.Bytes(12, out);
      return BsonType::kDbPointer;
    }
    case kClassCodeWithScope: {
      size_t start = out ? out->size() : 0;
      if (out) out->append(4, '\0');
      text(BsonType::kCode);
      DecodeDocument(r, bits, out, depth, false);
      if (out) StoreLe<int32_t>(out->data() + start, static_cast<int32_t>(out->size() - start));
      return BsonType::kCodeWithScope;
    }
    case kClassMaxKey: return BsonType::kMaxKey;
    default: r.Fail(); return BsonType::kNull;
  }
}

}  // namespace

void EncodeKeyValue(BsonValue v, bool descending, std::string& out) {
  size_t start = out.size();
  Encode(v, out);
  if (descending)
    for (size_t i = start; i < out.size(); ++i) out[i] = static_cast<char>(~out[i]);
}

void EncodeTypeBits(BsonValue v, std::string& out) {
  switch (v.type()) {
    case BsonType::kInt32: PutByte(out, 0); break;
    case BsonType::kDouble: {
      double d = v.Double();
      PutByte(out, d == 0 && std::signbit(d) ? 4 : 1);
      break;
    }
    case BsonType::kInt64: PutByte(out, 2); break;
    case BsonType::kDecimal128:
      PutByte(out, 3);
      out.append(v.bytes());
      PutByte(out, 1);  // so that TrimTypeBits never cuts into the decimal
      break;
    case BsonType::kString: PutByte(out, 0); break;
    case BsonType::kSymbol: PutByte(out, 1); break;
    case BsonType::kDocument:
    case BsonType::kArray:
      for (const BsonElement& e : v.Document()) EncodeTypeBits(e.value, out);
      break;
    case BsonType::kCodeWithScope:
      for (const BsonElement& e : v.CodeWithScopeScope()) EncodeTypeBits(e.value, out);
      break;
    default: break;
  }
}

void TrimTypeBits(std::string& bits, size_t from) {
  while (bits.size() > from && bits.back() == 0) bits.pop_back();
}

Result<Value> DecodeKeyValue(std::string_view* key, bool descending, std::string_view* type_bits) {
  Reader r(*key, descending);
  TypeBits bits{*type_bits};
  std::string bytes;
  BsonType type = Decode(r, &bits, &bytes, 0);
  if (!r.ok()) return Error{ErrorCode::kInternalError, "corrupt index key"};
  key->remove_prefix(static_cast<size_t>(r.position() - key->data()));
  *type_bits = bits.bytes;
  return Value::Owned(type, std::move(bytes));
}

bool DecodeDate(std::string_view encoded, bool descending, Instant* date) {
  if (encoded.size() < 9) return false;
  Reader r(encoded, descending);
  if (r.Byte() != kClassDate) return false;
  date->millis = static_cast<int64_t>(r.Be<uint64_t>() ^ (1ULL << 63));
  return true;
}

size_t EncodedValueLength(std::string_view key, bool descending) {
  Reader r(key, descending);
  TypeBits none{};
  Decode(r, &none, nullptr, 0);
  return r.ok() ? static_cast<size_t>(r.position() - key.data()) : 0;
}

void EncodeTypeClassBegin(BsonType type, std::string& out) { PutByte(out, KindOf(type)); }

void EncodeTypeClassEnd(BsonType type, std::string& out) {
  uint8_t kind = KindOf(type);
  PutByte(out, kind == kClassNan ? kClassPositive + 1 : static_cast<uint8_t>(kind + 1));
}

}  // namespace mayfly

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "protocol/decimal128.h"
#include "storage/keys/key_classes.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace key {
namespace {

/// Reads encoded bytes, inverted ones too, and never past their end: after a failure ok() is false
/// and reads give zeros.
class KeyReader {
 public:
  KeyReader(std::string_view bytes, bool inverted)
      : p_(bytes.data()), end_(p_ + bytes.size()), mask_(inverted ? 0xFF : 0) {}

  uint8_t Byte() {
    if (p_ == end_) return Fail();
    return static_cast<uint8_t>(*p_++) ^ mask_;
  }
  uint8_t Peek() {
    if (p_ == end_) return Fail();
    return static_cast<uint8_t>(*p_) ^ mask_;
  }
  uint64_t Be(size_t n) {
    if (left() < n) return Fail();
    uint64_t v = 0;
    for (size_t i = 0; i < n; ++i)
      v = v << 8 | static_cast<uint8_t>(static_cast<uint8_t>(p_[i]) ^ mask_);
    p_ += n;
    return v;
  }
  /// A length in 4 bytes; what is longer than the rest of the key fails.
  int32_t Length() {
    const uint64_t n = Be(4);
    return n <= left() ? static_cast<int32_t>(n) : Fail();
  }
  void Bytes(size_t n, std::string* out) {
    if (left() < n) {
      Fail();
      return;
    }
    Append(n, out);
    p_ += n;
  }
  /// Up to and past the next 00.
  void CString(std::string* out) {
    auto* nul = left() ? static_cast<const char*>(std::memchr(p_, mask_, left())) : nullptr;
    if (nul == nullptr) {
      Fail();
      return;
    }
    Append(static_cast<size_t>(nul - p_), out);
    p_ = nul + 1;
  }
  void Text(std::string* out) {
    while (ok_) {
      CString(out);
      uint8_t next = Byte();
      if (!ok_ || next == 0) return;
      if (next != 0xFF) {
        Fail();
        return;
      }
      if (out) out->push_back('\0');
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
  size_t left() const { return static_cast<size_t>(end_ - p_); }
  void Append(size_t n, std::string* out) {
    if (!out) return;
    size_t at = out->size();
    out->append(p_, n);
    if (mask_)
      for (size_t i = at; i < out->size(); ++i) (*out)[i] = static_cast<char>(~(*out)[i]);
  }

  const char* p_;
  const char* end_;
  uint8_t mask_;
  bool ok_ = true;
};

struct TypeBits {
  std::string_view bytes;
  uint8_t Next() {
    if (bytes.empty()) return kBitDefault;
    auto b = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    return b;
  }
  /// `n` bytes and the 01 behind them, to the end of `*out`; false when they are not there.
  bool Raw(size_t n, std::string* out) {
    if (bytes.size() < n + 1 || bytes[n] != 1) return false;
    out->append(bytes.substr(0, n));
    bytes.remove_prefix(n + 1);
    return true;
  }
};

void AppendLe(std::string* out, const void* p, size_t n) {
  out->append(static_cast<const char*>(p), n);
}

/// A number as read, without its sign: whole part below 2^63 and `real`, or `real` alone.
struct Magnitude {
  uint64_t whole = 0;
  double real = 0;  ///< 0: there is no fraction
  bool huge = false;
  bool exact = true;  ///< `real` is; otherwise the decimal below is
  Wide coefficient = 0;
  int exponent = 0;
};

void ReadReal(KeyReader& r, Magnitude* m) {
  m->real = std::bit_cast<double>(r.Be(8));
  double least = m->huge ? kTwo63 : 0, most = m->huge ? HUGE_VAL : std::nextafter(1.0, 0.0);
  if (!(m->real >= least && m->real <= most) || std::signbit(m->real)) r.Fail();
  uint8_t tail = r.Byte();
  if (tail == 0) {
    if (m->real == 0) r.Fail();
    return;
  }
  if (tail != 1) r.Fail();
  m->exact = false;
  m->exponent = static_cast<int>(r.Be(2)) - kExponentBias;
  int pairs = 0;
  for (uint8_t b = r.Byte(); b != 0 && r.ok(); b = r.Byte()) {
    if (b > 100 || ++pairs > 17) {
      r.Fail();
      return;
    }
    m->coefficient = m->coefficient * 100 + (b - 1);
  }
  m->exponent -= 2 * pairs;
  while (m->coefficient != 0 && m->coefficient % 10 == 0) m->coefficient /= 10, ++m->exponent;
  if (m->coefficient == 0) r.Fail();
}

void ReadMagnitude(uint8_t cls, KeyReader& r, Magnitude* m) {
  m->huge = cls == kClassNegativeHuge || cls == kClassPositiveHuge;
  if (m->huge) return ReadReal(r, m);
  size_t n = cls < kClassZero ? kClassZero - cls : cls - kClassZero;
  uint64_t v = r.Be(n);
  if (v == 0 || v >> (8 * (n - 1)) == 0) {
    r.Fail();
    return;
  }
  m->whole = v >> 1;
  if (v & 1) ReadReal(r, m);
}

/// As a decimal, for the numbers no other type holds. False when the parts do not fit in one:
/// corrupt.
bool AsDecimal(const Magnitude& m, bool negative, Decimal128Bits* out) {
  decimal128::Parts p{m.coefficient, m.exponent, negative};
  if (m.exact) {
    decimal128::Unpack(decimal128::FromDoubleExact(m.real), &p);
    p.negative = negative;
  }
  const Wide limit = Power10(34);
  // Bring the exponent into range, or to 0 so that the whole part can be added.
  int highest = m.huge || m.whole == 0 ? 6111 : 0;
  for (; p.exponent > highest && p.coefficient < limit; --p.exponent) p.coefficient *= 10;
  if (m.whole != 0) {
    if (p.exponent < -34) return false;
    p.coefficient += m.whole * Power10(-p.exponent);
  }
  if (p.coefficient >= limit || p.exponent < -6176 || p.exponent > 6111) return false;
  *out = decimal128::Pack(p);
  return true;
}

BsonType DecodeNumber(uint8_t cls, KeyReader& r, TypeBits* bits, std::string* out) {
  Magnitude m;
  const bool negative = cls < kClassZero && cls != kClassNan;
  if (negative) r.Invert();
  if (cls != kClassNan && cls != kClassZero) ReadMagnitude(cls, r, &m);
  if (negative) r.Invert();
  if (!out || !r.ok()) return BsonType::kDouble;
  const uint8_t kind = bits->Next();
  if (kind == kBitDecimal) {
    if (!bits->Raw(16, out)) r.Fail();
    return BsonType::kDecimal128;
  }
  if (kind == kBitNan) {
    if (cls != kClassNan || !bits->Raw(8, out)) r.Fail();
    return BsonType::kDouble;
  }
  auto put_double = [&](double d) {
    AppendLe(out, &d, 8);
    return BsonType::kDouble;
  };
  if (kind == kBitNegativeZero) {
    if (cls != kClassZero) r.Fail();
    return put_double(-0.0);
  }
  if (kind != kBitDefault && kind != kBitInt64 && kind != kBitDouble) {
    r.Fail();
    return BsonType::kDouble;
  }
  if (cls == kClassNan) return put_double(std::bit_cast<double>(kPlainNan));
  if (m.huge && m.exact && negative && m.real == kTwo63 && kind != kBitDouble) {
    int64_t least = INT64_MIN;
    AppendLe(out, &least, 8);
    return BsonType::kInt64;
  }
  if (!m.huge && m.real == 0 && m.exact) {
    auto v = static_cast<int64_t>(negative ? 0 - m.whole : m.whole);
    if (kind == kBitDouble) return put_double(static_cast<double>(v));
    if (kind == kBitDefault && v >= INT32_MIN && v <= INT32_MAX) {
      auto small = static_cast<int32_t>(v);
      AppendLe(out, &small, 4);
      return BsonType::kInt32;
    }
    AppendLe(out, &v, 8);
    return BsonType::kInt64;
  }
  if (kind == kBitInt64) r.Fail();
  auto whole = static_cast<double>(m.whole);
  double d = whole + m.real;
  if (m.exact && static_cast<uint64_t>(whole) == m.whole && d - whole == m.real)
    return put_double(negative ? -d : d);
  Decimal128Bits decimal;
  if (!AsDecimal(m, negative, &decimal)) r.Fail();
  AppendLe(out, &decimal, 16);
  return BsonType::kDecimal128;
}

/// Appends the value's raw bytes to *out (null: only skips) and returns its type.
BsonType Decode(KeyReader& r, TypeBits* bits, std::string* out, int depth);

// Only against damaged keys: a computed value may nest a little deeper than a stored one.
constexpr int kMaxDepth = 2 * kMaxBsonDepth;

void DecodeDocument(KeyReader& r, TypeBits* bits, std::string* out, int depth, bool array) {
  if (depth >= kMaxDepth) {
    r.Fail();
    return;
  }
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
    if (!array)
      r.CString(out);
    else if (out)
      out->append(std::to_string(i));
    if (out) out->push_back(0);
    BsonType t = Decode(r, bits, out, depth + 1);
    if (out) (*out)[type_at] = static_cast<char>(t);
  }
  if (out) {
    out->push_back(0);
    StoreLe<int32_t>(out->data() + start, static_cast<int32_t>(out->size() - start));
  }
}

BsonType Decode(KeyReader& r, TypeBits* bits, std::string* out, int depth) {
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
  if (cls >= kClassNan && cls <= kClassPositiveHuge) return DecodeNumber(cls, r, bits, out);
  switch (cls) {
    case kClassMinKey:
      return BsonType::kMinKey;
    case kClassUndefined:
      return BsonType::kUndefined;
    case kClassNull:
      return BsonType::kNull;
    case kClassString:
      return text(out && bits->Next() == kBitSymbol ? BsonType::kSymbol : BsonType::kString);
    case kClassCode:
      return text(BsonType::kCode);
    case kClassDocument:
      DecodeDocument(r, bits, out, depth, false);
      return BsonType::kDocument;
    case kClassArray:
      DecodeDocument(r, bits, out, depth, true);
      return BsonType::kArray;
    case kClassBinary: {
      int32_t n = r.Length();
      uint8_t subtype = r.Byte();
      if (out && r.ok()) {
        AppendLe(out, &n, 4);
        out->push_back(static_cast<char>(subtype));
      }
      if (r.ok()) r.Bytes(static_cast<size_t>(n), out);
      return BsonType::kBinary;
    }
    case kClassObjectId:
      r.Bytes(12, out);
      return BsonType::kObjectId;
    case kClassBool: {
      uint8_t b = r.Byte();
      if (b > 1) r.Fail();
      if (out) out->push_back(static_cast<char>(b));
      return BsonType::kBool;
    }
    case kClassDate: {
      uint64_t v = r.Be(8) ^ (1ULL << 63);
      if (out) AppendLe(out, &v, 8);
      return BsonType::kDate;
    }
    case kClassTimestamp: {
      uint64_t v = r.Be(8);
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
      int32_t n = r.Length();
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
    case kClassMaxKey:
      return BsonType::kMaxKey;
    default:
      r.Fail();
      return BsonType::kNull;
  }
}

}  // namespace
}  // namespace key

Result<Value> DecodeKeyValue(std::string_view* key, bool descending, std::string_view* type_bits) {
  using namespace key;
  KeyReader r(*key, descending);
  TypeBits bits{*type_bits};
  std::string bytes;
  BsonType type = Decode(r, &bits, &bytes, 0);
  if (!r.ok()) return Error{ErrorCode::kInternalError, "corrupt index key"};
  key->remove_prefix(static_cast<size_t>(r.position() - key->data()));
  *type_bits = bits.bytes;
  return Value::Owned(type, std::move(bytes));
}

bool DecodeDate(std::string_view encoded, bool descending, Instant* date) {
  using namespace key;
  if (encoded.size() < 9) return false;
  KeyReader r(encoded, descending);
  if (r.Byte() != kClassDate) return false;
  date->millis = static_cast<int64_t>(r.Be(8) ^ (1ULL << 63));
  return true;
}

size_t EncodedValueLength(std::string_view key, bool descending) {
  using namespace key;
  // Every index entry read splits its key with this: the common types without the decoder.
  if (key.empty()) return 0;
  const uint8_t mask = descending ? 0xFF : 0;
  const auto cls = static_cast<uint8_t>(static_cast<uint8_t>(key[0]) ^ mask);
  size_t n = 0;
  if (cls > kClassNegativeHuge && cls < kClassPositiveHuge) {
    size_t bytes = cls < kClassZero ? kClassZero - cls : cls - kClassZero;
    if (bytes == 0) return 1;
    if (key.size() <= bytes) return 0;
    // The lowest bit of the last byte says whether a fraction follows; negative numbers are
    // inverted.
    bool fraction = ((static_cast<uint8_t>(key[bytes]) ^ mask) & 1) == (cls > kClassZero);
    uint8_t first = static_cast<uint8_t>(key[1]) ^ mask ^ (cls < kClassZero ? 0xFF : 0);
    if (!fraction && first != 0) n = 1 + bytes;
  } else if (cls == kClassObjectId) {
    n = 13;
  } else if (cls == kClassDate || cls == kClassTimestamp) {
    n = 9;
  }
  if (n != 0) return n <= key.size() ? n : 0;
  KeyReader r(key, descending);
  TypeBits none{};
  Decode(r, &none, nullptr, 0);
  return r.ok() ? static_cast<size_t>(r.position() - key.data()) : 0;
}

size_t StoredValueLength(std::string_view values, size_t at, bool descending) {
  const std::string_view rest = values.substr(std::min(at, values.size()));
  if (rest.size() <= kLeastCut) [[likely]]
    return EncodedValueLength(rest, descending);
  const size_t longest = LongestWhole(at);
  // No beginning of a value is a whole one: what does not end there is cut.
  if (const size_t n = EncodedValueLength(rest.substr(0, longest), descending)) return n;
  return rest.size() >= longest + kCutHashSize ? longest + kCutHashSize : 0;
}

Result<Value> DecodeStoredValue(std::string_view values, size_t* at, bool descending,
                                std::string_view* type_bits) {
  const std::string_view rest = values.substr(std::min(*at, values.size()));
  std::string_view value = rest.substr(0, LongestWhole(*at));
  const size_t before = value.size();
  MAYFLY_TRY(Value v, DecodeKeyValue(&value, descending, type_bits));
  *at += before - value.size();
  return v;
}

// All classes but the last are below 0x80 and their inverses are not, so that the first byte tells
// in which direction a field goes.
static_assert(key::kClassCodeWithScope < 0x80 && key::kClassMaxKey == 0xF0);

size_t IndexGroupSize(std::string_view index_key) {
  using namespace key;
  if (index_key.size() <= kIdPrefixSize) return 0;
  const std::string_view values = index_key.substr(kIdPrefixSize);
  const auto first = static_cast<uint8_t>(values[0]);
  const bool descending = first >= 0x80 ? first != kClassMaxKey : first == 0xFF - kClassMaxKey;
  const auto cls = static_cast<uint8_t>(descending ? ~first : first);
  // Nested values are read one by one: too expensive for each written entry.
  if (cls == kClassDocument || cls == kClassArray || cls == kClassCodeWithScope) return 0;
  // What is cut has no group: its hash would be taken for a part of the value.
  const size_t n = EncodedValueLength(values.substr(0, kMaxKeySize), descending);
  return n == 0 ? 0 : kIdPrefixSize + n;
}

}  // namespace mayfly

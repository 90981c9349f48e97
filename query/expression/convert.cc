#include "query/expression/convert.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "protocol/base64.h"
#include "protocol/decimal128.h"
#include "protocol/hex.h"
#include "protocol/object_id.h"
#include "protocol/utf8.h"
#include "query/expression/date_util.h"
#include "query/expression/operator.h"

namespace mayfly {

std::string DoubleText(double d) {
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  char text[40];
  for (int digits = 15; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, d);
    if (std::strtod(text, nullptr) == d) break;
  }
  return text;
}

namespace {

Error Unsupported(BsonValue v, BsonType to) {
  return Error{ErrorCode::kConversionFailure, "Unsupported conversion from " + TypeText(v) +
                                                  " to " + std::string(BsonTypeName(to)) +
                                                  " in $convert with no onError value"};
}
Error Overflowed(BsonValue v) {
  return Error{
      ErrorCode::kConversionFailure,
      "Conversion would overflow target type in $convert with no onError value: " + ValueText(v)};
}
Error BadText(std::string_view text, std::string_view why) {
  return Error{ErrorCode::kConversionFailure,
               "Failed to parse number '" + std::string(text) +
                   "' in $convert with no onError value: " + std::string(why)};
}

/// std::from_chars takes a minus, so "+-5" would be a number behind the plus.
bool SignedTwice(std::string_view s) { return s.starts_with("+-") || s.starts_with("++"); }

/// A number or a string of digits as int64 within [low, high].
Result<int64_t> ToWhole(BsonValue v, BsonType to, int64_t low, int64_t high) {
  int64_t n;
  switch (v.type()) {
    case BsonType::kBool:
      return int64_t{v.Bool()};
    case BsonType::kInt32:
    case BsonType::kInt64:
      n = v.NumberAsInt64();
      break;
    case BsonType::kDouble: {
      double d = v.Double();
      if (std::isnan(d) || std::isinf(d))
        return Error{ErrorCode::kConversionFailure,
                     std::string("Attempt to convert ") + (std::isnan(d) ? "NaN" : "infinity") +
                         " value to integer type in $convert with no onError value"};
      if (!(d > -9223372036854777856.0 && d < 9223372036854775808.0)) return Overflowed(v);
      n = static_cast<int64_t>(d);
      break;
    }
    case BsonType::kDecimal128:
      if (decimal128::IsNan(v.Decimal()) || decimal128::IsInfinite(v.Decimal()))
        return Error{ErrorCode::kConversionFailure,
                     "Attempt to convert NaN or infinity value to integer type in $convert with no "
                     "onError value"};
      if (!decimal128::ToInt64(decimal128::Truncate(v.Decimal()), &n)) return Overflowed(v);
      break;
    case BsonType::kDate:
      if (to != BsonType::kInt64) return Unsupported(v, to);
      return v.Date().millis;
    case BsonType::kString: {
      std::string_view s = v.String();
      std::string_view digits = s.starts_with('+') ? s.substr(1) : s;
      auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
      if (error == std::errc::result_out_of_range) return BadText(s, "Overflow");
      if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() ||
          SignedTwice(s))
        return BadText(s, s.empty() ? "No digits" : "Did not consume whole string.");
      if (n < low || n > high) return BadText(s, "Overflow");
      return n;
    }
    default:
      return Unsupported(v, to);
  }
  if (n < low || n > high) return Overflowed(v);
  return n;
}

Result<Value> ToDouble(BsonValue v) {
  switch (v.type()) {
    case BsonType::kBool:
      return Value::Double(v.Bool());
    case BsonType::kDate:
      return Value::Double(static_cast<double>(v.Date().millis));
    case BsonType::kDecimal128: {
      double d = v.NumberAsDouble();
      if (std::isinf(d) && !decimal128::IsInfinite(v.Decimal())) return Overflowed(v);
      return Value::Double(d);
    }
    case BsonType::kString: {
      std::string s(v.String());
      if (s.empty() || std::isspace(static_cast<unsigned char>(s[0])))
        return BadText(s, "Empty string");
      if (s.size() > 1 && (s[1] == 'x' || s[1] == 'X'))
        return BadText(s, "Illegal hexadecimal input");
      char* end = nullptr;
      double d = std::strtod(s.c_str(), &end);
      if (end != s.c_str() + s.size()) return BadText(s, "Did not consume whole string.");
      if (std::isinf(d) && s.find_first_of("iI") == s.npos) return BadText(s, "Out of range");
      return Value::Double(d);
    }
    default:
      if (v.IsNumber()) return Value::Double(v.NumberAsDouble());
      return Unsupported(v, BsonType::kDouble);
  }
}

Result<Value> ToText(BsonValue v) {
  switch (v.type()) {
    case BsonType::kBool:
      return Value::String(v.Bool() ? "true" : "false");
    case BsonType::kDouble:
      return Value::String(DoubleText(v.Double()));
    case BsonType::kInt32:
    case BsonType::kInt64:
      return Value::String(std::to_string(v.NumberAsInt64()));
    case BsonType::kDecimal128:
      return Value::String(decimal128::ToString(v.Decimal()));
    case BsonType::kObjectId:
      return Value::String(ObjectIdToHex(v.ObjectId()));
    case BsonType::kDate:
      return Value::String(FormatIsoDate(v.Date()));
    case BsonType::kString:
      return Value::Copy(v);
    case BsonType::kRegex:
      return Value::String("/" + std::string(v.RegexPattern()) + "/" +
                           std::string(v.RegexOptions()));
    case BsonType::kTimestamp:
      return Value::String("Timestamp(" + std::to_string(v.Timestamp() >> 32) + ", " +
                           std::to_string(v.Timestamp() & 0xFFFFFFFF) + ")");
    case BsonType::kMinKey:
      return Value::String("MinKey");
    case BsonType::kMaxKey:
      return Value::String("MaxKey");
    default:
      return Unsupported(v, BsonType::kString);
  }
}

Result<Value> ToObjectId(BsonValue v) {
  if (v.Is(BsonType::kObjectId)) return Value::Copy(v);
  if (!v.IsString()) return Unsupported(v, BsonType::kObjectId);
  std::string_view s = v.String();
  std::string bytes;
  auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t i = 0; i + 1 < s.size() && s.size() == 24; i += 2) {
    int high = digit(s[i]), low = digit(s[i + 1]);
    if (high < 0 || low < 0) break;
    bytes += static_cast<char>(high * 16 + low);
  }
  if (bytes.size() != 12)
    return Error{
        ErrorCode::kConversionFailure,
        "Failed to parse objectId '" + std::string(s) + "' in $convert with no onError value: " +
            (s.size() == 24 ? "Invalid character found in hex string"
                            : "Invalid string length for parsing to OID, expected 24 but found " +
                                  std::to_string(s.size()))};
  return Value::ObjectId(bytes);
}

Result<Value> ToDate(BsonValue v) {
  if (auto t = CoerceToDate(v)) return Value::Date(*t);
  switch (v.type()) {
    case BsonType::kDouble:
    case BsonType::kInt64:
    case BsonType::kDecimal128: {
      MAYFLY_TRY(int64_t ms, ToWhole(v, BsonType::kDate, INT64_MIN, INT64_MAX));
      return Value::Date({ms});
    }
    case BsonType::kString: {
      MAYFLY_TRY(Instant t, ParseDateText(v.String()));
      return Value::Date(t);
    }
    default:
      return Unsupported(v, BsonType::kDate);
  }
}

Result<Value> ToDecimalValue(BsonValue v) {
  switch (v.type()) {
    case BsonType::kBool:
      return Value::Decimal(decimal128::FromInt64(v.Bool()));
    case BsonType::kDate:
      return Value::Decimal(decimal128::FromInt64(v.Date().millis));
    case BsonType::kString: {
      Result<Decimal128Bits> d = decimal128::Parse(v.String());
      if (!d) return BadText(v.String(), "not a decimal number");
      return Value::Decimal(d.value());
    }
    default:
      if (v.IsNumber()) return Value::Decimal(ToDecimal(v));
      return Unsupported(v, BsonType::kDecimal128);
  }
}

}  // namespace

Result<Value> ConvertValue(BsonValue v, BsonType to) {
  switch (to) {
    case BsonType::kDouble:
      return ToDouble(v);
    case BsonType::kString:
      return ToText(v);
    case BsonType::kObjectId:
      return ToObjectId(v);
    case BsonType::kBool:
      return Value::Bool(v.IsNumber() || v.Is(BsonType::kBool) ? v.Truthy() : true);
    case BsonType::kDate:
      return ToDate(v);
    case BsonType::kInt32: {
      MAYFLY_TRY(int64_t n, ToWhole(v, to, INT32_MIN, INT32_MAX));
      return Value::Int32(static_cast<int32_t>(n));
    }
    case BsonType::kInt64: {
      MAYFLY_TRY(int64_t n, ToWhole(v, to, INT64_MIN, INT64_MAX));
      return Value::Int64(n);
    }
    case BsonType::kDecimal128:
      return ToDecimalValue(v);
    default:
      if (v.type() == to) return Value::Copy(v);
      return Unsupported(v, to);
  }
}

std::optional<BsonType> ParseTypeName(BsonValue v) {
  static constexpr BsonType kAll[] = {
      BsonType::kDouble,    BsonType::kString,    BsonType::kDocument,      BsonType::kArray,
      BsonType::kBinary,    BsonType::kUndefined, BsonType::kObjectId,      BsonType::kBool,
      BsonType::kDate,      BsonType::kNull,      BsonType::kRegex,         BsonType::kDbPointer,
      BsonType::kCode,      BsonType::kSymbol,    BsonType::kCodeWithScope, BsonType::kInt32,
      BsonType::kTimestamp, BsonType::kInt64,     BsonType::kDecimal128,    BsonType::kMaxKey,
      BsonType::kMinKey};
  int64_t n = 0;
  bool number = v.IsNumber() && v.ExactInt64(&n);
  for (BsonType t : kAll) {
    if (v.IsString() && v.String() == BsonTypeName(t)) return t;
    if (number && (n == static_cast<int64_t>(t) || (n == -1 && t == BsonType::kMinKey))) return t;
  }
  return std::nullopt;
}

namespace {

// Binary values as text and back, and as numbers (manual: "$convert", "Convert to BinData").

constexpr std::pair<std::string_view, BinaryFormat> kBinaryFormats[] = {
    {"auto", BinaryFormat::kAuto},           {"base64", BinaryFormat::kBase64},
    {"base64url", BinaryFormat::kBase64Url}, {"hex", BinaryFormat::kHex},
    {"utf8", BinaryFormat::kUtf8},           {"uuid", BinaryFormat::kUuid}};
Error FormatMismatch(std::string_view what) {
  return Error{ErrorCode::kConversionFailure,
               std::string(what) + " in $convert with no onError value"};
}

bool DecodeHex(std::string_view text, std::string& out) {
  if (text.size() % 2 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 2) {
    uint8_t byte = 0;
    auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, byte, 16);
    if (error != std::errc() || end != text.data() + i + 2) return false;
    out += static_cast<char>(byte);
  }
  return true;
}

constexpr size_t kUuidBytes = 16, kUuidChars = 36;
bool IsUuidDash(size_t i) { return i == 8 || i == 13 || i == 18 || i == 23; }

Result<Value> BinaryToText(BsonValue v, const ConvertOptions& o) {
  BinaryFormat format = o.format;
  if (format == BinaryFormat::kNone)
    return LocationError(4341115,
                         "Format must be specified when converting from 'binData' to 'string'");
  const bool uuid = v.BinarySubtype() == kUuidSubtype && v.BinaryData().size() == kUuidBytes;
  if (format == BinaryFormat::kAuto) format = uuid ? BinaryFormat::kUuid : BinaryFormat::kBase64;
  const std::string_view bytes = v.BinaryData();
  std::string text;
  switch (format) {
    case BinaryFormat::kHex:
      AppendHexDigits(bytes, text, kUpperHex);
      break;
    case BinaryFormat::kUtf8:
      if (!IsUtf8(bytes.data(), bytes.size()))
        return FormatMismatch("BinData does not represent a valid UTF-8 string");
      text = bytes;
      break;
    case BinaryFormat::kUuid:
      if (!uuid)
        return FormatMismatch("BinData is not a UUID: its subtype must be 4 and its length 16");
      for (size_t i = 0; i < kUuidBytes; ++i) {
        if (IsUuidDash(text.size())) text += '-';
        AppendHexDigits(bytes.substr(i, 1), text);
      }
      break;
    default:
      AppendBase64(bytes, text);
      if (format == BinaryFormat::kBase64Url) {
        for (char& c : text) c = c == '+' ? '-' : c == '/' ? '_' : c;
        text.resize(text.find_last_not_of('=') + 1);
      }
  }
  return Value::String(text);
}

Value BinaryValue(uint8_t subtype, std::string_view bytes) {
  constexpr uint8_t kOldSubtype = 2;  // repeats the length inside
  std::string old;
  if (subtype == kOldSubtype) {
    old.assign(sizeof(int32_t), '\0');
    StoreLe(old.data(), static_cast<int32_t>(bytes.size()));
    bytes = old += bytes;
  }
  const BsonDocument d = BuildBson([&](BsonBuilder& b) { b.AppendBinary("b", subtype, bytes); });
  return Value::Copy(d.view().First().value);
}

Result<Value> TextToBinary(BsonValue v, const ConvertOptions& o) {
  const std::string_view text = v.String();
  auto bad = [&](std::string_view format) {
    return FormatMismatch("Input string '" + std::string(text) + "' is not valid " +
                          std::string(format));
  };
  if ((o.format == BinaryFormat::kUuid) != (o.subtype == kUuidSubtype) &&
      o.format != BinaryFormat::kNone)
    return FormatMismatch(
        "Only the UUID string format is allowed with the UUID binData subtype, and no other "
        "subtype "
        "is with that format");
  std::string bytes;
  switch (o.format) {
    case BinaryFormat::kNone:
      return LocationError(4341115,
                           "Format must be specified when converting from 'string' to 'binData'");
    case BinaryFormat::kHex:
      if (!DecodeHex(text, bytes)) return bad("hex");
      break;
    case BinaryFormat::kUtf8:
      bytes = text;
      break;
    case BinaryFormat::kUuid: {
      std::string digits;
      for (size_t i = 0; i < text.size(); ++i) {
        if (IsUuidDash(i) != (text[i] == '-')) return bad("uuid");
        if (text[i] != '-') digits += text[i];
      }
      if (text.size() != kUuidChars || !DecodeHex(digits, bytes)) return bad("uuid");
      break;
    }
    case BinaryFormat::kBase64Url: {
      std::string plain(text);
      for (char& c : plain) {
        if (c == '+' || c == '/') return bad("base64url");
        c = c == '-' ? '+' : c == '_' ? '/' : c;
      }
      plain.resize((plain.size() + 3) / 4 * 4, '=');
      if (!DecodeBase64(plain, bytes)) return bad("base64url");
      break;
    }
    default:
      if (!DecodeBase64(text, bytes)) return bad("base64");
  }
  return BinaryValue(o.subtype, bytes);
}

/// The bytes of a number, in the order asked for.
std::string NumberBytes(uint64_t bits, size_t size, bool big_endian) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i)
    bytes += static_cast<char>(bits >> 8 * (big_endian ? size - 1 - i : i));
  return bytes;
}

Result<Value> BinaryToNumber(BsonValue v, BsonType to, const ConvertOptions& o) {
  const std::string_view bytes = v.BinaryData();
  const size_t n = bytes.size();
  uint64_t bits = 0;
  for (size_t i = 0; i < std::min<size_t>(n, 8); ++i)
    bits |= uint64_t{static_cast<uint8_t>(bytes[o.big_endian ? n - 1 - i : i])} << 8 * i;
  const int unused = 64 - 8 * static_cast<int>(n);
  const bool right_size = to == BsonType::kDouble  ? n == 4 || n == 8
                          : to == BsonType::kInt32 ? n == 1 || n == 2 || n == 4
                                                   : n == 1 || n == 2 || n == 4 || n == 8;
  if (!right_size)
    return FormatMismatch("Failed to convert '" + ValueText(v) + "' to " +
                          std::string(BsonTypeName(to)) +
                          ": its length is invalid: " + std::to_string(n));
  if (to == BsonType::kDouble)
    return Value::Double(n == 4 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                                : std::bit_cast<double>(bits));
  const int64_t whole = static_cast<int64_t>(bits << unused) >> unused;
  return to == BsonType::kInt32 ? Value::Int32(static_cast<int32_t>(whole)) : Value::Int64(whole);
}

Result<Value> ToBinary(BsonValue v, const ConvertOptions& o) {
  switch (v.type()) {
    case BsonType::kBinary:
      if (v.BinarySubtype() != o.subtype)
        return FormatMismatch("Conversions between different binData subtypes are not supported");
      return Value::Copy(v);
    case BsonType::kString:
      return TextToBinary(v, o);
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDouble: {
      if (o.subtype != 0) return Unsupported(v, BsonType::kBinary);
      const uint64_t bits = v.Is(BsonType::kDouble) ? std::bit_cast<uint64_t>(v.Double())
                                                    : static_cast<uint64_t>(v.NumberAsInt64());
      return BinaryValue(0, NumberBytes(bits, v.Is(BsonType::kInt32) ? 4 : 8, o.big_endian));
    }
    default:
      return Unsupported(v, BsonType::kBinary);
  }
}

/// A whole number written in a base, or read from it.
Result<Value> ConvertInBase(BsonValue v, BsonType to, int base) {
  if (to == BsonType::kString) {
    MAYFLY_TRY(int64_t n, ToWhole(v, BsonType::kInt64, INT64_MIN, INT64_MAX));
    if (!v.ExactInt64(&n))
      return FormatMismatch("Conversion of a number with a fraction to a string in a base");
    char text[72];
    auto [end, error] = std::to_chars(text, text + sizeof text, n, base);
    std::string digits(text, end);
    for (char& c : digits) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return Value::String(digits);
  }
  const std::string_view s = v.String();
  int64_t n = 0;
  const std::string_view digits = s.starts_with('+') ? s.substr(1) : s;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n, base);
  if (error == std::errc::result_out_of_range) return BadText(s, "Overflow");
  if (error != std::errc() || end != digits.data() + digits.size() || SignedTwice(s))
    return BadText(s, s.empty() ? "No digits" : "Did not consume whole string.");
  return ConvertValue(Value::Int64(n).view(), to);
}

}  // namespace

Result<Value> ConvertWith(BsonValue v, BsonType to, const ConvertOptions& o) {
  const bool number = to == BsonType::kInt32 || to == BsonType::kInt64 || to == BsonType::kDouble;
  if (to == BsonType::kBinary) return ToBinary(v, o);
  if (v.Is(BsonType::kBinary) && to == BsonType::kString) return BinaryToText(v, o);
  if (v.Is(BsonType::kBinary) && number) return BinaryToNumber(v, to, o);
  if (o.base != 0 && ((v.IsNumber() && to == BsonType::kString) ||
                      (v.IsString() && (number || to == BsonType::kDecimal128))))
    return ConvertInBase(v, to, o.base);
  return ConvertValue(v, to);
}

std::optional<BinaryFormat> ParseBinaryFormat(std::string_view name) {
  for (const auto& [known, format] : kBinaryFormats)
    if (name == known) return format;
  return std::nullopt;
}

}  // namespace mayfly

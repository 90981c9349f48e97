#include <openssl/evp.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "protocol/base64.h"
#include "protocol/decimal128.h"
#include "protocol/object_id.h"
#include "protocol/utf8.h"
#include "query/expression/convert.h"
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
          digits.starts_with('+'))
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

enum class BinaryFormat : uint8_t { kNone, kAuto, kBase64, kBase64Url, kHex, kUtf8, kUuid };
constexpr std::pair<std::string_view, BinaryFormat> kBinaryFormats[] = {
    {"auto", BinaryFormat::kAuto},           {"base64", BinaryFormat::kBase64},
    {"base64url", BinaryFormat::kBase64Url}, {"hex", BinaryFormat::kHex},
    {"utf8", BinaryFormat::kUtf8},           {"uuid", BinaryFormat::kUuid}};
constexpr uint8_t kUuidSubtype = 4;

struct ConvertOptions {
  uint8_t subtype = 0;
  BinaryFormat format = BinaryFormat::kNone;
  bool big_endian = false;
  int base = 0;  ///< 0: not given
};

Error FormatMismatch(std::string_view what) {
  return Error{ErrorCode::kConversionFailure,
               std::string(what) + " in $convert with no onError value"};
}

void AppendHex(std::string_view bytes, const char* digits, std::string& out) {
  for (unsigned char c : bytes) {
    out += digits[c >> 4];
    out += digits[c & 15];
  }
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
      AppendHex(bytes, "0123456789ABCDEF", text);
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
        AppendHex(bytes.substr(i, 1), "0123456789abcdef", text);
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
    if (v.Is(BsonType::kDouble) && v.Double() != static_cast<double>(n))
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
  if (error != std::errc() || end != digits.data() + digits.size() || digits.starts_with('+'))
    return BadText(s, s.empty() ? "No digits" : "Did not consume whole string.");
  return ConvertValue(Value::Int64(n).view(), to);
}

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

// {input, to, onError, onNull, …}; evaluated lazily, so that onError may fail too.
enum { kInput, kTo, kOnError, kOnNull, kFormat, kByteOrder, kBase };
constexpr std::string_view kConvertNames[] = {"input",  "to",        "onError", "onNull",
                                              "format", "byteOrder", "base"};

Result<void> ReadConvertOptions(EvalContext& ctx, Children c, BsonValue subtype,
                                ConvertOptions* o) {
  auto wrong = [](std::string_view name, std::string_view want, BsonValue v) {
    return LocationError(4341114, "$convert requires that '" + std::string(name) + "' be " +
                                      std::string(want) + ", found: " + TypeText(v) +
                                      " with value " + ValueText(v));
  };
  if (!subtype.missing()) {
    int64_t n = 0;
    if (!subtype.IsNumber() || !subtype.ExactInt64(&n))
      return wrong("to.subtype", "a whole number", subtype);
    if (n < 0 || n > 255 || (n > 9 && n < 128))
      return LocationError(4341107,
                           "In $convert, numeric value for 'subtype' does not correspond to "
                           "a BinData type: " +
                               std::to_string(n));
    o->subtype = static_cast<uint8_t>(n);
  }
  if (c[kFormat]) {
    MAYFLY_TRY(Value format, c[kFormat]->Evaluate(ctx));
    if (!format.view().IsNullish()) {
      if (!format.view().IsString()) return wrong("format", "a string", format.view());
      for (const auto& [name, value] : kBinaryFormats)
        if (format.view().String() == name) o->format = value;
      if (o->format == BinaryFormat::kNone)
        return LocationError(4341125, "Invalid 'format' argument for $convert: " +
                                          std::string(format.view().String()));
    }
  }
  if (c[kByteOrder]) {
    MAYFLY_TRY(Value order, c[kByteOrder]->Evaluate(ctx));
    if (!order.view().IsString()) return wrong("byteOrder", "a string", order.view());
    if (order.view().String() != "little" && order.view().String() != "big")
      return LocationError(9130002,
                           "$convert requires that 'byteOrder' be either 'big' or 'little', "
                           "found: " +
                               std::string(order.view().String()));
    o->big_endian = order.view().String() == "big";
  }
  if (c[kBase]) {
    MAYFLY_TRY(Value base, c[kBase]->Evaluate(ctx));
    int32_t n = 0;
    if (!base.view().IsNullish()) {
      if (!base.view().IsNumber() || !ExactInt32(base.view(), &n) ||
          (n != 2 && n != 8 && n != 10 && n != 16))
        return LocationError(3501301,
                             "In $convert, 'base' argument is not a valid value: it is 2, 8, "
                             "10 or 16, found: " +
                                 ValueText(base));
      o->base = n;
    }
  }
  return Ok();
}

Result<Value> Convert(EvalContext& ctx, Children c) {
  MAYFLY_TRY(Value input, c[kInput]->Evaluate(ctx));
  MAYFLY_TRY(Value to, c[kTo]->Evaluate(ctx));
  std::optional<BsonType> type;
  ConvertOptions options;
  BsonValue subtype;
  if (!to.view().IsNullish()) {
    BsonValue name = to.view();
    if (name.IsDocument()) {
      const BsonView fields = name.Document();
      for (const BsonElement& e : fields)
        if (e.name != "type" && e.name != "subtype")
          return Error{ErrorCode::kFailedToParse,
                       "Unrecognized field in $convert's 'to' argument: " + std::string(e.name)};
      subtype = fields["subtype"];
      name = fields["type"];
    }
    if (!name.IsNullish()) {
      if (!name.IsString() && !name.IsNumber())
        return Error{
            ErrorCode::kFailedToParse,
            "$convert's 'to' argument must be a string or number, but is " + TypeText(name)};
      type = ParseTypeName(name);
      if (!type)
        return Error{ErrorCode::kBadValue,
                     "Unknown type name: " +
                         (name.IsString() ? std::string(name.String()) : ValueText(name))};
    }
  }
  MAYFLY_TRY(ReadConvertOptions(ctx, c, subtype, &options));
  if (input.view().IsNullish())
    return c[kOnNull] ? c[kOnNull]->Evaluate(ctx) : Result<Value>(Value::Null());
  if (!type) return Value::Null();
  Result<Value> r = ConvertWith(input.view(), *type, options);
  if (!r && c[kOnError] && r.error().code == ErrorCode::kConversionFailure)
    return c[kOnError]->Evaluate(ctx);
  return r;
}

/// {$toUUID: x} is {$convert: {input: x, to: {type: "binData", subtype: 4}, format: "uuid"}}.
Result<Value> ToUuid(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  return ConvertWith(a.view(0), BsonType::kBinary,
                     {.subtype = kUuidSubtype, .format = BinaryFormat::kUuid});
}

template <BsonType to>
Result<Value> To(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  return ConvertWith(a.view(0), to, {.format = BinaryFormat::kAuto});
}

Result<Value> Type(const EvalArgs& a) { return Value::String(BsonTypeName(a.view(0).type())); }
Result<Value> IsNumber(const EvalArgs& a) { return Value::Bool(a.view(0).IsNumber()); }

/// What the hash of a value begins with: the same number for types that compare as one.
std::optional<int32_t> HashClass(BsonType type) {
  switch (type) {
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kNull:
      return 5;
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128:
      return 10;
    case BsonType::kString:
    case BsonType::kSymbol:
      return 15;
    case BsonType::kBinary:
      return 30;
    case BsonType::kObjectId:
      return 35;
    case BsonType::kBool:
      return 40;
    case BsonType::kDate:
      return 45;
    case BsonType::kTimestamp:
      return 47;
    case BsonType::kRegex:
      return 50;
    default:
      return std::nullopt;
  }
}

/// Numbers that are equal hash alike: by their whole part, as far as 64 bits go.
int64_t HashedNumber(BsonValue v) {
  if (v.Is(BsonType::kInt32) || v.Is(BsonType::kInt64)) return v.NumberAsInt64();
  const double d = v.NumberAsDouble();
  if (std::isnan(d)) return 0;
  if (d >= 9223372036854775808.0) return INT64_MAX;
  if (d < -9223372036854775808.0) return INT64_MIN;
  return static_cast<int64_t>(d);
}

/// The first eight bytes of the MD5 of a seed of zero, the class of the type and the value: read
/// off the values that the manual shows for $toHashedIndexKey and _hashBSONElement.
Result<Value> ToHashedIndexKey(const EvalArgs& a) {
  const BsonValue v = a.view(0);
  const std::optional<int32_t> type = HashClass(v.type());
  if (!type)
    return Error{ErrorCode::kNotImplemented,
                 "$toHashedIndexKey takes no value of type " + TypeText(v) + " in this version"};
  std::string bytes;
  auto append = [&](auto number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  append(int32_t{0});
  append(*type);
  if (v.IsNumber())
    append(HashedNumber(v));
  else if (*type != 5)
    bytes.append(v.data(), v.size());
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &n, EVP_md5(), nullptr) != 1 || n < 8)
    return Error{ErrorCode::kInternalError, "MD5 is not available"};
  int64_t hash;
  std::memcpy(&hash, digest, sizeof hash);
  return Value::Int64(hash);
}

constexpr OperatorDef kOps[] = {
    {.name = "$convert",
     .lazy = &Convert,
     .names = kConvertNames,
     .required = 3,
     .object_code = 9,
     .unknown_code = 9,
     .missing_code = 9,
     .text = "A value as another type.",
     .example =
         R"({"$convert": {"input": "x", "to": "int", "onError": "no number"}} => "no number")"},
    {.name = "$isNumber",
     .min_args = 1,
     .max_args = 1,
     .eval = &IsNumber,
     .text = "Whether the value is a number.",
     .example = R"({"$isNumber": 1.5} => true)"},
    {.name = "$toBool",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kBool>,
     .text = "As a boolean.",
     .example = R"({"$toBool": "false"} => true)"},
    {.name = "$toDate",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kDate>,
     .text = "As a date.",
     .example = R"({"$toDate": "2030-01-31T10:00:00+01:00"} => {"$date": "2030-01-31T09:00:00Z"})"},
    {.name = "$toDecimal",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kDecimal128>,
     .text = "As a decimal.",
     .example = R"({"$toDecimal": "1.50"} => {"$numberDecimal": "1.50"})"},
    {.name = "$toDouble",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kDouble>,
     .text = "As a double.",
     .example = R"({"$toDouble": "-1.5"} => -1.5)"},
    {.name = "$toHashedIndexKey",
     .min_args = 1,
     .max_args = 1,
     .eval = &ToHashedIndexKey,
     .text = "The hash that a hashed index would have for the value.",
     .example =
         R"({"$toHashedIndexKey": "string to hash"} => {"$numberLong": "763543691661428748"})"},
    {.name = "$toInt",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kInt32>,
     .text = "As a 32-bit integer.",
     .example = R"({"$toInt": 3.9} => 3)"},
    {.name = "$toLong",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kInt64>,
     .text = "As a 64-bit integer.",
     .example = R"({"$toLong": "12"} => {"$numberLong": "12"})"},
    {.name = "$toObjectId",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kObjectId>,
     .text = "As an ObjectId.",
     .example =
         R"({"$toObjectId": "0123456789abcdef01234567"} => {"$oid": "0123456789abcdef01234567"})"},
    {.name = "$toString",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kString>,
     .text = "As text.",
     .example = R"({"$toString": 2.5} => "2.5")"},
    {.name = "$toUUID",
     .min_args = 1,
     .max_args = 1,
     .eval = &ToUuid,
     .text = "As a UUID.",
     .example =
         R"({"$toUUID": "00112233-4455-6677-8899-aabbccddeeff"} => {"$uuid": "00112233-4455-6677-8899-aabbccddeeff"})"},
    {.name = "$type",
     .min_args = 1,
     .max_args = 1,
     .eval = &Type,
     .text = "The name of the value's type.",
     .example = R"({"$type": "$none"} => "missing")"},
};

}  // namespace

std::span<const OperatorDef> TypeOperators() { return kOps; }

}  // namespace mayfly

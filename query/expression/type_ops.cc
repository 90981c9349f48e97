#include <charconv>
#include <cmath>

#include "protocol/decimal128.h"
#include "protocol/object_id.h"
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

// {input, to, onError, onNull}; evaluated lazily, so that onError may fail too.
enum { kInput, kTo, kOnError, kOnNull };
constexpr std::string_view kConvertNames[] = {"input", "to", "onError", "onNull"};

Result<Value> Convert(EvalContext& ctx, Children c) {
  MAYFLY_TRY(Value input, c[kInput]->Evaluate(ctx));
  MAYFLY_TRY(Value to, c[kTo]->Evaluate(ctx));
  std::optional<BsonType> type;
  if (!to.view().IsNullish()) {
    BsonValue name = to.view();
    if (name.IsDocument()) name = name.Document()["type"];
    if (!name.IsString() && !name.IsNumber())
      return Error{ErrorCode::kFailedToParse,
                   "$convert's 'to' argument must be a string or number, but is " + TypeText(name)};
    type = ParseTypeName(name);
    if (!type)
      return Error{
          ErrorCode::kBadValue,
          "Unknown type name: " + (name.IsString() ? std::string(name.String()) : ValueText(name))};
  }
  if (input.view().IsNullish())
    return c[kOnNull] ? c[kOnNull]->Evaluate(ctx) : Result<Value>(Value::Null());
  if (!type) return Value::Null();
  Result<Value> r = ConvertValue(input.view(), *type);
  if (!r && c[kOnError] && r.error().code == ErrorCode::kConversionFailure)
    return c[kOnError]->Evaluate(ctx);
  return r;
}

template <BsonType to>
Result<Value> To(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  return ConvertValue(a.view(0), to);
}

Result<Value> Type(const EvalArgs& a) { return Value::String(BsonTypeName(a.view(0).type())); }
Result<Value> IsNumber(const EvalArgs& a) { return Value::Bool(a.view(0).IsNumber()); }

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

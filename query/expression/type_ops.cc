#include <openssl/evp.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "query/expression/binary_vector.h"
#include "query/expression/convert.h"
#include "query/expression/json_text.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

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
    o->subtype_given = true;
  }
  if (c[kFormat]) {
    MAYFLY_TRY(Value format, c[kFormat]->Evaluate(ctx));
    if (!format.view().IsNullish()) {
      if (!format.view().IsString()) return wrong("format", "a string", format.view());
      const std::optional<BinaryFormat> known = ParseBinaryFormat(format.view().String());
      if (!known)
        return LocationError(4341125, "Invalid 'format' argument for $convert: " +
                                          std::string(format.view().String()));
      o->format = *known;
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

/// `to`: a type, or {type, subtype}. No type when it is null.
Result<std::optional<BsonType>> ReadTargetType(BsonValue to, BsonValue* subtype) {
  if (to.IsDocument()) {
    const BsonView fields = to.Document();
    for (const BsonElement& e : fields)
      if (e.name != "type" && e.name != "subtype")
        return Error{ErrorCode::kFailedToParse,
                     "Unrecognized field in $convert's 'to' argument: " + std::string(e.name)};
    *subtype = fields["subtype"];
    to = fields["type"];
  }
  if (to.IsNullish()) return std::optional<BsonType>();
  if (!to.IsString() && !to.IsNumber())
    return Error{ErrorCode::kFailedToParse,
                 "$convert's 'to' argument must be a string or number, but is " + TypeText(to)};
  std::optional<BsonType> type = ParseTypeName(to);
  if (!type)
    return Error{
        ErrorCode::kBadValue,
        "Unknown type name: " + (to.IsString() ? std::string(to.String()) : ValueText(to))};
  return type;
}

/// Any conversion: those whose results may become large, and the others.
Result<Value> ConvertAny(EvalContext& ctx, BsonValue v, BsonType to, const ConvertOptions& o) {
  if (to == BsonType::kString && (v.IsDocument() || v.IsArray())) return JsonText(ctx, v);
  if ((to == BsonType::kDocument || to == BsonType::kArray) && v.IsString())
    return ParseJsonText(ctx, v.String(), to);
  if (to == BsonType::kArray && v.Is(BsonType::kBinary)) return VectorToArray(ctx, v);
  if (to == BsonType::kBinary && v.IsArray() &&
      (!o.subtype_given || o.subtype == BinaryVector::kSubtype))
    return ArrayToVector(ctx, v);
  return ConvertWith(v, to, o);
}

Result<Value> Convert(EvalContext& ctx, Children c) {
  MAYFLY_TRY(Value input, c[kInput]->Evaluate(ctx));
  MAYFLY_TRY(Value to, c[kTo]->Evaluate(ctx));
  BsonValue subtype;
  MAYFLY_TRY(const std::optional<BsonType> type, ReadTargetType(to.view(), &subtype));
  ConvertOptions options;
  MAYFLY_TRY(ReadConvertOptions(ctx, c, subtype, &options));
  if (input.view().IsNullish())
    return c[kOnNull] ? c[kOnNull]->Evaluate(ctx) : Result<Value>(Value::Null());
  if (!type) return Value::Null();
  Result<Value> r = ConvertAny(ctx, input.view(), *type, options);
  if (!r && c[kOnError] && r.error().code == ErrorCode::kConversionFailure)
    return c[kOnError]->Evaluate(ctx);
  if (!r) return r;
  return Made(ctx, std::move(r).value());
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
  return ConvertAny(a.ctx, a.view(0), to, {.format = BinaryFormat::kAuto});
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

constexpr OperatorDef kTypeOps[] = {
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
    {.name = "$toArray",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kArray>,
     .text = "The array that a JSON text describes, or the elements of a vector.",
     .example = R"({"$toArray": "[1, {\"a\": 2.5}]"} => [1, {"a": 2.5}])"},
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
    {.name = "$toObject",
     .min_args = 1,
     .max_args = 1,
     .eval = &To<BsonType::kDocument>,
     .text = "The document that a JSON text describes.",
     .example = R"({"$toObject": "{\"a\": [1, null]}"} => {"a": [1, null]})"},
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

std::span<const OperatorDef> TypeOperators() { return kTypeOps; }

}  // namespace mayfly

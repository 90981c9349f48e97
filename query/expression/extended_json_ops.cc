// $serializeEJSON and $deserializeEJSON: between values and the wrappers of extended JSON v2, which
// are documents here, no text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "protocol/base64.h"
#include "protocol/decimal128.h"
#include "protocol/extended_json.h"
#include "protocol/hex.h"
#include "protocol/object_id.h"
#include "query/expression/date_util.h"
#include "query/expression/growth.h"
#include "query/expression/nesting.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

/// The most bytes that a wrapper has beside names and contents.
constexpr size_t kWrapperExtra = 128;

/// What both directions share: a value is written as the only field of a document, since a wrapper
/// may become a scalar, and the other way round.
class EjsonBuffer {
 public:
  explicit EjsonBuffer(EvalContext& ctx) : out_(ctx), scratch_(ctx) {}

  /// Before `n` bytes are written, of which a part is a text made for it.
  Result<void> Room(size_t n) {
    if (out_.bytes().size() + n > static_cast<size_t>(kMaxBsonInternalSize))
      return Error{ErrorCode::kBSONObjectTooLarge,
                   "A conversion from or to extended JSON makes over 16 MB"};
    MAYFLY_TRY(scratch_.Set(n));
    return out_.Room(n + kElementExtra + kWrapperExtra);
  }
  std::string& bytes() { return out_.bytes(); }
  /// The field's value. REQUIRES: the document is finished.
  Value Take() {
    auto whole = std::make_shared<const std::string>(out_.Take());
    return Value::Shared(BsonView(*whole).First().value, whole);
  }

 private:
  GrowingBytes out_;
  Charge scratch_;
};

// --- to wrappers ---

class EjsonWriter {
 public:
  EjsonWriter(EvalContext& ctx, bool relaxed) : out_(ctx), relaxed_(relaxed) {}

  Result<Value> Whole(BsonValue v) {
    BsonBuilder only(out_.bytes());
    MAYFLY_TRY(Field("", v, only, 0));
    only.Done();
    return out_.Take();
  }

 private:
  Result<void> Field(std::string_view name, BsonValue v, BsonBuilder& b, int depth) {
    if (depth > kMaxValueDepth) return NestedTooDeep();
    switch (v.type()) {
      case BsonType::kDocument: {
        MAYFLY_TRY(out_.Room(name.size()));
        BsonBuilder inner = b.OpenDocument(name);
        return Fields(v.Document(), inner, depth);
      }
      case BsonType::kArray: {
        MAYFLY_TRY(out_.Room(name.size()));
        BsonArrayBuilder inner = b.OpenArray(name);
        for (const BsonElement& e : v.Document()) {
          MAYFLY_TRY(Field(inner.NextName(), e.value, inner.raw(), depth + 1));
        }
        return Ok();
      }
      case BsonType::kCodeWithScope: {
        MAYFLY_TRY(out_.Room(name.size() + v.size()));
        BsonBuilder code = b.OpenDocument(name);
        code.Append("$code", v.CodeWithScopeCode());
        BsonBuilder scope = code.OpenDocument("$scope");
        return Fields(v.CodeWithScopeScope(), scope, depth + 1);
      }
      default:
        // Base64 has the longest text.
        MAYFLY_TRY(out_.Room(name.size() + (v.size() + 2) / 3 * 4));
        if (!Plain(v)) {
          BsonBuilder wrapper = b.OpenDocument(name);
          Wrap(v, wrapper);
          return Ok();
        }
        b.Append(name, v);
        return Ok();
    }
  }

  Result<void> Fields(BsonView doc, BsonBuilder& b, int depth) {
    for (const BsonElement& e : doc) {
      MAYFLY_TRY(Field(e.name, e.value, b, depth + 1));
    }
    return Ok();
  }

  /// Whether JSON has the value itself.
  bool Plain(BsonValue v) const {
    switch (v.type()) {
      case BsonType::kString:
      case BsonType::kBool:
      case BsonType::kNull:
        return true;
      case BsonType::kInt32:
      case BsonType::kInt64:
        return relaxed_;
      case BsonType::kDouble:
        return relaxed_ && std::isfinite(v.Double());
      default:
        return false;
    }
  }

  void Wrap(BsonValue v, BsonBuilder& b) const {
    switch (v.type()) {
      case BsonType::kInt32:
        b.Append("$numberInt", std::to_string(v.Int32()));
        break;
      case BsonType::kInt64:
        b.Append("$numberLong", std::to_string(v.Int64()));
        break;
      case BsonType::kDouble:
        b.Append("$numberDouble", Exact(v.Double()));
        break;
      case BsonType::kDecimal128:
        b.Append("$numberDecimal", decimal128::ToString(v.Decimal()));
        break;
      case BsonType::kObjectId:
        b.Append("$oid", ObjectIdToHex(v.ObjectId()));
        break;
      case BsonType::kDate:
        Date(v.Date(), b);
        break;
      case BsonType::kBinary:
        Binary(v, b);
        break;
      case BsonType::kRegex: {
        std::string options(v.RegexOptions());
        std::ranges::sort(options);
        BsonBuilder regex = b.OpenDocument("$regularExpression");
        regex.Append("pattern", v.RegexPattern()).Append("options", options);
        break;
      }
      case BsonType::kTimestamp: {
        BsonBuilder parts = b.OpenDocument("$timestamp");
        parts.Append("t", MakeInteger(static_cast<int64_t>(v.Timestamp() >> 32), false).view());
        parts.Append("i",
                     MakeInteger(static_cast<int64_t>(v.Timestamp() & 0xFFFFFFFF), false).view());
        break;
      }
      case BsonType::kDbPointer: {
        BsonBuilder pointer = b.OpenDocument("$dbPointer");
        pointer.Append("$ref", v.DbPointerNamespace());
        pointer.OpenDocument("$id").Append("$oid", ObjectIdToHex(v.DbPointerId()));
        break;
      }
      case BsonType::kCode:
        b.Append("$code", v.String());
        break;
      case BsonType::kSymbol:
        b.Append("$symbol", v.String());
        break;
      case BsonType::kMinKey:
        b.Append("$minKey", int32_t{1});
        break;
      case BsonType::kMaxKey:
        b.Append("$maxKey", int32_t{1});
        break;
      default:
        b.Append("$undefined", true);
    }
  }

  /// The shortest text that reads back as the number, never that of an integer.
  static std::string Exact(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    char text[40];
    std::string shown(text, std::to_chars(text, text + sizeof text, d).ptr);
    if (shown.find_first_of(".e") == std::string::npos) shown += ".0";
    return shown;
  }

  void Date(Instant t, BsonBuilder& b) const {
    constexpr int64_t kYear10000 = 253402300800000;
    if (relaxed_ && t.millis >= 0 && t.millis < kYear10000)
      b.Append("$date", FormatIsoDate(t));
    else
      b.OpenDocument("$date").Append("$numberLong", std::to_string(t.millis));
  }

  static void Binary(BsonValue v, BsonBuilder& b) {
    std::string_view data = v.BinaryData();
    // The old subtype repeats the length inside; it is not part of the data.
    if (v.BinarySubtype() == 2 && data.size() >= 4) data.remove_prefix(4);
    const char subtype = static_cast<char>(v.BinarySubtype());
    BsonBuilder binary = b.OpenDocument("$binary");
    binary.Append("base64", Base64(data)).Append("subType", HexDigits({&subtype, 1}));
  }

  EjsonBuffer out_;
  const bool relaxed_;
};

// --- from wrappers ---

Error MalformedWrapper(std::string_view name) {
  return {ErrorCode::kConversionFailure,
          "Malformed " + std::string(name) + " in $deserializeEJSON with no onError value"};
}

/// The text of a wrapper's field that is a string; empty for other types, which no wrapper is.
std::string_view WrappedText(BsonValue v) { return v.IsString() ? v.String() : std::string_view(); }

template <class T>
bool ReadInteger(std::string_view text, T* out) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && at == end && !text.empty();
}

bool ReadDouble(std::string_view text, double* out) {
  if (text == "NaN" || text == "Infinity" || text == "-Infinity") {
    *out = text == "NaN" ? std::nan("") : text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    return true;
  }
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string_view::npos)
    return false;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *out);
  if (at != end || error == std::errc::invalid_argument) return false;
  if (error != std::errc()) *out = std::strtod(std::string(text).c_str(), nullptr);
  return std::isfinite(*out);
}

bool ReadHexBytes(std::string_view text, std::string* out) {
  if (text.size() % 2 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 2) {
    uint8_t byte = 0;
    const char* const begin = text.data() + i;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    if (error != std::errc() || end != begin + 2) return false;
    *out += static_cast<char>(byte);
  }
  return true;
}

/// Whether `doc` has the two fields and no other.
bool HasTwo(BsonView doc, std::string_view first, std::string_view second) {
  return doc.Has(first) && doc.Has(second) && doc.Count() == 2;
}

// Each reads the wrapper `doc` with the field `value` that names it, and writes what it stands for.
// False: it is no such wrapper.

bool ReadOid(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  std::string bytes;
  if (doc.Count() != 1 || WrappedText(value).size() != 24 ||
      !ReadHexBytes(WrappedText(value), &bytes))
    return false;
  b.AppendObjectId(name, bytes);
  return true;
}
template <class T>
bool ReadWrappedInteger(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  T n;
  if (doc.Count() != 1 || !ReadInteger(WrappedText(value), &n)) return false;
  b.Append(name, n);
  return true;
}
bool ReadWrappedDouble(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  double d;
  if (doc.Count() != 1 || !ReadDouble(WrappedText(value), &d)) return false;
  b.Append(name, d);
  return true;
}
bool ReadWrappedDecimal(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  if (doc.Count() != 1 || WrappedText(value).empty()) return false;
  const Result<Decimal128Bits> d = decimal128::Parse(WrappedText(value));
  if (!d) return false;
  b.AppendDecimal(name, d.value());
  return true;
}
bool ReadWrappedDate(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  int64_t millis;
  if (doc.Count() != 1) return false;
  if (value.IsDocument()) {
    const BsonView number = value.Document();
    if (number.Count() != 1 || !ReadInteger(WrappedText(number["$numberLong"]), &millis))
      return false;
  } else if (!ParseIsoDate(WrappedText(value), &millis)) {
    return false;
  }
  b.Append(name, Instant{millis});
  return true;
}
bool ReadWrappedBinary(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  if (doc.Count() != 1 || !value.IsDocument()) return false;
  const BsonView parts = value.Document();
  if (!HasTwo(parts, "base64", "subType") || !parts["base64"].IsString()) return false;
  std::string digits(WrappedText(parts["subType"])), subtype, data;
  if (digits.size() == 1) digits.insert(0, "0");
  if (digits.size() != 2 || !ReadHexBytes(digits, &subtype)) return false;
  if (subtype[0] == 2) data.resize(4);
  if (!DecodeBase64(WrappedText(parts["base64"]), data)) return false;
  if (subtype[0] == 2) StoreLe<int32_t>(data.data(), static_cast<int32_t>(data.size() - 4));
  b.AppendBinary(name, static_cast<uint8_t>(subtype[0]), data);
  return true;
}
bool ReadWrappedUuid(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  const std::string_view text = WrappedText(value);
  if (doc.Count() != 1 || text.size() != 36) return false;
  std::string digits, bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash != (text[i] == '-')) return false;
    if (!dash) digits += text[i];
  }
  if (!ReadHexBytes(digits, &bytes)) return false;
  b.AppendBinary(name, 4, bytes);
  return true;
}
bool ReadWrappedRegex(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  if (doc.Count() != 1 || !value.IsDocument()) return false;
  const BsonView parts = value.Document();
  if (!HasTwo(parts, "pattern", "options") || !parts["pattern"].IsString() ||
      !parts["options"].IsString())
    return false;
  const std::string_view pattern = WrappedText(parts["pattern"]);
  std::string options(WrappedText(parts["options"]));
  if (pattern.find('\0') != pattern.npos || options.find('\0') != options.npos) return false;
  std::ranges::sort(options);
  b.AppendRegex(name, pattern, options);
  return true;
}
bool ReadWrappedTimestamp(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  if (doc.Count() != 1 || !value.IsDocument()) return false;
  const BsonView parts = value.Document();
  int64_t t, i;
  if (!HasTwo(parts, "t", "i") || !parts["t"].ExactInt64(&t) || !parts["i"].ExactInt64(&i) ||
      t < 0 || t > UINT32_MAX || i < 0 || i > UINT32_MAX)
    return false;
  b.AppendTimestamp(name, static_cast<uint64_t>(t) << 32 | static_cast<uint64_t>(i));
  return true;
}
bool ReadWrappedPointer(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  if (doc.Count() != 1 || !value.IsDocument()) return false;
  const BsonView parts = value.Document();
  if (!HasTwo(parts, "$ref", "$id") || !parts["$ref"].IsString() || !parts["$id"].IsDocument())
    return false;
  const BsonView id = parts["$id"].Document();
  std::string oid;
  if (id.Count() != 1 || WrappedText(id["$oid"]).size() != 24 ||
      !ReadHexBytes(WrappedText(id["$oid"]), &oid))
    return false;
  const std::string bytes = std::string(parts["$ref"].bytes()) + oid;
  b.Append(name,
           BsonValue(BsonType::kDbPointer, bytes.data(), static_cast<uint32_t>(bytes.size())));
  return true;
}
template <BsonType kType>
bool ReadWrappedText(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  if (doc.Count() != 1 || !value.IsString()) return false;
  b.AppendStringLike(kType, name, value.String());
  return true;
}
template <BsonType kType>
bool ReadWrappedMark(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b) {
  int64_t one;
  const bool set = kType == BsonType::kUndefined ? value.Is(BsonType::kBool) && value.Bool()
                                                 : value.ExactInt64(&one) && one == 1;
  if (doc.Count() != 1 || !set) return false;
  b.Append(name, BsonValue(kType, "", 0));
  return true;
}

struct EjsonWrapper {
  std::string_view name;
  bool (*read)(std::string_view name, BsonView doc, BsonValue value, BsonBuilder& b);
};
constexpr EjsonWrapper kEjsonWrappers[] = {
    {"$binary", &ReadWrappedBinary},
    {"$code", &ReadWrappedText<BsonType::kCode>},
    {"$date", &ReadWrappedDate},
    {"$dbPointer", &ReadWrappedPointer},
    {"$maxKey", &ReadWrappedMark<BsonType::kMaxKey>},
    {"$minKey", &ReadWrappedMark<BsonType::kMinKey>},
    {"$numberDecimal", &ReadWrappedDecimal},
    {"$numberDouble", &ReadWrappedDouble},
    {"$numberInt", &ReadWrappedInteger<int32_t>},
    {"$numberLong", &ReadWrappedInteger<int64_t>},
    {"$oid", &ReadOid},
    {"$regularExpression", &ReadWrappedRegex},
    {"$symbol", &ReadWrappedText<BsonType::kSymbol>},
    {"$timestamp", &ReadWrappedTimestamp},
    {"$undefined", &ReadWrappedMark<BsonType::kUndefined>},
    {"$uuid", &ReadWrappedUuid},
};

class EjsonReader {
 public:
  explicit EjsonReader(EvalContext& ctx, int depth = 0) : ctx_(ctx), out_(ctx), depth_(depth) {}

  Result<Value> Whole(BsonValue v) {
    BsonBuilder only(out_.bytes());
    MAYFLY_TRY(Field("", v, only, depth_));
    only.Done();
    return out_.Take();
  }

 private:
  Result<void> Field(std::string_view name, BsonValue v, BsonBuilder& b, int depth) {
    if (depth > kMaxValueDepth) return NestedTooDeep();
    if (v.IsDocument()) return Document(name, v.Document(), b, depth);
    if (v.IsArray()) {
      MAYFLY_TRY(out_.Room(name.size()));
      BsonArrayBuilder inner = b.OpenArray(name);
      for (const BsonElement& e : v.Document()) {
        MAYFLY_TRY(Field(inner.NextName(), e.value, inner.raw(), depth + 1));
      }
      return Ok();
    }
    MAYFLY_TRY(out_.Room(name.size() + v.size()));
    b.Append(name, v);
    return Ok();
  }

  /// A document with the name of a wrapper among its fields is that wrapper, or malformed.
  Result<void> Document(std::string_view name, BsonView doc, BsonBuilder& b, int depth) {
    MAYFLY_TRY(out_.Room(name.size()));
    for (const BsonElement& e : doc) {
      if (!e.name.starts_with('$')) continue;
      if (e.name == "$code" && doc.Has("$scope")) return CodeWithScope(name, doc, b, depth);
      for (const EjsonWrapper& w : kEjsonWrappers) {
        if (e.name != w.name) continue;
        MAYFLY_TRY(out_.Room(name.size() + doc.size()));
        if (!w.read(name, doc, e.value, b)) return MalformedWrapper(w.name);
        return Ok();
      }
    }
    BsonBuilder inner = b.OpenDocument(name);
    for (const BsonElement& e : doc) {
      MAYFLY_TRY(Field(e.name, e.value, inner, depth + 1));
    }
    return Ok();
  }

  Result<void> CodeWithScope(std::string_view name, BsonView doc, BsonBuilder& b, int depth) {
    const BsonValue code = doc["$code"], scope = doc["$scope"];
    if (!HasTwo(doc, "$code", "$scope") || !code.IsString() || !scope.IsDocument())
      return MalformedWrapper("$code");
    EjsonReader inner(ctx_, depth + 1);
    MAYFLY_TRY(const Value variables, inner.Whole(scope));
    if (!variables.view().IsDocument()) return MalformedWrapper("$scope");
    std::string bytes(sizeof(int32_t), '\0');
    MAYFLY_TRY(out_.Room(name.size() + 2 * (code.size() + variables.view().size())));
    bytes += code.bytes();
    bytes += variables.view().bytes();
    StoreLe(bytes.data(), static_cast<int32_t>(bytes.size()));
    b.Append(name, BsonValue(BsonType::kCodeWithScope, bytes.data(),
                             static_cast<uint32_t>(bytes.size())));
    return Ok();
  }

  EvalContext& ctx_;
  EjsonBuffer out_;
  const int depth_;
};

/// `on_error` is for what the value itself does not allow; the operation's limits and its end are
/// no such thing.
Result<Value> OrElse(EvalContext& ctx, Result<Value> made, const ExpressionPtr& on_error) {
  if (made) return Made(ctx, std::move(made).value());
  const ErrorCode code = made.error().code;
  if (on_error && (code == ErrorCode::kConversionFailure || code == ErrorCode::kOverflow ||
                   code == ErrorCode::kBSONObjectTooLarge))
    return on_error->Evaluate(ctx);
  return made;
}

enum { kSerializeInput, kSerializeRelaxed, kSerializeOnError };
constexpr std::string_view kSerializeNames[] = {"input", "relaxed", "onError"};
Result<Value> SerializeEjson(EvalContext& ctx, Children c) {
  MAYFLY_TRY(const Value input, c[kSerializeInput]->Evaluate(ctx));
  bool relaxed = false;
  if (c[kSerializeRelaxed]) {
    MAYFLY_TRY(const Value v, c[kSerializeRelaxed]->Evaluate(ctx));
    if (!v.view().Is(BsonType::kBool))
      return TypeMismatch("$serializeEJSON requires 'relaxed' to be a boolean, found: " +
                          TypeText(v));
    relaxed = v.view().Bool();
  }
  if (input.view().IsNullish()) return Value::Null();
  return OrElse(ctx, EjsonWriter(ctx, relaxed).Whole(input.view()), c[kSerializeOnError]);
}

enum { kDeserializeInput, kDeserializeOnError };
constexpr std::string_view kDeserializeNames[] = {"input", "onError"};
Result<Value> DeserializeEjson(EvalContext& ctx, Children c) {
  MAYFLY_TRY(const Value input, c[kDeserializeInput]->Evaluate(ctx));
  if (input.view().IsNullish()) return Value::Null();
  return OrElse(ctx, EjsonReader(ctx).Whole(input.view()), c[kDeserializeOnError]);
}

constexpr OperatorDef kExtendedJsonOps[] = {
    {.name = "$deserializeEJSON",
     .lazy = &DeserializeEjson,
     .names = kDeserializeNames,
     .required = 1,
     .text = "The value that the wrappers of extended JSON describe.",
     .example =
         R"({"$deserializeEJSON": {"input": {"$toObject": "{\"a\": {\"$numberLong\": \"5\"}}"}}} => {"a": {"$numberLong": "5"}})"},
    {.name = "$serializeEJSON",
     .lazy = &SerializeEjson,
     .names = kSerializeNames,
     .required = 1,
     .text = "A value with the wrappers of extended JSON.",
     .example =
         R"({"$toString": {"$serializeEJSON": {"input": [1, "a"]}}} => "[{\"$numberInt\":\"1\"},\"a\"]")"},
};

}  // namespace

std::span<const OperatorDef> ExtendedJsonOperators() { return kExtendedJsonOps; }

}  // namespace mayfly

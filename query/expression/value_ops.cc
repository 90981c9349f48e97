// Values that are new at each evaluation, hashes, and what a binary value says of itself.
#include <openssl/evp.h>

#define XXH_INLINE_ALL  // nothing to link: the header is all of it
#include <xxhash.h>
#undef XXH_INLINE_ALL

#include <optional>
#include <string>

#include "protocol/hex.h"
#include "protocol/object_id.h"
#include "protocol/utf8.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

/// The clock as it is now: $$NOW is one reading for the whole operation.
Instant ClockNow(const EvalContext& ctx) {
  return ctx.op != nullptr ? ctx.op->clock().Now() : ctx.now;
}
Result<Value> NewId(EvalContext& ctx) { return Value::ObjectId(NewObjectId(ClockNow(ctx))); }
Result<Value> CurrentDate(EvalContext& ctx) { return Value::Date(ClockNow(ctx)); }

/// An operator whose one argument is {}: another value at each evaluation.
class FreshExpression final : public Expression {
 public:
  using Make = Result<Value> (*)(EvalContext& ctx);
  FreshExpression(std::string_view name, Make make) : name_(name), make_(make) {}
  Result<Value> Evaluate(EvalContext& ctx) const override { return make_(ctx); }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder sub = out.OpenDocument(name);
    sub.OpenDocument(name_);
  }
  void AddDependencies(std::set<std::string>*) const override {}

 private:
  std::string_view name_;  ///< of a row
  Make make_;
};

template <FreshExpression::Make kMake>
Result<ExpressionPtr> ParseFresh(const OperatorDef& def, BsonValue arg, VariableScope&) {
  if (!arg.IsDocument() || !arg.Document().empty())
    return Error{ErrorCode::kFailedToParse,
                 std::string(def.name) +
                     " takes an empty document as its argument, found: " + ValueText(arg)};
  return ExpressionPtr(std::make_unique<FreshExpression>(def.name, kMake));
}

constexpr std::string_view kHashNames[] = {"input", "algorithm"};

Result<std::string> Digest(const EVP_MD* md, std::string_view name, std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &n, md, nullptr) != 1)
    return Error{ErrorCode::kIllegalOperation,
                 std::string(name) + " is not available, as in FIPS mode"};
  return std::string(reinterpret_cast<const char*>(digest), n);
}

/// The hash of the bytes of a string or of a binary value; the bytes of a number are in the order
/// in which it is written.
Result<std::string> HashOf(const EvalArgs& a, std::string_view algorithm) {
  const BsonValue v = a.view(0);
  if (!v.IsString() && !v.Is(BsonType::kBinary))
    return TypeMismatch(OperatorName(a) +
                        " requires 'input' to be a string or binData, found: " + TypeText(v));
  const std::string_view bytes = v.IsString() ? v.String() : v.BinaryData();
  if (v.IsString() && !IsUtf8(bytes))
    return BadValue(OperatorName(a) + " requires a string in valid UTF-8");
  if (algorithm == "md5") return Digest(EVP_md5(), algorithm, bytes);
  if (algorithm == "sha256") return Digest(EVP_sha256(), algorithm, bytes);
  XXH64_canonical_t canonical;
  XXH64_canonicalFromHash(&canonical, XXH64(bytes.data(), bytes.size(), 0));
  return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest);
}

/// No hash: `input` is null or missing.
Result<std::optional<std::string>> ReadHash(const EvalArgs& a) {
  const BsonValue algorithm = a.view(1);
  if (!algorithm.IsString())
    return TypeMismatch(OperatorName(a) +
                        " requires 'algorithm' to be a string, found: " + TypeText(algorithm));
  const std::string_view name = algorithm.String();
  if (name != "md5" && name != "sha256" && name != "xxh64")
    return BadValue(OperatorName(a) +
                    " knows the algorithms md5, sha256 and xxh64, not: " + ValueText(algorithm));
  if (a.nullish(0)) return std::optional<std::string>();
  MAYFLY_TRY(std::string hash, HashOf(a, name));
  return std::optional(std::move(hash));
}

Result<Value> Hash(const EvalArgs& a) {
  MAYFLY_TRY(const std::optional<std::string> hash, ReadHash(a));
  if (!hash) return Value::Null();
  std::string bytes(sizeof(int32_t) + 1, '\0');  // the length, and subtype 0
  StoreLe(bytes.data(), static_cast<int32_t>(hash->size()));
  return Value::Owned(BsonType::kBinary, bytes + *hash);
}

Result<Value> HexHash(const EvalArgs& a) {
  MAYFLY_TRY(const std::optional<std::string> hash, ReadHash(a));
  if (!hash) return Value::Null();
  std::string digits;
  AppendHexDigits(*hash, digits, kUpperHex);
  return Value::String(digits);
}

Result<Value> Subtype(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).Is(BsonType::kBinary))
    return TypeMismatch("$subtype requires a binData argument, found: " + TypeText(a[0]));
  return Value::Int32(a.view(0).BinarySubtype());
}

constexpr OperatorDef kValueOps[] = {
    {.name = "$createObjectId",
     .parse = &ParseFresh<&NewId>,
     .text = "A new ObjectId at each evaluation.",
     .example = R"({"$type": {"$createObjectId": {}}} => "objectId")"},
    {.name = "$currentDate",
     .parse = &ParseFresh<&CurrentDate>,
     .text = "The date as it is at each evaluation.",
     .example = R"({"$type": {"$currentDate": {}}} => "date")"},
    {.name = "$hash",
     .eval = &Hash,
     .names = kHashNames,
     .required = 3,
     .text = "The hash of a string or of binary data, as binary data: md5, sha256 or xxh64.",
     .example =
         R"({"$hash": {"input": "", "algorithm": "xxh64"}} => {"$binary": {"base64": "70bbN1HY6Zk=", "subType": "00"}})"},
    {.name = "$hexHash",
     .eval = &HexHash,
     .names = kHashNames,
     .required = 3,
     .text = "The same as hexadecimal digits.",
     .example =
         R"({"$hexHash": {"input": "", "algorithm": "md5"}} => "D41D8CD98F00B204E9800998ECF8427E")"},
    {.name = "$subtype",
     .min_args = 1,
     .max_args = 1,
     .eval = &Subtype,
     .text = "The subtype of binary data.",
     .example = R"({"$subtype": {"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}} => 4)"},
};

}  // namespace

std::span<const OperatorDef> ValueOperators() { return kValueOps; }

}  // namespace mayfly

// Operators whose operand needs a parser of its own: $type, $size, $mod and the bitwise ones.
#include <algorithm>
#include <cmath>

#include "protocol/decimal128.h"
#include "protocol/extended_json.h"
#include "query/match/match_parser.h"

namespace mayfly {

namespace {

std::string ShownElement(const BsonElement& e) {
  return std::string(e.name) + ": " + ToRelaxedJson(e.value);
}

/// An integer of any numeric type, as operands are checked: FailedToParse 9 otherwise.
Result<int64_t> ParseInteger(const BsonElement& e) {
  if (!e.value.IsNumber())
    return Error{ErrorCode::kFailedToParse, "Expected a number in: " + ShownElement(e)};
  int64_t n;
  if (e.value.ExactInt64(&n)) return n;
  double d = e.value.NumberAsDouble();
  if (std::isnan(d))
    return Error{ErrorCode::kFailedToParse,
                 "Expected an integer, but found NaN in: " + ShownElement(e)};
  if (std::abs(d) >= 9223372036854775808.0)
    return Error{ErrorCode::kFailedToParse,
                 "Cannot represent as a 64-bit integer: " + ShownElement(e)};
  return Error{ErrorCode::kFailedToParse, "Expected an integer: " + ShownElement(e)};
}

}  // namespace

Result<int64_t> ParseNonNegativeInt(const BsonElement& e) {
  MAYFLY_TRY(int64_t n, ParseInteger(e));
  if (n < 0)
    return Error{ErrorCode::kFailedToParse,
                 "Expected a non-negative number in: " + ShownElement(e)};
  return n;
}

Result<std::bitset<256>> ParseTypeSet(BsonValue operand, std::string_view name) {
  static constexpr BsonType kNumbers[] = {BsonType::kDouble, BsonType::kInt32, BsonType::kInt64,
                                          BsonType::kDecimal128};
  std::bitset<256> types;
  auto add = [&](BsonValue v) -> Result<void> {
    if (v.IsString()) {
      if (v.String() == "number") {
        for (BsonType t : kNumbers) types.set(static_cast<uint8_t>(t));
        return Ok();
      }
      for (int t = 1; t < 256; ++t) {
        if (t > 0x13 && t != 0x7F && t != 0xFF) continue;
        if (BsonTypeName(static_cast<BsonType>(t)) == v.String()) {
          types.set(static_cast<size_t>(t));
          return Ok();
        }
      }
      return Error{ErrorCode::kBadValue, "Unknown type name alias: " + std::string(v.String())};
    }
    if (!v.IsNumber())
      return Error{ErrorCode::kTypeMismatch, "type must be represented as a number or a string"};
    int64_t code = 0;
    bool whole = v.ExactInt64(&code);
    if (whole && code == 0)
      return Error{ErrorCode::kBadValue,
                   "Invalid numerical type code: 0. Instead use {$exists:false}."};
    if (!whole || !((code >= 1 && code <= 0x13) || code == 127 || code == -1))
      return Error{ErrorCode::kBadValue, "Invalid numerical type code: " + ToRelaxedJson(v)};
    types.set(static_cast<uint8_t>(code));
    return Ok();
  };
  if (operand.IsArray()) {
    for (const BsonElement& e : operand.Document()) {
      MAYFLY_TRY(add(e.value));
    }
    if (types.none())
      return Error{ErrorCode::kFailedToParse, std::string(name) + " must match at least one type"};
  } else {
    MAYFLY_TRY(add(operand));
  }
  return types;
}

namespace match {

Result<MatchPtr> ParseTypeMatch(std::string_view path, const BsonElement& e) {
  auto extra = std::make_shared<MatchExpression::Extra>();
  MAYFLY_TRY(extra->types, ParseTypeSet(e.value, path.empty() ? e.name : path));
  MatchPtr m = Node(MatchKind::kType, path);
  for (size_t t = 0; t < extra->types.size(); ++t)
    if (extra->types[t]) m->list.push_back(Value::Int32(t == 0xFF ? -1 : static_cast<int32_t>(t)));
  m->extra = std::move(extra);
  return m;
}

Result<MatchPtr> ParseSizeMatch(std::string_view path, const BsonElement& e) {
  Result<int64_t> n = ParseNonNegativeInt(e);
  if (!n.has_value())
    return Error{ErrorCode::kBadValue, "Failed to parse $size. " + n.error().message};
  MatchPtr m = Node(MatchKind::kSize, path);
  m->operand = n.value() <= INT32_MAX ? Value::Int32(static_cast<int32_t>(n.value()))
                                      : Value::Int64(n.value());
  return m;
}

Result<MatchPtr> ParseModMatch(std::string_view path, BsonValue v) {
  auto bad = [](std::string text) { return Error{ErrorCode::kBadValue, "malformed mod, " + text}; };
  if (!v.IsArray()) return bad("needs to be an array");
  int n = v.Document().Count();
  if (n < 2) return bad("not enough elements");
  if (n > 2) return bad("too many elements");
  auto it = v.Document().begin();
  BsonValue divisor = it->value;
  BsonValue remainder = (++it)->value;
  auto coerce = [&](BsonValue x, const char* what) -> Result<int64_t> {
    if (!x.IsNumber()) return bad(std::string(what) + " not a number");
    double d = x.NumberAsDouble();
    if (!std::isfinite(d))
      return bad(std::string(what) +
                 " value is invalid :: caused by :: Unable to coerce NaN/Inf to integral type");
    if (!x.Is(BsonType::kInt64) && !(d >= -9223372036854775808.0 && d < 9223372036854775808.0))
      return bad(std::string(what) +
                 " value is invalid :: caused by :: Out of bounds coercing to integral value");
    return x.NumberAsInt64();
  };
  auto extra = std::make_shared<MatchExpression::Extra>();
  MAYFLY_TRY(extra->divisor, coerce(divisor, "divisor"));
  MAYFLY_TRY(extra->remainder, coerce(remainder, "remainder"));
  if (extra->divisor == 0) return Error{ErrorCode::kBadValue, "divisor cannot be 0"};
  MatchPtr m = Node(MatchKind::kMod, path);
  m->extra = std::move(extra);
  return m;
}

Result<MatchPtr> ParseBitsMatch(MatchKind kind, std::string_view path, const BsonElement& e) {
  auto extra = std::make_shared<MatchExpression::Extra>();
  MatchPtr m = Node(kind, path);
  m->operand = Value::Copy(e.value);
  if (e.value.IsArray()) {
    for (const BsonElement& p : e.value.Document()) {
      Result<int64_t> n = ParseNonNegativeInt(p);
      if (!n.has_value())
        return Error{ErrorCode::kBadValue, "Failed to parse bit position. " + n.error().message};
      if (n.value() > INT32_MAX)
        return Error{ErrorCode::kBadValue,
                     "Failed to parse bit position. Cannot represent as a 32-bit integer: " +
                         ShownElement(p)};
      extra->bit_positions.push_back(static_cast<uint32_t>(n.value()));
    }
    std::sort(extra->bit_positions.begin(), extra->bit_positions.end());
    for (uint32_t p : extra->bit_positions) {
      if (p < 64) extra->bit_mask |= uint64_t{1} << p;
      extra->high_bits = extra->high_bits || p >= 64;
    }
  } else if (e.value.IsNumber()) {
    MAYFLY_TRY(int64_t n, ParseNonNegativeInt(e));
    extra->bit_mask = static_cast<uint64_t>(n);
    for (uint32_t p = 0; p < 63; ++p)
      if ((n >> p) & 1) extra->bit_positions.push_back(p);
  } else if (e.value.Is(BsonType::kBinary)) {
    // The operand itself is the mask: a list of its bits could be eight times four times its size.
    std::string_view mask = e.value.BinaryData();
    for (size_t i = 0; i < mask.size(); ++i) {
      auto byte = static_cast<uint8_t>(mask[i]);
      if (i < 8) extra->bit_mask |= uint64_t{byte} << (8 * i);
      extra->high_bits = extra->high_bits || (i >= 8 && byte != 0);
    }
  } else {
    return Error{ErrorCode::kBadValue,
                 std::string(e.name) +
                     " takes an Array, a number, or a BinData but received: " + ShownElement(e)};
  }
  m->extra = std::move(extra);
  return m;
}

}  // namespace match
}  // namespace mayfly

#include "timeseries/header_match.h"

#include <algorithm>

#include "protocol/bson_compare.h"

namespace mayfly {
namespace {

const TypeClasses kMissingBit = ClassBit(BsonType::kMissing);
const TypeClasses kNullish =
    kMissingBit | ClassBit(BsonType::kUndefined) | ClassBit(BsonType::kNull);

/// The facts in a header about the values at a path.
struct Known {
  TypeClasses classes = 0;
  BsonValue least, greatest;  ///< of what is neither document nor array; missing: not known
  bool all = false;           ///< `classes` has every class there is
};

/// The path's values. Values within an array, or of a path not in the header, are not known.
Known Lookup(const BucketHeader& header, std::string_view path) {
  const TypeClasses array = ClassBit(BsonType::kArray), document = ClassBit(BsonType::kDocument);
  uint32_t parent = 0;
  TypeClasses above = 0;  // missing, if a parent is in some point no document
  for (;;) {
    const size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    if (name.empty()) return {};
    uint32_t at = 0;
    for (uint32_t i = parent; i < header.paths.size() && at == 0; ++i)
      if (header.paths[i].parent == parent && header.paths[i].name == name) at = i + 1;
    if (at == 0) return {kMissingBit, {}, {}, header.complete};
    const BucketHeader::Path& p = header.paths[at - 1];
    if (dot == std::string_view::npos) return {p.classes | above, p.least(), p.greatest(), true};
    if (p.classes & array) return {};
    if (p.classes & ~document) above = kMissingBit;
    // A whole document has fields that are not listed; the header is incomplete then.
    if (!header.complete) return {};
    parent = at;
    path.remove_prefix(dot + 1);
  }
}

bool IsNan(BsonValue v) {
  if (v.Is(BsonType::kDouble)) return v.Double() != v.Double();
  static constexpr char kNanBytes[8] = {0, 0, 0, 0, 0, 0, '\xF8', '\x7F'};
  return v.Is(BsonType::kDecimal128) &&
         CompareValues(v, BsonValue(BsonType::kDouble, kNanBytes, 8)) == 0;
}

/// Compares with values of all types, or is a pattern: the header decides nothing.
bool Undecidable(BsonValue operand) {
  return operand.missing() || operand.Is(BsonType::kMinKey) || operand.Is(BsonType::kMaxKey) ||
         operand.Is(BsonType::kRegex);
}
/// Whether minimum and maximum decide nothing about a comparison with this value.
bool Unordered(BsonValue operand, bool collated) {
  return operand.IsDocument() || operand.IsArray() ||
         (collated && (operand.IsString() || operand.Is(BsonType::kSymbol)));
}

/// For $eq, $gt, $gte, $lt and $lte.
bool MayCompare(const Known& known, HeaderCondition condition, BsonValue operand, bool collated) {
  if (!known.all || (known.classes & ClassBit(BsonType::kArray)) || Undecidable(operand))
    return true;
  const TypeClasses kind = ClassBit(operand.type());
  if (operand.IsNullish()) return (known.classes & kNullish) != 0;
  if (!(known.classes & kind)) return false;
  if (Unordered(operand, collated)) return true;
  // Bounds of another class decide nothing here.
  const bool has_least = !known.least.missing() && ClassBit(known.least.type()) == kind;
  const bool has_greatest = !known.greatest.missing() && ClassBit(known.greatest.type()) == kind;
  const int to_least = has_least ? CompareValues(operand, known.least) : 0;
  const int to_greatest = has_greatest ? CompareValues(operand, known.greatest) : 0;
  if (IsNan(operand)) {
    // Equal to NaN alone, which is below all numbers.
    return condition != HeaderCondition::kGt && condition != HeaderCondition::kLt && to_least >= 0;
  }
  switch (condition) {
    case HeaderCondition::kEq:
      return to_least >= 0 && to_greatest <= 0;
    case HeaderCondition::kGt:
      return !has_greatest || to_greatest < 0;
    case HeaderCondition::kGte:
      return to_greatest <= 0;
    case HeaderCondition::kLt:
      return !has_least || to_least > 0;
    default:
      return to_least >= 0;
  }
}

/// Whether every point has a value here that equals this one.
bool AllEqual(const Known& known, BsonValue operand, bool collated) {
  if (!known.all || Undecidable(operand) || Unordered(operand, collated)) return false;
  if (operand.IsNullish())
    return operand.IsNull() && (known.classes & ~(ClassBit(BsonType::kNull) | kMissingBit)) == 0;
  return known.classes == ClassBit(operand.type()) && !known.least.missing() &&
         !known.greatest.missing() && CompareValues(known.least, operand) == 0 &&
         CompareValues(known.greatest, operand) == 0;
}

}  // namespace

bool MayMatch(const BucketHeader& header, const SeriesFields& fields, std::string_view path,
              HeaderCondition condition, BsonValue operand, bool collated) {
  if (header.points == 0) return false;
  if (!fields.meta.empty() && path.substr(0, path.find('.')) == fields.meta) return true;
  const Known known = Lookup(header, path);
  switch (condition) {
    case HeaderCondition::kIn: {
      if (!operand.IsArray()) return true;
      for (const BsonElement& e : operand.Document())
        if (MayCompare(known, HeaderCondition::kEq, e.value, collated)) return true;
      return false;
    }
    case HeaderCondition::kNe:
      return !AllEqual(known, operand, collated);
    case HeaderCondition::kNin: {
      if (!operand.IsArray()) return true;
      for (const BsonElement& e : operand.Document())
        if (AllEqual(known, e.value, collated)) return false;
      return true;
    }
    case HeaderCondition::kExists:
      return !known.all || known.classes != kMissingBit;
    case HeaderCondition::kNotExists:
      return !known.all || (known.classes & kMissingBit) != 0;
    default:
      return MayCompare(known, condition, operand, collated);
  }
}

}  // namespace mayfly

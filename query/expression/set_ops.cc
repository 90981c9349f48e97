#include <algorithm>
#include <boost/unordered/unordered_flat_set.hpp>

#include "protocol/bson_compare.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

bool Less(BsonValue a, BsonValue b) { return CompareValues(a, b) < 0; }
bool Same(BsonValue a, BsonValue b) { return CompareValues(a, b) == 0; }

/// The distinct elements in order.
std::vector<BsonValue> SetOf(BsonValue array) {
  std::vector<BsonValue> v = Elements(array);
  std::sort(v.begin(), v.end(), &Less);
  v.erase(std::unique(v.begin(), v.end(), &Same), v.end());
  return v;
}

Value ToArray(const std::vector<BsonValue>& values) {
  return BuildArray([&](BsonArrayBuilder& out) {
    for (BsonValue v : values) out.Append(v);
  });
}

Result<Value> Union(const EvalArgs& a) {
  std::vector<BsonValue> all;
  for (const Value& v : a.values) {
    if (v.view().IsNullish()) return Value::Null();
    if (!v.view().IsArray())
      return LocationError(
          17043,
          "All operands of $setUnion must be arrays. One argument is of type: " + TypeText(v));
    for (const BsonElement& e : v.view().Document()) all.push_back(e.value);
  }
  std::sort(all.begin(), all.end(), &Less);
  all.erase(std::unique(all.begin(), all.end(), &Same), all.end());
  return ToArray(all);
}

Result<Value> Intersection(const EvalArgs& a) {
  std::vector<BsonValue> common;
  bool first = true;
  for (const Value& v : a.values) {
    if (v.view().IsNullish()) return Value::Null();
    if (!v.view().IsArray())
      return LocationError(
          17047, "All operands of $setIntersection must be arrays. One argument is of type: " +
                     TypeText(v));
    std::vector<BsonValue> set = SetOf(v.view());
    if (first) {
      common = std::move(set);
      first = false;
    } else {
      std::erase_if(common, [&](BsonValue x) {
        return !std::binary_search(set.begin(), set.end(), x, &Less);
      });
    }
  }
  return ToArray(common);
}

Result<Value> Difference(const EvalArgs& a) {
  if (a.nullish(0) || a.nullish(1)) return Value::Null();
  for (int i = 0; i < 2; ++i)
    if (!a.view(i).IsArray())
      return LocationError(
          17048 + i, std::string("both operands of $setDifference must be arrays. ") +
                         (i == 0 ? "First" : "Second") + " argument is of type: " + TypeText(a[i]));
  std::vector<BsonValue> remove = SetOf(a.view(1)), kept;
  // Keeps the order of the first operand, each value once.
  boost::unordered_flat_set<BsonValue, BsonValueHash, BsonValueEqual> seen;
  for (const BsonElement& e : a.view(0).Document()) {
    if (std::binary_search(remove.begin(), remove.end(), e.value, &Less)) continue;
    if (seen.insert(e.value).second) kept.push_back(e.value);
  }
  return ToArray(kept);
}

Result<Value> Equals(const EvalArgs& a) {
  std::vector<BsonValue> first;
  bool equal = true;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a.view(i).IsArray())
      return LocationError(
          17044,
          "All operands of $setEquals must be arrays. One argument is of type: " + TypeText(a[i]));
    std::vector<BsonValue> set = SetOf(a.view(i));
    if (i == 0)
      first = std::move(set);
    else
      equal = equal && std::equal(first.begin(), first.end(), set.begin(), set.end(), &Same);
  }
  return Value::Bool(equal);
}

Result<Value> IsSubset(const EvalArgs& a) {
  if (!a.view(0).IsArray())
    return LocationError(
        17046, "both operands of $setIsSubset must be arrays. First argument is of type: " +
                   TypeText(a[0]));
  if (!a.view(1).IsArray())
    return LocationError(
        17042, "both operands of $setIsSubset must be arrays. Second argument is of type: " +
                   TypeText(a[1]));
  std::vector<BsonValue> inner = SetOf(a.view(0)), outer = SetOf(a.view(1));
  return Value::Bool(std::includes(outer.begin(), outer.end(), inner.begin(), inner.end(), &Less));
}

Result<Value> AnyElementTrue(const EvalArgs& a) {
  if (!a.view(0).IsArray())
    return LocationError(17041,
                         "$anyElementTrue's argument must be an array, but is " + TypeText(a[0]));
  for (const BsonElement& e : a.view(0).Document())
    if (e.value.Truthy()) return Value::Bool(true);
  return Value::Bool(false);
}

Result<Value> AllElementsTrue(const EvalArgs& a) {
  if (!a.view(0).IsArray())
    return LocationError(17040,
                         "$allElementsTrue's argument must be an array, but is " + TypeText(a[0]));
  for (const BsonElement& e : a.view(0).Document())
    if (!e.value.Truthy()) return Value::Bool(false);
  return Value::Bool(true);
}

constexpr OperatorDef kOps[] = {
    {.name = "$allElementsTrue",
     .min_args = 1,
     .max_args = 1,
     .eval = &AllElementsTrue,
     .text = "True when no element is false.",
     .example = R"({"$allElementsTrue": [[1, true, 0]]} => false)"},
    {.name = "$anyElementTrue",
     .min_args = 1,
     .max_args = 1,
     .eval = &AnyElementTrue,
     .text = "True when an element is true.",
     .example = R"({"$anyElementTrue": [[0, null, 1]]} => true)"},
    {.name = "$setDifference",
     .min_args = 2,
     .max_args = 2,
     .eval = &Difference,
     .text = "Elements of the first array that are not in the second.",
     .example = R"({"$setDifference": [[3, 1, 2], [2]]} => [3, 1])"},
    {.name = "$setEquals",
     .min_args = 2,
     .eval = &Equals,
     .text = "Whether arrays have the same distinct elements.",
     .example = R"({"$setEquals": [[1, 2, 2], [2, 1]]} => true)"},
    {.name = "$setIntersection",
     .eval = &Intersection,
     .text = "Elements that are in every array.",
     .example = R"({"$setIntersection": [[3, 1, 2], [2, 3]]} => [2, 3])"},
    {.name = "$setIsSubset",
     .min_args = 2,
     .max_args = 2,
     .eval = &IsSubset,
     .text = "Whether all elements of the first array are in the second.",
     .example = R"({"$setIsSubset": [[1], [1, 2]]} => true)"},
    {.name = "$setUnion",
     .eval = &Union,
     .text = "Elements that are in any array.",
     .example = R"({"$setUnion": [[2, 1], [3, 1]]} => [1, 2, 3])"},
};

}  // namespace

std::span<const OperatorDef> SetOperators() { return kOps; }

}  // namespace mayfly

#include <algorithm>
#include <boost/unordered/unordered_flat_set.hpp>

#include "protocol/bson_compare.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

bool Less(BsonValue a, BsonValue b) { return CompareValues(a, b) < 0; }
bool Same(BsonValue a, BsonValue b) { return CompareValues(a, b) == 0; }

/// In order, each value once.
Result<void> MakeSet(EvalContext& ctx, ElementList& list) {
  std::vector<BsonValue>& v = list.values();
  MAYFLY_TRY(SortValues(ctx, v, &Less));
  v.erase(std::unique(v.begin(), v.end(), &Same), v.end());
  return Ok();
}

/// The distinct elements in order.
Result<ElementList> SetOf(EvalContext& ctx, BsonValue array) {
  MAYFLY_TRY(ElementList list, ElementList::Of(ctx, array));
  MAYFLY_TRY(MakeSet(ctx, list));
  return list;
}

bool Contains(const ElementList& set, BsonValue v) {
  return std::binary_search(set.values().begin(), set.values().end(), v, &Less);
}

Result<Value> Union(const EvalArgs& a) {
  ElementList all(a.ctx);
  for (const Value& v : a.values) {
    if (v.view().IsNullish()) return Value::Null();
    if (!v.view().IsArray())
      return LocationError(
          17043,
          "All operands of $setUnion must be arrays. One argument is of type: " + TypeText(v));
    MAYFLY_TRY(all.Add(v.view()));
  }
  MAYFLY_TRY(MakeSet(a.ctx, all));
  return ArrayOf(a.ctx, all.values());
}

Result<Value> Intersection(const EvalArgs& a) {
  ElementList common(a.ctx);
  bool first = true;
  Pace pace(a.ctx);
  for (const Value& v : a.values) {
    if (v.view().IsNullish()) return Value::Null();
    if (!v.view().IsArray())
      return LocationError(
          17047, "All operands of $setIntersection must be arrays. One argument is of type: " +
                     TypeText(v));
    MAYFLY_TRY(ElementList set, SetOf(a.ctx, v.view()));
    if (first) {
      common = std::move(set);
      first = false;
      continue;
    }
    std::vector<BsonValue>& values = common.values();
    size_t kept = 0;
    for (BsonValue x : values) {
      MAYFLY_TRY(pace.Step(x.size()));
      if (Contains(set, x)) values[kept++] = x;
    }
    values.resize(kept);
  }
  return ArrayOf(a.ctx, common.values());
}

Result<Value> Difference(const EvalArgs& a) {
  if (a.nullish(0) || a.nullish(1)) return Value::Null();
  for (int i = 0; i < 2; ++i)
    if (!a.view(i).IsArray())
      return LocationError(
          17048 + i, std::string("both operands of $setDifference must be arrays. ") +
                         (i == 0 ? "First" : "Second") + " argument is of type: " + TypeText(a[i]));
  MAYFLY_TRY(ElementList remove, SetOf(a.ctx, a.view(1)));
  // Keeps the order of the first operand, each value once.
  boost::unordered_flat_set<BsonValue, BsonValueHash, BsonValueEqual> seen;
  Charge charge(a.ctx);
  GrowingArray out(a.ctx);
  Pace pace(a.ctx);
  for (const BsonElement& e : a.view(0).Document()) {
    MAYFLY_TRY(pace.Step(e.value.size()));
    if (Contains(remove, e.value)) continue;
    // The table is between a half and a third full after it has grown, and moves then.
    MAYFLY_TRY(charge.Set(seen.size() * 4 * sizeof(BsonValue)));
    if (!seen.insert(e.value).second) continue;
    MAYFLY_TRY(out.Append(e.value));
  }
  return out.Finish();
}

Result<Value> Equals(const EvalArgs& a) {
  ElementList first(a.ctx);
  bool equal = true;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a.view(i).IsArray())
      return LocationError(
          17044,
          "All operands of $setEquals must be arrays. One argument is of type: " + TypeText(a[i]));
    MAYFLY_TRY(ElementList set, SetOf(a.ctx, a.view(i)));
    if (i == 0)
      first = std::move(set);
    else
      equal = equal && std::equal(first.values().begin(), first.values().end(),
                                  set.values().begin(), set.values().end(), &Same);
  }
  return Value::Bool(equal);
}

constexpr OperatorDef kEqualsCall = {.name = "$setEquals", .eval = &Equals};
Result<ExpressionPtr> ParseEquals(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  const int n = arg.IsArray() ? arg.Document().Count() : 1;
  if (n < 2)
    return LocationError(17045,
                         "$setEquals needs at least two arguments had: " + std::to_string(n));
  return ParseCall(kEqualsCall, arg, scope);
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
  MAYFLY_TRY(ElementList inner, SetOf(a.ctx, a.view(0)));
  MAYFLY_TRY(ElementList outer, SetOf(a.ctx, a.view(1)));
  return Value::Bool(std::includes(outer.values().begin(), outer.values().end(),
                                   inner.values().begin(), inner.values().end(), &Less));
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

constexpr OperatorDef kSetOps[] = {
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
     .parse = &ParseEquals,
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

std::span<const OperatorDef> SetOperators() { return kSetOps; }

}  // namespace mayfly

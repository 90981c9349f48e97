#include "protocol/bson_compare.h"
#include "query/expression/growth.h"
#include "query/expression/number_sum.h"

namespace mayfly {
namespace {

/// Calls `f` for each operand, or for each element when the only operand is an array.
template <class F>
Result<void> ForEach(const EvalArgs& a, F&& f) {
  if (a.size() == 1 && a.view(0).IsArray()) {
    Pace pace(a.ctx);
    for (const BsonElement& e : a.view(0).Document()) {
      f(e.value);
      MAYFLY_TRY(pace.Step(e.value.size()));
    }
  } else {
    for (const Value& v : a.values) f(v.view());
  }
  return Ok();
}

Result<Value> Sum(const EvalArgs& a) {
  NumberSum sum;
  MAYFLY_TRY(ForEach(a, [&](BsonValue v) { sum.Add(v); }));
  return sum.Total();
}
Result<Value> Average(const EvalArgs& a) {
  NumberSum sum;
  MAYFLY_TRY(ForEach(a, [&](BsonValue v) { sum.Add(v); }));
  return sum.Average();
}
Result<Value> Extreme(const EvalArgs& a, int sign) {
  BsonValue best;
  MAYFLY_TRY(ForEach(a, [&](BsonValue v) {
    if (!v.IsNullish() && (best.missing() || CompareValues(v, best) * sign > 0)) best = v;
  }));
  return best.missing() ? Value::Null() : Value::Copy(best);
}
Result<Value> Max(const EvalArgs& a) { return Extreme(a, 1); }
Result<Value> Min(const EvalArgs& a) { return Extreme(a, -1); }
Result<Value> DeviationPop(const EvalArgs& a) {
  Deviation d;
  MAYFLY_TRY(ForEach(a, [&](BsonValue v) { d.Add(v); }));
  return d.Result(false);
}
Result<Value> DeviationSamp(const EvalArgs& a) {
  Deviation d;
  MAYFLY_TRY(ForEach(a, [&](BsonValue v) { d.Add(v); }));
  return d.Result(true);
}

constexpr OperatorDef kVariadicOps[] = {
    {.name = "$avg",
     .eval = &Average,
     .text = "Average of the operands that are numbers.",
     .example = R"({"$avg": [[1, 2, "x", 6]]} => 3.0)"},
    {.name = "$max",
     .eval = &Max,
     .text = "The greatest operand that is not null.",
     .example = R"({"$max": [1, null, 3]} => 3)"},
    {.name = "$min",
     .eval = &Min,
     .text = "The least operand that is not null.",
     .example = R"({"$min": [2, null, 3]} => 2)"},
    {.name = "$stdDevPop",
     .eval = &DeviationPop,
     .text = "Standard deviation of a population.",
     .example = R"({"$stdDevPop": [2, 4, 4, 4, 5, 5, 7, 9]} => 2.0)"},
    {.name = "$stdDevSamp",
     .eval = &DeviationSamp,
     .text = "Standard deviation of a sample.",
     .example = R"({"$stdDevSamp": [1, 3, 5]} => 2.0)"},
    {.name = "$sum",
     .eval = &Sum,
     .text = "Sum of the operands that are numbers.",
     .example = R"({"$sum": [[1, 2, "x", 6]]} => 9)"},
};

}  // namespace

std::span<const OperatorDef> VariadicOperators() { return kVariadicOps; }

}  // namespace mayfly

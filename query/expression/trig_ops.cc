#include <cmath>
#include <numbers>

#include "protocol/bid128.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

using decimal128::In, decimal128::Out;

/// The least and greatest argument, both allowed.
struct Domain {
  double low = -HUGE_VAL, high = HUGE_VAL;
  bool open = false;  ///< infinities are outside
  const char* text = "";
};

using DecimalFunction = BID_UINT128 (*)(BID_UINT128, _IDEC_round, _IDEC_flags*);

Result<Value> Apply(const EvalArgs& a, double (*real)(double), DecimalFunction decimal,
                    Domain domain = {}) {
  if (a.nullish(0)) return Value::Null();
  BsonValue v = a.view(0);
  if (!v.IsNumber())
    return LocationError(
        28765, std::string(a.def.name) + " only supports numeric types, not " + TypeText(v));
  double x = v.NumberAsDouble();
  if (!std::isnan(x) && (x < domain.low || x > domain.high || (domain.open && std::isinf(x))))
    return LocationError(50989, "cannot apply " + std::string(a.def.name) + " to " + ValueText(v) +
                                    ", value must be in " + domain.text);
  if (!v.Is(BsonType::kDecimal128)) return Value::Double(real(x));
  _IDEC_flags flags = 0;
  return Value::Decimal(Out(decimal(In(v.Decimal()), 0, &flags)));
}

constexpr Domain kFinite{.open = true, .text = "(-inf,inf)"};
constexpr Domain kUnit{.low = -1, .high = 1, .text = "[-1,1]"};
constexpr Domain kFromOne{.low = 1, .text = "[1,inf]"};

Result<Value> Sin(const EvalArgs& a) { return Apply(a, &std::sin, &bid128_sin, kFinite); }
Result<Value> Cos(const EvalArgs& a) { return Apply(a, &std::cos, &bid128_cos, kFinite); }
Result<Value> Tan(const EvalArgs& a) { return Apply(a, &std::tan, &bid128_tan, kFinite); }
Result<Value> Asin(const EvalArgs& a) { return Apply(a, &std::asin, &bid128_asin, kUnit); }
Result<Value> Acos(const EvalArgs& a) { return Apply(a, &std::acos, &bid128_acos, kUnit); }
Result<Value> Atan(const EvalArgs& a) { return Apply(a, &std::atan, &bid128_atan); }
Result<Value> Sinh(const EvalArgs& a) { return Apply(a, &std::sinh, &bid128_sinh); }
Result<Value> Cosh(const EvalArgs& a) { return Apply(a, &std::cosh, &bid128_cosh); }
Result<Value> Tanh(const EvalArgs& a) { return Apply(a, &std::tanh, &bid128_tanh); }
Result<Value> Asinh(const EvalArgs& a) { return Apply(a, &std::asinh, &bid128_asinh); }
Result<Value> Acosh(const EvalArgs& a) { return Apply(a, &std::acosh, &bid128_acosh, kFromOne); }
Result<Value> Atanh(const EvalArgs& a) { return Apply(a, &std::atanh, &bid128_atanh, kUnit); }

Result<Value> Atan2(const EvalArgs& a) {
  if (a.nullish(0) || a.nullish(1)) return Value::Null();
  for (int i = 0; i < 2; ++i)
    if (!a.view(i).IsNumber())
      return LocationError(51044 + i, "$atan2 only supports numeric types, not " + TypeText(a[0]) +
                                          " and " + TypeText(a[1]));
  BsonValue y = a.view(0), x = a.view(1);
  if (!y.Is(BsonType::kDecimal128) && !x.Is(BsonType::kDecimal128))
    return Value::Double(std::atan2(y.NumberAsDouble(), x.NumberAsDouble()));
  _IDEC_flags flags = 0;
  return Value::Decimal(Out(bid128_atan2(In(ToDecimal(y)), In(ToDecimal(x)), 0, &flags)));
}

Result<Value> Scale(const EvalArgs& a, double factor, const char* decimal_factor, bool divide) {
  if (a.nullish(0)) return Value::Null();
  BsonValue v = a.view(0);
  if (!v.IsNumber())
    return LocationError(
        28765, std::string(a.def.name) + " only supports numeric types, not " + TypeText(v));
  if (!v.Is(BsonType::kDecimal128)) return Value::Double(v.NumberAsDouble() * factor);
  MAYFLY_TRY(Decimal128Bits f, decimal128::Parse(decimal_factor));
  return Value::Decimal(divide ? decimal128::Divide(v.Decimal(), f)
                               : decimal128::Multiply(v.Decimal(), f));
}
constexpr const char* kRadian = "0.01745329251994329576923690768488613";
Result<Value> DegreesToRadians(const EvalArgs& a) {
  return Scale(a, std::numbers::pi / 180, kRadian, false);
}
Result<Value> RadiansToDegrees(const EvalArgs& a) {
  return Scale(a, 180 / std::numbers::pi, kRadian, true);
}

constexpr OperatorDef kTrigOps[] = {
    {.name = "$acos",
     .min_args = 1,
     .max_args = 1,
     .eval = &Acos,
     .text = "Arc cosine, in radians.",
     .example = R"({"$acos": 1} => 0.0)"},
    {.name = "$acosh",
     .min_args = 1,
     .max_args = 1,
     .eval = &Acosh,
     .text = "Inverse hyperbolic cosine.",
     .example = R"({"$acosh": 1} => 0.0)"},
    {.name = "$asin",
     .min_args = 1,
     .max_args = 1,
     .eval = &Asin,
     .text = "Arc sine, in radians.",
     .example = R"({"$asin": 0} => 0.0)"},
    {.name = "$asinh",
     .min_args = 1,
     .max_args = 1,
     .eval = &Asinh,
     .text = "Inverse hyperbolic sine.",
     .example = R"({"$asinh": 0} => 0.0)"},
    {.name = "$atan",
     .min_args = 1,
     .max_args = 1,
     .eval = &Atan,
     .text = "Arc tangent, in radians.",
     .example = R"({"$atan": 0} => 0.0)"},
    {.name = "$atan2",
     .min_args = 2,
     .max_args = 2,
     .eval = &Atan2,
     .text = "Arc tangent of y / x, in radians.",
     .example = R"({"$atan2": [0, 1]} => 0.0)"},
    {.name = "$atanh",
     .min_args = 1,
     .max_args = 1,
     .eval = &Atanh,
     .text = "Inverse hyperbolic tangent.",
     .example = R"({"$atanh": 0} => 0.0)"},
    {.name = "$cos",
     .min_args = 1,
     .max_args = 1,
     .eval = &Cos,
     .text = "Cosine of an angle in radians.",
     .example = R"({"$cos": 0} => 1.0)"},
    {.name = "$cosh",
     .min_args = 1,
     .max_args = 1,
     .eval = &Cosh,
     .text = "Hyperbolic cosine.",
     .example = R"({"$cosh": 0} => 1.0)"},
    {.name = "$degreesToRadians",
     .min_args = 1,
     .max_args = 1,
     .eval = &DegreesToRadians,
     .text = "Degrees as radians.",
     .example = R"({"$degreesToRadians": 180} => 3.141592653589793)"},
    {.name = "$radiansToDegrees",
     .min_args = 1,
     .max_args = 1,
     .eval = &RadiansToDegrees,
     .text = "Radians as degrees.",
     .example = R"({"$radiansToDegrees": 0} => 0.0)"},
    {.name = "$sin",
     .min_args = 1,
     .max_args = 1,
     .eval = &Sin,
     .text = "Sine of an angle in radians.",
     .example = R"({"$sin": 0} => 0.0)"},
    {.name = "$sinh",
     .min_args = 1,
     .max_args = 1,
     .eval = &Sinh,
     .text = "Hyperbolic sine.",
     .example = R"({"$sinh": 0} => 0.0)"},
    {.name = "$tan",
     .min_args = 1,
     .max_args = 1,
     .eval = &Tan,
     .text = "Tangent of an angle in radians.",
     .example = R"({"$tan": 0} => 0.0)"},
    {.name = "$tanh",
     .min_args = 1,
     .max_args = 1,
     .eval = &Tanh,
     .text = "Hyperbolic tangent.",
     .example = R"({"$tanh": 0} => 0.0)"},
};

}  // namespace

std::span<const OperatorDef> TrigonometryOperators() { return kTrigOps; }

}  // namespace mayfly

#include <cmath>

#include "protocol/decimal128.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"

namespace mayfly {

Decimal128Bits ToDecimal(BsonValue number) {
  switch (number.type()) {
    case BsonType::kDecimal128:
      return number.Decimal();
    case BsonType::kDouble:
      return decimal128::FromDouble(number.Double());
    default:
      return decimal128::FromInt64(number.NumberAsInt64());
  }
}

namespace {

enum class Rank { kInt, kLong, kDouble, kDecimal };
Rank RankOf(BsonValue v) {
  switch (v.type()) {
    case BsonType::kInt32:
      return Rank::kInt;
    case BsonType::kInt64:
      return Rank::kLong;
    case BsonType::kDouble:
      return Rank::kDouble;
    default:
      return Rank::kDecimal;
  }
}

/// Adds or multiplies from left to right in the widest type met so far: integers grow to long and
/// then to double, a decimal makes the rest decimal.
struct WideningSum {
  Rank rank = Rank::kInt;
  int64_t whole;
  double real = 0;
  Decimal128Bits decimal;
  bool times;
  explicit WideningSum(bool multiply) : whole(multiply ? 1 : 0), times(multiply) {}

  void Widen(Rank to) {
    if (to <= rank) return;
    if (to >= Rank::kDouble && rank < Rank::kDouble) real = static_cast<double>(whole);
    if (to == Rank::kDecimal)
      decimal = rank == Rank::kDouble ? decimal128::FromDouble(real) : decimal128::FromInt64(whole);
    rank = to;
  }
  void Take(BsonValue v) {
    Widen(RankOf(v));
    if (rank <= Rank::kLong) {
      int64_t x = v.NumberAsInt64(), r;
      bool over =
          times ? __builtin_mul_overflow(whole, x, &r) : __builtin_add_overflow(whole, x, &r);
      if (!over) {
        whole = r;
        return;
      }
      Widen(Rank::kDouble);
    }
    if (rank == Rank::kDouble) {
      double x = v.NumberAsDouble();
      real = times ? real * x : real + x;
    } else {
      Decimal128Bits x = ToDecimal(v);
      decimal = times ? decimal128::Multiply(decimal, x) : decimal128::Add(decimal, x);
    }
  }
  Value Result() const {
    if (rank == Rank::kDecimal) return Value::Decimal(decimal);
    if (rank == Rank::kDouble) return Value::Double(real);
    return MakeInteger(whole, rank == Rank::kLong);
  }
  /// The sum as a number of milliseconds; false when it is none or too big.
  bool Millis(int64_t* out) const {
    if (rank <= Rank::kLong)
      *out = whole;
    else if (rank == Rank::kDecimal)
      return decimal128::ToInt64(decimal128::Round(decimal, 0), out);
    else if (!(std::abs(real) < 9.2e18))
      return false;
    else
      *out = std::llround(real);
    return true;
  }
};

Result<Value> Add(const EvalArgs& a) {
  WideningSum sum(false);
  bool dated = false;
  for (const Value& value : a.values) {
    BsonValue v = value.view();
    if (v.IsNullish()) return Value::Null();
    if (v.IsDate()) {
      if (dated) return LocationError(16612, "only one date allowed in an $add expression");
      dated = true;
      sum.Take(Value::Int64(v.Date().millis).view());
    } else if (v.IsNumber()) {
      sum.Take(v);
    } else {
      return TypeMismatch("$add only supports numeric or date types, not " + TypeText(v));
    }
  }
  if (!dated) return sum.Result();
  int64_t ms;
  if (!sum.Millis(&ms)) return Error{ErrorCode::kOverflow, "date overflow in $add"};
  return Value::Date({ms});
}

Result<Value> Subtract(const EvalArgs& a) {
  BsonValue x = a.view(0), y = a.view(1);
  if (x.IsNullish() || y.IsNullish()) return Value::Null();
  if (x.IsNumber() && y.IsNumber()) {
    Rank rank = std::max(RankOf(x), RankOf(y));
    if (rank == Rank::kDecimal)
      return Value::Decimal(decimal128::Subtract(ToDecimal(x), ToDecimal(y)));
    int64_t r;
    if (rank <= Rank::kLong && !__builtin_sub_overflow(x.NumberAsInt64(), y.NumberAsInt64(), &r))
      return MakeInteger(r, rank == Rank::kLong);
    return Value::Double(x.NumberAsDouble() - y.NumberAsDouble());
  }
  int64_t r;
  if (x.IsDate() && y.IsDate()) {
    if (__builtin_sub_overflow(x.Date().millis, y.Date().millis, &r))
      return Error{ErrorCode::kOverflow, "overflow in date subtraction"};
    return Value::Int64(r);
  }
  if (x.IsDate() && y.IsNumber()) {
    WideningSum ms(false);
    ms.Take(y);
    int64_t n;
    if (!ms.Millis(&n) || __builtin_sub_overflow(x.Date().millis, n, &r))
      return Error{ErrorCode::kOverflow, "date overflow in $subtract"};
    return Value::Date({r});
  }
  return TypeMismatch("can't $subtract " + TypeText(y) + " from " + TypeText(x));
}

Result<Value> Multiply(const EvalArgs& a) {
  WideningSum product(true);
  for (const Value& value : a.values) {
    BsonValue v = value.view();
    if (v.IsNullish()) return Value::Null();
    if (!v.IsNumber())
      return TypeMismatch("$multiply only supports numeric types, not " + TypeText(v));
    product.Take(v);
  }
  return product.Result();
}

Result<Value> Divide(const EvalArgs& a) {
  BsonValue x = a.view(0), y = a.view(1);
  if (x.IsNumber() && y.IsNumber()) {
    if (std::max(RankOf(x), RankOf(y)) == Rank::kDecimal) {
      Decimal128Bits d = ToDecimal(y);
      if (decimal128::IsZero(d)) return Error{ErrorCode::kBadValue, "can't $divide by zero"};
      return Value::Decimal(decimal128::Divide(ToDecimal(x), d));
    }
    double d = y.NumberAsDouble();
    if (d == 0) return Error{ErrorCode::kBadValue, "can't $divide by zero"};
    return Value::Double(x.NumberAsDouble() / d);
  }
  if (x.IsNullish() || y.IsNullish()) return Value::Null();
  return TypeMismatch("$divide only supports numeric types, not " + TypeText(x) + " and " +
                      TypeText(y));
}

Result<Value> Mod(const EvalArgs& a) {
  BsonValue x = a.view(0), y = a.view(1);
  if (x.IsNumber() && y.IsNumber()) {
    Rank rank = std::max(RankOf(x), RankOf(y));
    if (rank == Rank::kDecimal) {
      Decimal128Bits d = ToDecimal(y);
      if (decimal128::IsZero(d)) return LocationError(16610, "can't $mod by zero");
      return Value::Decimal(decimal128::Modulo(ToDecimal(x), d));
    }
    if (y.NumberAsDouble() == 0) return LocationError(16610, "can't $mod by zero");
    // A divisor that is a whole double counts as the integer it is.
    if (int32_t whole;
        RankOf(x) != Rank::kDouble && RankOf(y) == Rank::kDouble && ExactInt32(y, &whole))
      return MakeInteger(whole == -1 ? 0 : x.NumberAsInt64() % whole, RankOf(x) == Rank::kLong);
    if (rank == Rank::kDouble)
      return Value::Double(std::fmod(x.NumberAsDouble(), y.NumberAsDouble()));
    int64_t d = y.NumberAsInt64();
    return MakeInteger(d == -1 ? 0 : x.NumberAsInt64() % d, rank == Rank::kLong);
  }
  if (x.IsNullish() || y.IsNullish()) return Value::Null();
  return LocationError(
      16611, "$mod only supports numeric types, not " + TypeText(x) + " and " + TypeText(y));
}

/// The checks of an operator of one number: null for nullish, an error for what is no number, else
/// nothing.
std::optional<Result<Value>> NotANumber(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).IsNumber())
    return Result<Value>(LocationError(
        28765, OperatorName(a) + " only supports numeric types, not " + TypeText(a[0])));
  return std::nullopt;
}

Result<Value> Abs(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  switch (RankOf(v)) {
    case Rank::kDouble:
      return Value::Double(std::abs(v.Double()));
    case Rank::kDecimal:
      return Value::Decimal(decimal128::Abs(v.Decimal()));
    default:
      break;
  }
  int64_t n = v.NumberAsInt64();
  if (n == INT64_MIN) return LocationError(28680, "can't take $abs of long long min");
  return MakeInteger(std::abs(n), RankOf(v) == Rank::kLong);
}

Result<Value> Ceil(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  if (v.Is(BsonType::kDouble)) return Value::Double(std::ceil(v.Double()));
  if (v.Is(BsonType::kDecimal128)) return Value::Decimal(decimal128::Ceil(v.Decimal()));
  return a[0];
}

Result<Value> Floor(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  if (v.Is(BsonType::kDouble)) return Value::Double(std::floor(v.Double()));
  if (v.Is(BsonType::kDecimal128)) return Value::Decimal(decimal128::Floor(v.Decimal()));
  return a[0];
}

Result<Value> RoundOrTruncate(const EvalArgs& a, bool round) {
  BsonValue v = a.view(0);
  int32_t places = 0;
  if (v.IsNullish()) return Value::Null();
  if (!v.IsNumber())
    return LocationError(51081,
                         OperatorName(a) + " only supports numeric types, not " + TypeText(v));
  if (a.size() > 1) {
    BsonValue p = a.view(1);
    if (p.IsNullish()) return Value::Null();
    if (!p.IsNumber() || !ExactInt32(p, &places))
      return LocationError(
          51082, "precision argument to  " + OperatorName(a) + " must be a integral value");
    if (places < -20 || places > 100)
      return LocationError(51083, "cannot apply " + OperatorName(a) + " with precision value " +
                                      std::to_string(places) + " value must be in [-20, 100]");
  }
  auto apply = [&](Decimal128Bits d) {
    return round ? decimal128::Round(d, places) : decimal128::TruncatePlaces(d, places);
  };
  switch (RankOf(v)) {
    case Rank::kDecimal:
      return Value::Decimal(apply(v.Decimal()));
    case Rank::kDouble: {
      double d = v.Double();
      if (!std::isfinite(d)) return a[0];
      if (places == 0) return Value::Double(round ? std::nearbyint(d) : std::trunc(d));
      return Value::Double(decimal128::ToDouble(apply(decimal128::FromDoubleExact(d))));
    }
    default:
      break;
  }
  if (places >= 0) return a[0];
  int64_t r;
  if (!decimal128::ToInt64(apply(decimal128::FromInt64(v.NumberAsInt64())), &r))
    return LocationError(51080, "invalid conversion from Decimal128 result in " + OperatorName(a) +
                                    " resulting from arguments: [" + ValueText(v) + ", " +
                                    std::to_string(places) + "]");
  return MakeInteger(r, RankOf(v) == Rank::kLong);
}
Result<Value> Round(const EvalArgs& a) { return RoundOrTruncate(a, true); }
Result<Value> Truncate(const EvalArgs& a) { return RoundOrTruncate(a, false); }

Result<Value> Exp(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  if (v.Is(BsonType::kDecimal128)) return Value::Decimal(decimal128::Exp(v.Decimal()));
  return Value::Double(std::exp(v.NumberAsDouble()));
}

bool IsPositive(BsonValue v) {
  if (v.Is(BsonType::kDecimal128))
    return decimal128::IsNan(v.Decimal()) ||
           (!decimal128::IsNegative(v.Decimal()) && !decimal128::IsZero(v.Decimal()));
  double d = v.NumberAsDouble();
  return d > 0 || std::isnan(d);
}

Result<Value> Ln(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  if (!IsPositive(v))
    return LocationError(28766, "$ln's argument must be a positive number, but is " + ValueText(v));
  if (v.Is(BsonType::kDecimal128)) return Value::Decimal(decimal128::Ln(v.Decimal()));
  return Value::Double(std::log(v.NumberAsDouble()));
}

Result<Value> Log10(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  if (!IsPositive(v))
    return LocationError(28761,
                         "$log10's argument must be a positive number, but is " + ValueText(v));
  if (v.Is(BsonType::kDecimal128)) return Value::Decimal(decimal128::Log10(v.Decimal()));
  return Value::Double(std::log10(v.NumberAsDouble()));
}

Result<Value> Log(const EvalArgs& a) {
  BsonValue x = a.view(0), base = a.view(1);
  if (x.IsNullish() || base.IsNullish()) return Value::Null();
  if (!x.IsNumber())
    return LocationError(28756, "$log's argument must be numeric, not " + TypeText(x));
  if (!base.IsNumber())
    return LocationError(28757, "$log's base must be numeric, not " + TypeText(base));
  if (!IsPositive(x))
    return LocationError(28758,
                         "$log's argument must be a positive number, but is " + ValueText(x));
  if (!IsPositive(base) || base.NumberAsDouble() == 1)
    return LocationError(
        28759, "$log's base must be a positive number not equal to 1, but is " + ValueText(base));
  if (x.Is(BsonType::kDecimal128) || base.Is(BsonType::kDecimal128))
    return Value::Decimal(
        decimal128::Divide(decimal128::Ln(ToDecimal(x)), decimal128::Ln(ToDecimal(base))));
  return Value::Double(std::log(x.NumberAsDouble()) / std::log(base.NumberAsDouble()));
}

Result<Value> Sqrt(const EvalArgs& a) {
  if (auto r = NotANumber(a)) return *r;
  BsonValue v = a.view(0);
  if (v.Is(BsonType::kDecimal128)
          ? decimal128::IsNegative(v.Decimal()) && !decimal128::IsZero(v.Decimal())
          : v.NumberAsDouble() < 0)
    return LocationError(28714, "$sqrt's argument must be greater than or equal to 0");
  if (v.Is(BsonType::kDecimal128)) return Value::Decimal(decimal128::Sqrt(v.Decimal()));
  return Value::Double(std::sqrt(v.NumberAsDouble()));
}

Result<Value> Pow(const EvalArgs& a) {
  BsonValue base = a.view(0), exponent = a.view(1);
  if (base.IsNullish() || exponent.IsNullish()) return Value::Null();
  if (!base.IsNumber())
    return LocationError(28762, "$pow's base must be numeric, not " + TypeText(base));
  if (!exponent.IsNumber())
    return LocationError(28763, "$pow's exponent must be numeric, not " + TypeText(exponent));
  double e = exponent.NumberAsDouble();
  if (base.NumberAsDouble() == 0 && e < 0)
    return LocationError(28764, "$pow cannot take a base of 0 and a negative exponent");
  Rank rank = std::max(RankOf(base), RankOf(exponent));
  if (rank == Rank::kDecimal)
    return Value::Decimal(decimal128::Pow(ToDecimal(base), ToDecimal(exponent)));
  double real = std::pow(base.NumberAsDouble(), e);
  if (rank == Rank::kDouble || e < 0) {
    // 1 and -1 keep their integer type under negative exponents; every other base becomes a
    // fraction.
    if (rank == Rank::kDouble || std::abs(base.NumberAsDouble()) != 1) return Value::Double(real);
    return MakeInteger(static_cast<int64_t>(real), rank == Rank::kLong);
  }
  int64_t result = 1, square = base.NumberAsInt64();
  for (uint64_t n = static_cast<uint64_t>(exponent.NumberAsInt64()); n != 0;) {
    if ((n & 1) && __builtin_mul_overflow(result, square, &result)) return Value::Double(real);
    n >>= 1;
    if (n != 0 && __builtin_mul_overflow(square, square, &square)) return Value::Double(real);
  }
  return MakeInteger(result, rank == Rank::kLong);
}

enum class Bits { kAnd, kOr, kXor };
Result<Value> BitFold(const EvalArgs& a, Bits what) {
  int64_t r = what == Bits::kAnd ? -1 : 0;
  bool wide = false;
  for (const Value& value : a.values) {
    BsonValue v = value.view();
    if (v.IsNullish()) return Value::Null();
    if (!v.Is(BsonType::kInt32) && !v.Is(BsonType::kInt64))
      return TypeMismatch(OperatorName(a) + " only supports int and long operands.");
    wide = wide || v.Is(BsonType::kInt64);
    int64_t x = v.NumberAsInt64();
    r = what == Bits::kAnd ? r & x : what == Bits::kOr ? r | x : r ^ x;
  }
  return MakeInteger(r, wide);
}
Result<Value> BitAnd(const EvalArgs& a) { return BitFold(a, Bits::kAnd); }
Result<Value> BitOr(const EvalArgs& a) { return BitFold(a, Bits::kOr); }
Result<Value> BitXor(const EvalArgs& a) { return BitFold(a, Bits::kXor); }
Result<Value> BitNot(const EvalArgs& a) {
  BsonValue v = a.view(0);
  if (v.IsNullish()) return Value::Null();
  if (v.Is(BsonType::kInt32)) return Value::Int32(~v.Int32());
  if (v.Is(BsonType::kInt64)) return Value::Int64(~v.Int64());
  return TypeMismatch("$bitNot only supports int and long, not: " + TypeText(v) + ".");
}

/// {$sigmoid: x} or {$sigmoid: {input: x, onNull: y}}, by the operators that it stands for: they
/// say what becomes of each type.
Result<ExpressionPtr> ParseSigmoid(const OperatorDef& def, BsonValue arg, VariableScope& scope) {
  BsonValue input = arg, on_null;
  if (arg.IsDocument() && !arg.Document().First().name.starts_with('$')) {
    MAYFLY_TRY(CheckOptionsOnce(def.name, arg));
    input = {};
    for (const BsonElement& e : arg.Document()) {
      if (e.name != "input" && e.name != "onNull")
        return FailedToParse("Unrecognized argument to $sigmoid: " + std::string(e.name));
      (e.name == "input" ? input : on_null) = e.value;
    }
    if (input.missing()) return FailedToParse("Missing 'input' parameter to $sigmoid");
  } else if (arg.IsArray()) {
    if (const int n = arg.Document().Count(); n != 1)
      return LocationError(16020, "Expression $sigmoid takes exactly 1 arguments. " +
                                      std::to_string(n) + " were passed in.");
    input = arg.Document().First().value;
  }
  MAYFLY_TRY(ExpressionPtr made, ParseExpression(input, scope));
  const auto call = [&](std::string_view name, ExpressionPtr first, ExpressionPtr second) {
    std::vector<ExpressionPtr> children;
    children.push_back(std::move(first));
    if (second) children.push_back(std::move(second));
    return MakeCall(*FindOperator(name), std::move(children), 0, scope);
  };
  const auto number = [](int32_t n) { return MakeConstant(Value::Int32(n)); };
  made = call("$multiply", number(-1), std::move(made));
  made = call("$exp", std::move(made), nullptr);
  made = call("$add", number(1), std::move(made));
  made = call("$divide", number(1), std::move(made));
  if (on_null.missing()) return made;
  MAYFLY_TRY(ExpressionPtr other, ParseExpression(on_null, scope));
  return MakeIfNull(std::move(made), std::move(other), scope);
}

constexpr OperatorDef kArithmeticOps[] = {
    {.name = "$abs",
     .min_args = 1,
     .max_args = 1,
     .eval = &Abs,
     .text = "The number without its sign.",
     .example = R"({"$abs": -5} => 5)"},
    {.name = "$add",
     .eval = &Add,
     .text = "Sum of numbers, or of a date and milliseconds.",
     .example = R"({"$add": [1, 2, 3.5]} => 6.5)"},
    {.name = "$bitAnd",
     .eval = &BitAnd,
     .text = "Bits set in every integer.",
     .example = R"({"$bitAnd": [12, 10]} => 8)"},
    {.name = "$bitNot",
     .min_args = 1,
     .max_args = 1,
     .eval = &BitNot,
     .text = "Bits inverted.",
     .example = R"({"$bitNot": 5} => -6)"},
    {.name = "$bitOr",
     .eval = &BitOr,
     .text = "Bits set in any integer.",
     .example = R"({"$bitOr": [12, 10]} => 14)"},
    {.name = "$bitXor",
     .eval = &BitXor,
     .text = "Bits set in an odd number of integers.",
     .example = R"({"$bitXor": [12, 10]} => 6)"},
    {.name = "$ceil",
     .min_args = 1,
     .max_args = 1,
     .eval = &Ceil,
     .text = "Rounded up to a whole number.",
     .example = R"({"$ceil": 1.2} => 2.0)"},
    {.name = "$divide",
     .min_args = 2,
     .max_args = 2,
     .eval = &Divide,
     .text = "Quotient of two numbers.",
     .example = R"({"$divide": [7, 2]} => 3.5)"},
    {.name = "$exp",
     .min_args = 1,
     .max_args = 1,
     .eval = &Exp,
     .text = "e to the power of the number.",
     .example = R"({"$exp": 0} => 1.0)"},
    {.name = "$floor",
     .min_args = 1,
     .max_args = 1,
     .eval = &Floor,
     .text = "Rounded down to a whole number.",
     .example = R"({"$floor": -1.2} => -2.0)"},
    {.name = "$ln",
     .min_args = 1,
     .max_args = 1,
     .eval = &Ln,
     .text = "Natural logarithm.",
     .example = R"({"$ln": 1} => 0.0)"},
    {.name = "$log",
     .min_args = 2,
     .max_args = 2,
     .eval = &Log,
     .text = "Logarithm to a base.",
     .example = R"({"$log": [8, 2]} => 3.0)"},
    {.name = "$log10",
     .min_args = 1,
     .max_args = 1,
     .eval = &Log10,
     .text = "Logarithm to base 10.",
     .example = R"({"$log10": 100} => 2.0)"},
    {.name = "$mod",
     .min_args = 2,
     .max_args = 2,
     .eval = &Mod,
     .text = "Remainder of a division.",
     .example = R"({"$mod": [-7, 3]} => -1)"},
    {.name = "$multiply",
     .eval = &Multiply,
     .text = "Product of numbers.",
     .example = R"({"$multiply": [2, 3, 4]} => 24)"},
    {.name = "$pow",
     .min_args = 2,
     .max_args = 2,
     .eval = &Pow,
     .text = "A number to the power of another.",
     .example = R"({"$pow": [2, 10]} => 1024)"},
    {.name = "$round",
     .min_args = 1,
     .max_args = 2,
     .eval = &Round,
     .text = "Rounded half to even, to a number of places.",
     .example = R"({"$round": [10.25, 1]} => 10.2)"},
    {.name = "$sigmoid",
     .parse = &ParseSigmoid,
     .text = "1 / (1 + e^-x).",
     .example = R"({"$sigmoid": {"input": "$none", "onNull": 0.5}} => 0.5)"},
    {.name = "$sqrt",
     .min_args = 1,
     .max_args = 1,
     .eval = &Sqrt,
     .text = "Square root.",
     .example = R"({"$sqrt": 9} => 3.0)"},
    {.name = "$subtract",
     .min_args = 2,
     .max_args = 2,
     .eval = &Subtract,
     .text = "Difference of two numbers, two dates (in milliseconds) or a date and milliseconds.",
     .example = R"({"$subtract": [5, 7]} => -2)"},
    {.name = "$trunc",
     .min_args = 1,
     .max_args = 2,
     .eval = &Truncate,
     .text = "Cut off after a number of places.",
     .example = R"({"$trunc": [-3.79, 1]} => -3.7)"},
};

}  // namespace

std::span<const OperatorDef> ArithmeticOperators() { return kArithmeticOps; }

}  // namespace mayfly

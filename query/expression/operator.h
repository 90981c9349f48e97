#pragma once
#include <boost/container/small_vector.hpp>
#include <span>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/bson_check.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/value.h"
#include "query/expression/expression.h"

namespace mayfly {

struct OperatorDef;

/// Evaluated arguments of an operator, in the order of its parameters. A named parameter that was
/// left out is missing and not `has`.
struct EvalArgs {
  EvalContext& ctx;
  std::span<const Value> values;
  uint32_t given;  ///< bit i: named parameter i was written
  const OperatorDef& def;
  size_t size() const { return values.size(); }
  const Value& operator[](size_t i) const { return values[i]; }
  BsonValue view(size_t i) const { return values[i].view(); }
  bool has(size_t i) const { return (given >> i) & 1; }
  bool nullish(size_t i) const { return values[i].view().IsNullish(); }
};

using Children = std::span<const ExpressionPtr>;

/// One operator is one row: sorted by name within its family's table. Exactly one of `eval`, `lazy`
/// and `parse` is set.
struct OperatorDef {
  std::string_view name;
  int min_args = 0;
  int max_args = -1;  ///< -1: any number
  /// All arguments evaluated first.
  Result<Value> (*eval)(const EvalArgs& args) = nullptr;
  /// Evaluates what it needs itself.
  Result<Value> (*lazy)(EvalContext& ctx, Children children) = nullptr;
  /// Has a syntax of its own.
  Result<ExpressionPtr> (*parse)(const OperatorDef& def, BsonValue arg,
                                 VariableScope& scope) = nullptr;
  /// Named parameters ({$op: {name: expression}}): the names, the required ones (a bit each), and
  /// the codes of "not an object", "unknown parameter", "missing parameter".
  std::span<const std::string_view> names = {};
  uint32_t required = 0;
  int object_code = 9, unknown_code = 9, missing_code = 9;
  /// Named parameters, but also {$op: x} and {$op: [x]} for the first one ($year and the like).
  bool positional_too = false;
  bool volatile_result = false;  ///< never folded: $rand
  std::string_view text;         ///< one line of documentation
  std::string_view example;      ///< "expression => value": documentation that a test runs
};

// The families.
std::span<const OperatorDef> ArithmeticOperators();
std::span<const OperatorDef> ArrayOperators();
std::span<const OperatorDef> ArrayScopeOperators();  ///< $map, $filter, $reduce, $zip, $sortArray
std::span<const OperatorDef> CompareOperators();     ///< and the boolean and conditional ones
std::span<const OperatorDef> DateMathOperators();
std::span<const OperatorDef> DateOperators();
std::span<const OperatorDef> ExtendedJsonOperators();
std::span<const OperatorDef> ObjectOperators();
std::span<const OperatorDef> PercentileOperators();  ///< $median, $percentile
std::span<const OperatorDef> SetOperators();
std::span<const OperatorDef> SimilarityOperators();
std::span<const OperatorDef> StringOperators();
std::span<const OperatorDef> StringSearchOperators();
std::span<const OperatorDef> TrigonometryOperators();
std::span<const OperatorDef> TypeOperators();
std::span<const OperatorDef> ValueOperators();  ///< $createObjectId, $currentDate, $hash, $subtype
std::span<const OperatorDef>
VariadicOperators();  ///< accumulators as expressions: $sum, $avg, $max …

/// The row of an operator ("$add"); null if there is none.
const OperatorDef* FindOperator(std::string_view name);
/// All families.
std::vector<std::span<const OperatorDef>> AllOperatorTables();

/// Expression::AddDependencies reports {$meta: "x"} as this followed by x.
inline constexpr std::string_view kMetaDependency = "$meta:";

// --- helpers that operators share ---

/// An error whose code has no name but "Location<code>".
inline Error LocationError(int32_t code, std::string message) {
  return Error{LocationCode(code), std::move(message)};
}
inline std::string OperatorName(const EvalArgs& a) { return std::string(a.def.name); }
/// As messages name a type: "string", "missing" …
inline std::string TypeText(BsonValue v) { return std::string(BsonTypeName(v.type())); }
inline std::string TypeText(const Value& v) { return TypeText(v.view()); }
/// A value as messages show it (relaxed extended JSON; "missing").
std::string ValueText(BsonValue v);
inline std::string ValueText(const Value& v) { return ValueText(v.view()); }

/// A number as int32 when it is whole and fits.
bool ExactInt32(BsonValue v, int32_t* out);
/// The narrowest integer type: int32 when `v` fits and `wide` is not asked for.
inline Value MakeInteger(int64_t v, bool wide) {
  if (!wide && v >= INT32_MIN && v <= INT32_MAX) return Value::Int32(static_cast<int32_t>(v));
  return Value::Int64(v);
}
Decimal128Bits ToDecimal(BsonValue number);  ///< REQUIRES: a number

/// Appends to an array; a missing value becomes null.
inline void AppendOrNull(BsonArrayBuilder& out, BsonValue v) {
  if (v.missing())
    out.AppendNull();
  else
    out.Append(v);
}
/// The array that `fill(BsonArrayBuilder&)` writes. Nothing is charged: GrowingArray is for what
/// may become large.
template <class F>
Value BuildArray(F&& fill) {
  std::string bytes;
  BsonArrayBuilder b(bytes);
  fill(b);
  b.Done();
  return Value::Array(std::move(bytes));
}
/// The most bytes that a value made by an expression may have. MongoDB's limit for its buffers: far
/// above a document's, far below what a BSON length can say.
inline constexpr size_t kMaxValueBytes = size_t{64} << 20;
inline Error ValueTooLarge(size_t bytes) {
  return LocationError(13548, "BufBuilder attempted to grow() to " + std::to_string(bytes) +
                                  " bytes, past the 64MB limit.");
}

/// An operator's result, unless it exceeds the limit of a value or of all large ones together.
Result<Value> MadeLarge(EvalContext& ctx, Value v);
inline Result<Value> Made(EvalContext& ctx, Value v) {
  bson_check::Value(v.view(), "an expression");
  if (v.view().size() < large_memory::kLarge) [[likely]]
    return v;
  return MadeLarge(ctx, std::move(v));
}

/// The elements of an array.
std::vector<BsonValue> Elements(BsonValue array);

/// A value for an expression that does not change: literals and folded trees.
ExpressionPtr MakeConstant(Value v);
/// {$op: …} as `def` says, with children made already; folds constants.
ExpressionPtr MakeCall(const OperatorDef& def, std::vector<ExpressionPtr> children, uint32_t given,
                       VariableScope& scope);
/// {$ifNull: [first, second]}, whose row has a syntax of its own.
ExpressionPtr MakeIfNull(ExpressionPtr first, ExpressionPtr second, VariableScope& scope);
/// Parses the arguments of a row without a syntax of its own.
Result<ExpressionPtr> ParseCall(const OperatorDef& def, BsonValue arg, VariableScope& scope);
/// Checks the name a user gives to a variable. Errors: FailedToParse 9.
Result<void> CheckVariableName(std::string_view name);

/// Splits and checks a field path ("a.b"). Errors: 15998, 40353, 16410, 16411.
Result<std::vector<std::string>> ParseFieldPath(std::string_view path);
/// What "$path" reads: sub-documents, and through arrays every element (giving an array).
Value ReadFieldPath(BsonValue from, std::span<const std::string> path);

/// Base of expressions that keep their children in a list.
class ParentExpression : public Expression {
 public:
  void AddDependencies(std::set<std::string>* paths) const override {
    for (auto& c : children_)
      if (c) c->AddDependencies(paths);
  }

 protected:
  std::vector<ExpressionPtr> children_;
};

}  // namespace mayfly

#include "protocol/bson_compare.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"

namespace mayfly {
namespace {

Result<Value> Eq(const EvalArgs& a) {
  return Value::Bool(CompareValues(a.view(0), a.view(1)) == 0);
}
Result<Value> Ne(const EvalArgs& a) {
  return Value::Bool(CompareValues(a.view(0), a.view(1)) != 0);
}
Result<Value> Gt(const EvalArgs& a) { return Value::Bool(CompareValues(a.view(0), a.view(1)) > 0); }
Result<Value> Gte(const EvalArgs& a) {
  return Value::Bool(CompareValues(a.view(0), a.view(1)) >= 0);
}
Result<Value> Lt(const EvalArgs& a) { return Value::Bool(CompareValues(a.view(0), a.view(1)) < 0); }
Result<Value> Lte(const EvalArgs& a) {
  return Value::Bool(CompareValues(a.view(0), a.view(1)) <= 0);
}
Result<Value> Cmp(const EvalArgs& a) {
  int c = CompareValues(a.view(0), a.view(1));
  return Value::Int32(c < 0 ? -1 : c > 0 ? 1 : 0);
}

Result<Value> And(EvalContext& ctx, Children children) {
  for (auto& c : children) {
    MAYFLY_TRY(Value v, c->Evaluate(ctx));
    if (!v.view().Truthy()) return Value::Bool(false);
  }
  return Value::Bool(true);
}
Result<Value> Or(EvalContext& ctx, Children children) {
  for (auto& c : children) {
    MAYFLY_TRY(Value v, c->Evaluate(ctx));
    if (v.view().Truthy()) return Value::Bool(true);
  }
  return Value::Bool(false);
}
Result<Value> Not(const EvalArgs& a) { return Value::Bool(!a.view(0).Truthy()); }

Result<Value> Cond(EvalContext& ctx, Children children) {
  MAYFLY_TRY(Value v, children[0]->Evaluate(ctx));
  return children[v.view().Truthy() ? 1 : 2]->Evaluate(ctx);
}

Result<ExpressionPtr> ParseCond(const OperatorDef& def, BsonValue arg, VariableScope& scope);

/// The array form of $cond; the row that is registered parses both forms into calls of this one.
constexpr OperatorDef kCondCall = {.name = "$cond", .min_args = 3, .max_args = 3, .lazy = &Cond};

Result<ExpressionPtr> ParseCond(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  if (!arg.IsDocument() ||
      (!arg.Document().empty() && arg.Document().First().name.starts_with('$')))
    return ParseCall(kCondCall, arg, scope);
  MAYFLY_TRY(CheckOptionsOnce("$cond", arg));
  static constexpr std::string_view kNames[] = {"if", "then", "else"};
  std::vector<ExpressionPtr> children(3);
  for (const BsonElement& e : arg.Document()) {
    int i = 0;
    while (i < 3 && kNames[i] != e.name) ++i;
    if (i == 3)
      return LocationError(17083, "Unrecognized parameter to $cond: " + std::string(e.name));
    MAYFLY_TRY(children[i], ParseExpression(e.value, scope));
  }
  for (int i = 0; i < 3; ++i)
    if (!children[i])
      return LocationError(17080 + i,
                           "Missing '" + std::string(kNames[i]) + "' parameter to $cond");
  return MakeCall(kCondCall, std::move(children), 0, scope);
}

Result<Value> IfNull(EvalContext& ctx, Children children) {
  for (size_t i = 0; i + 1 < children.size(); ++i) {
    MAYFLY_TRY(Value v, children[i]->Evaluate(ctx));
    if (!v.view().IsNullish()) return v;
  }
  return children.back()->Evaluate(ctx);
}
constexpr OperatorDef kIfNullCall = {.name = "$ifNull", .lazy = &IfNull};
Result<ExpressionPtr> ParseIfNull(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  int n = arg.IsArray() ? arg.Document().Count() : 1;
  if (n < 2)
    return LocationError(1257300,
                         "$ifNull needs at least two arguments, had: " + std::to_string(n));
  return ParseCall(kIfNullCall, arg, scope);
}

}  // namespace

ExpressionPtr MakeIfNull(ExpressionPtr first, ExpressionPtr second, VariableScope& scope) {
  std::vector<ExpressionPtr> children;
  children.push_back(std::move(first));
  children.push_back(std::move(second));
  return MakeCall(kIfNullCall, std::move(children), 0, scope);
}

namespace {

/// Children: case, then, case, then …, and last the default (null when there is none).
class SwitchExpression final : public ParentExpression {
 public:
  explicit SwitchExpression(std::vector<ExpressionPtr> children) {
    children_ = std::move(children);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    for (size_t i = 0; i + 2 < children_.size(); i += 2) {
      MAYFLY_TRY(Value v, children_[i]->Evaluate(ctx));
      if (v.view().Truthy()) return children_[i + 1]->Evaluate(ctx);
    }
    if (children_.back()) return children_.back()->Evaluate(ctx);
    return LocationError(
        40066,
        "$switch could not find a matching branch for an input, and no default was specified.");
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder outer = out.OpenDocument(name);
    BsonBuilder sub = outer.OpenDocument("$switch");
    BsonArrayBuilder branches = sub.OpenArray("branches");
    for (size_t i = 0; i + 2 < children_.size(); i += 2) {
      BsonBuilder branch = branches.OpenDocument();
      children_[i]->Serialize(branch, "case");
      children_[i + 1]->Serialize(branch, "then");
    }
    branches.Done();
    if (children_.back()) children_.back()->Serialize(sub, "default");
  }
};

Result<ExpressionPtr> ParseSwitch(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  if (!arg.IsDocument())
    return LocationError(40060,
                         "$switch requires an object as an argument, found: " + TypeText(arg));
  MAYFLY_TRY(CheckOptionsOnce("$switch", arg));
  std::vector<ExpressionPtr> children;
  ExpressionPtr otherwise;
  for (const BsonElement& e : arg.Document()) {
    if (e.name == "default") {
      MAYFLY_TRY(otherwise, ParseExpression(e.value, scope));
    } else if (e.name == "branches") {
      if (!e.value.IsArray())
        return LocationError(
            40061, "$switch expected an array for 'branches', found: " + TypeText(e.value));
      for (const BsonElement& b : e.value.Document()) {
        if (!b.value.IsDocument())
          return LocationError(
              40062, "$switch expected each branch to be an object, found: " + TypeText(b.value));
        MAYFLY_TRY(CheckOptionsOnce("$switch.branches", b.value));
        ExpressionPtr when, then;
        for (const BsonElement& f : b.value.Document()) {
          if (f.name == "case") {
            MAYFLY_TRY(when, ParseExpression(f.value, scope));
          } else if (f.name == "then") {
            MAYFLY_TRY(then, ParseExpression(f.value, scope));
          } else {
            return LocationError(
                40063, "$switch found an unknown argument to a branch: " + std::string(f.name));
          }
        }
        if (!when)
          return LocationError(40064, "$switch requires each branch have a 'case' expression");
        if (!then)
          return LocationError(40065, "$switch requires each branch have a 'then' expression.");
        children.push_back(std::move(when));
        children.push_back(std::move(then));
      }
    } else {
      return LocationError(40067, "$switch found an unknown argument: " + std::string(e.name));
    }
  }
  if (children.empty()) return LocationError(40068, "$switch requires at least one branch.");
  children.push_back(std::move(otherwise));
  return ExpressionPtr(std::make_unique<SwitchExpression>(std::move(children)));
}

constexpr OperatorDef kCompareOps[] = {
    {.name = "$and",
     .lazy = &And,
     .text = "True when every operand is.",
     .example = R"({"$and": [true, 1, "x"]} => true)"},
    {.name = "$cmp",
     .min_args = 2,
     .max_args = 2,
     .eval = &Cmp,
     .text = "-1, 0 or 1, as the first is less, equal or greater.",
     .example = R"({"$cmp": ["b", "a"]} => 1)"},
    {.name = "$cond",
     .parse = &ParseCond,
     .text = "One of two values, by a condition.",
     .example = R"({"$cond": {"if": false, "then": 1, "else": 2}} => 2)"},
    {.name = "$eq",
     .min_args = 2,
     .max_args = 2,
     .eval = &Eq,
     .text = "Equal.",
     .example = R"({"$eq": [1, 1.0]} => true)"},
    {.name = "$gt",
     .min_args = 2,
     .max_args = 2,
     .eval = &Gt,
     .text = "Greater than.",
     .example = R"({"$gt": [2, 1]} => true)"},
    {.name = "$gte",
     .min_args = 2,
     .max_args = 2,
     .eval = &Gte,
     .text = "Greater than or equal.",
     .example = R"({"$gte": [2, 2]} => true)"},
    {.name = "$ifNull",
     .parse = &ParseIfNull,
     .text = "The first operand that is neither null nor missing, or the last.",
     .example = R"({"$ifNull": [null, "$none", 3]} => 3)"},
    {.name = "$lt",
     .min_args = 2,
     .max_args = 2,
     .eval = &Lt,
     .text = "Less than.",
     .example = R"({"$lt": [2, "a"]} => true)"},
    {.name = "$lte",
     .min_args = 2,
     .max_args = 2,
     .eval = &Lte,
     .text = "Less than or equal.",
     .example = R"({"$lte": [2, 1]} => false)"},
    {.name = "$ne",
     .min_args = 2,
     .max_args = 2,
     .eval = &Ne,
     .text = "Not equal.",
     .example = R"({"$ne": [1, 2]} => true)"},
    {.name = "$not",
     .min_args = 1,
     .max_args = 1,
     .eval = &Not,
     .text = "The opposite truth value.",
     .example = R"({"$not": [0]} => true)"},
    {.name = "$or",
     .lazy = &Or,
     .text = "True when any operand is.",
     .example = R"({"$or": [false, null, 1]} => true)"},
    {.name = "$switch",
     .parse = &ParseSwitch,
     .text = "The value of the first branch whose case is true.",
     .example =
         R"({"$switch": {"branches": [{"case": {"$eq": [1, 2]}, "then": "a"}], "default": "b"}} => "b")"},
};

}  // namespace

std::span<const OperatorDef> CompareOperators() { return kCompareOps; }

}  // namespace mayfly

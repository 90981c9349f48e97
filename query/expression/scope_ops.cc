#include "protocol/bson_view.h"
#include "query/expression/growth.h"
#include "query/expression/nesting.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

void SetVariable(EvalContext& ctx, VariableId id, Value v) {
  auto slot = static_cast<size_t>(id);
  // bounded: by the variables that the operation defines
  if (ctx.variables.size() <= slot) ctx.variables.resize(slot + 1);
  ctx.variables[slot] = std::move(v);
}

/// The variable is out of scope: its value may be freed.
void ForgetVariable(EvalContext& ctx, VariableId id) {
  auto slot = static_cast<size_t>(id);
  if (slot < ctx.variables.size()) ctx.variables[slot] = Value();
}

/// A value read by name may be nested into other documents again and again: without its own limit
/// it would become as deep as an expression has rounds. A borrowed value lies in a document or in
/// another variable.
Result<void> CheckVariable(const Value& v) {
  if (!v.owns()) return Ok();
  return CheckNesting(v.view());
}

/// The names of the variables of an operator that goes through an array.
struct ElementNames {
  std::string element, value, index;  ///< those that were written; empty: not written
};

/// The system variable with the position of an element. It is there as long as no name is given.
constexpr std::string_view kPosition = "IDX";

/// The name of a variable, as the argument `option` of `op` gives it.
Result<std::string> VariableArgument(std::string_view op, std::string_view option, BsonValue v) {
  if (!v.IsString())
    return TypeMismatch("'" + std::string(option) + "' parameter to " + std::string(op) +
                        " must be a string, found: " + TypeText(v));
  MAYFLY_TRY(CheckVariableName(v.String()));
  return std::string(v.String());
}

/// Reads an option that names a variable; false for any other option.
Result<bool> ReadName(std::string_view op, const BsonElement& e, bool reduce, ElementNames* names) {
  std::string* const into = e.name == "as"                  ? &names->element
                            : e.name == "arrayIndexAs"      ? &names->index
                            : reduce && e.name == "valueAs" ? &names->value
                                                            : nullptr;
  if (into == nullptr) return false;
  MAYFLY_TRY(*into, VariableArgument(op, e.name, e.value));
  return true;
}

/// One name cannot stand for two variables: one of them could not be read.
Result<void> CheckNamesDiffer(std::string_view op, const ElementNames& names) {
  const std::string element = names.element.empty() ? "this" : names.element;
  const std::string value = names.value.empty() ? "value" : names.value;
  if (element != names.index && (op != "$reduce" || (value != names.index && value != element)))
    return Ok();
  return Error{ErrorCode::kFailedToParse,
               std::string(op) + " gives the same name to two of its variables"};
}

/// As they were written: those that were not stay away.
void AppendNames(BsonBuilder& out, const ElementNames& names) {
  if (!names.element.empty()) out.Append("as", names.element);
  if (!names.value.empty()) out.Append("valueAs", names.value);
  if (!names.index.empty()) out.Append("arrayIndexAs", names.index);
}

VariableId DefinePosition(VariableScope& scope, const ElementNames& names) {
  return scope.Define(names.index.empty() ? kPosition : std::string_view(names.index));
}

/// $let: children are the variables' values, then `in`.
class LetExpression final : public ParentExpression {
 public:
  LetExpression(std::vector<std::string> names, std::vector<VariableId> ids,
                std::vector<ExpressionPtr> children)
      : names_(std::move(names)), ids_(std::move(ids)) {
    children_ = std::move(children);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    Kept kept(ctx);
    for (size_t i = 0; i < ids_.size(); ++i) {
      MAYFLY_TRY(Value v, children_[i]->Evaluate(ctx));
      MAYFLY_TRY(kept.Add(v));
      MAYFLY_TRY(CheckVariable(v));
      SetVariable(ctx, ids_[i], std::move(v));
    }
    Result<Value> result = children_.back()->Evaluate(ctx);
    for (VariableId id : ids_) ForgetVariable(ctx, id);
    return result;
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder outer = out.OpenDocument(name);
    BsonBuilder sub = outer.OpenDocument("$let");
    BsonBuilder vars = sub.OpenDocument("vars");
    for (size_t i = 0; i < names_.size(); ++i) children_[i]->Serialize(vars, names_[i]);
    vars.Done();
    children_.back()->Serialize(sub, "in");
  }

 private:
  std::vector<std::string> names_;
  std::vector<VariableId> ids_;
};

Result<ExpressionPtr> ParseLet(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  if (!arg.IsDocument())
    return LocationError(16874, "$let only supports an object as its argument");
  MAYFLY_TRY(CheckOptionsOnce("$let", arg));
  BsonValue vars, in;
  for (const BsonElement& e : arg.Document()) {
    if (e.name == "vars")
      vars = e.value;
    else if (e.name == "in")
      in = e.value;
    else
      return LocationError(16875, "Unrecognized parameter to $let: " + std::string(e.name));
  }
  if (vars.missing()) return LocationError(16876, "Missing 'vars' parameter to $let");
  if (in.missing()) return LocationError(16877, "Missing 'in' parameter to $let");
  if (!vars.IsDocument())
    return LocationError(10065, "invalid parameter: expected an object (vars)");
  MAYFLY_TRY(CheckOptionsOnce("$let.vars", vars));
  std::vector<std::string> names;
  std::vector<ExpressionPtr> children;
  // The values are in the outer scope: a variable cannot see its neighbours.
  for (const BsonElement& e : vars.Document()) {
    MAYFLY_TRY(CheckVariableName(e.name));
    MAYFLY_TRY(ExpressionPtr v, ParseExpression(e.value, scope));
    names.emplace_back(e.name);
    children.push_back(std::move(v));
  }
  std::vector<VariableId> ids;
  for (auto& name : names) ids.push_back(scope.Define(name));
  Result<ExpressionPtr> body = ParseExpression(in, scope);
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) scope.Undefine(*id);
  if (!body) return body;
  children.push_back(std::move(body).value());
  return ExpressionPtr(
      std::make_unique<LetExpression>(std::move(names), std::move(ids), std::move(children)));
}

/// $map and $filter: children are input, in or cond, limit (null when there is none).
class EachExpression final : public ParentExpression {
 public:
  EachExpression(bool filter, ElementNames names, VariableId id, VariableId position,
                 std::vector<ExpressionPtr> children)
      : filter_(filter), names_(std::move(names)), id_(id), position_(position) {
    children_ = std::move(children);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    MAYFLY_TRY(Value input, children_[0]->Evaluate(ctx));
    if (input.view().IsNullish()) return Value::Null();
    if (!input.view().IsArray())
      return LocationError(filter_ ? 28651 : 16883, std::string("input to ") +
                                                        (filter_ ? "$filter" : "$map") +
                                                        " must be an array not " + TypeText(input));
    int64_t limit = INT64_MAX;
    if (children_[2]) {
      MAYFLY_TRY(Value v, children_[2]->Evaluate(ctx));
      int32_t n;
      if (!v.view().IsNullish()) {
        if (!v.view().IsNumber() || !ExactInt32(v.view(), &n))
          return LocationError(
              327391,
              "$filter: limit must be represented as a 32-bit integral value: " + ValueText(v));
        if (n < 1)
          return LocationError(327392, "$filter: limit must be greater than 0: " + ValueText(v));
        limit = n;
      }
    }
    Kept kept(ctx);
    MAYFLY_TRY(kept.Add(input));
    MAYFLY_TRY(CheckVariable(input));
    GrowingArray out(ctx);
    int32_t position = 0;
    for (const BsonElement& e : input.view().Document()) {
      if (ctx.op) {
        MAYFLY_TRY(ctx.op->CheckInterrupt());
      }
      SetVariable(ctx, id_, input.Member(e.value));
      SetVariable(ctx, position_, Value::Int32(position++));
      MAYFLY_TRY(Value v, children_[1]->Evaluate(ctx));
      if (!filter_) {
        MAYFLY_TRY(out.AppendOrNull(v.view()));
      } else if (v.view().Truthy()) {
        MAYFLY_TRY(out.Append(e.value));
        if (--limit == 0) break;
      }
    }
    ForgetVariable(ctx, id_);
    return Made(ctx, out.Finish());
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder outer = out.OpenDocument(name);
    BsonBuilder sub = outer.OpenDocument(filter_ ? "$filter" : "$map");
    children_[0]->Serialize(sub, "input");
    sub.Append("as", names_.element);
    if (!names_.index.empty()) sub.Append("arrayIndexAs", names_.index);
    children_[1]->Serialize(sub, filter_ ? "cond" : "in");
    if (children_[2]) children_[2]->Serialize(sub, "limit");
  }

 private:
  bool filter_;
  ElementNames names_;
  VariableId id_, position_;
};

Result<ExpressionPtr> ParseEach(bool filter, BsonValue arg, VariableScope& scope) {
  std::string op = filter ? "$filter" : "$map";
  if (!arg.IsDocument())
    return LocationError(filter ? 28646 : 16878, op + " only supports an object as its argument");
  MAYFLY_TRY(CheckOptionsOnce(op, arg));
  BsonValue input, body, limit;
  ElementNames names;
  for (const BsonElement& e : arg.Document()) {
    MAYFLY_TRY(const bool name, ReadName(op, e, false, &names));
    if (name) continue;
    if (e.name == "input")
      input = e.value;
    else if (e.name == (filter ? "cond" : "in"))
      body = e.value;
    else if (filter && e.name == "limit")
      limit = e.value;
    else
      return LocationError(filter ? 28647 : 16879,
                           "Unrecognized parameter to " + op + ": " + std::string(e.name));
  }
  if (input.missing())
    return LocationError(filter ? 28648 : 16880, "Missing 'input' parameter to " + op);
  if (body.missing())
    return LocationError(
        filter ? 28650 : 16882,
        std::string("Missing '") + (filter ? "cond" : "in") + "' parameter to " + op);
  if (names.element.empty()) names.element = "this";
  MAYFLY_TRY(CheckNamesDiffer(op, names));
  std::vector<ExpressionPtr> children(3);
  MAYFLY_TRY(children[0], ParseExpression(input, scope));
  if (!limit.missing()) {
    MAYFLY_TRY(children[2], ParseExpression(limit, scope));
  }
  const VariableId id = scope.Define(names.element), position = DefinePosition(scope, names);
  Result<ExpressionPtr> parsed = ParseExpression(body, scope);
  scope.Undefine(position);
  scope.Undefine(id);
  if (!parsed) return parsed;
  children[1] = std::move(parsed).value();
  return ExpressionPtr(std::make_unique<EachExpression>(filter, std::move(names), id, position,
                                                        std::move(children)));
}
Result<ExpressionPtr> ParseMap(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  return ParseEach(false, arg, scope);
}
Result<ExpressionPtr> ParseFilter(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  return ParseEach(true, arg, scope);
}

/// $reduce: children are input, initialValue, in.
class ReduceExpression final : public ParentExpression {
 public:
  ReduceExpression(ElementNames names, VariableId self, VariableId value, VariableId position,
                   std::vector<ExpressionPtr> children)
      : names_(std::move(names)), this_(self), value_(value), position_(position) {
    children_ = std::move(children);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    MAYFLY_TRY(Value input, children_[0]->Evaluate(ctx));
    if (input.view().IsNullish()) return Value::Null();
    if (!input.view().IsArray())
      return LocationError(40080,
                           "$reduce requires that 'input' be an array, found: " + ValueText(input));
    Kept kept(ctx);
    MAYFLY_TRY(kept.Add(input));
    MAYFLY_TRY(CheckVariable(input));
    MAYFLY_TRY(Value value, children_[1]->Evaluate(ctx));
    MAYFLY_TRY(CheckVariable(value));
    int32_t position = 0;
    for (const BsonElement& e : input.view().Document()) {
      if (ctx.op) {
        MAYFLY_TRY(ctx.op->CheckInterrupt());
      }
      SetVariable(ctx, this_, input.Member(e.value));
      SetVariable(ctx, position_, Value::Int32(position++));
      const bool document = value.view().IsDocument() || value.view().IsArray();
      const char* before = document ? value.view().data() : nullptr;
      SetVariable(ctx, value_, std::move(value));
      MAYFLY_TRY(value, children_[2]->Evaluate(ctx));
      if (value.view().size() > kMaxValueBytes) return ValueTooLarge(value.view().size());
      // The variable still holds the one before: bytes at the same place are the same.
      if (value.view().data() != before) {
        MAYFLY_TRY(CheckVariable(value));
      }
      ForgetVariable(ctx, value_);
    }
    ForgetVariable(ctx, this_);
    return value;
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder outer = out.OpenDocument(name);
    BsonBuilder sub = outer.OpenDocument("$reduce");
    children_[0]->Serialize(sub, "input");
    children_[1]->Serialize(sub, "initialValue");
    AppendNames(sub, names_);
    children_[2]->Serialize(sub, "in");
  }

 private:
  ElementNames names_;
  VariableId this_, value_, position_;
};

Result<ExpressionPtr> ParseReduce(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  if (!arg.IsDocument())
    return LocationError(40075,
                         "$reduce requires an object as an argument, found: " + TypeText(arg));
  MAYFLY_TRY(CheckOptionsOnce("$reduce", arg));
  static constexpr std::string_view kNames[] = {"input", "initialValue", "in"};
  BsonValue parts[3];
  ElementNames names;
  for (const BsonElement& e : arg.Document()) {
    MAYFLY_TRY(const bool name, ReadName("$reduce", e, true, &names));
    if (name) continue;
    int i = 0;
    while (i < 3 && kNames[i] != e.name) ++i;
    if (i == 3)
      return LocationError(40076, "$reduce found an unknown argument: " + std::string(e.name));
    parts[i] = e.value;
  }
  for (int i = 0; i < 3; ++i)
    if (parts[i].missing())
      return LocationError(40077 + i,
                           "$reduce requires '" + std::string(kNames[i]) + "' to be specified");
  MAYFLY_TRY(CheckNamesDiffer("$reduce", names));
  std::vector<ExpressionPtr> children(3);
  MAYFLY_TRY(children[0], ParseExpression(parts[0], scope));
  MAYFLY_TRY(children[1], ParseExpression(parts[1], scope));
  const VariableId self = scope.Define(names.element.empty() ? "this" : names.element.c_str());
  const VariableId value = scope.Define(names.value.empty() ? "value" : names.value.c_str());
  const VariableId position = DefinePosition(scope, names);
  Result<ExpressionPtr> body = ParseExpression(parts[2], scope);
  scope.Undefine(position);
  scope.Undefine(value);
  scope.Undefine(self);
  if (!body) return body;
  children[2] = std::move(body).value();
  return ExpressionPtr(std::make_unique<ReduceExpression>(std::move(names), self, value, position,
                                                          std::move(children)));
}

constexpr OperatorDef kScopeOps[] = {
    {.name = "$filter",
     .parse = &ParseFilter,
     .text = "The elements of an array for which a condition holds.",
     .example =
         R"({"$filter": {"input": [1, 2, 3], "as": "x", "cond": {"$gt": ["$$x", 1]}}} => [2, 3])"},
    {.name = "$let",
     .parse = &ParseLet,
     .text = "An expression with variables of its own.",
     .example =
         R"({"$let": {"vars": {"a": 2, "b": 3}, "in": {"$multiply": ["$$a", "$$b"]}}} => 6)"},
    {.name = "$map",
     .parse = &ParseMap,
     .text = "An expression applied to each element of an array.",
     .example = R"({"$map": {"input": [1, 2], "in": {"$add": ["$$this", 10]}}} => [11, 12])"},
    {.name = "$reduce",
     .parse = &ParseReduce,
     .text = "Elements of an array combined from left to right.",
     .example =
         R"({"$reduce": {"input": ["a", "b"], "initialValue": "", "in": {"$concat": ["$$value", "$$this"]}}} => "ab")"},
};

}  // namespace

std::span<const OperatorDef> ArrayScopeOperators() { return kScopeOps; }

}  // namespace mayfly

// Operators on one field: $set $setOnInsert $unset $inc $mul $min $max $currentDate $bit, and the
// ends of $rename.
#include <cmath>

#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "protocol/field_once.h"
#include "protocol/value.h"
#include "query/expression/element_text.h"
#include "query/expression/insert_prepare.h"
#include "query/update/update_node.h"

namespace mayfly::update {
namespace {

/// Writes `v` unless the field already holds those very bytes.
Effect Put(const Target& t, BsonValue v) {
  if (t.old.BinaryEquals(v)) return Effect::kUnchanged;
  Emit(t.out, t.name, v);
  return Effect::kReplaced;
}

class SetLeaf final : public Leaf {
 public:
  explicit SetLeaf(BsonValue v) : value_(v) { depth_ = NestingDepth(v); }
  Result<Effect> Apply(const Target& t, const ApplyContext&) const override {
    return Put(t, value_);
  }

 private:
  BsonValue value_;
};

class SetOnInsertLeaf final : public Leaf {
 public:
  explicit SetOnInsertLeaf(BsonValue v) : value_(v) { depth_ = NestingDepth(v); }
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    return ctx.is_insert ? Put(t, value_) : Effect::kUnchanged;
  }
  OnBlocked on_blocked(const ApplyContext& ctx) const override {
    return ctx.is_insert ? OnBlocked::kCannotCreate : OnBlocked::kNothing;
  }

 private:
  BsonValue value_;
};

class UnsetLeaf final : public Leaf {
 public:
  UnsetLeaf() { on_blocked_ = OnBlocked::kNothing; }
  Result<Effect> Apply(const Target& t, const ApplyContext&) const override {
    return t.old.missing() ? Effect::kUnchanged : Effect::kRemoved;
  }
};

class RenameSourceLeaf final : public Leaf {
 public:
  explicit RenameSourceLeaf(int number) : number_(number) { on_blocked_ = OnBlocked::kNothing; }
  Result<Effect> Apply(const Target&, const ApplyContext& ctx) const override {
    return ctx.rename_sources[number_].missing() ? Effect::kUnchanged : Effect::kRemoved;
  }

 private:
  int number_;
};

class RenameDestinationLeaf final : public Leaf {
 public:
  explicit RenameDestinationLeaf(int number) : number_(number) {}
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    BsonValue source = ctx.rename_sources[number_];
    return source.missing() ? Effect::kUnchanged : Put(t, source);
  }
  OnBlocked on_blocked(const ApplyContext& ctx) const override {
    return ctx.rename_sources[number_].missing() ? OnBlocked::kNothing : OnBlocked::kCannotCreate;
  }
  int depth(const ApplyContext& ctx) const override {
    return NestingDepth(ctx.rename_sources[number_]);
  }

 private:
  int number_;
};

// Arithmetic: the wider type of the two wins, int32 < int64 < double < decimal; int32 grows into
// int64.

Decimal128Bits ToDecimal(BsonValue v) {
  switch (v.type()) {
    case BsonType::kDecimal128:
      return v.Decimal();
    case BsonType::kDouble:
      return decimal128::FromDouble(v.Double());
    case BsonType::kInt32:
      return decimal128::FromInt64(v.Int32());
    default:
      return decimal128::FromInt64(v.Int64());
  }
}
int64_t ToLong(BsonValue v) { return v.Is(BsonType::kInt32) ? v.Int32() : v.Int64(); }

/// False when int64 overflows.
bool Arithmetic(BsonValue a, BsonValue b, bool multiply, Value* out) {
  if (a.Is(BsonType::kDecimal128) || b.Is(BsonType::kDecimal128)) {
    Decimal128Bits x = ToDecimal(a), y = ToDecimal(b);
    *out = Value::Decimal(multiply ? decimal128::Multiply(x, y) : decimal128::Add(x, y));
    return true;
  }
  if (a.Is(BsonType::kDouble) || b.Is(BsonType::kDouble)) {
    double x = a.NumberAsDouble(), y = b.NumberAsDouble();
    *out = Value::Double(multiply ? x * y : x + y);
    return true;
  }
  int64_t r;
  bool overflow = multiply ? __builtin_mul_overflow(ToLong(a), ToLong(b), &r)
                           : __builtin_add_overflow(ToLong(a), ToLong(b), &r);
  if (overflow) return false;
  bool both_int = a.Is(BsonType::kInt32) && b.Is(BsonType::kInt32);
  *out = both_int && r == static_cast<int32_t>(r) ? Value::Int32(static_cast<int32_t>(r))
                                                  : Value::Int64(r);
  return true;
}

class ArithmeticLeaf final : public Leaf {
 public:
  ArithmeticLeaf(BsonValue operand, bool multiply) : operand_(operand), multiply_(multiply) {}
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    if (t.old.missing()) {
      if (!multiply_) return Put(t, operand_);
      Value zero;
      Arithmetic(Value::Int32(0).view(), operand_, true, &zero);
      if (operand_.Is(BsonType::kDouble)) zero = Value::Double(0);  // not -0 nor NaN
      if (operand_.Is(BsonType::kDecimal128)) zero = Value::Decimal(decimal128::FromInt64(0));
      return Put(t, zero.view());
    }
    if (!t.old.IsNumber())
      return TypeMismatch("Cannot apply " + Name() + " to a value of non-numeric type. " +
                          IdText(ctx.root) + " has the field '" + std::string(t.name) +
                          "' of non-numeric type " + std::string(BsonTypeName(t.old.type())));
    Value result;
    if (!Arithmetic(t.old, operand_, multiply_, &result))
      return BadValue("Failed to apply " + Name() + " operations to current value ((" +
                      (t.old.Is(BsonType::kInt32) ? "NumberInt" : "NumberLong") + ")" +
                      ValueText(t.old) + ") for document " + IdText(ctx.root));
    return Put(t, result.view());
  }

 private:
  std::string Name() const { return multiply_ ? "$mul" : "$inc"; }
  BsonValue operand_;
  bool multiply_;
};

class MinMaxLeaf final : public Leaf {
 public:
  MinMaxLeaf(BsonValue operand, bool max) : operand_(operand), max_(max) {
    depth_ = NestingDepth(operand);
  }
  Result<Effect> Apply(const Target& t, const ApplyContext&) const override {
    if (!t.old.missing()) {
      int c = CompareValues(operand_, t.old);
      if (max_ ? c <= 0 : c >= 0) return Effect::kUnchanged;
    }
    return Put(t, operand_);
  }

 private:
  BsonValue operand_;
  bool max_;
};

class CurrentDateLeaf final : public Leaf {
 public:
  explicit CurrentDateLeaf(bool timestamp) : timestamp_(timestamp) {}
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    Value v = timestamp_ ? Value::Timestamp(NextTimestamp(ctx.now)) : Value::Date(ctx.now);
    return Put(t, v.view());
  }

 private:
  bool timestamp_;
};

class BitLeaf final : public Leaf {
 public:
  struct Step {
    char op;  ///< 'a'nd, 'o'r, 'x'or
    BsonValue operand;
  };
  explicit BitLeaf(std::vector<Step> steps) : steps_(std::move(steps)) {}
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    if (!t.old.missing() && !t.old.Is(BsonType::kInt32) && !t.old.Is(BsonType::kInt64))
      return BadValue("Cannot apply $bit to a value of non-integral type." + IdText(ctx.root) +
                      " has the field " + std::string(t.name) + " of non-integer type " +
                      std::string(BsonTypeName(t.old.type())));
    int64_t v = t.old.missing() ? 0 : ToLong(t.old);
    bool wide = t.old.Is(BsonType::kInt64);
    for (const Step& s : steps_) {
      int64_t operand = ToLong(s.operand);
      wide = wide || s.operand.Is(BsonType::kInt64);
      v = s.op == 'a' ? v & operand : s.op == 'o' ? v | operand : v ^ operand;
    }
    Value result = wide ? Value::Int64(v) : Value::Int32(static_cast<int32_t>(v));
    return Put(t, result.view());
  }

 private:
  std::vector<Step> steps_;
};

Result<LeafPtr> ParseArithmetic(const BsonElement& e, bool multiply) {
  if (!e.value.IsNumber())
    return TypeMismatch(std::string(multiply ? "Cannot multiply" : "Cannot increment") +
                        " with non-numeric argument: {" + ElementText(e.name, e.value) + "}");
  return LeafPtr(std::make_unique<ArithmeticLeaf>(e.value, multiply));
}

}  // namespace

LeafPtr MakeSet(BsonValue v) { return std::make_unique<SetLeaf>(v); }
LeafPtr MakeRenameSource(int number) { return std::make_unique<RenameSourceLeaf>(number); }
LeafPtr MakeRenameDestination(int number) {
  return std::make_unique<RenameDestinationLeaf>(number);
}

Result<LeafPtr> ParseSet(const BsonElement& e, LeafParser&) { return MakeSet(e.value); }
Result<LeafPtr> ParseSetOnInsert(const BsonElement& e, LeafParser&) {
  return LeafPtr(std::make_unique<SetOnInsertLeaf>(e.value));
}
Result<LeafPtr> ParseUnset(const BsonElement&, LeafParser&) {
  return LeafPtr(std::make_unique<UnsetLeaf>());
}
Result<LeafPtr> ParseInc(const BsonElement& e, LeafParser&) { return ParseArithmetic(e, false); }
Result<LeafPtr> ParseMul(const BsonElement& e, LeafParser&) { return ParseArithmetic(e, true); }
Result<LeafPtr> ParseMin(const BsonElement& e, LeafParser&) {
  return LeafPtr(std::make_unique<MinMaxLeaf>(e.value, false));
}
Result<LeafPtr> ParseMax(const BsonElement& e, LeafParser&) {
  return LeafPtr(std::make_unique<MinMaxLeaf>(e.value, true));
}

Result<LeafPtr> ParseCurrentDate(const BsonElement& e, LeafParser&) {
  bool timestamp = false;
  if (e.value.IsDocument()) {
    bool found = false;
    for (const BsonElement& option : e.value.Document()) {
      if (option.name != "$type")
        return BadValue("Unrecognized $currentDate option: " + std::string(option.name));
      if (found) return DuplicateField("$currentDate", option.name);
      if (option.value.IsString() && option.value.String() == "date") {
        timestamp = false;
      } else if (option.value.IsString() && option.value.String() == "timestamp") {
        timestamp = true;
      } else {
        break;
      }
      found = true;
    }
    if (!found)
      return BadValue(
          "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field "
          ": {$type: "
          "'date'}}}");
  } else if (!e.value.Is(BsonType::kBool)) {
    return BadValue(
        std::string(BsonTypeName(e.value.type())) +
        " is not valid type for $currentDate. Please use a boolean ('true') or a $type expression "
        "({$type: 'timestamp/date'}).");
  }
  return LeafPtr(std::make_unique<CurrentDateLeaf>(timestamp));
}

Result<LeafPtr> ParseBit(const BsonElement& e, LeafParser&) {
  if (!e.value.IsDocument())
    return BadValue("The $bit modifier is not compatible with a " +
                    std::string(BsonTypeName(e.value.type())) +
                    ". You must pass in an embedded document: {$bit: {field: {and/or/xor: #}}");
  std::vector<BitLeaf::Step> steps;
  for (const BsonElement& op : e.value.Document()) {
    if (op.name != "and" && op.name != "or" && op.name != "xor")
      return BadValue("The $bit modifier only supports 'and', 'or', and 'xor', not '" +
                      std::string(op.name) + "' which is an unknown operator: {" +
                      ElementText(op.name, op.value) + "}");
    if (!op.value.Is(BsonType::kInt32) && !op.value.Is(BsonType::kInt64))
      return BadValue("The $bit modifier field must be an Integer(32/64 bit); a '" +
                      std::string(BsonTypeName(op.value.type())) + "' is not supported here: {" +
                      ElementText(op.name, op.value) + "}");
    steps.push_back({op.name[0], op.value});
  }
  if (steps.empty())
    return BadValue(
        "You must pass in at least one bitwise operation. The format is: {$bit: {field: "
        "{and/or/xor: #}}");
  return LeafPtr(std::make_unique<BitLeaf>(std::move(steps)));
}

}  // namespace mayfly::update

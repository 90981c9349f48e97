#include <array>

#include "protocol/bson_check.h"
#include "protocol/extended_json.h"
#include "protocol/large_memory.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"
#include "query/expression/parse_work.h"
#include "query/expression/readable.h"
#include "query/expression/utf8_positions.h"
#include "storage/operation.h"

namespace mayfly {

VariableId VariableScope::Define(std::string_view name) {
  names_.emplace_back(name, slots_);
  if (names_.size() > kListed) {
    if (by_name_.empty())
      for (const auto& [known, id] : names_) by_name_[known].push_back(id);
    else
      by_name_[std::string(name)].push_back(slots_);
  }
  return slots_++;
}

void VariableScope::Undefine(VariableId id) {
  // Scopes end in the opposite order of their beginnings: it is the last, or near.
  for (size_t i = names_.size(); i-- > 0;) {
    if (names_[i].second != id) continue;
    if (const auto same = by_name_.find(names_[i].first); same != by_name_.end()) {
      std::erase(same->second, id);
      if (same->second.empty()) by_name_.erase(same);
    }
    names_.erase(names_.begin() + static_cast<ptrdiff_t>(i));
    break;
  }
  if (names_.size() <= kListed) by_name_.clear();
}

std::optional<VariableId> VariableScope::Lookup(std::string_view name) const {
  if (!by_name_.empty()) {
    if (const auto found = by_name_.find(std::string(name)); found != by_name_.end())
      return found->second.back();
  } else {
    for (auto it = names_.rbegin(); it != names_.rend(); ++it)
      if (it->first == name) return it->second;
  }
  // By VariableId.
  constexpr std::string_view kSystem[] = {"ROOT", "CURRENT",      "REMOVE",
                                          "NOW",  "CLUSTER_TIME", "USER_ROLES"};
  const auto found = std::find(std::begin(kSystem), std::end(kSystem), name);
  if (found == std::end(kSystem)) return std::nullopt;
  return static_cast<VariableId>(found - std::begin(kSystem));
}

std::string ValueText(BsonValue v) {
  if (v.missing()) return "missing";
  constexpr size_t kMost = 2048;  // it goes into messages
  if (v.size() > 16 * kMost)
    return "<" + TypeText(v) + " of " + std::to_string(v.size()) + " bytes>";
  std::string text = ToRelaxedJson(v);
  if (text.size() > kMost) {
    size_t end = kMost;
    while (IsContinuation(text[end])) --end;
    text.resize(end);
    text += "...";
  }
  return text;
}

bool ExactInt32(BsonValue v, int32_t* out) {
  int64_t wide;
  if (!v.ExactInt64(&wide) || wide < INT32_MIN || wide > INT32_MAX) return false;
  *out = static_cast<int32_t>(wide);
  return true;
}

std::vector<BsonValue> Elements(BsonValue array) {
  std::vector<BsonValue> r;
  for (const BsonElement& e : array.Document()) r.push_back(e.value);
  return r;
}

Result<std::vector<std::string>> ParseFieldPath(std::string_view path) {
  if (path.empty())
    return LocationError(40352, "FieldPath cannot be constructed with empty string");
  if (path.back() == '.') return LocationError(40353, "FieldPath must not end with a '.'.");
  if (path.find('\0') != path.npos)
    return LocationError(16411, "FieldPath field names may not contain '\\0'.");
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    size_t dot = path.find('.', start);
    std::string_view part = path.substr(start, dot == path.npos ? dot : dot - start);
    if (part.empty())
      return LocationError(15998, "FieldPath field names may not be empty strings.");
    // The fields of a DBRef may: {$lookup: {localField: "house.$id"}}.
    if (part[0] == '$' && part != "$id" && part != "$ref" && part != "$db")
      return LocationError(
          16410,
          "FieldPath field names may not start with '$'. Consider using $getField or $setField.");
    parts.emplace_back(part);
    if (dot == path.npos) break;
    start = dot + 1;
  }
  if (parts.size() > 200) return Error{ErrorCode::kOverflow, "FieldPath is too long"};
  return parts;
}

namespace {

void AppendThroughArray(BsonValue array, std::span<const std::string> path, BsonArrayBuilder& out);

Value ReadFrom(BsonView doc, std::span<const std::string> path) {
  for (size_t i = 0;; ++i) {
    BsonValue v = doc.Find(path[i]);
    if (i + 1 == path.size()) return Value::Borrow(v);
    if (v.IsDocument()) {
      doc = v.Document();
    } else if (v.IsArray()) {
      return BuildArray(
          [&](BsonArrayBuilder& out) { AppendThroughArray(v, path.subspan(i + 1), out); });
    } else {
      return Value();
    }
  }
}

/// Only documents inside the array count; arrays directly in arrays are passed over.
void AppendThroughArray(BsonValue array, std::span<const std::string> path, BsonArrayBuilder& out) {
  for (const BsonElement& e : array.Document()) {
    if (!e.value.IsDocument()) continue;
    Value v = ReadFrom(e.value.Document(), path);
    if (!v.missing()) out.Append(v.view());
  }
}

}  // namespace

Value ReadFieldPath(BsonValue from, std::span<const std::string> path) {
  if (path.empty()) return Value::Borrow(from);
  if (from.IsDocument()) return ReadFrom(from.Document(), path);
  if (from.IsArray())
    return BuildArray([&](BsonArrayBuilder& out) { AppendThroughArray(from, path, out); });
  return Value();
}

namespace {

/// The bytes of a constant that folding has made. A short description can make a large one, so a
/// server keeps only so many bytes of them; further ones are computed again for each document.
class FoldedBytes {
 public:
  FoldedBytes() = default;
  FoldedBytes(FoldedBytes&& o) noexcept : budget_(o.budget_), bytes_(std::exchange(o.bytes_, 0)) {}
  FoldedBytes& operator=(FoldedBytes&&) = delete;
  ~FoldedBytes() {
    if (bytes_ != 0) budget_->folded_bytes -= static_cast<int64_t>(bytes_);
  }
  /// False when there is no room.
  bool Take(size_t bytes) {
    if (bytes <= kSmall) return true;
    bytes_ = bytes;
    budget_ = &large_memory::ThreadBudget();
    return (budget_->folded_bytes += static_cast<int64_t>(bytes)) <= kMost;
  }

 private:
  static constexpr size_t kSmall = 256;
  static constexpr int64_t kMost = int64_t{64} << 20;
  large_memory::Budget* budget_ = nullptr;  ///< of bytes_, when that is not 0
  size_t bytes_ = 0;
};

class ConstantExpression final : public Expression {
 public:
  explicit ConstantExpression(Value v, FoldedBytes folded = {})
      : value_(std::move(v).Own()), folded_(std::move(folded)) {}
  Result<Value> Evaluate(EvalContext&) const override { return value_; }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    if (value_.missing()) {
      out.Append(name, "$$REMOVE");
      return;
    }
    BsonBuilder sub = out.OpenDocument(name);
    sub.Append("$const", value_.view());
  }
  void AddDependencies(std::set<std::string>*) const override {}
  const Value* Constant() const override { return &value_; }

 private:
  Value value_;
  FoldedBytes folded_;
};

class FieldPathExpression final : public ReadableExpression {
 public:
  FieldPathExpression(VariableId variable, std::string name, std::vector<std::string> path)
      : variable_(variable), name_(std::move(name)), path_(std::move(path)) {}

  Result<Value> Evaluate(EvalContext& ctx) const override {
    // A request may name a path of a large document any number of times.
    MAYFLY_TRY(CheckAfter(ctx, ctx.root.size()));
    switch (variable_) {
      case VariableScope::kCurrent:
        // $redact moves $$CURRENT; nobody else gives it a value.
        if (ctx.variables.size() > VariableScope::kCurrent &&
            !ctx.variables[VariableScope::kCurrent].missing())
          return Read(ctx, ctx.variables[VariableScope::kCurrent]);
        [[fallthrough]];
      case VariableScope::kRoot:
        if (path_.size() == 1) return Value::Borrow(ctx.root.Find(path_[0]));
        return Through(ctx, ReadFieldPath(ctx.root.AsValue(), path_));
      case VariableScope::kRemove:
        return Value();
      case VariableScope::kNow:
        return path_.empty() ? Value::Date(ctx.now) : Value();
      default:
        break;
    }
    auto slot = static_cast<size_t>(variable_);
    bool set = slot < ctx.variables.size() && !ctx.variables[slot].missing();
    if (variable_ == VariableScope::kClusterTime && !set) {
      if (ctx.cluster_time == 0)
        return LocationError(51144, "Builtin variable '$$CLUSTER_TIME' is not available");
      return path_.empty() ? Value::Timestamp(ctx.cluster_time) : Value();
    }
    if (variable_ == VariableScope::kUserRoles && !set) return Roles(ctx);
    if (!set) return Value();
    return Read(ctx, ctx.variables[slot]);
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    std::string text = "$";
    bool first = true;
    if (variable_ != VariableScope::kCurrent || path_.empty()) {
      text += '$';
      text += name_;
      first = false;
    }
    for (auto& part : path_) {
      if (!first) text += '.';
      text += part;
      first = false;
    }
    out.Append(name, text);
  }
  void AddDependencies(std::set<std::string>* paths) const override {
    if (OfDocument()) paths->insert(Joined());
  }
  bool Fixed() const override { return !OfDocument(); }
  std::string DocumentPath() const override { return OfDocument() ? Joined() : std::string(); }

 private:
  bool OfDocument() const {
    return variable_ == VariableScope::kRoot || variable_ == VariableScope::kCurrent;
  }
  std::string Joined() const {
    std::string text;
    for (auto& part : path_) {
      if (!text.empty()) text += '.';
      text += part;
    }
    return text;
  }
  Result<Value> Read(EvalContext& ctx, const Value& base) const {
    if (path_.empty()) return base;
    MAYFLY_TRY(CheckAfter(ctx, base.view().size()));
    Value r = ReadFieldPath(base.view(), path_);
    if (r.owns()) return Through(ctx, std::move(r));
    return base.Member(r.view());
  }
  Result<Value> Roles(EvalContext& ctx) const {
    if (ctx.op != nullptr && ctx.op->user_roles() != nullptr && !ctx.op->user_roles()->missing())
      return Read(ctx, *ctx.op->user_roles());
    return BuildArray([](BsonArrayBuilder&) {});  // bounded: nothing
  }
  /// The value that was read. A new value was built from arrays, and is no larger than they
  /// are.
  static Result<Value> Through(EvalContext& ctx, Value r) {
    if (!r.owns()) return r;
    return Made(ctx, std::move(r));
  }
  VariableId variable_;
  std::string name_;
  std::vector<std::string> path_;
};

class ObjectExpression final : public ParentExpression {
 public:
  ObjectExpression(std::vector<std::string> names, std::vector<ExpressionPtr> values)
      : names_(std::move(names)) {
    children_ = std::move(values);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    GrowingDocument out(ctx);
    for (size_t i = 0; i < names_.size(); ++i) {
      MAYFLY_TRY(Value v, children_[i]->Evaluate(ctx));
      if (v.missing()) continue;
      MAYFLY_TRY(out.Append(names_[i], v.view()));
    }
    return Made(ctx, out.Finish());
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder sub = out.OpenDocument(name);
    for (size_t i = 0; i < names_.size(); ++i) children_[i]->Serialize(sub, names_[i]);
  }

 private:
  std::vector<std::string> names_;
};

class ArrayExpression final : public ParentExpression {
 public:
  explicit ArrayExpression(std::vector<ExpressionPtr> values) { children_ = std::move(values); }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    GrowingArray out(ctx);
    for (auto& c : children_) {
      MAYFLY_TRY(Value v, c->Evaluate(ctx));
      MAYFLY_TRY(out.AppendOrNull(v.view()));
    }
    return Made(ctx, out.Finish());
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonArrayBuilder sub = out.OpenArray(name);
    for (auto& c : children_) c->Serialize(sub.raw(), sub.NextName());
  }
};

class CallExpression final : public ReadableExpression {
 public:
  CallExpression(const OperatorDef& def, std::vector<ExpressionPtr> children, uint32_t given)
      : def_(def), children_(std::move(children)), given_(given) {}
  void AddDependencies(std::set<std::string>* paths) const override {
    for (const auto& c : children_)
      if (c) c->AddDependencies(paths);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    if (def_.lazy) {
      Result<Value> chosen = def_.lazy(ctx, children_);
      if (chosen) bson_check::Value(chosen.value().view(), "an expression");
      return chosen;
    }
    boost::container::small_vector<Value, 4> values(children_.size());
    Kept kept(ctx);
    for (size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i]) continue;
      MAYFLY_TRY(values[i], children_[i]->Evaluate(ctx));
      MAYFLY_TRY(kept.Add(values[i]));
      // An operator's output is about as large as its input, or it checks itself.
      if (kept.bytes() > kMaxValueBytes) return ValueTooLarge(kept.bytes());
    }
    MAYFLY_TRY(Value result, def_.eval({ctx, {values.data(), values.size()}, given_, def_}));
    // Even an operator with a small result may have looked at all of it.
    MAYFLY_TRY(CheckAfter(ctx, kept.bytes()));
    return Made(ctx, std::move(result));
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder sub = out.OpenDocument(name);
    if (def_.names.empty()) {
      BsonArrayBuilder array = sub.OpenArray(def_.name);
      for (auto& c : children_) c->Serialize(array.raw(), array.NextName());
    } else {
      BsonBuilder object = sub.OpenDocument(def_.name);
      for (size_t i = 0; i < children_.size(); ++i)
        if (children_[i]) children_[i]->Serialize(object, def_.names[i]);
    }
  }
  bool Fixed() const override {
    if (def_.volatile_result) return false;
    for (const auto& c : children_)
      if (c && !IsFixed(*c)) return false;
    return true;
  }
  std::string_view Operator() const override {
    return def_.names.empty() ? def_.name : std::string_view();
  }
  std::span<const ExpressionPtr> Operands() const override { return children_; }

 private:
  const OperatorDef& def_;
  std::vector<ExpressionPtr> children_;
  uint32_t given_;
};

/// The characters of a variable's name. Those of the system, which may be read, begin with a
/// capital letter.
Result<void> CheckVariableText(std::string_view name, bool reading) {
  auto bad = [&](std::string what) {
    return Error{ErrorCode::kFailedToParse, "'" + std::string(name) + "' " + what};
  };
  auto high = [](char c) { return static_cast<unsigned char>(c) >= 0x80; };
  auto capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  char first = name[0];
  if (!(first >= 'a' && first <= 'z') && !high(first) && !(reading && capital(first)))
    return bad("starts with an invalid character for a user variable name");
  for (char c : name)
    if (!(c >= 'a' && c <= 'z') && !capital(c) && !(c >= '0' && c <= '9') && c != '_' && !high(c))
      return bad("contains an invalid character for a variable name: '" + std::string(1, c) + "'");
  return Ok();
}

Result<ExpressionPtr> ParseVariable(std::string_view text, VariableScope& scope) {
  size_t dot = text.find('.');
  std::string_view name = text.substr(0, dot);
  if (name.empty()) return Error{ErrorCode::kFailedToParse, "empty variable names are not allowed"};
  MAYFLY_TRY(CheckVariableText(name, true));
  std::optional<VariableId> id = scope.Lookup(name);
  if (!id) {
    MAYFLY_TRY(ParseWork::Look());  // that may be why it was not found
    return LocationError(17276, "Use of undefined variable: " + std::string(name));
  }
  std::vector<std::string> path;
  if (dot != text.npos) {
    MAYFLY_TRY(path, ParseFieldPath(text.substr(dot + 1)));
  }
  if (*id == VariableScope::kRemove) return MakeConstant(Value());
  return ExpressionPtr(
      std::make_unique<FieldPathExpression>(*id, std::string(name), std::move(path)));
}

Result<ExpressionPtr> ParseObject(BsonView doc, VariableScope& scope) {
  // A reader of the document that it makes would see one of two values.
  MAYFLY_TRY(CheckOptionsOnce("expression", doc.AsValue()));
  std::vector<std::string> names;
  std::vector<ExpressionPtr> values;
  bool constant = true;
  for (const BsonElement& e : doc) {
    if (e.name.starts_with('$'))
      return LocationError(
          16410,
          "FieldPath field names may not start with '$'. Consider using $getField or $setField.");
    if (e.name.find('.') != e.name.npos)
      return LocationError(
          16412,
          "FieldPath field names may not contain '.'. Consider using $getField or $setField.");
    MAYFLY_TRY(ExpressionPtr v, ParseExpression(e.value, scope));
    constant = constant && v->Constant();
    names.emplace_back(e.name);
    values.push_back(std::move(v));
  }
  auto e = std::make_unique<ObjectExpression>(std::move(names), std::move(values));
  if (!constant) return ExpressionPtr(std::move(e));
  EvalContext ctx;
  MAYFLY_TRY(Value v, e->Evaluate(ctx));
  return MakeConstant(std::move(v));
}

Error ArityError(const OperatorDef& def, int given) {
  std::string name(def.name), count = std::to_string(given);
  if (def.min_args == def.max_args)
    return LocationError(16020, "Expression " + name + " takes exactly " +
                                    std::to_string(def.min_args) + " arguments. " + count +
                                    " were passed in.");
  if (def.max_args < 0)
    return LocationError(16020, "Expression " + name + " takes at least " +
                                    std::to_string(def.min_args) + " arguments. " + count +
                                    " were passed in.");
  return LocationError(28667, "Expression " + name + " takes at least " +
                                  std::to_string(def.min_args) + " arguments, and at most " +
                                  std::to_string(def.max_args) + ", but " + count +
                                  " were passed in.");
}

/// Most operators have one code for a parameter that is missing; these count from it, up or down.
int MissingCode(const OperatorDef& def, size_t parameter) {
  struct Counted {
    int code, step;
  };
  static constexpr Counted kCounted[] = {{31022, 1},     // $regexMatch, $regexFind, $regexFindAll
                                         {51749, -1},    // $replaceOne, $replaceAll
                                         {5166303, 1},   // $dateDiff
                                         {5439009, 1},   // $dateTrunc
                                         {5787906, 1}};  // $firstN, $lastN, $maxN, $minN
  for (const Counted& c : kCounted)
    if (c.code == def.missing_code) return c.code + c.step * static_cast<int>(parameter);
  return def.missing_code;
}

Result<ExpressionPtr> ParseNamedCall(const OperatorDef& def, BsonValue arg, VariableScope& scope) {
  std::string op(def.name);
  std::vector<ExpressionPtr> children(def.names.size());
  uint32_t given = 0;
  bool named = arg.IsDocument() && (!def.positional_too || arg.Document().empty() ||
                                    !arg.Document().First().name.starts_with('$'));
  if (!named && def.positional_too) {
    BsonValue only = arg;
    if (arg.IsArray()) {
      if (int n = arg.Document().Count(); n != 1)
        return LocationError(
            40536, op + " accepts exactly one argument if given an array, but was given " +
                       std::to_string(n));
      only = arg.Document().First().value;
    }
    MAYFLY_TRY(children[0], ParseExpression(only, scope));
    return MakeCall(def, std::move(children), 1, scope);
  }
  if (!named)
    return LocationError(def.object_code,
                         op + " only supports an object as its argument, found: " + TypeText(arg));
  MAYFLY_TRY(CheckOptionsOnce(op, arg));
  for (const BsonElement& e : arg.Document()) {
    size_t i = 0;
    while (i < def.names.size() && def.names[i] != e.name) ++i;
    if (i == def.names.size())
      return LocationError(def.unknown_code,
                           "Unrecognized argument to " + op + ": " + std::string(e.name));
    MAYFLY_TRY(children[i], ParseExpression(e.value, scope));
    given |= 1u << i;
  }
  for (size_t i = 0; i < def.names.size(); ++i)
    if ((def.required >> i & 1) && !(given >> i & 1))
      return LocationError(MissingCode(def, i),
                           "Missing '" + std::string(def.names[i]) + "' parameter to " + op);
  return MakeCall(def, std::move(children), given, scope);
}

}  // namespace

/// The largest value that stands in for the expression it was made from.
constexpr size_t kMaxFolded = 64 << 10;

ExpressionPtr MakeConstant(Value v) { return std::make_unique<ConstantExpression>(std::move(v)); }

ExpressionPtr MakeCall(const OperatorDef& def, std::vector<ExpressionPtr> children, uint32_t given,
                       VariableScope& scope) {
  bool constant = !def.volatile_result;
  for (auto& c : children) constant = constant && (!c || c->Constant());
  auto call = std::make_unique<CallExpression>(def, std::move(children), given);
  if (constant) {
    EvalContext ctx;
    ctx.folding = true;
    ctx.op = ParseWork::Asked();
    Result<Value> v = call->Evaluate(ctx);
    // A value much larger than its description is made when needed: a command may have many of
    // them.
    if (FoldedBytes folded;
        v && v.value().view().size() <= kMaxFolded && folded.Take(v.value().view().size()))
      return std::make_unique<ConstantExpression>(std::move(v).value(), std::move(folded));
    // An error in a constant fails the whole, except the error that it would be too large.
    if (!v && v.error().code != ErrorCode::kExceededMemoryLimit)
      scope.NoteConstantError(std::move(v).error());
  }
  return call;
}

Result<ExpressionPtr> ParseCall(const OperatorDef& def, BsonValue arg, VariableScope& scope) {
  if (!def.names.empty()) return ParseNamedCall(def, arg, scope);
  std::vector<ExpressionPtr> children;
  if (arg.IsArray()) {
    for (const BsonElement& e : arg.Document()) {
      MAYFLY_TRY(ExpressionPtr c, ParseExpression(e.value, scope));
      children.push_back(std::move(c));
    }
  } else {
    MAYFLY_TRY(ExpressionPtr c, ParseExpression(arg, scope));
    children.push_back(std::move(c));
  }
  int n = static_cast<int>(children.size());
  if (n < def.min_args || (def.max_args >= 0 && n > def.max_args)) return ArityError(def, n);
  return MakeCall(def, std::move(children), 0, scope);
}

Result<void> CheckVariableName(std::string_view name) {
  if (name.empty()) return Error{ErrorCode::kFailedToParse, "empty variable names are not allowed"};
  if (name == "CURRENT") return Ok();
  return CheckVariableText(name, false);
}

std::vector<std::span<const OperatorDef>> AllOperatorTables() {
  return {ArithmeticOperators(),   ArrayOperators(),        ArrayScopeOperators(),
          CompareOperators(),      DateMathOperators(),     DateOperators(),
          ObjectOperators(),       SetOperators(),          StringOperators(),
          StringSearchOperators(), TrigonometryOperators(), TypeOperators(),
          VariadicOperators(),     PercentileOperators(),   ValueOperators(),
          ExtendedJsonOperators(), SimilarityOperators()};
}

const OperatorDef* FindOperator(std::string_view name) {
  static const auto* const index = [] {
    // hashed: by names of operators
    auto* map = new std::unordered_map<std::string_view, const OperatorDef*>;
    for (auto table : AllOperatorTables())
      for (const OperatorDef& def : table) map->emplace(def.name, &def);
    return map;
  }();
  auto it = index->find(name);
  return it == index->end() ? nullptr : it->second;
}

Result<ExpressionPtr> ParseExpression(BsonValue value, VariableScope& scope) {
  MAYFLY_TRY(ParseWork::Step());
  ParseWork::Made(160);  // a node, with its place in its parent and what the allocator adds
  switch (value.type()) {
    case BsonType::kString: {
      std::string_view text = value.String();
      if (!text.starts_with('$')) return MakeConstant(Value::Borrow(value));
      if (text.size() == 1) return LocationError(16872, "'$' by itself is not a valid FieldPath");
      if (text[1] == '$') return ParseVariable(text.substr(2), scope);
      MAYFLY_TRY(auto path, ParseFieldPath(text.substr(1)));
      // A field path starts at $$CURRENT, which $let and $redact can move.
      const std::optional<VariableId> current = scope.Lookup("CURRENT");
      if (!current) {
        MAYFLY_TRY(ParseWork::Look());
      }
      return ExpressionPtr(std::make_unique<FieldPathExpression>(
          current.value_or(VariableScope::kCurrent), "CURRENT", std::move(path)));
    }
    case BsonType::kArray: {
      std::vector<ExpressionPtr> children;
      bool constant = true;
      for (const BsonElement& e : value.Document()) {
        MAYFLY_TRY(ExpressionPtr c, ParseExpression(e.value, scope));
        constant = constant && c->Constant();
        children.push_back(std::move(c));
      }
      auto array = std::make_unique<ArrayExpression>(std::move(children));
      if (!constant) return ExpressionPtr(std::move(array));
      EvalContext ctx;
      MAYFLY_TRY(Value v, array->Evaluate(ctx));
      return MakeConstant(std::move(v));
    }
    case BsonType::kDocument: {
      BsonView doc = value.Document();
      if (doc.empty() || !doc.First().name.starts_with('$')) return ParseObject(doc, scope);
      if (doc.Count() != 1)
        return LocationError(15983,
                             "An object representing an expression must have exactly one field: " +
                                 ValueText(value));
      BsonElement e = doc.First();
      const OperatorDef* def = FindOperator(e.name);
      if (!def)
        return Error{ErrorCode::kInvalidPipelineOperator,
                     "Unrecognized expression '" + std::string(e.name) + "'"};
      if (def->parse) return def->parse(*def, e.value, scope);
      return ParseCall(*def, e.value, scope);
    }
    default:
      return MakeConstant(Value::Borrow(value));
  }
}

}  // namespace mayfly

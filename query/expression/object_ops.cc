#include <random>

#include "protocol/seeded_hash.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"

namespace mayfly {
namespace {

Result<ExpressionPtr> ParseLiteral(const OperatorDef&, BsonValue arg, VariableScope&) {
  return MakeConstant(Value::Borrow(arg));
}

/// Merges fields of documents: an existing name keeps its place and takes the new value.
class FieldSet {
 public:
  explicit FieldSet(EvalContext& ctx) : ctx_(ctx), pace_(ctx), charge_(ctx) {}
  Result<void> Put(std::string_view name, BsonValue value) {
    MAYFLY_TRY(pace_.Step(name.size()));
    auto [it, fresh] = places_.try_emplace(name, fields_.size());
    if (!fresh) {
      fields_[it->second].second = value;
      return Ok();
    }
    fields_.emplace_back(name, value);
    // The vector doubles as it grows.
    return charge_.Set(fields_.size() * (2 * sizeof(fields_[0]) + kEntryBytes));
  }
  Result<Value> Finish() {
    GrowingDocument out(ctx_);
    for (auto& [name, value] : fields_) {
      MAYFLY_TRY(out.Append(name, value));
    }
    return out.Finish();
  }

 private:
  static constexpr size_t kEntryBytes = 64;  ///< of the table
  EvalContext& ctx_;
  Pace pace_;
  Charge charge_;
  std::vector<std::pair<std::string_view, BsonValue>> fields_;
  ClientViewMap<size_t> places_;
};

Result<Value> MergeObjects(const EvalArgs& a) {
  FieldSet fields(a.ctx);
  auto merge = [&](BsonValue v) -> Result<void> {
    if (v.IsNullish()) return Ok();
    if (!v.IsDocument())
      return LocationError(40400, "$mergeObjects requires object inputs, but input " +
                                      ValueText(v) + " is of type " + TypeText(v));
    for (const BsonElement& e : v.Document()) {
      MAYFLY_TRY(fields.Put(e.name, e.value));
    }
    return Ok();
  };
  if (a.size() == 1 && a.view(0).IsArray()) {
    for (const BsonElement& e : a.view(0).Document()) {
      MAYFLY_TRY(merge(e.value));
    }
  } else {
    for (const Value& v : a.values) {
      MAYFLY_TRY(merge(v.view()));
    }
  }
  return fields.Finish();
}

// $getField, $setField, $unsetField: a field by a name that may hold '.' and '$'.

constexpr std::string_view kGetFieldNames[] = {"field", "input"};
constexpr std::string_view kSetFieldNames[] = {"field", "input", "value"};

Result<Value> GetField(const EvalArgs& a) {
  BsonValue field = a.view(0);
  if (!field.IsString())
    return LocationError(
        3041704,
        "$getField requires 'field' to evaluate to type String, but got " + TypeText(field));
  BsonValue input = a.view(1);
  if (input.IsNullish()) return input.missing() ? Value() : Value::Null();
  if (!input.IsDocument()) return Value();
  return a[1].Member(input.Document().Find(field.String()));
}
constexpr OperatorDef kGetFieldCall = {.name = "$getField",
                                       .eval = &GetField,
                                       .names = kGetFieldNames,
                                       .required = 3,
                                       .object_code = 3041701,
                                       .unknown_code = 3041701,
                                       .missing_code = 3041702};

/// The name of a field: a constant, or an expression; a string that starts with '$' must be a
/// $literal.
Result<ExpressionPtr> ParseFieldName(BsonValue v, std::string_view op, bool constant,
                                     VariableScope& scope) {
  if (v.IsString() && v.String().starts_with('$'))
    return LocationError(
        5654600, "A field path reference which is not meant to be a literal was passed to " +
                     std::string(op) + " as 'field'; use $literal for a name that starts with '$'");
  MAYFLY_TRY(ExpressionPtr e, ParseExpression(v, scope));
  if (e->Constant() && !e->Constant()->view().IsString())
    return LocationError(5654602, std::string(op) +
                                      " requires 'field' to evaluate to type String, but got " +
                                      TypeText(*e->Constant()));
  // Also of one that is only read: no field has such a name.
  if (e->Constant() && e->Constant()->view().String().find('\0') != std::string_view::npos)
    return LocationError(16411, "FieldPath field names may not contain '\\0'. (the 'field' of " +
                                    std::string(op) + ")");
  if (constant && !e->Constant())
    return LocationError(4161106,
                         std::string(op) + " requires 'field' to evaluate to a constant String");
  return e;
}

Result<ExpressionPtr> ParseGetField(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  std::vector<ExpressionPtr> children(2);
  bool named =
      arg.IsDocument() && (arg.Document().empty() || !arg.Document().First().name.starts_with('$'));
  BsonValue field = arg, input;
  if (named) {
    field = {};
    MAYFLY_TRY(CheckOptionsOnce("$getField", arg));
    for (const BsonElement& e : arg.Document()) {
      if (e.name == "field")
        field = e.value;
      else if (e.name == "input")
        input = e.value;
      else
        return LocationError(3041701,
                             "$getField found an unknown argument: " + std::string(e.name));
    }
    if (field.missing())
      return LocationError(3041702, "$getField requires 'field' to be specified");
    if (input.missing())
      return LocationError(3041703, "$getField requires 'input' to be specified");
  }
  MAYFLY_TRY(children[0], ParseFieldName(field, "$getField", false, scope));
  Value current = Value::String("$$CURRENT");
  MAYFLY_TRY(children[1], ParseExpression(named ? input : current.view(), scope));
  return MakeCall(kGetFieldCall, std::move(children), 3, scope);
}

Result<Value> SetField(const EvalArgs& a) {
  BsonValue input = a.view(1), value = a.view(2);
  if (input.IsNullish()) return Value::Null();
  if (!input.IsDocument())
    return LocationError(4161105, "$setField requires 'input' to evaluate to type Object");
  std::string_view name = a.view(0).String();
  GrowingDocument out(a.ctx);
  bool found = false;
  for (const BsonElement& e : input.Document()) {
    const bool same = e.name == name;
    found = found || same;
    MAYFLY_TRY(out.Append(e.name, same ? value : e.value));
  }
  if (!found) {
    MAYFLY_TRY(out.Append(name, value));  // check_names: ParseFieldName has looked
  }
  return out.Finish();
}
constexpr OperatorDef kSetFieldCall = {
    .name = "$setField", .eval = &SetField, .names = kSetFieldNames};

Result<ExpressionPtr> ParseSetField(const OperatorDef& def, BsonValue arg, VariableScope& scope) {
  bool unset = def.name == "$unsetField";
  std::string op(def.name);
  if (!arg.IsDocument())
    return LocationError(4161100, op + " only supports an object as its argument");
  MAYFLY_TRY(CheckOptionsOnce(op, arg));
  BsonValue parts[3];
  for (const BsonElement& e : arg.Document()) {
    int i = 0;
    while (i < 3 && kSetFieldNames[i] != e.name) ++i;
    if (i == (unset ? 2 : 3) || i == 3)
      return LocationError(4161101, op + " found an unknown argument: " + std::string(e.name));
    parts[i] = e.value;
  }
  if (parts[0].missing()) return LocationError(4161102, op + " requires 'field' to be specified");
  if (!unset && parts[2].missing())
    return LocationError(4161103, op + " requires 'value' to be specified");
  if (parts[1].missing()) return LocationError(4161109, op + " requires 'input' to be specified");
  std::vector<ExpressionPtr> children(3);
  MAYFLY_TRY(children[0], ParseFieldName(parts[0], op, true, scope));
  MAYFLY_TRY(children[1], ParseExpression(parts[1], scope));
  if (unset) {
    children[2] = MakeConstant(Value());
  } else {
    MAYFLY_TRY(children[2], ParseExpression(parts[2], scope));
  }
  return MakeCall(kSetFieldCall, std::move(children), 7, scope);
}

Result<Value> ObjectToArray(const EvalArgs& a) {
  BsonValue v = a.view(0);
  if (v.IsNullish()) return Value::Null();
  if (!v.IsDocument())
    return LocationError(40390, "$objectToArray requires a document input, found: " + TypeText(v));
  GrowingArray out(a.ctx);
  for (const BsonElement& e : v.Document()) {
    MAYFLY_TRY(out.Room(e.name.size() + e.value.size()));
    BsonBuilder pair = out.raw().OpenDocument();
    pair.Append("k", e.name);
    pair.Append("v", e.value);
  }
  return out.Finish();
}

Result<Value> ArrayToObject(const EvalArgs& a) {
  BsonValue v = a.view(0);
  if (v.IsNullish()) return Value::Null();
  if (!v.IsArray())
    return LocationError(40386, "$arrayToObject requires an array input, found: " + TypeText(v));
  FieldSet fields(a.ctx);
  std::optional<bool> pairs;  // [k, v] rather than {k: …, v: …}
  for (const BsonElement& e : v.Document()) {
    BsonValue key, value;
    if (!e.value.IsArray() && !e.value.IsDocument())
      return LocationError(
          40398, "Unrecognised input type format for $arrayToObject: " + TypeText(e.value));
    bool pair = e.value.IsArray();
    if (pairs && *pairs != pair)
      return LocationError(
          pair ? 40391 : 40396,
          std::string("$arrayToObject requires a consistent input format. Elements must all be "
                      "arrays or all be objects. ") +
              (pair ? "Object" : "Array") + " was detected, now found: " + TypeText(e.value));
    pairs = pair;
    int n = e.value.Document().Count();
    if (pair) {
      if (n != 2)
        return LocationError(
            40397, "$arrayToObject requires an array of size 2 arrays,found array of size: " +
                       std::to_string(n));
      auto it = e.value.Document().begin();
      key = (*it).value;
      value = (*++it).value;
    } else {
      if (n != 2)
        return LocationError(40392,
                             "$arrayToObject requires an object keys of 'k' and 'v'. Found "
                             "incorrect number of keys:" +
                                 std::to_string(n));
      key = e.value.Document()["k"];
      value = e.value.Document()["v"];
      if (key.missing() || value.missing())
        return LocationError(40393,
                             "$arrayToObject requires an object with keys 'k' and 'v'. Missing "
                             "either or both keys from: " +
                                 ValueText(e.value));
    }
    if (!key.IsString())
      return LocationError(pair ? 40395 : 40394,
                           "$arrayToObject requires an array of key-value pairs, where the key "
                           "must be of type string. "
                           "Found key type: " +
                               TypeText(key));
    if (key.String().find('\0') != std::string_view::npos)
      return LocationError(4940400, "Key field cannot contain an embedded null byte");
    MAYFLY_TRY(fields.Put(key.String(), value));
  }
  return fields.Finish();
}

Result<Value> Rand(const EvalArgs& a) {
  if (a.size() != 0 && !a.view(0).IsDocument())
    return LocationError(10065, "invalid parameter: expected an object ($rand)");
  if (a.size() != 0 && !a.view(0).Document().empty())
    return LocationError(3040501, "$rand does not currently accept arguments");
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return Value::Double(std::uniform_real_distribution<double>(0, 1)(generator));
}

Result<Value> BsonSize(const EvalArgs& a) {
  BsonValue v = a.view(0);
  if (v.IsNullish()) return Value::Null();
  if (!v.IsDocument())
    return LocationError(31393, "$bsonSize requires a document input, found: " + TypeText(v));
  return Value::Int32(static_cast<int32_t>(v.size()));
}

Result<Value> BinarySize(const EvalArgs& a) {
  BsonValue v = a.view(0);
  if (v.IsNullish()) return Value::Null();
  if (v.IsString()) return Value::Int32(static_cast<int32_t>(v.String().size()));
  if (v.Is(BsonType::kBinary)) return Value::Int32(static_cast<int32_t>(v.BinaryData().size()));
  return LocationError(51276,
                       "$binarySize requires a string or BinData argument, found: " + TypeText(v));
}

/// {$meta: "…"}: facts of the source about the document besides its fields.
class MetaExpression final : public Expression {
 public:
  explicit MetaExpression(std::string what) : what_(std::move(what)) {}
  Result<Value> Evaluate(EvalContext& ctx) const override {
    const DocumentMetadata* m = ctx.metadata;
    if (!m) return Value();
    if (what_ == "expireAt") return m->expire_at ? Value::Date(*m->expire_at) : Value();
    if (what_ == "ttlMillis") {
      if (!m->expire_at) return Value();
      int64_t left;
      if (__builtin_sub_overflow(m->expire_at->millis, ctx.now.millis, &left)) left = INT64_MIN;
      return Value::Int64(left);
    }
    if (what_ == "textScore") return m->text_score ? Value::Double(*m->text_score) : Value();
    if (what_ == "sortKey") return m->sort_key;
    if (what_ == "indexKey") return m->index_key;
    return m->record_id;
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder sub = out.OpenDocument(name);
    sub.Append("$meta", what_);
  }
  void AddDependencies(std::set<std::string>* paths) const override {
    paths->insert(std::string(kMetaDependency) + what_);
  }

 private:
  std::string what_;
};

Result<ExpressionPtr> ParseMeta(const OperatorDef&, BsonValue arg, VariableScope&) {
  if (!arg.IsString()) return LocationError(17307, "$meta only supports string arguments");
  std::string_view what = arg.String();
  for (std::string_view known :
       {"expireAt", "ttlMillis", "textScore", "sortKey", "recordId", "indexKey"})
    if (what == known) return ExpressionPtr(std::make_unique<MetaExpression>(std::string(what)));
  return LocationError(17308, "Unsupported argument to $meta: " + std::string(what));
}

/// Server-side JavaScript is not built in.
Result<ExpressionPtr> RefuseJavaScript(const OperatorDef& def, BsonValue, VariableScope&) {
  return LocationError(31264, std::string(def.name) +
                                  " cannot be used: server-side JavaScript execution is disabled");
}

constexpr OperatorDef kObjectOps[] = {
    {.name = "$accumulator",
     .parse = &RefuseJavaScript,
     .text = "Refused: JavaScript is disabled."},
    {.name = "$arrayToObject",
     .min_args = 1,
     .max_args = 1,
     .eval = &ArrayToObject,
     .text = "A document from [name, value] pairs or {k, v} documents.",
     .example = R"({"$arrayToObject": [[["a", 1], ["b", 2]]]} => {"a": 1, "b": 2})"},
    {.name = "$binarySize",
     .min_args = 1,
     .max_args = 1,
     .eval = &BinarySize,
     .text = "Bytes of a string or of binary data.",
     .example = R"({"$binarySize": "né"} => 3)"},
    {.name = "$bsonSize",
     .min_args = 1,
     .max_args = 1,
     .eval = &BsonSize,
     .text = "Bytes of a document as BSON.",
     .example = R"({"$bsonSize": {"a": 1}} => 12)"},
    {.name = "$const",
     .parse = &ParseLiteral,
     .text = "$literal, as explain writes it.",
     .example = R"({"$const": "$a"} => "$a")"},
    {.name = "$function", .parse = &RefuseJavaScript, .text = "Refused: JavaScript is disabled."},
    {.name = "$getField",
     .parse = &ParseGetField,
     .text = "A field by its exact name, dots and dollars included.",
     .example = R"({"$getField": {"field": "a.b", "input": {"$literal": {"a.b": 7}}}} => 7)"},
    {.name = "$literal",
     .parse = &ParseLiteral,
     .text = "A value taken as it is, not as an expression.",
     .example = R"({"$literal": {"$add": [1, 2]}} => {"$add": [1, 2]})"},
    {.name = "$mergeObjects",
     .eval = &MergeObjects,
     .text = "Documents in one; the later value of a name wins.",
     .example = R"({"$mergeObjects": [{"a": 1, "b": 2}, null, {"a": 3}]} => {"a": 3, "b": 2})"},
    {.name = "$meta",
     .parse = &ParseMeta,
     .text = "What is known of a document besides its fields: expireAt, ttlMillis, textScore, "
             "sortKey, recordId, indexKey.",
     .example = R"({"$ifNull": [{"$meta": "expireAt"}, "never"]} => "never")"},
    {.name = "$objectToArray",
     .min_args = 1,
     .max_args = 1,
     .eval = &ObjectToArray,
     .text = "The fields of a document as {k, v} documents.",
     .example = R"({"$objectToArray": {"a": 1}} => [{"k": "a", "v": 1}])"},
    {.name = "$rand",
     .min_args = 0,
     .max_args = 1,
     .eval = &Rand,
     .volatile_result = true,
     .text = "A random number from 0 up to 1.",
     .example = R"({"$lt": [{"$rand": {}}, 1]} => true)"},
    {.name = "$setField",
     .parse = &ParseSetField,
     .text = "The document with one field set by its exact name.",
     .example = R"({"$setField": {"field": "a.b", "input": {}, "value": 1}} => {"a.b": 1})"},
    {.name = "$unsetField",
     .parse = &ParseSetField,
     .text = "The document without one field.",
     .example = R"({"$unsetField": {"field": "a", "input": {"a": 1, "b": 2}}} => {"b": 2})"},
};

}  // namespace

std::span<const OperatorDef> ObjectOperators() { return kObjectOps; }

}  // namespace mayfly

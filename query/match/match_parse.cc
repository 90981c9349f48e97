#include <algorithm>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "protocol/field_once.h"
#include "query/expression/pace.h"
#include "query/expression/parse_work.h"
#include "query/match/match_parser.h"

namespace mayfly {

namespace match {

namespace {

constexpr int kMaxMatchDepth = 100;
/// The size of a node, with its place in its parent and the allocator's overhead.
constexpr size_t kNodeBytes = sizeof(MatchExpression) + 48;

/// The fields of a DBRef look like operators and are not.
bool IsDbRefField(std::string_view name) {
  return name == "$ref" || name == "$id" || name == "$db";
}

bool IsOperatorDocument(BsonValue v) {
  if (!v.IsDocument()) return false;
  BsonElement first = v.Document().First();
  return !first.value.missing() && first.name.starts_with('$') && !IsDbRefField(first.name);
}

/// Operators on whole documents: an $elemMatch that begins with one is about documents.
bool IsDocumentOperator(std::string_view name) {
  for (std::string_view op : {"$and", "$or", "$nor", "$where", "$expr", "$text", "$jsonSchema",
                              "$alwaysTrue", "$alwaysFalse"})
    if (op == name) return true;
  return false;
}

}  // namespace

MatchPtr Node(MatchKind kind, std::string_view path) {
  auto e = std::make_unique<MatchExpression>();
  e->kind = kind;
  e->path = path;
  ParseWork::Made(kNodeBytes + path.size());
  return e;
}

MatchPtr Not(MatchPtr child) {
  if (child->kind == MatchKind::kAlwaysTrue || child->kind == MatchKind::kAlwaysFalse) {
    child->kind =
        child->kind == MatchKind::kAlwaysTrue ? MatchKind::kAlwaysFalse : MatchKind::kAlwaysTrue;
    child->path.clear();
    return child;
  }
  MatchPtr e = Node(MatchKind::kNot, "");
  e->children.push_back(std::move(child));
  return e;
}

MatchPtr And(std::vector<MatchPtr> children) {
  if (children.size() == 1) return std::move(children[0]);
  MatchPtr e = Node(children.empty() ? MatchKind::kAlwaysTrue : MatchKind::kAnd, "");
  for (MatchPtr& c : children) {
    if (c->kind == MatchKind::kAnd) {
      for (MatchPtr& g : c->children) e->children.push_back(std::move(g));
    } else {
      e->children.push_back(std::move(c));
    }
  }
  return e;
}

Result<MatchPtr> RegexNode(std::string_view path, std::string_view pattern,
                           std::string_view options) {
  MAYFLY_TRY(ParseWork::Step(CompiledRegex::Cost(pattern)));
  MAYFLY_TRY(CompiledRegex::Ptr regex, CompiledRegex::Compile(pattern, options));
  MatchPtr e = Node(MatchKind::kRegex, path);
  std::string bytes(pattern);
  bytes.push_back('\0');
  bytes.append(options).push_back('\0');
  e->operand = Value::Owned(BsonType::kRegex, std::move(bytes));
  e->regexes.push_back(std::move(regex));
  return e;
}

Result<MatchPtr> Parser::Top(BsonView filter, int depth) {
  if (depth > kMaxMatchDepth) return BadValue("exceeded depth limit of 100 when parsing a filter");
  std::vector<MatchPtr> all;
  for (const BsonElement& e : filter) {
    MAYFLY_TRY(ParseWork::Step());
    if (e.name.starts_with('$') && !IsDbRefField(e.name)) {
      MAYFLY_TRY(MatchPtr m, TopOperator(e, depth));
      if (m) all.push_back(std::move(m));
    } else {
      MAYFLY_TRY(Field(e.name, e.value, depth, &all));
    }
  }
  return And(std::move(all));
}

Result<MatchPtr> Parser::TopOperator(const BsonElement& e, int depth) {
  std::string_view name = e.name;
  if (name == "$and" || name == "$or" || name == "$nor") {
    if (!e.value.IsArray()) return BadValue(std::string(name) + " must be an array");
    if (e.value.Document().empty()) return BadValue("$and/$or/$nor must be a nonempty array");
    std::vector<MatchPtr> children;
    for (const BsonElement& m : e.value.Document()) {
      MAYFLY_TRY(ParseWork::Step());
      if (!m.value.IsDocument()) return BadValue("$or/$and/$nor entries need to be full objects");
      MAYFLY_TRY(MatchPtr child, Top(m.value.Document(), depth + 1));
      children.push_back(std::move(child));
    }
    if (name == "$and") return And(std::move(children));
    if (name == "$or" && children.size() == 1) return std::move(children[0]);
    MatchPtr node = Node(name == "$or" ? MatchKind::kOr : MatchKind::kNor, "");
    node->children = std::move(children);
    return node;
  }
  if (name == "$comment") return MatchPtr();
  if (in_elem_match &&
      (name == "$expr" || name == "$where" || name == "$text" || name == "$jsonSchema"))
    return BadValue(std::string(name) + " can only be applied to the top-level document");
  if (name == "$expr") return ParseExprMatch(e.value, options);
  if (name == "$jsonSchema") {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, "$jsonSchema must be an object"};
    auto extra = std::make_shared<MatchExpression::Extra>();
    MAYFLY_TRY(extra->schema, JsonSchema::Parse(e.value.Document()));
    extra->schema_source = BsonDocument(e.value.Document());
    ParseWork::Made(extra->schema_source.bytes().size());
    MatchPtr node = Node(MatchKind::kJsonSchema, "");
    node->extra = std::move(extra);
    return node;
  }
  if (name == "$alwaysTrue" || name == "$alwaysFalse") {
    int64_t one = 0;
    if (!e.value.ExactInt64(&one) || one != 1)
      return Error{ErrorCode::kFailedToParse, std::string(name) + " must be an integer value of 1"};
    return Node(name == "$alwaysTrue" ? MatchKind::kAlwaysTrue : MatchKind::kAlwaysFalse, "");
  }
  if (name == "$sampleRate") {
    if (!e.value.IsNumber()) return BadValue("argument to $sampleRate must be a numeric type");
    const double rate = e.value.NumberAsDouble();
    if (!(rate >= 0 && rate <= 1))
      return BadValue("numeric argument to $sampleRate must be in [0, 1]");
    if (rate == 0 || rate == 1)
      return Node(rate == 1 ? MatchKind::kAlwaysTrue : MatchKind::kAlwaysFalse, "");
    const BsonDocument drawn = BuildBson([&](BsonBuilder& b) {
      BsonArrayBuilder less = b.OpenArray("$lt");
      less.OpenDocument().OpenDocument("$rand").Done();
      less.Append(rate);
    });
    return ParseExprMatch(drawn.view().AsValue(), options);
  }
  if (name == "$where") {
    if (!options.allow_where) return BadValue("$where is not allowed in this context");
    return Error{LocationCode(6108304),
                 "$where cannot be used, because there is no server-side JavaScript here (no "
                 "globalScriptEngine in $where parsing): use $expr with the operators of "
                 "aggregation"};
  }
  if (name == "$text")
    return Error{ErrorCode::kIndexNotFound, "text index required for $text query"};
  return BadValue(
      "unknown top level operator: " + std::string(name) +
      ". If you have a field name that starts with a '$' symbol, consider using $getField "
      "or $setField.");
}

Result<void> Parser::Field(std::string_view path, BsonValue v, int depth,
                           std::vector<MatchPtr>* out) {
  if (v.Is(BsonType::kRegex)) {
    MAYFLY_TRY(MatchPtr m, RegexNode(path, v.RegexPattern(), v.RegexOptions()));
    out->push_back(std::move(m));
    return Ok();
  }
  if (IsOperatorDocument(v)) return Operators(path, v.Document(), depth, out);
  MAYFLY_TRY(MatchPtr m, Comparison(MatchKind::kEq, path, v));
  out->push_back(std::move(m));
  return Ok();
}

Result<void> Parser::Operators(std::string_view path, BsonView ops, int depth,
                               std::vector<MatchPtr>* out) {
  if (depth > kMaxMatchDepth) return BadValue("exceeded depth limit of 100 when parsing a filter");
  bool options = false;
  FieldOperators field{ops, std::nullopt};
  for (const BsonElement& e : ops) {
    MAYFLY_TRY(ParseWork::Step());
    if (e.name == "$options") {
      // All other operators hold together; a pattern takes one of the options.
      if (options) return DuplicateField(path, e.name);
      options = true;
    }
    MAYFLY_TRY(MatchPtr m, Operator(path, e, field, depth));
    if (m) out->push_back(std::move(m));
  }
  return Ok();
}

Result<MatchPtr> Parser::Comparison(MatchKind kind, std::string_view path, BsonValue v) {
  if (v.Is(BsonType::kUndefined)) return BadValue("cannot compare to undefined");
  if (v.Is(BsonType::kRegex) && kind != MatchKind::kEq)
    return BadValue("Can't have RegEx as arg to predicate over field '" + std::string(path) + "'.");
  MatchPtr e = Node(kind, path);
  e->operand = Value::Copy(v);
  ParseWork::Made(v.size());
  return e;
}

Result<MatchPtr> Parser::Operator(std::string_view path, const BsonElement& e, FieldOperators& ops,
                                  int depth) {
  std::string_view name = e.name;
  static const std::pair<std::string_view, MatchKind> kComparisons[] = {{"$eq", MatchKind::kEq},
                                                                        {"$gt", MatchKind::kGt},
                                                                        {"$gte", MatchKind::kGte},
                                                                        {"$lt", MatchKind::kLt},
                                                                        {"$lte", MatchKind::kLte}};
  for (const auto& [op, kind] : kComparisons)
    if (op == name) return Comparison(kind, path, e.value);
  if (name == "$ne") {
    if (e.value.Is(BsonType::kRegex)) return BadValue("Can't have regex as arg to $ne.");
    MAYFLY_TRY(MatchPtr m, Comparison(MatchKind::kEq, path, e.value));
    return Not(std::move(m));
  }
  if (name == "$in") return In(path, e);
  if (name == "$nin") {
    MAYFLY_TRY(MatchPtr m, In(path, e));
    return Not(std::move(m));
  }
  if (name == "$not") return NotOperator(path, e.value, depth);
  if (name == "$exists") {
    MatchPtr m = Node(MatchKind::kExists, path);
    m->operand = Value::Bool(e.value.Truthy());
    return m;
  }
  if (name == "$regex" || name == "$options") return RegexOperator(path, e, ops);
  if (name == "$all") return All(path, e.value, depth);
  if (name == "$elemMatch") return ElemMatch(path, e.value, depth);
  if (name == "$type") return ParseTypeMatch(path, e);
  if (name == "$size") return ParseSizeMatch(path, e);
  if (name == "$mod") return ParseModMatch(path, e.value);
  if (name == "$bitsAllSet") return ParseBitsMatch(MatchKind::kBitsAllSet, path, e);
  if (name == "$bitsAllClear") return ParseBitsMatch(MatchKind::kBitsAllClear, path, e);
  if (name == "$bitsAnySet") return ParseBitsMatch(MatchKind::kBitsAnySet, path, e);
  if (name == "$bitsAnyClear") return ParseBitsMatch(MatchKind::kBitsAnyClear, path, e);
  if (name == "$comment") return MatchPtr();
  if (name == "$near" || name == "$nearSphere" || name == "$geoNear")
    return Error{LocationCode(291), "unable to find index for $geoNear query"};
  if (name == "$geoWithin" || name == "$within" || name == "$geoIntersects")
    return Error{ErrorCode::kNotImplemented, std::string(name) + " is not supported"};
  return BadValue("unknown operator: " + std::string(name));
}

Result<void> SortOperands(std::vector<Value>& operands) {
  constexpr size_t kFew = 64;
  auto less = [](const Value& a, const Value& b) { return CompareValues(a.view(), b.view()) < 0; };
  if (operands.size() <= kFew) {
    std::sort(operands.begin(), operands.end(), less);
    return Ok();
  }
  EvalContext eval;
  eval.op = ParseWork::Asked();
  return SortItems(eval, operands, less, [](const Value& v) { return v.view().size(); });
}

Result<MatchPtr> Parser::In(std::string_view path, const BsonElement& e) {
  if (!e.value.IsArray()) return BadValue(std::string(e.name) + " needs an array");
  MatchPtr m = Node(MatchKind::kIn, path);
  // One copy of the whole array; the members point into it.
  auto owner = std::make_shared<const std::string>(e.value.bytes());
  ParseWork::Made(owner->size());
  for (const BsonElement& v : BsonView(owner->data())) {
    MAYFLY_TRY(ParseWork::Step(
        v.value.Is(BsonType::kRegex) ? CompiledRegex::Cost(v.value.RegexPattern()) : 1));
    if (IsOperatorDocument(v.value)) return BadValue("cannot nest $ under " + std::string(e.name));
    if (v.value.Is(BsonType::kUndefined))
      return BadValue("InMatchExpression equality cannot be undefined");
    if (v.value.Is(BsonType::kRegex)) {
      MAYFLY_TRY(CompiledRegex::Ptr regex,
                 CompiledRegex::Compile(v.value.RegexPattern(), v.value.RegexOptions()));
      m->regexes.push_back(std::move(regex));
    } else {
      m->list.push_back(Value::Shared(v.value, owner));
      ParseWork::Made(sizeof(Value));
    }
  }
  MAYFLY_TRY(SortOperands(m->list));
  m->list.erase(std::unique(m->list.begin(), m->list.end(),
                            [](const Value& a, const Value& b) {
                              return CompareValues(a.view(), b.view()) == 0;
                            }),
                m->list.end());
  if (m->regexes.empty() && m->list.size() <= 1) {
    if (m->list.empty()) return Node(MatchKind::kAlwaysFalse, "");
    m->kind = MatchKind::kEq;
    m->operand = Value::Copy(m->list[0].view());
    m->list.clear();
  } else if (m->list.empty() && m->regexes.size() == 1) {
    return RegexNode(path, m->regexes[0]->pattern(), m->regexes[0]->options());
  }
  return m;
}

Result<MatchPtr> Parser::NotOperator(std::string_view path, BsonValue v, int depth) {
  if (v.Is(BsonType::kRegex)) {
    MAYFLY_TRY(MatchPtr m, RegexNode(path, v.RegexPattern(), v.RegexOptions()));
    return Not(std::move(m));
  }
  if (!v.IsDocument()) return BadValue("$not needs a regex or a document");
  if (v.Document().empty()) return BadValue("$not cannot be empty");
  std::vector<MatchPtr> all;
  MAYFLY_TRY(Operators(path, v.Document(), depth + 1, &all));
  return Not(And(std::move(all)));
}

Result<MatchPtr> Parser::RegexOperator(std::string_view path, const BsonElement& e,
                                       FieldOperators& ops) {
  if (e.name == "$options") {
    if (!ops.all.Has("$regex")) return BadValue("$options needs a $regex");
    return MatchPtr();  // read together with its $regex
  }
  if (!ops.options) ops.options = ops.all.Find("$options");
  const BsonValue options = *ops.options;
  if (!options.missing() && !options.IsString()) return BadValue("$options has to be a string");
  std::string_view flags = options.missing() ? std::string_view() : options.String();
  if (e.value.IsString()) return RegexNode(path, e.value.String(), flags);
  if (!e.value.Is(BsonType::kRegex)) return BadValue("$regex has to be a string");
  if (!e.value.RegexOptions().empty()) {
    if (!flags.empty()) {
      bool options_first = options.data() < e.value.data();
      return Error{LocationCode(options_first ? 51074 : 51075),
                   "options set in both $regex and $options"};
    }
    flags = e.value.RegexOptions();
  }
  return RegexNode(path, e.value.RegexPattern(), flags);
}

Result<MatchPtr> Parser::All(std::string_view path, BsonValue v, int depth) {
  if (!v.IsArray()) return BadValue("$all needs an array");
  if (v.Document().empty()) return Node(MatchKind::kAlwaysFalse, "");
  std::vector<MatchPtr> all;
  auto is_elem_match = [](BsonValue m) {
    return m.IsDocument() && m.Document().First().name == "$elemMatch";
  };
  bool elem_match = is_elem_match(v.Document().First().value);
  for (const BsonElement& m : v.Document()) {
    MAYFLY_TRY(ParseWork::Step());
    if (elem_match != is_elem_match(m.value))
      return BadValue(elem_match ? "$all/$elemMatch has to be consistent"
                                 : "no $ expressions in $all");
    if (elem_match) {
      if (m.value.Document().Count() != 1) return BadValue("$all/$elemMatch has to be consistent");
      MAYFLY_TRY(MatchPtr e, ElemMatch(path, m.value.Document().First().value, depth));
      all.push_back(std::move(e));
    } else if (m.value.Is(BsonType::kRegex)) {
      MAYFLY_TRY(MatchPtr e, RegexNode(path, m.value.RegexPattern(), m.value.RegexOptions()));
      all.push_back(std::move(e));
    } else if (IsOperatorDocument(m.value)) {
      return BadValue("no $ expressions in $all");
    } else {
      MAYFLY_TRY(MatchPtr e, Comparison(MatchKind::kEq, path, m.value));
      all.push_back(std::move(e));
    }
  }
  return And(std::move(all));
}

Result<MatchPtr> Parser::ElemMatch(std::string_view path, BsonValue v, int depth) {
  if (!v.IsDocument()) return BadValue("$elemMatch needs an Object");
  BsonView doc = v.Document();
  bool outer = in_elem_match;
  in_elem_match = true;
  MatchPtr m;
  Result<void> done = [&]() -> Result<void> {
    if (IsOperatorDocument(v) && !IsDocumentOperator(doc.First().name)) {
      m = Node(MatchKind::kElemMatchValue, path);
      return Operators("", doc, depth + 1, &m->children);
    }
    m = Node(MatchKind::kElemMatchObject, path);
    MAYFLY_TRY(MatchPtr child, Top(doc, depth + 1));
    m->children.push_back(std::move(child));
    return Ok();
  }();
  in_elem_match = outer;
  MAYFLY_TRY(std::move(done));
  return m;
}

}  // namespace match

namespace {

/// The part of a filter that a partial index may not have; null when all of it may.
const MatchExpression* UnsupportedInIndex(const MatchExpression& e) {
  switch (e.kind) {
    case MatchKind::kAnd:
    case MatchKind::kOr:
      for (const MatchPtr& c : e.children)
        if (const MatchExpression* bad = UnsupportedInIndex(*c)) return bad;
      return nullptr;
    case MatchKind::kAlwaysTrue:
    case MatchKind::kAlwaysFalse:
    case MatchKind::kEq:
    case MatchKind::kLt:
    case MatchKind::kLte:
    case MatchKind::kGt:
    case MatchKind::kGte:
    case MatchKind::kType:
      return nullptr;
    case MatchKind::kIn:
      return e.regexes.empty() ? nullptr : &e;
    case MatchKind::kExists:
      return e.operand.view().Bool() ? nullptr : &e;
    default:
      return &e;
  }
}

}  // namespace

Result<MatchPtr> ParseMatch(BsonView filter, const MatchParseOptions& options) {
  ParseWork work(nullptr);
  match::Parser parser{options};
  MAYFLY_TRY(MatchPtr m, parser.Top(filter, 0));
  if (work.bytes() - work.kept_bytes() >= large_memory::kLarge) {
    // A large one stays counted for as long as its root lives.
    struct Counted {
      std::shared_ptr<const MatchExpression::Extra> extra;
      large_memory::Hold held;
    };
    auto counted = std::make_shared<Counted>();
    MAYFLY_TRY(work.Keep(&counted->held));
    counted->extra = std::move(m->extra);
    m->extra = std::shared_ptr<const MatchExpression::Extra>(counted, counted->extra.get());
  }
  if (options.for_partial_index) {
    if (const MatchExpression* bad = UnsupportedInIndex(*m)) {
      BsonDocument shown = BuildBson([&](BsonBuilder& b) { bad->Serialize(b); });
      return Error{ErrorCode::kCannotCreateIndex,
                   "Expression not supported in partial index: " + ToRelaxedJson(shown)};
    }
  }
  return m;
}

}  // namespace mayfly

#include "query/plan/bounds_builder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/expression/readable.h"
#include "query/expression/regex.h"
#include "query/match/match_internal.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {

PredicateBounds Inexact(IntervalList list) { return {std::move(list), false, false}; }
PredicateBounds Exact(IntervalList list) { return {std::move(list), true, false}; }

PredicateBounds EqualityBounds(BsonValue v) {
  switch (v.type()) {
    case BsonType::kMissing:
    case BsonType::kUndefined:
      return Inexact(IntervalList::Full());
    case BsonType::kNull:
      // Exact, except where the path goes through arrays: only the matcher can tell whether the
      // field is missing in one of the elements.
      return Inexact(IntervalList::Point(Value::Null()));
    case BsonType::kArray: {
      // The array is equal as a whole (its first element, or undefined, is then among the keys), or
      // it is equal to an element of an array.
      IntervalList list = IntervalList::Point(Value::Copy(v));
      BsonValue first = v.Document().First().value;
      list.Unite(first.missing() ? IntervalList::TypeClass(BsonType::kUndefined)
                                 : IntervalList::Point(Value::Copy(first)));
      return Inexact(std::move(list));
    }
    default:
      return Exact(IntervalList::Point(Value::Copy(v)));
  }
}

/// Comparisons with the ends of the order hold for values of all types, also for what is missing
/// and for arrays as a whole (of which the keys say nothing).
PredicateBounds EndBounds(MatchKind kind, BsonValue v, bool multikey) {
  const bool min = v.Is(BsonType::kMinKey);
  const bool inclusive = kind == MatchKind::kLte || kind == MatchKind::kGte;
  const bool all_others = (kind == MatchKind::kGt || kind == MatchKind::kGte) == min;
  if (all_others && (inclusive || multikey))
    return {IntervalList::Full(), inclusive && !multikey, false, true};
  if (all_others)
    return {
        IntervalList::Range(MinOfType(BsonType::kMinKey), !min, MinOfType(BsonType::kMaxKey), min),
        true, false, true};
  return inclusive ? Exact(IntervalList::Point(Value::Copy(v))) : Exact(IntervalList());
}

PredicateBounds RangeBounds(MatchKind kind, BsonValue v, bool multikey) {
  bool less = kind == MatchKind::kLt || kind == MatchKind::kLte;
  bool inclusive = kind == MatchKind::kLte || kind == MatchKind::kGte;
  switch (v.type()) {
    case BsonType::kNull:
      return Inexact(IntervalList::Point(Value::Null()));
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return EndBounds(kind, v, multikey);
    // The keys of an array are its elements, not the array itself.
    case BsonType::kArray:
    case BsonType::kMissing:
    case BsonType::kUndefined:
      return Inexact(IntervalList::Full());
    default:
      break;
  }
  if (v.IsNumber() && std::isnan(v.NumberAsDouble()))
    return Inexact(IntervalList::Point(Value::Copy(v)));
  if (less) {
    Value low = v.IsNumber() ? Value::Double(-std::numeric_limits<double>::infinity())
                             : MinOfType(v.type());
    return Exact(IntervalList::Range(std::move(low), true, Value::Copy(v), inclusive));
  }
  bool high_inclusive;
  Value high = MaxOfType(v.type(), &high_inclusive);
  return Exact(IntervalList::Range(Value::Copy(v), inclusive, std::move(high), high_inclusive));
}

PredicateBounds RegexBounds(const CompiledRegex& regex) {
  IntervalList list;
  std::string prefix = RegexPrefix(regex.pattern(), regex.options());
  std::string end = prefix;
  // The next string in byte order. Bytes whose successor would not be valid UTF-8 are dropped.
  while (!end.empty() && (static_cast<unsigned char>(end.back()) & 0x7f) >= 0x7f) end.pop_back();
  while (!end.empty() && static_cast<unsigned char>(end.back()) >= 0x80) end.pop_back();
  if (end.empty()) {
    list = prefix.empty() ? IntervalList::TypeClass(BsonType::kString)
                          : IntervalList::Range(Value::String(prefix), true,
                                                MinOfType(BsonType::kDocument), false);
  } else {
    end.back() = static_cast<char>(end.back() + 1);
    list = IntervalList::Range(Value::String(prefix), true, Value::String(end), false);
  }
  std::string bytes = regex.pattern() + '\0' + regex.options() + '\0';
  list.Unite(IntervalList::Point(Value::Owned(BsonType::kRegex, std::move(bytes))));
  return Inexact(std::move(list));
}

std::optional<PredicateBounds> InBounds(const MatchExpression& e) {
  PredicateBounds all{{}, true, false};
  bool simple = true;
  for (const auto& v : e.list) {
    BsonType type = v.type();
    if (type == BsonType::kArray || type == BsonType::kNull || type == BsonType::kUndefined)
      simple = false;
  }
  if (simple && e.regexes.empty()) {  // sorted and unique already
    all.list.intervals.reserve(e.list.size());
    for (const auto& v : e.list) all.list.intervals.push_back({v, v, true, true});
    return all;
  }
  // United once, because there may be hundreds of thousands. An interrupt is reported to the
  // planner.
  std::vector<Interval> parts;
  auto add = [&](const IntervalList& list) {
    parts.insert(parts.end(), list.intervals.begin(), list.intervals.end());
    ParseWork::Made(list.intervals.size() * sizeof(Interval));
    return ParseWork::Step(2).has_value();
  };
  for (const auto& v : e.list) {
    PredicateBounds one = EqualityBounds(v.view());
    if (!add(one.list)) return std::nullopt;
    all.exact = all.exact && one.exact;
  }
  for (const auto& r : e.regexes) {
    if (!add(RegexBounds(*r).list)) return std::nullopt;
    all.exact = false;
  }
  Result<IntervalList> united = IntervalList::Union(std::move(parts));
  if (!united) {
    static_cast<void>(ParseWork::Look());  // so that the planner's next step fails, too
    return std::nullopt;
  }
  all.list = std::move(united).value();
  return all;
}

std::optional<PredicateBounds> TypeBounds(const MatchExpression& e) {
  const auto& types = e.extra->types;
  if (types[static_cast<uint8_t>(BsonType::kArray)]) return std::nullopt;  // keys are its elements
  IntervalList list;
  for (size_t t = 1; t < types.size(); ++t)
    if (types[t]) list.Unite(IntervalList::TypeClass(static_cast<BsonType>(t)));
  return Inexact(std::move(list));
}

std::optional<PredicateBounds> NotBounds(const MatchExpression& e, bool multikey) {
  if (e.children.size() != 1) return std::nullopt;
  const MatchExpression& child = *e.children[0];
  switch (child.kind) {
    case MatchKind::kEq:
    case MatchKind::kLt:
    case MatchKind::kLte:
    case MatchKind::kGt:
    case MatchKind::kGte:
    case MatchKind::kIn:
      break;
    default:
      return std::nullopt;
  }
  auto bounds = BoundsOf(child, multikey);
  if (!bounds) return std::nullopt;
  if (!bounds->exact) {
    // Only null, and only if no array on the path hides which part is missing. A null key then
    // means a match.
    bool null_only = child.kind == MatchKind::kEq && child.operand.type() == BsonType::kNull;
    if (!null_only || multikey) return std::nullopt;
  }
  bounds->list.Complement();
  bounds->exact = bounds->exact && !multikey;
  return bounds;
}

void Collect(const MatchExpression& e, const MatchExpression* clause, const std::string& prefix,
             const MatchExpression* elem, size_t elem_path, std::vector<PathPredicate>* out) {
  switch (e.kind) {
    case MatchKind::kAnd:
    case MatchKind::kAll:
      for (const auto& c : e.children) Collect(*c, clause, prefix, elem, elem_path, out);
      return;
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kAlwaysTrue:
    case MatchKind::kAlwaysFalse:
    case MatchKind::kExpr:
    case MatchKind::kWhere:
    case MatchKind::kJsonSchema:
      return;
    default:
      break;
  }
  const std::string* path = &e.path;
  if (e.kind == MatchKind::kNot) {
    if (e.children.size() != 1) return;
    path = &e.children[0]->path;
  }
  if (path->empty()) return;
  if (elem != nullptr && match::IsAllDigits(std::string_view(*path).substr(0, path->find('.'))))
    return;  // "0" of an element is not "a.0" of the document
  std::string full = prefix.empty() ? *path : prefix + "." + *path;
  if (e.kind == MatchKind::kElemMatchObject) {
    size_t n = full.size();
    for (const auto& c : e.children) Collect(*c, clause, full, &e, n, out);
    return;
  }
  out->push_back({std::move(full), &e, clause, elem, elem_path});
}

}  // namespace

std::string RegexPrefix(std::string_view pattern, std::string_view options) {
  for (char c : options)
    if (c == 'i' || c == 'm' || c == 'x') return {};
  if (pattern.substr(0, 1) == "^")
    pattern.remove_prefix(1);
  else if (pattern.substr(0, 2) == "\\A")
    pattern.remove_prefix(2);
  else
    return {};
  if (pattern.find('|') != std::string_view::npos) return {};  // perhaps an alternative
  std::string prefix;
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '*' || c == '?' || c == '{') {  // the last character may be absent
      while (!prefix.empty() && (static_cast<unsigned char>(prefix.back()) & 0xc0) == 0x80)
        prefix.pop_back();
      if (!prefix.empty()) prefix.pop_back();
      return prefix;
    }
    if (c == '\\') {
      if (i + 1 >= pattern.size()) return prefix;
      char next = pattern[i + 1];
      bool word = (next >= '0' && next <= '9') || (next >= 'a' && next <= 'z') ||
                  (next >= 'A' && next <= 'Z') || static_cast<unsigned char>(next) >= 0x80;
      if (word) return prefix;
      prefix.push_back(next);
      ++i;
      continue;
    }
    if (std::strchr("^$.[]()+}", c) != nullptr) return prefix;
    prefix.push_back(c);
  }
  return prefix;
}

namespace {

/// Whether a key may have only the beginning of an end of the list. An encoding has at most twice
/// the bytes of the value, and some.
bool AnyIsLong(const IntervalList& list) {
  auto is_long = [](const Value& v) { return v.view().size() > kLeastCut / 2 - 64; };
  return std::any_of(list.intervals.begin(), list.intervals.end(),
                     [&](const Interval& i) { return is_long(i.low) || is_long(i.high); });
}

}  // namespace

std::optional<PredicateBounds> BoundsOf(const MatchExpression& e, bool multikey) {
  std::optional<PredicateBounds> r;
  switch (e.kind) {
    case MatchKind::kEq:
      r = EqualityBounds(e.operand.view());
      break;
    case MatchKind::kLt:
    case MatchKind::kLte:
    case MatchKind::kGt:
    case MatchKind::kGte:
      r = RangeBounds(e.kind, e.operand.view(), multikey);
      break;
    case MatchKind::kIn:
      r = InBounds(e);
      break;
    case MatchKind::kRegex:
      r = RegexBounds(*e.regexes[0]);
      break;
    case MatchKind::kMod:
      r = Inexact(IntervalList::TypeClass(BsonType::kDouble));
      break;
    case MatchKind::kBitsAllSet:
    case MatchKind::kBitsAllClear:
    case MatchKind::kBitsAnySet:
    case MatchKind::kBitsAnyClear:
      r = Inexact(IntervalList::TypeClass(BsonType::kDouble));
      r->list.Unite(IntervalList::TypeClass(BsonType::kBinary));
      break;
    case MatchKind::kExists:
      if (e.operand.view().Bool()) {
        r = PredicateBounds{IntervalList::Full(), false, true};
      } else if (!multikey) {
        r = Inexact(IntervalList::Point(Value::Null()));
      }
      break;
    case MatchKind::kType:
      r = TypeBounds(e);
      break;
    case MatchKind::kNot:
      r = NotBounds(e, multikey);
      break;
    case MatchKind::kElemMatchValue: {
      // Several predicates must hold for the same element, and each element has one key.
      for (const auto& c : e.children) {
        // Elements of a nested array have no keys of their own.
        if (c->kind == MatchKind::kElemMatchValue) continue;
        auto one = BoundsOf(*c, true);
        if (!one) continue;
        if (!r) r = Inexact(IntervalList::Full());
        r->list.Intersect(one->list);
      }
      if (r) r->requires_existence = true;  // the array
      break;
    }
    default:
      break;
  }
  if (r && r->exact && AnyIsLong(r->list)) r->exact = false;
  if (r && r->exact) {
    // The bounds cover both meanings of a number in a path, and the document decides.
    std::string_view path = e.kind == MatchKind::kNot ? e.children[0]->path : e.path;
    if (match::HasNumericPart(path)) r->exact = false;
  }
  return r;
}

std::vector<const MatchExpression*> Clauses(const MatchExpression& filter) {
  std::vector<const MatchExpression*> out;
  if (filter.kind == MatchKind::kAnd) {
    for (const auto& c : filter.children) {
      auto inner = Clauses(*c);
      out.insert(out.end(), inner.begin(), inner.end());
    }
  } else if (filter.kind != MatchKind::kAlwaysTrue) {
    out.push_back(&filter);
  }
  return out;
}

std::vector<PathPredicate> CollectPredicates(const std::vector<const MatchExpression*>& clauses) {
  std::vector<PathPredicate> out;
  for (const auto* c : clauses) Collect(*c, c, "", nullptr, 0, &out);
  return out;
}

std::optional<PredicateBounds> BoundsOf(const PathPredicate& p, bool multikey) {
  if (!p.without_arrays) return BoundsOf(*p.node, multikey);
  if (multikey) return std::nullopt;
  return p.without_arrays;
}

namespace {

/// Expressions compare values of all types. A missing field is less than everything; its key is
/// null.
std::optional<IntervalList> ComparisonKeys(std::string_view op, BsonValue v) {
  switch (v.type()) {
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return std::nullopt;
    default:
      break;
  }
  Value value = Value::Copy(v);
  const bool with_null = v.type() == BsonType::kNull;
  if (op == "$eq") return IntervalList::Point(std::move(value));
  if (op == "$gt" || op == "$gte")
    return IntervalList::Range(std::move(value), op == "$gte", MinOfType(BsonType::kMaxKey), true);
  return IntervalList::Range(MinOfType(BsonType::kMinKey), true, std::move(value),
                             op == "$lte" || with_null);
}

std::string_view Mirrored(std::string_view op) {
  if (op == "$gt") return "$lt";
  if (op == "$gte") return "$lte";
  if (op == "$lt") return "$gt";
  if (op == "$lte") return "$gte";
  return op;
}

void CollectComparisons(const Expression& e, const MatchExpression& clause, EvalContext& eval,
                        std::vector<PathPredicate>* out) {
  const ReadableExpression* call = AsReadable(e);
  if (call == nullptr) return;
  const std::string_view op = call->Operator();
  const auto operands = call->Operands();
  if (op == "$and") {
    for (const auto& o : operands) CollectComparisons(*o, clause, eval, out);
    return;
  }
  const bool comparison = op == "$eq" || op == "$gt" || op == "$gte" || op == "$lt" || op == "$lte";
  if (!comparison || operands.size() != 2) return;
  for (size_t side = 0; side < 2; ++side) {
    const ReadableExpression* field = AsReadable(*operands[side]);
    std::string path = field != nullptr ? field->DocumentPath() : std::string();
    if (path.empty() || !IsFixed(*operands[1 - side])) continue;
    // An expression that cannot be evaluated gives no bounds. The matcher reports the error.
    Result<Value> v = operands[1 - side]->Evaluate(eval);
    if (!v) return;
    auto keys = ComparisonKeys(side == 0 ? op : Mirrored(op), v.value().view());
    if (!keys) return;
    PathPredicate p{std::move(path), &clause, &clause};
    p.without_arrays = Inexact(std::move(*keys));
    out->push_back(std::move(p));
    return;
  }
}

}  // namespace

void CollectFromExpr(const MatchExpression& clause, EvalContext& eval,
                     std::vector<PathPredicate>* out) {
  if (clause.kind == MatchKind::kExpr) CollectComparisons(*clause.extra->expr, clause, eval, out);
}

MatchPtr DisjunctionAsIn(const MatchExpression& clause) {
  if (clause.kind != MatchKind::kOr || clause.children.size() < 2) return nullptr;
  const std::string& path = clause.children[0]->path;
  if (path.empty()) return nullptr;
  auto in = std::make_unique<MatchExpression>();
  in->kind = MatchKind::kIn;
  in->path = path;
  auto add = [&](BsonValue v) {
    if (v.Is(BsonType::kRegex) || v.Is(BsonType::kUndefined)) return false;
    in->list.push_back(Value::Copy(v));
    return true;
  };
  for (const auto& c : clause.children) {
    if (c->path != path) return nullptr;
    if (c->kind == MatchKind::kEq) {
      if (!add(c->operand.view())) return nullptr;
    } else if (c->kind == MatchKind::kIn && c->regexes.empty()) {
      for (const auto& v : c->list)
        if (!add(v.view())) return nullptr;
    } else {
      return nullptr;
    }
  }
  if (!match::SortOperands(in->list)) return nullptr;  // whoever plans looks again
  in->list.erase(std::unique(in->list.begin(), in->list.end(),
                             [](const Value& a, const Value& b) {
                               return CompareValues(a.view(), b.view()) == 0;
                             }),
                 in->list.end());
  return in;
}

bool Implies(const std::vector<const MatchExpression*>& clauses, const MatchExpression& partial) {
  switch (partial.kind) {
    case MatchKind::kAlwaysTrue:
      return true;
    case MatchKind::kAnd:
      for (const auto& c : partial.children)
        if (!Implies(clauses, *c)) return false;
      return true;
    default:
      break;
  }
  // A disjunction in the query implies it when each of its branches does.
  for (const auto* q : clauses) {
    if (q->kind != MatchKind::kOr || q->children.empty()) continue;
    bool all = true;
    for (const auto& branch : q->children) all = all && Implies(Clauses(*branch), partial);
    if (all) return true;
  }
  if (partial.kind == MatchKind::kOr) {
    for (const auto& c : partial.children)
      if (Implies(clauses, *c)) return true;
    return false;
  }
  bool exists = partial.kind == MatchKind::kExists && partial.operand.view().Bool();
  std::optional<PredicateBounds> wanted;
  if (!exists) {
    wanted = BoundsOf(partial, true);
    if (!wanted) return false;
    // $type is exact here: every value of the class satisfies it. A class of several types, like
    // the numbers, counts only when all of its types are asked for.
    bool whole_class = partial.kind == MatchKind::kType && !match::HasNumericPart(partial.path);
    if (whole_class) {
      const auto& t = partial.extra->types;
      auto has = [&](BsonType x) { return t[static_cast<uint8_t>(x)]; };
      bool some_number = has(BsonType::kDouble) || has(BsonType::kInt32) || has(BsonType::kInt64) ||
                         has(BsonType::kDecimal128);
      bool all_numbers = has(BsonType::kDouble) && has(BsonType::kInt32) && has(BsonType::kInt64) &&
                         has(BsonType::kDecimal128);
      bool text = has(BsonType::kString) != has(BsonType::kSymbol);
      if ((some_number && !all_numbers) || text || has(BsonType::kNull) ||
          has(BsonType::kUndefined))
        whole_class = false;
    }
    if (partial.kind == MatchKind::kEq && partial.operand.type() == BsonType::kNull)
      whole_class = true;  // refined below: only the same predicate implies it
    if (!wanted->exact && !whole_class) return false;
  }
  for (const auto& p : CollectPredicates(clauses)) {
    if (p.path != partial.path) continue;
    if (p.node->kind == partial.kind && p.elem_match == nullptr &&
        p.node->operand.type() == partial.operand.type() && !partial.operand.missing() &&
        CompareValues(p.node->operand.view(), partial.operand.view()) == 0)
      return true;
    // Any path may hold arrays, so only bounds that also hold for arrays count.
    auto bounds = BoundsOf(*p.node, true);
    if (!bounds) continue;
    bool has_field = bounds->requires_existence || !bounds->list.Contains(Value::Null().view());
    if (exists) {
      if (has_field) return true;
      continue;
    }
    if (partial.kind == MatchKind::kEq && partial.operand.type() == BsonType::kNull) continue;
    if (p.elem_match == nullptr && wanted->list.ContainsAll(bounds->list)) return true;
  }
  return false;
}

}  // namespace mayfly

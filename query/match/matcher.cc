#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <cmath>

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/match/match_internal.h"
#include "storage/operation.h"

namespace mayfly {

namespace match {

namespace {

/// Equality for the types whose equal values have equal bytes: the common case, decided without a
/// comparator.
enum class Quick : uint8_t { kNo, kYes, kUnknown };

Quick QuickEquals(BsonValue a, BsonValue b) {
  if (a.type() != b.type()) {
    // Numbers and strings compare across types; everything else is equal within its own type only.
    bool mixed = a.IsNumber()   ? b.IsNumber()
                 : a.IsString() ? b.Is(BsonType::kSymbol)
                                : a.Is(BsonType::kSymbol);
    return mixed ? Quick::kUnknown : Quick::kNo;
  }
  switch (a.type()) {
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kString:
    case BsonType::kObjectId:
    case BsonType::kBool:
    case BsonType::kDate:
    case BsonType::kTimestamp:
    case BsonType::kBinary:
      return a.bytes() == b.bytes() ? Quick::kYes : Quick::kNo;
    default:
      return Quick::kUnknown;
  }
}

/// Whether `a` stands to `b` as the kind asks, one of the four that order.
bool Ordered(MatchKind kind, int32_t a, int32_t b) {
  switch (kind) {
    case MatchKind::kLt:
      return a < b;
    case MatchKind::kLte:
      return a <= b;
    case MatchKind::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

}  // namespace

bool Compare(MatchKind kind, BsonValue operand, BsonValue v) {
  if (kind == MatchKind::kEq) {
    if (v.missing()) return operand.IsNull();
    Quick q = QuickEquals(operand, v);
    if (q != Quick::kUnknown) return q == Quick::kYes;
    return CompareValues(v, operand) == 0;
  }
  if (operand.Is(BsonType::kMinKey) || operand.Is(BsonType::kMaxKey)) {
    // The only ones that compare across types. A missing value stands where undefined does.
    return Ordered(kind, CompareValues(v, operand), 0);
  }
  bool inclusive = kind == MatchKind::kLte || kind == MatchKind::kGte;
  if (v.missing()) return inclusive && operand.IsNull();
  if (v.type() == operand.type()) {
    if (v.Is(BsonType::kInt32)) return Ordered(kind, v.Int32(), operand.Int32());
  } else if (CanonicalTypeOrder(v.type()) != CanonicalTypeOrder(operand.type())) {
    return false;
  }
  if (v.IsNumber()) {
    bool a = IsNan(v), b = IsNan(operand);
    if (a || b) return a && b && inclusive;
  }
  return Ordered(kind, CompareValues(v, operand), 0);
}

bool AmbiguousSteps::Ask() {
  left_ = kBetween;
  if (op_ == nullptr || stopped_) return stopped_.has_value();
  if (Result<void> r = op_->CheckInterruptNow(); !r) stopped_ = std::move(r).error();
  return stopped_.has_value();
}

Result<void> AmbiguousSteps::Status(std::string_view path) const {
  if (stopped_) return *stopped_;
  if (!TooMany()) return Ok();
  return Error{ErrorCode::kBadValue,
               "the path '" + std::string(path) + "' leads through a document in more than " +
                   std::to_string(kMost) +
                   " ways: its numbers are positions in arrays as well as names of fields in their "
                   "elements"};
}

bool Run::Regex(const CompiledRegex& regex, BsonValue v) {
  if (v.IsString() || v.Is(BsonType::kSymbol)) {
    if (v.size() > kLongText && !Spend(kPattern + v.size())) return false;
    Result<bool> r = regex.Matches(v.String(), ctx == nullptr ? nullptr : ctx->op);
    if (r.has_value()) [[likely]]
      return r.value();
    if (!error) error = std::move(r).error();
    return false;
  }
  return v.Is(BsonType::kRegex) && v.RegexPattern() == regex.pattern() &&
         v.RegexOptions() == regex.options();
}

bool Run::Look() {
  left = 0;  // what is to stop asks again at once
  if (error) return false;
  Operation* const op = ctx != nullptr && ctx->op != nullptr ? ctx->op : ParseWork::Asked();
  if (op != nullptr) {
    Result<void> r = op->CheckInterruptNow();
    if (!r) {
      error = std::move(r).error();
      return false;
    }
  }
  left = kBetween;
  return true;
}

bool Run::Schema(const MatchExpression& e, BsonValue v) {
  ParseWork work(ctx == nullptr ? nullptr : ctx->op);
  return e.extra->schema->Matches(v, &error) && !error;
}

bool Run::In(const MatchExpression& e, BsonValue v) {
  // A missing value sorts as undefined does, and matches null only.
  static constexpr BsonValue kNullValue(BsonType::kNull, "", 0);
  BsonValue key = v.missing() ? kNullValue : v;
  if (!Spend(kStep + v.size())) return false;
  auto it = std::lower_bound(e.list.begin(), e.list.end(), key, [](const Value& a, BsonValue b) {
    return CompareValues(a.view(), b) < 0;
  });
  if (it != e.list.end() && CompareValues(it->view(), key) == 0) return true;
  for (const auto& regex : e.regexes)
    if (!Spend(kStep) || Regex(*regex, v)) return true;
  return false;
}

bool Run::Bits(const MatchExpression& e, BsonValue v) {
  const MatchExpression::Extra& x = *e.extra;
  if (v.IsNumber()) {
    int64_t n;
    if (!v.ExactInt64(&n)) return false;
    uint64_t bits = static_cast<uint64_t>(n);
    bool sign = n < 0;
    switch (e.kind) {
      case MatchKind::kBitsAllSet:
        return (bits & x.bit_mask) == x.bit_mask && (!x.high_bits || sign);
      case MatchKind::kBitsAllClear:
        return (bits & x.bit_mask) == 0 && (!x.high_bits || !sign);
      case MatchKind::kBitsAnySet:
        return (bits & x.bit_mask) != 0 || (x.high_bits && sign);
      default:
        return (~bits & x.bit_mask) != 0 || (x.high_bits && !sign);
    }
  }
  if (!v.Is(BsonType::kBinary)) return false;
  std::string_view data = v.BinaryData();
  bool want_set = e.kind == MatchKind::kBitsAllSet || e.kind == MatchKind::kBitsAnySet;
  bool any = e.kind == MatchKind::kBitsAnySet || e.kind == MatchKind::kBitsAnyClear;
  auto byte_at = [](std::string_view s, size_t i) {
    return i < s.size() ? static_cast<uint8_t>(s[i]) : uint8_t{0};
  };
  if (!Spend(kStep + e.operand.view().size() + x.bit_positions.size() * sizeof(uint32_t)))
    return false;
  if (e.operand.view().Is(BsonType::kBinary)) {
    std::string_view mask = e.operand.view().BinaryData();
    for (size_t i = 0; i < mask.size(); ++i) {
      uint8_t m = byte_at(mask, i), d = byte_at(data, i);
      uint8_t hits = m & (want_set ? d : static_cast<uint8_t>(~d));
      if (any ? hits != 0 : hits != m) return any;
    }
    return !any;
  }
  for (uint32_t p : x.bit_positions) {
    bool set = ((byte_at(data, p / 8) >> (p % 8)) & 1) != 0;
    if ((set == want_set) == any) return any;
  }
  return !any;
}

bool Run::Single(const MatchExpression& e, BsonValue v) {
  if (!Spend(kStep)) return false;
  switch (e.kind) {
    case MatchKind::kAlwaysTrue:
      return true;
    case MatchKind::kAlwaysFalse:
      return false;
    case MatchKind::kAnd:
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot:
      return Logical(e, [&](const MatchExpression& c) { return Single(c, v); });
    case MatchKind::kEq:
    case MatchKind::kLt:
    case MatchKind::kLte:
    case MatchKind::kGt:
    case MatchKind::kGte:
      return Compare(e.kind, e.operand.view(), v);
    case MatchKind::kIn:
      return In(e, v);
    case MatchKind::kRegex:
      return Regex(*e.regexes[0], v);
    case MatchKind::kMod: {
      if (!v.IsNumber()) return false;
      // Fractions are cut off; values beyond 64-bit integers never match.
      int64_t n;
      double d = v.NumberAsDouble();
      if (v.Is(BsonType::kInt32) || v.Is(BsonType::kInt64)) {
        n = v.NumberAsInt64();
      } else {
        if (!(d > -9223372036854775809.0 && d < 9223372036854775808.0)) return false;
        n = v.NumberAsInt64();
      }
      int64_t divisor = e.extra->divisor;
      // INT64_MIN % -1 traps.
      return (divisor == -1 ? 0 : n % divisor) == e.extra->remainder;
    }
    case MatchKind::kExists:
      return v.missing() != e.operand.view().Bool();
    case MatchKind::kType:
      return !v.missing() && e.extra->types[static_cast<uint8_t>(v.type())];
    case MatchKind::kSize: {
      if (!v.IsArray() || !Spend(v.size())) return false;
      int64_t left = e.operand.view().NumberAsInt64();
      for (auto it = v.Document().begin(); it != v.Document().end(); ++it)
        if (--left < 0) return false;
      return left == 0;
    }
    case MatchKind::kElemMatchObject:
    case MatchKind::kElemMatchValue: {
      if (!v.IsArray() || !Spend(v.size())) return false;
      int* outer = position;
      position =
          nullptr;  // a positional operator stands for the array of this node, not for those inside
      int i = 0;
      bool found = false;
      for (const BsonElement& m : v.Document()) {
        if (e.kind == MatchKind::kElemMatchObject) {
          found = (m.value.IsDocument() || m.value.IsArray()) &&
                  Document(*e.children[0], m.value.Document());
        } else {
          found = std::all_of(e.children.begin(), e.children.end(),
                              [&](const MatchPtr& c) { return Single(*c, m.value); });
        }
        if (found || error) break;
        ++i;
      }
      position = outer;
      if (found && position != nullptr && *position < 0) *position = i;
      return found;
    }
    case MatchKind::kBitsAllSet:
    case MatchKind::kBitsAllClear:
    case MatchKind::kBitsAnySet:
    case MatchKind::kBitsAnyClear:
      return Bits(e, v);
    case MatchKind::kAll:
      return std::all_of(e.children.begin(), e.children.end(),
                         [&](const MatchPtr& c) { return Single(*c, v); });
    case MatchKind::kExpr:
      return Expr(e);
    case MatchKind::kJsonSchema:
      return v.IsDocument() && Schema(e, v);
    case MatchKind::kWhere:
      return false;  // never parsed: there is no server-side JavaScript
  }
  return false;
}

namespace {
/// If several conditions go through arrays, the positional operator means the element
/// of the last one (manual: "$ (update)" leaves it open). The order does not depend on
/// how the filter is written: it is that of explain's parsedQuery, by kind, then by
/// path.
boost::container::small_vector<const MatchExpression*, 8> InPositionOrder(
    const MatchExpression& e) {
  auto rank = [](const MatchExpression* c) {
    switch (c->kind) {
      case MatchKind::kAnd:
      case MatchKind::kOr:
        return 0;
      case MatchKind::kElemMatchObject:
      case MatchKind::kElemMatchValue:
        return 1;
      case MatchKind::kSize:
        return 2;
      case MatchKind::kEq:
        return 3;
      case MatchKind::kLte:
        return 4;
      case MatchKind::kLt:
        return 5;
      case MatchKind::kGt:
        return 6;
      case MatchKind::kGte:
        return 7;
      default:
        return 8;
    }
  };
  boost::container::small_vector<const MatchExpression*, 8> order;
  for (const MatchPtr& c : e.children) order.push_back(c.get());
  std::stable_sort(order.begin(), order.end(),
                   [&](const MatchExpression* a, const MatchExpression* b) {
                     return std::pair<int, std::string_view>(rank(a), a->path) <
                            std::pair<int, std::string_view>(rank(b), b->path);
                   });
  return order;
}
}  // namespace

template <class F>
bool Run::Logical(const MatchExpression& e, F&& child) {
  switch (e.kind) {
    case MatchKind::kAnd:
      if (position != nullptr && e.children.size() > 1) {
        if (!Spend(e.children.size() * kStep)) return false;
        const int before = *position;
        for (const MatchExpression* c : InPositionOrder(e))
          if (!child(*c)) {
            *position = before;  // another branch of an $or may yet match, and has not seen these
            return false;
          }
        return !error;
      }
      for (const MatchPtr& c : e.children)
        if (!child(*c)) return false;
      return !error;
    case MatchKind::kOr:
      for (const MatchPtr& c : e.children)
        if (child(*c) || error) return true;
      return false;
    default: {  // kNor, kNot: what did not match has no position
      int* outer = position;
      position = nullptr;
      const bool any = std::any_of(e.children.begin(), e.children.end(), [&](const MatchPtr& c) {
        return child(*c) || error.has_value();
      });
      position = outer;
      return !any && !error;
    }
  }
}

namespace {
bool TraversesLeafArrays(MatchKind kind) {
  return kind != MatchKind::kSize && kind != MatchKind::kElemMatchObject &&
         kind != MatchKind::kElemMatchValue;
}

bool HasExistsFalse(const MatchExpression& e) {
  return e.kind == MatchKind::kExists && !e.operand.view().Bool();
}
}  // namespace

bool Run::Leaf(const MatchExpression& e, BsonValue v, int at) {
  if (position == nullptr) return Single(e, v);
  int inner = -1;
  int* outer = position;
  position = &inner;
  bool found = Single(e, v);
  position = outer;
  if (found && (at >= 0 || inner >= 0)) *position = at >= 0 ? at : inner;
  return found;
}

template <class Walk>
bool Run::Bounded(const MatchExpression& e, Walk&& walk) {
  AmbiguousSteps steps(ctx != nullptr && ctx->op != nullptr ? ctx->op : ParseWork::Asked());
  const bool found = walk(steps);
  if (steps.Ended() && !error) [[unlikely]]
    error = steps.Status(e.path).error();
  return found;
}

template <class F>
std::optional<bool> Run::WithoutPath(const MatchExpression& e, BsonValue v, F&& child) {
  switch (e.kind) {
    case MatchKind::kAlwaysTrue:
      return true;
    case MatchKind::kAlwaysFalse:
      return false;
    case MatchKind::kAnd:
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot:
      return Logical(e, child);
    case MatchKind::kExpr:
      return Expr(e);
    case MatchKind::kJsonSchema:
      return v.IsDocument() && Schema(e, v);
    default:
      return std::nullopt;
  }
}

bool Run::Document(const MatchExpression& e, BsonView doc) {
  if (!Spend(kStep + doc.size())) return false;
  auto child = [&](const MatchExpression& c) { return Document(c, doc); };
  if (const std::optional<bool> answer = WithoutPath(e, doc.AsValue(), child)) return *answer;
  if (e.kind == MatchKind::kAll)
    return std::all_of(e.children.begin(), e.children.end(),
                       [&](const MatchPtr& c) { return Document(*c, doc); });
  if (e.path.find('.') == std::string::npos) {
    BsonValue v = doc.Find(e.path);
    if (!v.IsArray()) return Leaf(e, v, -1);
    if (HasExistsFalse(e)) return false;
    auto f = [&](BsonValue x, int at) { return Leaf(e, x, at) || error.has_value(); };
    return WalkLeaf(v, TraversesLeafArrays(e.kind), -1, f) && !error;
  }
  if (HasExistsFalse(e)) {
    auto f = [](BsonValue x, int) { return !x.missing(); };
    return !Bounded(e, [&](auto& s) { return WalkPath(doc, e.path, false, -1, f, s); }) && !error;
  }
  auto f = [&](BsonValue x, int at) { return Leaf(e, x, at) || error.has_value(); };
  const bool leaf_arrays = TraversesLeafArrays(e.kind);
  return Bounded(e, [&](auto& s) { return WalkPath(doc, e.path, leaf_arrays, -1, f, s); }) &&
         !error;
}

bool Run::Wrapped(const MatchExpression& e, BsonValue v) {
  if (!Spend(kStep + v.size())) return false;
  auto child = [&](const MatchExpression& c) { return Wrapped(c, v); };
  if (const std::optional<bool> answer = WithoutPath(e, v, child)) return *answer;
  bool negated = HasExistsFalse(e);
  auto f = [&](BsonValue x, int at) {
    return (negated ? !x.missing() : Leaf(e, x, at)) || error.has_value();
  };
  bool leaf_arrays = TraversesLeafArrays(e.kind);
  bool found;
  if (e.path.empty()) {
    found = WalkLeaf(v, leaf_arrays, -1, f);
  } else if (v.IsDocument()) {
    found =
        Bounded(e, [&](auto& s) { return WalkPath(v.Document(), e.path, leaf_arrays, -1, f, s); });
  } else if (v.IsArray()) {
    found =
        Bounded(e, [&](auto& s) { return WalkArray(v.Document(), e.path, leaf_arrays, -1, f, s); });
  } else {
    found = f(BsonValue(), -1);
  }
  return found != negated && !error;
}

}  // namespace match

Result<bool> MatchExpression::Matches(BsonView doc, EvalContext* ctx) const {
  return MatchesWithPosition(doc, ctx, nullptr);
}

Result<bool> MatchExpression::MatchesWithPosition(BsonView doc, EvalContext* ctx,
                                                  int* position) const {
  if (position != nullptr) *position = -1;
  match::Run run{.ctx = ctx, .position = position, .root = doc};
  bool found = run.Document(*this, doc);
  if (run.error) [[unlikely]]
    return std::move(*run.error);
  return found;
}

Result<bool> MatchExpression::MatchesValue(BsonValue value, EvalContext* ctx) const {
  match::Run run{.ctx = ctx, .position = nullptr};
  if (value.IsDocument()) run.root = value.Document();
  bool found = run.Wrapped(*this, value);
  if (run.error) [[unlikely]]
    return std::move(*run.error);
  return found;
}

}  // namespace mayfly

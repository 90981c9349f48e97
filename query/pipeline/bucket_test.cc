#include "query/pipeline/bucket_test.h"

#include <algorithm>
#include <optional>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "query/match/match_internal.h"

namespace mayfly {
namespace {

using Verdict = BucketVerdict;

Verdict Negated(Verdict v) {
  if (v == Verdict::kSome) return v;
  return v == Verdict::kNone ? Verdict::kAll : Verdict::kNone;
}

/// The facts in `control` about the values at a path.
struct Known {
  enum class Kind : uint8_t {
    kNothing,
    kAbsent,  ///< no point has a value there, nor an array on the way
    kValues,  ///< all values are scalars of one class, `least` to `greatest`; some may be absent
  } kind = Kind::kNothing;
  BsonValue least, greatest;
  bool always = false;  ///< every point has a value
};

/// Whether `a` is of a class that comes before that of `b`.
bool Below(BsonValue a, BsonValue b) {
  return CanonicalTypeOrder(a.type()) < CanonicalTypeOrder(b.type());
}
bool SameClass(BsonValue a, BsonValue b) {
  return CanonicalTypeOrder(a.type()) == CanonicalTypeOrder(b.type());
}

/// A filter against one bucket. One thread, for the time of one test.
class Tester {
 public:
  Tester(BsonView bucket, const SeriesFields& fields, EvalContext* eval)
      : bucket_(bucket), fields_(fields), eval_(eval) {
    const BsonValue control = bucket["control"];
    if (!control.IsDocument()) return;
    const BsonValue min = control.Document()["min"], max = control.Document()["max"];
    if (!min.IsDocument() || !max.IsDocument()) return;
    min_ = min.Document();
    max_ = max.Document();
    known_ = true;
  }

  Result<Verdict> Run(const MatchExpression& e) {
    const Verdict verdict = Test(e);
    if (error_) return *error_;
    return verdict;
  }

 private:
  Verdict Test(const MatchExpression& e) {
    switch (e.kind) {
      case MatchKind::kAlwaysTrue:
        return Verdict::kAll;
      case MatchKind::kAlwaysFalse:
        return Verdict::kNone;
      case MatchKind::kAnd: {
        Verdict all = Verdict::kAll;
        for (const MatchPtr& c : e.children) {
          all = std::min(all, Test(*c));
          if (all == Verdict::kNone) break;
        }
        return all;
      }
      case MatchKind::kOr:
        return Any(e);
      case MatchKind::kNor:
        return Negated(Any(e));
      case MatchKind::kNot:
        return Negated(Test(*e.children[0]));
      default:
        return e.path.empty() || Stopped() ? Verdict::kSome : Leaf(e);
    }
  }

  /// Whether the operation was interrupted: a filter may have very many conditions.
  bool Stopped() {
    if (error_ || eval_ == nullptr || eval_->op == nullptr) return error_.has_value();
    if (Result<void> r = eval_->op->CheckInterrupt(); !r) error_ = r.error();
    return error_.has_value();
  }

  Verdict Any(const MatchExpression& e) {
    Verdict any = Verdict::kNone;
    for (const MatchPtr& c : e.children) {
      any = std::max(any, Test(*c));
      if (any == Verdict::kAll) break;
    }
    return any;
  }

  Verdict Leaf(const MatchExpression& e) {
    const std::string_view first = std::string_view(e.path).substr(0, e.path.find('.'));
    if (!fields_.meta.empty() && first == fields_.meta) return OfMeta(e);
    if (!known_) return Verdict::kSome;
    const Known known = Lookup(e.path);
    switch (e.kind) {
      case MatchKind::kEq:
      case MatchKind::kLt:
      case MatchKind::kLte:
      case MatchKind::kGt:
      case MatchKind::kGte:
        return Compare(known, e.kind, e.operand.view());
      case MatchKind::kIn:
        return e.regexes.empty() ? In(known, e.list) : Verdict::kSome;
      case MatchKind::kExists: {
        Verdict there = Verdict::kSome;
        if (known.kind == Known::Kind::kAbsent) there = Verdict::kNone;
        if (known.kind == Known::Kind::kValues && known.always) there = Verdict::kAll;
        return e.operand.view().Bool() ? there : Negated(there);
      }
      case MatchKind::kRegex:
      case MatchKind::kMod:
      case MatchKind::kType:
      case MatchKind::kSize:
      case MatchKind::kElemMatchObject:
      case MatchKind::kElemMatchValue:
      case MatchKind::kBitsAllSet:
      case MatchKind::kBitsAllClear:
      case MatchKind::kBitsAnySet:
      case MatchKind::kBitsAnyClear:
        // None of these matches a missing value.
        return known.kind == Known::Kind::kAbsent ? Verdict::kNone : Verdict::kSome;
      default:
        return Verdict::kSome;
    }
  }

  /// Equality with any of a sorted list, which may have a million values: few of them are looked
  /// at.
  static Verdict In(const Known& known, const std::vector<Value>& list) {
    if (list.empty()) return Verdict::kNone;
    if (known.kind == Known::Kind::kNothing) return Verdict::kSome;
    Verdict any = Verdict::kNone;
    const auto see = [&](const Value& v) {
      any = std::max(any, Compare(known, MatchKind::kEq, v.view()));
    };
    // Class by class: values without an order of one class have one answer, and those of another
    // class than the bucket's none.
    for (auto it = list.begin(); it != list.end();) {
      const auto end = std::partition_point(
          it, list.end(), [&](const Value& v) { return !Below(it->view(), v.view()); });
      see(*it);  // NaN is the least number
      if (known.kind == Known::Kind::kValues && SameClass(it->view(), known.least)) {
        const auto at = std::lower_bound(it, end, known.least, [](const Value& v, BsonValue least) {
          return CompareValues(v.view(), least) < 0;
        });
        if (at != end) see(*at);  // those behind it are not nearer
      }
      it = end;
    }
    return any;
  }

  /// The points have the same meta value, so one answer is that of all.
  Verdict OfMeta(const MatchExpression& e) {
    if (!meta_point_)
      meta_point_ = BuildBson([&](BsonBuilder& b) {
        if (const BsonValue meta = bucket_["meta"]; !meta.missing()) b.Append(fields_.meta, meta);
      });
    const Result<bool> matches = e.Matches(*meta_point_, eval_);
    if (!matches) {
      Stopped();
      return Verdict::kSome;  // otherwise the filter fails when it meets the points
    }
    return matches.value() ? Verdict::kAll : Verdict::kNone;
  }

  Known Lookup(std::string_view path) {
    if (path == fields_.time) {
      const BsonValue least = min_[path], greatest = max_[path];
      if (!least.IsDate() || !greatest.IsDate()) return {};
      return {Known::Kind::kValues, least, greatest, true};
    }
    BsonView min = min_, max = max_;
    for (;;) {
      const size_t cost = size_t{min.size()} + max.size();
      if (left_ < cost) return {};
      left_ -= cost;
      const size_t dot = path.find('.');
      const BsonValue least = min[path.substr(0, dot)], greatest = max[path.substr(0, dot)];
      if (least.missing() && greatest.missing()) return {.kind = Known::Kind::kAbsent};
      if (least.missing() || greatest.missing() || !SameClass(least, greatest)) return {};
      if (dot == std::string_view::npos) {
        if (!HasOrder(least) || !HasOrder(greatest)) return {};
        return {Known::Kind::kValues, least, greatest, false};
      }
      // Below a scalar nothing is there, in every point.
      if (HasOrder(least)) return {.kind = Known::Kind::kAbsent};
      if (!least.IsDocument()) return {};
      min = least.Document();
      max = greatest.Document();
      path.remove_prefix(dot + 1);
    }
  }

  static Verdict Compare(const Known& known, MatchKind kind, BsonValue operand) {
    if (known.kind == Known::Kind::kNothing) return Verdict::kSome;
    if (!HasOrder(operand)) {
      // Null equals a missing value, and no time is null.
      return operand.IsNull() && known.always ? Verdict::kNone : Verdict::kSome;
    }
    if (known.kind == Known::Kind::kAbsent) return Verdict::kNone;
    if (!SameClass(operand, known.least)) return Verdict::kNone;
    if (match::IsNan(operand)) return Verdict::kSome;
    const int to_least = CompareValues(operand, known.least);
    const int to_greatest = CompareValues(operand, known.greatest);
    auto decide = [&](bool none, bool all) {
      if (none) return Verdict::kNone;
      return all && known.always ? Verdict::kAll : Verdict::kSome;
    };
    switch (kind) {
      case MatchKind::kEq:
        return decide(to_least < 0 || to_greatest > 0, to_least == 0 && to_greatest == 0);
      case MatchKind::kGt:
        return decide(to_greatest >= 0, to_least < 0);
      case MatchKind::kGte:
        return decide(to_greatest > 0, to_least <= 0);
      case MatchKind::kLt:
        return decide(to_least <= 0, to_greatest > 0);
      default:
        return decide(to_least < 0, to_greatest >= 0);
    }
  }

  const BsonView bucket_;
  const SeriesFields& fields_;
  EvalContext* const eval_;
  std::optional<Error> error_;
  BsonView min_, max_;
  bool known_ = false;
  /// Bytes of `control` that may yet be gone through: filters may have many paths, and `control`
  /// many fields.
  size_t left_ = size_t{16} << 20;
  std::optional<BsonDocument> meta_point_;
};

}  // namespace

bool HasOrder(BsonValue v) {
  switch (v.type()) {
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDouble:
    case BsonType::kDecimal128:
    case BsonType::kString:
    case BsonType::kSymbol:
    case BsonType::kBinary:
    case BsonType::kObjectId:
    case BsonType::kBool:
    case BsonType::kDate:
    case BsonType::kTimestamp:
      return true;
    default:
      return false;
  }
}

bool ExtremesOfField(BsonView bucket, std::string_view field, BsonValue* least,
                     BsonValue* greatest) {
  const BsonValue control = bucket["control"];
  if (!control.IsDocument()) return false;
  const BsonValue min = control.Document()["min"], max = control.Document()["max"];
  if (!min.IsDocument() || !max.IsDocument()) return false;
  *least = min.Document()[field];
  *greatest = max.Document()[field];
  if (least->missing() && greatest->missing()) return true;
  return SameClass(*least, *greatest) && HasOrder(*least) && HasOrder(*greatest);
}

Result<BucketVerdict> TestBucket(const MatchExpression& match, BsonView bucket,
                                 const SeriesFields& fields, EvalContext* eval) {
  return Tester(bucket, fields, eval).Run(match);
}

}  // namespace mayfly

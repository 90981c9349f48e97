#include "query/pipeline/bucket_filter.h"

#include <algorithm>
#include <vector>

#include "protocol/bson_compare.h"
#include "protocol/instant.h"
#include "query/pipeline/bucket_test.h"
#include "timeseries/bucket_span.h"

namespace mayfly {
namespace {

/// Deep enough for every filter that the parser of filters takes.
constexpr int kMaxFilterDepth = 100;

/// The times that a condition lets pass; both ends may be open.
struct TimeRange {
  std::optional<int64_t> least, greatest;  ///< milliseconds
  bool least_open = false, greatest_open = false;
};

bool AppendMoved(std::string_view from, std::string_view to, BsonView filter, int depth,
                 BsonBuilder& out);

/// For `$and`, `$or`, `$nor`.
bool AppendMovedList(std::string_view from, std::string_view to, const BsonElement& list, int depth,
                     BsonBuilder& out) {
  if (!list.value.IsArray()) return false;
  BsonArrayBuilder parts = out.OpenArray(list.name);
  for (const BsonElement& part : list.value.Document()) {
    if (!part.value.IsDocument()) return false;
    BsonBuilder d = parts.OpenDocument();
    if (!AppendMoved(from, to, part.value.Document(), depth + 1, d)) return false;
  }
  return true;
}

bool AppendMoved(std::string_view from, std::string_view to, BsonView filter, int depth,
                 BsonBuilder& out) {
  if (depth > kMaxFilterDepth) return false;
  for (const BsonElement& e : filter) {
    if (e.name == "$and" || e.name == "$or" || e.name == "$nor") {
      if (!AppendMovedList(from, to, e, depth, out)) return false;
      continue;
    }
    if (e.name == "$comment") {
      out.Append(e);
      continue;
    }
    const std::optional<std::string> path = MovedPath(from, to, e.name);
    if (!path) return false;
    out.Append(*path, e.value);
  }
  return true;
}

/// Conjuncts on buckets, each a document.
class Converter {
 public:
  explicit Converter(const SeriesShape& shape) : shape_(shape) {}

  /// Adds the conditions of `filter`, a conjunction, on buckets; true if it has no others.
  bool Add(BsonView filter, int depth, std::vector<BsonDocument>& out) {
    if (depth > kMaxFilterDepth) return false;
    bool exact = true;
    for (const BsonElement& e : filter) {
      if (e.name == "$comment") continue;
      if (std::optional<BsonDocument> moved = MovedMeta(e)) {
        out.push_back(std::move(*moved));  // bounded: by the filter, which is parsed
      } else if (e.name == "$and" && e.value.IsArray()) {
        for (const BsonElement& part : e.value.Document())
          exact = part.value.IsDocument() && Add(part.value.Document(), depth + 1, out) && exact;
      } else {
        exact = false;
        if (e.name == "$or" && e.value.IsArray())
          AddDisjunction(e.value.Document(), depth, out);
        else if (e.name == shape_.fields.time)
          AddTimes(e.value, out);
        else if (IsIndexed(e.name))
          AddMeasured(e, out);
        else if (e.name == "$expr" && e.value.IsDocument())
          AddExpression(e.value.Document(), depth, out);
      }
    }
    return exact;
  }

 private:
  std::optional<BsonDocument> MovedMeta(const BsonElement& e) const {
    if (shape_.fields.meta.empty()) return std::nullopt;
    std::string one, bytes;
    BsonBuilder whole(one);
    whole.Append(e).Done();
    BsonBuilder b(bytes);
    if (!AppendMovedFilter(shape_.fields.meta, "meta", BsonView(one), b)) return std::nullopt;
    b.Done();
    return BsonDocument(std::move(bytes));
  }

  /// Each branch needs a condition on buckets, or the whole has none.
  void AddDisjunction(BsonView branches, int depth, std::vector<BsonDocument>& out) {
    std::vector<BsonDocument> all;
    for (const BsonElement& branch : branches) {
      std::vector<BsonDocument> parts;
      if (!branch.value.IsDocument()) return;
      Add(branch.value.Document(), depth + 1, parts);
      if (parts.empty()) return;
      all.push_back(Conjunction(parts));  // bounded: by the filter
    }
    if (all.empty()) return;
    out.push_back(BuildBson([&](BsonBuilder& b) {
      BsonArrayBuilder list = b.OpenArray("$or");
      for (const BsonDocument& branch : all) list.Append(branch);
    }));
  }

  void AddTimes(BsonValue condition, std::vector<BsonDocument>& out) const {
    TimeRange range;
    if (condition.IsDate()) {
      range.least = range.greatest = condition.Date().millis;
    } else if (condition.IsDocument()) {
      for (const BsonElement& op : condition.Document()) Narrow(op, range);
    }
    AddRange(range, out);
  }

  static void AtLeast(int64_t t, bool open, TimeRange& range) {
    if (range.least && (*range.least > t || (*range.least == t && range.least_open))) return;
    range.least = t;
    range.least_open = open;
  }
  static void AtMost(int64_t t, bool open, TimeRange& range) {
    if (range.greatest && (*range.greatest < t || (*range.greatest == t && range.greatest_open)))
      return;
    range.greatest = t;
    range.greatest_open = open;
  }
  static void Narrow(const BsonElement& op, TimeRange& range) {
    if (op.name == "$in" && op.value.IsArray()) {
      std::optional<int64_t> least, greatest;
      for (const BsonElement& e : op.value.Document()) {
        if (!e.value.IsDate()) return;
        least = std::min(least.value_or(INT64_MAX), e.value.Date().millis);
        greatest = std::max(greatest.value_or(INT64_MIN), e.value.Date().millis);
      }
      if (!least) return;
      AtLeast(*least, false, range);
      AtMost(*greatest, false, range);
      return;
    }
    if (!op.value.IsDate()) return;
    const int64_t t = op.value.Date().millis;
    if (op.name == "$eq" || op.name == "$gte" || op.name == "$gt")
      AtLeast(t, op.name == "$gt", range);
    if (op.name == "$eq" || op.name == "$lte" || op.name == "$lt")
      AtMost(t, op.name == "$lt", range);
  }

  bool IsIndexed(std::string_view field) const {
    return std::find(shape_.indexed.begin(), shape_.indexed.end(), field) != shape_.indexed.end();
  }

  /// The values that a condition on a measurement lets pass, in the order of all types; missing: no
  /// bound.
  struct ValueRange {
    BsonValue least, greatest;
    bool least_open = false, greatest_open = false;

    void AtLeast(BsonValue v, bool open) {
      const int order = least.missing() ? 1 : CompareValues(v, least);
      if (order < 0) return;
      least_open = open || (order == 0 && least_open);
      least = v;
    }
    void AtMost(BsonValue v, bool open) {
      const int order = greatest.missing() ? -1 : CompareValues(v, greatest);
      if (order > 0) return;
      greatest_open = open || (order == 0 && greatest_open);
      greatest = v;
    }
    void Narrow(const BsonElement& op) {
      if (op.name == "$in" && op.value.IsArray() && !op.value.Document().empty()) {
        BsonValue low, high;
        for (const BsonElement& e : op.value.Document()) {
          if (!HasOrder(e.value)) return;
          if (low.missing() || CompareValues(e.value, low) < 0) low = e.value;
          if (high.missing() || CompareValues(e.value, high) > 0) high = e.value;
        }
        AtLeast(low, false);
        AtMost(high, false);
      }
      if (!HasOrder(op.value)) return;
      if (op.name == "$eq" || op.name == "$gte" || op.name == "$gt")
        AtLeast(op.value, op.name == "$gt");
      if (op.name == "$eq" || op.name == "$lte" || op.name == "$lt")
        AtMost(op.value, op.name == "$lt");
    }
  };

  /// A value that matches is not below the bucket's least and not above its greatest value,
  /// whatever types the others have: these are compared as `$expr` does, for which the planner has
  /// bounds. Only an array matches by a value within it, so a bucket that may have one passes, too.
  void AddMeasured(const BsonElement& e, std::vector<BsonDocument>& out) {
    ValueRange range;
    if (HasOrder(e.value)) {
      range.least = range.greatest = e.value;
    } else if (e.value.IsDocument()) {
      for (const BsonElement& op : e.value.Document()) range.Narrow(op);
    }
    if ((range.least.missing() && range.greatest.missing()) || ++measured_ > kMaxMeasuredConditions)
      return;
    const std::string path(e.name);
    // Each match has a value. With this an index is of use that begins with the other side.
    // bounded: by kMaxMeasuredConditions
    out.push_back(BuildBson(
        [&](BsonBuilder& b) { b.OpenDocument("control.min." + path).Append("$exists", true); }));
    if (!range.least.missing())
      out.push_back(Bound(path, "max", range.least_open ? "$gt" : "$gte", range.least));
    if (!range.greatest.missing())
      out.push_back(Bound(path, "min", range.greatest_open ? "$lt" : "$lte", range.greatest));
  }

  static void AppendComparison(const std::string& path, std::string_view side, std::string_view op,
                               BsonValue v, BsonBuilder& out) {
    BsonArrayBuilder both = out.OpenArray(op);
    both.Append("$control." + std::string(side) + "." + path);
    both.OpenDocument().Append("$literal", v);
  }

  static BsonDocument Bound(const std::string& path, std::string_view side, std::string_view op,
                            BsonValue v) {
    // A bucket with an array has a greatest value that is not below the arrays, and a least one
    // that is not above them: where that is within the bound anyway, the bound alone decides.
    const bool below = CanonicalTypeOrder(v.type()) < CanonicalTypeOrder(BsonType::kArray);
    return BuildBson([&](BsonBuilder& b) {
      BsonBuilder expr = b.OpenDocument("$expr");
      if (below == (side == "max")) return AppendComparison(path, side, op, v, expr);
      BsonArrayBuilder any = expr.OpenArray("$or");
      {
        BsonBuilder bound = any.OpenDocument();
        AppendComparison(path, side, op, v, bound);
      }
      // Documents come before the arrays, binary data behind them.
      const BsonDocument ends = BuildBson([](BsonBuilder& d) {
        d.OpenDocument("d");
        d.AppendBinary("b", 0, "");
      });
      BsonBuilder array = any.OpenDocument();
      BsonArrayBuilder all = array.OpenArray("$and");
      {
        BsonBuilder greatest = all.OpenDocument();
        AppendComparison(path, "max", "$gte", ends.view()["d"], greatest);
      }
      BsonBuilder least = all.OpenDocument();
      AppendComparison(path, "min", "$lt", ends.view()["b"], least);
    });
  }

  /// A bucket from `floor` on has points in [floor, floor + span), none later than control.max.
  void AddRange(const TimeRange& range, std::vector<BsonDocument>& out) const {
    const std::string least = "control.min." + shape_.fields.time;
    const std::string greatest = "control.max." + shape_.fields.time;
    int64_t floor;
    if (range.least) {
      out.push_back(BuildBson([&](BsonBuilder& b) {
        b.OpenDocument(greatest).Append(range.least_open ? "$gt" : "$gte", Instant{*range.least});
      }));
      if (shape_.max_span_seconds > 0 &&
          !__builtin_sub_overflow(*range.least, shape_.max_span_seconds * 1000, &floor)) {
        out.push_back(BuildBson(
            [&](BsonBuilder& b) { b.OpenDocument(least).Append("$gt", Instant{floor}); }));
        AddId("$gte", floor, out);
      }
    }
    if (range.greatest) {
      out.push_back(BuildBson([&](BsonBuilder& b) {
        b.OpenDocument(least).Append(range.greatest_open ? "$lt" : "$lte",
                                     Instant{*range.greatest});
      }));
      AddId("$lte", *range.greatest, out);
    }
  }

  /// The first four bytes of a bucket's `_id` are the seconds of its lower bound.
  void AddId(std::string_view op, int64_t millis, std::vector<BsonDocument>& out) const {
    if (shape_.extended_range) return;
    const bool lower = op == "$gte";
    int64_t seconds = millis / 1000 - (millis % 1000 < 0 ? 1 : 0);
    if (lower ? seconds < 0 : seconds > UINT32_MAX) return;  // no bound
    seconds = std::clamp<int64_t>(seconds, 0, UINT32_MAX);
    // Nothing is below zero, and the lower bounds of buckets above all seconds are none.
    const std::string id = BucketIdPrefix(Instant{seconds * 1000}) +
                           std::string(8, lower || millis < 0 ? '\0' : '\xFF');
    // bounded: by the filter
    out.push_back(BuildBson([&](BsonBuilder& b) {
      BsonBuilder bound = b.OpenDocument("_id");
      bound.AppendObjectId(op, id);
    }));
  }

  /// `$expr` with comparisons of the metaField, which read the same of buckets: by path, with
  /// constants and variables; and of the timeField with what does not depend on the point.
  void AddExpression(BsonView expression, int depth, std::vector<BsonDocument>& out) {
    if (depth > kMaxFilterDepth || expression.Count() != 1) return;
    const BsonElement op = expression.First();
    if (op.name == "$and" && op.value.IsArray()) {
      for (const BsonElement& part : op.value.Document())
        if (part.value.IsDocument()) AddExpression(part.value.Document(), depth + 1, out);
      return;
    }
    if (op.name != "$eq" && op.name != "$gt" && op.name != "$gte" && op.name != "$lt" &&
        op.name != "$lte")
      return;
    if (!op.value.IsArray() || op.value.Document().Count() != 2) return;
    if (AddTimeExpression(op, out)) return;
    bool meta = false;
    std::string bytes;
    BsonBuilder b(bytes);
    {
      BsonBuilder expr = b.OpenDocument("$expr");
      BsonArrayBuilder sides = expr.OpenArray(op.name);
      for (const BsonElement& side : op.value.Document()) {
        if (side.value.IsDocument() || side.value.IsArray()) return;
        if (!side.value.IsString() || !side.value.String().starts_with('$')) {
          sides.Append(side.value);
          continue;
        }
        const std::string_view text = side.value.String();
        if (text.starts_with("$$")) {
          if (text.starts_with("$$ROOT") || text.starts_with("$$CURRENT")) return;
          sides.Append(side.value);
          continue;
        }
        const auto path = MovedPath(shape_.fields.meta, "meta", text.substr(1));
        if (!path) return;
        meta = true;
        sides.Append("$" + *path);
      }
    }
    b.Done();
    // bounded: by the filter
    if (meta) out.push_back(BsonDocument(std::move(bytes)));
  }

  /// A comparison of the timeField, as one of a bucket's least and greatest: if a point is beyond a
  /// value of any type, so is the bucket's. False if it is none.
  bool AddTimeExpression(const BsonElement& op, std::vector<BsonDocument>& out) const {
    const BsonValue left = op.value.Document().First().value;
    BsonValue right;
    for (const BsonElement& e : op.value.Document()) right = e.value;
    const bool first = IsTimePath(left);
    if (first == IsTimePath(right)) return false;
    const BsonValue other = first ? right : left;
    if (!IsSameForAll(other, 0)) return false;
    std::string name(op.name);
    if (!first)
      name = name.starts_with("$gt")   ? "$lt" + name.substr(3)
             : name.starts_with("$lt") ? "$gt" + name.substr(3)
                                       : name;
    if (other.IsDate()) {
      const BsonDocument plain = BuildBson([&](BsonBuilder& b) { b.Append(name, other); });
      AddTimes(plain.view().AsValue(), out);
      return true;
    }
    const auto add = [&](std::string_view compare, std::string_view side) {
      // bounded: by the filter
      out.push_back(BuildBson([&](BsonBuilder& b) {
        BsonBuilder expr = b.OpenDocument("$expr");
        BsonArrayBuilder both = expr.OpenArray(compare);
        both.Append("$control." + std::string(side) + "." + shape_.fields.time);
        both.Append(other);
      }));
    };
    if (name == "$eq" || name.starts_with("$gt")) add(name == "$eq" ? "$gte" : name, "max");
    if (name == "$eq" || name.starts_with("$lt")) add(name == "$eq" ? "$lte" : name, "min");
    return true;
  }
  bool IsTimePath(BsonValue v) const {
    return v.IsString() && v.String().starts_with('$') &&
           v.String().substr(1) == shape_.fields.time;
  }
  /// Whether an expression has one value for all points of a query: constants, variables of the
  /// command, and what is reckoned of them.
  static bool IsSameForAll(BsonValue v, int depth) {
    static constexpr std::string_view kOperators[] = {
        "$add",       "$const",        "$dateAdd", "$dateFromParts", "$dateFromString",
        "$dateTrunc", "$dateSubtract", "$literal", "$max",           "$min",
        "$multiply",  "$subtract",     "$toDate",
    };
    if (depth > kMaxFilterDepth) return false;
    if (v.IsString()) {
      const std::string_view text = v.String();
      if (!text.starts_with('$')) return true;
      return text.starts_with("$$") && !text.starts_with("$$ROOT") &&
             !text.starts_with("$$CURRENT");
    }
    if (!v.IsDocument() && !v.IsArray()) return true;
    for (const BsonElement& e : v.Document()) {
      if (v.IsDocument() && e.name.starts_with('$') &&
          std::find(std::begin(kOperators), std::end(kOperators), e.name) == std::end(kOperators))
        return false;
      if (!IsSameForAll(e.value, depth + 1)) return false;
    }
    return true;
  }

 public:
  static BsonDocument Conjunction(const std::vector<BsonDocument>& parts) {
    if (parts.size() == 1) return parts[0];
    return BuildBson([&](BsonBuilder& b) {
      BsonArrayBuilder list = b.OpenArray("$and");
      for (const BsonDocument& part : parts) list.Append(part);
    });
  }

 private:
  const SeriesShape& shape_;
  int measured_ = 0;  ///< conditions on measurements so far
};

}  // namespace

std::optional<std::string> MovedPath(std::string_view from, std::string_view to,
                                     std::string_view path) {
  if (from.empty() || !path.starts_with(from)) return std::nullopt;
  path.remove_prefix(from.size());
  if (!path.empty() && path[0] != '.') return std::nullopt;
  return std::string(to).append(path);
}

bool AppendMovedFilter(std::string_view from, std::string_view to, BsonView filter,
                       BsonBuilder& out) {
  return AppendMoved(from, to, filter, 0, out);
}

std::optional<BucketFilter> FilterOfBuckets(BsonView filter, const SeriesShape& shape) {
  std::vector<BsonDocument> parts;
  const bool exact = Converter(shape).Add(filter, 0, parts);
  if (parts.empty()) return std::nullopt;
  return BucketFilter{Converter::Conjunction(parts), exact};
}

}  // namespace mayfly

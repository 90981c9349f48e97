#include <algorithm>

#include "protocol/bson_compare.h"
#include "protocol/cut_text.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

/// The element at `index` from the start, or from the end when negative; missing outside.
Value ElementAt(const Value& array, int64_t index) {
  BsonView view = array.view().Document();
  if (index < 0) index += view.Count();
  if (index < 0) return Value();
  for (const BsonElement& e : view)
    if (index-- == 0) return array.Member(e.value);
  return Value();
}

Result<Value> ArrayElemAt(const EvalArgs& a) {
  if (a.nullish(0) || a.nullish(1)) return Value::Null();
  if (!a.view(0).IsArray())
    return LocationError(
        28689, "$arrayElemAt's first argument must be an array, but is " + TypeText(a[0]));
  if (!a.view(1).IsNumber())
    return LocationError(
        28690, "$arrayElemAt's second argument must be a numeric value, but is " + TypeText(a[1]));
  int32_t index;
  if (!ExactInt32(a.view(1), &index))
    return LocationError(
        28691, "$arrayElemAt's second argument must be representable as a 32-bit integer: " +
                   ValueText(a[1]));
  return ElementAt(a[0], index);
}

Result<Value> FirstOrLast(const EvalArgs& a, int64_t index) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).IsArray())
    return LocationError(
        28689, OperatorName(a) + "'s argument must be an array, but is " + TypeText(a[0]));
  return ElementAt(a[0], index);
}
Result<Value> First(const EvalArgs& a) { return FirstOrLast(a, 0); }
Result<Value> Last(const EvalArgs& a) { return FirstOrLast(a, -1); }

constexpr std::string_view kCountNames[] = {"n", "input"};

/// The elements of `array` from position `begin` on, up to `end`.
Result<Value> ElementsBetween(EvalContext& ctx, BsonValue array, int64_t begin, int64_t end) {
  GrowingArray out(ctx);
  int64_t i = 0;
  for (const BsonElement& e : array.Document()) {
    if (i >= end) break;
    if (i++ < begin) continue;
    MAYFLY_TRY(out.Append(e.value));
  }
  return out.Finish();
}

/// The n and the input of $firstN, $lastN, $maxN, $minN.
Result<int64_t> CheckN(const EvalArgs& a) {
  BsonValue n = a.view(0);
  int64_t count;
  if (!n.IsNumber())
    return LocationError(5787902,
                         "Value for 'n' must be of integral type, but found " + ValueText(n));
  if (!n.ExactInt64(&count))
    return LocationError(5787903,
                         "Value for 'n' must be of integral type, but found " + ValueText(n));
  if (count <= 0)
    return LocationError(5787908, "'n' must be greater than 0, found " + std::to_string(count));
  if (!a.view(1).IsArray()) return LocationError(5788200, "Input must be an array");
  return count;
}
Result<Value> FirstN(const EvalArgs& a) {
  MAYFLY_TRY(int64_t n, CheckN(a));
  return ElementsBetween(a.ctx, a.view(1), 0, n);
}
Result<Value> LastN(const EvalArgs& a) {
  MAYFLY_TRY(int64_t n, CheckN(a));
  return ElementsBetween(a.ctx, a.view(1), std::max<int64_t>(0, a.view(1).Document().Count() - n),
                         INT64_MAX);
}
/// The first n elements in the order of `sign`.
Result<Value> ExtremeN(const EvalArgs& a, int sign) {
  MAYFLY_TRY(int64_t n, CheckN(a));
  MAYFLY_TRY(ElementList list, ElementList::Of(a.ctx, a.view(1)));
  std::vector<BsonValue>& v = list.values();
  std::erase_if(v, [](BsonValue x) { return x.IsNullish(); });
  MAYFLY_TRY(SortValues(
      a.ctx, v, [sign](BsonValue x, BsonValue y) { return CompareValues(x, y) * sign < 0; }));
  if (static_cast<uint64_t>(n) < v.size()) v.resize(static_cast<size_t>(n));
  return ArrayOf(a.ctx, v);
}
Result<Value> MaxN(const EvalArgs& a) { return ExtremeN(a, -1); }
Result<Value> MinN(const EvalArgs& a) { return ExtremeN(a, 1); }

Result<Value> Slice(const EvalArgs& a) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a.nullish(i)) return Value::Null();
  if (!a.view(0).IsArray())
    return LocationError(
        28724, "First argument to $slice must be an array, but is of type: " + TypeText(a[0]));
  int32_t second, third;
  if (!a.view(1).IsNumber())
    return LocationError(
        28725,
        "Second argument to $slice must be a numeric value, but is of type: " + TypeText(a[1]));
  if (!ExactInt32(a.view(1), &second))
    return LocationError(
        28726,
        "Second argument to $slice can't be represented as a 32-bit integer: " + ValueText(a[1]));
  const int64_t size = a.view(0).Document().Count();
  int64_t begin, end;
  if (a.size() == 2) {
    begin = second >= 0 ? 0 : std::max<int64_t>(0, size + second);
    end = second >= 0 ? std::min<int64_t>(size, second) : size;
  } else {
    if (!a.view(2).IsNumber())
      return LocationError(
          28727, "Third argument to $slice must be numeric, but is of type: " + TypeText(a[2]));
    if (!ExactInt32(a.view(2), &third))
      return LocationError(
          28728,
          "Third argument to $slice can't be represented as a 32-bit integer: " + ValueText(a[2]));
    if (third <= 0)
      return LocationError(28729, "Third argument to $slice must be positive: " + ValueText(a[2]));
    begin = second >= 0 ? std::min<int64_t>(size, second) : std::max<int64_t>(0, size + second);
    end = std::min<int64_t>(size, begin + third);
  }
  return ElementsBetween(a.ctx, a.view(0), begin, end);
}

Result<Value> Size(const EvalArgs& a) {
  if (!a.view(0).IsArray())
    return LocationError(
        17124, "The argument to $size must be an array, but was of type: " + TypeText(a[0]));
  return Value::Int32(a.view(0).Document().Count());
}

Result<Value> ConcatArrays(const EvalArgs& a) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a.nullish(i)) return Value::Null();
    if (!a.view(i).IsArray())
      return LocationError(28664, "$concatArrays only supports arrays, not " + TypeText(a[i]));
  }
  GrowingArray out(a.ctx);
  for (const Value& array : a.values) {
    for (const BsonElement& e : array.view().Document()) {
      MAYFLY_TRY(out.Append(e.value));
    }
  }
  return out.Finish();
}

Result<Value> In(const EvalArgs& a) {
  if (!a.view(1).IsArray())
    return LocationError(40081,
                         "$in requires an array as a second argument, found: " + TypeText(a[1]));
  Pace pace(a.ctx);
  for (const BsonElement& e : a.view(1).Document()) {
    if (CompareValues(a.view(0), e.value) == 0) return Value::Bool(true);
    MAYFLY_TRY(pace.Step(e.value.size()));
  }
  return Value::Bool(false);
}

Result<Value> IndexOfArray(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).IsArray())
    return LocationError(
        40090, "$indexOfArray requires an array as a first argument, found: " + TypeText(a[0]));
  int32_t bounds[2] = {0, INT32_MAX};
  for (size_t i = 2; i < a.size(); ++i) {
    const char* what = i == 2 ? "starting" : "ending";
    if (!a.view(i).IsNumber() || !ExactInt32(a.view(i), &bounds[i - 2]))
      return LocationError(40096, std::string("$indexOfArray requires an integral ") + what +
                                      " index, found a value of type: " + TypeText(a[i]) +
                                      ", with value: " + ValueText(a[i]));
    if (bounds[i - 2] < 0)
      return LocationError(40097, std::string("$indexOfArray requires a nonnegative ") + what +
                                      " index, found: " + ValueText(a[i]));
  }
  int32_t i = 0;
  Pace pace(a.ctx);
  for (const BsonElement& e : a.view(0).Document()) {
    MAYFLY_TRY(pace.Step(e.value.size()));
    if (i >= bounds[1]) break;
    if (i >= bounds[0] && CompareValues(e.value, a.view(1)) == 0) return Value::Int32(i);
    ++i;
  }
  return Value::Int32(-1);
}

Result<Value> IsArray(const EvalArgs& a) { return Value::Bool(a.view(0).IsArray()); }

Result<Value> Range(const EvalArgs& a) {
  static constexpr const char* kWhat[] = {"starting", "ending", "step"};
  int32_t n[3] = {0, 0, 1};
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a.view(i).IsNumber())
      return LocationError(34443 + 2 * static_cast<int>(i),
                           std::string("$range requires a numeric ") + kWhat[i] +
                               " value, found value of type: " + TypeText(a[i]));
    if (!ExactInt32(a.view(i), &n[i]))
      return LocationError(34444 + 2 * static_cast<int>(i),
                           std::string("$range requires a ") + kWhat[i] +
                               " value that can be represented as a 32-bit integer, found value: " +
                               ValueText(a[i]));
  }
  if (n[2] == 0) return LocationError(34449, "$range requires a non-zero step value");
  int64_t step = n[2], distance = int64_t{n[1]} - n[0];
  int64_t count = (step > 0) == (distance > 0) && distance != 0
                      ? (std::abs(distance) + std::abs(step) - 1) / std::abs(step)
                      : 0;
  constexpr int64_t kMost = (int64_t{64} << 20) / 8, kMaxFolded = 4096;
  if (count > (a.ctx.folding ? kMaxFolded : kMost))
    return Error{ErrorCode::kExceededMemoryLimit,
                 "$range would use too much memory and cannot spill to disk"};
  GrowingArray out(a.ctx);
  for (int64_t i = 0; i < count; ++i) {
    MAYFLY_TRY(out.Room(sizeof(int32_t)));
    out.raw().Append(static_cast<int32_t>(n[0] + i * step));
  }
  return out.Finish();
}

Result<Value> ReverseArray(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).IsArray())
    return LocationError(
        34435,
        "The argument to $reverseArray must be an array, but was of type: " + TypeText(a[0]));
  MAYFLY_TRY(ElementList list, ElementList::Of(a.ctx, a.view(0)));
  std::reverse(list.values().begin(), list.values().end());
  return ArrayOf(a.ctx, list.values());
}

// $sortArray: by a document of paths, or whole values by 1 or -1.

constexpr std::string_view kSortNames[] = {"input", "sortBy"};

Result<Value> SortArray(const EvalArgs& a) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).IsArray())
    return LocationError(
        2942504,
        "The input argument to $sortArray must be an array, but was of type: " + TypeText(a[0]));
  struct Part {
    std::vector<std::string> path;
    bool descending;
  };
  std::vector<Part> parts;
  auto direction = [](BsonValue v, bool* descending) {
    int64_t n;
    if (!v.IsNumber() || !v.ExactInt64(&n) || (n != 1 && n != -1)) return false;
    *descending = n < 0;
    return true;
  };
  BsonValue by = a.view(1);
  if (by.IsDocument()) {
    if (by.Document().empty())
      return LocationError(15976, "$sort stage must have at least one sort key");
    for (const BsonElement& e : by.Document()) {
      Part part;
      MAYFLY_TRY(part.path, ParseFieldPath(e.name));
      if (!direction(e.value, &part.descending))
        return LocationError(15975,
                             "$sort key ordering must be 1 (for ascending) or -1 (for descending)");
      parts.push_back(std::move(part));
    }
  } else {
    Part part;
    if (!direction(by, &part.descending))
      return LocationError(2942505, "The $sort element value must be either 1 or -1, or an object");
    parts.push_back(std::move(part));
  }
  if (parts[0].path.empty()) {
    MAYFLY_TRY(ElementList list, ElementList::Of(a.ctx, a.view(0)));
    MAYFLY_TRY(SortValues(a.ctx, list.values(),
                          [sign = parts[0].descending ? -1 : 1](BsonValue x, BsonValue y) {
                            return CompareValues(x, y) * sign < 0;
                          }));
    return ArrayOf(a.ctx, list.values());
  }
  struct Item {
    BsonValue value;
    std::vector<Value> keys;
  };
  std::vector<Item> items;
  Charge charge(a.ctx);
  Pace pace(a.ctx);
  const auto count = static_cast<size_t>(a.view(0).Document().Count());
  // The keys of each item are a block of their own.
  size_t bytes = count * (sizeof(Item) + parts.size() * sizeof(Value) + 16);
  MAYFLY_TRY(charge.Set(bytes));
  items.reserve(count);
  for (const BsonElement& e : a.view(0).Document()) {
    MAYFLY_TRY(pace.Step(e.value.size()));
    Item item{e.value, {}};
    item.keys.reserve(parts.size());
    for (auto& part : parts) {
      Value key = e.value.IsDocument() ? ReadFieldPath(e.value, part.path) : Value();
      // A path through arrays makes an array.
      if (key.owns() && key.view().IsArray()) {
        bytes += key.view().size();
        MAYFLY_TRY(pace.Step(key.view().size()));
        MAYFLY_TRY(charge.Set(bytes));
      }
      item.keys.push_back(key.missing() ? Value::Null() : std::move(key));
    }
    items.push_back(std::move(item));
  }
  auto less = [&](const Item& x, const Item& y) {
    for (size_t i = 0; i < parts.size(); ++i) {
      int c = CompareValues(x.keys[i].view(), y.keys[i].view());
      if (c != 0) return parts[i].descending ? c > 0 : c < 0;
    }
    return false;
  };
  MAYFLY_TRY(SortItems(a.ctx, items, less,
                       [&](const Item& item) { return item.value.size() + 32 * parts.size(); }));
  GrowingArray out(a.ctx);
  for (auto& item : items) {
    MAYFLY_TRY(out.Append(item.value));
  }
  return out.Finish();
}
constexpr OperatorDef kSortCall = {.name = "$sortArray",
                                   .eval = &SortArray,
                                   .names = kSortNames,
                                   .required = 3,
                                   .object_code = 2942500,
                                   .unknown_code = 2942501,
                                   .missing_code = 2942502};

/// `sortBy` is a specification, not an expression.
Result<ExpressionPtr> ParseSortArray(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  if (!arg.IsDocument())
    return LocationError(2942500,
                         "$sortArray requires an object as an argument, found: " + TypeText(arg));
  MAYFLY_TRY(CheckOptionsOnce("$sortArray", arg));
  std::vector<ExpressionPtr> children(2);
  for (const BsonElement& e : arg.Document()) {
    if (e.name == "input") {
      MAYFLY_TRY(children[0], ParseExpression(e.value, scope));
    } else if (e.name == "sortBy") {
      // Serialized trees carry it as a constant.
      BsonValue v = e.value;
      if (v.IsDocument() && v.Document().First().name == "$const") v = v.Document().First().value;
      if (v.IsDocument()) {
        MAYFLY_TRY(const std::optional<std::string_view> twice, RepeatedName(v.Document()));
        if (twice)
          return LocationError(7472500, "$sort key must not contain duplicate keys (duplicate: '" +
                                            ShownText(*twice, 128) + "')");
      }
      children[1] = MakeConstant(Value::Borrow(v));
      Value empty = BuildArray([](BsonArrayBuilder&) {});
      EvalContext ctx;
      Value checked[] = {empty, *children[1]->Constant()};
      MAYFLY_TRY(SortArray({ctx, checked, 3, kSortCall}));
    } else {
      return LocationError(2942501, "$sortArray found an unknown argument: " + std::string(e.name));
    }
  }
  if (!children[0]) return LocationError(2942502, "$sortArray requires 'input' to be specified");
  if (!children[1]) return LocationError(2942503, "$sortArray requires 'sortBy' to be specified");
  return MakeCall(kSortCall, std::move(children), 3, scope);
}

/// $zip: children are the inputs, then the defaults (none, or as many as inputs).
class ZipExpression final : public ParentExpression {
 public:
  ZipExpression(std::vector<ExpressionPtr> children, size_t inputs, bool longest)
      : inputs_(inputs), longest_(longest) {
    children_ = std::move(children);
  }
  Result<Value> Evaluate(EvalContext& ctx) const override {
    std::vector<Value> inputs;
    Kept kept(ctx);
    auto keep = [&](const Value& v) -> Result<void> {
      MAYFLY_TRY(kept.Add(v));
      if (kept.bytes() > kMaxValueBytes) return ValueTooLarge(kept.bytes());
      return Ok();
    };
    for (size_t i = 0; i < inputs_; ++i) {
      MAYFLY_TRY(Value v, children_[i]->Evaluate(ctx));
      if (v.view().IsNullish()) return Value::Null();
      MAYFLY_TRY(keep(v));
      if (!v.view().IsArray())
        return LocationError(34468, "$zip found a non-array expression in input: " + ValueText(v));
      inputs.push_back(std::move(v));
    }
    std::vector<Value> defaults(inputs_, Value::Null());
    for (size_t i = inputs_; i < children_.size(); ++i) {
      MAYFLY_TRY(defaults[i - inputs_], children_[i]->Evaluate(ctx));
      MAYFLY_TRY(keep(defaults[i - inputs_]));
    }
    std::vector<BsonView::Iterator> at;
    for (auto& v : inputs) at.push_back(v.view().Document().begin());
    GrowingArray out(ctx);
    while (true) {
      size_t left = 0;
      for (size_t i = 0; i < inputs_; ++i) left += at[i] != inputs[i].view().Document().end();
      if (left == 0 || (!longest_ && left < inputs_)) break;
      MAYFLY_TRY(out.Room(0));
      BsonArrayBuilder row = out.raw().OpenArray();
      for (size_t i = 0; i < inputs_; ++i) {
        const bool there = at[i] != inputs[i].view().Document().end();
        const BsonValue v = there ? (*at[i]).value : defaults[i].view();
        MAYFLY_TRY(out.Room(v.size()));
        AppendOrNull(row, v);
        if (there) ++at[i];
      }
    }
    return Made(ctx, out.Finish());
  }
  void Serialize(BsonBuilder& out, std::string_view name) const override {
    BsonBuilder outer = out.OpenDocument(name);
    BsonBuilder sub = outer.OpenDocument("$zip");
    BsonArrayBuilder list = sub.OpenArray("inputs");
    for (size_t i = 0; i < inputs_; ++i) children_[i]->Serialize(list.raw(), list.NextName());
    list.Done();
    if (children_.size() > inputs_) {
      BsonArrayBuilder rest = sub.OpenArray("defaults");
      for (size_t i = inputs_; i < children_.size(); ++i)
        children_[i]->Serialize(rest.raw(), rest.NextName());
      rest.Done();
    }
    sub.Append("useLongestLength", longest_);
  }

 private:
  size_t inputs_;
  bool longest_;
};

Result<ExpressionPtr> ParseZip(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  if (!arg.IsDocument())
    return LocationError(34460,
                         "$zip only supports an object as an argument, found " + TypeText(arg));
  MAYFLY_TRY(CheckOptionsOnce("$zip", arg));
  std::vector<ExpressionPtr> inputs, defaults;
  bool longest = false;
  for (const BsonElement& e : arg.Document()) {
    if (e.name == "inputs" || e.name == "defaults") {
      bool first = e.name == "inputs";
      if (!e.value.IsArray())
        return LocationError(
            first ? 34461 : 34462,
            std::string(e.name) + " must be an array of expressions, found " + TypeText(e.value));
      for (const BsonElement& c : e.value.Document()) {
        MAYFLY_TRY(ExpressionPtr x, ParseExpression(c.value, scope));
        (first ? inputs : defaults).push_back(std::move(x));
      }
    } else if (e.name == "useLongestLength") {
      if (!e.value.Is(BsonType::kBool))
        return LocationError(34463, "useLongestLength must be a bool, found " + TypeText(e.value));
      longest = e.value.Bool();
    } else {
      return LocationError(34464, "$zip found an unknown argument: " + std::string(e.name));
    }
  }
  if (inputs.empty()) return LocationError(34465, "$zip requires at least one input array");
  if (!longest && !defaults.empty())
    return LocationError(34466, "cannot specify defaults unless useLongestLength is true");
  if (!defaults.empty() && defaults.size() != inputs.size())
    return LocationError(34467, "defaults and inputs must have the same length");
  size_t n = inputs.size();
  for (auto& d : defaults) inputs.push_back(std::move(d));
  return ExpressionPtr(std::make_unique<ZipExpression>(std::move(inputs), n, longest));
}

constexpr OperatorDef kArrayOps[] = {
    {.name = "$arrayElemAt",
     .min_args = 2,
     .max_args = 2,
     .eval = &ArrayElemAt,
     .text = "The element at a position; negative counts from the end.",
     .example = R"({"$arrayElemAt": [[1, 2, 3], -1]} => 3)"},
    {.name = "$concatArrays",
     .eval = &ConcatArrays,
     .text = "Arrays one after another.",
     .example = R"({"$concatArrays": [[1], [2, 3]]} => [1, 2, 3])"},
    {.name = "$first",
     .min_args = 1,
     .max_args = 1,
     .eval = &First,
     .text = "The first element.",
     .example = R"({"$first": [[1, 2, 3]]} => 1)"},
    {.name = "$firstN",
     .eval = &FirstN,
     .names = kCountNames,
     .required = 3,
     .object_code = 5787900,
     .unknown_code = 5787901,
     .missing_code = 5787906,
     .text = "The first n elements.",
     .example = R"({"$firstN": {"n": 2, "input": [1, 2, 3]}} => [1, 2])"},
    {.name = "$in",
     .min_args = 2,
     .max_args = 2,
     .eval = &In,
     .text = "Whether a value is in an array.",
     .example = R"({"$in": [2, [1, 2, 3]]} => true)"},
    {.name = "$indexOfArray",
     .min_args = 2,
     .max_args = 4,
     .eval = &IndexOfArray,
     .text = "Position of a value in an array; -1 if it is not there.",
     .example = R"({"$indexOfArray": [["a", "b"], "b"]} => 1)"},
    {.name = "$isArray",
     .min_args = 1,
     .max_args = 1,
     .eval = &IsArray,
     .text = "Whether the value is an array.",
     .example = R"({"$isArray": [[1]]} => true)"},
    {.name = "$last",
     .min_args = 1,
     .max_args = 1,
     .eval = &Last,
     .text = "The last element.",
     .example = R"({"$last": [[1, 2, 3]]} => 3)"},
    {.name = "$lastN",
     .eval = &LastN,
     .names = kCountNames,
     .required = 3,
     .object_code = 5787900,
     .unknown_code = 5787901,
     .missing_code = 5787906,
     .text = "The last n elements.",
     .example = R"({"$lastN": {"n": 2, "input": [1, 2, 3]}} => [2, 3])"},
    {.name = "$maxN",
     .eval = &MaxN,
     .names = kCountNames,
     .required = 3,
     .object_code = 5787900,
     .unknown_code = 5787901,
     .missing_code = 5787906,
     .text = "The n greatest elements.",
     .example = R"({"$maxN": {"n": 2, "input": [1, 3, null, 2]}} => [3, 2])"},
    {.name = "$minN",
     .eval = &MinN,
     .names = kCountNames,
     .required = 3,
     .object_code = 5787900,
     .unknown_code = 5787901,
     .missing_code = 5787906,
     .text = "The n least elements.",
     .example = R"({"$minN": {"n": 2, "input": [1, 3, null, 2]}} => [1, 2])"},
    {.name = "$range",
     .min_args = 2,
     .max_args = 3,
     .eval = &Range,
     .text = "Whole numbers from a start up to an end.",
     .example = R"({"$range": [0, 10, 4]} => [0, 4, 8])"},
    {.name = "$reverseArray",
     .min_args = 1,
     .max_args = 1,
     .eval = &ReverseArray,
     .text = "The array backwards.",
     .example = R"({"$reverseArray": [[1, 2, 3]]} => [3, 2, 1])"},
    {.name = "$size",
     .min_args = 1,
     .max_args = 1,
     .eval = &Size,
     .text = "Number of elements.",
     .example = R"({"$size": [["a", "b"]]} => 2)"},
    {.name = "$slice",
     .min_args = 2,
     .max_args = 3,
     .eval = &Slice,
     .text = "Part of an array.",
     .example = R"({"$slice": [[1, 2, 3, 4], 1, 2]} => [2, 3])"},
    {.name = "$sortArray",
     .parse = &ParseSortArray,
     .text = "The elements in order, by value or by fields.",
     .example =
         R"({"$sortArray": {"input": [{"a": 2}, {"a": 1}], "sortBy": {"a": 1}}} => [{"a": 1}, {"a": 2}])"},
    {.name = "$zip",
     .parse = &ParseZip,
     .text = "Rows made of the elements at one position of several arrays.",
     .example =
         R"({"$zip": {"inputs": [[1, 2], ["a"]], "useLongestLength": true, "defaults": [0, "z"]}} => [[1, "a"], [2, "z"]])"},
};

}  // namespace

std::span<const OperatorDef> ArrayOperators() { return kArrayOps; }

}  // namespace mayfly

#include "query/pipeline/accumulator.h"

#include <algorithm>
#include <deque>
#include <unordered_set>

#include "protocol/bson_compare.h"
#include "protocol/seeded_hash.h"
#include "query/expression/number_sum.h"
#include "query/expression/options_once.h"
#include "query/expression/percentile.h"

namespace mayfly {
namespace {

int64_t Bytes(const Value& v) { return static_cast<int64_t>(sizeof(Value) + v.view().size()); }

/// One group's array cannot go to disk in parts.
constexpr size_t kMaxAccumulatorBytes = size_t{100} << 20;
Error TooMuchMemory(std::string_view name) {
  return Error{ErrorCode::kExceededMemoryLimit,
               std::string(name) +
                   " used too much memory and cannot spill to disk. Memory limit: " +
                   std::to_string(kMaxAccumulatorBytes) + " bytes"};
}

class SumAccumulator final : public Accumulator {
 public:
  explicit SumAccumulator(bool average) : average_(average) {}
  Result<void> Add(const Value& v, std::string_view, int64_t*) override {
    sum_.Add(v.view());
    return Ok();
  }
  Result<Value> Finish() override { return average_ ? sum_.Average() : sum_.Total(); }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) { sum_.Save(out); });
  }
  Result<void> Merge(BsonValue saved, int64_t*) override {
    sum_.Merge(saved.Document());
    return Ok();
  }

 private:
  bool average_;
  NumberSum sum_;
};

class CountAccumulator final : public Accumulator {
 public:
  Result<void> Add(const Value&, std::string_view, int64_t*) override {
    ++n_;
    return Ok();
  }
  Result<Value> Finish() override { return MakeInteger(n_, false); }
  Value Save() override { return Value::Int64(n_); }
  Result<void> Merge(BsonValue saved, int64_t*) override {
    n_ += saved.Int64();
    return Ok();
  }

 private:
  int64_t n_ = 0;
};

class DeviationAccumulator final : public Accumulator {
 public:
  explicit DeviationAccumulator(bool sample) : sample_(sample) {}
  Result<void> Add(const Value& v, std::string_view, int64_t*) override {
    deviation_.Add(v.view());
    return Ok();
  }
  Result<Value> Finish() override { return deviation_.Result(sample_); }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) { deviation_.Save(out); });
  }
  Result<void> Merge(BsonValue saved, int64_t*) override {
    deviation_.Merge(saved.Document());
    return Ok();
  }

 private:
  bool sample_;
  Deviation deviation_;
};

/// $min, $max, $first, $last.
class OneAccumulator final : public Accumulator {
 public:
  enum class Keep { kMin, kMax, kFirst, kLast };
  explicit OneAccumulator(Keep keep) : keep_(keep) {}
  Result<void> Add(const Value& v, std::string_view, int64_t* memory) override {
    BsonValue view = v.view();
    bool take = false;
    switch (keep_) {
      case Keep::kFirst:
        take = !any_;
        break;
      case Keep::kLast:
        take = true;
        break;
      case Keep::kMin:
        take = !view.IsNullish() && (!any_ || CompareValues(view, value_.view()) < 0);
        break;
      case Keep::kMax:
        take = !view.IsNullish() && (!any_ || CompareValues(view, value_.view()) > 0);
        break;
    }
    if (!take) return Ok();
    *memory -= value_.view().size();
    value_ = v.Own();
    *memory += value_.view().size();
    any_ = true;
    return Ok();
  }
  Result<Value> Finish() override { return value_.missing() ? Value::Null() : value_; }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) {
      if (any_) AppendOrNull(out, value_.view());
    });
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    if (saved.Document().empty()) return Ok();
    return Add(Value::Borrow(saved.Document().First().value), {}, memory);
  }

 private:
  Keep keep_;
  bool any_ = false;
  Value value_;
};

/// $push. The elements are kept as the bytes of the array they will be.
class PushAccumulator final : public Accumulator {
 public:
  PushAccumulator() : array_(std::make_unique<BsonArrayBuilder>(bytes_)) {}
  Result<void> Add(const Value& v, std::string_view, int64_t* memory) override {
    if (v.missing()) return Ok();
    size_t before = bytes_.size();
    array_->Append(v.view());
    if (bytes_.size() > kMaxAccumulatorBytes) return TooMuchMemory("$push");
    *memory += static_cast<int64_t>(bytes_.size() - before);
    return Ok();
  }
  Result<Value> Finish() override {
    array_->Done();
    return Value::Array(std::move(bytes_));
  }
  Value Save() override {
    array_->Done();
    return Value::Array(std::move(bytes_));
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    for (const BsonElement& e : saved.Document()) {
      MAYFLY_TRY(Add(Value::Borrow(e.value), {}, memory));
    }
    return Ok();
  }

 private:
  std::string bytes_;
  std::unique_ptr<BsonArrayBuilder> array_;
};

class AddToSetAccumulator final : public Accumulator {
 public:
  Result<void> Add(const Value& v, std::string_view, int64_t* memory) override {
    if (v.missing() || set_.contains(v)) return Ok();
    Value own = v.Own();
    *memory += Bytes(own) + 16;
    bytes_ += static_cast<size_t>(Bytes(own));
    if (bytes_ > kMaxAccumulatorBytes) return TooMuchMemory("$addToSet");
    order_.push_back(own);
    set_.insert(std::move(own));
    return Ok();
  }
  Result<Value> Finish() override { return Save(); }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) {
      for (auto& v : order_) out.Append(v.view());
    });
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    for (const BsonElement& e : saved.Document()) {
      MAYFLY_TRY(Add(Value::Borrow(e.value), {}, memory));
    }
    return Ok();
  }

 private:
  struct Hash {
    size_t operator()(const Value& v) const { return HashValue(v.view()); }
  };
  struct Equal {
    bool operator()(const Value& a, const Value& b) const {
      return CompareValues(a.view(), b.view()) == 0;
    }
  };
  std::unordered_set<Value, Hash, Equal> set_;
  size_t bytes_ = 0;
  std::vector<Value> order_;  ///< shares the bytes; in the order they came
};

class MergeObjectsAccumulator final : public Accumulator {
 public:
  Result<void> Add(const Value& v, std::string_view, int64_t* memory) override {
    BsonValue view = v.view();
    if (view.IsNullish()) return Ok();
    if (!view.IsDocument())
      return LocationError(40400, "$mergeObjects requires object inputs, but input " +
                                      ValueText(v) + " is of type " + TypeText(v));
    for (const BsonElement& e : view.Document()) {
      auto [it, fresh] = places_.try_emplace(std::string(e.name), fields_.size());
      if (fresh) fields_.emplace_back(e.name, Value());
      Value& field = fields_[it->second].second;
      const int64_t more =
          static_cast<int64_t>(e.value.size()) - field.view().size() + (fresh ? 64 : 0);
      *memory += more;
      bytes_ += more;
      field = Value::Copy(e.value);
    }
    if (bytes_ > static_cast<int64_t>(kMaxAccumulatorBytes)) return TooMuchMemory("$mergeObjects");
    return Ok();
  }
  Result<Value> Finish() override { return Save(); }
  Value Save() override {
    std::string bytes;
    BsonBuilder b(bytes);
    for (auto& [name, value] : fields_) b.Append(name, value.view());
    b.Done();
    return Value::Document(std::move(bytes));
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    return Add(Value::Borrow(saved), {}, memory);
  }

 private:
  std::vector<std::pair<std::string, Value>> fields_;
  ClientStringMap<size_t> places_;
  int64_t bytes_ = 0;
};

/// $firstN, $lastN, $minN, $maxN.
class ManyAccumulator final : public Accumulator {
 public:
  using Keep = OneAccumulator::Keep;
  ManyAccumulator(Keep keep, int64_t n) : keep_(keep), n_(static_cast<size_t>(n)) {}
  Result<void> Add(const Value& v, std::string_view, int64_t* memory) override {
    bool ordered = keep_ == Keep::kMin || keep_ == Keep::kMax;
    if (ordered && v.view().IsNullish()) return Ok();
    if (keep_ == Keep::kFirst && values_.size() >= n_) return Ok();
    auto at = values_.end();
    if (ordered) {
      at = std::upper_bound(values_.begin(), values_.end(), v, [&](const Value& a, const Value& b) {
        int c = CompareValues(a.view(), b.view());
        return keep_ == Keep::kMin ? c < 0 : c > 0;
      });
      if (at == values_.end() && values_.size() >= n_) return Ok();
    }
    Value own = v.missing() ? Value::Null() : v.Own();
    int64_t more = Bytes(own);
    values_.insert(at, std::move(own));
    if (values_.size() > n_) {
      auto victim = keep_ == Keep::kLast ? values_.begin() : values_.end() - 1;
      more -= Bytes(*victim);
      values_.erase(victim);
    }
    *memory += more;
    bytes_ += more;
    if (bytes_ > static_cast<int64_t>(kMaxAccumulatorBytes)) return TooMuchMemory(Name());
    return Ok();
  }
  Result<Value> Finish() override { return Save(); }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) {
      for (auto& v : values_) out.Append(v.view());
    });
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    for (const BsonElement& e : saved.Document()) {
      MAYFLY_TRY(Add(Value::Borrow(e.value), {}, memory));
    }
    return Ok();
  }

 private:
  std::string_view Name() const {
    switch (keep_) {
      case Keep::kMin:
        return "$minN";
      case Keep::kMax:
        return "$maxN";
      case Keep::kFirst:
        return "$firstN";
      case Keep::kLast:
        return "$lastN";
    }
    return "";
  }
  Keep keep_;
  size_t n_;
  std::deque<Value> values_;
  int64_t bytes_ = 0;
};

/// $top, $topN, $bottom, $bottomN: values by the sort key that comes with them.
class TopAccumulator final : public Accumulator {
 public:
  TopAccumulator(bool bottom, bool many, int64_t n)
      : bottom_(bottom), many_(many), n_(static_cast<size_t>(n)) {}
  Result<void> Add(const Value& v, std::string_view key, int64_t* memory) override {
    // Among equals the earlier document counts as the smaller one.
    auto at = std::upper_bound(
        items_.begin(), items_.end(), key,
        [](std::string_view k, const Item& item) { return k < std::string_view(item.key); });
    if (items_.size() >= n_ && (bottom_ ? at == items_.begin() : at == items_.end())) return Ok();
    Item item{std::string(key), v.missing() ? Value::Null() : v.Own()};
    int64_t more = Cost(item);
    items_.insert(at, std::move(item));
    if (items_.size() > n_) {
      auto victim = bottom_ ? items_.begin() : items_.end() - 1;
      more -= Cost(*victim);
      items_.erase(victim);
    }
    *memory += more;
    bytes_ += more;
    if (bytes_ > static_cast<int64_t>(kMaxAccumulatorBytes))
      return TooMuchMemory(bottom_ ? "$bottomN" : "$topN");
    return Ok();
  }
  Result<Value> Finish() override {
    if (!many_) return items_.empty() ? Value::Null() : items_.front().value;
    return BuildArray([&](BsonArrayBuilder& out) {
      for (auto& item : items_) out.Append(item.value.view());
    });
  }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) {
      for (auto& item : items_) {
        out.raw().AppendBinary(out.NextName(), 0, item.key);
        out.Append(item.value.view());
      }
    });
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    std::vector<BsonValue> v = Elements(saved);
    for (size_t i = 0; i + 1 < v.size(); i += 2) {
      MAYFLY_TRY(Add(Value::Borrow(v[i + 1]), v[i].BinaryData(), memory));
    }
    return Ok();
  }

 private:
  struct Item {
    std::string key;
    Value value;
  };
  static int64_t Cost(const Item& item) {
    return static_cast<int64_t>(item.key.size() + sizeof(Item)) + item.value.view().size();
  }
  bool bottom_, many_;
  size_t n_;
  std::vector<Item> items_;
  int64_t bytes_ = 0;
};

class PercentileAccumulator final : public Accumulator {
 public:
  PercentileAccumulator(bool median, std::vector<double> p) : median_(median), p_(std::move(p)) {}
  Result<void> Add(const Value& v, std::string_view, int64_t* memory) override {
    if (!v.view().IsNumber()) return Ok();
    numbers_.Add(v.view());
    *memory += sizeof(double);
    if (numbers_.size() * sizeof(double) > kMaxAccumulatorBytes)
      return TooMuchMemory(median_ ? "$median" : "$percentile");
    return Ok();
  }
  Result<Value> Finish() override { return numbers_.Answer(median_, p_); }
  Value Save() override {
    return BuildArray([&](BsonArrayBuilder& out) {
      const std::vector<double>& n = numbers_.numbers();
      out.raw().AppendBinary(out.NextName(), 0,
                             {reinterpret_cast<const char*>(n.data()), n.size() * sizeof(double)});
    });
  }
  Result<void> Merge(BsonValue saved, int64_t* memory) override {
    const std::string_view raw = saved.Document().First().value.BinaryData();
    numbers_.Merge(raw);
    *memory += static_cast<int64_t>(raw.size());
    return Ok();
  }

 private:
  bool median_;
  std::vector<double> p_;
  Percentiles numbers_;
};

using Keep = OneAccumulator::Keep;
template <Keep keep>
AccumulatorPtr MakeOne(const AccumulatorArgs&) {
  return std::make_unique<OneAccumulator>(keep);
}
template <Keep keep>
AccumulatorPtr MakeMany(const AccumulatorArgs& a) {
  return std::make_unique<ManyAccumulator>(keep, a.n);
}
template <class T>
AccumulatorPtr MakePlain(const AccumulatorArgs&) {
  return std::make_unique<T>();
}
template <class T, bool flag>
AccumulatorPtr MakeFlag(const AccumulatorArgs&) {
  return std::make_unique<T>(flag);
}
template <bool bottom, bool many>
AccumulatorPtr MakeTop(const AccumulatorArgs& a) {
  return std::make_unique<TopAccumulator>(bottom, many, a.n);
}

template <bool median>
AccumulatorPtr MakePercentile(const AccumulatorArgs& a) {
  return std::make_unique<PercentileAccumulator>(median, a.p);
}

using Syntax = AccumulatorSyntax;
constexpr AccumulatorDef kAccumulators[] = {
    {"$addToSet", Syntax::kExpression, &MakePlain<AddToSetAccumulator>, "The distinct values.",
     R"("$x" over [{"x": 1}, {"x": 2}, {"x": 1.0}] => [1, 2])"},
    {"$avg", Syntax::kExpression, &MakeFlag<SumAccumulator, true>, "Average of the numbers.",
     R"("$x" over [{"x": 1}, {"x": "a"}, {"x": 4}] => 2.5)"},
    {"$bottom", Syntax::kTop, &MakeTop<true, false>, "The output for the document that sorts last.",
     R"({"sortBy": {"x": 1}, "output": "$y"} over [{"x": 2, "y": "a"}, {"x": 1, "y": "b"}] => "a")"},
    {"$bottomN", Syntax::kTopN, &MakeTop<true, true>,
     "The outputs for the n documents that sort last.",
     R"({"sortBy": {"x": 1}, "output": "$x", "n": 2} over [{"x": 3}, {"x": 1}, {"x": 2}] => [2, 3])"},
    {"$count", Syntax::kNothing, &MakePlain<CountAccumulator>, "Number of documents.",
     R"({} over [{"x": 1}, {"x": 2}] => 2)"},
    {"$first", Syntax::kExpression, &MakeOne<Keep::kFirst>, "The first value.",
     R"("$x" over [{"x": 3}, {"x": 1}] => 3)"},
    {"$firstN", Syntax::kInputN, &MakeMany<Keep::kFirst>, "The first n values.",
     R"({"input": "$x", "n": 2} over [{"x": 3}, {"x": 1}, {"x": 2}] => [3, 1])"},
    {"$last", Syntax::kExpression, &MakeOne<Keep::kLast>, "The last value.",
     R"("$x" over [{"x": 3}, {"x": 1}] => 1)"},
    {"$lastN", Syntax::kInputN, &MakeMany<Keep::kLast>, "The last n values.",
     R"({"input": "$x", "n": 2} over [{"x": 3}, {"x": 1}, {"x": 2}] => [1, 2])"},
    {"$max", Syntax::kExpression, &MakeOne<Keep::kMax>, "The greatest value that is not null.",
     R"("$x" over [{"x": 3}, {"x": null}, {"x": 4}] => 4)"},
    {"$maxN", Syntax::kInputN, &MakeMany<Keep::kMax>, "The n greatest values.",
     R"({"input": "$x", "n": 2} over [{"x": 3}, {"x": 1}, {"x": 5}] => [5, 3])"},
    {"$median", Syntax::kMedian, &MakePercentile<true>, "The number in the middle.",
     R"({"input": "$x", "method": "approximate"} over [{"x": 5}, {"x": "a"}, {"x": 1}, {"x": 2}] => 2.0)"},
    {"$mergeObjects", Syntax::kExpression, &MakePlain<MergeObjectsAccumulator>, "Documents in one.",
     R"("$x" over [{"x": {"a": 1}}, {"x": {"b": 2}}, {"x": {"a": 3}}] => {"a": 3, "b": 2})"},
    {"$min", Syntax::kExpression, &MakeOne<Keep::kMin>, "The least value that is not null.",
     R"("$x" over [{"x": 3}, {"x": null}, {"x": 4}] => 3)"},
    {"$minN", Syntax::kInputN, &MakeMany<Keep::kMin>, "The n least values.",
     R"({"input": "$x", "n": 2} over [{"x": 3}, {"x": 1}, {"x": 5}] => [1, 3])"},
    {"$percentile", Syntax::kPercentile, &MakePercentile<false>,
     "The numbers below which shares of the numbers lie.",
     R"({"input": "$x", "p": [0.5, 1], "method": "approximate"} over [{"x": 3}, {"x": 1}, {"x": 2}, {"x": 4}] => [2.0, 4.0])"},
    {"$push", Syntax::kExpression, &MakePlain<PushAccumulator>, "All values in an array.",
     R"("$x" over [{"x": 3}, {}, {"x": 3}] => [3, 3])"},
    {"$stdDevPop", Syntax::kExpression, &MakeFlag<DeviationAccumulator, false>,
     "Standard deviation of a population.", R"("$x" over [{"x": 1}, {"x": 3}] => 1.0)"},
    {"$stdDevSamp", Syntax::kExpression, &MakeFlag<DeviationAccumulator, true>,
     "Standard deviation of a sample.", R"("$x" over [{"x": 1}, {"x": 3}, {"x": 5}] => 2.0)"},
    {"$sum", Syntax::kExpression, &MakeFlag<SumAccumulator, false>, "Sum of the numbers.",
     R"("$x" over [{"x": 1}, {"x": "a"}, {"x": 4}] => 5)"},
    {"$top", Syntax::kTop, &MakeTop<false, false>, "The output for the document that sorts first.",
     R"({"sortBy": {"x": 1}, "output": "$y"} over [{"x": 2, "y": "a"}, {"x": 1, "y": "b"}] => "b")"},
    {"$topN", Syntax::kTopN, &MakeTop<false, true>,
     "The outputs for the n documents that sort first.",
     R"({"sortBy": {"x": -1}, "output": "$x", "n": 2} over [{"x": 3}, {"x": 1}, {"x": 2}] => [3, 2])"},
};

}  // namespace

std::span<const AccumulatorDef> AllAccumulators() { return kAccumulators; }

const AccumulatorDef* FindAccumulator(std::string_view name) {
  for (auto& def : kAccumulators)
    if (def.name == name) return &def;
  return nullptr;
}

namespace {

/// The operator in `{name: {$op: argument}}`.
Result<BsonElement> OperatorOf(std::string_view name, BsonValue spec) {
  const std::string quoted = "The field '" + std::string(name) + "'";
  if (name.find('.') != name.npos)
    return LocationError(40235, "The field name '" + std::string(name) + "' cannot contain '.'");
  if (name.starts_with('$'))
    return LocationError(40236,
                         "The field name '" + std::string(name) + "' cannot be an operator name");
  if (!spec.IsDocument() || spec.Document().empty())
    return LocationError(40234, quoted + " must be an accumulator object");
  if (spec.Document().Count() != 1)
    return LocationError(40238, quoted + " must specify one accumulator");
  const BsonElement op = spec.Document().First();
  if (!op.name.starts_with('$'))
    return LocationError(40234, quoted + " must be an accumulator object");
  return op;
}

/// {$sum: expression}, also as an array of one.
Result<void> ParseUnary(const BsonElement& op, VariableScope& scope, AccumulatorField& field) {
  BsonValue argument = op.value;
  if (argument.IsArray()) {
    if (argument.Document().Count() != 1)
      return LocationError(40237,
                           "The " + std::string(op.name) + " accumulator is a unary operator");
    argument = argument.Document().First().value;
  }
  MAYFLY_TRY(field.argument, ParseExpression(argument, scope));
  return Ok();
}

/// {$median: {input, method}}, {$percentile: {input, p, method}}
Result<void> ParsePercentile(const BsonElement& op, VariableScope& scope, AccumulatorField& field) {
  const std::string op_name(op.name);
  const bool median = field.def->syntax == Syntax::kMedian;
  if (!op.value.IsDocument())
    return LocationError(
        7429703, "specification must be an object; found " + op_name + ": " + ValueText(op.value));
  MAYFLY_TRY(CheckOptionsOnce(op_name, op.value));
  BsonValue method;
  for (const BsonElement& e : op.value.Document()) {
    if (e.name == "input") {
      MAYFLY_TRY(field.argument, ParseExpression(e.value, scope));
    } else if (e.name == "p" && !median) {
      MAYFLY_TRY(field.n, ParseExpression(e.value, scope));
    } else if (e.name == "method") {
      method = e.value;
    } else {
      return Error{ErrorCode::kUnknownField,
                   "BSON field '" + op_name + "." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (!field.argument || (!median && !field.n) || method.missing())
    return Error{ErrorCode::kMissingField, "BSON field '" + op_name + "." +
                                               (!field.argument    ? "input"
                                                : method.missing() ? "method"
                                                                   : "p") +
                                               "' is missing but a required field"};
  MAYFLY_TRY(CheckPercentileMethod(method, op_name));
  if (field.n && field.n->Constant()) {
    MAYFLY_TRY(ParsePercentiles(field.n->Constant()->view()));
  }
  return Ok();
}

/// {$firstN: {input, n}}, {$top: {output, sortBy}}, {$topN: {output, sortBy, n}}
Result<void> ParseSeveral(const BsonElement& op, VariableScope& scope, AccumulatorField& field) {
  const std::string op_name(op.name);
  const bool top = field.def->syntax != Syntax::kInputN, many = field.def->syntax != Syntax::kTop;
  if (!op.value.IsDocument())
    return LocationError(top ? 5788001 : 5787900, "specification must be an object; found " +
                                                      op_name + ": " + ValueText(op.value));
  MAYFLY_TRY(CheckOptionsOnce(op_name, op.value));
  for (const BsonElement& e : op.value.Document()) {
    if (e.name == (top ? "output" : "input")) {
      MAYFLY_TRY(field.argument, ParseExpression(e.value, scope));
    } else if (many && e.name == "n") {
      MAYFLY_TRY(field.n, ParseExpression(e.value, scope));
    } else if (top && e.name == "sortBy") {
      if (!e.value.IsDocument())
        return LocationError(
            5788604, "expected 'sortBy' to already be an object in the arguments to " + op_name);
      MAYFLY_TRY(field.sort_by, SortPattern::Parse(e.value.Document()));
    } else {
      return LocationError(top ? 5788002 : 5787901,
                           "Unknown argument to " + op_name + " '" + std::string(e.name) + "'");
    }
  }
  if (many && !field.n) return LocationError(top ? 5788003 : 5787906, "Missing value for 'n'");
  if (!field.argument)
    return LocationError(top ? 5788004 : 5787907,
                         std::string("Missing value for '") + (top ? "output" : "input") + "'");
  if (top && !field.sort_by) return LocationError(5788005, "Missing value for 'sortBy'");
  if (field.n && field.n->Constant()) {
    EvalContext ctx;
    MAYFLY_TRY(field.Make(BsonValue(), ctx));
  }
  return Ok();
}

Result<void> ParseArgument(const BsonElement& op, VariableScope& scope, AccumulatorField& field) {
  switch (field.def->syntax) {
    case Syntax::kExpression:
      return ParseUnary(op, scope, field);
    case Syntax::kNothing:
      if (!op.value.IsDocument() || !op.value.Document().empty())
        return TypeMismatch("$count takes no arguments, i.e. $count:{}");
      return Ok();
    case Syntax::kMedian:
    case Syntax::kPercentile:
      return ParsePercentile(op, scope, field);
    default:
      return ParseSeveral(op, scope, field);
  }
}

}  // namespace

Result<AccumulatorField> AccumulatorField::Parse(std::string_view name, BsonValue spec,
                                                 VariableScope& scope) {
  MAYFLY_TRY(const BsonElement op, OperatorOf(name, spec));
  AccumulatorField field;
  field.name = name;
  field.def = FindAccumulator(op.name);
  if (!field.def) {
    const std::string op_name(op.name);
    if (op_name == "$accumulator" || op_name == "$function")
      return LocationError(
          31264, op_name + " cannot be used: server-side JavaScript execution is disabled");
    return LocationError(15952, "unknown group operator '" + op_name + "'");
  }
  MAYFLY_TRY(ParseArgument(op, scope, field));
  return field;
}

void AccumulatorField::Serialize(BsonBuilder& out) const {
  BsonBuilder sub = out.OpenDocument(name);
  if (def->syntax == Syntax::kExpression) {
    argument->Serialize(sub, def->name);
    return;
  }
  BsonBuilder args = sub.OpenDocument(def->name);
  if (def->syntax == Syntax::kMedian || def->syntax == Syntax::kPercentile) {
    argument->Serialize(args, "input");
    if (n) n->Serialize(args, "p");
    args.Append("method", "approximate");
    return;
  }
  if (n) n->Serialize(args, "n");
  if (argument) argument->Serialize(args, sort_by ? "output" : "input");
  if (sort_by) args.Append("sortBy", sort_by->spec());
}

void AccumulatorField::AddDependencies(std::set<std::string>* fields) const {
  if (argument) argument->AddDependencies(fields);
  if (!sort_by) return;
  for (auto& part : sort_by->parts())
    if (part.meta == SortPattern::Meta::kNone) fields->insert(part.path);
}

Result<AccumulatorPtr> AccumulatorField::Make(BsonValue group_id, EvalContext& ctx) const {
  AccumulatorArgs args;
  if (n) {
    BsonView root = ctx.root;
    ctx.root = group_id.IsDocument() ? group_id.Document() : BsonView();
    Result<Value> v = n->Evaluate(ctx);
    ctx.root = root;
    if (!v) return v.error();
    if (def->syntax == Syntax::kPercentile) {
      MAYFLY_TRY(args.p, ParsePercentiles(v.value().view()));
      return def->make(args);
    }
    if (!v.value().view().IsNumber())
      return LocationError(
          5787902, "Value for 'n' must be of integral type, but found " + ValueText(v.value()));
    if (!v.value().view().ExactInt64(&args.n))
      return LocationError(
          5787903, "Value for 'n' must be of integral type, but found " + ValueText(v.value()));
    if (args.n <= 0)
      return LocationError(5787908, "'n' must be greater than 0, found " + std::to_string(args.n));
  }
  return def->make(args);
}

}  // namespace mayfly

#include "query/pipeline/window_functions.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "query/expression/options_once.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

Result<void> CheckInterrupt(EvalContext& ctx) {
  return ctx.op ? ctx.op->CheckInterrupt() : Result<void>(Ok());
}

/// A number that stays decimal once a decimal came in, else a double.
class Real {
 public:
  explicit Real(double v) : double_(v) {}
  explicit Real(BsonValue v) {
    if (v.Is(BsonType::kDecimal128)) {
      is_decimal_ = true;
      decimal_ = v.Decimal();
    } else {
      double_ = v.NumberAsDouble();
    }
  }
  Real operator+(const Real& o) const { return Do(o, &decimal128::Add, double_ + o.double_); }
  Real operator-(const Real& o) const { return Do(o, &decimal128::Subtract, double_ - o.double_); }
  Real operator*(const Real& o) const { return Do(o, &decimal128::Multiply, double_ * o.double_); }
  Real operator/(const Real& o) const { return Do(o, &decimal128::Divide, double_ / o.double_); }
  Value value() const { return is_decimal_ ? Value::Decimal(decimal_) : Value::Double(double_); }
  double AsDouble() const { return is_decimal_ ? decimal128::ToDouble(decimal_) : double_; }
  bool zero() const { return is_decimal_ ? decimal128::IsZero(decimal_) : double_ == 0; }

 private:
  Decimal128Bits decimal() const {
    return is_decimal_ ? decimal_ : decimal128::FromDouble(double_);
  }
  Real Do(const Real& o, Decimal128Bits (*f)(Decimal128Bits, Decimal128Bits), double plain) const {
    Real r(plain);
    if (is_decimal_ || o.is_decimal_) {
      r.is_decimal_ = true;
      r.decimal_ = f(decimal(), o.decimal());
    }
    return r;
  }
  bool is_decimal_ = false;
  double double_ = 0;
  Decimal128Bits decimal_{};
};

/// A sort value as a number: dates count in milliseconds.
std::optional<Real> SortNumber(BsonValue v) {
  if (v.IsNumber()) return Real(v);
  if (v.Is(BsonType::kDate)) return Real(static_cast<double>(v.Date().millis));
  return std::nullopt;
}

/// `v` and the offset of a range's end.
Result<Value> Shifted(BsonValue v, const WindowBounds::End& end,
                      const std::optional<DateUnit>& unit) {
  const BsonValue by = end.offset.view();
  if (unit) {
    std::optional<Instant> t = AddDateUnits(v.Date(), *unit, by.NumberAsInt64());
    if (!t) return LocationError(5166406, "the end of a window's range is no date");
    return Value::Date(*t);
  }
  int64_t a = 0, b = 0, sum = 0;
  if (!v.Is(BsonType::kDouble) && !by.Is(BsonType::kDouble) && v.ExactInt64(&a) &&
      by.ExactInt64(&b) && !__builtin_add_overflow(a, b, &sum))
    return Value::Int64(sum);
  return (Real(v) + Real(by)).value();
}

/// Finds the documents of the window of each document, in order.
class WindowFinder {
 public:
  WindowFinder(WindowBounds bounds, const SortPattern& sort, VariableScope& scope)
      : bounds_(std::move(bounds)) {
    if (bounds_.kind == WindowBounds::Kind::kRange) {
      const Value path = Value::String("$" + sort.parts()[0].path);
      sort_value_ = std::move(ParseExpression(path.view(), scope)).value();
    }
  }
  const WindowBounds& bounds() const { return bounds_; }
  void AddDependencies(std::set<std::string>* fields) const {
    if (sort_value_) sort_value_->AddDependencies(fields);
  }

  Result<void> Begin(const WindowPartition& partition, EvalContext& ctx) {
    n_ = partition.size();
    first_ = last_ = 0;
    values_.clear();
    if (!sort_value_) return Ok();
    for (const BsonDocument& doc : partition.documents) {
      ctx.root = doc.view();
      MAYFLY_TRY(Value v, sort_value_->Evaluate(ctx));
      if (bounds_.unit ? !v.view().Is(BsonType::kDate) : !v.view().IsNumber())
        return LocationError(bounds_.unit ? 5429513 : 5429414,
                             std::string("Invalid range: Expected the sortBy field to be a ") +
                                 (bounds_.unit ? "Date" : "number") + ", but it was " +
                                 TypeText(v));
      values_.push_back(v.Own());  // bounded: a number for each document
    }
    return Ok();
  }

  /// Documents [*first, *last) of the partition; both never go back from one document to the next.
  Result<void> Find(size_t i, size_t* first, size_t* last) {
    if (bounds_.kind == WindowBounds::Kind::kDocuments) {
      auto place = [&](const WindowBounds::End& end, int64_t more) {
        // An offset of more than the partition is as good as none, and adds up.
        const auto n = static_cast<int64_t>(n_);
        const int64_t by = std::clamp<int64_t>(end.offset.view().NumberAsInt64(), -n - 1, n + 1);
        return static_cast<size_t>(std::clamp<int64_t>(static_cast<int64_t>(i) + by + more, 0, n));
      };
      *first = bounds_.low.unbounded ? 0 : place(bounds_.low, 0);
      *last = bounds_.high.unbounded ? n_ : place(bounds_.high, 1);
    } else {
      const BsonValue v = values_[i].view();
      if (!bounds_.low.unbounded) {
        MAYFLY_TRY(Value low, Shifted(v, bounds_.low, bounds_.unit));
        while (first_ < n_ && CompareValues(values_[first_].view(), low.view()) < 0) ++first_;
      }
      if (bounds_.high.unbounded) {
        last_ = n_;
      } else {
        MAYFLY_TRY(Value high, Shifted(v, bounds_.high, bounds_.unit));
        while (last_ < n_ && CompareValues(values_[last_].view(), high.view()) <= 0) ++last_;
      }
      *first = first_;
      *last = last_;
    }
    *last = std::max(*first, *last);
    return Ok();
  }

 private:
  const WindowBounds bounds_;
  ExpressionPtr sort_value_;  ///< of a range
  std::vector<Value> values_;
  size_t n_ = 0, first_ = 0, last_ = 0;
};

/// The most bytes that the values of one function may have which are not a part of the documents.
constexpr size_t kMaxComputedBytes = size_t{100} << 20;

/// The values of an expression for all documents of a partition.
Result<void> EvaluateAll(const Expression* expression, const WindowPartition& partition,
                         EvalContext& ctx, std::vector<Value>* out) {
  out->clear();
  out->reserve(partition.size());
  size_t made = 0;
  for (const BsonDocument& doc : partition.documents) {
    MAYFLY_TRY(CheckInterrupt(ctx));
    ctx.root = doc.view();
    Value v;
    if (expression) {
      MAYFLY_TRY(v, expression->Evaluate(ctx));
    }
    // A value borrowed from the document stays valid: the partition holds it.
    if (v.owns()) made += v.view().size();
    if (made > kMaxComputedBytes)
      return Error{ErrorCode::kExceededMemoryLimit,
                   "the values of a window function used too much memory. Memory limit: " +
                       std::to_string(kMaxComputedBytes) + " bytes"};
    out->push_back(std::move(v));  // bounded: by kMaxComputedBytes
  }
  return Ok();
}

/// The accumulators of $group over a window. A window that only grows goes on with the state it
/// has; any other begins again.
class AccumulatorWindow final : public WindowFunction {
 public:
  AccumulatorWindow(AccumulatorField field, WindowFinder finder)
      : field_(std::move(field)), finder_(std::move(finder)) {
    grows_ = finder_.bounds().low.unbounded && field_.def->name != "$push";
  }
  void AddDependencies(std::set<std::string>* fields) const override {
    field_.AddDependencies(fields);
    if (field_.n) field_.n->AddDependencies(fields);
    finder_.AddDependencies(fields);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext& ctx) override {
    partition_ = &partition;
    state_.reset();
    has_value_ = false;
    first_ = last_ = 0;
    MAYFLY_TRY(finder_.Begin(partition, ctx));
    return EvaluateAll(field_.argument.get(), partition, ctx, &values_);
  }
  Result<Value> At(size_t i, EvalContext& ctx) override {
    size_t first = 0, last = 0;
    MAYFLY_TRY(finder_.Find(i, &first, &last));
    if (has_value_ && first == first_ && last == last_) return value_;
    if (!state_ || !grows_) {
      MAYFLY_TRY(state_, field_.Make(BsonValue(), ctx));
      last_ = first;
    }
    for (size_t d = last_; d < last; ++d) {
      MAYFLY_TRY(CheckInterrupt(ctx));
      key_.clear();
      if (field_.sort_by) {
        MAYFLY_TRY(field_.sort_by->AppendKey(partition_->documents[d].view(), nullptr, key_));
      }
      MAYFLY_TRY(state_->Add(values_[d], key_, &memory_));
    }
    first_ = first;
    last_ = last;
    MAYFLY_TRY(value_, state_->Finish());
    value_ = value_.Own();
    has_value_ = true;
    return value_;
  }

 private:
  const AccumulatorField field_;
  WindowFinder finder_;
  bool grows_ = false, has_value_ = false;
  const WindowPartition* partition_ = nullptr;
  std::vector<Value> values_;
  AccumulatorPtr state_;
  Value value_;
  size_t first_ = 0, last_ = 0;
  int64_t memory_ = 0;
  std::string key_;
};

/// $rank, $denseRank and $documentNumber.
class RankWindow final : public WindowFunction {
 public:
  enum class Kind { kRank, kDense, kNumber };
  RankWindow(Kind kind, const SortPattern& sort) : kind_(kind), sort_(sort) {}
  void AddDependencies(std::set<std::string>* fields) const override {
    for (const SortPattern::Part& part : sort_.parts()) fields->insert(part.path);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext&) override {
    partition_ = &partition;
    rank_ = 0;
    return Ok();
  }
  Result<Value> At(size_t i, EvalContext&) override {
    if (kind_ == Kind::kNumber) return MakeInteger(static_cast<int64_t>(i) + 1, false);
    std::string key;
    MAYFLY_TRY(sort_.AppendKey(partition_->documents[i].view(), nullptr, key));
    if (i == 0 || key != key_)
      rank_ = kind_ == Kind::kDense ? rank_ + 1 : static_cast<int64_t>(i) + 1;
    key_ = std::move(key);
    return MakeInteger(rank_, false);
  }

 private:
  const Kind kind_;
  const SortPattern sort_;
  const WindowPartition* partition_ = nullptr;
  std::string key_;
  int64_t rank_ = 0;
};

class ShiftWindow final : public WindowFunction {
 public:
  ShiftWindow(ExpressionPtr output, int64_t by, Value otherwise)
      : output_(std::move(output)), by_(by), otherwise_(std::move(otherwise)) {}
  void AddDependencies(std::set<std::string>* fields) const override {
    output_->AddDependencies(fields);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext&) override {
    partition_ = &partition;
    return Ok();
  }
  Result<Value> At(size_t i, EvalContext& ctx) override {
    const auto n = static_cast<int64_t>(partition_->size());
    const int64_t at = static_cast<int64_t>(i) + std::clamp(by_, -n - 1, n + 1);
    if (at < 0 || at >= static_cast<int64_t>(partition_->size())) return otherwise_;
    ctx.root = partition_->documents[static_cast<size_t>(at)].view();
    MAYFLY_TRY(Value v, output_->Evaluate(ctx));
    return v.missing() ? Value::Null() : v.Own();
  }

 private:
  const ExpressionPtr output_;
  const int64_t by_;
  const Value otherwise_;
  const WindowPartition* partition_ = nullptr;
};

/// With N the weight is 2 / (N + 1), which most often is no whole number of binary digits: it is
/// reckoned with in decimal, and the result is a decimal only when a value was.
class MovingAverageWindow final : public WindowFunction {
 public:
  MovingAverageWindow(ExpressionPtr input, Value alpha, bool by_n)
      : input_(std::move(input)), alpha_(std::move(alpha)), by_n_(by_n) {}
  void AddDependencies(std::set<std::string>* fields) const override {
    input_->AddDependencies(fields);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext&) override {
    partition_ = &partition;
    last_.reset();
    decimal_ = alpha_.view().Is(BsonType::kDecimal128) && !by_n_;
    return Ok();
  }
  Result<Value> At(size_t i, EvalContext& ctx) override {
    ctx.root = partition_->documents[i].view();
    MAYFLY_TRY(Value v, input_->Evaluate(ctx));
    if (v.view().IsNumber()) {
      const Real now(v.view()), alpha(alpha_.view());
      decimal_ = decimal_ || v.view().Is(BsonType::kDecimal128);
      last_ = last_ ? now * alpha + *last_ * (Real(1.0) - alpha) : now;
    }
    if (!last_) return Value::Null();
    return decimal_ ? last_->value() : Value::Double(last_->AsDouble());
  }

 private:
  const ExpressionPtr input_;
  const Value alpha_;
  const bool by_n_;
  const WindowPartition* partition_ = nullptr;
  std::optional<Real> last_;
  bool decimal_ = false;  ///< a decimal was among the values
};

/// $derivative and $integral: over the sort value, which may be a date with a unit.
class SlopeWindow final : public WindowFunction {
 public:
  SlopeWindow(bool integral, ExpressionPtr input, std::optional<DateUnit> unit,
              const SortPattern& sort, WindowFinder finder, VariableScope& scope)
      : integral_(integral), input_(std::move(input)), unit_(unit), finder_(std::move(finder)) {
    const Value path = Value::String("$" + sort.parts()[0].path);
    x_ = std::move(ParseExpression(path.view(), scope)).value();
  }
  void AddDependencies(std::set<std::string>* fields) const override {
    input_->AddDependencies(fields);
    x_->AddDependencies(fields);
    finder_.AddDependencies(fields);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext& ctx) override {
    MAYFLY_TRY(finder_.Begin(partition, ctx));
    MAYFLY_TRY(EvaluateAll(x_.get(), partition, ctx, &xs_));
    MAYFLY_TRY(EvaluateAll(input_.get(), partition, ctx, &ys_));
    const std::string name = integral_ ? "$integral" : "$derivative";
    for (const Value& x : xs_) {
      const BsonValue v = x.view();
      if (unit_ && !v.Is(BsonType::kDate))
        return LocationError(5429513,
                             name +
                                 " with 'unit' expects the sortBy field to be a Date, but it "
                                 "was " +
                                 TypeText(x));
      if (!unit_ && !v.IsNumber())
        return LocationError(
            5624902, name + (v.Is(BsonType::kDate) ? " over dates requires a 'unit'"
                                                   : " expects the sortBy field to be a number, "
                                                     "but it was " +
                                                         TypeText(x)));
    }
    return Ok();
  }
  Result<Value> At(size_t i, EvalContext& ctx) override {
    size_t first = 0, last = 0;
    MAYFLY_TRY(finder_.Find(i, &first, &last));
    const double scale = unit_ ? static_cast<double>(DateUnitMillis(*unit_)) : 1;
    if (integral_) {
      // The trapezoids between neighbours; what is no number has none.
      Real sum(0.0);
      for (size_t d = first + 1; d < last; ++d) {
        MAYFLY_TRY(CheckInterrupt(ctx));
        if (!ys_[d - 1].view().IsNumber() || !ys_[d].view().IsNumber()) continue;
        sum = sum + (Real(ys_[d - 1].view()) + Real(ys_[d].view())) * Width(d - 1, d) / Real(2.0);
      }
      if (last == first) return Value::Null();
      return (unit_ ? sum / Real(scale) : sum).value();
    }
    if (last - first < 2) return Value::Null();
    const BsonValue y0 = ys_[first].view(), y1 = ys_[last - 1].view();
    if (y0.IsNullish() || y1.IsNullish()) return Value::Null();
    if (!y0.IsNumber() || !y1.IsNumber())
      return LocationError(5624903, "$derivative's 'input' must be a number");
    const Real width = Width(first, last - 1);
    if (width.zero()) return Value::Null();
    // By milliseconds first, then to the unit: the order shows in the last digit.
    const Real slope = (Real(y1) - Real(y0)) / width;
    return (unit_ ? slope * Real(scale) : slope).value();
  }

 private:
  Real Width(size_t a, size_t b) const {
    return *SortNumber(xs_[b].view()) - *SortNumber(xs_[a].view());
  }
  const bool integral_;
  const ExpressionPtr input_;
  ExpressionPtr x_;
  const std::optional<DateUnit> unit_;
  WindowFinder finder_;
  std::vector<Value> xs_, ys_;
};

class CovarianceWindow final : public WindowFunction {
 public:
  CovarianceWindow(bool sample, ExpressionPtr pair, WindowFinder finder)
      : sample_(sample), pair_(std::move(pair)), finder_(std::move(finder)) {}
  void AddDependencies(std::set<std::string>* fields) const override {
    pair_->AddDependencies(fields);
    finder_.AddDependencies(fields);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext& ctx) override {
    MAYFLY_TRY(finder_.Begin(partition, ctx));
    return EvaluateAll(pair_.get(), partition, ctx, &values_);
  }
  Result<Value> At(size_t i, EvalContext& ctx) override {
    size_t first = 0, last = 0;
    MAYFLY_TRY(finder_.Find(i, &first, &last));
    Real mean_x(0.0), mean_y(0.0), moment(0.0);
    int64_t n = 0;
    for (size_t d = first; d < last; ++d) {
      MAYFLY_TRY(CheckInterrupt(ctx));
      if (!values_[d].view().IsArray()) continue;
      std::array<BsonValue, 2> pair;
      size_t given = 0;
      for (const BsonElement& e : values_[d].view().Document()) {
        if (given++ == pair.size()) break;
        pair[given - 1] = e.value;
      }
      if (given != 2 || !pair[0].IsNumber() || !pair[1].IsNumber()) continue;
      ++n;
      const Real count(static_cast<double>(n)), x(pair[0]), y(pair[1]), dx = x - mean_x;
      mean_x = mean_x + dx / count;
      mean_y = mean_y + (y - mean_y) / count;
      moment = moment + dx * (y - mean_y);
    }
    const int64_t over = n - (sample_ ? 1 : 0);
    if (over <= 0) return Value::Null();
    return (moment / Real(static_cast<double>(over))).value();
  }

 private:
  const bool sample_;
  const ExpressionPtr pair_;
  WindowFinder finder_;
  std::vector<Value> values_;
};

/// $locf (the last value that was there) and $linearFill (on the line between those around).
class FillWindow final : public WindowFunction {
 public:
  FillWindow(ExpressionPtr input, const SortPattern* linear_by, VariableScope& scope)
      : input_(std::move(input)) {
    if (!linear_by) return;
    const Value path = Value::String("$" + linear_by->parts()[0].path);
    x_ = std::move(ParseExpression(path.view(), scope)).value();
  }
  void AddDependencies(std::set<std::string>* fields) const override {
    input_->AddDependencies(fields);
    if (x_) x_->AddDependencies(fields);
  }
  Result<void> Begin(const WindowPartition& partition, EvalContext& ctx) override {
    before_.reset();
    after_ = 0;
    MAYFLY_TRY(EvaluateAll(input_.get(), partition, ctx, &ys_));
    if (!x_) return Ok();
    MAYFLY_TRY(EvaluateAll(x_.get(), partition, ctx, &xs_));
    for (size_t i = 0; i < xs_.size(); ++i) {
      if (!SortNumber(xs_[i].view()))
        return LocationError(605001,
                             "$linearFill expects the sortBy field to be a number or a date, but "
                             "it was " +
                                 TypeText(xs_[i]));
      if (i > 0 && CompareValues(xs_[i - 1].view(), xs_[i].view()) == 0)
        return LocationError(6050106,
                             "There can be no repeated values in the sort field of $linearFill");
      if (!ys_[i].view().IsNullish() && !ys_[i].view().IsNumber())
        return LocationError(605001, "Value to be filled must be numeric or nullish, but it was " +
                                         TypeText(ys_[i]));
    }
    return Ok();
  }
  Result<Value> At(size_t i, EvalContext&) override {
    if (!ys_[i].view().IsNullish()) {
      before_ = i;
      return ys_[i].Own();
    }
    if (!before_) return Value::Null();
    if (!x_) return ys_[*before_].Own();
    for (after_ = std::max(after_, i); after_ < ys_.size() && ys_[after_].view().IsNullish();)
      ++after_;
    if (after_ >= ys_.size()) return Value::Null();
    const Real x0 = *SortNumber(xs_[*before_].view()), x1 = *SortNumber(xs_[after_].view()),
               x = *SortNumber(xs_[i].view()), y0(ys_[*before_].view()), y1(ys_[after_].view());
    return (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).value();
  }

 private:
  const ExpressionPtr input_;
  ExpressionPtr x_;
  std::vector<Value> xs_, ys_;
  std::optional<size_t> before_;
  size_t after_ = 0;
};

Result<Value> ConstantOf(BsonValue v, VariableScope& scope, std::string_view what) {
  MAYFLY_TRY(ExpressionPtr e, ParseExpression(v, scope));
  if (!e->Constant())
    return LocationError(5787901, std::string(what) + " must be a constant expression");
  return e->Constant()->Own();
}

/// Reads {name: value, …}, each of `names` at most once and nothing else.
Result<std::vector<BsonValue>> NamedArguments(std::string_view op, BsonValue v,
                                              std::initializer_list<std::string_view> names) {
  if (!v.IsDocument())
    return FailedToParse("Argument to " + std::string(op) + " must be an object");
  MAYFLY_TRY(CheckOptionsOnce(op, v));
  std::vector<BsonValue> out(names.size());
  for (const BsonElement& e : v.Document()) {
    auto it = std::find(names.begin(), names.end(), e.name);
    if (it == names.end())
      return FailedToParse(std::string(op) + " got unexpected argument: " + std::string(e.name));
    out[static_cast<size_t>(it - names.begin())] = e.value;
  }
  return out;
}

/// Reads a bound of a window.
Result<WindowBounds::End> ParseEnd(BsonValue v, bool range, bool dates) {
  WindowBounds::End end;
  if (v.IsString() && v.String() == "unbounded") return end;
  end.unbounded = false;
  if (v.IsString() && v.String() == "current") {
    end.offset = Value::Int32(0);
    return end;
  }
  int64_t whole = 0;
  if (!v.IsNumber() || ((!range || dates) && !v.ExactInt64(&whole)))
    return FailedToParse(std::string(range ? "Range" : "Numeric document") +
                         "-based bounds must be 'unbounded', 'current' or " +
                         (range && !dates ? "a number" : "an integer") + ", but found " +
                         ValueText(v));
  end.offset = Value::Copy(v);
  return end;
}

}  // namespace

Result<WindowBounds> WindowBounds::Parse(BsonValue spec, const SortPattern& sort) {
  WindowBounds b;
  if (spec.missing()) return b;
  if (!spec.IsDocument()) return FailedToParse("'window' field must be an object");
  BsonValue documents, range, unit;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "documents")
      documents = e.value;
    else if (e.name == "range")
      range = e.value;
    else if (e.name == "unit")
      unit = e.value;
    else
      return FailedToParse(
          "'window' field can only contain 'documents', 'range' and 'unit', not '" +
          std::string(e.name) + "'");
  }
  if (!documents.missing() && !range.missing())
    return FailedToParse("Window bounds can specify either 'documents' or 'range', not both");
  if (!unit.missing()) {
    if (range.missing()) return FailedToParse("Window bounds can only specify 'unit' with 'range'");
    if (!unit.IsString()) return FailedToParse("'unit' must be a string");
    b.unit = ParseDateUnit(unit.String());
    if (!b.unit) return FailedToParse("unknown time unit value: " + std::string(unit.String()));
  }
  const BsonValue ends = documents.missing() ? range : documents;
  if (ends.missing()) return b;
  const bool is_range = documents.missing();
  if (!ends.IsArray() || ends.Document().Count() != 2)
    return FailedToParse("Window bounds must be a 2-element array: " + ValueText(ends));
  const std::vector<BsonValue> both = Elements(ends);
  b.kind = is_range ? Kind::kRange : Kind::kDocuments;
  MAYFLY_TRY(b.low, ParseEnd(both[0], is_range, b.unit.has_value()));
  MAYFLY_TRY(b.high, ParseEnd(both[1], is_range, b.unit.has_value()));
  if (!b.low.unbounded && !b.high.unbounded &&
      CompareValues(b.low.offset.view(), b.high.offset.view()) > 0)
    return LocationError(5339900, "Lower bound must not exceed upper bound: " + ValueText(ends));
  if (is_range) {
    if (sort.parts().size() != 1)
      return LocationError(5339902, "Range-based bounds require sortBy a single field");
    if (sort.parts()[0].descending)
      return LocationError(8947401, "Range-based bounds require an ascending sortBy");
  } else if (sort.empty() && !b.whole()) {
    return LocationError(5339901, "Document-based bounds require a sortBy");
  }
  return b;
}

namespace {

using FunctionPtr = std::unique_ptr<WindowFunction>;

/// The input of the parser of one window function.
struct FunctionParser {
  const std::string name;
  BsonElement function;  ///< its name and argument
  BsonValue window;      ///< missing: not given
  const SortPattern& sort;
  VariableScope& scope;

  Result<WindowFinder> Bounds() const {
    MAYFLY_TRY(WindowBounds b, WindowBounds::Parse(window, sort));
    return WindowFinder(std::move(b), sort, scope);
  }
  /// `one`: a sortBy of exactly one field.
  Result<void> NeedsSort(int code, bool one) const {
    if (sort.empty() || (one && sort.parts().size() != 1))
      return LocationError(code, name + " must be specified with a top level sortBy expression" +
                                     (one ? " with exactly one element" : ""));
    return Ok();
  }
  Result<void> NoWindow(int code) const {
    if (!window.missing()) return LocationError(code, name + " does not accept a 'window' field");
    return Ok();
  }
};

Result<FunctionPtr> ParseRank(const FunctionParser& p) {
  const bool number = p.name == "$documentNumber";
  MAYFLY_TRY(p.NoWindow(5371601));
  MAYFLY_TRY(p.NeedsSort(5371602, !number));
  if (!p.function.value.IsDocument() || !p.function.value.Document().empty())
    return LocationError(5371603, p.name + " must be specified with '{}' as the value");
  return FunctionPtr(std::make_unique<RankWindow>(number              ? RankWindow::Kind::kNumber
                                                  : p.name == "$rank" ? RankWindow::Kind::kRank
                                                                      : RankWindow::Kind::kDense,
                                                  p.sort));
}

Result<FunctionPtr> ParseShift(const FunctionParser& p) {
  MAYFLY_TRY(p.NoWindow(9));
  MAYFLY_TRY(p.NeedsSort(9, false));
  MAYFLY_TRY(std::vector<BsonValue> a,
             NamedArguments(p.name, p.function.value, {"output", "by", "default"}));
  if (a[0].missing() || a[1].missing()) return FailedToParse("$shift requires 'output' and 'by'");
  int64_t by = 0;
  if (!a[1].IsNumber() || !a[1].ExactInt64(&by) || std::abs(by) > INT32_MAX)
    return FailedToParse("'$shift:by' field must be an integer, but found by: " + ValueText(a[1]));
  Value otherwise = Value::Null();
  if (!a[2].missing()) {
    MAYFLY_TRY(otherwise, ConstantOf(a[2], p.scope, "'$shift:default'"));
  }
  MAYFLY_TRY(ExpressionPtr output, ParseExpression(a[0], p.scope));
  return FunctionPtr(std::make_unique<ShiftWindow>(std::move(output), by, std::move(otherwise)));
}

Result<FunctionPtr> ParseMovingAverage(const FunctionParser& p) {
  MAYFLY_TRY(p.NoWindow(9));
  MAYFLY_TRY(p.NeedsSort(9, false));
  MAYFLY_TRY(std::vector<BsonValue> a,
             NamedArguments(p.name, p.function.value, {"input", "N", "alpha"}));
  if (a[0].missing() || a[1].missing() == a[2].missing())
    return FailedToParse("$expMovingAvg requires 'input' and exactly one of 'N' and 'alpha'");
  Value alpha;
  if (!a[1].missing()) {
    int64_t n = 0;
    if (!a[1].IsNumber() || !a[1].ExactInt64(&n) || n <= 0)
      return FailedToParse("'N' must be a positive integer, but found " + ValueText(a[1]));
    alpha = Value::Decimal(
        decimal128::Divide(decimal128::FromInt64(2),
                           decimal128::Add(decimal128::FromInt64(n), decimal128::FromInt64(1))));
  } else {
    if (!a[2].IsNumber() || !(a[2].NumberAsDouble() > 0 && a[2].NumberAsDouble() < 1))
      return FailedToParse("'alpha' must be between 0 and 1 (exclusive), but found " +
                           ValueText(a[2]));
    alpha = Value::Copy(a[2]);
  }
  MAYFLY_TRY(ExpressionPtr input, ParseExpression(a[0], p.scope));
  return FunctionPtr(
      std::make_unique<MovingAverageWindow>(std::move(input), std::move(alpha), !a[1].missing()));
}

Result<FunctionPtr> ParseSlope(const FunctionParser& p) {
  const bool integral = p.name == "$integral";
  if (!integral && p.window.missing())
    return FailedToParse("$derivative requires explicit window bounds");
  MAYFLY_TRY(p.NeedsSort(9, true));
  MAYFLY_TRY(std::vector<BsonValue> a, NamedArguments(p.name, p.function.value, {"input", "unit"}));
  if (a[0].missing()) return FailedToParse(p.name + " requires an 'input' expression");
  std::optional<DateUnit> unit;
  if (!a[1].missing()) {
    if (a[1].IsString()) unit = ParseDateUnit(a[1].String());
    if (!unit || DateUnitMillis(*unit) == 0)
      return LocationError(5490704, "unit must be 'week' or smaller, but found " + ValueText(a[1]));
  }
  MAYFLY_TRY(ExpressionPtr input, ParseExpression(a[0], p.scope));
  MAYFLY_TRY(WindowFinder finder, p.Bounds());
  return FunctionPtr(std::make_unique<SlopeWindow>(integral, std::move(input), unit, p.sort,
                                                   std::move(finder), p.scope));
}

Result<FunctionPtr> ParseCovariance(const FunctionParser& p) {
  MAYFLY_TRY(ExpressionPtr pair, ParseExpression(p.function.value, p.scope));
  MAYFLY_TRY(WindowFinder finder, p.Bounds());
  return FunctionPtr(std::make_unique<CovarianceWindow>(p.name == "$covarianceSamp",
                                                        std::move(pair), std::move(finder)));
}

Result<FunctionPtr> ParseFill(const FunctionParser& p) {
  const bool linear = p.name == "$linearFill";
  MAYFLY_TRY(p.NoWindow(9));
  if (linear) {
    MAYFLY_TRY(p.NeedsSort(605001, true));
  }
  MAYFLY_TRY(ExpressionPtr input, ParseExpression(p.function.value, p.scope));
  return FunctionPtr(
      std::make_unique<FillWindow>(std::move(input), linear ? &p.sort : nullptr, p.scope));
}

Result<FunctionPtr> ParseAccumulatorWindow(const FunctionParser& p) {
  if (!FindAccumulator(p.name) || p.name == "$mergeObjects")
    return FailedToParse("Unrecognized window function, " + p.name);
  const BsonDocument accumulator = BuildBson([&](BsonBuilder& b) { b.Append(p.function); });
  MAYFLY_TRY(AccumulatorField parsed,
             AccumulatorField::Parse("window", accumulator.view().AsValue(), p.scope));
  MAYFLY_TRY(WindowFinder finder, p.Bounds());
  return FunctionPtr(std::make_unique<AccumulatorWindow>(std::move(parsed), std::move(finder)));
}

/// The functions that are for windows alone; every other name is that of an accumulator.
constexpr std::pair<std::string_view, Result<FunctionPtr> (*)(const FunctionParser&)> kFunctions[] =
    {{"$covariancePop", &ParseCovariance},
     {"$covarianceSamp", &ParseCovariance},
     {"$denseRank", &ParseRank},
     {"$derivative", &ParseSlope},
     {"$documentNumber", &ParseRank},
     {"$expMovingAvg", &ParseMovingAverage},
     {"$integral", &ParseSlope},
     {"$linearFill", &ParseFill},
     {"$locf", &ParseFill},
     {"$rank", &ParseRank},
     {"$shift", &ParseShift}};

}  // namespace

Result<std::unique_ptr<WindowFunction>> WindowFunction::Parse(std::string_view field,
                                                              BsonValue spec,
                                                              const SortPattern& sort,
                                                              VariableScope& scope) {
  const std::string quoted = "The field '" + std::string(field) + "'";
  if (!spec.IsDocument())
    return FailedToParse(quoted + " must be an object with a window function");
  BsonElement function;
  BsonValue window;
  MAYFLY_TRY(CheckOptionsOnce("$setWindowFields.output", spec));
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "window") {
      MAYFLY_TRY(CheckOptionsOnce("$setWindowFields.window", e.value));
      window = e.value;
    } else if (e.name.starts_with('$')) {
      if (!function.name.empty())
        return FailedToParse("Cannot specify two functions in window function spec: " +
                             ValueText(spec));
      function = e;
    } else {
      return FailedToParse("Window function found an unknown argument: " + std::string(e.name));
    }
  }
  if (function.name.empty())
    return FailedToParse("Expected a $-prefixed window function, " + ValueText(spec));
  const FunctionParser parser{std::string(function.name), function, window, sort, scope};
  for (const auto& [name, parse] : kFunctions)
    if (name == function.name) return parse(parser);
  return ParseAccumulatorWindow(parser);
}

}  // namespace mayfly

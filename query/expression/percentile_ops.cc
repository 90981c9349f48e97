#include <algorithm>
#include <cmath>
#include <cstring>

#include "query/expression/growth.h"
#include "query/expression/percentile.h"

namespace mayfly {

void Percentiles::Merge(std::string_view raw) {
  const size_t before = numbers_.size();
  numbers_.resize(before + raw.size() / sizeof(double));
  if (!raw.empty()) std::memcpy(numbers_.data() + before, raw.data(), raw.size());
  sorted_ = false;
}

Value Percentiles::At(double p) {
  if (numbers_.empty()) return Value::Null();
  if (!sorted_) {
    // NaN is the least number, as everywhere.
    std::sort(numbers_.begin(), numbers_.end(),
              [](double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; });
    sorted_ = true;
  }
  const double rank = std::ceil(p * static_cast<double>(numbers_.size()));
  return Value::Double(numbers_[rank < 1 ? 0 : static_cast<size_t>(rank) - 1]);
}

Value Percentiles::Answer(bool median, std::span<const double> ps) {
  if (median) return At(0.5);
  return BuildArray([&](BsonArrayBuilder& out) {
    for (double p : ps) out.Append(At(p).view());
  });
}

Result<void> CheckPercentileMethod(BsonValue method, std::string_view op) {
  if (!method.IsString())
    return TypeMismatch("BSON field '" + std::string(op) + ".method' is the wrong type '" +
                        TypeText(method) + "', expected type 'string'");
  if (method.String() != "approximate")
    return Error{ErrorCode::kBadValue,
                 "Currently only 'approximate' can be used as percentile 'method'."};
  return Ok();
}

Result<std::vector<double>> ParsePercentiles(BsonValue p) {
  if (!p.IsArray() || p.Document().empty())
    return LocationError(7750301,
                         "The $percentile 'p' field must be an array of numbers from "
                         "[0.0, 1.0], but found: " +
                             ValueText(p));
  std::vector<double> out;
  for (const BsonElement& e : p.Document()) {
    if (!e.value.IsNumber())
      return LocationError(7750302,
                           "The $percentile 'p' field must be an array of numbers from "
                           "[0.0, 1.0], but found: " +
                               ValueText(e.value));
    const double v = e.value.NumberAsDouble();
    if (!(v >= 0 && v <= 1))
      return LocationError(7750303,
                           "The $percentile 'p' field must be an array of numbers from "
                           "[0.0, 1.0], but found: " +
                               ValueText(e.value));
    out.push_back(v);
  }
  return out;
}

namespace {

/// The numbers of the input in order, charged while the answer is made.
Result<Value> AnswerOf(const EvalArgs& a, bool median, std::span<const double> ps) {
  Percentiles numbers;
  Charge charge(a.ctx);
  BsonValue input = a.view(0);
  if (!input.IsArray()) {
    numbers.Add(input);
    return numbers.Answer(median, ps);
  }
  Pace pace(a.ctx);
  for (const BsonElement& e : input.Document()) {
    numbers.Add(e.value);
    MAYFLY_TRY(pace.Step(e.value.size()));
    MAYFLY_TRY(charge.Set(3 * numbers.size() * sizeof(double)));
  }
  return numbers.Answer(median, ps);
}

Result<Value> Median(const EvalArgs& a) {
  MAYFLY_TRY(CheckPercentileMethod(a.view(1), "$median"));
  return AnswerOf(a, true, {});
}

Result<Value> Percentile(const EvalArgs& a) {
  MAYFLY_TRY(std::vector<double> ps, ParsePercentiles(a.view(1)));
  MAYFLY_TRY(CheckPercentileMethod(a.view(2), "$percentile"));
  return AnswerOf(a, false, ps);
}

constexpr std::string_view kMedianNames[] = {"input", "method"};
constexpr std::string_view kPercentileNames[] = {"input", "p", "method"};

constexpr OperatorDef kPercentileOps[] = {
    {.name = "$median",
     .eval = &Median,
     .names = kMedianNames,
     .required = 0b11,
     .object_code = 7436100,
     .unknown_code = 40415,
     .missing_code = 40414,
     .text = "The number in the middle.",
     .example = R"({"$median": {"input": [5, 1, "x", 3], "method": "approximate"}} => 3.0)"},
    {.name = "$percentile",
     .eval = &Percentile,
     .names = kPercentileNames,
     .required = 0b111,
     .object_code = 7436200,
     .unknown_code = 40415,
     .missing_code = 40414,
     .text = "The numbers below which shares of the numbers lie.",
     .example =
         R"({"$percentile": {"input": [4, 1, 3, 2], "p": [0, 0.5, 0.9], "method": "approximate"}} => [1.0, 2.0, 4.0])"},
};

}  // namespace

std::span<const OperatorDef> PercentileOperators() { return kPercentileOps; }

}  // namespace mayfly

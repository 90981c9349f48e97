// How alike two vectors are: arrays of numbers, or binary values of subtype 9.
#include <algorithm>
#include <cmath>
#include <optional>

#include "query/expression/binary_vector.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

enum class Similarity { kCosine, kDotProduct, kEuclidean };

/// The numbers of a vector, one after another. The value must outlive it.
class VectorNumbers {
 public:
  static Result<VectorNumbers> Of(const EvalArgs& a, BsonValue v) {
    if (v.IsArray()) return VectorNumbers(v.Document());
    const std::optional<BinaryVector> binary = BinaryVector::Read(v);
    if (!binary)
      return TypeMismatch(
          OperatorName(a) +
          " requires arrays of numbers, or vectors in binData, found: " + TypeText(v));
    return VectorNumbers(*binary);
  }

  /// The next one; nothing at the end.
  Result<std::optional<double>> Next(const EvalArgs& a) {
    if (binary_) {
      if (at_ == binary_->size()) return std::optional<double>();
      return std::optional(binary_->At(at_++));
    }
    if (element_ == std::default_sentinel) return std::optional<double>();
    const BsonValue v = element_->value;
    if (!v.IsNumber())
      return TypeMismatch(OperatorName(a) +
                          " requires numbers in its vectors, found: " + TypeText(v));
    ++element_;
    return std::optional(v.NumberAsDouble());
  }

 private:
  explicit VectorNumbers(BsonView array) : element_(array.begin()) {}
  explicit VectorNumbers(const BinaryVector& binary) : binary_(binary) {}
  std::optional<BinaryVector> binary_;
  size_t at_ = 0;               ///< in *binary_
  BsonView::Iterator element_;  ///< where there is no binary_
};

/// The result of two vectors whose products and squares have these sums.
double Measure(Similarity kind, double dot, double x, double y, double difference) {
  switch (kind) {
    case Similarity::kCosine: {
      const double lengths = std::sqrt(x) * std::sqrt(y);
      // A vector of zeros has no direction; and rounding does not lead out of the range.
      return lengths == 0 ? 0 : std::clamp(dot / lengths, -1.0, 1.0);
    }
    case Similarity::kDotProduct:
      return dot;
    case Similarity::kEuclidean:
      return std::sqrt(difference);
  }
  return 0;
}

Result<Value> Compare(const EvalArgs& a, Similarity kind, BsonValue first, BsonValue second,
                      bool score) {
  if (first.IsNullish() || second.IsNullish()) return Value::Null();
  MAYFLY_TRY(VectorNumbers left, VectorNumbers::Of(a, first));
  MAYFLY_TRY(VectorNumbers right, VectorNumbers::Of(a, second));
  double dot = 0, x = 0, y = 0, difference = 0;
  Pace pace(a.ctx);
  for (;;) {
    MAYFLY_TRY(pace.Step());
    MAYFLY_TRY(const std::optional<double> l, left.Next(a));
    MAYFLY_TRY(const std::optional<double> r, right.Next(a));
    if (l.has_value() != r.has_value())
      return BadValue(OperatorName(a) + " requires two vectors of the same length");
    if (!l) break;
    dot += *l * *r;
    x += *l * *l;
    y += *r * *r;
    difference += (*l - *r) * (*l - *r);
  }
  const double measured = Measure(kind, dot, x, y, difference);
  if (!score) return Value::Double(measured);
  return Value::Double(kind == Similarity::kEuclidean ? 1 / (1 + measured) : (1 + measured) / 2);
}

constexpr std::string_view kSimilarityNames[] = {"vectors", "score"};

template <Similarity kKind>
Result<Value> OfPair(const EvalArgs& a) {
  return Compare(a, kKind, a.view(0), a.view(1), false);
}

template <Similarity kKind>
Result<Value> OfNamed(const EvalArgs& a) {
  if (a.has(1) && !a.view(1).Is(BsonType::kBool))
    return TypeMismatch(OperatorName(a) +
                        " requires 'score' to be a boolean, found: " + TypeText(a[1]));
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).IsArray())
    return TypeMismatch(OperatorName(a) +
                        " requires 'vectors' to be an array, found: " + TypeText(a[0]));
  const BsonValue vectors = a.view(0);
  if (const int n = vectors.Document().Count(); n != 2)
    return BadValue(OperatorName(a) + " requires two vectors, found: " + std::to_string(n));
  const BsonView::Iterator first = vectors.Document().begin();
  BsonView::Iterator second = first;
  ++second;
  return Compare(a, kKind, first->value, second->value, a.has(1) && a.view(1).Bool());
}

constexpr std::string_view SimilarityName(Similarity kind) {
  return kind == Similarity::kCosine       ? "$similarityCosine"
         : kind == Similarity::kDotProduct ? "$similarityDotProduct"
                                           : "$similarityEuclidean";
}

/// The two forms: [first, second], and {vectors, score}.
template <Similarity kKind>
constexpr OperatorDef kPairCall = {
    .name = SimilarityName(kKind), .min_args = 2, .max_args = 2, .eval = &OfPair<kKind>};
template <Similarity kKind>
constexpr OperatorDef kNamedCall = {.name = SimilarityName(kKind),
                                    .eval = &OfNamed<kKind>,
                                    .names = kSimilarityNames,
                                    .required = 1};

template <Similarity kKind>
Result<ExpressionPtr> ParseSimilarity(const OperatorDef&, BsonValue arg, VariableScope& scope) {
  const bool named = arg.IsDocument() && !arg.Document().First().name.starts_with('$');
  return ParseCall(named ? kNamedCall<kKind> : kPairCall<kKind>, arg, scope);
}

constexpr OperatorDef kSimilarityOps[] = {
    {.name = SimilarityName(Similarity::kCosine),
     .parse = &ParseSimilarity<Similarity::kCosine>,
     .text = "The cosine of the angle between two vectors.",
     .example = R"({"$similarityCosine": [[3, 4], [3, 4]]} => 1.0)"},
    {.name = SimilarityName(Similarity::kDotProduct),
     .parse = &ParseSimilarity<Similarity::kDotProduct>,
     .text = "The dot product of two vectors.",
     .example =
         R"({"$similarityDotProduct": {"vectors": [[1, 2, 3], [3, 4, 1]], "score": true}} => 7.5)"},
    {.name = SimilarityName(Similarity::kEuclidean),
     .parse = &ParseSimilarity<Similarity::kEuclidean>,
     .text = "The distance between two vectors.",
     .example = R"({"$similarityEuclidean": [[0, 0], [3, 4]]} => 5.0)"},
};

}  // namespace

std::span<const OperatorDef> SimilarityOperators() { return kSimilarityOps; }

}  // namespace mayfly

#pragma once
#include <memory>
#include <string_view>

#include "query/expression/operator.h"
#include "query/sort/sorter.h"

namespace mayfly {

/// The state of one accumulator in one group.
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  /// Takes in the value of the argument for one document (missing included; `key` is the sort key
  /// of $top and its like). Adds the bytes it keeps to `*memory` (may be negative).
  virtual Result<void> Add(const Value& v, std::string_view key, int64_t* memory) = 0;
  virtual Result<Value> Finish() = 0;
  /// Save: the state as a value. Merge: adds a saved state after this one. So groups go to disk and
  /// come back.
  virtual Value Save() = 0;
  virtual Result<void> Merge(BsonValue saved, int64_t* memory) = 0;
};
using AccumulatorPtr = std::unique_ptr<Accumulator>;

/// The constants among an accumulator's arguments, known when it is made.
struct AccumulatorArgs {
  int64_t n = 1;          ///< of $firstN and its like
  std::vector<double> p;  ///< of $percentile
};

/// The form of an accumulator's argument.
enum class AccumulatorSyntax : uint8_t {
  kExpression,  ///< $sum: expression
  kNothing,     ///< $count: {}
  kInputN,      ///< $firstN: {input, n}
  kTop,         ///< $top: {sortBy, output}
  kTopN,        ///< $topN: {sortBy, output, n}
  kMedian,      ///< $median: {input, method}
  kPercentile,  ///< $percentile: {input, p, method}
};

/// One accumulator is one row, sorted by name.
struct AccumulatorDef {
  std::string_view name;
  AccumulatorSyntax syntax;
  AccumulatorPtr (*make)(const AccumulatorArgs& args);
  std::string_view text;
  /// "argument over [documents] => value": documentation that a test runs.
  std::string_view example;
};
/// Both are of a table that lives as long as the process. Null: there is none of that name.
const AccumulatorDef* FindAccumulator(std::string_view name);
std::span<const AccumulatorDef> AllAccumulators();

/// One output field of $group: the accumulator and the expressions it reads. Immutable.
struct AccumulatorField {
  std::string name;
  const AccumulatorDef* def = nullptr;
  ExpressionPtr argument;  ///< input, output or the only expression; null for $count
  ExpressionPtr n;         ///< may use the fields of the group's `_id`; `p` of $percentile
  std::optional<SortPattern> sort_by;

  /// {name: {$op: argument}}. Errors: 40234, 40235, 40236, 40237, 40238, 15952 and those of the
  /// argument.
  static Result<AccumulatorField> Parse(std::string_view name, BsonValue spec,
                                        VariableScope& scope);
  void Serialize(BsonBuilder& out) const;
  void AddDependencies(std::set<std::string>* fields) const;
  /// A new state for the group with this `_id`.
  Result<AccumulatorPtr> Make(BsonValue group_id, EvalContext& ctx) const;
};

}  // namespace mayfly

#pragma once
#include <memory>
#include <string>
#include <vector>

#include "query/expression/date_unit.h"
#include "query/pipeline/accumulator.h"

namespace mayfly {

/// The documents that belong together in $setWindowFields, in the order of its sortBy. Valid until
/// the next partition.
struct WindowPartition {
  std::vector<BsonDocument> documents;
  size_t size() const { return documents.size(); }
};

/// Which of a partition's documents a window function sees for one of them (manual:
/// "$setWindowFields", `window`).
struct WindowBounds {
  enum class Kind : uint8_t { kDocuments, kRange } kind = Kind::kDocuments;
  /// One end of the window, seen from the current document.
  struct End {
    bool unbounded = true;
    Value offset;  ///< a whole number of documents; with kRange any number, 0 for "current"
  };
  End low, high;
  std::optional<DateUnit> unit;  ///< of kRange: the sort values are dates

  bool whole() const { return low.unbounded && high.unbounded; }
  /// {documents: [low, high]} or {range: [low, high], unit: "…"}; `sort` is the stage's sortBy.
  static Result<WindowBounds> Parse(BsonValue spec, const SortPattern& sort);
};

/// One output field of $setWindowFields. Made once, then for each partition Begin() and At(0),
/// At(1) … in order. One thread.
class WindowFunction {
 public:
  virtual ~WindowFunction() = default;
  /// `partition` outlives the calls of At().
  virtual Result<void> Begin(const WindowPartition& partition, EvalContext& ctx) = 0;
  virtual Result<Value> At(size_t i, EvalContext& ctx) = 0;
  virtual void AddDependencies(std::set<std::string>* fields) const = 0;

  /// {$function: argument, window: {…}}. Errors: FailedToParse 9 for an unknown function, and those
  /// of the function's argument and window.
  static Result<std::unique_ptr<WindowFunction>> Parse(std::string_view field, BsonValue spec,
                                                       const SortPattern& sort,
                                                       VariableScope& scope);
};

}  // namespace mayfly

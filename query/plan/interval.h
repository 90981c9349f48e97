#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/value.h"

namespace mayfly {

/// A range of values in comparison order. Endpoints are owned.
struct Interval {
  Value low, high;
  bool low_inclusive = true, high_inclusive = true;

  /// By comparison order: [1, 1.0] is a point, [1, 1) and [2, 1] are empty.
  bool IsPoint() const;
  bool IsEmpty() const;
  /// [MinKey, MaxKey]
  bool IsFull() const;
  /// As explain shows it: "[1, 5)".
  std::string ToString() const;
};

/// Sorted, disjoint, non-empty intervals: the values of one index field that a scan visits. Empty:
/// nothing matches.
struct IntervalList {
  std::vector<Interval> intervals;

  /// Full: [MinKey, MaxKey]. A range that is empty gives an empty list.
  static IntervalList Full();
  static IntervalList Point(Value v);
  static IntervalList Range(Value low, bool low_inclusive, Value high, bool high_inclusive);
  /// Every value of the type class of `type` (numbers together, strings and symbols together).
  static IntervalList TypeClass(BsonType type);

  bool empty() const { return intervals.empty(); }
  bool IsFull() const { return intervals.size() == 1 && intervals[0].IsFull(); }
  bool IsPoint() const { return intervals.size() == 1 && intervals[0].IsPoint(); }
  /// AllPoints: false for an empty list. Contains: by comparison order, one interval after another.
  bool AllPoints() const;
  bool Contains(BsonValue v) const;
  bool ContainsAll(const IntervalList& o) const;  ///< `o` is a subset

  /// The union of `parts` in any order, of which a client may send a million. Errors: those of
  /// Operation::CheckInterrupt and of SortItems, of ParseWork::Asked(); the list is then empty.
  static Result<IntervalList> Union(std::vector<Interval> parts);

  /// In place; afterwards the intervals are sorted and disjoint again. The complement is what is
  /// missing of [MinKey, MaxKey]. Unite sorts in one step: for a few.
  void Unite(const IntervalList& o);
  void Intersect(const IntervalList& o);
  void Complement();

 private:
  /// Adds one that does not begin before any that is there.
  void Join(Interval i);
};

/// The smallest and the largest value of a type class. `*inclusive` is false when the bound is the
/// first value of the next class.
Value MinOfType(BsonType type);
Value MaxOfType(BsonType type, bool* inclusive);

/// One value as explain prints it in bounds: 1, 1.0, "text", new Date(5), ObjectId('…'), MinKey,
/// null …
std::string BoundText(BsonValue v);

}  // namespace mayfly

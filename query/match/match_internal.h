#pragma once
#include <bitset>
#include <optional>

#include "query/expression/regex.h"
#include "query/match/json_schema.h"
#include "query/match/match_expression.h"

namespace mayfly {

class Operation;

/// The matcher's part of a node.
struct MatchExpression::Extra {
  int64_t divisor = 0, remainder = 0;   ///< kMod
  std::vector<uint32_t> bit_positions;  ///< kBits…: sorted; empty when `operand` is a BinData mask
  uint64_t bit_mask = 0;   ///< kBits…: the positions below 64; those above mean the sign
  bool high_bits = false;  ///< kBits…: any position of 64 or more
  std::bitset<256> types;  ///< kType, by type byte
  ExpressionPtr expr;      ///< kExpr
  int slots = 0;           ///< kExpr without a scope of the caller's: variables it needs
  std::shared_ptr<const JsonSchema> schema;  ///< kJsonSchema
  BsonDocument schema_source;                ///< kJsonSchema, as given
};

namespace match {

/// The operands of $in, of which there may be a million, in the order of values. Errors: those of
/// Operation::CheckInterrupt, of ParseWork::Asked(); the operands are then good for nothing.
Result<void> SortOperands(std::vector<Value>& operands);

/// Whether a part of a path may be an array position. The empty part is none.
inline bool IsAllDigits(std::string_view s) {
  if (s.empty()) return false;
  for (char c : s)
    if (c < '0' || c > '9') return false;
  return true;
}

/// Whether a part of the path is a number: a position in an array, or a field's name.
inline bool HasNumericPart(std::string_view path) {
  while (true) {
    const size_t dot = path.find('.');
    if (IsAllDigits(path.substr(0, dot))) return true;
    if (dot == std::string_view::npos) return false;
    path.remove_prefix(dot + 1);
  }
}

/// Calls `f(value, position)` for what a predicate at the end of a path sees: with `leaf_arrays`
/// each element of an array there, then the array itself. `position`: index in the outermost array
/// whose elements were tried one by one, or -1. Stops when `f` returns true, and returns that.
template <class F>
bool WalkLeaf(BsonValue v, bool leaf_arrays, int position, F& f) {
  if (leaf_arrays && v.IsArray()) {
    int i = 0;
    for (const BsonElement& e : v.Document()) {
      if (f(e.value, position < 0 ? i : position)) return true;
      ++i;
    }
  }
  return f(v, position);
}

/// The bound of one walk along a path with numbers, which are array positions as well as names of
/// fields in the elements: each level may double the number of ways through the document. No walk
/// is without one, so none can miss it. It ends its walk after kMost steps, and when the operation
/// must stop. One thread, for the time of one walk.
class AmbiguousSteps {
 public:
  static constexpr uint32_t kMost = 1'000'000;
  /// `op`: is asked from time to time; null: nobody.
  explicit AmbiguousSteps(Operation* op) : op_(op) {}
  AmbiguousSteps(const AmbiguousSteps&) = delete;
  AmbiguousSteps& operator=(const AmbiguousSteps&) = delete;
  /// One more way into an array of this many bytes. True: the walk must end, its result is void.
  bool Count(size_t bytes) {
    n_ += static_cast<uint32_t>(1 + bytes / kBytesPerStep);
    if (n_ > kMost) [[unlikely]]
      return true;
    if (bytes + kLeast < left_) [[likely]] {
      left_ -= static_cast<uint32_t>(bytes + kLeast);
      return false;
    }
    return Ask();
  }
  bool TooMany() const { return n_ > kMost; }
  /// The walk has ended early, by itself: Status() says why.
  bool Ended() const { return TooMany() || stopped_.has_value(); }
  /// Errors: BadValue 2, there are too many ways along `path`; those of Operation::CheckInterrupt.
  Result<void> Status(std::string_view path) const;
  /// The steps so far, for tests.
  uint32_t steps() const { return n_; }

 private:
  static constexpr size_t kBytesPerStep = 4096;
  static constexpr size_t kLeast = 64;            ///< what a way takes at least, as bytes
  static constexpr uint32_t kBetween = 64 << 10;  ///< bytes to walk until the operation is asked
  bool Ask();

  Operation* const op_;
  uint32_t n_ = 0, left_ = kBetween;
  std::optional<Error> stopped_;  ///< set: the operation must stop
};

/// Defined below: it and WalkPath call each other.
template <class F>
bool WalkArray(BsonView array, std::string_view path, bool leaf_arrays, int position, F& f,
               AmbiguousSteps& steps);

/// Every value at a dotted path, through sub-documents and arrays, the way filters see them:
/// sub-documents in arrays are entered, and a number in the path is an array index as well as a
/// field name. A path that ends early outside an array yields a missing value. True: `f` returned
/// that, or the walk ended early (`steps`), and then what `f` has seen is not all.
template <class F>
bool WalkPath(BsonView doc, std::string_view path, bool leaf_arrays, int position, F& f,
              AmbiguousSteps& steps, bool skip_missing = false) {
  size_t dot = path.find('.');
  BsonValue v = doc.Find(path.substr(0, dot));
  if (v.missing() && skip_missing) return false;
  if (dot == std::string_view::npos) return WalkLeaf(v, leaf_arrays, position, f);
  path.remove_prefix(dot + 1);
  if (v.IsDocument()) return WalkPath(v.Document(), path, leaf_arrays, position, f, steps);
  if (v.IsArray()) return WalkArray(v.Document(), path, leaf_arrays, position, f, steps);
  return f(BsonValue(), position);
}

/// WalkPath for a path that has reached an array: continues in its documents and, if the next part
/// is a number, in the element at that position too.
template <class F>
bool WalkArray(BsonView array, std::string_view path, bool leaf_arrays, int position, F& f,
               AmbiguousSteps& steps) {
  size_t dot = path.find('.');
  std::string_view name = path.substr(0, dot);
  bool index = IsAllDigits(name);
  if (index && steps.Count(array.size())) [[unlikely]]
    return true;
  int i = 0;
  for (const BsonElement& e : array) {
    int at = position < 0 ? i : position;
    // A number is an index first; an element without a field of that name says nothing about the
    // path.
    if (e.value.IsDocument() &&
        WalkPath(e.value.Document(), path, leaf_arrays, at, f, steps, index))
      return true;
    if (index && e.name == name) {
      // The path names this element itself, so a positional operator does not stand for it.
      if (dot == std::string_view::npos) {
        if (WalkLeaf(e.value, leaf_arrays, position, f)) return true;
      } else if (e.value.IsDocument()) {
        if (WalkPath(e.value.Document(), path.substr(dot + 1), leaf_arrays, position, f, steps))
          return true;
      } else if (e.value.IsArray()) {
        if (WalkArray(e.value.Document(), path.substr(dot + 1), leaf_arrays, position, f, steps))
          return true;
      }
    }
    ++i;
  }
  return false;
}

/// One evaluation of a filter.
struct Run {
  EvalContext* ctx = nullptr;
  int* position = nullptr;
  std::optional<Error> error = {};  ///< set: the result is void
  BsonView root = {};
  /// A cheaper match checks nothing: readers of documents check for each.
  static constexpr uint32_t kBetween = 64 << 10;
  uint32_t left = kBetween;  ///< bytes to walk until the operation is asked

  bool Document(const MatchExpression& e, BsonView doc);  ///< paths begin at `doc`
  bool Wrapped(const MatchExpression& e, BsonValue v);    ///< paths begin at `v`; "" is `v`
  bool Single(const MatchExpression& e, BsonValue v);     ///< predicates apply to `v` itself
 private:
  /// `walk(steps)`; `error` says why it ended early, if it did.
  template <class Walk>
  bool Bounded(const MatchExpression& e, Walk&& walk);
  /// This many bytes are about to be walked, or work of the same time: a filter may have any number
  /// of conditions, and each may walk the whole document. False if the operation must stop; `error`
  /// then says so. A subtraction, but for every kBetween bytes.
  bool Spend(size_t bytes) {
    if (bytes < left) [[likely]] {
      left -= static_cast<uint32_t>(bytes);
      return true;
    }
    return Look();
  }
  bool Look();
  /// What looking at one condition takes, as bytes.
  static constexpr size_t kStep = 32;
  /// From here on a text that a pattern is looked for in may take long, as long as walking this.
  static constexpr size_t kLongText = 16, kPattern = kBetween / 8;
  template <class F>
  bool Logical(const MatchExpression& e, F&& child);
  bool Leaf(const MatchExpression& e, BsonValue v, int position);
  bool Bits(const MatchExpression& e, BsonValue v);
  bool Regex(const CompiledRegex& regex, BsonValue v);
  bool In(const MatchExpression& e, BsonValue v);
  /// The answer of an expression that follows no path from `v`, the tested document or value; none:
  /// it follows one. `child` asks the same of a part of it.
  template <class F>
  std::optional<bool> WithoutPath(const MatchExpression& e, BsonValue v, F&& child);
  bool Expr(const MatchExpression& e);
  bool Schema(const MatchExpression& e, BsonValue v);
};

/// True for kEq, kLt … of `operand` on `v` with MongoDB's type bracketing; `v` is not taken apart.
bool Compare(MatchKind kind, BsonValue operand, BsonValue v);

/// The same value with the fields of every document in it in name order: `$jsonSchema` compares
/// documents without regard to order. Borrows `v` where nothing needs to be ordered.
Value Normalized(BsonValue v);
/// Sorts normalized values; whether two of them are equal. Errors: those of an interrupt of the
/// operation that parses or matches; ExceededMemoryLimit 146.
Result<bool> SortAndFindDuplicates(std::vector<Value>& values);

inline bool IsNan(BsonValue v) { return v.IsNumber() && v.NumberAsDouble() != v.NumberAsDouble(); }

}  // namespace match
}  // namespace mayfly

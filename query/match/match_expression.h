#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/value.h"
#include "query/expression/expression.h"

namespace mayfly {

class CompiledRegex;  // query/expression/regex.h (PCRE2)

/// What a node of a parsed filter tests.
enum class MatchKind : uint8_t {
  kAlwaysTrue,
  kAlwaysFalse,
  kAnd,
  kOr,
  kNor,
  kNot,
  kEq,
  kLt,
  kLte,
  kGt,
  kGte,
  kIn,  // $ne and $nin are kNot over kEq / kIn
  kRegex,
  kMod,
  kExists,
  kType,
  kSize,
  kElemMatchObject,
  kElemMatchValue,
  kAll /* only of $elemMatch members; plain $all parses to kAnd of kEq */,
  kBitsAllSet,
  kBitsAllClear,
  kBitsAnySet,
  kBitsAnyClear,
  kExpr,
  kWhere,
  kJsonSchema,
};

/// A parsed filter: a tree that the matcher evaluates over raw BSON and that the planner reads.
/// Immutable after parsing; threads: any. Owns every byte it refers to.
class MatchExpression {
 public:
  MatchKind kind = MatchKind::kAlwaysTrue;
  std::string path;         ///< dotted; empty for logical nodes and inside kElemMatchValue
  Value operand;            ///< comparison value, regex, size, $exists bool …; owned
  std::vector<Value> list;  ///< kIn: non-regex members, sorted by CompareValues and unique
  std::vector<std::shared_ptr<const CompiledRegex>>
      regexes;                                             ///< kRegex: one; kIn: its regex members
  std::vector<std::unique_ptr<MatchExpression>> children;  ///< logical and $elemMatch nodes
  struct Extra;  ///< mod, bits, type sets, $expr: only for the matcher
  std::shared_ptr<const Extra> extra;

  /// True when the document matches. `$expr` sees `ctx`'s variables (may be null when there is
  /// none). Errors come only from $expr and exhausted regex limits.
  Result<bool> Matches(BsonView doc, EvalContext* ctx = nullptr) const;
  /// For the positional `$` operator: also the index, in the outermost array, of the element that
  /// matched, or -1. With several predicates on arrays the last one decides.
  Result<bool> MatchesWithPosition(BsonView doc, EvalContext* ctx, int* position) const;
  /// Tests one value: paths are relative to it, and the empty path is the value itself ($pull,
  /// arrayFilters).
  Result<bool> MatchesValue(BsonValue value, EvalContext* ctx = nullptr) const;

  void Serialize(class BsonBuilder& out) const;  ///< explain's parsedQuery
  /// The shape without constants: equal for filters that a cached plan may serve. Appended to
  /// `out`.
  void AppendShape(std::string& out) const;
};
using MatchPtr = std::unique_ptr<MatchExpression>;

/// The context of the filter, which decides what it may contain. The scope is not owned and is used
/// while parsing only.
struct MatchParseOptions {
  VariableScope* scope = nullptr;  ///< for $expr
  bool allow_where =
      false;  ///< true: $where gets 6108304 (there is no JavaScript engine), else BadValue 2
  bool for_partial_index =
      false;  ///< only $eq $exists:true $lt(e) $gt(e) $type $and $or $in: else CannotCreateIndex 67
};

/// Errors: BadValue 2 ("unknown operator: $x", "unknown top level operator: $x. …"), TypeMismatch
/// 14, FailedToParse 9, and MongoDB's own codes where it has them. Normalises: flattens $and, sorts
/// nothing, turns one-child logicals into the child.
Result<MatchPtr> ParseMatch(BsonView filter, const MatchParseOptions& options = {});

}  // namespace mayfly

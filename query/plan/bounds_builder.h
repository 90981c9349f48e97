#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "query/match/match_expression.h"
#include "query/plan/interval.h"

namespace mayfly {

/// A predicate's conditions on the keys of an index on its path.
struct PredicateBounds {
  /// Every document that matches has a key in here.
  IntervalList list;
  /// A key in here means that its document matches: no need to look at the document again.
  bool exact = false;
  /// Holds for documents that have the field only ($exists: true, whose list is full).
  bool requires_existence = false;
  /// The full list was requested ($gte: MinKey), not a fallback: the index is used for
  /// it.
  bool whole_index = false;
};

/// Bounds for one predicate, or nothing when an index does not help. `multikey`: the index has met
/// arrays on the path.
std::optional<PredicateBounds> BoundsOf(const MatchExpression& predicate, bool multikey);

/// The literal text a pattern must begin with ("^abc" gives "abc"); empty when there is none.
std::string RegexPrefix(std::string_view pattern, std::string_view options);

/// One predicate of a conjunction that an index on `path` may serve.
struct PathPredicate {
  std::string path;
  const MatchExpression* node;    ///< what BoundsOf reads
  const MatchExpression* clause;  ///< the member of the conjunction that it belongs to
  const MatchExpression* elem_match = nullptr;  ///< the innermost $elemMatch it is inside of
  size_t elem_match_path = 0;  ///< length of the part of `path` that leads to that $elemMatch
  /// Set: the bounds if no array is on the path; with an array there are none
  /// ($expr).
  std::optional<PredicateBounds> without_arrays = {};
  /// The node represents the whole clause although it differs: bounds exact for it are exact for
  /// the clause.
  bool whole = false;

  bool IsComplete() const { return whole || node == clause; }
};

/// As above; of a predicate with bounds of its own (`without_arrays`) those, or nothing when the
/// index is multikey.
std::optional<PredicateBounds> BoundsOf(const PathPredicate& predicate, bool multikey);

/// The members of a conjunction: the children of $and, or the filter itself.
std::vector<const MatchExpression*> Clauses(const MatchExpression& filter);

/// All indexable predicates of the clauses, those inside $elemMatch too.
std::vector<PathPredicate> CollectPredicates(const std::vector<const MatchExpression*>& clauses);

/// Adds what an `$expr` clause says about the keys of indexes: comparisons of a field with what
/// every document gets the same value of ({$gt: ["$at", {$subtract: ["$$NOW", 1000]}]}), alone or
/// in an $and. Manual: "$expr supports indexes".
void CollectFromExpr(const MatchExpression& clause, EvalContext& eval,
                     std::vector<PathPredicate>* out);

/// {$or: [{a: 1}, {a: 2}]} as {a: {$in: [1, 2]}}, which one scan serves; null when `clause` is not
/// of that form.
MatchPtr DisjunctionAsIn(const MatchExpression& clause);

/// True when every document that satisfies all of `clauses` satisfies `partial`: then a partial
/// index on `partial` may serve them. Errs on the side of false.
bool Implies(const std::vector<const MatchExpression*>& clauses, const MatchExpression& partial);

}  // namespace mayfly

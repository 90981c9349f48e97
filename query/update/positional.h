#pragma once
#include "query/match/match_expression.h"
#include "query/update/update.h"

namespace mayfly {

/// MatchesWithPosition for an update that uses `$`. The position is also -1 if `$` cannot
/// stand for the found element: the filter itself names an element of the array before `$` by
/// its index ({"a.0.b": 1} for "a.$.b"), and has found nothing else. Errors: those of the
/// filter.
Result<bool> MatchForPosition(const MatchExpression& filter, const Update& update, BsonView doc,
                              EvalContext* ctx, int* position);

}  // namespace mayfly

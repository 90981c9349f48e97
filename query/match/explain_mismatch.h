#pragma once
#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "query/expression/expression.h"

namespace mayfly {

/// The most bytes that an explanation has.
inline constexpr size_t kMaxExplanation = size_t{1} << 19;

/// Why `doc` does not match `filter`, as a failed document validation shows it in
/// `errInfo.details` (manual: Schema Validation, Handle Invalid Documents):
/// `{operatorName, specifiedAs, reason, consideredValue …}`; `$and`, `$or` and `$nor` list their
/// clauses, `$jsonSchema` the rules that are not satisfied. REQUIRES: `filter` parses and does not
/// match. Slow: it parses the filter again, clause by clause; for failures only.
/// At most kMaxExplanation bytes: there is only a note, `{reason, truncated: true}`, in place of
/// more, or when the operation of the enclosing ParseWork must stop. Values are copied only as far
/// as they have room.
BsonDocument ExplainMismatch(BsonView filter, BsonView doc, Instant now);

}  // namespace mayfly

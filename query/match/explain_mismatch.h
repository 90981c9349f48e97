#pragma once
#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "query/expression/expression.h"

namespace mayfly {

/// Why `doc` does not match `filter`, as a failed document validation shows it in
/// `errInfo.details` (manual: Schema Validation, Handle Invalid Documents):
/// `{operatorName, specifiedAs, reason, consideredValue …}`; `$and`, `$or` and `$nor` list their
/// clauses, `$jsonSchema` the rules that are not satisfied. REQUIRES: `filter` parses and does not
/// match. Slow: it parses the filter again, clause by clause; for failures only.
/// Cut when it becomes long or the operation of the enclosing ParseWork must stop.
BsonDocument ExplainMismatch(BsonView filter, BsonView doc, Instant now);

namespace match {
/// Whether an explanation that is so long by now has to end.
bool ExplanationTooLong(size_t bytes);
/// The `schemaRulesNotSatisfied` of `value` under a JSON schema, one entry per rule.
void ExplainSchema(BsonView schema, BsonValue value, BsonArrayBuilder& rules);
}  // namespace match

}  // namespace mayfly

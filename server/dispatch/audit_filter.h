#pragma once
#include <memory>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "query/match/match_expression.h"

namespace mayfly {

/// The parsed form of an audit filter. Every entry is matched, on the thread that serves its
/// client, so `$expr` and `$where` are refused. Errors: those of ParseMatch; BadValue 2 for these,
/// and beyond kMaxAuditFilter.
Result<std::shared_ptr<const MatchExpression>> CompileAuditFilter(BsonView filter);

}  // namespace mayfly

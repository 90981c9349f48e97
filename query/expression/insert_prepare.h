#pragma once
#include <string>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

/// Prepares a document for an insert: adds an `_id` (an ObjectId made at `now`) when it has none,
/// moves `_id` to the front, replaces Timestamp(0,0) in top-level fields other than `_id` by the
/// current timestamp, and checks the document. Returns `doc` itself when nothing changes (no copy);
/// otherwise a view of `*scratch`, which is overwritten. Errors: InvalidIdField 53 (array, regex or
/// undefined `_id`), DollarPrefixedFieldName 52 ('$' in `_id`'s fields), BadValue 2 (more than one
/// `_id`, larger than 16 MiB). REQUIRES: `doc` passed ValidateBson (which limits nesting). Threads:
/// any.
Result<BsonView> PrepareInsert(BsonView doc, Instant now, std::string* scratch);

/// The checks on an `_id` value alone. Errors: InvalidIdField 53, DollarPrefixedFieldName 52.
Result<void> CheckIdValue(BsonValue id);

/// A timestamp (seconds << 32 | increment) unlike any handed out before in this process for that
/// second. Threads: any.
uint64_t NextTimestamp(Instant now);

/// How deep documents and arrays nest in `v`: 0 for a scalar, 1 for {} or [1]. Stops counting
/// beyond `limit`.
int NestingDepth(BsonValue v, int limit = kMaxBsonDepth + 1);

}  // namespace mayfly

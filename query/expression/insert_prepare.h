#pragma once
#include <string>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

/// Prepares a document for an insert: adds an `_id` (an ObjectId made at `now`) when it has none,
/// moves `_id` to the front, replaces Timestamp(0,0) in top-level fields other than `_id` by the
/// current timestamp unless `keep_empty_timestamps`, and checks the document. Returns `doc` itself
/// when nothing changes (no copy); otherwise a view of `*scratch`, which is overwritten. Errors:
/// InvalidIdField 53 (array, regex or undefined `_id`), DollarPrefixedFieldName 52 ('$' in `_id`'s
/// fields), BadValue 2 (more than one `_id`, larger than 16 MiB), Overflow 15 (nested deeper than
/// kMaxBsonDepth). REQUIRES: `doc` is valid BSON of at most kMaxMessageDepth levels. Threads: any.
Result<BsonView> PrepareInsert(BsonView doc, Instant now, std::string* scratch,
                               bool keep_empty_timestamps = false);

/// Prepares a document that replaces a stored one as a whole (an update pipeline, $merge, an oplog
/// entry): puts the stored `_id`, `old_id`, which must not change, in front, and checks the
/// document. Returns `next` itself when nothing changes (no copy); otherwise a view of `*scratch`,
/// which is overwritten. `upsert`: none is stored yet, `old_id` is from its filter. Errors: those
/// of UpdateTooLarge, BadValue 2 (more than one `_id`), DollarPrefixedFieldName 52 (`$expire`),
/// ImmutableField 66, Overflow 15 (nested too deep). Threads: any.
Result<BsonView> PrepareReplacement(BsonView next, BsonValue old_id, std::string* scratch,
                                    bool upsert = false);

/// Location17419 or, of an upsert, 17420: an update's result is larger than 16 MiB.
Error UpdateTooLarge(bool upsert);

/// Overflow 15: a document nests deeper than kMaxBsonDepth.
Error DocumentTooDeep();

/// The checks on an `_id` value alone. Errors: InvalidIdField 53, DollarPrefixedFieldName 52.
Result<void> CheckIdValue(BsonValue id);

/// A timestamp (seconds << 32 | increment) unlike any handed out before in this process for that
/// second. Threads: any.
uint64_t NextTimestamp(Instant now);

/// How deep documents and arrays nest in `v`: 0 for a scalar, 1 for {} or [1]. Stops counting
/// beyond `limit`.
int NestingDepth(BsonValue v, int limit = kMaxBsonDepth + 1);

}  // namespace mayfly

#pragma once
#include "server/write_ops.h"

namespace mayfly {

/// One entry of `updates` and of `deletes`; explain reads them too. Errors: those of ArgReader,
/// FailedToParse 9.
/// `command`: the expiration of those that do not say their own.
Result<UpdateStatement> ParseUpdateStatement(BsonView doc, Instant now,
                                             const ExpirySetting& command = {});
Result<DeleteStatement> ParseDeleteStatement(BsonView doc);

}  // namespace mayfly

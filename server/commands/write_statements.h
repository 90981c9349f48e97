#pragma once
#include "server/write_ops.h"

namespace mayfly {

/// One entry of `updates` and of `deletes`; explain reads them too. Errors: those of ArgReader,
/// FailedToParse 9.
Result<UpdateStatement> ParseUpdateStatement(BsonView doc);
Result<DeleteStatement> ParseDeleteStatement(BsonView doc);

}  // namespace mayfly

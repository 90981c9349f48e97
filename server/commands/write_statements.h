#pragma once
#include <optional>
#include <string_view>

#include "server/dispatch/arg_reader.h"
#include "server/execution/statement_runner.h"
#include "server/execution/write_ops.h"

namespace mayfly {

/// The fields that insert, update and delete have in common. Views point into the request.
struct WriteBatchFields {
  std::string_view collection;
  bool ordered = true;  ///< the first error ends the batch
  bool bypass_validation = false;
  StatementIds statement_ids;
};
/// Errors stay in `in`: the caller reads the other fields, then calls Finish.
WriteBatchFields ReadWriteBatchFields(ArgReader& in);
/// Errors: InvalidLength 16 unless there are 1 to 100,000 writes.
Result<void> CheckWriteBatchSize(size_t writes);

/// One entry of `updates` and of `deletes`; explain reads them too. `command`: the expiration of
/// those that do not say their own. Errors: those of ArgReader, FailedToParse 9.
Result<UpdateStatement> ParseUpdateStatement(BsonView doc, Instant now,
                                             const ExpirySetting& command = {});
Result<DeleteStatement> ParseDeleteStatement(BsonView doc);

}  // namespace mayfly

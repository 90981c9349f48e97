#pragma once
#include "protocol/error.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// What may run in a multi-document transaction, as far as the request says it (manual:
/// "Transactions and Operations"). A command that this refuses does not reach the transaction,
/// which goes on, also after a commit or an abort whose arguments are wrong. Errors:
/// OperationNotSupportedInTransaction 263, InvalidOptions 72; of a commit's or an abort's arguments
/// those of ArgReader. Threads: any.
Result<void> CheckTransactionCommand(const CommandRow& row, const CommandRequest& req);

/// What a read that may run in one must not do there. REQUIRES: the transaction is taken, because
/// this is an error of the command itself, which aborts it. Errors:
/// OperationNotSupportedInTransaction 263 for a stage, InvalidOptions 72 for a tailable cursor.
Result<void> CheckTransactionRead(const CommandRow& row, const CommandRequest& req);

/// The same stages in the pipeline of a view that `op` reads, by whatever command or stage: the
/// request does not show them. Nothing outside of a transaction. `pipeline`: an array. Errors:
/// OperationNotSupportedInTransaction 263.
Result<void> CheckTransactionView(const Operation& op, BsonView pipeline);

}  // namespace mayfly

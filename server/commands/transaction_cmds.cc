#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/execution/transactions.h"
#include "server/privileges/privileges.h"

namespace mayfly {
namespace {

/// The other arguments were read before the transaction was taken (CheckTransactionCommand).
Result<void> CheckArguments(const CommandRequest& req) {
  if (!req.generic.autocommit_given || !req.generic.txn_number)
    return Error{ErrorCode::kCommandFailed,
                 std::string(req.name) + " must be run within a transaction"};
  return Ok();
}

Awaitable<Result<void>> CommitTransaction(CommandContext& ctx, const CommandRequest& req,
                                          BsonBuilder&) {
  MAYFLY_CO_TRY(CheckArguments(req));
  co_return co_await TransactionsOf(ctx.data)->Commit(ctx);
}

Awaitable<Result<void>> AbortTransaction(CommandContext& ctx, const CommandRequest& req,
                                         BsonBuilder&) {
  MAYFLY_CO_TRY(CheckArguments(req));
  co_return co_await TransactionsOf(ctx.data)->Abort(ctx);
}

}  // namespace

void RegisterTransactionCommands(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kTakesWriteConcern | kAdminOnly | kApiV1;
  registry.Add({.name = "abortTransaction",
                .flags = kFlags,
                .help = "Ends a transaction: nothing of it happens.",
                .run_async = &AbortTransaction,
                .privileges = &privileges::LoggedIn});
  registry.Add({.name = "commitTransaction",
                .flags = kFlags,
                .help = "Ends a transaction: all of it happens at once.",
                .run_async = &CommitTransaction,
                .privileges = &privileges::LoggedIn});
}

}  // namespace mayfly

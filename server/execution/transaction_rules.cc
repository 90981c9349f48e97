#include "server/execution/transaction_rules.h"

#include <algorithm>

#include "server/dispatch/arg_reader.h"
#include "server/execution/transactions.h"

namespace mayfly {
namespace {

/// Commands allowed in a transaction (manual: "Transactions and Operations").
constexpr std::string_view kAllowed[] = {
    "abortTransaction", "aggregate", "bulkWrite", "commitTransaction", "create",  "createIndexes",
    "delete",           "distinct",  "find",      "findAndModify",     "getMore", "insert",
    "killCursors",      "update"};
constexpr std::string_view kRefusedStages[] = {
    "$changeStream", "$collStats", "$currentOp", "$indexStats",    "$listLocalSessions",
    "$listSessions", "$merge",     "$out",       "$planCacheStats"};

Error NotInTransaction(std::string message) {
  return {ErrorCode::kOperationNotSupportedInTransaction, std::move(message)};
}

/// `value`: a pipeline, or what its own parser refuses. Those inside of stages too.
Result<void> CheckPipeline(BsonValue value) {
  if (!value.IsArray()) return Ok();
  for (const BsonElement& e : value.Document()) {
    if (!e.value.IsDocument() || e.value.Document().empty()) continue;
    const BsonElement stage = e.value.Document().First();
    for (std::string_view refused : kRefusedStages)
      if (stage.name == refused)
        return NotInTransaction("Operation not permitted in transaction :: caused by :: " +
                                std::string(stage.name) + " cannot be used in a transaction");
    if (!stage.value.IsDocument()) continue;
    if (stage.name == "$lookup" || stage.name == "$unionWith") {
      MAYFLY_TRY(CheckPipeline(stage.value.Document()["pipeline"]));
    } else if (stage.name == "$facet") {
      for (const BsonElement& one : stage.value.Document()) {
        MAYFLY_TRY(CheckPipeline(one.value));
      }
    }
  }
  return Ok();
}

}  // namespace

Result<void> CheckTransactionCommand(const CommandRow& row, const CommandRequest& req) {
  const GenericArguments& g = req.generic;
  if (std::find(std::begin(kAllowed), std::end(kAllowed), row.name) == std::end(kAllowed)) {
    if (row.name == "count")
      return NotInTransaction(
          "Cannot run 'count' in a multi-document transaction. Please see "
          "http://dochub.mongodb.org/core/transaction-count for a recommended alternative.");
    return NotInTransaction("Cannot run '" + std::string(row.name) +
                            "' in a multi-document transaction.");
  }
  if (EndsTransaction(row.name)) {
    if (g.start_transaction)
      return NotInTransaction("Cannot run '" + std::string(row.name) +
                              "' as the first operation in a transaction.");
    ArgReader in(req);
    in.Ignore("recoveryToken");  // unused: of a router
    in.Ignore("coordinator");    // unused: of a router
    return in.Finish();
  }
  if (g.start_transaction && (row.name == "getMore" || row.name == "killCursors"))
    return NotInTransaction("Cannot run '" + std::string(row.name) +
                            "' as the first operation in a transaction.");
  // A bulkWrite and its cursor are of admin, whatever it writes to.
  const bool of_bulk =
      row.name == "bulkWrite" || row.name == "getMore" || row.name == "killCursors";
  if (req.db == "config" || req.db == "local" || (req.db == "admin" && !of_bulk))
    return NotInTransaction("Cannot run command against the '" + std::string(req.db) +
                            "' database in a transaction.");
  if (!g.write_concern.missing())
    return Error{ErrorCode::kInvalidOptions,
                 "writeConcern is not allowed within a multi-statement transaction"};
  if (!req.body["explain"].missing() && req.body["explain"].Truthy())
    return NotInTransaction("Cannot run 'explain' in a multi-document transaction.");
  return Ok();
}

Result<void> CheckTransactionRead(const CommandRow& row, const CommandRequest& req) {
  if (row.name == "find" && req.body["tailable"].Truthy())
    return Error{ErrorCode::kInvalidOptions,
                 "a tailable cursor cannot be opened in a transaction: open it outside of one"};
  if (row.name == "aggregate") return CheckPipeline(req.body["pipeline"]);
  return Ok();
}

Result<void> CheckTransactionView(const Operation& op, BsonView pipeline) {
  if (op.view == nullptr || !op.view->has_own_writes()) [[likely]]
    return Ok();
  return CheckPipeline(pipeline.AsValue(BsonType::kArray));
}

}  // namespace mayfly

#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "security/names.h"
#include "server/dispatch/command.h"
#include "storage/operation.h"

namespace mayfly {

class ServerContext;

/// How a transaction ended.
enum class TransactionEnd : uint8_t {
  kCommitted,
  kClient,    ///< abortTransaction
  kConflict,  ///< somebody else was first: 112
  kError,     ///< another error of one of its commands
  kLifetime,  ///< transactionLifetimeLimitSeconds
  kSession,   ///< its session was killed, or has ended
  kNewer,     ///< its session has begun something with a higher number
  kStepDown,  ///< the member is no longer primary
  kShutdown,
};
inline constexpr size_t kTransactionEnds = 9;
/// As serverStatus and the log name it ("committed", "client" …). Any thread.
std::string_view TransactionEndName(TransactionEnd end);

/// The costs of a transaction so far: sums over its commands, and what it holds.
struct TransactionCosts {
  /// Names of collections that are kept to be shown; it may lock more.
  static constexpr size_t kNamespaces = 16;

  int64_t commands = 0;
  int64_t keys_examined = 0, docs_examined = 0, n_returned = 0;
  int64_t n_inserted = 0, n_deleted = 0, n_matched = 0, n_modified = 0;
  int64_t keys_inserted = 0, keys_deleted = 0, write_conflicts = 0, yields = 0;
  int64_t active_micros = 0;         ///< while a command of it ran
  size_t locks = 0;                  ///< of documents and unique keys
  size_t documents = 0;              ///< changes of documents that are staged
  size_t bytes = 0;                  ///< in memory
  std::vector<std::string> written;  ///< collections that it has locked for writing

  /// Adds what one of its commands has cost.
  void Add(const Operation& op);
  /// The same as if it had been one operation.
  void CopyTo(Operation& op) const;
};

/// A transaction as it is shown: a copy, so that nothing is rendered while others wait.
struct TransactionView {
  std::string session;  ///< its key (SessionKey)
  /// Whose it is, and stays, whoever logs in later where it was used; none without access control.
  std::optional<UserName> user;
  std::string db;  ///< of its first command
  int64_t number = 0;
  int64_t connection_id = 0;  ///< whose command was the latest; 0: an internal one's
  uint64_t running_op = 0;    ///< of the command that runs now; 0: it is inactive
  BsonDocument read_concern;  ///< as the client gave it; empty: it has given none
  uint64_t read_ts = 0;       ///< the set's time that it reads
  Instant began;
  int64_t open_micros = 0;
  int64_t lifetime_secs = 0;  ///< transactionLifetimeLimitSeconds
  TransactionCosts costs;

  /// The field `transaction` of an operation or idle session in currentOp.
  void Append(BsonBuilder& out) const;
};

/// A transaction that has just ended.
struct FinishedTransaction {
  TransactionView view;
  TransactionEnd end = TransactionEnd::kCommitted;
};

/// The line of the log and the entry of the profile for a whole transaction that took
/// `micros` from its beginning to its end, if they are wanted; `make` is called only then. Blocks
/// nobody: the line is written by a worker. Any thread.
void ReportTransaction(ServerContext& server, int64_t micros,
                       const std::function<FinishedTransaction()>& make);

/// serverStatus.transactions, also of a server that has none.
void AppendTransactionStatus(ServerContext& server, BsonBuilder& out);

}  // namespace mayfly

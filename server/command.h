#pragma once
#include <boost/asio/awaitable.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/operation.h"

namespace mayfly {

class ServerContext;  // server/server_context.h: storage, clock, parameters, cursors, sessions, metrics, reaper
class Connection;     // server/connection.h: peer address, handshake metadata, compression

/// An OP_MSG kind-1 section: documents outside the body, named by the field they stand for.
struct DocumentSequence {
  std::string_view name;
  std::vector<BsonView> documents;
};

/// One command as it came in. Views point into the connection's buffer and live until the reply is sent.
struct CommandRequest {
  std::string_view name;            ///< first field's name, as sent
  BsonView body;
  std::string_view db;              ///< $db
  std::vector<DocumentSequence> sequences;
  /// The array field or the document sequence of this name, one view an entry. Errors: TypeMismatch 14, MissingField 40414.
  Result<std::vector<BsonView>> Documents(std::string_view field) const;
};

/// What a running command may use. Owned by the dispatcher for the length of the command.
struct CommandContext {
  ServerContext& server;
  Operation& op;
  Connection* connection;           ///< null for internal callers
  /// Moves the coroutine to the worker pool: anything that may scan, sort, wait for a lock or build.
  boost::asio::awaitable<void> MoveToWorker();
  /// Moves it back to the connection's io thread. The dispatcher does so itself before it writes the reply.
  boost::asio::awaitable<void> MoveToIo();
  bool on_worker = false;
};

/// Facts about a command are data: dispatch, listCommands, help, access checks and metrics read the same row.
enum CommandFlags : uint32_t {
  kCommandNone = 0,
  kReadOnly = 1 << 0,
  kWrites = 1 << 1,
  kAdminOnly = 1 << 2,          ///< refused on other databases with Unauthorized 13 "… may only be run against the admin database."
  kNoAuth = 1 << 3,             ///< allowed before authentication
  kSecondaryOk = 1 << 4,
  kWorker = 1 << 5,             ///< `run` goes to a worker thread (it may take long or block)
  kApiV1 = 1 << 6,              ///< part of Stable API version 1
  kTakesWriteConcern = 1 << 7,
  kTakesReadConcern = 1 << 8,
};

/// One row of the command table: exactly one of `run` and `run_async` is set. Both append their fields to `reply`; the
/// dispatcher adds ok, operationTime, errors. On error whatever was appended is dropped.
struct CommandRow {
  std::string_view name;
  std::vector<std::string_view> aliases;
  uint32_t flags = 0;
  std::string_view help;
  Result<void> (*run)(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) = nullptr;
  boost::asio::awaitable<Result<void>> (*run_async)(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) = nullptr;
};

class CommandRegistry {
 public:
  void Add(CommandRow row);
  const CommandRow* Find(std::string_view name) const;
  std::span<const CommandRow> rows() const { return rows_; }

 private:
  std::vector<CommandRow> rows_;
};

}  // namespace mayfly

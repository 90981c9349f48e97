#pragma once
#include <mutex>
#include <optional>
#include <string>

#include "protocol/wire_message.h"
#include "security/failed_logins.h"
#include "server/base/session_registry.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/command.h"
#include "server/dispatch/fail_points.h"
#include "server/net/connection.h"

namespace mayfly {

/// One request on its way: reused from request to request, so that nothing is allocated for the
/// next one.
struct RequestState {
  MessageHeader header;
  OpMsg msg;
  OpQuery query;
  bool legacy = false;  ///< OP_QUERY: answered by OP_REPLY
  bool checksum = false;
  Compressor compressor = Compressor::kNone;
  std::string decompressed;
  CommandRequest request;
  const CommandRow* row = nullptr;
  OperationReport report;
  std::optional<Operation> op;
  SessionUse session_use;  ///< of CommandContext::session
  std::optional<CommandContext> ctx;
  std::optional<BsonBuilder> reply;
  size_t reply_start = 0;
  int32_t reply_id = 0;
  int64_t start_micros = 0;
  bool slot_begun = false;
  /// The command's result, when its reply is complete but compression or the checksum would hold an
  /// io thread too long (Dispatcher::Run goes on).
  std::optional<Result<void>> answer;
  std::optional<FailCommandAction> fail;  ///< of the fail point failCommand
  std::string repeat_body;                ///< body of the exhaust command that runs again
  bool user_again = false;        ///< users or roles have changed: who asks is read again first
  bool decides_long = false;      ///< whether it is allowed is decided on a worker
  bool reported = false;          ///< in the log or the profile, before Account
  UsersCollections writes_users;  ///< while there is an audit log
  /// What currentOp and killSessions see of it, so unchanged until the slot's operation ends: the
  /// body of a kSecret command; the key of the session before that is found.
  BsonDocument shown_body;
  char session_key[kSessionKeyBytes] = {};
};

/// A request of more bytes than this goes to a worker: whatever the command does with it may take
/// long.
inline constexpr int32_t kShortRequest = 4 * 1024;
/// Whether a longer one is allowed is decided on a worker, and each trip there costs time. What a
/// privilege function takes is in proportion to these bytes, whatever privileges and roles the user
/// has: `tests/fault/large_requests_run.py short` measures the longest, and has a bound.
inline constexpr int32_t kShortDecision = 16 * 1024;
/// Only inserts may be larger and short all the same: they check themselves what they write. Beyond
/// this, to find the documents in the message takes long already (14 ms for 15 MB of small ones).
inline constexpr int32_t kShortInsert = 1024 * 1024;

/// Whether it goes to a worker, whatever the command.
inline bool IsLong(const RequestState& s) {
  return s.header.length > (s.row->name == "insert" ? kShortInsert : kShortRequest);
}

/// From a request to its reply: the checks every command shares, the call, the shape of the answer,
/// and what is counted, logged and profiled about it. One for all connections; threads: any, with a
/// RequestState each.
class Dispatcher {
 public:
  explicit Dispatcher(ServerContext& server) : server_(server) {}

  /// Begins with the parsed message in `s` and appends to `out`. True: the reply is complete.
  /// False: Run must be awaited.
  bool Start(Connection& c, RequestState& s, std::string& out);
  Awaitable<void> Run(Connection& c, RequestState& s, std::string& out);
  /// The reply to a sound frame with bad content.
  void ReplyError(RequestState& s, std::string& out, const Error& error);

  ServerContext& server() { return server_; }

 private:
  /// The fields of the command, from either kind of message.
  static Result<void> Parse(RequestState& s);
  /// The three parts of what is checked for all commands.
  Result<void> Check(Connection& c, RequestState& s);
  /// Whether there is such a command, and that it has a database.
  Result<void> CheckCommand(RequestState& s);
  /// Whether the client may run it: access control, the audit log, the API's version. Looks through
  /// the request. REQUIRES: CheckCommand.
  Result<void> Decide(Connection& c, RequestState& s);
  /// Session, transaction, concerns.
  Result<void> CheckRest(Connection& c, RequestState& s);
  /// Whether a request is so large that Decide could hold an io thread.
  bool DecidesLong(Connection& c, const RequestState& s) const;
  /// From the checked command to its reply, as far as that goes without waiting: Start's answer.
  bool Proceed(Connection& c, RequestState& s, std::string& out, Result<void> parsed);
  /// Others see the operation from here on, and may stop it.
  void BeginSlot(Connection& c, RequestState& s);
  /// The key of the session of a request that is about to be decided about on a worker, by which
  /// others may stop it meanwhile; empty: it names none. In s.session_key, or a part of the
  /// request.
  std::string_view DecidingSession(Connection& c, RequestState& s);
  /// The command's answer without a coroutine or a worker, if possible; what it throws is
  /// InternalError. REQUIRES: run_now.
  std::optional<Result<void>> TryNow(RequestState& s, std::string& out);
  /// Runs a command that does not wait. Errors: the command's; what it throws is InternalError.
  Result<void> RunHere(RequestState& s);
  /// CheckCommand and Decide, with the user read again if users or roles have changed.
  Result<void> DecideNow(Connection& c, RequestState& s);
  Awaitable<Result<void>> DecideOnWorker(Connection& c, RequestState& s);
  /// Whether the logged-in user may run the command. REQUIRES: access control is on.
  Result<void> Authorize(Connection& c, RequestState& s);
  Result<void> CheckApiVersion(const RequestState& s);
  /// The arguments of every command that stand in the command within an explain: its time counts if
  /// it is the shorter, concerns and read preference are those of explain, the API's version is for
  /// both. Errors: InvalidOptions 72 for what would count for one of them alone; those of each
  /// argument; those of reading the command.
  Result<void> JoinExplained(RequestState& s);
  Result<void> CheckTransaction(RequestState& s);
  Result<void> UseSession(Connection& c, RequestState& s);
  /// `id` of `lsid`, as the client sent it. Errors: those of what stands in `lsid`.
  static Result<std::string_view> SessionId(const Connection& c, const RequestState& s);
  Result<void> ReadConcern(RequestState& s);
  void OpenReply(RequestState& s, std::string& out);
  /// Inside a catch block: CommandException, which is the command's answer.
  Error Unexpected(const RequestState& s) noexcept;
  /// Ends the reply and the bookkeeping of the operation. False: FinishLong must be awaited.
  bool Finish(Connection& c, RequestState& s, std::string& out, Result<void> result);
  /// Of a large request (kShortRequest): whether Complete would hold an io thread, because the
  /// audit log shows what was refused; and Account, because the log or the profile shows it, or
  /// because what was made of it is freed.
  bool LongToRefuse(const RequestState& s, const Result<void>& result) const;
  bool LongToEnd(const RequestState& s) const;
  Awaitable<void> FinishLong(Connection& c, RequestState& s, std::string& out);
  /// Ends the body of the reply. `result`: the command's result; an error of the reply itself
  /// replaces it.
  void Complete(RequestState& s, std::string& out, Result<void>& result);
  /// The length of the reply, its checksum, its compressed form.
  void Seal(RequestState& s, std::string& out);
  void Account(Connection& c, RequestState& s, const std::string& out, const Result<void>& result);
  /// Whether a client that has not logged in may have a line in the log now: such clients could
  /// fill a disk. Any thread.
  bool AdmitStranger();
  /// How long the request has taken so far, in microseconds, without waits for documents or time.
  int64_t Took(const RequestState& s) const;
  /// Whether the log or the profile may show a request that took `micros`.
  bool Reports(const RequestState& s, int64_t micros) const;
  /// Shows it there, once. Any thread.
  void ReportIfDue(RequestState& s, const Result<void>& result, int64_t micros,
                   const std::string& out);
  void Report(RequestState& s, const Error* error, int64_t micros, int64_t reply_bytes);
  void RecordTop(Connection& c, const RequestState& s, int64_t micros);
  /// failCommand's answer instead of running the command, if any.
  Result<void> FailOnPurpose(RequestState& s);
  /// errorLabels of a failed command, or of one whose write concern failed.
  static void AppendLabels(RequestState& s, ErrorCode code, bool has_labels);
  static void AppendError(BsonBuilder& reply, const Error& error);

  ServerContext& server_;
  /// Lines of the log about commands of clients that have not logged in.
  std::mutex strangers_mutex_;
  Allowance strangers_{FailedLogins::kBurst, 1};
};

}  // namespace mayfly

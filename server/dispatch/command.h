#pragma once
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/container/small_vector.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/wire_message.h"
#include "server/dispatch/operation_registry.h"
#include "storage/operation.h"
#include "storage/write/write_unit.h"

namespace mayfly {

class DataServices;    // server/dispatch/data_services.h
class ExpiryServices;  // server/dispatch/expiry_services.h
class ServerContext;   // server/dispatch/server_context.h
class Connection;      // server/net/connection.h: peer address, handshake metadata, compression
class Session;         // server/base/session_registry.h
class CommandRegistry;
struct InnerRequests;         // server/dispatch/inner_requests.h
struct UserAccess;            // security/user_cache.h
struct AuthorizationRequest;  // server/dispatch/authorization.h

/// Coroutines of the server run on one connection's io thread; the executor is typed because that
/// saves a virtual call and a reference count at every suspension.
using IoExecutor = boost::asio::io_context::executor_type;
template <class T>
using Awaitable = boost::asio::awaitable<T, IoExecutor>;

/// An OP_MSG kind-1 section: documents outside the body, named by the field they stand for.
using DocumentSequence = OpMsg::Sequence;

/// One top-level field of a command, in the order sent.
struct CommandField {
  std::string_view name;
  BsonValue value;
  bool generic = false;       ///< one that every command takes ($db, lsid, maxTimeMS …)
  mutable bool used = false;  ///< an ArgReader has read it
};
using CommandFields = boost::container::small_vector<CommandField, 24>;

/// One bit for each name: two names with different bits are different. Most options are absent, and
/// the bits of the names that are there say so at once: with a name known to the compiler it is one
/// test of a bit; find asks for twenty.
constexpr uint64_t NameBit(std::string_view name) {
  if (name.empty()) return 1;
  // The factors are chosen so that options often absent in document commands never share a bit with
  // fields often present.
  const size_t hash = name.size() + size_t{7} * static_cast<uint8_t>(name.front()) +
                      size_t{6} * static_cast<uint8_t>(name.back());
  return uint64_t{1} << (hash % 64);
}

/// The fields every command takes, read once by the dispatcher.
struct GenericArguments {
  BsonValue lsid, comment, read_preference, read_concern, write_concern, cluster_time;
  std::optional<int64_t> txn_number;
  int64_t max_time_ms = 0;       ///< 0: none
  bool max_time_given = false;   ///< even when it is 0
  std::string_view api_version;  ///< empty: none
  bool api_strict = false, api_deprecation_errors = false;
  bool help = false;  ///< only describe the command, do not run it
  bool autocommit_given = false, autocommit = false, start_transaction = false;
  bool raw_data = false;  ///< of a time series: its buckets (server/execution/raw_data.h)
};

/// The documents that a field of a command brings: those of its document sequence, which stay where
/// they are, or those of its array, listed here and charged. Valid as long as the request. One
/// thread.
class DocumentList {
 public:
  DocumentList() = default;
  explicit DocumentList(const DocumentSequence& s) : sequence_(&s.documents) {}
  DocumentList(DocumentList&&) noexcept = default;
  DocumentList& operator=(DocumentList&&) noexcept = default;

  /// One more of an array. Errors: ExceededMemoryLimit 146.
  Result<void> Add(BsonView document);

  std::span<const BsonView> documents() const { return sequence_ != nullptr ? *sequence_ : own_; }
  size_t size() const { return documents().size(); }
  bool empty() const { return documents().empty(); }
  BsonView operator[](size_t i) const { return documents()[i]; }
  auto begin() const { return documents().begin(); }
  auto end() const { return documents().end(); }

 private:
  const std::vector<BsonView>* sequence_ = nullptr;
  std::vector<BsonView> own_;
  large_memory::Hold hold_;  ///< of own_
};

/// One command as it came in. Views point into the connection's buffer and live until the reply is
/// sent.
struct CommandRequest {
  std::string_view name;  ///< first field's name, as sent
  BsonView body;
  std::string_view db;  ///< $db
  std::vector<DocumentSequence> sequences;
  large_memory::Hold sequences_hold;  ///< of the lists of their documents
  CommandFields fields;  ///< every top-level field of `body`, the first one too; each name once
  uint64_t names = 0;    ///< of the fields: NameBit of each
  GenericArguments generic;
  bool exhaust_allowed =
      false;  ///< OP_MSG exhaustAllowed: the client takes several replies to this request
  bool of_entry = false;  ///< made of an entry of an oplog (applyOps)
  /// With `rawData` on a time series: what the value of the first field points into; else null.
  std::shared_ptr<const BsonDocument> buckets_name;
  /// The requests within this one: what InnerRequests::Of has made; null: nobody has asked.
  mutable std::shared_ptr<InnerRequests> inner;

  /// The array field or the document sequence of this name, one view an entry.
  /// Errors: TypeMismatch 14, MissingField 40414, ExceededMemoryLimit 146.
  Result<DocumentList> Documents(std::string_view field) const;
  /// Gives their memory back.
  void DropSequences() {
    sequences.clear();
    sequences_hold.Release();
  }
  /// Null when there is none.
  const DocumentSequence* Sequence(std::string_view field) const {
    for (const DocumentSequence& s : sequences)
      if (s.name == field) return &s;
    return nullptr;
  }
};

/// A parsed and checked `writeConcern`.
struct WriteConcern {
  bool given = false;
  bool unacknowledged =
      false;  ///< w: 0: the client reads no reply (OP_MSG moreToCome says so itself)
  bool majority = false;
  bool journal = false;  ///< j: true
  int64_t w = 1;
  std::string mode;  ///< a replica set's getLastErrorModes
  int64_t wtimeout_ms = 0;
  CommitOptions commit_options() const { return {.journal = journal}; }
};

/// The levels of `readConcern`.
enum class ReadConcernLevel : uint8_t { kLocal, kAvailable, kMajority, kLinearizable, kSnapshot };

/// What currentOp, the profiler and the slow-operation line say about the operation. Commands
/// change it through CommandContext::EditReport only, because currentOp reads it from other
/// threads. Everything is optional.
struct OperationReport {
  std::string
      ns;  ///< "db.coll"; the dispatcher fills in the database and the first field when empty
  std::string_view op = "command";  ///< insert, query, update, remove, getmore, command (literals)
  std::string plan_summary;         ///< "IXSCAN { a: 1 }"
  int64_t cursor_id = 0;
  int64_t reply_documents = -1;
  std::string_view query_framework;
  /// The progress of a long task: a literal and two numbers of one unit; empty: not reported.
  std::string_view progress;
  int64_t progress_done = 0, progress_total = 0;
  bool upsert = false, cursor_exhausted = false;
  BsonDocument originating_command;  ///< of a getMore; empty if none
  /// Ready for the next operation, keeping what is allocated.
  void Reset() {
    ns.clear();
    op = "command";
    plan_summary.clear();
    cursor_id = 0;
    reply_documents = -1;
    query_framework = {};
    progress = {};
    progress_done = progress_total = 0;
    upsert = cursor_exhausted = false;
    if (!originating_command.view().empty()) originating_command = BsonDocument();
  }
};

/// The HTTP client whose request became a command, "ip:port".
struct HttpOrigin {
  std::string remote, local;
};

struct CommitState;

/// A unit on its way to being committed (CommandContext::Submit).
class SubmittedCommit {
 public:
  /// Whether the outcome is known.
  bool done() const;
  /// The outcome. REQUIRES: done(). Once.
  Result<void> Take();

 private:
  friend struct CommandContext;
  explicit SubmittedCommit(std::shared_ptr<CommitState> state) : state_(std::move(state)) {}
  std::shared_ptr<CommitState> state_;
};

/// The resources of a running command. Owned by the dispatcher for the length of the command.
struct CommandContext {
  DataServices& data;      ///< what statements need
  ExpiryServices& expiry;  ///< what commands about expiry need besides
  ServerContext& server;   ///< all of it, for administration
  Operation& op;
  Connection* connection;            ///< null for internal callers
  IoExecutor io;                     ///< of the connection
  ClientSlot* client = nullptr;      ///< null for internal callers
  const HttpOrigin* http = nullptr;  ///< of a command that came by the HTTP endpoint
  Session* session = nullptr;        ///< of `lsid`; null if none was sent
  /// The user and its privileges, those of `op`; null while access control is off, and for the
  /// server itself: everything is then allowed. For a client that has not logged in: no privileges
  /// (NobodysAccess). Changed by RunFor alone.
  const std::shared_ptr<const UserAccess>& access = op.user();
  WriteConcern write_concern;
  ReadConcernLevel read_concern = ReadConcernLevel::kLocal;
  uint64_t after_cluster_time = 0, at_cluster_time = 0;  ///< of `readConcern`; 0: none
  OperationReport& report;                               ///< read freely; change with EditReport

  /// Set by an exhaust command (getMore, hello) whose reply is one of a stream: the dispatcher sets
  /// moreToCome and runs the command again with this body (same name and fields; empty document:
  /// the same body).
  bool more_to_come = false;
  /// Its message's share of the room for messages (NetworkBuffers), in bytes; 0 for a small one.
  uint32_t message_room = 0;
  BsonDocument next_body;

  /// Moves the coroutine to the worker pool: anything that may scan, sort, wait for a lock or
  /// build. No-op when there.
  Awaitable<void> MoveToWorker();
  /// The same for a read whose reply may be large: only once the replies under way leave room for
  /// another one (NetworkBuffers), so that many clients that request 16 MB each, or do not read
  /// their replies, cannot exhaust the memory. Errors: those of SleepUntil; after half a minute
  /// without room ExceededMemoryLimit 146.
  Awaitable<Result<void>> MoveToWorkerWithRoom();
  /// Moves it back to the connection's io thread. The dispatcher does so itself before it writes
  /// the reply.
  Awaitable<void> MoveToIo();
  /// Commits without holding the io thread while the unit waits for a sync or for other nodes. On a
  /// worker: blocks.
  Awaitable<Result<void>> Commit(WriteUnit unit);
  /// Commit in two halves, for an io thread and an operation without a commit_deadline_micros: most
  /// commits are done at once and need no coroutine to wait in.
  SubmittedCommit Submit(WriteUnit unit);
  Awaitable<Result<void>> Wait(SubmittedCommit commit);
  /// Waits until the deadline (Clock::MonotonicMicros) or until the operation is killed; then
  /// CheckInterrupt's answer.
  Awaitable<Result<void>> SleepUntil(int64_t monotonic_micros);
  /// Returns when no fsync lock holds writes back; from then on such a lock waits for this
  /// operation. For commands that write although their row has no kWrites.
  Awaitable<Result<void>> WaitToWrite();
  /// Operation::CheckInterrupt, but certain to look at the clock: after a wait, and before
  /// something long.
  Result<void> CheckNow();

  /// `ctx.EditReport([&](OperationReport& r) { r.plan_summary = …; })`: a few assignments, under
  /// the client's lock.
  template <class F>
  void EditReport(F&& f);

  std::optional<int64_t> txn_number;  ///< of a retryable write, checked; none: an ordinary command
  bool close_connection = false;      ///< no reply: the connection closes (fail points)
  bool on_worker = false;
  uint32_t read_shape = 0;  ///< ShortReads knows the read by this; 0: not one
  int64_t waited_micros =
      0;  ///< spent in waits for time or documents: not part of how slow the operation was
};

/// Facts about a command are data: dispatch, listCommands, help, access checks and metrics read the
/// same row.
enum CommandFlags : uint32_t {
  kCommandNone = 0,
  kReadOnly = 1 << 0,
  kWrites = 1 << 1,
  kAdminOnly = 1 << 2,    ///< on another database: Unauthorized 13
  kNoAuth = 1 << 3,       ///< allowed before authentication
  kSecondaryOk = 1 << 4,  ///< a secondary answers it
  kSecondaryOptIn =
      1 << 5,        ///< with kSecondaryOk: only to a read preference that allows secondaries
  kWorker = 1 << 6,  ///< `run` goes to a worker thread (it may take long or block)
  kApiV1 = 1 << 7,   ///< part of Stable API version 1
  kDeprecatedInV1 = 1 << 8,  ///< refused with apiDeprecationErrors
  kTakesWriteConcern = 1 << 9,
  kTakesReadConcern = 1 << 10,
  kRetryableWrite = 1 << 11,      ///< may bring a txnNumber outside a transaction
  kAllowedWhileLocked = 1 << 12,  ///< goes on while fsync has locked writes, although kWrites
  kNoProfile = 1 << 13,           ///< never profiled nor logged as slow (hello, awaitable or not)
  kCountsItself = 1 << 14,        ///< keeps opcounters itself; others count as opcounters.command
  kTestOnly = 1 << 15,            ///< only with --testClock
  kTestCommand = 1 << 16,         ///< only with enableTestCommands
  kHidden = 1 << 17,              ///< not in listCommands: known only to be refused
  kSecret = 1 << 18,              ///< brings passwords or proofs: currentOp shows its name only
};

/// One row of the command table: exactly one of `run` and `run_async` is set. Both append their
/// fields to `reply`; the dispatcher adds ok, operationTime, errors. On error whatever was appended
/// is dropped; the error's `details` join the reply.
/// `run_now`, if set, is called first: on the io thread, without a coroutine, for requests that can
/// be answered at once. Without an answer whatever it appended is dropped and the command begins
/// again with the other function, so it must leave no trace.
struct CommandRow {
  std::string_view name;
  std::vector<std::string_view> aliases;
  uint32_t flags = 0;
  std::string_view help;
  Result<void> (*run)(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) = nullptr;
  Awaitable<Result<void>> (*run_async)(CommandContext& ctx, const CommandRequest& req,
                                       BsonBuilder& reply) = nullptr;
  std::optional<Result<void>> (*run_now)(CommandContext& ctx, const CommandRequest& req,
                                         BsonBuilder& reply) = nullptr;
  /// Whether the user may run this command with these arguments: called while access control is on,
  /// on the connection's io thread, before the command starts. It reads the request, in time that a
  /// short request bounds (long ones go to a worker first), and never storage. Null: allowed before
  /// a login (kNoAuth). Errors: Unauthorized 13.
  Result<void> (*privileges)(const AuthorizationRequest& request) = nullptr;
  /// serverStatus.metrics.commands.<name>
  struct Counters;
  Counters* counters = nullptr;  ///< made by CommandRegistry::Add
};

/// Counted by the dispatcher; relaxed atomics.
struct CommandRow::Counters {
  std::atomic<int64_t> total{0}, failed{0};
};

/// The command table. Filled once at start-up, then read without locks by any thread.
class CommandRegistry {
 public:
  CommandRegistry();
  ~CommandRegistry();
  /// At start-up only: rows move, so what Find has returned before is no longer good. REQUIRES: no
  /// row has the name or an alias yet; nothing checks that.
  void Add(CommandRow row);
  /// By name or alias, exact case; null if there is none. One hash look-up.
  const CommandRow* Find(std::string_view name) const;
  const std::vector<CommandRow>& rows() const { return rows_; }  ///< in order of registration

 private:
  struct Slot {
    std::string_view name;
    uint32_t hash = 0;
    int32_t row = -1;
  };
  static uint32_t Hash(std::string_view s);
  void Rehash(size_t slots);

  std::vector<CommandRow> rows_;
  std::vector<Slot> table_;  // open addressing, power of two
  std::vector<std::unique_ptr<CommandRow::Counters>> counters_;
};

/// Without a client nobody else sees the report: no lock then.
template <class F>
void CommandContext::EditReport(F&& f) {
  if (client == nullptr) return f(report);
  std::lock_guard l(client->lock());
  f(report);
}

/// Reads `writeConcern` (missing: the default) as a standalone understands it, or a replica set's
/// member (`replicated`), which also takes numbers above 1 and the names of modes.
/// Errors: FailedToParse 9, TypeMismatch 14, BadValue 2 ("cannot use 'w' > 1 when a host is not
/// replicated"), 40413 for a field that is there twice.
Result<WriteConcern> ParseWriteConcern(BsonValue value, bool replicated = false);

}  // namespace mayfly

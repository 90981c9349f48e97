#include "server/net/dispatcher.h"

#include <boost/algorithm/string/predicate.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "protocol/bson_check.h"
#include "protocol/cut_text.h"
#include "protocol/database_name.h"
#include "protocol/error_labels.h"
#include "protocol/error_text.h"
#include "protocol/micros.h"
#include "protocol/system_names.h"
#include "protocol/utf8.h"
#include "query/expression/parse_work.h"
#include "server/base/command_exception.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/dispatch/short_reads.h"
#include "server/execution/raw_data.h"
#include "server/execution/transactions.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

namespace {

/// Bytes of an error for a client: it may quote the client's own data.
constexpr size_t kMaxErrorMessage = 16 * 1024;
/// A reply of more bytes than this is compressed, or given its checksum, on a worker: zlib takes
/// some 50 ns for a byte, the others take 10.
constexpr size_t kLongReply = 64 * 1024;
constexpr size_t kLongZlibReply = 16 * 1024;

/// The client's application name; at the first hello only the command has it.
std::string AppName(Connection& c, const CommandRequest& req) {
  if (req.name == "hello" || req.name == "isMaster" || req.name == "ismaster")
    if (const BsonValue name = req.body.FindPath("client.application.name"); name.IsString())
      return PrintableUtf8(name.String());  // others see it in currentOp
  return c.slot().app_name();
}

/// Replies to these are never compressed: what they carry must be readable before compression is
/// agreed, or is secret.
bool MayCompress(std::string_view command) {
  static constexpr std::string_view kNever[] = {
      "hello",        "isMaster",   "ismaster",   "saslStart",       "saslContinue",   "getnonce",
      "authenticate", "createUser", "updateUser", "copydbSaslStart", "copydbgetnonce", "copydb"};
  for (std::string_view n : kNever)
    if (n == command) return false;
  return true;
}

/// `emplace(MadeInPlace(f))` makes what `f` returns where it will stay. To move a context there
/// would be as much work as to make it.
template <class F>
struct MadeInPlace {
  explicit MadeInPlace(F f) : make(std::move(f)) {}
  operator std::invoke_result_t<F>() const { return make(); }  // NOLINT: this is what it is for
  F make;
};

/// Whether the command is part of a multi-document transaction.
bool InTransaction(const RequestState& s) {
  return s.request.generic.autocommit_given && s.ctx->session != nullptr && s.row != nullptr;
}

/// The client wants no reply, or gets none.
bool Silent(const RequestState& s) {
  return (!s.legacy && (s.msg.flags & kMsgMoreToCome) != 0) || s.ctx->close_connection;
}

bool Compresses(const RequestState& s) {
  return s.compressor != Compressor::kNone && MayCompress(s.request.name);
}

/// Whether Seal would hold an io thread.
bool LongToSeal(const RequestState& s, size_t bytes) {
  if (bytes <= kLongZlibReply || Silent(s)) return false;
  if (Compresses(s) && s.compressor == Compressor::kZlib) return true;
  return bytes > kLongReply && (Compresses(s) || (s.checksum && !s.legacy));
}

}  // namespace

void Dispatcher::AppendError(BsonBuilder& reply, const Error& error) {
  reply.Append("ok", 0.0)
      .Append("errmsg", ErrorText(error.message))
      .Append("code", static_cast<int32_t>(error.code));
  reply.Append("codeName", ErrorCodeName(error.code));
  if (!error.details.empty()) reply.AppendAll(BsonView(error.details.data()));
}

void Dispatcher::OpenReply(RequestState& s, std::string& out) {
  s.reply_start = s.legacy ? BeginOpReply(out, s.reply_id, s.header.request_id)
                           : BeginOpMsg(out, s.reply_id, s.header.request_id,
                                        s.checksum ? kMsgChecksumPresent : 0);
  s.reply.emplace(out);
}

Error Dispatcher::Unexpected(const RequestState& s) noexcept {
  return CommandException(
      server_.log(), s.request.name,
      s.ctx && s.ctx->client ? std::string_view(s.ctx->client->desc) : std::string_view());
}

void Dispatcher::ReplyError(RequestState& s, std::string& out, const Error& error) {
  s.reply_id = static_cast<int32_t>(server_.operations().NextOperationId());
  OpenReply(s, out);
  AppendError(*s.reply, error);
  const size_t reply_size = s.reply->size() + 1;
  s.reply->Done();
  bson_check::Document({out.data() + out.size() - reply_size, reply_size}, "a reply");
  s.reply.reset();
  FinishMessage(out, s.reply_start);
}

Result<void> Dispatcher::CheckTransaction(RequestState& s) {
  const GenericArguments& g = s.request.generic;
  if (!g.txn_number)
    return Error{ErrorCode::kInvalidOptions,
                 "'autocommit' and 'startTransaction' require a transaction number"};
  if (*g.txn_number < 0)
    return Error{ErrorCode::kInvalidOptions, "Transaction number cannot be negative"};
  if (g.start_transaction && !g.autocommit_given)
    return Error{ErrorCode::kInvalidOptions,
                 "'startTransaction' field requires 'autocommit' field to also be specified"};
  if (g.autocommit_given && g.autocommit)
    return Error{ErrorCode::kInvalidOptions, "Specifying autocommit=true is not allowed."};
  if (!server_.transaction_numbers() || (g.autocommit_given && TransactionsOf(server_) == nullptr))
    return Error{ErrorCode::kIllegalOperation,
                 "Transaction numbers are only allowed on a replica set member or mongos"};
  if (g.autocommit_given) {
    if (EndsTransaction(s.row->name)) s.ctx->txn_number = g.txn_number;
    return Ok();
  }
  if (!(s.row->flags & kRetryableWrite))
    return Error{LocationCode(50768),
                 "txnNumber may only be provided for multi-document transactions and retryable "
                 "write commands. autocommit:false was not provided, and " +
                     std::string(s.row->name) + " is not a retryable write command."};
  s.ctx->txn_number = g.txn_number;
  return Ok();
}

Result<void> Dispatcher::ReadConcern(RequestState& s) {
  const BsonValue rc = s.request.generic.read_concern;
  if (rc.missing()) return Ok();
  return replication_gate::ParseReadConcern(*s.ctx, *s.row, rc.Document(), InTransaction(s));
}

/// A document sequence is a field of its command: one that the command does not take is an unknown
/// field.
static Result<void> CheckSequences(std::string_view command, const CommandRequest& req) {
  static constexpr std::pair<std::string_view, std::string_view> kTaken[] = {
      {"insert", "documents"},
      {"update", "updates"},
      {"delete", "deletes"},
      {"bulkWrite", "ops"},
      {"bulkWrite", "nsInfo"}};
  for (const DocumentSequence& s : req.sequences) {
    if (std::find(std::begin(kTaken), std::end(kTaken), std::pair(command, s.name)) ==
        std::end(kTaken))
      return Error{ErrorCode::kUnknownField, "BSON field '" + std::string(command) + "." +
                                                 ShownName(s.name) + "' is an unknown field."};
  }
  return Ok();
}

Result<void> Dispatcher::CheckCommand(RequestState& s) {
  const CommandRequest& req = s.request;
  if (req.fields.empty())
    return Error{ErrorCode::kCommandNotFound, "no command in an empty document"};
  if (req.db.empty()) return Error{LocationCode(40571), "OP_MSG requests require a $db argument"};
  if (!IsDatabaseName(req.db) && req.db != kExternalDatabase)
    return Error{ErrorCode::kInvalidNamespace,
                 "Invalid database name: '" + ShownName(req.db) + "'"};
  if (s.row == nullptr) {
    std::string message = "no such command: '" + ShownName(req.name) + "'";
    for (const CommandRow& row : server_.commands().rows())
      if (!(row.flags & (kTestOnly | kTestCommand)) && boost::iequals(row.name, req.name))
        message += "; did you mean '" + std::string(row.name) + "'?";
    return Error{ErrorCode::kCommandNotFound, std::move(message)};
  }
  if (!req.sequences.empty()) {
    MAYFLY_TRY(CheckSequences(s.row->name, req));
  }
  int64_t limit = req.generic.max_time_ms;
  if (limit == 0 && (s.row->flags & kReadOnly))
    limit = server_.settings().max_time_ms_default.load(std::memory_order_relaxed);
  // A getMore's is its wait for data; the cursor has the remaining time.
  if (limit != 0 && s.row->name != "getMore") s.op->deadline_micros = s.start_micros + limit * 1000;
  return Ok();
}

Result<void> Dispatcher::Check(Connection& c, RequestState& s) {
  MAYFLY_TRY(CheckCommand(s));
  MAYFLY_TRY(Decide(c, s));
  return CheckRest(c, s);
}

Result<void> Dispatcher::CheckRest(Connection& c, RequestState& s) {
  const CommandRequest& req = s.request;
  const GenericArguments& g = req.generic;
  const uint32_t flags = s.row->flags;
  if (g.raw_data) [[unlikely]] {
    MAYFLY_TRY(ApplyRawData(server_, s.request));
  }
  if (!g.lsid.missing() || g.txn_number || g.autocommit_given || g.start_transaction) {
    MAYFLY_TRY(UseSession(c, s));
  }
  ReplicaSet* set = server_.replica_set();
  if (set != nullptr) {
    s.op->cluster_time = set->cluster_time();
    if (!g.cluster_time.missing()) {
      MAYFLY_TRY(replication_gate::CheckClusterTime(server_, g.cluster_time.Document(),
                                                    s.ctx->access.get(), s.op->now));
    }
    MAYFLY_TRY(replication_gate::CheckState(*set, *s.row, req, s.legacy && (s.query.flags & 4)));
  }
  if (!g.read_concern.missing()) {
    MAYFLY_TRY(ReadConcern(s));
  }
  if (!g.write_concern.missing()) {
    if (!(flags & kTakesWriteConcern))
      return Error{ErrorCode::kInvalidOptions,
                   "Command " + std::string(s.row->name) + " does not support writeConcern"};
    MAYFLY_TRY(s.ctx->write_concern, ParseWriteConcern(g.write_concern, set != nullptr));
  }
  if (set != nullptr && (flags & kTakesWriteConcern)) {
    WriteConcern& wc = s.ctx->write_concern;
    // `{wtimeout: 100}` alone, or `{j: true}`: the rest is the default's.
    if (g.write_concern.missing() || !g.write_concern.Document().Has("w")) {
      WriteConcern defaults = server_.rw_defaults().write_concern();
      defaults.given = wc.given;
      defaults.journal = defaults.journal || wc.journal;
      if (wc.wtimeout_ms != 0) defaults.wtimeout_ms = wc.wtimeout_ms;
      wc = std::move(defaults);
    }
    if (wc.wtimeout_ms > 0)
      s.op->commit_deadline_micros = s.start_micros + MicrosOf(wc.wtimeout_ms);
  }
  return Ok();
}

static Result<void> RunParsing(RequestState& s) {
  ParseWork work(&*s.op);
  return s.row->run(*s.ctx, s.request, *s.reply);
}

/// Whether the command is about <db>.system.profile.
static bool OnProfile(const CommandRequest& req) {
  return req.fields[0].value.IsString() && req.fields[0].value.String() == kProfileCollection;
}

Result<void> Dispatcher::Parse(RequestState& s) {
  CommandRequest& req = s.request;
  if (s.legacy) {
    req.DropSequences();
    req.exhaust_allowed = false;
    // "admin.$cmd": the database is in the namespace.
    return ParseCommandFields(s.query.query, &req,
                              SplitNamespace(s.query.ns).db.substr(0, kMostOfDatabaseName));
  }
  req.sequences.swap(s.msg.sequences);
  req.sequences_hold = std::move(s.msg.hold);
  req.exhaust_allowed = (s.msg.flags & kMsgExhaustAllowed) != 0;
  return ParseCommandFields(s.msg.body, &req);
}

bool Dispatcher::Start(Connection& c, RequestState& s, std::string& out) {
  s.start_micros = server_.clock().MonotonicMicros();
  const uint64_t id = server_.operations().NextOperationId();
  s.reply_id = static_cast<int32_t>(id);
  ReplicaSet* const set = server_.replica_set();
  s.op.emplace(set != nullptr ? static_cast<const Clock&>(set->clock()) : server_.clock(), id);
  s.report.Reset();
  s.ctx.emplace(MadeInPlace([&] {
    return CommandContext{.data = server_,
                          .expiry = server_,
                          .server = server_,
                          .op = *s.op,
                          .connection = &c,
                          .io = c.io_executor(),
                          .client = &c.slot(),
                          .report = s.report,
                          .message_room = static_cast<uint32_t>(c.MessageRoom())};
  }));
  s.row = nullptr;
  s.fail.reset();
  s.answer.reset();
  s.user_again = s.decides_long = s.reported = false;
  s.writes_users = {};
  const CommandRequest& req = s.request;
  Result<void> parsed = Parse(s);
  // No command has a name as long, and to look for one takes as long as it is.
  s.row = req.name.size() > kShownName ? nullptr : server_.commands().Find(req.name);
  OpenReply(s, out);
  // One load and a comparison; storage is read on a worker only.
  if (c.login.access != nullptr && parsed && s.row != nullptr && (s.row->flags & kNoAuth) == 0 &&
      c.login.access->generation != server_.access().users().generation()) [[unlikely]] {
    s.user_again = true;
    BeginSlot(c, s);
    return false;
  }
  if (parsed && DecidesLong(c, s)) [[unlikely]] {
    s.decides_long = true;
    BeginSlot(c, s);
    return false;
  }
  // Nothing up to here waits.
  if (!parsed) [[unlikely]]
    return Proceed(c, s, out, std::move(parsed));
  return Proceed(c, s, out, Check(c, s));
}

void Dispatcher::BeginSlot(Connection& c, RequestState& s) {
  const CommandRequest& req = s.request;
  BsonView shown = req.body;
  if (s.row != nullptr && (s.row->flags & kSecret) != 0) {
    // One that is decided about on a worker begins twice, and others look at the first meanwhile.
    if (!s.slot_begun)
      s.shown_body = BuildBson([&](BsonBuilder& b) { b.Append(req.name, "(not shown)"); });
    shown = s.shown_body;
  }
  c.slot().Begin(
      *s.op, req.name, req.db, shown, &s.report,
      s.ctx->session != nullptr ? std::string_view(s.ctx->session->id()) : DecidingSession(c, s),
      s.start_micros);
  s.slot_begun = true;
}

bool Dispatcher::Proceed(Connection& c, RequestState& s, std::string& out, Result<void> parsed) {
  const CommandRequest& req = s.request;
  BeginSlot(c, s);
  if (parsed && server_.fail_points().any()) [[unlikely]] {
    s.fail = FireFailCommand(server_.fail_points(), *s.row, req, AppName(c, req), c.slot().desc,
                             c.is_internal_client);
    if (s.fail && s.fail->block_ms == 0) parsed = FailOnPurpose(s);
    if (parsed) parsed = FireMaxTime(server_.fail_points(), *s.op);
  }
  if (s.row != nullptr) {
    s.row->counters->total.fetch_add(1, std::memory_order_relaxed);
    if (!(s.row->flags & kCountsItself)) server_.metrics().opcounters.command.Add();
  }
  if (!parsed) return Finish(c, s, out, std::move(parsed));
  if (req.generic.help) [[unlikely]] {
    s.reply->Append("help",
                    "help for: " + std::string(s.row->name) + " " + std::string(s.row->help));
    return Finish(c, s, out, Ok());
  }
  // A read at a point in time, or behind one, waits for it first.
  const bool waits = (server_.replica_set() != nullptr &&
                      replication_gate::MustWaitBefore(*server_.replica_set(), *s.ctx)) ||
                     (server_.profiler().writing() && OnProfile(req)) || InTransaction(s);
  const bool long_request = IsLong(s);
  if (s.row->run_now != nullptr && !s.fail && !waits && !long_request) {
    if (std::optional<Result<void>> answer = TryNow(s, out))
      return Finish(c, s, out, std::move(*answer));
  }
  if (s.row->run == nullptr || (s.row->flags & kWorker) || long_request || s.fail || waits ||
      (server_.replica_set() != nullptr && (s.row->flags & kTakesWriteConcern)) ||
      ((s.row->flags & kWrites) && server_.fsync_locks.load(std::memory_order_relaxed) > 0))
      [[unlikely]]
    return false;
  return Finish(c, s, out, RunHere(s));
}

std::optional<Result<void>> Dispatcher::TryNow(RequestState& s, std::string& out) {
  try {
    ParseWork work(&*s.op);
    std::optional<Result<void>> answer = s.row->run_now(*s.ctx, s.request, *s.reply);
    if (answer) return answer;
  } catch (...) {
    return Unexpected(s);
  }
  s.reply->Abandon();
  s.reply.emplace(out);
  return std::nullopt;
}

Result<void> Dispatcher::RunHere(RequestState& s) {
  try {
    return RunParsing(s);
  } catch (...) {
    return Unexpected(s);
  }
}

Awaitable<void> Dispatcher::Run(Connection& c, RequestState& s, std::string& out) {
  if (s.user_again || s.decides_long) [[unlikely]] {
    Result<void> decided = co_await DecideOnWorker(c, s);
    s.user_again = s.decides_long = false;
    if (decided) decided = CheckRest(c, s);
    if (Proceed(c, s, out, std::move(decided))) co_return;
  }
  if (s.answer) co_return co_await FinishLong(c, s, out);
  Result<void> result = Ok();
  CommandContext& ctx = *s.ctx;
  if (s.fail && s.fail->block_ms > 0) {
    result =
        co_await ctx.SleepUntil(server_.clock().MonotonicMicros() + MicrosOf(s.fail->block_ms));
    if (result) result = FailOnPurpose(s);
  }
  if ((s.row->flags & kWrites) && !(s.row->flags & kAllowedWhileLocked)) {
    // fsyncUnlock is rare and no client's latency depends on it: poll now and then.
    while (result && server_.fsync_locks.load(std::memory_order_relaxed) > 0)
      result = co_await ctx.SleepUntil(server_.clock().MonotonicMicros() + 20'000);
  }
  if (result && server_.profiler().writing() && OnProfile(s.request)) [[unlikely]] {
    // A client that got an answer finds its entry, as on MongoDB, although it is written later.
    const uint64_t mark = server_.profiler().Mark();
    while (result && !server_.profiler().Written(mark))
      result = co_await ctx.SleepUntil(server_.clock().MonotonicMicros() + 1000);
  }
  ReplicaSet* const set = server_.replica_set();
  if (set != nullptr && result && replication_gate::MustWaitBefore(*set, ctx))
    result = co_await replication_gate::WaitBefore(ctx, InTransaction(s));
  Transactions::Taken transaction(ctx);
  bool ran = false;
  // From here on whatever throws is an answer: the transaction must know that its command is over.
  try {
    if (result && InTransaction(s)) [[unlikely]] {
      result = co_await TransactionsOf(server_)->Begin(ctx, *s.row, s.request, transaction.slot());
      if (result && !transaction->IsSmall()) co_await ctx.MoveToWorker();
    }
    ran = result.has_value();
    std::optional<Result<void>> now;
    // Outside of a transaction this was tried before there was a coroutine.
    if (result && transaction && s.row->run_now != nullptr && !ctx.on_worker && !s.fail &&
        !IsLong(s))
      now = TryNow(s, out);
    if (now) {
      result = std::move(*now);
    } else if (!result) {
      // It cannot begin.
    } else if ((s.row->flags & kWorker) && (s.row->flags & kSecondaryOptIn)) {
      // Reads of data, however large.
      result = co_await ctx.MoveToWorkerWithRoom();
      if (result) result = ctx.CheckNow();  // it may have waited long for its turn
    } else if ((s.row->flags & kWorker) || IsLong(s)) {
      co_await ctx.MoveToWorker();
      result = ctx.CheckNow();
    }
    if (result && !now && s.row->run != nullptr)
      result = RunParsing(s);
    else if (result && !now)
      result = co_await s.row->run_async(ctx, s.request, *s.reply);
  } catch (...) {
    result = Unexpected(s);
  }
  if (transaction) {
    try {
      transaction.End(&result);
    } catch (...) {
      result = Unexpected(s);
    }
  }
  if (ran && ctx.read_shape != 0)
    server_.short_reads().Took(ctx.read_shape, server_.clock().MonotonicMicros() - s.start_micros);
  if (ctx.on_worker) {
    if (s.row->flags & kSecondaryOptIn)
      server_.short_reads().on_workers.fetch_add(1, std::memory_order_relaxed);
    s.request.inner.reset();  // of a large request it takes long
    c.CountReply();           // before the next one is made
    co_await ctx.MoveToIo();
  }
  if (ran) {
    if (set != nullptr && (s.row->flags & kTakesWriteConcern) &&
        replication_gate::MustWaitAfter(ctx) && s.request.db != "local" &&
        (!transaction || EndsTransaction(s.row->name))) {
      if (result) {
        co_await replication_gate::WaitForWriteConcern(ctx, *s.reply);
      } else if (replication_gate::WriteConcernAppliesToError(*s.op, result.error().code)) {
        Error error = result.error();
        std::string details;
        {
          BsonBuilder b(details);
          if (!error.details.empty()) b.AppendAll(BsonView(error.details.data()));
          co_await replication_gate::WaitForWriteConcern(ctx, b);
          b.Done();
        }
        error.details = std::move(details);
        result = std::move(error);
      }
    }
  }
  const bool finished = Finish(c, s, out, std::move(result));
  if (!finished) co_await FinishLong(c, s, out);
}

bool Dispatcher::Finish(Connection& c, RequestState& s, std::string& out, Result<void> result) {
  const bool large = s.header.length > kShortRequest;
  const bool refused = large && LongToRefuse(s, result);
  if (!refused) Complete(s, out, result);
  if (refused || LongToSeal(s, out.size() - s.reply_start) || (large && LongToEnd(s)))
      [[unlikely]] {
    s.answer.emplace(std::move(result));
    return false;
  }
  Seal(s, out);
  Account(c, s, out, result);
  return true;
}

Awaitable<void> Dispatcher::FinishLong(Connection& c, RequestState& s, std::string& out) {
  co_await s.ctx->MoveToWorker();
  // An error here ends the connection, but on its own thread.
  std::exception_ptr failed;
  try {
    if (s.reply) Complete(s, out, *s.answer);  // LongToRefuse
    c.CountReply();
    Seal(s, out);
    c.CountReply();
    ReportIfDue(s, *s.answer, Took(s), out);
    s.request.inner.reset();
    s.request.DropSequences();
  } catch (...) {
    failed = std::current_exception();
  }
  co_await s.ctx->MoveToIo();
  if (failed) std::rethrow_exception(failed);
  const Result<void> result = std::move(*s.answer);
  s.answer.reset();
  Account(c, s, out, result);
}

void Dispatcher::Complete(RequestState& s, std::string& out, Result<void>& result) {
  ServerMetrics& metrics = server_.metrics();
  if (result && s.reply->size() > static_cast<size_t>(kMaxBsonInternalSize)) [[unlikely]]
    result =
        Error{ErrorCode::kBSONObjectTooLarge, "the reply would be larger than a document may be"};
  if (!result && result.error().message.size() > kMaxErrorMessage) [[unlikely]] {
    // For the log as well, which is written on the io thread.
    Error error = result.error();
    error.message.resize(CutUtf8(error.message, kMaxErrorMessage).size());
    result = std::move(error);
  }
  if (!result) {
    s.reply->Abandon();
    s.reply.emplace(out);
    AppendError(*s.reply, result.error());
    if (s.row != nullptr)
      AppendLabels(s, result.error().code,
                   !result.error().details.empty() &&
                       !BsonView(result.error().details.data())["errorLabels"].missing());
    if (server_.replica_set() != nullptr)
      replication_gate::AppendErrorDetails(*s.ctx, result.error().code, *s.reply);
    if (s.row != nullptr) s.row->counters->failed.fetch_add(1, std::memory_order_relaxed);
    const ErrorCode code = result.error().code;
    if (code == ErrorCode::kUnauthorized) AuditRefusedCommand(*s.ctx, s.row, s.request, code);
    if (code == ErrorCode::kInterrupted)
      metrics.operation.killed_ops.Add();
    else if (code == ErrorCode::kMaxTimeMSExpired)
      metrics.operation.timed_out.Add();
    if (code == ErrorCode::kInternalError)
      metrics.asserts.regular.Add();
    else
      metrics.asserts.user.Add();
    s.ctx->more_to_come = false;
  } else {
    if (s.fail && !s.fail->write_concern_error.view().empty()) [[unlikely]] {
      s.reply->Append("writeConcernError", s.fail->write_concern_error);
      // A statement of a transaction has nothing yet that a write concern could be about.
      if (!InTransaction(s) || EndsTransaction(s.row->name))
        AppendLabels(
            s, static_cast<ErrorCode>(s.fail->write_concern_error.view()["code"].NumberAsInt64()),
            false);
    }
    s.reply->Append("ok", 1.0);
  }
  if (server_.replica_set() != nullptr) replication_gate::AppendTimes(server_, *s.op, *s.reply);
  s.reply->Done();
  s.reply.reset();
  if (s.ctx->more_to_come && !s.legacy) {
    // The flags follow the 16 bytes of the header.
    char* flags = out.data() + s.reply_start + kMessageHeaderSize;
    StoreLe<uint32_t>(flags, LoadLe<uint32_t>(flags) | kMsgMoreToCome);
  }
  if (Silent(s)) out.resize(s.reply_start);
}

void Dispatcher::Seal(RequestState& s, std::string& out) {
  if (Silent(s)) return;
  ServerMetrics& metrics = server_.metrics();
  FinishMessage(out, s.reply_start);
  const auto before = static_cast<int64_t>(out.size() - s.reply_start);
  metrics.network.bytes_out.Add(before);
  if (!Compresses(s) || !CompressMessage(out, s.reply_start, s.compressor)) return;
  ServerMetrics::Compression& m = metrics.compression(static_cast<int>(s.compressor));
  m.compressed_in.Add(before);
  m.compressed_out.Add(static_cast<int64_t>(out.size() - s.reply_start));
}

void Dispatcher::Account(Connection& c, RequestState& s, const std::string& out,
                         const Result<void>& result) {
  ServerMetrics& metrics = server_.metrics();
  const int64_t micros = Took(s);
  const Operation& op = *s.op;
  if (op.docs_examined | op.keys_examined | op.n_returned) {
    metrics.query_executor.scanned.Add(op.keys_examined);
    metrics.query_executor.scanned_objects.Add(op.docs_examined);
    if (s.report.plan_summary.starts_with("COLLSCAN"))
      metrics.query_executor.collection_scans.Add();
  }
  if (op.has_sort_stage) metrics.operation.scan_and_order.Add();
  if (op.sorted_keys != 0) {
    metrics.query_sort.sort_keys.Add(op.sorted_keys);
    metrics.query_sort.sort_total_bytes.Add(op.sorted_bytes);
    metrics.query_sort.sort_spills.Add(op.sort_spills);
  }
  if (op.write_conflicts != 0) metrics.operation.write_conflicts.Add(op.write_conflicts);
  if (s.row != nullptr) {
    // A failed command may have written before.
    if (s.writes_users.any() && (result || op.n_inserted + op.n_deleted + op.n_modified != 0))
        [[unlikely]]
      AuditDirectMutation(*s.ctx, *s.row, s.writes_users,
                          result ? ErrorCode::kOk : result.error().code);
    if (!(s.row->flags & kNoProfile)) {
      LatencyHistogram& h = (s.row->flags & kWrites)             ? metrics.writes
                            : (s.row->flags & kTakesReadConcern) ? metrics.reads
                                                                 : metrics.commands;
      h.Record(micros);
      // What was refused leaves no names of the sender's choice there.
      if ((s.row->flags & (kWrites | kTakesReadConcern)) &&
          (result || (result.error().code != ErrorCode::kUnauthorized && !c.BeforeLogin())))
        RecordTop(c, s, micros);
    }
    ReportIfDue(s, result, micros, out);
  }
  c.slot().End();
  s.slot_begun = false;
  s.session_use.Reset();
  s.request.inner.reset();  // their memory
  s.request.DropSequences();
}

Result<void> Dispatcher::FailOnPurpose(RequestState& s) {
  if (s.fail->close_connection) {
    s.ctx->close_connection = true;
    return Error{ErrorCode::kClientDisconnect, "closed by the failpoint failCommand"};
  }
  if (s.fail->error) return *s.fail->error;
  return Ok();
}

void Dispatcher::AppendLabels(RequestState& s, ErrorCode code, bool has_labels) {
  if (s.fail && s.fail->labels) {
    if (s.fail->labels->empty()) return;
    BsonArrayBuilder list = s.reply->OpenArray("errorLabels");
    for (const std::string& label : *s.fail->labels) list.Append(label);
    return;
  }
  // These two say it whatever the cursor: drivers look at the label alone.
  if (!has_labels &&
      (code == ErrorCode::kChangeStreamFatalError || code == ErrorCode::kChangeStreamHistoryLost) &&
      (s.row->name == "getMore" || s.row->name == "aggregate")) {
    s.reply->OpenArray("errorLabels").Append("NonResumableChangeStreamError");
    return;
  }
  if (InTransaction(s)) {
    const bool ends = EndsTransaction(s.row->name),
               transient = IsTransientTransactionError(code, ends);
    const bool again = ends && IsRetryableWriteError(code);
    if (has_labels || !(transient || again)) return;
    BsonArrayBuilder list = s.reply->OpenArray("errorLabels");
    if (again) list.Append("RetryableWriteError");
    if (transient) list.Append("TransientTransactionError");
    return;
  }
  if (has_labels || !s.request.generic.txn_number || !(s.row->flags & kRetryableWrite) ||
      !IsRetryableWriteError(code))
    return;
  BsonArrayBuilder list = s.reply->OpenArray("errorLabels");
  list.Append("RetryableWriteError");
  // Drivers then report an earlier error of the same write rather than this one.
  const Operation& op = *s.op;
  if (op.n_inserted + op.n_deleted + op.n_modified == 0) list.Append("NoWritesPerformed");
}

}  // namespace mayfly

// Transactions in serverStatus, currentOp, the log and the profile.
#include "server/execution/transaction_report.h"

#include "protocol/micros.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/execution/session_store.h"
#include "server/execution/transactions.h"

namespace mayfly {
namespace {

constexpr std::string_view kEndNames[kTransactionEnds] = {"committed", "client",   "conflict",
                                                          "error",     "lifetime", "session",
                                                          "newer",     "stepDown", "shutdown"};

std::string LocalTime(Instant t) { return FormatTimestamp(t, TimestampFormat::kIso8601Local); }

void AppendParameters(const TransactionView& v, BsonBuilder& out) {
  out.Append("txnNumber", v.number).Append("autocommit", false);
  if (!v.read_concern.view().empty()) out.Append("readConcern", v.read_concern);
}

void AppendTransactionCosts(const TransactionCosts& c, BsonBuilder& out) {
  out.Append("keysExamined", c.keys_examined).Append("docsExamined", c.docs_examined);
  if (c.n_matched) out.Append("nMatched", c.n_matched);
  if (c.n_modified) out.Append("nModified", c.n_modified);
  if (c.n_inserted) out.Append("ninserted", c.n_inserted);
  if (c.n_deleted) out.Append("ndeleted", c.n_deleted);
  if (c.n_returned) out.Append("nreturned", c.n_returned);
  if (c.keys_inserted) out.Append("keysInserted", c.keys_inserted);
  if (c.keys_deleted) out.Append("keysDeleted", c.keys_deleted);
  if (c.write_conflicts) out.Append("writeConflicts", c.write_conflicts);
  out.Append("numYields", c.yields);
}

void AppendWritten(const TransactionCosts& c, BsonBuilder& out) {
  BsonArrayBuilder list = out.OpenArray("collections");
  for (const std::string& ns : c.written) list.Append(ns);
}

/// The common part of the line and the entry.
void AppendFinished(const FinishedTransaction& f, BsonBuilder& out) {
  const TransactionView& v = f.view;
  out.AppendTimestamp("readTimestamp", v.read_ts);
  out.Append("commands", v.costs.commands);
  const bool committed = f.end == TransactionEnd::kCommitted;
  out.Append("terminationCause", committed ? "committed" : "aborted");
  if (!committed) out.Append("abortedBy", TransactionEndName(f.end));
  out.Append("timeActiveMicros", v.costs.active_micros);
  out.Append("timeInactiveMicros", std::max<int64_t>(0, v.open_micros - v.costs.active_micros));
  {
    BsonBuilder locks = out.OpenDocument("locks");
    locks.Append("documents", static_cast<int64_t>(v.costs.locks));
    AppendWritten(v.costs, locks);
  }
  out.Append("wasPrepared", false);
}

void AppendLsid(std::string_view key, BsonBuilder& out) {
  BsonBuilder lsid = out.OpenDocument("lsid");
  AppendSessionId(lsid, key);
}

/// The attributes of the log's line, as MongoDB's (id 51802).
BsonDocument LogAttributes(const FinishedTransaction& f) {
  return BuildBson([&](BsonBuilder& b) {
    {
      BsonBuilder p = b.OpenDocument("parameters");
      AppendLsid(f.view.session, p);
      AppendParameters(f.view, p);
    }
    AppendTransactionCosts(f.view.costs, b);
    AppendFinished(f, b);
    b.Append("durationMillis", f.view.open_micros / 1000);
  });
}

/// The transaction as if it were one command, for the profiler.
BsonDocument TransactionAsCommand(const FinishedTransaction& f) {
  return BuildBson([&](BsonBuilder& b) {
    AppendLsid(f.view.session, b);
    AppendParameters(f.view, b);
    AppendFinished(f, b);
  });
}

}  // namespace

std::string_view TransactionEndName(TransactionEnd end) {
  return kEndNames[static_cast<size_t>(end)];
}

void TransactionCosts::Add(const Operation& op) {
  ++commands;
  keys_examined += op.keys_examined;
  docs_examined += op.docs_examined;
  n_returned += op.n_returned;
  n_inserted += op.n_inserted;
  n_deleted += op.n_deleted;
  n_matched += op.n_matched;
  n_modified += op.n_modified;
  keys_inserted += op.keys_inserted;
  keys_deleted += op.keys_deleted;
  write_conflicts += op.write_conflicts;
  yields += op.yields;
}

void TransactionCosts::CopyTo(Operation& op) const {
  op.keys_examined = keys_examined;
  op.docs_examined = docs_examined;
  op.n_returned = n_returned;
  op.n_inserted = n_inserted;
  op.n_deleted = n_deleted;
  op.n_matched = n_matched;
  op.n_modified = n_modified;
  op.keys_inserted = keys_inserted;
  op.keys_deleted = keys_deleted;
  op.write_conflicts = write_conflicts;
  op.yields = yields;
}

void TransactionView::Append(BsonBuilder& out) const {
  {
    BsonBuilder p = out.OpenDocument("parameters");
    AppendParameters(*this, p);
  }
  out.AppendTimestamp("readTimestamp", read_ts);
  out.Append("startWallClockTime", LocalTime(began));
  out.Append("timeOpenMicros", open_micros).Append("timeActiveMicros", costs.active_micros);
  out.Append("timeInactiveMicros", std::max<int64_t>(0, open_micros - costs.active_micros));
  out.Append("expiryTime", LocalTime(Instant{began.millis + lifetime_secs * 1000}));
  // Mayfly's own.
  out.Append("commands", costs.commands);
  out.Append("documentsChanged", static_cast<int64_t>(costs.documents));
  out.Append("locks", static_cast<int64_t>(costs.locks));
  out.Append("bytes", static_cast<int64_t>(costs.bytes));
  AppendWritten(costs, out);
}

void ReportTransaction(ServerContext& server, int64_t micros,
                       const std::function<FinishedTransaction()>& make) {
  Profiler& profiler = server.profiler();
  const bool verbose = server.log().Enabled(LogSeverity::kDebug1, LogComponent::kTxn);
  if (micros < MicrosOf(profiler.slow_ms.load(std::memory_order_relaxed)) && !profiler.active() &&
      !verbose)
    return;
  const FinishedTransaction f = make();
  const BsonDocument command = TransactionAsCommand(f);
  CommandRequest request;
  if (!ParseCommandFields(command.view(), &request, f.view.db)) return;
  OperationReport report;
  report.op = "transaction";
  report.ns = f.view.db + ".$cmd";
  Operation sum(server.clock());
  f.view.costs.CopyTo(sum);
  const FinishedOperation whole{.op = sum,
                                .report = report,
                                .client = nullptr,
                                .request = request,
                                .micros = micros,
                                .user = f.view.user ? &*f.view.user : nullptr};
  const Profiler::Verdict v = profiler.Judge(whole);
  if (v.profile && f.end != TransactionEnd::kShutdown) profiler.Write(server, whole);
  if (!v.log && !verbose) return;
  auto write = [&server, slow = v.log, line = LogAttributes(f)] {
    server.log().Write(slow ? LogSeverity::kInfo : LogSeverity::kDebug1, LogComponent::kTxn, 51802,
                       "transaction", line);
  };
  // There are no workers any more.
  if (f.end == TransactionEnd::kShutdown)
    write();
  else
    server.workers().Post(std::move(write));
}

void AppendTransactionStatus(ServerContext& server, BsonBuilder& out) {
  const ServerMetrics& m = server.metrics();
  out.Append("retriedCommandsCount", m.retried_commands.Get());
  out.Append("retriedStatementsCount", m.retried_statements.Get());
  TransactionTotals t;
  if (Transactions* transactions = TransactionsOf(server)) t = transactions->totals();
  out.Append("transactionsCollectionWriteCount", t.rows);
  out.Append("currentActive", t.active).Append("currentInactive", t.open - t.active);
  out.Append("currentOpen", t.open).Append("totalStarted", t.started);
  out.Append("totalCommitted", t.ended[static_cast<size_t>(TransactionEnd::kCommitted)]);
  out.Append("totalAborted", t.aborted());
  // Only what spans shards is ever prepared.
  for (const char* name : {"totalPrepared", "totalPreparedThenCommitted",
                           "totalPreparedThenAborted", "currentPrepared"})
    out.Append(name, int64_t{0});
  if (t.last) {
    BsonBuilder last = out.OpenDocument("lastCommittedTransaction");
    last.Append("operationCount", t.last->operations);
    last.Append("oplogOperationBytes", t.last->bytes);
    replication_gate::AppendWriteConcern(t.last->write_concern, last);
  }
  // Mayfly's own.
  {
    BsonBuilder by = out.OpenDocument("abortedBy");
    for (size_t i = 1; i < kTransactionEnds; ++i) by.Append(kEndNames[i], t.ended[i]);
  }
  out.Append("conflicts", t.conflicts).Append("oldestOpenMillis", t.oldest_micros / 1000);
  out.Append("bytes", t.bytes);
}

}  // namespace mayfly

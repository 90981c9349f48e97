// Records of a finished command: the slow log, the profile, `top`.
#include "server/dispatch/server_context.h"
#include "server/net/dispatcher.h"

namespace mayfly {

bool Dispatcher::AdmitStranger() {
  std::lock_guard l(strangers_mutex_);
  return strangers_.Take(server_.clock().MonotonicMicros() / 1'000'000);
}

int64_t Dispatcher::Took(const RequestState& s) const {
  return server_.clock().MonotonicMicros() - s.start_micros - s.ctx->waited_micros;
}

bool Dispatcher::Reports(const RequestState& s, int64_t micros) const {
  if (s.row == nullptr || (s.row->flags & kNoProfile) != 0) return false;
  const Profiler& p = server_.profiler();
  return micros >= MicrosOf(p.slow_ms.load(std::memory_order_relaxed)) || p.active() ||
         server_.log().Enabled(LogSeverity::kDebug1, LogComponent::kCommand);
}

bool Dispatcher::LongToRefuse(const RequestState& s, const Result<void>& result) const {
  return !result && result.error().code == ErrorCode::kUnauthorized && s.row != nullptr &&
         server_.audit() != nullptr;
}

bool Dispatcher::LongToEnd(const RequestState& s) const {
  return s.request.inner != nullptr || s.request.sequences_hold.held() != 0 || Reports(s, Took(s));
}

void Dispatcher::ReportIfDue(RequestState& s, const Result<void>& result, int64_t micros,
                             const std::string& out) {
  if (s.reported || !Reports(s, micros)) [[likely]]
    return;
  s.reported = true;
  Report(s, result ? nullptr : &result.error(), micros,
         static_cast<int64_t>(out.size() - s.reply_start));
}

void Dispatcher::Report(RequestState& s, const Error* error, int64_t micros, int64_t reply_bytes) {
  const FinishedOperation f{*s.op,  s.report, s.ctx->client, s.request,
                            micros, error,    reply_bytes,   &server_};
  Profiler::Verdict v = server_.profiler().Judge(f);
  // Who has not logged in writes to no collection, and pushes out no entries of others.
  const bool stranger = s.ctx->connection != nullptr && s.ctx->connection->BeforeLogin();
  if (stranger) v.profile = false;
  const bool verbose = server_.log().Enabled(LogSeverity::kDebug1, LogComponent::kCommand);
  if ((v.log || verbose) && (!stranger || AdmitStranger()))
    server_.log().Write(v.log ? LogSeverity::kInfo : LogSeverity::kDebug1, LogComponent::kCommand,
                        51803, "Slow query", Profiler::LogAttributes(f),
                        f.client ? std::string_view(f.client->desc) : std::string_view());
  if (v.profile) server_.profiler().Write(server_, f);
}

void Dispatcher::RecordTop(Connection& c, const RequestState& s, int64_t micros) {
  // By namespace: commands on a collection, whose name is the first field or what the command
  // reported.
  std::string_view ns = s.report.ns;
  std::string& scratch = c.top_scratch;
  if (ns.empty()) {
    const BsonValue first = s.request.fields[0].value;
    if (!first.IsString()) return;
    if (first.String().size() > Top::kMaxNameBytes) {
      ns = Top::kOthers;
    } else {
      scratch.assign(s.request.db).append(1, '.').append(first.String());
      ns = scratch;
    }
  }
  if (c.top_entry == nullptr || c.top_ns != ns) {
    c.top_ns = ns;
    c.top_entry = server_.top().Find(ns);
  }
  const std::string_view op = s.report.op;
  const Top::Kind kind = op == "query"     ? Top::kQueries
                         : op == "getmore" ? Top::kGetMore
                         : op == "insert"  ? Top::kInsert
                         : op == "update"  ? Top::kUpdate
                         : op == "remove"  ? Top::kRemove
                                           : Top::kCommands;
  c.top_entry->Record(kind, (s.row->flags & kWrites) != 0, micros);
  if (s.report.plan_summary.starts_with("COLLSCAN")) {
    c.top_entry->collection_scans.Add();
    for (const CommandField& f : s.request.fields)
      if (f.name == "tailable" && f.value.Truthy()) c.top_entry->tailable_scans.Add();
  }
}

}  // namespace mayfly

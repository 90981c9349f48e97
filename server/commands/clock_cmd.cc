#include "query/plan/query_state.h"
#include "replication/repl_config.h"
#include "replication/replica_set.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/execution/transactions.h"
#include "server/privileges/privileges.h"
#include "ttl/ttl_monitor.h"

namespace mayfly {

namespace {

constexpr int64_t kLatest = 253'402'300'799'999;  ///< the end of the year 9999

/// Members of a set on other machines have clocks that this one does not move: documents would
/// expire here that are alive there.
Result<void> CheckOneHost(ServerContext& server) {
  ReplicaSet* set = server.replica_set();
  if (set == nullptr) return Ok();
  const TopologyPtr t = set->topology();
  if (!t->config) return Ok();
  auto host_of = [](const std::string& text) {
    std::string host;
    int port = 0;
    if (!SplitHostAndPort(text, &host, &port)) return text;
    return host == "127.0.0.1" || host == "::1" ? std::string("localhost") : host;
  };
  const std::string own = host_of(
      t->self >= 0 ? t->config->members[static_cast<size_t>(t->self)].host : set->self_host());
  for (const MemberConfig& m : t->config->members)
    if (host_of(m.host) != own)
      return Error{ErrorCode::kIllegalOperation,
                   "the clock cannot be moved in a replica set with members on other hosts: " +
                       m.host + " is not on " + own};
  return Ok();
}

/// {clock: 1} reads it; {clock: "real"}, {clock: {advanceSeconds | advanceMillis: n}}, {clock:
/// {set: date}}, {clock: {freeze: bool}} change it; {clock: {pass: true}} runs a pass of the TTL
/// monitor; with jump: true the clock guard sees the change as it would see a clock gone wrong.
/// When the command returns, everything due by then is gone: a test needs no waiting.
Result<void> RunClock(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  SystemClock& clock = ctx.data.clock();
  const BsonValue v = req.fields[0].value;
  bool moved = false, pass = false;
  if (v.IsString() || v.IsDocument()) {
    MAYFLY_TRY(CheckOneHost(ctx.server));
  }
  if (v.IsString()) {
    if (v.String() != "real")
      return Error{ErrorCode::kBadValue, "clock takes 1, \"real\" or a document"};
    clock.Reset();
    moved = true;
  } else if (v.IsDocument()) {
    ArgReader args("clock", v.Document());
    const auto seconds = args.OptDouble("advanceSeconds");
    const auto millis = args.OptInt64("advanceMillis");
    const BsonValue set = args.Any("set");
    const auto freeze = args.OptBool("freeze");
    pass = args.BoolOr("pass", false);
    const bool jump = args.BoolOr("jump", false);
    if (!set.missing() && !set.IsDate()) args.Fail(args.WrongType("set", set.type(), "date"));
    MAYFLY_TRY(args.Finish());
    if (v.Document().empty())
      return Error{
          ErrorCode::kBadValue,
          "clock: {} does nothing: give set, advanceSeconds, advanceMillis, freeze or pass"};
    // Checked before anything moves.
    double to = static_cast<double>(set.missing() ? clock.Now().millis : set.Date().millis);
    if (seconds) to += *seconds * 1000;
    if (millis) to += static_cast<double>(*millis);
    if (!(to >= 0 && to <= static_cast<double>(kLatest)))
      return Error{ErrorCode::kBadValue, "the clock can be moved within the years 1970 to 9999"};
    if (jump && ctx.expiry.ttl_monitor) ctx.expiry.ttl_monitor->clock_guard().TakeNextAsJump();
    if (freeze && *freeze) clock.Freeze(true);
    if (!set.missing()) clock.Set(set.Date());
    if (seconds) clock.Advance(static_cast<int64_t>(*seconds * 1000));
    if (millis) clock.Advance(*millis);
    if (freeze && !*freeze) clock.Freeze(false);
    moved = freeze || !set.missing() || seconds || millis;
  } else if (!v.IsNumber() || v.NumberAsDouble() != 1) {
    return Error{v.IsNumber() ? ErrorCode::kBadValue : ErrorCode::kTypeMismatch,
                 "clock takes 1, \"real\" or a document"};
  }
  if (moved || pass) {
    if (pass && ctx.server.ttl_pass_hook) ctx.server.ttl_pass_hook(ctx.op);
    if (moved) {
      ctx.data.cursors().Sweep(ctx.data.settings().cursor_timeout_millis);
      ctx.data.snapshot_reads().Sweep();
      if (ctx.data.has_storage())
        QueryState::Of(ctx.data.storage())
            .held.Sweep(clock, ctx.data.settings().series_cursor_life_secs);
      if (TransactionsOf(ctx.data) != nullptr) TransactionsOf(ctx.data)->Sweep();
      ctx.data.sessions().Sweep(clock.Now(),
                                ctx.data.settings().local_session_timeout_minutes * 60'000);
      if (ctx.server.settle_hook) ctx.server.settle_hook(ctx.op);
    }
    MAYFLY_TRY(ctx.op.CheckInterruptNow());
  }
  reply.Append("now", clock.Now()).Append("frozen", clock.frozen());
  return Ok();
}

}  // namespace

void RegisterClock(CommandRegistry& registry) {
  registry.Add({.name = "clock",
                .flags = kAdminOnly | kTestOnly | kWorker | kNoProfile,
                .help = "Reads or moves the server's clock (--testClock).",
                .run = &RunClock,
                .privileges = &privileges::OnCluster<Action::setParameter>});
}

}  // namespace mayfly

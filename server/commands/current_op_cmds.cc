#include "query/match/match_expression.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/execution/current_op.h"
#include "server/privileges/check.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

/// The command's other fields are a filter over the operations, as in MongoDB.
Result<void> CurrentOp(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  CurrentOpOptions options;
  BsonDocument filter = BuildBson([&](BsonBuilder& b) {
    for (size_t i = 1; i < req.fields.size(); ++i) {
      const CommandField& f = req.fields[i];
      if (f.name == "$all")
        options.idle_connections = f.value.Truthy();
      else if (f.name == "$ownOps")
        options.own_only = f.value.Truthy();
      else if (f.name == "$truncateOps")
        options.truncate = f.value.Truthy();
      else if (!f.generic)
        b.Append(f.name, f.value);
    }
  });
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter.view()));
  {
    EvalContext eval;
    eval.now = ctx.op.now;
    eval.op = &ctx.op;
    BsonArrayBuilder ops = reply.OpenArray("inprog");
    Asker asker = AskerOf(ctx.server, ctx.op);
    if (ctx.client != nullptr) asker.connection_id = ctx.client->connection_id;
    for (const BsonDocument& op : CollectOperations(ctx.server, asker, options)) {
      MAYFLY_TRY(ctx.op.CheckInterrupt());
      MAYFLY_TRY(bool wanted, match->Matches(op.view(), &eval));
      if (wanted && ops.size() + op.bytes().size() < static_cast<size_t>(kMaxBsonUserSize) - 4096)
        ops.Append(op.view());
    }
  }
  if (ctx.server.fsync_locks > 0) {
    reply.Append("fsyncLock", true);
    reply.Append("info", "use db.fsyncUnlock() to terminate the fsync write/snapshot lock");
  }
  return Ok();
}

Result<void> KillOp(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const BsonValue op = in.Any("op");
  MAYFLY_TRY(in.Finish());
  if (op.missing()) return Error{ErrorCode::kNoSuchKey, "Did not provide \"op\" field"};
  if (!op.IsNumber())
    return Error{ErrorCode::kTypeMismatch, "\"op\" had the wrong type. Expected a number, found " +
                                               std::string(BsonTypeName(op.type()))};
  reply.Append("info", "attempting to kill op");
  const int64_t id = op.NumberAsInt64();
  if (ctx.access == nullptr || ctx.access->privileges.AllowsOnCluster({Action::killop})) {
    if (id > 0) ctx.server.operations().Kill(static_cast<uint64_t>(id));
    return Ok();
  }
  // Without the action: only one's own. The reply does not reveal others with this number.
  const int killed = ctx.server.operations().KillWhere(
      [&](const ClientSlot::View& v) {
        return id > 0 && v.op->id == static_cast<uint64_t>(id) && v.user != nullptr &&
               *v.user == ctx.access->user.name;
      },
      ErrorCode::kInterrupted);
  if (killed > 0) return Ok();
  return privileges::NotAuthorized({req, ctx.access->privileges, &ctx.access->user.name});
}

}  // namespace

void RegisterCurrentOp(CommandRegistry& registry) {
  registry.Add({.name = "currentOp",
                .flags = kAdminOnly | kSecondaryOk | kWorker,
                .help = "Operations that run now; further fields filter them.",
                .run = &CurrentOp,
                .privileges = &privileges::CurrentOp});
}

void RegisterKillOp(CommandRegistry& registry) {
  registry.Add({.name = "killOp",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Interrupts the operation {op: id}.",
                .run = &KillOp,
                .privileges = &privileges::LoggedIn});
}

}  // namespace mayfly

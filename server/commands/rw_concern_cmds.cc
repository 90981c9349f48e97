#include "server/dispatch/arg_reader.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {
namespace {

void AppendValues(const RWConcernDefaults::Values& v, BsonBuilder& reply) {
  const bool has_write = !v.write.view().empty(), has_read = !v.read.view().empty();
  if (has_read) {
    reply.Append("defaultReadConcern", v.read);
  } else {
    BsonBuilder r = reply.OpenDocument("defaultReadConcern");
    r.Append("level", "local");
  }
  if (has_write) {
    reply.Append("defaultWriteConcern", v.write);
  } else {
    BsonBuilder w = reply.OpenDocument("defaultWriteConcern");
    w.Append("w", "majority").Append("wtimeout", 0);
  }
  if (v.update_op_time != 0)
    reply.AppendTimestamp("updateOpTime", v.update_op_time)
        .Append("updateWallClockTime", Instant{v.update_wall_millis});
  reply.Append("defaultWriteConcernSource", has_write ? "global" : "implicit");
  reply.Append("defaultReadConcernSource", has_read ? "global" : "implicit");
  reply.Append("localUpdateWallClockTime", Instant{v.local_wall_millis});
}

Result<void> Get(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  if (ctx.data.replica_set() == nullptr)
    return Error{LocationCode(51300),
                 "'getDefaultRWConcern' is not supported on standalone nodes."};
  ArgReader in(req);
  in.LooseBoolOr("inMemory", false);  // unused: what is in memory is what is on disk
  MAYFLY_TRY(in.Finish());
  AppendValues(*ctx.server.rw_defaults().get(), reply);
  return Ok();
}

Result<void> SetDefaults(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ReplicaSet* set = ctx.data.replica_set();
  if (set == nullptr)
    return Error{LocationCode(51301),
                 "'setDefaultRWConcern' is not supported on standalone nodes."};
  // Not the default that it changes, which may be one that cannot be reached any more.
  if (!ctx.write_concern.given) {
    ctx.write_concern = {};
    ctx.write_concern.majority = true;
  }
  ArgReader in(req);
  const auto read = in.OptDocument("defaultReadConcern");
  const auto write = in.OptDocument("defaultWriteConcern");
  MAYFLY_TRY(in.Finish());
  if (!read && !write)
    return Error{ErrorCode::kBadValue,
                 "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields "
                 "must be present"};
  RWConcernDefaults::Values next = *ctx.server.rw_defaults().get();
  if (write) {
    if (write->empty()) {
      if (!next.write.view().empty())
        return Error{ErrorCode::kIllegalOperation,
                     "The global default write concern cannot be unset once it is set."};
      next.write = BsonDocument();
    } else {
      MAYFLY_TRY(WriteConcern wc, ParseWriteConcern(write->AsValue(), true));
      if (wc.unacknowledged)
        return Error{ErrorCode::kBadValue,
                     "Unacknowledged write concern is not allowed as a default write concern"};
      WriteConcernTarget target{wc.majority, wc.w, wc.mode, wc.journal};
      MAYFLY_TRY(set->CheckTarget(target));
      next.write = BuildBson([&](BsonBuilder& b) {
        if (wc.majority)
          b.Append("w", "majority");
        else if (!wc.mode.empty())
          b.Append("w", wc.mode);
        else
          b.Append("w", static_cast<int32_t>(wc.w));
        if (wc.journal) b.Append("j", true);
        b.Append("wtimeout", static_cast<int32_t>(wc.wtimeout_ms));
      });
    }
  }
  if (read) {
    if (read->empty()) {
      next.read = BsonDocument();
    } else {
      for (const BsonElement& e : *read)
        if (e.name != "level")
          return Error{
              ErrorCode::kBadValue,
              "The default read concern may only have a level, not '" + std::string(e.name) + "'"};
      const BsonValue level = (*read)["level"];
      if (!level.IsString() || (level.String() != "local" && level.String() != "available" &&
                                level.String() != "majority"))
        return Error{ErrorCode::kBadValue,
                     "level: the default read concern must be local, available or majority"};
      next.read = BsonDocument(*read);
    }
  }
  next.update_op_time = set->cluster_time();
  next.update_wall_millis = ctx.op.now.millis;
  MAYFLY_TRY(ctx.server.rw_defaults().Set(ctx.data.storage(), ctx.op, std::move(next)));
  AppendValues(*ctx.server.rw_defaults().get(), reply);
  return Ok();
}

}  // namespace

void RegisterReplicationConcerns(CommandRegistry& registry) {
  registry.Add({.name = "getDefaultRWConcern",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "The read and write concerns of commands that name none.",
                .run = &Get,
                .privileges = &privileges::OnCluster<Action::getDefaultRWConcern>});
  registry.Add({.name = "setDefaultRWConcern",
                .flags = kAdminOnly | kWrites | kWorker | kTakesWriteConcern,
                .help = "Sets the read and write concerns of commands that name none.",
                .run = &SetDefaults,
                .privileges = &privileges::OnCluster<Action::setDefaultRWConcern>});
}

}  // namespace mayfly

#include "protocol/bson_validate.h"
#include "protocol/micros.h"
#include "server/commands/repl_status.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"
#include "server/privileges/privileges.h"

namespace mayfly {
namespace {

Error NoReplication(std::string_view message = "not running with --replSet") {
  return {ErrorCode::kNoReplicationEnabled, std::string(message)};
}

Result<ReplicaSet*> Set(CommandContext& ctx) {
  if (ctx.data.replica_set() == nullptr) return NoReplication();
  return ctx.data.replica_set();
}

/// The set, once it is initiated. Errors: 76, NotYetInitialized 94.
Result<ReplicaSet*> InitiatedSet(CommandContext& ctx) {
  MAYFLY_TRY(ReplicaSet * set, Set(ctx));
  if (!set->topology()->config)
    return Error{ErrorCode::kNotYetInitialized, "no replset config has been received"};
  return set;
}

/// replSetReconfig. `old`: null for a set that is made.
void AuditReconfig(CommandContext& ctx, const ReplConfig* old, ReplicaSet& set) {
  Audit(ctx, "replSetReconfig", [&](BsonBuilder& p) {
    if (old != nullptr)
      p.Append("old", old->ToBson());
    else
      p.OpenDocument("old").Done();
    const TopologyPtr now = set.topology();
    if (now->config) p.Append("new", now->config->ToBson());
  });
}

Result<void> Initiate(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  if (ctx.data.replica_set() == nullptr)
    return NoReplication("This node was not started with replication enabled.");
  ReplicaSet& set = *ctx.data.replica_set();
  MAYFLY_TRY(NoArguments(req));
  const BsonValue v = req.fields[0].value;
  std::optional<BsonView> config;
  if (v.IsDocument() && !v.Document().empty())
    config = v.Document();
  else if (!v.IsDocument() && !v.IsNullish() && !v.IsNumber() && !v.Is(BsonType::kBool))
    return Error{ErrorCode::kTypeMismatch, "BSON field 'replSetInitiate' is the wrong type '" +
                                               std::string(BsonTypeName(v.type())) +
                                               "', expected type 'object'"};
  MAYFLY_TRY(set.Initiate(config));
  AuditReconfig(ctx, nullptr, set);
  if (!config)
    reply.Append("info2", "no configuration specified. Using a default configuration for the set")
        .Append("me", set.self_host());
  return Ok();
}

/// A mode that is the default write concern cannot go: every write would answer that it is not
/// known.
Result<void> KeepsDefaultMode(ServerContext& server, ReplicaSet& set, BsonView next) {
  const std::string mode = server.rw_defaults().write_concern().mode;
  const TopologyPtr t = set.topology();
  if (mode.empty() || !t->config || !t->config->modes.contains(mode)) return Ok();
  if (const BsonValue modes = next.FindPath("settings.getLastErrorModes");
      modes.IsDocument() && modes.Document().Has(mode))
    return Ok();
  return Error{
      LocationCode(103),
      "the new configuration has no getLastErrorModes." + mode +
          ", which is the default write concern: set another one with setDefaultRWConcern first"};
}

Result<void> Reconfig(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(ReplicaSet * set, Set(ctx));
  ArgReader in(req);
  const BsonView config = in.Document("replSetReconfig");
  const bool force = in.LooseBoolOr("force", false);
  MAYFLY_TRY(in.Finish());
  if (!force) {
    MAYFLY_TRY(KeepsDefaultMode(ctx.server, *set, config));
  }
  const TopologyPtr before = set->topology();
  MAYFLY_TRY(set->Reconfigure(config, force));
  AuditReconfig(ctx, before->config.get(), *set);
  return Ok();
}

Result<void> GetConfig(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(ReplicaSet * set, InitiatedSet(ctx));
  ArgReader in(req);
  const bool majority = in.LooseBoolOr("commitmentStatus", false);
  MAYFLY_TRY(in.Finish());
  if (majority && !set->writable())
    return Error{ErrorCode::kNotWritablePrimary,
                 "commitmentStatus is only supported on the primary"};
  reply.Append("config", set->topology()->config->ToBson());
  // A configuration is in use once a majority has it, never before.
  if (majority) reply.Append("commitmentStatus", true);
  return Ok();
}

Result<void> GetStatus(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(ReplicaSet * set, Set(ctx));
  ArgReader in(req);
  // unused: progress is shown as long as there is some, whether asked for or not
  in.Any("initialSync");
  MAYFLY_TRY(in.Finish());
  if (!set->topology()->config)
    return Error{ErrorCode::kNotYetInitialized, "no replset config has been received"};
  if (set->topology()->state == MemberState::kRemoved)
    return Error{ErrorCode::kInvalidReplicaSetConfig,
                 "Our replica set config is invalid or we are not a member of it"};
  AppendReplSetStatus(ctx.server, *set, reply);
  return Ok();
}

Result<void> StepDown(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(ReplicaSet * set, Set(ctx));
  ArgReader in(req);
  int64_t seconds = in.Int64Or("replSetStepDown", 60);
  const bool force = in.LooseBoolOr("force", false);
  const auto catch_up = in.OptInt64("secondaryCatchUpPeriodSecs");
  MAYFLY_TRY(in.Finish());
  const bool use_default = req.fields[0].value.Is(BsonType::kBool);
  if (use_default) seconds = 60;
  if (seconds < 0) return Error{ErrorCode::kBadValue, "stepdown period must be a positive integer"};
  if (catch_up && *catch_up < 0)
    return Error{ErrorCode::kBadValue,
                 "secondaryCatchUpPeriodSecs period must be a positive or absent"};
  const int64_t wait = catch_up.value_or(force ? 0 : 10);
  if (seconds < wait)
    return Error{ErrorCode::kBadValue,
                 "stepdown period must be longer than secondaryCatchUpPeriodSecs"};
  return set->StepDown(seconds == 0 ? 60 : seconds, MicrosOf(wait), force);
}

Result<void> StepUp(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(ReplicaSet * set, InitiatedSet(ctx));
  ArgReader in(req);
  in.Any("skipDryRun");  // unused: elections have their dry run always
  MAYFLY_TRY(in.Finish());
  return set->StepUp();
}

Result<void> Freeze(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(ReplicaSet * set, InitiatedSet(ctx));
  ArgReader in(req);
  const int64_t seconds = in.Int64("replSetFreeze");
  MAYFLY_TRY(in.Finish());
  if (seconds < 0)
    return Error{ErrorCode::kBadValue, "replSetFreeze period must be a non-negative integer"};
  MAYFLY_TRY(std::string info, set->Freeze(seconds));
  if (!info.empty()) reply.Append("info", info);
  if (seconds == 1) reply.Append("warning", "you really want to freeze for only 1 second?");
  return Ok();
}

Result<void> Maintenance(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(ReplicaSet * set, InitiatedSet(ctx));
  MAYFLY_TRY(NoArguments(req));
  return set->SetMaintenance(req.fields[0].value.Truthy());
}

Result<void> SyncFrom(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(ReplicaSet * set, InitiatedSet(ctx));
  ArgReader in(req);
  const std::string_view target = in.String("replSetSyncFrom");
  MAYFLY_TRY(in.Finish());
  const TopologyPtr t = set->topology();
  if (t->state == MemberState::kPrimary)
    return Error{ErrorCode::kNotSecondary, "primaries don't sync"};
  const MemberConfig* member = t->config->FindHost(target);
  if (member == nullptr)
    return Error{ErrorCode::kNodeNotFound,
                 "Could not find member \"" + std::string(target) + "\" in replica set"};
  if (t->self >= 0 && t->config->members[static_cast<size_t>(t->self)].host == target)
    return Error{ErrorCode::kInvalidOptions, "I cannot sync from myself"};
  if (target != t->primary)
    return Error{ErrorCode::kIllegalOperation,
                 "members of this set take the log from the primary, " +
                     (t->primary.empty() ? std::string("which is not known now") : t->primary) +
                     ", and from nobody else"};
  reply.Append("syncFromRequested", target).Append("prevSyncTarget", t->primary);
  return Ok();
}

Result<void> ResizeOplog(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(ReplicaSet * set, InitiatedSet(ctx));
  ArgReader in(req);
  const auto megabytes = in.OptDouble("size");
  const auto hours = in.OptDouble("minRetentionHours");
  MAYFLY_TRY(in.Finish());
  if (!megabytes && !hours)
    return Error{ErrorCode::kInvalidOptions,
                 "one of 'size' or 'minRetentionHours' must be specified"};
  if (megabytes && !(*megabytes >= 990 && *megabytes <= 1e9))
    return Error{ErrorCode::kBadValue,
                 "BSON field 'size' must be from 990 megabytes to a petabyte"};
  if (hours && !(*hours >= 0 && *hours <= 24 * 366))
    return Error{ErrorCode::kBadValue, "BSON field 'minRetentionHours' must be from 0 to 8784"};
  return set->SetRetention(
      ctx.op, megabytes ? std::optional(static_cast<uint64_t>(*megabytes * 1048576)) : std::nullopt,
      hours);
}

/// {appendOplogNote: 1, data: {…}}: a no-op entry, by which tools mark a place in the oplog.
Result<void> AppendOplogNote(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const BsonView data = in.Document("data");
  MAYFLY_TRY(in.Finish());
  ReplicaSet* set = ctx.data.replica_set();
  if (set == nullptr)
    return Error{ErrorCode::kNoReplicationEnabled,
                 "Must have replication set up to run \"appendOplogNote\""};
  return set->AppendNote(data);
}

Result<void> ElectionById(CommandContext& ctx, const CommandRequest&, BsonBuilder&) {
  MAYFLY_TRY(Set(ctx));
  return Error{ErrorCode::kCommandNotSupported,
               "elections and positions of members are the consensus log's business here; use "
               "replSetStepDown to hand over"};
}

}  // namespace

void RegisterReplicationCommands(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kAdminOnly | kSecondaryOk;
  registry.Add({.name = "replSetInitiate",
                .flags = kFlags | kWorker,
                .help = "Makes a replica set of this member and those of the configuration.",
                .run = &Initiate,
                .privileges = &privileges::OnCluster<Action::replSetConfigure>});
  registry.Add({.name = "replSetReconfig",
                .flags = kFlags | kWorker,
                .help = "Changes the configuration of the replica set.",
                .run = &Reconfig,
                .privileges = &privileges::OnCluster<Action::replSetConfigure>});
  registry.Add({.name = "replSetGetConfig",
                .flags = kFlags,
                .help = "The configuration of the replica set.",
                .run = &GetConfig,
                .privileges = &privileges::OnCluster<Action::replSetGetConfig>});
  registry.Add({.name = "replSetGetStatus",
                .flags = kFlags,
                .help = "The state of the replica set as this member sees it.",
                .run = &GetStatus,
                .privileges = &privileges::OnCluster<Action::replSetGetStatus>});
  registry.Add({.name = "replSetStepDown",
                .flags = kFlags | kWorker,
                .help = "Hands the primary's role to another member.",
                .run = &StepDown,
                .privileges = &privileges::OnCluster<Action::replSetStateChange>});
  registry.Add({.name = "replSetStepUp",
                .flags = kFlags | kWorker,
                .help = "Makes this member the primary.",
                .run = &StepUp,
                .privileges = &privileges::OnCluster<Action::replSetStateChange>});
  registry.Add({.name = "replSetFreeze",
                .flags = kFlags,
                .help = "Keeps this member from becoming primary for some seconds.",
                .run = &Freeze,
                .privileges = &privileges::OnCluster<Action::replSetStateChange>});
  registry.Add({.name = "replSetMaintenance",
                .flags = kFlags | kWorker,
                .help = "Takes this secondary out of service (RECOVERING) and back.",
                .run = &Maintenance,
                .privileges = &privileges::OnCluster<Action::replSetStateChange>});
  registry.Add({.name = "replSetSyncFrom",
                .flags = kFlags,
                .help = "Members take the log from the primary: accepted for it alone.",
                .run = &SyncFrom,
                .privileges = &privileges::OnCluster<Action::replSetStateChange>});
  registry.Add({.name = "replSetResizeOplog",
                .flags = kFlags | kWorker,
                .help = "How much of the replication log is kept.",
                .run = &ResizeOplog,
                .privileges = &privileges::OnCluster<Action::replSetConfigure>});
  registry.Add({.name = "appendOplogNote",
                .flags = kAdminOnly | kWrites | kWorker | kTakesWriteConcern,
                .help = "Writes a note into the oplog.",
                .run = &AppendOplogNote,
                .privileges = &privileges::OnCluster<Action::appendOplogNote>});
  for (std::string_view name : {"replSetAbortPrimaryCatchUp", "replSetHeartbeat",
                                "replSetRequestVotes", "replSetUpdatePosition"})
    registry.Add({.name = name,
                  .flags = kFlags | kHidden,
                  .help = "Between members of MongoDB's own sets.",
                  .run = &ElectionById,
                  .privileges = &privileges::OnCluster<Action::internal>});
}

}  // namespace mayfly

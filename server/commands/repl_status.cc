#include "server/commands/repl_status.h"

#include "protocol/bson_validate.h"
#include "server/dispatch/server_context.h"

namespace mayfly {
namespace {

void AppendOpTime(BsonBuilder& out, std::string_view name, const OpTime& t) {
  BsonBuilder o = out.OpenDocument(name);
  o.AppendTimestamp("ts", t.ts).Append("t", t.term);
}

Instant DateOf(uint64_t ts) { return {static_cast<int64_t>(ts >> 32) * 1000}; }

/// A member's own word in its heartbeats (ReplicaSet::HeartbeatPayload).
struct Told {
  bool known = false;
  MemberState state = MemberState::kUnknown;
  OpTime applied;
  int64_t config_version = 0, config_term = 0, uptime_seconds = 0, election_at = 0;
};
Told ReadPayload(const std::string& payload) {
  Told t;
  if (payload.empty() || !ValidateBson(payload, false)) return t;
  const BsonView d(payload);
  t.known = true;
  t.state = static_cast<MemberState>(d["state"].NumberAsInt64());
  if (d["ts"].Is(BsonType::kTimestamp)) t.applied.ts = d["ts"].Timestamp();
  t.applied.term = d["t"].NumberAsInt64();
  t.applied.wall_millis = d["wall"].NumberAsInt64();
  t.config_version = d["configVersion"].NumberAsInt64();
  t.config_term = d["configTerm"].NumberAsInt64();
  t.uptime_seconds = d["uptime"].NumberAsInt64();
  t.election_at = d["electionAt"].NumberAsInt64();
  return t;
}

}  // namespace

void AppendReplSetStatus(ServerContext& server, ReplicaSet& set, BsonBuilder& reply) {
  const TopologyPtr t = set.topology();
  const ConsensusStatus status = set.consensus().Status();
  const OpTime applied = set.last_applied();
  const Instant now = server.clock().Now();
  const int64_t mono = server.clock().MonotonicMicros();
  const ReplConfig& config = *t->config;
  auto date_of_mono = [&](int64_t us) {
    return Instant{us == 0 ? 0 : now.millis - (mono - us) / 1000};
  };
  int32_t primary_id = -1;
  for (const MemberConfig& m : config.members)
    if (m.host == t->primary) primary_id = m.id;
  const bool follows = t->state != MemberState::kPrimary && primary_id >= 0;

  reply.Append("set", config.name).Append("date", now);
  reply.Append("myState", static_cast<int32_t>(t->state))
      .Append("term", static_cast<int64_t>(t->term));
  reply.Append("syncSourceHost", follows ? t->primary : std::string());
  reply.Append("syncSourceId", follows ? primary_id : -1);
  reply.Append("heartbeatIntervalMillis", config.heartbeat_interval_ms);
  // Who counts now: a new member does once it has everything, whatever the configuration grants it.
  int voters = 0;
  for (const MemberStatus& m : status.members) voters += m.voter;
  if (voters == 0) voters = config.VotingMembers();
  const int majority = voters / 2 + 1;
  reply.Append("majorityVoteCount", majority).Append("writeMajorityCount", majority);
  reply.Append("votingMembersCount", voters).Append("writableVotingMembersCount", voters);
  {
    BsonBuilder o = reply.OpenDocument("optimes");
    const Instant wall{applied.wall_millis};
    AppendOpTime(o, "lastCommittedOpTime", applied);
    o.Append("lastCommittedWallTime", wall);
    AppendOpTime(o, "readConcernMajorityOpTime", applied);
    AppendOpTime(o, "appliedOpTime", applied);
    AppendOpTime(o, "durableOpTime", applied);
    AppendOpTime(o, "writtenOpTime", applied);
    o.Append("lastAppliedWallTime", wall)
        .Append("lastDurableWallTime", wall)
        .Append("lastWrittenWallTime", wall);
  }
  reply.AppendTimestamp("lastStableRecoveryTimestamp", applied.ts);
  const auto election = set.last_election();
  if (t->state == MemberState::kPrimary && election) {
    BsonBuilder e = reply.OpenDocument("electionCandidateMetrics");
    e.Append("lastElectionReason", election->reason)
        .Append("lastElectionDate", Instant{election->at_millis})
        .Append("electionTerm", static_cast<int64_t>(election->term));
    e.Append("numVotesNeeded", config.Majority())
        .Append("electionTimeoutMillis", config.election_timeout_ms);
  }
  if (t->state == MemberState::kStartup2) {
    BsonBuilder s = reply.OpenDocument("initialSyncStatus");
    if (status.sync_source) s.Append("syncSource", *status.sync_source);
    for (const MemberStatus& m : status.members) {
      if (!m.self || m.sync_bytes_total == 0) continue;
      s.Append("approxTotalBytesCopied", static_cast<int64_t>(m.sync_bytes_done))
          .Append("approxTotalDataSize", static_cast<int64_t>(m.sync_bytes_total));
    }
  }
  BsonArrayBuilder list = reply.OpenArray("members");
  for (size_t i = 0; i < config.members.size(); ++i) {
    const MemberConfig& m = config.members[i];
    const MemberStatus* s = nullptr;
    for (const MemberStatus& known : status.members)
      if (known.address == m.host) s = &known;
    const bool self = static_cast<int>(i) == t->self;
    BsonBuilder d = list.OpenDocument();
    d.Append("_id", m.id).Append("name", m.host);
    if (self) {
      d.Append("health", 1.0).Append("state", static_cast<int32_t>(t->state));
      d.Append("stateStr", MemberStateName(t->state));
      d.Append("uptime", static_cast<int32_t>(server.UptimeMillis() / 1000));
      AppendOpTime(d, "optime", applied);
      d.Append("optimeDate", DateOf(applied.ts));
      d.Append("lastAppliedWallTime", Instant{applied.wall_millis})
          .Append("lastDurableWallTime", Instant{applied.wall_millis});
      d.Append("syncSourceHost", follows ? t->primary : std::string());
      d.Append("syncSourceId", follows ? primary_id : -1).Append("infoMessage", "");
      if (t->state == MemberState::kPrimary && election) {
        d.AppendTimestamp("electionTime",
                          static_cast<uint64_t>(election->at_millis / 1000) << 32 | 1);
        d.Append("electionDate", Instant{election->at_millis / 1000 * 1000});
      }
      d.Append("configVersion", static_cast<int32_t>(config.version))
          .Append("configTerm", config.term);
      d.Append("self", true).Append("lastHeartbeatMessage", "");
      continue;
    }
    const bool reachable = s != nullptr && s->reachable;
    const Told told = s != nullptr ? ReadPayload(s->payload) : Told();
    const MemberState state = !reachable   ? MemberState::kDown
                              : told.known ? told.state
                                           : MemberState::kUnknown;
    d.Append("health", reachable ? 1.0 : 0.0).Append("state", static_cast<int32_t>(state));
    d.Append("stateStr", MemberStateName(state));
    d.Append("uptime", static_cast<int32_t>(reachable ? told.uptime_seconds : 0));
    const OpTime member_applied = reachable ? told.applied : OpTime{};
    AppendOpTime(d, "optime", member_applied);
    AppendOpTime(d, "optimeDurable", member_applied);
    d.Append("optimeDate", DateOf(member_applied.ts))
        .Append("optimeDurableDate", DateOf(member_applied.ts));
    d.Append("lastAppliedWallTime", Instant{member_applied.wall_millis})
        .Append("lastDurableWallTime", Instant{member_applied.wall_millis});
    d.Append("lastHeartbeat", date_of_mono(s ? s->last_answered_us : 0))
        .Append("lastHeartbeatRecv", date_of_mono(s ? s->last_heard_us : 0));
    d.Append("pingMs", s ? static_cast<int64_t>(s->ping_ms) : int64_t{0});
    d.Append("lastHeartbeatMessage", reachable || s == nullptr ? std::string() : s->last_error);
    const bool its_source = state != MemberState::kPrimary && primary_id >= 0 && reachable;
    d.Append("syncSourceHost", its_source ? t->primary : std::string());
    d.Append("syncSourceId", its_source ? primary_id : -1).Append("infoMessage", "");
    if (state == MemberState::kPrimary && told.election_at != 0) {
      d.AppendTimestamp("electionTime", static_cast<uint64_t>(told.election_at / 1000) << 32 | 1);
      d.Append("electionDate", Instant{told.election_at / 1000 * 1000});
    }
    d.Append("configVersion", static_cast<int32_t>(told.config_version))
        .Append("configTerm", told.config_term);
    // Mayfly's own: the primary deletes by its clock, so it matters how far apart they are.
    if (s != nullptr && s->wall_clock.millis != 0) d.Append("clockSkewMillis", s->skew_ms);
    if (s != nullptr && s->sync_bytes_total != 0) {
      BsonBuilder sync = d.OpenDocument("initialSync");
      sync.Append("bytesCopied", static_cast<int64_t>(s->sync_bytes_done))
          .Append("bytesTotal", static_cast<int64_t>(s->sync_bytes_total));
    }
  }
}

void AppendServerStatusRepl(ServerContext& server, ReplicaSet& set, BsonBuilder& reply) {
  const TopologyPtr t = set.topology();
  {
    BsonBuilder o = reply.OpenDocument("oplogTruncation");
    o.Append("oplogMinRetentionHours", set.log_min_hours());
  }
  BsonBuilder r = reply.OpenDocument("repl");
  {
    BsonBuilder v = r.OpenDocument("topologyVersion");
    v.AppendObjectId("processId", server.process_id()).Append("counter", t->counter);
  }
  if (!t->config || t->self < 0) {
    r.Append("isWritablePrimary", false).Append("secondary", false).Append("isreplicaset", true);
    return;
  }
  {
    BsonArrayBuilder hosts = r.OpenArray("hosts");
    for (const MemberConfig& m : t->config->members)
      if (!m.hidden && m.priority > 0) hosts.Append(m.host);
  }
  r.Append("setName", t->config->name)
      .Append("setVersion", static_cast<int32_t>(t->config->version));
  r.Append("isWritablePrimary", t->state == MemberState::kPrimary)
      .Append("secondary", t->state == MemberState::kSecondary);
  if (!t->primary.empty()) r.Append("primary", t->primary);
  r.Append("me", t->config->members[static_cast<size_t>(t->self)].host);
  if (t->state == MemberState::kPrimary)
    r.AppendObjectId("electionId", ReplicaSet::ElectionId(t->term));
  const OpTime applied = set.last_applied();
  {
    BsonBuilder w = r.OpenDocument("lastWrite");
    AppendOpTime(w, "opTime", applied);
    w.Append("lastWriteDate", DateOf(applied.ts));
    AppendOpTime(w, "majorityOpTime", applied);
    w.Append("majorityWriteDate", DateOf(applied.ts));
  }
  const ReplicatedCommitter::Totals totals = set.committer().totals();
  BsonBuilder log = r.OpenDocument("log");
  log.Append("entries", totals.entries).Append("units", totals.units).Append("bytes", totals.bytes);
}

}  // namespace mayfly

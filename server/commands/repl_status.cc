#include "server/commands/repl_status.h"

#include "protocol/bson_validate.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

void AppendOpTime(BsonBuilder& out, std::string_view name, const OpTime& t) {
  BsonBuilder o = out.OpenDocument(name);
  o.AppendTimestamp("ts", t.ts).Append("t", t.term);
}

namespace {

Instant DateOf(uint64_t ts) { return {static_cast<int64_t>(ts >> 32) * 1000}; }

/// A member's own word in its heartbeats (ReplicaSet::HeartbeatPayload).
struct Told {
  bool known = false;
  MemberState state = MemberState::kUnknown;
  OpTime applied;
  int64_t config_version = 0, config_term = 0, uptime_seconds = 0, election_at = 0;
};
Told ReadHeartbeatPayload(const std::string& payload) {
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

namespace {

/// The common data of all parts of replSetGetStatus: one look at everything.
struct StatusView {
  StatusView(ServerContext& server, ReplicaSet& set)
      : server(server),
        t(set.topology()),
        status(set.consensus().Status()),
        applied(set.last_applied()),
        election(set.last_election()),
        now(server.clock().Now()),
        mono(server.clock().MonotonicMicros()) {
    for (const MemberConfig& m : t->config->members)
      if (m.host == t->primary) primary_id = m.id;
  }
  const ReplConfig& config() const { return *t->config; }
  bool follows() const { return t->state != MemberState::kPrimary && primary_id >= 0; }
  Instant DateOfMono(int64_t us) const {
    return Instant{us == 0 ? 0 : now.millis - (mono - us) / 1000};
  }

  ServerContext& server;
  const TopologyPtr t;
  const ConsensusStatus status;
  const OpTime applied;
  const decltype(std::declval<ReplicaSet&>().last_election()) election;
  const Instant now;
  const int64_t mono;
  int32_t primary_id = -1;
};

void AppendSource(const StatusView& v, bool follows, BsonBuilder& out) {
  out.Append("syncSourceHost", follows ? v.t->primary : std::string());
  out.Append("syncSourceId", follows ? v.primary_id : -1);
}

void AppendMajorities(const StatusView& v, BsonBuilder& reply) {
  // Whether it votes now: a new member does once it has all data, whatever the configuration says.
  int voters = 0;
  for (const MemberStatus& m : v.status.members) voters += m.voter;
  if (voters == 0) voters = v.config().VotingMembers();
  const int majority = voters / 2 + 1;
  reply.Append("majorityVoteCount", majority).Append("writeMajorityCount", majority);
  reply.Append("votingMembersCount", voters).Append("writableVotingMembersCount", voters);
}

void AppendOpTimes(const StatusView& v, BsonBuilder& reply) {
  BsonBuilder o = reply.OpenDocument("optimes");
  const Instant wall{v.applied.wall_millis};
  AppendOpTime(o, "lastCommittedOpTime", v.applied);
  o.Append("lastCommittedWallTime", wall);
  AppendOpTime(o, "readConcernMajorityOpTime", v.applied);
  AppendOpTime(o, "appliedOpTime", v.applied);
  AppendOpTime(o, "durableOpTime", v.applied);
  AppendOpTime(o, "writtenOpTime", v.applied);
  o.Append("lastAppliedWallTime", wall)
      .Append("lastDurableWallTime", wall)
      .Append("lastWrittenWallTime", wall);
}

void AppendElection(const StatusView& v, BsonBuilder& reply) {
  if (v.t->state != MemberState::kPrimary || !v.election) return;
  BsonBuilder e = reply.OpenDocument("electionCandidateMetrics");
  e.Append("lastElectionReason", v.election->reason)
      .Append("lastElectionDate", Instant{v.election->at_millis})
      .Append("electionTerm", static_cast<int64_t>(v.election->term));
  e.Append("numVotesNeeded", v.config().Majority())
      .Append("electionTimeoutMillis", v.config().election_timeout_ms);
}

void AppendInitialSync(const StatusView& v, BsonBuilder& reply) {
  if (v.t->state != MemberState::kStartup2) return;
  BsonBuilder s = reply.OpenDocument("initialSyncStatus");
  if (v.status.sync_source) s.Append("syncSource", *v.status.sync_source);
  for (const MemberStatus& m : v.status.members) {
    if (!m.self || m.sync_bytes_total == 0) continue;
    s.Append("approxTotalBytesCopied", static_cast<int64_t>(m.sync_bytes_done))
        .Append("approxTotalDataSize", static_cast<int64_t>(m.sync_bytes_total));
  }
}

void AppendElectionTime(int64_t at_millis, BsonBuilder& d) {
  d.AppendTimestamp("electionTime", static_cast<uint64_t>(at_millis / 1000) << 32 | 1);
  d.Append("electionDate", Instant{at_millis / 1000 * 1000});
}

/// This member, in `members`.
void AppendSelf(const StatusView& v, BsonBuilder& d) {
  const Instant wall{v.applied.wall_millis};
  d.Append("health", 1.0).Append("state", static_cast<int32_t>(v.t->state));
  d.Append("stateStr", MemberStateName(v.t->state));
  d.Append("uptime", static_cast<int32_t>(v.server.UptimeMillis() / 1000));
  AppendOpTime(d, "optime", v.applied);
  d.Append("optimeDate", DateOf(v.applied.ts));
  d.Append("lastAppliedWallTime", wall).Append("lastDurableWallTime", wall);
  AppendSource(v, v.follows(), d);
  d.Append("infoMessage", "");
  if (v.t->state == MemberState::kPrimary && v.election)
    AppendElectionTime(v.election->at_millis, d);
  d.Append("configVersion", static_cast<int32_t>(v.config().version))
      .Append("configTerm", v.config().term);
  d.Append("self", true).Append("lastHeartbeatMessage", "");
}

/// Another one; `s`: what is known of it, null: nothing.
void AppendOther(const StatusView& v, const MemberStatus* s, BsonBuilder& d) {
  const bool reachable = s != nullptr && s->reachable;
  const Told told = s != nullptr ? ReadHeartbeatPayload(s->payload) : Told();
  const MemberState state = !reachable   ? MemberState::kDown
                            : told.known ? told.state
                                         : MemberState::kUnknown;
  d.Append("health", reachable ? 1.0 : 0.0).Append("state", static_cast<int32_t>(state));
  d.Append("stateStr", MemberStateName(state));
  d.Append("uptime", static_cast<int32_t>(reachable ? told.uptime_seconds : 0));
  const OpTime applied = reachable ? told.applied : OpTime{};
  AppendOpTime(d, "optime", applied);
  AppendOpTime(d, "optimeDurable", applied);
  d.Append("optimeDate", DateOf(applied.ts)).Append("optimeDurableDate", DateOf(applied.ts));
  d.Append("lastAppliedWallTime", Instant{applied.wall_millis})
      .Append("lastDurableWallTime", Instant{applied.wall_millis});
  d.Append("lastHeartbeat", v.DateOfMono(s ? s->last_answered_us : 0))
      .Append("lastHeartbeatRecv", v.DateOfMono(s ? s->last_heard_us : 0));
  d.Append("pingMs", s ? static_cast<int64_t>(s->ping_ms) : int64_t{0});
  d.Append("lastHeartbeatMessage", reachable || s == nullptr ? std::string() : s->last_error);
  AppendSource(v, state != MemberState::kPrimary && v.primary_id >= 0 && reachable, d);
  d.Append("infoMessage", "");
  if (state == MemberState::kPrimary && told.election_at != 0)
    AppendElectionTime(told.election_at, d);
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

}  // namespace

void AppendReplSetStatus(ServerContext& server, ReplicaSet& set, BsonBuilder& reply) {
  const StatusView v(server, set);
  reply.Append("set", v.config().name).Append("date", v.now);
  reply.Append("myState", static_cast<int32_t>(v.t->state))
      .Append("term", static_cast<int64_t>(v.t->term));
  AppendSource(v, v.follows(), reply);
  reply.Append("heartbeatIntervalMillis", v.config().heartbeat_interval_ms);
  AppendMajorities(v, reply);
  AppendOpTimes(v, reply);
  reply.AppendTimestamp("lastStableRecoveryTimestamp", v.applied.ts);
  AppendElection(v, reply);
  AppendInitialSync(v, reply);
  BsonArrayBuilder list = reply.OpenArray("members");
  for (size_t i = 0; i < v.config().members.size(); ++i) {
    const MemberConfig& m = v.config().members[i];
    BsonBuilder d = list.OpenDocument();
    d.Append("_id", m.id).Append("name", m.host);
    if (static_cast<int>(i) == v.t->self) {
      AppendSelf(v, d);
      continue;
    }
    const MemberStatus* known = nullptr;
    for (const MemberStatus& s : v.status.members)
      if (s.address == m.host) known = &s;
    AppendOther(v, known, d);
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

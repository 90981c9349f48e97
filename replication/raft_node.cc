#include "replication/raft_node.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "protocol/micros.h"
#include "replication/new_node.h"
#include "storage/catalog/catalog_format.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

constexpr uint64_t kMaxMessageBytes = 1 << 20;
// The most messages with entries on their way to one member. The number is low because heartbeats
// wait behind them: a member that catches up over a slow network must not lose its leader.
constexpr uint64_t kMaxInFlight = 12;
// Bytes of the log's end that are kept in memory: entries that are not applied yet, and applied
// entries that may still have to be sent to members. Older entries are read from the store.
constexpr uint64_t kCacheBytes = 16 << 20, kKeepLogBytes = 4 << 20;
constexpr size_t kKeepLogBatchBytes = 1 << 20;
// A learner is promoted when it is at most this many entries behind.
constexpr uint64_t kCaughtUp = 64;
// How often the leader looks for a member of higher priority.
constexpr int kTakeOverEveryElections = 1;
constexpr int kAskAgainElections = 2;  // how long until a member is asked again to take a copy
constexpr size_t kMaxNodes = 64;

mf_bytes BytesOf(std::string_view s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}
std::string_view TextOf(mf_bytes b) { return {reinterpret_cast<const char*>(b.data), b.size}; }
mf_entry ToC(const LogEntry& e) {
  return {e.term, e.index, e.type, BytesOf(e.data), BytesOf(e.context)};
}
LogEntry FromC(const mf_entry& e) {
  return {e.term, e.index, static_cast<uint8_t>(e.type), TextOf(e.context), TextOf(e.data)};
}

}  // namespace

RaftNode::RaftNode(Options options) : o_(std::move(options)), batch_(o_.log->kv().NewBatch()) {}

RaftNode::~RaftNode() {
  Refuse(std::exchange(held_, {}));
  FailPending(ErrorCode::kInterruptedAtShutdown, "the server is shutting down");
  if (raft_) mf_raft_free(raft_);
}

void RaftNode::Fatal(std::string_view why) {
  if (o_.fatal) o_.fatal(why);
  std::abort();
}

std::string RaftNode::ConfState(const std::vector<NodeId>& voters,
                                const std::vector<NodeId>& learners) {
  mf_bytes b = mf_conf_state(voters.data(), voters.size(), learners.data(), learners.size());
  std::string out(TextOf(b));
  mf_bytes_free(b);
  return out;
}

Result<void> RaftNode::Open() {
  LogStore& log = *o_.log;
  if (!log.stored_configuration().empty())
    DecodeConfiguration(log.stored_configuration(), &configuration_);
  callbacks_.self = this;
  callbacks_.entries = [](void* self, uint64_t low, uint64_t high, uint64_t max, void* sink,
                          void (*emit)(void*, const mf_entry*)) {
    auto* n = static_cast<RaftNode*>(self);
    Result<void> read = n->ReadPatiently([&] {
      return n->o_.log->Read(low, high, max, [&](const LogEntry& e) {
        mf_entry c = ToC(e);
        emit(sink, &c);
        low = e.index + 1;
      });
    });
    if (!read) n->Fatal(read.error().message);
    return 0;
  };
  callbacks_.term = [](void* self, uint64_t index, uint64_t* term) {
    auto* n = static_cast<RaftNode*>(self);
    Result<void> read = n->ReadPatiently([&]() -> Result<void> {
      MAYFLY_TRY(*term, n->o_.log->Term(index));
      return Ok();
    });
    if (!read) n->Fatal(read.error().message);
    return 0;
  };
  callbacks_.snapshot = [](void* self, uint64_t at_least, uint64_t to, uint64_t* index,
                           uint64_t* term, mf_bytes* conf_state, mf_bytes* data) {
    auto* n = static_cast<RaftNode*>(self);
    // A member that is copying has been told already. One that has everything it needs continues
    // from there (LeaderDuties).
    if ((n->is_copying && n->is_copying(to)) || n->ResumePoint(to) != 0) return 0;
    if (!n->o_.snapshot || !n->o_.snapshot(at_least, to, &n->snapshot_)) return 0;
    *index = n->snapshot_.position.index;
    *term = n->snapshot_.position.term;
    *conf_state = BytesOf(n->snapshot_.conf_state);
    *data = BytesOf(n->snapshot_.data);
    return 1;
  };
  callbacks_.log = [](void* self, int level, const char* text, size_t size) {
    auto* n = static_cast<RaftNode*>(self);
    if (n->o_.log_line) n->o_.log_line(level <= 2 ? 'E' : level == 3 ? 'W' : 'D', {text, size});
  };
  callbacks_.fatal = [](void* self, const char* why, size_t size) {
    static_cast<RaftNode*>(self)->Fatal({why, size});
  };

  const LogPosition applied = log.applied();
  mf_config c{};
  c.id = log.node();
  c.election_ticks = static_cast<uint64_t>(o_.election_ticks);
  c.heartbeat_ticks = static_cast<uint64_t>(o_.heartbeat_ticks);
  c.term = log.hard_state().term;
  c.vote = log.hard_state().vote;
  c.commit = std::max({log.hard_state().commit, applied.index, log.trimmed().index});
  c.trimmed_index = log.trimmed().index;
  c.trimmed_term = log.trimmed().term;
  c.last_index = log.last_index();
  c.applied = applied.index;
  c.conf_state = BytesOf(log.stored_conf_state());
  c.max_message_bytes = kMaxMessageBytes;
  c.max_inflight = kMaxInFlight;
  c.cache_bytes = kCacheBytes;
  c.keep_bytes = kKeepLogBytes;
  c.seed = o_.seed;
  raft_ = mf_raft_new(&c, &callbacks_);
  if (o_.configured && !configuration_.set_id.empty()) o_.configured(configuration_);
  Announce({});
  Pump();
  return Ok();
}

const mf_status& RaftNode::status() { return *mf_raft_status(raft_); }

std::vector<RaftNode::Member> RaftNode::members() {
  mf_progress rows[kMaxNodes];
  const size_t n = std::min(mf_raft_progress(raft_, rows, kMaxNodes), kMaxNodes);
  std::vector<Member> out;
  for (size_t i = 0; i < n; ++i)
    out.push_back({rows[i].id, rows[i].matched, rows[i].next, rows[i].voter != 0,
                   rows[i].learner != 0, rows[i].recent_active != 0, rows[i].state == 2,
                   rows[i].pending_snapshot, rows[i].state == 1});
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.id < b.id; });
  return out;
}

ConsensusState RaftNode::state() const {
  std::lock_guard l(state_mutex_);
  return state_;
}

void RaftNode::Tick() {
  double priority = 1;
  for (const ConsensusMember& m : configuration_.members)
    if (m.id == o_.log->node()) priority = m.priority;
  mf_raft_tick(raft_, may_campaign_ && priority > 0);
  if (leads()) {
    ++ticks_as_leader_;
    LeaderDuties();
  } else {
    ticks_as_leader_ = 0;
  }
  Pump();
}

void RaftNode::Step(NodeId from, std::string_view message) {
  mf_snapshot s{};
  if (mf_raft_step(raft_, from, BytesOf(message), may_campaign_, &s) != MF_SNAPSHOT) return;
  SnapshotPointer p;
  p.position = {s.term, s.index};
  p.conf_state = TextOf(s.conf_state);
  p.data = TextOf(s.data);
  if (o_.resync) o_.resync(from, std::move(p));
}

void RaftNode::Propose(std::vector<Proposal> proposals) {
  std::vector<mf_bytes> data, context;
  std::vector<Proposal> taken, late;
  const uint64_t now = status().term;
  for (Proposal& p : proposals) {
    const bool of_now = p.term == 0 || p.term == now;
    if (!of_now || (p.seal && !std::exchange(p.seal, nullptr)(&p.data))) {
      late.push_back(std::move(p));
      continue;
    }
    if (p.data.empty() || p.data.size() > kMaxProposalBytes) {
      p.done(Error{ErrorCode::kBSONObjectTooLarge,
                   "one log entry may have 1 byte to 64 MiB: write less at once"});
      continue;
    }
    data.push_back(BytesOf(p.data));
    context.push_back({nullptr, 0});
    taken.push_back(std::move(p));
  }
  Refuse(std::move(late));
  if (taken.empty()) return;
  // Leadership is moving, so raft-rs accepts nothing now. Writers wait for the outcome. An error
  // would make drivers try this node again, because it still reports that it is the primary. What
  // waits already stays in front: entries are in the order of their times.
  if (leads() && (status().transferee != 0 || !held_.empty())) {
    for (Proposal& p : taken) held_.push_back(std::move(p));
    return;
  }
  uint64_t first = 0;
  // Moving a short string moves its bytes too.
  for (size_t i = 0; i < taken.size(); ++i) data[i] = BytesOf(taken[i].data);
  if (mf_raft_propose(raft_, data.data(), context.data(), data.size(), &first) != MF_OK) {
    Refuse(std::move(taken));
    return;
  }
  const uint64_t term = status().term;
  for (Proposal& p : taken) {
    std::string().swap(p.data);
    pending_.push_back({{term, first++}, std::move(p)});
  }
}

void RaftNode::Refuse(std::vector<Proposal> proposals) {
  if (proposals.empty()) return;
  // After the announcement: a client that receives this error finds that this node no longer
  // reports itself as primary.
  auto refused = std::make_shared<std::vector<Proposal>>(std::move(proposals));
  PushCall([refused] {
    for (Proposal& p : *refused) p.done(NotPrimary());
  });
}

void RaftNode::Reconfigure(ConsensusConfiguration next, Applier::Done done,
                           std::vector<mf_change> besides) {
  if (!leads()) {
    done(NotPrimary());
    return;
  }
  auto find = [&](NodeId id) {
    return std::find_if(next.members.begin(), next.members.end(),
                        [id](const ConsensusMember& m) { return m.id == id; });
  };
  std::vector<mf_change> changes;
  const std::vector<Member> now = members();
  for (const Member& m : now) {
    auto it = find(m.id);
    if (it == next.members.end())
      changes.push_back({MF_REMOVE, m.id});
    else if (m.voter && !it->voter)
      changes.push_back({MF_ADD_LEARNER, m.id});
  }
  // A new voter would count at once although it has no data yet. So it starts as a learner
  // (LeaderDuties).
  for (const ConsensusMember& m : next.members)
    if (std::none_of(now.begin(), now.end(), [&](const Member& n) { return n.id == m.id; }))
      changes.push_back({MF_ADD_LEARNER, m.id});
  for (const mf_change& b : besides)
    if (std::none_of(changes.begin(), changes.end(),
                     [&](const mf_change& c) { return c.node == b.node; }))
      changes.push_back(b);
  const std::string context = EncodeConfiguration(next);
  uint64_t index = 0;
  const mf_status& s = status();
  int result = s.pending_conf || s.joint ? MF_BUSY : MF_OK;
  const uint64_t term = s.term;
  // The voters of the new configuration. New members become voters only later.
  const bool some = std::any_of(now.begin(), now.end(), [&](const Member& m) {
    auto it = find(m.id);
    return m.voter && it != next.members.end() && it->voter;
  });
  if (result == MF_OK && !some) {
    done(Error{ErrorCode::kConfigurationInProgress,
               "no member would be left that votes: those that are to vote have not copied "
               "everything yet"});
    return;
  }
  if (result == MF_OK && changes.empty()) {
    mf_bytes data{nullptr, 0}, ctx = BytesOf(context);
    result = mf_raft_propose(raft_, &data, &ctx, 1, &index);
  } else if (result == MF_OK) {
    result =
        mf_raft_propose_change(raft_, changes.data(), changes.size(), BytesOf(context), &index);
  }
  if (result == MF_BUSY) {
    done(Error{ErrorCode::kConfigurationInProgress,
               "another change of the configuration is under way: try again"});
    return;
  }
  if (result != MF_OK) {
    done(NotPrimary());
    return;
  }
  pending_.push_back({{term, index}, {.data = {}, .context = nullptr, .done = std::move(done)}});
}

void RaftNode::ReadIndex(std::function<void(Result<uint64_t>)> done) {
  if (!leads()) {
    done(NotPrimary());
    return;
  }
  const uint64_t id = next_read_++;
  reads_.emplace(id, std::move(done));
  mf_raft_read_index(raft_, id);
}

void RaftNode::StepDown(NodeId to, int64_t timeout_ms, bool force,
                        std::function<void(Result<void>)> done) {
  if (!leads()) {
    done(NotPrimary());
    return;
  }
  if (!handover_) handover_ = std::make_unique<Handover>();
  handover_->to = to;
  handover_->until_us = o_.clock->MonotonicMicros() + MicrosOf(timeout_ms);
  handover_->force = force;
  handover_->done.push_back(std::move(done));
  LeaderDuties();
}

void RaftNode::HandOver(NodeId to) {
  constexpr int64_t kMicros = 10'000'000;
  if (!leads() || handover_ || (may_lead && !may_lead(to))) return;
  const std::vector<Member> all = members();
  if (std::none_of(all.begin(), all.end(), [&](const Member& m) { return m.id == to && m.voter; }))
    return;
  for (const ConsensusMember& m : configuration_.members)
    if (m.id == to && m.priority <= 0) return;
  handover_ = std::make_unique<Handover>();
  handover_->to = to;
  handover_->until_us = o_.clock->MonotonicMicros() + kMicros;
  handover_->force = false;
  ContinueHandover();
}

void RaftNode::Poll() {
  if (handover_ && leads()) {
    ContinueHandover();
    Pump();
  }
  if (!held_.empty() && leads() && status().transferee == 0) {
    Propose(std::exchange(held_, {}));  // no other member took over
    Pump();
  }
}

void RaftNode::ContinueHandover() {
  if (status().transferee == 0) {
    NodeId to = handover_->to;
    if (to == 0) to = BestSuccessor(0);
    if (to != 0) mf_raft_transfer(raft_, to);
  }
  if (o_.clock->MonotonicMicros() < handover_->until_us) return;
  if (handover_->force) {
    mf_raft_step_down(raft_);  // CheckState answers
    return;
  }
  auto done = std::move(handover_->done);
  handover_.reset();
  for (auto& d : done)
    d(Error{ErrorCode::kExceededTimeLimit,
            "No electable secondaries caught up within the time given: use force to step "
            "down all the same"});
}

void RaftNode::Campaign() { mf_raft_campaign(raft_); }
void RaftNode::ReportUnreachable(NodeId id) { mf_raft_report_unreachable(raft_, id); }
void RaftNode::Applied(uint64_t index) { mf_raft_applied(raft_, index); }

NodeId RaftNode::BestSuccessor(double above_priority) {
  const uint64_t last = status().last_index;
  NodeId best = 0;
  double best_priority = above_priority;
  uint64_t best_match = 0;
  for (const Member& m : HeardMembers()) {
    if (!m.voter || !m.active || m.id == o_.log->node() || m.matched + kCaughtUp < last) continue;
    if (may_lead && !may_lead(m.id)) continue;
    for (const ConsensusMember& c : configuration_.members) {
      if (c.id != m.id || c.priority <= 0) continue;
      const bool better = c.priority > best_priority ||
                          (best != 0 && c.priority == best_priority && m.matched > best_match);
      if (!better) continue;
      best = m.id;
      best_priority = c.priority;
      best_match = m.matched;
    }
  }
  return best;
}

bool RaftNode::EveryElections(int n) const {
  return ticks_as_leader_ % (o_.election_ticks * n) == o_.election_ticks / 2;
}

std::vector<RaftNode::Member> RaftNode::HeardMembers() {
  if (ticks_as_leader_ <= 1) heard_.clear();
  std::vector<Member> all = members();
  for (Member& m : all) {
    if (m.active) heard_[m.id] = ticks_as_leader_;
    auto it = heard_.find(m.id);
    m.active = it != heard_.end() && ticks_as_leader_ - it->second < o_.election_ticks;
  }
  return all;
}

uint64_t RaftNode::ResumePoint(NodeId id) {
  if (!log_of || (is_copying && is_copying(id))) return 0;
  const LogPosition end = log_of(id);
  if (end.index == 0 || end.term == 0 || end.index + 1 < o_.log->first_index() ||
      end.index > o_.log->last_index())
    return 0;
  Result<uint64_t> term = o_.log->Term(end.index);
  return term && term.value() == end.term ? end.index : 0;
}

void RaftNode::LeaderDuties() {
  const mf_status s = status();
  // A node that is not a voter any more does not lead.
  double own_priority = 1;
  bool voter = false;
  for (const ConsensusMember& m : configuration_.members)
    if (m.id == o_.log->node()) own_priority = m.priority;
  const std::vector<Member> all = HeardMembers();
  for (const Member& m : all) voter |= m.id == o_.log->node() && m.voter;
  if (!voter && !s.pending_conf && !s.joint) {
    mf_raft_step_down(raft_);
    return;
  }
  if (handover_) {
    ContinueHandover();
    return;
  }
  // Reads without an answer are asked again: the heartbeat that carried the question may have been
  // lost.
  if (ticks_as_leader_ % o_.heartbeat_ticks == 0)
    for (auto& [id, done] : reads_) mf_raft_read_index(raft_, id);
  for (const Member& m : all) {
    if (m.id == o_.log->node() || m.follows_log ||
        (!m.in_snapshot && m.next >= o_.log->first_index()))
      continue;
    if (const uint64_t index = ResumePoint(m.id); index != 0)
      mf_raft_probe_from(raft_, m.id, index);
    // The message that pointed to the copy may have been lost, or the copy may have failed.
    else if (m.in_snapshot && m.active && EveryElections(kAskAgainElections) &&
             !(is_copying && is_copying(m.id)))
      mf_raft_report_snapshot(raft_, m.id, false);
  }
  if (!s.pending_conf && !s.joint) {
    std::vector<mf_change> missing;  // after BootstrapLog
    for (const ConsensusMember& c : configuration_.members)
      if (std::none_of(all.begin(), all.end(), [&](const Member& m) { return m.id == c.id; }))
        missing.push_back({MF_ADD_LEARNER, c.id});
    if (!missing.empty()) {
      uint64_t index = 0;
      mf_raft_propose_change(raft_, missing.data(), missing.size(), {nullptr, 0}, &index);
      return;
    }
    for (const Member& m : all) {
      // raft-rs counts a new member as active before it has ever answered.
      if (!m.learner || !m.active || m.in_snapshot || m.matched == 0 ||
          m.matched + kCaughtUp < s.last_index)
        continue;
      const bool wanted =
          std::any_of(configuration_.members.begin(), configuration_.members.end(),
                      [&](const ConsensusMember& c) { return c.id == m.id && c.voter; });
      if (!wanted) continue;
      mf_change change{MF_ADD_VOTER, m.id};
      uint64_t index = 0;
      mf_raft_propose_change(raft_, &change, 1, {nullptr, 0}, &index);
      return;
    }
  }
  if (EveryElections(kTakeOverEveryElections) && s.transferee == 0)
    if (NodeId to = BestSuccessor(own_priority); to != 0) mf_raft_transfer(raft_, to);
}

void RaftNode::Pump() {
  if (given_up_) return;
  if (std::exchange(step_aside_, false)) mf_raft_step_down(raft_);
  CheckState();
  while (mf_raft_has_ready(raft_)) {
    CheckState();
    if (o_.goes_on) o_.goes_on();
    const mf_ready& ready = *mf_raft_ready(raft_);
    mf_committed* committed = ready.committed;
    std::vector<mf_read> reads(ready.reads, ready.reads + ready.read_count);
    Send(ready.messages, ready.message_count);
    if (!Persist(ready)) return;
    const mf_light_ready& light = *mf_raft_persisted(raft_);
    mf_committed* more = light.committed;
    Send(light.messages, light.message_count);
    Commit(committed);
    Commit(more);
    for (const mf_read& r : reads) {
      auto it = reads_.find(r.request);
      if (it == reads_.end()) continue;
      auto done = std::move(it->second);
      reads_.erase(it);
      o_.applier->WhenApplied(r.index, [done = std::move(done), index = r.index](Result<void> a) {
        if (a)
          done(index);
        else
          done(a.error());
      });
    }
    if (std::exchange(step_aside_, false)) mf_raft_step_down(raft_);
    CheckState();
  }
}

bool RaftNode::Persist(const mf_ready& ready) {
  // The commit index need not be durable.
  if (ready.entry_count == 0 && !ready.must_sync) return true;
  batch_->Clear();
  entries_.clear();
  for (size_t i = 0; i < ready.entry_count; ++i) entries_.push_back(FromC(ready.entries[i]));
  o_.log->StageAppend(*batch_, entries_, o_.clock->Now());
  if (ready.has_hard_state) o_.log->StageHardState(*batch_, {ready.term, ready.vote, ready.commit});
  Result<void> written = WriteBatch(true);
  if (!written && written.error().code == ErrorCode::kInterruptedAtShutdown && o_.writes) {
    given_up_ = true;
    return false;
  }
  if (!written) Fatal("the replication log could not be written: " + written.error().message);
  if (batch_->SizeBytes() > kKeepLogBatchBytes) batch_ = o_.log->kv().NewBatch();
  return true;
}

Result<void> RaftNode::WriteBatch(bool sync) {
  auto write = [&] { return o_.log->kv().Write(*batch_, sync); };
  Result<void> written = write();
  if (written || !o_.writes || !PatientWrites::MaySucceedLater(written.error())) return written;
  AnnounceStepAside();
  written = o_.writes->Await(written.error(), write);
  // Announced once more, in order: an older state may have waited behind the applier's entries.
  if (written) Announce(state());
  return written;
}

Result<void> RaftNode::ReadPatiently(const std::function<Result<void>()>& read) {
  Result<void> done = read();
  if (done || !o_.writes || !PatientWrites::MaySucceedLater(done.error())) return done;
  return o_.writes->Await(done.error(), read);
}

void RaftNode::PushCall(std::function<void()> call) {
  if (urgent_)
    o_.applier->PushUrgent(std::move(call));
  else
    o_.applier->PushCall(std::move(call));
}

void RaftNode::AnnounceStepAside() {
  ConsensusState next = state();
  if (next.role != ConsensusRole::kLeader) return;
  next.role = ConsensusRole::kFollower;
  next.leader = 0;
  next.leader_address.clear();
  next.ready = false;
  urgent_ = step_aside_ = true;
  Lost(next);
  urgent_ = false;
}

void RaftNode::StepAside() {
  if (!leads()) return;
  AnnounceStepAside();
  if (std::exchange(step_aside_, false)) mf_raft_step_down(raft_);
  Pump();
}

void RaftNode::Send(const mf_message* messages, size_t count) {
  for (size_t i = 0; i < count; ++i) o_.send(messages[i].to, TextOf(messages[i].bytes));
}

void RaftNode::Commit(mf_committed* committed) {
  if (!committed) return;
  size_t n = 0;
  const mf_entry* views = mf_committed_entries(committed, &n);
  Applier::Work work;
  work.keep.push_back(std::shared_ptr<void>(
      committed, [](void* p) { mf_committed_free(static_cast<mf_committed*>(p)); }));
  work.entries.reserve(n);
  uint64_t ready_term = 0;
  for (size_t i = 0; i < n; ++i) {
    const LogEntry e = FromC(views[i]);
    CommittedEntry& c = work.entries.emplace_back(ToCommitted(e));
    if (e.type != LogEntry::kNormal) {
      mf_bytes state = mf_raft_apply_change(raft_, &views[i]);
      work.conf_state = TextOf(state);
      // A change by an earlier leader removed this node. It must not do a leader's work any more,
      // because it has no place in the set.
      const std::vector<Member> left = members();
      if (leads() && std::none_of(left.begin(), left.end(),
                                  [&](const Member& m) { return m.id == o_.log->node(); }))
        mf_raft_step_down(raft_);
    }
    if (!e.context.empty() && DecodeConfiguration(e.context, &configuration_)) {
      work.configuration = e.context;
      if (o_.configured) o_.configured(configuration_);
    }
    if (e.type == LogEntry::kNormal && e.data.empty() && e.context.empty() &&
        e.term == status().term && leads())
      ready_term = e.term;
    while (!pending_.empty() && pending_.front().at.index <= e.index) {
      Pending p = std::move(pending_.front());
      pending_.pop_front();
      if (p.at == c.position) {
        c.context = p.proposal.context.get();
        if (p.proposal.context) work.keep.push_back(std::move(p.proposal.context));
        work.done.resize(work.entries.size());
        work.done.back() = std::move(p.proposal.done);
      } else {
        // An entry of another leader is at this index, so this proposal will never be committed.
        p.proposal.done(Error{ErrorCode::kPrimarySteppedDown,
                              "the node stopped leading before the write was replicated"});
      }
    }
  }
  o_.applier->Push(std::move(work));
  if (ready_term != 0) {
    noop_term_ = ready_term;
    o_.applier->PushCall([this, ready_term] {
      ConsensusState s;
      {
        std::lock_guard l(state_mutex_);
        if (state_.role != ConsensusRole::kLeader || state_.term != ready_term) return;
        state_.ready = true;
        s = state_;
      }
      o_.machine->StateChanged(s);
    });
  }
}

void RaftNode::CheckState() {
  const mf_status s = status();
  ConsensusState next;
  {
    std::lock_guard l(state_mutex_);
    next = state_;
  }
  const ConsensusState was = next;
  if (configuration_.set_id.empty() && s.role != MF_LEADER) {
    next.role = ConsensusRole::kUninitialised;
  } else {
    next.role = s.role == MF_LEADER     ? ConsensusRole::kLeader
                : s.role == MF_FOLLOWER ? ConsensusRole::kFollower
                                        : ConsensusRole::kCandidate;
  }
  next.term = s.term;
  next.leader = s.leader;
  next.leader_address.clear();
  for (const ConsensusMember& m : configuration_.members)
    if (m.id == s.leader) next.leader_address = m.address;
  const bool led = was.role == ConsensusRole::kLeader;
  const bool lost = led && (next.role != ConsensusRole::kLeader || next.term != was.term);
  if (lost || next.role != ConsensusRole::kLeader) next.ready = false;
  if (next == was) return;
  if (o_.log_line && next.role == ConsensusRole::kCandidate && !was.leader_address.empty() &&
      was.role == ConsensusRole::kFollower)
    o_.log_line('I', "The primary " + was.leader_address +
                         " has gone or hands over: this member stands for election");
  if (o_.log_line && lost && next.role == ConsensusRole::kFollower && next.term == was.term &&
      !handover_)
    o_.log_line('W',
                "This member stops leading: no majority of the voting members has answered within "
                "an election timeout, or it votes no more");
  if (lost) return Lost(std::move(next));
  Announce(next);
  if (!held_.empty() && next.role != ConsensusRole::kLeader) Refuse(std::exchange(held_, {}));
}

void RaftNode::Lost(ConsensusState next) {
  // Before proposals fail: it is unknown here whether they will be committed, so a client that
  // retries must not meet a node that still takes itself for the primary.
  Announce(std::move(next));
  FailPending(ErrorCode::kPrimarySteppedDown, "the node stopped leading");
  // Also if it leads again: they are of the time before.
  if (!held_.empty()) Refuse(std::exchange(held_, {}));
  if (!handover_) return;
  // After the announcement: the caller finds that this node is no longer the primary.
  PushCall([done = std::move(handover_->done)] {
    for (auto& d : done) d(Ok());
  });
  handover_.reset();
}

void RaftNode::Announce(ConsensusState next) {
  {
    std::lock_guard l(state_mutex_);
    if (state_.role == next.role && state_.term == next.term) next.ready = state_.ready;
    state_ = next;
  }
  PushCall([this, next] { o_.machine->StateChanged(next); });
}

void RaftNode::FailPending(ErrorCode code, std::string_view why) {
  auto failed = std::make_shared<std::deque<Pending>>(std::move(pending_));
  auto reads = std::make_shared<std::map<uint64_t, std::function<void(Result<uint64_t>)>>>(
      std::move(reads_));
  pending_.clear();
  reads_.clear();
  if (failed->empty() && reads->empty()) return;
  PushCall([failed, reads, code, why = std::string(why)] {
    for (Pending& p : *failed) p.proposal.done(Error{code, why});
    for (auto& [id, done] : *reads) done(Error{code, why});
  });
}

void RaftNode::Trim(uint64_t max_bytes, int64_t min_age_ms, uint64_t keep_from) {
  const uint64_t point = o_.log->TrimPoint(
      max_bytes, min_age_ms, std::min(keep_from, o_.log->applied().index), o_.clock->Now());
  if (point <= o_.log->first_index()) return;
  Result<uint64_t> term = o_.log->Term(point - 1);
  if (!term) Fatal(term.error().message);
  batch_->Clear();
  o_.log->StageTrim(*batch_, point, term.value());
  Result<void> written = WriteBatch(false);
  if (!written && written.error().code == ErrorCode::kInterruptedAtShutdown && o_.writes) {
    given_up_ = true;
    return;
  }
  if (!written) Fatal("the replication log could not be trimmed: " + written.error().message);
  mf_raft_trimmed(raft_, point, term.value());
}

Result<void> BootstrapLog(LogStore& log, const ConsensusConfiguration& configuration,
                          bool data_is_empty, Instant now) {
  auto batch = log.kv().NewBatch();
  const std::string context = EncodeConfiguration(configuration);
  const NodeId self = log.node();
  LogEntry e{.term = 1, .index = 1};
  e.context = context;
  std::string change;
  if (data_is_empty) {
    // eraftpb.ConfChangeV2 {changes: [{node_id: self}]}: adds the first voter, so that a reader of
    // the whole log knows which node began it.
    std::string single("\x10", 1);
    for (uint64_t id = self;; id >>= 7) {
      single.push_back(static_cast<char>(id >= 0x80 ? (id & 0x7F) | 0x80 : id));
      if (id < 0x80) break;
    }
    change = std::string("\x12", 1) + static_cast<char>(single.size()) + single;
    e.type = LogEntry::kConfChangeV2;
    e.data = change;
    log.StageReset(*batch, {});
  } else {
    e.index = 2;
    log.StageReset(*batch, {1, 1});
    log.StageApplied(*batch, {1, 1}, RaftNode::ConfState({self}, {}), {});
    log.Applied({1, 1});
  }
  log.StageAppend(*batch, std::span(&e, 1), now);
  log.StageHardState(*batch, {1, 0, e.index});
  return log.kv().Write(*batch, true);
}

Result<LogPosition> AdoptCheckpoint(KvStore& copy, NodeId self, const HardState& own,
                                    const std::optional<ArchivedRow>& archived) {
  MAYFLY_TRY(std::unique_ptr<LogStore> log, LogStore::Open(copy));
  const LogPosition applied = log->applied();
  if (applied.index == 0)
    return Error{ErrorCode::kInitialSyncFailure, "the copy holds no state of a replica set"};
  auto batch = copy.NewBatch();
  log->StageTruncate(*batch, applied.index + 1);
  HardState hard = own;
  // An entry of a term proves that the term has begun, so a vote in an earlier term is void.
  if (hard.term < applied.term) hard = {applied.term, 0, 0};
  hard.commit = applied.index;
  log->StageHardState(*batch, hard);
  DropMembersOwnRows(*batch);
  if (archived) StageArchived(*batch, *archived);
  MAYFLY_TRY(copy.Write(*batch, true));
  MAYFLY_TRY(log->MakeNodeId(self));
  return applied;
}

}  // namespace mayfly

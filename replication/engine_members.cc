#include <algorithm>

#include "replication/engine.h"

namespace mayfly {
namespace {

/// How often a member that wants to lead asks the leader to hand over.
constexpr int64_t kAskAgainMicros = 500'000;
constexpr int64_t kReplaceAgainMicros = 1'000'000;
constexpr int64_t kForcedMicros = 20'000'000;
constexpr int64_t kMemberProbeMillis = 3'000;
constexpr int64_t kForEver = INT64_MAX;
constexpr int64_t kClaimMicros =
    10'000'000;  ///< longer than a command takes from its first probe to Initiate

}  // namespace

ConsensusStatus Engine::Status() const {
  ConsensusStatus s;
  std::vector<RaftNode::Member> members;
  {
    std::lock_guard l(status_mutex_);
    s.state = node_ ? node_->state() : ConsensusState{};
    s.configuration = configuration_;
    s.committed = committed_;
    s.last = s.durable = durable_;
    members = members_;
    if (!sync_source_.empty()) s.sync_source = sync_source_;
  }
  s.self = log_->node();
  s.applied = log_->applied();
  s.first = {0, log_->first_index()};
  s.log_bytes = log_->bytes();
  const int64_t now = Micros();
  const bool leads = s.state.role == ConsensusRole::kLeader;
  std::lock_guard l(heard_mutex_);
  for (const ConsensusMember& m : s.configuration.members) {
    MemberStatus& out = s.members.emplace_back();
    out.id = m.id;
    out.address = m.address;
    out.self = m.id == s.self;
    const RaftNode::Member* raft = nullptr;
    for (const RaftNode::Member& r : members)
      if (r.id == m.id) raft = &r;
    out.voter = raft && raft->voter;
    if (out.self) {
      out.reachable = true;
      out.durable = s.durable;
      out.applied = s.applied;
      out.role = s.state.role;
      out.term = s.state.term;
      out.wall_clock = o_.clock->Now();
      out.sync_bytes_done = progress_.done;
      out.sync_bytes_total = copying_ ? progress_.total.load() : 0;
      continue;
    }
    auto it = heard_.find(m.id);
    if (it == heard_.end()) continue;
    const Known& k = it->second;
    out.reachable =
        k.heard_us != 0 && now - k.heard_us < heartbeat_timeout_us_ && k.heard_us >= k.failed_us;
    out.last_heard_us = k.heard_us;
    out.last_answered_us = k.answered_us;
    out.ping_ms = k.ping_ms;
    out.durable = k.last.durable;
    // The leader's log may have heard from the member after its last heartbeat.
    if (leads && raft && raft->matched > out.durable.index)
      out.durable = {s.state.term, raft->matched};
    out.applied = k.last.applied;
    out.role = static_cast<ConsensusRole>(k.last.role);
    out.term = k.last.term;
    out.wall_clock = k.last.wall;
    out.skew_ms = k.skew_ms;
    out.sync_bytes_done = k.last.sync_done;
    out.sync_bytes_total = k.last.sync_total;
    out.payload = k.last.payload;
    out.last_error = k.last_error;
  }
  return s;
}

bool Engine::Claim(const std::string& set_id) { return ClaimFor(set_id, log_->node(), false); }

bool Engine::ClaimFor(const std::string& set_id, NodeId by, bool firmly) {
  std::lock_guard l(claim_mutex_);
  // If two nodes ask for the same members, the one with the lower id gets all of them, whichever
  // asks first. A member whose log was already begun by another set is never given away.
  const bool other = claimed_by_ != set_id && Micros() < claimed_until_us_;
  if (other && (firmly || claim_firm_ || (claimed_by_ < set_id && claimer_ != by))) return false;
  if (claimed_by_ != set_id) claim_firm_ = false;
  claimed_by_ = set_id;
  claimer_ = by;
  claim_firm_ |= firmly;
  if (claimed_until_us_ != kForEver) claimed_until_us_ = Micros() + kClaimMicros;
  return true;
}

Result<void> Engine::Admit(const LinkPeer& peer) {
  if (peer.info.set_id.empty() || peer.info.set_name != o_.set_name || initialised()) return Ok();
  bool ours = true;
  if (log_->last_index() > 0) {
    // A set has begun to write to this log. Its configuration is in the first entry, which is not
    // applied yet.
    ConsensusConfiguration c;
    const uint64_t first = log_->first_index();
    Result<void> read = log_->Read(first, first + 1, 1, [&](const LogEntry& e) {
      if (DecodeConfiguration(e.context, &c)) ours = c.set_id == peer.info.set_id;
    });
    if (!read) return read;
  } else {
    ours = ClaimFor(peer.info.set_id, peer.info.id, peer.purpose != LinkPurpose::kProbe);
  }
  if (ours) return Ok();
  return Error{ErrorCode::kConfigurationInProgress,
               "another member takes it into a replica set just now"};
}

void Engine::Initiate(ConsensusConfiguration c, bool data_is_empty, Applier::Done done) {
  Call([this, c = std::move(c), data_is_empty, done = std::move(done)] {
    if (halted_) return done(Halted());
    if (log_->last_index() > 0) {
      done(Error{ErrorCode::kAlreadyInitialized, "already initialized"});
      return;
    }
    {
      std::lock_guard l(claim_mutex_);
      if (claimed_by_ != c.set_id && Micros() < claimed_until_us_)
        return done(Error{ErrorCode::kConfigurationInProgress,
                          "another member has taken this one into a replica set meanwhile"});
      claimed_by_ = c.set_id;
      claim_firm_ = true;
      claimed_until_us_ = kForEver;
    }
    node_->Pump();
    auto begin = [&] { return BootstrapLog(*log_, c, data_is_empty, o_.clock->Now()); };
    Result<void> begun = begin();
    if (!begun && PatientWrites::MaySucceedLater(begun.error()))
      begun = writes_.Await(begun.error(), begin);
    if (!begun && begun.error().code == ErrorCode::kInterruptedAtShutdown) return done(Halted());
    if (!begun) Fatal(begun.error().message);
    const uint64_t index = log_->last_index();
    if (Result<void> opened = OpenNode(); !opened) Fatal(opened.error().message);
    // Waits until the configuration is applied. Otherwise raft-rs would refuse, and the set would
    // only begin after an election timeout.
    applier_->WhenApplied(index, [this](const Result<void>& r) {
      if (!r) return;
      Call([this] {
        if (halted_) return;
        node_->Applied(log_->applied().index);
        node_->Campaign();
      });
    });
    // The node can be written to once the first entry of its term is applied.
    applier_->WhenApplied(index + 1, [done, index](Result<void> r) {
      if (r)
        done(LogPosition{1, index});
      else
        done(r.error());
    });
  });
}

void Engine::Reconfigure(ConsensusConfiguration c, Applier::Done done) {
  Call([this, c = std::move(c), done = std::move(done)] {
    if (halted_) return done(Halted());
    node_->Reconfigure(c, done);
  });
}

void Engine::ForceReconfigure(ConsensusConfiguration c, Applier::Done done) {
  Call([this, c = std::move(c), done = std::move(done)] {
    if (halted_) return done(Halted());
    Force(c, done);
  });
}

void Engine::StepDown(NodeId to, int64_t timeout_ms, bool force,
                      std::function<void(Result<void>)> done) {
  Call([this, to, timeout_ms, force, done = std::move(done)] {
    if (halted_) return done(Halted());
    node_->StepDown(to, timeout_ms, force, done);
  });
}

void Engine::StepUp(int64_t timeout_ms, std::function<void(Result<void>)> done) {
  Call([this, timeout_ms, done = std::move(done)] {
    if (halted_) return done(Halted());
    step_ups_.push_back({Micros() + timeout_ms * 1000, done});
    next_ask_us_ = 0;
    PushStepUp();
  });
}

void Engine::Configured(const ConsensusConfiguration& c) {
  {
    std::lock_guard l(status_mutex_);
    configuration_ = c;
  }
  if (c.Find(log_->node())) removed_ = false;
  std::vector<Transport::Address> peers;
  for (const ConsensusMember& m : c.members)
    if (m.id != log_->node()) peers.push_back({m.id, m.address});
  transport_->SetPeers(std::move(peers));
  o_.machine->Configured(c);
}

void Engine::Removed(uint64_t as_of, const std::string& encoded) {
  ConsensusConfiguration c;
  if (!DecodeConfiguration(encoded, &c) || c.Find(log_->node())) return;
  {
    std::lock_guard l(status_mutex_);
    if (configuration_.set_id != c.set_id || !configuration_.Find(log_->node())) return;
  }
  // The sender knows less of the log than this node. It may not know yet that this node was added
  // again.
  if (as_of <= node_->status().commit) return;
  Log('W', "This member was removed from the set while it was away");
  removed_ = true;
  Configured(c);
}

void Engine::Force(const ConsensusConfiguration& c, Applier::Done done) {
  // Existing voters are adopted if they are still wanted. All other changes come by the log, where
  // all members find the same: new members are added by it, and the changes that are made here at
  // once are repeated there.
  std::vector<NodeId> voters, learners;
  std::vector<mf_change> changes;
  for (const RaftNode::Member& m : node_->members()) {
    const ConsensusMember* wanted = c.Find(m.id);
    if (!wanted) {
      changes.push_back({MF_REMOVE, m.id});
    } else if (wanted->voter && m.voter) {
      voters.push_back(m.id);
    } else if (wanted->voter && m.id == log_->node()) {
      voters.push_back(m.id);
      changes.push_back({MF_ADD_VOTER, m.id});
    } else {
      learners.push_back(m.id);
      if (m.voter) changes.push_back({MF_ADD_LEARNER, m.id});
    }
  }
  if (std::find(voters.begin(), voters.end(), log_->node()) == voters.end())
    return done(Error{ErrorCode::kInvalidReplicaSetConfig,
                      "a configuration is forced on a member that has a vote in it"});
  applier_->Drain();  // the applier must not overwrite the new state with the old one
  auto batch = o_.kv->NewBatch();
  const LogPosition applied = log_->applied();
  log_->StageApplied(*batch, applied, RaftNode::ConfState(voters, learners),
                     EncodeConfiguration(c));
  HardState hard = log_->hard_state();
  ++hard.term;
  hard.vote = 0;
  log_->StageHardState(*batch, hard);
  auto write = [&] { return o_.kv->Write(*batch, true); };
  Result<void> written = write();
  if (!written && PatientWrites::MaySucceedLater(written.error()))
    written = writes_.Await(written.error(), write);
  if (!written && written.error().code == ErrorCode::kInterruptedAtShutdown) return done(Halted());
  if (!written) Fatal(written.error().message);
  if (Result<void> opened = OpenNode(); !opened) Fatal(opened.error().message);
  Configured(c);
  node_->Campaign();
  node_->Pump();
  forced_ = Forced{c, std::move(changes), std::move(done), Micros() + kForcedMicros};
}

void Engine::PushForced() {
  if (!forced_) return;
  // Waits for the changes that a new leader makes by itself.
  const bool busy = node_->status().pending_conf || node_->status().joint;
  if (node_->state().ready && node_->leads() && !busy) {
    Forced f = std::move(*forced_);
    forced_.reset();
    node_->Reconfigure(f.configuration, f.done, f.changes);
    return;
  }
  if (Micros() >= forced_->until_us) {
    Forced f = std::move(*forced_);
    forced_.reset();
    f.done(Error{ErrorCode::kExceededTimeLimit, "the forced configuration has no majority either"});
    return;
  }
}

void Engine::PushStepUp() {
  if (step_ups_.empty()) return;
  const bool leads = node_->leads() && node_->state().ready;
  const int64_t now = Micros();
  for (size_t i = 0; i < step_ups_.size();) {
    if (!leads && now < step_ups_[i].until_us) {
      ++i;
      continue;
    }
    auto done = std::move(step_ups_[i].done);
    step_ups_.erase(step_ups_.begin() + static_cast<ptrdiff_t>(i));
    if (leads)
      applier_->PushCall([done] { done(Ok()); });  // after the announcement
    else
      done(Error{ErrorCode::kExceededTimeLimit,
                 "this member did not come to lead in the time given"});
  }
  if (step_ups_.empty() || node_->leads() || now < next_ask_us_) return;
  next_ask_us_ = now + kAskAgainMicros;
  if (const NodeId leader = node_->status().leader; leader != 0)
    (void)transport_->Send(leader, Transport::kStepUp, {});
  else
    node_->Campaign();
}

void Engine::ReplaceStranger(NodeId lost) {
  const ConsensusState known = state();
  // The leader replaces members.
  if (known.role != ConsensusRole::kLeader && known.leader != 0) return;
  if (Micros() < next_replace_us_) return;
  next_replace_us_ = Micros() + kReplaceAgainMicros;
  const std::optional<std::string> address = transport_->AddressOf(lost);
  if (!address) return;
  transport_->Probe(
      *address, {}, kMemberProbeMillis, [this, lost, address = *address](Result<NodeInfo> found) {
        if (!found || found.value().id == lost) return;
        const NodeInfo& node = found.value();
        if (node.set_name != o_.set_name || !node.set_id.empty() || node.has_data) {
          if (std::exchange(refused_, node.id) != node.id)
            Log('W', "Another node lives at " + address +
                         ", and it is not empty: it is not taken in. Empty its data directory, or "
                         "remove the member");
          return;
        }
        Call([this, lost, id = node.id, address] {
          if (!halted_) TakeIn(lost, id, address);
        });
      });
}

void Engine::TakeIn(NodeId lost, NodeId id, const std::string& address) {
  ConsensusConfiguration next = node_->configuration();
  ConsensusMember* place = nullptr;
  for (ConsensusMember& m : next.members) {
    if (m.id == id) return;
    if (m.id == lost && m.address == address) place = &m;
  }
  if (place == nullptr) return;
  place->id = id;
  int voters = 0;
  bool votes = false;
  for (const RaftNode::Member& m : node_->members()) {
    voters += m.voter;
    votes |= m.voter && m.id == lost;
  }
  const bool of_two = voters == 2 && votes;
  if (of_two ? !IsLeftOfTwo(lost) : !node_->leads()) return;
  Log('W', "The data directory of " + address +
               " was emptied: the member is taken in anew and copies everything");
  auto done = [this, address](Result<LogPosition> r) {
    if (!r) Log('W', address + " could not be taken in anew yet: " + r.error().message);
  };
  if (of_two)
    Force(next, done);
  else
    node_->Reconfigure(std::move(next), done);
}

bool Engine::IsLeftOfTwo(NodeId lost) {
  // Both voters have all acknowledged writes: nothing is missing here. A leader must first notice
  // that it lost its majority; pending writes then fail as with any leader that steps down.
  const mf_status s = node_->status();
  if (s.leader != 0 || node_->leads() || s.joint || forced_ || copying_ ||
      Micros() < frozen_until_us_)
    return false;
  for (const RaftNode::Member& m : node_->members())
    if (m.voter && m.id != lost && m.id != log_->node()) return false;
  // The log has a change of membership, and this node does not know whether it is committed. The
  // other member may have used it to continue with further members.
  bool changing = false;
  Result<void> read = Ok();
  if (s.commit < log_->last_index())
    read = log_->Read(s.commit + 1, log_->last_index() + 1, UINT64_MAX,
                      [&](const LogEntry& e) { changing |= e.type != LogEntry::kNormal; });
  return read && !changing;
}

}  // namespace mayfly

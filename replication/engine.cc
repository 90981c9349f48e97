#include "replication/engine.h"
#include "protocol/large_memory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "replication/open_units.h"

namespace mayfly {
namespace {

/// What does not follow raft-rs's ticks (handing over leadership, reporting positions) runs at
/// least this often, however long the election timeout is.
constexpr int64_t kPollMicros = 50'000;
constexpr int64_t kHousekeepingMicros = 1'000'000;
/// Besides its heartbeats, a member reports what it has applied to the leader at most this often.
/// Writes with w: N wait for these reports.
constexpr int64_t kTellMicros = 10'000;
/// A member that has not written its log for this many election timeouts counts as gone, because
/// its disk hangs.
constexpr int64_t kStuckElections = 5;
constexpr size_t kMaxInboxBytes = 256 << 20;

uint64_t RandomId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

/// 5% of the disk, between 990 MiB and 50 GB, as MongoDB sizes its oplog.
uint64_t DefaultLogBytes(const std::string& directory) {
  std::error_code ec;
  const auto space = std::filesystem::space(directory, ec);
  const uint64_t part = ec ? 0 : space.available / 20;
  return std::clamp<uint64_t>(part, 990ull << 20, 50ull << 30);
}

}  // namespace

Result<void> Engine::Open() {
  std::vector<std::string> keys = o_.more_keys;
  if (!o_.key.empty()) keys.insert(keys.begin(), o_.key);
  for (const std::string& key : keys) {
    link_keys_.push_back(MemberKey(key));
    if (link_keys_.back().empty())
      return Error{ErrorCode::kInternalError, "no key can be derived from the key file"};
  }
  if (o_.keyless_members || keys.empty()) link_keys_.emplace_back();
  MAYFLY_TRY(log_, LogStore::Open(*o_.kv));
  if (log_->node() == 0) {
    MAYFLY_TRY(log_->MakeNodeId(RandomId()));
  }
  if (!log_->stored_configuration().empty())
    DecodeConfiguration(log_->stored_configuration(), &configuration_);
  if (o_.history_lost) {
    MAYFLY_TRY(std::optional<ArchivedRow> archived, ReadArchived(*o_.kv));
    if (archived) {
      archived->history_lost = true;
      auto batch = o_.kv->NewBatch();
      StageArchived(*batch, *archived);
      MAYFLY_TRY(o_.kv->Write(*batch, true));
    }
  }
  if (const LogPosition applied = log_->applied();
      o_.history_lost && applied.index >= log_->first_index()) {
    // A unit with applied chunks may have its end among unapplied entries: these stay.
    OpenUnits open;
    MAYFLY_TRY(open.Load(*o_.kv));
    const uint64_t first =
        std::max(std::min(applied.index + 1, open.first_index()), log_->first_index());
    MAYFLY_TRY(const uint64_t term, log_->Term(first - 1));
    auto batch = o_.kv->NewBatch();
    log_->StageTrim(*batch, first, term);
    MAYFLY_TRY(o_.kv->Write(*batch, true));
  }
  if (o_.log_max_bytes == 0) o_.log_max_bytes = DefaultLogBytes(o_.data_directory);
  max_bytes_ = o_.log_max_bytes;
  min_hours_ = o_.log_min_hours;
  applier_ = std::make_unique<Applier>(
      *log_, *o_.machine, [this](std::string_view why) { Fatal(why); },
      [this] {
        if (leads_) return;  // this member leads: nobody else has to be told
        std::unique_lock l(mutex_);
        moved_ = true;
        Wake(l);
      });
  applier_->set_writes(&writes_);
  checkpoints_ = std::make_unique<CheckpointStore>(
      *o_.kv, o_.data_directory, *o_.clock, o_.copy_silence_ms,
      [this](char severity, std::string_view message) { Log(severity, message); });
  MAYFLY_TRY(const uint64_t term, log_->Term(log_->last_index()));
  durable_ = {term, log_->last_index()};
  return Ok();
}

Result<void> Engine::Start() {
  Transport::Options t;
  t.identity = [this] { return Identity(); };
  t.tls = o_.tls;
  t.admit = [this](const LinkPeer& peer) { return Admit(peer); };
  t.received = [this](NodeId from, uint8_t type, std::string_view body) {
    Received(from, type, body);
  };
  t.heartbeat = [this](NodeId) { return EncodeHeartbeat(OwnHeartbeat(Micros())); };
  t.answer = [this](NodeId from, std::string_view body) { return AnswerTo(from, body); };
  t.moved = [this](NodeId peer, bool sent) { Moved(peer, sent); };
  t.link_changed = [this](NodeId peer, bool up, const Error& why) {
    {
      std::lock_guard l(heard_mutex_);
      Known& k = heard_[peer];
      k.last_error = why.message;
      k.failed_us = up ? 0 : Micros();
      if (up) k.up_us = Micros();
    }
    if (!up && why.code == ErrorCode::kNodeNotFound) ReplaceStranger(peer);
    if (up) return;
    Call([this, peer] {
      if (halted_) return;
      node_->ReportUnreachable(peer);
    });
  };
  t.serve_fetch = [this](std::shared_ptr<MemberLink> link, NodeId) {
    return checkpoints_->Serve(std::move(link));
  };
  t.log = [this](char severity, std::string_view message) { Log(severity, message); };
  t.heartbeat_ms = std::max(o_.tick_ms, o_.tick_ms * o_.election_ticks / 4);
  transport_ = std::make_unique<Transport>(std::move(t));
  if (const int64_t ms = heartbeat_ms_) transport_->SetHeartbeat(ms);
  transport_->Start();
  started_.store(true, std::memory_order_release);
  applier_->StartThread();
  MAYFLY_TRY(OpenNode());
  thread_ = std::thread(large_memory::WithThisBudget([this] { Run(); }));
  return Ok();
}

void Engine::Stop() {
  {
    std::lock_guard l(mutex_);
    if (std::exchange(stop_, true)) return;
  }
  wake_.notify_one();
  writes_.Stop();
  if (thread_.joinable()) thread_.join();
  if (transport_) transport_->Stop();
  std::vector<std::function<void()>> calls;
  {
    std::lock_guard l(mutex_);
    halted_ = true;
    calls.swap(calls_);
  }
  for (Waiting& w : std::exchange(step_ups_, {})) w.done(Halted());
  for (auto& f : calls) f();                 // they fail, because the engine has ended
  if (applier_ && node_) applier_->Drain();  // what it still has to announce uses the node
  std::unique_ptr<RaftNode> node;
  {
    std::lock_guard l(status_mutex_);
    node = std::move(node_);
  }
  node.reset();  // pending proposals fail; their callbacks run on the applier
  if (applier_) applier_->Stop();
  for (Proposal& p : proposals_) Interrupted(p);
  proposals_.clear();
}

bool Engine::initialised() const {
  std::lock_guard l(status_mutex_);
  return !configuration_.set_id.empty();
}

ConsensusState Engine::state() const {
  std::lock_guard l(status_mutex_);
  return node_ ? node_->state() : ConsensusState{};
}

void Engine::Fatal(std::string_view why) {
  if (o_.fatal) o_.fatal(why);
  std::fprintf(stderr, "replication cannot go on: %.*s\n", static_cast<int>(why.size()),
               why.data());
  std::abort();
}

void Engine::Call(std::function<void()> f) {
  std::unique_lock l(mutex_);
  if (stop_ && halted_) {
    l.unlock();
    return f();  // it fails, because the engine has ended
  }
  calls_.push_back(std::move(f));
  Wake(l);
}

void Engine::Wake(std::unique_lock<std::mutex>& l) {
  const bool sleeping = std::exchange(sleeping_, false);
  l.unlock();
  if (sleeping) wake_.notify_one();
}

void Engine::Propose(Proposal p) {
  std::unique_lock l(mutex_);
  if (stop_ || halted_) {
    l.unlock();
    return Interrupted(p);
  }
  proposals_.push_back(std::move(p));
  Wake(l);
}

void Engine::ReadIndex(std::function<void(Result<uint64_t>)> done) {
  Call([this, done = std::move(done)] {
    if (halted_) return done(Halted());
    node_->ReadIndex(done);
  });
}

void Engine::WhenApplied(uint64_t index, std::function<void(Result<void>)> done) {
  applier_->WhenApplied(index, std::move(done));
}

void Engine::DoNotCampaignUntil(int64_t us) {
  frozen_until_us_ = us;
  Call([this] { told_ = UINT64_MAX; });  // the leader is told at once
}

void Engine::SetTimings(const ConsensusTimings& t) {
  tick_us_ = std::max<int64_t>(t.election_ms * 1000 / o_.election_ticks, 1000);
  heartbeat_ms_ = t.heartbeat_ms;
  heartbeat_timeout_us_ = t.heartbeat_timeout_ms * 1000;
  if (transport_) transport_->SetHeartbeat(t.heartbeat_ms);
  Call([] {});  // the thread still sleeps by the old settings
}

void Engine::SetRetention(uint64_t max_bytes, double min_hours) {
  Call([this, max_bytes, min_hours] {
    if (halted_) return;
    max_bytes_ = max_bytes ? max_bytes : o_.log_max_bytes;
    min_hours_ = min_hours > 0 || max_bytes ? min_hours : o_.log_min_hours;
    Housekeeping();
  });
}

void Engine::Probe(const std::string& address, const std::string& claim, int64_t timeout_ms,
                   std::function<void(Result<NodeInfo>)> done) {
  transport_->Probe(address, claim, timeout_ms, std::move(done));
}
void Engine::AdoptConnection(HandedConnection connection) {
  // The server listens before Start, so another member may be faster than this one. It will try
  // again.
  if (!started_.load(std::memory_order_acquire)) {
    ::close(connection.socket);
    return;
  }
  transport_->Adopt(std::move(connection));
}

Result<void> Engine::OpenNode() {
  RaftNode::Options n;
  n.log = log_.get();
  n.applier = applier_.get();
  n.machine = o_.machine;
  n.clock = o_.clock;
  n.writes = &writes_;
  n.election_ticks = o_.election_ticks;
  n.heartbeat_ticks = o_.heartbeat_ticks;
  n.seed = RandomId();
  n.send = [this](NodeId to, std::string_view m) {
    if (!transport_->Send(to, Transport::kRaft, m)) unreachable_.push_back(to);
  };
  n.snapshot = [this](uint64_t at_least, NodeId, SnapshotPointer* out) {
    return Snapshot(at_least, out);
  };
  n.resync = [this](NodeId from, SnapshotPointer p) { Resync(from, std::move(p)); };
  n.goes_on = [this] { round_us_ = Micros(); };
  n.configured = [this](const ConsensusConfiguration& c) { Configured(c); };
  n.fatal = [this](std::string_view why) { Fatal(why); };
  n.log_line = [this](char severity, std::string_view m) { Log(severity, m); };
  if (node_) {
    applier_->Drain();  // announcements of the old node run first
  }
  auto next = std::make_unique<RaftNode>(std::move(n));
  next->may_lead = [this](NodeId id) {
    std::lock_guard l(heard_mutex_);
    auto it = heard_.find(id);
    return it != heard_.end() && it->second.last.electable && !it->second.last.copying;
  };
  next->is_copying = [this](NodeId id) {
    std::lock_guard l(heard_mutex_);
    auto it = heard_.find(id);
    return it != heard_.end() && (it->second.last.copying || !it->second.current());
  };
  next->log_of = [this](NodeId id) {
    std::lock_guard l(heard_mutex_);
    auto it = heard_.find(id);
    return it != heard_.end() && it->second.current() ? it->second.last.durable : LogPosition{};
  };
  std::unique_ptr<RaftNode> old;
  {
    std::lock_guard l(status_mutex_);
    old = std::exchange(node_, std::move(next));
  }
  old.reset();
  return node_->Open();
}

LinkIdentity Engine::Identity() const {
  LinkIdentity id;
  id.node = log_->node();
  id.set_name = o_.set_name;
  id.key = o_.key;
  id.link_keys = link_keys_;
  id.old_handshake = o_.old_handshake && o_.old_handshake();
  id.tls = o_.tls;
  id.has_data = o_.has_data && o_.has_data();
  std::lock_guard l(status_mutex_);
  id.set_id = configuration_.set_id;
  if (const ConsensusMember* own = configuration_.Find(id.node)) id.address = own->address;
  return id;
}

Heartbeat Engine::OwnHeartbeat(int64_t stamp) {
  Heartbeat h;
  h.stamp_us = stamp;
  h.wall = o_.clock->Now();
  const ConsensusState s = state();
  h.role = static_cast<uint8_t>(s.role);
  h.term = s.term;
  const bool writes = !writes_.waiting();
  h.electable = writes && Micros() >= frozen_until_us_;
  h.copying = copying_;
  h.works = writes && Micros() - round_us_ < kStuckElections * o_.election_ticks * tick_us_;
  h.applied = log_->applied();
  h.sync_done = progress_.done;
  h.sync_total = copying_ ? progress_.total.load() : 0;
  h.payload = o_.machine->HeartbeatPayload();
  std::lock_guard l(status_mutex_);
  h.durable = durable_;
  return h;
}

std::string Engine::AnswerTo(NodeId from, std::string_view body) {
  Heartbeat h;
  if (DecodeHeartbeat(body, &h)) Heard(from, h, false);
  Heartbeat own = OwnHeartbeat(h.stamp_us);
  std::lock_guard l(status_mutex_);
  if (!configuration_.set_id.empty() && !configuration_.Find(from)) {
    own.without_you = true;
    own.payload = EncodeConfiguration(configuration_);
  }
  return EncodeHeartbeat(own);
}

void Engine::Heard(NodeId from, const Heartbeat& h, bool answer) {
  {
    std::lock_guard l(heard_mutex_);
    Known& k = heard_[from];
    const int64_t now = Micros(), election_us = o_.election_ticks * tick_us_;
    k.heard_us = now;
    if (h.works && (answer ? now - h.stamp_us < election_us : now - k.sent_us < election_us / 2))
      k.follows_us = now;
    if (answer) {
      k.answered_us = now;
      const double ms = static_cast<double>(now - h.stamp_us) / 1000;
      k.ping_ms = k.ping_ms == 0 ? ms : k.ping_ms * 0.8 + ms * 0.2;
      k.skew_ms = h.wall.millis - (o_.clock->Now().millis - static_cast<int64_t>(ms / 2));
    }
    k.last = h;
  }
  o_.machine->Progressed();
}

void Engine::Moved(NodeId peer, bool sent) {
  std::lock_guard l(heard_mutex_);
  Known& k = heard_[peer];
  (sent ? k.sent_us : k.received_us) = Micros();
}

void Engine::TellAlive(int64_t since) {
  const mf_status s = node_->status();
  if (s.role != MF_LEADER && s.role != MF_FOLLOWER) return;
  std::lock_guard l(heard_mutex_);
  if (s.role == MF_LEADER) {
    for (const auto& [id, k] : heard_)
      if (k.follows_us > since && k.last.term == s.term) node_->MemberAlive(id);
    return;
  }
  auto it = heard_.find(s.leader);
  if (it == heard_.end()) return;
  const Known& k = it->second;
  const bool says = k.heard_us > since && k.last.works && k.last.term == s.term &&
                    k.last.role == static_cast<uint8_t>(ConsensusRole::kLeader);
  if (says || k.received_us > since) node_->LeaderAlive();
}

void Engine::Received(NodeId from, uint8_t type, std::string_view body) {
  if (type == Transport::kHeartbeatAnswer) {
    Heartbeat h;
    if (!DecodeHeartbeat(body, &h)) return;
    if (h.without_you)
      Call([this, as_of = h.applied.index, encoded = std::move(h.payload)] {
        if (!halted_) Removed(as_of, encoded);
      });
    else
      Heard(from, h, true);
    return;
  }
  if (type == Transport::kStepUp) {
    Call([this, from] {
      if (!halted_) node_->HandOver(from);
    });
    return;
  }
  std::unique_lock l(mutex_);
  // The inbox is full: the message is dropped, and the leader sends it again.
  if (inbox_bytes_ + body.size() > kMaxInboxBytes) return;
  inbox_bytes_ += body.size();
  inbox_.emplace_back(from, std::string(body));
  Wake(l);
}

void Engine::Run() {
  std::vector<std::pair<NodeId, std::string>> messages;
  std::vector<std::function<void()>> calls;
  std::vector<Proposal> proposals;
  int64_t next_tick = Micros(), last_tick = next_tick, next_poll = next_tick,
          next_housekeeping = next_tick, next_tell = 0;
  uint64_t applied = 0;
  std::unique_lock l(mutex_);
  for (;;) {
    if (std::exchange(moved_, false)) next_poll = std::min(next_poll, next_tell);
    if (inbox_.empty() && calls_.empty() && proposals_.empty() && !stop_) {
      const int64_t wait = std::min(next_tick, next_poll) - Micros();
      if (wait > 0) {
        sleeping_ = true;
        wake_.wait_for(l, std::chrono::microseconds(wait));
        sleeping_ = false;
      }
    }
    if (stop_) return;
    round_us_ = Micros();
    messages.swap(inbox_);
    calls.swap(calls_);
    proposals.swap(proposals_);
    inbox_bytes_ = 0;
    l.unlock();

    const bool stepped = !messages.empty() || !proposals.empty();
    if (!halted_) {
      node_->set_may_campaign(Micros() >= frozen_until_us_ && !copying_ && !removed_ &&
                              !writes_.waiting());
      if (writes_.waiting()) node_->StepAside();
      for (auto& [from, bytes] : messages) node_->Step(from, bytes);
    }
    messages.clear();
    for (auto& f : calls) f();
    calls.clear();
    if (!proposals.empty()) {
      if (halted_)
        for (Proposal& p : proposals) Interrupted(p);
      else
        node_->Propose(std::move(proposals));
      proposals = {};
    }
    if (!halted_) {
      if (const uint64_t now = log_->applied().index; now != applied) node_->Applied(applied = now);
      node_->Pump();
      const int64_t now = Micros();
      const int64_t tick_us = tick_us_;
      next_tick = std::min(next_tick, now + tick_us);  // the interval may have become shorter
      if (now >= next_tick) {
        // After a pause (a stopped process), time continues from now, without a burst of ticks.
        next_tick = std::max(next_tick + tick_us, now);
        TellAlive(std::exchange(last_tick, now));
        node_->Tick();
      }
      const bool poll = now >= next_poll;
      if (poll) {
        next_poll = now + kPollMicros;
        leads_ = node_->leads();
        node_->Poll();
        PushForced();
        PushStepUp();
      }
      if (applied != told_ && now >= next_tell) {
        told_ = applied;
        next_tell = now + kTellMicros;
        if (const NodeId leader = node_->status().leader; leader != 0 && leader != log_->node())
          (void)transport_->Send(leader, Transport::kHeartbeat,
                                 EncodeHeartbeat(OwnHeartbeat(Micros())));
      }
      for (NodeId id : std::exchange(unreachable_, {})) node_->ReportUnreachable(id);
      if (stepped || poll) Publish();
      if (now >= next_housekeeping) {
        next_housekeeping = now + kHousekeepingMicros;
        Housekeeping();
      }
    } else {
      next_tick = next_poll = Micros() + kPollMicros;
    }
    l.lock();
  }
}

void Engine::Publish() {
  std::vector<RaftNode::Member> members = node_->members();
  const mf_status s = node_->status();
  const uint64_t last = log_->last_index();
  bool moved = false;
  {
    std::lock_guard l(status_mutex_);
    moved = members.size() != members_.size();
    for (size_t i = 0; i < members.size() && !moved; ++i)
      moved = members[i].matched != members_[i].matched || members[i].voter != members_[i].voter;
    members_ = std::move(members);
    committed_ = {s.term, s.commit};
    if (durable_.index != last) {
      Result<uint64_t> term = s.role == MF_LEADER ? Result<uint64_t>(s.term) : log_->Term(last);
      durable_ = {term ? term.value() : 0, last};
    }
  }
  if (moved) o_.machine->Progressed();
}

Result<std::unique_ptr<Consensus>> OpenConsensus(ConsensusOptions options) {
  auto engine = std::make_unique<Engine>(std::move(options));
  MAYFLY_TRY(engine->Open());
  return std::unique_ptr<Consensus>(std::move(engine));
}

}  // namespace mayfly

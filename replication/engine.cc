#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "replication/data_copy.h"
#include "replication/heartbeat.h"
#include "replication/raft_node.h"
#include "replication/transport.h"

namespace mayfly {
namespace asio = boost::asio;
namespace {

constexpr asio::use_awaitable_t<LinkExecutor> kAwait;
constexpr int64_t kHousekeepingMicros = 1'000'000;
/// What is not raft-rs's time (handing over, positions that are told) goes on at least so often,
/// however long an election timeout is.
constexpr int64_t kPollMicros = 50'000;
/// A member that has applied something tells the leader at most so often beside its heartbeats:
/// whoever waits for w: N waits for that.
constexpr int64_t kTellMicros = 10'000;
constexpr int64_t kAskAgainMicros = 500'000;  ///< the leader to hand over, by who wants to lead
constexpr int64_t kReplaceAgainMicros = 1'000'000;
constexpr int64_t kProbeMillis = 3'000;
constexpr uint64_t kCompactAfterBytes = 64 << 20;
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

/// RaftNode on a thread, with a clock, a network and initial sync.
class Engine final : public Consensus {
 public:
  explicit Engine(ConsensusOptions options) : o_(std::move(options)) {}
  ~Engine() override { Stop(); }

  void Stop() override {
    {
      std::lock_guard l(mutex_);
      if (std::exchange(stop_, true)) return;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
    if (transport_) transport_->Stop();
    std::vector<std::function<void()>> calls;
    {
      std::lock_guard l(mutex_);
      halted_ = true;
      calls.swap(calls_);
    }
    for (Waiting& w : std::exchange(step_ups_, {})) w.done(Halted());
    for (auto& f : calls) f();                 // they answer that it is over
    if (applier_ && node_) applier_->Drain();  // what it still announces is the node's
    std::unique_ptr<RaftNode> node;
    {
      std::lock_guard l(status_mutex_);
      node = std::move(node_);
    }
    node.reset();  // pending proposals fail, on the applier
    if (applier_) applier_->Stop();
    for (Proposal& p : proposals_) Interrupted(p);
    proposals_.clear();
  }

  Result<void> Open() {
    MAYFLY_TRY(log_, LogStore::Open(*o_.kv));
    if (log_->node() == 0) {
      MAYFLY_TRY(log_->MakeNodeId(RandomId()));
    }
    if (!log_->stored_configuration().empty())
      DecodeConfiguration(log_->stored_configuration(), &configuration_);
    if (o_.log_max_bytes == 0) o_.log_max_bytes = DefaultLogBytes(o_.data_directory);
    max_bytes_ = o_.log_max_bytes;
    min_hours_ = o_.log_min_hours;
    applier_ = std::make_unique<Applier>(
        *log_, *o_.machine, [this](std::string_view why) { Fatal(why); },
        [this] {
          if (leads_) return;  // nobody to tell
          std::unique_lock l(mutex_);
          moved_ = true;
          Wake(l);
        });
    checkpoints_ = std::make_unique<CheckpointStore>(*o_.kv, o_.data_directory, *o_.clock);
    return Ok();
  }

  Result<void> Start() override {
    Transport::Options t;
    t.identity = [this] { return Identity(); };
    t.received = [this](NodeId from, uint8_t type, std::string_view body) {
      Received(from, type, body);
    };
    t.heartbeat = [this](NodeId) { return EncodeHeartbeat(OwnHeartbeat(Micros())); };
    t.answer = [this](NodeId from, std::string_view body) {
      Heartbeat h;
      if (DecodeHeartbeat(body, &h)) Heard(from, h, false);
      return EncodeHeartbeat(OwnHeartbeat(h.stamp_us));
    };
    t.link_changed = [this](NodeId peer, bool up, const Error& why) {
      {
        std::lock_guard l(heard_mutex_);
        Known& k = heard_[peer];
        k.last_error = why.message;
        k.failed_us = up ? 0 : Micros();
      }
      if (!up && why.code == ErrorCode::kNodeNotFound) ReplaceStranger(peer);
      Call([this, peer, up] {
        if (halted_) return;
        if (up)
          node_->ReportSnapshot(peer, true);
        else
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
    thread_ = std::thread([this] { Run(); });
    return Ok();
  }

  NodeId self() const override { return log_->node(); }
  bool initialised() const override {
    std::lock_guard l(status_mutex_);
    return !configuration_.set_id.empty();
  }
  ConsensusState state() const override {
    std::lock_guard l(status_mutex_);
    return node_ ? node_->state() : ConsensusState{};
  }

  ConsensusStatus Status() const override {
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
      // What the leader's log has been told is newer than the last heartbeat.
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

  void Initiate(ConsensusConfiguration c, bool data_is_empty, Applier::Done done) override {
    Call([this, c = std::move(c), data_is_empty, done = std::move(done)] {
      if (halted_) return done(Halted());
      if (log_->last_index() > 0) {
        done(Error{ErrorCode::kAlreadyInitialized, "already initialized"});
        return;
      }
      node_->Pump();
      Result<void> begun = BootstrapLog(*log_, c, data_is_empty, o_.clock->Now());
      if (!begun) Fatal(begun.error().message);
      const uint64_t index = log_->last_index();
      if (Result<void> opened = OpenNode(); !opened) Fatal(opened.error().message);
      node_->Campaign();
      // With the first entry of the term it may be written to.
      applier_->WhenApplied(index + 1, [done, index](Result<void> r) {
        if (r)
          done(LogPosition{1, index});
        else
          done(r.error());
      });
    });
  }
  void Reconfigure(ConsensusConfiguration c, Applier::Done done) override {
    Call([this, c = std::move(c), done = std::move(done)] {
      if (halted_) return done(Halted());
      node_->Reconfigure(c, done);
    });
  }
  void ForceReconfigure(ConsensusConfiguration c, Applier::Done done) override {
    Call([this, c = std::move(c), done = std::move(done)] {
      if (halted_) return done(Halted());
      Force(c, done);
    });
  }

  void Propose(Proposal p) override {
    std::unique_lock l(mutex_);
    if (stop_ || halted_) {
      l.unlock();
      return Interrupted(p);
    }
    proposals_.push_back(std::move(p));
    Wake(l);
  }
  void ReadIndex(std::function<void(Result<uint64_t>)> done) override {
    Call([this, done = std::move(done)] {
      if (halted_) return done(Halted());
      node_->ReadIndex(done);
    });
  }
  void WhenApplied(uint64_t index, std::function<void(Result<void>)> done) override {
    applier_->WhenApplied(index, std::move(done));
  }
  void StepDown(NodeId to, int64_t timeout_ms, bool force,
                std::function<void(Result<void>)> done) override {
    Call([this, to, timeout_ms, force, done = std::move(done)] {
      if (halted_) return done(Halted());
      node_->StepDown(to, timeout_ms, force, done);
    });
  }
  void StepUp(int64_t timeout_ms, std::function<void(Result<void>)> done) override {
    Call([this, timeout_ms, done = std::move(done)] {
      if (halted_) return done(Halted());
      step_ups_.push_back({Micros() + timeout_ms * 1000, done});
      next_ask_us_ = 0;
      PushStepUp();
    });
  }
  void DoNotCampaignUntil(int64_t us) override {
    frozen_until_us_ = us;
    Call([this] { told_ = UINT64_MAX; });  // the leader hears of it now
  }
  void SetTimings(const ConsensusTimings& t) override {
    tick_us_ = std::max<int64_t>(t.election_ms * 1000 / o_.election_ticks, 1000);
    heartbeat_ms_ = t.heartbeat_ms;
    heartbeat_timeout_us_ = t.heartbeat_timeout_ms * 1000;
    if (transport_) transport_->SetHeartbeat(t.heartbeat_ms);
    Call([] {});  // the thread sleeps by the old ones
  }
  void SetRetention(uint64_t max_bytes, double min_hours) override {
    Call([this, max_bytes, min_hours] {
      if (halted_) return;
      max_bytes_ = max_bytes ? max_bytes : o_.log_max_bytes;
      min_hours_ = min_hours > 0 || max_bytes ? min_hours : o_.log_min_hours;
      Housekeeping();
    });
  }
  std::unique_ptr<LogCursor> ReadLog() override { return log_->Cursor(); }
  void Probe(const std::string& address, int64_t timeout_ms,
             std::function<void(Result<NodeInfo>)> done) override {
    transport_->Probe(address, timeout_ms, std::move(done));
  }
  void AdoptConnection(int socket, std::string early) override {
    // The server listens before Start: another member may be quicker. It tries again.
    if (!started_.load(std::memory_order_acquire)) {
      ::close(socket);
      return;
    }
    transport_->Adopt(socket, std::move(early));
  }

 private:
  struct Known {
    Heartbeat last;
    int64_t heard_us = 0, answered_us = 0, failed_us = 0, skew_ms = 0;
    double ping_ms = 0;
    std::string last_error;
  };

  static void Interrupted(Proposal& p) { p.done(Halted()); }
  static Error Halted() {
    return {ErrorCode::kInterruptedAtShutdown, "the server is shutting down"};
  }
  int64_t Micros() const { return o_.clock->MonotonicMicros(); }
  void Log(char severity, std::string_view message) {
    if (o_.log) o_.log(severity, message, {});
  }
  [[noreturn]] void Fatal(std::string_view why) {
    if (o_.fatal) o_.fatal(why);
    std::fprintf(stderr, "replication cannot go on: %.*s\n", static_cast<int>(why.size()),
                 why.data());
    std::abort();
  }

  void Call(std::function<void()> f) {
    std::unique_lock l(mutex_);
    if (stop_ && halted_) {
      l.unlock();
      return f();  // answers that it is over
    }
    calls_.push_back(std::move(f));
    Wake(l);
  }
  void Wake(std::unique_lock<std::mutex>& l) {
    const bool sleeping = std::exchange(sleeping_, false);
    l.unlock();
    if (sleeping) wake_.notify_one();
  }

  Result<void> OpenNode() {
    RaftNode::Options n;
    n.log = log_.get();
    n.applier = applier_.get();
    n.machine = o_.machine;
    n.clock = o_.clock;
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
    n.configured = [this](const ConsensusConfiguration& c) { Configured(c); };
    n.fatal = [this](std::string_view why) { Fatal(why); };
    n.log_line = [this](char severity, std::string_view m) { Log(severity, m); };
    if (node_) {
      applier_->Drain();  // announcements of the old one run first
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
      return it != heard_.end() && it->second.last.copying;
    };
    std::unique_ptr<RaftNode> old;
    {
      std::lock_guard l(status_mutex_);
      old = std::exchange(node_, std::move(next));
    }
    old.reset();
    return node_->Open();
  }

  void Configured(const ConsensusConfiguration& c) {
    {
      std::lock_guard l(status_mutex_);
      configuration_ = c;
    }
    std::vector<Transport::Address> peers;
    for (const ConsensusMember& m : c.members)
      if (m.id != log_->node()) peers.push_back({m.id, m.address});
    transport_->SetPeers(std::move(peers));
    o_.machine->Configured(c);
  }

  LinkIdentity Identity() const {
    LinkIdentity id;
    id.node = log_->node();
    id.set_name = o_.set_name;
    id.key = o_.key;
    id.has_data = o_.has_data && o_.has_data();
    std::lock_guard l(status_mutex_);
    id.set_id = configuration_.set_id;
    for (const ConsensusMember& m : configuration_.members)
      if (m.id == id.node) id.address = m.address;
    return id;
  }

  Heartbeat OwnHeartbeat(int64_t stamp) {
    Heartbeat h;
    h.stamp_us = stamp;
    h.wall = o_.clock->Now();
    const ConsensusState s = state();
    h.role = static_cast<uint8_t>(s.role);
    h.term = s.term;
    h.electable = Micros() >= frozen_until_us_;
    h.copying = copying_;
    h.applied = log_->applied();
    h.sync_done = progress_.done;
    h.sync_total = copying_ ? progress_.total.load() : 0;
    h.payload = o_.machine->HeartbeatPayload();
    std::lock_guard l(status_mutex_);
    h.durable = durable_;
    return h;
  }

  void Heard(NodeId from, const Heartbeat& h, bool answer) {
    {
      std::lock_guard l(heard_mutex_);
      Known& k = heard_[from];
      const int64_t now = Micros();
      k.heard_us = now;
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

  void Received(NodeId from, uint8_t type, std::string_view body) {
    if (type == Transport::kHeartbeatAnswer) {
      Heartbeat h;
      if (DecodeHeartbeat(body, &h)) Heard(from, h, true);
      return;
    }
    if (type == Transport::kStepUp) {
      Call([this, from] {
        if (!halted_) node_->HandOver(from);
      });
      return;
    }
    std::unique_lock l(mutex_);
    // More than the log can take: dropped, the leader sends again.
    if (inbox_bytes_ + body.size() > kMaxInboxBytes) return;
    inbox_bytes_ += body.size();
    inbox_.emplace_back(from, std::string(body));
    Wake(l);
  }

  void Run() {
    std::vector<std::pair<NodeId, std::string>> messages;
    std::vector<std::function<void()>> calls;
    std::vector<Proposal> proposals;
    int64_t next_tick = Micros(), next_poll = next_tick, next_housekeeping = next_tick,
            next_tell = 0;
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
      messages.swap(inbox_);
      calls.swap(calls_);
      proposals.swap(proposals_);
      inbox_bytes_ = 0;
      l.unlock();

      const bool stepped = !messages.empty() || !proposals.empty();
      if (!halted_) {
        node_->set_may_campaign(Micros() >= frozen_until_us_ && !copying_);
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
        if (const uint64_t now = log_->applied().index; now != applied)
          node_->Applied(applied = now);
        node_->Pump();
        const int64_t now = Micros();
        const int64_t tick_us = tick_us_;
        next_tick = std::min(next_tick, now + tick_us);  // shorter from now on
        if (now >= next_tick) {
          // After a pause (a stopped process) time goes on from now: no burst of ticks.
          next_tick = std::max(next_tick + tick_us, now);
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

  /// What Status tells, when it has changed.
  void Publish() {
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

  void Housekeeping() {
    if (initialised()) {
      const uint64_t had = log_->bytes();
      node_->Trim(max_bytes_, static_cast<int64_t>(min_hours_ * 3'600'000),
                  checkpoints_->KeepFrom());
      trimmed_bytes_ += had - std::min(had, log_->bytes());
      if (trimmed_bytes_ >= kCompactAfterBytes) {
        trimmed_bytes_ = 0;
        // Gives the space back; on the thread for copies, because it reads and writes files.
        asio::post(transport_->bulk(), [this, first = log_->first_index()] {
          std::string begin("\x01\0\0\0\0\0\0\0\0", 9), end("\x01", 1);
          for (int shift = 56; shift >= 0; shift -= 8)
            end.push_back(static_cast<char>(first >> shift));
          Result<void> r = o_.kv->Compact(Keyspace::kOplog, begin, end);
          if (!r) Log('W', "The trimmed log could not be compacted: " + r.error().message);
        });
      }
    }
    asio::post(transport_->bulk(), [this] { checkpoints_->RemoveStale(); });
  }

  /// Leader: a member needs a copy. Makes the checkpoint aside; raft-rs asks again.
  bool Snapshot(uint64_t at_least, SnapshotPointer* out) {
    std::lock_guard l(snapshot_mutex_);
    const int64_t now = Micros();
    // One that is about to be forgotten, or that lies before the log's beginning, helps nobody.
    if (ready_ && ready_->position.index >= at_least &&
        ready_->position.index + 1 >= log_->first_index() && now - ready_us_ < 60'000'000) {
      *out = *ready_;
      return true;
    }
    if (making_) return false;
    making_ = true;
    const LogPosition position = log_->applied();
    std::vector<NodeId> voters, learners;
    for (const RaftNode::Member& m : node_->members())
      (m.voter ? voters : learners).push_back(m.id);
    std::string conf = RaftNode::ConfState(voters, learners);
    asio::post(transport_->bulk(), [this, position, conf = std::move(conf)] {
      Result<std::string> made = checkpoints_->Make(position);
      std::lock_guard l(snapshot_mutex_);
      making_ = false;
      if (!made) return Log('E', "A copy of the data could not be made: " + made.error().message);
      Log('I', "A copy of the data is ready for a member that needs it");
      ready_ = SnapshotPointer{position, conf, made.value()};
      ready_us_ = Micros();
    });
    return false;
  }

  /// This node is too far behind: pulls the copy, then asks to be started again.
  void Resync(NodeId from, SnapshotPointer p) {
    if (copying_.exchange(true)) return;
    std::optional<std::string> address = transport_->AddressOf(from);
    if (!address) {
      copying_ = false;
      return;
    }
    {
      std::lock_guard l(status_mutex_);
      sync_source_ = *address;
    }
    progress_.done = progress_.total = 0;
    Log('I', "Initial sync: copying the data of " + *address);
    asio::co_spawn(transport_->bulk().get_executor(), Pull(*address, from, std::move(p)),
                   asio::detached);
  }

  LinkTask<void> Pull(std::string address, NodeId from, SnapshotPointer p) {
    DataCopy copy(o_.data_directory, p.data, progress_);
    Result<void> fetched = Error{};
    for (int attempt = 0; attempt < 30; ++attempt) {
      auto opened = co_await OpenLink(address);
      if (!opened) {
        fetched = opened.error();
      } else {
        MemberLink& link = *opened.value();
        auto greeted = co_await link.Dial(Identity(), LinkPurpose::kFetch, from);
        if (greeted)
          fetched = co_await copy.Fetch(link);
        else
          fetched = greeted.error();
        link.Close();
      }
      if (fetched || fetched.error().code == ErrorCode::kInitialSyncFailure) break;
      Log('W', "Initial sync is interrupted and goes on: " + fetched.error().message);
      boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                        asio::wait_traits<std::chrono::steady_clock>, LinkExecutor>
          timer(transport_->bulk().get_executor(), std::chrono::seconds(1));
      co_await timer.async_wait(asio::as_tuple(kAwait));
    }
    if (!fetched) {
      Log('W', "Initial sync begins anew: " + fetched.error().message);
      EndSync();
      co_return;
    }
    // From here on this node promises nothing any more: what it has promised goes with the copy.
    Call([this, p] {
      if (halted_) return;
      if (p.position.index <= node_->status().commit) {
        Log('I', "Initial sync is not needed any more: the log has caught up");
        EndSync();
        return;
      }
      halted_ = true;
      const HardState own = log_->hard_state();
      asio::post(transport_->bulk(), [this, p, own] {
        DataCopy copy(o_.data_directory, p.data, progress_);
        Result<LogPosition> adopted = copy.Adopt(log_->node(), own);
        Result<void> marked = Ok();
        if (adopted) marked = copy.MarkReady();
        if (!adopted || !marked)
          Fatal("the copy of another member's data cannot be used: " +
                (adopted ? marked.error().message : adopted.error().message));
        Log('I', "Initial sync: the copy is complete and waits for the start");
        if (o_.restart)
          o_.restart();
        else
          Fatal("the copied data is used after a restart: start the server again");
      });
    });
  }
  void EndSync() {
    {
      std::lock_guard l(status_mutex_);
      sync_source_.clear();
    }
    copying_ = false;
  }

  /// The configuration as it is told, without asking anybody.
  void Force(const ConsensusConfiguration& c, Applier::Done done) {
    std::vector<NodeId> voters, learners, gone;
    for (const ConsensusMember& m : c.members) (m.voter ? voters : learners).push_back(m.id);
    for (const RaftNode::Member& m : node_->members())
      if (std::none_of(c.members.begin(), c.members.end(),
                       [&](const ConsensusMember& n) { return n.id == m.id; }))
        gone.push_back(m.id);
    applier_->Drain();  // it must not write the old state over the new one
    auto batch = o_.kv->NewBatch();
    const LogPosition applied = log_->applied();
    log_->StageApplied(*batch, applied, RaftNode::ConfState(voters, learners),
                       EncodeConfiguration(c));
    HardState hard = log_->hard_state();
    ++hard.term;
    hard.vote = 0;
    log_->StageHardState(*batch, hard);
    Result<void> written = o_.kv->Write(*batch, true);
    if (!written) Fatal(written.error().message);
    if (Result<void> opened = OpenNode(); !opened) Fatal(opened.error().message);
    Configured(c);
    node_->Campaign();
    node_->Pump();
    forced_ = Forced{c, std::move(gone), std::move(done), Micros() + 20'000'000};
  }
  struct Forced {
    ConsensusConfiguration configuration;
    std::vector<NodeId> gone;
    Applier::Done done;
    int64_t until_us;
  };
  /// Once this node leads, the others that are left hear of it through the log.
  void PushForced() {
    if (!forced_) return;
    if (node_->state().ready && node_->leads()) {
      Forced f = std::move(*forced_);
      forced_.reset();
      node_->Reconfigure(f.configuration, f.done, f.gone);
      return;
    }
    if (Micros() >= forced_->until_us) {
      Forced f = std::move(*forced_);
      forced_.reset();
      f.done(Error{kExceededTimeLimit, "the forced configuration has no majority either"});
      return;
    }
  }

  /// Somebody waits for this node to lead.
  void PushStepUp() {
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
        applier_->PushCall([done] { done(Ok()); });  // behind the announcement
      else
        done(Error{kExceededTimeLimit, "this member did not come to lead in the time given"});
    }
    if (step_ups_.empty() || node_->leads() || now < next_ask_us_) return;
    next_ask_us_ = now + kAskAgainMicros;
    if (const NodeId leader = node_->status().leader; leader != 0)
      (void)transport_->Send(leader, Transport::kStepUp, {});
    else
      node_->Campaign();
  }

  /// Another node lives at the address of member `lost`: its data directory was emptied. It must
  /// not take the old one's place by itself, because it has forgotten how that one voted and what
  /// it had promised to keep. The leader takes the old one out and the new one in as a learner, in
  /// one change that needs a majority of those who are left to count; it votes once it has
  /// everything (LeaderDuties). Only an empty node that belongs to no set is taken: what it had is
  /// nowhere any more, so it cannot come back and be two.
  void ReplaceStranger(NodeId lost) {
    if (state().role != ConsensusRole::kLeader || Micros() < next_replace_us_) return;
    next_replace_us_ = Micros() + kReplaceAgainMicros;
    const std::optional<std::string> address = transport_->AddressOf(lost);
    if (!address) return;
    transport_->Probe(
        *address, kProbeMillis, [this, lost, address = *address](Result<NodeInfo> found) {
          if (!found || found.value().id == lost) return;
          const NodeInfo& node = found.value();
          if (node.set_name != o_.set_name || !node.set_id.empty() || node.has_data) {
            if (std::exchange(refused_, node.id) != node.id)
              Log('W', "Another node lives at " + address +
                           ", and it is not empty: it is not taken in. Empty its data directory, "
                           "or remove the member");
            return;
          }
          Call([this, lost, id = node.id, address] {
            if (halted_ || !node_->leads()) return;
            ConsensusConfiguration next = node_->configuration();
            ConsensusMember* place = nullptr;
            for (ConsensusMember& m : next.members) {
              if (m.id == id) return;
              if (m.id == lost && m.address == address) place = &m;
            }
            if (place == nullptr) return;
            place->id = id;
            Log('W', "The data directory of " + address +
                         " was emptied: the member is taken in anew and copies everything");
            node_->Reconfigure(std::move(next), [this, address](Result<LogPosition> r) {
              if (!r) Log('W', address + " could not be taken in anew yet: " + r.error().message);
            });
          });
        });
  }

  ConsensusOptions o_;
  std::unique_ptr<LogStore> log_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<Applier> applier_;
  std::unique_ptr<Transport> transport_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::pair<NodeId, std::string>> inbox_;
  size_t inbox_bytes_ = 0;
  std::vector<std::function<void()>> calls_;
  std::vector<Proposal> proposals_;
  bool stop_ = false, sleeping_ = false, moved_ = false;
  std::atomic<bool> leads_{false};
  std::atomic<bool> started_{false};  ///< transport_ is there
  std::atomic<bool> halted_{false};   ///< a copy takes this node's place

  mutable std::mutex status_mutex_;
  std::unique_ptr<RaftNode> node_;  ///< consensus thread; replaced under status_mutex_
  ConsensusConfiguration configuration_;
  std::vector<RaftNode::Member> members_;
  LogPosition committed_, durable_;
  std::string sync_source_;

  mutable std::mutex heard_mutex_;
  std::map<NodeId, Known> heard_;

  std::mutex snapshot_mutex_;
  std::optional<SnapshotPointer> ready_;
  int64_t ready_us_ = 0;
  bool making_ = false;

  std::atomic<bool> copying_{false};
  DataCopy::Progress progress_;
  std::atomic<int64_t> frozen_until_us_{0};
  std::vector<NodeId> unreachable_;
  uint64_t max_bytes_ = 0, trimmed_bytes_ = 0;
  uint64_t told_ = 0;  ///< consensus thread: applied index that the leader was told of last
  double min_hours_ = 0;
  std::optional<Forced> forced_;
  struct Waiting {
    int64_t until_us;
    std::function<void(Result<void>)> done;
  };
  std::vector<Waiting> step_ups_;
  int64_t next_ask_us_ = 0;
  std::atomic<int64_t> next_replace_us_{0};
  NodeId refused_ = 0;  ///< transport's thread: whom ReplaceStranger has complained of last
  std::atomic<int64_t> tick_us_{int64_t{o_.tick_ms} * 1000}, heartbeat_ms_{0};
  std::atomic<int64_t> heartbeat_timeout_us_{10'000'000};
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Consensus>> OpenConsensus(ConsensusOptions options) {
  auto engine = std::make_unique<Engine>(std::move(options));
  MAYFLY_TRY(engine->Open());
  return std::unique_ptr<Consensus>(std::move(engine));
}

}  // namespace mayfly

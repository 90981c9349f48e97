#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "replication/applier.h"

namespace mayfly {
namespace {

Error NoNetwork() {
  return {ErrorCode::kHostUnreachable, "this set has one member and no network"};
}

/// Term 1 for ever, this node leads, a proposal is committed when it is on disk.
class SingleMember final : public Consensus {
 public:
  explicit SingleMember(ConsensusOptions options) : options_(std::move(options)) {}
  ~SingleMember() override {
    {
      std::lock_guard l(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
    if (applier_) applier_->Stop();
    for (Proposal& p : waiting_) Interrupted(p);
  }

  Result<void> Open() {
    MAYFLY_TRY(log_, LogStore::Open(*options_.kv));
    if (log_->node() == 0) {
      std::random_device random;
      MAYFLY_TRY(log_->MakeNodeId((uint64_t{random()} << 32 | random()) | 1));
    }
    DecodeConfiguration(log_->stored_configuration(), &configuration_);
    applier_ = std::make_unique<Applier>(*log_, *options_.machine, [this](std::string_view why) {
      if (options_.fatal) options_.fatal(why);
      std::abort();
    });
    return Ok();
  }

  Result<void> Start() override {
    applier_->StartThread();
    // The log may hold what was not applied when the process died.
    Result<void> read = Ok();
    if (uint64_t from = log_->applied().index + 1; from <= log_->last_index())
      read = log_->Read(from, log_->last_index() + 1, UINT64_MAX, [&](const LogEntry& e) {
        auto bytes = std::make_shared<std::string>(e.data);
        auto context = std::make_shared<std::string>(e.context);
        LogEntry kept = e;
        kept.data = *bytes;
        kept.context = *context;
        Applier::Work w;
        w.entries.push_back(ToCommitted(kept));
        w.configuration = *context;
        w.keep = {bytes, context};
        applier_->Push(std::move(w));
      });
    MAYFLY_TRY(read);
    Announce();
    thread_ = std::thread([this] { Run(); });
    return Ok();
  }

  NodeId self() const override { return log_->node(); }
  bool initialised() const override {
    std::lock_guard l(mutex_);
    return !configuration_.set_id.empty();
  }
  ConsensusState state() const override {
    std::lock_guard l(mutex_);
    return StateLocked();
  }
  ConsensusStatus Status() const override {
    ConsensusStatus s;
    std::lock_guard l(mutex_);
    s.state = StateLocked();
    s.self = log_->node();
    s.applied = log_->applied();
    s.last = s.durable = s.committed = {1, log_->last_index()};
    s.first = {1, log_->first_index()};
    s.log_bytes = log_->bytes();
    s.configuration = configuration_;
    for (const ConsensusMember& m : configuration_.members) {
      MemberStatus& out = s.members.emplace_back();
      out.id = m.id;
      out.address = m.address;
      out.voter = m.voter;
      out.self = out.reachable = m.id == s.self;
      out.term = 1;
      out.role = ConsensusRole::kLeader;
      out.wall_clock = options_.clock->Now();
      out.durable = s.durable;
      out.applied = s.applied;
      if (out.self) out.payload = options_.machine->HeartbeatPayload();
    }
    return s;
  }

  void Initiate(ConsensusConfiguration configuration, bool,
                std::function<void(Result<LogPosition>)> done) override {
    if (initialised()) {
      done(Error{ErrorCode::kAlreadyInitialized, "already initialized"});
      return;
    }
    Configure(std::move(configuration), std::move(done));
  }
  void Reconfigure(ConsensusConfiguration configuration,
                   std::function<void(Result<LogPosition>)> done) override {
    Configure(std::move(configuration), std::move(done));
  }
  void ForceReconfigure(ConsensusConfiguration configuration,
                        std::function<void(Result<LogPosition>)> done) override {
    Configure(std::move(configuration), std::move(done));
  }

  void Propose(Proposal proposal) override { Enqueue(std::move(proposal), false); }
  void ReadIndex(std::function<void(Result<uint64_t>)> done) override {
    const uint64_t index = log_->last_index();
    applier_->WhenApplied(index, [index, done = std::move(done)](Result<void> r) {
      if (r)
        done(index);
      else
        done(r.error());
    });
  }
  void WhenApplied(uint64_t index, std::function<void(Result<void>)> done) override {
    applier_->WhenApplied(index, std::move(done));
  }
  void StepDown(NodeId, int64_t, bool, std::function<void(Result<void>)> done) override {
    done(Error{kExceededTimeLimit,
               "No electable secondaries caught up: this set has one member"});
  }
  void DoNotCampaignUntil(int64_t) override {}
  void SetRetention(uint64_t, double) override {}
  std::unique_ptr<LogCursor> ReadLog() override { return log_->Cursor(); }
  void Probe(const std::string&, int64_t,
             std::function<void(Result<NodeInfo>)> done) override {
    done(NoNetwork());
  }
  void AdoptConnection(int, std::string) override {}

 private:
  static void Interrupted(Proposal& p) {
    p.done(Error{ErrorCode::kInterruptedAtShutdown, "the server is shutting down"});
  }
  ConsensusState StateLocked() const {
    ConsensusState s;
    if (configuration_.set_id.empty()) return s;
    s.role = ConsensusRole::kLeader;
    s.term = 1;
    s.leader = log_->node();
    for (const ConsensusMember& m : configuration_.members)
      if (m.id == s.leader) s.leader_address = m.address;
    s.ready = true;
    return s;
  }
  void Announce() {
    applier_->PushCall([this] { options_.machine->StateChanged(state()); });
  }
  void Configure(ConsensusConfiguration configuration,
                 std::function<void(Result<LogPosition>)> done) {
    Proposal p;
    p.data = EncodeConfiguration(configuration);
    p.done = [this, configuration, done = std::move(done)](Result<LogPosition> r) {
      if (r) {
        {
          std::lock_guard l(mutex_);
          configuration_ = configuration;
        }
        options_.machine->StateChanged(state());
      }
      done(r);
    };
    Enqueue(std::move(p), true);
  }
  void Enqueue(Proposal p, bool configuration) {
    if (p.data.size() > kMaxProposalBytes) {
      p.done(Error{ErrorCode::kBSONObjectTooLarge,
                   "one log entry may have at most 64 MiB: write less at once"});
      return;
    }
    std::unique_lock l(mutex_);
    if (stop_ || (!configuration && configuration_.set_id.empty())) {
      const bool stopped = stop_;
      l.unlock();
      if (stopped)
        Interrupted(p);
      else
        p.done(Error{ErrorCode::kNotWritablePrimary, "not primary"});
      return;
    }
    waiting_.push_back(std::move(p));
    is_configuration_.push_back(configuration);
    l.unlock();
    wake_.notify_one();
  }

  void Run() {
    auto batch = options_.kv->NewBatch();
    std::unique_lock l(mutex_);
    for (;;) {
      wake_.wait(l, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      auto proposals = std::make_shared<std::vector<Proposal>>(std::move(waiting_));
      std::vector<bool> is_configuration = std::move(is_configuration_);
      waiting_.clear();
      is_configuration_.clear();
      l.unlock();
      std::vector<LogEntry> entries;
      Applier::Work work;
      uint64_t index = log_->last_index();
      for (size_t i = 0; i < proposals->size(); ++i) {
        Proposal& p = (*proposals)[i];
        LogEntry e{.term = 1, .index = ++index};
        (is_configuration[i] ? e.context : e.data) = p.data;
        if (is_configuration[i]) work.configuration = p.data;
        entries.push_back(e);
        CommittedEntry c = ToCommitted(e);
        c.context = p.context.get();
        work.entries.push_back(c);
        work.done.push_back(p.done);
      }
      work.keep.push_back(proposals);
      batch->Clear();
      log_->StageAppend(*batch, entries, options_.clock->Now());
      Result<void> written = options_.kv->Write(*batch, true);
      if (!written) {
        if (options_.fatal) options_.fatal(written.error().message);
        std::abort();
      }
      applier_->Push(std::move(work));
      l.lock();
    }
  }

  ConsensusOptions options_;
  std::unique_ptr<LogStore> log_;
  std::unique_ptr<Applier> applier_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Proposal> waiting_;
  std::vector<bool> is_configuration_;
  ConsensusConfiguration configuration_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Consensus>> OpenSingleMemberConsensus(ConsensusOptions options) {
  auto engine = std::make_unique<SingleMember>(std::move(options));
  MAYFLY_TRY(engine->Open());
  return std::unique_ptr<Consensus>(std::move(engine));
}

}  // namespace mayfly

#include "replication/replica_set.h"

#include <algorithm>
#include <filesystem>
#include <future>

#include "protocol/object_id.h"
#include "replication/oplog.h"
#include "storage/storage_impl.h"

namespace mayfly {
namespace {

/// The newest record that is applied: ts:le64 wall:le64 term:le64. In the batch that applied it.
constexpr std::string_view kAppliedRow = "replication/applied";
constexpr int64_t kProbeMillis = 5'000;
constexpr int64_t kHandOverMillis = 2'000;
constexpr int64_t kStepUpMillis = 10'000;
constexpr int64_t kNoopMillis = 10'000;  ///< periodicNoopIntervalSecs

Error NotSecondary(std::string message) { return {LocationCode(95), std::move(message)}; }

/// Waits for a call of the engine that answers once.
template <class T, class F>
Result<T> Await(F&& start) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> future = promise->get_future();
  start([promise](Result<T> r) { promise->set_value(std::move(r)); });
  return future.get();
}

}  // namespace

std::string_view MemberStateName(MemberState state) {
  switch (state) {
    case MemberState::kStartup: return "STARTUP";
    case MemberState::kPrimary: return "PRIMARY";
    case MemberState::kSecondary: return "SECONDARY";
    case MemberState::kRecovering: return "RECOVERING";
    case MemberState::kStartup2: return "STARTUP2";
    case MemberState::kUnknown: return "UNKNOWN";
    case MemberState::kDown: return "(not reachable/healthy)";
    case MemberState::kRemoved: return "REMOVED";
  }
  return "UNKNOWN";
}

std::string ReplicaSet::ElectionId(uint64_t term) {
  std::string id(12, '\0');
  id[0] = 0x7F;
  id[1] = id[2] = id[3] = static_cast<char>(0xFF);
  StoreBe64(id.data() + 4, term);
  return id;
}

ReplicaSet::ReplicaSet(ReplicaSetOptions options)
    : options_(std::move(options)),
      storage_(*options_.storage),
      clock_(*options_.clock),
      applier_(storage_),
      log_max_bytes_(options_.log_max_bytes),
      log_min_hours_(options_.log_min_hours),
      started_micros_(options_.clock->MonotonicMicros()) {
  topology_ = std::make_shared<Topology>();
  tasks_thread_ = std::thread([this] { RunTasks(); });
}

Result<std::unique_ptr<ReplicaSet>> ReplicaSet::Open(ReplicaSetOptions options) {
  std::unique_ptr<ReplicaSet> set(new ReplicaSet(std::move(options)));
  const ReplicaSetOptions& o = set->options_;
  if (set->log_max_bytes_ == 0) {
    std::error_code ec;
    const auto space = std::filesystem::space(o.data_directory, ec);
    set->log_max_bytes_ = std::clamp<uint64_t>(ec ? 0 : space.capacity / 20, 990ull << 20, 50'000ull << 20);
  }
  auto committer = std::make_unique<ReplicatedCommitter>(*o.storage, o.sync_interval_ms);
  set->committer_ = committer.get();
  o.storage->set_committer(std::move(committer));
  MAYFLY_TRY(set->LoadApplied());
  ConsensusOptions c;
  c.kv = &o.storage->kv();
  c.clock = o.clock;
  c.machine = set.get();
  c.set_name = o.set_name;
  c.key = o.key;
  c.data_directory = o.data_directory;
  c.log_max_bytes = set->log_max_bytes_;
  c.log_min_hours = o.log_min_hours;
  c.has_data = [s = o.storage] {
    for (const CollectionInfoPtr& coll : s->catalog().ListAll())
      if (!coll->unreplicated) return true;
    return false;
  };
  c.fatal = o.fatal;
  c.restart = o.restart;
  c.log = [log = o.log](char severity, std::string_view message, std::string_view attributes) {
    if (log) log(severity, message, attributes.empty() ? BsonView() : BsonView(attributes));
  };
  MAYFLY_TRY(set->consensus_, OpenConsensus(std::move(c)));
  set->committer_->set_consensus(set->consensus_.get());
  {
    auto oplog = std::make_shared<CollectionInfo>();
    oplog->id = kOplogCollectionId;
    oplog->uuid = {0x6f, 0x70, 0x6c, 0x6f, 0x67, 0x2e, 0x40, 0x73, 0x80, 0, 0, 0, 0, 0, 0, 1};
    oplog->db = "local";
    oplog->name = "oplog.rs";
    oplog->ns = "local.oplog.rs";
    oplog->capped = oplog->unreplicated = true;
    oplog->capped_bytes = static_cast<int64_t>(set->log_max_bytes_);
    oplog->options = BuildBson([&](BsonBuilder& b) {
      b.Append("capped", true).Append("size", oplog->capped_bytes).Append("autoIndexId", false);
    });
    oplog->counters = std::make_shared<CollectionCounters>();
    oplog->source = std::make_shared<OplogSource>(*set->consensus_, kOplogCollectionId);
    oplog->source_key = "ts";
    o.storage->impl().catalog->AddSource(std::move(oplog));
  }
  const ConsensusStatus status = set->consensus_->Status();
  set->applied_index_ = status.applied.index;
  if (!status.configuration.set_id.empty()) set->SetConfig(status.configuration.payload);
  set->Refresh();
  return set;
}

ReplicaSet::~ReplicaSet() {
  Stop();
  if (committer_ != nullptr) committer_->set_consensus(nullptr);
  // Pending units fail, the engine's threads end. Not by reset alone: what they still announce comes here and asks `consensus_`.
  if (consensus_) consensus_->Stop();
  consensus_.reset();
  {
    std::lock_guard l(tasks_mutex_);
    tasks_stop_ = true;
    tasks_wake_.notify_one();
  }
  tasks_thread_.join();
}

Result<void> ReplicaSet::Start() { return consensus_->Start(); }

void ReplicaSet::Stop() {
  if (stopping_.exchange(true)) return;
  if (!consensus_ || committer_ == nullptr || !committer_->writable()) return;
  // Whoever can take over does so now rather than after an election timeout.
  TopologyPtr t = topology();
  if (t->config && t->config->members.size() > 1)
    (void)Await<void>([&](auto done) { consensus_->StepDown(0, kHandOverMillis, false, done); });
  committer_->SetWritable(false);
}

Result<void> ReplicaSet::LoadApplied() {
  PinnedValue v;
  MAYFLY_TRY(bool found, storage_.kv().Get(Keyspace::kCatalog, kAppliedRow, &v));
  if (!found) return Ok();
  if (v.view().size() != 24)
    return Error{ErrorCode::kInternalError, "corrupt catalog row 'replication/applied'"};
  applied_.ts = LoadLe<uint64_t>(v.view().data());
  applied_.wall_millis = LoadLe<int64_t>(v.view().data() + 8);
  applied_.term = LoadLe<int64_t>(v.view().data() + 16);
  applied_ts_ = applied_.ts;
  clock_.Applied(applied_.wall_millis);
  committer_->AdvanceTo(applied_.ts);
  return Ok();
}

void ReplicaSet::Log(char severity, std::string_view message,
                     const std::function<void(BsonBuilder&)>& fill) const {
  if (!options_.log) return;
  options_.log(severity, message, BuildBson([&](BsonBuilder& b) {
                 if (fill) fill(b);
               }));
}

void ReplicaSet::RunTasks() {
  std::unique_lock l(tasks_mutex_);
  for (;;) {
    const bool called = tasks_wake_.wait_for(l, std::chrono::milliseconds(kNoopMillis), [this] {
      return tasks_stop_ || !tasks_.empty();
    });
    if (!called) {
      // An idle primary: its time goes on for those who read on secondaries.
      if (committer_ != nullptr && committer_->writable() &&
          storage_.clock().Now().millis - last_applied().wall_millis >= kNoopMillis)
        committer_->SubmitNoop(BuildBson([](BsonBuilder& b) { b.Append("msg", "periodic noop"); }),
                               [](Result<void>) {});
      continue;
    }
    if (tasks_.empty()) return;
    std::vector<std::function<void()>> now = std::move(tasks_);
    tasks_.clear();
    l.unlock();
    for (auto& t : now) t();
    l.lock();
  }
}

void ReplicaSet::Post(std::function<void()> task) {
  std::lock_guard l(tasks_mutex_);
  if (tasks_stop_) return;
  tasks_.push_back(std::move(task));
  tasks_wake_.notify_one();
}

// --- state -----------------------------------------------------------------------------------------

TopologyPtr ReplicaSet::topology() const {
  std::lock_guard l(mutex_);
  return topology_;
}

OpTime ReplicaSet::last_applied() const {
  std::lock_guard l(mutex_);
  return applied_;
}

std::optional<ReplicaSet::Election> ReplicaSet::last_election() const {
  std::lock_guard l(mutex_);
  return election_;
}

void ReplicaSet::SetConfig(std::string_view payload) {
  {
    std::lock_guard l(mutex_);
    if (config_ && config_payload_ == payload) return;
  }
  auto parsed = ParseReplConfig(BsonView(payload));
  if (!parsed) {
    Log('E', "The configuration in the log cannot be read",
        [&](BsonBuilder& b) { b.Append("error", parsed.error().message); });
    return;
  }
  auto config = std::make_shared<const ReplConfig>(std::move(parsed).value());
  {
    std::lock_guard l(mutex_);
    // A delayed member comes by entries of older configurations when it knows the newest one already.
    if (config_ && config_->version > config->version && config_->term >= config->term) return;
    config_ = config;
    config_payload_ = payload;
  }
  Post([this, config] {
    if (auto stored = StoreConfigDocument(*config); !stored)
      Log('W', "local.system.replset could not be written",
          [&](BsonBuilder& b) { b.Append("error", stored.error().message); });
  });
}

Result<void> ReplicaSet::StoreConfigDocument(const ReplConfig& config) {
  Operation op(storage_.clock());
  MAYFLY_TRY(CollectionInfoPtr coll, storage_.catalog().GetOrCreate(op, "local", "system.replset"));
  const BsonDocument doc = config.ToBson();
  std::string key;
  Storage::AppendRecordKey(*coll, doc.view()["_id"], key);
  WriteUnit unit(storage_, op);
  WriteUnit::Locked locked;
  MAYFLY_TRY(bool there, unit.LockAndRead(*coll, key, &locked));
  if (there) {
    MAYFLY_TRY(unit.Update(*coll, locked, doc));
  } else {
    MAYFLY_TRY(unit.Insert(*coll, doc));
  }
  return storage_.committer().Commit(std::move(unit));
}

void ReplicaSet::CheckClocks() {
  constexpr int64_t kTolerableMillis = 1000;
  for (const MemberStatus& m : consensus_->Status().members) {
    if (m.self || !m.reachable || m.wall_clock.millis == 0) continue;
    const bool skewed = m.skew_ms > kTolerableMillis || m.skew_ms < -kTolerableMillis;
    if (std::exchange(skewed_[m.id], skewed) == skewed) continue;
    Log(skewed ? 'W' : 'I',
        skewed ? "Another member's clock is more than a second from this one's: expiry goes by the primary's clock"
               : "The clocks of the members agree again",
        [&](BsonBuilder& b) { b.Append("member", m.address).Append("skewMillis", m.skew_ms); });
  }
}

int64_t ReplicaSet::NewTopologyVersion() {
  int64_t between = 0;
  {
    std::lock_guard l(mutex_);
    auto next = std::make_shared<Topology>(*topology_);
    between = static_cast<int64_t>(++next->counter);
    ++next->counter;
    topology_ = std::move(next);
  }
  if (options_.event) options_.event(ReplEvent::kTopology);
  return between;
}

void ReplicaSet::Refresh() {
  bool changed = false;
  MemberState was, is;
  {
    std::lock_guard l(mutex_);
    const ConsensusStatus status = consensus_->Status();
    auto next = std::make_shared<Topology>();
    next->config = config_;
    next->term = state_.term;
    if (config_) {
      const auto& members = status.configuration.members;
      for (size_t i = 0; i < members.size() && i < config_->members.size(); ++i) {
        if (members[i].id == consensus_->self()) next->self = static_cast<int>(i);
        if (state_.leader != 0 && members[i].id == state_.leader)
          next->primary = config_->members[i].host;
      }
    }
    const bool primary = state_.role == ConsensusRole::kLeader && state_.ready && !stopping_;
    if (!config_)
      next->state = MemberState::kStartup;
    else if (next->self < 0)
      next->state = MemberState::kRemoved;
    else if (!started_ || status.sync_source)
      next->state = MemberState::kStartup2;
    else if (primary)
      next->state = MemberState::kPrimary;
    else if (maintenance_)
      next->state = MemberState::kRecovering;
    else
      next->state = MemberState::kSecondary;
    // Nobody is primary until it says so itself: a leader that is not ready refuses writes.
    if (state_.role == ConsensusRole::kLeader && !primary) next->primary.clear();
    was = topology_->state;
    is = next->state;
    changed = was != is || next->config != topology_->config || next->self != topology_->self ||
              next->primary != topology_->primary ||
              (is == MemberState::kPrimary && next->term != topology_->term);
    next->counter = topology_->counter + (changed ? 1 : 0);
    if (was != MemberState::kPrimary && is == MemberState::kPrimary)
      election_ = Election{storage_.clock().Now().millis, state_.term, "electionTimeout"};
    if (was == MemberState::kPrimary && is != MemberState::kPrimary)
      stepped_down_millis_ = storage_.clock().Now().millis;
    const bool next_has_config = next->config != nullptr;
    topology_ = std::move(next);
    if (is == MemberState::kPrimary && was != is && options_.becoming_primary)
      options_.becoming_primary();
    readable_ = is == MemberState::kPrimary || is == MemberState::kSecondary;
    clock_.set_follows(is != MemberState::kPrimary && next_has_config);
    committer_->SetWritable(is == MemberState::kPrimary);
  }
  if (!changed) return;
  if (was != is)
    Log('I', "Replica set state transition", [&](BsonBuilder& b) {
      b.Append("newState", MemberStateName(is)).Append("oldState", MemberStateName(was));
      b.Append("term", static_cast<int64_t>(state_.term));
    });
  if (options_.event) options_.event(ReplEvent::kTopology);
  if (was == MemberState::kPrimary || is == MemberState::kPrimary) {
    const bool primary = is == MemberState::kPrimary;
    if (primary) {
      const bool first = applied_ts() == 0;
      committer_->SubmitNoop(BuildBson([&](BsonBuilder& b) {
                               b.Append("msg", first ? "initiating set" : "new primary");
                             }),
                             [](Result<void>) {});
    }
    Post([this, primary] {
      if (primary)
        storage_.impl().catalog->BecomePrimary();
      else
        storage_.impl().catalog->ForgetReaped();
      if (options_.primary_changed) options_.primary_changed(primary);
    });
  }
}

// --- the engine's calls ------------------------------------------------------------------------------

void ReplicaSet::Configured(const ConsensusConfiguration& configuration) {
  SetConfig(configuration.payload);
  ConsensusTimings timings;
  int64_t delay = 0;
  {
    std::lock_guard l(mutex_);
    if (!config_) return;
    timings = {config_->election_timeout_ms, config_->heartbeat_interval_ms, config_->heartbeat_timeout_secs * 1000};
    const auto& members = configuration.members;
    for (size_t i = 0; i < members.size() && i < config_->members.size(); ++i)
      if (members[i].id == consensus_->self()) delay = config_->members[i].secondary_delay_secs;
  }
  delay_secs_ = delay;
  consensus_->SetTimings(timings);
  Post([this] { Refresh(); });
}

int64_t ReplicaSet::HoldMillis(const CommittedEntry& entry) {
  const int64_t delay = delay_secs_.load(std::memory_order_relaxed);
  if (delay == 0 || entry.kind != CommittedEntry::Kind::kData) return 0;
  std::string_view rest = entry.data.substr(std::min(kLogEntryHeader, entry.data.size()));
  uint64_t ts;
  uint32_t ticks;
  int64_t wall = 0;
  auto read = SkipLogUnit(&rest, &ts, &ticks, &wall);
  if (!read || !read.value()) return 0;
  return std::max<int64_t>(wall + delay * 1000 - storage_.clock().Now().millis, 0);
}

void ReplicaSet::Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) {
  entries_.clear();
  OpTime last{0, -1, 0};
  for (const CommittedEntry& e : entries) {
    if (e.kind != CommittedEntry::Kind::kData) continue;
    entries_.push_back({e.data, ReplicatedCommitter::UnitsOf(e.context)});
    last.term = static_cast<int64_t>(e.position.term);
  }
  if (entries_.empty()) return;
  const uint64_t before = applier_.last_ts();
  Result<void> prepared = applier_.Prepare(entries_, batch);
  if (!prepared) {
    // Every member would stop here: going on without the entry would make this one differ.
    if (options_.fatal) options_.fatal(prepared.error().message);
    std::abort();
  }
  if (applier_.last_ts() == before) return;
  char row[24];
  StoreLe<uint64_t>(row, applier_.last_ts());
  StoreLe<int64_t>(row + 8, applier_.last_wall());
  StoreLe<int64_t>(row + 16, last.term);
  batch.Put(Keyspace::kCatalog, kAppliedRow, {row, sizeof row});
}

void ReplicaSet::Applied(std::span<const CommittedEntry> entries) {
  if (!entries_.empty()) applier_.Applied(entries_);
  bool configuration = false;
  for (const CommittedEntry& e : entries) {
    if (e.kind != CommittedEntry::Kind::kConfiguration) continue;
    SetConfig(e.data);
    configuration = true;
  }
  if (!entries_.empty() && applier_.last_ts() > 0) {
    std::lock_guard l(mutex_);
    applied_.ts = applier_.last_ts();
    applied_.wall_millis = applier_.last_wall();
    for (const CommittedEntry& e : entries)
      if (e.kind == CommittedEntry::Kind::kData)
        applied_.term = static_cast<int64_t>(e.position.term);
    clock_.Applied(applied_.wall_millis);
    applied_ts_.store(applied_.ts, std::memory_order_release);
    applied_wake_.notify_all();
  }
  applied_index_.store(entries.back().position.index, std::memory_order_release);
  committer_->AdvanceTo(applied_ts());
  if (configuration) Refresh();
  if (options_.collection_grew) {
    for (uint32_t id : applier_.grown()) options_.collection_grew(id);
    if (!entries_.empty()) options_.collection_grew(kOplogCollectionId);
  }
  if (options_.setting_changed && !entries_.empty())
    for (const std::string& name : applier_.settings()) options_.setting_changed(name);
  if (options_.event) options_.event(ReplEvent::kApplied);
  entries_.clear();
}

void ReplicaSet::StateChanged(const ConsensusState& state) {
  {
    std::lock_guard l(mutex_);
    state_ = state;
    started_ = true;
  }
  Refresh();
}

void ReplicaSet::Progressed() {
  constexpr int64_t kClocksEveryMicros = 5'000'000;
  const int64_t now = storage_.clock().MonotonicMicros();
  int64_t last = clocks_checked_micros_.load(std::memory_order_relaxed);
  if (now - last > kClocksEveryMicros && clocks_checked_micros_.compare_exchange_strong(last, now))
    Post([this] { CheckClocks(); });
  if (options_.event) options_.event(ReplEvent::kProgress);
}

std::string ReplicaSet::HeartbeatPayload() {
  std::lock_guard l(mutex_);
  return BuildBson([&](BsonBuilder& b) {
           b.Append("state", static_cast<int32_t>(topology_->state));
           b.AppendTimestamp("ts", applied_.ts).Append("t", applied_.term);
           b.Append("wall", applied_.wall_millis);
           b.Append("uptime", (storage_.clock().MonotonicMicros() - started_micros_) / 1'000'000);
           if (config_)
             b.Append("configVersion", config_->version).Append("configTerm", config_->term);
           if (election_)
             b.Append("electionAt", election_->at_millis)
                 .Append("electionTerm", static_cast<int64_t>(election_->term));
         })
      .bytes();
}

// --- commands ----------------------------------------------------------------------------------------

bool ReplicaSet::IsSelf(std::string_view text) const {
  if (text == options_.self_host) return true;
  std::string host, self;
  int port = 0, self_port = 0;
  if (!SplitHostAndPort(text, &host, &port) || !SplitHostAndPort(options_.self_host, &self, &self_port))
    return false;
  return port == self_port && (host == self || host == "localhost" || host == "127.0.0.1" || host == "::1");
}

Result<ConsensusConfiguration> ReplicaSet::ToConsensus(const ReplConfig& config,
                                                       std::string_view command) {
  ConsensusConfiguration out;
  out.set_id = config.set_id;
  const ConsensusConfiguration now = consensus_->Status().configuration;
  // All at the same time: one that does not answer costs its timeout once.
  std::vector<std::future<Result<NodeInfo>>> answers;
  for (const MemberConfig& m : config.members) {
    auto promise = std::make_shared<std::promise<Result<NodeInfo>>>();
    answers.push_back(promise->get_future());
    if (IsSelf(m.host)) {
      NodeInfo self;
      self.id = consensus_->self();
      self.set_name = options_.set_name;
      self.set_id = now.set_id;
      promise->set_value(std::move(self));
    } else {
      consensus_->Probe(m.host, kProbeMillis,
                        [promise](Result<NodeInfo> r) { promise->set_value(std::move(r)); });
    }
  }
  bool found_self = false;
  std::string failures;
  for (size_t i = 0; i < config.members.size(); ++i) {
    const MemberConfig& m = config.members[i];
    Result<NodeInfo> answer = answers[i].get();
    ConsensusMember member;
    member.address = m.host;
    member.voter = m.voter();
    member.priority = m.priority;
    auto fail = [&](std::string why) {
      if (!failures.empty()) failures += ", ";
      failures += m.host + " failed with " + why;
    };
    if (!answer) {
      // A known member that is away stays who it is.
      for (const ConsensusMember& old : now.members)
        if (old.address == m.host) member.id = old.id;
      if (member.id == 0) fail(answer.error().message);
    } else {
      const NodeInfo& info = answer.value();
      member.id = info.id;
      const bool known = std::any_of(now.members.begin(), now.members.end(), [&](const auto& old) { return old.id == info.id; });
      if (info.set_name.empty())
        fail("it was not started with --replSet");
      else if (info.set_name != config.name)
        fail("its set name of " + info.set_name + " does not match ours of " + config.name);
      else if (!info.set_id.empty() && info.set_id != config.set_id && info.id != consensus_->self())
        fail("it is a member of another replica set");
      else if (info.has_data && !known && info.set_id != config.set_id && info.id != consensus_->self())
        fail("'" + m.host + "' has data already, cannot initiate set");
    }
    for (const ConsensusMember& other : out.members)
      if (member.id != 0 && other.id == member.id)
        return Error{ErrorCode::kInvalidReplicaSetConfig,
                     "The hosts " + other.address + " and " + m.host +
                         " all map to this node in new configuration version " +
                         std::to_string(config.version) + " for replica set " + config.name};
    found_self = found_self || member.id == consensus_->self();
    out.members.push_back(std::move(member));
  }
  if (!failures.empty())
    return Error{ErrorCode::kNodeNotFound,
                 std::string(command) +
                     " quorum check failed because not all proposed set members responded affirmatively: " +
                     failures};
  if (!found_self)
    return Error{command == "replSetInitiate" ? ErrorCode::kInvalidReplicaSetConfig
                                              : ErrorCode::kNodeNotFound,
                 "No host described in new configuration with {version: " + std::to_string(config.version) +
                     ", term: " + std::to_string(config.term) + "} for replica set " + config.name +
                     " maps to this node"};
  out.payload = config.ToBson().bytes();
  return out;
}

Result<void> ReplicaSet::Initiate(std::optional<BsonView> given) {
  if (topology()->config || consensus_->initialised())
    return Error{ErrorCode::kAlreadyInitialized, "already initialized"};
  ReplConfig config;
  if (given) {
    MAYFLY_TRY(config, ParseReplConfig(*given));
    if (config.name != options_.set_name)
      return Error{ErrorCode::kInvalidReplicaSetConfig,
                   "Attempting to initiate a replica set with name " + config.name +
                       ", but command line reports " + options_.set_name + "; rejecting"};
    if (!config.set_id.empty())
      return Error{ErrorCode::kInvalidReplicaSetConfig,
                   "replica set configuration cannot contain 'replicaSetId' field when calling replSetInitiate"};
    if (config.version != 1)
      return Error{ErrorCode::kInvalidReplicaSetConfig,
                   "Configuration used to initiate a replica set must  have version 1, but found " +
                       std::to_string(config.version)};
  } else {
    config.name = options_.set_name;
    MemberConfig self;
    self.host = options_.self_host;
    config.members.push_back(std::move(self));
  }
  config.term = 1;
  config.set_id = NewObjectId(storage_.clock().Now());
  MAYFLY_TRY(ConsensusConfiguration consensus, ToConsensus(config, "replSetInitiate"));
  bool empty = true;
  for (const CollectionInfoPtr& coll : storage_.catalog().ListAll())
    empty = empty && coll->unreplicated;
  MAYFLY_TRY(Await<LogPosition>(
      [&](auto done) { consensus_->Initiate(std::move(consensus), empty, done); }));
  // This member leads the new set: when the command returns, it can be written to.
  std::unique_lock l(mutex_);
  applied_wake_.wait_for(l, std::chrono::milliseconds(kProbeMillis),
                         [this] { return applied_.ts != 0 || stopping_.load(); });
  l.unlock();
  // The others begin as learners. When they vote, the set can lose this member.
  const int64_t until = storage_.clock().MonotonicMicros() + kProbeMillis * 1000;
  auto all_vote = [this, wanted = config.VotingMembers()] {
    int voters = 0;
    for (const MemberStatus& m : consensus_->Status().members) voters += m.voter;
    return voters >= wanted;
  };
  while (!all_vote() && !stopping_ && storage_.clock().MonotonicMicros() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return Ok();
}

Result<void> ReplicaSet::Reconfigure(BsonView doc, bool force) {
  TopologyPtr t = topology();
  if (!t->config)
    return Error{ErrorCode::kNotYetInitialized,
                 "Node not yet initialized; use the replSetInitiate command"};
  if (!force && t->state != MemberState::kPrimary)
    return Error{ErrorCode::kNotWritablePrimary,
                 "Safe reconfig is only allowed on a writable PRIMARY. Current state " +
                     std::string(MemberStateName(t->state))};
  MAYFLY_TRY(ReplConfig config, ParseReplConfig(doc));
  if (force && config.version <= t->config->version) config.version = t->config->version + 1;
  MAYFLY_TRY(CheckReconfig(*t->config, config, force));
  config.set_id = t->config->set_id;
  config.term = static_cast<int64_t>(t->term);
  MAYFLY_TRY(ConsensusConfiguration consensus, ToConsensus(config, "replSetReconfig"));
  MAYFLY_TRY(Await<LogPosition>([&](auto done) {
    if (force)
      consensus_->ForceReconfigure(std::move(consensus), done);
    else
      consensus_->Reconfigure(std::move(consensus), done);
  }));
  committer_->SubmitNoop(BuildBson([&](BsonBuilder& b) {
                           b.Append("msg", "Reconfig set").Append("version", config.version);
                         }),
                         [](Result<void>) {});
  return Ok();
}

Result<void> ReplicaSet::StepDown(int64_t seconds, int64_t catch_up_millis, bool force) {
  if (topology()->state != MemberState::kPrimary)
    return Error{ErrorCode::kNotWritablePrimary, "not primary so can't step down"};
  StayOut(storage_.clock().MonotonicMicros() + seconds * 1'000'000);
  Result<void> r =
      Await<void>([&](auto done) { consensus_->StepDown(0, catch_up_millis, force, done); });
  if (!r) {
    StayOut(0);
    if (r.error().code == LocationCode(262))
      return Error{LocationCode(262),
                   "No electable secondaries caught up as of " +
                       std::to_string(storage_.clock().Now().millis) +
                       ". Please use the replSetStepDown command with the argument {force: true} to force node to step down."};
  }
  return r;
}

void ReplicaSet::StayOut(int64_t until_micros) {
  out_until_micros_ = until_micros;
  consensus_->DoNotCampaignUntil(until_micros);
}

Result<void> ReplicaSet::StepUp() {
  TopologyPtr t = topology();
  if (t->state == MemberState::kPrimary) return Ok();
  auto fail = [](std::string why) {
    return Error{ErrorCode::kCommandFailed, "Election failed: " + why};
  };
  if (t->state != MemberState::kSecondary || t->self < 0)
    return fail("this member is in state " + std::string(MemberStateName(t->state)) + ", not SECONDARY");
  const MemberConfig& self = t->config->members[static_cast<size_t>(t->self)];
  if (!self.electable()) return fail("this member has priority 0");
  if (storage_.clock().MonotonicMicros() < out_until_micros_)
    return fail("this member is frozen or has stepped down a short time ago; replSetFreeze with 0 ends that");
  auto r = Await<void>([&](auto done) { consensus_->StepUp(kStepUpMillis, done); });
  if (!r) return fail(r.error().message);
  return Ok();
}

Result<std::string> ReplicaSet::Freeze(int64_t seconds) {
  TopologyPtr t = topology();
  if (t->state == MemberState::kPrimary)
    return NotSecondary(
        "cannot freeze node when primary or running for election. state: Primary");
  if (seconds == 0) {
    StayOut(0);
    return std::string("unfreezing");
  }
  StayOut(storage_.clock().MonotonicMicros() + seconds * 1'000'000);
  return std::string();
}

Result<void> ReplicaSet::SetMaintenance(bool on) {
  TopologyPtr t = topology();
  if (t->state == MemberState::kPrimary)
    return NotSecondary("primaries can't modify maintenance mode");
  {
    std::lock_guard l(mutex_);
    if (!on && !maintenance_)
      return Error{ErrorCode::kOperationFailed, "already out of maintenance mode"};
    maintenance_ = on;
  }
  StayOut(on ? INT64_MAX : 0);
  Refresh();
  return Ok();
}

void ReplicaSet::SetRetention(std::optional<uint64_t> bytes, std::optional<double> hours) {
  std::unique_lock l(mutex_);
  if (bytes) log_max_bytes_ = *bytes;
  if (hours) log_min_hours_ = *hours;
  const uint64_t b = log_max_bytes_;
  const double h = log_min_hours_;
  l.unlock();
  consensus_->SetRetention(b, h);
}

uint64_t ReplicaSet::log_max_bytes() const {
  std::lock_guard l(mutex_);
  return log_max_bytes_;
}

// --- write concern -----------------------------------------------------------------------------------

Result<void> ReplicaSet::CheckTarget(const WriteConcernTarget& target) const {
  std::shared_ptr<const ReplConfig> config = topology()->config;
  if (!config) return Ok();
  if (!target.mode.empty()) {
    if (!config->modes.contains(target.mode))
      return Error{ErrorCode::kUnknownReplWriteConcern,
                   "No write concern mode named '" + target.mode +
                       "' found in replica set configuration"};
    return Ok();
  }
  if (!target.majority && target.w > static_cast<int64_t>(config->members.size()))
    return Error{ErrorCode::kUnsatisfiableWriteConcern, "Not enough data-bearing nodes"};
  return Ok();
}

bool ReplicaSet::Satisfied(const WriteConcernTarget& target, uint64_t index) const {
  std::shared_ptr<const ReplConfig> config = topology()->config;
  // A majority has it already: it is applied here.
  if (!config || target.majority) return true;
  if (target.mode.empty() && target.w <= 1) return true;
  const ConsensusStatus status = consensus_->Status();
  auto reached = [&](const MemberStatus& m) {
    if (m.self) return true;
    return (target.journal ? m.durable.index : m.applied.index) >= index;
  };
  if (target.mode.empty()) {
    int64_t n = 0;
    for (const MemberStatus& m : status.members) n += reached(m);
    return n >= target.w;
  }
  auto mode = config->modes.find(target.mode);
  if (mode == config->modes.end()) return true;
  for (const auto& [tag, wanted] : mode->second) {
    std::vector<std::string> values;
    for (size_t i = 0; i < status.members.size() && i < config->members.size(); ++i) {
      auto value = config->members[i].tags.find(tag);
      if (value == config->members[i].tags.end() || !reached(status.members[i])) continue;
      if (std::find(values.begin(), values.end(), value->second) == values.end())
        values.push_back(value->second);
    }
    if (static_cast<int64_t>(values.size()) < wanted) return false;
  }
  return true;
}

}  // namespace mayfly

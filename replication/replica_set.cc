#include "replication/replica_set.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "protocol/bson_validate.h"
#include "protocol/large_memory.h"
#include "replication/applied_row.h"
#include "replication/await.h"
#include "replication/oplog.h"
#include "storage/catalog/catalog_open.h"
#include "storage/kv/write_room.h"
#include "storage/read/read_view.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

constexpr int64_t kHandOverMillis = 2'000;
constexpr int64_t kNoopMillis = 10'000;  ///< periodicNoopIntervalSecs

}  // namespace

std::string_view MemberStateName(MemberState state) {
  switch (state) {
    case MemberState::kStartup:
      return "STARTUP";
    case MemberState::kPrimary:
      return "PRIMARY";
    case MemberState::kSecondary:
      return "SECONDARY";
    case MemberState::kRecovering:
      return "RECOVERING";
    case MemberState::kStartup2:
      return "STARTUP2";
    case MemberState::kUnknown:
      return "UNKNOWN";
    case MemberState::kDown:
      return "(not reachable/healthy)";
    case MemberState::kRemoved:
      return "REMOVED";
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

void ReplicaSet::SetOplogBytes(CollectionInfo& oplog, uint64_t bytes) {
  oplog.capped_bytes = static_cast<int64_t>(bytes);
  oplog.options = BuildBson([&](BsonBuilder& b) {
    b.Append("capped", true).Append("size", oplog.capped_bytes).Append("autoIndexId", false);
  });
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
}

Result<std::unique_ptr<ReplicaSet>> ReplicaSet::Open(ReplicaSetOptions options) {
  std::unique_ptr<ReplicaSet> set(new ReplicaSet(std::move(options)));
  const ReplicaSetOptions& o = set->options_;
  if (set->log_max_bytes_ == 0) {
    MAYFLY_TRY(auto resized, o.storage->catalog().GetSetting(kOplogBytesSetting));
    if (resized && resized->size() == 8) set->log_max_bytes_ = LoadBe64(resized->data());
  }
  if (set->log_max_bytes_ == 0) {
    std::error_code ec;
    const auto space = std::filesystem::space(o.data_directory, ec);
    set->log_max_bytes_ =
        std::clamp<uint64_t>(ec ? 0 : space.capacity / 20, 990ull << 20, 50'000ull << 20);
  }
  auto committer = std::make_unique<ReplicatedCommitter>(*o.storage, o.sync_interval_ms);
  set->committer_ = committer.get();
  o.storage->set_committer(std::move(committer));
  MAYFLY_TRY(set->LoadApplied());
  ConsensusOptions c;
  c.kv = &o.storage->kv();
  c.store = o.storage->options().engine;
  c.clock = o.clock;
  c.machine = set.get();
  c.set_name = o.set_name;
  c.key = o.key;
  c.more_keys = o.more_keys;
  c.keyless_members = o.keyless_members;
  c.old_handshake = o.old_handshake;
  c.tls = o.tls;
  c.data_directory = o.data_directory;
  c.log_max_bytes = set->log_max_bytes_;
  c.log_min_hours = o.log_min_hours;
  c.history_lost = o.history_lost;
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
  set->committer_->set_read_by_all([s = set.get()] { return s->ReadByAll(); });
  set->committer_->set_consensus(set->consensus_.get());
  {
    auto oplog = std::make_shared<CollectionInfo>();
    oplog->id = kOplogCollectionId;
    oplog->uuid = {0x6f, 0x70, 0x6c, 0x6f, 0x67, 0x2e, 0x40, 0x73, 0x80, 0, 0, 0, 0, 0, 0, 1};
    oplog->db = "local";
    oplog->name = "oplog.rs";
    oplog->ns = "local.oplog.rs";
    oplog->kind = CollectionKind::kOplog;
    oplog->unreplicated = true;
    SetOplogBytes(*oplog, set->log_max_bytes_);
    oplog->counters = std::make_shared<CollectionCounters>();
    oplog->source = std::make_shared<OplogSource>(*set->consensus_, kOplogCollectionId);
    oplog->source_key = "ts";
    set->oplog_ = oplog;
    o.storage->member_catalog().AddSource(std::move(oplog));
  }
  const ConsensusStatus status = set->consensus_->Status();
  set->applied_index_ = status.applied.index;
  if (!status.configuration.set_id.empty()) set->SetConfig(status.configuration.payload);
  set->Refresh();
  // Started only now, because it uses what was set above.
  set->tasks_thread_ =
      std::thread(large_memory::WithThisBudget([s = set.get()] { s->RunTasks(); }));
  return set;
}

ReplicaSet::~ReplicaSet() {
  Stop();
  if (committer_ != nullptr) committer_->set_consensus(nullptr);
  // Pending units fail, and the engine's threads end. It is stopped explicitly: its last
  // announcements, and the tasks that they leave, still use `consensus_`.
  if (consensus_) consensus_->Stop();
  {
    std::lock_guard l(tasks_mutex_);
    tasks_stop_ = true;
    tasks_wake_.notify_one();
  }
  if (tasks_thread_.joinable()) tasks_thread_.join();
  consensus_.reset();
}

Result<void> ReplicaSet::Start() { return consensus_->Start(); }

void ReplicaSet::Stop() {
  if (stopping_.exchange(true)) return;
  if (!consensus_ || committer_ == nullptr || !committer_->writable()) return;
  // A member that can take over does so now, and not only after an election timeout.
  TopologyPtr t = topology();
  if (t->config && t->config->members.size() > 1)
    (void)Await<void>([&](auto done) { consensus_->StepDown(0, kHandOverMillis, false, done); });
  committer_->SetWritable(false);
}

Result<bool> ReplicaSet::ReadApplied(const KvSnapshot* at, OpTime* out) {
  AppliedRow row;
  MAYFLY_TRY(const bool found, ReadAppliedRow(storage_.kv(), at, &row));
  if (!found) return false;
  out->ts = row.ts;
  out->wall_millis = row.wall_millis;
  out->term = row.term;
  return true;
}

Result<void> ReplicaSet::LoadApplied() {
  MAYFLY_TRY(open_units_.Load(storage_.kv()));
  MAYFLY_TRY(const bool found, ReadApplied(nullptr, &applied_));
  if (!found) return Ok();
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
    const int64_t idle = options_.noop_millis ? options_.noop_millis() : kNoopMillis;
    const bool called =
        tasks_wake_.wait_for(l, std::chrono::milliseconds(idle > 0 ? idle : kNoopMillis),
                             [this] { return tasks_stop_ || !tasks_.empty(); });
    if (!called) {
      // An idle primary: its time must advance for clients that read from secondaries.
      if (idle > 0 && committer_ != nullptr && committer_->writable() &&
          clock_.Now().millis - last_applied().wall_millis >= idle)
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

// --- state ---------------------------------------------------------------------------------------

TopologyPtr ReplicaSet::topology() const {
  std::lock_guard l(mutex_);
  return topology_;
}

uint64_t ReplicaSet::OperationTime() {
  const int64_t hidden = storage_.expiry_policy().hidden_deadline.load(std::memory_order_relaxed);
  if (hidden <= applied_wall_.load(std::memory_order_acquire) || !committer_->writable())
    return std::max(applying_ts_.load(std::memory_order_acquire), applied_ts());
  return std::max({committer_->TimestampBehind(hidden),
                   applying_ts_.load(std::memory_order_acquire), applied_ts()});
}

Result<std::shared_ptr<ReadPoint>> ReplicaSet::TakeReadPoint() {
  // last_applied() is behind what can be seen already. The row is of the same batch as the records.
  for (OpTime at = last_applied();;) {
    // Its clock is that of its newest record, and not this member's: every member hides the same.
    const Instant now = at.ts == 0 ? clock_.Now() : Instant{at.wall_millis};
    std::shared_ptr<ReadPoint> point = ReadPoint::Take(storage_, at.ts, now);
    // No later entry has begun to be applied: the row's content is known.
    if (applying_ts_.load(std::memory_order_acquire) == at.ts) return point;
    OpTime newest{};
    MAYFLY_TRY(ReadApplied(point->View()->snapshot().get(), &newest));
    if (newest.ts == at.ts) return point;
    at = newest;  // again only if more has been applied meanwhile
  }
}

uint64_t ReplicaSet::known_time() const {
  uint64_t known = cluster_time();
  for (const MemberStatus& m : consensus_->Status().members) {
    if (m.self || !ValidateBson(m.payload, false)) continue;
    if (const BsonValue ts = BsonView(m.payload)["ts"]; ts.Is(BsonType::kTimestamp))
      known = std::max(known, ts.Timestamp());
  }
  return known;
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
    // A delayed member may already know the newest configuration when it reaches the entries of
    // older ones.
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
  read_by_all_ = ReadByAll();
  constexpr int64_t kTolerableMillis = 1000;
  for (const MemberStatus& m : consensus_->Status().members) {
    if (m.self || !m.reachable || m.wall_clock.millis == 0) continue;
    const bool skewed = m.skew_ms > kTolerableMillis || m.skew_ms < -kTolerableMillis;
    if (std::exchange(skewed_[m.id], skewed) == skewed) continue;
    Log(skewed ? 'W' : 'I',
        skewed ? "Another member's clock is more than a second from this one's: expiry goes by the "
                 "primary's clock"
               : "The clocks of the members agree again",
        [&](BsonBuilder& b) { b.Append("member", m.address).Append("skewMillis", m.skew_ms); });
  }
}

int64_t ReplicaSet::ReserveTopologyVersion(bool* announce) {
  *announce = !announcing_.exchange(true);
  return topology()->counter + 1;
}

void ReplicaSet::NewTopologyVersion() {
  announcing_ = false;
  {
    std::lock_guard l(mutex_);
    auto next = std::make_shared<Topology>(*topology_);
    next->counter +=
        // Higher than ReserveTopologyVersion: a client that has the reserved one and waits in hello
        // for a newer one is answered too.
        2;
    topology_ = std::move(next);
  }
  if (options_.event) options_.event(ReplEvent::kTopology);
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
      // Looked up by address, because the engine may have another configuration than the newest one
      // known here (SetConfig).
      auto place = [&](NodeId id) {
        const ConsensusMember* m = status.configuration.Find(id);
        return m != nullptr ? config_->FindHost(m->address) : nullptr;
      };
      if (const MemberConfig* m = place(consensus_->self()))
        next->self = static_cast<int>(m - config_->members.data());
      if (const MemberConfig* m = state_.leader != 0 ? place(state_.leader) : nullptr)
        next->primary = m->host;
    }
    const bool primary = state_.role == ConsensusRole::kLeader && state_.ready && !stopping_;
    if (!config_)
      next->state = MemberState::kStartup;
    else if (!started_ || status.sync_source)
      next->state = MemberState::kStartup2;
    else if (next->self < 0)
      next->state = MemberState::kRemoved;
    else if (primary)
      next->state = MemberState::kPrimary;
    else if (maintenance_)
      next->state = MemberState::kRecovering;
    else
      next->state = MemberState::kSecondary;
    // No member is primary until it reports so itself: a leader that is not ready yet refuses
    // writes.
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
    if (was == MemberState::kPrimary && is != was) clock_.KeepFloor(clock_.Now().millis);
    clock_.set_follows(is != MemberState::kPrimary && next_has_config);
    if (is == MemberState::kPrimary && was != is) read_by_all_ = ReadByAll();
    committer_->SetWritable(is == MemberState::kPrimary, state_.term);
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
    Post([this, primary, term = state_.term] {
      if (primary)
        storage_.member_catalog().BecomePrimary();
      else
        storage_.member_catalog().ForgetReaped();
      if (options_.primary_changed) options_.primary_changed(primary);
      // mongod's words: test harnesses wait for them before they write.
      if (primary)
        Log('I', "Transition to primary complete; database writes are now permitted",
            [&](BsonBuilder& b) { b.Append("term", static_cast<int64_t>(term)); });
    });
  }
}

// --- the engine's calls --------------------------------------------------------------------------

void ReplicaSet::Configured(const ConsensusConfiguration& configuration) {
  SetConfig(configuration.payload);
  ConsensusTimings timings;
  int64_t delay = 0;
  {
    std::lock_guard l(mutex_);
    if (!config_) return;
    timings = {config_->election_timeout_ms, config_->heartbeat_interval_ms,
               config_->heartbeat_timeout_secs * 1000};
    const ConsensusMember* self = configuration.Find(consensus_->self());
    const MemberConfig* m = self != nullptr ? config_->FindHost(self->address) : nullptr;
    if (m != nullptr) delay = m->secondary_delay_secs;
  }
  delay_secs_ = delay;
  consensus_->SetTimings(timings);
  Post([this] { Refresh(); });
}

int64_t ReplicaSet::HoldMillis(const CommittedEntry& entry) {
  const int64_t delay = delay_secs_.load(std::memory_order_relaxed);
  if (stopped_ && entry.kind == CommittedEntry::Kind::kData) return 1;
  if (delay == 0 || entry.kind != CommittedEntry::Kind::kData) return 0;
  std::string_view rest = entry.data.substr(std::min(kLogEntryHeader, entry.data.size()));
  uint64_t ts;
  uint32_t ticks;
  int64_t wall = 0;
  auto read = SkipLogUnit(&rest, &ts, &ticks, &wall);
  if (!read || !read.value()) return 0;
  return std::max<int64_t>(wall + delay * 1000 - clock_.RightTime().millis, 0);
}

bool ReplicaSet::StandsAlone(const CommittedEntry& e) {
  return e.kind == CommittedEntry::Kind::kData && IsLogEnd(e.data);
}

std::unique_ptr<KvBatch> ReplicaSet::BatchFor(const CommittedEntry& e) {
  if (ReadyUnit* ready = ReplicatedCommitter::ReadyOf(e.context)) return std::move(ready->batch);
  const Result<LogChunks> chunks = ReadLogEnd(e.data);
  if (!chunks) return nullptr;  // damaged: Prepare says so
  const size_t bytes = std::min<uint64_t>(chunks.value().bytes, kMaxLogUnitBytes);
  batch_bytes_ = static_cast<int64_t>(LargeBatchBytes(bytes));
  large_memory::ThreadBudget().Add(batch_bytes_);
  return NewLargeBatch(storage_.kv(), LargeBatchBytes(bytes));
}

Result<void> ReplicaSet::AddEntry(const CommittedEntry& e) {
  std::string_view data = e.data;
  ReadyUnit* const ready = ReplicatedCommitter::ReadyOf(e.context);
  if (IsLogEnd(data) && ready == nullptr) {
    // Unapplied entries are read too: chunks may be in this very batch.
    MAYFLY_TRY(std::string whole, JoinFromLog(data, *consensus_->ReadWholeLog()));
    data = joined_.emplace_back(std::move(whole));
    large_memory::ThreadBudget().Add(static_cast<int64_t>(data.size()));
  }
  entries_.push_back({data, ReplicatedCommitter::UnitsOf(e.context), ready, e.position.term});
  return Ok();
}

void ReplicaSet::Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) {
  entries_.clear();
  open_units_.Prepare(entries, batch);
  OpTime last{0, -1, 0};
  Result<void> prepared = Ok();
  for (const CommittedEntry& e : entries) {
    if (e.kind != CommittedEntry::Kind::kData || IsLogChunk(e.data)) continue;
    if (prepared) prepared = AddEntry(e);
    last.term = static_cast<int64_t>(e.position.term);
  }
  if (prepared && entries_.empty()) return;
  const uint64_t before = applier_.last_ts();
  if (prepared) prepared = applier_.Prepare(entries_, batch);
  if (!prepared) {
    // The process stops, as every member would: without the entry, this member would differ from
    // the others.
    if (options_.fatal) options_.fatal(prepared.error().message);
    std::abort();
  }
  if (!joined_.empty()) {
    const auto lists = static_cast<int64_t>(applier_.ListBytes());
    batch_bytes_ += lists;
    large_memory::ThreadBudget().Add(lists);
  }
  if (applier_.last_ts() == before) return;
  applying_ts_.store(applier_.last_ts(), std::memory_order_release);
  StageAppliedRow(batch, {applier_.last_ts(), applier_.last_wall(), last.term});
}

void ReplicaSet::Applied(std::span<const CommittedEntry> entries) {
  if (!entries_.empty()) applier_.Applied(entries_);
  open_units_.Applied();
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
    applied_wall_.store(applied_.wall_millis, std::memory_order_release);
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
  const bool ready = !entries_.empty() && entries_.front().ready != nullptr;
  entries_.clear();
  if (ready) applier_.Forget();
  large_memory::ThreadBudget().Add(-std::exchange(batch_bytes_, 0));
  if (joined_.empty()) return;
  applier_.Forget();
  for (const std::string& s : joined_)
    large_memory::ThreadBudget().Add(-static_cast<int64_t>(s.size()));
  joined_.clear();
}

void ReplicaSet::StateChanged(const ConsensusState& state) {
  NodeId follow = 0;
  {
    std::lock_guard l(mutex_);
    if (state.role == ConsensusRole::kLeader && state_.role != ConsensusRole::kLeader)
      follow = last_leader_;
    if (state.leader != 0 && state.leader != consensus_->self()) last_leader_ = state.leader;
    state_ = state;
    started_ = true;
  }
  if (follow != 0) FollowTimeOf(follow);
  Refresh();
}

void ReplicaSet::FollowTimeOf(NodeId last_primary) {
  const int64_t now = storage_.clock().MonotonicMicros();
  for (const MemberStatus& m : consensus_->Status().members) {
    if (m.id != last_primary || m.last_heard_us == 0 || !ValidateBson(m.payload, false)) continue;
    // Its clock may have advanced since its last heartbeat.
    const BsonValue its = BsonView(m.payload)["now"];
    if (its.Is(BsonType::kInt64)) clock_.KeepFloor(its.Int64() + (now - m.last_heard_us) / 1000);
  }
}

void ReplicaSet::set_right_time(std::function<Instant()> right) {
  clock_.set_right_time(std::move(right));
  committer_->set_wall([this] { return clock_.Now().millis; });
}

void ReplicaSet::Progressed() {
  constexpr int64_t kClocksEveryMicros = 5'000'000;
  const int64_t now = storage_.clock().MonotonicMicros();
  int64_t last = clocks_checked_micros_.load(std::memory_order_relaxed);
  if (now - last > kClocksEveryMicros && clocks_checked_micros_.compare_exchange_strong(last, now))
    Post([this] { CheckClocks(); });
  if (options_.event) options_.event(ReplEvent::kProgress);
}

int ReplicaSet::ReadByAll() const { return ReadBy(consensus_->Status().members); }

int ReplicaSet::ReadBy(std::span<const MemberStatus> members) {
  int version = kLogEntryLatest;
  for (const MemberStatus& m : members) {
    // Nothing was heard of it yet: nothing speaks against it.
    if (m.self || m.payload.empty() || !ValidateBson(m.payload, false)) continue;
    const BsonValue log = BsonView(m.payload)["log"];
    // Members without this field are older than transactions and chunks.
    version = std::min<int>(version, log.Is(BsonType::kInt32) ? log.Int32() : kLogEntryWithBefore);
  }
  return version;
}

std::string ReplicaSet::HeartbeatPayload() {
  std::lock_guard l(mutex_);
  return BuildBson([&](BsonBuilder& b) {
           b.Append("state", static_cast<int32_t>(topology_->state));
           b.Append("log", static_cast<int32_t>(kLogEntryLatest));  // ReadByAll
           b.AppendTimestamp("ts", applied_.ts).Append("t", applied_.term);
           b.Append("wall", applied_.wall_millis).Append("now", clock_.Now().millis);
           b.Append("uptime", (storage_.clock().MonotonicMicros() - started_micros_) / 1'000'000);
           if (config_)
             b.Append("configVersion", config_->version).Append("configTerm", config_->term);
           if (election_)
             b.Append("electionAt", election_->at_millis)
                 .Append("electionTerm", static_cast<int64_t>(election_->term));
         })
      .bytes();
}

}  // namespace mayfly

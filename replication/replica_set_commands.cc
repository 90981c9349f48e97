#include <algorithm>
#include <random>
#include <thread>

#include "protocol/object_id.h"
#include "replication/await.h"
#include "replication/repl_config_size.h"
#include "replication/replica_set.h"
#include "storage/catalog/catalog_open.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

constexpr int64_t kProbeMillis = 5'000;
constexpr int64_t kStepUpMillis = 10'000;
constexpr int64_t kReconfigMillis = 10'000;

Error NotSecondary(std::string message) { return {ErrorCode::kNotSecondary, std::move(message)}; }

}  // namespace

bool ReplicaSet::IsSelf(std::string_view text) const {
  if (text == options_.self_host) return true;
  std::string host, self;
  int port = 0, self_port = 0;
  if (!SplitHostAndPort(text, &host, &port) ||
      !SplitHostAndPort(options_.self_host, &self, &self_port))
    return false;
  return port == self_port &&
         (host == self || host == "localhost" || host == "127.0.0.1" || host == "::1");
}

Result<ConsensusConfiguration> ReplicaSet::ToConsensus(const ReplConfig& config,
                                                       std::string_view command) {
  ConsensusConfiguration out;
  out.set_id = config.set_id;
  const ConsensusConfiguration now = consensus_->Status().configuration;
  // All members are asked at the same time, so members that do not answer cost one timeout
  // together.
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
      consensus_->Probe(m.host, config.set_id, kProbeMillis,
                        [promise](Result<NodeInfo> r) { promise->set_value(std::move(r)); });
    }
  }
  bool found_self = false, busy = false;
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
      // A known member that is away keeps its identity.
      for (const ConsensusMember& old : now.members)
        if (old.address == m.host) member.id = old.id;
      busy = busy || answer.error().code == ErrorCode::kConfigurationInProgress;
      if (member.id == 0) fail(answer.error().message);
    } else {
      const NodeInfo& info = answer.value();
      member.id = info.id;
      const bool known = std::any_of(now.members.begin(), now.members.end(),
                                     [&](const auto& old) { return old.id == info.id; });
      if (info.set_name.empty())
        fail("it was not started with --replSet");
      else if (info.set_name != config.name)
        fail("its set name of " + info.set_name + " does not match ours of " + config.name);
      else if (!info.set_id.empty() && info.set_id != config.set_id &&
               info.id != consensus_->self())
        fail("it is a member of another replica set");
      else if (info.has_data && !known && info.set_id != config.set_id &&
               info.id != consensus_->self())
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
    return Error{
        busy ? ErrorCode::kConfigurationInProgress : ErrorCode::kNodeNotFound,
        std::string(command) +
            " quorum check failed because not all proposed set members responded affirmatively: " +
            failures};
  if (!found_self)
    return Error{command == "replSetInitiate" ? ErrorCode::kInvalidReplicaSetConfig
                                              : ErrorCode::kNodeNotFound,
                 "No host described in new configuration with {version: " +
                     std::to_string(config.version) + ", term: " + std::to_string(config.term) +
                     "} for replica set " + config.name + " maps to this node"};
  out.payload = config.ToBson().bytes();
  return out;
}

Result<ConsensusConfiguration> ReplicaSet::ClaimMembers(const ReplConfig& config) {
  constexpr int kAttempts = 16;
  std::mt19937 random(std::random_device{}());
  for (int attempt = 0;; ++attempt) {
    if (topology()->config || consensus_->initialised())
      return Error{ErrorCode::kAlreadyInitialized, "already initialized"};
    Result<ConsensusConfiguration> r =
        Error{ErrorCode::kConfigurationInProgress,
              "another member takes this one into a replica set just now"};
    if (consensus_->Claim(config.set_id)) {
      r = ToConsensus(config, "replSetInitiate");
      if (r) return r;
    }
    if (r.error().code != ErrorCode::kConfigurationInProgress || attempt == kAttempts || stopping_)
      return r;
    // Tries again after a random pause, so that one of several nodes comes first and gets all
    // members.
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + random() % 500));
  }
}

Result<void> ReplicaSet::Initiate(std::optional<BsonView> given) {
  if (topology()->config || consensus_->initialised())
    return Error{ErrorCode::kAlreadyInitialized, "already initialized"};
  ReplConfig config;
  if (given) {
    MAYFLY_TRY(config, ParseReplConfig(*given));
    MAYFLY_TRY(CheckConfigSize(config));
    if (config.name != options_.set_name)
      return Error{ErrorCode::kInvalidReplicaSetConfig,
                   "Attempting to initiate a replica set with name " + config.name +
                       ", but command line reports " + options_.set_name + "; rejecting"};
    if (!config.set_id.empty())
      return Error{ErrorCode::kInvalidReplicaSetConfig,
                   "replica set configuration cannot contain 'replicaSetId' field when calling "
                   "replSetInitiate"};
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
  MAYFLY_TRY(ConsensusConfiguration consensus, ClaimMembers(config));
  bool empty = true;
  for (const CollectionInfoPtr& coll : storage_.catalog().ListAll())
    empty = empty && coll->unreplicated;
  MAYFLY_TRY(Await<LogPosition>(
      [&](auto done) { consensus_->Initiate(std::move(consensus), empty, done); }));
  // This member leads the new set. It accepts writes when the command returns.
  std::unique_lock l(mutex_);
  applied_wake_.wait_for(l, std::chrono::milliseconds(kProbeMillis),
                         [this] { return applied_.ts != 0 || stopping_.load(); });
  l.unlock();
  // The others begin as learners. Once they are voters, the set can do without this member.
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
  // The primary also changes memberships by itself, for example when it gives a new member its
  // vote. If such a change comes in between, this waits and looks again.
  const int64_t until = storage_.clock().MonotonicMicros() + kReconfigMillis * 1000;
  for (;;) {
    Result<int64_t> version = ReconfigureOnce(doc, force);
    if (version) {
      committer_->SubmitNoop(BuildBson([&](BsonBuilder& b) {
                               b.Append("msg", "Reconfig set").Append("version", version.value());
                             }),
                             [](Result<void>) {});
      return Ok();
    }
    if (version.error().code != ErrorCode::kConfigurationInProgress || stopping_ ||
        storage_.clock().MonotonicMicros() > until)
      return version.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Result<int64_t> ReplicaSet::ReconfigureOnce(BsonView doc, bool force) {
  TopologyPtr t = topology();
  if (!t->config)
    return Error{ErrorCode::kNotYetInitialized,
                 "Node not yet initialized; use the replSetInitiate command"};
  if (!force && t->state != MemberState::kPrimary)
    return Error{ErrorCode::kNotWritablePrimary,
                 "Safe reconfig is only allowed on a writable PRIMARY. Current state " +
                     std::string(MemberStateName(t->state))};
  MAYFLY_TRY(ReplConfig config, ParseReplConfig(doc));
  MAYFLY_TRY(CheckConfigSize(config));
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
  return config.version;
}

Result<void> ReplicaSet::AppendNote(BsonView o) {
  return Await<void>([&](auto done) { committer_->SubmitNoop(o, done); });
}

Result<void> ReplicaSet::StepDown(int64_t seconds, int64_t catch_up_millis, bool force) {
  if (topology()->state != MemberState::kPrimary)
    return Error{ErrorCode::kNotWritablePrimary, "not primary so can't step down"};
  StayOut(storage_.clock().MonotonicMicros() + seconds * 1'000'000);
  Result<void> r =
      Await<void>([&](auto done) { consensus_->StepDown(0, catch_up_millis, force, done); });
  if (!r) {
    StayOut(0);
    if (r.error().code == ErrorCode::kExceededTimeLimit)
      return Error{ErrorCode::kExceededTimeLimit,
                   "No electable secondaries caught up as of " +
                       std::to_string(storage_.clock().Now().millis) +
                       ". Please use the replSetStepDown command with the "
                       "argument {force: true} to force node to step down."};
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
    return fail("this member is in state " + std::string(MemberStateName(t->state)) +
                ", not SECONDARY");
  const MemberConfig& self = t->config->members[static_cast<size_t>(t->self)];
  if (!self.electable()) return fail("this member has priority 0");
  if (storage_.clock().MonotonicMicros() < out_until_micros_)
    return fail(
        "this member is frozen or has stepped down a short time ago; replSetFreeze with 0 ends "
        "that");
  auto r = Await<void>([&](auto done) { consensus_->StepUp(kStepUpMillis, done); });
  if (!r) return fail(r.error().message);
  return Ok();
}

Result<std::string> ReplicaSet::Freeze(int64_t seconds) {
  TopologyPtr t = topology();
  if (t->state == MemberState::kPrimary)
    return NotSecondary("cannot freeze node when primary or running for election. state: Primary");
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

Result<void> ReplicaSet::SetRetention(Operation& op, std::optional<uint64_t> bytes,
                                      std::optional<double> hours) {
  if (bytes) {
    std::string value;
    AppendBe64(value, *bytes);
    MAYFLY_TRY(storage_.catalog().PutLocalSetting(op, kOplogBytesSetting, value));
  }
  std::lock_guard l(mutex_);
  if (bytes) {
    log_max_bytes_ = *bytes;
    auto resized = std::make_shared<CollectionInfo>(*oplog_);
    SetOplogBytes(*resized, *bytes);
    storage_.member_catalog().ReplaceSource(oplog_, resized);
    oplog_ = std::move(resized);
  }
  if (hours) log_min_hours_ = *hours;
  consensus_->SetRetention(log_max_bytes_, log_min_hours_);
  return Ok();
}

double ReplicaSet::log_min_hours() const {
  std::lock_guard l(mutex_);
  return log_min_hours_;
}

uint64_t ReplicaSet::log_max_bytes() const {
  std::lock_guard l(mutex_);
  return log_max_bytes_;
}

// --- write concern -------------------------------------------------------------------------------

Result<void> ReplicaSet::CheckTarget(const WriteConcernTarget& target) const {
  std::shared_ptr<const ReplConfig> config = topology()->config;
  if (!config) return Ok();
  if (!target.mode.empty()) {
    if (!config->modes.contains(target.mode))
      return Error{
          ErrorCode::kUnknownReplWriteConcern,
          "No write concern mode named '" + target.mode + "' found in replica set configuration"};
    return Ok();
  }
  if (!target.majority && target.w > static_cast<int64_t>(config->members.size()))
    return Error{ErrorCode::kUnsatisfiableWriteConcern, "Not enough data-bearing nodes"};
  return Ok();
}

bool ReplicaSet::Satisfied(const WriteConcernTarget& target, uint64_t index) const {
  std::shared_ptr<const ReplConfig> config = topology()->config;
  // A majority has the write already. What remains is to apply it here.
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
    for (const MemberStatus& status_of : status.members) {
      const MemberConfig* m = config->FindHost(status_of.address);
      if (m == nullptr) continue;
      auto value = m->tags.find(tag);
      if (value == m->tags.end() || !reached(status_of)) continue;
      if (std::find(values.begin(), values.end(), value->second) == values.end())
        values.push_back(value->second);
    }
    if (static_cast<int64_t>(values.size()) < wanted) return false;
  }
  return true;
}

}  // namespace mayfly

#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "replication/data_copy.h"
#include "replication/heartbeat.h"
#include "replication/raft_node.h"
#include "replication/transport.h"

namespace mayfly {

/// RaftNode on a thread, with a clock, a network and initial sync. One thread of its own drives the node ("the engine's thread" below);
/// the transport has two and the applier one.
///   engine.cc          life, the loop of the thread, what goes in and out
///   engine_members.cc  who takes part: initiation, configurations, step-ups, members that were emptied or removed; Status
///   engine_copy.cc     copies of the data for members that the log does not reach; the log's length
class Engine final : public Consensus {
 public:
  explicit Engine(ConsensusOptions options) : o_(std::move(options)) {}
  ~Engine() override { Stop(); }
  /// Reads the stored state and gives a new directory its node id; no thread starts. Call once,
  /// before Start. Errors: those of OpenConsensus; InternalError when no key can be derived from a
  /// key file.
  Result<void> Open();

  Result<void> Start() override;
  void Stop() override;
  NodeId self() const override { return log_->node(); }
  bool initialised() const override;
  ConsensusState state() const override;
  ConsensusStatus Status() const override;
  void Initiate(ConsensusConfiguration c, bool data_is_empty, Applier::Done done) override;
  void Reconfigure(ConsensusConfiguration c, Applier::Done done) override;
  void ForceReconfigure(ConsensusConfiguration c, Applier::Done done) override;
  void Propose(Proposal p) override;
  void ReadIndex(std::function<void(Result<uint64_t>)> done) override;
  void WhenApplied(uint64_t index, std::function<void(Result<void>)> done) override;
  void StepDown(NodeId to, int64_t timeout_ms, bool force,
                std::function<void(Result<void>)> done) override;
  void StepUp(int64_t timeout_ms, std::function<void(Result<void>)> done) override;
  void DoNotCampaignUntil(int64_t us) override;
  void SetTimings(const ConsensusTimings& t) override;
  void SetRetention(uint64_t max_bytes, double min_hours) override;
  std::unique_ptr<LogCursor> ReadLog() override { return log_->Cursor(); }
  std::unique_ptr<LogCursor> ReadWholeLog() override { return log_->Cursor(true); }
  void Probe(const std::string& address, const std::string& claim, int64_t timeout_ms,
             std::function<void(Result<NodeInfo>)> done) override;
  bool Claim(const std::string& set_id) override;
  void AdoptConnection(HandedConnection connection) override;

 private:
  struct Known {
    Heartbeat last;
    int64_t heard_us = 0, answered_us = 0, failed_us = 0, skew_ms = 0;
    /// It has answered a heartbeat of ours, or accepted a part of a message while its own
    /// heartbeats arrive: it follows the leader of `last.term`, if it says so.
    int64_t follows_us = 0;
    int64_t sent_us = 0, received_us = 0;  ///< a part of a large frame to it or from it
    int64_t up_us =
        0;  ///< when the stream to it was opened: what it said before may be of another process
    bool current() const { return heard_us >= up_us; }
    double ping_ms = 0;
    std::string last_error;
  };
  struct Forced {
    ConsensusConfiguration configuration;
    std::vector<mf_change>
        changes;  ///< done to this node's own state; the others must do it by the log
    Applier::Done done;
    int64_t until_us;
  };
  struct Waiting {
    int64_t until_us;
    std::function<void(Result<void>)> done;
  };

  static void Interrupted(Proposal& p) { p.done(Halted()); }
  static Error Halted() {
    return {ErrorCode::kInterruptedAtShutdown, "the server is shutting down"};
  }
  int64_t Micros() const { return o_.clock->MonotonicMicros(); }
  void Log(char severity, std::string_view message) {
    if (o_.log) o_.log(severity, message, {});
  }
  [[noreturn]] void Fatal(std::string_view why);

  // --- engine.cc -------------------------------------------------------------------------------
  /// Runs `f` on the engine's thread, or here when that has ended.
  void Call(std::function<void()> f);
  void Wake(std::unique_lock<std::mutex>& l);
  Result<void> OpenNode();
  void Run();
  LinkIdentity Identity() const;
  Heartbeat OwnHeartbeat(int64_t stamp);
  /// The answer to a heartbeat: like ours, or for a removed node the present members.
  std::string AnswerTo(NodeId from, std::string_view body);
  void Heard(NodeId from, const Heartbeat& h, bool answer);
  void Received(NodeId from, uint8_t type, std::string_view body);
  /// A part of a large message has gone or come.
  void Moved(NodeId peer, bool sent);
  /// Tells raft-rs which members were heard from since `since` by other means than its messages.
  /// Those messages wait behind large entries, on the network and during writes, and this must not
  /// start an election.
  void TellAlive(int64_t since);
  /// What Status tells, when it has changed.
  void Publish();

  // --- engine_members.cc -----------------------------------------------------------------------
  /// Whether to accept a node that has the key: any node. But while this node belongs to no set,
  /// only those of one set at a time, because two logs would mix.
  Result<void> Admit(const LinkPeer& peer);
  bool ClaimFor(const std::string& set_id, NodeId by, bool firmly);
  void Configured(const ConsensusConfiguration& c);
  /// Another member says that the set goes on without this node. True of one that was removed while it was away: the log does not
  /// come to it any more, so it would never hear of it.
  void Removed(uint64_t as_of, const std::string& encoded);
  /// The configuration exactly as given, without asking anybody.
  void Force(const ConsensusConfiguration& c, Applier::Done done);
  /// Once this node leads, the others that are left hear of it through the log.
  void PushForced();
  /// Somebody waits for this node to lead.
  void PushStepUp();
  /// Another node lives at the address of member `lost`, because its data directory was emptied.
  /// The new node must not use the old node's vote, because it has forgotten how the old one voted
  /// and what it promised to keep. The leader removes the old node and adds the new one as a
  /// learner, in one change that needs a majority of the remaining voters. The new node votes once
  /// it has all data (LeaderDuties). Only an empty node that belongs to no set is accepted: the
  /// data of the old node exists nowhere, so it cannot come back as a second node.
  void ReplaceStranger(NodeId lost);
  void TakeIn(NodeId lost, NodeId id, const std::string& address);
  /// Whether this node is the other one of two voters and has everything that was ever
  /// acknowledged: then it may go on without the consent of `lost`. The engine's thread.
  bool IsLeftOfTwo(NodeId lost);

  // --- engine_copy.cc --------------------------------------------------------------------------
  void Housekeeping();
  /// Leader: a member needs a copy. Makes the checkpoint aside; raft-rs asks again.
  bool Snapshot(uint64_t at_least, SnapshotPointer* out);
  /// This node is too far behind: pulls the copy, then asks to be started again.
  void Resync(NodeId from, SnapshotPointer p);
  LinkTask<void> Pull(std::string address, NodeId from, SnapshotPointer p);
  void EndSync();

  ConsensusOptions o_;
  PatientWrites writes_{[this](char severity, std::string_view m) { Log(severity, m); }};
  std::vector<std::string> link_keys_;  ///< LinkIdentity
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
  std::atomic<int64_t> round_us_{
      0};  ///< when the engine's thread began its round, or its last write in it
  std::atomic<bool> started_{false};  ///< transport_ is there
  std::atomic<bool> halted_{false};   ///< a copy takes this node's place

  mutable std::mutex status_mutex_;
  std::unique_ptr<RaftNode> node_;  ///< engine's thread; replaced under status_mutex_
  ConsensusConfiguration configuration_;
  std::vector<RaftNode::Member> members_;
  LogPosition committed_, durable_;
  std::string sync_source_;

  std::mutex claim_mutex_;
  std::string claimed_by_;  ///< the set that this node keeps itself for
  NodeId claimer_ = 0;      ///< who asked
  int64_t claimed_until_us_ = 0;
  bool claim_firm_ = false;  ///< by more than a question

  mutable std::mutex heard_mutex_;
  std::map<NodeId, Known> heard_;

  std::mutex snapshot_mutex_;
  std::optional<SnapshotPointer> ready_;
  int64_t ready_us_ = 0;
  bool making_ = false;
  bool full_ = false;  ///< "all places for copies are taken" was logged

  std::atomic<bool> copying_{false};
  DataCopy::Progress progress_;
  std::atomic<int64_t> frozen_until_us_{0};
  std::vector<NodeId> unreachable_;
  uint64_t max_bytes_ = 0, trimmed_bytes_ = 0;
  uint64_t told_ = 0;  ///< engine's thread: applied index that the leader was told of last
  double min_hours_ = 0;
  bool removed_ = false;  ///< engine's thread: by another member's word (Removed)
  std::optional<Forced> forced_;
  std::vector<Waiting> step_ups_;
  int64_t next_ask_us_ = 0;
  std::atomic<int64_t> next_replace_us_{0};
  NodeId refused_ = 0;  ///< transport's thread: whom ReplaceStranger has complained of last
  std::atomic<int64_t> tick_us_{int64_t{o_.tick_ms} * 1000}, heartbeat_ms_{0};
  std::atomic<int64_t> heartbeat_timeout_us_{10'000'000};
  std::thread thread_;
};

}  // namespace mayfly

#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "replication/applier.h"
#include "replication/log_store.h"
#include "replication/patient_writes.h"
#include "replication/raft/mayfly_raft.h"

namespace mayfly {

/// A reference to a copy of everything up to an entry, for a member whose next entry is no longer
/// in the log.
struct SnapshotPointer {
  LogPosition position;
  std::string conf_state;  ///< protobuf
  std::string data;        ///< the engine's: which checkpoint of which node
};

/// raft-rs with its log in a LogStore, its effects in an Applier, and everything else (time,
/// messages, threads) given from outside: the engine drives it from its thread, the simulation by
/// hand. One thread at a time.
class RaftNode {
 public:
  /// The node's environment; all pointers outlive it. The functions are called on the thread that
  /// drives the node and must not block.
  struct Options {
    LogStore* log = nullptr;
    Applier* applier = nullptr;
    StateMachine* machine = nullptr;
    const Clock* clock = nullptr;
    /// Waits for a store that has no room now; null: that is fatal.
    PatientWrites* writes = nullptr;
    int election_ticks = 20, heartbeat_ticks = 2;
    uint64_t seed = 0;  ///< of the election timeouts
    std::function<void(NodeId to, std::string_view message)> send;
    /// A member further behind than the log reaches: false: not yet, ask again (the copy is being
    /// made).
    std::function<bool(uint64_t at_least, NodeId to, SnapshotPointer* out)> snapshot;
    /// This node is further behind than the leader's log reaches.
    std::function<void(NodeId from, SnapshotPointer pointer)> resync;
    /// Before each write to the log: the thread is not stuck. May be empty.
    std::function<void()> goes_on;
    /// A configuration has become the current one (its address book may have changed).
    std::function<void(const ConsensusConfiguration&)> configured;
    std::function<void(std::string_view why)> fatal;  ///< does not return
    std::function<void(char severity, std::string_view message)> log_line;
  };
  /// How far raft-rs thinks another member is. Only the leader knows.
  struct Member {
    NodeId id = 0;
    uint64_t matched = 0, next = 0;
    bool voter = false, learner = false, active = false, in_snapshot = false;
    uint64_t pending_snapshot = 0;
    bool follows_log =
        /// neither is asked to take a copy nor looked for the place where its log leaves ours
        false;
  };

  explicit RaftNode(Options options);
  ~RaftNode();  ///< pending proposals fail with InterruptedAtShutdown, through the applier

  /// Starts from what the log store holds; hands committed entries that are not applied to the
  /// applier.
  Result<void> Open();

  /// One step of the clock, by which the options count. Elections start here, and a leader does
  /// what it does now and then. A node that may not campaign, or has priority 0, only votes.
  void Tick();
  /// Continues a step-down in progress. May be called at any time.
  void Poll();
  void Step(NodeId from, std::string_view message);
  /// News from other sources than raft-rs's messages, which may be stuck behind a large entry:
  /// before Tick. A leader's: this member follows it. A follower's: its leader leads.
  void MemberAlive(NodeId id) { mf_raft_member_alive(raft_, id); }
  void LeaderAlive() { mf_raft_leader_alive(raft_); }
  void Propose(std::vector<Proposal> proposals);
  /// `besides`: in the change even if nothing of it is new to this node (after a forced
  /// configuration it is to the others).
  void Reconfigure(ConsensusConfiguration configuration, Applier::Done done,
                   std::vector<mf_change> besides = {});
  void ReadIndex(std::function<void(Result<uint64_t>)> done);
  void StepDown(NodeId to, int64_t timeout_ms, bool force, std::function<void(Result<void>)> done);
  /// Moves leadership to `to`, which asked for it, if it may lead. A leader's; nothing elsewhere.
  void HandOver(NodeId to);
  void Campaign();
  void ReportUnreachable(NodeId id);
  /// Writes, sends and applies the results of the calls above. Call after one or several of
  /// them.
  void Pump();
  /// Reports how far the applier is.
  void Applied(uint64_t index);
  /// Drops entries that retention does not ask for (LogStore::TrimPoint).
  void Trim(uint64_t max_bytes, int64_t min_age_ms, uint64_t keep_from);

  /// This node stops leading, without an election: others take over. Proposals fail as in any loss
  /// of leadership. Nothing where it does not lead.
  void StepAside();
  void set_may_campaign(bool on) { may_campaign_ = on; }
  /// Whether leadership may go to this member (it is not frozen, has no lower rights); asked before
  /// transfers.
  std::function<bool(NodeId)> may_lead;
  /// Whether the member reports that it is taking a copy, or has reported nothing since it became
  /// reachable. A member that was asked to take a copy and does not is asked again.
  std::function<bool(NodeId)> is_copying;
  /// The end of the member's log as it reports it; {}: not known.
  std::function<LogPosition(NodeId)> log_of;

  /// As raft-rs sees it; overwritten by the next call. `members`: of a leader, with learners, by
  /// id.
  const mf_status& status();
  std::vector<Member> members();
  const ConsensusConfiguration& configuration() const { return configuration_; }
  bool leads() { return status().role == MF_LEADER; }
  ConsensusState state() const;  ///< any thread
  /// An eraftpb.ConfState of these nodes, as protobuf, for a set that begins.
  static std::string ConfState(const std::vector<NodeId>& voters,
                               const std::vector<NodeId>& learners);

 private:
  struct Pending {
    LogPosition at;
    Proposal proposal;
  };
  struct Handover {
    NodeId to;
    int64_t until_us;
    bool force;
    std::vector<std::function<void(Result<void>)>> done;
  };

  bool Persist(const mf_ready& ready);  ///< false: the process ends while the store has no room
  /// Writes batch_, as soon as the store takes it; a leader steps aside at the beginning of a wait.
  Result<void> WriteBatch(bool sync);
  Result<void> ReadPatiently(const std::function<Result<void>()>& read);
  /// Says that this node does not lead, although raft-rs does not know it yet.
  void AnnounceStepAside();
  /// To the applier; while the store has no room, before what waits there.
  void PushCall(std::function<void()> call);
  void Send(const mf_message* messages, size_t count);
  void Commit(mf_committed* committed);
  void CheckState();
  void Announce(ConsensusState state);
  /// This node has stopped leading: what was proposed fails, `next` is announced.
  void Lost(ConsensusState next);
  void FailPending(ErrorCode code, std::string_view why);
  /// Once a tick on the leader: promotions, leadership by priority, a step-down under way.
  void LeaderDuties();
  void ContinueHandover();
  /// Where to go on with a member that is to take a copy although its log ends where ours goes on
  /// (it has just taken one, by an earlier request); 0: it needs the copy.
  uint64_t ResumePoint(NodeId id);
  /// Fails them as not written, behind what has been announced.
  void Refuse(std::vector<Proposal> proposals);
  bool EveryElections(int n) const;  ///< whether this tick is the one in `n` election timeouts
  /// members(), active: within the last election timeout (raft-rs forgets at the end of each who
  /// was, so it alone depends on when one asks).
  std::vector<Member> HeardMembers();
  NodeId BestSuccessor(double above_priority);
  void Fatal(std::string_view why);

  Options o_;
  mf_callbacks callbacks_{};
  mf_raft* raft_ = nullptr;
  std::unique_ptr<KvBatch> batch_;
  std::vector<LogEntry> entries_;
  std::deque<Pending> pending_;
  std::vector<Proposal> held_;  ///< while leadership is moving
  ConsensusConfiguration configuration_;
  SnapshotPointer snapshot_;  ///< what the callback has handed out points into it
  std::map<uint64_t, std::function<void(Result<uint64_t>)>> reads_;
  uint64_t next_read_ = 1;
  std::unique_ptr<Handover> handover_;
  bool may_campaign_ = true;
  bool urgent_ = false;      ///< PushCall goes before what waits
  bool step_aside_ = false;  ///< raft-rs has yet to be told
  bool given_up_ = false;    ///< Persist has failed: raft-rs is ahead of the log
  int ticks_as_leader_ = 0;
  std::map<NodeId, int> heard_;  ///< tick as leader at which a member was last active
  uint64_t noop_term_ = 0;

  mutable std::mutex state_mutex_;
  ConsensusState state_;  ///< as last announced
};

/// Writes the beginning of a set of this node alone, at once and synced: after it RaftNode::Open
/// finds a voter that has `configuration` to apply, and takes the other members in once it leads.
/// `data_is_empty`: the log can build a member from nothing; otherwise it begins behind an entry
/// that nobody has, so that others ask for a copy.
Result<void> BootstrapLog(LogStore& log, const ConsensusConfiguration& configuration,
                          bool data_is_empty, Instant now);

/// Turns the copy of another member's store into this node's: its applied entries stay as history,
/// what the donor had promised does not. `own`: this node's promises, which hold. `archived`: its
/// row of that name, which stays; none: it has none.
Result<LogPosition> AdoptCheckpoint(KvStore& copy, NodeId self, const HardState& own,
                                    const std::optional<ArchivedRow>& archived = {});

}  // namespace mayfly

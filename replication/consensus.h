#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/instant.h"
#include "replication/handed_connection.h"
#include "storage/clock.h"
#include "storage/kv/kv.h"

/// Consensus as the rest of Mayfly sees it: a log that all members agree on, and the leader.
/// Engine: raft-rs behind replication/raft_*; nothing of it shows here.
namespace mayfly {

class Tls;  // security/tls.h

/// A place in the log. Indexes start at 1 and have no gaps; terms go up with every election.
struct LogPosition {
  uint64_t term = 0, index = 0;
  auto operator<=>(const LogPosition&) const = default;
};

/// One data directory, for ever: a random number made when it first takes part. A member whose
/// directory was emptied is another node, because it has forgotten what it voted for. Never 0.
using NodeId = uint64_t;

/// One member as the configuration lists it.
struct ConsensusMember {
  NodeId id = 0;
  std::string address;  ///< host:port, the host a name or an IP (IPv6 in brackets)
  bool voter = true;    ///< wanted: a new voter is a learner until it has caught up
  double priority = 1;  ///< 0: never leads. Leadership moves to the highest that has caught up
};

/// Who takes part. Replicated: every member has the same one at the same index.
struct ConsensusConfiguration {
  std::string set_id;  ///< 12 bytes (replicaSetId): which set this is, so that none joins another
  std::vector<ConsensusMember> members;
  std::string payload;  ///< the user's configuration document; opaque here

  /// Null when the node has no place here. Points into `members`.
  const ConsensusMember* Find(NodeId id) const {
    for (const ConsensusMember& m : members)
      if (m.id == id) return &m;
    return nullptr;
  }
};

/// What only the leader may do was asked of another member.
inline Error NotPrimary() { return {ErrorCode::kNotWritablePrimary, "not primary"}; }

/// One entry of the log that a majority has on disk.
struct CommittedEntry {
  enum class Kind : uint8_t {
    kData = 0,           ///< what somebody proposed
    kConfiguration = 1,  ///< `data` is the payload of the new configuration
    kNoop = 2,  ///< nothing to apply: the first entry of a leader's term, changes of membership
  };
  LogPosition position;
  Kind kind = Kind::kData;
  std::string_view data;  ///< as long as the call
  void* context =
      nullptr;  ///< of the Proposal, when this process proposed it and still waits; else null
};

/// What this node is in the current term. kUninitialised: it belongs to no set yet.
enum class ConsensusRole : uint8_t { kUninitialised, kFollower, kCandidate, kLeader };

/// The engine's part of a configuration's settings. Each member has its own; they need not agree at
/// every moment.
struct ConsensusTimings {
  int64_t election_ms =
      /// so long after the last sign of a leader a member tries to lead, or up to a quarter longer
      1000;
  int64_t heartbeat_ms =
      250;  ///< how often each member tells the others its clock, state and position
  int64_t heartbeat_timeout_ms =
      10'000;  ///< a member that has been silent for so long counts as unreachable
};

/// Who leads, as this node knows it.
struct ConsensusState {
  ConsensusRole role = ConsensusRole::kUninitialised;
  uint64_t term = 0;
  NodeId leader = 0;           ///< 0: no known leader
  std::string leader_address;  ///< empty with it
  /// kLeader only: everything of earlier terms is applied here, so writes may start. Comes after
  /// role == kLeader.
  bool ready = false;
  bool operator==(const ConsensusState&) const = default;
};

/// The state behind the log: documents, indexes, catalog. Calls come from one thread, the applier,
/// in log order; they may block on the store, but on nothing that waits for the log.
class StateMachine {
 public:
  virtual ~StateMachine() = default;
  /// Adds the effects of the entries to `batch`: no reads, the same on every member. The engine
  /// adds the applied index and writes the batch, so an entry is applied exactly once whenever the
  /// process dies. Not synced: the entries are, and come before it in the same write-ahead log.
  virtual void Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) = 0;
  /// Whether the entry needs a separate batch because it takes long: earlier entries need not wait
  /// for it. Any thread; must not block.
  virtual bool StandsAlone(const CommittedEntry&) { return false; }
  /// The batch for the Prepare of an entry that stands alone, perhaps with some of it in there
  /// already; null: any.
  virtual std::unique_ptr<KvBatch> BatchFor(const CommittedEntry&) { return nullptr; }
  /// The batch is visible. Brings memory up to date; afterwards `done` of each Proposal runs.
  virtual void Applied(std::span<const CommittedEntry> entries) = 0;
  /// Role, term, leader or readiness changed. On the applier's thread, in order with the entries:
  /// what was applied before the change has been seen before it. When the node stops leading,
  /// pending proposals fail first.
  virtual void StateChanged(const ConsensusState& state) = 0;
  /// A majority has this configuration (or it is the one at open). It takes effect now; its entry
  /// comes to Applied in its turn, which is much later on a member that holds entries back. The
  /// engine's thread; must not block.
  virtual void Configured(const ConsensusConfiguration&) {}
  /// How many milliseconds this entry is still to be held back here (a delayed member); 0: none.
  /// Entries behind it wait too, StateChanged does not. The applier's thread.
  virtual int64_t HoldMillis(const CommittedEntry&) { return 0; }
  /// Whether HoldMillis may be more than 0 at all: then entries that wait stay in the log rather
  /// than in memory. Any thread; must not block.
  virtual bool Holds() { return false; }
  /// Somewhere a member's position, reachability or heartbeat changed: look at Status() again. Any
  /// thread; must not block.
  virtual void Progressed() {}
  /// This node's payload in each heartbeat (opaque, at most 64 KiB). Any thread; must not
  /// block.
  virtual std::string HeartbeatPayload() { return {}; }
  /// Applied entries from this index on are still needed to apply later ones; UINT64_MAX: none are.
  /// Any thread; must not block.
  virtual uint64_t KeepLogFrom() { return UINT64_MAX; }
};

/// Something to be put into the log.
struct Proposal {
  std::string data;
  std::shared_ptr<void>
      context;  ///< comes back in CommittedEntry::context; kept until `done` has run
  /// Exactly once, on the applier's thread after Applied, or on any thread with an error:
  ///   NotWritablePrimary 10107               it does not lead, or not in `term`: nothing was
  ///   written
  ///   PrimarySteppedDown 189                 it stopped leading: the entry may or may not come to
  ///   be applied
  ///   InterruptedAtShutdown 11600            likewise
  ///   BSONObjectTooLarge 10334               larger than kMaxProposalBytes: nothing was written
  std::function<void(Result<LogPosition>)> done;
  uint64_t term = 0;  ///< it may be of this term of the leader only; 0: of any
  /// Where the data comes from if it may still grow: called once, on the engine's thread, as the
  /// entry is made; must not block. False: it is not to be written any more, and `done` is told
  /// that it does not lead. Never called where `done` gets an error before.
  std::function<bool(std::string* data)> seal = nullptr;
};
inline constexpr size_t kMaxProposalBytes = 64 << 20;

/// How far one member is. Times: this node's monotonic clock in microseconds, 0: never.
struct MemberStatus {
  NodeId id = 0;
  std::string address;
  bool self = false;
  bool voter = false;  ///< counts in majorities now (a new voter does not until it has caught up)
  /// Heard of within ConsensusTimings::heartbeat_timeout_ms, and since the connection to it last
  /// failed. Always true of self.
  bool reachable = false;
  int64_t last_heard_us = 0;     ///< last heartbeat received from it
  int64_t last_answered_us = 0;  ///< last heartbeat of ours that it answered
  double ping_ms = 0;            ///< smoothed round trip
  LogPosition durable,
      applied;  ///< by its own word; `durable` of the leader's view is what majorities count
  ConsensusRole role = ConsensusRole::kUninitialised;
  uint64_t term = 0;
  Instant wall_clock;   ///< its clock in its last heartbeat
  int64_t skew_ms = 0;  ///< its clock minus ours, half of the round trip taken off
  uint64_t sync_bytes_done = 0, sync_bytes_total = 0;  ///< initial sync; total 0: none under way
  std::string payload;                                 ///< its StateMachine::HeartbeatPayload
  std::string last_error;                              ///< why it cannot be reached
};

/// The data of replSetGetStatus and the page, at one moment. A copy; nothing in it
/// changes.
struct ConsensusStatus {
  ConsensusState state;
  NodeId self = 0;
  LogPosition first, last, durable, committed, applied;  ///< first..last: what the log holds
  uint64_t log_bytes = 0;
  ConsensusConfiguration configuration;    ///< applied; set_id empty: none
  std::vector<MemberStatus> members;       ///< as the configuration lists them
  std::optional<std::string> sync_source;  ///< during initial sync: whose checkpoint is pulled
};

/// Reads the log in order, for `local.oplog.rs`. Only applied entries show. Sees the log as it was
/// when it was made. One thread at a time.
class LogCursor {
 public:
  virtual ~LogCursor() = default;
  virtual void Seek(uint64_t index) = 0;  ///< first entry >= index
  /// The moves of an iterator. REQUIRES for Next and Prev: Valid(). Once that is false, status()
  /// says whether the log ended or could not be read.
  virtual void SeekToLast() = 0;
  virtual void Next() = 0;
  virtual void Prev() = 0;
  virtual bool Valid() const = 0;
  /// Good until the next move; context is null.
  virtual CommittedEntry entry() const = 0;
  virtual Result<void> status() const = 0;
};

/// Another node's answer before it is a member of any set.
struct NodeInfo {
  NodeId id = 0;
  std::string set_name;   ///< its --replSet; empty: it is not started for a set
  std::string set_id;     ///< of the set it belongs to; empty: none yet
  bool has_data = false;  ///< it has collections of its own
};

/// The start options of an engine. The pointers are not owned. Sizes are bytes.
struct ConsensusOptions {
  KvStore* kv = nullptr;            ///< outlives the engine
  KvEnginePtr store;                ///< what kind it is: opens copies of it
  Clock* clock = nullptr;           ///< outlives the engine; ticks by its monotonic time
  StateMachine* machine = nullptr;  ///< outlives the engine
  std::string set_name;             ///< --replSet
  std::string key;  ///< the first key of the key file, white space taken out; empty: there is none
  std::vector<std::string> more_keys;  ///< the others: members need one in common
  /// Nodes without a key file are accepted too, while a running set gets one (transitionToAuth).
  bool keyless_members = false;
  std::string data_directory;  ///< initial sync puts files beside the store's
  int tick_ms = 50;            ///< until SetTimings says how long an election timeout is
  int heartbeat_ticks = 2,
      election_ticks = 20;  ///< timeouts are drawn between election_ticks and a quarter more
  uint64_t log_max_bytes =
      0;  ///< --oplogSizeMB; 0: 990 MiB or 5% of the disk, whichever is more, 50 GB at most
  double log_min_hours = 0;  ///< --oplogMinRetentionHours: kept longer than the size allows
  /// The data was changed without the log, so the log no longer describes the data. It starts again
  /// behind the applied position, and every new member gets a copy.
  bool history_lost = false;
  /// Whether to talk to members of an earlier version, whose handshake lets strangers guess the key
  /// (member_link.h); null: no. Any thread.
  std::function<bool()> old_handshake;
  Tls* tls = nullptr;  ///< outlives the engine; null: members are dialled without TLS
  /// After this silence, a copy tries again on a new connection, and a donor without requests ends
  /// its side.
  int copy_silence_ms = 15'000;
  /// Whether this directory has collections of its own; asked when another node wants to know. Any
  /// thread.
  std::function<bool()> has_data;
  /// The engine cannot go on (disk error on the log, a panic): log it and end the process, at once,
  /// without tidying up. Default: a line on stderr and abort(). Does not return.
  std::function<void(std::string_view why)> fatal;
  /// A whole copy of the data waits in the data directory; the process has to start again to use
  /// it: close the server in order and exec yourself (ApplyPendingResync runs before
  /// Storage::Open). Own thread.
  std::function<void()> restart;
  std::function<void(char severity, std::string_view message, std::string_view attributes_bson)>
      log;
};

/// The consensus engine of one node. Threads: any, unless said otherwise. No call waits for another
/// member except where it says so.
class Consensus {
 public:
  virtual ~Consensus() = default;  ///< Stop
  /// Ends the threads; pending proposals fail with InterruptedAtShutdown. The state machine is
  /// still called meanwhile and may ask for Status; afterwards it is not. Harmless when repeated.
  virtual void Stop() = 0;

  /// Starts the threads: what is committed and not yet applied is applied, then StateChanged comes.
  /// Call once, when the machine is ready.
  virtual Result<void> Start() = 0;

  /// The id of this data directory: random, drawn when it is first opened, then kept.
  virtual NodeId self() const = 0;
  /// False until Initiate here or at a member that took this node in.
  virtual bool initialised() const = 0;
  virtual ConsensusState state() const = 0;
  virtual ConsensusStatus Status() const = 0;

  /// Makes a set of this node alone, which leads it; `configuration` must contain it; its other
  /// members are added at once, as by Reconfigure. `data_is_empty`: nothing was ever stored here,
  /// so members can be built from the log alone; otherwise they get a copy first. Done when the
  /// configuration is applied. Errors: AlreadyInitialized 23; ConfigurationInProgress 109: another
  /// set has claimed this node.
  virtual void Initiate(ConsensusConfiguration configuration, bool data_is_empty,
                        std::function<void(Result<LogPosition>)> done) = 0;
  /// Leader only. New nodes join as learners, and the leader promotes them when they have caught
  /// up; omitted ones are removed; payload, priorities and addresses may change freely. Done when
  /// applied here. Errors: as Proposal; ConfigurationInProgress 109 while another change is on its
  /// way.
  virtual void Reconfigure(ConsensusConfiguration configuration,
                           std::function<void(Result<LogPosition>)> done) = 0;
  /// Without a majority (replSetReconfig force): this node takes the configuration as it is and
  /// tries to lead it. What the lost members had acknowledged may be lost; two sides that both
  /// force diverge. Done when it leads, or fails.
  virtual void ForceReconfigure(ConsensusConfiguration configuration,
                                std::function<void(Result<LogPosition>)> done) = 0;

  /// Puts it in the queue of the engine's thread, which does not block the caller. Proposals of one
  /// thread enter the log in their order. Only `proposal.done` gets the result.
  virtual void Propose(Proposal proposal) = 0;

  /// Confirms with a majority that this node still leads; then everything acknowledged before the
  /// call is at or before `index`, which is applied when done runs. Errors: NotWritablePrimary
  /// 10107, PrimarySteppedDown 189.
  virtual void ReadIndex(std::function<void(Result<uint64_t> index)> done) = 0;
  /// When `index` is applied here (at once if it is).
  virtual void WhenApplied(uint64_t index, std::function<void(Result<void>)> done) = 0;

  /// Leader only: makes `to` (0: the best that has caught up) lead within `timeout_ms`. With
  /// `force` the node stops leading even when nobody could follow. Errors: ExceededTimeLimit 262
  /// (nobody caught up), NotWritablePrimary 10107.
  virtual void StepDown(NodeId to, int64_t timeout_ms, bool force,
                        std::function<void(Result<void>)> done) = 0;
  /// Makes this node lead: asks the leader to hand over, or calls an election when there is none.
  /// Done when it leads and is ready. Errors: ExceededTimeLimit 262 when it does not within
  /// `timeout_ms`.
  virtual void StepUp(int64_t timeout_ms, std::function<void(Result<void>)> done) = 0;
  /// Until then (MonotonicMicros) this node does not try to lead: replSetFreeze, replSetStepDown's
  /// period. 0: may again.
  virtual void DoNotCampaignUntil(int64_t monotonic_us) = 0;

  /// Takes effect at once.
  virtual void SetTimings(const ConsensusTimings&) {}
  /// Drops applied entries that retention no longer asks for: by range, never past `keep_from`.
  /// Called by itself; here for tests and replSetResizeOplog. 0 in both: as configured.
  virtual void SetRetention(uint64_t max_bytes, double min_hours) = 0;
  /// The cursor must not outlive the store. Any thread.
  virtual std::unique_ptr<LogCursor> ReadLog() = 0;

  /// Asks the node at `address` who it is; answers within `timeout_ms`, on the transport's thread
  /// or another one; the function must not block. `claim`: the set (12 bytes) that wants the node;
  /// empty: the set of this node, if any. A node without a set reserves itself for some seconds for
  /// the set that has asked, or for the set with the lower id if two ask: when two sets start at
  /// the same moment with the same members, one of them gets all. Errors: HostUnreachable 6,
  /// AuthenticationFailed 18 (another key file), InvalidReplicaSetConfig 93,
  /// ConfigurationInProgress 109 (reserved for another set).
  virtual void Probe(const std::string& address, const std::string& claim, int64_t timeout_ms,
                     std::function<void(Result<NodeInfo>)> done) = 0;
  /// The same of this node, before Initiate. False: another set has asked for it.
  virtual bool Claim(const std::string& set_id) = 0;

  /// The connection of another member, after its internal command asked for the member stream:
  /// takes it over (closes it in the end). A stranger here cannot disturb anybody.
  virtual void AdoptConnection(HandedConnection connection) = 0;
  /// As ReadLog, including entries that are not applied here yet, and may never be.
  virtual std::unique_ptr<LogCursor> ReadWholeLog() = 0;
};

/// The engine. Reads its state from `kv`; an interrupted Initiate has either happened or not.
/// Errors: what the store says; UnsupportedFormat when the log was written by a newer version.
Result<std::unique_ptr<Consensus>> OpenConsensus(ConsensusOptions options);

/// The set whose state the store holds, if any: before a directory is opened without
/// --replSet.
Result<std::optional<ConsensusConfiguration>> ReadStoredConfiguration(KvStore& kv);
/// A directory that leaves its set becomes a standalone one: log and configuration go, data stays.
Result<void> ForgetSet(KvStore& kv);
/// Before Storage::Open: puts a copy that initial sync has completed in place of the data
/// directory's files. Safe to repeat after a crash at any point. True when it did.
Result<bool> ApplyPendingResync(const KvEngine& store, const std::string& data_directory);

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "replication/consensus.h"
#include "replication/open_units.h"
#include "replication/repl_config.h"
#include "replication/replicated_committer.h"

namespace mayfly {

class ReadPoint;  // storage/read/read_view.h

/// As replSetGetStatus numbers them. DO NOT RENUMBER.
enum class MemberState : int32_t {
  kStartup = 0,
  kPrimary = 1,
  kSecondary = 2,
  kRecovering = 3,
  kStartup2 = 5,
  kUnknown = 6,
  kDown = 8,
  kRemoved = 10,
};
std::string_view MemberStateName(
    MemberState state);  ///< "PRIMARY", "(not reachable/healthy)" for kDown

/// A place in the oplog as MongoDB has it: timestamp and term; with the primary's clock when it was
/// written.
struct OpTime {
  uint64_t ts = 0;
  int64_t term = -1;
  int64_t wall_millis = 0;
};

/// The set's data for hello. Immutable.
struct Topology {
  int64_t counter = 0;  ///< topologyVersion.counter: goes up with every change
  MemberState state = MemberState::kStartup;
  std::shared_ptr<const ReplConfig> config;  ///< null: not initiated
  int self = -1;                             ///< index in config->members; -1: not in it
  std::string primary;                       ///< host:port; empty: none known
  uint64_t term = 0;
};
using TopologyPtr = std::shared_ptr<const Topology>;

/// Events to wait for. CollectionNotifier knows them as collections; the numbers are above all real
/// collection ids.
enum class ReplEvent : uint32_t {
  kTopology = 0xFFFF'FF00,  ///< hello has something new to say
  kApplied = 0xFFFF'FF01,   ///< the log moved here
  kProgress = 0xFFFF'FF02,  ///< another member moved
};
/// A member says in its heartbeats which version of entries of the log it reads at most. From this
/// one on it also reads rows of sessions that have their place (storage/write/session_row.h).
inline constexpr int32_t kReadsPlacedRows = 7;
/// `local.oplog.rs` as a collection: its id in the catalog, which no real one has.
inline constexpr uint32_t kOplogCollectionId = 0xFFFF'FFF0;

/// The parsed value of `w` and what goes with it.
struct WriteConcernTarget {
  bool majority = false;
  int64_t w = 1;
  std::string mode;  ///< settings.getLastErrorModes
  bool journal = false;
};

/// The clock of operations on a member of a set. On a secondary it is the time of the newest
/// applied record, so that a secondary hides exactly what is due by the primary's clock. On a
/// primary it is the member's own clock, but never earlier than the newest applied record or its
/// own last reading: a document that was hidden once is not shown again, neither by this member nor
/// by the next primary. Threads: any.
class ReplicatedClock final : public Clock {
 public:
  explicit ReplicatedClock(Clock& clock) : clock_(clock) {}
  Instant Now() const override {
    if (follows_.load(std::memory_order_relaxed)) {
      const int64_t applied = floor_.load(std::memory_order_relaxed);
      if (applied != 0) return {applied};
    }
    const int64_t now = RightTime().millis;
    return {keeps_floor_ ? Raise(now) : now};
  }
  int64_t MonotonicMicros() const override { return clock_.MonotonicMicros(); }
  void OnJump(std::function<void()> wake) override { clock_.OnJump(std::move(wake)); }
  void BeforeJump(std::function<void()> about_to) override {
    clock_.BeforeJump(std::move(about_to));
  }
  /// This member's own clock, unless that has gone wrong (`set_right_time`).
  Instant RightTime() const { return right_ ? right_() : clock_.Now(); }

  void Applied(int64_t wall_millis) { Raise(wall_millis); }
  /// The time does not go behind anything that was, or may have been, shown.
  void KeepFloor(int64_t millis) {
    if (keeps_floor_) Raise(millis);
  }
  void set_follows(bool on) { follows_ = on; }
  /// Any thread. Before Start.
  void set_right_time(std::function<Instant()> right) { right_ = std::move(right); }
  /// Off where the clock may be set back by hand (--testClock). Before Start.
  void set_keeps_floor(bool on) { keeps_floor_ = on; }

 private:
  /// The later of the two, which is the floor from now on.
  int64_t Raise(int64_t millis) const {
    int64_t had = floor_.load(std::memory_order_relaxed);
    while (had < millis && !floor_.compare_exchange_weak(had, millis, std::memory_order_relaxed)) {
    }
    return std::max(had, millis);
  }

  Clock& clock_;
  std::function<Instant()> right_;
  mutable std::atomic<int64_t> floor_{0};
  std::atomic<bool> follows_{false};
  bool keeps_floor_ = true;
};

/// The environment of a ReplicaSet; pointers outlive it.
struct ReplicaSetOptions {
  Storage* storage = nullptr;
  Clock* clock = nullptr;
  std::string set_name, key, data_directory;
  std::vector<std::string> more_keys;  ///< ConsensusOptions
  bool keyless_members = false;        ///< ConsensusOptions
  std::string
      self_host;  ///< host:port that others reach this member at, when a configuration does not say
  int port = 0;
  int sync_interval_ms = 100;
  uint64_t log_max_bytes = 0;
  double log_min_hours = 0;
  /// The log is kept from this index on, for an archiver that has yet to read it
  /// (LogArchiver::keep_from). Null: no archiver.
  std::shared_ptr<const std::atomic<uint64_t>> archive_from;
  bool history_lost = false;            ///< ConsensusOptions
  std::function<bool()> old_handshake;  ///< ConsensusOptions
  Tls* tls = nullptr;                   ///< ConsensusOptions
  /// After how many milliseconds an idle primary writes a note, 0: never; null: ten seconds.
  std::function<int64_t()> noop_millis;
  std::function<void(char severity, std::string_view message, BsonView attributes)> log;
  /// Any thread; must not block.
  std::function<void(ReplEvent)> event;
  std::function<void(uint32_t collection)> collection_grew;
  /// Another member changed this setting of the catalog.
  std::function<void(std::string_view name)> setting_changed;
  /// This member is about to take writes: caches from earlier times as primary are out of date.
  /// Must not block.
  std::function<void()> becoming_primary;
  /// This member became primary (on a thread of its own), or ceased to be.
  std::function<void(bool primary)> primary_changed;
  std::function<void(std::string_view why)> fatal;
  std::function<void()> restart;
};

/// This process as a member of a replica set: its state, the set's configuration, what is applied.
/// Between the consensus engine and the commands. Threads: any, unless said otherwise.
class ReplicaSet final : public StateMachine {
 public:
  /// Opens the log of the directory and puts a ReplicatedCommitter into the storage, which must
  /// have been opened with `logged`.
  static Result<std::unique_ptr<ReplicaSet>> Open(ReplicaSetOptions options);
  ~ReplicaSet() override;
  /// Applies what is committed, begins to take part. After the server listens.
  Result<void> Start();
  /// Writes are refused from now on; leadership is handed over when somebody can take it.
  void Stop();

  Consensus& consensus() { return *consensus_; }
  ReplicatedCommitter& committer() { return *committer_; }
  const std::string& set_name() const { return options_.set_name; }
  const std::string& self_host() const { return options_.self_host; }
  /// Once the port is known. Before Start.
  void set_self_host(std::string host) { options_.self_host = std::move(host); }

  /// As hello shows it. Immutable: a change makes a new one. Any thread.
  TopologyPtr topology() const;
  /// A topology version that no hello has returned yet, for an error that reports a new state: a
  /// client ignores an error with a version that it knows already. `announce`: the caller must call
  /// NewTopologyVersion once the client has had time to read the error; false when another caller
  /// will. Any thread.
  int64_t ReserveTopologyVersion(bool* announce);
  /// The same topology under a newer version than ReserveTopologyVersion said: hellos that wait for
  /// a change are answered. Any thread.
  void NewTopologyVersion();
  /// While on, this member as a secondary keeps but does not apply entries from the primary: for
  /// tests of write concerns.
  void StopApplying(bool on) { stopped_ = on; }
  bool writable() const { return committer_->writable(); }
  /// Whether rows of sessions may be written that have room for their place in the log: all members
  /// read them, as far as is known. Costs an atomic load. Any thread.
  bool PlacesSessionRows() const { return read_by_all_.load() >= kReadsPlacedRows; }
  /// Likewise transactions: a member that does not know them would stop at the first one, and with
  /// it a set that has no majority without such members.
  bool LogsTransactions() const { return read_by_all_.load() >= kLogEntryWithTransaction; }
  bool readable() const { return readable_.load(std::memory_order_relaxed); }

  /// The newest record applied here: reads see up to it, and it can never be rolled back (only
  /// entries of a majority are applied).
  OpTime last_applied() const;
  /// The operationTime in the reply of a read: the newest applied record. On the primary, which
  /// hides documents by its clock, it is also later than the deadline of everything that reads have
  /// hidden (a no-op moves the log there), so that no other member shows a hidden document to the
  /// same session.
  uint64_t OperationTime();
  uint64_t applied_ts() const { return applied_ts_.load(std::memory_order_acquire); }
  /// A point in time of what is applied here. Its time and its clock are those of the newest record
  /// in it, so that each member shows the same at this time. Errors: as KvStore::Get.
  Result<std::shared_ptr<ReadPoint>> TakeReadPoint();
  uint64_t applied_index() const { return applied_index_.load(std::memory_order_acquire); }
  /// Changes from other members. Any thread.
  const LogApplier::Counts& applied_counts() const { return applier_.counts(); }
  /// The clock for an operation's `now`.
  ReplicatedClock& clock() { return clock_; }
  /// The source of time when the clock is wrong (ClockGuard::RightTime): for this member as
  /// primary, and for the time it sends to others. Before Start.
  void set_right_time(std::function<Instant()> right);
  uint64_t cluster_time() const { return std::max(committer_->last_ts(), applied_ts()); }
  /// The newest time that this member or, by their heartbeats, others are known to have issued.
  uint64_t known_time() const;

  // --- commands; blocking ------------------------------------------------------------------------
  /// `config` empty: a set of this member alone. Errors: 23, 93, 74.
  Result<void> Initiate(std::optional<BsonView> config);
  Result<void> Reconfigure(BsonView config, bool force);
  Result<void> StepDown(int64_t seconds, int64_t catch_up_millis, bool force);
  /// An entry of the log that changes nothing: `o` in the oplog. Errors: NotWritablePrimary 10107
  /// and the log's.
  Result<void> AppendNote(BsonView o);
  /// This member becomes primary. Errors: CommandFailed 125 when it may not, or does not within a
  /// few seconds.
  Result<void> StepUp();
  Result<std::string> Freeze(int64_t seconds);  ///< the reply's info
  Result<void> SetMaintenance(bool on);
  /// replSetResizeOplog; what is not given stays. The size is kept over a restart, unless an option
  /// names another one then; the hours are not (manual: replSetResizeOplog). Errors: the store's.
  Result<void> SetRetention(Operation& op, std::optional<uint64_t> bytes,
                            std::optional<double> hours);
  uint64_t log_max_bytes() const;
  double log_min_hours() const;

  /// Whether enough members have everything up to `index`.
  bool Satisfied(const WriteConcernTarget& target, uint64_t index) const;
  /// Errors: UnknownReplWriteConcern 79 (no such mode), UnsatisfiableWriteConcern 100 (more than
  /// there are).
  Result<void> CheckTarget(const WriteConcernTarget& target) const;

  /// 12 bytes: 7fffffff, then the term: greater for every later primary.
  static std::string ElectionId(uint64_t term);
  /// How this member became primary, for replSetGetStatus.
  struct Election {
    int64_t at_millis = 0;
    uint64_t term = 0;
    std::string reason;
  };
  /// None when it has not been primary since the process started.
  std::optional<Election> last_election() const;
  int64_t last_stepped_down_millis() const { return stepped_down_millis_; }

  // --- StateMachine: the engine's threads --------------------------------------------------------
  void Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) override;
  void Applied(std::span<const CommittedEntry> entries) override;
  void StateChanged(const ConsensusState& state) override;
  void Configured(const ConsensusConfiguration& configuration) override;
  int64_t HoldMillis(const CommittedEntry& entry) override;
  /// The end of a large unit does.
  bool StandsAlone(const CommittedEntry& entry) override;
  std::unique_ptr<KvBatch> BatchFor(const CommittedEntry& entry) override;
  uint64_t KeepLogFrom() override {
    const uint64_t open = open_units_.first_index();
    if (!options_.archive_from) return open;
    return std::min(open, options_.archive_from->load(std::memory_order_acquire));
  }
  bool Holds() override { return delay_secs_.load(std::memory_order_relaxed) > 0 || stopped_; }
  void Progressed() override;
  std::string HeartbeatPayload() override;

  /// The latest version of entries of the log (storage/write/log_format.h) that every member reads,
  /// as far as is known. Any thread.
  int ReadByAll() const;
  /// Likewise, of these: by what their heartbeats say.
  static int ReadBy(std::span<const MemberStatus> members);

 private:
  explicit ReplicaSet(ReplicaSetOptions options);
  /// The newest record that the store has at this point in time (null: now); false: none.
  Result<bool> ReadApplied(const KvSnapshot* at, OpTime* out);
  Result<void> LoadApplied();
  /// Adds the entry to entries_, joined from its chunks if it ends a unit of these.
  Result<void> AddEntry(const CommittedEntry& e);
  /// Takes the configuration into use, unless it is in use already.
  void SetConfig(std::string_view payload);
  /// Makes the topology again; if it differs, the counter goes up and waiters wake.
  void Refresh();
  Result<ConsensusConfiguration> ToConsensus(const ReplConfig& config, std::string_view command);
  /// ToConsensus of a set that begins. When another one begins at the same moment with the same
  /// members, only one of the two gets them.
  Result<ConsensusConfiguration> ClaimMembers(const ReplConfig& config);
  /// The version that is in use now. Errors besides: ConfigurationInProgress 109.
  Result<int64_t> ReconfigureOnce(BsonView config, bool force);
  bool IsSelf(std::string_view host) const;
  /// Puts the configuration where tools look for it: `local.system.replset`, one document, each
  /// member's own.
  Result<void> StoreConfigDocument(const ReplConfig& config);
  /// Called when this member starts to lead: its time never goes behind one the last primary may
  /// have shown.
  void FollowTimeOf(NodeId last_primary);
  /// Logs whose clock is more than a second from this one's, once a member until that has changed.
  /// Looks at what the members read, too.
  void CheckClocks();
  void Log(char severity, std::string_view message,
           const std::function<void(BsonBuilder&)>& fill = {}) const;
  /// Until then (MonotonicMicros) this member does not become primary.
  void StayOut(int64_t until_micros);
  void RunTasks();
  void Post(std::function<void()> task);

  ReplicaSetOptions options_;
  Storage& storage_;
  ReplicatedClock clock_;
  ReplicatedCommitter* committer_ = nullptr;  ///< owned by the storage
  std::unique_ptr<Consensus> consensus_;
  LogApplier applier_;
  std::vector<LogApplier::Entry> entries_;  ///< of the applier's thread

  mutable std::mutex mutex_;
  TopologyPtr topology_;
  ConsensusState state_;
  NodeId last_leader_ = 0;  ///< other than this one
  bool started_ = false;    ///< the engine has told its state once
  std::shared_ptr<const ReplConfig> config_;
  std::string config_payload_;  ///< what config_ was read from
  OpTime applied_;
  /// replSetResizeOplog's size in bytes: be64.
  static constexpr std::string_view kOplogBytesSetting = "local/oplogBytes";
  static void SetOplogBytes(CollectionInfo& oplog, uint64_t bytes);
  CollectionInfoPtr oplog_;
  bool maintenance_ = false;
  std::atomic<int64_t> out_until_micros_{0};  ///< replSetFreeze and the like: MonotonicMicros
  uint64_t log_max_bytes_ = 0;
  double log_min_hours_ = 0;
  const int64_t started_micros_;
  std::optional<Election> election_;
  std::atomic<int64_t> stepped_down_millis_{0};
  std::atomic<uint64_t> applied_ts_{0}, applied_index_{0};
  /// Set before the entries up to it can be seen; applied_ts_ is set behind that. A read may have
  /// met what lies between.
  std::atomic<uint64_t> applying_ts_{0};
  std::atomic<int64_t> applied_wall_{INT64_MIN};  ///< stored behind applied_ts_
  std::atomic<bool> readable_{false}, stopping_{false};

  std::atomic<int64_t> clocks_checked_micros_{0};
  std::map<NodeId, bool> skewed_;  ///< of the tasks' thread

  // Work that must not run on the engine's threads.
  std::mutex tasks_mutex_;
  std::condition_variable tasks_wake_;
  std::vector<std::function<void()>> tasks_;
  bool tasks_stop_ = false;
  std::thread tasks_thread_;

  std::condition_variable applied_wake_;           ///< with mutex_
  std::atomic<int> read_by_all_{kLogEntryLatest};  ///< ReadByAll, as of the latest heartbeats
  std::atomic<int64_t> delay_secs_{0};             ///< of this member, by the newest configuration
  std::atomic<bool> stopped_{false};               ///< StopApplying
  std::atomic<bool> announcing_{false};  ///< somebody has the duty to call NewTopologyVersion

  OpenUnits open_units_;
  /// Units that came in chunks, of the entries at hand: joined again. Of the applier's thread.
  std::deque<std::string> joined_;
  int64_t batch_bytes_ = 0;  ///< of their batch, as it is counted
};

}  // namespace mayfly

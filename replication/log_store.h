#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replication/consensus.h"

// clang-format off
/// Layout of Keyspace::kOplog: the log of a replica set and what its engine must remember. The same grammar is in
/// docs/on-disk-format.md. DO NOT RENUMBER: change kLogFormatVersion instead.
///
///   00 "format"         val := "7"                                    "1", "2", "3": no entry of a higher version (storage/write/log_format.h)
///                                                                     can be in it; "4": up to version 5, "5": up to 6, "6": up to 7, "7": up to 8. Those before "7" are read, and turned into it
///                                                                     at open
///   00 "node"           val := id:le64                                this directory's node id, never 0
///   00 "hard_state"     val := term:le64 vote:le64 commit:le64        what this node promised; synced before it is told
///   00 "trimmed"        val := index:le64 term:le64                   the entry before the first one; absent: 0 0
///   00 "applied"        val := index:le64 term:le64 conf_state        in the batch of the entries' effects
///                       conf_state: protobuf eraftpb.ConfState as of `index`
///   00 "configuration"  val := configuration                          as of "applied"
///   00 "open_units"     val := (origin:le64 sequence:le64 index:le64 term:le64)*   as of "applied": units with chunks and without an
///                                                                     end, and where chunk 0 is; absent: none
///   00 "archived"       val := 1:u8 node:le64 index:le64 term:le64 cut:le64 lost:u8      how far this node has archived the log
///                                                                     (LogArchiver), where a segment ends that may be archived, and
///                                                                     1: the data was changed without the log since; absent: nothing is
///   01 index:be64       val := type:u8 term:le64 size:le32 context:bytes[size] data
///                       type 0: data and context empty: first entry of a leader's term
///                               context not empty: it is a configuration; else data is what was proposed
///                       type 1, 2: protobuf eraftpb.ConfChange, ConfChangeV2; context: empty or a configuration
///   02 index:be64       val := wall:time64 bytes:le64                 a segment begins at this entry; the segment before
///                                                                     it has so many bytes and ended then
///
///   configuration := 1:u8 set_id:bytes[12] members:le16 member* payload
///   member        := id:le64 voter:u8 priority:le64 (bits of a double) size:le16 address:bytes[size]
// clang-format on
namespace mayfly {

inline constexpr std::string_view kLogFormatVersion = "7", kLogFormatFirst = "1";

/// This node's promises (raft): never forgotten, never copied from another node.
struct HardState {
  uint64_t term = 0, vote = 0, commit = 0;
  bool operator==(const HardState&) const = default;
};

/// An entry as the engine has it. Views are good as long as the call.
struct LogEntry {
  enum Type : uint8_t { kNormal = 0, kConfChange = 1, kConfChangeV2 = 2 };
  uint64_t term = 0, index = 0;
  uint8_t type = kNormal;
  std::string_view context, data;
};

/// The bytes of a configuration as the log and the store keep it, version byte first. A set id of
/// another size than 12 is cut or filled with zeros.
std::string EncodeConfiguration(const ConsensusConfiguration& c);
/// False when the bytes are not one.
bool DecodeConfiguration(std::string_view bytes, ConsensusConfiguration* out);

/// The rows above. Writes come from one thread (the engine's); First, Last, Applied and cursors from any.
class LogStore {
 public:
  /// A log of the format before becomes one of this format, so that the version that wrote it does not open it any more.
  /// Errors: UnsupportedFormat 12 for a newer version, InternalError for damage, the store's own.
  static Result<std::unique_ptr<LogStore>> Open(KvStore& kv);

  KvStore& kv() { return kv_; }
  NodeId node() const { return node_; }
  const HardState& hard_state() const { return hard_; }
  LogPosition trimmed() const { return trimmed_; }
  uint64_t first_index() const { return first_.load(std::memory_order_acquire); }
  uint64_t last_index() const { return last_.load(std::memory_order_acquire); }
  /// The last entry that the state machine has. Term and index are those of one entry, whatever the
  /// applier does meanwhile: a copy of the data is handed out under them. Any thread.
  LogPosition applied() const;
  /// As of applied(); only at open, the applier has newer ones afterwards.
  const std::string& stored_conf_state() const { return conf_state_; }
  const std::string& stored_configuration() const { return configuration_; }

  /// Makes the node id of a directory that has none; synced.
  Result<void> MakeNodeId(NodeId id);

  // --- staging; the state here changes at once, so the batch must be written or the process end ---------------------
  /// `entries` follow each other; what is in the log from the first of them on is replaced.
  void StageAppend(KvBatch& batch, std::span<const LogEntry> entries, Instant now);
  void StageHardState(KvBatch& batch, const HardState& hard);
  /// Applier's. Empty conf_state: as it was. Empty configuration: likewise.
  void StageApplied(KvBatch& batch, LogPosition position, std::string_view conf_state,
                    std::string_view configuration);
  /// The batch of StageApplied is visible.
  void Applied(LogPosition position);
  /// Starts the log behind `position` with nothing in it.
  void StageReset(KvBatch& batch, LogPosition position);
  /// Drops the entries from `index` on.
  void StageTruncate(KvBatch& batch, uint64_t index);

  // --- reading ------------------------------------------------------------------------------------------------------
  /// [low, high), stopping behind `max_bytes` but never before the first. `emit` is called for each in order.
  Result<void> Read(uint64_t low, uint64_t high, uint64_t max_bytes,
                    const std::function<void(const LogEntry&)>& emit);
  /// The term of an entry in [trimmed, last]. Errors: NoSuchKey when it is not there.
  Result<uint64_t> Term(uint64_t index);
  /// Reads the applied entries; `all`: also those not yet applied.
  std::unique_ptr<LogCursor> Cursor(bool all = false);

  // --- retention ----------------------------------------------------------------------------------------------------
  /// Where the log could begin when it is to hold at most `max_bytes`, never younger than `min_age_ms`, nothing behind
  /// `keep_from`; 0: leave it. Engine's thread; looks at memory only.
  uint64_t TrimPoint(uint64_t max_bytes, int64_t min_age_ms, uint64_t keep_from, Instant now) const;
  /// Drops what is before `first` (one range). REQUIRES: first - 1 is applied; its term is `term`.
  void StageTrim(KvBatch& batch, uint64_t first, uint64_t term);
  void set_segment_bytes(uint64_t n) { segment_bytes_ = n; }  ///< for tests
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  explicit LogStore(KvStore& kv) : kv_(kv) {}
  Result<void> Load();

  struct Segment {
    uint64_t first = 0, bytes = 0;  ///< bytes: grows while it is the last one
    Instant ended;
  };

  KvStore& kv_;
  NodeId node_ = 0;
  HardState hard_;
  LogPosition trimmed_;
  std::string conf_state_, configuration_;
  std::atomic<uint64_t> first_{1}, last_{0}, bytes_{0};
  mutable std::mutex applied_mutex_;
  LogPosition applied_;  ///< guarded by applied_mutex_
  std::vector<Segment> segments_;
  uint64_t segment_bytes_ = 8 << 20;
  std::string key_, head_;
};

/// The row "open_units" (replication/open_units.h).
Result<std::string> ReadOpenUnits(KvStore& kv);
void StageOpenUnits(KvBatch& batch, std::string_view row);

/// The row "archived": how far a member has archived its log.
struct ArchivedRow {
  NodeId node = 0;       ///< whose it is: a copy of another member's data has that one's
  LogPosition position;  ///< the last entry in a segment that is archived for certain
  uint64_t cut = 0;      ///< the last entry of the segment that may be; 0: there is none
  /// The data was changed without the log behind `position` (ConsensusOptions::history_lost).
  bool history_lost = false;
};
/// None: there is no row. Errors: InternalError 1 (damaged), the store's.
Result<std::optional<ArchivedRow>> ReadArchived(KvStore& kv);
void StageArchived(KvBatch& batch, const ArchivedRow& row);

/// Splits the value of a 01 row. False: damaged.
bool DecodeLogEntry(std::string_view value, LogEntry* out);
CommittedEntry ToCommitted(const LogEntry& e);

}  // namespace mayfly

#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "replication/consensus.h"
#include "replication/log_segment.h"
#include "replication/log_store.h"

namespace mayfly {

/// Settings that may change while an archiver runs. Threads: any.
struct LogArchiveLimits {
  std::atomic<int64_t> segment_mb{16};    ///< a segment ends at this size in MiB,
  std::atomic<int64_t> segment_secs{60};  ///< or is so old, and has an entry
  /// The log is not trimmed before it is archived until it has this many MiB; 0: twice the size
  /// that it is to have.
  std::atomic<int64_t> max_wait_mb{0};
  /// Or until its oldest entry that is not archived is this many hours old; 0: no such bound.
  std::atomic<double> max_wait_hours{0};
  std::atomic<int64_t> command_secs{300};  ///< a command that takes longer is ended
};

/// The inputs of an archiver; pointers outlive it.
struct LogArchiverOptions {
  std::string folder;
  std::vector<std::string> command;  ///< run for each segment (RunArchiveCommand); empty: none
  FileCiphersPtr ciphers;            ///< null: segments are plain
  /// The keystore of the ciphers: a copy of it, which only the master key opens, goes with the
  /// segments. Empty: there is none.
  std::string keystore;
  Clock* clock = nullptr;
  KvStore* kv = nullptr;
  Consensus* consensus = nullptr;
  const LogArchiveLimits* limits = nullptr;
  std::function<uint64_t()> log_max_bytes;  ///< the size that the log is to have
  /// Where LogArchiver says from where on the log is needed.
  std::shared_ptr<std::atomic<uint64_t>> keep_from;
  /// `error`: empty: none. Any thread of the archiver's.
  std::function<void(char severity, int32_t id, std::string_view message, std::string_view error)>
      log;
  /// After each round of its thread: Status() may say something else by now. Null: nobody waits.
  std::function<void()> looked;
};

/// The name of the copy of a member's keystore in the folder.
std::string ArchiveKeystoreName(NodeId node);
inline constexpr std::string_view kArchiveKeystoreSuffix = ".keystore";

/// The state of the archive of this member's log.
struct LogArchiveStatus {
  /// kStarting: it has not looked at the folder yet. kGivenUp: the log has grown beyond the bound,
  /// and is trimmed though it is not archived, or was and is not archived again yet.
  enum class State : uint8_t { kStarting, kRunning, kFailing, kGivenUp };
  State state = State::kStarting;
  std::string folder;
  LogPosition archived;             ///< the last entry in a segment that is archived for certain
  uint64_t archived_ts = 0;         ///< of the last record that is; 0: not known
  uint64_t waiting_entries = 0;     ///< applied and not archived
  int64_t waiting_millis = 0;       ///< since when the oldest of them waits
  int64_t segments = 0, bytes = 0;  ///< archived since the start
  int64_t failures = 0;             ///< attempts that failed since the start
  std::string error;                ///< of the last attempt; empty: it succeeded
  int64_t gaps = 0;                 ///< in the archive, since the start
  uint64_t gap_entries = 0;         ///< how many entries are missing there
  /// Trimmed without being archived: a gap once archiving resumes.
  uint64_t lost_entries = 0;
};
/// As serverStatus has it.
std::string_view LogArchiveStateName(LogArchiveStatus::State state);

/// Archives the applied part of this member's log in a folder: in segments, in order, each entry
/// once, even if the process dies. A segment is written under a temporary name, synced, renamed,
/// given to the command, and then counts as archived, which a row of the store keeps (ArchivedRow).
/// One archiver uses a folder at a time. Another member's may go on where the last segment ends.
/// Threads: one of its own; the public functions any.
class LogArchiver {
 public:
  explicit LogArchiver(LogArchiverOptions options);
  ~LogArchiver();  ///< Stop
  void Start();
  /// Ends a command that runs. Without one, what is applied is archived first, if that takes some
  /// seconds at most; what is not is archived after the next start.
  void Stop();
  LogArchiveStatus Status() const;

 private:
  void Run();
  /// An exception in `work` counts as a failed attempt.
  template <class F>
  void Guarded(F&& work) noexcept;
  /// Until the next round; false: it is to stop. `more`: at once.
  bool Wait(bool more);
  /// Holds the log and does a step, if one is due; false: the server is shutting down.
  bool Round(bool* more);
  /// One round: whether there may be more to do at once. Errors: it is to be tried again later.
  Result<bool> Step();
  Result<void> Begin();
  Result<void> ReadRow();
  Result<void> LockFolder();
  Result<void> PutKeystore(NodeId self);
  /// The segments of this set in the folder say where it ends.
  Result<void> FindEnd();
  Result<void> OpenSegment(uint64_t first);
  /// Copies entries into the segment at hand. True: it is to be finished.
  Result<bool> Copy();
  Result<void> FinishSegment();
  /// At the end: a member that was stopped leaves nothing out.
  Result<void> ArchiveRest();
  /// Gives it to the command, if there is one; from then on it is archived.
  Result<void> Ship();
  Result<void> PutRow(uint64_t cut);
  void TellOfGap(uint64_t behind);
  void Hold();  ///< says from where on the log is needed
  int64_t WaitedMillis();
  void Told(const Result<bool>& step);
  Result<void> SyncFolder();
  bool Stopping() const { return stop_.load(std::memory_order_relaxed); }
  void Log(char severity, int32_t id, std::string_view message, std::string_view error = {}) {
    if (o_.log) o_.log(severity, id, message, error);
  }
  std::string Path(std::string_view name) const { return o_.folder + "/" + std::string(name); }

  const LogArchiverOptions o_;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stop_{false};
  LogArchiveStatus status_;  ///< guarded by mutex_

  // The thread's alone.
  NodeId self_ = 0;
  std::string set_id_;
  int lock_ = -1;
  bool begun_ = false, keystore_there_ = false;
  LogPosition archived_;       ///< index 0: nothing is
  bool known_ = false;         ///< archived_ is of the segment before the next one
  bool history_lost_ = false;  ///< ArchivedRow
  uint64_t cut_ = 0;           ///< where the segment at hand must end; 0: anywhere
  std::string to_ship_;        ///< a finished segment that is not archived for certain
  bool commanded_ = false;     ///< the command has taken it
  LogPosition to_ship_end_;
  uint64_t to_ship_ts_ = 0, to_ship_bytes_ = 0;
  std::unique_ptr<SegmentWriter> writer_;
  int64_t writer_since_us_ = 0;
  bool copied_all_ = true;    ///< of what is applied
  bool gap_ = false;          ///< before the segment at hand
  uint64_t gap_entries_ = 0;  ///< of it
  int64_t oldest_wall_ = 0;   ///< the time of the oldest entry that is not archived; 0: not known
  int64_t started_us_ = 0;
  bool given_up_ = false;
  int64_t backoff_ms_ = 0, attempts_failed_ = 0;
  uint64_t failed_at_ = 0;  ///< what was archived when an attempt failed last
  std::string told_;        ///< the error that the log has a line for
};

}  // namespace mayfly

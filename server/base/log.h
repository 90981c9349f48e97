#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "storage/clock.h"

namespace mayfly {

/// Severities from the gravest down; the log's "s" shows them as F, E, W, I and D1 … D5.
enum class LogSeverity : uint8_t {
  kFatal,
  kError,
  kWarning,
  kInfo,
  kDebug1,
  kDebug2,
  kDebug3,
  kDebug4,
  kDebug5
};

/// From the letter that lower layers use: E, W, I or D.
LogSeverity LogSeverityOf(char letter);

/// MongoDB's components, as the log's "c" shows them.
enum class LogComponent : uint8_t {
  kDefault,
  kAccess,
  kCommand,
  kControl,
  kElection,
  kFtdc,
  kGeo,
  kIndex,
  kInitSync,
  kJournal,
  kNetwork,
  kQuery,
  kRecovery,
  kRepl,
  kReplHb,
  kSharding,
  kStorage,
  kTxn,
  kWrite,
  kWtCheckpoint,
  kCount
};
std::string_view LogComponentName(LogComponent c);  ///< "NETWORK"; "-" for kDefault
std::string_view LogComponentConfigName(
    LogComponent c);  ///< "network", the key of systemLog.component and logComponentVerbosity
/// "INDEX" or "index" -> kIndex; kDefault if there is none.
LogComponent LogComponentByName(std::string_view name);

/// How times are written in the log: with the machine's offset from UTC, or in UTC.
enum class TimestampFormat : uint8_t { kIso8601Local, kIso8601Utc };

/// Where and how the log is written; fixed at start, but for the verbosities.
struct LogOptions {
  std::string path;              ///< empty: standard output
  bool append = false;           ///< else an existing file is renamed away at start
  bool json = true;              ///< false: readable text (standard output is a terminal)
  bool rename_on_rotate = true;  ///< false: reopen (an outside program renames)
  TimestampFormat timestamps = TimestampFormat::kIso8601Local;
  int verbosity = 0;   ///< 0 … 5
  bool quiet = false;  ///< fewer lines about connections
  std::vector<std::pair<LogComponent, int>> component_verbosity;
};

/// The server's log: one line per event,
/// `{"t":{"$date":…},"s":"I","c":"NETWORK","id":22943,"ctx":"listener","msg":…,"attr":{…}}`, kept
/// in a ring for getLog too. Ids are MongoDB's where the event is one MongoDB has; ours start at
/// 9000000. Threads: any. Lines are written whole.
class Log {
 public:
  /// Errors: FileNotOpen 38 when the file cannot be opened.
  static Result<std::unique_ptr<Log>> Open(const LogOptions& options, const Clock& clock);
  ~Log();

  /// True when a line of this severity would be written: check it before building costly
  /// attributes.
  bool Enabled(LogSeverity s, LogComponent c) const {
    return s <= LogSeverity::kInfo ||
           static_cast<int>(s) - static_cast<int>(LogSeverity::kInfo) <=
               effective_[static_cast<size_t>(c)].load(std::memory_order_relaxed);
  }
  /// `ctx`: the line's author; empty: this thread's name (SetThreadContext).
  void Write(LogSeverity s, LogComponent c, int id, std::string_view msg, BsonView attr = {},
             std::string_view ctx = {});
  void Info(LogComponent c, int id, std::string_view msg, BsonView attr = {}) {
    Write(LogSeverity::kInfo, c, id, msg, attr);
  }
  void Warn(LogComponent c, int id, std::string_view msg, BsonView attr = {}) {
    Write(LogSeverity::kWarning, c, id, msg, attr);
  }
  void Error(LogComponent c, int id, std::string_view msg, BsonView attr = {}) {
    Write(LogSeverity::kError, c, id, msg, attr);
  }
  /// Only when verbosity asks for it: `fill` builds the attributes.
  template <class F>
  void Debug(int level, LogComponent c, int id, std::string_view msg, F&& fill) {
    auto s = static_cast<LogSeverity>(static_cast<int>(LogSeverity::kInfo) + level);
    if (Enabled(s, c)) Write(s, c, id, msg, BuildBson(fill));
  }

  /// The `ctx` of what this thread logs from now on, in every Log, and its name for the system
  /// (top, /proc; its first 15 bytes).
  static void SetThreadContext(std::string name);

  /// Closes the file and opens a new one (the old is renamed with a timestamp, unless configured to
  /// reopen).
  Result<void> Rotate();
  std::vector<std::string> RecentLines(
      size_t* total) const;  ///< getLog global: JSON lines, oldest first
  std::vector<std::string> StartupWarnings() const;
  void AddStartupWarning(LogComponent c, int id, std::string_view msg);

  /// -1 for a component: inherit the default.
  void SetVerbosity(LogComponent c, int level);
  int verbosity(LogComponent c) const;  ///< as set (-1: inherits)
  bool quiet() const { return quiet_.load(std::memory_order_relaxed); }
  void set_quiet(bool on) { quiet_ = on; }
  int64_t counts(LogSeverity s) const {
    return counts_[static_cast<size_t>(s)].load(std::memory_order_relaxed);
  }
  /// Passes buffered lines to the operating system; does not sync them to the disk.
  void Flush();

 private:
  struct Sink;
  Log(const LogOptions& options, const Clock& clock);

  LogOptions options_;
  const Clock& clock_;
  std::unique_ptr<Sink> sink_;
  std::array<std::atomic<int>, static_cast<size_t>(LogComponent::kCount)> effective_, set_;
  std::atomic<bool> quiet_{false};
  std::array<std::atomic<int64_t>, 9> counts_{};
  mutable std::mutex ring_mutex_;
  std::deque<std::string> ring_;  // the last kRingLines lines, JSON
  size_t ring_total_ = 0;
  std::vector<std::string> startup_warnings_;
};

/// One line, without the newline. `attr` longer than 10 kB is cut, as MongoDB does, with
/// "truncated" saying so.
std::string FormatLogJson(Instant t, TimestampFormat format, LogSeverity s, LogComponent c, int id,
                          std::string_view ctx, std::string_view msg, BsonView attr);
std::string FormatLogText(Instant t, TimestampFormat format, LogSeverity s, LogComponent c, int id,
                          std::string_view ctx, std::string_view msg, BsonView attr);
/// Inside a catch block: what the exception says.
std::string CurrentExceptionText();
/// Inside a catch block: an error line for an exception that belongs to no command. `where`: the
/// thread or job.
void LogException(Log& log, std::string_view where);
/// Renames a log file to "mayfly.log.2024-05-01T12-00-00", as mongod names them. An empty or absent
/// one stays, and so does what is not a file: a device, a pipe. Errors: FileRenameFailed 37.
Result<void> RenameLogAway(const std::string& path, Instant now);
/// "2024-05-01T12:00:00.000+00:00"
std::string FormatTimestamp(Instant t, TimestampFormat format);

}  // namespace mayfly

#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "storage/clock.h"

namespace mayfly {

struct CommandContext;
class ServerContext;

/// The audit log: who changed what expires, from where, when, with the old and the new value. One
/// JSON line an event, in the shape of MongoDB's audit messages (manual "System Event Audit
/// Messages"):
///
///   {"atype": "collMod", "ts": {"$date": …}, "local": {"ip", "port"}, "remote": {"ip", "port"},
///    "users": [], "roles": [], "param": {"ns": …, "index": …, "old": …, "new": …}, "result": 0}
///
/// A line is handed to the operating system before the command is answered. Events are written
/// after the change has succeeded. Lines that cannot be written (a full disk) wait in memory and go
/// first at the next try; beyond kMostWaiting bytes new ones are lost. Both are reported and
/// counted, and with auditFailClosed commands that would be audited are refused meanwhile
/// (CheckAudit). Threads: any. Owned by main.
class AuditLog {
 public:
  /// Opens (appends to) the file; its folder is made when it does not exist. An empty path: nothing
  /// is written. Errors: FileNotOpen 38.
  static Result<std::unique_ptr<AuditLog>> Open(const std::string& path, bool rename_on_rotate,
                                                const Clock& clock);
  ~AuditLog();
  bool enabled() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }

  /// `ctx`: the command that does it; null: the server itself. `param`: fields of the event.
  void Write(const CommandContext* ctx, std::string_view atype,
             const std::function<void(BsonBuilder& param)>& param);
  /// logRotate: the file is renamed with a timestamp (or expected to have been) and a new one
  /// begun.
  Result<void> Rotate();
  static constexpr size_t kMostWaiting = 1 << 20;
  struct State {
    int64_t waiting = 0;  ///< lines that could not be written yet
    int64_t lost = 0;     ///< lines given up, since start-up
    std::string error;    ///< why the last try failed; empty: it did not
  };
  /// Tries to write what waits, and tells.
  State Check();
  /// Called (under the log's lock; must not use it) when writing begins to fail, for each line that
  /// is lost, and when it works again (no error).
  using Problem = std::function<void(const State&)>;
  void set_problem(Problem f) { problem_ = std::move(f); }

 private:
  AuditLog(std::string path, bool rename, const Clock& clock)
      : path_(std::move(path)), rename_on_rotate_(rename), clock_(clock) {}
  Result<void> OpenFile();
  void Flush();

  const std::string path_;
  const bool rename_on_rotate_;
  const Clock& clock_;
  std::mutex mutex_;
  int fd_ = -1;
  std::string pending_;  ///< lines, the first of them perhaps written in part
  State state_;
  Problem problem_;
};

/// Whether a command that changes what expires may run: not while the audit log cannot be written
/// and the parameter auditFailClosed is set. Errors: OperationFailed 96.
Result<void> CheckAudit(ServerContext& server, std::string_view command);

/// Writes to the server's audit log, if it has one.
void Audit(CommandContext& ctx, std::string_view atype,
           const std::function<void(BsonBuilder& param)>& param);

}  // namespace mayfly

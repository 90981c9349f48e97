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

/// The audit log: who changed what expires, from where, when, with the old and the new value. One
/// JSON line an event, in the shape of MongoDB's audit messages (manual "System Event Audit
/// Messages"):
///
///   {"atype": "collMod", "ts": {"$date": …}, "local": {"ip", "port"}, "remote": {"ip", "port"},
///    "users": [], "roles": [], "param": {"ns": …, "index": …, "old": …, "new": …}, "result": 0}
///
/// A line is handed to the operating system whole, before the command is answered. Events are
/// written after the change has succeeded. Threads: any. Owned by main.
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
  /// logRotate: the file is renamed with a timestamp (or expected to have been) and a new one begun.
  Result<void> Rotate();
  /// Lines that could not be written (a full disk), since start-up.
  int64_t lost() const { return lost_; }

 private:
  AuditLog(std::string path, bool rename, const Clock& clock)
      : path_(std::move(path)), rename_on_rotate_(rename), clock_(clock) {}
  Result<void> OpenFile();

  const std::string path_;
  const bool rename_on_rotate_;
  const Clock& clock_;
  std::mutex mutex_;
  int fd_ = -1;
  int64_t lost_ = 0;
};

/// Writes to the server's audit log, if it has one.
void Audit(CommandContext& ctx, std::string_view atype,
           const std::function<void(BsonBuilder& param)>& param);

}  // namespace mayfly

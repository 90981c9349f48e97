#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "security/failed_logins.h"
#include "security/names.h"
#include "server/dispatch/audit_options.h"
#include "server/dispatch/refused_commands.h"
#include "storage/clock.h"

namespace mayfly {

class AuditSink;
class MatchExpression;
struct CommandContext;
struct UserAccess;
class ServerContext;

/// The client and user of an entry; empty members are omitted. Views live as long as the call.
struct AuditActor {
  std::string_view connection;         ///< "conn12"; empty: the server itself
  std::string_view local, remote;      ///< addresses, "ip:port"
  const UserName* user = nullptr;      ///< null: nobody has logged in
  const UserAccess* access = nullptr;  ///< the user's roles

  /// The actor of a command; null: the server itself.
  static AuditActor Of(const CommandContext* ctx);
};

/// The audit log: changes, logins and refusals, with user, address and time. An entry has the shape
/// of MongoDB's audit messages (manual "System Event Audit Messages"):
///
///   {"atype": "collMod", "ts": {"$date": …}, "uuid": {"$binary": …, "$type": "04"},
///    "local": {"ip", "port"}, "remote": {"ip", "port"},
///    "users": [{"user", "db"}], "roles": [{"role", "db"}],
///    "param": {"ns": …, "index": …, "old": …, "new": …}, "result": 0}
///
/// An entry is passed to the operating system before the command is answered. Events are written
/// after the change has succeeded. Entries that cannot be written (a full disk) wait in memory and
/// go first at the next try; beyond kMaxWaiting bytes new ones are lost. Both are reported and
/// counted, and with auditFailClosed commands that would be audited are refused meanwhile
/// (CheckAudit). Threads: any. Owned by the instance.
class AuditLog {
 public:
  /// One that is not open yet.
  AuditLog(AuditFormat format, const Clock& clock);
  /// Opens (appends to) what `options` name; a file's folder is made when it does not exist.
  /// `path`: of the file. Without a destination nothing is written. Errors: FileNotOpen 38; those
  /// of CompileAuditFilter.
  Result<void> Open(const AuditOptions& options, const std::string& path);
  static Result<std::unique_ptr<AuditLog>> Open(const AuditOptions& options,
                                                const std::string& path, const Clock& clock);
  ~AuditLog();
  /// Writes waiting entries and closes it; no later entry is written.
  void Close();
  bool enabled() const { return sink_ != nullptr; }
  /// For messages: "the audit log /data/audit.json".
  std::string Name() const;

  /// auditAuthorizationSuccess: commands that were allowed are written as well.
  void set_all_checks(bool on);
  bool all_checks() const { return all_checks_.load(std::memory_order_relaxed); }
  /// The parameter auditFailClosed.
  void set_fail_closed(bool on);
  /// One of these two is on, so each command is reported (AuditAllowedCommand).
  bool watches_commands() const { return watches_.load(std::memory_order_relaxed); }

  using Param = std::function<void(BsonBuilder& param)>;
  /// `param`: fields of the event. `result`: its error code; 0 (kOk) for success.
  void Write(const AuditActor& who, std::string_view atype, const Param& param,
             ErrorCode result = ErrorCode::kOk);
  /// `ctx`: the command that does it; null: the server itself.
  void Write(const CommandContext* ctx, std::string_view atype, const Param& param,
             ErrorCode result = ErrorCode::kOk) {
    Write(AuditActor::Of(ctx), atype, param, result);
  }
  /// `authenticate` of a login that failed, or was begun and not ended: anybody may cause as many
  /// as they like. FailedLogins says which have an entry each; the others are counted, and the
  /// next entry of any kind after that minute is preceded by one for each address that says how
  /// many they were (`repeated`).
  void WriteFailedLogin(const AuditActor& who, const Param& param, ErrorCode result);

  /// `authCheck` of a command that was refused. RefusedCommands says which have an entry each,
  /// unless all_checks() asks for all; the others are counted as failed logins are.
  void WriteRefused(const AuditActor& who, const Param& param, ErrorCode result);
  /// The parameter auditRefusedPerMinute: entries of a user from one address; 0: all.
  void set_refused_limit(int64_t entries) { refused_.SetLimit(entries); }

  /// Ignores the filter: for changes of the audit log itself.
  void WriteAlways(const AuditActor& who, std::string_view atype, const Param& param);
  /// Whether a refused command of a client that has not logged in is written: such clients could
  /// otherwise fill the disk. kAnonymousBurst of them, then kAnonymousPerSecond; others are counted
  /// as suppressed.
  bool AdmitAnonymous();
  /// The same for `clientMetadata`, of which each connection has one.
  bool AdmitMetadata();
  static constexpr int64_t kAnonymousBurst = 1000, kAnonymousPerSecond = 10;

  /// logRotate: the file is renamed with a timestamp (or expected to have been) and a new one
  /// begun, with a rotateLog entry. `who`: null: the server itself.
  Result<void> Rotate(const CommandContext* who = nullptr);

  /// The filter as it was given; empty: all entries are written.
  BsonDocument filter() const;
  /// Errors: those of CompileAuditFilter; then the one before stays.
  Result<void> SetFilter(BsonView filter);

  static constexpr size_t kMaxWaiting = 1 << 20;
  struct State {
    int64_t waiting = 0;  ///< entries that could not be written yet
    int64_t lost = 0;     ///< entries given up, since start-up
    int64_t written = 0;  ///< entries handed over, since start-up
    /// Refused commands, connections and failed logins that were too many to have an entry each.
    int64_t suppressed = 0;
    std::string error;  ///< why the last try failed; empty: it did not
  };
  /// Tries to write waiting entries, and reports it. `reserve`: also checks for room for more.
  State Check(bool reserve = false);
  /// Called (under the log's lock; must not use it) when writing begins to fail, for each entry
  /// that is lost, and when it works again (no error).
  using Problem = std::function<void(const State&)>;
  void set_problem(Problem f) { problem_ = std::move(f); }

 private:
  BsonDocument Entry(const AuditActor& who, std::string_view atype, const Param& param,
                     ErrorCode result) const;
  bool Wanted(BsonView entry) const;
  /// The bytes that it takes.
  size_t Add(BsonView entry);
  bool Admit(Allowance& of);
  void WriteRepeated(bool all);
  void WriteRepeatedRefusals(bool all);
  void Lose();
  void Flush();

  const AuditFormat format_;
  const Clock& clock_;
  std::atomic<bool> all_checks_{false}, fail_closed_{false}, watches_{false};
  std::string key_;  ///< the source of a connection's uuid
  std::unique_ptr<AuditSink> sink_;
  std::mutex mutex_;
  std::deque<std::string> pending_;
  size_t pending_bytes_ = 0, first_done_ = 0;  ///< of the first one this much is written
  State state_;
  Problem problem_;
  Allowance anonymous_{kAnonymousBurst, kAnonymousPerSecond};  ///< under mutex_, as the next
  Allowance metadata_{kAnonymousBurst, kAnonymousPerSecond};
  FailedLogins failed_;
  RefusedCommands refused_;
  mutable std::mutex filter_mutex_;
  std::shared_ptr<const MatchExpression> filter_;  ///< null: everything
  BsonDocument filter_source_;
};

/// Whether a command that leaves an entry may run: not while the audit log cannot be written and
/// the parameter auditFailClosed is set. Errors: OperationFailed 96.
Result<void> CheckAudit(ServerContext& server, std::string_view command);
/// The same for what is always audited.
Result<void> CheckAudit(ServerContext& server);

/// "127.0.0.1:5000" or "[::1]:5000" as {ip, port}; a unix socket's path as {unix}.
void AppendAuditAddress(BsonBuilder& out, std::string_view name, std::string_view address);

/// Writes to the server's audit log, if it has one.
void Audit(CommandContext& ctx, std::string_view atype, const AuditLog::Param& param,
           ErrorCode result = ErrorCode::kOk);

}  // namespace mayfly

#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "server/access/access_control.h"
#include "server/base/io_watchdog.h"
#include "server/base/network_buffers.h"
#include "server/base/worker_pool.h"
#include "server/dispatch/backup_figures.h"
#include "server/dispatch/command.h"
#include "server/dispatch/establishment_limiter.h"
#include "server/dispatch/expiry_services.h"
#include "server/dispatch/member_parameters.h"
#include "server/dispatch/operation_registry.h"
#include "server/dispatch/parameters.h"
#include "server/dispatch/profiler.h"

namespace mayfly {

class AuditLog;
class RWConcernDefaults;
class ShortReads;
struct ServerConfig;  // server/dispatch/config.h
class Tls;            // security/tls.h
struct TlsSettings;   // server/dispatch/tls_settings.h

/// All parts of the server: made by main, outlives every connection. The members are safe for any
/// thread; set-up (the setters) happens before the first client. Only administrative code takes the
/// whole; statements take DataServices, commands about expiry ExpiryServices.
class ServerContext : public ExpiryServices {
 public:
  ServerContext(const ServerConfig& config, SystemClock& clock, Log& log);
  ~ServerContext();

  const ServerConfig& config() const { return config_; }
  RWConcernDefaults& rw_defaults() { return *rw_defaults_; }
  /// Null where there is none (tests).
  AuditLog* audit() { return audit_; }
  void set_audit(AuditLog* a) { audit_ = a; }

  /// The budget for large values of all its operations; its threads charge it.
  large_memory::Budget& large_memory() { return large_memory_; }
  NetworkBuffers& network_buffers() { return network_buffers_; }
  IoWatchdog& io_watchdog() { return io_watchdog_; }
  MemberParameters& member_parameters() { return member_parameters_; }
  BackupFigures& backups() { return backups_; }
  WorkerPool& workers() { return workers_; }
  CommandRegistry& commands() { return commands_; }
  ParameterRegistry& parameters() { return parameters_; }
  OperationRegistry& operations() { return operations_; }
  EstablishmentLimiter& establishment() { return establishment_; }
  Profiler& profiler() { return profiler_; }
  AccessControl& access() { return access_; }
  /// Disabled until set_tls.
  Tls& tls() { return *tls_; }
  void set_tls(std::unique_ptr<Tls> tls);
  TlsSettings& tls_settings() { return *tls_settings_; }

  /// Started as a member of a replica set: transaction numbers are allowed.
  bool transaction_numbers() const { return transaction_numbers_; }
  void set_transaction_numbers(bool on) { transaction_numbers_ = on; }
  ShortReads& short_reads() { return *short_reads_; }

  /// Started with --testClock: rows with kTestOnly are there. Fixed for the process.
  bool config_allows_test_commands() const;

  /// Milliseconds since start-up, and when that was.
  int64_t UptimeMillis() { return (clock().MonotonicMicros() - start_micros_) / 1000; }
  const std::string& process_id() const {
    return process_id_;
  }  ///< 12 bytes of an ObjectId: topologyVersion.processId

  /// Asks main to stop the server; safe from any thread, returns at once.
  void RequestShutdown(bool force, int exit_code = 0);
  void set_shutdown_hook(std::function<void(bool force, int exit_code)> f) {
    shutdown_hook_ = std::move(f);
  }
  bool shutting_down() const { return shutting_down_.load(std::memory_order_relaxed); }
  void set_shutting_down() { shutting_down_ = true; }

  /// fsync {lock: 1}: while above 0, commands that write wait or fail (LockBusy), and the TTL
  /// monitor rests.
  std::atomic<int> fsync_locks{0};

  /// This member became primary or ceased to be; on a thread of the replica set's own.
  std::function<void(bool primary)> repl_primary_changed;

  /// Other layers' sections of serverStatus (ttl metrics, replication): appended in order.
  std::vector<std::function<void(BsonBuilder& reply)>> server_status_hooks;
  /// Runs before {clock: …} replies: returns once everything due at the clock's time is gone. May
  /// block (worker).
  std::function<void(Operation& op)> settle_hook;
  /// {clock: {pass: true}}: one pass of the TTL monitor, now; returns when it is over. May block
  /// (worker).
  std::function<void(Operation& op)> ttl_pass_hook;

 private:
  const ServerConfig& config_;
  std::unique_ptr<RWConcernDefaults> rw_defaults_;
  AuditLog* audit_ = nullptr;
  large_memory::Budget large_memory_;
  NetworkBuffers network_buffers_;
  IoWatchdog io_watchdog_;
  MemberParameters member_parameters_;
  BackupFigures backups_;
  WorkerPool workers_;
  CommandRegistry commands_;
  ParameterRegistry parameters_;
  OperationRegistry operations_;
  EstablishmentLimiter establishment_;
  Profiler profiler_;
  AccessControl access_;
  bool transaction_numbers_ = false;
  const std::unique_ptr<ShortReads> short_reads_;
  const std::unique_ptr<TlsSettings> tls_settings_;
  std::unique_ptr<Tls> tls_;
  const int64_t start_micros_;
  std::string process_id_;
  std::function<void(bool, int)> shutdown_hook_;
  std::atomic<bool> shutting_down_{false};
};

}  // namespace mayfly

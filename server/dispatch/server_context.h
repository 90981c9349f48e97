#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "server/base/io_watchdog.h"
#include "server/base/large_turns.h"
#include "server/base/log.h"
#include "server/base/metrics.h"
#include "server/base/network_buffers.h"
#include "server/base/session_registry.h"
#include "server/base/top.h"
#include "server/base/worker_pool.h"
#include "server/dispatch/collection_notifier.h"
#include "server/dispatch/command.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/fail_points.h"
#include "server/dispatch/member_parameters.h"
#include "server/dispatch/operation_registry.h"
#include "server/dispatch/parameters.h"
#include "server/dispatch/profiler.h"
#include "storage/clock.h"

namespace mayfly {

class AuditLog;
class ClusterParameters;
class ReplicaSet;  // replication/replica_set.h
class RWConcernDefaults;
class SnapshotReads;
class ShortReads;
class Storage;
class TtlMonitor;
class TtlControls;
struct TtlRule;
struct TtlRuleFigures;
struct ServerConfig;  // server/dispatch/config.h

/// What the server consists of, for commands: made by main, outlives every connection. The members
/// are safe for any thread; set-up (the setters) happens before the first client.
class ServerContext {
 public:
  ServerContext(const ServerConfig& config, SystemClock& clock, Log& log);
  ~ServerContext();

  const ServerConfig& config() const { return config_; }
  SystemClock& clock() { return clock_; }
  Log& log() { return log_; }
  /// REQUIRES: set_storage was called.
  Storage& storage() { return *storage_; }
  bool has_storage() const { return storage_ != nullptr; }
  void set_storage(Storage* s) { storage_ = s; }

  /// Null on a standalone.
  ReplicaSet* replica_set() { return replica_set_; }
  void set_replica_set(ReplicaSet* set) { replica_set_ = set; }
  RWConcernDefaults& rw_defaults() { return *rw_defaults_; }
  ClusterParameters& cluster_parameters() { return *cluster_parameters_; }
  SnapshotReads& snapshot_reads() { return *snapshot_reads_; }
  /// Null where there is none (tests).
  AuditLog* audit() { return audit_; }
  /// REQUIRES: set_ttl_controls was called.
  TtlControls& ttl_controls() { return *ttl_controls_; }
  void set_audit(AuditLog* a) { audit_ = a; }
  void set_ttl_controls(TtlControls* c) { ttl_controls_ = c; }

  /// What large values of its operations may take together; its threads charge it.
  large_memory::Budget& large_memory() { return large_memory_; }
  NetworkBuffers& network_buffers() { return network_buffers_; }
  MemoryPressure& memory_pressure() { return memory_pressure_; }
  IoWatchdog& io_watchdog() { return io_watchdog_; }
  LargeTurns& large_turns() { return large_turns_; }
  MemberParameters& member_parameters() { return member_parameters_; }
  WorkerPool& workers() { return workers_; }
  CommandRegistry& commands() { return commands_; }
  ParameterRegistry& parameters() { return parameters_; }
  ServerParameters& settings() { return settings_; }
  TtlParameters& ttl_settings() { return ttl_settings_; }
  ServerMetrics& metrics() { return metrics_; }
  OperationRegistry& operations() { return operations_; }
  SessionRegistry& sessions() { return sessions_; }
  CursorManager& cursors() { return cursors_; }
  CollectionNotifier& notifier() { return notifier_; }
  Profiler& profiler() { return profiler_; }
  Top& top() { return top_; }
  FailPoints& fail_points() { return fail_points_; }

  /// A standalone, or a primary.
  bool writable() const;
  /// Started as a member of a replica set: transaction numbers are allowed.
  bool transaction_numbers() const { return transaction_numbers_; }
  void set_transaction_numbers(bool on) { transaction_numbers_ = on; }
  ShortReads& short_reads() { return *short_reads_; }

  bool config_allows_test_commands() const;

  /// Milliseconds since start-up, and when that was.
  int64_t UptimeMillis() const { return (clock_.MonotonicMicros() - start_micros_) / 1000; }
  Instant started() const { return started_; }
  /// "host:port" as hello's `me` and currentOp's `host` show it.
  const std::string& host_and_port() const { return host_and_port_; }
  /// The port that --port 0 found. Before the first client.
  void set_port(int port);
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
  /// Set once there is storage, before the first client; stopped before it goes.
  TtlMonitor* ttl_monitor = nullptr;
  /// What the TTL monitor knows of a rule; empty without one (tests).
  std::function<TtlRuleFigures(const TtlRule& rule)> ttl_figures;
  /// A figure of serverStatus that takes long to find in a large server.
  struct SlowFigure {
    std::mutex mutex;
    int64_t good_until = 0;  ///< Clock::MonotonicMicros
    double value = 0;
  } ttl_beyond_horizon;
  /// Runs before {clock: …} replies: returns once everything due at the clock's time is gone. May
  /// block (worker).
  std::function<void(Operation& op)> settle_hook;
  /// {clock: {pass: true}}: one pass of the TTL monitor, now; returns when it is over. May block
  /// (worker).
  std::function<void(Operation& op)> ttl_pass_hook;

 private:
  const ServerConfig& config_;
  SystemClock& clock_;
  Log& log_;
  Storage* storage_ = nullptr;
  ReplicaSet* replica_set_ = nullptr;
  std::unique_ptr<RWConcernDefaults> rw_defaults_;
  std::unique_ptr<SnapshotReads> snapshot_reads_;
  std::unique_ptr<ClusterParameters> cluster_parameters_;
  AuditLog* audit_ = nullptr;
  TtlControls* ttl_controls_ = nullptr;
  large_memory::Budget large_memory_;
  NetworkBuffers network_buffers_;
  MemoryPressure memory_pressure_;
  IoWatchdog io_watchdog_;
  LargeTurns large_turns_;
  MemberParameters member_parameters_;
  WorkerPool workers_;
  CommandRegistry commands_;
  ParameterRegistry parameters_;
  ServerParameters settings_;
  TtlParameters ttl_settings_;
  ServerMetrics metrics_;
  OperationRegistry operations_;
  SessionRegistry sessions_;
  CursorManager cursors_;
  CollectionNotifier notifier_;
  Profiler profiler_;
  Top top_;
  FailPoints fail_points_;
  bool transaction_numbers_ = false;
  const std::unique_ptr<ShortReads> short_reads_;
  const int64_t start_micros_;
  const Instant started_;
  std::string host_and_port_, process_id_;
  std::function<void(bool, int)> shutdown_hook_;
  std::atomic<bool> shutting_down_{false};
};

}  // namespace mayfly

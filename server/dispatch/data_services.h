#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "server/base/large_turns.h"
#include "server/base/log.h"
#include "server/base/metrics.h"
#include "server/base/network_buffers.h"
#include "server/base/session_registry.h"
#include "server/base/top.h"
#include "server/dispatch/collection_notifier.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/fail_points.h"
#include "server/dispatch/parameters.h"
#include "storage/clock.h"

namespace mayfly {

class BucketSealer;  // server/execution/bucket_sealer.h
class ClusterParameters;
class ReplicaSet;  // replication/replica_set.h
class SnapshotReads;
class Storage;

/// The part of the server that statements on data need: not its connections, its tables of commands
/// and parameters, or its shutdown. Part of a ServerContext. Threads: any; the setters are called
/// before the first client.
class DataServices {
 public:
  DataServices(SystemClock& clock, Log& log);
  ~DataServices();
  DataServices(const DataServices&) = delete;

  SystemClock& clock() { return clock_; }
  Log& log() { return log_; }
  /// REQUIRES: set_storage was called.
  Storage& storage() { return *storage_; }
  bool has_storage() const { return storage_ != nullptr; }
  void set_storage(Storage* s) { storage_ = s; }
  /// Null on a standalone.
  ReplicaSet* replica_set() { return replica_set_; }
  void set_replica_set(ReplicaSet* set) { replica_set_ = set; }
  /// A standalone, or a primary.
  bool writable() const;
  /// Null in a server without clients, and while it starts and stops.
  BucketSealer* sealer() { return sealer_.load(std::memory_order_acquire); }
  void set_sealer(BucketSealer* s) { sealer_.store(s, std::memory_order_release); }
  SnapshotReads& snapshot_reads() { return *snapshot_reads_; }
  CursorManager& cursors() { return cursors_; }
  CollectionNotifier& notifier() { return notifier_; }
  ServerParameters& settings() { return settings_; }
  ServerMetrics& metrics() { return metrics_; }
  FailPoints& fail_points() { return fail_points_; }
  LargeTurns& large_turns() { return large_turns_; }
  MemoryPressure& memory_pressure() { return memory_pressure_; }
  SessionRegistry& sessions() { return sessions_; }
  Top& top() { return top_; }
  ClusterParameters& cluster_parameters() { return *cluster_parameters_; }
  Instant started() const { return started_; }
  /// "host:port" as hello's `me` and currentOp's `host` show it.
  const std::string& host_and_port() const { return host_and_port_; }
  /// The port that --port 0 found. Before the first client.
  void set_port(int port);

 private:
  SystemClock& clock_;
  Log& log_;
  Storage* storage_ = nullptr;
  ReplicaSet* replica_set_ = nullptr;
  std::atomic<BucketSealer*> sealer_{nullptr};
  ServerParameters settings_;
  std::unique_ptr<SnapshotReads> snapshot_reads_;
  ServerMetrics metrics_;
  CursorManager cursors_;
  CollectionNotifier notifier_;
  FailPoints fail_points_;
  LargeTurns large_turns_;
  MemoryPressure memory_pressure_;
  SessionRegistry sessions_;
  Top top_;
  const std::unique_ptr<ClusterParameters> cluster_parameters_;
  const Instant started_;
  std::string host_and_port_;
};

}  // namespace mayfly

#include "server/dispatch/server_context.h"

#include <unistd.h>

#include "protocol/object_id.h"
#include "replication/replica_set.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/config.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/short_reads.h"

namespace mayfly {

ServerContext::ServerContext(const ServerConfig& config, SystemClock& clock, Log& log)
    : config_(config),
      clock_(clock),
      log_(log),
      rw_defaults_(std::make_unique<RWConcernDefaults>()),
      snapshot_reads_(
          std::make_unique<SnapshotReads>(clock, settings_.min_snapshot_history_window_secs)),
      cluster_parameters_(std::make_unique<ClusterParameters>(settings_)),
      workers_(
          config.EffectiveWorkerThreads(),
          [this] { large_memory::SetThreadBudget(&large_memory_); },
          [&log] { LogException(log, "worker"); }),
      cursors_(clock),
      short_reads_(std::make_unique<ShortReads>()),
      start_micros_(clock.MonotonicMicros()),
      started_(clock.Now()),
      process_id_(NewObjectId(clock.Now())) {
  set_port(config.port);
  profiler_.slow_ms = config.slow_ms;
  if (config.profile_level > 0) {
    profiler_.default_level = config.profile_level;
    profiler_.Activate();
  }
  profiler_.sample_rate = config.slow_sample_rate;
  cursors_.set_kill_operation(
      [this](uint64_t op) { operations_.Kill(op, ErrorCode::kCursorKilled); });
  sessions_.OnEnd([this](std::string_view id) { cursors_.KillSession(id); });
}

ServerContext::~ServerContext() = default;

void ServerContext::set_port(int port) {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  host_and_port_ = std::string(name) + ":" + std::to_string(port);
}

bool ServerContext::config_allows_test_commands() const { return config_.test_clock; }

bool ServerContext::writable() const { return replica_set_ == nullptr || replica_set_->writable(); }

void ServerContext::RequestShutdown(bool force, int exit_code) {
  if (shutdown_hook_) shutdown_hook_(force, exit_code);
}

}  // namespace mayfly

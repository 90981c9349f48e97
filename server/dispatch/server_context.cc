#include "server/dispatch/server_context.h"

#include "protocol/object_id.h"
#include "security/tls.h"
#include "server/dispatch/config.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/short_reads.h"
#include "server/dispatch/tls_settings.h"

namespace mayfly {

ServerContext::ServerContext(const ServerConfig& config, SystemClock& clock, Log& log)
    : ExpiryServices(clock, log),
      config_(config),
      rw_defaults_(std::make_unique<RWConcernDefaults>()),
      workers_(
          config.EffectiveWorkerThreads(),
          [this] { large_memory::SetThreadBudget(&large_memory_); },
          [&log] { LogException(log, "worker"); }),
      establishment_(clock),
      short_reads_(std::make_unique<ShortReads>()),
      tls_settings_(std::make_unique<TlsSettings>(config.tls)),
      tls_(Tls::Make({}, {}).value()),  // disabled: there is no file to be wrong
      start_micros_(clock.MonotonicMicros()),
      process_id_(NewObjectId(clock.Now())) {
  set_port(config.port);
  access_.set_enforced(config.access_control());
  access_.set_signs_times(config.access_control() || config.transition_to_auth);
  profiler_.slow_ms = config.slow_ms;
  if (config.profile_level > 0) {
    profiler_.default_level = config.profile_level;
    profiler_.Activate();
  }
  profiler_.sample_rate = config.slow_sample_rate;
  cursors().set_kill_operation(
      [this](uint64_t op) { operations_.Kill(op, ErrorCode::kCursorKilled); });
  sessions().OnEnd([this](std::string_view id) { cursors().KillSession(id); });
}

ServerContext::~ServerContext() = default;

void ServerContext::set_tls(std::unique_ptr<Tls> tls) { tls_ = std::move(tls); }

bool ServerContext::config_allows_test_commands() const { return config_.test_clock; }

void ServerContext::RequestShutdown(bool force, int exit_code) {
  if (shutdown_hook_) shutdown_hook_(force, exit_code);
}

}  // namespace mayfly

#include "server/ttl_wiring.h"

#include <time.h>

#include "replication/replica_set.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/server_context.h"
#include "storage/storage.h"
#include "ttl/ttl_controls.h"

namespace mayfly {

namespace {

void ProfileDeletion(ServerContext& server, const CollectionInfo& coll, BsonView command,
                     Operation& op, int64_t micros) {
  if (!server.profiler().active()) return;
  CommandRequest request;
  if (!ParseCommandFields(command, &request, coll.db)) return;
  OperationReport report;
  report.op = "remove";
  report.ns = coll.ns;
  const FinishedOperation f{
      .op = op, .report = report, .client = nullptr, .request = request, .micros = micros};
  if (server.profiler().Judge(f).profile) server.profiler().Write(server, f);
}

}  // namespace

std::unique_ptr<TtlMonitor> MakeTtlMonitor(ServerContext& server) {
  TtlEnvironment env;
  env.may_run = [&server] {
    return server.fsync_locks.load(std::memory_order_relaxed) == 0 && !server.shutting_down() &&
           (server.replica_set() == nullptr || server.replica_set()->writable());
  };
  env.foreground_requests = [&server] { return server.metrics().network.requests.Get(); };
  // Not CLOCK_MONOTONIC: that stands still while the machine sleeps, and waking up is no jump.
  env.elapsed_micros = [] {
    timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
  };
  env.slow_millis = [&server] { return server.profiler().slow_ms.load(std::memory_order_relaxed); };
  env.log = [&log = server.log()](char severity, std::string_view message, BsonView attributes) {
    log.Write(LogSeverityOf(severity), LogComponent::kIndex, 5479200, message, attributes,
              "TTLMonitor");
  };
  env.begin_operation = [&server](const CollectionInfo& coll, BsonView command) {
    auto internal = std::make_shared<InternalOperation>(
        server.operations(), server.clock(), "TTLMonitor", "remove", coll.db, coll.ns, command);
    return std::shared_ptr<Operation>(internal, &internal->op());
  };
  env.profile = [&server](const CollectionInfo& coll, BsonView command, Operation& op,
                          int64_t micros) { ProfileDeletion(server, coll, command, op, micros); };
  TtlControls& controls = server.ttl_controls();
  env.may_reap = [&controls](const TtlRule& rule, Instant now) {
    return controls.MayReapFrom(rule, now);
  };
  env.hold_ends = [&controls](const CollectionInfo& coll, Instant now) {
    return controls.HoldEnds(coll, now);
  };
  auto monitor = std::make_unique<TtlMonitor>(server.storage(), server.clock(),
                                              server.ttl_settings(), server.metrics().ttl,
                                              server.metrics().batched_deletes, std::move(env));
  auto hand_on = [&server] {
    const TtlParameters& t = server.ttl_settings();
    ExpiryPolicy& policy = server.storage().expiry_policy();
    policy.monitor_enabled = t.monitor_enabled.load();
    policy.index_reads_exact_default = t.read_filter.load();
    policy.tombstone_seconds = t.metadata_purge_secs.load();
  };
  hand_on();
  TtlMetrics& metrics = server.metrics().ttl;
  server.storage().expiry_policy().on_removed = [&metrics](int64_t documents, int64_t bytes) {
    metrics.deleted_documents.Add(documents);
    metrics.bytes_deleted.Add(bytes);
  };
  server.storage().expiry_policy().on_archived = [&metrics](int64_t documents) {
    metrics.archived_documents.Add(documents);
  };
  server.ttl_settings().on_change = [m = monitor.get(), hand_on] {
    hand_on();
    m->Wake();
  };
  controls.on_change = [m = monitor.get()] { m->ControlsChanged(); };
  server.ttl_figures = [m = monitor.get()](const TtlRule& rule) { return m->Figures(rule); };
  server.ttl_pass_hook = [m = monitor.get()](Operation& op) { m->RunPass(&op); };
  server.ttl_monitor = monitor.get();
  return monitor;
}

void DetachTtlMonitor(ServerContext& server) {
  server.ttl_monitor = nullptr;
  server.ttl_pass_hook = nullptr;
  server.ttl_figures = nullptr;
  server.ttl_settings().on_change = nullptr;
  server.ttl_controls().on_change = nullptr;
}

}  // namespace mayfly

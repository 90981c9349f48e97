#include "server/http/prometheus_text.h"

#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <sstream>

#include "security/login_backoff.h"
#include "server/commands/info_cmds.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/server_context.h"
#include "storage/kv/store_activity.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  /// Opens a family; Counter and Gauge add to the one opened last.
  Families& Open(std::string name, std::string help, MetricType type) {
    list_.push_back({std::move(name), std::move(help), type, {}});
    return *this;
  }
  Families& Add(double value, Labels labels = {}) {
    ClientMetric m;
    m.label = std::move(labels);
    if (list_.back().type == MetricType::Counter)
      m.counter.value = value;
    else
      m.gauge.value = value;
    list_.back().metric.push_back(std::move(m));
    return *this;
  }
  Families& AddMetric(ClientMetric m) {
    list_.back().metric.push_back(std::move(m));
    return *this;
  }
  Families& Counter(std::string name, std::string help, double value) {
    return Open(std::move(name), std::move(help), MetricType::Counter).Add(value);
  }
  Families& Gauge(std::string name, std::string help, double value) {
    return Open(std::move(name), std::move(help), MetricType::Gauge).Add(value);
  }
  std::string Text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, list_);
    return std::move(out).str();
  }

 private:
  std::vector<MetricFamily> list_;
};

double D(const mayfly::Counter& c) { return static_cast<double>(c.Get()); }

ClientMetric Histogram(const LatencyHistogram& h, std::string_view type) {
  ClientMetric m;
  m.label = {{"type", std::string(type)}};
  uint64_t below = 0;
  for (int i = 0; i < LatencyHistogram::kBuckets; ++i) {
    below += static_cast<uint64_t>(h.buckets[i].Get());
    // Bucket i ends at 2^(i+1) us; the last one has no end.
    const double bound = i + 1 == LatencyHistogram::kBuckets
                             ? std::numeric_limits<double>::infinity()
                             : static_cast<double>(uint64_t{2} << i) / 1e6;
    m.histogram.bucket.push_back({below, bound});
  }
  m.histogram.sample_count = below;
  m.histogram.sample_sum = D(h.total_micros) / 1e6;
  return m;
}

double Number(BsonView doc, std::string_view name) {
  const BsonValue v = doc.Find(name);
  return v.IsNumber() ? v.NumberAsDouble() : 0;
}

void Operations(ServerContext& s, Families& f) {
  const ServerMetrics& m = s.metrics();
  f.Open("mayfly_operations_total",
         "Operations of clients: documents for insert, statements for update and delete.",
         MetricType::Counter);
  f.Add(D(m.opcounters.insert), {{"type", "insert"}});
  f.Add(D(m.opcounters.query), {{"type", "query"}});
  f.Add(D(m.opcounters.update), {{"type", "update"}});
  f.Add(D(m.opcounters.remove), {{"type", "delete"}});
  f.Add(D(m.opcounters.getmore), {{"type", "getmore"}});
  f.Add(D(m.opcounters.command), {{"type", "command"}});
  f.Open("mayfly_documents_total", "Documents by what clients did with them.", MetricType::Counter);
  f.Add(D(m.documents.inserted), {{"action", "inserted"}});
  f.Add(D(m.documents.returned), {{"action", "returned"}});
  f.Add(D(m.documents.updated), {{"action", "updated"}});
  f.Add(D(m.documents.deleted), {{"action", "deleted"}});
  f.Open("mayfly_operation_duration_seconds", "How long operations took, waits left out.",
         MetricType::Histogram);
  f.AddMetric(Histogram(m.reads, "read"));
  f.AddMetric(Histogram(m.writes, "write"));
  f.AddMetric(Histogram(m.commands, "command"));
  f.Open("mayfly_query_examined_total", "Index keys and documents looked at by queries.",
         MetricType::Counter);
  f.Add(D(m.query_executor.scanned), {{"what", "keys"}});
  f.Add(D(m.query_executor.scanned_objects), {{"what", "documents"}});
  f.Counter("mayfly_write_conflicts_total", "Writes that met another writer and were tried again.",
            D(m.operation.write_conflicts));
  f.Open("mayfly_asserts_total", "Errors answered to clients (user) and faults of the server.",
         MetricType::Counter);
  f.Add(D(m.asserts.user), {{"type", "user"}});
  f.Add(D(m.asserts.regular), {{"type", "regular"}});
}

void TransactionFamilies(BsonView t, Families& f) {
  if (t.empty()) return;
  f.Open("mayfly_transactions_open", "Open transactions, by whether a command of one runs.",
         MetricType::Gauge);
  f.Add(Number(t, "currentActive"), {{"state", "active"}});
  f.Add(Number(t, "currentInactive"), {{"state", "inactive"}});
  f.Counter("mayfly_transactions_started_total", "Transactions begun.", Number(t, "totalStarted"));
  f.Counter("mayfly_transactions_committed_total", "Transactions committed.",
            Number(t, "totalCommitted"));
  f.Open("mayfly_transactions_aborted_total", "Transactions aborted, by what ended them.",
         MetricType::Counter);
  if (const BsonValue by = t.Find("abortedBy"); by.IsDocument())
    for (const BsonElement& e : by.Document())
      f.Add(static_cast<double>(e.value.NumberAsInt64()), {{"reason", std::string(e.name)}});
  f.Counter("mayfly_transactions_conflicts_total",
            "Times a transaction met what others had changed.", Number(t, "conflicts"));
  f.Gauge("mayfly_transactions_oldest_open_seconds", "Age of the oldest open transaction.",
          Number(t, "oldestOpenMillis") / 1000);
  f.Gauge("mayfly_transactions_bytes", "What open transactions have in memory.",
          Number(t, "bytes"));
}

void NetworkFamilies(ServerContext& s, Families& f) {
  const ServerMetrics& m = s.metrics();
  f.Gauge("mayfly_connections", "Open connections.", D(m.connections.current));
  f.Counter("mayfly_connections_created_total", "Connections since start-up.",
            D(m.connections.total_created));
  f.Counter("mayfly_connections_rejected_total", "Connections refused because of maxConns.",
            D(m.connections.rejected));
  const EstablishmentLimiter::Figures& e = s.establishment().figures();
  f.Gauge("mayfly_connections_waiting", "New connections that wait for their turn.", D(e.waiting));
  f.Counter("mayfly_connections_rate_rejected_total",
            "Connections refused because too many came in a short time.", D(e.refused));
  f.Open("mayfly_network_bytes_total", "Bytes of messages, before compression.",
         MetricType::Counter);
  f.Add(D(m.network.bytes_in), {{"direction", "in"}});
  f.Add(D(m.network.bytes_out), {{"direction", "out"}});
  f.Counter("mayfly_network_requests_total", "Messages from clients.", D(m.network.requests));
}

void StoreFamilies(const KvCounters& c, Families& f) {
  auto family = [&](const char* name, const char* help, const char* label,
                    std::initializer_list<std::pair<const char*, uint64_t>> values) {
    f.Open(name, help, MetricType::Counter);
    for (auto [value, n] : values) f.Add(static_cast<double>(n), {{label, value}});
  };
  family("mayfly_storage_cache_hits_total", "Blocks found in the cache.", "block",
         {{"data", c.data_hits}, {"index", c.index_hits}, {"filter", c.filter_hits}});
  family("mayfly_storage_cache_misses_total", "Blocks read, because they were not in the cache.",
         "block",
         {{"data", c.data_misses}, {"index", c.index_misses}, {"filter", c.filter_misses}});
  family("mayfly_storage_filters_left_out_total", "Files not searched, by kind of filter.",
         "filter", {{"key", c.key_filters_useful}, {"group", c.group_filters_useful}});
  family(
      "mayfly_storage_filters_passed_total", "Files searched behind a filter.", "filter",
      {{"key", c.key_filters_passed}, {"group", c.group_filters_asked - c.group_filters_useful}});
  family("mayfly_storage_written_bytes_total",
         "Bytes of what clients and the server wrote (batch), and of the files it came to.", "to",
         {{"batch", c.written_bytes},
          {"log", c.log_bytes},
          {"flush", c.flushed_bytes},
          {"compaction", c.compaction_written_bytes}});
  f.Counter("mayfly_storage_compaction_read_bytes_total", "What compaction has read.",
            static_cast<double>(c.compaction_read_bytes));
  family("mayfly_storage_stalls_total", "Times writers came to be delayed, or stopped.", "kind",
         {{"slowdown", c.slowdowns}, {"stop", c.stalls}});
  f.Counter("mayfly_storage_stall_seconds_total", "Time that writers were made to wait.",
            static_cast<double>(c.stall_micros) / 1e6);
}

void Process(ServerContext& s, Families& f) {
  const ProcessFacts p = ReadProcessFacts();
  f.Open("mayfly_build_info", "1; the versions are in the labels.", MetricType::Gauge)
      .Add(1, {{"version", std::string(kMayflyVersion)},
               {"compatible_with", std::string(kCompatibleVersion)}});
  f.Gauge("mayfly_uptime_seconds", "Since start-up.", static_cast<double>(s.UptimeMillis()) / 1000);
  f.Gauge("process_resident_memory_bytes", "Resident memory.",
          static_cast<double>(p.resident_bytes));
  f.Gauge("process_virtual_memory_bytes", "Virtual memory.", static_cast<double>(p.virtual_bytes));
  f.Counter("process_cpu_seconds_total", "User and system time.",
            static_cast<double>(p.user_micros + p.system_micros) / 1e6);
  f.Gauge("process_start_time_seconds", "Unix time of the start.",
          static_cast<double>(s.started().millis) / 1000);
  f.Gauge("process_threads", "Threads.", static_cast<double>(p.threads));
  if (!s.has_storage()) return;
  f.Gauge("mayfly_storage_memory_bytes", "Block cache and memtables.",
          static_cast<double>(s.storage().kv().MemoryBytes()));
  f.Open("mayfly_storage_live_bytes", "Live data on disk by keyspace.", MetricType::Gauge);
  static constexpr std::string_view kNames[kKeyspaceCount] = {"catalog", "records", "indexes",
                                                              "expiry",  "oplog",   "tombstones"};
  std::vector<KvStats> stats;
  for (int i = 0; i < kKeyspaceCount; ++i) {
    stats.push_back(s.storage().kv().Stats(static_cast<Keyspace>(i)));
    f.Add(static_cast<double>(stats.back().live_bytes), {{"keyspace", std::string(kNames[i])}});
  }
  f.Open("mayfly_storage_pending_compaction_bytes", "What compaction still has to rewrite.",
         MetricType::Gauge);
  for (int i = 0; i < kKeyspaceCount; ++i)
    f.Add(static_cast<double>(stats[i].pending_compaction_bytes),
          {{"keyspace", std::string(kNames[i])}});
  if (StoreActivity* activity = ActivityOf(s.storage().kv())) {
    f.Open("mayfly_storage_sorted_runs", "What a look-up may have to ask, by keyspace.",
           MetricType::Gauge);
    for (int i = 0; i < kKeyspaceCount; ++i)
      f.Add(activity->Shape(static_cast<Keyspace>(i)).sorted_runs(),
            {{"keyspace", std::string(kNames[i])}});
    StoreFamilies(activity->Counters(), f);
  }
}

void LogArchive(BsonView a, Families& f) {
  if (a.empty()) return;
  const BsonValue is = a.Find("state");
  f.Open("mayfly_log_archive_state", "1 for the state that the archive of the log is in.",
         MetricType::Gauge);
  for (auto state : {"starting", "running", "failing", "givenUp"})
    f.Add(is.IsString() && is.String() == state ? 1 : 0, {{"state", state}});
  f.Gauge("mayfly_log_archive_waiting_entries", "Entries of the log that are not archived yet.",
          Number(a, "waitingEntries"));
  f.Gauge("mayfly_log_archive_waiting_seconds", "How long the oldest of them waits.",
          Number(a, "waitingMillis") / 1000);
  f.Counter("mayfly_log_archive_segments_total", "Segments of the log archived.",
            Number(a, "segments"));
  f.Counter("mayfly_log_archive_bytes_total", "Bytes of these segments.", Number(a, "bytes"));
  f.Counter("mayfly_log_archive_failures_total", "Attempts to archive the log that failed.",
            Number(a, "failures"));
  f.Counter("mayfly_log_archive_gaps_total",
            "Times entries of the log were trimmed before they could be archived.",
            Number(a, "gaps"));
  f.Gauge("mayfly_log_archive_lost_entries",
          "Entries that were trimmed and will be missing once the archive goes on.",
          Number(a, "lostEntries"));
}

void Backups(BsonView b, Families& f) {
  if (b.empty()) return;
  const BsonValue running = b["running"], last = b["last"];
  f.Gauge("mayfly_backup_running", "1 while a backup is made.",
          running.Is(BsonType::kBool) && running.Bool() ? 1 : 0);
  f.Counter("mayfly_backups_total", "Backups made since the start.", Number(b, "made"));
  f.Counter("mayfly_backup_failures_total", "Backups that failed or were ended.",
            Number(b, "failed"));
  if (!last.IsDocument()) return;
  const BsonView l = last.Document();
  f.Gauge("mayfly_backup_last_timestamp_seconds", "When the last backup was made.",
          l["time"].IsDate() ? static_cast<double>(l["time"].Date().millis) / 1000 : 0);
  f.Gauge("mayfly_backup_last_bytes", "Bytes of the last backup.", Number(l, "bytes"));
  f.Gauge("mayfly_backup_last_copied_bytes", "Bytes of it that the folder did not have.",
          Number(l, "bytesCopied"));
  f.Gauge("mayfly_backup_last_duration_seconds", "How long it took.",
          Number(l, "durationMillis") / 1000);
}

void AuditEntries(ServerContext& s, Families& f) {
  f.Counter("mayfly_failed_logins_suppressed_total",
            "Failed logins that were too many to have a line of the log each.",
            static_cast<double>(s.access().backoff().told().suppressed()));
  AuditLog* log = s.audit();
  if (log == nullptr) return;
  const AuditLog::State state = log->Check();
  f.Open("mayfly_audit_entries_total", "Entries of the audit log, by what became of them.",
         MetricType::Counter);
  f.Add(static_cast<double>(state.written), {{"outcome", "written"}});
  f.Add(static_cast<double>(state.lost), {{"outcome", "lost"}});
  f.Add(static_cast<double>(state.suppressed), {{"outcome", "suppressed"}});
  f.Gauge("mayfly_audit_waiting_entries", "Entries of the audit log that could not be written yet.",
          static_cast<double>(state.waiting));
}

void Ttl(ServerContext& s, BsonView ttl, BsonView rules, Families& f) {
  f.Counter("mayfly_ttl_deleted_documents_total", "Documents removed because they were due.",
            Number(ttl, "deletedDocuments"));
  f.Counter("mayfly_ttl_deleted_keys_total", "Index entries removed by the TTL monitor.",
            Number(ttl, "deletedKeys"));
  f.Counter("mayfly_ttl_examined_documents_total", "Documents the TTL monitor looked at.",
            Number(ttl, "examinedDocuments"));
  f.Counter("mayfly_ttl_examined_keys_total", "Index entries the TTL monitor looked at.",
            Number(ttl, "examinedKeys"));
  f.Counter("mayfly_ttl_duration_seconds_total", "Time the TTL monitor spent on rules.",
            Number(ttl, "durationMicros") / 1e6);
  f.Counter("mayfly_ttl_passes_total", "Passes of the TTL monitor.", Number(ttl, "passes"));
  f.Counter("mayfly_ttl_sub_passes_total", "Sub-passes of the TTL monitor.",
            Number(ttl, "subPasses"));
  f.Counter("mayfly_ttl_invalid_index_skips_total", "Visits to indexes that cannot be processed.",
            Number(ttl, "invalidTTLIndexSkips"));
  f.Gauge("mayfly_ttl_pending_documents", "Documents that are due and not removed yet.",
          Number(ttl, "pendingDocuments"));
  f.Counter("mayfly_ttl_expired_reads_hidden_total",
            "Documents past their deadline that a read met and left out.",
            Number(ttl, "expiredReadsHidden"));
  f.Counter("mayfly_ttl_deleted_bytes_total", "Size of what was removed because it was due.",
            Number(ttl, "bytesDeleted"));
  f.Counter("mayfly_ttl_clock_holds_total", "Times the clock guard stopped expiry.",
            Number(ttl, "clockHolds"));
  f.Gauge("mayfly_ttl_beyond_horizon", "Documents that expire more than 30 days from now.",
          Number(ttl, "beyondHorizon"));
  if (const BsonValue lag = ttl.Find("lagMillis"); lag.IsDocument()) {
    f.Open("mayfly_ttl_lag_seconds", "From deadline to removal, recently.", MetricType::Gauge);
    for (auto [name, quantile] : {std::pair{"p50", "0.5"}, {"p99", "0.99"}, {"max", "1"}})
      f.Add(Number(lag.Document(), name) / 1000, {{"quantile", quantile}});
  }
  const BatchedDeleteMetrics& b = s.metrics().batched_deletes;
  f.Counter("mayfly_batched_deletes_batches_total", "Write units of the TTL monitor.",
            D(b.batches));
  f.Counter("mayfly_batched_deletes_documents_total", "Documents in them.", D(b.docs));

  std::vector<BsonView> list;
  for (const BsonElement& e : rules) {
    if (list.size() == kMaxRules) break;
    if (e.value.IsDocument()) list.push_back(e.value.Document());
  }
  if (list.empty()) return;
  auto labels = [](BsonView r) {
    Labels l;
    for (auto name : {"ns", "kind", "index"}) {
      const BsonValue v = r.Find(name);
      l.push_back({name, v.IsString() ? std::string(v.String()) : std::string()});
    }
    return l;
  };
  auto series = [&](std::string name, std::string help, MetricType type, std::string_view field,
                    double scale) {
    f.Open(std::move(name), std::move(help), type);
    for (BsonView r : list) f.Add(Number(r, field) * scale, labels(r));
  };
  series("mayfly_ttl_rule_lag_seconds", "How long the rule's oldest due document waits.",
         MetricType::Gauge, "lagMillis", 1e-3);
  series("mayfly_ttl_rule_pending_documents", "Documents that the rule has still to remove.",
         MetricType::Gauge, "pending", 1);
  series("mayfly_ttl_rule_deleted_documents_total", "Documents that the rule has removed.",
         MetricType::Counter, "deleted", 1);
  f.Open("mayfly_ttl_rule_state", "1 for the state that the rule is in.", MetricType::Gauge);
  for (BsonView r : list) {
    Labels l = labels(r);
    const BsonValue state = r.Find("state");
    l.push_back({"state", state.IsString() ? std::string(state.String()) : "unknown"});
    f.Add(1, std::move(l));
  }
}

}  // namespace

std::string PrometheusText(ServerContext& server, BsonView status, BsonView rules) {
  auto part = [&](std::string_view path) {
    const BsonValue v = status.FindPath(path);
    return v.IsDocument() ? v.Document() : BsonView();
  };
  Families f;
  Process(server, f);
  Operations(server, f);
  NetworkFamilies(server, f);
  Ttl(server, part("metrics.ttl"), rules, f);
  TransactionFamilies(part("transactions"), f);
  LogArchive(part("logArchive"), f);
  Backups(part("backup"), f);
  AuditEntries(server, f);
  return f.Text();
}

}  // namespace mayfly

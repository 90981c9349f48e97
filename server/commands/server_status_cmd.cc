#include <unistd.h>

#include "protocol/database_name.h"
#include "query/plan/query_state.h"
#include "query/sort/spill_file.h"
#include "replication/replica_set.h"
#include "security/login_backoff.h"
#include "server/base/io_watchdog.h"
#include "server/commands/info_cmds.h"
#include "server/commands/tls_status.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"
#include "server/dispatch/config.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/dispatch/short_reads.h"
#include "server/execution/transaction_report.h"
#include "server/execution/ttl_status.h"
#include "server/privileges/privileges.h"
#include "storage/kv/store_activity.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

/// {serverStatus: 1, section: 0 | 1, none: 1}: sections are there unless switched off; some only
/// when asked for.
class Sections {
 public:
  explicit Sections(const CommandRequest& req) : req_(req) {
    for (const CommandField& f : req.fields)
      if (f.name == "none") none_ = f.value.Truthy();
  }
  bool Want(std::string_view name, bool by_default = true) const {
    for (size_t i = 1; i < req_.fields.size(); ++i)
      if (req_.fields[i].name == name) return req_.fields[i].value.Truthy();
    return by_default && !none_;
  }

 private:
  const CommandRequest& req_;
  bool none_ = false;
};

void Asserts(ServerContext& s, BsonBuilder& r) {
  auto& a = s.metrics().asserts;
  BsonBuilder d = r.OpenDocument("asserts");
  d.Append("regular", a.regular.Get())
      .Append("warning", a.warning.Get())
      .Append("msg", a.message.Get());
  d.Append("user", a.user.Get())
      .Append("tripwire", int64_t{0})
      .Append("rollovers", a.rollovers.Get());
}

void BatchedDeletes(ServerContext& s, BsonBuilder& r) {
  auto& b = s.metrics().batched_deletes;
  BsonBuilder d = r.OpenDocument("batchedDeletes");
  d.Append("batches", b.batches.Get())
      .Append("docs", b.docs.Get())
      .Append("stagedSizeBytes", b.staged_size_bytes.Get());
  d.Append("timeInBatchMillis", b.time_in_batch_millis.Get());
  d.Append("refetchesDueToYield", b.refetches_due_to_yield.Get());
}

void CatalogStats(ServerContext& s, BsonBuilder& r) {
  int64_t collections = 0, views = 0, series = 0, capped = 0, clustered = 0, internal = 0;
  for (const CollectionInfoPtr& c : s.storage().catalog().ListAll()) {
    if (c->is_series())
      ++series;
    else if (c->is_view())
      ++views;
    else
      ++collections;
    if (c->capped()) ++capped;
    if (c->clustered()) ++clustered;
    if (c->name.starts_with("system.") || IsConfigOrLocal(c->db)) ++internal;
  }
  BsonBuilder d = r.OpenDocument("catalogStats");
  d.Append("collections", collections).Append("capped", capped).Append("clustered", clustered);
  d.Append("timeseries", series).Append("views", views).Append("internalCollections", internal);
  d.Append("internalViews", int64_t{0});
}

void Connections(ServerContext& s, BsonBuilder& r) {
  auto& c = s.metrics().connections;
  BsonBuilder d = r.OpenDocument("connections");
  // Ints, as tools expect them: a shell shows longs as objects.
  const EstablishmentLimiter::Figures& e = s.establishment().figures();
  const int64_t taken = c.current.Get() + e.waiting.Get();
  d.Append("current", static_cast<int32_t>(c.current.Get()))
      .Append("available",
              static_cast<int32_t>(std::max<int64_t>(0, s.config().max_connections - taken)));
  d.Append("totalCreated", static_cast<int32_t>(c.total_created.Get()))
      .Append("rejected", static_cast<int32_t>(c.rejected.Get()));
  d.Append("active", static_cast<int32_t>(s.operations().ActiveCount()));
  d.Append("queuedForEstablishment", static_cast<int32_t>(e.waiting.Get()));
  d.OpenDocument("establishmentRateLimit")
      .Append("rejected", e.refused.Get())
      .Append("exempted", e.exempted.Get())
      .Append("interruptedDueToClientDisconnect", e.gone.Get());
  d.Append("threaded", int64_t{0}).Append("exhaustIsMaster", c.exhaust_is_master.Get());
  d.Append("exhaustHello", c.exhaust_hello.Get())
      .Append("awaitingTopologyChanges", c.awaiting_topology.Get());
}

void Queues(ServerContext& s, BsonBuilder& r) {
  const EstablishmentLimiter::Figures& f = s.establishment().figures();
  BsonBuilder queues = r.OpenDocument("queues");
  BsonBuilder d = queues.OpenDocument("ingressSessionEstablishment");
  d.Append("addedToQueue", f.queued.Get()).Append("removedFromQueue", f.dequeued.Get());
  d.Append("interruptedInQueue", f.gone.Get()).Append("rejectedAdmissions", f.refused.Get());
  d.Append("exemptedAdmissions", f.exempted.Get()).Append("successfulAdmissions", f.served.Get());
  d.Append("attemptedAdmissions", f.attempted.Get());
  const int64_t n = f.dequeued.Get();
  d.Append("averageTimeQueuedMicros",
           n == 0 ? 0.0 : static_cast<double>(f.waited_micros.Get()) / static_cast<double>(n));
  d.Append("totalAvailableTokens", s.establishment().Tokens());
}

void EncryptionAtRest(ServerContext& s, BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("encryptionAtRest");
  // A server whose directory is not as its options say does not start.
  const BsonValue security = s.config().parsed.view()["security"];
  const bool on = security.IsDocument() && security.Document()["enableEncryption"].Truthy();
  d.Append("encryptionEnabled", on);
  if (!on) return;
  d.Append("encryptionKeyId", "local").Append("encryptionCipherMode", "AES256-CTR");
}

void ExtraInfo(const ProcessFacts& f, BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("extra_info");
  d.Append("note", "fields vary by platform").Append("user_time_us", f.user_micros);
  d.Append("system_time_us", f.system_micros).Append("maximum_resident_set_kb", f.peak_resident_kb);
  d.Append("input_blocks", f.blocks_in).Append("output_blocks", f.blocks_out);
  d.Append("page_reclaims", f.page_reclaims).Append("page_faults", f.page_faults);
  d.Append("voluntary_context_switches", f.voluntary_switches);
  d.Append("involuntary_context_switches", f.involuntary_switches).Append("threads", f.threads);
}

void GlobalLock(ServerContext& s, BsonBuilder& r) {
  int64_t readers = 0, writers = 0;
  s.operations().ForEach([&](const ClientSlot::View& v) {
    if (v.op == nullptr) return;
    const CommandRow* row = s.commands().Find(v.command_name);
    if (row == nullptr) return;
    if (row->flags & kWrites)
      ++writers;
    else if (row->flags & kTakesReadConcern)
      ++readers;
  });
  BsonBuilder d = r.OpenDocument("globalLock");
  d.Append("totalTime", s.UptimeMillis() * 1000);
  {
    BsonBuilder q = d.OpenDocument("currentQueue");
    q.Append("total", int32_t{0}).Append("readers", int32_t{0}).Append("writers", int32_t{0});
  }
  BsonBuilder a = d.OpenDocument("activeClients");
  a.Append("total", static_cast<int32_t>(readers + writers))
      .Append("readers", static_cast<int32_t>(readers));
  a.Append("writers", static_cast<int32_t>(writers));
}

void IndexBuilds(ServerContext& s, BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("indexBuilds");
  BsonArrayBuilder list = d.OpenArray("inProgress");
  for (const auto& b : s.storage().catalog().Builds()) {
    BsonBuilder x = list.OpenDocument();
    x.Append("ns", b.ns).Append("done", b.done).Append("total", b.total);
    BsonArrayBuilder names = x.OpenArray("indexes");
    for (const std::string& n : b.indexes) names.Append(n);
  }
}

void SessionCache(ServerContext& s, BsonBuilder& r) {
  const auto t = s.sessions().totals();
  BsonBuilder d = r.OpenDocument("logicalSessionRecordCache");
  d.Append("activeSessionsCount", t.active).Append("sessionsStarted", t.started);
  d.Append("sessionsEnded", t.ended).Append("sessionsTimedOut", t.timed_out);
}

void NetworkStatus(ServerContext& s, BsonBuilder& r) {
  auto& n = s.metrics().network;
  BsonBuilder d = r.OpenDocument("network");
  d.Append("bytesIn", n.bytes_in.Get()).Append("bytesOut", n.bytes_out.Get());
  d.Append("physicalBytesIn", n.physical_bytes_in.Get())
      .Append("physicalBytesOut", n.physical_bytes_out.Get());
  d.Append("numRequests", n.requests.Get());
  if (const int64_t limit = s.io_watchdog().limit_micros; limit > 0) {
    BsonBuilder w = d.OpenDocument("ioThreadWatchdog");
    w.Append("limitMicros", limit).Append("longHandlers", s.io_watchdog().long_handlers.load());
    w.Append("longestMicros", s.io_watchdog().longest_micros.load());
  }
  BsonBuilder c = d.OpenDocument("compression");
  auto one = [&](std::string_view name, const auto& x) {
    BsonBuilder e = c.OpenDocument(name);
    {
      BsonBuilder k = e.OpenDocument("compressor");
      k.Append("bytesIn", x.compressed_in.Get()).Append("bytesOut", x.compressed_out.Get());
    }
    BsonBuilder k = e.OpenDocument("decompressor");
    k.Append("bytesIn", x.decompressed_in.Get()).Append("bytesOut", x.decompressed_out.Get());
  };
  one("snappy", n.snappy);
  one("zstd", n.zstd);
  one("zlib", n.zlib);
}

}  // namespace

void AppendLatency(BsonBuilder& out, std::string_view name, const LatencyHistogram& h,
                   bool histogram) {
  BsonBuilder e = out.OpenDocument(name);
  e.Append("latency", h.total_micros.Get()).Append("ops", h.operations.Get());
  if (!histogram) return;
  BsonArrayBuilder list = e.OpenArray("histogram");
  for (int i = 0; i < LatencyHistogram::kBuckets; ++i) {
    if (h.buckets[i] == 0) continue;
    BsonBuilder b = list.OpenDocument();
    b.Append("micros", int64_t{1} << i).Append("count", h.buckets[i].Get());
  }
}

namespace {

void OpLatencies(ServerContext& s, bool histograms, BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("opLatencies");
  auto one = [&](std::string_view name, const LatencyHistogram& h) {
    AppendLatency(d, name, h, histograms);
  };
  one("reads", s.metrics().reads);
  one("writes", s.metrics().writes);
  one("commands", s.metrics().commands);
  one("transactions", s.metrics().transactions);
}

void OpCounters(ServerContext& s, BsonBuilder& r) {
  auto& o = s.metrics().opcounters;
  BsonBuilder d = r.OpenDocument("opcounters");
  d.Append("insert", o.insert.Get())
      .Append("query", o.query.Get())
      .Append("update", o.update.Get());
  d.Append("delete", o.remove.Get())
      .Append("getmore", o.getmore.Get())
      .Append("command", o.command.Get());
}

/// What a member has applied of the changes of others; a standalone has none.
void OpCountersRepl(ServerContext& s, BsonBuilder& r) {
  static const LogApplier::Counts kNone;
  const LogApplier::Counts& c = s.replica_set() ? s.replica_set()->applied_counts() : kNone;
  BsonBuilder d = r.OpenDocument("opcountersRepl");
  d.Append("insert", c.inserts.load())
      .Append("query", int64_t{0})
      .Append("update", c.updates.load());
  d.Append("delete", c.deletes.load())
      .Append("getmore", int64_t{0})
      .Append("command", c.commands.load());
}

void StorageEngine(BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("storageEngine");
  d.Append("name", "rocksdb").Append("supportsCommittedReads", true);
  d.Append("oldestRequiredTimestampForCrashRecovery", int64_t{0})
      .Append("supportsPendingDrops", true);
  d.Append("dropPendingIdents", int64_t{0}).Append("supportsSnapshotReadConcern", true);
  d.Append("readOnly", false).Append("persistent", true).Append("backupCursorOpen", false);
}

/// The snapshots that are held: all of the store's, and those that reads with read concern snapshot
/// share.
void Snapshots(ServerContext& s, BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("snapshots");
  const KvSnapshotStats held = s.storage().kv().Snapshots();
  d.Append("held", held.held).Append("oldestAgeSecs", held.oldest_age_seconds);
  const SnapshotReads::Totals t = s.snapshot_reads().totals();
  BsonBuilder p = d.OpenDocument("snapshotReads");
  p.Append("points", t.points).Append("oldestAgeSecs", t.oldest_seconds);
  p.Append("windowSecs", s.settings().min_snapshot_history_window_secs.load());
  p.Append("tooOld", t.too_old);
}

/// The store's counters since the process began.
void StoreCounterStatus(StoreActivity& store, BsonBuilder& r) {
  const KvCounters c = store.Counters();
  {
    BsonBuilder cache = r.OpenDocument("blockCache");
    cache.Append("dataHits", c.data_hits).Append("dataMisses", c.data_misses);
    cache.Append("indexHits", c.index_hits).Append("indexMisses", c.index_misses);
    cache.Append("filterHits", c.filter_hits).Append("filterMisses", c.filter_misses);
    cache.Append("missedBytes", c.missed_bytes);
  }
  {
    BsonBuilder f = r.OpenDocument("filters");
    f.Append("keysLeftOut", c.key_filters_useful).Append("keysPassed", c.key_filters_passed);
    f.Append("keysPassedRightly", c.key_filters_right);
    f.Append("groupsAsked", c.group_filters_asked).Append("groupsLeftOut", c.group_filters_useful);
  }
  {
    BsonBuilder w = r.OpenDocument("writes");
    w.Append("bytes", c.written_bytes).Append("logBytes", c.log_bytes);
    w.Append("flushedBytes", c.flushed_bytes);
    w.Append("compactionReadBytes", c.compaction_read_bytes)
        .Append("compactionWrittenBytes", c.compaction_written_bytes);
    w.Append("amplification", c.WriteAmplification());
    w.Append("runningCompactions", static_cast<int32_t>(store.RunningCompactions()));
  }
  BsonBuilder stalls = r.OpenDocument("stalls");
  stalls.Append("slowdowns", c.slowdowns).Append("stops", c.stalls);
  stalls.Append("waitedMicros", c.stall_micros);
}

void ShapeStatus(const KvShape& shape, BsonBuilder& r) {
  {
    BsonArrayBuilder files = r.OpenArray("filesPerLevel");
    for (const uint32_t n : shape.files) files.Append(static_cast<int32_t>(n));
  }
  r.Append("memtables", static_cast<int32_t>(shape.memtables))
      .Append("sortedRuns", static_cast<int32_t>(shape.sorted_runs()));
}

void RocksDb(ServerContext& s, BsonBuilder& r) {
  static constexpr std::string_view kNames[kKeyspaceCount] = {"catalog", "records", "indexes",
                                                              "expiry",  "oplog",   "tombstones"};
  BsonBuilder d = r.OpenDocument("rocksdb");
  d.Append("memoryBytes", s.storage().kv().MemoryBytes());
  d.Append("spilledBytes", s.large_memory().spilled_bytes.load(std::memory_order_relaxed));
  StoreActivity* const activity = ActivityOf(s.storage().kv());
  if (activity != nullptr) StoreCounterStatus(*activity, d);
  for (int i = 0; i < kKeyspaceCount; ++i) {
    const KvStats x = s.storage().kv().Stats(static_cast<Keyspace>(i));
    BsonBuilder k = d.OpenDocument(kNames[i]);
    k.Append("estimatedKeys", x.estimated_keys).Append("liveBytes", x.live_bytes);
    k.Append("memtableBytes", x.memtable_bytes)
        .Append("pendingCompactionBytes", x.pending_compaction_bytes);
    if (activity != nullptr) ShapeStatus(activity->Shape(static_cast<Keyspace>(i)), k);
  }
}

void BackupSection(ServerContext& s, BsonBuilder& r) {
  const BackupFigures::Figures f = s.backups().Get();
  BsonBuilder d = r.OpenDocument("backup");
  d.Append("running", f.running > 0);
  if (f.running > 0) d.Append("bytesDone", f.bytes_done).Append("bytesTotal", f.bytes);
  d.Append("made", f.made).Append("failed", f.failed);
  if (f.last) {
    BsonBuilder l = d.OpenDocument("last");
    l.Append("id", f.last->id).Append("path", f.last->path).Append("time", f.last->time);
    l.Append("files", f.last->files).Append("bytes", f.last->bytes);
    l.Append("filesCopied", f.last->copied_files).Append("bytesCopied", f.last->copied_bytes);
    l.Append("durationMillis", f.last->duration_millis);
  }
  if (f.last_failure) {
    BsonBuilder l = d.OpenDocument("lastFailure");
    l.Append("path", f.last_failure->path).Append("time", f.last_failure->time);
    l.Append("error", f.last_failure->error);
  }
}

void AuditSection(ServerContext& s, BsonBuilder& r) {
  AuditLog* log = s.audit();
  if (log == nullptr) return;
  const AuditLog::State state = log->Check();
  BsonBuilder d = r.OpenDocument("auditLog");
  d.Append("written", state.written).Append("waiting", state.waiting).Append("lost", state.lost);
  d.Append("suppressed", state.suppressed);
  if (!state.error.empty()) d.Append("error", state.error);
}

void Mem(const ProcessFacts& f, BsonBuilder& r) {
  BsonBuilder d = r.OpenDocument("mem");
  d.Append("bits", int32_t{64}).Append("resident", static_cast<int32_t>(f.resident_bytes >> 20));
  d.Append("virtual", static_cast<int32_t>(f.virtual_bytes >> 20)).Append("supported", true);
}

void Metrics(ServerContext& s, Operation& op, BsonBuilder& r) {
  ServerMetrics& m = s.metrics();
  BsonBuilder d = r.OpenDocument("metrics");
  {
    BsonBuilder c = d.OpenDocument("commands");
    for (const CommandRow& row : s.commands().rows()) {
      if (row.counters->total.load(std::memory_order_relaxed) == 0) continue;
      BsonBuilder one = c.OpenDocument(row.name);
      one.Append("failed", row.counters->failed.load()).Append("total", row.counters->total.load());
    }
  }
  {
    const CursorManager::Totals t = s.cursors().totals();
    BsonBuilder c = d.OpenDocument("cursor");
    c.Append("moreThanOneBatch", t.more_than_one_batch).Append("timedOut", t.timed_out);
    c.Append("totalOpened", t.total_opened);
    BsonBuilder o = c.OpenDocument("open");
    o.Append("noTimeout", t.no_timeout).Append("pinned", t.pinned).Append("total", t.open);
  }
  {
    BsonBuilder c = d.OpenDocument("document");
    c.Append("deleted", m.documents.deleted.Get()).Append("inserted", m.documents.inserted.Get());
    c.Append("returned", m.documents.returned.Get()).Append("updated", m.documents.updated.Get());
  }
  {
    BsonBuilder c = d.OpenDocument("getLastError");
    c.OpenDocument("wtime")
        .Append("num", m.write_concern.waits.Get())
        .Append("totalMillis", m.write_concern.wait_micros.Get() / 1000);
    c.Append("wtimeouts", m.write_concern.wait_timeouts.Get());
    c.OpenDocument("default")
        .Append("unsatisfiable", m.write_concern.default_unsatisfiable.Get())
        .Append("wtimeouts", m.write_concern.default_timeouts.Get());
  }
  {
    BsonBuilder c = d.OpenDocument("operation");
    c.Append("killedDueToClientDisconnect", m.operation.disconnected.Get());
    c.Append("killedDueToMaxTimeMSExpired", m.operation.timed_out.Get());
    c.Append("killed", m.operation.killed_ops.Get());
    // Of those that clients sent: all others were answered on the threads that serve connections.
    c.Append("readsOnWorkers", s.short_reads().on_workers.load(std::memory_order_relaxed));
    c.Append("scanAndOrder", m.operation.scan_and_order.Get());
    c.Append("writeConflicts", m.operation.write_conflicts.Get());
  }
  {
    BsonBuilder c = d.OpenDocument("query");
    BsonBuilder sort = c.OpenDocument("sort");
    sort.Append("spillToDisk", m.query_sort.sort_spills.Get());
    sort.Append("totalBytesSorted", m.query_sort.sort_total_bytes.Get());
    sort.Append("totalKeysSorted", m.query_sort.sort_keys.Get());
  }
  {
    BsonBuilder c = d.OpenDocument("queryExecutor");
    c.Append("scanned", m.query_executor.scanned.Get());
    c.Append("scannedObjects", m.query_executor.scanned_objects.Get());
    BsonBuilder x = c.OpenDocument("collectionScans");
    x.Append("total", m.query_executor.collection_scans.Get());
    x.Done();
    c.Append("parallelRanges", QueryState::Of(s.storage()).parts_of_helpers.load());
  }
  BsonBuilder t = d.OpenDocument("ttl");
  t.Append("deletedDocuments", m.ttl.deleted_documents.Get());
  t.Append("deletedKeys", m.ttl.deleted_keys.Get());
  t.Append("durationMicros", m.ttl.duration_micros.Get());
  t.Append("examinedDocuments", m.ttl.examined_documents.Get());
  t.Append("examinedKeys", m.ttl.examined_keys.Get());
  t.Append("invalidTTLIndexSkips", m.ttl.invalid_index_skips.Get());
  t.Append("passes", m.ttl.passes.Get()).Append("subPasses", m.ttl.sub_passes.Get());
  AppendTtlMetrics(s, op, t);
}

Result<void> ServerStatus(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ServerContext& s = ctx.server;
  const Sections want(req);
  const ProcessFacts facts = ReadProcessFacts();
  const int64_t up = s.UptimeMillis();
  reply.Append("host", s.host_and_port())
      .Append("version", kCompatibleVersion)
      .Append("process", "mayflyd");
  {
    BsonArrayBuilder service = reply.OpenArray("service");
    service.Append("standalone");
  }
  reply.Append("pid", int64_t{::getpid()}).Append("uptime", static_cast<double>(up / 1000));
  reply.Append("uptimeMillis", up)
      .Append("uptimeEstimate", up / 1000)
      .Append("localTime", s.clock().Now());
  reply.Append("mayflyVersion", kMayflyVersion);
  if (want.Want("asserts")) Asserts(s, reply);
  if (want.Want("auditLog")) AuditSection(s, reply);
  if (want.Want("batchedDeletes")) BatchedDeletes(s, reply);
  if (want.Want("backup")) BackupSection(s, reply);
  if (want.Want("catalogStats")) CatalogStats(s, reply);
  if (want.Want("connections")) Connections(s, reply);
  if (want.Want("encryptionAtRest")) EncryptionAtRest(s, reply);
  if (want.Want("extra_info")) ExtraInfo(facts, reply);
  if (want.Want("globalLock")) GlobalLock(s, reply);
  if (want.Want("indexBuilds")) IndexBuilds(s, reply);
  if (want.Want("locks")) reply.OpenDocument("locks").Done();
  if (want.Want("logicalSessionRecordCache")) SessionCache(s, reply);
  if (want.Want("network")) NetworkStatus(s, reply);
  if (want.Want("opLatencies")) {
    bool histograms = false;
    if (BsonValue v = req.body["opLatencies"]; v.IsDocument())
      histograms = v.Document()["histograms"].Truthy();
    OpLatencies(s, histograms, reply);
  }
  if (want.Want("opcounters")) OpCounters(s, reply);
  if (want.Want("opcountersRepl")) OpCountersRepl(s, reply);
  if (want.Want("queues")) Queues(s, reply);
  if (want.Want("rocksdb")) RocksDb(s, reply);
  if (want.Want("security")) {
    BsonBuilder security = reply.OpenDocument("security");
    AppendTlsCertificate(s, security);
    security.OpenDocument("failedLogins")
        .Append("suppressed", s.access().backoff().told().suppressed());
  }
  if (want.Want("snapshots")) Snapshots(s, reply);
  if (want.Want("storageEngine")) StorageEngine(reply);
  if (want.Want("transactions")) {
    BsonBuilder transactions = reply.OpenDocument("transactions");
    AppendTransactionStatus(s, transactions);
  }
  if (want.Want("transportSecurity")) AppendTransportSecurity(s, reply);
  for (auto& hook : s.server_status_hooks) hook(reply);
  if (want.Want("mem")) Mem(facts, reply);
  if (want.Want("metrics")) Metrics(s, ctx.op, reply);
  return Ok();
}

}  // namespace

void RegisterServerStatus(CommandRegistry& registry) {
  registry.Add({.name = "serverStatus",
                .flags = kSecondaryOk | kWorker,
                .help = "Counters and state of the server; {section: 0} leaves one out.",
                .run = &ServerStatus,
                .privileges = &privileges::OnCluster<Action::serverStatus>});
}

}  // namespace mayfly

#include "server/dispatch/parameter_table.h"

#include <charconv>

#include "query/sort/spill_file.h"
#include "server/dispatch/config.h"
#include "server/dispatch/server_context.h"
#include "server/dispatch/short_reads.h"

namespace mayfly {

namespace {

Error WrongType(std::string_view name, BsonValue v, std::string_view expected) {
  return {ErrorCode::kTypeMismatch, "Invalid value for parameter " + std::string(name) +
                                        ": wrong type '" + std::string(BsonTypeName(v.type())) +
                                        "', expected " + std::string(expected)};
}

Error BothUmasks() {
  return {ErrorCode::kBadValue, "processUmask and honorSystemUmask: true exclude each other"};
}

void AppendVerbosity(const Log& log, BsonBuilder& out, std::string_view name) {
  BsonBuilder all = out.OpenDocument(name);
  all.Append("verbosity", static_cast<int32_t>(log.verbosity(LogComponent::kDefault)));
  for (int i = 1; i < static_cast<int>(LogComponent::kCount); ++i) {
    const auto c = static_cast<LogComponent>(i);
    BsonBuilder one = all.OpenDocument(LogComponentConfigName(c));
    one.Append("verbosity", static_cast<int32_t>(log.verbosity(c)));
  }
}

Result<int> Level(std::string_view where, BsonValue v) {
  if (!v.IsNumber()) return WrongType(where, v, "a number");
  const int64_t n = v.NumberAsInt64();
  if (n < -1 || n > 5)
    return Error{ErrorCode::kBadValue,
                 "Invalid log verbosity for " + std::string(where) + ": " + std::to_string(n)};
  return static_cast<int>(n);
}

/// {verbosity: 2, network: {verbosity: 1}}: all of it or nothing.
Result<void> SetVerbosity(Log& log, BsonValue v) {
  if (!v.IsDocument()) return WrongType("logComponentVerbosity", v, "an object");
  std::vector<std::pair<LogComponent, int>> changes;
  for (const BsonElement& e : v.Document()) {
    if (e.name == "verbosity") {
      MAYFLY_TRY(int level, Level("default", e.value));
      changes.emplace_back(LogComponent::kDefault, level);
      continue;
    }
    const LogComponent c = LogComponentByName(e.name);
    if (c == LogComponent::kDefault)
      return Error{ErrorCode::kBadValue, "Invalid component name: " + std::string(e.name)};
    BsonValue number = e.value;
    if (e.value.IsDocument()) {
      for (const BsonElement& inner : e.value.Document())
        if (inner.name != "verbosity")
          return Error{ErrorCode::kBadValue, "Invalid component name: " + std::string(e.name) +
                                                 "." + std::string(inner.name)};
      number = e.value.Document()["verbosity"];
      if (number.missing()) continue;
    }
    MAYFLY_TRY(int level, Level(e.name, number));
    changes.emplace_back(c, level);
  }
  for (auto [c, level] : changes) log.SetVerbosity(c, level);
  return Ok();
}

void RegisterTtl(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  TtlParameters& t = server.ttl_settings();
  constexpr int64_t kMax = INT32_MAX;
  auto changed = [&t] { t.Changed(); };
  p.AddBool("ttlMonitorEnabled", &t.monitor_enabled, "Whether expired documents are removed.",
            changed);
  p.AddInt("ttlMonitorSleepSecs", &t.monitor_sleep_secs, 1, kMax,
           "Seconds between passes of the TTL monitor.", changed);
  p.AddBool("ttlMonitorBatchDeletes", &t.batch_deletes,
            "Delete in batches, round-robin over the indexes.", changed);
  p.AddInt("ttlMonitorSubPassTargetSecs", &t.sub_pass_target_secs, 0, kMax,
           "Seconds after which a sub-pass ends; 0: each index once.", changed);
  p.AddInt("ttlIndexDeleteTargetTimeMS", &t.index_delete_target_time_ms, 0, kMax,
           "Milliseconds of one visit to an index; 0: no limit.", changed, false);
  p.AddInt("ttlIndexDeleteTargetDocs", &t.index_delete_target_docs, 0, INT64_MAX,
           "Documents of one visit to an index; 0: no limit.", changed, false);
  p.AddInt("batchedDeletesTargetBatchDocs", &t.batch_target_docs, 0, INT64_MAX,
           "Documents a batch of deletes; 0: no limit.", changed, false);
  p.AddInt("batchedDeletesTargetBatchTimeMS", &t.batch_target_time_ms, 0, INT64_MAX,
           "Milliseconds a batch of deletes; 0: no limit.", changed, false);
  p.AddInt("batchedDeletesTargetStagedDocBytes", &t.batch_target_staged_bytes, 0, INT64_MAX,
           "Bytes of documents a batch of deletes; 0: no limit.", changed, false);
  p.AddBool("ttlReadFilter", &t.read_filter,
            "TTL indexes hide what is past its deadline before it is removed, unless they have "
            "expireReads: 'lazy'.",
            changed);
  p.AddInt("metadataPurgeIntervalSecs", &t.metadata_purge_secs, 0, kMax,
           "Seconds a tombstone of a removed document is kept; 0: none are written.", changed);
  p.AddEnum("ttlMonitorMode", &t.monitor_mode, {"precise", "interval"},
            "precise: the reaper wakes at each deadline; interval: passes only.", changed);
  p.AddInt("ttlMaxDocsPerSecond", &t.max_docs_per_second, 0, kMax,
           "Documents a second that the TTL monitor deletes, over all rules; 0: no limit.", changed,
           false);
  p.AddInt(
      "ttlMaxDowntimeSecs", &t.max_downtime_secs, 0, kMax,
      "Expiry is suspended when the clock at start-up says that the server was off for longer, "
      "until it is confirmed; 0: never.",
      changed, false);
  p.AddInt("ttlMaxClockJumpSecs", &t.max_clock_jump_secs, 0, kMax,
           "A jump of the clock beyond this suspends expiry until it is confirmed; 0: none does.",
           changed, false);
  p.AddEnum("ttlCompoundIndexes", &t.compound_indexes, {"reject", "ignore"},
            "What expireAfterSeconds on a compound index does.", changed);
  p.AddDouble("ttlGuardMaxFraction", &t.guard_max_fraction, 0, 1,
              "Share of a collection that a new or changed rule may remove at once.");
  p.AddInt("ttlGuardMinDocs", &t.guard_min_docs, 0, INT64_MAX,
           "Documents below which the guard says nothing.", {}, false);
  p.AddEnum("ttlGuardAction", &t.guard_action, {"warn", "hold", "off"},
            "What the guard does with a rule that would remove more: log, hold, or nothing.");
}

void RegisterMember(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  MemberParameters& m = server.member_parameters();
  p.AddBool("allowOldMemberHandshake", &m.allow_old_member_handshake,
            "Talk to members of earlier versions as well, whose handshake lets anybody who "
            "connects guess the key file.");
  p.Add({.name = "writePeriodicNoops",
         .help = "Whether an idle primary writes a note into the log every ten seconds.",
         .at_runtime = false,
         .get = [&m](BsonBuilder& b,
                     std::string_view n) { b.Append(n, m.write_periodic_noops.load()); },
         .set = [&m](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber())
             return WrongType("writePeriodicNoops", v, "bool");
           m.write_periodic_noops = v.Truthy();
           return Ok();
         }});
}

/// What operations may take, and how long what they leave is kept.
void RegisterOperations(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  ServerParameters& s = server.settings();
  p.AddInt("cursorTimeoutMillis", &s.cursor_timeout_millis, 1, INT64_MAX,
           "Milliseconds after which an idle cursor closes.", {}, false);
  p.AddInt("clientCursorMonitorFrequencySecs", &s.client_cursor_monitor_frequency_secs, 1, 3600,
           "Seconds between looks for idle cursors.");
  p.AddInt("minSnapshotHistoryWindowInSeconds", &s.min_snapshot_history_window_secs, 0, 86'400,
           "Seconds that a point in time is kept for reads with read concern snapshot, and for the "
           "cursors they opened.");
  p.AddInt("localLogicalSessionTimeoutMinutes", &s.local_session_timeout_minutes, 1, 1'000'000,
           "Minutes after which an unused session ends.");
  p.AddInt("logicalSessionRefreshMillis", &s.logical_session_refresh_millis, 1000, INT32_MAX,
           "Milliseconds between writes of sessions to config.system.sessions.");
  p.AddInt("defaultMaxTimeMS", &s.max_time_ms_default, 0, INT32_MAX,
           "maxTimeMS of reads that bring none; 0: no limit.");
  p.AddInt("shortReadSliceMicros", &server.short_reads().slice_micros, 0, 100'000,
           "Microseconds a read may take on the thread that serves its connection before it goes "
           "to a worker; 0: at once.");
  p.AddBool("requireApiVersion", &s.require_api_version, "Refuse commands without apiVersion.");
  p.AddBool("auditFailClosed", &s.audit_fail_closed,
            "Refuse commands that change what expires while the audit log cannot be written.");
  p.AddInt("spillMaxBytes", &TheSpillLimits().total, 0, INT64_MAX,
           "Bytes of disk that all operations together may spill to; 0: half of what is free.", {},
           false);
  p.AddInt("spillMaxBytesPerOperation", &TheSpillLimits().per_operation, 0, INT64_MAX,
           "Bytes of disk that one operation may spill to; 0: half of what all together may.", {},
           false);
  p.AddInt("internalQueryMaxBlockingSortMemoryUsageBytes",
           &s.internal_query_max_blocking_sort_bytes, 1, INT64_MAX,
           "Memory of one sort before it spills to disk or fails.", {}, false);
  p.AddInt("internalDocumentSourceGroupMaxMemoryBytes", &s.internal_document_source_group_max_bytes,
           1, INT64_MAX, "Memory of one $group before it spills to disk or fails.", {}, false);
}

void RegisterUmask(ParameterRegistry& p, ServerParameters& s) {
  p.Add({.name = "honorSystemUmask",
         .help = "Leave the umask that the process was started with.",
         .at_runtime = false,
         .get = [&s](BsonBuilder& b,
                     std::string_view n) { b.Append(n, s.honor_system_umask.load()); },
         .set = [&s](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool)) return WrongType("honorSystemUmask", v, "bool");
           if (v.Bool() && s.process_umask >= 0) return BothUmasks();
           s.honor_system_umask = v.Bool();
           return Ok();
         }});
  p.Add({.name = "processUmask",
         .help = "The umask of group and others, octal; default 077: files are the owner's alone.",
         .at_runtime = false,
         .get =
             [&s](BsonBuilder& b, std::string_view n) {
               const int mask = s.process_umask < 0 ? 077 : s.process_umask.load();
               const char octal[] = {'0', static_cast<char>('0' + (mask >> 3 & 7)),
                                     static_cast<char>('0' + (mask & 7))};
               b.Append(n, std::string_view(octal, 3));
             },
         .set = [&s](BsonValue v) -> Result<void> {
           // From the command line 027 comes as the number that its digits are.
           std::string text = v.IsString()   ? std::string(v.String())
                              : v.IsNumber() ? std::to_string(v.NumberAsInt64())
                                             : "";
           int mask = 0;
           auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), mask, 8);
           if (text.empty() || ec != std::errc() || end != text.data() + text.size() || mask < 0 ||
               mask > 0777)
             return Error{ErrorCode::kBadValue,
                          "processUmask must be an octal number from 000 to 777, such as 027"};
           if (s.honor_system_umask) return BothUmasks();
           s.process_umask = mask & 077;
           return Ok();
         }});
}

void RegisterForTests(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  ServerParameters& s = server.settings();
  IoWatchdog& w = server.io_watchdog();
  p.Add({.name = "enableTestCommands",
         .help = "Whether commands for tests, such as configureFailPoint, are there.",
         .at_runtime = false,
         .get = [&s](BsonBuilder& b,
                     std::string_view n) { b.Append(n, s.enable_test_commands.load()); },
         .set = [&s](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber())
             return WrongType("enableTestCommands", v, "bool");
           s.enable_test_commands = v.Truthy();
           return Ok();
         }});
  p.Add(
      {.name = "ioThreadWatchdogMicros",
       .help = "For tests: report what keeps a thread that serves connections busy for longer; 0: "
               "nothing.",
       .at_runtime = false,
       .get = [&w](BsonBuilder& b, std::string_view n) { b.Append(n, w.limit_micros.load()); },
       .set = [&w](BsonValue v) -> Result<void> {
         if (!v.IsNumber()) return WrongType("ioThreadWatchdogMicros", v, "a number");
         const int64_t n = v.NumberAsInt64();
         if (n < 0 || n > 60'000'000)
           return Error{ErrorCode::kBadValue,
                        "Invalid value for parameter ioThreadWatchdogMicros: " + std::to_string(n) +
                            " is not between 0 and 60000000"};
         w.limit_micros = n;
         return Ok();
       }});
}

void RegisterLog(ParameterRegistry& p, Log& log) {
  p.Add({.name = "logLevel",
         .help = "Verbosity of the log, 0 to 5.",
         .get =
             [&log](BsonBuilder& b, std::string_view n) {
               b.Append(n, static_cast<int32_t>(log.verbosity(LogComponent::kDefault)));
             },
         .set = [&log](BsonValue v) -> Result<void> {
           if (!v.IsNumber()) return WrongType("logLevel", v, "a number");
           const int64_t n = v.NumberAsInt64();
           if (n < 0 || n > 5)
             return Error{ErrorCode::kBadValue, "Invalid value for parameter logLevel: " +
                                                    std::to_string(n) + " is not between 0 and 5"};
           log.SetVerbosity(LogComponent::kDefault, static_cast<int>(n));
           return Ok();
         }});
  p.Add({.name = "logComponentVerbosity",
         .help = "Verbosity by component: {verbosity: 1, network: {verbosity: 2}}; -1 inherits.",
         .at_startup = false,
         .get = [&log](BsonBuilder& b, std::string_view n) { AppendVerbosity(log, b, n); },
         .set = [&log](BsonValue v) { return SetVerbosity(log, v); }});
  p.Add({.name = "quiet",
         .help = "Fewer lines about connections.",
         .get = [&log](BsonBuilder& b, std::string_view n) { b.Append(n, log.quiet()); },
         .set = [&log](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber()) return WrongType("quiet", v, "bool");
           log.set_quiet(v.Truthy());
           return Ok();
         }});
}

/// What can only be asked for.
void RegisterFacts(ParameterRegistry& p, const ServerConfig& config) {
  p.Add({.name = "featureCompatibilityVersion",
         .help = "The MongoDB release whose behaviour and formats are answered.",
         .at_startup = false,
         .at_runtime = false,
         .get = [](BsonBuilder& b, std::string_view n) {
           b.OpenDocument(n).Append("version", kCompatibleVersion.substr(0, 3));
         }});
  p.Add({.name = "authenticationMechanisms",
         .help = "Mechanisms a client may log in with: none, there is no access control.",
         .at_startup = false,
         .at_runtime = false,
         .get = [](BsonBuilder& b, std::string_view n) { b.OpenArray(n).Done(); }});
  p.AddReadOnlyInt("maxBSONDepth", kMaxBsonDepth + 20,
                   "Deepest nesting of BSON; of a document that is stored, 20 less.");
  p.AddReadOnlyInt("ioThreads", config.EffectiveIoThreads(),
                   "Threads that read and write sockets.");
  p.AddReadOnlyInt("workerThreads", config.EffectiveWorkerThreads(),
                   "Threads for long operations.");
}

}  // namespace

void RegisterParameters(ServerContext& server) {
  RegisterTtl(server);
  RegisterMember(server);
  RegisterOperations(server);
  RegisterUmask(server.parameters(), server.settings());
  RegisterForTests(server);
  RegisterLog(server.parameters(), server.log());
  RegisterFacts(server.parameters(), server.config());
}

}  // namespace mayfly

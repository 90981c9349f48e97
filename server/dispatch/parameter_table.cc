#include "server/dispatch/parameter_table.h"

#include <charconv>

#include "protocol/extended_json.h"
#include "query/sort/spill_file.h"
#include "security/tls.h"
#include "server/access/access_documents.h"
#include "server/base/log_redaction.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/dispatch/short_reads.h"
#include "server/dispatch/tls_settings.h"
#include "storage/schema/definition_memory.h"

namespace mayfly {

namespace {

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
  if (!v.IsNumber()) return WrongParameterType(where, v, "a number");
  const int64_t n = v.NumberAsInt64();
  if (n < -1 || n > 5)
    return Error{ErrorCode::kBadValue,
                 "Invalid log verbosity for " + std::string(where) + ": " + std::to_string(n)};
  return static_cast<int>(n);
}

/// {verbosity: 2, network: {verbosity: 1}}: all of it or nothing.
Result<void> SetVerbosity(Log& log, BsonValue v) {
  if (!v.IsDocument()) return WrongParameterType("logComponentVerbosity", v, "an object");
  MAYFLY_TRY(ArgReader("logComponentVerbosity", v.Document()).FinishLoose());
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
      MAYFLY_TRY(ArgReader("logComponentVerbosity." + std::string(e.name), e.value.Document())
                     .FinishLoose());
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
         .help = "Whether an idle primary writes a note into the log now and then.",
         .at_runtime = false,
         .get = [&m](BsonBuilder& b,
                     std::string_view n) { b.Append(n, m.write_periodic_noops.load()); },
         .set = [&m](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber())
             return WrongParameterType("writePeriodicNoops", v, "bool");
           m.write_periodic_noops = v.Truthy();
           return Ok();
         }});
  p.Add({.name = "periodicNoopIntervalSecs",
         .help = "Seconds after which an idle primary writes a note into the log.",
         .at_runtime = false,
         .get =
             [&m](BsonBuilder& b, std::string_view n) {
               b.Append(n, static_cast<int32_t>(m.periodic_noop_secs.load()));
             },
         .set = [&m](BsonValue v) -> Result<void> {
           if (!v.IsNumber()) return WrongParameterType("periodicNoopIntervalSecs", v, "a number");
           const int64_t seconds = v.NumberAsInt64();
           if (seconds < 1 || seconds > 3600)
             return Error{ErrorCode::kBadValue,
                          "Invalid value for parameter periodicNoopIntervalSecs: " +
                              std::to_string(seconds) + " is not between 1 and 3600"};
           m.periodic_noop_secs = seconds;
           return Ok();
         }});
}

/// Limits of operations, and retention of their results.
Error NoAuditLog(std::string_view parameter) {
  return {ErrorCode::kIllegalOperation,
          std::string(parameter) + ": there is no audit log (auditDestination none)"};
}

/// {…}, or the same as text, as --auditFilter takes it.
Result<void> SetAuditFilter(ServerContext& server, BsonValue v) {
  AuditLog* log = server.audit();
  if (log == nullptr) return NoAuditLog("auditFilter");
  if (v.IsDocument()) return log->SetFilter(v.Document());
  if (!v.IsString()) return WrongParameterType("auditFilter", v, "an object or a string");
  MAYFLY_TRY(BsonDocument filter, ParseAuditFilter(v.String()));
  return log->SetFilter(filter);
}

void RegisterAudit(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  ServerParameters& s = server.settings();
  AuditLog* log = server.audit();
  p.AddBool("auditFailClosed", &s.audit_fail_closed,
            "Refuse what leaves an audit entry while the audit log cannot be written.", [log, &s] {
              if (log != nullptr) log->set_fail_closed(s.audit_fail_closed);
            });
  p.AddInt("auditRefusedPerMinute", &s.audit_refused_per_minute, 0, RefusedCommands::kMaxLimit,
           "Refused commands of a user from one address that are audited each in a minute; the "
           "others are counted. 0: all.",
           [log, &s] {
             if (log != nullptr) log->set_refused_limit(s.audit_refused_per_minute);
           });
  p.Add({.name = "auditAuthorizationSuccess",
         .help = "Audit commands that were allowed (authCheck), not only those that were refused.",
         .get = [log](BsonBuilder& b,
                      std::string_view n) { b.Append(n, log != nullptr && log->all_checks()); },
         .set = [log](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber())
             return WrongParameterType("auditAuthorizationSuccess", v, "bool");
           if (log == nullptr && v.Truthy()) return NoAuditLog("auditAuthorizationSuccess");
           if (log != nullptr) log->set_all_checks(v.Truthy());
           return Ok();
         }});
  p.Add({.name = "auditFilter",
         .help = "Which events are audited: a query filter; {}: all.",
         .at_startup = false,
         .get =
             [&server](BsonBuilder& b, std::string_view n) {
               AuditLog* log = server.audit();
               b.Append(n, log != nullptr ? log->filter() : BsonDocument());
             },
         .set = [&server](BsonValue v) { return SetAuditFilter(server, v); }});
}

void RegisterOperations(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  ServerParameters& s = server.settings();
  p.AddBool("timeSeriesSealing", &s.series_sealing,
            "Buckets of time series are merged and compressed in the background");
  p.AddInt("timeSeriesSealIdleSecs", &s.series_idle_secs, 0, 86'400,
           "Seconds without a point of a meta value and span before its buckets are sealed");
  p.AddInt("timeSeriesOpenGroups", &s.series_open_groups, 100, 10'000'000,
           "Meta values and spans whose buckets are kept in mind to be merged; what is beyond is "
           "looked for later");
  p.AddInt("timeSeriesCursorLifeSecs", &s.series_cursor_life_secs, 1, 86'400,
           "Seconds for which a cursor over a time series can read; the store keeps for it what is "
           "removed meanwhile");
  p.AddInt("cursorTimeoutMillis", &s.cursor_timeout_millis, 1, INT64_MAX,
           "Milliseconds after which an idle cursor closes.", {}, false);
  p.AddInt("clientCursorMonitorFrequencySecs", &s.client_cursor_monitor_frequency_secs, 1, 3600,
           "Seconds between looks for idle cursors.");
  p.AddInt("minSnapshotHistoryWindowInSeconds", &s.min_snapshot_history_window_secs, 0, 86'400,
           "Seconds that a point in time is kept for reads with read concern snapshot, and for the "
           "cursors they opened.");
  TransactionParameters& t = server.snapshot_reads().transaction_parameters();
  p.AddInt("transactionLifetimeLimitSeconds", &t.lifetime_secs, 1, INT32_MAX,
           "Seconds after which an open transaction is aborted.");
  p.AddInt("maxTransactionLockRequestTimeoutMillis", &t.lock_wait_millis, 0, 60'000,
           "Milliseconds that a transaction waits for a lock of a plain write.");
  p.AddInt("localLogicalSessionTimeoutMinutes", &s.local_session_timeout_minutes, 1, 1'000'000,
           "Minutes after which an unused session ends.");
  p.AddInt("logicalSessionRefreshMillis", &s.logical_session_refresh_millis, 1000, INT32_MAX,
           "Milliseconds between writes of sessions to config.system.sessions.");
  p.AddInt("defaultMaxTimeMS", &s.max_time_ms_default, 0, INT32_MAX,
           "maxTimeMS of reads that bring none; 0: no limit.");
  p.AddInt("shortReadSliceMicros", &server.short_reads().slice_micros, 0, 100'000,
           "Microseconds a read may take on the thread that serves its connection before it goes "
           "to a worker; 0: at once.");
  p.AddInt("internalQueryScanHelpers", &server.short_reads().scan_helpers, 0, 64,
           "Threads that may help long scans of collections, all scans together; 0: none.");
  p.AddInt("internalQueryScanHelpAfter", &server.short_reads().scan_help_after, 1, int64_t{1} << 40,
           "Documents that a scan reads before others help it.");
  p.AddBool("requireApiVersion", &s.require_api_version, "Refuse commands without apiVersion.");
  RegisterAudit(server);
  p.AddInt("spillMaxBytes", &server.large_memory().spill_limit, 0, INT64_MAX,
           "Bytes of disk that all operations together may spill to; 0: half of what is free.", {},
           false);
  p.AddInt("spillMaxBytesPerOperation", &server.large_memory().spill_operation_limit, 0, INT64_MAX,
           "Bytes of disk that one operation may spill to; 0: half of what all together may.", {},
           false);
  p.AddInt(
      "catalogMaxBytes", &DefinitionLimit(), 0, INT64_MAX,
      "Bytes of memory that the definitions of all collections, views and indexes may take; 0: "
      "a quarter of what large values may take.",
      {}, false);
  p.AddInt("internalQueryMaxBlockingSortMemoryUsageBytes",
           &s.internal_query_max_blocking_sort_bytes, 1, INT64_MAX,
           "Memory of one sort before it spills to disk or fails.", {}, false);
  p.AddInt("internalDocumentSourceGroupMaxMemoryBytes", &s.internal_document_source_group_max_bytes,
           1, INT64_MAX, "Memory of one $group before it spills to disk or fails.", {}, false);
  p.AddBool(
      "internalQueryRewriteTimeSeries", &s.internal_query_rewrite_time_series,
      "Ask filters, fields and orders of a time series' points of its buckets where possible.");
}

void RegisterUmask(ParameterRegistry& p, ServerParameters& s) {
  p.Add({.name = "honorSystemUmask",
         .help = "Leave the umask that the process was started with.",
         .at_runtime = false,
         .get = [&s](BsonBuilder& b,
                     std::string_view n) { b.Append(n, s.honor_system_umask.load()); },
         .set = [&s](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool)) return WrongParameterType("honorSystemUmask", v, "bool");
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
             return WrongParameterType("enableTestCommands", v, "bool");
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
         if (!v.IsNumber()) return WrongParameterType("ioThreadWatchdogMicros", v, "a number");
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
           if (!v.IsNumber()) return WrongParameterType("logLevel", v, "a number");
           const int64_t n = v.NumberAsInt64();
           if (n < 0 || n > 5)
             return Error{ErrorCode::kBadValue, "Invalid value for parameter logLevel: " +
                                                    std::to_string(n) + " is not between 0 and 5"};
           log.SetVerbosity(LogComponent::kDefault, static_cast<int>(n));
           return Ok();
         }});
  p.Add({.name = "logComponentVerbosity",
         .help = "Verbosity by component: {verbosity: 1, network: {verbosity: 2}}; -1 inherits.",
         .get = [&log](BsonBuilder& b, std::string_view n) { AppendVerbosity(log, b, n); },
         .set = [&log](BsonValue v) { return SetVerbosity(log, v); }});
  p.Add({.name = "redactClientLogData",
         .help = "Whether what clients have sent shows as ### in the log.",
         .get = [](BsonBuilder& b, std::string_view n) { b.Append(n, LogRedaction().load()); },
         .set = [](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber())
             return WrongParameterType("redactClientLogData", v, "bool");
           LogRedaction() = v.Truthy();
           return Ok();
         }});
  p.Add({.name = "quiet",
         .help = "Fewer lines about connections.",
         .get = [&log](BsonBuilder& b, std::string_view n) { b.Append(n, log.quiet()); },
         .set = [&log](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool) && !v.IsNumber())
             return WrongParameterType("quiet", v, "bool");
           log.set_quiet(v.Truthy());
           return Ok();
         }});
}

/// A text that is given at start-up alone.
void AddStartupText(ParameterRegistry& p, std::string_view name, std::string_view help,
                    std::string* value) {
  p.Add({.name = std::string(name),
         .help = std::string(help),
         .at_runtime = false,
         .get = [value](BsonBuilder& b, std::string_view n) { b.Append(n, *value); },
         .set = [value, name](BsonValue v) -> Result<void> {
           if (!v.IsString()) return WrongParameterType(name, v, "a string");
           *value = v.String();
           return Ok();
         }});
}

/// {attributes} or {extensionValue}, also as text on the command line.
Result<void> SetMemberOverride(TlsOptions& o, BsonValue v) {
  constexpr std::string_view kName = "tlsClusterAuthX509Override";
  BsonDocument parsed;
  if (v.IsString()) {
    auto json = ParseJson(v.String());
    if (!json) return Error{ErrorCode::kBadValue, std::string(kName) + ": " + json.error().message};
    parsed = std::move(json).value();
  } else if (!v.IsDocument()) {
    return WrongParameterType(kName, v, "an object");
  }
  ArgReader in(kName, v.IsString() ? parsed.view() : v.Document());
  o.other_member_attributes = in.StringOr("attributes", "");
  o.other_member_extension = in.StringOr("extensionValue", "");
  return in.Finish();
}

void AddMemberOverride(ParameterRegistry& p, TlsOptions& o) {
  p.Add({.name = "tlsClusterAuthX509Override",
         .help = "{attributes} or {extensionValue}: certificates with these are those of members "
                 "too.",
         .at_runtime = false,
         .get =
             [&o](BsonBuilder& b, std::string_view n) {
               BsonBuilder d = b.OpenDocument(n);
               if (!o.other_member_attributes.empty())
                 d.Append("attributes", o.other_member_attributes);
               if (!o.other_member_extension.empty())
                 d.Append("extensionValue", o.other_member_extension);
             },
         .set = [&o](BsonValue v) { return SetMemberOverride(o, v); }});
}

void RegisterTls(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  TlsSettings& t = server.tls_settings();
  TlsOptions& o = t.options;
  p.Add({.name = "tlsMode",
         .help = "Which connections are encrypted: at run time from allowTLS to preferTLS, and "
                 "from that to requireTLS.",
         .at_startup = false,
         .get = [&server](BsonBuilder& b,
                          std::string_view n) { b.Append(n, TlsModeName(server.tls().mode())); },
         .set = [&server](BsonValue v) -> Result<void> {
           if (!v.IsString()) return WrongParameterType("tlsMode", v, "a string");
           const std::optional<TlsMode> mode = TlsModeByName(v.String());
           if (!mode)
             return Error{ErrorCode::kBadValue, "Invalid value for parameter tlsMode: \"" +
                                                    std::string(v.String()) +
                                                    "\" is not preferTLS or requireTLS"};
           return server.tls().SetMode(*mode);
         }});
  p.Add({.name = "clusterAuthMode",
         .help = "How members prove themselves: at run time from sendKeyFile to sendX509, and from "
                 "that to x509.",
         .at_startup = false,
         .get =
             [&server](BsonBuilder& b, std::string_view n) {
               b.Append(n, ClusterAuthModeName(server.tls().cluster_auth()));
             },
         .set = [&server](BsonValue v) -> Result<void> {
           if (!v.IsString()) return WrongParameterType("clusterAuthMode", v, "a string");
           const std::optional<ClusterAuthMode> mode = ClusterAuthModeByName(v.String());
           if (!mode)
             return Error{ErrorCode::kBadValue, "Invalid value for parameter clusterAuthMode: \"" +
                                                    std::string(v.String()) +
                                                    "\" is not sendX509 or x509"};
           return server.tls().SetClusterAuth(*mode);
         }});
  AddStartupText(p, "tlsX509ClusterAuthDNOverride",
                 "Certificates with the O, OU and DC of this name are those of members too.",
                 &o.member_name_override);
  AddMemberOverride(p, o);
  p.AddInt("tlsHandshakeTimeoutMillis", &t.handshake_timeout_millis, 100, 600'000,
           "Milliseconds from the beginning of a connection that uses TLS to the end of its "
           "handshake.");
  p.AddInt("tlsMaxHandshakes", &t.max_handshakes, 1, 100'000,
           "TLS handshakes that may be under way; beyond that the oldest one ends.");
  AddStartupText(p, "opensslCipherConfig", "Ciphers of TLS 1.2, as OpenSSL writes a list of them.",
                 &o.ciphers);
  AddStartupText(p, "opensslCipherSuiteConfig",
                 "Cipher suites of TLS 1.3, as OpenSSL writes a list of them.", &o.cipher_suites);
  p.Add({.name = "tlsUseSystemCA",
         .help = "Without tlsCAFile: other members are trusted that the system trusts.",
         .at_runtime = false,
         .get = [&o](BsonBuilder& b, std::string_view n) { b.Append(n, o.use_system_ca); },
         .set = [&o](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool)) return WrongParameterType("tlsUseSystemCA", v, "bool");
           o.use_system_ca = v.Bool();
           return Ok();
         }});
  p.Add({.name = "tlsX509ExpirationWarningThresholdDays",
         .help = "Days before the end of a certificate from which on the log warns; 0: never.",
         .at_runtime = false,
         .get =
             [&o](BsonBuilder& b, std::string_view n) {
               b.Append(n, static_cast<int32_t>(o.expiry_warning_days));
             },
         .set = [&o](BsonValue v) -> Result<void> {
           const std::string_view name = "tlsX509ExpirationWarningThresholdDays";
           if (!v.IsNumber()) return WrongParameterType(name, v, "a number");
           const int64_t n = v.NumberAsInt64();
           if (n < 0 || n > 36'500)
             return Error{ErrorCode::kBadValue, "Invalid value for parameter " + std::string(name) +
                                                    ": " + std::to_string(n) +
                                                    " is not between 0 and 36500"};
           o.expiry_warning_days = n;
           return Ok();
         }});
}

/// For logins.
void AddStartupBool(ParameterRegistry& p, std::string_view name, std::string_view help,
                    bool* value) {
  p.Add({.name = std::string(name),
         .help = std::string(help),
         .at_runtime = false,
         .get = [value](BsonBuilder& b, std::string_view n) { b.Append(n, *value); },
         .set = [value, name](BsonValue v) -> Result<void> {
           if (!v.Is(BsonType::kBool)) return WrongParameterType(name, v, "bool");
           *value = v.Bool();
           return Ok();
         }});
}

constexpr std::string_view kX509Mechanism = "MONGODB-X509";
constexpr int64_t kMaxTimeKeySeconds = 10LL * 365 * 86'400;

void RegisterAccess(ServerContext& server) {
  ParameterRegistry& p = server.parameters();
  AccessParameters& a = server.access().parameters();
  p.AddInt("scramIterationCount", &a.sha1_iterations, kMinScramIterations, kMaxScramIterations,
           "Rounds of hashing of a new SCRAM-SHA-1 password.");
  p.AddInt("scramSHA256IterationCount", &a.sha256_iterations, kMinScramIterations,
           kMaxScramIterations, "Rounds of hashing of a new SCRAM-SHA-256 password.");
  p.AddInt("authFailedDelayMs", &a.failed_delay_millis, 0, 5000,
           "Milliseconds before a failed login is answered.");
  p.AddInt("loginTimeoutMillis", &a.login_timeout_millis, 100, 3'600'000,
           "With access control: a connection that says nothing for so long, or takes so long for "
           "a message, is closed before its login; one that has said hello 30 times as long.");
  p.AddInt("maxConnectionsBeforeLogin", &a.connections_before_login, 1, 1'000'000,
           "With access control: connections of one address that have not logged in.");
  p.Add(
      {.name = "enableLocalhostAuthBypass",
       .help = "Whether a client from this machine may make the first user.",
       .at_runtime = false,
       .get = [&a](BsonBuilder& b, std::string_view n) { b.Append(n, a.localhost_bypass.load()); },
       .set = [&a](BsonValue v) -> Result<void> {
         if (!v.Is(BsonType::kBool) && !v.IsNumber())
           return WrongParameterType("enableLocalhostAuthBypass", v, "bool");
         a.localhost_bypass = v.Truthy();
         return Ok();
       }});
  p.Add(
      {.name = "KeysRotationIntervalSec",
       .help = "Seconds for which a key signs cluster times before the next one does.",
       .at_runtime = false,
       .get = [&a](BsonBuilder& b, std::string_view n) { b.Append(n, a.time_key_seconds.load()); },
       .set = [&a](BsonValue v) -> Result<void> {
         if (!v.IsNumber()) return WrongParameterType("KeysRotationIntervalSec", v, "a number");
         const int64_t n = v.NumberAsInt64();
         if (n < 1 || n > kMaxTimeKeySeconds)
           return Error{
               ErrorCode::kBadValue,
               "Invalid value for parameter KeysRotationIntervalSec: " + std::to_string(n) +
                   " is not from 1 to " + std::to_string(kMaxTimeKeySeconds)};
         a.time_key_seconds = n;
         return Ok();
       }});
  AddStartupBool(p, "allowRolesFromX509Certificates",
                 "Whether a certificate may grant roles by itself (MONGODB-X509).",
                 &a.certificate_roles);
  AddStartupBool(p, "enforceUserClusterSeparation",
                 "Whether the certificate of a member of the set is no user's.",
                 &a.members_are_no_users);
  p.Add({.name = "authenticationMechanisms",
         .help = "Mechanisms a client may log in with, comma-separated.",
         .at_runtime = false,
         .get =
             [&a, &server](BsonBuilder& b, std::string_view n) {
               BsonArrayBuilder list = b.OpenArray(n);
               for (ScramMechanism m : {ScramMechanism::kSha1, ScramMechanism::kSha256})
                 if (a.Offers(m)) list.Append(ScramMechanismName(m));
               if (a.x509 && server.tls().accepts()) list.Append(kX509Mechanism);
             },
         .set = [&a](BsonValue v) -> Result<void> {
           if (!v.IsString()) return WrongParameterType("authenticationMechanisms", v, "a string");
           std::array<bool, 2> offered{};
           bool x509 = false;
           for (std::string_view rest = v.String(); !rest.empty();) {
             const size_t comma = rest.find(',');
             const std::string_view name = rest.substr(0, comma);
             rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
             if (name == kX509Mechanism) {
               x509 = true;
               continue;
             }
             const auto m = FindScramMechanism(name);
             if (!m)
               return Error{ErrorCode::kBadValue,
                            "authenticationMechanisms: there is no mechanism '" +
                                std::string(name) +
                                "'; there are SCRAM-SHA-1, SCRAM-SHA-256 and MONGODB-X509"};
             offered[static_cast<size_t>(*m)] = true;
           }
           a.mechanisms = offered;
           a.x509 = x509;
           return Ok();
         }});
}

/// Read-only parameters.
void RegisterFacts(ParameterRegistry& p, const ServerConfig& config) {
  p.Add({.name = "featureCompatibilityVersion",
         .help = "The MongoDB release whose behaviour and formats are answered.",
         .at_startup = false,
         .at_runtime = false,
         .get = [](BsonBuilder& b, std::string_view n) {
           b.OpenDocument(n).Append("version", kCompatibleVersion.substr(0, 3));
         }});
  p.AddReadOnlyInt("authSchemaVersion", kAuthSchemaVersion,
                   "The format of users and roles, as mongodump and mongorestore ask for it.");
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
  RegisterAccess(server);
  RegisterMember(server);
  RegisterOperations(server);
  server.establishment().RegisterParameters(server.parameters());
  RegisterUmask(server.parameters(), server.settings());
  RegisterForTests(server);
  RegisterLog(server.parameters(), server.log());
  RegisterTls(server);
  RegisterFacts(server.parameters(), server.config());
}

}  // namespace mayfly

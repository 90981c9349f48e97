#include "server/dispatch/config_options.h"

#include <unistd.h>

#include <charconv>

#include "server/base/environment.h"

namespace mayfly {

Result<int64_t> ParseIntOption(std::string_view option, const std::string& text, int64_t low,
                               int64_t high) {
  int64_t n = 0;
  auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (ec != std::errc() || p != text.data() + text.size())
    return BadValue("the argument ('" + text + "') for option '" + std::string(option) +
                    "' is invalid: it must be a whole number");
  if (n < low || n > high)
    return BadValue(std::string(option) + " must be between " + std::to_string(low) + " and " +
                    std::to_string(high) + ", not " + text);
  return n;
}

namespace option_table {
namespace {

Result<double> ParseDouble(std::string_view option, const std::string& text, double low,
                           double high) {
  double d = 0;
  auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), d);
  if (ec != std::errc() || p != text.data() + text.size() || !(d >= low && d <= high))
    return BadValue("the argument ('" + text + "') for option '" + std::string(option) +
                    "' must be a number from " + std::to_string(low) + " to " +
                    std::to_string(high));
  return d;
}

Result<bool> ParseBool(std::string_view option, const std::string& text) {
  if (text == "true" || text.empty()) return true;
  if (text == "false") return false;
  return BadValue(std::string(option) + " must be true or false, not '" + text + "'");
}

std::vector<std::string> SplitCommas(const Values& values) {
  std::vector<std::string> out;
  for (const std::string& v : values) {
    size_t at = 0;
    while (at <= v.size()) {
      size_t comma = std::min(v.find(',', at), v.size());
      std::string part = v.substr(at, comma - at);
      part.erase(0, part.find_first_not_of(' '));
      part.erase(part.find_last_not_of(' ') + 1);
      if (!part.empty()) out.push_back(std::move(part));
      at = comma + 1;
    }
  }
  return out;
}

template <class Field>
auto SetInt(std::string_view name, int64_t low, int64_t high, Field ServerConfig::*field) {
  return [=](ServerConfig& c, const Values& v) -> Result<void> {
    MAYFLY_TRY(int64_t n, ParseIntOption(name, v.back(), low, high));
    c.*field = static_cast<Field>(n);
    return Ok();
  };
}
auto SetString(std::string ServerConfig::*field) {
  return [=](ServerConfig& c, const Values& v) -> Result<void> {
    c.*field = v.back();
    return Ok();
  };
}
auto SetBool(std::string_view name, bool ServerConfig::*field, bool invert = false) {
  return [=](ServerConfig& c, const Values& v) -> Result<void> {
    MAYFLY_TRY(bool on, ParseBool(name, v.back()));
    c.*field = on != invert;
    return Ok();
  };
}

Result<void> SetCompressors(ServerConfig& c, const Values& v) {
  c.compressors.clear();
  for (std::string& name : SplitCommas(v)) {
    if (name == "disabled") {
      c.compressors.clear();
      return Ok();
    }
    if (name == "noop") continue;  // it compresses nothing; mongo-orchestration lists it
    if (name != "snappy" && name != "zlib" && name != "zstd")
      return BadValue("Invalid network message compressor specified in configuration: '" + name +
                      "'; there are snappy, zstd, zlib and disabled");
    c.compressors.push_back(std::move(name));
  }
  return Ok();
}

Result<void> SetCache(ServerConfig& c, const Values& v) {
  MAYFLY_TRY(double gb, ParseDouble("cacheSizeGB", v.back(), 0.03125, 10'000));
  c.cache_bytes = static_cast<uint64_t>(gb * (1ull << 30));
  return Ok();
}

Result<void> SetPermissions(ServerConfig& c, const Values& v) {
  const std::string& text = v.back();
  int mode = 0;
  auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (ec != std::errc() || p != text.data() + text.size() || mode > 0777)
    return BadValue("filePermissions must be an octal mode such as 0700, not '" + text + "'");
  c.unix_socket_permissions = mode;
  return Ok();
}

Result<void> SetClusterAuth(ServerConfig& c, const Values& v) {
  const std::optional<ClusterAuthMode> mode = ClusterAuthModeByName(v.back());
  if (!mode)
    return BadValue("unsupported value for clusterAuthMode " + v.back() +
                    ": there are keyFile, sendKeyFile, sendX509 and x509");
  c.tls.cluster_auth = *mode;
  return Ok();
}

constexpr std::string_view kSharding = "this server is not a member of a sharded cluster";
constexpr std::string_view kEngine =
    "this server keeps its data in RocksDB, which has no such setting";

void AddNetworkOptions(Options& o) {
  o.push_back({"--port", "net.port", Kind::kInt, "port to listen on (27017)",
               SetInt("port", 0, 65535, &C::port)});
  o.push_back({"--bind_ip", "net.bindIp", Kind::kList,
               "addresses to listen on, comma-separated (127.0.0.1)",
               [](C& c, const Values& v) -> Result<void> {
                 c.bind_ips = SplitCommas(v);
                 if (c.bind_ips.empty()) return BadValue("bind_ip needs an address");
                 return Ok();
               }});
  o.push_back({"--bind_ip_all", "net.bindIpAll", Kind::kSwitch, "listen on all addresses",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(bool on, ParseBool("bind_ip_all", v.back()));
                 if (on) c.bind_ips = {"0.0.0.0", "::"};
                 return Ok();
               }});
  o.push_back(
      {"--ipv6", "net.ipv6", Kind::kSwitch, "allow IPv6 addresses", SetBool("ipv6", &C::ipv6)});
  o.push_back({"--maxConns", "net.maxIncomingConnections", Kind::kInt,
               "connections at a time (65536); further ones are closed",
               SetInt("maxConns", 1, 1'000'000, &C::max_connections)});
  o.push_back({"--maxIncomingConnectionsOverride", "net.maxIncomingConnectionsOverride",
               Kind::kList,
               "addresses, CIDR ranges and unix sockets whose clients do not count for maxConns",
               [](C& c, const Values& v) -> Result<void> {
                 c.exempt_addresses.clear();
                 c.exempt_sockets.clear();
                 for (std::string& one : SplitCommas(v)) {
                   if (one.starts_with('/')) {
                     c.exempt_sockets.push_back(std::move(one));
                     continue;
                   }
                   auto range = ParseAddressRange(one);
                   if (!range)
                     return BadValue("maxIncomingConnectionsOverride: '" + one +
                                     "' is no address, CIDR range or path of a unix socket");
                   c.exempt_addresses.push_back(std::move(range).value());
                 }
                 return Ok();
               }});
  o.push_back({"--unixSocketPrefix", "net.unixDomainSocket.pathPrefix", Kind::kString,
               "folder of the unix socket (/tmp)", SetString(&C::unix_socket_prefix)});
  o.push_back({"--nounixsocket", "", Kind::kSwitch, "no unix socket",
               SetBool("nounixsocket", &C::unix_socket, true)});
  o.push_back({"", "net.unixDomainSocket.enabled", Kind::kSwitch, "",
               SetBool("net.unixDomainSocket.enabled", &C::unix_socket)});
  o.push_back({"--filePermissions", "net.unixDomainSocket.filePermissions", Kind::kString,
               "mode of the unix socket (0700)", SetPermissions});
  o.push_back({"--networkMessageCompressors", "net.compression.compressors", Kind::kList,
               "snappy, zstd, zlib, or disabled (snappy,zstd,zlib)", SetCompressors});
  o.push_back({"--ioThreads", "net.ioThreads", Kind::kInt,
               "threads that serve sockets (by the number of cores)",
               SetInt("ioThreads", 1, 256, &C::io_threads)});
  o.push_back({"--workerThreads", "processManagement.workerThreads", Kind::kInt,
               "threads for long operations (by the number of cores)",
               SetInt("workerThreads", 1, 1024, &C::worker_threads)});
}

void AddStorageOptions(Options& o) {
  o.push_back({"--dbpath", "storage.dbPath", Kind::kString,
               "data directory (./mayfly-data), created if absent", SetString(&C::db_path)});
  o.push_back({"--cacheSizeGB,--wiredTigerCacheSizeGB", "storage.cacheSizeGB", Kind::kDouble,
               "memory for the block cache and write buffers (25% of the memory there is)",
               SetCache});
  o.push_back({"", "storage.wiredTiger.engineConfig.cacheSizeGB", Kind::kDouble, "", SetCache});
  o.push_back({"--journalCommitInterval", "storage.journal.commitIntervalMs", Kind::kInt,
               "milliseconds that an acknowledged write without j:true may stay unsynced (100)",
               SetInt("journalCommitInterval", 1, 500, &C::sync_interval_ms)});
  o.push_back({"--journal", "storage.journal.enabled", Kind::kSwitch,
               "accepted; the journal is always on", [](C&, const Values& v) -> Result<void> {
                 MAYFLY_TRY(bool on, ParseBool("journal", v.back()));
                 if (!on)
                   return BadValue("storage.journal.enabled: the journal cannot be switched off");
                 return Ok();
               }});
  Refuse(o, "--nojournal", "", Kind::kSwitch, "the journal cannot be switched off");
  Refuse(o, "--directoryperdb", "storage.directoryPerDB", Kind::kSwitch, kEngine, "false");
  Refuse(o, "--wiredTigerDirectoryForIndexes",
         "storage.wiredTiger.engineConfig.directoryForIndexes", Kind::kSwitch, kEngine, "false");
  Refuse(o, "--wiredTigerCollectionBlockCompressor",
         "storage.wiredTiger.collectionConfig.blockCompressor", Kind::kString, kEngine);
  Refuse(o, "--wiredTigerJournalCompressor", "storage.wiredTiger.engineConfig.journalCompressor",
         Kind::kString, kEngine);
  Refuse(o, "--wiredTigerIndexPrefixCompression",
         "storage.wiredTiger.indexConfig.prefixCompression", Kind::kString, kEngine);
  Refuse(o, "--syncdelay", "storage.syncPeriodSecs", Kind::kInt, kEngine);
  o.push_back({"--storageEngine", "storage.engine", Kind::kString,
               "accepted: rocksdb, or wiredTiger with a warning; the engine is RocksDB",
               [](C&, const Values& v) -> Result<void> {
                 // wiredTiger is MongoDB's default, and its test harnesses always ask for it.
                 if (v.back() == "rocksdb" || v.back() == "wiredTiger") return Ok();
                 return BadValue(
                     "--storageEngine: the storage engine is RocksDB and cannot be chosen");
               }});
  Refuse(o, "--repair", "", Kind::kSwitch,
         "opening the data directory repairs what can be repaired");
  o.push_back({"--oplogMinRetentionHours", "storage.oplogMinRetentionHours", Kind::kDouble,
               "hours for which the replication log is kept whatever its size (0)",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.oplog_min_retention_hours,
                            ParseDouble("oplogMinRetentionHours", v.back(), 0, 24 * 366));
                 return Ok();
               }});
}

auto SetRestore(std::string C::RestoreOptions::*field) {
  return [=](C& c, const Values& v) -> Result<void> {
    if (v.back().empty()) return BadValue("an option of a restore must not be empty");
    c.restore.*field = v.back();
    c.restore.asked_besides |= field != &C::RestoreOptions::folder;
    return Ok();
  };
}

void AddBackupOptions(Options& o) {
  // Only flags, as for a restore.
  o.push_back({"--backup", "", Kind::kString,
               "adds a backup of --dbpath, which no server uses, to this folder, and ends",
               [](C& c, const Values& v) -> Result<void> {
                 if (v.back().empty()) return BadValue("--backup needs the folder of the backups");
                 c.backup.folder = v.back();
                 return Ok();
               }});
  o.push_back({"--full", "", Kind::kSwitch,
               "with --backup: reads and writes every file, also those that are there",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.backup.full, ParseBool("full", v.back()));
                 return Ok();
               }});
}

void AddRestoreOptions(Options& o) {
  using R = C::RestoreOptions;
  // Only flags: in a file they would restore at every start.
  o.push_back({"--restore", "", Kind::kString,
               "puts a backup of this folder into an empty --dbpath, and ends",
               SetRestore(&R::folder)});
  o.push_back(
      {"--id", "", Kind::kString, "which backup to restore (the newest)", SetRestore(&R::id)});
  o.push_back({"--until", "", Kind::kString,
               "restores up to this timestamp, by the archived log: 2030-01-01T12:00:00Z, or "
               "SECONDS,INCREMENT",
               SetRestore(&R::until)});
  o.push_back({"--archive", "", Kind::kString,
               "folder of the archived log (log in the folder of the backups)",
               SetRestore(&R::archive)});
  o.push_back({"--expiry", "", Kind::kString,
               "what is past its deadline after a restore: hold (default), shift or run",
               [set = SetRestore(&R::expiry)](C& c, const Values& v) -> Result<void> {
                 if (v.back() != "hold" && v.back() != "shift" && v.back() != "run")
                   return BadValue("expiry must be hold, shift or run, not '" + v.back() + "'");
                 return set(c, v);
               }});
}

void AddLogAndProcessOptions(Options& o) {
  o.push_back({"--logpath", "systemLog.path", Kind::kString, "log file (standard output)",
               [](C& c, const Values& v) -> Result<void> {
                 c.log.path = v.back();
                 return Ok();
               }});
  o.push_back(
      {"", "systemLog.destination", Kind::kString, "", [](C&, const Values& v) -> Result<void> {
         if (v.back() == "syslog")
           return BadValue("systemLog.destination: syslog is not part of this version; use a file");
         if (v.back() != "file")
           return BadValue("systemLog.destination expects one of 'syslog' or 'file', not '" +
                           v.back() + "'");
         return Ok();
       }});
  o.push_back({"--logappend", "systemLog.logAppend", Kind::kSwitch, "append to the log file",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.log.append, ParseBool("logappend", v.back()));
                 return Ok();
               }});
  o.push_back({"--logRotate", "systemLog.logRotate", Kind::kString,
               "what logRotate does: rename (default) or reopen",
               [](C& c, const Values& v) -> Result<void> {
                 if (v.back() != "rename" && v.back() != "reopen")
                   return BadValue("logRotate must be 'rename' or 'reopen', not '" + v.back() +
                                   "'");
                 c.log.rename_on_rotate = v.back() == "rename";
                 return Ok();
               }});
  o.push_back({"--timeStampFormat", "systemLog.timeStampFormat", Kind::kString,
               "iso8601-local (default) or iso8601-utc", [](C& c, const Values& v) -> Result<void> {
                 if (v.back() == "iso8601-utc")
                   c.log.timestamps = TimestampFormat::kIso8601Utc;
                 else if (v.back() == "iso8601-local")
                   c.log.timestamps = TimestampFormat::kIso8601Local;
                 else
                   return BadValue(
                       "timeStampFormat must be 'iso8601-utc' or 'iso8601-local', not '" +
                       v.back() + "'");
                 return Ok();
               }});
  o.push_back({"--quiet", "systemLog.quiet", Kind::kSwitch, "fewer lines about connections",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.log.quiet, ParseBool("quiet", v.back()));
                 return Ok();
               }});
  o.push_back(
      {"", "systemLog.verbosity", Kind::kInt, "", [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(int64_t n, ParseIntOption("systemLog.verbosity", v.back(), 0, 5));
         c.log.verbosity = static_cast<int>(n);
         return Ok();
       }});
  Refuse(o, "--syslog", "", Kind::kSwitch, "logging to syslog is not part of this version");
  Refuse(o, "--traceExceptions", "systemLog.traceAllExceptions", Kind::kSwitch,
         "exceptions are not part of normal operation here", "false");
  o.push_back({"--pidfilepath", "processManagement.pidFilePath", Kind::kString,
               "file to write the process id to", SetString(&C::pid_file)});
  o.push_back({"--fork", "processManagement.fork", Kind::kSwitch,
               "run in the background (needs --logpath)", SetBool("fork", &C::fork)});
  o.push_back({"--timeZoneInfo", "processManagement.timeZoneInfo", Kind::kString,
               "directory of the time zone database for local times in the log",
               [](C&, const Values& v) -> Result<void> {
                 if (::access(v.back().c_str(), R_OK) != 0)
                   return BadValue("timeZoneInfo: cannot read the directory '" + v.back() + "'");
                 ::setenv("TZDIR", v.back().c_str(), 1);
                 return Ok();
               }});
  o.push_back({"--setParameter", "", Kind::kList, "name=value: a server parameter",
               [](C& c, const Values& v) -> Result<void> {
                 for (const std::string& s : v) {
                   size_t eq = s.find('=');
                   if (eq == std::string::npos || eq == 0)
                     return BadValue("Illegal option assignment: \"" + s +
                                     "\": setParameter needs name=value");
                   c.parameters.emplace_back(s.substr(0, eq), s.substr(eq + 1));
                 }
                 return Ok();
               }});
}

void AddProfilingOptions(Options& o) {
  o.push_back({"--slowms", "operationProfiling.slowOpThresholdMs", Kind::kInt,
               "operations slower than so many milliseconds are logged (100)",
               SetInt("slowms", -1, INT32_MAX, &C::slow_ms)});
  o.push_back({"--slowOpSampleRate", "operationProfiling.slowOpSampleRate", Kind::kDouble,
               "fraction of the slow operations that is logged (1.0)",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.slow_sample_rate, ParseDouble("slowOpSampleRate", v.back(), 0, 1));
                 return Ok();
               }});
  o.push_back({"--profile", "", Kind::kInt, "0 off, 1 slow operations, 2 all",
               SetInt("profile", 0, 2, &C::profile_level)});
  o.push_back(
      {"", "operationProfiling.mode", Kind::kString, "", [](C& c, const Values& v) -> Result<void> {
         if (v.back() == "off")
           c.profile_level = 0;
         else if (v.back() == "slowOp")
           c.profile_level = 1;
         else if (v.back() == "all")
           c.profile_level = 2;
         else
           return BadValue("operationProfiling.mode must be off, slowOp or all, not '" + v.back() +
                           "'");
         return Ok();
       }});
  Refuse(o, "", "operationProfiling.filter", Kind::kString,
         "set a profiling filter with the profile command");
}

Result<void> SetAuditDestination(C& c, const Values& v) {
  const std::string& to = v.back();
  AuditOptions& a = c.audit;
  if (to == "file")
    a.destination = AuditDestination::kFile;
  else if (to == "syslog")
    a.destination = AuditDestination::kSyslog;
  else if (to == "console")
    a.destination = AuditDestination::kConsole;
  else if (to == "none")
    a.destination = AuditDestination::kNone;
  else
    return BadValue("auditDestination must be file, syslog, console or none, not '" + to + "'");
  return Ok();
}

void AddAuditOptions(Options& o) {
  o.push_back({"--auditDestination", "auditLog.destination", Kind::kString,
               "file (default), syslog, console, or none: no audit log", SetAuditDestination});
  o.push_back({"--auditPath", "auditLog.path", Kind::kString,
               "audit log file (audit/audit.json in the data directory)",
               [](C& c, const Values& v) -> Result<void> {
                 c.audit.path = v.back();
                 return Ok();
               }});
  o.push_back({"--auditFormat", "auditLog.format", Kind::kString,
               "JSON (default), or for files BSON", [](C& c, const Values& v) -> Result<void> {
                 if (v.back() != "BSON" && v.back() != "JSON")
                   return BadValue("auditFormat must be JSON or BSON, not '" + v.back() + "'");
                 c.audit.format = v.back() == "BSON" ? AuditFormat::kBson : AuditFormat::kJson;
                 return Ok();
               }});
  o.push_back({"--auditFilter", "auditLog.filter", Kind::kString,
               "a query filter: which events are audited (all)",
               [](C& c, const Values& v) -> Result<void> {
                 auto filter = ParseAuditFilter(v.back());
                 if (!filter) return BadValue("auditFilter: " + filter.error().message);
                 c.audit.filter = std::move(filter).value();
                 return Ok();
               }});
  Refuse(o, "", "auditLog.runtimeConfiguration", Kind::kSwitch,
         "set the parameters auditFilter and auditAuthorizationSuccess at run time instead",
         "false");
}

void AddOwnOptions(Options& o) {
  o.push_back({"--testClock", "mayfly.testClock", Kind::kSwitch,
               "enables the clock command (for tests: time travel)",
               SetBool("testClock", &C::test_clock)});
  o.push_back(
      {"--httpPort", "mayfly.httpPort", Kind::kInt,
       "port of the HTTP endpoint: expiry page, /metrics, /healthz, /readyz (28017); 0: none",
       [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(int64_t n, ParseIntOption("httpPort", v.back(), 0, 65535));
         c.http_port = static_cast<int>(n);
         c.http_port_given = true;
         return Ok();
       }});
  o.push_back({"--httpBindIp", "mayfly.httpBindIp", Kind::kList,
               "addresses of the HTTP endpoint, comma-separated (127.0.0.1)",
               [](C& c, const Values& v) -> Result<void> {
                 c.http_bind_ips = SplitCommas(v);
                 if (c.http_bind_ips.empty()) return BadValue("httpBindIp needs an address");
                 return Ok();
               }});
  o.push_back({"--httpHosts", "mayfly.httpHosts", Kind::kList,
               "names by which the HTTP endpoint may be asked, comma-separated; always: localhost, "
               "IP addresses, this machine's name, and names in httpBindIp",
               [](C&, const Values& v) -> Result<void> {
                 // The endpoint reads them where they are kept for getCmdLineOpts.
                 if (SplitCommas(v).empty()) return BadValue("httpHosts needs a name");
                 return Ok();
               }});
  o.push_back({"--httpMetricsTokenFile", "mayfly.httpMetricsTokenFile", Kind::kString,
               "file with a token (RFC 6750) by which a scraper may read /metrics with access "
               "control on",
               [](C&, const Values& v) -> Result<void> {
                 // As httpHosts: the endpoint reads the file.
                 if (v.back().empty()) return BadValue("httpMetricsTokenFile needs a path");
                 return Ok();
               }});
}

void AddReplicationOptions(Options& o) {
  o.push_back({"--replSet", "replication.replSetName", Kind::kString,
               "take part in the replica set of this name",
               [](C& c, const Values& v) -> Result<void> {
                 c.repl_set = v.back();
                 if (c.repl_set.empty() || c.repl_set.find('/') != std::string::npos)
                   return BadValue("replSet must be a name without '/'");
                 return Ok();
               }});
  o.push_back({"--oplogSize,--oplogSizeMB", "replication.oplogSizeMB", Kind::kInt,
               "megabytes of the replication log to keep (5% of the disk)",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(int64_t n, ParseIntOption("oplogSize", v.back(), 1, 1 << 30));
                 c.oplog_size_mb = static_cast<uint64_t>(n);
                 return Ok();
               }});
  // They are read where they are kept for getCmdLineOpts (server/archive_wiring.h).
  const auto given = [](C&, const Values& v) -> Result<void> {
    if (v.back().empty()) return BadValue("logArchivePath and logArchiveCommand must not be empty");
    return Ok();
  };
  o.push_back({"--logArchivePath", "replication.logArchivePath", Kind::kString,
               "folder in which this member archives the replication log, for restores to a point "
               "in time",
               given});
  o.push_back({"--logArchiveCommand", "replication.logArchiveCommand", Kind::kString,
               "program with arguments that is run for each finished segment in that folder, with "
               "the file in the place of {}, or behind",
               given});
  o.push_back({"--initialMembers", "replication.initialMembers", Kind::kList,
               "host:port of the members of a new set, comma-separated: the first one initiates it",
               [](C& c, const Values& v) -> Result<void> {
                 c.initial_members = SplitCommas(v);
                 if (c.initial_members.empty()) return BadValue("initialMembers needs a member");
                 return Ok();
               }});
  Refuse(o, "--enableMajorityReadConcern", "replication.enableMajorityReadConcern", Kind::kString,
         "majority reads are always possible: only what a majority has is visible", "true");
}

void AddSecurityOptions(Options& o) {
  o.push_back({"--auth", "", Kind::kSwitch, "clients must log in", SetBool("auth", &C::auth)});
  o.push_back({"--noauth", "", Kind::kSwitch, "clients need not log in, also with a key file",
               SetBool("noauth", &C::no_auth)});
  o.push_back(
      {"", "security.authorization", Kind::kString, "", [](C& c, const Values& v) -> Result<void> {
         if (v.back() != "enabled" && v.back() != "disabled")
           return BadValue("security.authorization expects one of 'enabled' or 'disabled', not '" +
                           v.back() + "'");
         c.authorization = v.back() == "enabled";
         return Ok();
       }});
  o.push_back({"--initialRootUser", "security.initialRootUser", Kind::kString,
               "name of a user of admin with the role root, made while there is no user or role",
               SetString(&C::initial_user)});
  o.push_back({"--initialRootPasswordFile", "security.initialRootPasswordFile", Kind::kString,
               "file with the password of that user", [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.initial_password,
                            ReadPasswordFile(v.back(), "initialRootPasswordFile: "));
                 return Ok();
               }});
  o.push_back({"--keyFile", "security.keyFile", Kind::kString,
               "file with the secret that members of the set share", SetString(&C::key_file)});
  o.push_back({"--clusterAuthMode", "security.clusterAuthMode", Kind::kString,
               "how members prove themselves: keyFile (default), sendKeyFile, sendX509 or x509",
               SetClusterAuth});
  o.push_back({"--transitionToAuth", "security.transitionToAuth", Kind::kSwitch,
               "with a key file: clients may log in, but need not yet",
               SetBool("transitionToAuth", &C::transition_to_auth)});
  // Read where it is kept for getCmdLineOpts (server/commands/member_stream_cmd.cc).
  o.push_back({"--clusterIpSourceAllowlist", "security.clusterIpSourceAllowlist", Kind::kList,
               "addresses and CIDR ranges from which other members may connect",
               [](C&, const Values& v) -> Result<void> {
                 const std::vector<std::string> list = SplitCommas(v);
                 if (list.empty()) return BadValue("clusterIpSourceAllowlist needs an address");
                 for (const std::string& one : list)
                   if (!ParseAddressRange(one))
                     return BadValue("clusterIpSourceAllowlist: '" + one +
                                     "' is no address or CIDR range");
                 return Ok();
               }});
  o.back().restricts = true;
  o.push_back({"--redactClientLogData", "security.redactClientLogData", Kind::kSwitch,
               "what clients have sent shows as ### in the log",
               [](C& c, const Values& v) -> Result<void> {
                 MAYFLY_TRY(c.redact_client_data, ParseBool("redactClientLogData", v.back()));
                 return Ok();
               }});
  Refuse(o, "--sslMode", "net.ssl.mode", Kind::kString,
         "the options net.ssl.* have become net.tls.*, with the same meaning", "disabled");
}

/// They are read where they are kept for getCmdLineOpts (server/at_rest_wiring.h).
void AddEncryptionOptions(Options& o) {
  const auto path = [](C&, const Values& v) -> Result<void> {
    if (v.back().empty()) return BadValue("encryptionKeyFile and encryptionRotateFrom need a path");
    return Ok();
  };
  o.push_back({"--enableEncryption", "security.enableEncryption", Kind::kSwitch,
               "encrypt the data directory; needs --encryptionKeyFile",
               [](C&, const Values& v) -> Result<void> {
                 MAYFLY_TRY(ParseBool("enableEncryption", v.back()));
                 return Ok();
               }});
  o.push_back({"--encryptionKeyFile", "security.encryptionKeyFile", Kind::kString,
               "file with the master key: 32 bytes in base64 (openssl rand -base64 32)", path});
  o.push_back({"--encryptionRotateFrom", "security.encryptionRotateFrom", Kind::kString,
               "file with the master key until now, which that of encryptionKeyFile replaces",
               path});
  Refuse(o, "--encryptionCipherMode", "security.encryptionCipherMode", Kind::kString,
         "files are encrypted with AES256-CTR, and in no other way", "AES256-CTR");
  constexpr std::string_view kKmip =
      "keys come from a file (encryptionKeyFile); there is no client for key servers (KMIP)";
  Refuse(o, "--kmipServerName", "security.kmip.serverName", Kind::kString, kKmip);
  Refuse(o, "--kmipKeyIdentifier", "security.kmip.keyIdentifier", Kind::kString, kKmip);
  Refuse(o, "--kmipRotateMasterKey", "security.kmip.rotateMasterKey", Kind::kSwitch,
         "give the new key as encryptionKeyFile and the one before as encryptionRotateFrom",
         "false");
}

void AddAbsentFeatures(Options& o) {
  Refuse(o, "--noscripting", "", Kind::kSwitch,
         "there is no server-side JavaScript in this version", "true");
  Refuse(o, "", "security.javascriptEnabled", Kind::kSwitch,
         "there is no server-side JavaScript in this version", "false");
  Refuse(o, "--shardsvr", "", Kind::kSwitch, kSharding);
  Refuse(o, "--configsvr", "", Kind::kSwitch, kSharding);
  Refuse(o, "", "sharding.clusterRole", Kind::kString, kSharding);
}

}  // namespace
}  // namespace option_table

std::vector<OptionRow> MakeOptions() {
  using namespace option_table;
  std::vector<OptionRow> o;
  AddNetworkOptions(o);
  AddStorageOptions(o);
  AddBackupOptions(o);
  AddRestoreOptions(o);
  AddLogAndProcessOptions(o);
  AddProfilingOptions(o);
  AddAuditOptions(o);
  AddOwnOptions(o);
  AddReplicationOptions(o);
  AddSecurityOptions(o);
  AddEncryptionOptions(o);
  AddTlsOptions(o);
  AddAbsentFeatures(o);
  return o;
}

}  // namespace mayfly

#include "server/config.h"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <map>
#include <thread>

#include "server/arg_reader.h"
#include "server/config_file.h"

namespace mayfly {

unsigned ServerConfig::EffectiveIoThreads() const {
  if (io_threads != 0) return io_threads;
  // Two cores: one io thread beats two (measured). Beyond: a quarter of the cores, the rest works.
  return std::clamp(std::thread::hardware_concurrency() / 4, 1u, 8u);
}

unsigned ServerConfig::EffectiveWorkerThreads() const {
  if (worker_threads != 0) return worker_threads;
  return std::max(4u, 2 * std::thread::hardware_concurrency());
}

namespace {

using Values = std::vector<std::string>;

enum class Kind : uint8_t { kSwitch, kInt, kDouble, kString, kList };

/// One option: its flag, its key in the configuration file, and what it changes. `why_not`: MongoDB
/// has it and this server does not; giving it is an error, never ignored.
struct OptionRow {
  std::string_view flags;  ///< "--port", "-f,--config"; empty: only in the file
  std::string_view key;    ///< "net.port"; empty: only a flag
  Kind kind = Kind::kString;
  std::string_view help;
  std::function<Result<void>(ServerConfig&, const Values&)> apply;
  std::string_view why_not = {};
  std::string_view harmless =
      {};  ///< with why_not: the value that asks for nothing ("disabled", "false")
};

Error Bad(std::string message) { return {ErrorCode::kBadValue, std::move(message)}; }

Result<int64_t> ParseInt(std::string_view option, const std::string& text, int64_t low,
                         int64_t high) {
  int64_t n = 0;
  auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (ec != std::errc() || p != text.data() + text.size())
    return Bad("the argument ('" + text + "') for option '" + std::string(option) +
               "' is invalid: it must be a whole number");
  if (n < low || n > high)
    return Bad(std::string(option) + " must be between " + std::to_string(low) + " and " +
               std::to_string(high) + ", not " + text);
  return n;
}

Result<double> ParseDouble(std::string_view option, const std::string& text, double low,
                           double high) {
  double d = 0;
  auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), d);
  if (ec != std::errc() || p != text.data() + text.size() || !(d >= low && d <= high))
    return Bad("the argument ('" + text + "') for option '" + std::string(option) +
               "' must be a number from " + std::to_string(low) + " to " + std::to_string(high));
  return d;
}

Result<bool> ParseBool(std::string_view option, const std::string& text) {
  if (text == "true" || text.empty()) return true;
  if (text == "false") return false;
  return Bad(std::string(option) + " must be true or false, not '" + text + "'");
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
    MAYFLY_TRY(int64_t n, ParseInt(name, v.back(), low, high));
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
    if (name != "snappy" && name != "zlib" && name != "zstd")
      return Bad("Invalid network message compressor specified in configuration: '" + name +
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
    return Bad("filePermissions must be an octal mode such as 0700, not '" + text + "'");
  c.unix_socket_permissions = mode;
  return Ok();
}

constexpr std::string_view kSecurity = "access control is not part of this version";
constexpr std::string_view kTls = "TLS is not part of this version";
constexpr std::string_view kSharding = "this server is not a member of a sharded cluster";
constexpr std::string_view kEngine =
    "this server keeps its data in RocksDB, which has no such setting";

std::vector<OptionRow> MakeOptions() {
  using C = ServerConfig;
  std::vector<OptionRow> o;
  auto add = [&](OptionRow r) { o.push_back(std::move(r)); };
  auto no = [&](std::string_view flags, std::string_view key, Kind kind, std::string_view why,
                std::string_view harmless = {}) {
    o.push_back({flags, key, kind, "not available", {}, why, harmless});
  };
  // Network
  add({"--port", "net.port", Kind::kInt, "port to listen on (27017)",
       SetInt("port", 0, 65535, &C::port)});
  add({"--bind_ip", "net.bindIp", Kind::kList,
       "addresses to listen on, comma-separated (127.0.0.1)",
       [](C& c, const Values& v) -> Result<void> {
         c.bind_ips = SplitCommas(v);
         if (c.bind_ips.empty()) return Bad("bind_ip needs an address");
         return Ok();
       }});
  add({"--bind_ip_all", "net.bindIpAll", Kind::kSwitch, "listen on all addresses",
       [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(bool on, ParseBool("bind_ip_all", v.back()));
         if (on) c.bind_ips = {"0.0.0.0", "::"};
         return Ok();
       }});
  add({"--ipv6", "net.ipv6", Kind::kSwitch, "allow IPv6 addresses", SetBool("ipv6", &C::ipv6)});
  add({"--maxConns", "net.maxIncomingConnections", Kind::kInt, "most connections at a time (65536)",
       SetInt("maxConns", 1, 1'000'000, &C::max_connections)});
  add({"--unixSocketPrefix", "net.unixDomainSocket.pathPrefix", Kind::kString,
       "folder of the unix socket (/tmp)", SetString(&C::unix_socket_prefix)});
  add({"--nounixsocket", "", Kind::kSwitch, "no unix socket",
       SetBool("nounixsocket", &C::unix_socket, true)});
  add({"", "net.unixDomainSocket.enabled", Kind::kSwitch, "",
       SetBool("net.unixDomainSocket.enabled", &C::unix_socket)});
  add({"--filePermissions", "net.unixDomainSocket.filePermissions", Kind::kString,
       "mode of the unix socket (0700)", SetPermissions});
  add({"--networkMessageCompressors", "net.compression.compressors", Kind::kList,
       "snappy, zstd, zlib, or disabled (snappy,zstd,zlib)", SetCompressors});
  add({"--ioThreads", "net.ioThreads", Kind::kInt, "threads that read and write sockets (by cores)",
       SetInt("ioThreads", 1, 256, &C::io_threads)});
  add({"--workerThreads", "processManagement.workerThreads", Kind::kInt,
       "threads for long operations (by cores)",
       SetInt("workerThreads", 1, 1024, &C::worker_threads)});
  // Storage
  add({"--dbpath", "storage.dbPath", Kind::kString,
       "data directory (./mayfly-data), created if absent", SetString(&C::db_path)});
  add({"--cacheSizeGB,--wiredTigerCacheSizeGB", "storage.cacheSizeGB", Kind::kDouble,
       "memory for cache, memtables, sorts and cursors (25% of what there is)", SetCache});
  add({"", "storage.wiredTiger.engineConfig.cacheSizeGB", Kind::kDouble, "", SetCache});
  add({"--journalCommitInterval", "storage.journal.commitIntervalMs", Kind::kInt,
       "milliseconds that an acknowledged write without j:true may stay unsynced (100)",
       SetInt("journalCommitInterval", 1, 500, &C::sync_interval_ms)});
  add({"--journal", "storage.journal.enabled", Kind::kSwitch, "the journal is always on",
       [](C&, const Values& v) -> Result<void> {
         MAYFLY_TRY(bool on, ParseBool("journal", v.back()));
         if (!on) return Bad("storage.journal.enabled: the journal cannot be switched off");
         return Ok();
       }});
  no("--nojournal", "", Kind::kSwitch, "the journal cannot be switched off");
  no("--directoryperdb", "storage.directoryPerDB", Kind::kSwitch, kEngine, "false");
  no("--wiredTigerDirectoryForIndexes", "storage.wiredTiger.engineConfig.directoryForIndexes",
     Kind::kSwitch, kEngine, "false");
  no("--wiredTigerCollectionBlockCompressor", "storage.wiredTiger.collectionConfig.blockCompressor",
     Kind::kString, kEngine);
  no("--wiredTigerJournalCompressor", "storage.wiredTiger.engineConfig.journalCompressor",
     Kind::kString, kEngine);
  no("--wiredTigerIndexPrefixCompression", "storage.wiredTiger.indexConfig.prefixCompression",
     Kind::kString, kEngine);
  no("--syncdelay", "storage.syncPeriodSecs", Kind::kInt, kEngine);
  no("--storageEngine", "storage.engine", Kind::kString,
     "the storage engine is RocksDB and cannot be chosen", "rocksdb");
  no("--repair", "", Kind::kSwitch, "opening the data directory repairs what can be repaired");
  add({"--oplogMinRetentionHours", "storage.oplogMinRetentionHours", Kind::kDouble,
       "hours that entries stay in the replication log whatever its size (0)",
       [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(c.oplog_min_retention_hours,
                    ParseDouble("oplogMinRetentionHours", v.back(), 0, 24 * 366));
         return Ok();
       }});
  // Log and process
  add({"--logpath", "systemLog.path", Kind::kString, "log file (standard output)",
       [](C& c, const Values& v) -> Result<void> {
         c.log.path = v.back();
         return Ok();
       }});
  add({"", "systemLog.destination", Kind::kString, "", [](C&, const Values& v) -> Result<void> {
         if (v.back() == "syslog")
           return Bad("systemLog.destination: syslog is not part of this version; use a file");
         if (v.back() != "file")
           return Bad("systemLog.destination expects one of 'syslog' or 'file', not '" + v.back() +
                      "'");
         return Ok();
       }});
  add({"--logappend", "systemLog.logAppend", Kind::kSwitch, "append to the log file",
       [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(c.log.append, ParseBool("logappend", v.back()));
         return Ok();
       }});
  add({"--logRotate", "systemLog.logRotate", Kind::kString,
       "what logRotate does: rename (default) or reopen",
       [](C& c, const Values& v) -> Result<void> {
         if (v.back() != "rename" && v.back() != "reopen")
           return Bad("logRotate must be 'rename' or 'reopen', not '" + v.back() + "'");
         c.log.rename_on_rotate = v.back() == "rename";
         return Ok();
       }});
  add({"--timeStampFormat", "systemLog.timeStampFormat", Kind::kString,
       "iso8601-local (default) or iso8601-utc", [](C& c, const Values& v) -> Result<void> {
         if (v.back() == "iso8601-utc")
           c.log.timestamps = TimestampFormat::kIso8601Utc;
         else if (v.back() == "iso8601-local")
           c.log.timestamps = TimestampFormat::kIso8601Local;
         else
           return Bad("timeStampFormat must be 'iso8601-utc' or 'iso8601-local', not '" + v.back() +
                      "'");
         return Ok();
       }});
  add({"--quiet", "systemLog.quiet", Kind::kSwitch, "fewer lines about connections",
       [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(c.log.quiet, ParseBool("quiet", v.back()));
         return Ok();
       }});
  add({"", "systemLog.verbosity", Kind::kInt, "", [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(int64_t n, ParseInt("systemLog.verbosity", v.back(), 0, 5));
         c.log.verbosity = static_cast<int>(n);
         return Ok();
       }});
  no("--syslog", "", Kind::kSwitch, "logging to syslog is not part of this version");
  no("--traceExceptions", "systemLog.traceAllExceptions", Kind::kSwitch,
     "exceptions are not part of normal operation here", "false");
  add({"--pidfilepath", "processManagement.pidFilePath", Kind::kString, "file for the process id",
       SetString(&C::pid_file)});
  add({"--fork", "processManagement.fork", Kind::kSwitch, "run in the background (needs --logpath)",
       SetBool("fork", &C::fork)});
  add({"--timeZoneInfo", "processManagement.timeZoneInfo", Kind::kString,
       "time zone database for local times in the log", [](C&, const Values& v) -> Result<void> {
         if (::access(v.back().c_str(), R_OK) != 0)
           return Bad("timeZoneInfo: cannot read the directory '" + v.back() + "'");
         ::setenv("TZDIR", v.back().c_str(), 1);
         return Ok();
       }});
  add({"--setParameter", "", Kind::kList, "name=value: a server parameter",
       [](C& c, const Values& v) -> Result<void> {
         for (const std::string& s : v) {
           size_t eq = s.find('=');
           if (eq == std::string::npos || eq == 0)
             return Bad("Illegal option assignment: \"" + s + "\": setParameter needs name=value");
           c.parameters.emplace_back(s.substr(0, eq), s.substr(eq + 1));
         }
         return Ok();
       }});
  // Profiling
  add({"--slowms", "operationProfiling.slowOpThresholdMs", Kind::kInt,
       "operations slower than this are logged (100)",
       SetInt("slowms", -1, INT32_MAX, &C::slow_ms)});
  add({"--slowOpSampleRate", "operationProfiling.slowOpSampleRate", Kind::kDouble,
       "share of slow operations logged (1.0)", [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(c.slow_sample_rate, ParseDouble("slowOpSampleRate", v.back(), 0, 1));
         return Ok();
       }});
  add({"--profile", "", Kind::kInt, "0 off, 1 slow operations, 2 all",
       SetInt("profile", 0, 2, &C::profile_level)});
  add({"", "operationProfiling.mode", Kind::kString, "", [](C& c, const Values& v) -> Result<void> {
         if (v.back() == "off")
           c.profile_level = 0;
         else if (v.back() == "slowOp")
           c.profile_level = 1;
         else if (v.back() == "all")
           c.profile_level = 2;
         else
           return Bad("operationProfiling.mode must be off, slowOp or all, not '" + v.back() + "'");
         return Ok();
       }});
  no("", "operationProfiling.filter", Kind::kString,
     "set a profiling filter with the profile command");
  // Audit
  add({"--auditDestination", "auditLog.destination", Kind::kString,
       "file (default), or none: no audit log", [](C& c, const Values& v) -> Result<void> {
         if (v.back() == "console" || v.back() == "syslog")
           return Bad("auditDestination: " + v.back() +
                      " is not part of this version; use file, or none");
         if (v.back() != "file" && v.back() != "none")
           return Bad("auditDestination must be file or none, not '" + v.back() + "'");
         c.audit = v.back() == "file";
         return Ok();
       }});
  add({"--auditPath", "auditLog.path", Kind::kString,
       "audit log file (audit/audit.json in the data directory)", SetString(&C::audit_path)});
  add({"--auditFormat", "auditLog.format", Kind::kString, "JSON, the only one",
       [](C&, const Values& v) -> Result<void> {
         if (v.back() == "BSON")
           return Bad("auditFormat: BSON is not part of this version; use JSON");
         if (v.back() != "JSON") return Bad("auditFormat must be JSON, not '" + v.back() + "'");
         return Ok();
       }});
  no("--auditFilter", "auditLog.filter", Kind::kString,
     "the audit log has every event it knows; filters are not part of this version");
  no("", "auditLog.runtimeConfiguration", Kind::kSwitch,
     "the audit log is configured at start-up only", "false");
  // Mayfly's own
  add({"--testClock", "mayfly.testClock", Kind::kSwitch,
       "enables the clock command (for tests: time travel)", SetBool("testClock", &C::test_clock)});
  add({"--httpPort", "mayfly.httpPort", Kind::kInt,
       "port of the HTTP endpoint: expiry page, /metrics, /healthz, /readyz (28017); 0: none",
       [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(int64_t n, ParseInt("httpPort", v.back(), 0, 65535));
         c.http_port = static_cast<int>(n);
         c.http_port_given = true;
         return Ok();
       }});
  add({"--httpBindIp", "mayfly.httpBindIp", Kind::kList,
       "addresses of the HTTP endpoint, comma-separated (127.0.0.1)",
       [](C& c, const Values& v) -> Result<void> {
         c.http_bind_ips = SplitCommas(v);
         if (c.http_bind_ips.empty()) return Bad("httpBindIp needs an address");
         return Ok();
       }});
  // Not part of this version
  // Replication
  add({"--replSet", "replication.replSetName", Kind::kString,
       "take part in the replica set of this name",
       [](C& c, const Values& v) -> Result<void> {
         c.repl_set = v.back();
         if (c.repl_set.empty() || c.repl_set.find('/') != std::string::npos)
           return Bad("replSet must be a name without '/'");
         return Ok();
       }});
  add({"--oplogSize,--oplogSizeMB", "replication.oplogSizeMB", Kind::kInt,
       "megabytes of the replication log (5% of the disk)", [](C& c, const Values& v) -> Result<void> {
         MAYFLY_TRY(int64_t n, ParseInt("oplogSize", v.back(), 1, 1 << 30));
         c.oplog_size_mb = static_cast<uint64_t>(n);
         return Ok();
       }});
  no("--enableMajorityReadConcern", "replication.enableMajorityReadConcern", Kind::kString,
     "majority reads are always possible: only what a majority has is visible", "true");
  no("--auth", "", Kind::kSwitch, kSecurity);
  add({"--noauth", "", Kind::kSwitch, "run without access control (as this version always does)",
       SetBool("noauth", &C::no_auth)});
  no("", "security.authorization", Kind::kString, kSecurity, "disabled");
  add({"--keyFile", "security.keyFile", Kind::kString,
       "file with the secret that members of the set share", SetString(&C::key_file)});
  no("--clusterAuthMode", "security.clusterAuthMode", Kind::kString, kSecurity);
  no("--transitionToAuth", "security.transitionToAuth", Kind::kSwitch, kSecurity, "false");
  no("--noscripting", "", Kind::kSwitch, "there is no server-side JavaScript in this version");
  no("", "security.javascriptEnabled", Kind::kSwitch,
     "there is no server-side JavaScript in this version", "false");
  no("--enableEncryption", "security.enableEncryption", Kind::kSwitch,
     "encryption at rest is not part of this server", "false");
  no("--tlsMode", "net.tls.mode", Kind::kString, kTls, "disabled");
  for (std::string_view f :
       {"--tlsCertificateKeyFile|net.tls.certificateKeyFile",
        "--tlsCertificateKeyFilePassword|net.tls.certificateKeyFilePassword",
        "--tlsCAFile|net.tls.CAFile", "--tlsCRLFile|net.tls.CRLFile",
        "--tlsClusterFile|net.tls.clusterFile", "--tlsClusterCAFile|net.tls.clusterCAFile",
        "--tlsDisabledProtocols|net.tls.disabledProtocols"})
    no(f.substr(0, f.find('|')), f.substr(f.find('|') + 1), Kind::kString, kTls);
  for (std::string_view f :
       {"--tlsAllowConnectionsWithoutCertificates|net.tls.allowConnectionsWithoutCertificates",
        "--tlsAllowInvalidCertificates|net.tls.allowInvalidCertificates",
        "--tlsAllowInvalidHostnames|net.tls.allowInvalidHostnames"})
    no(f.substr(0, f.find('|')), f.substr(f.find('|') + 1), Kind::kSwitch, kTls, "false");
  no("--sslMode", "net.ssl.mode", Kind::kString, kTls, "disabled");
  no("--shardsvr", "", Kind::kSwitch, kSharding);
  no("--configsvr", "", Kind::kSwitch, kSharding);
  no("", "sharding.clusterRole", Kind::kString, kSharding);
  return o;
}

const OptionRow* FindKey(const std::vector<OptionRow>& options, std::string_view key) {
  for (const OptionRow& r : options)
    if (r.key == key) return &r;
  return nullptr;
}

std::string_view DisplayName(const OptionRow& r) {
  if (r.flags.empty()) return r.key;
  size_t at = r.flags.find("--");
  return r.flags.substr(at, r.flags.find(',', at) - at);
}

Result<void> ApplyRow(const OptionRow& row, std::string_view shown, const Values& values,
                      ServerConfig* config) {
  if (!row.why_not.empty()) {
    if (!row.harmless.empty() && !values.empty() && values.back() == row.harmless) return Ok();
    return Error{ErrorCode::kInvalidOptions, std::string(shown) + ": " + std::string(row.why_not)};
  }
  return row.apply(*config, values);
}

/// getCmdLineOpts.parsed: dotted keys back into documents.
using Tree = std::map<std::string, std::pair<const OptionRow*, Values>>;
void AppendTree(BsonBuilder& out, const Tree& tree, const std::string& prefix) {
  for (auto it = tree.lower_bound(prefix); it != tree.end() && it->first.starts_with(prefix);) {
    const std::string rest = it->first.substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot != std::string::npos) {
      const std::string name = rest.substr(0, dot), inner = prefix + name + ".";
      BsonBuilder sub = out.OpenDocument(name);
      AppendTree(sub, tree, inner);
      sub.Done();
      while (it != tree.end() && it->first.starts_with(inner)) ++it;
      continue;
    }
    const auto& [row, values] = it->second;
    const std::string text = values.empty() ? "true" : values.back();
    double d = 0;
    std::from_chars(text.data(), text.data() + text.size(), d);
    const Kind kind = row ? row->kind : Kind::kString;
    if (kind == Kind::kSwitch)
      out.Append(rest, text != "false");
    else if (kind == Kind::kInt)
      out.Append(rest, static_cast<int32_t>(d));
    else if (kind == Kind::kDouble)
      out.Append(rest, d);
    else
      out.Append(rest, text);
    ++it;
  }
}

}  // namespace

Result<ConfigOutcome> ParseConfig(const std::vector<std::string>& argv) {
  const std::vector<OptionRow> options = MakeOptions();
  ConfigOutcome out;
  ServerConfig& config = out.config;
  config.argv = argv;

  CLI::App app{"mayflyd: a document database server that speaks MongoDB's protocol", "mayflyd"};
  app.allow_extras();
  app.set_help_flag("");
  bool help = false, version = false;
  std::string config_path;
  app.add_flag("-h,--help", help, "show this text");
  app.add_flag("--version", version, "show the version");
  app.add_option("-f,--config", config_path, "configuration file (YAML, mongod.conf keys)");
  std::vector<std::string> verbose;
  auto* verbose_option =
      app.add_flag("-v,--verbose")->description("more detail in the log; -vvvvv for the most");
  std::vector<Values> values(options.size());
  std::vector<CLI::Option*> cli(options.size(), nullptr);
  std::vector<std::string_view> flag_names = {"--help", "--version", "--config", "--verbose"};
  for (size_t i = 0; i < options.size(); ++i) {
    const OptionRow& r = options[i];
    if (r.flags.empty()) continue;
    flag_names.push_back(DisplayName(r));
    if (r.kind == Kind::kSwitch) {
      cli[i] = app.add_flag(std::string(r.flags))->description(std::string(r.help));
    } else {
      cli[i] = app.add_option(std::string(r.flags), values[i], std::string(r.help))
                   ->expected(1)
                   ->take_all()
                   ->multi_option_policy(r.kind == Kind::kList ? CLI::MultiOptionPolicy::TakeAll
                                                               : CLI::MultiOptionPolicy::TakeLast);
      cli[i]->type_name(r.kind == Kind::kInt || r.kind == Kind::kDouble ? "N" : "TEXT");
    }
    if (!r.why_not.empty()) cli[i]->group("");  // not in --help
  }
  try {
    std::vector<std::string> args(argv.rbegin(), argv.rend() - (argv.empty() ? 0 : 1));
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    return Bad(std::string("Error parsing command line: ") + e.what());
  }
  if (help) {
    out.action = ConfigOutcome::Action::kPrint;
    out.text = app.help();
    return out;
  }
  if (version) {
    out.action = ConfigOutcome::Action::kPrint;
    out.text = "mayflyd version v" + std::string(kMayflyVersion) + "\nanswers as MongoDB " +
               std::string(kCompatibleVersion) + "\n";
    return out;
  }
  for (const std::string& extra : app.remaining()) {
    if (extra.starts_with('-')) {
      const std::string name = extra.substr(0, extra.find('='));
      std::string m = "Error parsing command line: unrecognised option '" + name + "'";
      if (auto near = NearestName(name, flag_names); !near.empty())
        m += "; did you mean '" + std::string(near) + "'?";
      return Bad(std::move(m) + " Try 'mayflyd --help' for more information");
    }
    return Bad("Error parsing command line: too many positional options: '" + extra + "'");
  }

  Tree tree;
  if (!config_path.empty()) {
    tree.emplace("config", std::pair<const OptionRow*, Values>{nullptr, {config_path}});
    MAYFLY_TRY(auto pairs, ReadConfigFile(config_path));
    for (auto& [key, list] : pairs) {
      if (key.starts_with("setParameter.")) {
        config.parameters.emplace_back(key.substr(13), list.empty() ? "" : list.back());
        tree[key] = {nullptr, list};
        continue;
      }
      if (key.starts_with("systemLog.component.") && key.ends_with(".verbosity")) {
        const std::string name = key.substr(20, key.size() - 30);
        const LogComponent c = LogComponentByName(name);
        if (c == LogComponent::kDefault)
          return Bad("Unrecognized option: " + key + ": there is no log component '" + name + "'");
        MAYFLY_TRY(int64_t level, ParseInt(key, list.back(), -1, 5));
        config.log.component_verbosity.emplace_back(c, static_cast<int>(level));
        tree[key] = {nullptr, list};
        continue;
      }
      const OptionRow* row = FindKey(options, key);
      if (row == nullptr) {
        std::vector<std::string_view> keys = {"setParameter"};
        for (const OptionRow& r : options)
          if (!r.key.empty()) keys.push_back(r.key);
        std::string m = "Unrecognized option: " + key + " in " + config_path;
        if (auto near = NearestName(key, keys); !near.empty())
          m += "; did you mean '" + std::string(near) + "'?";
        return Bad(std::move(m));
      }
      if (list.empty()) continue;
      MAYFLY_TRY(ApplyRow(*row, key, list, &config));
      tree[key] = {row, list};
    }
  }
  for (size_t i = 0; i < options.size(); ++i) {
    if (cli[i] == nullptr || cli[i]->count() == 0) continue;
    const OptionRow& r = options[i];
    const Values given = r.kind == Kind::kSwitch ? Values{"true"} : values[i];
    MAYFLY_TRY(ApplyRow(r, DisplayName(r), given, &config));
    if (r.flags == "--setParameter") {
      for (const auto& [k, v] : config.parameters) tree["setParameter." + k] = {nullptr, {v}};
    } else {
      tree[std::string(r.key.empty() ? DisplayName(r).substr(2) : r.key)] = {&r, given};
    }
  }
  if (verbose_option->count() > 0) {
    config.log.verbosity = static_cast<int>(std::min<size_t>(5, verbose_option->count()));
    tree["systemLog.verbosity"] = {FindKey(options, "systemLog.verbosity"),
                                   {std::to_string(config.log.verbosity)}};
  }
  if (config.repl_set.empty()) {
    if (!config.key_file.empty())
      return Bad("--keyFile is how members of a replica set know each other: it needs --replSet");
    if (config.oplog_size_mb != 0 || config.oplog_min_retention_hours != 0)
      return Bad("--oplogSize and --oplogMinRetentionHours need --replSet");
  } else if (config.port == 0) {
    return Bad("--replSet needs a --port that the other members know");
  }
  if (config.fork && config.log.path.empty())
    return Bad(
        "--fork has to be used with --logpath: in the background there is no terminal to write to");
  if (!config.audit && !config.audit_path.empty())
    return Bad("auditPath is given, but auditDestination is none: leave one of them out");
  if (config.log.append && config.log.path.empty() && config.fork)
    return Bad("--logappend needs --logpath");
  for (const std::string& ip : config.bind_ips)
    if (ip.find(':') != std::string::npos && ip != "::" && !config.ipv6)
      return Bad("bind_ip: '" + ip + "' is an IPv6 address; --ipv6 is needed for it");
  config.parsed = BuildBson([&](BsonBuilder& b) { AppendTree(b, tree, ""); });
  return out;
}

}  // namespace mayfly

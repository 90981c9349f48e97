#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "server/base/log.h"

namespace mayfly {

inline constexpr std::string_view kMayflyVersion = "0.1.0";
/// The MongoDB release whose behaviour this server answers with; drivers and tools branch on it.
inline constexpr std::string_view kCompatibleVersion = "8.0.0";
inline constexpr int kCompatibleVersionArray[4] = {8, 0, 0, 0};
inline constexpr int kMaxWireVersion = 25, kMinWireVersion = 0;

/// How the server was started: mongod's flags and the keys of its configuration file.
struct ServerConfig {
  int port = 27017;
  std::vector<std::string> bind_ips = {"127.0.0.1"};
  bool ipv6 = false;
  bool unix_socket = true;
  std::string unix_socket_prefix = "/tmp";
  int unix_socket_permissions = 0700;
  int64_t max_connections = 65536;
  std::vector<std::string> compressors = {"snappy", "zstd", "zlib"};
  unsigned io_threads = 0;      ///< 0: by the number of cores
  unsigned worker_threads = 0;  ///< 0: max(4, 2 * cores)

  std::string db_path = "./mayfly-data";
  uint64_t cache_bytes = 0;  ///< 0: 25% of the memory the cgroup allows
  int sync_interval_ms = 100;

  std::string repl_set;        ///< the set's name; empty: a standalone
  std::string key_file;        ///< members of the set prove themselves with what is in it
  uint64_t oplog_size_mb = 0;  ///< 0: 5% of the disk, from 990 MB to 50 GB
  double oplog_min_retention_hours = 0;

  LogOptions log;
  /// auditLog.destination: false ("none"): no audit log. The file: auditLog.path, else
  /// audit/audit.json in the data directory.
  bool audit = true;
  std::string audit_path;
  std::string EffectiveAuditPath() const {
    if (!audit) return {};
    return audit_path.empty() ? db_path + "/audit/audit.json" : audit_path;
  }
  std::string pid_file;
  bool fork = false;
  bool test_clock = false;
  int http_port = 28017;         ///< metrics, health, expiry page; 0: none
  bool http_port_given = false;  ///< then a port that is taken is an error
  std::vector<std::string> http_bind_ips = {"127.0.0.1"};
  bool no_auth = false;
  int64_t slow_ms = 100;
  double slow_sample_rate = 1.0;
  int profile_level = 0;
  std::vector<std::pair<std::string, std::string>> parameters;  ///< --setParameter, in order

  std::vector<std::string> argv;  ///< for getCmdLineOpts
  BsonDocument parsed;            ///< getCmdLineOpts.parsed: nested as in the configuration file

  unsigned EffectiveIoThreads() const;
  unsigned EffectiveWorkerThreads() const;
};

/// What to do with a command line.
struct ConfigOutcome {
  enum class Action { kRun, kPrint } action = Action::kRun;
  ServerConfig config;
  std::string text;  ///< kPrint: --help or --version
};

/// Reads flags, then the file that --config names (flags win). Unknown flags and keys are errors
/// that name the nearest known one; options that MongoDB has and this server does not (yet) are
/// errors that say so. Errors: BadValue 2, InvalidOptions 72, FileNotOpen 38.
Result<ConfigOutcome> ParseConfig(const std::vector<std::string>& argv);

}  // namespace mayfly

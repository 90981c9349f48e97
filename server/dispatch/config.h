#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "security/restrictions.h"
#include "security/tls_options.h"
#include "server/base/log.h"
#include "server/dispatch/audit_options.h"

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
  int64_t connection_room = 0;  ///< what the descriptors leave; those beyond are for exempt clients
  /// net.maxIncomingConnectionsOverride: clients from there do not count for the limit.
  std::vector<AddressRange> exempt_addresses;
  std::vector<std::string> exempt_sockets;
  /// `remote`: "ip:port" of a client by TCP, else the unix socket's path.
  bool IsExempt(std::string_view remote, bool tcp) const;
  std::vector<std::string> compressors = {"snappy", "zstd", "zlib"};
  unsigned io_threads = 0;      ///< 0: by the number of cores
  unsigned worker_threads = 0;  ///< 0: max(4, 2 * cores)

  std::string db_path = "./mayfly-data";
  uint64_t cache_bytes = 0;  ///< 0: 25% of the memory the cgroup allows
  int sync_interval_ms = 100;

  std::string repl_set;  ///< the set's name; empty: a standalone
  std::string key_file;  ///< members of the set prove themselves with what is in it
  std::vector<std::string> initial_members;  ///< what a new set is made of
  /// Made while there is neither a user nor a role: a user of admin with the role root.
  std::string initial_user, initial_password;
  /// Taken out of the environment; this process needs them when it starts again.
  std::vector<std::pair<std::string, std::string>> hidden_variables;
  TlsOptions tls;
  bool ask_certificate_password = false;  ///< at the terminal, before anything else
  bool ask_cluster_password = false;
  uint64_t oplog_size_mb = 0;  ///< 0: 5% of the disk, from 990 MB to 50 GB
  double oplog_min_retention_hours = 0;

  LogOptions log;
  AuditOptions audit;
  /// The audit log's file: auditLog.path, else audit/audit.json (or .bson) in the data directory;
  /// empty: there is none.
  std::string EffectiveAuditPath() const {
    if (audit.destination != AuditDestination::kFile) return {};
    if (!audit.path.empty()) return audit.path;
    return db_path +
           (audit.format == AuditFormat::kBson ? "/audit/audit.bson" : "/audit/audit.json");
  }
  bool redact_client_data = false;  ///< in the log
  std::string pid_file;
  bool fork = false;
  bool test_clock = false;
  int http_port = 28017;         ///< metrics, health, expiry page; 0: none
  bool http_port_given = false;  ///< then a port that is taken is an error
  std::vector<std::string> http_bind_ips = {"127.0.0.1"};
  bool auth = false, no_auth = false;  ///< the flags
  std::optional<bool> authorization;   ///< security.authorization of the file; a flag wins
  bool transition_to_auth = false;     ///< with a key file, but clients need not log in yet
  /// Clients must log in. Members that prove themselves imply it, as on MongoDB, and a first user,
  /// as in its image.
  bool access_control() const {
    if (auth || no_auth) return auth;
    const bool implied =
        !key_file.empty() || tls.cluster_auth == ClusterAuthMode::kX509 || !initial_user.empty();
    return authorization.value_or(implied && !transition_to_auth);
  }
  /// --backup: the process only makes a backup of db_path, and ends.
  struct BackupOptions {
    std::string folder;  ///< of the backups; empty: no backup
    bool full = false;   ///< every file is read and written again
  } backup;
  /// --restore: the process only puts a backup into db_path, and ends.
  struct RestoreOptions {
    std::string folder;  ///< of the backups; empty: no restore
    std::string id;      ///< of the backup; empty: the newest
    /// A time up to which the archived log is replayed; empty: with `archive` to its end, else not.
    std::string until;
    std::string expiry = "hold";  ///< hold, shift, run
    std::string archive;          ///< where the archived log is; empty: FOLDER/log
    bool asked_besides = false;   ///< one of the other options was given
  } restore;
  int64_t slow_ms = 100;
  double slow_sample_rate = 1.0;
  int profile_level = 0;
  std::vector<std::pair<std::string, std::string>> parameters;  ///< --setParameter, in order

  std::vector<std::string> argv;        ///< as given: with passwords
  std::vector<std::string> shown_argv;  ///< getCmdLineOpts.argv: without
  /// getCmdLineOpts.parsed: nested as in the configuration file, without passwords.
  BsonDocument parsed;

  /// As configured; 0 there: by the machine's processors (io: a quarter, 1 to 8; workers: twice as
  /// many, at least 4).
  unsigned EffectiveIoThreads() const;
  unsigned EffectiveWorkerThreads() const;
};

/// What to do with a command line.
struct ConfigOutcome {
  enum class Action { kRun, kPrint } action = Action::kRun;
  ServerConfig config;
  std::string text;  ///< kPrint: --help or --version
};

/// Reads flags, with --environment variables, and the file that --config names; flags win, then
/// variables (a password is hidden there once it is read). Unknown flags and keys are errors
/// that name the nearest known one; options that MongoDB has and this server does not (yet) are
/// errors that say so. Errors: BadValue 2, InvalidOptions 72, FileNotOpen 38.
Result<ConfigOutcome> ParseConfig(const std::vector<std::string>& argv);

}  // namespace mayfly

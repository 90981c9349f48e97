#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "protocol/error.h"
#include "protocol/file_cipher.h"
#include "server/base/start_stages.h"
#include "storage/clock.h"
#include "storage/kv/kv.h"

namespace mayfly {

struct ArchiveWiring;
class AuditLog;
class BucketSealer;
class ConnectionLimits;
class FirstStart;
class HttpServer;
class Log;
class ReplicaSet;
class ScanThreads;
class Server;
class ServerContext;
class Storage;
class TtlControls;
class TtlMonitor;
struct ServerConfig;

/// Exit codes of the process; mongod's.
inline constexpr int kExitBadOptions = 2, kExitAddressInUse = 48, kExitDataDirectory = 100;

/// Why a server could not start.
struct StartFailure {
  int exit_code = 0;
  std::string_view what;  ///< a literal
  Error error;
};

/// One server: from its store to its listeners. It starts in stages; when one fails, and at Stop,
/// those that have begun are undone in reverse order. A process may have several, on separate
/// directories and ports; they share nothing that one could exhaust. RunServer handles the process
/// itself (signals, descriptors, the pid file).
///
/// Threads: one, that of Start, Stop and the destructor.
class Instance {
 public:
  /// `config`, `clock` and `log` outlive it. `rocksdb_env`: a rocksdb::Env*, for tests with a
  /// faulty file layer; null: the system's. `asked_to_stop`: what the shutdown command calls, from
  /// any thread.
  Instance(const ServerConfig& config, SystemClock& clock, Log& log, void* rocksdb_env,
           std::function<void(int exit_code)> asked_to_stop);
  ~Instance();

  /// Nothing: it serves. Once.
  std::optional<StartFailure> Start();
  /// Lets running operations finish for `grace_millis`, and closes everything.
  void Stop(int grace_millis);

  /// REQUIRES: Start has succeeded, and Stop was not called.
  int port() const;
  int http_port() const;  ///< 0: none
  ServerContext& context() { return *context_; }
  AuditLog& audit() { return *audit_; }

 private:
  using Failed = std::optional<StartFailure>;
  // The stages, in order.
  Failed SetUp();
  Failed OpenStore();
  Failed OpenAudit();
  Failed LoadControls();
  Failed OpenSet();
  Failed MakeMonitor();
  void MakeSealer();  ///< with its stage
  Failed Listen();
  Failed StartSet();
  Failed MakeFirst();
  Failed Serve();
  Failed ServeHttp();
  void CloseSet();  ///< of OpenSet; may be called twice

  const ServerConfig& config_;
  SystemClock& clock_;
  Log& log_;
  void* const rocksdb_env_;
  KvEnginePtr engine_;  ///< from OpenStore on
  const std::function<void(int)> asked_to_stop_;
  int grace_millis_ = 0;
  std::shared_ptr<ConnectionLimits> limits_;
  std::unique_ptr<ServerContext> context_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<ScanThreads> scan_threads_;  ///< of the store's queries
  std::unique_ptr<AuditLog> audit_;
  TtlControls* controls_ = nullptr;  ///< the store's
  std::unique_ptr<ReplicaSet> set_;  ///< null on a standalone
  std::unique_ptr<ArchiveWiring> archive_;
  FileCiphersPtr ciphers_;  ///< of the data directory; null: it is not encrypted
  std::unique_ptr<TtlMonitor> ttl_;
  std::unique_ptr<BucketSealer> sealer_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<FirstStart> first_;
  std::unique_ptr<HttpServer> http_;
  StartStages stages_;  ///< last: undone before anything above goes
};

}  // namespace mayfly

#include "server/run.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include "protocol/large_memory.h"
#include "query/match/record_filter.h"
#include "server/base/network_buffers.h"
#include "server/commands/register.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/config.h"
#include "server/dispatch/parameter_table.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/execution/aggregate.h"
#include "server/http/http_server.h"
#include "server/net/connection_gate.h"
#include "server/net/server.h"
#include "server/replication_wiring.h"
#include "server/ttl_wiring.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "ttl/ttl_controls.h"

namespace mayfly {

namespace {

constexpr int kExitBadOptions = 2, kExitAddressInUse = 48, kExitDataDirectory = 100;
constexpr int kGraceMillis = 15'000;
/// From the request to end until the process does, whatever still runs: a step that does not look
/// whether it should stop, a disk that does not answer. What was acknowledged is in the log by
/// then, as when the process is killed.
constexpr std::chrono::seconds kMostShutdown{30};
constexpr int kExitNotClosed = 14;
constexpr int64_t kMiB = int64_t{1} << 20;
/// What large values may take: a quarter of the memory there is, but never less than one operation
/// needs.
constexpr int64_t kLeastLargeMemory = 64 * kMiB, kMostLargeMemory = 4096 * kMiB;
/// Messages on their way: an eighth, since what is being done for one of them takes its size three
/// or four times over. The least is room for two large
/// documents; a larger message waits until it is alone.
constexpr int64_t kLeastNetworkMemory = 32 * kMiB, kMostNetworkMemory = 1024 * kMiB;

int Fail(Log& log, int code, std::string_view what, const Error& error) {
  log.Write(LogSeverity::kError, LogComponent::kControl, 20575, what,
            BuildBson([&](BsonBuilder& b) { b.Append("error", error.message); }));
  std::fprintf(stderr, "mayflyd: %s: %s\n", std::string(what).c_str(), error.message.c_str());
  return code;
}

/// Goes to the background. The parent stays until the child says that it serves, and ends with 0
/// or 1. Returns the descriptor to say it through, -1 in case of failure.
int ForkToBackground() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return -1;
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child > 0) {
    ::close(fds[1]);
    char ready = 0;
    const bool ok = ::read(fds[0], &ready, 1) == 1;
    std::printf(ok ? "child process started successfully, pid: %d\n"
                   : "ERROR: child process %d failed; see its log\n",
                child);
    std::fflush(stdout);
    ::_exit(ok ? 0 : 1);
  }
  ::close(fds[0]);
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  return fds[1];
}

/// As many descriptors as the system allows, and no more connections than these leave room for.
void ShareOutDescriptors(Log& log, ServerConfig* config) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < 4096)
    log.AddStartupWarning(
        LogComponent::kControl, 22184,
        "Soft rlimits for open file descriptors too low: " + std::to_string(limit.rlim_cur));
  const auto count = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
  const DescriptorPlan plan = PlanDescriptors(count, StoreDescriptors(count),
                                              config->max_connections, !config->repl_set.empty());
  if (plan.connections < config->max_connections)
    log.Write(
        LogSeverity::kWarning, LogComponent::kNetwork, 9000114,
        "maxConns is more than the limit of open files (ulimit -n) leaves room for",
        BuildBson([&](BsonBuilder& b) {
          b.Append("maxConns", config->max_connections).Append("connections", plan.connections);
          b.Append("openFiles", count).Append("store", plan.store).Append("http", plan.http);
          b.Append("members", plan.members).Append("other", plan.other);
        }));
  config->max_connections = plan.connections;
}

/// What mongod warns of at start-up, in its words.
void WarnOfAccess(Log& log) {
  log.AddStartupWarning(LogComponent::kControl, 22120,
                        "Access control is not enabled for the database. Read and write access to "
                        "data and configuration is unrestricted");
  if (::geteuid() == 0)
    log.AddStartupWarning(
        LogComponent::kControl, 22138,
        "You are running this process as the root user, which is not recommended");
}

/// Turns signals into calls on one thread of its own, where everything may be called.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }
  /// Blocks until a signal comes.
  int Wait() {
    int s = 0;
    sigwait(&set_, &s);
    return s;
  }

 private:
  sigset_t set_;
};

/// How the process is told to end, by a signal or the shutdown command. Any thread.
class StopRequest {
 public:
  /// The first request counts. False when there was one before.
  bool Ask(int exit_code) {
    {
      std::lock_guard l(mutex_);
      if (asked_) return false;
      asked_ = true;
      exit_code_ = exit_code;
    }
    asked_changed_.notify_all();
    return true;
  }
  /// Blocks until the process is to end; returns its exit code.
  int Wait() {
    std::unique_lock l(mutex_);
    asked_changed_.wait(l, [&] { return asked_; });
    return exit_code_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable asked_changed_;
  bool asked_ = false;
  int exit_code_ = 0;
};

/// The body of the thread for signals: SIGUSR1 rotates the logs, any other ends the process.
/// Returns when the process is to end.
void HandleSignals(Signals& signals, Log& log, AuditLog& audit, StopRequest& stop) {
  Log::SetThreadContext("SignalHandler");
  for (;;) {
    const int s = signals.Wait();
    if (s == SIGUSR1) {
      for (const Result<void>& rotated : {log.Rotate(), audit.Rotate()})
        if (!rotated)
          log.Write(LogSeverity::kError, LogComponent::kControl, 20576, rotated.error().message);
      continue;
    }
    if (stop.Ask(0))  // else: woken by RunServer, which stops already
      log.Write(LogSeverity::kInfo, LogComponent::kControl, 23377, "Received signal",
                BuildBson([&](BsonBuilder& b) { b.Append("signal", s); }));
    return;
  }
}

/// What the process makes is its user's alone, as mongod's is, unless the parameters say otherwise.
/// They are read here before there is a registry, which checks them: the log is the first file.
void SetUmask(const ServerConfig& config) {
  int mask = 077;
  for (const auto& [name, value] : config.parameters) {
    if (name == "honorSystemUmask" && value == "true") return;
    if (name == "processUmask")
      mask = static_cast<int>(std::strtol(value.c_str(), nullptr, 8)) & 077;
  }
  ::umask(static_cast<mode_t>(mask));
}

/// A directory of an earlier version was made for all to read; what its owner meant is not known.
void WarnOfOpenDirectory(Log& log, const ServerConfig& config, const ServerParameters& settings) {
  struct stat s;
  if (settings.honor_system_umask || settings.process_umask >= 0 ||
      ::stat(config.db_path.c_str(), &s) != 0 || (s.st_mode & 077) == 0)
    return;
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(s.st_mode & 07777));
  log.AddStartupWarning(LogComponent::kStorage, 9000201,
                        "Other users of this machine can read the data directory " +
                            config.db_path + " (mode " + mode + "): chmod -R go= it");
}

void LogStart(Log& log, const ServerConfig& config) {
  log.Write(LogSeverity::kInfo, LogComponent::kControl, 4615611, "Mayfly starting",
            BuildBson([&](BsonBuilder& b) {
              b.Append("pid", static_cast<int32_t>(::getpid())).Append("port", config.port);
              b.Append("dbPath", config.db_path)
                  .Append("architecture", "64-bit")
                  .Append("version", kMayflyVersion);
            }));
  log.Write(LogSeverity::kInfo, LogComponent::kControl, 21951, "Options set by command line",
            BuildBson([&](BsonBuilder& b) { b.Append("options", config.parsed); }));
}

StorageOptions MakeStorageOptions(const ServerConfig& config, Clock& clock, Log& log,
                                  KvEnginePtr engine) {
  StorageOptions o;
  o.path = config.db_path;
  o.cache_bytes = config.cache_bytes;
  o.sync_interval_ms = config.sync_interval_ms;
  o.clock = &clock;
  o.engine = std::move(engine);
  o.compile_filter = [&clock](BsonView filter, bool for_index) {
    return CompileRecordFilter(filter, for_index, &clock);
  };
  o.logged = !config.repl_set.empty();
  o.log = [&log](char severity, std::string_view component, std::string_view message,
                 BsonView attr) {
    const LogSeverity s = severity == 'E'   ? LogSeverity::kError
                          : severity == 'W' ? LogSeverity::kWarning
                          : severity == 'D' ? LogSeverity::kDebug1
                                            : LogSeverity::kInfo;
    LogComponent c = LogComponentByName(component);
    log.Write(s, c == LogComponent::kDefault ? LogComponent::kStorage : c, 9000200, message, attr);
  };
  return o;
}

/// A data directory copied from another member holds what was that member's own.
void DropUnreplicated(Storage& storage, const Clock& clock) {
  Operation op(clock);
  for (const CollectionInfoPtr& coll : storage.catalog().ListAll())
    if (coll->unreplicated) (void)storage.catalog().Drop(op, coll->db, coll->name);
}

Result<void> WritePidFile(const std::string& path) {
  std::FILE* f = std::fopen(path.c_str(), "w");
  if (f == nullptr) return Error{ErrorCode::kFileNotOpen, path};
  std::fprintf(f, "%d\n", ::getpid());
  ::fchmod(::fileno(f), 0644);  // no secret, and others look for it
  std::fclose(f);
  return Ok();
}

/// Starts the program anew in this process. Returns only if that fails.
void ExecAgain(const ServerConfig& config);

/// From its construction to its end the process may take kMostShutdown; then it ends without
/// closing anything.
class ShutdownLimit {
 public:
  ShutdownLimit(Log& log, const ServerConfig& config, int exit_code)
      : thread_([this, &log, &config, exit_code] { Watch(log, config, exit_code); }) {}
  ~ShutdownLimit() {
    {
      std::lock_guard l(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Watch(Log& log, const ServerConfig& config, int exit_code) {
    Log::SetThreadContext("ShutdownLimit");
    std::unique_lock l(mutex_);
    if (changed_.wait_for(l, kMostShutdown, [&] { return done_; })) return;
    log.Write(LogSeverity::kWarning, LogComponent::kControl, 9000304,
              "Something does not end: the process ends without closing the store. The next start "
              "recovers from the log");
    if (!config.pid_file.empty()) ::unlink(config.pid_file.c_str());
    if (exit_code == kExitRestart) ExecAgain(config);
    ::_exit(kExitNotClosed);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

void ExecAgain(const ServerConfig& config) {
  std::vector<char*> args;
  for (const std::string& a : config.argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  ::execv("/proc/self/exe", args.data());
}

}  // namespace

int RunServer(const std::vector<std::string>& argv, void* rocksdb_env) {
  auto parsed = ParseConfig(argv);
  if (!parsed) {
    std::fprintf(stderr, "%s\n", parsed.error().message.c_str());
    return kExitBadOptions;
  }
  if (parsed.value().action == ConfigOutcome::Action::kPrint) {
    std::fputs(parsed.value().text.c_str(), stdout);
    return 0;
  }
  ServerConfig config = std::move(parsed.value().config);
  if (config.log.path.empty()) config.log.json = ::isatty(STDOUT_FILENO) == 0;
  Signals signals;  // before any thread: they inherit the mask
  SetUmask(config);
  const int ready_fd = config.fork ? ForkToBackground() : -1;

  SystemClock clock;
  Log::SetThreadContext("initandlisten");
  auto opened = Log::Open(config.log, clock);
  if (!opened) {
    std::fprintf(stderr, "mayflyd: %s\n", opened.error().message.c_str());
    return kExitBadOptions;
  }
  std::unique_ptr<Log> log = std::move(opened).value();
  LogStart(*log, config);
  ShareOutDescriptors(*log, &config);
  WarnOfAccess(*log);

  const int64_t memory = static_cast<int64_t>(MemoryLimit());
  large_memory::SetLimit(std::clamp(memory / 4, kLeastLargeMemory, kMostLargeMemory));
  TheMemoryPressure().SetMemory(memory);
  TheNetworkBuffers().SetLimit(std::clamp(memory / 8, kLeastNetworkMemory, kMostNetworkMemory));
  ServerContext context(config, clock, *log);
  RegisterParameters(context);
  RegisterAllCommands(context.commands());
  for (const auto& [name, value] : config.parameters) {
    auto set = context.parameters().SetFromText(name, value);
    if (!set) return Fail(*log, kExitBadOptions, "Bad --setParameter", set.error());
  }

  const KvEnginePtr engine = MakeRocksEngine(rocksdb_env);
  auto resynced = ApplyPendingResync(*engine, config.db_path);
  if (!resynced)
    return Fail(*log, kExitDataDirectory, "Cannot put a copy of the set's data in place",
                resynced.error());
  auto storage = Storage::Open(MakeStorageOptions(config, clock, *log, engine));
  if (!storage)
    return Fail(*log, kExitDataDirectory, "Cannot open the data directory", storage.error());
  context.set_storage(storage.value().get());
  WarnOfOpenDirectory(*log, config, context.settings());
  if (resynced.value()) DropUnreplicated(*storage.value(), clock);

  auto audit = AuditLog::Open(config.EffectiveAuditPath(), config.log.rename_on_rotate, clock);
  if (!audit) return Fail(*log, kExitBadOptions, "Cannot open the audit log", audit.error());
  audit.value()->set_problem([&log = *log](const AuditLog::State& s) {
    const BsonDocument attributes = BuildBson([&](BsonBuilder& b) {
      b.Append("waiting", s.waiting).Append("lost", s.lost).Append("error", s.error);
    });
    if (s.error.empty())
      log.Write(LogSeverity::kInfo, LogComponent::kControl, 9000115,
                "The audit log can be written again", attributes);
    else
      log.Write(LogSeverity::kError, LogComponent::kControl, 9000114,
                s.lost > 0 ? "The audit log cannot be written: entries are lost"
                           : "The audit log cannot be written: entries wait in memory",
                attributes);
  });
  context.set_audit(audit.value().get());
  auto made_controls = std::make_unique<TtlControls>(*storage.value());
  TtlControls& controls = *made_controls;
  storage.value()->set_expiry_policy(std::move(made_controls));
  {
    Operation op(clock);
    auto loaded = controls.Load(op);
    if (!loaded) {
      context.set_storage(nullptr);
      return Fail(*log, kExitDataDirectory, "Cannot read the TTL controls", loaded.error());
    }
  }
  context.set_ttl_controls(&controls);
  context.cluster_parameters().Load(context);
  std::unique_ptr<TtlMonitor> ttl;  // outlives the set, which asks its guard for the time
  std::unique_ptr<ReplicaSet> replica_set;
  if (!config.repl_set.empty()) {
    auto made = MakeReplicaSet(context);
    if (!made) return Fail(*log, kExitBadOptions, "Cannot take part in the set", made.error());
    replica_set = std::move(made).value();
    context.set_replica_set(replica_set.get());
    context.fail_points().set_stop_applying(
        [set = replica_set.get()](bool on) { set->StopApplying(on); });
  } else if (auto checked = CheckStandaloneStart(context); !checked) {
    return Fail(*log, kExitDataDirectory, "Cannot open the data directory", checked.error());
  }

  if (!replica_set) DropLeftoversOfOut(context, LeftoversOfOut(storage.value()->catalog()));

  ttl = MakeTtlMonitor(context);
  if (replica_set)
    replica_set->set_right_time([&guard = ttl->clock_guard()] { return guard.RightTime(); });

  StopRequest stop;
  context.set_shutdown_hook([&stop](bool, int code) { stop.Ask(code); });

  Server server(context);
  if (auto listening = server.Listen(); !listening) {
    replica_set.reset();
    context.set_storage(nullptr);
    return Fail(*log, kExitAddressInUse, "Cannot listen", listening.error());
  }
  if (replica_set) {
    replica_set->set_self_host(SelfHost(config, server.port()));
    context.repl_primary_changed = [m = ttl.get(), &context](bool) {
      m->ControlsChanged();  // what is due may have come by the log: every rule is looked at anew
      context.sessions().InvalidateTransactions();
    };
    if (auto joined = replica_set->Start(); !joined)
      return Fail(*log, kExitDataDirectory, "Cannot take part in the set", joined.error());
  }
  // Not before: a command, or another member, would meet a set that has not started.
  server.Start();
  ttl->Start();
  HttpServer http(context);
  if (auto listening = http.Start(); !listening) {
    ttl->Stop();
    server.Stop(0);
    context.set_storage(nullptr);
    return Fail(*log, kExitAddressInUse, "Cannot listen", listening.error());
  }
  if (!config.pid_file.empty()) {
    if (auto written = WritePidFile(config.pid_file); !written)
      return Fail(*log, kExitBadOptions, "Cannot write the pid file", written.error());
  }
  if (ready_fd >= 0) {
    [[maybe_unused]] auto n = ::write(ready_fd, "1", 1);
    ::close(ready_fd);
  }

  std::thread signal_thread([&] { HandleSignals(signals, *log, *audit.value(), stop); });
  const int exit_code = stop.Wait();
  log->Write(LogSeverity::kInfo, LogComponent::kNetwork, 4784905,
             "Shutting down the listeners and running operations");
  std::optional<ShutdownLimit> limit(std::in_place, *log, config, exit_code);
  http.Stop();
  if (replica_set) replica_set->Stop();
  ttl->Stop();
  server.Stop(kGraceMillis);
  ::pthread_kill(signal_thread.native_handle(), SIGHUP);
  signal_thread.join();
  replica_set.reset();
  context.set_replica_set(nullptr);
  context.snapshot_reads().Clear();
  context.set_storage(nullptr);
  storage.value().reset();
  limit.reset();
  if (!config.pid_file.empty()) ::unlink(config.pid_file.c_str());
  if (exit_code == kExitRestart) {
    // A copy of another member's data waits beside ours: what opens it is the start-up.
    log->Write(LogSeverity::kInfo, LogComponent::kControl, 9000303, "Starting again with new data");
    log.reset();
    ExecAgain(config);
    return kExitDataDirectory;
  }
  log->Write(LogSeverity::kInfo, LogComponent::kControl, 23138, "Shutting down",
             BuildBson([&](BsonBuilder& b) { b.Append("exitCode", exit_code); }));
  return exit_code;
}

}  // namespace mayfly

#include "server/run.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "protocol/secret_arguments.h"
#include "server/base/log_redaction.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/config_options.h"
#include "server/instance.h"
#include "server/net/connection_gate.h"
#include "server/offline_backup.h"
#include "server/replication_wiring.h"
#include "server/restore.h"
#include "storage/kv/rocks_kv.h"

namespace mayfly {

namespace {

constexpr int kGraceMillis = 15'000;
/// With fewer, the store's files alone would come to the limit.
constexpr int64_t kLeastDescriptors = 128;
/// The longest time from the stop request to the end of the process, whatever still runs: a step
/// that does not check for the stop, a disk that does not answer. Acknowledged writes are in the
/// log by then, as after a kill.
constexpr std::chrono::seconds kMaxShutdown{30};
constexpr int kExitNotClosed = 14;
int FailStart(Log& log, int code, std::string_view what, const Error& error) {
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
/// Errors: BadValue when they are not even enough for the store and what else must stay open.
Result<void> ShareOutDescriptors(Log& log, ServerConfig* config) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Ok();
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < 4096)
    log.AddStartupWarning(
        LogComponent::kControl, 22184,
        "Soft rlimits for open file descriptors too low: " + std::to_string(limit.rlim_cur));
  const auto count = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
  if (count < kLeastDescriptors)
    return Error{ErrorCode::kBadValue, "the limit of open files (ulimit -n) is " +
                                           std::to_string(count) + ": the server needs at least " +
                                           std::to_string(kLeastDescriptors)};
  const DescriptorPlan plan =
      PlanDescriptors(count, StoreDescriptors(count), config->max_connections,
                      !config->repl_set.empty(), config->access_control());
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
  config->connection_room = plan.room;
  return Ok();
}

/// The warnings of mongod at start-up, in its words.
void WarnOfAccess(Log& log, const ServerConfig& config) {
  const BsonValue engine = config.parsed.view().FindPath("storage.engine");
  if (engine.IsString() && engine.String() == "wiredTiger")
    log.AddStartupWarning(LogComponent::kStorage, 9000212,
                          "The storage engine wiredTiger was asked for: this server keeps its "
                          "data in RocksDB");
  if (!config.access_control())
    log.AddStartupWarning(
        LogComponent::kControl, 22120,
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

/// Ends the process, for a signal or the shutdown command. Any thread.
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
    if (stop.Ask(0)) {  // else: woken by RunServer, which stops already
      log.Write(LogSeverity::kInfo, LogComponent::kControl, 23377, "Received signal",
                BuildBson([&](BsonBuilder& b) { b.Append("signal", s); }));
      audit.Write(nullptr, "shutdown", [](BsonBuilder&) {});
    }
    return;
  }
}

/// Files of the process belong to its user alone, as with mongod, unless parameters change that.
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

/// A file with the process id, which exists while the process serves.
class PidFile {
 public:
  ~PidFile() { Remove(); }
  /// Errors: FileNotOpen 264 with the path and the system's words; then there is none.
  Result<void> Write(const std::string& path) {
    if (path.empty()) return Ok();
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return Failed(path);
    // A path that is not a file (/dev/null) is shared with others: it keeps its mode, and stays.
    struct stat what {};
    const bool file = ::fstat(fd, &what) == 0 && S_ISREG(what.st_mode);
    if (file) path_ = path;
    const std::string text = std::to_string(::getpid()) + "\n";
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    Result<void> r = written ? Ok() : Result<void>(Failed(path));
    if (file) ::fchmod(fd, 0644);  // no secret, and others look for it
    ::close(fd);
    if (!written) Remove();
    return r;
  }
  void Remove() {
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }
  /// Empty: there is none to be removed.
  const std::string& path() const { return path_; }

 private:
  static Error Failed(const std::string& path) {
    return {ErrorCode::kFileNotOpen, path + ": " + std::strerror(errno)};
  }
  std::string path_;
};

/// Starts the program again in this process. Returns only if that fails.
void ExecAgain(const ServerConfig& config);

/// From its construction to its end the process may take kMaxShutdown; then it ends without
/// closing anything.
class ShutdownLimit {
 public:
  ShutdownLimit(Log& log, const ServerConfig& config, const PidFile& pid_file, int exit_code)
      : thread_([this, &log, &config, &pid_file, exit_code] {
          Watch(log, config, pid_file, exit_code);
        }) {}
  ~ShutdownLimit() {
    {
      std::lock_guard l(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Watch(Log& log, const ServerConfig& config, const PidFile& pid_file, int exit_code) {
    Log::SetThreadContext("ShutdownLimit");
    std::unique_lock l(mutex_);
    if (changed_.wait_for(l, kMaxShutdown, [&] { return done_; })) return;
    log.Write(LogSeverity::kWarning, LogComponent::kControl, 9000304,
              "Something does not end: the process ends without closing the store. The next start "
              "recovers from the log");
    if (!pid_file.path().empty()) ::unlink(pid_file.path().c_str());
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
  std::vector<std::string> asked;
  if (config.ask_certificate_password) asked.push_back(config.tls.certificate_key_password);
  if (config.ask_cluster_password) asked.push_back(config.tls.cluster_password);
  if (!asked.empty() && !LeaveSecrets(asked)) return;
  for (const auto& [name, value] : config.hidden_variables)
    ::setenv(name.c_str(), value.c_str(), 1);
  for (const std::string& a : config.argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  ::execv("/proc/self/exe", args.data());
}

/// Fills in the passwords to prompt for: from the program that this process was before, or from the
/// user at the terminal.
Result<void> AskPasswords(ServerConfig* config) {
  std::vector<std::string> left = TakeLeftSecrets();
  auto fill = [&](bool ask, std::string_view what, std::string* password) -> Result<void> {
    if (!ask) return Ok();
    if (!left.empty()) {
      *password = std::move(left.front());
      left.erase(left.begin());
      return Ok();
    }
    MAYFLY_TRY(*password, AskPassword(what));
    return Ok();
  };
  TlsOptions& t = config->tls;
  MAYFLY_TRY(
      fill(config->ask_certificate_password, t.certificate_key_file, &t.certificate_key_password));
  return fill(config->ask_cluster_password, t.cluster_file, &t.cluster_password);
}

}  // namespace

std::vector<std::string_view> SecretOptions() {
  std::vector<std::string_view> out;
  for (const OptionRow& r : MakeOptions())
    if (r.secret) out.push_back(r.flags);
  return out;
}

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
  if (auto asked = AskPasswords(&config); !asked) {
    std::fprintf(stderr, "%s\n", asked.error().message.c_str());
    return kExitBadOptions;
  }
  if (config.log.path.empty()) config.log.json = ::isatty(STDOUT_FILENO) == 0;
  Signals signals;  // before any thread: they inherit the mask
  SetUmask(config);
  const int ready_fd = config.fork ? ForkToBackground() : -1;

  SystemClock clock;
  LogRedaction() = config.redact_client_data;
  Log::SetThreadContext("initandlisten");
  auto opened = Log::Open(config.log, clock);
  if (!opened) {
    std::fprintf(stderr, "mayflyd: %s\n", opened.error().message.c_str());
    return kExitBadOptions;
  }
  std::unique_ptr<Log> log = std::move(opened).value();
  LogStart(*log, config);
  if (auto enough = ShareOutDescriptors(*log, &config); !enough)
    return FailStart(*log, kExitBadOptions, "Cannot start", enough.error());
  if (!config.backup.folder.empty()) {
    if (auto made = RunOfflineBackup(config, clock, *log, rocksdb_env); !made)
      return FailStart(*log, kExitDataDirectory, "Cannot make a backup", made.error());
    return 0;
  }
  if (!config.restore.folder.empty()) {
    if (auto restored = RunRestore(config, clock, *log, rocksdb_env); !restored)
      return FailStart(*log, kExitDataDirectory, "Cannot restore", restored.error());
    return 0;
  }
  WarnOfAccess(*log, config);

  StopRequest stop;
  Instance instance(config, clock, *log, rocksdb_env, [&stop](int code) { stop.Ask(code); });
  if (auto failed = instance.Start())
    return FailStart(*log, failed->exit_code, failed->what, failed->error);
  PidFile pid_file;
  if (auto written = pid_file.Write(config.pid_file); !written)
    return FailStart(*log, kExitBadOptions, "Cannot write the pid file", written.error());
  if (ready_fd >= 0) {
    [[maybe_unused]] auto n = ::write(ready_fd, "1", 1);
    ::close(ready_fd);
  }

  std::thread signal_thread([&] { HandleSignals(signals, *log, instance.audit(), stop); });
  const int exit_code = stop.Wait();
  log->Write(LogSeverity::kInfo, LogComponent::kNetwork, 4784905,
             "Shutting down the listeners and running operations");
  {
    ShutdownLimit limit(*log, config, pid_file, exit_code);
    ::pthread_kill(signal_thread.native_handle(), SIGHUP);
    signal_thread.join();
    instance.Stop(kGraceMillis);
  }
  pid_file.Remove();
  if (exit_code == kExitRestart) {
    // A copy of another member's data waits beside ours: the start-up opens it.
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

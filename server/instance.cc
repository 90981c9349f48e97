#include "server/instance.h"

#include <sys/stat.h>

#include <algorithm>

#include "protocol/large_memory.h"
#include "query/match/record_filter.h"
#include "query/plan/query_state.h"
#include "query/sort/spill_encryption.h"
#include "security/login_backoff.h"
#include "security/tls.h"
#include "server/archive_wiring.h"
#include "server/at_rest_wiring.h"
#include "server/audit_wiring.h"
#include "server/base/backup_making.h"
#include "server/base/login_lines.h"
#include "server/base/scan_threads.h"
#include "server/commands/register.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/config.h"
#include "server/dispatch/parameter_table.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/dispatch/short_reads.h"
#include "server/dispatch/tls_settings.h"
#include "server/execution/aggregate.h"
#include "server/execution/bucket_sealer.h"
#include "server/execution/transactions.h"
#include "server/first_start.h"
#include "server/http/http_server.h"
#include "server/net/server.h"
#include "server/replication_wiring.h"
#include "server/restore.h"
#include "server/ttl_wiring.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"
#include "storage/schema/schema_watch.h"
#include "storage/storage.h"
#include "storage/write/log_format.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
/// What large values may take: a quarter of the memory there is, but never less than one operation
/// needs.
constexpr int64_t kLeastLargeMemory = 64 * kMiB, kMaxLargeMemory = 4096 * kMiB;
/// Messages on their way: an eighth, since what is being done for one of them takes its size three
/// or four times over. The least is room for two large
/// documents; a larger message waits until it is alone.
constexpr int64_t kLeastNetworkMemory = 32 * kMiB, kMaxNetworkMemory = 1024 * kMiB;

/// Earlier versions made the directory readable for all; the owner's intention is unknown.
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

void WarnOfRestoreHold(Log& log, const TtlControls& controls) {
  const std::optional<TtlRestoreHold> hold = controls.RestoreHold();
  if (!hold) return;
  log.AddStartupWarning(LogComponent::kIndex, 9000211,
                        "Expiry is held, since the data was restored from the backup " +
                            hold->backup +
                            ": nothing is removed for being past its deadline. {ttlForecast: 1} "
                            "says what would go; {ttlRelease: 1, restored: true, confirm: true} "
                            "lets it go");
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
    LogComponent c = LogComponentByName(component);
    log.Write(LogSeverityOf(severity), c == LogComponent::kDefault ? LogComponent::kStorage : c,
              9000200, message, attr);
  };
  return o;
}

/// A data directory copied from another member holds what was that member's own.
void DropUnreplicated(Storage& storage, const Clock& clock) {
  Operation op(clock);
  for (const CollectionInfoPtr& coll : storage.catalog().ListAll())
    if (coll->unreplicated) (void)storage.catalog().Drop(op, coll->db, coll->name);
}

void TellOfAudit(Log& log, const AuditLog::State& s) {
  const BsonDocument attributes = BuildBson([&](BsonBuilder& b) {
    b.Append("waiting", s.waiting).Append("lost", s.lost).Append("error", s.error);
  });
  if (s.error.empty())
    log.Write(LogSeverity::kInfo, LogComponent::kControl, 9000117,
              "The audit log can be written again", attributes);
  else
    log.Write(LogSeverity::kError, LogComponent::kControl, 9000116,
              s.lost > 0 ? "The audit log cannot be written: entries are lost"
                         : "The audit log cannot be written: entries wait in memory",
              attributes);
}

void TellOfEncryption(Log& log, const AtRest& at_rest) {
  log.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000202,
            at_rest.rotated ? "The data is encrypted; its master key was replaced"
                            : "The data is encrypted",
            BuildBson([&](BsonBuilder& b) {
              b.Append("masterKey", at_rest.key_id).Append("newStore", at_rest.created);
            }));
}

Result<void> MakeTls(ServerContext& server) {
  const TlsOptions& o = server.tls_settings().options;
  if (o.mode != TlsMode::kDisabled && o.ca_file.empty() && !o.use_system_ca)
    return Error{ErrorCode::kInvalidOptions,
                 "TLS needs a chain of trust: give tlsCAFile, or set the parameter tlsUseSystemCA "
                 "to trust whom the system trusts"};
  if (o.cluster_auth != ClusterAuthMode::kKeyFile &&
      !server.access().parameters().members_are_no_users)
    return Error{ErrorCode::kInvalidOptions,
                 "enforceUserClusterSeparation can be false with clusterAuthMode keyFile only: "
                 "certificates of members would be those of users"};
  MAYFLY_TRY(auto tls,
             Tls::Make(o, [&clock = server.clock()] { return clock.Now().millis / 1000; }));
  for (const std::string& warning : tls->Warnings())
    server.log().AddStartupWarning(LogComponent::kNetwork, 9000120, warning);
  server.set_tls(std::move(tls));
  return Ok();
}

}  // namespace

Instance::Instance(const ServerConfig& config, SystemClock& clock, Log& log, void* rocksdb_env,
                   std::function<void(int)> asked_to_stop)
    : config_(config),
      clock_(clock),
      log_(log),
      rocksdb_env_(rocksdb_env),
      asked_to_stop_(std::move(asked_to_stop)) {}

Instance::~Instance() = default;

std::optional<StartFailure> Instance::Start() {
  context_ = std::make_unique<ServerContext>(config_, clock_, log_);
  // Threads started below, and compiled filters, count for this server.
  large_memory::BudgetScope scope(context_->large_memory());
  for (Failed (Instance::*stage)() :
       {&Instance::SetUp, &Instance::OpenStore, &Instance::OpenAudit, &Instance::LoadControls,
        &Instance::OpenSet, &Instance::MakeMonitor, &Instance::Listen, &Instance::StartSet,
        &Instance::MakeFirst, &Instance::Serve, &Instance::ServeHttp}) {
    if (Failed failed = (this->*stage)()) {
      Stop(0);
      return failed;
    }
  }
  return std::nullopt;
}

void Instance::Stop(int grace_millis) {
  grace_millis_ = grace_millis;
  stages_.Undo();
}

int Instance::port() const { return server_->port(); }
int Instance::http_port() const { return http_->port(); }

Instance::Failed Instance::SetUp() {
  const int64_t memory = static_cast<int64_t>(MemoryLimit());
  // Last of all, since what runs on the workers uses the rest.
  stages_.Add([this] {
    context_->workers().Join();
    WriteRepeatedLogins(log_, context_->access().backoff().told());
  });
  context_->large_memory().SetLimit(std::clamp(memory / 4, kLeastLargeMemory, kMaxLargeMemory));
  context_->memory_pressure().SetMemory(memory);
  const int64_t network = std::clamp(memory / 8, kLeastNetworkMemory, kMaxNetworkMemory);
  context_->network_buffers().SetLimit(network);
  context_->large_turns().SetMost(network < 256 * kMiB ? 1 : 2);  // 1 where memory is short
  context_->set_shutdown_hook([this](bool, int code) { asked_to_stop_(code); });
  audit_ = std::make_unique<AuditLog>(config_.audit.format, clock_);
  if (config_.audit.destination != AuditDestination::kNone) context_->set_audit(audit_.get());
  RegisterParameters(*context_);
  limits_ = std::make_shared<ConnectionLimits>();
  limits_->RegisterParameters(context_->parameters());
  archive_ = std::make_unique<ArchiveWiring>();
  archive_->RegisterParameters(context_->parameters());
  RegisterAllCommands(context_->commands());
  for (const auto& [name, value] : config_.parameters) {
    auto set = context_->parameters().SetFromText(name, value);
    if (!set) return StartFailure{kExitBadOptions, "Bad --setParameter", set.error()};
  }
  if (auto made = MakeTls(*context_); !made)
    return StartFailure{kExitBadOptions, "Cannot set up TLS", made.error()};
  return std::nullopt;
}

Instance::Failed Instance::OpenStore() {
  if (auto whole = CheckRestoreEnded(config_.db_path); !whole)
    return StartFailure{kExitDataDirectory, "Cannot open the data directory", whole.error()};
  RemoveBackupLeftovers(config_.db_path);
  auto keys = ReadMasterKeys(config_);
  if (!keys) return StartFailure{kExitBadOptions, "Cannot read the encryption key", keys.error()};
  engine_ = MakeRocksEngine(rocksdb_env_);
  auto at_rest = OpenAtRest(config_.db_path, keys.value(), *engine_);
  if (!at_rest)
    return StartFailure{kExitDataDirectory, "Cannot open the data directory", at_rest.error()};
  if (at_rest.value().ciphers) {
    ciphers_ = at_rest.value().ciphers;
    engine_ = MakeRocksEngine(rocksdb_env_, ciphers_);
    EncryptSpillFiles(context_->large_memory(), at_rest.value().ciphers);
    stages_.Add([this] { EncryptSpillFiles(context_->large_memory(), nullptr); });
    TellOfEncryption(log_, at_rest.value());
  }
  auto resynced = ApplyPendingResync(*engine_, config_.db_path);
  if (!resynced)
    return StartFailure{kExitDataDirectory, "Cannot put a copy of the set's data in place",
                        resynced.error()};
  auto storage = Storage::Open(MakeStorageOptions(config_, clock_, log_, engine_));
  if (!storage)
    return StartFailure{kExitDataDirectory, "Cannot open the data directory", storage.error()};
  storage_ = std::move(storage).value();
  context_->set_storage(storage_.get());
  stages_.Add([this] {
    context_->workers().Join();
    context_->cursors().KillAll();
    context_->snapshot_reads().Clear();
    context_->set_storage(nullptr);
    scan_threads_.reset();
    storage_.reset();
  });
  scan_threads_ = std::make_unique<ScanThreads>(
      context_->workers(), context_->short_reads().scan_helpers,
      context_->short_reads().scan_help_after, [budget = &context_->large_memory()] {
        large_memory::SetThreadBudget(budget);
        Log::SetThreadContext("scan");
      });
  QueryState::Of(*storage_).helpers = scan_threads_.get();
  WarnOfOpenDirectory(log_, config_, context_->settings());
  if (resynced.value()) DropUnreplicated(*storage_, clock_);
  context_->access().Open(*storage_);
  stages_.Add([this] {
    context_->workers().Join();
    context_->access().Close();
  });
  return std::nullopt;
}

Instance::Failed Instance::OpenAudit() {
  AuditOptions options = config_.audit;
  options.rename_on_rotate = config_.log.rename_on_rotate;
  if (auto opened = audit_->Open(options, config_.EffectiveAuditPath()); !opened)
    return StartFailure{kExitBadOptions, "Cannot open the audit log", opened.error()};
  audit_->set_problem([&log = log_](const AuditLog::State& s) { TellOfAudit(log, s); });
  if (context_->audit() != nullptr) AuditSchema(*context_);
  stages_.Add([this] {
    context_->workers().Join();
    WatchSchema(*storage_, {});
    audit_->Close();
  });
  return std::nullopt;
}

Instance::Failed Instance::LoadControls() {
  auto controls = std::make_unique<TtlControls>(*storage_);
  controls_ = controls.get();
  storage_->set_expiry_policy(std::move(controls));
  Operation op(clock_);
  auto loaded = controls_->Load(op);
  if (!loaded)
    return StartFailure{kExitDataDirectory, "Cannot read the TTL controls", loaded.error()};
  context_->set_ttl_controls(controls_);
  WarnOfRestoreHold(log_, *controls_);
  context_->cluster_parameters().Load(*storage_);
  return std::nullopt;
}

Instance::Failed Instance::OpenSet() {
  auto archived = ArchiveWanted(config_);
  if (!archived) return StartFailure{kExitBadOptions, "Cannot archive the log", archived.error()};
  if (archived.value()) archive_->keep_from = std::make_shared<std::atomic<uint64_t>>(0);
  if (config_.repl_set.empty()) {
    auto checked = CheckStandaloneStart(*context_);
    Operation op(clock_);
    if (checked && config_.access_control()) checked = context_->access().KeepDecoySecret(op);
    if (!checked)
      return StartFailure{kExitDataDirectory, "Cannot open the data directory", checked.error()};
    DropLeftoversOfOut(*context_, LeftoversOfOut(storage_->catalog()));
    return std::nullopt;
  }
  auto made = MakeReplicaSet(*context_, archive_->keep_from);
  if (!made) return StartFailure{kExitBadOptions, "Cannot take part in the set", made.error()};
  set_ = std::move(made).value();
  context_->set_replica_set(set_.get());
  stages_.Add([this] { CloseSet(); });
  context_->fail_points().set_stop_applying([set = set_.get()](bool on) { set->StopApplying(on); });
  return std::nullopt;
}

void Instance::CloseSet() {
  context_->workers().Join();
  if (!set_) return;
  set_.reset();
  context_->set_replica_set(nullptr);
}

Instance::Failed Instance::MakeMonitor() {
  ttl_ = MakeTtlMonitor(*context_);
  stages_.Add([this] {
    CloseSet();  // it asks the monitor's guard for the time
    DetachTtlMonitor(*context_);
    ttl_.reset();
  });
  if (set_) set_->set_right_time([&guard = ttl_->clock_guard()] { return guard.RightTime(); });
  MakeSealer();
  return std::nullopt;
}

void Instance::MakeSealer() {
  BucketSealer::Environment env;
  env.may_run = [&server = *context_] {
    return server.fsync_locks.load(std::memory_order_relaxed) == 0 && !server.shutting_down() &&
           (server.replica_set() == nullptr ||
            (server.replica_set()->writable() &&
             server.replica_set()->ReadByAll() >= kLogEntryWithMerge));
  };
  env.warn = [&log = log_](std::string_view message, BsonView attributes) {
    log.Write(LogSeverity::kWarning, LogComponent::kStorage, 9000139, message, attributes,
              "BucketSealer");
  };
  sealer_ = std::make_unique<BucketSealer>(*storage_, clock_, context_->settings(), std::move(env));
  context_->set_sealer(sealer_.get());
  context_->settle_hook = [this](Operation& op) {
    ttl_->Settle(&op);
    sealer_->Settle(op);
  };
  stages_.Add([this] {
    CloseSet();  // what commits tells of its buckets
    context_->settle_hook = nullptr;
    context_->set_sealer(nullptr);
    sealer_.reset();
  });
}

Instance::Failed Instance::Listen() {
  server_ = std::make_unique<Server>(*context_, limits_);
  stages_.Add([this] { server_.reset(); });
  if (auto listening = server_->Listen(); !listening)
    return StartFailure{kExitAddressInUse, "Cannot listen", listening.error()};
  return std::nullopt;
}

Instance::Failed Instance::StartSet() {
  if (!set_) return std::nullopt;
  set_->set_self_host(SelfHost(config_, server_->port()));
  context_->repl_primary_changed = [this](bool) {
    ttl_->ControlsChanged();  // the log may bring expired documents: look at all rules again
    sealer_->Restart();
    // Another member may change what they have locked here. This call comes late, so some may
    // belong to a newer time as primary: those go on.
    context_->workers().Post([&server = *context_] { TransactionsOf(server)->AbortFormer(); });
  };
  if (auto joined = set_->Start(); !joined)
    return StartFailure{kExitDataDirectory, "Cannot take part in the set", joined.error()};
  if (!archive_->keep_from) return std::nullopt;
  if (auto begun = StartArchiver(*context_, *set_, ciphers_, *archive_); !begun)
    return StartFailure{kExitBadOptions, "Cannot archive the log", begun.error()};
  stages_.Add([this] { archive_->archiver->Stop(); });
  return std::nullopt;
}

Instance::Failed Instance::MakeFirst() {
  first_ = std::make_unique<FirstStart>(*context_);
  stages_.Add([this] { first_.reset(); });
  if (set_) return std::nullopt;
  if (auto made = first_->MakeUser(); !made)
    return StartFailure{kExitBadOptions, "Cannot make the first user", made.error()};
  return std::nullopt;
}

Instance::Failed Instance::Serve() {
  // Not before: a command, or another member, would meet a set that has not started.
  server_->Start();
  stages_.Add([this] { server_->Stop(grace_millis_); });
  ttl_->Start();
  stages_.Add([this] { ttl_->Stop(); });
  sealer_->Start();
  stages_.Add([this] { sealer_->Stop(); });
  // Behind the set's end: it may wait for other members.
  stages_.Add([this] { first_->Stop(); });
  // Before the clients go: another member takes over while they are still answered.
  if (set_) stages_.Add([this] { set_->Stop(); });
  stages_.Add([this] { first_->AskToStop(); });
  if (set_) first_->Begin();
  return std::nullopt;
}

Instance::Failed Instance::ServeHttp() {
  http_ = std::make_unique<HttpServer>(*context_);
  stages_.Add([this] { http_.reset(); });
  if (auto listening = http_->Start(); !listening) {
    const bool option = listening.error().code == ErrorCode::kInvalidOptions ||
                        listening.error().code == ErrorCode::kBadValue;
    if (option)
      return StartFailure{kExitBadOptions, "Cannot start the HTTP endpoint", listening.error()};
    return StartFailure{kExitAddressInUse, "Cannot listen", listening.error()};
  }
  AuditStartup(*context_);
  return std::nullopt;
}

}  // namespace mayfly

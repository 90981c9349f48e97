#include "server/offline_backup.h"

#include <cstdio>
#include <filesystem>

#include "protocol/bson_validate.h"
#include "query/match/record_filter.h"
#include "replication/applied_row.h"
#include "replication/data_copy.h"
#include "replication/log_store.h"
#include "replication/repl_config.h"
#include "server/at_rest_wiring.h"
#include "server/base/backup_making.h"
#include "server/base/log.h"
#include "server/base/stop_signal.h"
#include "server/dispatch/config.h"
#include "server/restore.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"
#include "storage/kv/store_file.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

/// What must hold before the store is opened; nothing is changed.
Result<void> CheckDirectory(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(fs::path(path) / std::string(kStoreCurrentFile), ec))
    return InvalidOptions("there is no data in " + path +
                          ": give the data directory with --dbpath");
  MAYFLY_TRY(CheckRestoreEnded(path));
  MAYFLY_TRY(const bool pending, ResyncIsPending(path));
  if (pending)
    return InvalidOptions(
        "in " + path +
        " another member's data waits to take the place of this one's: start the server "
        "once, which does that");
  return Ok();
}

/// Of a store that was a member's: the set, and how much of its log the data has.
Result<void> DescribeSet(KvStore& kv, BackupManifest* m) {
  {
    auto it = kv.NewIterator(Keyspace::kOplog, {});
    it->SeekToFirst();
    MAYFLY_TRY(it->status());
    if (!it->Valid()) return Ok();  // a standalone
  }
  MAYFLY_TRY(const std::unique_ptr<LogStore> log, LogStore::Open(kv));
  ConsensusConfiguration configuration;
  if (log->stored_configuration().empty()) return Ok();  // it was never initiated
  if (!DecodeConfiguration(log->stored_configuration(), &configuration))
    return Error{ErrorCode::kInternalError, "the stored configuration of the set is damaged"};
  MAYFLY_TRY(ValidateBson(configuration.payload));
  MAYFLY_TRY(const ReplConfig config, ParseReplConfig(BsonView(configuration.payload)));
  m->set_name = config.name;
  m->set_id = configuration.set_id;
  m->index = m->latest_index = log->applied().index;
  AppliedRow row;
  MAYFLY_TRY(const bool applied, ReadAppliedRow(kv, nullptr, &row));
  if (!applied) return Ok();
  m->ts = m->latest_ts = row.ts;
  m->term = static_cast<uint64_t>(std::max<int64_t>(0, row.term));
  return Ok();
}

/// One backup, with the store open.
class OfflineBackup {
 public:
  OfflineBackup(const ServerConfig& config, SystemClock& clock, Log& log)
      : config_(config), clock_(clock), log_(log) {}

  Result<void> Run(Storage& storage) {
    const int64_t started = clock_.MonotonicMicros();
    MAYFLY_TRY(BackupFolder folder,
               BackupFolder::OpenOrMake(config_.backup.folder, config_.db_path));
    log_.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000225,
               "A backup of a stopped server begins",
               BuildBson([&](BsonBuilder& b) { b.Append("path", config_.backup.folder); }));
    MAYFLY_TRY(NameBackup(clock_.Now(), &manifest_));
    manifest_.server_version = kMayflyVersion;
    MAYFLY_TRY(DescribeSet(storage.kv(), &manifest_));
    CountCatalog(storage.catalog(), &manifest_);
    MAYFLY_TRY(const BackupWork work, BackupWork::Begin(config_.db_path));
    MAYFLY_TRY(storage.kv().Checkpoint(work.checkpoint()));
    MAYFLY_TRY(const std::vector<SourceFile> sources,
               ListBackupSources(storage.kv(), config_.db_path, work.checkpoint(), &manifest_));
    told_ = started;
    MAYFLY_TRY(counts_, CopyIntoBackup(
                            folder, sources, !config_.backup.full,
                            [this](uint64_t done, uint64_t total) { return Step(done, total); },
                            &manifest_));
    if (auto collected = folder.Collect(); !collected)
      log_.Write(LogSeverity::kWarning, LogComponent::kStorage, 9000227,
                 "The folder of the backups could not be cleaned up",
                 BuildBson([&](BsonBuilder& b) { b.Append("error", collected.error().message); }));
    Tell((clock_.MonotonicMicros() - started) / 1000);
    return Ok();
  }

 private:
  Result<void> Step(uint64_t done, uint64_t total) {
    if (total > 0 && clock_.MonotonicMicros() - told_ >= kOfflineTellMicros) {
      told_ = clock_.MonotonicMicros();
      log_.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000226,
                 "The backup of a stopped server goes on", BuildBson([&](BsonBuilder& b) {
                   b.Append("bytesDone", done).Append("bytesTotal", total);
                 }));
    }
    return CheckNoStopSignal();
  }

  void Tell(int64_t millis) {
    log_.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000228,
               "The backup of a stopped server is complete", BuildBson([&](BsonBuilder& b) {
                 b.Append("path", config_.backup.folder).Append("id", manifest_.id);
                 if (!manifest_.set_name.empty()) {
                   BsonBuilder p = b.OpenDocument("position");
                   p.AppendTimestamp("ts", manifest_.ts).Append("t", manifest_.term);
                   p.Append("index", manifest_.index);
                 }
                 b.Append("files", counts_.files).Append("bytes", counts_.bytes);
                 b.Append("filesCopied", counts_.copied_files);
                 b.Append("bytesCopied", counts_.copied_bytes).Append("durationMillis", millis);
               }));
    if (!config_.log.path.empty())
      std::printf("made the backup %s in %s\n", manifest_.id.c_str(),
                  config_.backup.folder.c_str());
  }

  const ServerConfig& config_;
  SystemClock& clock_;
  Log& log_;
  BackupManifest manifest_;
  CopyCounts counts_;
  int64_t told_ = 0;
};

}  // namespace

Result<void> RunOfflineBackup(const ServerConfig& config, SystemClock& clock, Log& log,
                              void* rocksdb_env) {
  MAYFLY_TRY(CheckDirectory(config.db_path));
  MAYFLY_TRY(const MasterKeys keys, ReadMasterKeys(config));
  if (keys.before)
    return InvalidOptions(
        "--backup does not change the master key: leave --encryptionRotateFrom out");
  KvEnginePtr engine = MakeRocksEngine(rocksdb_env);
  MAYFLY_TRY(const AtRest at_rest, OpenAtRest(config.db_path, keys, *engine));
  if (at_rest.ciphers) engine = MakeRocksEngine(rocksdb_env, at_rest.ciphers);
  StorageOptions o;
  o.path = config.db_path;
  o.cache_bytes = kOfflineCacheBytes;
  o.clock = &clock;
  o.engine = std::move(engine);
  o.logged = true;  // builds of indexes wait: the backup has them as they are
  o.compile_filter = [&clock](BsonView filter, bool for_index) {
    return CompileRecordFilter(filter, for_index, &clock);
  };
  auto storage = Storage::Open(std::move(o));
  if (!storage) {
    if (storage.error().code != ErrorCode::kLockBusy) return storage.error();
    return Error{ErrorCode::kLockBusy,
                 storage.error().message +
                     ". A running server makes its backups itself: mayfly-backup create --uri …"};
  }
  Result<void> done = OfflineBackup(config, clock, log).Run(*storage.value());
  storage.value().reset();
  RemoveBackupLeftovers(config.db_path);
  return done;
}

}  // namespace mayfly

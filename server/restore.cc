#include "server/restore.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "backup/copy.h"
#include "protocol/hex.h"
#include "query/expression/date_util.h"
#include "query/match/record_filter.h"
#include "replication/new_node.h"
#include "server/archive_wiring.h"
#include "server/at_rest_wiring.h"
#include "server/base/log.h"
#include "server/base/stop_signal.h"
#include "server/dispatch/config.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"
#include "storage/kv/store_file.h"
#include "storage/storage.h"
#include "storage/write/shift_deadlines.h"
#include "ttl/ttl_controls.h"
#include "ttl/ttl_rule.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarker = "RESTORING";
/// Due documents that are counted between two looks at whether to end.
constexpr int64_t kLookEach = 1024;
/// "2030-01-01T12:00:00Z": all of that second; or "SECONDS,INCREMENT".
Result<uint64_t> ParseUntil(const std::string& text) {
  const size_t comma = text.find(',');
  if (comma != std::string::npos) {
    uint32_t seconds = 0, increment = 0;
    const char* const end = text.data() + text.size();
    const auto a = std::from_chars(text.data(), text.data() + comma, seconds);
    const auto b = std::from_chars(text.data() + comma + 1, end, increment);
    if (a.ec == std::errc() && a.ptr == text.data() + comma && b.ec == std::errc() && b.ptr == end)
      return uint64_t{seconds} << 32 | increment;
  } else if (auto date = ParseDateText(text);
             date && date.value().millis >= 0 && date.value().millis / 1000 <= UINT32_MAX) {
    // Cluster times have no fractions: what came later in that second would be in it, or what came
    // before would not.
    if (date.value().millis % 1000 != 0)
      return InvalidOptions(
          "--until '" + text +
          "' has a fraction of a second, which cluster times do not have: give a whole "
          "second, which is then in it whole, or SECONDS,INCREMENT of a timestamp");
    return static_cast<uint64_t>(date.value().millis / 1000) << 32 | UINT32_MAX;
  }
  return InvalidOptions(
      "--until must be a time such as 2030-01-01T12:00:00Z, or SECONDS,INCREMENT of a "
      "timestamp, not '" +
      text + "'");
}

constexpr std::string_view kMarkerText =
    "A restore is under way, or was broken off: this is no data directory.\n";

/// Whether the directory is from an interrupted restore: its marker is whole, or alone and cut
/// short. A file that only has the name is foreign.
Result<bool> IsOfBrokenRestore(const DiskFile& d, const std::vector<std::string>& there) {
  if (std::ranges::find(there, kMarker) == there.end()) return false;
  MAYFLY_TRY(DiskFile marker, d.OpenToRead(kMarker));
  std::string text;
  MAYFLY_TRY(marker.Read(kMarkerText.size() + 1, &text));
  return text == kMarkerText || (there.size() == 1 && kMarkerText.starts_with(text));
}

/// Removes everything a restore has made, the marker last; it makes no folders.
Result<void> Empty(const std::string& directory) {
  MAYFLY_TRY(DiskFile d, DiskFile::Directory(directory));
  MAYFLY_TRY(const std::vector<std::string> names, d.List());
  for (const std::string& n : names) {
    if (n == kMarker) continue;
    MAYFLY_TRY(d.Remove(n));
  }
  MAYFLY_TRY(d.Sync());
  MAYFLY_TRY(d.Remove(kMarker));
  return d.Sync();
}

/// Makes the directory, or sees that there is nothing in it but a restore that was broken off.
Result<DiskFile> PrepareDirectory(const std::string& given, Log& log) {
  std::error_code ec;
  fs::create_directories(given, ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot create the data directory " + given + ": " + ec.message()};
  const std::string path = fs::canonical(given, ec).string();
  MAYFLY_TRY(DiskFile d, DiskFile::Directory(path));
  // Until the restore has ended: another one must not take what is here for left over.
  MAYFLY_TRY(const bool alone, d.Lock(true));
  if (!alone)
    return Error{ErrorCode::kLockBusy, "another restore works in " + path + ": wait for its end"};
  MAYFLY_TRY(const std::vector<std::string> found, d.List());
  MAYFLY_TRY(const bool half, IsOfBrokenRestore(d, found));
  if (half) {
    log.Write(LogSeverity::kWarning, LogComponent::kStorage, 9000221,
              "A restore was broken off in this directory: it is emptied");
    MAYFLY_TRY(Empty(path));
  }
  MAYFLY_TRY(const std::vector<std::string> there, d.List());
  if (!there.empty())
    return InvalidOptions(
        "the data directory " + path + " is not empty (there is " + there.front() +
        "): a restore needs an empty one, or one that does not exist. Nothing was changed");
  MAYFLY_TRY(DiskFile marker, d.Create(kMarker));
  MAYFLY_TRY(marker.Write(kMarkerText));
  MAYFLY_TRY(marker.Sync());
  MAYFLY_TRY(d.Sync());
  return d;
}

/// One restore, from its checks to its end.
class Restore {
 public:
  Restore(const ServerConfig& config, SystemClock& clock, Log& log, void* env)
      : config_(config), options_(config.restore), clock_(clock), log_(log), env_(env) {}

  /// Checks before anything is written.
  Result<void> Check() {
    if (!options_.until.empty()) {
      MAYFLY_TRY(until_, ParseUntil(options_.until));
    }
    MAYFLY_TRY(folder_, BackupFolder::Open(options_.folder, BackupFolder::Use::kRead));
    MAYFLY_TRY(manifest_, folder_.Choose(options_.id));
    MAYFLY_TRY(keys_, ReadMasterKeys(config_));
    if (manifest_.key_id.empty() && keys_.now)
      return InvalidOptions(
          "the backup " + manifest_.id +
          " is not encrypted, and cannot become so: restore it without --enableEncryption");
    if (!manifest_.key_id.empty() && !keys_.now)
      return InvalidOptions("the backup " + manifest_.id + " is encrypted, by the master key " +
                            manifest_.key_id + ": give --enableEncryption and --encryptionKeyFile");
    if (keys_.now && HexDigits(keys_.now->id()) != manifest_.key_id &&
        !(keys_.before && HexDigits(keys_.before->id()) == manifest_.key_id))
      return InvalidOptions("the backup " + manifest_.id + " needs the master key " +
                            manifest_.key_id + ", and " + keys_.now->path() + " has another one");
    MAYFLY_TRY(CheckFiles());
    if (!Replays()) return Ok();
    if (manifest_.set_name.empty())
      return InvalidOptions(
          "--until and --archive need a backup of a member of a set: the backup " + manifest_.id +
          " is of a standalone, which has no log");
    return CheckArchiveOf(manifest_, keys_, Archive(), until_);
  }

  Result<void> Run() {
    const int64_t started = clock_.MonotonicMicros();
    MAYFLY_TRY(DiskFile directory, PrepareDirectory(config_.db_path, log_));
    if (Result<void> done = Fill(directory); !done) {
      (void)Empty(directory.path());
      return done;
    }
    MAYFLY_TRY(directory.Remove(kMarker));
    MAYFLY_TRY(directory.Sync());
    const int64_t millis = (clock_.MonotonicMicros() - started) / 1000;
    log_.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000222, "The backup is restored",
               BuildBson([&](BsonBuilder& b) {
                 b.Append("backup", manifest_.id).Append("bytes", manifest_.TotalBytes());
                 b.Append("durationMillis", millis).Append("expiry", options_.expiry);
                 if (shifted_ >= 0) b.Append("deadlinesMoved", shifted_);
                 if (options_.expiry == "shift") b.Append("rulesHeld", rules_held_);
               }));
    if (!config_.log.path.empty())
      std::printf("restored the backup %s into %s\n", manifest_.id.c_str(),
                  directory.path().c_str());
    return Ok();
  }

 private:
  /// Whether the archived log is to be brought in behind the backup.
  bool Replays() const { return until_ || !options_.archive.empty(); }
  std::string Archive() const {
    return options_.archive.empty() ? options_.folder + "/" + std::string(BackupFolder::kLogArchive)
                                    : options_.archive;
  }

  /// Whether the backup's files are there with their sizes, and are those of a store: a manifest
  /// may be whole and still say anything.
  Result<void> CheckFiles() const {
    const auto wrong = [&](std::string_view name, std::string what) {
      return Error{
          ErrorCode::kInternalError,
          "the backup " + manifest_.id + " is damaged: the file " + std::string(name) + " " + what};
    };
    const std::string* current = nullptr;
    for (const BackupFile& f : manifest_.files) {
      if (!IsStoreFileName(f.name) && f.name != kKeystoreFile)
        return wrong(f.name, "is none of a store");
      if (f.name == kStoreCurrentFile) current = &f.name;
      uint64_t size = 0;
      MAYFLY_TRY(const bool there, folder_.files().Exists(f.StoredName(), &size));
      if (!there) return wrong(f.name, "is missing (files/" + f.StoredName() + ")");
      if (size != f.size)
        return wrong(f.name, "has " + std::to_string(size) + " bytes instead of " +
                                 std::to_string(f.size) + " (files/" + f.StoredName() + ")");
    }
    if (current == nullptr) return wrong(kStoreCurrentFile, "is not in its manifest");
    return Ok();
  }

  /// Compares the catalog with the backup's figures. They may differ by collections made or dropped
  /// when it began, but an empty catalog is an error.
  Result<void> CheckCatalog(Storage& storage) {
    // A member's `local` is not restored, but backups without latest_index have counted it.
    const bool counted = manifest_.set_name.empty() || manifest_.latest_index > 0;
    if (Replays() || !counted) return Ok();
    int64_t collections = 0, indexes = 0;
    for (const CollectionInfoPtr& c : storage.catalog().ListAll()) {
      if (c->is_view() || c->source) continue;
      ++collections;
      indexes += static_cast<int64_t>(c->indexes.size()) + 1;
    }
    if (collections == 0 && manifest_.collections > 0)
      return Error{ErrorCode::kInternalError, "the backup " + manifest_.id +
                                                  " is damaged: it has no collections, and says "
                                                  "that they are " +
                                                  std::to_string(manifest_.collections)};
    if (collections != manifest_.collections || indexes != manifest_.indexes)
      log_.Write(LogSeverity::kWarning, LogComponent::kStorage, 9000224,
                 "The restored data has other collections or indexes than were counted as the "
                 "backup began",
                 BuildBson([&](BsonBuilder& b) {
                   b.Append("collections", collections).Append("indexes", indexes);
                   b.Append("countedCollections", manifest_.collections);
                   b.Append("countedIndexes", manifest_.indexes);
                 }));
    return Ok();
  }

  Result<void> Fill(const DiskFile& directory) {
    log_.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000220, "A restore begins",
               BuildBson([&](BsonBuilder& b) {
                 b.Append("backup", manifest_.id).Append("time", manifest_.time);
                 b.Append("bytes", manifest_.TotalBytes());
               }));
    int64_t told = clock_.MonotonicMicros();
    MAYFLY_TRY(CopyOutOfBackup(folder_, manifest_, directory, [&](uint64_t done, uint64_t total) {
      if (clock_.MonotonicMicros() - told < kOfflineTellMicros) return CheckNoStopSignal();
      told = clock_.MonotonicMicros();
      log_.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000223, "The restore goes on",
                 BuildBson([&](BsonBuilder& b) {
                   b.Append("bytesDone", done).Append("bytesTotal", total);
                 }));
      return CheckNoStopSignal();
    }));
    KvEnginePtr engine = MakeRocksEngine(env_);
    if (keys_.now) {
      MAYFLY_TRY(const AtRest at_rest, OpenAtRest(directory.path(), keys_, *engine));
      engine = MakeRocksEngine(env_, at_rest.ciphers);
    }
    data_time_ = manifest_.time;
    if (Replays()) {
      MAYFLY_TRY(
          const ReplayProgress replayed,
          ReplayOnDirectory(directory.path(), engine, keys_, Archive(), until_, clock_, &log_));
      if (replayed.wall_millis > 0) data_time_ = Instant{replayed.wall_millis};
    }
    MAYFLY_TRY(MakeNewNode(*engine, directory.path()));
    return SetExpiry(engine, directory.path());
  }

  Result<void> MakeNewNode(const KvEngine& engine, const std::string& path) {
    KvOptions o;
    o.path = path;
    o.cache_bytes = kOfflineCacheBytes;
    MAYFLY_TRY(const std::unique_ptr<KvStore> kv, engine.Open(std::move(o)));
    MAYFLY_TRY(BecomeNewNode(*kv, clock_.Now()));
    if (options_.expiry == "shift") {
      const int64_t passed = std::max<int64_t>(0, clock_.Now().millis - data_time_.millis);
      MAYFLY_TRY(shifted_, ShiftDeadlines(*kv, passed, CheckNoStopSignal));
    }
    return kv->Flush();
  }

  Result<void> SetExpiry(const KvEnginePtr& engine, const std::string& path) {
    StorageOptions o;
    o.path = path;
    o.cache_bytes = kOfflineCacheBytes;
    o.clock = &clock_;
    o.engine = engine;
    o.compile_filter = [this](BsonView filter, bool for_index) {
      return CompileRecordFilter(filter, for_index, &clock_);
    };
    MAYFLY_TRY(const std::unique_ptr<Storage> storage, Storage::Open(std::move(o)));
    MAYFLY_TRY(CheckCatalog(*storage));
    TtlControls controls(*storage);
    Operation op(clock_);
    MAYFLY_TRY(controls.Load(op));
    MAYFLY_TRY(controls.ReleaseRestored(op));  // the data may have been restored before
    if (options_.expiry == "hold") {
      MAYFLY_TRY(
          controls.HoldRestored(op, {manifest_.id, manifest_.time, clock_.Now(), data_time_}));
    } else if (options_.expiry == "shift") {
      MAYFLY_TRY(HoldRules(*storage, op, controls));
    }
    MAYFLY_TRY(storage->kv().SyncWal());
    return storage->kv().Flush();
  }

  /// Dates in documents cannot be moved. The rules that count from them and have expired documents
  /// wait until an operator releases them one by one.
  Result<void> HoldRules(Storage& storage, Operation& op, TtlControls& controls) {
    std::vector<InvalidTtlRule> invalid;
    for (const TtlRule& rule : ListTtlRules(storage.catalog(), &invalid)) {
      if (rule.kind == TtlRule::Kind::kDocument) continue;
      // In clustered collections nothing before 1970 expires.
      const int64_t first = rule.kind == TtlRule::Kind::kClustered ? 0 : INT64_MIN;
      TtlCursor cursor(storage, rule, first, rule.Threshold(op.now));
      int64_t due = 0;
      for (;; ++due) {
        MAYFLY_TRY(const bool more, cursor.Next());
        if (!more) break;
        if (due % kLookEach == 0) {
          MAYFLY_TRY(CheckNoStopSignal());
        }
      }
      if (due == 0) continue;
      const int64_t documents = Storage::DocumentCount(*rule.coll);
      MAYFLY_TRY(controls.HoldByGuard(
          op,
          {rule.coll->uuid, rule.coll->db, RuleIdentity(rule), op.now, due,
           documents > 0 ? std::min(1.0, static_cast<double>(due) / static_cast<double>(documents))
                         : 0}));
      ++rules_held_;
    }
    return Ok();
  }

  const ServerConfig& config_;
  const ServerConfig::RestoreOptions& options_;
  SystemClock& clock_;
  Log& log_;
  void* const env_;
  std::optional<uint64_t> until_;
  BackupFolder folder_;
  BackupManifest manifest_;
  MasterKeys keys_;
  Instant data_time_;  ///< of the data: that of the backup, or up to where the log was replayed
  int64_t shifted_ = -1, rules_held_ = 0;
};

}  // namespace

Result<void> RunRestore(const ServerConfig& config, SystemClock& clock, Log& log,
                        void* rocksdb_env) {
  Restore restore(config, clock, log, rocksdb_env);
  MAYFLY_TRY(restore.Check());
  return restore.Run();
}

Result<void> CheckRestoreEnded(const std::string& data_directory) {
  std::error_code ec;
  if (!fs::exists(fs::path(data_directory) / kMarker, ec)) return Ok();
  return InvalidOptions("a restore was broken off in " + data_directory + " (there is " +
                        std::string(kMarker) +
                        "): run it again, which empties the directory first. Nothing was changed");
}

}  // namespace mayfly

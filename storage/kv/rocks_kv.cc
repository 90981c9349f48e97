#include "storage/kv/rocks_kv.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/transaction_log.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "storage/kv/batch_number.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/read_once.h"
#include "storage/kv/rocks_checksum.h"
#include "storage/kv/rocks_counters.h"
#include "storage/kv/rocks_descriptors.h"
#include "storage/kv/rocks_encryption.h"
#include "storage/kv/rocks_iterator.h"
#include "storage/kv/rocks_listener.h"
#include "storage/kv/rocks_log_check.h"
#include "storage/kv/rocks_status.h"
#include "storage/kv/rocks_tuning.h"
#include "storage/kv/store_activity.h"
#include "storage/kv/store_file.h"
#include "storage/kv/write_room.h"

namespace mayfly {
namespace {

/// Batches with at least this many changes are sorted (UnitApplier::Prepare).
constexpr int kManyInOrder = 256;

class RocksBatch final : public KvBatch, public NumberedBatch {
 public:
  explicit RocksBatch(const std::array<rocksdb::ColumnFamilyHandle*, kKeyspaceCount>& cfs,
                      size_t bytes = 0)
      : cfs_(cfs), batch_(bytes) {}
  void Put(Keyspace ks, std::string_view key, std::string_view value) override {
    batch_.Put(Cf(ks), S(key), S(value)).PermitUncheckedError();
  }
  void Put(Keyspace ks, std::string_view key, std::string_view head,
           std::string_view tail) override {
    rocksdb::Slice k[1] = {S(key)};
    rocksdb::Slice v[2] = {S(head), S(tail)};
    batch_.Put(Cf(ks), rocksdb::SliceParts(k, 1), rocksdb::SliceParts(v, 2)).PermitUncheckedError();
  }
  void Delete(Keyspace ks, std::string_view key) override {
    batch_.Delete(Cf(ks), S(key)).PermitUncheckedError();
  }
  void DeleteRange(Keyspace ks, std::string_view begin, std::string_view end) override {
    if (end <= begin) return;  // RocksDB would refuse the whole batch
    batch_.DeleteRange(Cf(ks), S(begin), S(end)).PermitUncheckedError();
    covered_ |= uint32_t{1} << static_cast<unsigned>(ks);
  }
  void Clear() override {
    batch_.Clear();
    covered_ = 0;
  }
  size_t SizeBytes() const override { return batch_.GetDataSize(); }
  int Count() const override { return static_cast<int>(batch_.Count()); }
  /// RocksDB writes the number of the first change into the batch, whoever writes it for others:
  /// its bytes begin with it (rocksdb/write_batch.h).
  uint64_t Number() const override {
    uint64_t first;
    std::memcpy(&first, batch_.Data().data(), sizeof first);
    return first == 0 || batch_.Count() == 0 ? 0 : first + batch_.Count() - 1;
  }
  rocksdb::WriteBatch& raw() { return batch_; }
  /// The keyspaces with a range delete, a bit each.
  uint32_t covered() const { return covered_; }

 private:
  rocksdb::ColumnFamilyHandle* Cf(Keyspace ks) { return cfs_[static_cast<size_t>(ks)]; }
  const std::array<rocksdb::ColumnFamilyHandle*, kKeyspaceCount>& cfs_;
  rocksdb::WriteBatch batch_;
  uint32_t covered_ = 0;
};

constexpr uint32_t BitOf(Keyspace ks) { return 1U << static_cast<unsigned>(ks); }
constexpr uint32_t kExpiryBit = BitOf(Keyspace::kExpiry);
constexpr uint32_t kLookedUpBits = BitOf(Keyspace::kRecords) | BitOf(Keyspace::kIndexes);
/// MultiGet of keys that are read once: in order up to one step back in so many.
constexpr size_t kDescents = 16;
/// RocksKv::FlushSoon.
constexpr auto kGather = std::chrono::milliseconds(500);

/// What a PinnedValue holds: a block of the cache, or a copy out of a memtable.
struct RocksValue {
  rocksdb::PinnableSlice slice;
  void Release() { slice.Reset(); }
  /// Not the move constructor: from a pinned slice it leaves the buffer pointer of the new one
  /// unset, and the next Get or PinSelf would follow it.
  void TakeOver(RocksValue& o) { slice = std::move(o.slice); }
  std::string_view View() const { return slice.data() ? V(slice) : std::string_view("", 0); }
};

}  // namespace

class RocksKv final : public KvStore, public WriteRoom, public HasCiphers, public StoreActivity {
 public:
  static Result<std::unique_ptr<KvStore>> Open(KvOptions options, void* env,
                                               const FileCiphersPtr& ciphers);
  ~RocksKv() override;

  Result<bool> Get(Keyspace ks, std::string_view key, PinnedValue* out,
                   const KvSnapshot* at) override;
  Result<void> MultiGet(Keyspace ks, std::span<const std::string_view> keys,
                        std::span<PinnedValue> out, const KvSnapshot* at) override;
  std::unique_ptr<KvIterator> NewIterator(Keyspace ks, KvIterOptions options) override {
    return MakeRocksIterator(db_.get(), Cf(ks), std::move(options),
                             ks == Keyspace::kIndexes ? index_group_ : nullptr);
  }
  KvSnapshotPtr Snapshot() override { return std::make_shared<RocksSnapshot>(db_.get()); }
  KvSnapshotStats Snapshots() override {
    KvSnapshotStats s;
    uint64_t oldest = 0;
    db_->GetIntProperty(rocksdb::DB::Properties::kNumSnapshots, &s.held);
    db_->GetIntProperty(rocksdb::DB::Properties::kOldestSnapshotTime, &oldest);
    const auto now = static_cast<uint64_t>(time(nullptr));
    if (s.held != 0 && oldest != 0 && oldest < now) s.oldest_age_seconds = now - oldest;
    return s;
  }
  uint64_t LatestSequence() override { return db_->GetLatestSequenceNumber(); }
  std::unique_ptr<KvBatch> NewBatch() override { return std::make_unique<RocksBatch>(cfs_); }
  Result<void> Write(KvBatch& batch, bool sync) override;
  Result<void> SyncWal() override;
  Result<void> Flush() override;
  Result<void> Flush(Keyspace ks) override;
  Result<void> Compact(Keyspace ks, std::string_view begin, std::string_view end) override;
  Result<void> Checkpoint(const std::string& directory) override;
  uint64_t ApproximateBytes(Keyspace ks, std::string_view begin, std::string_view end) override;
  KvStats Stats(Keyspace ks) override;
  uint64_t MemoryBytes() override { return memory_.cache->GetUsage(); }
  Result<void> Resume() override;
  Result<void> WritesPossible() override;
  bool HasRoom() override;
  std::unique_ptr<KvBatch> NewLargeBatch(size_t bytes) override {
    return std::make_unique<RocksBatch>(cfs_, bytes);
  }
  FileCiphersPtr ciphers() const override { return ciphers_; }
  KvCounters Counters() override;
  KvShape Shape(Keyspace ks) override;
  uint32_t RunningCompactions() override;

 private:
  rocksdb::ColumnFamilyHandle* Cf(Keyspace ks) { return cfs_[static_cast<size_t>(ks)]; }
  static Result<void> PrepareDirectory(const std::string& path);
  static Error SyncLost() {
    return {ErrorCode::kInternalError,
            "the log could not be synced to disk: restart the server to write again"};
  }
  /// Syncs the logs behind `log_` up to `number`, which becomes `log_`. REQUIRES: sync_mutex_.
  rocksdb::Status SwitchLog(uint64_t number);
  static Error OpenError(const std::string& path, const rocksdb::Status& s);

  RocksMemory memory_;
  std::unique_ptr<DescriptorEnv> env_;       ///< null: the caller's; outlives db_
  std::unique_ptr<rocksdb::Env> encrypted_;  ///< over it; null: files are plain
  FileCiphersPtr ciphers_;
  /// Begins the flush of a memtable and does not wait for it.
  void BeginFlush(Keyspace ks);
  /// For keyspaces that others look up, a bit each: as long as a memtable has a range delete, each
  /// look-up in it takes a mutex that all share, and waits when its owner is not running. Several
  /// that come within kGather are one flush.
  void FlushSoon(uint32_t keyspaces);
  /// There are few descriptors left: writes wait for more.
  void RefuseForDescriptors();
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kKeyspaceCount> cfs_{};
  /// For each family: the size of a full memtable, and how many may wait to be flushed before large
  /// batches wait too: half of the number at which RocksDB delays writers.
  struct Memtables {
    uint64_t full = 0, waiting = 0;
  };
  std::array<Memtables, kKeyspaceCount> memtables_{};
  /// Whether a try to recover could succeed: Resume on a disk that is still full would make the
  /// error final.
  bool DiskHasRoom();
  void RecoveryLoop();

  std::function<void(char, std::string_view)> log_line_;
  KvGroupSize index_group_ = nullptr;
  std::atomic<bool> write_failed_{false};  ///< writes are answered with write_error_
  std::mutex recovery_mutex_;
  std::condition_variable recovery_wake_;
  Error write_error_;
  bool recover_ = false;     ///< an error is to be recovered from
  uint64_t errors_ = 0;      ///< so far: one that comes while Resume runs is not over with it
  uint32_t flush_soon_ = 0;  ///< FlushSoon
  bool stop_ = false;
  std::thread recovery_thread_;  ///< RecoveryLoop; recovery_mutex_ guards what it looks at
  /// A failed sync may have lost pages of the page cache (they are not kept for a retry): nothing
  /// later may be acknowledged as if it followed the log.
  std::atomic<bool> sync_lost_{false};
  std::mutex sync_mutex_;
  std::string path_;
  std::unique_ptr<rocksdb::FSWritableFile> log_;  ///< the log that was current at the last sync
  uint64_t log_number_ = 0;
};

Result<void> RocksKv::PrepareDirectory(const std::string& path) {
  std::error_code ec;
  std::filesystem::create_directories(path, ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot create the data directory " + path + ": " + ec.message()};
  if (!std::filesystem::is_directory(path, ec))
    return Error{ErrorCode::kFileNotOpen, "the data directory " + path + " is not a directory"};
  if (access(path.c_str(), R_OK | W_OK | X_OK) != 0)
    return Error{ErrorCode::kFileNotOpen,
                 "the data directory " + path + " cannot be written: " +
                     std::error_code(errno, std::generic_category()).message()};
  return Ok();
}

/// A directory with data and without CURRENT: RocksDB would make a new store of it, and remove the
/// old one's files as not its own.
static Result<void> RefuseLostCurrent(rocksdb::Env& env, const std::string& path) {
  std::vector<std::string> names;
  rocksdb::Status s = env.GetChildren(path, &names);
  if (!s.ok())
    return Error{ErrorCode::kFileNotOpen,
                 "cannot list the data directory " + path + ": " + s.ToString()};
  for (const std::string& n : names)
    if (n.ends_with(".sst"))
      return Error{ErrorCode::kFileNotOpen,
                   "the data directory " + path + " has data (" + n +
                       ") and lacks the file CURRENT, without which it cannot be read: restore "
                       "that, or the directory from a backup"};
  return Ok();
}

Error RocksKv::OpenError(const std::string& path, const rocksdb::Status& s) {
  std::string text = s.ToString();
  if (s.IsIOError() && text.find("LOCK") != std::string::npos &&
      text.find("lock") != std::string::npos)
    return {ErrorCode::kLockBusy, "another process is using the data directory " + path +
                                      ": stop it first, or choose another directory (" + text +
                                      ")"};
  // RocksDB tries the old suffix last and reports that one.
  if (size_t at = text.find(".ldb"); at != std::string::npos) text.replace(at, 4, ".sst");
  if (s.IsCorruption()) {
    return {ErrorCode::kInternalError,
            "the data directory " + path + " is damaged and was not opened: " + text +
                (text.find('/') == std::string::npos ? " (files CURRENT, MANIFEST-*)" : "") +
                ". Restore it from a backup or resync"};
  }
  Error e = FromStorage(s);
  e.message = "cannot open the data directory " + path + ": " + e.message;
  return e;
}

Result<std::unique_ptr<KvStore>> RocksKv::Open(KvOptions options, void* env,
                                               const FileCiphersPtr& ciphers) {
  MAYFLY_TRY(PrepareDirectory(options.path));
  if (options.cache_bytes == 0) options.cache_bytes = DefaultCacheBytes();
  // Asked here so that the linker takes the checksum.
  [[maybe_unused]] static const bool fast = HasFastChecksum();
  auto kv = std::make_unique<RocksKv>();
  kv->path_ = options.path;
  kv->memory_ = MakeRocksMemory(options.cache_bytes, options.path);
  if (env == nullptr) {
    kv->env_ = MakeDescriptorEnv([self = kv.get()] { self->RefuseForDescriptors(); });
    env = kv->env_->env();
  }
  if (ciphers) {
    kv->ciphers_ = ciphers;
    kv->encrypted_ = MakeEncryptedEnv(*static_cast<rocksdb::Env*>(env), ciphers);
    env = kv->encrypted_.get();
  }
  rocksdb::DBOptions db_options =
      MakeDbOptions(options, static_cast<rocksdb::Env*>(env), kv->memory_);
  RocksKv* self = kv.get();
  db_options.listeners.push_back(std::make_shared<RocksListener>(options.log, [self] {
    std::lock_guard l(self->recovery_mutex_);
    self->recover_ = true;
    ++self->errors_;
    self->recovery_wake_.notify_one();
  }));
  kv->log_line_ = options.log;
  kv->index_group_ = options.index_group;

  const rocksdb::Status found = db_options.env->FileExists(options.path + "/CURRENT");
  bool exists = found.ok();
  if (!exists) {
    if (!found.IsNotFound() && !found.IsPathNotFound()) return OpenError(options.path, found);
    MAYFLY_TRY(RefuseLostCurrent(*db_options.env, options.path));
  } else {
    std::vector<std::string> names;
    rocksdb::Status s = rocksdb::DB::ListColumnFamilies(db_options, options.path, &names);
    if (!s.ok()) return OpenError(options.path, s);
    for (const std::string& n : names) {
      bool known = false;
      for (int i = 0; i < kKeyspaceCount; ++i)
        known |= n == ColumnFamilyName(static_cast<Keyspace>(i));
      if (!known)
        return Error{ErrorCode::kUnsupportedFormat,
                     "the data directory " + options.path + " has a keyspace \"" + n +
                         "\" that this version does not know: it was written by another program or "
                         "a newer version"};
    }
  }

  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (int i = 0; i < kKeyspaceCount; ++i) {
    auto ks = static_cast<Keyspace>(i);
    const auto& o =
        families
            .emplace_back(ColumnFamilyName(ks), MakeColumnFamilyOptions(ks, options, kv->memory_))
            .options;
    kv->memtables_[i] = {o.write_buffer_size,
                         static_cast<uint64_t>(o.max_write_buffer_number / 2 - 1)};
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const NoHints for_logs;  // they may have range deletes
  if (exists && !CheckLogs(*db_options.env, options.path)) {
    // A log that was full when the disk was, may be there still although its data has long been in
    // table files.
    uint64_t first = 0;
    if (rocksdb::DB::OpenForReadOnly(db_options, options.path, families, &handles, &db).ok()) {
      db->GetIntProperty(rocksdb::DB::Properties::kMinLogNumberToKeep, &first);
      for (auto* cf : handles) db->DestroyColumnFamilyHandle(cf).PermitUncheckedError();
      handles.clear();
      delete db;
      db = nullptr;
    }
    MAYFLY_TRY(CheckLogs(*db_options.env, options.path, first));
  }
  rocksdb::Status s = rocksdb::DB::Open(db_options, options.path, families, &handles, &db);
  if (!s.ok()) return OpenError(options.path, s);
  kv->db_.reset(db);
  std::copy(handles.begin(), handles.end(), kv->cfs_.begin());
  kv->recovery_thread_ = std::thread([self] { self->RecoveryLoop(); });
  return std::unique_ptr<KvStore>(std::move(kv));
}

RocksKv::~RocksKv() {
  if (!db_) return;
  {
    std::lock_guard l(recovery_mutex_);
    stop_ = true;
    recovery_wake_.notify_one();
  }
  if (recovery_thread_.joinable()) recovery_thread_.join();
  if (log_) log_->Close(rocksdb::IOOptions(), nullptr).PermitUncheckedError();
  rocksdb::CancelAllBackgroundWork(db_.get(), true);
  for (auto* cf : cfs_) db_->DestroyColumnFamilyHandle(cf).PermitUncheckedError();
  db_->Close().PermitUncheckedError();
}

Result<bool> RocksKv::Get(Keyspace ks, std::string_view key, PinnedValue* out,
                          const KvSnapshot* at) {
  DisablePerfCounters();
  static const rocksdb::ReadOptions kDefault;
  RocksValue& value = out->Holder<RocksValue>();
  rocksdb::PinnableSlice* slice = &value.slice;
  slice->Reset();
  rocksdb::Status s;
  if (at) {
    rocksdb::ReadOptions ro;
    ro.snapshot = RawSnapshot(at);
    s = db_->Get(ro, Cf(ks), S(key), slice);
  } else {
    s = db_->Get(kDefault, Cf(ks), S(key), slice);
  }
  if (s.ok()) {
    out->Show(value.View());
    return true;
  }
  out->Show({});
  if (s.IsNotFound()) return false;
  return FromStorage(s);
}

Result<void> RocksKv::MultiGet(Keyspace ks, std::span<const std::string_view> keys,
                               std::span<PinnedValue> out, const KvSnapshot* at) {
  const size_t n = keys.size();
  if (n == 1) {  // half the instructions
    if (Result<bool> found = Get(ks, keys[0], &out[0], at); !found) return found.error();
    return Ok();
  }
  rocksdb::ReadOptions ro;
  ro.snapshot = RawSnapshot(at);
  std::vector<rocksdb::Slice> slices(n);
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  size_t descents = 0;
  for (size_t i = 0; i < n; ++i) {
    slices[i] = S(keys[i]);
    descents += i > 0 && keys[i - 1] > keys[i];
  }
  const bool sorted = descents == 0;
  // Those that are scattered meet the same blocks again later.
  ro.fill_cache = !ReadOnce::On() || descents > n / kDescents;
  db_->MultiGet(ro, Cf(ks), n, slices.data(), values.data(), statuses.data(), sorted);
  for (size_t i = 0; i < n; ++i) {
    out[i].Reset();
    if (statuses[i].ok()) {
      RocksValue& v = out[i].Holder<RocksValue>();
      v.slice = std::move(values[i]);
      out[i].Show(v.View());
    } else if (!statuses[i].IsNotFound()) {
      return FromStorage(statuses[i]);
    }
  }
  return Ok();
}

Result<void> RocksKv::Write(KvBatch& batch, bool sync) {
  if (sync_lost_.load(std::memory_order_relaxed)) [[unlikely]]
    return SyncLost();
  if (write_failed_.load(std::memory_order_relaxed)) [[unlikely]] {
    std::lock_guard l(recovery_mutex_);
    if (write_failed_) return write_error_;
  }
  DisablePerfCounters();
  rocksdb::WriteOptions wo;
  std::optional<ManyInOrder> many;
  std::optional<NoHints> no_hints;
  if (static_cast<RocksBatch&>(batch).covered() != 0)
    no_hints.emplace();
  else if (batch.Count() >= kManyInOrder)
    many.emplace();
  rocksdb::Status s = db_->Write(wo, &static_cast<RocksBatch&>(batch).raw());
  many.reset();
  no_hints.reset();
  if (s.ok()) [[likely]] {
    // A reader steps one by one over what a range delete covers in the same memtable (17 ms for a
    // few hundred thousand entries); a flush leaves it all out. Begun here, not waited for.
    const uint32_t covered = static_cast<RocksBatch&>(batch).covered();
    if (covered & kExpiryBit) [[unlikely]]
      BeginFlush(Keyspace::kExpiry);
    if (covered & kLookedUpBits) [[unlikely]]
      FlushSoon(covered & kLookedUpBits);
    return sync ? SyncWal() : Ok();
  }
  if (!s.IsShutdownInProgress()) {
    std::lock_guard l(recovery_mutex_);
    write_error_ = FromStorage(s);
    write_failed_ = true;
    recover_ = true;
    ++errors_;
    recovery_wake_.notify_one();
  }
  return FromStorage(s);
}

KvCounters RocksKv::Counters() {
  KvCounters c = ReadRocksCounters();
  c.slowdowns = RocksListener::slowdowns.load();
  c.stalls = RocksListener::stalls.load();
  return c;
}

KvShape RocksKv::Shape(Keyspace ks) {
  KvShape s;
  for (size_t i = 0; i < KvShape::kLevels; ++i) {
    std::string files;
    const std::string name = rocksdb::DB::Properties::kNumFilesAtLevelPrefix + std::to_string(i);
    if (db_->GetProperty(Cf(ks), name, &files))
      s.files[i] = static_cast<uint32_t>(std::strtoul(files.c_str(), nullptr, 10));
  }
  uint64_t waiting = 0;
  db_->GetIntProperty(Cf(ks), rocksdb::DB::Properties::kNumImmutableMemTable, &waiting);
  s.memtables = static_cast<uint32_t>(waiting) + 1;
  return s;
}

uint32_t RocksKv::RunningCompactions() {
  uint64_t n = 0;
  db_->GetIntProperty(rocksdb::DB::Properties::kNumRunningCompactions, &n);
  return static_cast<uint32_t>(n);
}

// Not DB::SyncWAL: after an append has failed (full disk) that asserts, and there is no telling
// from outside when it has. The operating system has all that was acknowledged, so syncing the
// log's file through a handle of our own does the same.
Result<void> RocksKv::SyncWal() {
  std::lock_guard l(sync_mutex_);
  if (sync_lost_) return SyncLost();
  std::unique_ptr<rocksdb::LogFile> current;
  rocksdb::Status s = db_->GetCurrentWalFile(&current);
  if (s.ok() && (!log_ || log_number_ != current->LogNumber())) s = SwitchLog(current->LogNumber());
  if (!s.ok()) return FromStorage(s);
  rocksdb::IOStatus io = log_->Sync(rocksdb::IOOptions(), nullptr);
  if (io.ok()) return Ok();
  sync_lost_ = true;
  return FromStorage(io);
}

rocksdb::Status RocksKv::SwitchLog(uint64_t number) {
  rocksdb::FileSystem& fs = *db_->GetEnv()->GetFileSystem();
  const rocksdb::IOOptions io;
  auto sync = [&](rocksdb::FSWritableFile& file) -> rocksdb::Status {
    rocksdb::IOStatus s = file.Sync(io, nullptr);
    if (!s.ok()) sync_lost_ = true;
    return s;
  };
  // Logs that began and ended since the last sync, in order, then the new one.
  std::vector<std::string> names;
  rocksdb::Status s = fs.GetChildren(path_, io, &names, nullptr);
  if (!s.ok()) return s;
  if (log_) {
    s = sync(
        *log_);  // even if it is deleted by now: it was not when somebody was told to wait for it
    if (!s.ok()) return s;
  }
  std::vector<std::pair<uint64_t, std::string>> logs;
  for (const std::string& n : names) {
    uint64_t k = LogNumberOf(n);
    if (k > log_number_ && k <= number) logs.emplace_back(k, path_ + "/" + n);
  }
  std::sort(logs.begin(), logs.end());
  for (auto& [k, name] : logs) {
    std::unique_ptr<rocksdb::FSWritableFile> file;
    s = fs.ReopenWritableFile(name, rocksdb::FileOptions(), &file, nullptr);
    if (s.IsPathNotFound() || s.IsNotFound()) continue;  // obsolete: its data is in table files
    if (s.ok()) s = sync(*file);
    if (!s.ok()) return s;
    if (log_) log_->Close(io, nullptr).PermitUncheckedError();
    log_ = std::move(file);
    log_number_ = k;
  }
  if (log_number_ != number)
    return rocksdb::Status::IOError("the current log file is gone: " + std::to_string(number));
  std::unique_ptr<rocksdb::FSDirectory> directory;
  s = fs.NewDirectory(path_, io, &directory, nullptr);
  if (s.ok()) s = directory->Fsync(io, nullptr);
  return s;
}

Result<void> RocksKv::Flush() {
  rocksdb::FlushOptions fo;
  std::vector<rocksdb::ColumnFamilyHandle*> all(cfs_.begin(), cfs_.end());
  for (auto* cf : all) {
    rocksdb::Status s = db_->Flush(fo, cf);
    if (!s.ok()) return FromStorage(s);
  }
  return Ok();
}

Result<void> RocksKv::Flush(Keyspace ks) {
  rocksdb::Status s = db_->Flush(rocksdb::FlushOptions(), Cf(ks));
  if (!s.ok()) return FromStorage(s);
  return Ok();
}

Result<void> RocksKv::Compact(Keyspace ks, std::string_view begin, std::string_view end) {
  rocksdb::CompactRangeOptions co;
  co.exclusive_manual_compaction = false;
  co.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  rocksdb::Slice b = S(begin), e = S(end);
  rocksdb::Status s =
      db_->CompactRange(co, Cf(ks), begin.empty() ? nullptr : &b, end.empty() ? nullptr : &e);
  if (!s.ok()) return FromStorage(s);
  return Ok();
}

Result<void> RocksKv::Checkpoint(const std::string& directory) {
  rocksdb::Checkpoint* raw = nullptr;
  rocksdb::Status s = rocksdb::Checkpoint::Create(db_.get(), &raw);
  std::unique_ptr<rocksdb::Checkpoint> checkpoint(raw);
  if (s.ok()) s = checkpoint->CreateCheckpoint(directory);
  if (!s.ok()) return FromStorage(s);
  return Ok();
}

uint64_t RocksKv::ApproximateBytes(Keyspace ks, std::string_view begin, std::string_view end) {
  rocksdb::SizeApproximationOptions so;
  so.include_memtables = true;
  so.include_files = true;
  so.files_size_error_margin = -1;  // as exact as the files' indexes are
  rocksdb::Range range(S(begin), S(end));
  uint64_t size = 0;
  db_->GetApproximateSizes(so, Cf(ks), &range, 1, &size).PermitUncheckedError();
  return size;
}

KvStats RocksKv::Stats(Keyspace ks) {
  KvStats r;
  auto get = [&](const std::string& name) {
    uint64_t v = 0;
    db_->GetIntProperty(Cf(ks), name, &v);
    return v;
  };
  r.estimated_keys = get(rocksdb::DB::Properties::kEstimateNumKeys);
  r.live_bytes = get(rocksdb::DB::Properties::kLiveSstFilesSize);
  r.memtable_bytes = get(rocksdb::DB::Properties::kSizeAllMemTables);
  r.memtable_entries = get(rocksdb::DB::Properties::kNumEntriesActiveMemTable) +
                       get(rocksdb::DB::Properties::kNumEntriesImmMemTables);
  r.pending_compaction_bytes = get(rocksdb::DB::Properties::kEstimatePendingCompactionBytes);
  return r;
}

bool RocksKv::DiskHasRoom() {
  // As much as the flush of all memtables will need, really written: free space as reported is not
  // always free to use.
  uint64_t need = 1 << 20;
  for (auto* cf : cfs_) {
    uint64_t n = 0;
    if (db_->GetIntProperty(cf, rocksdb::DB::Properties::kCurSizeAllMemTables, &n)) need += n;
  }
  rocksdb::Env* env = db_->GetEnv();
  std::string name = path_ + "/probe.tmp";
  std::unique_ptr<rocksdb::WritableFile> file;
  rocksdb::Status s = env->NewWritableFile(name, &file, rocksdb::EnvOptions());
  std::string block(256 << 10, 'x');
  for (uint64_t written = 0; s.ok() && written < need; written += block.size())
    s = file->Append(block);
  if (s.ok()) s = file->Flush();
  if (file) file->Close().PermitUncheckedError();
  file.reset();
  env->DeleteFile(name).PermitUncheckedError();
  return s.ok();
}

void RocksKv::RefuseForDescriptors() {
  std::lock_guard l(recovery_mutex_);
  if (write_failed_) return;
  if (log_line_)
    log_line_('E', "There are no file descriptors left: writes are refused until there are some");
  write_error_ = FromStorage(rocksdb::Status::IOError("Too many open files"));
  write_failed_ = recover_ = true;
  ++errors_;
  recovery_wake_.notify_one();
}

Result<void> RocksKv::Resume() {
  std::unique_lock l(recovery_mutex_);
  if (!recover_) return Ok();
  Error error =
      write_failed_ ? write_error_ : Error{ErrorCode::kOutOfDiskSpace, "the disk is full"};
  const uint64_t known = errors_;
  l.unlock();
  if (env_ && !env_->Refill()) return error;
  if (!DiskHasRoom()) return error;
  rocksdb::Status s = db_->Resume();
  if (!s.ok()) return s.IsBusy() ? error : FromStorage(s);
  l.lock();
  if (errors_ != known) return error;
  recover_ = write_failed_ = false;
  l.unlock();
  if (log_line_) log_line_('I', "The storage error is over: writing continues");
  return Ok();
}

Result<void> RocksKv::WritesPossible() {
  if (sync_lost_) return SyncLost();
  std::lock_guard l(recovery_mutex_);
  if (write_failed_) return write_error_;
  if (recover_)
    return Error{ErrorCode::kOutOfDiskSpace, "the store recovers from an error of its files"};
  return Ok();
}

bool RocksKv::HasRoom() {
  if (!WritesPossible()) return true;  // trying says why not
  uint64_t rate = 0, stopped = 0;
  db_->GetIntProperty(rocksdb::DB::Properties::kActualDelayedWriteRate, &rate);
  db_->GetIntProperty(rocksdb::DB::Properties::kIsWriteStopped, &stopped);
  bool room = rate == 0 && stopped == 0;
  for (int i = 0; i < kKeyspaceCount; ++i) {
    uint64_t waiting = 0, active = 0;
    db_->GetIntProperty(cfs_[i], rocksdb::DB::Properties::kNumImmutableMemTable, &waiting);
    db_->GetIntProperty(cfs_[i], rocksdb::DB::Properties::kCurSizeActiveMemTable, &active);
    const bool full = active >= memtables_[i].full;
    if (waiting + (full ? 1 : 0) <= memtables_[i].waiting) continue;
    room = false;
    if (!full || waiting != 0) continue;
    // RocksDB begins the flush with the next write, which may be the one that waits for it.
    BeginFlush(static_cast<Keyspace>(i));
  }
  return room;
}

void RocksKv::BeginFlush(Keyspace ks) {
  rocksdb::FlushOptions fo;
  fo.wait = false;
  fo.allow_write_stall = true;
  db_->Flush(fo, Cf(ks)).PermitUncheckedError();
}

void RocksKv::FlushSoon(uint32_t keyspaces) {
  std::lock_guard l(recovery_mutex_);
  if (flush_soon_ == 0) recovery_wake_.notify_one();
  flush_soon_ |= keyspaces;
}

void RocksKv::RecoveryLoop() {
  std::unique_lock l(recovery_mutex_);
  for (;;) {
    recovery_wake_.wait(l, [&] { return stop_ || recover_ || flush_soon_ != 0; });
    if (flush_soon_ != 0) recovery_wake_.wait_for(l, kGather, [&] { return stop_ || recover_; });
    if (stop_) return;
    const uint32_t flush = std::exchange(flush_soon_, 0);
    l.unlock();
    for (unsigned ks = 0; ks < kKeyspaceCount; ++ks)
      if (flush >> ks & 1) BeginFlush(static_cast<Keyspace>(ks));
    l.lock();
    if (!recover_) continue;
    l.unlock();
    bool over = Resume().has_value();
    l.lock();
    if (!over) recovery_wake_.wait_for(l, std::chrono::milliseconds(250), [&] { return stop_; });
  }
}

namespace {

class RocksEngine final : public KvEngine, public HasCiphers {
 public:
  RocksEngine(void* env, FileCiphersPtr ciphers) : env_(env), ciphers_(std::move(ciphers)) {}
  Result<std::unique_ptr<KvStore>> Open(KvOptions options) const override {
    return RocksKv::Open(std::move(options), env_, ciphers_);
  }
  bool IsStoreFile(std::string_view name) const override {
    return name == kCurrent || name == "IDENTITY" || name == "LOCK" ||
           name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-") ||
           name.starts_with("LOG") || name.ends_with(".sst") ||
           (name.ends_with(".log") && name.find_first_not_of("0123456789") == name.size() - 4);
  }
  std::string_view RootFile() const override { return kCurrent; }
  FileCiphersPtr ciphers() const override { return ciphers_; }
  std::string FileNamedByRoot(const std::string& directory) const override {
    auto file = StoreFile::OpenToRead(directory + "/" + std::string(kCurrent), ciphers_);
    if (!file) return {};
    auto text = file.value().Read(0, kLongestName);
    return text ? text.value().substr(0, text.value().find('\n')) : std::string();
  }

 private:
  static constexpr std::string_view kCurrent = "CURRENT";
  static constexpr size_t kLongestName = 256;
  void* const env_;
  const FileCiphersPtr ciphers_;
};

}  // namespace

bool IsImmutableStoreFile(std::string_view name) { return name.ends_with(".sst"); }

bool IsStoreFileName(std::string_view name) {
  const auto numbered = [&](std::string_view front, std::string_view end) {
    if (!name.starts_with(front) || !name.ends_with(end) ||
        name.size() <= front.size() + end.size())
      return false;
    name = name.substr(front.size(), name.size() - front.size() - end.size());
    return name.size() <= 20 && name.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return name == kStoreCurrentFile || name == "IDENTITY" || numbered("MANIFEST-", "") ||
         numbered("OPTIONS-", "") || numbered("", ".sst") || numbered("", ".blob") ||
         numbered("", ".log");
}

KvEnginePtr MakeRocksEngine(void* env) { return MakeRocksEngine(env, nullptr); }

KvEnginePtr MakeRocksEngine(void* env, FileCiphersPtr ciphers) {
  return std::make_shared<RocksEngine>(env, std::move(ciphers));
}

Result<std::unique_ptr<KvStore>> OpenRocksKv(KvOptions options) {
  return RocksKv::Open(std::move(options), nullptr, nullptr);
}

}  // namespace mayfly

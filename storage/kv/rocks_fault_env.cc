#include "storage/kv/rocks_fault_env.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace mayfly {
namespace {

using rocksdb::IOStatus;

class FaultFileSystem;

class FaultFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultFile(std::unique_ptr<rocksdb::FSWritableFile>&& file, std::string name, FaultFileSystem* fs)
      : FSWritableFileOwnerWrapper(std::move(file)), name_(std::move(name)), fs_(fs) {}
  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& o,
                  rocksdb::IODebugContext* d) override;
  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& o,
                  const rocksdb::DataVerificationInfo&, rocksdb::IODebugContext* d) override {
    return Append(data, o, d);
  }
  IOStatus Truncate(uint64_t size, const rocksdb::IOOptions& o,
                    rocksdb::IODebugContext* d) override;
  IOStatus Sync(const rocksdb::IOOptions& o, rocksdb::IODebugContext* d) override;
  IOStatus Fsync(const rocksdb::IOOptions& o, rocksdb::IODebugContext* d) override {
    return Sync(o, d);
  }
  IOStatus Allocate(uint64_t, uint64_t, const rocksdb::IOOptions&,
                    rocksdb::IODebugContext*) override {
    return IOStatus::OK();
  }

 private:
  std::string name_;
  FaultFileSystem* fs_;
};

class FaultDirectory final : public rocksdb::FSDirectory {
 public:
  FaultDirectory(std::unique_ptr<rocksdb::FSDirectory> target, std::string name,
                 FaultFileSystem* fs)
      : target_(std::move(target)), name_(std::move(name)), fs_(fs) {}
  IOStatus Fsync(const rocksdb::IOOptions& o, rocksdb::IODebugContext* d) override;
  size_t GetUniqueId(char* id, size_t n) const override { return target_->GetUniqueId(id, n); }

 private:
  std::unique_ptr<rocksdb::FSDirectory> target_;
  std::string name_;
  FaultFileSystem* fs_;
};

thread_local uint64_t reads_here = 0;

class CountingFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  using FSRandomAccessFileOwnerWrapper::FSRandomAccessFileOwnerWrapper;
  IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& o, rocksdb::Slice* result,
                char* scratch, rocksdb::IODebugContext* d) const override {
    ++reads_here;
    return target()->Read(offset, n, o, result, scratch, d);
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t n, const rocksdb::IOOptions& o,
                     rocksdb::IODebugContext* d) override {
    reads_here += n;
    return target()->MultiRead(requests, n, o, d);
  }
};

class FaultFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  FaultFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "MayflyFaultFileSystem"; }
  static const char* kClassName() { return "MayflyFaultFileSystem"; }

  IOStatus NewWritableFile(const std::string& f, const rocksdb::FileOptions& o,
                           std::unique_ptr<rocksdb::FSWritableFile>* r,
                           rocksdb::IODebugContext* d) override {
    std::shared_lock under_power(power_mutex);
    if (IOStatus s = Check(); !s.ok()) return s;
    std::unique_ptr<rocksdb::FSWritableFile> file;
    if (IOStatus s = target()->NewWritableFile(f, o, &file, d); !s.ok()) return s;
    {
      std::lock_guard l(mutex_);
      files_[f] = State{};
    }
    r->reset(new FaultFile(std::move(file), f, this));
    return IOStatus::OK();
  }
  IOStatus ReopenWritableFile(const std::string& f, const rocksdb::FileOptions& o,
                              std::unique_ptr<rocksdb::FSWritableFile>* r,
                              rocksdb::IODebugContext* d) override {
    std::shared_lock under_power(power_mutex);
    if (IOStatus s = Check(); !s.ok()) return s;
    uint64_t size = 0;
    bool existed = target()->GetFileSize(f, o.io_options, &size, d).ok();
    std::unique_ptr<rocksdb::FSWritableFile> file;
    if (IOStatus s = target()->ReopenWritableFile(f, o, &file, d); !s.ok()) return s;
    {
      std::lock_guard l(mutex_);
      if (!files_.count(f)) files_[f] = State{size, size, existed};
    }
    r->reset(new FaultFile(std::move(file), f, this));
    return IOStatus::OK();
  }
  IOStatus ReuseWritableFile(const std::string& f, const std::string&,
                             const rocksdb::FileOptions& o,
                             std::unique_ptr<rocksdb::FSWritableFile>* r,
                             rocksdb::IODebugContext* d) override {
    return NewWritableFile(f, o, r, d);
  }
  IOStatus NewRandomAccessFile(const std::string& f, const rocksdb::FileOptions& o,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* r,
                               rocksdb::IODebugContext* d) override {
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    if (IOStatus s = target()->NewRandomAccessFile(f, o, &file, d); !s.ok()) return s;
    r->reset(new CountingFile(std::move(file)));
    return IOStatus::OK();
  }
  IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& o,
                        std::unique_ptr<rocksdb::FSDirectory>* r,
                        rocksdb::IODebugContext* d) override {
    std::unique_ptr<rocksdb::FSDirectory> dir;
    if (IOStatus s = target()->NewDirectory(name, o, &dir, d); !s.ok()) return s;
    r->reset(new FaultDirectory(std::move(dir), name, this));
    return IOStatus::OK();
  }
  IOStatus DeleteFile(const std::string& f, const rocksdb::IOOptions& o,
                      rocksdb::IODebugContext* d) override {
    std::shared_lock under_power(power_mutex);
    if (IOStatus s = CheckPower(); !s.ok()) return s;  // a full disk still deletes
    {
      std::lock_guard l(mutex_);
      files_.erase(f);
    }
    return target()->DeleteFile(f, o, d);
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const rocksdb::IOOptions& o,
                      rocksdb::IODebugContext* d) override {
    std::shared_lock under_power(power_mutex);
    if (IOStatus s = CheckPower(); !s.ok()) return s;
    {
      std::lock_guard l(mutex_);
      if (auto it = files_.find(from); it != files_.end()) {
        files_[to] = it->second;
        files_.erase(from);
      }
    }
    return target()->RenameFile(from, to, o, d);
  }

  IOStatus CheckPower() {
    return power_cut ? IOStatus::IOError("the power is off") : IOStatus::OK();
  }
  IOStatus Check() {
    if (IOStatus s = CheckPower(); !s.ok()) return s;
    if (fail_writes) return IOStatus::IOError("injected write error");
    if (limited && free_bytes <= 0) return IOStatus::NoSpace("injected: no space left on device");
    return IOStatus::OK();
  }
  /// How much of an append fits.
  size_t Take(size_t n) {
    if (!limited) return n;
    int64_t left = free_bytes.fetch_sub(static_cast<int64_t>(n));
    if (left >= static_cast<int64_t>(n)) return n;
    free_bytes = 0;
    return static_cast<size_t>(std::max<int64_t>(left, 0));
  }
  void Appended(const std::string& f, size_t n) {
    std::lock_guard l(mutex_);
    files_[f].size += n;
  }
  void Truncated(const std::string& f, uint64_t n) {
    std::lock_guard l(mutex_);
    State& s = files_[f];
    s.size = n;
    s.synced = std::min(s.synced, n);
  }
  uint64_t SizeOf(const std::string& f) {
    std::lock_guard l(mutex_);
    return files_[f].size;
  }
  void Synced(const std::string& f, uint64_t size) {
    ++syncs;
    std::lock_guard l(mutex_);
    State& s = files_[f];
    s.synced = std::max(s.synced, size);
    s.durable = true;  // the file systems in use make the name durable with the file
  }
  void DirectorySynced(const std::string& name) {
    std::lock_guard l(mutex_);
    for (auto& [f, s] : files_)
      if (f.compare(0, name.size(), name) == 0) s.durable = true;
  }
  Result<void> DropUnsynced() {
    std::lock_guard l(mutex_);
    for (auto& [f, s] : files_) {
      if (!target()->FileExists(f, {}, nullptr).ok()) continue;
      std::error_code ec;
      if (s.durable)
        std::filesystem::resize_file(f, s.synced, ec);
      else
        std::filesystem::remove(f, ec);
      if (ec) return Error{ErrorCode::kInternalError, f + ": " + ec.message()};
    }
    files_.clear();
    return Ok();
  }

  /// Held shared by every write to the disk: power fails between two of them, so that nothing is
  /// acknowledged, or arrives, after the unsynced data has been dropped.
  std::shared_mutex power_mutex;
  std::atomic<bool> power_cut{false}, fail_writes{false}, fail_syncs{false}, limited{false};
  std::atomic<int64_t> slow_millis{0};
  std::atomic<int64_t> free_bytes{0};
  std::atomic<uint64_t> syncs{0};

 private:
  struct State {
    uint64_t size = 0, synced = 0;
    bool durable = false;  ///< its name survives, too
  };
  std::mutex mutex_;
  std::map<std::string, State> files_;
};

IOStatus FaultFile::Append(const rocksdb::Slice& data, const rocksdb::IOOptions& o,
                           rocksdb::IODebugContext* d) {
  std::shared_lock under_power(fs_->power_mutex);
  if (IOStatus s = fs_->Check(); !s.ok()) return s;
  size_t fits = fs_->Take(data.size());
  IOStatus s = target()->Append(rocksdb::Slice(data.data(), fits), o, d);
  if (s.ok()) fs_->Appended(name_, fits);
  if (s.ok() && fits < data.size()) return IOStatus::NoSpace("injected: no space left on device");
  return s;
}

IOStatus FaultFile::Truncate(uint64_t size, const rocksdb::IOOptions& o,
                             rocksdb::IODebugContext* d) {
  std::shared_lock under_power(fs_->power_mutex);
  if (IOStatus s = fs_->CheckPower(); !s.ok()) return s;
  IOStatus s = target()->Truncate(size, o, d);
  if (s.ok()) fs_->Truncated(name_, size);
  return s;
}

IOStatus FaultFile::Sync(const rocksdb::IOOptions& o, rocksdb::IODebugContext* d) {
  std::shared_lock under_power(fs_->power_mutex);
  if (IOStatus s = fs_->CheckPower(); !s.ok()) return s;
  if (fs_->fail_syncs) return IOStatus::IOError("injected sync error");
  if (const int64_t ms = fs_->slow_millis; ms > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  uint64_t size = fs_->SizeOf(name_);  // before: what is appended meanwhile may miss it
  IOStatus s = target()->Sync(o, d);
  if (s.ok()) fs_->Synced(name_, size);
  return s;
}

IOStatus FaultDirectory::Fsync(const rocksdb::IOOptions& o, rocksdb::IODebugContext* d) {
  std::shared_lock under_power(fs_->power_mutex);
  if (IOStatus s = fs_->CheckPower(); !s.ok()) return s;
  IOStatus s = target_->Fsync(o, d);
  if (s.ok()) fs_->DirectorySynced(name_);
  return s;
}

class FaultDiskImpl final : public FaultDisk {
 public:
  FaultDiskImpl() : fs_(std::make_shared<FaultFileSystem>()), env_(rocksdb::NewCompositeEnv(fs_)) {}
  void* env() override { return env_.get(); }
  void SetFreeBytes(std::optional<int64_t> bytes) override {
    fs_->free_bytes = bytes.value_or(0);
    fs_->limited = bytes.has_value();
  }
  void FailWrites(bool on) override { fs_->fail_writes = on; }
  void FailSyncs(bool on) override { fs_->fail_syncs = on; }
  void SlowSyncs(int64_t millis) override { fs_->slow_millis = millis; }
  uint64_t Syncs() const override { return fs_->syncs; }
  uint64_t ReadsHere() const override { return reads_here; }
  void CutPower() override {
    std::unique_lock l(fs_->power_mutex);
    fs_->power_cut = true;
  }
  Result<void> DropUnsynced() override { return fs_->DropUnsynced(); }
  void RestorePower() override { fs_->power_cut = false; }

 private:
  std::shared_ptr<FaultFileSystem> fs_;
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace

std::unique_ptr<FaultDisk> FaultDisk::Make() { return std::make_unique<FaultDiskImpl>(); }

}  // namespace mayfly

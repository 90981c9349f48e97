#include "storage/kv/rocks_descriptors.h"

#include <fcntl.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mayfly {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

constexpr int kTries = 20;
constexpr auto kPause = std::chrono::milliseconds(25);
constexpr size_t kKept = 24;       ///< descriptors kept
constexpr size_t kForWrites = 16;  ///< with fewer left, writes are refused
constexpr size_t kForLogs = 8;     ///< with fewer left, only logs and manifests have them

/// In the data directory: a log that is open already and has no number yet.
constexpr std::string_view kSpareLog = "/spare.tmp";

bool LogOrManifest(std::string_view name) {
  const size_t slash = name.rfind('/');
  return name.ends_with(".log") || name.ends_with(".dbtmp") ||
         name.substr(slash == std::string_view::npos ? 0 : slash + 1).starts_with("MANIFEST");
}

class DescriptorFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit DescriptorFileSystem(std::function<void()> few)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), few_(std::move(few)) {
    Refill();
  }
  ~DescriptorFileSystem() override {
    if (spare_) {
      spare_.reset();
      target()
          ->DeleteFile(spare_for_ + std::string(kSpareLog), IOOptions(), nullptr)
          .PermitUncheckedError();
    }
    for (int fd : kept_) ::close(fd);
  }
  bool Refill() {
    {
      std::lock_guard l(mutex_);
      while (kept_.size() < kKept) {
        const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0) return false;
        kept_.push_back(fd);
      }
    }
    return HaveSpareLog();
  }
  const char* Name() const override { return "MayflyFileSystem"; }

  IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& o,
                             std::unique_ptr<rocksdb::FSSequentialFile>* out,
                             IODebugContext* d) override {
    return Try(name, [&] { return target()->NewSequentialFile(name, o, out, d); });
  }
  IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& o,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* out,
                               IODebugContext* d) override {
    return Try(name, [&] { return target()->NewRandomAccessFile(name, o, out, d); });
  }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& o,
                           std::unique_ptr<rocksdb::FSWritableFile>* out,
                           IODebugContext* d) override {
    IOStatus s = Try(name, [&] { return target()->NewWritableFile(name, o, out, d); });
    if (!name.ends_with(".log")) return s;
    if (!s.ok() && s.IsNoSpace() && TakeSpareLog(name, out)) {
      if (LacksDescriptors(s.ToString())) few_();  // or else the disk is full: writing says so
      return IOStatus::OK();
    }
    if (s.ok()) {
      {
        std::lock_guard l(mutex_);
        if (spare_for_.empty()) {
          spare_for_ = name.substr(0, name.rfind('/'));
          spare_options_ = o;
        }
      }
      (void)HaveSpareLog();
    }
    return s;
  }
  IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& o,
                              std::unique_ptr<rocksdb::FSWritableFile>* out,
                              IODebugContext* d) override {
    return Try(name, [&] { return target()->ReopenWritableFile(name, o, out, d); });
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old,
                             const rocksdb::FileOptions& o,
                             std::unique_ptr<rocksdb::FSWritableFile>* out,
                             IODebugContext* d) override {
    return Try(name, [&] { return target()->ReuseWritableFile(name, old, o, out, d); });
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions& o,
                        std::unique_ptr<rocksdb::FSDirectory>* out, IODebugContext* d) override {
    return Try(name, [&] { return target()->NewDirectory(name, o, out, d); });
  }
  IOStatus GetChildren(const std::string& name, const IOOptions& o, std::vector<std::string>* out,
                       IODebugContext* d) override {
    return Try(name, [&] { return target()->GetChildren(name, o, out, d); });
  }

 private:
  /// Gives one of those that are kept back to the system.
  bool GiveUpOne(bool log) {
    bool few = false;
    {
      std::lock_guard l(mutex_);
      if (kept_.size() <= (log ? 0 : kForLogs)) return false;
      ::close(kept_.back());
      kept_.pop_back();
      few = kept_.size() < kForWrites;
    }
    if (few) few_();
    return true;
  }

  template <class F>
  IOStatus Try(const std::string& name, F&& open) {
    IOStatus s = open();
    if (s.ok()) [[likely]]
      return s;
    const bool log = LogOrManifest(name);
    for (int i = 0; i < kTries && s.IsIOError() && LacksDescriptors(s.ToString()); ++i) {
      if (!GiveUpOne(log)) {
        few_();
        std::this_thread::sleep_for(kPause);
      }
      s = open();
    }
    if (s.ok() || !s.IsIOError()) return s;
    const std::string text = s.ToString();
    return LacksDescriptors(text) ? IOStatus::NoSpace(text) : s;
  }

  /// Opens the spare log if the store has logs and there is none. False: it cannot be opened now.
  bool HaveSpareLog() {
    std::lock_guard l(mutex_);
    if (spare_for_.empty() || spare_) return true;
    return target()
        ->NewWritableFile(spare_for_ + std::string(kSpareLog), spare_options_, &spare_, nullptr)
        .ok();
  }
  /// Makes the spare log the log `name`: that needs no descriptor. False: there is none, or it is
  /// of another directory.
  bool TakeSpareLog(const std::string& name, std::unique_ptr<rocksdb::FSWritableFile>* out) {
    std::lock_guard l(mutex_);
    if (!spare_ || name.substr(0, name.rfind('/')) != spare_for_) return false;
    const std::string spare = spare_for_ + std::string(kSpareLog);
    if (!target()->RenameFile(spare, name, IOOptions(), nullptr).ok()) return false;
    *out = std::move(spare_);
    return true;
  }

  const std::function<void()> few_;
  std::mutex mutex_;
  std::vector<int> kept_;
  /// For a limit that falls below what is in use: no descriptor of the reserve helps then.
  std::unique_ptr<rocksdb::FSWritableFile> spare_;
  std::string spare_for_;  ///< the directory of the store's logs; empty: it has none so far
  rocksdb::FileOptions spare_options_;
};

class Descriptors final : public DescriptorEnv {
 public:
  explicit Descriptors(std::function<void()> few)
      : files_(std::make_shared<DescriptorFileSystem>(std::move(few))),
        env_(rocksdb::NewCompositeEnv(files_)) {}
  rocksdb::Env* env() override { return env_.get(); }
  bool Refill() override { return files_->Refill(); }

 private:
  std::shared_ptr<DescriptorFileSystem> files_;
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace

bool LacksDescriptors(std::string_view text) {
  return text.find("Too many open files") != std::string_view::npos;
}

std::unique_ptr<DescriptorEnv> MakeDescriptorEnv(std::function<void()> few) {
  return std::make_unique<Descriptors>(std::move(few));
}

}  // namespace mayfly

#include "backup/copy.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>

#include "security/checksum.h"

namespace mayfly {
namespace {

constexpr size_t kPiece = 1 << 20, kWriteOut = 8 << 20;
constexpr size_t kGentlePiece = 512 << 10;  ///< beside a running server
constexpr size_t kTagHead = 4096, kTagTail = 65536;
constexpr std::string_view kNewFile = "new.partial";

Error DamagedFile(const BackupFolder& folder, const BackupFile& file, std::string_view what) {
  return {ErrorCode::kInternalError, "the file " + file.name +
                                         " of the backup is damaged: " + folder.files().path() +
                                         "/" + file.StoredName() + " " + std::string(what)};
}

Result<std::string> TagOf(const DiskFile& file, uint64_t size) {
  Checksum sum;
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(size >> (8 * i));
  sum.Add(bytes);
  MAYFLY_TRY(file.ReadAt(0, kTagHead, &bytes));
  sum.Add(bytes);
  MAYFLY_TRY(file.ReadAt(size - std::min<uint64_t>(size, kTagTail), kTagTail, &bytes));
  sum.Add(bytes);
  return sum.Take().substr(0, BackupManifest::kTagBytes);
}

/// The facts about a source before it is copied.
struct Planned {
  DiskFile file;
  BackupFile as;
  bool there = false;  ///< in the folder already: not read
};

/// One run of CopyIntoBackup.
class Copier {
 public:
  Copier(BackupFolder& folder, const CopyStep& step, uint64_t total)
      : folder_(folder), step_(step), total_(total) {}

  /// Reads the source into the folder; its sum.
  Result<void> Copy(Planned& p, bool anew) {
    const DiskFile& files = folder_.files();
    MAYFLY_TRY(files.Remove(kNewFile));
    MAYFLY_TRY(DiskFile to, files.Create(kNewFile));
    Checksum sum;
    std::string bytes;
    uint64_t at = 0;
    while (at < p.as.size) {
      MAYFLY_TRY(p.file.ReadPassing(std::min<uint64_t>(kGentlePiece, p.as.size - at), &bytes));
      if (bytes.empty())
        return Error{ErrorCode::kInternalError, p.file.path() + " has become shorter"};
      sum.Add(bytes);
      MAYFLY_TRY(to.Write(bytes));
      MAYFLY_TRY(to.WriteOutAndWait(at, bytes.size()));
      at += bytes.size();
      MAYFLY_TRY(Done(bytes.size()));
    }
    MAYFLY_TRY(to.Sync());
    p.as.sum = sum.Take();
    const std::string name = p.as.StoredName();
    uint64_t size = 0;
    MAYFLY_TRY(const bool there, files.Exists(name, &size));
    if (there && size == p.as.size && !anew) return files.Remove(kNewFile);
    MAYFLY_TRY(files.Rename(kNewFile, name));
    if (!there) made_.push_back(name);
    ++copied_files_;
    copied_bytes_ += p.as.size;
    return Ok();
  }
  Result<void> Done(uint64_t bytes) {
    done_ += bytes;
    return step_(done_, total_);
  }
  /// The folder as it was.
  void TakeBack() {
    (void)folder_.files().Remove(kNewFile);
    for (const std::string& n : made_) (void)folder_.files().Remove(n);
  }
  uint64_t copied_files() const { return copied_files_; }
  uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  BackupFolder& folder_;
  const CopyStep& step_;
  const uint64_t total_;
  uint64_t done_ = 0, copied_files_ = 0, copied_bytes_ = 0;
  std::vector<std::string> made_;
};

Result<Planned> Plan(const BackupFolder& folder, const SourceFile& source, bool incremental) {
  Planned p;
  const size_t slash = source.path.rfind('/');
  MAYFLY_TRY(DiskFile directory, DiskFile::Directory(source.path.substr(0, slash)));
  MAYFLY_TRY(p.file, directory.OpenToRead(source.path.substr(slash + 1)));
  p.as.name = source.name;
  MAYFLY_TRY(p.as.size, p.file.Size());
  MAYFLY_TRY(p.as.tag, TagOf(p.file, p.as.size));
  if (!incremental || !source.immutable) return p;
  if (auto sum = folder.FindByTag(p.as.tag, p.as.size)) {
    p.as.sum = *sum;
    p.there = true;
  }
  p.file = DiskFile();  // there may be more files than descriptors
  return p;
}

}  // namespace

Result<CopyCounts> CopyIntoBackup(BackupFolder& folder, const std::vector<SourceFile>& sources,
                                  bool incremental, const CopyStep& step,
                                  BackupManifest* manifest) {
  MAYFLY_TRY(folder.RemovePartial());
  MAYFLY_TRY(folder.LoadFiles());
  std::vector<Planned> plan;
  CopyCounts counts;
  uint64_t to_read = 0;
  for (const SourceFile& s : sources) {
    MAYFLY_TRY(Planned p, Plan(folder, s, incremental));
    p.file = DiskFile();
    ++counts.files;
    counts.bytes += p.as.size;
    if (!p.there) to_read += p.as.size;
    plan.push_back(std::move(p));
    MAYFLY_TRY(step(0, 0));
  }
  const uint64_t room = folder.files().FreeBytes();
  if (incremental && to_read > room)
    return Error{ErrorCode::kOutOfDiskSpace,
                 "the backup needs " + std::to_string(to_read >> 20) + " MB more in " +
                     folder.root().path() + ", and there are " + std::to_string(room >> 20) +
                     " MB: remove old backups (mayfly-backup prune), or give another folder"};
  Copier copier(folder, step, to_read);
  auto run = [&]() -> Result<void> {
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!plan[i].there) {
        MAYFLY_TRY(Planned again, Plan(folder, sources[i], false));
        again.as.size = plan[i].as.size;
        MAYFLY_TRY(copier.Copy(again, !incremental));
        plan[i].as = again.as;
      }
      manifest->files.push_back(plan[i].as);
    }
    return folder.Commit(*manifest);
  };
  if (Result<void> ran = run(); !ran) {
    // The files stay with a manifest that could not be removed.
    if (!folder.Read(manifest->id)) copier.TakeBack();
    return ran.error();
  }
  counts.copied_files = copier.copied_files();
  counts.copied_bytes = copier.copied_bytes();
  return counts;
}

Result<void> CheckStoredFile(const BackupFolder& folder, const BackupFile& file, const DiskFile* to,
                             const std::function<Result<void>(uint64_t bytes)>& chunk) {
  uint64_t size = 0;
  MAYFLY_TRY(const bool there, folder.files().Exists(file.StoredName(), &size));
  if (!there) return DamagedFile(folder, file, "is missing");
  if (size != file.size)
    return DamagedFile(
        folder, file,
        "has " + std::to_string(size) + " bytes instead of " + std::to_string(file.size));
  MAYFLY_TRY(DiskFile from, folder.files().OpenToRead(file.StoredName()));
  DiskFile copy;
  if (to != nullptr) {
    MAYFLY_TRY(copy, to->Create(file.name));
  }
  Checksum sum;
  std::string bytes;
  uint64_t at = 0, written_out = 0;
  while (at < file.size) {
    MAYFLY_TRY(from.Read(std::min<uint64_t>(kPiece, file.size - at), &bytes));
    if (bytes.empty()) break;
    sum.Add(bytes);
    at += bytes.size();
    if (to != nullptr) {
      MAYFLY_TRY(copy.Write(bytes));
      if (at - written_out >= kWriteOut) {
        copy.WriteOut(written_out, at - written_out);
        written_out = at;
      }
    }
    if (chunk) {
      MAYFLY_TRY(chunk(bytes.size()));
    }
  }
  if (sum.Take() != file.sum) return DamagedFile(folder, file, "does not have its checksum");
  from.Forget();
  if (to == nullptr) return Ok();
  return copy.Sync();
}

namespace {

/// Several files at once: while one waits for its disk, another one is checked. What the first
/// error is in, ends all.
class CopiesOut {
 public:
  CopiesOut(const BackupFolder& folder, const BackupManifest& manifest, const DiskFile& directory,
            const CopyStep& step)
      : folder_(folder),
        directory_(directory),
        step_(step),
        total_(manifest.TotalBytes()),
        files_(InOrder(manifest)) {}

  Result<void> Run(size_t threads) {
    std::vector<std::thread> others;
    try {
      for (size_t i = 1; i < std::min(threads, files_.size()); ++i)
        others.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
      // As many as there may be.
    }
    Work();
    for (std::thread& t : others) t.join();
    return std::move(outcome_);
  }

 private:
  /// The largest first, so that none of them is alone at the end.
  static std::vector<const BackupFile*> InOrder(const BackupManifest& manifest) {
    std::vector<const BackupFile*> files;
    for (const BackupFile& f : manifest.files) files.push_back(&f);
    std::ranges::stable_sort(files, [](auto* a, auto* b) { return a->size > b->size; });
    return files;
  }

  void Work() {
    for (;;) {
      const size_t i = next_.fetch_add(1);
      if (i >= files_.size() || failed_) return;
      Result<void> done = One(*files_[i]);
      if (done) continue;
      std::lock_guard l(mutex_);
      if (!failed_.exchange(true)) outcome_ = std::move(done);
      return;
    }
  }

  Result<void> One(const BackupFile& file) {
    try {
      return CheckStoredFile(folder_, file, &directory_, [this](uint64_t bytes) -> Result<void> {
        std::lock_guard l(mutex_);
        if (failed_) return Error{ErrorCode::kInterrupted, "another file has failed"};
        done_ += bytes;
        return step_(done_, total_);
      });
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::kExceededMemoryLimit, "there is no memory to copy " + file.name};
    }
  }

  const BackupFolder& folder_;
  const DiskFile& directory_;
  const CopyStep& step_;
  const uint64_t total_;
  const std::vector<const BackupFile*> files_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  uint64_t done_ = 0;            ///< guarded by mutex_
  Result<void> outcome_ = Ok();  ///< guarded by mutex_
};

}  // namespace

Result<void> CopyOutOfBackup(const BackupFolder& folder, const BackupManifest& manifest,
                             const DiskFile& directory, const CopyStep& step, size_t threads) {
  const uint64_t total = manifest.TotalBytes();
  if (const uint64_t room = directory.FreeBytes(); total > room)
    return Error{ErrorCode::kOutOfDiskSpace,
                 "the backup has " + std::to_string(total >> 20) + " MB, and there are " +
                     std::to_string(room >> 20) + " MB in " + directory.path()};
  MAYFLY_TRY(CopiesOut(folder, manifest, directory, step).Run(threads));
  return directory.Sync();
}

}  // namespace mayfly

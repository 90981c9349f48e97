#include "backup/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "protocol/hex.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLockFile = "LOCK", kMark = "Mayfly backups 1\n";
constexpr std::string_view kBackups = "backups", kFiles = "files", kPartial = ".partial";

/// The path as it is to be used. It must be absolute and without links: these may lead elsewhere by
/// the time the path is used, and with them "a/.." would be another folder.
Result<std::string> PlainPath(const std::string& path) {
  if (path.empty() || path[0] != '/' || path.size() > 4000 || path.find('\0') != std::string::npos)
    return BadValue("the folder of the backups must be an absolute path, not '" + path + "'");
  std::error_code ec;
  const fs::path plain = fs::path(path).lexically_normal();
  const fs::path real = fs::weakly_canonical(plain, ec);
  if (ec) return Error{ErrorCode::kFileNotOpen, "cannot look at " + path + ": " + ec.message()};
  auto text = [](const fs::path& p) {
    std::string s = p.string();
    while (s.size() > 1 && s.back() == '/') s.pop_back();
    return s;
  };
  if (text(plain) != text(real))
    return BadValue("the folder of the backups must not be reached by symbolic links: give " +
                    text(real) + " instead of " + path);
  return text(plain);
}

bool IsWithin(const fs::path& inner, const fs::path& outer) {
  auto [in, out] = std::mismatch(inner.begin(), inner.end(), outer.begin(), outer.end());
  return out == outer.end() || (std::next(out) == outer.end() && out->empty());
}

Error Busy(const std::string& path) {
  return {ErrorCode::kLockBusy,
          "the folder " + path +
              " is in use: another backup, a restore or mayfly-backup works on it; try again when "
              "that has ended"};
}

}  // namespace

Result<BackupFolder> BackupFolder::OpenAt(DiskFile root, Use use) {
  BackupFolder f;
  f.root_ = std::move(root);
  MAYFLY_TRY(const bool marked, f.root_.Exists(kLockFile));
  if (!marked)
    return Error{ErrorCode::kFileNotOpen, f.root_.path() + " is not a folder of backups"};
  MAYFLY_TRY(f.lock_, f.root_.OpenToRead(kLockFile));
  std::string mark;
  MAYFLY_TRY(f.lock_.Read(64, &mark));
  if (mark != kMark)
    return Error{ErrorCode::kUnsupportedFormat,
                 f.root_.path() + " is not a folder of backups that this version knows"};
  MAYFLY_TRY(const bool locked, f.lock_.Lock(use == Use::kChange));
  if (!locked) return Busy(f.root_.path());
  if (use == Use::kChange) {
    MAYFLY_TRY(f.root_.MakeDirectory(kBackups));
    MAYFLY_TRY(f.root_.MakeDirectory(kFiles));
    MAYFLY_TRY(f.root_.Sync());
  }
  MAYFLY_TRY(f.backups_, f.root_.OpenDirectory(kBackups));
  MAYFLY_TRY(f.files_, f.root_.OpenDirectory(kFiles));
  return f;
}

Result<BackupFolder> BackupFolder::Open(const std::string& given, Use use) {
  MAYFLY_TRY(const std::string path, PlainPath(given));
  MAYFLY_TRY(DiskFile root, DiskFile::Directory(path));
  return OpenAt(std::move(root), use);
}

Result<BackupFolder> BackupFolder::OpenOrMake(const std::string& given,
                                              const std::string& data_directory) {
  MAYFLY_TRY(const std::string path, PlainPath(given));
  std::error_code ec;
  const fs::path data = fs::weakly_canonical(data_directory, ec);
  if (ec || IsWithin(path, data) || IsWithin(data, path))
    return BadValue(
        "the folder of the backups and the data directory must not be in one another: " + path +
        " and " + data.string());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Error{errno == ENOSPC ? ErrorCode::kOutOfDiskSpace : ErrorCode::kFileNotOpen,
                 "cannot create " + path + ": " + std::strerror(errno)};
  MAYFLY_TRY(DiskFile root, DiskFile::Directory(path));
  MAYFLY_TRY(const bool marked, root.Exists(kLockFile));
  if (!marked) {
    MAYFLY_TRY(std::vector<std::string> there, root.List());
    std::erase(there, std::string(kLockFile) + std::string(kPartial));
    std::erase(there, kLogArchive);  // the log may have been archived before the first backup
    if (!there.empty())
      return BadValue(path + " is not empty, and not a folder of backups (there is " +
                      there.front() + "): give an empty folder, or one that does not exist");
    // The mark is whole when it has its name.
    const std::string name = std::string(kLockFile) + std::string(kPartial);
    MAYFLY_TRY(root.Remove(name));
    MAYFLY_TRY(DiskFile mark, root.Create(name));
    MAYFLY_TRY(mark.Write(kMark));
    MAYFLY_TRY(mark.Sync());
    MAYFLY_TRY(root.Rename(name, kLockFile));
    MAYFLY_TRY(root.Sync());
  }
  return OpenAt(std::move(root), Use::kChange);
}

Result<std::vector<std::string>> BackupFolder::Ids() const {
  MAYFLY_TRY(std::vector<std::string> names, backups_.List());
  std::erase_if(names, [](const std::string& n) { return !IsBackupId(n); });
  return names;
}

Result<BackupManifest> BackupFolder::Read(std::string_view id) const {
  const Error none{ErrorCode::kNoSuchKey,
                   "there is no backup '" + std::string(id) + "' in " + root_.path()};
  if (!IsBackupId(id)) return none;
  MAYFLY_TRY(const bool there, backups_.Exists(id));
  if (!there) return none;
  MAYFLY_TRY(DiskFile file, backups_.OpenToRead(id));
  MAYFLY_TRY(const uint64_t size, file.Size());
  std::string bytes;
  MAYFLY_TRY(file.Read(std::min<uint64_t>(size, BackupManifest::kMaxBytes + 1), &bytes));
  auto manifest = BackupManifest::Decode(bytes);
  if (!manifest) return Error{manifest.error().code, file.path() + ": " + manifest.error().message};
  if (manifest.value().id != id)
    return Error{ErrorCode::kInternalError,
                 file.path() + ": the manifest is of another backup, " + manifest.value().id};
  return manifest;
}

Result<BackupManifest> BackupFolder::Choose(std::string_view id) const {
  if (!id.empty()) return Read(id);
  MAYFLY_TRY(std::vector<std::string> ids, Ids());
  if (ids.empty()) return Error{ErrorCode::kNoSuchKey, "there is no backup in " + root_.path()};
  return Read(ids.back());
}

Result<void> BackupFolder::LoadFiles() {
  by_tag_.clear();
  MAYFLY_TRY(std::vector<std::string> names, files_.List());
  for (const std::string& n : names) {
    const size_t first = n.find('-');
    if (first == std::string::npos || n.ends_with(kPartial)) continue;
    by_tag_[n.substr(first + 1)] = n.substr(0, first);
  }
  return Ok();
}

std::optional<std::string> BackupFolder::FindByTag(std::string_view tag, uint64_t size) const {
  const std::string key = HexDigits(tag) + "-" + std::to_string(size);
  auto it = by_tag_.find(key);
  if (it == by_tag_.end() || it->second.size() != 2 * BackupManifest::kSumBytes) return {};
  uint64_t there = 0;
  const auto exists = files_.Exists(it->second + "-" + key, &there);
  if (!exists || !exists.value() || there != size) return {};
  std::string sum;
  for (size_t i = 0; i < it->second.size(); i += 2) {
    auto digit = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    };
    const int high = digit(it->second[i]), low = digit(it->second[i + 1]);
    if (high < 0 || low < 0) return {};
    sum += static_cast<char>(high << 4 | low);
  }
  return sum;
}

Result<void> BackupFolder::Commit(const BackupManifest& manifest) {
  MAYFLY_TRY(files_.Sync());
  const std::string partial = manifest.id + std::string(kPartial);
  auto write = [&]() -> Result<void> {
    MAYFLY_TRY(DiskFile file, backups_.Create(partial));
    MAYFLY_TRY(file.Write(manifest.Encode()));
    return file.Sync();
  };
  Result<void> written = write();
  if (written) written = backups_.Rename(partial, manifest.id);
  if (!written) {
    (void)backups_.Remove(partial);
    return written;
  }
  Result<void> synced = backups_.Sync();
  // Its files may be taken back after an error, so it must not stand.
  if (!synced) (void)backups_.Remove(manifest.id);
  return synced;
}

Result<BackupFolder::Removed> BackupFolder::RemovePartial() {
  Removed removed;
  std::error_code ec;
  fs::remove_all(fs::path(root_.path()) / kVerifyCopy, ec);  // a stopped check's copy: links
  for (const DiskFile* d : {&backups_, &files_}) {
    MAYFLY_TRY(std::vector<std::string> names, d->List());
    for (const std::string& n : names) {
      if (!n.ends_with(kPartial)) continue;
      uint64_t size = 0;
      MAYFLY_TRY(d->Exists(n, &size));
      MAYFLY_TRY(d->Remove(n));
      ++removed.files;
      removed.bytes += size;
    }
  }
  return removed;
}

Result<BackupFolder::Removed> BackupFolder::Collect() {
  std::set<std::string> used;
  MAYFLY_TRY(std::vector<std::string> ids, Ids());
  for (const std::string& id : ids) {
    MAYFLY_TRY(const BackupManifest m, Read(id));
    for (const BackupFile& f : m.files) used.insert(f.StoredName());
  }
  MAYFLY_TRY(Removed removed, RemovePartial());
  MAYFLY_TRY(std::vector<std::string> names, files_.List());
  for (const std::string& n : names) {
    if (used.contains(n)) continue;
    uint64_t size = 0;
    MAYFLY_TRY(files_.Exists(n, &size));
    MAYFLY_TRY(files_.Remove(n));
    ++removed.files;
    removed.bytes += size;
  }
  MAYFLY_TRY(files_.Sync());
  return removed;
}

Result<void> BackupFolder::Remove(std::string_view id) {
  if (!IsBackupId(id))
    return Error{ErrorCode::kNoSuchKey, "there is no backup '" + std::string(id) + "'"};
  MAYFLY_TRY(const bool there, backups_.Exists(id));
  if (!there)
    return Error{ErrorCode::kNoSuchKey,
                 "there is no backup '" + std::string(id) + "' in " + root_.path()};
  MAYFLY_TRY(backups_.Remove(id));
  return backups_.Sync();
}

}  // namespace mayfly

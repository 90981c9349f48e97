#include "backup/disk_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mayfly {
namespace {

std::string Joined(const std::string& directory, std::string_view name) {
  return name.empty() ? directory : directory + "/" + std::string(name);
}

}  // namespace

DiskFile::~DiskFile() {
  if (fd_ >= 0) ::close(fd_);
}

DiskFile& DiskFile::operator=(DiskFile&& o) noexcept {
  std::swap(fd_, o.fd_);
  std::swap(path_, o.path_);
  return *this;
}

Error DiskFile::Failed(std::string_view what, std::string_view name) const {
  const int code = errno;
  return {code == ENOSPC || code == EDQUOT ? ErrorCode::kOutOfDiskSpace : ErrorCode::kFileNotOpen,
          std::string(what) + " " + Joined(path_, name) + ": " +
              (code == ELOOP ? "it is a symbolic link" : std::strerror(code))};
}

Result<DiskFile> DiskFile::Directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DiskFile d(fd, path);
  if (fd < 0) return d.Failed("cannot open the folder");
  return d;
}

Result<DiskFile> DiskFile::OpenDirectory(std::string_view name) const {
  const int fd =
      ::openat(fd_, std::string(name).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return Failed("cannot open the folder", name);
  return DiskFile(fd, Joined(path_, name));
}

Result<DiskFile> DiskFile::OpenToRead(std::string_view name) const {
  // Not blocking: a pipe in its place must not make the caller wait.
  const int fd =
      ::openat(fd_, std::string(name).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return Failed("cannot open", name);
  DiskFile f(fd, Joined(path_, name));
  struct stat s {};
  if (::fstat(fd, &s) != 0) return f.Failed("cannot look at");
  if (!S_ISREG(s.st_mode))
    return Error{ErrorCode::kFileNotOpen, "cannot open " + f.path_ + ": it is not a plain file"};
  return f;
}

Result<DiskFile> DiskFile::Create(std::string_view name) const {
  const int fd = ::openat(fd_, std::string(name).c_str(),
                          O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("cannot create", name);
  return DiskFile(fd, Joined(path_, name));
}

Result<void> DiskFile::MakeDirectory(std::string_view name) const {
  if (::mkdirat(fd_, std::string(name).c_str(), 0700) != 0 && errno != EEXIST)
    return Failed("cannot create", name);
  return Ok();
}

Result<bool> DiskFile::Exists(std::string_view name, uint64_t* size) const {
  struct stat s {};
  if (::fstatat(fd_, std::string(name).c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    return Failed("cannot look at", name);
  }
  if (size != nullptr) {
    if (!S_ISREG(s.st_mode)) return false;
    *size = static_cast<uint64_t>(s.st_size);
  }
  return true;
}

Result<void> DiskFile::Rename(std::string_view from, std::string_view to) const {
  if (::renameat(fd_, std::string(from).c_str(), fd_, std::string(to).c_str()) != 0)
    return Failed("cannot rename", from);
  return Ok();
}

Result<void> DiskFile::Remove(std::string_view name) const {
  if (::unlinkat(fd_, std::string(name).c_str(), 0) != 0 && errno != ENOENT)
    return Failed("cannot remove", name);
  return Ok();
}

Result<std::vector<std::string>> DiskFile::List() const {
  const int copy = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = copy < 0 ? nullptr : ::fdopendir(copy);
  if (dir == nullptr) {
    Error e = Failed("cannot list");
    if (copy >= 0) ::close(copy);
    return e;
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* e = ::readdir(dir);
    if (e == nullptr) break;
    const std::string_view name = e->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const bool failed = errno != 0;
  Error e = Failed("cannot list");
  ::closedir(dir);
  if (failed) return e;
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> DiskFile::ReadPassing(size_t n, std::string* out) const {
  constexpr int kDontCache = 0x80;  // RWF_DONTCACHE, of Linux 6.14; older headers lack it
  out->resize(n);
  iovec room{out->data(), n};
  const ssize_t got = ::preadv2(fd_, &room, 1, -1, kDontCache);
  if (got < 0 || static_cast<size_t>(got) < n) {
    // An older system, or a short read: as any other file.
    std::string rest;
    const size_t have = static_cast<size_t>(std::max<ssize_t>(got, 0));
    MAYFLY_TRY(Read(n - have, &rest));
    out->replace(have, std::string::npos, rest);
  }
  return Ok();
}

Result<void> DiskFile::Read(size_t n, std::string* out) const {
  out->resize(n);
  size_t have = 0;
  while (have < n) {
    const ssize_t got = ::read(fd_, out->data() + have, n - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("cannot read");
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  out->resize(have);
  return Ok();
}

Result<void> DiskFile::ReadAt(uint64_t offset, size_t n, std::string* out) const {
  out->resize(n);
  size_t have = 0;
  while (have < n) {
    const ssize_t got =
        ::pread(fd_, out->data() + have, n - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("cannot read");
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  out->resize(have);
  return Ok();
}

Result<void> DiskFile::Write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed("cannot write");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return Ok();
}

Result<uint64_t> DiskFile::Size() const {
  struct stat s {};
  if (::fstat(fd_, &s) != 0) return Failed("cannot look at");
  return static_cast<uint64_t>(s.st_size);
}

Result<void> DiskFile::Sync() const {
  if (::fsync(fd_) != 0) return Failed("cannot sync");
  return Ok();
}

void DiskFile::WriteOut(uint64_t offset, uint64_t bytes) const {
  (void)::sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                          SYNC_FILE_RANGE_WRITE);
}

Result<void> DiskFile::WriteOutAndWait(uint64_t offset, uint64_t bytes) const {
  const off_t from = static_cast<off_t>(offset), length = static_cast<off_t>(bytes);
  const int done = ::sync_file_range(
      fd_, from, length,
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  // The system tells of an error of the disk once: Sync would not hear of it any more.
  if (done != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT))
    return Failed("cannot write");
  if (done == 0) (void)::posix_fadvise(fd_, from, length, POSIX_FADV_DONTNEED);
  return Ok();
}

void DiskFile::Forget() const { (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

Result<bool> DiskFile::Lock(bool exclusive) const {
  if (::flock(fd_, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return Failed("cannot lock");
}

uint64_t DiskFile::FreeBytes() const {
  struct statvfs s {};
  if (::fstatvfs(fd_, &s) != 0) return UINT64_MAX;
  return static_cast<uint64_t>(s.f_bavail) * s.f_frsize;
}

}  // namespace mayfly

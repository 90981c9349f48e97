#include "protocol/secret_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace mayfly {
namespace {

/// What to do about it: the mode alone does not help where the file belongs to somebody else.
std::string Remedy(const struct stat& file) {
  const std::string user = std::to_string(::geteuid());
  if (file.st_uid == ::geteuid()) return "chmod 600 it";
  return "chmod 600 it and chown it to user " + user +
         ", who runs this (a mounted secret: mode 0400 and uid " + user +
         ", or mode 0440 and gid " + std::to_string(::getegid()) + ")";
}

bool IsOwnGroup(gid_t group) {
  if (group == 0 || group == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int n = ::getgroups(static_cast<int>(groups.size()), groups.data());
  return n > 0 && std::find(groups.begin(), groups.begin() + n, group) != groups.begin() + n;
}

Error Unreadable(std::string_view what, int code) {
  return {ErrorCode::kInvalidOptions,
          std::string(what) + ": cannot read it: " + std::strerror(code)};
}

}  // namespace

Result<void> CheckSecretFile(const struct stat& file, std::string_view what,
                             SecretReaders readers) {
  if (S_ISCHR(file.st_mode) || S_ISFIFO(file.st_mode)) return Ok();
  const bool group =
      file.st_uid == 0 && (readers == SecretReaders::kAnyGroup || IsOwnGroup(file.st_gid));
  if ((file.st_mode & (group ? 027U : 077U)) == 0) return Ok();
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(file.st_mode & 07777));
  return Error{ErrorCode::kInvalidOptions,
               std::string(what) + ": its permissions (" + mode +
                   ") are too open: it has a secret, and others than its "
                   "owner can reach it: " +
                   Remedy(file)};
}

Result<void> CheckSecretFile(const std::string& path, std::string_view what,
                             SecretReaders readers) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return Ok();
  return CheckSecretFile(file, what, readers);
}

Result<std::string> ReadSecretFile(const std::string& path, std::string_view what, size_t max,
                                   SecretReaders readers) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Unreadable(what, errno);
  struct stat file {};
  int failed = ::fstat(fd, &file) == 0 ? 0 : errno;
  std::string text(max + 1, '\0');
  size_t size = 0;
  while (failed == 0 && size < text.size()) {
    const ssize_t n = ::read(fd, text.data() + size, text.size() - size);
    if (n == 0) break;
    if (n > 0)
      size += static_cast<size_t>(n);
    else if (errno != EINTR)
      failed = errno;
  }
  ::close(fd);
  if (failed != 0) return Unreadable(what, failed);
  MAYFLY_TRY(CheckSecretFile(file, what, readers));
  if (size > max)
    return Error{ErrorCode::kInvalidOptions,
                 std::string(what) + ": it is larger than " + std::to_string(max) + " bytes"};
  text.resize(size);
  return text;
}

}  // namespace mayfly

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

constexpr size_t kGroupsShown = 16;

std::string Mode(const struct stat& file) {
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(file.st_mode & 07777));
  return mode;
}

std::string OwnerOf(const struct stat& file) {
  return "belongs to user " + std::to_string(file.st_uid) + " and group " +
         std::to_string(file.st_gid);
}

/// What to do about it: the mode alone does not help where the file belongs to somebody else.
std::string Remedy(const struct stat& file, const std::string& path) {
  const std::string user = std::to_string(::geteuid());
  if (file.st_uid == ::geteuid()) return "chmod 600 " + path;
  return "chown " + user + " " + path + " and chmod 600 " + path + ", since user " + user +
         " runs this (a mounted secret: mode 0400 and uid " + user + ", or mode 0440 and gid " +
         std::to_string(::getegid()) + ")";
}

/// The groups of this process, the first one at the beginning.
std::vector<gid_t> OwnGroups() {
  std::vector<gid_t> more(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  more.resize(
      static_cast<size_t>(std::max(0, ::getgroups(static_cast<int>(more.size()), more.data()))));
  std::vector<gid_t> all{::getegid()};
  for (const gid_t group : more)
    if (group != all[0]) all.push_back(group);
  return all;
}

bool IsOwnGroup(gid_t group) {
  const std::vector<gid_t> own = OwnGroups();
  return group == 0 || std::find(own.begin(), own.end(), group) != own.end();
}

/// Who runs this, for a message.
std::string Runner() {
  std::string text = "this runs as user " + std::to_string(::geteuid()) + " in ";
  const std::vector<gid_t> groups = OwnGroups();
  text += groups.size() == 1 ? "group" : "groups";
  for (size_t i = 0; i < groups.size() && i < kGroupsShown; ++i)
    text += (i == 0 ? " " : ", ") + std::to_string(groups[i]);
  return groups.size() > kGroupsShown ? text + " and more" : text;
}

bool MayEnter(const std::string& directory) {
  return ::faccessat(AT_FDCWD, directory.c_str(), X_OK, AT_EACCESS) == 0 || errno != EACCES;
}

/// The directory on the way to the file that this process may not enter, if there is one.
std::string ClosedDirectory(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    if (!MayEnter(path.substr(0, at))) return path.substr(0, at);
  return {};
}

/// Who gets access to a file that has no room for this process in its mode, and how.
std::string Access(const struct stat& file, const std::string& path) {
  const uid_t user = ::geteuid();
  if (file.st_uid == user)
    return (file.st_mode & S_IRUSR) == 0
               ? "chmod 600 " + path
               : "its mode is right: look at its access control list and at the security module";
  std::string text = Remedy(file, path);
  if (file.st_uid != 0)
    text += "; or run this as user " + std::to_string(file.st_uid);
  else if ((file.st_mode & S_IRGRP) != 0)
    text += "; or let this run in group " + std::to_string(file.st_gid) +
            " as well (systemd: SupplementaryGroups, Compose: group_add, Kubernetes: "
            "supplementalGroups)";
  return text;
}

Error Unreadable(std::string_view what, const std::string& path, int code) {
  return {ErrorCode::kInvalidOptions,
          std::string(what) + ": cannot read it: " + WhyUnreadable(path, code)};
}

}  // namespace

Result<void> CheckSecretFile(const struct stat& file, const std::string& path,
                             std::string_view what, SecretReaders readers) {
  if (S_ISCHR(file.st_mode) || S_ISFIFO(file.st_mode)) return Ok();
  const bool group =
      file.st_uid == 0 && (readers == SecretReaders::kAnyGroup || IsOwnGroup(file.st_gid));
  if ((file.st_mode & (group ? 027U : 077U)) == 0) return Ok();
  return Error{ErrorCode::kInvalidOptions,
               std::string(what) + ": its permissions (" + Mode(file) +
                   ") are too open: it has a secret, " + OwnerOf(file) +
                   ", and others than its owner can reach it: " + Remedy(file, path)};
}

Result<void> CheckSecretFile(const std::string& path, std::string_view what,
                             SecretReaders readers) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return Ok();
  return CheckSecretFile(file, path, what, readers);
}

Result<std::string> ReadSecretFile(const std::string& path, std::string_view what, size_t max,
                                   SecretReaders readers) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Unreadable(what, path, errno);
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
  if (failed != 0) return Unreadable(what, path, failed);
  MAYFLY_TRY(CheckSecretFile(file, path, what, readers));
  if (size > max)
    return Error{ErrorCode::kInvalidOptions,
                 std::string(what) + ": it is larger than " + std::to_string(max) + " bytes"};
  text.resize(size);
  return text;
}

std::string WhyUnreadable(const std::string& path, int code) {
  std::string text = std::strerror(code);
  if (code != EACCES && code != EPERM) return text;
  struct stat file {};
  if (const std::string closed = ClosedDirectory(path);
      !closed.empty() && ::stat(closed.c_str(), &file) == 0)
    return text + ": the directory " + closed + " " + OwnerOf(file) + " (mode " + Mode(file) +
           "), and " + Runner() +
           ", who may not enter it: give it that right (x) there, or put the file elsewhere";
  if (::stat(path.c_str(), &file) != 0) return text + ": " + Runner();
  return text + ": it " + OwnerOf(file) + " (mode " + Mode(file) + "), and " + Runner() + ": " +
         Access(file, path);
}

}  // namespace mayfly

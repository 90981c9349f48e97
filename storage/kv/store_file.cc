#include "storage/kv/store_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "storage/kv/encrypted_engine.h"

namespace mayfly {
namespace {

Error SystemError(std::string_view what, const std::string& path) {
  const int code = errno;
  return {code == ENOSPC || code == EDQUOT ? ErrorCode::kOutOfDiskSpace : ErrorCode::kFileNotOpen,
          std::string(what) + " " + path + ": " + std::strerror(code)};
}

/// All of it, or as much as there is. -1: errno says why.
ssize_t ReadAll(int fd, char* to, size_t n, uint64_t offset) {
  size_t have = 0;
  while (have < n) {
    const ssize_t got = ::pread(fd, to + have, n - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(have);
}

bool WriteAll(int fd, std::string_view bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return true;
}

}  // namespace

FileCiphersPtr CiphersOf(const KvEngine& engine) {
  auto* one = dynamic_cast<const HasCiphers*>(&engine);
  return one == nullptr ? nullptr : one->ciphers();
}

FileCiphersPtr CiphersOf(const KvStore& store) {
  auto* one = dynamic_cast<const HasCiphers*>(&store);
  return one == nullptr ? nullptr : one->ciphers();
}

StoreFile::~StoreFile() {
  if (fd_ >= 0) ::close(fd_);
}

StoreFile::StoreFile(StoreFile&& o) noexcept
    : fd_(std::exchange(o.fd_, -1)),
      path_(std::move(o.path_)),
      cipher_(std::move(o.cipher_)),
      prefix_(o.prefix_) {}

Error StoreFile::Failed(std::string_view what) const { return SystemError(what, path_); }

Result<bool> StoreFile::ReadPrefix(const FileCiphers& ciphers) {
  std::string prefix(FileCiphers::kPrefixBytes, '\0');
  const ssize_t got = ReadAll(fd_, prefix.data(), prefix.size(), 0);
  if (got < 0) return Failed("cannot read");
  if (static_cast<size_t>(got) < prefix.size() ||
      prefix.find_first_not_of('\0') == std::string::npos)
    return false;
  auto cipher = ciphers.Open(prefix);
  if (!cipher) return Error{cipher.error().code, path_ + ": " + cipher.error().message};
  cipher_ = std::move(cipher).value();
  return true;
}

Result<StoreFile> StoreFile::OpenToRead(const std::string& path, const FileCiphersPtr& ciphers) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path);
  StoreFile file(fd, path);
  if (ciphers) {
    file.prefix_ = FileCiphers::kPrefixBytes;
    MAYFLY_TRY(file.ReadPrefix(*ciphers));
  }
  return file;
}

Result<StoreFile> StoreFile::OpenToWrite(const std::string& path, const FileCiphersPtr& ciphers) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("cannot create", path);
  StoreFile file(fd, path);
  if (!ciphers) return file;
  MAYFLY_TRY(const bool whole, file.ReadPrefix(*ciphers));
  if (!whole) {
    std::string prefix(FileCiphers::kPrefixBytes, '\0');
    MAYFLY_TRY(ciphers->MakePrefix(prefix.data()));
    MAYFLY_TRY(file.Truncate(0));
    MAYFLY_TRY(file.Write(0, prefix));
    MAYFLY_TRY(file.cipher_, ciphers->Open(prefix));
  }
  file.prefix_ = FileCiphers::kPrefixBytes;
  return file;
}

Result<uint64_t> StoreFile::Size() const {
  struct stat st {};
  if (::fstat(fd_, &st) != 0) return Failed("cannot look at");
  const auto size = static_cast<uint64_t>(st.st_size);
  return size - std::min(size, prefix_);
}

Result<std::string> StoreFile::Read(uint64_t offset, size_t n) const {
  std::string bytes(n, '\0');
  const ssize_t got = ReadAll(fd_, bytes.data(), n, offset + prefix_);
  if (got < 0) return Failed("cannot read");
  bytes.resize(static_cast<size_t>(got));
  if (cipher_ && !cipher_->Apply(offset + prefix_, bytes.data(), bytes.size()))
    return Error{ErrorCode::kInternalError, path_ + ": cannot be decrypted"};
  return bytes;
}

Result<void> StoreFile::Write(uint64_t offset, std::string_view bytes) {
  std::string encrypted;
  if (cipher_) {
    encrypted = bytes;
    if (!cipher_->Apply(offset + prefix_, encrypted.data(), encrypted.size()))
      return Error{ErrorCode::kInternalError, path_ + ": cannot be encrypted"};
    bytes = encrypted;
  }
  if (!WriteAll(fd_, bytes, offset + prefix_)) return Failed("cannot write");
  return Ok();
}

Result<void> StoreFile::Truncate(uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size + prefix_)) != 0) return Failed("cannot write");
  return Ok();
}

Result<void> StoreFile::Sync() {
  if (::fsync(fd_) != 0) return Failed("cannot sync");
  return Ok();
}

}  // namespace mayfly

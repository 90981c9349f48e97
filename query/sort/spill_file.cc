#include "query/sort/spill_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "query/sort/spill_encryption.h"

namespace mayfly {
namespace {

constexpr int64_t kStep = 1 << 20;  ///< bytes are counted in these

Error FileError(const char* what) {
  int code = errno;
  std::string text = std::string("spilling to disk: ") + what + ": " + std::strerror(code);
  return Error{
      code == ENOSPC || code == EDQUOT ? ErrorCode::kOutOfDiskSpace : ErrorCode::kInternalError,
      text};
}

Error OverLimit(const char* who, int64_t limit, const char* parameter) {
  return Error{ErrorCode::kOutOfDiskSpace,
               "spilling to disk: " + std::string(who) + " would take more than the " +
                   std::to_string(limit >> 20) + " MB that it may (" + parameter +
                   "): give the operation an index or an earlier $match or $limit, or raise it"};
}

/// What all files together may take: given, or half of what the disk would have free without them.
int64_t TotalLimit(std::FILE* file, int64_t given, int64_t spilled) {
  if (given > 0) return given;
  struct statvfs s;
  if (::fstatvfs(DescriptorOf(file), &s) != 0) return INT64_MAX;
  return (static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize) + spilled) / 2;
}

}  // namespace

SpillFile::~SpillFile() {
  if (file_) std::fclose(file_);
  if (charged_ == 0) return;
  budget_->spilled_bytes.fetch_sub(charged_, std::memory_order_relaxed);
  used_->fetch_sub(charged_, std::memory_order_relaxed);
}

Result<SpillFile> SpillFile::Create(const SpillPlace& place) {
  std::string path = place.directory;
  if (path.empty()) {
    const char* env = std::getenv("TMPDIR");
    path = env && *env ? env : "/tmp";
  }
  int fd = ::open(path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {  // a file system that cannot
    path += "/mayfly-spill-XXXXXX";
    fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd < 0) return FileError(path.c_str());
    ::unlink(path.c_str());
  }
  SpillFile file;
  file.used_ = place.used;
  if (const FileCiphersPtr ciphers = SpillCiphers(*file.budget_)) {
    Result<std::unique_ptr<FileCipher>> cipher = ciphers->Temporary();
    if (!cipher) {
      ::close(fd);
      return cipher.error();
    }
    file.file_ = OpenEncryptedStream(fd, std::move(cipher).value());
    if (!file.file_) return FileError("fopencookie");
  } else {
    file.file_ = ::fdopen(fd, "w+b");
    if (!file.file_) {
      ::close(fd);
      return FileError("fdopen");
    }
  }
  std::setvbuf(file.file_, nullptr, _IOFBF, 256 * 1024);
  return file;
}

Result<void> SpillFile::Charge(int64_t bytes) {
  const int64_t more = (bytes - charged_ + kStep - 1) / kStep * kStep;
  const int64_t spilled = budget_->spilled_bytes.fetch_add(more, std::memory_order_relaxed) + more;
  const int64_t own = used_->fetch_add(more, std::memory_order_relaxed) + more;
  charged_ += more;
  const int64_t total =
      TotalLimit(file_, budget_->spill_limit.load(std::memory_order_relaxed), spilled);
  if (spilled > total) return OverLimit("all operations together", total, "spillMaxBytes");
  const int64_t given = budget_->spill_operation_limit.load(std::memory_order_relaxed);
  const int64_t most = given > 0 ? given : total / 2;
  if (own > most) return OverLimit("the operation", most, "spillMaxBytesPerOperation");
  return Ok();
}

Result<void> SpillFile::Write(std::string_view key, std::string_view payload) {
  uint32_t sizes[2] = {static_cast<uint32_t>(key.size()), static_cast<uint32_t>(payload.size())};
  const int64_t after = bytes_ + static_cast<int64_t>(sizeof sizes + key.size() + payload.size());
  if (after > charged_) {
    MAYFLY_TRY(Charge(after));
  }
  if (std::fwrite(sizes, sizeof sizes, 1, file_) != 1 ||
      (!key.empty() && std::fwrite(key.data(), key.size(), 1, file_) != 1) ||
      (!payload.empty() && std::fwrite(payload.data(), payload.size(), 1, file_) != 1))
    return FileError("write");
  bytes_ = after;
  return Ok();
}

Result<void> SpillFile::Rewind() {
  if (std::fflush(file_) != 0 || std::fseek(file_, 0, SEEK_SET) != 0) return FileError("flush");
  return Ok();
}

Result<bool> SpillFile::Read(std::string* key, std::string* payload) {
  uint32_t sizes[2];
  size_t n = std::fread(sizes, 1, sizeof sizes, file_);
  if (n == 0 && std::feof(file_)) return false;
  if (n != sizeof sizes) return FileError("read");
  // bounded: by what was written
  key->resize(sizes[0]);
  payload->resize(sizes[1]);
  if ((sizes[0] && std::fread(key->data(), sizes[0], 1, file_) != 1) ||
      (sizes[1] && std::fread(payload->data(), sizes[1], 1, file_) != 1))
    return FileError("read");
  return true;
}

}  // namespace mayfly

#include "query/sort/spill_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "protocol/wire_message.h"
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

Error Damaged() {
  return Error{ErrorCode::kInternalError,
               "spilling to disk: what was read is not what was written: the file was damaged, "
               "look at the disk of the temporary folder"};
}

/// In front of each record.
struct RecordHead {
  uint32_t key_size = 0, payload_size = 0, crc = 0;
};

uint32_t CheckOf(int64_t at, std::string_view key, std::string_view payload) {
  struct {
    int64_t at;
    uint32_t sizes[2], of_key, of_payload;
  } all{at,
        {static_cast<uint32_t>(key.size()), static_cast<uint32_t>(payload.size())},
        Crc32c(key),
        Crc32c(payload)};
  static_assert(sizeof all == 24, "no gaps, whose bytes nobody sets");
  return Crc32c({reinterpret_cast<const char*>(&all), sizeof all});
}

Error OverLimit(const char* who, int64_t limit, const char* parameter) {
  return Error{ErrorCode::kOutOfDiskSpace,
               "spilling to disk: " + std::string(who) + " would take more than the " +
                   std::to_string(limit >> 20) + " MB that it may (" + parameter +
                   "): give the operation an index or an earlier $match or $limit, or raise it"};
}

/// The limit of all files together: as set, or half of the disk space free without them.
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
  use_->bytes.fetch_sub(charged_, std::memory_order_relaxed);
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
  file.use_ = place.use;
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
  place.use->files.fetch_add(1, std::memory_order_relaxed);
  return file;
}

Result<void> SpillFile::Charge(int64_t bytes) {
  const int64_t more = (bytes - charged_ + kStep - 1) / kStep * kStep;
  const int64_t spilled = budget_->spilled_bytes.fetch_add(more, std::memory_order_relaxed) + more;
  const int64_t own = use_->bytes.fetch_add(more, std::memory_order_relaxed) + more;
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
  const RecordHead head{static_cast<uint32_t>(key.size()), static_cast<uint32_t>(payload.size()),
                        CheckOf(bytes_, key, payload)};
  const int64_t after = bytes_ + static_cast<int64_t>(sizeof head + key.size() + payload.size());
  if (after > charged_) {
    MAYFLY_TRY(Charge(after));
  }
  if (std::fwrite(&head, sizeof head, 1, file_) != 1 ||
      (!key.empty() && std::fwrite(key.data(), key.size(), 1, file_) != 1) ||
      (!payload.empty() && std::fwrite(payload.data(), payload.size(), 1, file_) != 1))
    return FileError("write");
  bytes_ = after;
  return Ok();
}

Result<void> SpillFile::Rewind() {
  if (std::fflush(file_) != 0 || std::fseek(file_, 0, SEEK_SET) != 0) return FileError("flush");
  read_ = 0;
  return Ok();
}

Result<bool> SpillFile::Read(std::string* key, std::string* payload) {
  if (read_ == bytes_) return false;
  RecordHead head;
  const auto get = [this](void* to, size_t n) {
    return n == 0 || std::fread(to, n, 1, file_) == 1;
  };
  const auto failed = [this] { return std::feof(file_) ? Damaged() : FileError("read"); };
  if (!get(&head, sizeof head)) return failed();
  const int64_t after = read_ + static_cast<int64_t>(sizeof head) + int64_t{head.key_size} +
                        int64_t{head.payload_size};
  if (after > bytes_) return Damaged();
  // bounded: by what was written
  key->resize(head.key_size);
  payload->resize(head.payload_size);
  if (!get(key->data(), key->size()) || !get(payload->data(), payload->size())) return failed();
  if (head.crc != CheckOf(read_, *key, *payload)) return Damaged();
  read_ = after;
  return true;
}

}  // namespace mayfly

#include "query/sort/spill_encryption.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace mayfly {
namespace {

constexpr size_t kPiece = 64 << 10;  ///< encrypted at once

/// For the whole process: the servers that encrypt, asked once for each file, and the descriptors
/// of encrypted streams, which the system's library does not tell.
struct Encrypting {
  std::mutex mutex;
  std::vector<std::pair<const large_memory::Budget*, FileCiphersPtr>> servers;
  std::unordered_map<std::FILE*, int> descriptors;
};
Encrypting& All() {
  static Encrypting all;
  return all;
}

/// What the stream's functions get.
struct Stream {
  int fd;
  std::unique_ptr<FileCipher> cipher;
  std::FILE* file = nullptr;
  uint64_t at = 0;
  std::string piece;
};

ssize_t ReadStream(void* cookie, char* to, size_t n) {
  auto& s = *static_cast<Stream*>(cookie);
  const ssize_t got = ::pread(s.fd, to, n, static_cast<off_t>(s.at));
  if (got <= 0) return got;
  if (!s.cipher->Apply(s.at, to, static_cast<size_t>(got))) {
    errno = EIO;
    return -1;
  }
  s.at += static_cast<uint64_t>(got);
  return got;
}

ssize_t WriteStream(void* cookie, const char* data, size_t n) {
  auto& s = *static_cast<Stream*>(cookie);
  size_t done = 0;
  while (done < n) {
    s.piece.assign(data + done, std::min(n - done, kPiece));
    if (!s.cipher->Apply(s.at, s.piece.data(), s.piece.size())) {
      errno = EIO;
      return 0;
    }
    for (size_t put = 0; put < s.piece.size();) {
      const ssize_t w =
          ::pwrite(s.fd, s.piece.data() + put, s.piece.size() - put, static_cast<off_t>(s.at));
      if (w < 0 && errno == EINTR) continue;
      if (w <= 0) return 0;  // the stream has failed: what was written of it does not count
      put += static_cast<size_t>(w);
      s.at += static_cast<uint64_t>(w);
    }
    done += s.piece.size();
  }
  return static_cast<ssize_t>(n);
}

int SeekStream(void* cookie, off64_t* to, int whence) {
  auto& s = *static_cast<Stream*>(cookie);
  if (whence == SEEK_CUR) *to += static_cast<off64_t>(s.at);
  if (whence == SEEK_END || *to < 0) {
    errno = EINVAL;
    return -1;
  }
  s.at = static_cast<uint64_t>(*to);
  return 0;
}

int CloseStream(void* cookie) {
  const std::unique_ptr<Stream> s(static_cast<Stream*>(cookie));
  {
    Encrypting& all = All();
    std::lock_guard l(all.mutex);
    all.descriptors.erase(s->file);
  }
  return ::close(s->fd);
}

}  // namespace

void EncryptSpillFiles(const large_memory::Budget& budget, FileCiphersPtr ciphers) {
  Encrypting& all = All();
  std::lock_guard l(all.mutex);
  std::erase_if(all.servers, [&](const auto& s) { return s.first == &budget; });
  if (ciphers) all.servers.emplace_back(&budget, std::move(ciphers));
}

FileCiphersPtr SpillCiphers(const large_memory::Budget& budget) {
  Encrypting& all = All();
  std::lock_guard l(all.mutex);
  for (const auto& [b, ciphers] : all.servers)
    if (b == &budget) return ciphers;
  return nullptr;
}

std::FILE* OpenEncryptedStream(int fd, std::unique_ptr<FileCipher> cipher) {
  auto stream = std::make_unique<Stream>(Stream{fd, std::move(cipher)});
  std::FILE* file =
      ::fopencookie(stream.get(), "w+b", {&ReadStream, &WriteStream, &SeekStream, &CloseStream});
  if (file == nullptr) {
    ::close(fd);
    return nullptr;
  }
  stream->file = file;
  Encrypting& all = All();
  std::lock_guard l(all.mutex);
  all.descriptors[file] = fd;
  stream.release();  // the stream's
  return file;
}

int DescriptorOf(std::FILE* file) {
  if (const int fd = ::fileno(file); fd >= 0) return fd;
  Encrypting& all = All();
  std::lock_guard l(all.mutex);
  const auto it = all.descriptors.find(file);
  return it == all.descriptors.end() ? -1 : it->second;
}

}  // namespace mayfly

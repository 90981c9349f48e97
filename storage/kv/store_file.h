#pragma once
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/file_cipher.h"

namespace mayfly {

/// Whether a store never changes a file of this name once it is written, and never gives its name
/// to another one.
bool IsImmutableStoreFile(std::string_view name);

/// Whether a copy of a store may have a file of this name.
bool IsStoreFileName(std::string_view name);

/// The file without which a directory has no store: it names the one that describes the others.
inline constexpr std::string_view kStoreCurrentFile = "CURRENT";

/// A file of a store or of a checkpoint, for copies of it: reads and writes use the store's plain
/// content; on the disk it is encrypted if the store's files are. One thread. Errors:
/// OutOfDiskSpace 14031, FileNotOpen 38 with the path and the system's words, InternalError 1 when
/// it cannot be decrypted.
class StoreFile {
 public:
  /// `ciphers`: the store's (CiphersOf); null: its files are plain.
  static Result<StoreFile> OpenToRead(const std::string& path, const FileCiphersPtr& ciphers);
  /// As it is on the disk, or a new one, also in place of one whose prefix is not whole.
  static Result<StoreFile> OpenToWrite(const std::string& path, const FileCiphersPtr& ciphers);
  ~StoreFile();
  StoreFile(StoreFile&& o) noexcept;
  StoreFile& operator=(StoreFile&&) = delete;

  /// The size of the content: sizes and offsets do not count the prefix of an encrypted file.
  Result<uint64_t> Size() const;
  /// Up to `n` bytes; fewer at the end of the file.
  Result<std::string> Read(uint64_t offset, size_t n) const;
  Result<void> Write(uint64_t offset, std::string_view bytes);
  Result<void> Truncate(uint64_t size);
  Result<void> Sync();

 private:
  StoreFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Error Failed(std::string_view what) const;
  /// Takes the cipher out of the prefix. False: the file ends before, or has only zeros there.
  Result<bool> ReadPrefix(const FileCiphers& ciphers);

  int fd_;
  std::string path_;
  std::unique_ptr<FileCipher> cipher_;  ///< null: it is plain, or (to read) empty
  uint64_t prefix_ = 0;                 ///< bytes before the store's
};

}  // namespace mayfly

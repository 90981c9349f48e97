#pragma once
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/file_cipher.h"

namespace mayfly {

/// A file of a store or of a checkpoint, for copies of it: what is read and written here is what
/// the store has in the file, and on the disk it is encrypted if the store's files are. One thread.
/// Errors: OutOfDiskSpace 14031, FileNotOpen 38 with the path and the system's words, InternalError
/// 1 when it cannot be decrypted.
class StoreFile {
 public:
  /// `ciphers`: the store's (CiphersOf); null: its files are plain.
  static Result<StoreFile> OpenToRead(const std::string& path, const FileCiphersPtr& ciphers);
  /// As it is on the disk, or a new one, also in the place of one whose prefix is not whole.
  static Result<StoreFile> OpenToWrite(const std::string& path, const FileCiphersPtr& ciphers);
  ~StoreFile();
  StoreFile(StoreFile&& o) noexcept;
  StoreFile& operator=(StoreFile&&) = delete;

  /// Of the content: the prefix of an encrypted file does not count, nor does it in offsets.
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

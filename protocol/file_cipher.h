#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "protocol/error.h"

/// Encryption of files at rest, as the layers that have files see it. security/at_rest.h does it.
namespace mayfly {

/// The bytes of one file. Threads: any, at the same time.
class FileCipher {
 public:
  virtual ~FileCipher() = default;
  /// Encrypts or decrypts, which is the same: `n` bytes that stand at `offset` of the file, where
  /// the prefix counts. False: they are neither; nothing of them may be written or believed.
  [[nodiscard]] virtual bool Apply(uint64_t offset, char* data, size_t n) const = 0;
};

/// Makes the ciphers of files, each with a key of its own. Threads: any.
class FileCiphers {
 public:
  /// What an encrypted file begins with: its key, wrapped. A page, so that the pages behind it are
  /// those of the file without it.
  static constexpr size_t kPrefixBytes = 4096;

  virtual ~FileCiphers() = default;
  /// Fills in the prefix of a new file (kPrefixBytes), with a new key.
  virtual Result<void> MakePrefix(char* prefix) const = 0;
  /// Errors: InternalError 1: it is no prefix, or one of another store, or it is damaged.
  virtual Result<std::unique_ptr<FileCipher>> Open(std::string_view prefix) const = 0;
  /// Of a file without a prefix that nobody opens again: its key is in memory only.
  virtual Result<std::unique_ptr<FileCipher>> Temporary() const = 0;
};
using FileCiphersPtr = std::shared_ptr<const FileCiphers>;

}  // namespace mayfly

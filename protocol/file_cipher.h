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
  /// Encrypts or decrypts (the same operation) `n` bytes at `offset` of the file, which includes
  /// the prefix. False: it failed; the bytes must be neither written nor used.
  [[nodiscard]] virtual bool Apply(uint64_t offset, char* data, size_t n) const = 0;
};

/// Makes the ciphers of files, each with a key of its own. Threads: any.
class FileCiphers {
 public:
  /// The start of an encrypted file: its wrapped key. It takes one page, so that the pages after it
  /// are those of the plain file.
  static constexpr size_t kPrefixBytes = 4096;

  virtual ~FileCiphers() = default;
  /// Fills in the prefix of a new file (kPrefixBytes), with a new key.
  virtual Result<void> MakePrefix(char* prefix) const = 0;
  /// Errors: InternalError 1: not a prefix, or of another store, or damaged.
  virtual Result<std::unique_ptr<FileCipher>> Open(std::string_view prefix) const = 0;
  /// For a file without a prefix that is never opened again: its key is in memory only.
  virtual Result<std::unique_ptr<FileCipher>> Temporary() const = 0;
};
using FileCiphersPtr = std::shared_ptr<const FileCiphers>;

}  // namespace mayfly

#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/file_cipher.h"
#include "security/crypto.h"

// clang-format off
/// Encryption at rest: each file of a store has a key of its own, which stands in front of it,
/// wrapped by the store's data key. That is in one small file of the data directory, wrapped by the
/// master key, which is outside. A file's bytes are encrypted with AES-256 in counter mode, keys
/// are wrapped with AES-256 in Galois counter mode, which tells a wrong key from the right one.
///
///   keystore := "MayflyKS" version:u8 (1) store:bytes[16] master:bytes[8]
///               nonce:bytes[12] wrapped:bytes[32] tag:bytes[16] sum:bytes[32]
///   prefix   := "MayflyEF" version:u8 (1) nonce:bytes[12] wrapped:bytes[48] tag:bytes[16] zeros
///               wrapped: key:bytes[32] counter:bytes[16] of the file; 4096 bytes with the zeros
///
/// `store` is random. `master` is the id of the master key: the first bytes of HMAC-SHA256(key,
/// "Mayfly master key"). `sum` is SHA-256 of what stands before it, so that a damaged keystore is
/// not taken for a wrong key. A tag also protects, besides the key: in the keystore all that stands
/// before the nonce, in a prefix its first 9 bytes and `store`. The byte at `offset` of a file is
/// encrypted by byte offset % 16 of the block for counter + offset / 16 (big-endian).
// clang-format on
namespace mayfly {

/// Its name in the data directory.
inline constexpr std::string_view kKeystoreFile = "encryption.keystore";

/// The key that wraps the data key: 32 bytes, in base64, in a file that only its owner can read.
class MasterKey {
 public:
  /// Errors: InvalidOptions 72, which name `option`, the file and what is wrong with it.
  static Result<MasterKey> Read(std::string_view option, const std::string& path);
  std::string_view bytes() const { return key_.view(); }
  const std::string& path() const { return path_; }
  std::string id() const;  ///< 8 bytes, which say nothing of the key

 private:
  MasterKey() = default;
  Secret key_;
  std::string path_;
};

/// Whether a file that begins with these bytes is one that this encrypts.
bool BeginsEncrypted(std::string_view bytes);

/// Makes a keystore with a new data key in the directory, durable, unless there is one by now.
/// Errors: FileNotOpen 38, InternalError 1.
Result<void> MakeKeystore(const std::string& directory, const MasterKey& master);

/// The ciphers of a keystore outside of its directory: a copy that lies with a backup or archive.
/// Errors: FileNotOpen 38, InternalError 1 (damaged), InvalidOptions 72 (a wrong key).
Result<FileCiphersPtr> OpenKeystoreFile(const std::string& path, const MasterKey& master);

/// The id of the master key that the directory's keystore needs (MasterKey::id). Errors: as
/// OpenKeystore, which it does not open.
Result<std::string> MasterKeyIdOf(const std::string& directory);

/// What OpenKeystore found.
struct OpenedKeystore {
  FileCiphersPtr ciphers;
  bool rotated = false;  ///< the data key was wrapped by `from` until now
};
/// The ciphers of the store in the directory. With `from`, a keystore that this key wraps is
/// wrapped by `master` instead, and replaced in one step; one that `master` wraps already stays.
/// Errors: FileNotOpen 38, InternalError 1 (damaged), InvalidOptions 72 (a wrong key), each with
/// what to do.
Result<OpenedKeystore> OpenKeystore(const std::string& directory, const MasterKey& master,
                                    const MasterKey* from);

}  // namespace mayfly

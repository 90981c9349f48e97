#include "security/at_rest.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "protocol/base64.h"
#include "protocol/hex.h"
#include "protocol/secret_file.h"
#include "security/option_file.h"

namespace mayfly {
namespace {

constexpr std::string_view kKeystoreMagic = "MayflyKS", kFileMagic = "MayflyEF";
constexpr char kVersion = 1;
constexpr size_t kKey = 32, kCounter = 16, kStore = 16, kId = 8, kNonce = 12, kTag = 16, kSum = 32;
constexpr size_t kHead = 8 + 1 + kStore + kId;
constexpr size_t kKeystoreBytes = kHead + kNonce + kKey + kTag + kSum;
constexpr size_t kFileHead = 8 + 1;
constexpr size_t kFilePrefix = kFileHead + kNonce + kKey + kCounter + kTag;
constexpr size_t kKeyFileBytes = 1024;  ///< read of a key file at most

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)>;
using Cipher = std::unique_ptr<EVP_CIPHER, decltype(&::EVP_CIPHER_free)>;

/// This thread's, set to AES-256-CTR: a key and a counter are all that is missing. Making one costs
/// more than it takes to encrypt a block of the store.
EVP_CIPHER_CTX* CounterContext() {
  static const Cipher cipher(EVP_CIPHER_fetch(nullptr, "AES-256-CTR", nullptr), &::EVP_CIPHER_free);
  thread_local const CipherContext context = [] {
    CipherContext c(EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free);
    if (c && EVP_EncryptInit_ex2(c.get(), cipher.get(), nullptr, nullptr, nullptr) != 1) c.reset();
    return c;
  }();
  return context.get();
}

class CounterCipher final : public FileCipher {
 public:
  /// `key_and_counter`: kKey and kCounter bytes.
  explicit CounterCipher(std::string_view key_and_counter) {
    std::copy_n(AsUnsigned(key_and_counter), kKey, key_.data());
    std::copy_n(AsUnsigned(key_and_counter) + kKey, kCounter, counter_.data());
  }
  ~CounterCipher() override { OPENSSL_cleanse(key_.data(), key_.size()); }
  CounterCipher(const CounterCipher&) = delete;

  bool Apply(uint64_t offset, char* data, size_t n) const override {
    EVP_CIPHER_CTX* context = CounterContext();
    if (context == nullptr) return false;
    std::array<unsigned char, kCounter> counter = counter_;
    uint64_t carry = offset / kCounter;
    for (size_t i = kCounter; i-- > 0 && carry != 0; carry >>= 8) {
      carry += counter[i];
      counter[i] = static_cast<unsigned char>(carry);
    }
    if (EVP_EncryptInit_ex2(context, nullptr, key_.data(), counter.data(), nullptr) != 1)
      return false;
    int done = 0;
    if (const size_t skipped = offset % kCounter; skipped != 0) {
      unsigned char passed[kCounter] = {};
      if (EVP_EncryptUpdate(context, passed, &done, passed, static_cast<int>(skipped)) != 1)
        return false;
    }
    constexpr size_t kStep = size_t{1} << 30;  // EVP counts in ints
    for (; n > 0; data += done, n -= static_cast<size_t>(done))
      if (EVP_EncryptUpdate(context, AsUnsigned(data), &done, AsUnsigned(data),
                            static_cast<int>(std::min(n, kStep))) != 1)
        return false;
    return true;
  }

 private:
  std::array<unsigned char, kKey> key_;
  std::array<unsigned char, kCounter> counter_;
};

/// AES-256-GCM. `out` has room for `in` and, behind it, kTag bytes. False: for lack of memory.
bool Wrap(std::string_view key, std::string_view nonce, std::string_view vouched,
          std::string_view in, char* out) {
  const CipherContext c(EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free);
  int n = 0;
  return c &&
         EVP_EncryptInit_ex(c.get(), EVP_aes_256_gcm(), nullptr, AsUnsigned(key),
                            AsUnsigned(nonce)) == 1 &&
         EVP_EncryptUpdate(c.get(), nullptr, &n, AsUnsigned(vouched),
                           static_cast<int>(vouched.size())) == 1 &&
         EVP_EncryptUpdate(c.get(), AsUnsigned(out), &n, AsUnsigned(in),
                           static_cast<int>(in.size())) == 1 &&
         EVP_EncryptFinal_ex(c.get(), AsUnsigned(out) + n, &n) == 1 &&
         EVP_CIPHER_CTX_ctrl(c.get(), EVP_CTRL_GCM_GET_TAG, kTag, out + in.size()) == 1;
}

/// The other way; nothing: it is not what this key has wrapped.
std::optional<Secret> Unwrap(std::string_view key, std::string_view nonce, std::string_view vouched,
                             std::string_view in, std::string_view tag) {
  const CipherContext c(EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free);
  std::string out(in.size(), '\0');
  int n = 0;
  const bool good = c &&
                    EVP_DecryptInit_ex(c.get(), EVP_aes_256_gcm(), nullptr, AsUnsigned(key),
                                       AsUnsigned(nonce)) == 1 &&
                    EVP_DecryptUpdate(c.get(), nullptr, &n, AsUnsigned(vouched),
                                      static_cast<int>(vouched.size())) == 1 &&
                    EVP_DecryptUpdate(c.get(), AsUnsigned(out.data()), &n, AsUnsigned(in),
                                      static_cast<int>(in.size())) == 1 &&
                    EVP_CIPHER_CTX_ctrl(c.get(), EVP_CTRL_GCM_SET_TAG, kTag,
                                        const_cast<char*>(tag.data())) == 1 &&
                    EVP_DecryptFinal_ex(c.get(), AsUnsigned(out.data()) + n, &n) == 1;
  Secret secret(std::move(out));
  if (!good) return std::nullopt;
  return secret;
}

Error NoCipher() {
  return {ErrorCode::kInternalError, "a key could not be wrapped: OpenSSL has no memory for it"};
}

class StoreCiphers final : public FileCiphers {
 public:
  StoreCiphers(Secret key, std::string_view store) : key_(std::move(key)) {
    vouched_.append(kFileMagic).push_back(kVersion);
    vouched_.append(store);
  }
  Result<void> MakePrefix(char* prefix) const override {
    MAYFLY_TRY(std::string random, RandomBytes(kKey + kCounter));
    const Secret file(std::move(random));
    MAYFLY_TRY(const std::string nonce, RandomBytes(kNonce));
    std::memset(prefix, 0, kPrefixBytes);
    std::memcpy(prefix, vouched_.data(), kFileHead);
    std::memcpy(prefix + kFileHead, nonce.data(), kNonce);
    if (!Wrap(key_.view(), nonce, vouched_, file.view(), prefix + kFileHead + kNonce))
      return NoCipher();
    return Ok();
  }
  Result<std::unique_ptr<FileCipher>> Open(std::string_view prefix) const override {
    if (prefix.size() < kPrefixBytes || !BeginsEncrypted(prefix))
      return Error{ErrorCode::kInternalError, "it is not encrypted, or its beginning is damaged"};
    if (prefix[kFileHead - 1] != kVersion)
      return Error{ErrorCode::kInternalError,
                   "it is encrypted in a format that this version does not know (" +
                       std::to_string(static_cast<unsigned char>(prefix[kFileHead - 1])) + ")"};
    const std::string_view nonce = prefix.substr(kFileHead, kNonce),
                           wrapped = prefix.substr(kFileHead + kNonce, kKey + kCounter),
                           tag = prefix.substr(kFileHead + kNonce + kKey + kCounter, kTag);
    const std::optional<Secret> file = Unwrap(key_.view(), nonce, vouched_, wrapped, tag);
    // The zeros have no meaning; but if they are not zero, more may be damaged.
    if (!file || prefix.substr(kFilePrefix, kPrefixBytes - kFilePrefix).find_first_not_of('\0') !=
                     std::string_view::npos)
      return Error{ErrorCode::kInternalError,
                   "it is encrypted for another store, or its beginning is damaged"};
    return std::unique_ptr<FileCipher>(std::make_unique<CounterCipher>(file->view()));
  }
  Result<std::unique_ptr<FileCipher>> Temporary() const override {
    MAYFLY_TRY(std::string random, RandomBytes(kKey + kCounter));
    const Secret file(std::move(random));
    return std::unique_ptr<FileCipher>(std::make_unique<CounterCipher>(file.view()));
  }

 private:
  const Secret key_;
  std::string vouched_;  ///< head of a prefix, and the store
};

Error SystemError(std::string_view what, const std::string& path) {
  const int code = errno;
  return {code == ENOSPC ? ErrorCode::kOutOfDiskSpace : ErrorCode::kFileNotOpen,
          std::string(what) + " " + path + ": " + std::strerror(code)};
}

/// The keystore of `store` with the data key wrapped by `master`.
Result<std::string> KeystoreText(std::string_view store, const Secret& key,
                                 const MasterKey& master) {
  std::string text(kKeystoreMagic);
  text.push_back(kVersion);
  text.append(store).append(master.id());
  MAYFLY_TRY(const std::string nonce, RandomBytes(kNonce));
  char wrapped[kKey + kTag];
  if (!Wrap(master.bytes(), nonce, text, key.view(), wrapped)) return NoCipher();
  text.append(nonce).append(wrapped, sizeof wrapped);
  text.append(HashOf(HashKind::kSha256, text).view());
  return text;
}

Result<void> SyncPath(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path);
  const bool synced = ::fsync(fd) == 0;
  const Error error = SystemError("cannot sync", path);
  ::close(fd);
  if (!synced) return error;
  return Ok();
}

/// Removes keystore remains of killed starts: they have the data key, wrapped by an old master
/// key.
void RemoveLeftovers(const std::string& directory) {
  std::error_code ec;
  std::filesystem::directory_iterator it(directory, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    std::error_code unused;
    if (it->path().filename().string().starts_with(std::string(kKeystoreFile) + "."))
      std::filesystem::remove(it->path(), unused);
  }
}

/// Puts the text into the directory as its keystore, in one step: a crash leaves the previous one,
/// or none. With `replace` false an existing one stays.
Result<void> PutKeystore(const std::string& directory, const std::string& text, bool replace) {
  const std::string path = directory + "/" + std::string(kKeystoreFile);
  std::string fresh = path + ".XXXXXX";  // another process may do the same
  const int fd = ::mkostemp(fresh.data(), O_CLOEXEC);
  if (fd < 0) return SystemError("cannot create", fresh);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  const Error error = SystemError("cannot write", fresh);
  ::close(fd);
  Result<void> put = Ok();
  if (!written) {
    put = error;
  } else if (replace) {
    if (::rename(fresh.c_str(), path.c_str()) != 0) put = SystemError("cannot replace", path);
  } else if (::link(fresh.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    put = SystemError("cannot create", path);
  }
  if (!put || !replace) ::unlink(fresh.c_str());
  MAYFLY_TRY(put);
  return SyncPath(directory);
}

Error Damaged(const std::string& path, std::string_view how) {
  return {ErrorCode::kInternalError,
          path + " " + std::string(how) +
              ". It has the key of all data in this directory: restore it from a backup. Nothing "
              "was changed"};
}

/// The keystore's bytes, checked as far as possible without a key.
Result<std::string> ReadKeystore(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return SystemError("cannot read", path);
  std::string text(kKeystoreBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return SystemError("cannot read", path);
  text.resize(static_cast<size_t>(in.gcount()));
  if (!text.starts_with(kKeystoreMagic)) return Damaged(path, "is no keystore, or is damaged");
  if (text.size() > kKeystoreMagic.size() && text[kKeystoreMagic.size()] != kVersion)
    return Error{ErrorCode::kUnsupportedFormat,
                 path +
                     " has a format that this version does not know: it was written by a newer "
                     "version. Nothing was changed"};
  if (text.size() != kKeystoreBytes ||
      HashOf(HashKind::kSha256, std::string_view(text).substr(0, kKeystoreBytes - kSum)).view() !=
          std::string_view(text).substr(kKeystoreBytes - kSum))
    return Damaged(path, "is damaged");
  return text;
}

std::optional<Secret> DataKey(std::string_view keystore, const MasterKey& master) {
  return Unwrap(master.bytes(), keystore.substr(kHead, kNonce), keystore.substr(0, kHead),
                keystore.substr(kHead + kNonce, kKey),
                keystore.substr(kHead + kNonce + kKey, kTag));
}

}  // namespace

Result<MasterKey> MasterKey::Read(std::string_view option, const std::string& path) {
  MAYFLY_TRY(std::string read,
             ReadSecretFile(path, std::string(option) + ": " + path, kKeyFileBytes));
  const Secret text(std::move(read));
  std::string_view base64 = text.view();
  while (!base64.empty() && std::strchr(" \t\r\n", base64.back()) != nullptr)
    base64.remove_suffix(1);
  std::string key;
  key.reserve(kKeyFileBytes);  // so that no copy of it is left behind
  const bool decoded = DecodeBase64(base64, key);
  const bool right = decoded && key.size() == kKey;
  MasterKey master;
  master.key_ = Secret(std::move(key));
  master.path_ = path;
  if (!right)
    return BadFile(option, path,
                   "it must hold 32 bytes in base64, and nothing else: openssl rand -base64 32");
  return master;
}

std::string MasterKey::id() const {
  return std::string(HmacOf(HashKind::kSha256, bytes(), "Mayfly master key").view().substr(0, kId));
}

bool BeginsEncrypted(std::string_view bytes) { return bytes.starts_with(kFileMagic); }

Result<void> MakeKeystore(const std::string& directory, const MasterKey& master) {
  MAYFLY_TRY(const std::string store, RandomBytes(kStore));
  MAYFLY_TRY(std::string random, RandomBytes(kKey));
  const Secret key(std::move(random));
  MAYFLY_TRY(const std::string text, KeystoreText(store, key, master));
  return PutKeystore(directory, text, false);
}

Result<std::string> MasterKeyIdOf(const std::string& directory) {
  MAYFLY_TRY(const std::string text, ReadKeystore(directory + "/" + std::string(kKeystoreFile)));
  return text.substr(kHead - kId, kId);
}

Result<OpenedKeystore> OpenKeystore(const std::string& directory, const MasterKey& master,
                                    const MasterKey* from) {
  const std::string path = directory + "/" + std::string(kKeystoreFile);
  MAYFLY_TRY(const std::string text, ReadKeystore(path));
  const std::string_view store = std::string_view(text).substr(kKeystoreMagic.size() + 1, kStore);
  OpenedKeystore opened;
  std::optional<Secret> key = DataKey(text, master);
  if (!key && from != nullptr) {
    key = DataKey(text, *from);
    opened.rotated = key.has_value();
  }
  if (!key) {
    const std::string right = HexDigits(std::string_view(text).substr(kHead - kId, kId));
    std::string tried = master.path() + " has the key " + HexDigits(master.id());
    if (from != nullptr) tried += ", and " + from->path() + " the key " + HexDigits(from->id());
    return Error{ErrorCode::kInvalidOptions,
                 "wrong master key: the data in " + directory + " needs the key " + right + "; " +
                     tried +
                     ". Give the key file that this directory was last started with as "
                     "encryptionKeyFile (or, to change keys, as encryptionRotateFrom). Nothing was "
                     "changed"};
  }
  if (opened.rotated) {
    MAYFLY_TRY(const std::string fresh, KeystoreText(store, *key, master));
    MAYFLY_TRY(PutKeystore(directory, fresh, true));
    RemoveLeftovers(directory);
  }
  opened.ciphers = std::make_shared<StoreCiphers>(std::move(*key), store);
  return opened;
}

Result<FileCiphersPtr> OpenKeystoreFile(const std::string& path, const MasterKey& master) {
  MAYFLY_TRY(const std::string text, ReadKeystore(path));
  std::optional<Secret> key = DataKey(text, master);
  if (!key)
    return Error{ErrorCode::kInvalidOptions,
                 "wrong master key: " + path + " needs the key " +
                     HexDigits(std::string_view(text).substr(kHead - kId, kId)) + "; " +
                     master.path() + " has the key " + HexDigits(master.id())};
  return FileCiphersPtr(std::make_shared<StoreCiphers>(
      std::move(*key), std::string_view(text).substr(kKeystoreMagic.size() + 1, kStore)));
}

}  // namespace mayfly

#include "security/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <new>

#include "protocol/hex.h"

namespace mayfly {

namespace {

const EVP_MD* Algorithm(HashKind kind) {
  return kind == HashKind::kSha1 ? EVP_sha1() : EVP_sha256();
}

}  // namespace

Secret::Secret(std::string&& text) : text_(text) {
  OPENSSL_cleanse(text.data(), text.size());
  text.clear();
}

Secret::Secret(Secret&& o) noexcept : text_(o.text_) { o.Wipe(); }

Secret& Secret::operator=(Secret&& o) noexcept {
  if (this != &o) {
    Wipe();
    text_ = o.text_;
    o.Wipe();
  }
  return *this;
}

void Secret::Wipe() {
  text_.resize(text_.capacity());  // an earlier, longer value has left bytes behind the end
  OPENSSL_cleanse(text_.data(), text_.size());
  text_.clear();
}

size_t DigestSize(HashKind kind) { return kind == HashKind::kSha1 ? 20 : 32; }

// The algorithms are built into libcrypto, so these calls fail only if there is no memory. A digest
// that was not computed must never be compared with anything.
Digest HashOf(HashKind kind, std::string_view data) {
  Digest d;
  unsigned int n = 0;
  if (EVP_Digest(data.data(), data.size(), d.bytes.data(), &n, Algorithm(kind), nullptr) != 1)
    throw std::bad_alloc();
  d.size = n;
  return d;
}

Digest HmacOf(HashKind kind, std::string_view key, std::string_view data) {
  Digest d;
  unsigned int n = 0;
  if (HMAC(Algorithm(kind), key.data(), static_cast<int>(key.size()), AsUnsigned(data), data.size(),
           d.bytes.data(), &n) == nullptr)
    throw std::bad_alloc();
  d.size = n;
  return d;
}

Digest Pbkdf2(HashKind kind, std::string_view password, std::string_view salt, int iterations) {
  Digest d;
  d.size = DigestSize(kind);
  if (PKCS5_PBKDF2_HMAC(password.data(), static_cast<int>(password.size()), AsUnsigned(salt),
                        static_cast<int>(salt.size()), iterations, Algorithm(kind),
                        static_cast<int>(d.size), d.bytes.data()) != 1)
    throw std::bad_alloc();
  return d;
}

std::string Md5Hex(std::string_view data) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  if (EVP_Digest(data.data(), data.size(), digest, &n, EVP_md5(), nullptr) != 1)
    throw std::bad_alloc();
  return HexDigits({reinterpret_cast<const char*>(digest), n});
}

bool SameBytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// The kernel's own, not OpenSSL's: that keeps a generator for each thread, also for those of the
// store, which make keys of files and never end.
Result<std::string> RandomBytes(size_t n) {
  std::string s(n, '\0');
  for (size_t have = 0; have < n;) {
    const ssize_t got = ::getrandom(s.data() + have, n - have, 0);
    if (got < 0 && errno != EINTR)
      return Error{ErrorCode::kInternalError, "the system has no random bytes now: try again"};
    if (got > 0) have += static_cast<size_t>(got);
  }
  return s;
}

}  // namespace mayfly

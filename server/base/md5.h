#pragma once
#include <openssl/evp.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/hex.h"

namespace mayfly {

/// MD5 as a running sum, because that is what tools compare; nothing depends on its strength. One
/// thread.
class Md5 {
 public:
  Md5() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_md5(), nullptr); }
  ~Md5() { EVP_MD_CTX_free(context_); }
  Md5(const Md5&) = delete;
  void Add(std::string_view bytes) { EVP_DigestUpdate(context_, bytes.data(), bytes.size()); }
  /// With its length, so that two neighbours cannot be mistaken for one.
  void AddWithLength(std::string_view bytes) {
    const auto n = static_cast<uint32_t>(bytes.size());
    EVP_DigestUpdate(context_, &n, sizeof n);
    Add(bytes);
  }
  /// Ends it.
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    EVP_DigestFinal_ex(context_, digest, &n);
    return HexDigits({reinterpret_cast<const char*>(digest), n});
  }

 private:
  EVP_MD_CTX* context_;
};

}  // namespace mayfly

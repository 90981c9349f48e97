#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

/// Bytes as OpenSSL takes them.
inline const unsigned char* AsUnsigned(std::string_view s) {
  return reinterpret_cast<const unsigned char*>(s.data());
}
inline unsigned char* AsUnsigned(char* p) { return reinterpret_cast<unsigned char*>(p); }

/// The hash functions of SCRAM.
enum class HashKind : uint8_t { kSha1, kSha256 };

/// What a hash or an HMAC gives: 20 or 32 bytes.
struct Digest {
  std::array<unsigned char, 32> bytes{};
  size_t size = 0;
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), size}; }
};

/// Secret text, overwritten when destroyed. Not copied; moves leave nothing behind.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string&& text);
  Secret(Secret&& o) noexcept;
  Secret& operator=(Secret&& o) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { Wipe(); }
  std::string_view view() const { return text_; }
  bool empty() const { return text_.empty(); }

 private:
  void Wipe();
  std::string text_;
};

/// In bytes. The two below (FIPS 180-4, RFC 2104) throw std::bad_alloc when OpenSSL fails, which
/// for these functions means that there is no memory.
size_t DigestSize(HashKind kind);
Digest HashOf(HashKind kind, std::string_view data);
Digest HmacOf(HashKind kind, std::string_view key, std::string_view data);
/// PBKDF2 with HMAC of `kind` and one block of output, which is SCRAM's Hi(). Takes `iterations`
/// times two hashes: 15,000 of SHA-256 are some 5 ms, so call it on a worker.
Digest Pbkdf2(HashKind kind, std::string_view password, std::string_view salt, int iterations);
/// MD5 as 32 hexadecimal digits: what the older mechanism takes for a password.
std::string Md5Hex(std::string_view data);
/// Whether the bytes are the same, in a time that does not depend on where they differ.
bool SameBytes(std::string_view a, std::string_view b);
/// `n` bytes of the system's random source. Errors: InternalError 1 when it has none.
Result<std::string> RandomBytes(size_t n);

}  // namespace mayfly

#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "protocol/base64.h"
#include "security/saslprep.h"
#include "security/scram.h"

namespace mayfly::testing {

inline std::string Base64Of(std::string_view bytes) {
  std::string s;
  AppendBase64(bytes, s);
  return s;
}
inline std::string FromBase64(std::string_view text) {
  std::string s;
  REQUIRE(DecodeBase64(text, s));
  return s;
}

/// A driver's side of a login, as RFC 5802 describes it: its own code, which uses nothing of the
/// server's but the hashes.
struct ScramClient {
  HashKind hash;
  std::string user, password;  ///< the password as it goes into Hi(): prepared or digested
  std::string nonce = "fyko+d2lbbFgONRv9qkxdawL", header = "n,,", message;
  std::string expected;  ///< of the server

  std::string bare() const { return "n=" + user + ",r=" + nonce; }
  std::string First() const { return header + bare(); }
  static std::string Part(std::string_view challenge, char name) {
    for (size_t at = 0; at < challenge.size();) {
      const size_t end = std::min(challenge.find(',', at), challenge.size());
      if (challenge[at] == name) return std::string(challenge.substr(at + 2, end - at - 2));
      at = end + 1;
    }
    return "";
  }
  std::string Final(const std::string& challenge) {
    const std::string without = "c=" + Base64Of(header) + ",r=" + Part(challenge, 'r');
    const std::string auth = bare() + "," + challenge + "," + without;
    const Digest salted =
        Pbkdf2(hash, password, FromBase64(Part(challenge, 's')), std::stoi(Part(challenge, 'i')));
    const Digest key = HmacOf(hash, salted.view(), "Client Key");
    const Digest signature = HmacOf(hash, HashOf(hash, key.view()).view(), auth);
    std::string proof;
    for (size_t i = 0; i < key.size; ++i)
      proof.push_back(static_cast<char>(key.bytes[i] ^ signature.bytes[i]));
    expected =
        "v=" +
        Base64Of(HmacOf(hash, HmacOf(hash, salted.view(), "Server Key").view(), auth).view());
    return without + ",p=" + Base64Of(proof);
  }
};

}  // namespace mayfly::testing

#include "security/key_file.h"

#include <openssl/crypto.h>

#include "protocol/secret_file.h"

namespace mayfly {
namespace {

constexpr size_t kMinKey = 6, kMaxKey = 1024;
constexpr size_t kMaxKeyFile = 64 << 10;

bool IsBase64(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '/' || c == '=';
}

}  // namespace

Result<std::vector<std::string>> ParseKeyFile(std::string_view text, const std::string& path) {
  std::vector<std::string> keys;
  std::string key;
  char quote = 0;
  auto end = [&] {
    if (!key.empty()) keys.push_back(std::move(key));
    key.clear();
  };
  // Base64 has neither dashes nor quotes, so these are never a part of a key.
  for (const char c : text) {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote != 0 ? '\0' : c;
      end();
    } else if (c == '-' && quote == 0) {
      end();
    } else if (IsBase64(c)) {
      key += c;
    } else {
      return BadValue("keyFile: invalid char in key file " + path + ": only base64 is allowed");
    }
  }
  if (quote != 0) return BadValue("keyFile: a quote in " + path + " does not end");
  end();
  if (keys.empty()) keys.emplace_back();
  if (keys.size() > kMaxMemberKeys)
    return BadValue("keyFile: there are " + std::to_string(keys.size()) + " keys in " + path +
                    ", and " + std::to_string(kMaxMemberKeys) + " are the most");
  for (const std::string& k : keys)
    if (k.size() < kMinKey || k.size() > kMaxKey)
      return BadValue("keyFile: security key in " + path + " has length " +
                      std::to_string(k.size()) + ", must be between 6 and 1024 chars");
  return keys;
}

Result<std::vector<std::string>> ReadKeyFile(const std::string& path) {
  MAYFLY_TRY(std::string text, ReadSecretFile(path, "keyFile: " + path, kMaxKeyFile));
  auto keys = ParseKeyFile(text, path);
  OPENSSL_cleanse(text.data(), text.size());
  return keys;
}

}  // namespace mayfly

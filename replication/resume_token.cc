#include "replication/resume_token.h"

#include "protocol/hex.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {
constexpr size_t kTokenBytes = 14, kFragmentTokenBytes = 16;

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

Error Bad(std::string_view why) {
  return {ErrorCode::kInvalidResumeToken, "Bad resume token: " + std::string(why)};
}
}  // namespace

std::string StreamPosition::ToToken() const {
  std::string bytes(1, static_cast<char>(kVersion));
  AppendBe64(bytes, ts);
  AppendBe32(bytes, step);
  bytes.push_back(static_cast<char>(kind));
  if (fragment != 0) {
    bytes.push_back(static_cast<char>(fragment >> 8));
    bytes.push_back(static_cast<char>(fragment));
  }
  std::string out;
  out.reserve(2 * bytes.size());
  AppendHexDigits(bytes, out, kUpperHex);
  return out;
}

Result<StreamPosition> StreamPosition::FromToken(std::string_view token) {
  std::string bytes;
  if (token.size() % 2 != 0) return Bad("_data is not hexadecimal");
  for (size_t i = 0; i < token.size(); i += 2) {
    const int high = DigitOf(token[i]), low = DigitOf(token[i + 1]);
    if (high < 0 || low < 0) return Bad("_data is not hexadecimal");
    bytes.push_back(static_cast<char>(high << 4 | low));
  }
  if (bytes.empty() || static_cast<uint8_t>(bytes[0]) != kVersion)
    return Bad("_data is of another server or of a newer version of this one");
  if (bytes.size() != kTokenBytes && bytes.size() != kFragmentTokenBytes)
    return Bad("_data is cut off or too long");
  StreamPosition p;
  p.ts = LoadBe64(bytes.data() + 1);
  p.step = LoadBe32(bytes.data() + 9);
  const auto kind = static_cast<uint8_t>(bytes[13]);
  if (kind > kHighWater) return Bad("_data is of a newer version of this server");
  p.kind = static_cast<Kind>(kind);
  if (bytes.size() == kFragmentTokenBytes) {
    p.fragment = static_cast<uint16_t>(static_cast<uint8_t>(bytes[14]) << 8 |
                                       static_cast<uint8_t>(bytes[15]));
    if (p.fragment == 0 || p.kind != kEvent) return Bad("_data names a fragment that cannot be");
  }
  return p;
}

}  // namespace mayfly

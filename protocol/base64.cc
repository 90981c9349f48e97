#include "protocol/base64.h"

#include <array>
#include <cstdint>

namespace mayfly {
namespace {

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> MakeValues() {
  std::array<int8_t, 256> t{};
  t.fill(-1);
  for (int i = 0; i < 64; ++i) t[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  return t;
}
constexpr auto kValues = MakeValues();

}  // namespace

void AppendBase64(std::string_view in, std::string& out) {
  auto at = [&in](size_t i) -> uint32_t { return i < in.size() ? static_cast<uint8_t>(in[i]) : 0; };
  for (size_t i = 0; i < in.size(); i += 3) {
    uint32_t v = at(i) << 16 | at(i + 1) << 8 | at(i + 2);
    char quad[4] = {kDigits[v >> 18], kDigits[v >> 12 & 63],
                    i + 1 < in.size() ? kDigits[v >> 6 & 63] : '=',
                    i + 2 < in.size() ? kDigits[v & 63] : '='};
    out.append(quad, 4);
  }
}

std::string Base64(std::string_view bytes) {
  std::string out;
  AppendBase64(bytes, out);
  return out;
}

bool DecodeBase64(std::string_view text, std::string& out) {
  if (text.size() % 4 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t v = 0;
    int padding = 0;
    for (size_t j = 0; j < 4; ++j) {
      char c = text[i + j];
      int digit = kValues[static_cast<uint8_t>(c)];
      if (c == '=' && i + 4 == text.size() && j >= 2) {
        ++padding;
        digit = 0;
      } else if (digit < 0 || padding > 0) {
        return false;
      }
      v = v << 6 | static_cast<uint32_t>(digit);
    }
    out.push_back(static_cast<char>(v >> 16));
    if (padding < 2) out.push_back(static_cast<char>(v >> 8));
    if (padding < 1) out.push_back(static_cast<char>(v));
  }
  return true;
}

}  // namespace mayfly

#include "protocol/utf8.h"

namespace mayfly {

bool IsUtf8Slow(const char* text, size_t n) {
  auto* p = reinterpret_cast<const uint8_t*>(text);
  const uint8_t* const end = p + n;
  auto continuation = [](uint8_t b) { return (b & 0xC0) == 0x80; };
  while (p < end) {
    uint8_t b = *p;
    auto left = static_cast<size_t>(end - p);
    if (b < 0x80) {
      ++p;
    } else if (b >= 0xC2 && b <= 0xDF) {
      if (left < 2 || !continuation(p[1])) return false;
      p += 2;
    } else if (b >= 0xE0 && b <= 0xEF) {
      if (left < 3 || !continuation(p[1]) || !continuation(p[2])) return false;
      if (b == 0xE0 && p[1] < 0xA0) return false;  // overlong
      if (b == 0xED && p[1] > 0x9F) return false;  // surrogates
      p += 3;
    } else if (b >= 0xF0 && b <= 0xF4) {
      if (left < 4 || !continuation(p[1]) || !continuation(p[2]) || !continuation(p[3]))
        return false;
      if (b == 0xF0 && p[1] < 0x90) return false;  // overlong
      if (b == 0xF4 && p[1] > 0x8F) return false;  // above U+10FFFF
      p += 4;
    } else {
      return false;
    }
  }
  return true;
}

std::string PrintableUtf8(std::string_view s) {
  std::string out;
  out.reserve(s.size() + 16);
  while (!s.empty()) {
    // The longest sequence is 4 bytes; one of them is whole, or its first byte is replaced.
    size_t n = 1;
    while (n <= 4 && n <= s.size() && !IsUtf8(s.data(), n)) ++n;
    if (n <= 4 && n <= s.size()) {
      out.append(s.substr(0, n));
      s.remove_prefix(n);
    } else {
      out += "\xEF\xBF\xBD";
      s.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace mayfly

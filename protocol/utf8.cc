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

}  // namespace mayfly

#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace mayfly {

/// The part of IsUtf8 that meets a byte above 127. Call IsUtf8.
bool IsUtf8Slow(const char* p, size_t n);

/// Well-formed UTF-8 as Unicode defines it (no overlong forms, no surrogates, nothing above
/// U+10FFFF). NUL is allowed. ASCII, which most names and strings are, costs an eighth of a step a
/// byte. Threads: any.
inline bool IsUtf8(const char* p, size_t n) {
  constexpr uint64_t kHigh = 0x8080808080808080u;
  while (n >= 8) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    if (w & kHigh) return IsUtf8Slow(p, n);
    p += 8;
    n -= 8;
  }
  for (size_t i = 0; i < n; ++i)
    if (static_cast<uint8_t>(p[i]) >= 0x80) return IsUtf8Slow(p + i, n - i);
  return true;
}
inline bool IsUtf8(std::string_view s) { return IsUtf8(s.data(), s.size()); }

/// `s` with U+FFFD in place of each byte that is no part of well-formed UTF-8: for errors, logs and
/// JSON, whose readers refuse anything else. Threads: any.
std::string PrintableUtf8(std::string_view s);

}  // namespace mayfly

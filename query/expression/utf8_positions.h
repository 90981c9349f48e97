#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

namespace mayfly {

inline bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Counts the bytes that are no continuation: right for valid UTF-8 only.
inline size_t CountCodePoints(std::string_view s) {
  size_t n = 0;
  for (char c : s) n += !IsContinuation(c);
  return n;
}

/// Where the character `count` characters behind byte `from` begins; the end when there are fewer.
inline size_t ByteOffset(std::string_view s, size_t from, int64_t count) {
  size_t i = from;
  while (i < s.size() && count > 0) {
    ++i;
    while (i < s.size() && IsContinuation(s[i])) ++i;
    --count;
  }
  return std::min(i, s.size());
}

}  // namespace mayfly

#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mayfly {

/// Small numbers of both signs as small numbers: 2n, or -2n - 1.
constexpr uint64_t ZigZag(int64_t v) {
  return (static_cast<uint64_t>(v) << 1) ^ static_cast<uint64_t>(v >> 63);
}
/// The reverse.
constexpr int64_t UnZigZag(uint64_t v) {
  return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1);
}

/// Little-endian base 128; at most ten bytes.
inline void PutVarint(std::string& out, uint64_t v) {
  char bytes[10];
  size_t n = 0;
  for (; v >= 0x80; v >>= 7) bytes[n++] = static_cast<char>(v | 0x80);
  bytes[n++] = static_cast<char>(v);
  out.append(bytes, n);
}
inline void PutSigned(std::string& out, int64_t v) { PutVarint(out, ZigZag(v)); }
/// A size as a varint, then the bytes.
inline void PutText(std::string& out, std::string_view bytes) {
  PutVarint(out, bytes.size());
  out.append(bytes);
}

}  // namespace mayfly

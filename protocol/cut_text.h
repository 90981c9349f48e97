#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace mayfly {

/// The beginning of `s`: at most `bytes` bytes, and no part of a character at its end.
inline std::string_view CutUtf8(std::string_view s, size_t bytes) {
  if (s.size() <= bytes) return s;
  while (bytes > 0 && (static_cast<uint8_t>(s[bytes]) & 0xC0) == 0x80) --bytes;
  return s.substr(0, bytes);
}

/// The same with "..." at a cut end. Errors and logs show clients' names like this, because a name
/// may be as long as a message.
inline std::string ShownText(std::string_view s, size_t bytes) {
  std::string out(CutUtf8(s, bytes));
  if (out.size() < s.size()) out += "...";
  return out;
}

}  // namespace mayfly

#pragma once
#include <string>
#include <string_view>

namespace mayfly {

inline constexpr std::string_view kLowerHex = "0123456789abcdef";
inline constexpr std::string_view kUpperHex = "0123456789ABCDEF";

/// Appends each byte as two hexadecimal digits.
inline void AppendHexDigits(std::string_view bytes, std::string& out,
                            std::string_view digits = kLowerHex) {
  for (const unsigned char c : bytes) {
    out += digits[c >> 4];
    out += digits[c & 15];
  }
}

/// Each byte as two lower-case hexadecimal digits.
inline std::string HexDigits(std::string_view bytes) {
  std::string out;
  out.reserve(2 * bytes.size());
  AppendHexDigits(bytes, out);
  return out;
}

}  // namespace mayfly

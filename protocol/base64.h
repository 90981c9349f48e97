#pragma once
#include <string>
#include <string_view>

namespace mayfly {

/// RFC 4648 section 4, padded. Appends to `out`.
void AppendBase64(std::string_view bytes, std::string& out);
std::string Base64(std::string_view bytes);
/// Appends the bytes to `out`; false (with `out` in any state) when `text` is not padded base64
/// with nothing between.
bool DecodeBase64(std::string_view text, std::string& out);

}  // namespace mayfly

#include "protocol/error_text.h"

#include "protocol/utf8.h"

namespace mayfly {

std::string ErrorText(std::string_view message) {
  std::string text = IsUtf8(message) ? std::string(message) : PrintableUtf8(message);
  for (size_t at = text.find('\0'); at != std::string::npos; at = text.find('\0', at))
    text.replace(at, 1, "\xEF\xBF\xBD");
  return text;
}

}  // namespace mayfly

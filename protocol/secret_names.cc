#include "protocol/secret_names.h"

#include <algorithm>

namespace mayfly {

namespace {

/// Of a name that is longer, the beginning is looked at.
constexpr size_t kMaxName = 1024;

char LowerLetter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool IsSecretPart(std::string_view part) {
  if (part == "credentials" || part == "storedKey" || part == "serverKey" || part == "salt")
    return true;
  if (part == "passwordDigestor" || part == "digestPassword") return false;
  return ContainsLower(part, "passw") || ContainsLower(part, "pwd") ||
         ContainsLower(part, "passphrase") || (part.size() == 4 && ContainsLower(part, "pass"));
}

std::string_view WithoutSpaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool ContainsLower(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) { return LowerLetter(a) == b; };
  return std::ranges::search(text, part, same).begin() != text.end();
}

bool IsSecretName(std::string_view field) {
  field = field.substr(0, kMaxName);
  for (size_t at = 0;;) {
    const size_t dot = field.find('.', at);
    if (IsSecretPart(field.substr(at, dot - at))) return true;
    if (dot == std::string_view::npos) return false;
    at = dot + 1;
  }
}

bool QuotesSecret(std::string_view text) {
  // The name of a field stands between a sign that opens it and a colon; in between there may be
  // one that ends it.
  std::string_view name, before;
  bool open = false;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ':') {
      if (open) name = WithoutSpaces(text.substr(begin, i - begin));
      if (name.empty()) name = before;
      if (!name.empty() && IsSecretName(name)) return true;
      open = false;
      name = before = {};
    } else if (c == '{' || c == ',' || c == '"' || c == '\'') {
      if (open && (c == '"' || c == '\''))
        before = WithoutSpaces(text.substr(begin, i - begin));
      else
        before = {};
      open = true;
      begin = i + 1;
    }
  }
  return false;
}

}  // namespace mayfly

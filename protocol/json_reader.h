#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mayfly {

/// One value of a JSON text (RFC 8259), numbers still as text so that nothing is lost. Field order
/// and repeated names are kept.
struct JsonNode {
  enum class Kind { kNull, kTrue, kFalse, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  std::string name;                ///< in an object; may contain NUL
  std::string text;                ///< string contents (unescaped) or the number as written
  std::vector<JsonNode> children;  ///< array elements or fields

  /// The first field of this name; null if there is none.
  const JsonNode* Find(std::string_view field) const {
    for (const JsonNode& c : children)
      if (c.name == field) return &c;
    return nullptr;
  }
};

/// Reads exactly one value; false with `*why` (and the offset) otherwise. Nesting is limited, so
/// hostile input cannot exhaust the stack. Does not check UTF-8.
bool ReadJson(std::string_view text, JsonNode* out, std::string* why);

}  // namespace mayfly

#pragma once
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <string_view>

#include "protocol/extended_json.h"

namespace mayfly {

inline void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// Extended JSON with ' for ", so that tables can be read. $type, $regex and $options are operators
/// here, never the old extended JSON that libbson takes them for: they go through it under another
/// name.
inline BsonDocument Json(std::string text) {
  std::replace(text.begin(), text.end(), '\'', '"');
  for (std::string name : {"type", "regex", "options"})
    ReplaceAll(text, "\"$" + name + "\":", "\"%" + name + "\":");
  auto r = ParseJson(text);
  INFO(text);
  if (!r.has_value()) FAIL(r.error().message);
  std::string bytes = std::move(r).value().bytes();
  for (std::string name : {"type", "regex", "options"}) {
    std::string end(1, '\0');
    ReplaceAll(bytes, "%" + name + end, "$" + name + end);
  }
  return BsonDocument(std::move(bytes));
}

inline std::string Text(BsonView doc) {
  std::string s = ToRelaxedJson(doc);
  std::replace(s.begin(), s.end(), '"', '\'');
  return s;
}

}  // namespace mayfly

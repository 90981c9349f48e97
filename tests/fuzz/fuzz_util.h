#pragma once
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "protocol/bson_validate.h"
#include "protocol/extended_json.h"

/// Ends the process, and so the fuzzing, when a promise does not hold.
inline void Require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

/// Calls `check(first, second)` with the two documents of an input: two lines of extended JSON,
/// which seeds are written in, or two BSON documents one after the other.
template <class F>
void WithTwoDocuments(std::string_view input, F&& check) {
  if (input.starts_with('{')) {
    const size_t line = input.find('\n');
    if (line == std::string_view::npos) return;
    auto first = mayfly::ParseJson(input.substr(0, line));
    auto second = mayfly::ParseJson(input.substr(line + 1));
    if (first.has_value() && second.has_value()) check(first.value(), second.value());
    return;
  }
  auto size = mayfly::ValidateBsonPrefix(input, false);
  if (!size.has_value()) return;
  const std::string_view rest = input.substr(size.value());
  if (!mayfly::ValidateBson(rest, false).has_value()) return;
  check(mayfly::BsonView(input), mayfly::BsonView(rest));
}

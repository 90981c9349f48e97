#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "protocol/cut_text.h"
#include "protocol/error.h"

namespace mayfly {

/// 40413: `name` is there twice in what is called `where` (empty: in the document itself).
inline Error DuplicateField(std::string_view where, std::string_view name) {
  constexpr size_t kShown = 128;
  std::string field = ShownText(where, kShown);
  if (!field.empty()) field += '.';
  field += ShownText(name, kShown);
  return {LocationCode(40413), "BSON field '" + field + "' is a duplicate field"};
}

/// For a loop over the fields of a document that nobody reads by an ArgReader: whether `name` comes
/// for the first time. `names`: those that may come, fewer than 32; `*seen`: a bit for each, 0 at
/// the beginning. Any other name is for the caller to refuse. Errors: 40413 for a second time.
inline Result<void> FieldOnce(std::string_view where, std::span<const std::string_view> names,
                              std::string_view name, unsigned* seen) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return Ok();
  const unsigned bit = 1U << (found - names.begin());
  if ((*seen & bit) != 0) [[unlikely]]
    return DuplicateField(where, name);
  *seen |= bit;
  return Ok();
}

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

/// For a loop over the fields of a document that nobody reads by an ArgReader: whether `name` comes
/// for the first time. `names`: those that may come, fewer than 32; `*seen`: a bit for each, 0 at
/// the beginning. Any other name is for the caller to refuse. Errors: 40413 for a second time.
inline Result<void> FieldOnce(std::string_view where, std::span<const std::string_view> names,
                              std::string_view name, unsigned* seen) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return Ok();
  const unsigned bit = 1U << (found - names.begin());
  if ((*seen & bit) != 0) [[unlikely]]
    return Error{LocationCode(40413), "BSON field '" + std::string(where) + "." +
                                          std::string(name) + "' is a duplicate field"};
  *seen |= bit;
  return Ok();
}

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <cstdint>

namespace mayfly {

/// Whether an owner may have so much of something that many take from, so that nobody is shut out
/// however much others have: three quarters are for whoever comes first, `most_of_owner` for each;
/// of the last quarter nobody gets more than is then left for all others. `owner` and `all` include
/// what is asked for; `all` is limited by `most`. `only`: the owner has nothing else, and may take
/// more than `most_of_owner` as long as the last quarter stays free.
inline bool FitsFairShare(int64_t owner, int64_t all, int64_t most, int64_t most_of_owner,
                          bool only) {
  if (all <= most - most / 4) return only || owner <= most_of_owner;
  return owner <= std::min(most_of_owner, most - all);
}

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <cstddef>

namespace mayfly {

/// What a disk writes whole or not at all. A sector that never reached it is read as zeros.
inline constexpr size_t kSectorBytes = 512;

/// Whether all `n` bytes are zeros.
inline bool AllZero(const char* p, size_t n) {
  return std::all_of(p, p + n, [](char c) { return c == 0; });
}

}  // namespace mayfly

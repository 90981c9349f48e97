#pragma once
#include <algorithm>
#include <cstdint>

namespace mayfly {

/// A client's milliseconds as microseconds, capped at a few thousand years, so that they can be
/// added to a clock's reading.
constexpr int64_t MicrosOf(int64_t millis) {
  constexpr int64_t kMost = INT64_MAX / 4000;
  return std::clamp(millis, -kMost, kMost) * 1000;
}

}  // namespace mayfly

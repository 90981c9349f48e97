#pragma once
#include <algorithm>
#include <cstdint>

namespace mayfly {

/// Milliseconds from a client as microseconds, as far as they can be added to a clock's reading: a
/// few thousand years stand for whatever is more.
constexpr int64_t MicrosOf(int64_t millis) {
  constexpr int64_t kMost = INT64_MAX / 4000;
  return std::clamp(millis, -kMost, kMost) * 1000;
}

}  // namespace mayfly

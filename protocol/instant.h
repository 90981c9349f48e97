#pragma once
#include <compare>
#include <cstdint>

namespace mayfly {

/// A UTC time in milliseconds since 1970-01-01, as BSON Date stores it. Negative before 1970.
struct Instant {
  int64_t millis = 0;
  auto operator<=>(const Instant&) const = default;
};

}  // namespace mayfly

#pragma once
#include "storage/clock.h"

namespace mayfly::test {

/// How often somebody has looked at it: an operation with a deadline does so when it asks whether
/// it goes on.
class CountingClock final : public Clock {
 public:
  Instant Now() const override { return {0}; }
  int64_t MonotonicMicros() const override { return ++looks; }
  void OnJump(std::function<void()>) override {}
  mutable int64_t looks = 0;
};

}  // namespace mayfly::test

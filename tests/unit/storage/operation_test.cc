#include <catch2/catch.hpp>

#include "storage/operation.h"

using namespace mayfly;

namespace {

/// A clock whose monotonic time the test moves.
class HandClock final : public Clock {
 public:
  Instant Now() const override { return {0}; }
  int64_t MonotonicMicros() const override { return micros; }
  void OnJump(std::function<void()>) override {}
  int64_t micros = 1000;
};

/// How many checks pass before one fails; -1: none of many.
int ChecksUntilFailure(Operation& op) {
  for (int i = 0; i < 1000; ++i)
    if (!op.CheckInterrupt()) return i;
  return -1;
}

}  // namespace

TEST_CASE("A slice ends soon after its time, and stays ended", "[operation]") {
  HandClock clock;
  Operation op(clock);
  op.BeginSlice(100);
  CHECK(ChecksUntilFailure(op) == -1);
  clock.micros += 101;
  const int n = ChecksUntilFailure(op);
  CHECK(n >= 0);
  CHECK(n < 16);
  CHECK_FALSE(op.CheckInterrupt());
  op.EndSlice(false);
  CHECK(ChecksUntilFailure(op) == -1);
}

TEST_CASE("What an unfinished slice has counted is taken back", "[operation]") {
  HandClock clock;
  Operation op(clock);
  auto owner = std::make_shared<int>(0);
  std::atomic<int64_t> uses{0};
  op.BeginSlice(100);
  op.docs_examined = op.keys_examined = op.n_returned = 3;
  op.CountUse(owner, uses);
  op.has_sort_stage = op.used_disk = op.from_multi_planner = true;
  op.EndSlice(false);
  CHECK(uses == 0);
  CHECK(op.docs_examined + op.keys_examined + op.n_returned == 0);
  CHECK(!op.has_sort_stage);
  CHECK(!op.used_disk);
  CHECK(op.from_multi_planner);  // the plan that won is cached: it will not race again
  op.CountUse(owner, uses);
  CHECK(uses == 1);

  op.BeginSlice(100);
  op.docs_examined = 3;
  op.CountUse(owner, uses);
  CHECK(uses == 1);
  op.EndSlice(true);
  CHECK(uses == 2);
  CHECK(op.docs_examined == 3);
  CHECK(owner.use_count() == 1);
}

TEST_CASE("A very large document ends a slice, and nothing else", "[operation]") {
  HandClock clock;
  Operation op(clock);
  CHECK(op.Charge(16 << 20));
  op.BeginSlice(100);
  CHECK(op.Charge(100));
  CHECK(op.Charge(20 << 10));
  CHECK_FALSE(op.Charge(1 << 20));
  CHECK_FALSE(op.CheckInterrupt());
  op.EndSlice(false);
  CHECK(op.CheckInterrupt());
  // Whoever began the slice learns of it, until the next one.
  CHECK(op.largest_in_slice() == 1 << 20);
  CHECK(op.Charge(2 << 20));
  CHECK(op.largest_in_slice() == 1 << 20);
  op.BeginSlice(100);
  CHECK(op.largest_in_slice() == 0);
}

TEST_CASE("maxTimeMS and killOp reach an operation in a slice", "[operation]") {
  HandClock clock;
  Operation op(clock);
  op.deadline_micros = 1050;
  op.BeginSlice(100);
  clock.micros = 1060;
  for (int i = 0; i < 16; ++i) (void)op.CheckInterrupt();
  auto late = op.CheckInterrupt();
  for (int i = 0; i < 16 && late; ++i) late = op.CheckInterrupt();
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kMaxTimeMSExpired);
  op.EndSlice(false);
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  auto killed = op.CheckInterrupt();
  REQUIRE_FALSE(killed);
  CHECK(killed.error().code == ErrorCode::kInterrupted);
}

#include "replication/patient_writes.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

using namespace mayfly;

namespace {

const Error kFull{ErrorCode::kOutOfDiskSpace, "the disk is full"};

struct Patient {
  std::vector<std::string> lines;  ///< of one waiter at a time
  PatientWrites writes{[this](char severity, std::string_view line) {
    lines.push_back(std::string(1, severity) + std::string(line));
  }};
};

}  // namespace

TEST_CASE("Only what passes by itself is waited for", "[patient]") {
  CHECK(PatientWrites::MaySucceedLater(kFull));
  for (ErrorCode code : {ErrorCode::kInternalError, ErrorCode::kInterruptedAtShutdown,
                         ErrorCode::kDuplicateKey, ErrorCode::kExceededMemoryLimit})
    CHECK_FALSE(PatientWrites::MaySucceedLater({code, "no"}));
}

TEST_CASE("A write is tried until it succeeds", "[patient]") {
  Patient p;
  CHECK_FALSE(p.writes.waiting());
  int tries = 0, before = 0;
  const Result<void> r = p.writes.Await(
      kFull,
      [&]() -> Result<void> {
        CHECK(p.writes.waiting());
        CHECK(before == tries + 1);
        if (++tries < 3) return kFull;
        return Ok();
      },
      [&] { ++before; });
  CHECK(r);
  CHECK(tries == 3);
  CHECK_FALSE(p.writes.waiting());
  REQUIRE(p.lines.size() == 2);
  CHECK_THAT(p.lines[0], Catch::StartsWith("E") && Catch::EndsWith("the disk is full"));
  CHECK_THAT(p.lines[1], Catch::StartsWith("I"));
}

TEST_CASE("What fails for good is not tried again", "[patient]") {
  Patient p;
  int tries = 0;
  const Result<void> r = p.writes.Await(kFull, [&]() -> Result<void> {
    ++tries;
    return Error{ErrorCode::kInternalError, "a sync was lost"};
  });
  REQUIRE_FALSE(r);
  CHECK(r.error().message == "a sync was lost");
  CHECK(tries == 1);
  CHECK(p.lines.size() == 1);  // nothing says that the log is written again
  CHECK_FALSE(p.writes.waiting());
}

TEST_CASE("Who waits gives up when the server stops, now and later", "[patient]") {
  Patient p;
  Result<void> r = Ok();
  std::atomic<int> tries{0};
  std::thread waiter([&] {
    r = p.writes.Await(kFull, [&]() -> Result<void> {
      ++tries;
      return kFull;
    });
  });
  while (tries == 0) std::this_thread::yield();
  CHECK(p.writes.waiting());
  p.writes.Stop();
  waiter.join();
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kInterruptedAtShutdown);
  CHECK_FALSE(p.writes.waiting());
  const int so_far = tries;
  r = p.writes.Await(kFull, [&]() -> Result<void> {
    ++tries;
    return Ok();
  });
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kInterruptedAtShutdown);
  CHECK(tries == so_far);
}

TEST_CASE("A member waits as long as one of its writes does", "[patient]") {
  Patient p;
  std::atomic<bool> room{false};
  std::atomic<int> tries[2] = {0, 0};
  std::atomic<int> done{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 2; ++i)
    waiters.emplace_back([&, i] {
      const Result<void> r = p.writes.Await(kFull, [&, i]() -> Result<void> {
        ++tries[i];
        // The second one is later.
        if (!room || (i == 1 && done == 0)) return kFull;
        return Ok();
      });
      if (r) ++done;
    });
  while (tries[0] == 0 || tries[1] == 0) std::this_thread::yield();
  CHECK(p.writes.waiting());
  room = true;
  for (std::thread& t : waiters) t.join();
  CHECK(done == 2);
  CHECK_FALSE(p.writes.waiting());
  CHECK(p.lines.size() == 2);  // once for both
}

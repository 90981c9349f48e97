#include "ttl/clock_guard.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "tests/unit/ttl/reaping_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

/// A monitor whose clock and elapsed time are moved apart by hand.
struct Guarded : Reaping {
  std::atomic<int64_t> elapsed{0};
  CollectionInfoPtr c;
  Guarded() {
    environment.elapsed_micros = [this] { return elapsed.load(); };
    c = WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  }
  /// The clock goes wrong: by `millis` more than has passed.
  void Jump(int64_t millis, int64_t passed_millis = 0) {
    elapsed += passed_millis * 1000;
    monitor->clock_guard().TakeNextAsJump();
    clock.Advance(millis + passed_millis);
    monitor->Settle();
  }
  bool suspended() { return monitor->clock_guard().state().suspended; }
};

/// A guard that is opened again and again on one directory; no time passes but by hand.
struct Restarted {
  ScratchDir dir;
  SystemClock clock;
  TtlParameters parameters;
  TtlMetrics metrics;
  Restarted() {
    clock.Freeze(true);  // first: no millisecond passes in between
    clock.Set({kStart});
  }
  /// `with` is given the guard, which has looked once, and its storage.
  template <class With>
  void Run(With&& with) {
    CatalogStore store;
    store.Open(dir.path());
    ClockGuard guard(*store.storage, clock, parameters, metrics, [] { return int64_t{0}; }, {});
    guard.Open();
    guard.Check(true);
    with(guard, *store.storage);
  }
};

}  // namespace

TEST_CASE("A clock that jumps ahead suspends expiry until it is back or confirmed",
          "[ttl][clock]") {
  Guarded r;
  r.Start();
  REQUIRE(r.Insert(*r.c, r.Doc(1, kStart + 60'000)));
  r.Jump(3'600'000);  // as far as allowed
  CHECK_FALSE(r.suspended());
  CHECK(r.Count() == 0);
  REQUIRE(r.Insert(*r.c, r.Doc(1, r.clock.Now().millis + 60'000)));
  r.Jump(3'600'001);
  CHECK(r.suspended());
  CHECK(r.storage->expiry_policy().suspended);
  CHECK(r.Count() == 1);
  CHECK(r.metrics.clock_holds == 1);
  CHECK(r.monitor->clock_guard().state().expected == Instant{r.clock.Now().millis - 3'600'001});
  r.monitor->RunPass();
  CHECK(r.Count() == 1);

  SECTION("confirmed") {
    CHECK(r.monitor->ConfirmClock());
    r.monitor->Settle();
    CHECK(r.Count() == 0);
    CHECK_FALSE(r.monitor->ConfirmClock());
  }
  SECTION("back") {
    r.Jump(-3'600'001);
    CHECK_FALSE(r.suspended());
    CHECK(r.Count() == 1);
    r.Jump(60'000);
    CHECK(r.Count() == 0);
    CHECK(r.metrics.clock_holds == 1);
  }
  CHECK_FALSE(r.storage->expiry_policy().suspended);
}

TEST_CASE("A clock that jumps back, and one that moves with the time that passes", "[ttl][clock]") {
  Guarded r;
  r.Start();
  r.monitor->Settle();
  r.Jump(0, 7'200'000);  // two hours that have really passed
  CHECK_FALSE(r.suspended());
  r.Jump(-3'600'001);
  CHECK(r.suspended());
  r.monitor->ConfirmClock();
  r.parameters.max_clock_jump_secs = 0;
  r.Jump(1'000'000'000);
  CHECK_FALSE(r.suspended());
}

TEST_CASE("Time travel is no jump", "[ttl][clock]") {
  Guarded r;
  r.Start();
  REQUIRE(r.Insert(*r.c, r.Doc(1, kStart + 60'000)));
  r.clock.Advance(86'400'000);
  r.monitor->Settle();
  CHECK_FALSE(r.suspended());
  CHECK(r.Count() == 0);
  CHECK(r.metrics.clock_holds == 0);
}

// A check between the clock's new time and the word that it was moved took it for a jump.
TEST_CASE("A clock that is being moved by hand is not compared", "[ttl][clock]") {
  Reaping r;
  SystemClock clock;
  clock.Freeze(true);
  clock.Set({kStart});
  ClockGuard guard(*r.storage, clock, r.parameters, r.metrics, [] { return int64_t{0}; }, {});
  guard.Open();
  clock.BeforeJump([&] { guard.AboutToMove(); });
  clock.OnJump([&] { guard.Check(false); });  // the monitor's own, as early as it can come
  clock.OnJump([&] { guard.AfterJump(); });
  clock.Advance(86'400'000);
  guard.Check(false);
  CHECK_FALSE(guard.state().suspended);
  guard.TakeNextAsJump();
  clock.Advance(86'400'000);
  guard.Check(false);
  CHECK(guard.state().suspended);
}

TEST_CASE("A suspension and the high-water mark outlive a restart", "[ttl][clock]") {
  Restarted s;
  auto run = [&](auto&& with) { s.Run([&](ClockGuard& g, Storage&) { with(g); }); };
  run([&](ClockGuard& g) { CHECK_FALSE(g.state().suspended); });
  s.clock.Advance(7'200'000);  // while it was off
  run([&](ClockGuard& g) { CHECK_FALSE(g.state().suspended); });
  s.clock.Advance(-3'600'000);
  run([&](ClockGuard& g) { CHECK_FALSE(g.state().suspended); });
  s.clock.Advance(-3'600'001);
  run([&](ClockGuard& g) {
    CHECK(g.state().suspended);
    CHECK(g.state().expected == Instant{kStart + 7'200'000});  // the latest it has seen
  });
  run([&](ClockGuard& g) {
    CHECK(g.state().suspended);
    CHECK(s.metrics.clock_holds == 1);  // the same one
  });
  s.clock.Advance(3'600'001);
  run([&](ClockGuard& g) { CHECK_FALSE(g.state().suspended); });
  run([&](ClockGuard& g) {
    s.clock.Advance(4'000'000);
    g.Check(true);
    CHECK(g.state().suspended);
  });
  run([&](ClockGuard& g) {
    CHECK(g.state().suspended);
    CHECK(g.Confirm());
    g.Check(true);
  });
  run([&](ClockGuard& g) { CHECK_FALSE(g.state().suspended); });
}

TEST_CASE("A server that was off for longer than it may have been waits for a confirmation",
          "[ttl][clock]") {
  Restarted s;
  auto run = [&](auto&& with) { s.Run(with); };
  run([&](ClockGuard&, Storage&) {});
  s.parameters.max_downtime_secs = 86'400;
  s.clock.Advance(86'400'000);
  run([&](ClockGuard& g, Storage&) { CHECK_FALSE(g.state().suspended); });
  s.clock.Advance(86'400'001);
  for (int i = 0; i < 2; ++i)
    run([&](ClockGuard& g, Storage& storage) {
      CHECK(g.state().suspended);
      CHECK(g.state().downtime);
      CHECK(storage.expiry_policy().suspended);
      CHECK(s.metrics.clock_holds == 1);
    });
  // Set right while it runs: within what it may have been off.
  run([&](ClockGuard& g, Storage&) {
    s.clock.Advance(-1000);
    g.Check(true);
    CHECK_FALSE(g.state().suspended);
  });
  s.clock.Advance(10 * 86'400'000);
  run([&](ClockGuard& g, Storage& storage) {
    CHECK(g.state().downtime);
    s.parameters.max_clock_jump_secs = 0;  // is about jumps
    g.Check(true);
    CHECK(g.state().suspended);
    CHECK(g.Confirm());
    g.Check(true);
    CHECK_FALSE(storage.expiry_policy().suspended);
    CHECK_FALSE(g.state().downtime);
  });
  run([&](ClockGuard& g, Storage&) { CHECK_FALSE(g.state().suspended); });
}

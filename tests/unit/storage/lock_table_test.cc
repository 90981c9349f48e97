#include "storage/core/lock_table.h"

#include <catch2/catch.hpp>
#include <thread>

namespace mayfly {

using Outcome = LockTable::Outcome;

TEST_CASE("A lock has one owner, who may take it again", "[locks]") {
  LockTable t(2);
  CHECK(t.TryLock(7, 1) == Outcome::kTaken);
  CHECK(t.TryLock(7, 1) == Outcome::kHeldAlready);
  CHECK(t.TryLock(7, 2) == Outcome::kBusy);
  CHECK(t.TryLock(8, 2) == Outcome::kTaken);
  t.Unlock(7, 2);  // not its owner: nothing happens
  CHECK(t.TryLock(7, 2) == Outcome::kBusy);
  t.Unlock(7, 1);
  CHECK(t.TryLock(7, 2) == Outcome::kTaken);
}

TEST_CASE("Waiting for a lock is bounded, and ends when it is free", "[locks]") {
  LockTable t;
  REQUIRE(t.TryLock(7, 1) == Outcome::kTaken);
  CHECK(t.Lock(7, 2, 1000) == Outcome::kBusy);
  Outcome got{};
  std::thread waiter([&] { got = t.Lock(7, 2, 10'000'000); });
  t.Unlock(7, 1);
  waiter.join();
  CHECK(got == Outcome::kTaken);
  CHECK(t.TryLock(7, 1) == Outcome::kBusy);
}

TEST_CASE("What was changed is told to who locks it next", "[locks]") {
  LockTable t(2);
  REQUIRE(t.TryLock(7, 1) == Outcome::kTaken);
  CHECK_FALSE(t.UnchangedSince(7, 100));  // nobody has begun to keep account
  t.BeginReign(1, 50);
  CHECK_FALSE(t.UnchangedSince(7, 49));
  CHECK(t.UnchangedSince(7, 50));
  t.Unlock(7, 1, 60);
  REQUIRE(t.TryLock(7, 2) == Outcome::kTaken);
  CHECK_FALSE(t.UnchangedSince(7, 59));
  CHECK(t.UnchangedSince(7, 60));
  t.Unlock(7, 2);  // without a change
  REQUIRE(t.TryLock(7, 1) == Outcome::kTaken);
  CHECK(t.UnchangedSince(7, 60));
  t.Unlock(7, 1, 55);  // told late: the later one counts
  CHECK_FALSE(t.UnchangedSince(7, 59));
  t.BeginReign(1, 80);  // the same: nothing happens
  CHECK(t.UnchangedSince(7, 60));
  t.BeginReign(2, 80);
  CHECK_FALSE(t.UnchangedSince(7, 79));
  CHECK(t.UnchangedSince(7, 80));
  t.BeginReign(1, 70);  // who comes late
  CHECK_FALSE(t.UnchangedSince(7, 79));
}

TEST_CASE("What has changed is known by its sequence, of each stripe the latest", "[locks]") {
  LockTable t(2);
  CHECK_FALSE(t.Watched());
  t.Watch(1);
  t.Watch(1);
  t.Watch(-1);
  CHECK(t.Watched());
  CHECK_FALSE(t.KnownChanged(7, 0));
  t.NoteChanged(7, 60);
  CHECK(t.KnownChanged(7, 59));
  CHECK_FALSE(t.KnownChanged(7, 60));
  CHECK_FALSE(t.KnownChanged(8, 0));  // of the same stripe
  t.NoteChanged(7, 70);
  CHECK(t.KnownChanged(7, 69));
  for (uint64_t n = 0; n < 31; ++n) t.NoteChanged(100 + n, 80 + n);
  CHECK(t.KnownChanged(7, 69));
  t.NoteChanged(200, 200);
  CHECK_FALSE(t.KnownChanged(7, 0));
  CHECK(t.KnownChanged(100, 79));
}

TEST_CASE("A gate lets in many writers or one change", "[locks]") {
  GateTable g;
  CHECK(g.LockShared(1, 0));
  CHECK(g.LockShared(1, 0));
  CHECK(g.LockExclusive(2, 0));  // another collection
  CHECK_FALSE(g.LockExclusive(1, 0));
  g.UnlockShared(1);
  CHECK(g.LockExclusive(1, 0, 1));  // the last writer itself
  CHECK_FALSE(g.LockShared(1, 1000));
  g.UnlockExclusive(1);
  CHECK(g.LockShared(1, 0));
}

TEST_CASE("A change that waits keeps new writers out and is let in when the last one leaves",
          "[locks]") {
  GateTable g;
  REQUIRE(g.LockShared(1, 0));
  std::atomic<bool> inside{false};
  std::thread change([&] { inside = g.LockExclusive(1, 10'000'000); });
  while (g.LockShared(1, 0)) {  // until it waits
    g.UnlockShared(1);
    std::this_thread::yield();
  }
  CHECK_FALSE(inside);
  g.UnlockShared(1);
  change.join();
  CHECK(inside);
  bool shared = false;
  std::thread writer([&] { shared = g.LockShared(1, 10'000'000); });
  g.UnlockExclusive(1);
  writer.join();
  CHECK(shared);
}

}  // namespace mayfly

#include "server/access/change_queue.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "storage/clock.h"
#include "storage/operation.h"

namespace mayfly::testing {
namespace {

/// Clients that wait for turns, each on its own thread, and the order in which they had them.
struct Clients {
  SystemClock clock;
  ChangeQueue queue;
  std::mutex mutex;
  std::vector<std::string> order;
  std::vector<std::thread> threads;

  /// Returns when it waits behind those before it. REQUIRES: somebody has the turn.
  void Wait(const std::string& owner) {
    const size_t before = queue.waiting();
    threads.emplace_back([this, owner] {
      Operation op(clock);
      auto turn = queue.Take(op, owner);
      std::lock_guard l(mutex);
      order.push_back(turn ? owner : "failed");
    });
    while (queue.waiting() == before) std::this_thread::yield();
  }
  void Join() {
    for (std::thread& t : threads) t.join();
  }
};

}  // namespace

TEST_CASE("changes of one owner wait for each other, not those of others for all of them",
          "[change_queue]") {
  Clients c;
  Operation op(c.clock);
  {
    auto turn = c.queue.Take(op, "many");
    REQUIRE(turn);
    for (int i = 0; i < 4; ++i) c.Wait("many");
    c.Wait("one");
    c.Wait("other");
    ChangeQueue::Turn given = std::move(turn).value();
  }
  c.Join();
  CHECK(c.order == std::vector<std::string>{"one", "other", "many", "many", "many", "many"});
  CHECK(c.queue.waiting() == 0);
  CHECK(c.queue.Take(op, "many"));
}

TEST_CASE("whoever comes again and again does not pass who has waited", "[change_queue]") {
  Clients c;
  Operation op(c.clock);
  auto turn = c.queue.Take(op, "a");
  REQUIRE(turn);
  ChangeQueue::Turn given = std::move(turn).value();
  c.Wait("waits");
  c.Wait("b");
  c.Wait("a");
  c.Wait("b");
  given = ChangeQueue::Turn();
  c.Join();
  CHECK(c.order == std::vector<std::string>{"waits", "b", "a", "b"});
}

TEST_CASE("who is interrupted waits no more, and holds up nobody", "[change_queue]") {
  Clients c;
  Operation op(c.clock), killed(c.clock);
  killed.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  auto turn = c.queue.Take(op, "a");
  REQUIRE(turn);
  auto refused = c.queue.Take(killed, "b");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kInterrupted);
  CHECK(c.queue.waiting() == 0);
  c.Wait("b");
  { ChangeQueue::Turn given = std::move(turn).value(); }
  c.Join();
  CHECK(c.order == std::vector<std::string>{"b"});
}

}  // namespace mayfly::testing

#include "ttl/ttl_monitor.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "storage/write/expiry_cover.h"
#include "tests/unit/ttl/reaping_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

TEST_CASE("A document goes at its deadline, not before", "[ttl]") {
  Reaping r;
  const char* key = GENERATE("1", "-1");
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key + "}, \"expireAfterSeconds\": 60}");
  r.Start();
  for (int64_t i = 0; i < 3; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart + i)));
  struct Step {
    int64_t to, left;
  };
  for (Step s : {Step{59'999, 3}, {60'000, 2}, {60'001, 1}, {60'002, 0}}) {
    r.clock.Set({kStart + s.to});
    r.monitor->Settle();
    CHECK(r.Count() == s.left);
  }
  CHECK(r.metrics.deleted_documents == 3);
  r.RequireValid(r.Coll());
}

TEST_CASE("Documents go at their own deadlines, and a collection without any costs nothing",
          "[ttl]") {
  Reaping r;
  auto c = r.Make();
  auto other = r.Make("other");
  r.Start();
  for (int64_t i = 0; i < 3; ++i)
    REQUIRE(r.Insert(*c, R"({"_id": )" + std::to_string(i) + "}", Instant{kStart + 60'000 + i}));
  REQUIRE(r.Insert(*c, R"({"_id": "never"})"));
  struct Step {
    int64_t to, left;
  };
  for (Step s : {Step{59'999, 4}, {60'000, 3}, {60'001, 2}, {60'002, 1}, {900'000'000, 1}}) {
    r.clock.Set({kStart + s.to});
    r.monitor->Settle();
    CHECK(r.Count() == s.left);
  }
  CHECK(r.metrics.deleted_documents == 3);
  CHECK(c->document_expiry->Earliest() == INT64_MAX);
  CHECK(other->document_expiry->Earliest() == INT64_MAX);
  // Earlier than what was reaped already.
  REQUIRE(r.Insert(*c, R"({"_id": 9})", Instant{kStart}));
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  r.RequireValid(r.Coll());
}

TEST_CASE("Documents are kept for recoverSeconds", "[ttl]") {
  Reaping r;
  CollectionInfo wanted;
  wanted.db = "db";
  wanted.name = "c";
  wanted.expiry_options.recover_seconds = 10;
  auto c = r.catalog().Create(*r.op, wanted).value();
  r.Start();
  REQUIRE(r.Insert(*c, R"({"_id": 1})", Instant{kStart}));
  r.clock.Advance(9'999);
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  r.clock.Advance(1);
  r.monitor->Settle();
  CHECK(r.Count() == 0);
}

TEST_CASE("An exception ends a round of the monitor, not its thread", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  REQUIRE(r.Insert(*c, r.Doc(1, kStart - 1)));
  std::atomic<int> asked{0};
  r.environment.may_run = [&asked]() -> bool {
    if (asked++ == 0) throw std::runtime_error("as the test asked");
    return true;
  };
  r.Start();
  r.monitor->Settle();
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  std::lock_guard l(r.log_mutex);
  CHECK(std::count(r.logged.begin(), r.logged.end(),
                   "E TTL monitor: an exception ended this round") == 1);
}

TEST_CASE("Waiting for the monitor ends with the operation that waits", "[ttl]") {
  // {clock: …} with a maxTimeMS waited as long as the monitor took.
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  REQUIRE(r.Insert(*c, r.Doc(1, kStart - 1)));
  std::promise<void> go_on;
  r.environment.may_run = [held = go_on.get_future().share()]() -> bool {
    held.wait();
    return true;
  };
  r.Start();
  Operation killed(r.clock);
  killed.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  r.monitor->Settle(&killed);
  Operation late(r.clock);
  late.deadline_micros = r.clock.MonotonicMicros() - 1;
  r.monitor->RunPass(&late);
  CHECK(late.CheckInterruptNow().error().code == ErrorCode::kMaxTimeMSExpired);
  CHECK(r.Count() == 1);
  go_on.set_value();
  Operation patient(r.clock);
  r.monitor->Settle(&patient);
  CHECK(r.Count() == 0);
}

TEST_CASE("An earlier deadline that comes in behind the reaper is not missed", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  r.Start();
  for (int64_t i = 0; i < 50; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 1000 + i)));
  r.monitor->Settle();
  REQUIRE(r.Count() == 0);
  REQUIRE(r.Insert(*c, r.Doc(100, kStart - 500'000)));
  REQUIRE(r.Insert(*c, r.Doc(101, INT64_MIN)));
  REQUIRE(r.Insert(*c, r.Doc(102, kStart + 5)));
  REQUIRE(r.Insert(*c, r.Doc(103, INT64_MAX)));
  r.monitor->Settle();
  CHECK(r.Count() == 2);
  r.clock.Advance(5);
  r.monitor->Settle();
  CHECK(r.Count() == 1);
}

TEST_CASE("Writers and the reaper at the same time: everything due goes, nothing else does",
          "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  REQUIRE(r.catalog().CreateIndexes(*r.op, *c, {Spec(R"({"key": {"n": 1}})")}));
  c = r.Coll();
  r.Start();
  std::atomic<bool> stop{false};
  std::thread clock([&] {
    while (!stop) {
      r.clock.Advance(1);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> writers;
  std::atomic<int64_t> next{0}, failed{0};  // Catch's macros are for one thread
  for (int t = 0; t < 3; ++t)
    writers.emplace_back([&, t] {
      uint64_t random = static_cast<uint64_t>(t) * 7919 + 1;
      for (int i = 0; i < 1500; ++i) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        int64_t id = next++;
        int64_t at = r.clock.Now().millis + static_cast<int64_t>(random >> 40) % 40 - 30;
        failed += !r.Insert(*c, r.Doc(id, at));
        if (random & 1) (void)r.Change(*c, r.Doc(id, r.clock.Now().millis + 20), false);
        if (i % 10 == 0) failed += !r.Insert(*c, r.Doc(1'000'000 + id, kStart * 2));
      }
    });
  for (auto& w : writers) w.join();
  stop = true;
  clock.join();
  CHECK(failed == 0);
  r.clock.Advance(100);
  r.monitor->Settle();
  CHECK(r.Count() == 450);
  r.RequireValid(r.Coll());
}

TEST_CASE("A pass counts passes and sub-passes, works in turns and respects its limits", "[ttl]") {
  Reaping r;
  r.parameters.monitor_mode = 1;
  r.parameters.index_delete_target_docs = 10;
  auto a = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})", "a");
  auto b = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})", "b");
  for (int64_t i = 0; i < 35; ++i) REQUIRE(r.Insert(*a, r.Doc(i, kStart - 1)));
  for (int64_t i = 0; i < 5; ++i) REQUIRE(r.Insert(*b, r.Doc(i, kStart - 1)));
  r.Start();
  r.monitor->Settle();
  CHECK(r.Count("a") == 35);
  r.monitor->RunPass();
  CHECK(r.Count("a") == 0);
  CHECK(r.Count("b") == 0);
  CHECK(r.metrics.passes == 1);
  CHECK(r.metrics.sub_passes == 1);
  CHECK(r.batched.docs == 40);
  CHECK(r.batched.batches >= 5);

  // With no time for a sub-pass each rule is visited once in it, and a new one begins at once.
  r.parameters.sub_pass_target_secs = 0;
  for (int64_t i = 0; i < 35; ++i) REQUIRE(r.Insert(*a, r.Doc(i, kStart - 1)));
  r.monitor->RunPass();
  CHECK(r.Count("a") == 0);
  CHECK(r.metrics.passes == 2);
  CHECK(r.metrics.sub_passes == 5);
}

TEST_CASE("Passes come by themselves every ttlMonitorSleepSecs of the clock", "[ttl]") {
  Reaping r;
  r.parameters.monitor_mode = 1;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  r.Start();
  REQUIRE(r.Insert(*c, r.Doc(1, kStart)));
  r.clock.Advance(59'000);
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  r.clock.Advance(1'000);
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(r.metrics.passes == 1);
  // A shorter sleep acts at once.
  REQUIRE(r.Insert(*c, r.Doc(2, kStart)));
  r.parameters.monitor_sleep_secs = 5;
  r.clock.Advance(5'000);
  r.monitor->Settle();
  r.clock.Advance(5'000);
  r.monitor->Settle();
  CHECK(r.Count() == 0);
}

TEST_CASE("Nothing is deleted while the monitor is off, and everything once it is on", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  r.parameters.monitor_enabled = false;
  r.Start();
  for (int64_t i = 0; i < 200; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - i)));
  r.clock.Advance(3'600'000);
  r.monitor->RunPass();
  r.monitor->Settle();
  CHECK(r.Count() == 200);
  r.parameters.monitor_enabled = true;
  r.monitor->Settle();
  CHECK(r.Count() == 0);
}

TEST_CASE("A lowered expireAfterSeconds acts at once, a raised one spares", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 100})");
  r.Start();
  for (int64_t i = 0; i < 10; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 90'000 + i * 10'000)));
  auto set = [&](int32_t seconds) {
    REQUIRE(r.catalog().ModifyIndex(*r.op, *r.Coll(), "at_1", [&](IndexInfo& i) -> Result<void> {
      i.expire_after_seconds = seconds;
      return Ok();
    }));
    r.monitor->Settle();
  };
  CHECK(r.Count() == 10);
  set(50);
  CHECK(r.Count() == 5);
  set(1000);
  REQUIRE(r.Insert(*r.Coll(), r.Doc(50, kStart - 60'000)));
  r.monitor->Settle();
  CHECK(r.Count() == 6);
  set(0);
  CHECK(r.Count() == 0);
}

TEST_CASE("A plain index turned TTL removes what came before", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}})");
  r.Start();
  for (int64_t i = 0; i < 10; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 5 + i)));
  REQUIRE(r.catalog().ModifyIndex(*r.op, *c, "at_1", [&](IndexInfo& i) -> Result<void> {
    i.expire_after_seconds = 0;
    return Ok();
  }));
  r.monitor->Settle();
  CHECK(r.Count() == 4);
  r.RequireValid(r.Coll());
}

TEST_CASE("A clustered collection expires by _id, not before the epoch", "[ttl]") {
  Reaping r;
  CollectionInfo def;
  def.db = "db";
  def.name = "c";
  def.kind = CollectionKind::kClustered;
  def.expire_after_seconds = 10;
  auto c = r.catalog().Create(*r.op, std::move(def)).value();
  r.Start();
  auto put = [&](int64_t at) {
    return r.Insert(*c, BuildBson([&](BsonBuilder& b) { b.Append("_id", Instant{at}); }));
  };
  for (int64_t at : {kStart - 10'000, kStart - 9'999, int64_t{0}, int64_t{-1}}) REQUIRE(put(at));
  REQUIRE(r.Insert(*c, R"({"_id": "text"})"));
  r.monitor->Settle();
  CHECK(r.Count() == 3);
  r.clock.Advance(1);
  r.monitor->Settle();
  CHECK(r.Count() == 2);
}

TEST_CASE("A special index with expireAfterSeconds is skipped, counted every pass and logged once",
          "[ttl]") {
  Reaping r;
  r.parameters.monitor_mode = 1;
  auto c = r.Make();
  IndexInfo hashed;
  hashed.key = Json(R"({"at": "hashed"})");
  hashed.fields = {{"at", false, "hashed"}};
  hashed.kind = &KindOfKey(hashed.fields);
  hashed.name = "at_hashed";
  hashed.expire_after_seconds = 0;
  REQUIRE(r.catalog().CreateIndexes(*r.op, *c, {hashed}));
  REQUIRE(r.Insert(*r.Coll(), r.Doc(1, 0)));
  r.Start();
  r.monitor->RunPass();
  r.monitor->RunPass();
  CHECK(r.metrics.invalid_index_skips == 2);
  CHECK(r.Count() == 1);
  std::lock_guard l(r.log_mutex);
  CHECK(std::count(r.logged.begin(), r.logged.end(),
                   "E TTL index cannot be processed and is skipped") == 1);
}

TEST_CASE("What the monitor's visits look at and remove is counted", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 0})");
  for (int64_t i = 0; i < 3; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - i)));
  REQUIRE(r.Insert(*c, r.Doc(3, kStart + 1000)));
  r.Start();
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  CHECK(r.metrics.deleted_documents == 3);
  CHECK(r.metrics.examined_keys == 3);
  CHECK(r.metrics.examined_documents == 3);
  CHECK(r.metrics.deleted_keys >= 3);
  const int64_t keys = r.metrics.deleted_keys, micros = r.metrics.duration_micros;
  r.monitor->RunPass();  // nothing is due: no visit
  CHECK(r.metrics.examined_keys == 3);
  CHECK(r.metrics.deleted_keys == keys);
  CHECK(r.metrics.duration_micros == micros);
}

TEST_CASE("A range delete over what was reaped takes nothing else along", "[ttl]") {
  Reaping r;
  const char* key = GENERATE("1", "-1");
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key +
                       "}, \"name\": \"i\", \"expireAfterSeconds\": 0}");
  r.parameters.batch_target_docs = 500;
  for (int64_t i = 0; i < 12'000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - i)));
  for (int64_t i = 0; i < 10; ++i) REQUIRE(r.Insert(*c, r.Doc(100'000 + i, kStart + 1 + i)));
  REQUIRE(r.Insert(*c, R"({"_id": "x", "at": "text"})"));
  REQUIRE(r.Insert(*c, R"({"_id": "y"})"));
  r.Start();
  r.monitor->Settle();
  CHECK(r.Count() == 12);
  CHECK(r.CountEntries(*r.Coll()->FindIndex("i")) == 12);
  r.RequireValid(r.Coll());
  // An entry that came in behind stops the cover.
  r.parameters.monitor_enabled = false;
  REQUIRE(r.Insert(*c, r.Doc(500'000, kStart - 7)));
  CHECK_FALSE(CoverReaped(*r.storage, *r.op, *r.Coll(), *r.Coll()->FindIndex("i"), kStart).value());
  r.RequireValid(r.Coll());
}

TEST_CASE("A dropped collection does not stop the others", "[ttl]") {
  Reaping r;
  r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})", "gone");
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  r.Start();
  REQUIRE(r.catalog().Drop(*r.op, "db", "gone"));
  REQUIRE(r.Insert(*c, r.Doc(1, 5)));
  r.monitor->Settle();
  CHECK(r.Count() == 0);
}

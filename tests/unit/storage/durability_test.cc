#include <condition_variable>
#include <thread>

#include "storage_fixture.h"

namespace mayfly {
using testing::Json;
using testing::TestCollection;
using testing::TestStore;

namespace {
std::string Doc(int i) {
  return R"({"_id": )" + std::to_string(i) + R"(, "a": )" + std::to_string(i) + "}";
}
}  // namespace

TEST_CASE("Acknowledged writes survive the death of the process, with their counters",
          "[durability]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  for (int i = 0; i < 100; ++i) REQUIRE(s.Insert(c, Doc(i)));
  REQUIRE(s.Remove(c, R"({"": 7})").value());
  s.Crash(false);
  CHECK(s.Scan(c).size() == 99);
  CHECK(s.ScanIndex(c, a).size() == 99);
  CHECK(s.Counters(c).documents == 99);
  CHECK(s.Counters(c).bytes == c.info->counters->bytes);
}

TEST_CASE("Journaled writes survive power loss, and everything before them", "[durability]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  for (int i = 0; i < 50; ++i) REQUIRE(s.Insert(c, Json(Doc(i)), {}, i % 10 == 9));
  for (int i = 50; i < 60; ++i) REQUIRE(s.Insert(c, Doc(i)));
  s.Crash(true);
  size_t n = s.Scan(c).size();
  CHECK(n >= 50);
  CHECK(s.ScanIndex(c, a).size() == n);
  CHECK(s.Counters(c).documents == static_cast<int64_t>(n));
}

TEST_CASE("A write without j:true is synced after the interval", "[durability]") {
  TestStore s(false);
  StorageOptions o = s.Options();
  o.sync_interval_ms = 1;
  s.storage = std::move(Storage::Open(o).value());
  s.storage->impl().catalog.reset();
  s.op = std::make_unique<Operation>(s.clock);
  TestCollection c;
  uint64_t syncs = s.disk->Syncs();
  REQUIRE(s.Insert(c, Doc(1)));
  while (s.disk->Syncs() == syncs) std::this_thread::yield();
  s.Crash(true);
  CHECK(s.Scan(c).size() == 1);
}

TEST_CASE("Many that wait for the journal share a sync", "[durability]") {
  TestStore s;
  TestCollection c;
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 500; ++i) docs.push_back(Json(Doc(i)));
  std::mutex m;
  std::condition_variable cv;
  size_t done = 0;
  uint64_t syncs = s.disk->Syncs();
  for (auto& d : docs) {
    WriteUnit u = s.Unit();
    REQUIRE(u.Insert(*c, d));
    s.storage->committer().Submit(std::move(u), {true}, [&](Result<void> r) {
      std::lock_guard l(m);
      if (r) ++done;
      cv.notify_one();
    });
  }
  std::unique_lock l(m);
  cv.wait(l, [&] { return done == docs.size(); });
  CHECK(s.disk->Syncs() - syncs < docs.size());
}

TEST_CASE("On a full disk writes fail and change nothing, reads go on, and writing comes back",
          "[durability]") {
  TestStore s;
  TestCollection c;
  c.AddIndex(10, R"({"a": 1})");
  for (int i = 0; i < 20; ++i) REQUIRE(s.Insert(c, Doc(i)));
  s.disk->SetFreeBytes(50);  // part of a record fits
  for (int i = 20; i < 23; ++i) {
    auto r = s.Insert(c, Doc(i));
    REQUIRE(!r);
    CHECK(r.error().code == ErrorCode::kOutOfDiskSpace);
  }
  CHECK(s.Find(c, R"({"": 3})") == R"({"_id":3,"a":3})");
  CHECK(s.Scan(c).size() == 20);
  CHECK(Storage::DocumentCount(*c) == 20);
  s.disk->SetFreeBytes({});
  Result<void> r = s.Insert(c, Doc(30));
  while (!r) {  // the store notices soon
    REQUIRE(r.error().code == ErrorCode::kOutOfDiskSpace);
    std::this_thread::yield();
    r = s.Insert(c, Doc(30));
  }
  CHECK(Storage::DocumentCount(*c) == 21);
  s.Crash(GENERATE(false, true));
  CHECK(s.Scan(c).size() >= 20);
  CHECK(s.Counters(c).documents == static_cast<int64_t>(s.Scan(c).size()));
}

TEST_CASE("After a sync that failed nothing is acknowledged", "[durability]") {
  TestStore s;
  TestCollection c;
  s.disk->FailSyncs(true);
  CHECK_FALSE(s.Insert(c, Json(Doc(1)), {}, true));
  s.disk->FailSyncs(false);
  CHECK_FALSE(s.Insert(c, Doc(2)));
  CHECK(s.Find(c, R"({"": 3})") == "none");
}

TEST_CASE("A failed batch fails every unit in it, and a multikey mark is not lost",
          "[durability]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  s.disk->SetFreeBytes(0);
  CHECK_FALSE(s.Insert(c, R"({"_id": 1, "a": [1, 2]})"));
  s.disk->SetFreeBytes({});
  Result<void> r = s.Insert(c, R"({"_id": 2, "a": [3, 4]})");
  while (!r) r = s.Insert(c, R"({"_id": 2, "a": [3, 4]})");
  PinnedValue v;
  CHECK(s.storage->kv().Get(Keyspace::kCatalog, MultikeyKey(10, 0), &v).value());
  CHECK(s.CountKeys(Keyspace::kIndexes) == 2);
}

}  // namespace mayfly

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

TEST_CASE("A batch that is told to be on disk survives power loss", "[durability]") {
  TestStore s;
  // Logs of members, the catalog and restores are written so, without the committer.
  KvStore& kv = *s.storage->impl().kv;
  const std::unique_ptr<KvBatch> batch = kv.NewBatch();
  batch->Put(Keyspace::kRecords, "some key", "some value");
  REQUIRE(kv.Write(*batch, true));
  s.Crash(true);
  PinnedValue found;
  CHECK(s.storage->impl().kv->Get(Keyspace::kRecords, "some key", &found).value());
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

TEST_CASE("A disk that fills up again and again under load loses nothing acknowledged",
          "[durability]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  std::atomic<bool> stop{false};
  std::atomic<int> done{0}, failures{0}, unexpected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Operation op(s.clock);
      for (int i = 0; !stop; ++i) {
        BsonDocument doc = BuildBson([&](BsonBuilder& b) {
          b.Append("_id", i * 3 + t);
          b.Append("a", i);
        });
        for (bool inserted = false; !inserted && !stop;) {
          WriteUnit u(*s.storage, op);
          Result<void> r = u.Insert(*c, doc);
          if (r) r = s.storage->committer().Commit(std::move(u), {i % 100 == 0});
          inserted = r.has_value();
          if (inserted)
            ++done;
          else if (r.error().code == ErrorCode::kOutOfDiskSpace)
            ++failures;
          // A journaled one may fail after it became visible: then it is there.
          else if (r.error().code == ErrorCode::kDuplicateKey)
            inserted = true;
          else
            ++unexpected;
          if (!inserted) std::this_thread::yield();
        }
      }
    });
  }
  for (int round = 0; round < 3; ++round) {
    int failed = failures;
    s.disk->SetFreeBytes(1000 + round * 3000);
    while (failures < failed + 10) std::this_thread::yield();
    s.disk->SetFreeBytes({});
    int before = done;
    while (done < before + 100) std::this_thread::yield();
  }
  stop = true;
  for (auto& t : threads) t.join();
  CHECK(unexpected == 0);
  int64_t expected = Storage::DocumentCount(*c);
  CHECK(expected >= done);
  s.Crash(false);
  CHECK(s.Scan(c).size() == static_cast<size_t>(expected));
  CHECK(s.ScanIndex(c, a).size() == static_cast<size_t>(expected));
  CHECK(s.Counters(c).documents == expected);
}

TEST_CASE(
    "An I/O error on the log: writes are refused, reads go on, a restart finds what was "
    "acknowledged",
    "[durability]") {
  TestStore s;
  TestCollection c;
  for (int i = 0; i < 20; ++i) REQUIRE(s.Insert(c, Doc(i)));
  s.disk->FailWrites(true);
  auto r = s.Insert(c, Doc(30));
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kInternalError);
  CHECK_FALSE(s.Insert(c, Json(Doc(31)), {}, true));
  CHECK(s.Find(c, R"({"": 3})") == R"({"_id":3,"a":3})");
  CHECK(s.Scan(c).size() == 20);
  s.Close();
  s.disk->FailWrites(false);
  s.Open();
  CHECK(s.Scan(c).size() == 20);
  CHECK(s.Insert(c, Doc(30)));
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

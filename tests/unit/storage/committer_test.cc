#include <condition_variable>
#include <thread>

#include "../patience.h"
#include "storage_fixture.h"

namespace mayfly {
using testing::Json;
using testing::ScratchDir;
using testing::TestCollection;
using testing::TestStore;

namespace {
BsonDocument NumberedDoc(int i) {
  return BuildBson([&](BsonBuilder& b) { b.Append("_id", i); });
}
}  // namespace

TEST_CASE("A done function may submit the next unit; many take turns as leader", "[commit]") {
  TestStore s;
  TestCollection c;
  constexpr int kChains = 4, kLength = 50;
  std::vector<BsonDocument> docs;
  for (int i = 0; i < kChains * kLength; ++i) docs.push_back(NumberedDoc(i));
  std::mutex m;
  std::condition_variable cv;
  int finished = 0, failed = 0;
  std::function<void(int)> step = [&](int i) {
    WriteUnit u = s.Unit();
    bool staged = u.Insert(*c, docs[static_cast<size_t>(i)]).has_value();
    s.storage->committer().Submit(std::move(u), {i % 7 == 0}, [&, i, staged](Result<void> r) {
      if ((i + 1) % kLength != 0) return step(i + 1);
      std::lock_guard l(m);
      ++finished;
      failed += !r || !staged;
      cv.notify_one();
    });
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kChains; ++t) threads.emplace_back([&, t] { step(t * kLength); });
  for (auto& t : threads) t.join();
  std::unique_lock l(m);
  cv.wait(l, [&] { return finished == kChains; });
  CHECK(failed == 0);
  CHECK(s.Scan(c).size() == docs.size());
  CHECK(s.Counters(c).documents == kChains * kLength);
}

TEST_CASE("Unjournaled commits are done before Submit returns when nobody else commits",
          "[commit]") {
  TestStore s;
  TestCollection c;
  BsonDocument d = NumberedDoc(1);
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, d));
  bool done = false;
  s.storage->committer().Submit(std::move(u), {}, [&](Result<void> r) { done = r.has_value(); });
  CHECK(done);
  CHECK(s.Commit(s.Unit()));  // an empty unit is fine
  CHECK(s.Commit(s.Unit(), true));
}

TEST_CASE("Large units are written by another thread than their client's, between small ones",
          "[commit]") {
  TestStore s;
  TestCollection c;
  constexpr int kThreads = 3, kEach = 8;
  std::vector<BsonDocument> docs;
  for (int i = 0; i < kThreads * kEach; ++i)
    docs.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("_id", i).Append("x", std::string(i % 2 == 0 ? size_t{2} << 20 : 10, 'x'));
    }));
  std::mutex m;
  std::condition_variable cv;
  int finished = 0, failed = 0, large_here = 0;
  auto run = [&](int t) {
    for (int i = t * kEach; i < (t + 1) * kEach; ++i) {
      WriteUnit u = s.Unit();
      const bool staged = u.Insert(*c, docs[static_cast<size_t>(i)]).has_value();
      const auto here = std::this_thread::get_id();
      s.storage->committer().Submit(
          std::move(u), {i % 5 == 0}, [&, i, staged, here](Result<void> r) {
            std::lock_guard l(m);
            ++finished;
            failed += !r || !staged;
            large_here += i % 2 == 0 && std::this_thread::get_id() == here;
            cv.notify_one();
          });
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(run, t);
  for (auto& t : threads) t.join();
  std::unique_lock l(m);
  CHECK(cv.wait_until(l, test::Deadline().at, [&] { return finished == kThreads * kEach; }));
  CHECK(failed == 0);
  CHECK(large_here == 0);
  CHECK(s.Scan(c).size() == docs.size());
}

TEST_CASE("Locks are free once the unit is visible, before its journal sync", "[commit]") {
  TestStore s;
  TestCollection c;
  BsonDocument d = NumberedDoc(1), e = Json(R"({"_id": 1, "a": 2})");
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, d));
  std::mutex m;
  std::condition_variable cv;
  bool done = false;
  s.storage->committer().Submit(std::move(u), {true}, [&](Result<void>) {
    std::lock_guard l(m);
    done = true;
    cv.notify_one();
  });
  std::string key;
  Storage::AppendRecordKey(*c, d.view().First().value, key);
  WriteUnit next = s.Unit();
  next.set_no_wait(true);
  WriteUnit::Locked locked;
  CHECK(next.LockAndRead(*c, key, &locked).value());
  std::unique_lock l(m);
  cv.wait(l, [&] { return done; });
}

TEST_CASE("A unit works with the collection as it is, not as it was when looked up", "[commit]") {
  ScratchDir dir;
  SystemClock clock;
  StorageOptions o;
  o.engine = MakeRocksEngine();
  o.path = dir.path();
  o.cache_bytes = 32 << 20;
  o.clock = &clock;
  auto storage = std::move(Storage::Open(o).value());
  Operation op(clock);
  Catalog& catalog = storage->catalog();
  CollectionInfoPtr before = catalog.GetOrCreate(op, "db", "c").value();
  IndexInfo spec;
  spec.name = "a_1";
  spec.key = Json(R"({"a": 1})");
  spec.fields.push_back({"a", false, ""});
  std::vector<IndexInfo> specs;
  specs.push_back(std::move(spec));
  REQUIRE(catalog.CreateIndexes(op, *before, std::move(specs)));
  BsonDocument d = Json(R"({"_id": 1, "a": 5})");
  {
    WriteUnit u(*storage, op);
    REQUIRE(u.Insert(*before, d));  // knows nothing of the index
    REQUIRE(storage->committer().Commit(std::move(u)));
  }
  CollectionInfoPtr now = catalog.Find("db", "c");
  auto cursor = storage->ScanIndex(now, now->FindIndex("a_1"), {});
  CHECK(cursor->Next().value());
  REQUIRE(catalog.Drop(op, "db", "c"));
  WriteUnit u(*storage, op);
  auto r = u.Insert(*before, d);
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kQueryPlanKilled);
}

}  // namespace mayfly

#include <set>
#include <thread>

#include "tests/unit/storage/storage_fixture.h"

namespace mayfly {
using testing::CodeOf;
using testing::TestCollection;
using testing::TestStore;

namespace {

BsonDocument DocWithId(int id) {
  return BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
}
std::string RecordKey(const TestCollection& c, int id) {
  std::string key;
  Storage::AppendRecordKey(*c, DocWithId(id).view().First().value, key);
  return key;
}

}  // namespace

TEST_CASE("An insert above all others is known to be one", "[write][highest]") {
  TestStore s;
  TestCollection c;
  HighestKey highest;
  auto passes = [&](int id) { return highest.Passes(s.storage->kv(), 1, RecordKey(c, id)); };
  for (int id = 0; id < 8; ++id) CHECK_FALSE(passes(id));  // not worth a look yet
  REQUIRE(s.Insert(c, DocWithId(20)));
  CHECK_FALSE(passes(19));
  CHECK_FALSE(passes(20));
  CHECK(passes(21));
  CHECK_FALSE(passes(21));
  CHECK_FALSE(passes(15));
  CHECK(passes(22));
}

TEST_CASE("What was told before the look counts, stored or not", "[write][highest]") {
  TestStore s;
  TestCollection c;
  HighestKey highest;
  for (int i = 0; i < 8; ++i) highest.Passes(s.storage->kv(), 1, RecordKey(c, 100 + i));
  CHECK_FALSE(highest.Passes(s.storage->kv(), 1, RecordKey(c, 107)));
  CHECK(highest.Passes(s.storage->kv(), 1, RecordKey(c, 108)));
}

TEST_CASE("Another collection's records are not this one's", "[write][highest]") {
  TestStore s;
  TestCollection c, other(2, "other");
  REQUIRE(s.Insert(other, DocWithId(1000)));
  for (int id = 0; id < 30; ++id) REQUIRE(s.Insert(c, DocWithId(id)));
  CHECK(CodeOf(s.Insert(other, DocWithId(1000))) == ErrorCode::kDuplicateKey);
  CHECK(CodeOf(s.Insert(c, DocWithId(29))) == ErrorCode::kDuplicateKey);
}

TEST_CASE("An _id that is there is found, in whatever order they come", "[write][highest]") {
  TestStore s;
  TestCollection c;
  std::set<int> there;
  uint32_t seed = 7;
  for (int i = 0; i < 3000; ++i) {
    seed = seed * 1664525 + 1013904223;
    // Upward with repetitions, and now and then anywhere.
    const int id = (seed >> 8) % 5 == 0 ? static_cast<int>(seed >> 12) % 2000 : i;
    const ErrorCode expected = there.insert(id).second ? ErrorCode::kOk : ErrorCode::kDuplicateKey;
    REQUIRE(CodeOf(s.Insert(c, DocWithId(id))) == expected);
    if (i % 1000 == 999) {
      s.Close();
      s.Open();
    }
    if (i % 7 == 0 && there.erase(i / 2))
      REQUIRE(s.Remove(c, "{\"\": " + std::to_string(i / 2) + "}").value());
  }
  CHECK(s.Scan(c).size() == there.size());
}

TEST_CASE("One unit meets its own insert", "[write][highest]") {
  TestStore s;
  TestCollection c;
  for (int id = 0; id < 20; ++id) REQUIRE(s.Insert(c, DocWithId(id)));
  const BsonDocument doc = DocWithId(20);
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, doc));
  CHECK(CodeOf(u.Insert(*c, doc)) == ErrorCode::kDuplicateKey);
}

TEST_CASE("An insert that was given up is none", "[write][highest]") {
  TestStore s;
  TestCollection c;
  for (int id = 0; id < 20; ++id) REQUIRE(s.Insert(c, DocWithId(id)));
  {
    const BsonDocument doc = DocWithId(50);
    WriteUnit u = s.Unit();
    REQUIRE(u.Insert(*c, doc));
  }
  REQUIRE(s.Insert(c, DocWithId(50)));
  CHECK(CodeOf(s.Insert(c, DocWithId(50))) == ErrorCode::kDuplicateKey);
}

TEST_CASE("Deleted records at the end do not hold up a look for long", "[write][highest]") {
  TestStore s;
  TestCollection c;
  for (int id = 0; id < 2500; ++id) REQUIRE(s.Insert(c, DocWithId(id)));
  for (int id = 1; id < 2500; ++id)
    REQUIRE(s.Remove(c, "{\"\": " + std::to_string(id) + "}").value());
  HighestKey highest;
  for (int i = 0; i < 9; ++i)
    CHECK_FALSE(highest.Passes(s.storage->kv(), 1, RecordKey(c, 5000 + i)));
  CHECK_FALSE(highest.Passes(s.storage->kv(), 1, RecordKey(c, 5100)));  // nobody knows
}

TEST_CASE("Threads that insert the same growing ids: each is taken once",
          "[write][highest][concurrency]") {
  TestStore s;
  TestCollection c;
  constexpr int kIds = 2000;
  std::atomic<int> inserted{0}, unexpected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      Operation op(s.clock);
      for (int id = 0; id < kIds;) {
        const BsonDocument doc = DocWithId(id);
        WriteUnit u(*s.storage, op);
        Result<void> r = u.Insert(*c, doc);
        if (r) r = s.storage->committer().Commit(std::move(u), {});
        if (CodeOf(r) == ErrorCode::kWriteConflict) continue;
        if (r) ++inserted;
        if (!r && CodeOf(r) != ErrorCode::kDuplicateKey) ++unexpected;
        ++id;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(unexpected == 0);
  CHECK(inserted == kIds);
  CHECK(s.Counters(c).documents == kIds);
}

}  // namespace mayfly

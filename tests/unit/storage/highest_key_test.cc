#include <set>
#include <thread>

#include "storage_fixture.h"

namespace mayfly {
using testing::TestCollection;
using testing::TestStore;

namespace {

BsonDocument Doc(int id) {
  return BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
}
ErrorCode Code(const Result<void>& r) { return r ? ErrorCode::kOk : r.error().code; }
std::string Key(const TestCollection& c, int id) {
  std::string key;
  Storage::AppendRecordKey(*c, Doc(id).view().First().value, key);
  return key;
}

}  // namespace

TEST_CASE("An insert above all others is known to be one", "[write][highest]") {
  TestStore s;
  TestCollection c;
  HighestKey highest;
  auto passes = [&](int id) { return highest.Passes(s.storage->kv(), 1, Key(c, id)); };
  for (int id = 0; id < 8; ++id) CHECK_FALSE(passes(id));  // not worth a look yet
  REQUIRE(s.Insert(c, Doc(20)));
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
  for (int i = 0; i < 8; ++i) highest.Passes(s.storage->kv(), 1, Key(c, 100 + i));
  CHECK_FALSE(highest.Passes(s.storage->kv(), 1, Key(c, 107)));
  CHECK(highest.Passes(s.storage->kv(), 1, Key(c, 108)));
}

TEST_CASE("Another collection's records are not this one's", "[write][highest]") {
  TestStore s;
  TestCollection c, other(2, "other");
  REQUIRE(s.Insert(other, Doc(1000)));
  for (int id = 0; id < 30; ++id) REQUIRE(s.Insert(c, Doc(id)));
  CHECK(Code(s.Insert(other, Doc(1000))) == ErrorCode::kDuplicateKey);
  CHECK(Code(s.Insert(c, Doc(29))) == ErrorCode::kDuplicateKey);
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
    REQUIRE(Code(s.Insert(c, Doc(id))) == expected);
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
  for (int id = 0; id < 20; ++id) REQUIRE(s.Insert(c, Doc(id)));
  const BsonDocument doc = Doc(20);
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, doc));
  CHECK(Code(u.Insert(*c, doc)) == ErrorCode::kDuplicateKey);
}

TEST_CASE("An insert that was given up is none", "[write][highest]") {
  TestStore s;
  TestCollection c;
  for (int id = 0; id < 20; ++id) REQUIRE(s.Insert(c, Doc(id)));
  {
    const BsonDocument doc = Doc(50);
    WriteUnit u = s.Unit();
    REQUIRE(u.Insert(*c, doc));
  }
  REQUIRE(s.Insert(c, Doc(50)));
  CHECK(Code(s.Insert(c, Doc(50))) == ErrorCode::kDuplicateKey);
}

TEST_CASE("Deleted records at the end do not hold up a look for long", "[write][highest]") {
  TestStore s;
  TestCollection c;
  for (int id = 0; id < 2500; ++id) REQUIRE(s.Insert(c, Doc(id)));
  for (int id = 1; id < 2500; ++id)
    REQUIRE(s.Remove(c, "{\"\": " + std::to_string(id) + "}").value());
  HighestKey highest;
  for (int i = 0; i < 9; ++i) CHECK_FALSE(highest.Passes(s.storage->kv(), 1, Key(c, 5000 + i)));
  CHECK_FALSE(highest.Passes(s.storage->kv(), 1, Key(c, 5100)));  // nobody knows
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
        const BsonDocument doc = Doc(id);
        WriteUnit u(*s.storage, op);
        Result<void> r = u.Insert(*c, doc);
        if (r) r = s.storage->committer().Commit(std::move(u), {});
        if (Code(r) == ErrorCode::kWriteConflict) continue;
        if (r) ++inserted;
        if (!r && Code(r) != ErrorCode::kDuplicateKey) ++unexpected;
        ++id;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(unexpected == 0);
  CHECK(inserted == kIds);
  CHECK(s.Counters(c).documents == kIds);
}

}  // namespace mayfly

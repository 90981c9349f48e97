#include "storage/write/shift_deadlines.h"

#include <catch2/catch.hpp>

#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

/// The deadline of the document, by its record; and whether the queue has exactly that entry.
std::optional<Instant> DeadlineOf(CatalogStore& s, const CollectionInfo& c, std::string_view id) {
  Storage::Record r;
  const BsonDocument doc = Json(id);
  REQUIRE(s.storage->FindById(c, doc.view().First().value, &r).value());
  return r.expire_at;
}
std::vector<int64_t> Queue(CatalogStore& s, const CollectionInfo& c) {
  std::vector<int64_t> out;
  KvIterOptions o;
  o.lower = DeadlinePrefix(c.id);
  o.upper = DeadlinePrefixEnd(c.id);
  auto it = s.storage->kv().NewIterator(Keyspace::kExpiry, std::move(o));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    uint32_t collection = 0;
    Instant deadline;
    std::string_view id;
    REQUIRE(DecodeDeadlineKey(it->key(), &collection, &deadline, &id));
    out.push_back(deadline.millis);
  }
  return out;
}

}  // namespace

TEST_CASE("Deadlines are moved in records and queues, each once", "[storage]") {
  CatalogStore s;
  const CollectionInfoPtr a = s.Make("a"), b = s.Make("b");
  for (int i = 0; i < 500; ++i)
    REQUIRE(
        s.Insert(*a, R"({"_id": )" + std::to_string(i) + R"(, "pad": "x"})", Instant{1000 + i}));
  REQUIRE(s.Insert(*b, R"({"_id": 1})", Instant{-5}));
  REQUIRE(s.Insert(*b, R"({"_id": 2})", Instant{INT64_MAX - 10}));
  REQUIRE(s.Insert(*b, R"({"_id": 3, "v": 4})"));
  int steps = 0;
  // Less than the distance between the first and the last: entries that were moved lie among those
  // that are still to be.
  auto moved = ShiftDeadlines(s.storage->kv(), 100, [&] {
    ++steps;
    return Result<void>(Ok());
  });
  REQUIRE(moved);
  CHECK(moved.value() == 502);
  s.Open();
  const CollectionInfoPtr a2 = s.Coll("a"), b2 = s.Coll("b");
  std::vector<int64_t> want;
  for (int i = 0; i < 500; ++i) want.push_back(1100 + i);
  CHECK(Queue(s, *a2) == want);
  CHECK(Queue(s, *b2) == std::vector<int64_t>{95, INT64_MAX});
  CHECK(DeadlineOf(s, *a2, R"({"_id": 7})") == Instant{1107});
  CHECK(DeadlineOf(s, *b2, R"({"_id": 2})") == Instant{INT64_MAX});
  CHECK_FALSE(DeadlineOf(s, *b2, R"({"_id": 3})"));
  CHECK(Storage::DocumentCount(*a2) == 500);
}

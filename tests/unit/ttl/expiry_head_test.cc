#include "storage/expiry/expiry_head.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "protocol/value.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"
#include "storage/kv/rocks_fault_env.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"
#include "tests/unit/ttl/reaping_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

/// What a scan of the index gives, in scan order: record keys. `max_skipped`: fails rather than
/// walk over more deleted entries.
Result<std::vector<std::string>> Scan(Reaping& r, const CollectionInfoPtr& c,
                                      const IndexInfoPtr& index, bool backward,
                                      KvSnapshotPtr snapshot = nullptr, size_t max_skipped = 0,
                                      size_t limit = SIZE_MAX) {
  std::vector<std::string> out;
  IndexScan scan;
  scan.view = std::move(snapshot);
  scan.backward = backward;
  scan.max_skipped = max_skipped;
  auto cursor = r.storage->ScanIndex(c, index, std::move(scan));
  while (out.size() < limit) {
    MAYFLY_TRY(bool more, cursor->Next());
    if (!more) break;
    out.emplace_back(cursor->record_key());
  }
  return out;
}

/// The same without knowing anything of heads.
std::vector<std::string> Plain(Reaping& r, const CollectionInfoPtr& c, const IndexInfo& index,
                               bool backward, KvSnapshotPtr snapshot = nullptr) {
  KvIterOptions o;
  o.snapshot = std::move(snapshot);
  o.lower = IdPrefix(index.id);
  o.upper = IdPrefixEnd(index.id);
  auto it = r.storage->kv().NewIterator(index.keyspace, std::move(o));
  std::vector<std::string> out;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const std::string_view rest = it->key().substr(kIdPrefixSize);
    out.push_back(IdPrefix(c->id) +
                  std::string(rest.substr(EncodedValueLength(rest, index.fields[0].descending))));
  }
  if (backward) std::reverse(out.begin(), out.end());
  return out;
}

constexpr size_t kFew = 50;

}  // namespace

TEST_CASE("The first look behind what was reaped reads the block with the entry and no other",
          "[ttl]") {
  std::unique_ptr<FaultDisk> disk = FaultDisk::Make();
  Reaping r;
  r.storage.reset();
  ScratchDir elsewhere;
  r.Open(elsewhere.path(), disk->env());
  const char* key = GENERATE("1", "-1");
  CAPTURE(key);
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key + "}, \"expireAfterSeconds\": 0}");
  for (int64_t i = 0; i < 10'000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 10'000 + i)));
  REQUIRE(r.Insert(*c, r.Doc(20'000, kStart + 1000)));
  REQUIRE(r.storage->kv().Flush());  // in files, of which nothing is in the cache
  r.Start();
  r.monitor->Settle();
  REQUIRE(r.Count() == 1);
  REQUIRE(r.storage->kv().Flush());
  c = r.Coll();
  const uint64_t before = disk->ReadsHere();
  REQUIRE(Scan(r, c, c->indexes[0], key[0] == '-', nullptr, kFew, 1).value().size() == 1);
  // Backward the store must look into the block before the end of what is there besides dates.
  CHECK(disk->ReadsHere() - before <= (key[0] == '-' ? 2 : 1));
  r.Stop();
  r.storage.reset();
}

TEST_CASE("The head of an index is reached without a step for each document that was reaped",
          "[ttl]") {
  Reaping r;
  const char* key = GENERATE("1", "-1");
  CAPTURE(key);
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key + "}, \"expireAfterSeconds\": 0}");
  for (int64_t i = 0; i < 3000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 10'000 + i)));
  REQUIRE(r.Insert(*c, r.Doc(5000, kStart + 1000)));
  REQUIRE(r.Insert(*c, R"({"_id": 5001})"));  // null, on the other side of what goes
  IndexInfoPtr index = c->indexes[0];
  // Two that stand on an entry that goes: the first they have returned stays.
  std::unique_ptr<IndexCursor> standing[2];
  for (bool backward : {false, true}) {
    IndexScan scan;
    scan.backward = backward;
    auto& cursor = standing[backward] = r.storage->ScanIndex(c, index, std::move(scan));
    REQUIRE(cursor->Next().value());
    REQUIRE(cursor->Next().value());
  }
  r.Start();
  r.monitor->Settle();
  REQUIRE(r.Count() == 2);
  c = r.Coll();
  for (auto& cursor : standing) {
    cursor->Reposition(nullptr);
    int rest = 0;
    while (cursor->Next().value()) ++rest;
    CHECK(rest == 1);
  }
  for (bool backward : {false, true}) {
    auto seen = Scan(r, c, index, backward, nullptr, kFew);
    REQUIRE(seen);
    CHECK(seen.value() == Plain(r, c, *index, backward));
    CHECK(seen.value().size() == 2);
  }
  // What comes in behind the head is there again.
  r.parameters.monitor_enabled = false;
  REQUIRE(r.Insert(*c, r.Doc(6000, kStart - 9'999)));
  REQUIRE(r.Insert(*c, r.Doc(6001, kStart - 20'000)));
  for (bool backward : {false, true})
    CHECK(Scan(r, c, index, backward).value() == Plain(r, c, *index, backward));
  CHECK(Scan(r, c, index, false).value().size() == 4);
  r.RequireValid(r.Coll());
}

TEST_CASE("All due in one instant: the head follows within it", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  for (int64_t i = 0; i < 3000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart)));
  r.parameters.max_docs_per_second = 1000;  // it stops in the middle
  r.Start();
  r.monitor->Settle();
  r.clock.Advance(1000);
  r.monitor->Settle();
  const int64_t left = r.Count();
  REQUIRE(left > 0);
  REQUIRE(left < 3000);
  c = r.Coll();
  auto seen = Scan(r, c, c->indexes[0], false, nullptr, kFew, 10);
  REQUIRE(seen);
  CHECK(seen.value().size() == 10);
  CHECK(Scan(r, c, c->indexes[0], false).value() == Plain(r, c, *c->indexes[0], false));
}

TEST_CASE("After a start the reaper finds the head again", "[ttl]") {
  Reaping r;
  const char* key = GENERATE("1", "-1");
  auto c = r.WithIndex(std::string("{\"key\": {\"at\": ") + key + "}, \"expireAfterSeconds\": 0}");
  for (int64_t i = 0; i < 3000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 10'000 + i)));
  REQUIRE(r.Insert(*c, r.Doc(5000, kStart + 1000)));
  r.Start();
  r.monitor->Settle();
  REQUIRE(r.Count() == 1);
  r.Stop();
  r.Open();
  c = r.Coll();
  CHECK_FALSE(Scan(r, c, c->indexes[0], *key == '-', nullptr, kFew));
  r.Start();
  r.monitor->Settle();
  auto seen = Scan(r, c, c->indexes[0], *key == '-', nullptr, kFew);
  REQUIRE(seen);
  CHECK(seen.value().size() == 1);
  REQUIRE(r.Insert(*c, r.Doc(6000, kStart - 20'000)));
  CHECK(Scan(r, c, c->indexes[0], false).value() == Plain(r, c, *c->indexes[0], false));
  r.monitor->Settle();
  CHECK(r.Count() == 1);
}

TEST_CASE("A snapshot from before sees what has been reaped since", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  for (int64_t i = 0; i < 500; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 1000 + i)));
  REQUIRE(r.Insert(*c, R"({"_id": "own"})", Instant{kStart}));
  KvSnapshotPtr before = r.storage->kv().Snapshot();
  r.Start();
  r.monitor->Settle();
  REQUIRE(r.Count() == 0);
  c = r.Coll();
  // Nothing that is left can be hidden; of what the snapshot has nothing is known.
  CHECK_FALSE(Visibility(*r.storage, *c, {kStart}).MayHide());
  CHECK(Visibility(*r.storage, *c, {kStart}, false, *ReadPoint::Take(*r.storage, 0)->View())
            .MayHide());
  CHECK(Scan(r, c, c->indexes[0], false, before).value().size() == 501);
  CHECK(Scan(r, c, c->indexes[0], false).value().empty());
}

TEST_CASE("A held document is not behind the head", "[ttl]") {
  struct Policy : ExpiryPolicy {
    bool Held(const CollectionInfo&, BsonView doc, Instant) const override {
      return doc["_id"].NumberAsInt64() == 7;
    }
    bool HasHolds() const override { return true; }
  };
  Reaping r;
  r.storage->set_expiry_policy(std::make_unique<Policy>());
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  for (int64_t i = 0; i < 500; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 1000 + i)));
  r.Start();
  r.monitor->Settle();
  REQUIRE(r.Count() == 1);
  c = r.Coll();
  CHECK(Scan(r, c, c->indexes[0], false).value().size() == 1);
  // Should the hold end by its date, readers look before the reaper does.
  CHECK(c->indexes[0]->expiry->Earliest() <= kStart - 1000 + 7);
}

TEST_CASE("The records of a clustered collection have such a head too", "[ttl]") {
  Reaping r;
  CollectionInfo wanted;
  wanted.db = "db";
  wanted.name = "c";
  wanted.kind = CollectionKind::kClustered;
  wanted.expire_after_seconds = 0;
  auto c = r.catalog().Create(*r.op, wanted).value();
  auto doc = [](int64_t at) {
    return BuildBson([&](BsonBuilder& b) { b.Append("_id", Instant{at}); });
  };
  for (int64_t i = 0; i < 2000; ++i) REQUIRE(r.Insert(*c, doc(kStart - 5000 + i)));
  REQUIRE(r.Insert(*c, doc(kStart + 1)));
  REQUIRE(r.Insert(*c, doc(-5)));  // before the epoch: stays
  r.Start();
  r.monitor->Settle();
  REQUIRE(r.Count() == 2);
  c = r.Coll();
  for (bool backward : {false, true}) {
    RecordScan scan;
    scan.backward = backward;
    scan.max_skipped = kFew;
    auto cursor = r.storage->ScanRecords(c, std::move(scan));
    CHECK(cursor->Next().value());
    CHECK(cursor->doc()["_id"].Date().millis == (backward ? kStart + 1 : -5));
    CHECK(cursor->Next().value());
    CHECK_FALSE(cursor->Next().value());
  }
}

TEST_CASE("Whatever comes in while the reaper works, a scan shows what its snapshot has", "[ttl]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  r.clock.Freeze(false);
  r.Start();
  std::atomic<int> writing{2};
  std::atomic<int64_t> next_id{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w) {
    writers.emplace_back([&, w] {
      std::mt19937_64 random(static_cast<uint64_t>(w) + 1);
      Operation op(r.clock);
      for (int i = 0; i < 4000; ++i) {
        const int64_t at = kStart - 1'000'000 + static_cast<int64_t>(random() % 1'002'000);
        BsonDocument d = r.Doc(++next_id, at);
        WriteUnit unit(*r.storage, op);
        if (!unit.Insert(*c, d)) continue;
        (void)r.storage->committer().Commit(std::move(unit));
      }
      --writing;
    });
  }
  auto coll = r.Coll();
  IndexInfoPtr index = coll->indexes[0];
  size_t heads = 0;
  int differs = -1;
  for (int i = 0; writing > 0 || i < 20; ++i) {
    KvSnapshotPtr snapshot = r.storage->kv().Snapshot();
    const bool backward = i % 2 != 0;
    auto seen = Scan(r, coll, index, backward, snapshot);
    if (!seen || seen.value() != Plain(r, coll, *index, backward, snapshot)) differs = i;
    heads += index->expiry->head.Read() != nullptr;
  }
  for (auto& t : writers) t.join();
  CHECK(differs == -1);
  CHECK(heads > 0);
}

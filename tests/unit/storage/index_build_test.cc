#include <random>
#include <thread>

#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

BsonDocument Numbered(int id, int a, bool array = false) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("_id", id).Append("a", a).Append("u", id);
    if (array)
      b.OpenArray("m").Append(a).Append(a + 1).Append(id);
    else
      b.Append("m", a);
  });
}

void Fill(CatalogStore& s, CollectionInfoPtr c, int n) {
  for (int at = 0; at < n;) {
    std::vector<BsonDocument> docs;
    for (int i = 0; i < 500 && at < n; ++i, ++at)
      docs.push_back(Numbered(at, at % 97, at % 10 == 0));
    WriteUnit u(*s.storage, *s.op);
    for (auto& d : docs) REQUIRE(u.Insert(*c, d));
    REQUIRE(s.storage->committer().Commit(std::move(u)));
  }
}

/// The filter of a partial index on all documents with `a`; calls a function at the n-th document
/// it sees, from inside the build's scan.
class HookFilter final : public RecordFilter {
 public:
  HookFilter(int at, std::function<void()> f) : at_(at), f_(std::move(f)) {}
  bool Matches(BsonView doc) const override {
    if (++seen_ == at_) f_();
    return doc.Has("a");
  }

 private:
  const int at_;
  const std::function<void()> f_;
  mutable std::atomic<int> seen_{0};
};

IndexInfo HookedSpec(int at, std::function<void()> f, bool unique = false) {
  IndexInfo i = Spec(
      unique ? R"({"key":{"u":1},"unique":true,"partialFilterExpression":{"a":{"$exists":true}}})"
             : R"({"key":{"m":1},"partialFilterExpression":{"a":{"$exists":true}}})");
  i.filter = std::make_shared<HookFilter>(at, std::move(f));
  return i;
}

}  // namespace

TEST_CASE("A build stopped half-way goes on behind what it has covered", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 3000);
  Operation op(s.clock);
  auto stop = [&] { op.kill_code = static_cast<int32_t>(ErrorCode::kInterruptedAtShutdown); };
  CHECK(CodeOf(s.catalog().CreateIndexes(op, *c,
                                         {HookedSpec(1500, stop), Spec(R"({"key":{"a":1}})")})) ==
        ErrorCode::kInterruptedAtShutdown);
  REQUIRE(s.CountRows(kBuildPrefix) == 1);
  size_t done = s.CountEntries(*s.Coll()->FindIndex("a_1"));
  CHECK(done >= 1200);
  CHECK(done < 3000);
  // Behind and before the position, and a new one.
  for (int id : {1, 2999}) REQUIRE(s.Change(*c, Numbered(id, 1000), false).value());
  REQUIRE(s.Change(*c, Numbered(2, 0), true).value());
  REQUIRE(s.Insert(*c, Numbered(-5, 1001, true)));
  std::string killed = s.CopyAsKilled();
  s.Open(killed);
  while (!s.catalog().Builds().empty()) std::this_thread::yield();
  for (auto& i : s.Coll()->indexes) CHECK(i->state == IndexState::kReady);
  CHECK(s.CountEntries(*s.Coll()->FindIndex("a_1")) == 3000);
  CHECK(s.CountRows(kBuildPrefix) == 0);
  s.RequireValid(s.Coll());
  s.storage.reset();
  std::filesystem::remove_all(killed);
}

TEST_CASE("A duplicate that a writer makes during the build fails the build", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 2000);
  ErrorCode inserted{1};
  auto r =
      s.catalog().CreateIndexes(*s.op, *c,
                                {HookedSpec(
                                    10,
                                    [&] {
                                      inserted = CodeOf(s.Insert(*c, BuildBson([](BsonBuilder& b) {
                                        b.Append("_id", -1).Append("a", 1).Append("u", 1900);
                                      })));
                                    },
                                    true)});
  CHECK(inserted == ErrorCode{});
  CHECK(CodeOf(r) == ErrorCode::kDuplicateKey);
  CHECK(s.Coll()->indexes.empty());
  s.RequireValid(s.Coll());
}

TEST_CASE("A writer's duplicate of what the build has covered is refused", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 2000);
  ErrorCode inserted{1};
  auto r = s.catalog().CreateIndexes(*s.op, *c,
                                     {HookedSpec(
                                         1000,
                                         [&] {
                                           inserted =
                                               CodeOf(s.Insert(*c, BuildBson([](BsonBuilder& b) {
                                                 b.Append("_id", -1).Append("a", 1).Append("u", 5);
                                               })));
                                         },
                                         true)});
  CHECK(inserted == ErrorCode::kDuplicateKey);
  CHECK(r);
  CHECK(s.Coll()->counters->documents == 2000);
  s.RequireValid(s.Coll());
}

TEST_CASE("Dropping the collection or the index ends its build", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 3000);
  const bool whole = GENERATE(true, false);
  std::thread dropper;
  Result<void> dropped = Ok();
  auto r = s.catalog().CreateIndexes(*s.op, *c, {HookedSpec(1, [&] {
    std::atomic<bool> started{false};
    dropper = std::thread([&] {
      Operation op(s.clock);
      started = true;
      dropped = whole ? s.catalog().Drop(op, "db", "c") : s.catalog().DropIndexes(op, *c, {"m_1"});
    });
    while (!started) std::this_thread::yield();
  })});
  dropper.join();
  CHECK(dropped);
  CHECK(CodeOf(r) == ErrorCode::kIndexBuildAborted);
  CHECK(s.catalog().Builds().empty());
  if (whole) {
    CHECK(s.Coll() == nullptr);
  } else {
    CHECK(s.Coll()->indexes.empty());
    s.RequireValid(s.Coll());
  }
  s.storage->impl().catalog->WaitForGarbage();
  CHECK(s.CountRows(kGarbagePrefix) == 0);
  CHECK(s.CountRows(kBuildPrefix) == 0);
}

TEST_CASE("Indexes built together on a filled collection agree with its documents",
          "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 3000);
  REQUIRE(s.catalog().CreateIndexes(
      *s.op, *c,
      {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"u":-1},"unique":true})"),
       Spec(R"({"key":{"m":1,"a":-1}})"), Spec(R"({"key":{"x":1},"sparse":true})"),
       Spec(R"({"key":{"a":1},"name":"p","partialFilterExpression":{"a":5}})")}));
  c = s.Coll();
  REQUIRE(c->indexes.size() == 5);
  for (auto& i : c->indexes) CHECK(i->state == IndexState::kReady);
  CHECK(s.CountEntries(*c->FindIndex("a_1")) == 3000);
  CHECK(s.CountEntries(*c->FindIndex("u_-1")) == 3000);
  CHECK(s.CountEntries(*c->FindIndex("x_1")) == 0);
  CHECK(s.CountEntries(*c->FindIndex("p")) == 31);
  CHECK(c->FindIndex("m_1_a_-1")->multikey == 1);
  CHECK_FALSE(c->FindIndex("a_1")->is_multikey());
  CHECK(s.catalog().Builds().empty());
  CHECK(s.CountRows(kBuildPrefix) == 0);
  s.RequireValid(c);
  s.Open();
  s.RequireValid(s.Coll());
  CHECK(s.Coll()->FindIndex("m_1_a_-1")->multikey == 1);
}

TEST_CASE("A build commits keys that are much larger than their documents in several units",
          "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  // 600 kB of documents with 40 MB of keys: every element is stored with the long text.
  for (int id = 0; id < 100; ++id) {
    REQUIRE(s.Insert(*c, BuildBson([&](BsonBuilder& b) {
      b.Append("_id", id).Append("a", 1).Append("s", std::string(2000, 's'));
      auto m = b.OpenArray("m");
      for (int i = 0; i < 200; ++i) m.Append(i);
    })));
  }
  size_t committed = 0;
  IndexInfo large = Spec(R"({"key":{"m":1,"s":1},"partialFilterExpression":{"a":1}})");
  large.filter = std::make_shared<HookFilter>(
      90, [&] { committed = s.CountEntries(*s.Coll()->FindIndex("m_1_s_1")); });
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c, {std::move(large), Spec(R"({"key":{"a":1}})")}));
  CHECK(committed >= 40 * 200);
  CHECK(committed < 90 * 200);
  CHECK(s.CountEntries(*s.Coll()->FindIndex("m_1_s_1")) == 100 * 200);
  CHECK(s.CountEntries(*s.Coll()->FindIndex("a_1")) == 100);
  s.RequireValid(s.Coll());
}

TEST_CASE("A build under concurrent writes ends with an index that agrees", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 4000);
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0}, writes{0};
  std::vector<std::thread> writers;
  for (int t = 0; t < 3; ++t) {
    writers.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int n = 0; !stop; ++n) {
        int id = static_cast<int>(rng() % 6000);
        // Writers keep to ids of their own, so that none of them fails by the others' doing.
        id = id / 3 * 3 + t;
        BsonDocument doc = Numbered(id, static_cast<int>(rng() % 50), rng() % 5 == 0);
        auto changed = s.Change(*c, doc, rng() % 4 == 0);
        if (!changed)
          ++failures;
        else if (!changed.value() && !s.Insert(*c, doc))
          ++failures;
        ++writes;
      }
    });
  }
  while (writes < 50) std::this_thread::yield();
  for (int round = 0; round < 3; ++round) {
    auto built = s.catalog().CreateIndexes(
        *s.op, *c,
        {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"u":1},"unique":true})"),
         Spec(R"({"key":{"m":-1}})")});
    if (!built) WARN(built.error().message);
    CHECK(built);
    if (round < 2) CHECK(s.catalog().DropIndexes(*s.op, *c, {"a_1", "u_1", "m_-1"}));
  }
  int before = writes;
  while (writes < before + 100) std::this_thread::yield();
  stop = true;
  for (auto& w : writers) w.join();
  CHECK(failures == 0);
  REQUIRE(s.Coll()->indexes.size() == 3);
  s.RequireValid(s.Coll());
}

TEST_CASE("A duplicate fails the whole build and leaves nothing", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 1000);
  auto r = s.catalog().CreateIndexes(
      *s.op, *c, {Spec(R"({"key":{"m":1}})"), Spec(R"({"key":{"a":1},"unique":true})")});
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kDuplicateKey);
  CHECK(r.error().message.find(
            "E11000 duplicate key error collection: db.c index: a_1 dup key: { a: ") !=
        std::string::npos);
  CHECK(BsonView(r.error().details)["keyPattern"].Document().Has("a"));
  CHECK(s.Coll()->indexes.empty());
  CHECK(s.catalog().Builds().empty());
  s.storage->impl().catalog->WaitForGarbage();
  auto it = s.storage->kv().NewIterator(Keyspace::kIndexes, {});
  it->SeekToFirst();
  CHECK_FALSE(it->Valid());
  CHECK(s.CountRows(kBuildPrefix) == 0);
  CHECK(s.CountRows(kMultikeyPrefix) == 0);
  REQUIRE(s.Insert(*c, Numbered(5000, 1)));
  s.RequireValid(s.Coll());
}

TEST_CASE("Parallel arrays in a document fail the build", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "a": [1], "b": [2]})"));
  CHECK(CodeOf(s.catalog().CreateIndexes(*s.op, *c, {Spec(R"({"key":{"a":1,"b":1}})")})) ==
        ErrorCode::kCannotIndexParallelArrays);
  CHECK(s.Coll()->indexes.empty());
}

TEST_CASE("A killed build is dropped; one at shutdown resumes at the next open", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 2000);
  Operation op(s.clock);
  SECTION("killed") {
    op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    auto r = s.catalog().CreateIndexes(op, *c, {Spec(R"({"key":{"a":1}})")});
    CHECK(CodeOf(r) == ErrorCode::kInterrupted);
    CHECK(s.Coll()->indexes.empty());
  }
  SECTION("shutdown") {
    op.kill_code = static_cast<int32_t>(ErrorCode::kInterruptedAtShutdown);
    auto r =
        s.catalog().CreateIndexes(op, *c, {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"m":1}})")});
    CHECK(CodeOf(r) == ErrorCode::kInterruptedAtShutdown);
    REQUIRE(s.Coll()->indexes.size() == 2);
    CHECK(s.Coll()->FindIndex("a_1")->state == IndexState::kBuilding);
    // Writers maintain it meanwhile.
    REQUIRE(s.Insert(*c, Numbered(100'000, 7)));
    CHECK(s.CountEntries(*s.Coll()->FindIndex("a_1")) == 1);
    s.Open();
    while (!s.catalog().Builds().empty()) std::this_thread::yield();
    CHECK(s.Coll()->FindIndex("a_1")->state == IndexState::kReady);
    CHECK(s.CountEntries(*s.Coll()->FindIndex("a_1")) == 2001);
    s.RequireValid(s.Coll());
  }
}

TEST_CASE("Whatever point a crash hits a build at, it ends valid after reopening",
          "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 3000);
  std::vector<std::string> copies;
  std::thread builder([&] {
    Operation op(s.clock);
    (void)s.catalog().CreateIndexes(
        op, *c, {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"u":1},"unique":true})")});
  });
  for (int i = 0; i < 3; ++i) {
    std::string to = s.dir.path() + "-copy" + std::to_string(i);
    std::filesystem::remove_all(to);
    // A copy of a store that is written to is not a point in time; a checkpoint is.
    REQUIRE(s.storage->kv().Checkpoint(to));
    copies.push_back(to);
  }
  builder.join();
  for (auto& copy : copies) {
    s.Open(copy);
    while (!s.catalog().Builds().empty()) std::this_thread::yield();
    for (auto& i : s.Coll()->indexes) CHECK(i->state == IndexState::kReady);
    s.RequireValid(s.Coll());
    s.storage.reset();
    std::filesystem::remove_all(copy);
  }
}

TEST_CASE("Definitions that exist already, conflict, or are too many", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  auto create = [&](std::string_view spec) {
    return CodeOf(s.catalog().CreateIndexes(*s.op, *c, {Spec(spec)}));
  };
  CHECK(create(R"({"key":{"a":1}})") == ErrorCode{});
  CHECK(create(R"({"key":{"a":1}})") == ErrorCode{});
  CHECK(create(R"({"key":{"a":1.0}})") == ErrorCode{});
  CHECK(create(R"({"key":{"_id":1},"name":"_id_"})") == ErrorCode{});
  CHECK(s.Coll()->indexes.size() == 1);
  CHECK(create(R"({"key":{"a":1},"name":"other"})") == ErrorCode::kIndexOptionsConflict);
  CHECK(create(R"({"key":{"b":1},"name":"a_1"})") == ErrorCode::kIndexKeySpecsConflict);
  CHECK(create(R"({"key":{"a":1},"unique":true})") == ErrorCode::kIndexKeySpecsConflict);
  CHECK(create(R"({"key":{"a":1},"unique":true,"name":"a_unique"})") == ErrorCode{});
  CHECK(create(R"({"key":{"a":1},"expireAfterSeconds":5})") == ErrorCode::kIndexOptionsConflict);
  CHECK(create(R"({"key":{"t":1},"expireAfterSeconds":5})") == ErrorCode{});
  CHECK(create(R"({"key":{"t":1},"expireAfterSeconds":6})") == ErrorCode::kIndexOptionsConflict);
  CHECK(create(R"({"key":{"t":1}})") == ErrorCode::kIndexOptionsConflict);
  CHECK(create(R"({"key":{"h":"hashed"},"expireAfterSeconds":6})") ==
        ErrorCode{});  // known, not maintained
  for (int i = 0; s.Coll()->indexes.size() < 63; ++i)
    REQUIRE(create("{\"key\":{\"f" + std::to_string(i) + "\":1}}") == ErrorCode{});
  CHECK(create(R"({"key":{"last":1}})") == ErrorCode::kCannotCreateIndex);
  CHECK(s.catalog().DropIndexes(*s.op, *c, {"a_1"}));
  CHECK(create(R"({"key":{"last":1}})") == ErrorCode{});
  REQUIRE(s.Insert(*c, R"({"_id": 1, "h": 5, "t": 3})"));
  s.RequireValid(s.Coll());
}

TEST_CASE("Dropped indexes are gone at once, their entries soon", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 100);
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c,
                                    {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"m":1}})")}));
  CHECK(CodeOf(s.catalog().DropIndexes(*s.op, *c, {"a_1", "nope"})) == ErrorCode::kIndexNotFound);
  CHECK(s.Coll()->indexes.size() == 2);
  CHECK(CodeOf(s.catalog().DropIndexes(*s.op, *c, {"_id_"})) == ErrorCode::kInvalidOptions);
  auto m = s.Coll()->FindIndex("m_1");
  REQUIRE(s.catalog().DropIndexes(*s.op, *c, {"m_1"}));
  CHECK(s.Coll()->indexes.size() == 1);
  CHECK(s.CountRows(kMultikeyPrefix) == 0);
  s.storage->impl().catalog->WaitForGarbage();
  CHECK(s.CountEntries(*m) == 0);
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c, {Spec(R"({"key":{"m":1}})")}));
  CHECK(s.Coll()->FindIndex("m_1")->id > m->id);
  CHECK(s.Coll()->FindIndex("m_1")->is_multikey());
  s.RequireValid(s.Coll());
}

TEST_CASE("Validate finds entries that are missing, extra or wrong, and damaged records",
          "[validate]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 50);
  REQUIRE(s.catalog().CreateIndexes(
      *s.op, *c, {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"u":1},"unique":true})")}));
  REQUIRE(s.Insert(*c, Numbered(1000, 1), Instant{5000}));
  c = s.Coll();
  s.RequireValid(c);
  auto a = c->FindIndex("a_1"), u = c->FindIndex("u_1");
  auto first = [&](const IndexInfo& i) {
    KvIterOptions o;
    o.lower = IdPrefix(i.id);
    auto it = s.storage->kv().NewIterator(i.keyspace, std::move(o));
    it->SeekToFirst();
    return std::pair(std::string(it->key()), std::string(it->value()));
  };
  auto batch = s.storage->kv().NewBatch();
  int64_t missing = 0, extra = 0, corrupt = 0;
  bool records = true;
  SECTION("missing") {
    batch->Delete(a->keyspace, first(*a).first);
    missing = 1;
  }
  SECTION("extra") {
    auto [key, value] = first(*a);
    std::string other = IdPrefix(a->id);
    BsonDocument d = Json(R"({"v": 12345})");
    EncodeKeyValue(d.view()["v"], false, other);
    other += key.substr(key.size() - 2);
    batch->Put(a->keyspace, other, value);
    extra = 1;
  }
  SECTION("the entry of another record") {
    auto [key, value] = first(*u);
    std::string record_key;
    BsonDocument id = Json(R"({"_id": 7})");
    Storage::AppendRecordKey(*c, id.view()["_id"], record_key);
    std::string wrong;
    AppendUniqueIndexValue(RecordIdOf(record_key), {}, wrong);
    batch->Put(u->keyspace, key, wrong);
    missing = extra = 1;
  }
  SECTION("a damaged record") {
    std::string record_key;
    BsonDocument id = Json(R"({"_id": 7})");
    Storage::AppendRecordKey(*c, id.view()["_id"], record_key);
    batch->Put(Keyspace::kRecords, record_key, std::string("\0\x07\0\0\0\x99x", 7));
    corrupt = 1;
    extra = 2;
  }
  SECTION("a lost deadline") {
    std::string key;
    std::string record_key;
    BsonDocument id = Json(R"({"_id": 1000})");
    Storage::AppendRecordKey(*c, id.view()["_id"], record_key);
    AppendDeadlineKey(Instant{5000}, record_key, key);
    batch->Delete(Keyspace::kExpiry, key);
  }
  SECTION("a lost record") {
    std::string record_key;
    BsonDocument id = Json(R"({"_id": 7})");
    Storage::AppendRecordKey(*c, id.view()["_id"], record_key);
    batch->Delete(Keyspace::kRecords, record_key);
    extra = 2;
    records = false;
  }
  REQUIRE(s.storage->kv().Write(*batch, false));
  BsonDocument reply = s.Validate(c);
  BsonView v = reply;
  INFO(ToRelaxedJson(v));
  CHECK_FALSE(v["valid"].Bool());
  CHECK_FALSE(v["errors"].Document().empty());
  CHECK(v["missingIndexEntries"].Document().Count() == missing);
  CHECK(v["extraIndexEntries"].Document().Count() == extra);
  CHECK(v["corruptRecords"].Document().Count() == corrupt);
  CHECK(v["nInvalidDocuments"].NumberAsInt64() == corrupt);
  CHECK(v["nrecords"].NumberAsInt64() == (records ? 51 : 50));
  CHECK(v["nIndexes"].NumberAsInt64() == 3);
}

TEST_CASE("An index made unique is rebuilt in its place, or stays what it was", "[index_build]") {
  CatalogStore s;
  auto c = s.Make();
  Fill(s, c, 500);
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c,
                                    {Spec(R"({"key":{"u":1}})"), Spec(R"({"key":{"a":1}})")}));
  auto unique = [](IndexInfo& i) -> Result<void> {
    i.unique = true;
    return Ok();
  };
  uint32_t old_id = s.Coll()->FindIndex("u_1")->id;
  auto changed = s.catalog().ModifyIndex(*s.op, *c, "u_1", unique);
  REQUIRE(changed);
  REQUIRE(changed.value()->indexes.size() == 2);
  CHECK(changed.value()->indexes[0]->name == "u_1");
  CHECK(changed.value()->indexes[0]->unique);
  CHECK(changed.value()->indexes[0]->id > old_id);
  CHECK(CodeOf(s.Insert(*c, R"({"_id":-1,"u":7})")) == ErrorCode::kDuplicateKey);
  CHECK(CodeOf(s.catalog().ModifyIndex(*s.op, *c, "a_1", unique)) ==
        ErrorCode::kCannotConvertIndexToUnique);
  CHECK_FALSE(s.Coll()->FindIndex("a_1")->unique);
  CHECK(s.Coll()->indexes.size() == 2);
  s.storage->impl().catalog->WaitForGarbage();
  CHECK(s.CountPrefix(Keyspace::kIndexes, old_id) == 0);
  s.Open();
  CHECK(s.Coll()->FindIndex("u_1")->unique);
  s.RequireValid(s.Coll());
}

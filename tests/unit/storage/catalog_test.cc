#include <thread>

#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

std::string CodesOf(const std::vector<CollectionInfoPtr>& list) {
  std::string s;
  for (auto& c : list) s += (s.empty() ? "" : " ") + c->ns;
  return s;
}

}  // namespace

TEST_CASE("Collections are created once, listed sorted, and survive reopening", "[catalog]") {
  CatalogStore s;
  uint64_t version = s.catalog().Version();
  std::atomic<int> changes{0};
  s.catalog().OnChange([&] { ++changes; });
  CHECK(s.Coll() == nullptr);
  CHECK(s.catalog().Databases().empty());

  CollectionInfo definition;
  definition.db = "db";
  definition.name = "zoo";
  definition.options = Json(R"({"comment": "animals"})");
  definition.validator = Json(R"({"a": 1})");
  definition.validator_filter = CompileEqualFilter(definition.validator, false).value();
  definition.validation_warn_only = true;
  auto made = s.catalog().Create(*s.op, definition);
  REQUIRE(made);
  CHECK(made.value()->ns == "db.zoo");
  CHECK(made.value()->uuid != Uuid{});
  CHECK(CodeOf(s.catalog().Create(*s.op, definition)) == ErrorCode::kNamespaceExists);
  s.Make("a");
  CHECK(s.Make("a") == s.Coll("a"));
  CHECK(CodesOf(s.catalog().List("db")) == "db.a db.zoo");
  CHECK(s.catalog().Databases() == std::vector<std::string>{"db"});
  CHECK(s.catalog().FindByUuid(made.value()->uuid) == made.value());
  CHECK(s.catalog().Version() == version + 2);
  CHECK(changes == 2);

  CollectionInfo view;
  view.db = "db";
  view.name = "v";
  view.kind = CollectionKind::kView;
  view.view_on = "a";
  view.view_pipeline = Json(R"({"0": {"$match": {}}})");
  REQUIRE(s.catalog().Create(*s.op, view));
  CollectionInfo clustered;
  clustered.db = "db";
  clustered.name = "k";
  clustered.kind = CollectionKind::kClustered;
  clustered.clustered_index_name = "ck";
  clustered.expire_after_seconds = 5'000'000'000;
  REQUIRE(s.catalog().Create(*s.op, clustered));

  uint32_t last_id = s.Coll("k")->id;
  s.Open();
  CHECK(CodesOf(s.catalog().ListAll()) == "db.a db.k db.v db.zoo");
  auto zoo = s.Coll("zoo");
  CHECK(zoo->uuid == made.value()->uuid);
  CHECK(zoo->id == made.value()->id);
  CHECK(zoo->validation_warn_only);
  REQUIRE(zoo->validator_filter);
  CHECK(zoo->validator_filter->Matches(Json(R"({"a": 1})")));
  CHECK(ToRelaxedJson(zoo->options.view()) == ToRelaxedJson(definition.options.view()));
  CHECK(s.Coll("v")->is_view());
  CHECK(s.Coll("v")->view_on == "a");
  CHECK(s.Coll("k")->clustered_index_name == "ck");
  CHECK(s.Coll("k")->expire_after_seconds == 5'000'000'000);
  CHECK(s.Make("new")->id > last_id);  // never reused
}

TEST_CASE("Names are checked when a collection is made", "[catalog]") {
  CatalogStore s;
  s.Make("c");
  CHECK(CodeOf(s.catalog().GetOrCreate(*s.op, "d b", "c")) == ErrorCode::kInvalidNamespace);
  CHECK(CodeOf(s.catalog().GetOrCreate(*s.op, "db", "a$b")) == ErrorCode::kInvalidNamespace);
  CHECK(CodeOf(s.catalog().GetOrCreate(*s.op, "db", "system.x")) == ErrorCode::kInvalidNamespace);
  CHECK(CodeOf(s.catalog().GetOrCreate(*s.op, "DB", "c")) == LocationCode(13297));
  REQUIRE(s.catalog().DropDatabase(*s.op, "db"));
  CHECK(s.catalog().GetOrCreate(*s.op, "DB", "c"));
}

TEST_CASE("Many threads that make the same collection get the same one", "[catalog]") {
  CatalogStore s;
  std::vector<std::thread> threads;
  std::array<CollectionInfoPtr, 8> got;
  for (size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] {
      Operation op(s.clock);
      auto r = s.catalog().GetOrCreate(op, "db", "c");
      if (r) got[i] = r.value();
    });
  for (auto& t : threads) t.join();
  for (auto& g : got) {
    REQUIRE(g);
    CHECK(g->id == got[0]->id);
  }
}

TEST_CASE("A dropped collection is gone at once and its data soon after", "[catalog]") {
  CatalogStore s;
  auto c = s.Make();
  REQUIRE(s.catalog().CreateIndexes(
      *s.op, *c, {Spec(R"({"key":{"a":1}})"), Spec(R"({"key":{"t":1},"expireAfterSeconds":5})")}));
  c = s.Coll();
  const bool many = GENERATE(false, true);  // key by key, or one range
  CAPTURE(many);
  for (int i = 0; i < (many ? 2500 : 20); ++i) {
    REQUIRE(s.Insert(*c, BuildBson([&](BsonBuilder& b) {
      b.Append("_id", i).Append("a", i).Append("t", Instant{i});
    }),
                     i % 2 ? std::optional(Instant{1'000'000 + i}) : std::nullopt));
  }
  auto kept = s.Make("kept");
  REQUIRE(s.Insert(*kept, R"({"_id": 1})", Instant{77}));
  auto index = c->FindIndex("a_1");
  auto cursor = s.storage->ScanRecords(c, {});
  REQUIRE(cursor->Next().value());

  REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
  CHECK(s.Coll() == nullptr);
  CHECK(CodeOf(s.catalog().Drop(*s.op, "db", "c")) == ErrorCode::kNamespaceNotFound);
  CHECK(CodeOf(s.Insert(*c, R"({"_id": 99999})")) == ErrorCode::kQueryPlanKilled);
  s.storage->impl().catalog->WaitForGarbage();
  CHECK(s.CountPrefix(Keyspace::kRecords, c->id) == 0);
  CHECK(s.CountEntries(*index) == 0);
  CHECK(s.CountEntries(*c->FindIndex("t_1")) == 0);
  CHECK(s.CountPrefix(Keyspace::kExpiry, kDeadlineQueueId) == 1);  // of the other collection
  CHECK(s.CountRows(kGarbagePrefix) == 0);
  CHECK(s.CountRows(kCollectionPrefix) == 1);
  CHECK(s.CountRows(kCountersPrefix) == 1);
  // A reader that was under way ends, one way or the other.
  while (true) {
    auto next = cursor->Next();
    if (!next || !next.value()) break;
  }
  auto again = s.Make();
  CHECK(again->id != c->id);
  CHECK(s.Scan(again).empty());
  CHECK(again->counters->documents == 0);
}

TEST_CASE("What a drop left behind is removed at the next open", "[catalog]") {
  CatalogStore s;
  auto c = s.Make();
  for (int i = 0; i < 50; ++i)
    REQUIRE(s.Insert(*c, BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })));
  s.storage->impl().catalog->StopBackground();  // nobody removes anything
  REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
  CHECK(s.CountPrefix(Keyspace::kRecords, c->id) == 50);
  std::string killed = s.CopyAsKilled();
  s.Open(killed);
  CHECK(s.Coll() == nullptr);
  s.storage->impl().catalog->WaitForGarbage();
  CHECK(s.CountPrefix(Keyspace::kRecords, c->id) == 0);
  CHECK(s.CountRows(kGarbagePrefix) == 0);
  s.storage.reset();
  std::filesystem::remove_all(killed);
}

TEST_CASE("Dropping a database drops all it has and nothing else", "[catalog]") {
  CatalogStore s;
  for (auto* n : {"a", "b", "c"}) s.Make(n);
  REQUIRE(s.catalog().GetOrCreate(*s.op, "other", "x"));
  REQUIRE(s.catalog().DropDatabase(*s.op, "db"));
  REQUIRE(s.catalog().DropDatabase(*s.op, "never"));
  CHECK(CodesOf(s.catalog().ListAll()) == "other.x");
  s.Open();
  CHECK(CodesOf(s.catalog().ListAll()) == "other.x");
}

TEST_CASE("A rename keeps documents and indexes, also across databases and over a target",
          "[catalog]") {
  CatalogStore s;
  auto c = s.Make();
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c, {Spec(R"({"key":{"a":1}})")}));
  REQUIRE(s.Insert(*c, R"({"_id": 1, "a": [1, 2]})"));
  auto target = s.Make("target");
  REQUIRE(s.Insert(*target, R"({"_id": "old"})"));
  CHECK(CodeOf(s.catalog().Rename(*s.op, *s.Coll(), "db", "target", false)) ==
        ErrorCode::kNamespaceExists);
  CHECK(CodeOf(s.catalog().Rename(*s.op, *s.Coll(), "db", "c", false)) ==
        ErrorCode::kIllegalOperation);
  CHECK(CodeOf(s.catalog().Rename(*s.op, *s.Coll(), "db", "a$", false)) ==
        ErrorCode::kInvalidNamespace);
  REQUIRE(s.catalog().Rename(*s.op, *s.Coll(), "db", "target", true));
  CHECK(s.Coll() == nullptr);
  CHECK(s.Scan(s.Coll("target")) ==
        std::vector<std::string>{ToRelaxedJson(Json(R"({"_id":1,"a":[1,2]})").view())});
  CHECK(s.Coll("target")->FindIndex("a_1")->is_multikey());
  // Who still has the old definition writes to the collection under its new name.
  REQUIRE(s.Insert(*c, R"({"_id": 2, "a": 3})"));
  REQUIRE(s.catalog().Rename(*s.op, *s.Coll("target"), "other", "moved", false));
  CHECK(CodesOf(s.catalog().ListAll()) == "other.moved");
  s.Open();
  auto moved = s.catalog().Find("other", "moved");
  REQUIRE(moved);
  CHECK(moved->FindIndex("a_1")->is_multikey());
  CHECK(moved->counters->documents == 2);
  s.RequireValid(moved);
  s.storage->impl().catalog->WaitForGarbage();
  CHECK(s.CountPrefix(Keyspace::kRecords, target->id) == 0);
}

TEST_CASE("Modifications are seen at once and kept", "[catalog]") {
  CatalogStore s;
  auto c = s.Make();
  REQUIRE(
      s.catalog().CreateIndexes(*s.op, *c, {Spec(R"({"key":{"t":1},"expireAfterSeconds":5})")}));
  auto changed = s.catalog().ModifyIndex(*s.op, *s.Coll(), "t_1", [](IndexInfo& i) -> Result<void> {
    i.expire_after_seconds = 9;
    i.hidden = true;
    return Ok();
  });
  REQUIRE(changed);
  CHECK(s.Coll()->FindIndex("t_1")->expire_after_seconds == 9);
  CHECK(c->FindIndex("t_1") == nullptr);  // the old definition stays what it was
  auto refused = s.catalog().ModifyIndex(*s.op, *s.Coll(), "t_1", [](IndexInfo& i) -> Result<void> {
    i.expire_after_seconds = 1;
    return Error{ErrorCode::kInvalidOptions, "no"};
  });
  CHECK(CodeOf(refused) == ErrorCode::kInvalidOptions);
  CHECK(s.Coll()->FindIndex("t_1")->expire_after_seconds == 9);
  CHECK(CodeOf(s.catalog().ModifyIndex(*s.op, *s.Coll(), "none", [](IndexInfo&) {
          return Result<void>(Ok());
        })) == ErrorCode::kIndexNotFound);
  REQUIRE(s.catalog().Modify(*s.op, *s.Coll(), [](CollectionInfo& i) -> Result<void> {
    i.validator = Json(R"({"a": 1})");
    i.validator_filter = CompileEqualFilter(i.validator, false).value();
    return Ok();
  }));
  CHECK(CodeOf(s.catalog().Modify(*s.op, *s.Coll(), [](CollectionInfo& i) -> Result<void> {
          i.name = "other";
          return Ok();
        })) == ErrorCode::kInternalError);
  s.Open();
  CHECK(s.Coll()->FindIndex("t_1")->expire_after_seconds == 9);
  CHECK(s.Coll()->FindIndex("t_1")->hidden);
  CHECK(s.Coll()->FindIndex("t_1")->keyspace == Keyspace::kExpiry);
  CHECK(s.Coll()->validator_filter);
}

TEST_CASE("Settings are kept by name", "[catalog]") {
  CatalogStore s;
  CHECK(s.catalog().GetSetting("x").value() == std::nullopt);
  REQUIRE(s.catalog().PutSetting(*s.op, "x", "1"));
  REQUIRE(s.catalog().PutSetting(*s.op, "x", std::string("\0\xFF", 2)));
  s.Open();
  CHECK(s.catalog().GetSetting("x").value() == std::string("\0\xFF", 2));
  CHECK(s.catalog().GetSetting("y").value() == std::nullopt);
}

TEST_CASE("A damaged catalog row stops the opening and is named", "[catalog]") {
  CatalogStore s;
  auto c = s.Make();
  auto batch = s.storage->kv().NewBatch();
  batch->Put(Keyspace::kCatalog, CollectionRowKey(c->id), "not bson");
  REQUIRE(s.storage->kv().Write(*batch, true));
  s.storage.reset();
  StorageOptions o;
  o.engine = MakeRocksEngine();
  o.path = s.dir.path();
  o.clock = &s.clock;
  auto opened = Storage::Open(std::move(o));
  REQUIRE(!opened);
  CHECK(opened.error().message.find("corrupt catalog row 'collection/") != std::string::npos);
}

TEST_CASE("A validator that this version does not take stops no start, and lets nothing through",
          "[catalog]") {
  CatalogStore s;
  CollectionInfo definition = *s.Make();
  definition.validator = Json(R"({"a": 1})");
  definition.validator_filter = CompileEqualFilter(definition.validator, false).value();
  const BsonDocument row = EncodeCollectionRow(definition);
  auto read = DecodeCollectionRow(
      CollectionRowKey(definition.id), row.bytes(),
      [](BsonView, bool) -> Result<std::shared_ptr<const RecordFilter>> {
        return Error{LocationCode(40413), "BSON field '$options' is a duplicate field"};
      },
      Instant{0});
  REQUIRE(read);
  REQUIRE(read.value()->validator_filter);
  CHECK_FALSE(read.value()->validator_filter->Matches(Json(R"({"a": 1})")));
  CHECK(read.value()->validator.view()["a"].NumberAsInt64() == 1);
}

TEST_CASE("A capped collection never exceeds its limits and keeps the newest",
          "[catalog][capped]") {
  CatalogStore s;
  REQUIRE(s.MakeCapped(100'000, 3));
  auto c = s.Coll();
  REQUIRE(c->FindIndex("_id_"));
  for (int i = 0; i < 10; ++i) {
    REQUIRE(s.Insert(*c, BuildBson([&](BsonBuilder& b) { b.Append("_id", 100 - i); })));
    CHECK(c->counters->documents == std::min(i + 1, 3));
  }
  auto ids = [&](CollectionInfoPtr coll) {
    std::string out;
    auto cursor = s.storage->ScanRecords(coll, {});
    while (cursor->Next().value())
      out += std::to_string(cursor->doc()["_id"].NumberAsInt64()) + " ";
    return out;
  };
  CHECK(ids(c) == "93 92 91 ");
  s.RequireValid(c);

  SECTION("also in one unit that inserts more than fits") {
    std::vector<BsonDocument> docs;
    for (int i = 0; i < 8; ++i)
      docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("_id", i); }));
    WriteUnit u(*s.storage, *s.op);
    for (auto& d : docs) REQUIRE(u.Insert(*c, d));
    REQUIRE(s.storage->committer().Commit(std::move(u)));
    CHECK(ids(c) == "5 6 7 ");
    s.RequireValid(c);
  }
  SECTION("after reopening") {
    s.Open();
    c = s.Coll();
    REQUIRE(s.Insert(*c, R"({"_id": 1})"));
    CHECK(ids(c) == "92 91 1 ");
    s.RequireValid(c);
    CHECK(CodeOf(s.Insert(*c, R"({"_id": 91})")) == ErrorCode::kDuplicateKey);
    CHECK(ids(c) == "92 91 1 ");
  }
  SECTION("after a client deleted most of them and the rest moved on") {
    REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
    REQUIRE(s.MakeCapped(1'000'000, 60));
    c = s.Coll();
    for (int i = 0; i < 60; ++i)
      REQUIRE(s.Insert(*c, BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })));
    for (int i = 1; i < 50; ++i) {
      Storage::Record r;
      std::string key;
      AppendCappedRecordKey(c->id, i + 1, key);
      WriteUnit u(*s.storage, *s.op);
      WriteUnit::Locked locked;
      REQUIRE(u.LockAndRead(*c, key, &locked).value());
      REQUIRE(u.Delete(*c, locked));
      REQUIRE(s.storage->committer().Commit(std::move(u)));
    }
    CHECK(c->counters->documents == 11);
    for (int i = 100; i < 151; ++i)
      REQUIRE(s.Insert(*c, BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })));
    CHECK(c->counters->documents == 60);
    CHECK(ids(c).substr(0, 12) == "51 52 53 54 ");
    s.RequireValid(c);
  }
  SECTION("by size") {
    REQUIRE(s.MakeCapped(1000, 0, "bytes"));
    auto b = s.Coll("bytes");
    std::string pad(300, 'x');
    for (int i = 0; i < 9; ++i) {
      REQUIRE(
          s.Insert(*b, BuildBson([&](BsonBuilder& d) { d.Append("_id", i).Append("p", pad); })));
      CHECK(b->counters->bytes <= 1000);
    }
    CHECK(ids(b) == "6 7 8 ");
    CHECK(CodeOf(s.Insert(*b, BuildBson([&](BsonBuilder& d) {
            d.Append("_id", 50).Append("p", std::string(2000, 'x'));
          }))) == ErrorCode::kBadValue);
    CHECK(ids(b) == "6 7 8 ");
    s.RequireValid(b);
  }
}

TEST_CASE("Index keys that MongoDB refuses are refused", "[catalog]") {
  for (auto* good :
       {R"({"a":1})", R"({"a.b":-1,"c":2.5})", R"({"a":"hashed"})", R"({"ref.$id":1})"}) {
    CAPTURE(good);
    CHECK(ParseIndexKey(Json(good)));
  }
  std::string many = "{";
  for (int i = 0; i < 33; ++i) many += (i ? ",\"f" : "\"f") + std::to_string(i) + "\":1";
  for (std::string bad :
       {std::string("{}"), std::string(R"({"a":0})"), std::string(R"({"a":""})"),
        std::string(R"({"a":true})"), std::string(R"({"":1})"), std::string(R"({"a.":1})"),
        std::string(R"({".a":1})"), std::string(R"({"a..b":1})"), std::string(R"({"$a":1})"),
        std::string(R"({"a.$b":1})"), many + "}"}) {
    CAPTURE(bad);
    CHECK(CodeOf(ParseIndexKey(Json(bad))) == ErrorCode::kCannotCreateIndex);
  }
}

// Few rows of the catalog are written in an hour: large ones that were gone stayed in its files for
// ever.
TEST_CASE("The catalog's files do not keep what is gone", "[catalog]") {
  CatalogStore s;
  std::string blob(1 << 20, ' ');
  uint32_t seed = 1;
  for (char& c : blob) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
  KvStore& kv = s.storage->kv();
  auto write = [&](bool put) {
    for (int i = 0; i < 40; ++i) {
      auto batch = kv.NewBatch();
      const std::string key = "setting/blob" + std::to_string(i);
      put ? batch->Put(Keyspace::kCatalog, key, blob) : batch->Delete(Keyspace::kCatalog, key);
      REQUIRE(kv.Write(*batch, false));
    }
    REQUIRE(kv.Flush(Keyspace::kCatalog));
  };
  write(true);
  s.storage->impl().catalog->CompactFiles();
  CHECK(kv.Stats(Keyspace::kCatalog).live_bytes > uint64_t{38} << 20);  // it is all there
  write(false);
  write(true);
  write(false);
  for (int minute = 0; minute < 60; ++minute) s.storage->impl().catalog->CompactFiles();
  CHECK(kv.Stats(Keyspace::kCatalog).live_bytes < 1 << 20);
}

TEST_CASE("That a collection is temporary is in its row, not its name; a rename ends it",
          "[catalog]") {
  CatalogStore s;
  CollectionInfo definition;
  definition.db = "db";
  definition.name = "anything";
  definition.temporary = true;
  auto made = s.catalog().Create(*s.op, definition);
  REQUIRE(made);
  s.Make("tmp.agg_out.1");
  s.Open();
  CHECK(s.Coll("anything")->temporary);
  CHECK_FALSE(s.Coll("tmp.agg_out.1")->temporary);
  REQUIRE(s.catalog().Rename(*s.op, *s.Coll("anything"), "db", "other", false));
  CHECK_FALSE(s.Coll("other")->temporary);
  s.Open();
  CHECK_FALSE(s.Coll("other")->temporary);
}

TEST_CASE("Dropping a few large documents gives their disk back", "[catalog]") {
  CatalogStore s;
  uint32_t seed = 7;
  auto blob = [&] {
    std::string b(1 << 20, ' ');
    for (char& c : b) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
    return b;
  };
  auto fill = [&](const CollectionInfo& c, int documents) {
    for (int i = 0; i < documents; ++i)
      REQUIRE(s.Insert(
          c, BuildBson([&](BsonBuilder& b) { b.Append("_id", i).AppendBinary("b", 0, blob()); })));
  };
  auto keep = s.Make("keep");
  fill(*keep, 3);
  for (const char* name : {"a", "b"}) fill(*s.Make(name), 12);
  KvStore& kv = s.storage->kv();
  REQUIRE(kv.Flush(Keyspace::kRecords));
  REQUIRE(kv.Stats(Keyspace::kRecords).live_bytes > uint64_t{26} << 20);
  for (const char* name : {"a", "b"}) REQUIRE(s.catalog().Drop(*s.op, "db", name));
  s.storage->impl().catalog->WaitForGarbage();
  s.storage->impl().catalog->CompactFiles();
  CHECK(kv.Stats(Keyspace::kRecords).live_bytes < uint64_t{5} << 20);
  CHECK(s.Scan(keep).size() == 3);
}

#include <thread>

#include "storage/catalog/index_keys.h"
#include "storage/write/capped_trim.h"
#include "storage/write/inline_unit.h"
#include "storage_fixture.h"

namespace mayfly {
using testing::Json;
using testing::TestCollection;
using testing::TestStore;
using testing::Text;
using Strings = std::vector<std::string>;

TEST_CASE("Documents are found by _id, in _id order and by index", "[write]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  auto b = c.AddIndex(11, R"({"b": -1})", true);
  REQUIRE(s.Insert(c, R"({"_id": 2, "a": 1, "b": 1})"));
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": 2, "b": 2})"));
  REQUIRE(s.Insert(c, R"({"_id": 3, "a": 1, "b": 3})"));
  CHECK(s.Find(c, R"({"": 1})") == R"({"_id":1,"a":2,"b":2})");
  CHECK(s.Find(c, R"({"": 1.0})") == R"({"_id":1,"a":2,"b":2})");
  CHECK(s.Find(c, R"({"": 9})") == "none");
  CHECK(s.Scan(c).size() == 3);
  CHECK(s.Scan(c)[0] == R"({"_id":1,"a":2,"b":2})");
  CHECK(s.ScanIndex(c, a) == Strings{"2", "3", "1"});
  CHECK(s.ScanIndex(c, b) == Strings{"3", "1", "2"});
  IndexScan back;
  back.backward = true;
  CHECK(s.ScanIndex(c, a, back) == Strings{"1", "3", "2"});

  SECTION("an update changes the entries that differ") {
    REQUIRE(s.Replace(c, R"({"_id": 2, "a": 5, "b": 1})"));
    CHECK(s.ScanIndex(c, a) == Strings{"3", "1", "2"});
    CHECK(s.ScanIndex(c, b) == Strings{"3", "1", "2"});
    CHECK(s.op->keys_inserted == 7);
    CHECK(s.op->keys_deleted == 1);
    CHECK(s.Counters(c).documents == 3);
  }
  SECTION("a delete takes everything") {
    CHECK(s.Remove(c, R"({"": 2})").value());
    CHECK_FALSE(s.Remove(c, R"({"": 2})").value());
    CHECK(s.ScanIndex(c, a) == Strings{"3", "1"});
    CHECK(s.ScanIndex(c, b) == Strings{"3", "1"});
    CHECK(s.CountKeys(Keyspace::kIndexes) == 4);
    CHECK(Storage::DocumentCount(*c) == 2);
  }
}

TEST_CASE("What is stored begins with its _id and is no larger than a document may be", "[write]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  auto code_of = [](const Result<void>& r) { return r ? ErrorCode::kOk : r.error().code; };
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": 1})"));
  CHECK(code_of(s.Insert(c, R"({"a": 1, "_id": 2})")) == ErrorCode::kBadValue);
  CHECK(code_of(s.Insert(c, R"({"a": 1})")) == ErrorCode::kBadValue);
  const BsonDocument large = BuildBson(
      [](BsonBuilder& b) { b.Append("_id", 3).Append("s", std::string(kMaxBsonUserSize, 'x')); });
  CHECK(code_of(s.Insert(c, large)) == ErrorCode::kBSONObjectTooLarge);

  auto replace = [&](BsonView next) {
    WriteUnit u = s.Unit();
    std::string key;
    Storage::AppendRecordKey(*c, Json(R"({"": 1})").view().First().value, key);
    WriteUnit::Locked locked;
    REQUIRE(u.LockAndRead(*c, key, &locked).value());
    return u.Update(*c, locked, next);
  };
  CHECK(code_of(replace(Json(R"({"a": 2, "_id": 1})"))) == ErrorCode::kBadValue);
  CHECK(code_of(replace(Json(R"({"_id": 2, "a": 2})"))) == ErrorCode::kImmutableField);
  CHECK(code_of(replace(large)) == ErrorCode::kBSONObjectTooLarge);
  CHECK(s.Scan(c) == Strings{R"({"_id":1,"a":1})"});
  CHECK(s.ScanIndex(c, a) == Strings{"1"});
}

namespace {

/// A partial filter in the middle of which its operation is killed: it says "does not match".
class KillingFilter final : public RecordFilter {
 public:
  bool Matches(BsonView doc) const override {
    if (!doc.Has("kill") || FilteringFor::Asked() == nullptr) return doc.Has("a");
    FilteringFor::Asked()->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    return false;
  }
};

}  // namespace

TEST_CASE("A partial filter that is interrupted ends the write", "[write]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  auto partial = c.AddIndex(11, R"({"a": -1})");
  {
    auto& i = const_cast<IndexInfo&>(*partial);
    i.has_partial_filter = true;
    i.filter = std::make_shared<KillingFilter>();
  }
  auto interrupted = [&](auto r) {
    s.op->kill_code = 0;
    return !r && r.error().code == ErrorCode::kInterrupted;
  };
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": 1})"));
  CHECK(interrupted(s.Insert(c, R"({"_id": 2, "a": 1, "kill": 1})")));
  CHECK(interrupted(s.Replace(c, R"({"_id": 1, "a": 2, "kill": 1})")));
  CHECK(s.Scan(c) == Strings{R"({"_id":1,"a":1})"});
  CHECK(s.ScanIndex(c, a) == Strings{"1"});
  CHECK(s.ScanIndex(c, partial) == Strings{"1"});
  CHECK(FilteringFor::Asked() == nullptr);
}

TEST_CASE("A duplicate key is refused with pattern and value, and changes nothing", "[write]") {
  TestStore s;
  TestCollection c;
  c.AddIndex(10, R"({"x": 1})");
  c.AddIndex(11, R"({"a": 1, "b.c": -1})", true);
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": "s", "b": {"c": 5}})"));
  struct Case {
    const char* doc;
    const char* message;
    const char* details;
  };
  auto k = GENERATE(values<Case>({
      {R"({"_id": 1})",
       "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 1 }",
       R"({"keyPattern":{"_id":1},"keyValue":{"_id":1}})"},
      {R"({"_id": 1.0})",
       "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 1.0 }",
       R"({"keyPattern":{"_id":1},"keyValue":{"_id":1.0}})"},
      {R"({"_id": 2, "x": 1, "a": "s", "b": {"c": 5}})",
       "E11000 duplicate key error collection: db.c index: a_1_b.c_-1 dup key: { a: \"s\", b.c: 5 "
       "}",
       R"({"keyPattern":{"a":1,"b.c":-1},"keyValue":{"a":"s","b.c":5}})"},
  }));
  CAPTURE(k.doc);
  auto r = s.Insert(c, k.doc);
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kDuplicateKey);
  CHECK(r.error().message == k.message);
  CHECK(Text(BsonView(r.error().details)) == k.details);
  CHECK(Storage::DocumentCount(*c) == 1);
  CHECK(s.CountKeys(Keyspace::kIndexes) == 2);
}

TEST_CASE("Within a unit a failed document leaves the others, and the unit sees its own writes",
          "[write]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})", true);
  BsonDocument d1 = Json(R"({"_id": 1, "a": 1})"), d2 = Json(R"({"_id": 2, "a": 1})"),
               d3 = Json(R"({"_id": 1, "a": 3})"), d4 = Json(R"({"_id": 4, "a": 4})"),
               d5 = Json(R"({"_id": 1, "a": 7})"), d6 = Json(R"({"_id": 6, "a": 1})");
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, d1));
  CHECK(u.Insert(*c, d2).error().code == ErrorCode::kDuplicateKey);  // by a, of this unit
  CHECK(u.Insert(*c, d3).error().code == ErrorCode::kDuplicateKey);  // by _id
  REQUIRE(u.Insert(*c, d4));
  std::string key;
  Storage::AppendRecordKey(*c, d1.view()["_id"], key);
  WriteUnit::Locked locked;
  REQUIRE(u.LockAndRead(*c, key, &locked).value());
  CHECK(Text(locked.doc) == R"({"_id":1,"a":1})");
  REQUIRE(u.Update(*c, locked, d5));
  REQUIRE(u.LockAndRead(*c, key, &locked).value());
  CHECK(Text(locked.doc) == R"({"_id":1,"a":7})");
  REQUIRE(u.Insert(*c, d6));  // a: 1 is free again
  REQUIRE(u.Delete(*c, locked));
  CHECK_FALSE(u.LockAndRead(*c, key, &locked).value());
  CHECK(u.DocumentCount() == 5);
  CHECK(s.Scan(c).empty());  // nobody else sees it
  REQUIRE(s.Commit(std::move(u)));
  CHECK(s.Scan(c) == Strings{R"({"_id":4,"a":4})", R"({"_id":6,"a":1})"});
  CHECK(s.ScanIndex(c, a) == Strings{"6", "4"});
  CHECK(Storage::DocumentCount(*c) == 2);
  CHECK(c.info->counters->bytes == d4.view().size() + d6.view().size());
}

TEST_CASE("A unit that is not committed changes nothing and gives its locks back", "[write]") {
  TestStore s;
  TestCollection c;
  BsonDocument d = Json(R"({"_id": 1})");
  bool called = false;
  {
    WriteUnit u = s.Unit();
    REQUIRE(u.Insert(*c, d));
    u.OnCommit([&] { called = true; });
    WriteUnit other = s.Unit();
    other.set_no_wait(true);
    CHECK(other.Insert(*c, d).error().code == ErrorCode::kWriteConflict);
  }
  CHECK(s.Scan(c).empty());
  CHECK_FALSE(called);
  WriteUnit u = s.Unit();
  u.OnCommit([&] { called = true; });
  REQUIRE(u.Insert(*c, d));
  REQUIRE(s.Commit(std::move(u)));
  CHECK(called);
}

TEST_CASE("A unit that is to be short refuses many index keys before they are made", "[write]") {
  TestStore s;
  TestCollection c;
  c.AddIndex(10, R"({"a.b": 1})");
  c.AddIndex(11, R"({"a.b": 1, "k": 1})");
  auto document = [](int elements) {
    std::string text = R"({"_id": 1, "a": [)";
    for (int i = 0; i < elements; ++i)
      text += (i ? ",{\"b\":" : "{\"b\":") + std::to_string(i) + "}";
    return Json(text + "]}");
  };
  const BsonDocument few = document(100), many = document(3000);
  {
    WriteUnit u = s.Unit();
    KeepShort(u);
    const Result<void> refused = u.Insert(*c, many);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kWriteConflict);
    CHECK(u.empty());
  }
  {
    WriteUnit u = s.Unit();
    KeepShort(u);
    REQUIRE(u.Insert(*c, few));
    REQUIRE(s.Commit(std::move(u)));
  }
  std::string key;
  Storage::AppendRecordKey(*c, few.view()["_id"], key);
  {
    WriteUnit u = s.Unit();
    KeepShort(u);
    WriteUnit::Locked locked;
    REQUIRE(u.LockAndRead(*c, key, &locked).value());
    CHECK(u.Update(*c, locked, many).error().code == ErrorCode::kWriteConflict);
  }
  {
    WriteUnit u = s.Unit();  // on a worker it goes as before
    WriteUnit::Locked locked;
    REQUIRE(u.LockAndRead(*c, key, &locked).value());
    REQUIRE(u.Update(*c, locked, many));
    REQUIRE(s.Commit(std::move(u)));
    CHECK(s.CountKeys(Keyspace::kIndexes) == 6000);
  }
  {
    WriteUnit u = s.Unit();
    KeepShort(u);
    WriteUnit::Locked locked;
    REQUIRE(u.LockAndRead(*c, key, &locked).value());
    CHECK(u.Delete(*c, locked).error().code == ErrorCode::kWriteConflict);
  }
  CHECK(s.Remove(c, R"({"": 1})").value());
  CHECK(s.CountKeys(Keyspace::kIndexes) == 0);
}

TEST_CASE("Raw rows: own writes, range deletes in order", "[write]") {
  TestStore s;
  WriteUnit u = s.Unit();
  PinnedValue v;
  u.Put(Keyspace::kCatalog, "x1", "one");
  u.Put(Keyspace::kIndexes, "x2", "two");
  CHECK(u.Get(Keyspace::kCatalog, "x1", &v).value());
  CHECK(v.view() == "one");
  u.EraseRange(Keyspace::kCatalog, "x", "y");
  CHECK_FALSE(u.Get(Keyspace::kCatalog, "x1", &v).value());
  CHECK(u.Get(Keyspace::kIndexes, "x2", &v).value());
  u.Put(Keyspace::kCatalog, "x3", "three");
  CHECK(u.Get(Keyspace::kCatalog, "x3", &v).value());
  u.Erase(Keyspace::kCatalog, "x3");
  CHECK_FALSE(u.Get(Keyspace::kCatalog, "x3", &v).value());
  u.Put(Keyspace::kCatalog, "x1", "again");
  REQUIRE(s.Commit(std::move(u)));
  REQUIRE(s.storage->kv().Get(Keyspace::kCatalog, "x1", &v).value());
  CHECK(v.view() == "again");
  CHECK_FALSE(s.storage->kv().Get(Keyspace::kCatalog, "x3", &v).value());
}

TEST_CASE("Deadlines are in the record and in the queue, and move together", "[write]") {
  TestStore s;
  TestCollection c;
  auto queue = [&] {
    std::string out;
    auto it = s.storage->kv().NewIterator(Keyspace::kExpiry, {});
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      Instant at;
      uint32_t collection;
      std::string_view record_id;
      REQUIRE(DecodeDeadlineKey(it->key(), &collection, &at, &record_id));
      CHECK(collection == c.info->id);
      std::string record_key = IdPrefix(collection).append(record_id);
      Storage::Record r;
      REQUIRE(s.storage->Fetch(*c, record_key, &r).value());
      CHECK(r.expire_at == at);
      out += std::to_string(at.millis) + ":" + Text(r.doc.First().value) + " ";
    }
    return out;
  };
  REQUIRE(s.Insert(c, Json(R"({"_id": 1})"), Instant{5000}));
  REQUIRE(s.Insert(c, Json(R"({"_id": 2})"), Instant{-7}));
  REQUIRE(s.Insert(c, Json(R"({"_id": 3})")));
  CHECK(queue() == "-7:2 5000:1 ");
  REQUIRE(s.Replace(c, R"({"_id": 3, "a": 1})", Instant{100}));
  REQUIRE(s.Replace(c, R"({"_id": 1, "a": 1})", Instant{6000}));
  CHECK(queue() == "-7:2 100:3 6000:1 ");
  REQUIRE(s.Replace(c, R"({"_id": 1, "a": 2})"));
  REQUIRE(s.Remove(c, R"({"": 2})"));
  CHECK(queue() == "100:3 ");
}

TEST_CASE("A multikey flag is set and kept with the write that needs it", "[write]") {
  TestStore s;
  TestCollection c;
  auto index = c.AddIndex(10, R"({"a": 1, "b": 1})");
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": 1, "b": 1})"));
  CHECK_FALSE(index->is_multikey());
  PinnedValue v;
  {
    BsonDocument d = Json(R"({"_id": 2, "a": 1, "b": [1, 2, 2]})");
    WriteUnit u = s.Unit();
    REQUIRE(u.Insert(*c, d));
    CHECK_FALSE(index->is_multikey());  // staged only
    REQUIRE(s.Commit(std::move(u)));
  }
  CHECK(index->multikey == 2);
  CHECK_FALSE(s.storage->kv().Get(Keyspace::kCatalog, MultikeyKey(10, 0), &v).value());
  CHECK(s.storage->kv().Get(Keyspace::kCatalog, MultikeyKey(10, 1), &v).value());
  CHECK(s.ScanIndex(c, index) == Strings{"1", "2", "2"});
  auto r = s.Insert(c, R"({"_id": 3, "a": [1], "b": [1]})");
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kCannotIndexParallelArrays);
  REQUIRE(s.Replace(c, R"({"_id": 2, "a": 1, "b": [2, 3]})"));
  CHECK(s.CountKeys(Keyspace::kIndexes) == 3);
}

TEST_CASE("An index that is to become unique refuses new duplicates only", "[write]") {
  TestStore s;
  TestCollection c;
  auto index = c.AddIndex(10, R"({"a": 1})");
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": 1})"));
  REQUIRE(s.Insert(c, R"({"_id": 2, "a": 1})"));
  std::const_pointer_cast<IndexInfo>(index)->prepare_unique = true;
  CHECK(s.Insert(c, R"({"_id": 3, "a": 1})").error().code == ErrorCode::kDuplicateKey);
  CHECK(s.Insert(c, R"({"_id": 3, "a": 2})"));
  CHECK(s.Replace(c, R"({"_id": 1, "a": 1, "b": 1})"));
  CHECK(s.Replace(c, R"({"_id": 3, "a": 1})").error().code == ErrorCode::kDuplicateKey);
  BsonDocument d = Json(R"({"_id": 5, "a": 9})"), e = Json(R"({"_id": 6, "a": 9})");
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, d));
  CHECK(u.Insert(*c, e).error().code == ErrorCode::kDuplicateKey);
}

TEST_CASE("Deleting under a unique index that is being built leaves another record's entry",
          "[write]") {
  TestStore s;
  TestCollection c;
  REQUIRE(s.Insert(c, R"({"_id": 1, "a": 1})"));  // not in the index yet
  auto index = c.AddIndex(10, R"({"a": 1})", true);
  std::const_pointer_cast<IndexInfo>(index)->state = IndexState::kBuilding;
  REQUIRE(s.Insert(c, R"({"_id": 2, "a": 1})"));
  REQUIRE(s.Remove(c, R"({"": 1})").value());
  CHECK(s.ScanIndex(c, index) == Strings{"2"});
  REQUIRE(s.Remove(c, R"({"": 2})").value());
  CHECK(s.CountKeys(Keyspace::kIndexes) == 0);
}

TEST_CASE("Documents that are locked together stay whole when some are gone", "[write]") {
  TestStore s;
  TestCollection c;
  constexpr int kDocuments = 20;
  std::vector<std::string> keys;
  for (int i = 0; i < kDocuments; ++i) {
    // So small that a record fits into the place that holds it.
    const BsonDocument d = BuildBson([&](BsonBuilder& b) { b.Append("_id", i); });
    if (i % 3 != 0) REQUIRE(s.Insert(c, ToRelaxedJson(d.view())));
    keys.emplace_back();
    Storage::AppendRecordKey(*c, d.view()["_id"], keys.back());
  }
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  WriteUnit u = s.Unit();
  std::vector<WriteUnit::Locked> locked;
  int busy = 0;
  REQUIRE(u.LockAndReadMany(*c, views, &locked, &busy));
  size_t at = 0;
  for (int i = 0; i < kDocuments; ++i) {
    if (i % 3 == 0) continue;
    REQUIRE(at < locked.size());
    CHECK(locked[at].record_key == keys[static_cast<size_t>(i)]);
    CHECK(locked[at].doc["_id"].NumberAsInt64() == i);
    // The views are of the places as they are now.
    const std::string_view place = locked[at].pinned.view();
    const char* const bytes = locked[at].doc.bytes().data();
    CHECK((bytes >= place.data() && bytes < place.data() + place.size()));
    ++at;
  }
  CHECK(at == locked.size());
}

TEST_CASE("What a capped collection has beyond lowered limits goes in units of its own",
          "[write]") {
  TestStore s;
  TestCollection c;
  c.MakeCapped();
  constexpr int kDocuments = 2500;
  {
    WriteUnit u = s.Unit();
    std::vector<BsonDocument> documents;
    for (int i = 0; i < kDocuments; ++i)
      documents.push_back(BuildBson([&](BsonBuilder& b) { b.Append("_id", i); }));
    for (const BsonDocument& d : documents) REQUIRE(u.Insert(*c, d));
    REQUIRE(s.Commit(std::move(u)));
  }
  const int64_t bytes = s.Counters(c).bytes;
  REQUIRE(TrimCapped(*s.storage, *s.op, *c));
  CHECK(s.Counters(c).documents == kDocuments);  // nothing is beyond
  SECTION("by their number") { c.info->capped_documents = 10; }
  SECTION("by their bytes") { c.info->capped_bytes = bytes / 250; }
  SECTION("an operation that is to stop") {
    c.info->capped_documents = 10;
    s.op->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    CHECK_FALSE(TrimCapped(*s.storage, *s.op, *c));
    s.op->kill_code = 0;
    CHECK(s.Counters(c).documents == kDocuments);
  }
  // One that others wait for leaves it to a worker.
  {
    WriteUnit u = s.Unit();
    KeepShort(u);
    auto r = u.Insert(*c, Json(R"({"_id": "new"})"));
    CHECK((!r && r.error().code == ErrorCode::kWriteConflict));
  }
  REQUIRE(TrimCapped(*s.storage, *s.op, *c));
  CHECK(s.Counters(c).documents <= 1010);  // the rest goes with the next insert
  CHECK(s.Counters(c).documents > 10);
  REQUIRE(s.Insert(c, R"({"_id": "new"})"));
  CHECK(s.Counters(c).documents <= 10);
  CHECK(s.Counters(c).documents >= 8);
  CHECK(s.Scan(c).back() == R"({"_id":"new"})");
  CHECK(static_cast<int64_t>(s.Scan(c).size()) == s.Counters(c).documents);
}

TEST_CASE("Capped collections keep insertion order", "[write]") {
  TestStore s;
  TestCollection c;
  c.MakeCapped();
  REQUIRE(s.Insert(c, R"({"_id": "z"})"));
  BsonDocument d1 = Json(R"({"_id": "m"})"), d2 = Json(R"({"_id": "a"})"),
               d3 = Json(R"({"_id": "z"})");
  WriteUnit u = s.Unit();
  REQUIRE(u.Insert(*c, d1));
  REQUIRE(u.Insert(*c, d2));
  auto r = u.Insert(*c, d3);
  REQUIRE(!r);
  CHECK(r.error().message ==
        "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: \"z\" }");
  REQUIRE(s.Commit(std::move(u)));
  CHECK(s.Scan(c) == Strings{R"({"_id":"z"})", R"({"_id":"m"})", R"({"_id":"a"})"});
  CHECK(s.Find(c, R"({"": "m"})") == R"({"_id":"m"})");
  CHECK(s.Find(c, R"({"": "q"})") == "none");
  CHECK(s.Counters(c).last_sequence == 3);

  auto tail = s.storage->ScanRecords(c.info, {});
  for (int i = 0; i < 3; ++i) REQUIRE(tail->Next().value());
  CHECK_FALSE(tail->Next().value());
  tail->Reposition(nullptr);
  CHECK_FALSE(tail->Next().value());
  REQUIRE(s.Insert(c, R"({"_id": "b"})"));
  tail->Reposition(nullptr);
  REQUIRE(tail->Next().value());
  CHECK(Text(tail->doc()) == R"({"_id":"b"})");
  CHECK_FALSE(tail->Next().value());
}

TEST_CASE("Many records are locked and read at once", "[write]") {
  TestStore s;
  TestCollection c;
  for (int i = 0; i < 4; ++i) REQUIRE(s.Insert(c, R"({"_id": )" + std::to_string(i) + "}"));
  std::vector<std::string> keys(6);
  std::vector<std::string_view> views;
  for (int i = 0; i < 6; ++i) {
    BsonDocument id = Json(R"({"": )" + std::to_string(i) + "}");
    Storage::AppendRecordKey(*c, id.view().First().value, keys[static_cast<size_t>(i)]);
    views.push_back(keys[static_cast<size_t>(i)]);
  }
  WriteUnit other = s.Unit();
  WriteUnit::Locked one;
  REQUIRE(other.LockAndRead(*c, keys[1], &one).value());
  BsonDocument d5 = Json(R"({"_id": 5})");
  WriteUnit u = s.Unit();
  u.set_no_wait(true);
  REQUIRE(u.Insert(*c, d5));
  REQUIRE(u.LockAndRead(*c, keys[3], &one).value());
  REQUIRE(u.Delete(*c, one));
  std::vector<WriteUnit::Locked> many;
  int busy = 0;
  REQUIRE(u.LockAndReadMany(*c, views, &many, &busy));
  CHECK(busy == 1);  // 1 is taken; 3 was deleted by this unit, 4 never was
  REQUIRE(many.size() == 3);
  for (auto& m : many) REQUIRE(u.Delete(*c, m));
  REQUIRE(s.Commit(std::move(u)));
  CHECK(s.Scan(c) == Strings{R"({"_id":1})"});
}

TEST_CASE("Cursors go on where they were, at another snapshot", "[cursor]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  for (int i = 0; i < 6; ++i)
    REQUIRE(s.Insert(
        c, R"({"_id": )" + std::to_string(i) + R"(, "a": )" + std::to_string(i / 3) + "}"));
  bool backward = GENERATE(false, true);
  RecordScan rs;
  rs.backward = backward;
  auto records = s.storage->ScanRecords(c.info, rs);
  IndexScan is;
  is.backward = backward;
  auto entries = s.storage->ScanIndex(c.info, a, is);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(records->Next().value());
    REQUIRE(entries->Next().value());
  }
  records->Reposition(nullptr);
  entries->Reposition(nullptr);
  records->Reposition(nullptr);
  // What comes next is deleted meanwhile, and so is what was last.
  REQUIRE(s.Remove(c, backward ? R"({"": 3})" : R"({"": 2})"));
  REQUIRE(s.Remove(c, backward ? R"({"": 4})" : R"({"": 1})"));
  REQUIRE(records->Next().value());
  CHECK(Text(records->doc().First().value) == (backward ? "2" : "3"));
  REQUIRE(entries->Next().value());
  CHECK(entries->record_key() == records->record_key());

  std::string seek;
  BsonDocument v = Json(R"({"": 1})");
  EncodeKeyValue(v.view().First().value, false, seek);
  if (backward) seek.back() = static_cast<char>(seek.back() + 1);  // below this: up to the value
  entries->SeekTo(seek);
  int n = 0;
  while (entries->Next().value()) ++n;
  CHECK(n == (backward ? 4 : 3));
}

TEST_CASE("Threads that write the same keys: counters exact, indexes agree",
          "[write][concurrency]") {
  TestStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  auto b = c.AddIndex(11, R"({"b": 1})", true);
  std::vector<std::thread> threads;
  std::atomic<int> unexpected{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Operation op(s.clock);
      uint32_t seed = static_cast<uint32_t>(t) + 1;
      for (int i = 0; i < 500; ++i) {
        seed = seed * 1664525 + 1013904223;
        int id = static_cast<int>(seed >> 16) % 40, value = static_cast<int>(seed >> 8) % 50;
        BsonDocument doc = BuildBson([&](BsonBuilder& d) {
          d.Append("_id", id);
          d.Append("a", value % 5);
          d.Append("b", value);
        });
        std::string key;
        Storage::AppendRecordKey(*c, doc.view().First().value, key);
        WriteUnit u(*s.storage, op);
        WriteUnit::Locked locked;
        auto found = u.LockAndRead(*c, key, &locked);
        Result<void> r = Ok();
        if (!found)
          r = found.error();
        else if (!found.value())
          r = u.Insert(*c, doc);
        else if (i % 3 == 0)
          r = u.Delete(*c, locked);
        else
          r = u.Update(*c, locked, doc);
        if (r) r = s.storage->committer().Commit(std::move(u), {i % 50 == 0});
        if (!r && r.error().code != ErrorCode::kDuplicateKey &&
            r.error().code != ErrorCode::kWriteConflict)
          ++unexpected;
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(unexpected == 0);
  Strings docs = s.Scan(c);
  CHECK(Storage::DocumentCount(*c) == static_cast<int64_t>(docs.size()));
  int64_t bytes = 0;
  for (auto& d : docs) bytes += Json(d).view().size();
  CHECK(c.info->counters->bytes == bytes);
  CHECK(s.Counters(c).documents == static_cast<int64_t>(docs.size()));
  CHECK(s.CountKeys(Keyspace::kIndexes) == 2 * docs.size());
  for (auto& index : {a, b}) {
    Strings ids = s.ScanIndex(c, index);
    CHECK(ids.size() == docs.size());
    CHECK(std::count(ids.begin(), ids.end(), "dangling") == 0);
  }
}

}  // namespace mayfly

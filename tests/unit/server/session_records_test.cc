#include "server/execution/session_records.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "server/execution/session_store.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"
#include "storage/write/collection_watch.h"
#include "storage/write/session_row.h"
#include "tests/unit/server/server_fixture.h"
#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;
using namespace std::string_literals;

namespace {

std::string Id(char c) { return std::string(16, c); }

struct Rows : CatalogStore {
  Rows() { ShowSessionRecords(*storage); }
  void Put(const std::string& key, std::string_view value) {
    auto batch = storage->kv().NewBatch();
    batch->Put(Keyspace::kCatalog, key, value);
    REQUIRE(storage->kv().Write(*batch, false));
  }
  void Row(const std::string& session, int64_t number, bool placed = true) {
    Put(SessionRowKey(session),
        EncodeSessionRow({.number = number, .last_write = 1000, .ts = 77, .term = 3}, placed));
  }
  CollectionInfoPtr Shown() { return storage->catalog().Find("config", "transactions"); }
  /// The numbers, in the order of a scan; opened anew behind each document if `anew`.
  std::string Scan(bool backward, bool anew, const ReadView& view = {}) {
    RecordScan scan;
    scan.view = view;
    scan.backward = backward;
    auto cursor = storage->ScanRecords(Shown(), std::move(scan));
    std::string out, last;
    for (;;) {
      Result<bool> more = cursor->Next();
      REQUIRE(more.has_value());
      if (!more.value()) return out;
      out += std::to_string(cursor->doc()["txnNum"].NumberAsInt64()) + " ";
      std::string key;
      Storage::AppendRecordKey(*Shown(), cursor->doc()["_id"], key);
      CHECK(key == cursor->record_key());
      if (!last.empty()) CHECK((backward ? key < last : key > last));
      last = key;
      if (anew) cursor->Reposition(view);
    }
  }
};

}  // namespace

TEST_CASE("A session's row is read in each version, and damage is found", "[sessions]") {
  const SessionRow row{
      .number = -5, .last_write = 9, .chunks = 2, .ts = 7, .term = 8, .entries = "xyz"};
  for (bool placed : {false, true}) {
    const std::string bytes = EncodeSessionRow(row, placed);
    const SessionRow read = DecodeSessionRow(bytes).value();
    CHECK(read.number == -5);
    CHECK(read.last_write == 9);
    CHECK(read.chunks == 2);
    CHECK(read.ts == (placed ? 7 : 0));
    CHECK(read.term == (placed ? 8 : 0));
    CHECK(read.entries == "xyz");
    for (size_t n = 0; n < bytes.size() - 3; ++n) CHECK_FALSE(DecodeSessionRow(bytes.substr(0, n)));
    CHECK_FALSE(DecodeSessionRow("\x03" + bytes.substr(1)));
  }
  CHECK(IsSessionRowKey(SessionRowKey(Id('a'))));
  CHECK(IsSessionRowKey(SessionRowKey(std::string(48, 'a'))));
  CHECK_FALSE(IsSessionRowKey(SessionRowKey(Id('a')) + "0000"));
  CHECK_FALSE(IsSessionRowKey("other/aaaaaaaaaaaa"));
}

TEST_CASE("config.transactions shows sessions in the order of their _id, both ways", "[sessions]") {
  Rows s;
  CHECK(s.Scan(false, false).empty());
  s.Row(Id('b'), 1);
  s.Row(Id('c'), 2, false);
  for (char chunk : {'\0', '\1', '\2'}) s.Put(SessionRowKey(Id('c')) + "\0\0\0"s + chunk, "");
  // The same id, of nobody and of two users, on both sides of nobody's digest.
  s.Row(Id('a'), 3);
  s.Row(Id('a') + std::string(32, '\0'), 4);
  s.Row(Id('a') + std::string(32, '\xFF'), 5);
  for (bool anew : {false, true}) {
    CHECK(s.Scan(false, anew) == "4 3 5 1 2 ");
    CHECK(s.Scan(true, anew) == "2 1 5 3 4 ");
  }
  Operation op(s.clock);
  CHECK(Visibility(*s.storage, *s.Shown(), op.now).CountVisible(op).value() == 5);
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  CHECK(Visibility(*s.storage, *s.Shown(), op.now).CountVisible(op).error().code ==
        ErrorCode::kInterrupted);
}

TEST_CASE("A range of sessions is what a filter of all of them leaves, both ways", "[sessions]") {
  Rows s;
  for (const char* uid : {"", "\x01", "u", "\xFF"})
    for (char c : {'a', 'b', 'd'})
      s.Row(Id(c) + (uid[0] == 0 ? "" : std::string(32, uid[0])), c * 10 + uid[0] % 10);
  std::vector<std::string> keys, bounds = {"", "\xFF\xFF\xFF\xFF\xFF"};
  auto all = s.storage->ScanRecords(s.Shown(), {});
  while (all->Next().value()) keys.emplace_back(all->record_key());
  CHECK(keys.size() == 12);
  for (const std::string& key : keys) {
    bounds.push_back(key);
    bounds.push_back(key + std::string(1, '\0'));
  }
  // What no session has, and what is only a part of one.
  for (const char* id :
       {R"(1)", R"({})", R"({"id": 1})", R"({"uid": 1})", R"({"id": {"$minKey": 1}})",
        R"({"id": {"$uuid": "62626262-6262-6262-6262-626262626262"}})",
        R"({"id": {"$uuid": "63636363-6363-6363-6363-636363636363"}})",
        R"({"id": {"$binary": {"base64": "YmJiYmJiYmJiYmJiYmJiYg==", "subType": "00"}}})",
        R"({"id": {"$binary": {"base64": "YmI=", "subType": "04"}}})", R"({"$maxKey": 1})"})
    Storage::AppendRecordKey(*s.Shown(), Json("{\"_id\": "s + id + "}").view()["_id"],
                             bounds.emplace_back());
  for (const std::string& lower : bounds)
    for (const std::string& upper : bounds)
      for (bool backward : {false, true}) {
        std::vector<std::string> wanted, found;
        for (const std::string& key : keys)
          if (key >= lower && (upper.empty() || key < upper)) wanted.push_back(key);
        if (backward) std::reverse(wanted.begin(), wanted.end());
        RecordScan scan;
        scan.backward = backward;
        scan.lower = lower;
        scan.upper = upper;
        auto cursor = s.storage->ScanRecords(s.Shown(), std::move(scan));
        while (cursor->Next().value()) {
          found.emplace_back(cursor->record_key());
          if (found.size() % 2 == 0) cursor->Reposition({});
        }
        if (found != wanted) FAIL("another range: " << found.size() << " of " << wanted.size());
      }
}

TEST_CASE("A session's document is found by its _id, as a moment saw it", "[sessions]") {
  Rows s;
  auto id = [&](const std::string& session) {
    return BuildBson([&](BsonBuilder& b) {
      BsonBuilder of = b.OpenDocument("_id");
      AppendSessionId(of, session);
    });
  };
  Storage::Record r;
  auto find = [&](const BsonDocument& doc, const ReadView& view = {}) {
    return s.storage->FindById(*s.Shown(), doc.view()["_id"], &r, view).value();
  };
  const std::string user = Id('b') + std::string(32, 'u');
  CHECK_FALSE(find(id(Id('a'))));
  s.Row(Id('a'), 1, false);
  s.Row(user, 2);
  const ReadView before(s.storage->kv().Snapshot());
  s.Row(user, 3);
  REQUIRE(find(id(Id('a'))));
  CHECK(r.doc["txnNum"].NumberAsInt64() == 1);
  CHECK(r.doc["lastWriteOpTime"].Document()["ts"].Timestamp() == 0);
  CHECK(r.doc["lastWriteOpTime"].Document()["t"].NumberAsInt64() == -1);
  REQUIRE(find(id(user)));
  CHECK(r.doc["txnNum"].NumberAsInt64() == 3);
  CHECK(r.doc["lastWriteOpTime"].Document()["ts"].Timestamp() == 77);
  CHECK(r.doc["lastWriteOpTime"].Document()["t"].NumberAsInt64() == 3);
  REQUIRE(find(id(user), before));
  CHECK(r.doc["txnNum"].NumberAsInt64() == 2);
  CHECK(s.Scan(false, true, before) == "1 2 ");
  for (const char* other : {R"({"_id": 1})", R"({"_id": {}})", R"({"_id": {"id": 1, "uid": 2}})",
                            R"({"_id": {"id": {"$binary": {"base64": "AAAA", "subType": "04"}}}})"})
    CHECK_FALSE(find(Json(other)));
  // One more field is another value.
  CHECK_FALSE(find(BuildBson([&](BsonBuilder& b) {
    BsonBuilder of = b.OpenDocument("_id");
    AppendSessionId(of, Id('a'));
    of.Append("x", 1);
  })));
}

TEST_CASE("Nobody writes to config.transactions", "[sessions]") {
  Rows s;
  using U = CollectionUse;
  for (U use :
       {U::kWrite, U::kReplace, U::kChange, U::kRename, U::kConvertToCapped, U::kArchiveInto})
    CHECK(CheckUse(*s.Shown(), use).error().code == LocationCode(40528));
  CHECK(CheckUse(*s.Shown(), U::kCreateIndexes).error().code == ErrorCode::kIllegalOperation);
  for (U use : {U::kStatistics, U::kExplain, U::kIndexes}) CHECK(CheckUse(*s.Shown(), use));
  CHECK(s.Shown()->ShownIndexes() == 1);
}

TEST_CASE("A scan on a thread that others wait for ends at a session with too much", "[sessions]") {
  Rows s;
  s.Row(Id('a'), 1);
  for (char c = 'a'; c < 'k'; ++c) s.Put(SessionRowKey(Id('a')) + "000" + c, "");
  s.Row(Id('b'), 2);
  RecordScan scan;
  scan.max_skipped = 5;
  auto cursor = s.storage->ScanRecords(s.Shown(), std::move(scan));
  CHECK_FALSE(cursor->Next().has_value());
  CHECK(s.Scan(false, false) == "1 2 ");
}

TEST_CASE("The last uses of many sessions are recorded in a few commits", "[sessions]") {
  ScratchDir dir;
  test::TestServer server([](ServerConfig&) {}, true);
  ServerContext& context = server.context();
  StorageOptions o;
  o.engine = MakeRocksEngine();
  o.path = dir.path();
  o.clock = &server.clock();
  const std::unique_ptr<Storage> storage = Storage::Open(std::move(o)).value();
  std::atomic<int> commits{0};
  WatchCollections(*storage, "config", {"system.sessions"},
                   [&](std::string_view name) { commits += name.empty() ? 0 : 1; });
  context.set_storage(storage.get());
  server.server().Start();
  constexpr int kSessions = 1000;
  std::vector<std::string> keys;
  for (int n = 0; n < kSessions; ++n) {
    std::string key(kSessionIdBytes, '\0');
    std::memcpy(key.data(), &n, sizeof n);
    keys.push_back(key);
  }
  const int64_t now = server.clock().Now().millis;
  const auto refresh = [&] {
    const int before = commits;
    Operation op(server.clock());
    CHECK(RefreshSessionRecords(context, op));
    return commits - before;
  };
  const auto last_uses = [&] {
    std::multiset<int64_t> out;
    Operation op(server.clock());
    const auto records = ListSessionRecords(context, op);
    REQUIRE(records);
    for (const BsonDocument& r : records.value()) out.insert(r.view()["lastUse"].Date().millis);
    return out;
  };
  for (const std::string& key : keys) REQUIRE(context.sessions().Use(key, {now}));
  CHECK(refresh() == 6);  // five, behind one that makes the collection
  CHECK(last_uses().count(now) == kSessions);
  CHECK(refresh() == 0);
  // Some are used again; the record of one has a later use already, by another member of a set.
  for (int n = 0; n < 10; ++n) REQUIRE(context.sessions().Use(keys[n], {now + 1000}));
  CHECK(refresh() == 1);
  CHECK(last_uses().count(now + 1000) == 10);
  REQUIRE(context.sessions().End(keys[0]));
  REQUIRE(context.sessions().Use(keys[0], {now + 500}));
  CHECK(refresh() == 0);
  CHECK(last_uses().count(now + 1000) == 10);
  // They end together as well.
  const int before = commits;
  {
    Operation op(server.clock());
    CHECK(RemoveSessionRecords(context, op, keys));
  }
  CHECK(commits - before <= 20);
  CHECK(last_uses().empty());
  server.server().Stop(1000);
  context.set_storage(nullptr);
}

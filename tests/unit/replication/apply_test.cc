#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "replication/open_units.h"
#include "replication/oplog.h"
#include "replication/replica_set.h"
#include "storage/core/storage_impl.h"
#include "storage/kv/rocks_kv.h"
#include "storage/read/read_view.h"
#include "storage/schema/transaction_schema.h"
#include "storage/storage.h"
#include "storage/write/log_apply.h"
#include "tests/unit/storage/storage_fixture.h"

namespace mayfly {
namespace {

using testing::Json;
using testing::ScratchDir;

struct NoFilter final : RecordFilter {
  bool Matches(BsonView) const override { return true; }
};

/// One member: a store that is described for the log.
struct Member {
  ScratchDir dir;
  SystemClock clock;
  std::unique_ptr<Storage> storage;
  std::unique_ptr<ReplicaSet> set;
  std::unique_ptr<Operation> op;

  Member() { Open(); }
  ~Member() { Close(); }
  void Open() {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = dir.path() + "/data";
    o.cache_bytes = 32 << 20;
    o.clock = &clock;
    o.logged = true;
    o.compile_filter = [](BsonView, bool) -> Result<std::shared_ptr<const RecordFilter>> {
      return std::shared_ptr<const RecordFilter>(std::make_shared<NoFilter>());
    };
    storage = std::move(Storage::Open(std::move(o)).value());
    op = std::make_unique<Operation>(clock);
  }
  void Close() {
    set.reset();
    storage.reset();
  }
  /// A set of this member alone, which is primary when this returns.
  void Lead() {
    ReplicaSetOptions o;
    o.storage = storage.get();
    o.clock = &clock;
    o.set_name = "rs0";
    o.data_directory = dir.path() + "/data";
    o.self_host = "127.0.0.1:1";
    auto primary = std::make_shared<std::promise<void>>();
    o.primary_changed = [primary, told = std::make_shared<bool>()](bool on) {
      if (on && !std::exchange(*told, true)) primary->set_value();
    };
    set = std::move(ReplicaSet::Open(std::move(o)).value());
    REQUIRE(set->Start());
    if (!set->topology()->config) REQUIRE(set->Initiate(std::nullopt));
    REQUIRE(primary->get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  }
  Catalog& catalog() { return storage->catalog(); }
  CollectionInfoPtr Coll(std::string_view name) { return catalog().Find("db", name); }
  CollectionInfoPtr Make(std::string_view name) {
    return catalog().GetOrCreate(*op, "db", name).value();
  }
  Result<void> Insert(const CollectionInfoPtr& c, const std::vector<BsonDocument>& docs,
                      std::optional<Instant> expire_at = {}) {
    WriteUnit u(*storage, *op);
    for (const BsonDocument& d : docs) {
      MAYFLY_TRY(u.Insert(*c, d, expire_at));
    }
    return storage->committer().Commit(std::move(u));
  }
  Result<void> Change(const CollectionInfoPtr& c, std::string_view id, const BsonDocument* next,
                      DeleteCause cause = {}) {
    WriteUnit u(*storage, *op);
    std::string key;
    const BsonDocument id_doc = Json(id);
    Storage::AppendRecordKey(*c, id_doc.view().First().value, key);
    WriteUnit::Locked l;
    MAYFLY_TRY(bool found, u.LockAndRead(*c, key, &l));
    if (!found) return Error{ErrorCode::kNoMatchingDocument, "gone"};
    if (next) {
      MAYFLY_TRY(u.Update(*c, l, *next));
    } else {
      MAYFLY_TRY(u.Delete(*c, l, cause));
    }
    return storage->committer().Commit(std::move(u));
  }
  IndexInfo Spec(std::string_view key, std::string name) {
    IndexInfo i;
    i.key = Json(key);
    i.name = std::move(name);
    for (const BsonElement& e : i.key.view())
      i.fields.push_back({std::string(e.name), e.value.NumberAsDouble() < 0, ""});
    return i;
  }
};

/// Every row that members must have in common.
std::map<std::string, std::string> Contents(Storage& s) {
  std::map<std::string, std::string> all;
  for (Keyspace ks : {Keyspace::kCatalog, Keyspace::kRecords, Keyspace::kIndexes, Keyspace::kExpiry,
                      Keyspace::kTombstones}) {
    auto it = s.kv().NewIterator(ks, {});
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      const std::string key(it->key());
      // What each member removes by itself, when it gets to it.
      if (ks == Keyspace::kCatalog && key.starts_with("garbage/")) continue;
      if (ks == Keyspace::kCatalog && key.starts_with("replication/")) continue;
      // What is its own.
      if (ks == Keyspace::kCatalog &&
          (key == "next_local_id" || key.starts_with("setting/local/") ||
           key.starts_with("setting/ttl.clock")))
        continue;
      const size_t id = ks != Keyspace::kCatalog         ? 0
                        : key.starts_with("collection/") ? 11
                        : key.starts_with("counters/")   ? 9
                                                         : key.size();
      if (key.size() >= id + 4 && LoadBe32(key.data() + id) >= kFirstLocalId &&
          ks != Keyspace::kTombstones)
        continue;
      all[std::to_string(static_cast<int>(ks)) + key] = it->value();
    }
    REQUIRE(it->status());
  }
  return all;
}

/// The catalog in memory, as far as it can be written down.
std::string Memory(Storage& s) {
  std::string out;
  for (const CollectionInfoPtr& c : s.catalog().ListAll()) {
    if (c->unreplicated) continue;
    out += c->ns + " " + std::to_string(c->id) + " n=" + std::to_string(c->counters->documents) +
           " b=" + std::to_string(c->counters->bytes) +
           " s=" + std::to_string(c->counters->last_sequence) + "\n";
    for (const IndexInfoPtr& i : c->indexes)
      out += "  " + i->name + " " + std::to_string(i->id) + " " +
             std::to_string(static_cast<int>(i->state)) + " m=" + std::to_string(i->multikey) +
             "\n";
  }
  return out;
}

/// Applies `from`'s log to `to`, `batch` entries at a time.
void Follow(Member& from, Member& to, size_t batch) {
  LogApplier applier(*to.storage);
  auto cursor = from.set->consensus().ReadLog();
  std::vector<std::string> held;
  auto flush = [&] {
    if (held.empty()) return;
    std::vector<LogApplier::Entry> entries;
    for (const std::string& h : held) entries.push_back({h, {}});
    auto kv_batch = to.storage->kv().NewBatch();
    REQUIRE(applier.Prepare(entries, *kv_batch));
    REQUIRE(to.storage->kv().Write(*kv_batch, false));
    applier.Applied(entries);
    held.clear();
  };
  for (cursor->Seek(0); cursor->Valid(); cursor->Next()) {
    const CommittedEntry e = cursor->entry();
    if (e.kind != CommittedEntry::Kind::kData || IsLogChunk(e.data)) continue;
    if (IsLogEnd(e.data))
      held.push_back(JoinFromLog(e.data, *from.set->consensus().ReadLog()).value());
    else
      held.emplace_back(e.data);
    if (held.size() == batch) flush();
  }
  REQUIRE(cursor->status());
  flush();
}

/// A transaction of the member, with its view of the catalog.
struct Txn {
  explicit Txn(Member& m) : op(m.clock), unit(*m.storage, op) {
    const ReadView base = *ReadPoint::Take(*m.storage, 0)->View();
    BeginTransactionUnit(unit, base.snapshot(),
                         std::make_shared<TransactionCatalog>(base, m.catalog()), 0,
                         m.set->committer().Reign());
  }
  Result<void> Commit(Member& m) {
    MAYFLY_TRY(PrepareTransactionCommit(*m.storage, unit, op));
    MAYFLY_TRY(StageCreated(*m.storage, unit, op));
    const BsonDocument lsid = Json(R"({"id":1})");
    unit.SetLogSession(lsid, 1);
    return m.storage->committer().Commit(std::move(unit));
  }
  Operation op;
  WriteUnit unit;
};

/// A transaction that makes collections with all that they have in memory.
void MakeInTransaction(Member& m) {
  Txn t(m);
  CollectionInfo plain;
  plain.db = "db";
  plain.name = "of_transaction";
  CollectionInfoPtr made = CreateInTransaction(*m.storage, t.unit, t.op, plain).value();
  IndexInfo ttl = m.Spec(R"({"t":1})", "t_1");
  ttl.expire_after_seconds = 60;
  made = CreateIndexesInTransaction(*m.storage, t.unit, t.op, *made,
                                    {m.Spec(R"({"l":1})", "l_1"), ttl})
             .value();
  const BsonDocument array = Json(R"({"_id":1,"l":[1,2]})"),
                     date = BuildBson([&](BsonBuilder& b) {
                       b.Append("_id", 2).Append("t", Instant{1'000'000});
                     });
  REQUIRE(t.unit.Insert(*made, array, Instant{m.clock.Now().millis + 100'000'000}));
  CountFromCommit(t.unit, Instant{INT64_MAX});
  REQUIRE(t.unit.Insert(*made, date));
  CollectionInfo capped = plain;
  capped.name = "of_transaction_capped";
  capped.kind = CollectionKind::kCapped;
  capped.capped_bytes = 4096;
  REQUIRE(CreateInTransaction(*m.storage, t.unit, t.op, capped));
  CHECK(m.Coll("of_transaction") == nullptr);
  REQUIRE(t.Commit(m));
  REQUIRE(m.Coll("of_transaction") != nullptr);
  CHECK(m.Coll("of_transaction")->counters->documents == 2);
  CHECK(m.Coll("of_transaction")->FindIndex("l_1")->is_multikey());
  // Made after it, with ids behind those that were taken for transactions.
  REQUIRE(m.Insert(m.Make("behind"), {Json(R"({"_id":1})")}));
}

void Workload(Member& m) {
  CollectionInfoPtr c = m.Make("c");
  for (int i = 0; i < 300; ++i)
    REQUIRE(m.Insert(
        c, {BuildBson([&](BsonBuilder& b) {
          b.Append("_id", i).Append("a", i % 7).Append("text", "some words to make it longer");
          if (i % 50 == 3) {
            auto l = b.OpenArray("l");
            l.Append(i).Append(i + 1);
          }
        })}));
  REQUIRE(m.catalog().CreateIndexes(*m.op, *c,
                                    {m.Spec(R"({"a":1})", "a_1"), m.Spec(R"({"l":1})", "l_1")}));
  IndexInfo unique = m.Spec(R"({"u":1})", "u_1");
  unique.unique = unique.sparse = true;
  REQUIRE(m.catalog().CreateIndexes(*m.op, *m.Coll("c"), {unique}));
  IndexInfo ttl = m.Spec(R"({"t":1})", "t_1");
  ttl.expire_after_seconds = 60;
  REQUIRE(m.catalog().CreateIndexes(*m.op, *m.Coll("c"), {ttl}));
  c = m.Coll("c");
  for (int i = 0; i < 100; ++i) {
    const BsonDocument next = BuildBson([&](BsonBuilder& b) {
      b.Append("_id", i)
          .Append("a", i)
          .Append("text", "some words to make it longer")
          .Append("u", i);
      b.Append("t", Instant{1'000'000 + i});
    });
    REQUIRE(m.Change(c, R"({"_id":)" + std::to_string(i) + "}", &next));
  }
  for (int i = 100; i < 150; ++i)
    REQUIRE(m.Change(c, R"({"_id":)" + std::to_string(i) + "}", nullptr));
  REQUIRE(m.Insert(c, {Json(R"({"_id":"dead"})")}, Instant{m.clock.Now().millis + 100'000'000}));
  DeleteCause expired(DeleteReason::kExpiredDocument);
  expired.deadline = Instant{5};
  REQUIRE(m.Change(c, R"({"_id":"dead"})", nullptr, expired));
  REQUIRE(m.Insert(c, {Json(R"({"_id":"lives"})")}, Instant{m.clock.Now().millis + 100'000'000}));
  // A statement that fails leaves nothing.
  REQUIRE_FALSE(m.Insert(c, {Json(R"({"_id":1})")}));
  CollectionInfo capped;
  capped.db = "db";
  capped.name = "capped";
  capped.kind = CollectionKind::kCapped;
  capped.capped_bytes = 4096;
  capped.capped_documents = 5;
  REQUIRE(m.catalog().Create(*m.op, capped));
  for (int i = 0; i < 12; ++i)
    REQUIRE(m.Insert(m.Coll("capped"), {BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })}));
  CollectionInfoPtr gone = m.Make("gone");
  REQUIRE(m.Insert(gone, {Json(R"({"_id":1})")}));
  REQUIRE(m.catalog().Drop(*m.op, "db", "gone"));
  REQUIRE(m.Insert(m.Make("gone"), {Json(R"({"_id":2})"), Json(R"({"_id":3})")}));
  m.Make("target");
  REQUIRE(m.catalog().Rename(*m.op, *m.Make("source"), "db", "target", true));
  REQUIRE(m.catalog().DropIndexes(*m.op, *m.Coll("c"), {"a_1"}));
  REQUIRE(m.catalog().ModifyIndex(*m.op, *m.Coll("c"), "t_1", [](IndexInfo& i) -> Result<void> {
    i.expire_after_seconds = 10;
    return Ok();
  }));
  REQUIRE(m.catalog().GetOrCreate(*m.op, "other", "x"));
  REQUIRE(m.catalog().DropDatabase(*m.op, "other"));
  REQUIRE(m.catalog().PutSetting(*m.op, "s", "value"));
  const std::string large(3'000'000, 'x');
  REQUIRE(m.Insert(m.Make("large"),
                   {BuildBson([&](BsonBuilder& b) { b.Append("_id", 1).Append("a", large); })}));
  MakeInTransaction(m);
}

}  // namespace

TEST_CASE("What the log says makes another member the same, in memory and on disk",
          "[replication]") {
  Member a;
  a.Lead();
  Workload(a);
  const size_t batch = GENERATE(1u, 3u, 1000u);
  Member b;
  Follow(a, b, batch);
  CHECK(Memory(*a.storage) == Memory(*b.storage));
  a.storage->impl().catalog->WaitForGarbage();
  b.storage->impl().catalog->WaitForGarbage();
  const auto want = Contents(*a.storage), got = Contents(*b.storage);
  for (const auto& [key, value] : want) {
    CAPTURE(key);
    if (!got.contains(key) || got.at(key) != value) FAIL_CHECK("missing or another value");
  }
  CHECK(want.size() == got.size());
  // What a start reads is what was in memory.
  const std::string before = Memory(*b.storage);
  b.Close();
  b.Open();
  CHECK(Memory(*b.storage) == before);
  for (const CollectionInfoPtr& c : b.catalog().ListAll()) {
    std::string bytes;
    BsonBuilder reply(bytes);
    REQUIRE(b.storage->Validate(*b.op, c, true, reply));
    reply.Done();
    CHECK(BsonView(bytes)["valid"].Bool());
  }
}

TEST_CASE("What is each member's own is in no log and has ids apart", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr own = a.catalog().GetOrCreate(*a.op, "local", "mine").value();
  CHECK(own->unreplicated);
  CHECK(own->id >= kFirstLocalId);
  REQUIRE(a.Insert(own, {Json(R"({"_id":1})")}));
  REQUIRE(a.catalog().PutLocalSetting(*a.op, "local/x", "1"));
  REQUIRE(a.Insert(a.Make("c"), {Json(R"({"_id":1})")}));
  Member b;
  Follow(a, b, 1);
  CHECK(b.catalog().Find("local", "mine") == nullptr);
  CHECK(b.catalog().GetSetting("local/x").value() == std::nullopt);
  REQUIRE(b.Coll("c"));
  CHECK(b.Coll("c")->id == a.Coll("c")->id);
  auto renamed = a.catalog().Rename(*a.op, *own, "db", "mine", false);
  REQUIRE_FALSE(renamed);
  CHECK(renamed.error().code == ErrorCode::kIllegalOperation);
}

TEST_CASE("An entry has the version of what is in it: documents as they were need 2",
          "[replication]") {
  Member a;
  a.Lead();
  CollectionInfo with;
  with.db = "db";
  with.name = "with";
  with.options = Json(R"({"changeStreamPreAndPostImages":{"enabled":true}})");
  with.pre_images = true;
  REQUIRE(a.catalog().Create(*a.op, with));
  const BsonDocument next = Json(R"({"_id":1,"a":2})");
  for (const char* name : {"without", "with"}) {
    REQUIRE(a.Insert(a.Make(name), {Json(R"({"_id":1})")}));
    REQUIRE(a.Change(a.Coll(name), R"({"_id":1})", &next));
    REQUIRE(a.Change(a.Coll(name), R"({"_id":1})", nullptr));
  }
  int plain = 0, images = 0;
  auto cursor = a.set->consensus().ReadLog();
  for (cursor->Seek(0); cursor->Valid(); cursor->Next()) {
    const CommittedEntry e = cursor->entry();
    if (e.kind != CommittedEntry::Kind::kData) continue;
    REQUIRE(ReadLogEntryHeader(e.data));
    std::string_view rest = e.data.substr(kLogEntryHeader);
    LogUnit u;
    bool before = false;
    while (ReadLogUnit(&rest, &u).value())
      for (const LogRecord& r : u.records) before |= !r.before.empty();
    CHECK(e.data[0] == (before ? 2 : 1));
    ++(before ? images : plain);
  }
  REQUIRE(cursor->status());
  CHECK(images == 2);
  CHECK(plain > 4);
}

TEST_CASE("A large unit is chunks and an end, and of chunks without an end nothing is left",
          "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  const std::string text(5'000'000, 'x');
  auto large = [&](int id) {
    return BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("text", text); });
  };
  const uint64_t before = a.set->consensus().Status().last.index;
  REQUIRE(a.Insert(c, {large(1), Json(R"({"_id":2})")}));
  int chunks = 0, ends = 0;
  LogPosition first;
  std::string chunk;
  auto cursor = a.set->consensus().ReadLog();
  for (cursor->Seek(before + 1); cursor->Valid(); cursor->Next()) {
    const CommittedEntry e = cursor->entry();
    if (IsLogChunk(e.data) && chunks++ == 0) {
      first = e.position;
      chunk = e.data;
    }
    if (!IsLogEnd(e.data)) continue;
    ++ends;
    const LogChunks of = ReadLogEnd(e.data).value();
    CHECK(of.indexes.front() == first.index);
    CHECK(of.indexes.size() == static_cast<size_t>(chunks));
    CHECK(of.bytes > text.size());
    std::vector<BsonDocument> shown;
    REQUIRE(ForEachOplogDocument(JoinFromLog(e.data, *a.set->consensus().ReadLog()).value(), 1,
                                 [&](uint64_t, BsonDocument d) { shown.push_back(std::move(d)); }));
    REQUIRE(shown.size() == 2);
    CHECK(shown[1].view()["o"].Document()["_id"].Int32() == 2);
  }
  CHECK(chunks > 4);
  CHECK(ends == 1);
  CHECK(Storage::DocumentCount(*c) == 2);
  CHECK(a.set->KeepLogFrom() == UINT64_MAX);
  REQUIRE(a.Change(c, R"({"_id":1})", nullptr));

  // What a leader left behind that died before the end: kept while its term lasts, also by a
  // member that starts meanwhile; then it means nothing.
  OpenUnits open, again;
  KvStore& kv = a.storage->kv();
  REQUIRE(open.Load(kv));
  auto apply = [&](LogPosition at, std::string_view data) {
    CommittedEntry e;
    e.position = at;
    e.data = data;
    if (data.empty()) e.kind = CommittedEntry::Kind::kNoop;
    auto batch = kv.NewBatch();
    open.Prepare({&e, 1}, *batch);
    REQUIRE(kv.Write(*batch, false));
    open.Applied();
  };
  std::string other;
  // One that its leader has given up is forgotten within the term, once or never heard of.
  EncodeLogChunk({1, 1}, 0, 0, "x", other);
  apply({3, 97}, other);
  CHECK(open.first_index() == 97);
  EncodeLogChunk({1, 1}, 0, kLogChunkGivenUp, {}, other);
  apply({3, 98}, other);
  CHECK(open.first_index() == UINT64_MAX);
  apply({3, 99}, other);
  CHECK(open.first_index() == UINT64_MAX);
  EncodeLogChunk({1, 1}, 0, 0, "x", other);
  apply({3, 100}, other);
  apply({3, 101}, chunk);
  apply({3, 102}, other);
  CHECK(open.first_index() == 100);
  REQUIRE(again.Load(kv));
  CHECK(again.first_index() == 100);
  EncodeLogEnd({1, 1}, 1, {2, {100, 102}}, other);
  apply({3, 103}, other);
  CHECK(open.first_index() == 101);
  apply({4, 104}, {});
  CHECK(open.first_index() == UINT64_MAX);
  REQUIRE(again.Load(kv));
  CHECK(again.first_index() == UINT64_MAX);
}

TEST_CASE("A large unit of a leader that stops leading is refused, and leaves nothing",
          "[replication]") {
  const bool goes_on = GENERATE(true, false);
  CAPTURE(goes_on);
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  const uint64_t term = a.set->consensus().Status().last.term;
  const std::string text(5'000'000, 'x');
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 4; ++i)
    docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("_id", i).Append("text", text); }));
  WriteUnit u(*a.storage, *a.op);
  for (const BsonDocument& d : docs) REQUIRE(u.Insert(*c, d));
  std::promise<Result<void>> ended;
  const uint64_t before = a.set->consensus().Status().last.index;
  a.storage->committer().Submit(std::move(u), {}, [&](Result<void> r) { ended.set_value(r); });
  while (a.set->consensus().Status().last.index < before + 3) std::this_thread::yield();
  a.set->committer().SetWritable(false);
  const Result<void> r = ended.get_future().get();
  if (!r) {
    CHECK(r.error().code == ErrorCode::kNotWritablePrimary);
    CHECK(Storage::DocumentCount(*c) == 0);
    CHECK(a.set->KeepLogFrom() < UINT64_MAX);
  }
  if (goes_on) {
    a.set->committer().SetWritable(true, term);
    // Its locks are free, and the next one is not disturbed by what the first one left.
    if (!r) REQUIRE(a.Insert(c, docs));
    CHECK(Storage::DocumentCount(*c) == 4);
    // The same term goes on, and the log says that the first one does not.
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (a.set->KeepLogFrom() < UINT64_MAX && std::chrono::steady_clock::now() < late)
      std::this_thread::yield();
    CHECK(a.set->KeepLogFrom() == UINT64_MAX);
    CHECK(a.set->consensus().Status().last.term == term);
  }
  // The next term forgets it.
  a.Close();
  a.Open();
  a.Lead();
  REQUIRE(a.Insert(a.Coll("c"), {Json(R"({"_id":"last"})")}));
  CHECK(a.set->KeepLogFrom() == UINT64_MAX);
  CHECK(Storage::DocumentCount(*a.Coll("c")) == (goes_on || r ? 5 : 1));
}

TEST_CASE("A member that does not lead refuses units and leaves nothing behind", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  a.set->committer().SetWritable(false);
  auto refused = a.Insert(c, {Json(R"({"_id":1})")});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kNotWritablePrimary);
  a.set->committer().SetWritable(true);
  REQUIRE(a.Insert(c, {Json(R"({"_id":1})")}));
  CHECK(Storage::DocumentCount(*c) == 1);
}

TEST_CASE("A transaction of an earlier time as primary is not committed in a later one",
          "[replication]") {
  Member a;
  a.Lead();
  const CollectionInfoPtr c = a.Make("c");
  const BsonDocument doc = Json(R"({"_id":1})");
  Txn before(a);
  REQUIRE(before.unit.Insert(*c, doc));
  a.set->committer().SetWritable(false);
  a.set->committer().SetWritable(true);
  const Result<void> r = before.Commit(a);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kNotWritablePrimary);
  // Its lock is free, and it was not written.
  Txn now(a);
  REQUIRE(now.unit.Insert(*c, doc));
  REQUIRE(now.Commit(a));
  CHECK(Storage::DocumentCount(*c) == 1);
}

TEST_CASE("Names and ids of what transactions make", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfo plain;
  plain.db = "db";
  plain.name = "x";
  auto code = [](const auto& r) { return r ? ErrorCode::kOk : r.error().code; };
  std::optional<Txn> first(std::in_place, a);
  const uint32_t id = CreateInTransaction(*a.storage, first->unit, first->op, plain).value()->id;
  // Another one that makes it fails at once; one that comes when the first is gone does not.
  {
    Txn second(a);
    CHECK(code(CreateInTransaction(*a.storage, second.unit, second.op, plain)) ==
          ErrorCode::kWriteConflict);
  }
  first.reset();
  CHECK(a.Coll("x") == nullptr);
  {
    Txn third(a);
    CHECK(CreateInTransaction(*a.storage, third.unit, third.op, plain).value()->id > id);
    // Whoever does not wait for it is first.
    REQUIRE(a.Make("x"));
    CHECK(code(third.Commit(a)) == ErrorCode::kWriteConflict);
  }
  // A start gives no id again, though nothing has the last ones.
  a.Close();
  a.Open();
  a.Lead();
  CHECK(a.Make("y")->id > id + 1);
}

TEST_CASE("Everything is there after the process was started again", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  for (int i = 0; i < 50; ++i)
    REQUIRE(a.Insert(c, {BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })}));
  const OpTime before = a.set->last_applied();
  a.Close();
  a.Open();
  a.Lead();
  CHECK(Storage::DocumentCount(*a.Coll("c")) == 50);
  CHECK(a.set->last_applied().ts >= before.ts);
  // A clock that was set back does not take the timestamps with it.
  a.clock.Set(Instant{1'000'000'000'000});
  REQUIRE(a.Insert(a.Coll("c"), {Json(R"({"_id":"later"})")}));
  CHECK(a.set->last_applied().ts > before.ts);
}

}  // namespace mayfly

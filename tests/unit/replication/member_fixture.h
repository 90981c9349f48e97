#pragma once
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "replication/open_units.h"
#include "replication/replica_set.h"
#include "storage/core/storage_impl.h"
#include "storage/kv/rocks_kv.h"
#include "storage/read/read_view.h"
#include "storage/schema/transaction_schema.h"
#include "storage/storage.h"
#include "storage/write/log_apply.h"
#include "tests/unit/patience.h"
#include "tests/unit/storage/storage_fixture.h"

/// One member of a set in this process, and a load that has every kind of entry in its log.
namespace mayfly::testing {

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
    o.noop_millis = [] { return int64_t{0}; };  // tests count entries
    auto primary = std::make_shared<std::promise<void>>();
    o.primary_changed = [primary, told = std::make_shared<bool>()](bool on) {
      if (on && !std::exchange(*told, true)) primary->set_value();
    };
    set = std::move(ReplicaSet::Open(std::move(o)).value());
    REQUIRE(set->Start());
    if (!set->topology()->config) REQUIRE(set->Initiate(std::nullopt));
    const test::Deadline deadline;
    REQUIRE(primary->get_future().wait_until(deadline.at) == std::future_status::ready);
    // Its own first entry comes from another thread: what tests count is behind it.
    while (!HasBegun() && deadline.Holds()) std::this_thread::yield();
    REQUIRE(HasBegun());
  }
  /// Whether the log has the entry with which a primary begins its term.
  bool HasBegun() {
    const uint64_t term = set->consensus().state().term;
    const auto log = set->consensus().ReadLog();
    for (log->Seek(0); log->Valid(); log->Next()) {
      const CommittedEntry e = log->entry();
      for (std::string_view message : {"initiating set", "new primary"})
        if (e.position.term == term && e.data.find(message) != std::string_view::npos) return true;
    }
    return false;
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
inline std::map<std::string, std::string> Contents(Storage& s) {
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
inline std::string Memory(Storage& s) {
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
inline void Follow(Member& from, Member& to, size_t batch) {
  LogApplier applier(*to.storage);
  auto cursor = from.set->consensus().ReadLog();
  std::vector<std::string> held;
  std::vector<uint64_t> terms;
  auto flush = [&] {
    if (held.empty()) return;
    std::vector<LogApplier::Entry> entries;
    for (size_t i = 0; i < held.size(); ++i) entries.push_back({.data = held[i], .term = terms[i]});
    auto kv_batch = to.storage->kv().NewBatch();
    REQUIRE(applier.Prepare(entries, *kv_batch));
    REQUIRE(to.storage->kv().Write(*kv_batch, false));
    applier.Applied(entries);
    held.clear();
    terms.clear();
  };
  for (cursor->Seek(0); cursor->Valid(); cursor->Next()) {
    const CommittedEntry e = cursor->entry();
    if (e.kind != CommittedEntry::Kind::kData || IsLogChunk(e.data)) continue;
    if (IsLogEnd(e.data))
      held.push_back(JoinFromLog(e.data, *from.set->consensus().ReadLog()).value());
    else
      held.emplace_back(e.data);
    terms.push_back(e.position.term);
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
inline void MakeInTransaction(Member& m) {
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

inline void Workload(Member& m) {
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

}  // namespace mayfly::testing

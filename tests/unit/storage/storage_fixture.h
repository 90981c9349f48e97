#pragma once
#include <catch2/catch.hpp>
#include <map>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/kv/rocks_fault_env.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "storage/write/write_unit_impl.h"
#include "tests/unit/scratch_dir.h"
#include "tests/unit/storage/short_forms.h"

namespace mayfly::testing {

/// Extended JSON without any space (the documents of these tests have none in strings).
template <class T>
std::string Text(T v) {
  std::string s = ToRelaxedJson(v);
  std::erase(s, ' ');
  return s;
}

/// A collection made by hand, so that the core is tested without the catalog.
struct TestCollection {
  std::shared_ptr<CollectionInfo> info = std::make_shared<CollectionInfo>();
  explicit TestCollection(uint32_t id = 1, std::string name = "c") {
    info->id = id;
    info->db = "db";
    info->name = name;
    info->ns = "db." + name;
    info->counters = std::make_shared<CollectionCounters>();
  }
  IndexInfoPtr AddIndex(uint32_t id, std::string_view key, bool unique = false) {
    auto index = std::make_shared<IndexInfo>();
    index->id = id;
    index->key = Json(key);
    index->unique = unique;
    for (const BsonElement& e : index->key.view()) {
      index->fields.push_back({std::string(e.name), e.value.NumberAsDouble() < 0, ""});
      index->name += (index->name.empty() ? "" : "_") + std::string(e.name) + "_" +
                     std::to_string(e.value.NumberAsInt64());
    }
    info->indexes.push_back(index);
    return index;
  }
  void MakeCapped() {
    info->kind = CollectionKind::kCapped;
    auto index = std::make_shared<IndexInfo>();
    index->id = 90;
    index->name = "_id_";
    index->key = Json(R"({"_id": 1})");
    index->unique = true;
    index->fields.push_back({"_id", false, ""});
    info->indexes.push_back(index);
  }
  const CollectionInfo& operator*() const { return *info; }
};

/// An open store with a disk that can fail.
struct TestStore {
  ScratchDir dir;
  SystemClock clock;
  std::unique_ptr<FaultDisk> disk = FaultDisk::Make();
  std::unique_ptr<Storage> storage;
  std::unique_ptr<Operation> op;

  explicit TestStore(bool open = true) {
    if (open) Open();
  }
  StorageOptions Options() {
    StorageOptions o;
    o.path = dir.path();
    o.cache_bytes = 32 << 20;
    o.clock = &clock;
    o.engine = MakeRocksEngine(disk->env());
    return o;
  }
  void Open() {
    auto opened = Storage::Open(Options());
    if (!opened) FAIL(opened.error().message);
    storage = std::move(opened.value());
    if (auto& catalog = storage->impl().catalog) {
      catalog->StopBackground();
      catalog.reset();
    }
    op = std::make_unique<Operation>(clock);
  }
  void Close() { storage.reset(); }
  /// The process dies; with `power_loss` so does what was not synced.
  void Crash(bool power_loss) {
    disk->CutPower();
    storage.reset();
    if (power_loss) REQUIRE(disk->DropUnsynced());
    disk->RestorePower();
    Open();
  }
  WriteUnit Unit() { return WriteUnit(*storage, *op); }
  Result<void> Commit(WriteUnit u, bool journal = false) {
    return storage->committer().Commit(std::move(u), {journal});
  }
  Result<void> Insert(const TestCollection& c, const BsonDocument& doc,
                      std::optional<Instant> expire_at = {}, bool journal = false) {
    WriteUnit u = Unit();
    MAYFLY_TRY(u.Insert(*c, doc, expire_at));
    return Commit(std::move(u), journal);
  }
  Result<void> Insert(const TestCollection& c, std::string_view json) {
    return Insert(c, Json(json));
  }
  /// Replaces the document with the same `_id`; NoMatchingDocument when it is gone.
  Result<void> Replace(const TestCollection& c, std::string_view json,
                       std::optional<Instant> expire_at = {}) {
    BsonDocument doc = Json(json);
    WriteUnit u = Unit();
    std::string key;
    Storage::AppendRecordKey(*c, doc.view().First().value, key);
    WriteUnit::Locked locked;
    MAYFLY_TRY(bool found, u.LockAndRead(*c, key, &locked));
    if (!found) return Error{ErrorCode::kNoMatchingDocument, "gone"};
    MAYFLY_TRY(u.Update(*c, locked, doc, expire_at));
    return Commit(std::move(u));
  }
  Result<bool> Remove(const TestCollection& c, std::string_view id_json) {
    BsonDocument id = Json(id_json);
    WriteUnit u = Unit();
    std::string key;
    Storage::AppendRecordKey(*c, id.view().First().value, key);
    WriteUnit::Locked locked;
    MAYFLY_TRY(bool found, u.LockAndRead(*c, key, &locked));
    if (!found) return false;
    MAYFLY_TRY(u.Delete(*c, locked));
    MAYFLY_TRY(Commit(std::move(u)));
    return true;
  }
  std::string Find(const TestCollection& c, std::string_view id_json) {
    BsonDocument id = Json(id_json);
    Storage::Record r;
    auto found = storage->FindById(*c, id.view().First().value, &r);
    if (!found) return found.error().message;
    return found.value() ? Text(r.doc) : "none";
  }
  std::vector<std::string> Scan(const TestCollection& c, RecordScan scan = {}) {
    std::vector<std::string> out;
    auto cursor = storage->ScanRecords(c.info, std::move(scan));
    while (cursor->Next().value()) out.push_back(Text(cursor->doc()));
    return out;
  }
  /// `_id` of each document in index order.
  std::vector<std::string> ScanIndex(const TestCollection& c, IndexInfoPtr index,
                                     IndexScan scan = {}) {
    std::vector<std::string> out;
    auto cursor = storage->ScanIndex(c.info, index, std::move(scan));
    while (cursor->Next().value()) {
      Storage::Record r;
      bool found = storage->Fetch(*c, cursor->record_key(), &r).value();
      out.push_back(found ? Text(r.doc.First().value) : "dangling");
    }
    return out;
  }
  size_t CountKeys(Keyspace ks) {
    size_t n = 0;
    auto it = storage->kv().NewIterator(ks, {});
    for (it->SeekToFirst(); it->Valid(); it->Next()) ++n;
    return n;
  }
  CounterRow Counters(const TestCollection& c) {
    PinnedValue v;
    CounterRow row;
    if (storage->kv().Get(Keyspace::kCatalog, CountersKey(c.info->id), &v).value())
      REQUIRE(DecodeCounterRow(v.view(), &row));
    return row;
  }
};

}  // namespace mayfly::testing

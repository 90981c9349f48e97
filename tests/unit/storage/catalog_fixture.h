#pragma once
#include <catch2/catch.hpp>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "storage/catalog/catalog.h"
#include "storage/catalog/catalog_format.h"
#include "storage/catalog/index_keys.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "tests/unit/scratch_dir.h"
#include "tests/unit/storage/short_forms.h"

namespace mayfly::testing {

/// A filter that storage's tests can compile: {f: v, …}, each by equal bytes; {f: {$exists: true}}.
class EqualFilter final : public RecordFilter {
 public:
  explicit EqualFilter(BsonView v) : doc_(v) {}
  bool Matches(BsonView doc) const override {
    for (const BsonElement& e : doc_.view()) {
      BsonValue v = doc.Find(e.name);
      if (e.value.IsDocument() && e.value.Document().Has("$exists")) {
        if (v.missing()) return false;
      } else if (!v.BinaryEquals(e.value)) {
        return false;
      }
    }
    return true;
  }

 private:
  BsonDocument doc_;
};

inline Result<std::shared_ptr<const RecordFilter>> CompileEqualFilter(BsonView filter, bool) {
  return std::shared_ptr<const RecordFilter>(std::make_shared<EqualFilter>(filter));
}

/// {key: {…}, unique: …, …} as createIndexes has it; the name is made from the key when there is
/// none.
inline IndexInfo Spec(std::string_view json) {
  BsonDocument d = Json(json);
  BsonView v = d;
  IndexInfo i;
  i.key = BsonDocument(v["key"].Document());
  i.fields = ParseIndexKey(i.key).value();
  i.kind = &KindOfKey(i.fields);
  if (v.Has("name")) {
    i.name = std::string(v["name"].String());
  } else {
    for (auto& f : i.fields) {
      i.name += (i.name.empty() ? "" : "_") + f.path + "_" + (f.descending ? "-1" : "1");
    }
  }
  i.unique = v["unique"].Truthy();
  i.sparse = v["sparse"].Truthy();
  if (v.Has("expireAfterSeconds")) i.expire_after_seconds = v["expireAfterSeconds"].NumberAsInt64();
  if (v.Has("partialFilterExpression")) {
    i.has_partial_filter = true;
    i.partial_filter = BsonDocument(v["partialFilterExpression"].Document());
    i.filter = CompileEqualFilter(i.partial_filter, true).value();
  }
  return i;
}

/// An open store with its catalog.
struct CatalogStore {
  ScratchDir dir;
  SystemClock clock;
  std::unique_ptr<Storage> storage;
  std::unique_ptr<Operation> op;

  CatalogStore() { Open(); }
  /// `disk`: a FaultDisk's env(), which outlives the store.
  void Open(const std::string& path = {}, void* disk = nullptr) {
    storage.reset();
    StorageOptions o;
    o.engine = MakeRocksEngine(disk);
    o.path = path.empty() ? dir.path() : path;
    o.cache_bytes = 32 << 20;
    o.clock = &clock;
    o.compile_filter = CompileEqualFilter;
    auto opened = Storage::Open(std::move(o));
    if (!opened) FAIL(opened.error().message);
    storage = std::move(opened.value());
    op = std::make_unique<Operation>(clock);
  }
  Catalog& catalog() { return storage->catalog(); }
  CollectionInfoPtr Coll(std::string_view name = "c") { return catalog().Find("db", name); }
  CollectionInfoPtr Make(std::string_view name = "c") {
    auto r = catalog().GetOrCreate(*op, "db", name);
    if (!r) FAIL(r.error().message);
    return r.value();
  }
  Result<CollectionInfoPtr> MakeCapped(int64_t bytes, int64_t documents, std::string name = "c") {
    CollectionInfo c;
    c.db = "db";
    c.name = name;
    c.kind = CollectionKind::kCapped;
    c.capped_bytes = bytes;
    c.capped_documents = documents;
    return catalog().Create(*op, std::move(c));
  }
  Result<void> Insert(const CollectionInfo& c, const BsonDocument& doc,
                      std::optional<Instant> expire_at = {}) {
    for (;;) {
      Operation o(clock);
      WriteUnit u(*storage, o);
      Result<void> r = u.Insert(c, doc, expire_at);
      if (r) r = storage->committer().Commit(std::move(u));
      if (r || r.error().code != ErrorCode::kWriteConflict) return r;
    }
  }
  Result<void> Insert(const CollectionInfo& c, std::string_view json,
                      std::optional<Instant> expire_at = {}) {
    return Insert(c, Json(json), expire_at);
  }
  /// Puts `next` in the place of the document with its `_id`, or removes it when `next` has nothing
  /// else.
  Result<bool> Change(const CollectionInfo& c, const BsonDocument& next, bool remove) {
    for (;;) {
      Operation o(clock);
      WriteUnit u(*storage, o);
      std::string key;
      Storage::AppendRecordKey(c, next.view().First().value, key);
      WriteUnit::Locked locked;
      Result<bool> found = u.LockAndRead(c, key, &locked);
      if (found && !found.value()) return false;
      Result<void> r = found ? Ok() : Result<void>(found.error());
      if (r) r = remove ? u.Delete(c, locked) : u.Update(c, locked, next);
      if (r) r = storage->committer().Commit(std::move(u));
      if (r) return true;
      if (r.error().code != ErrorCode::kWriteConflict) return r.error();
    }
  }
  std::vector<std::string> Scan(CollectionInfoPtr c) {
    std::vector<std::string> out;
    auto cursor = storage->ScanRecords(c, {});
    while (cursor->Next().value()) out.push_back(ToRelaxedJson(cursor->doc()));
    return out;
  }
  size_t CountEntries(const IndexInfo& index) { return CountPrefix(index.keyspace, index.id); }
  size_t CountPrefix(Keyspace ks, uint32_t id) {
    KvIterOptions o;
    o.lower = IdPrefix(id);
    o.upper = IdPrefixEnd(id);
    auto it = storage->kv().NewIterator(ks, std::move(o));
    size_t n = 0;
    for (it->SeekToFirst(); it->Valid(); it->Next()) ++n;
    return n;
  }
  size_t CountRows(std::string_view prefix) {
    KvIterOptions o;
    o.lower = std::string(prefix);
    o.upper = PrefixEnd(prefix);
    auto it = storage->kv().NewIterator(Keyspace::kCatalog, std::move(o));
    size_t n = 0;
    for (it->SeekToFirst(); it->Valid(); it->Next()) ++n;
    return n;
  }
  BsonDocument Validate(CollectionInfoPtr c) {
    std::string bytes;
    BsonBuilder b(bytes);
    auto r = storage->Validate(*op, c, true, b);
    b.Done();
    if (!r) FAIL(r.error().message);
    return BsonDocument(bytes);
  }
  void RequireValid(CollectionInfoPtr c) {
    BsonDocument d = Validate(c);
    INFO(ToRelaxedJson(d.view()));
    REQUIRE(d.view()["valid"].Bool());
    REQUIRE(d.view()["warnings"].Document().empty());
  }
  /// A directory as `kill -9` would leave it now: what was handed to the operating system is there.
  std::string CopyAsKilled() {
    std::string to = dir.path() + "-killed";
    // The store may remove a file while it is copied: that was no moment, so again.
    std::error_code vanished;
    do {
      std::filesystem::remove_all(to);
      std::filesystem::copy(dir.path(), to, std::filesystem::copy_options::recursive, vanished);
    } while (vanished == std::errc::no_such_file_or_directory);
    if (vanished) throw std::filesystem::filesystem_error("copy", vanished);
    std::filesystem::remove(to + "/LOCK");
    return to;
  }
};

inline ErrorCode CodeOf(const auto& result) { return result ? ErrorCode{} : result.error().code; }

}  // namespace mayfly::testing

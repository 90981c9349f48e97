#include "storage/storage.h"

#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/read/record_source.h"
#include "storage/write/local_committer.h"

namespace mayfly {
namespace {

/// A new store gets this version's row, and so does one of the version before, which lacks nothing
/// that this one reads; another version's is refused.
Result<void> CheckFormat(KvStore& kv, const std::string& path) {
  PinnedValue value;
  MAYFLY_TRY(bool found, kv.Get(Keyspace::kCatalog, kFormatKey, &value));
  if (!found) {
    auto it = kv.NewIterator(Keyspace::kCatalog, {});
    it->SeekToFirst();
    MAYFLY_TRY(it->status());
    if (it->Valid())
      return Error{
          ErrorCode::kUnsupportedFormat,
          "the data directory " + path + " has no format version: it was not written by Mayfly"};
  }
  if (!found || value.view() == kFormatBefore) {
    auto batch = kv.NewBatch();
    batch->Put(Keyspace::kCatalog, kFormatKey, kFormatVersion);
    return kv.Write(*batch, true);
  }
  if (value.view() != kFormatVersion)
    return Error{ErrorCode::kUnsupportedFormat,
                 "the data directory " + path + " has format version " +
                     std::string(value.view().substr(0, 32)) + "; this version reads " +
                     std::string(kFormatBefore) + " and " + std::string(kFormatVersion) + " only"};
  return Ok();
}

}  // namespace

const ReadView Storage::kNow;

Storage::Storage() : impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<Storage>> Storage::Open(StorageOptions options) {
  std::unique_ptr<Storage> storage(new Storage);
  Impl& impl = *storage->impl_;
  impl.options = std::move(options);
  impl.self = storage.get();
  impl.logged = impl.options.logged;
  KvOptions kv_options;
  kv_options.path = impl.options.path;
  kv_options.cache_bytes = impl.options.cache_bytes;
  kv_options.index_group = IndexGroupSize;
  kv_options.log = [&impl](char severity, std::string_view message) {
    impl.Log(severity, message);
  };
  if (impl.options.engine == nullptr)
    return Error{ErrorCode::kInternalError, "no kind of store was given to open"};
  MAYFLY_TRY(impl.kv, impl.options.engine->Open(std::move(kv_options)));
  MAYFLY_TRY(CheckFormat(*impl.kv, impl.options.path));
  impl.committer = std::make_unique<LocalCommitter>(impl, impl.options.sync_interval_ms);
  MAYFLY_TRY(impl.catalog, OpenCatalog(*storage));
  impl.catalog->StartBackground();
  return storage;
}

Storage::~Storage() {
  impl_->closing = true;
  if (impl_->catalog) impl_->catalog->StopBackground();
  impl_->committer.reset();
  impl_->catalog.reset();
  // Nothing to replay at the next open. A disk that is full keeps the log, which has it all.
  if (impl_->kv) (void)impl_->kv->Flush();
}

KvStore& Storage::kv() { return *impl_->kv; }
Catalog& Storage::catalog() { return *impl_->catalog; }
MemberCatalog& Storage::member_catalog() { return *impl_->catalog; }
Committer& Storage::committer() { return *impl_->committer; }
void Storage::set_committer(std::unique_ptr<Committer> committer) {
  impl_->committer = std::move(committer);
}
ExpiryWaker& Storage::expiry_waker() { return impl_->expiry_waker; }
ExpiryPolicy& Storage::expiry_policy() { return *impl_->expiry_policy; }
void Storage::set_expiry_policy(std::unique_ptr<ExpiryPolicy> policy) {
  impl_->expiry_policy = std::move(policy);
}
const Clock& Storage::clock() const { return *impl_->options.clock; }
void* Storage::QuerySlot(std::shared_ptr<void> (*make)()) {
  std::call_once(impl_->query_state_made, [&] { impl_->query_state = make(); });
  return impl_->query_state.get();
}
const StorageOptions& Storage::options() const { return impl_->options; }

void Storage::AppendRecordKey(const CollectionInfo& coll, BsonValue id, std::string& out) {
  AppendRecordKeyOfId(coll.id, id, out);
}

Result<bool> Storage::FindById(const CollectionInfo& coll, BsonValue id, Record* out,
                               const ReadView& view) {
  thread_local std::string key;  // keeps its memory from one call to the next
  key.clear();
  if (!coll.capped()) {
    AppendRecordKeyOfId(coll.id, id, key);
    return Fetch(coll, key, out, view);
  }
  if (coll.source) return false;  // its documents have no `_id`
  for (const IndexInfoPtr& index : coll.indexes) {
    if (!index->is_id()) continue;
    AppendBe32(key, index->id);
    AppendStoredValue(id, index->fields[0].descending, key.size(), key);
    MAYFLY_TRY(bool found, view.Get(*impl_->kv, index->keyspace, key, &out->pinned));
    if (!found) return false;
    std::string_view record_id, type_bits;
    if (!DecodeUniqueIndexValue(out->pinned.view(), &record_id, &type_bits))
      return DamagedRecord(coll);
    key.clear();
    AppendBe32(key, coll.id);
    key.append(record_id);
    return Fetch(coll, key, out, view);
  }
  return Error{ErrorCode::kInternalError, "the capped collection " + coll.ns + " has no _id index"};
}

Result<bool> Storage::Fetch(const CollectionInfo& coll, std::string_view record_key, Record* out,
                            const ReadView& view) {
  if (coll.source) [[unlikely]]
    return coll.source->Fetch(record_key, view, out);
  MAYFLY_TRY(bool found, view.Get(*impl_->kv, Keyspace::kRecords, record_key, &out->pinned));
  if (!found) return false;
  if (!DecodeRecord(out->pinned.view(), &out->doc, &out->expire_at)) [[unlikely]]
    return DamagedRecord(coll);
  return true;
}

uint64_t Storage::StorageBytes(const CollectionInfo& coll) {
  if (coll.source) return coll.source->Bytes();
  return impl_->kv->ApproximateBytes(Keyspace::kRecords, IdPrefix(coll.id), IdPrefixEnd(coll.id));
}

uint64_t Storage::IndexBytes(const CollectionInfo&, const IndexInfo& index) {
  return impl_->kv->ApproximateBytes(index.keyspace, IdPrefix(index.id), IdPrefixEnd(index.id));
}

}  // namespace mayfly

#include "storage/read/read_view.h"

#include "storage/catalog/catalog.h"
#include "storage/core/open_storage.h"
#include "storage/read/overlay.h"

namespace mayfly {

Result<bool> ReadView::GetOwn(KvStore& kv, Keyspace ks, std::string_view key,
                              PinnedValue* out) const {
  if (own_->closed()) return Overlay::ClosedError();
  std::string_view head, tail;
  switch (own_->Find(ks, key, own_until_, &head, &tail)) {
    case Overlay::State::kUnknown:
      return kv.Get(ks, key, out, snapshot_.get());
    case Overlay::State::kAbsent:
      out->Reset();
      return false;
    case Overlay::State::kPresent:
      break;
  }
  if (head.empty()) {
    out->Assign(tail);
  } else {
    std::string whole(head);
    whole.append(tail);
    out->Assign(whole);
  }
  return true;
}

Result<void> ReadView::MultiGetOwn(KvStore& kv, Keyspace ks, std::span<const std::string_view> keys,
                                   std::span<PinnedValue> out) const {
  // One by one: with own writes, most look-ups are few.
  for (size_t i = 0; i < keys.size(); ++i) {
    if (Result<bool> found = GetOwn(kv, ks, keys[i], &out[i]); !found) return found.error();
  }
  return Ok();
}

std::unique_ptr<KvIterator> ReadView::NewIterator(KvStore& kv, Keyspace ks,
                                                  KvIterOptions options) const {
  options.snapshot = snapshot_;
  if (own_ == nullptr) [[likely]]
    return kv.NewIterator(ks, std::move(options));
  const std::string lower = options.lower, upper = options.upper;
  return Merge(kv.NewIterator(ks, std::move(options)), ks, lower, upper);
}

std::unique_ptr<KvIterator> ReadView::Merge(std::unique_ptr<KvIterator> base, Keyspace ks,
                                            std::string_view lower, std::string_view upper) const {
  if (own_ == nullptr) [[likely]]
    return base;
  return own_->Over(std::move(base), own_until_, ks, lower, upper);
}

Result<CollectionInfoPtr> ReadView::Find(Catalog& catalog, std::string_view db,
                                         std::string_view collection) const {
  if (catalog_ == nullptr) return catalog.Find(db, collection);
  return catalog_->Find(db, collection);
}

uint64_t ReadView::OwnMultikey(const IndexInfo& index) const { return own_->Multikey(index); }

int64_t ReadView::OwnDocuments(const CollectionInfo& coll) const {
  return own_ == nullptr ? 0 : own_->Documents(coll);
}

bool ReadView::OwnDeadlines(const CollectionInfo& coll) const {
  return own_ != nullptr && own_->Deadlines(coll);
}

std::shared_ptr<ReadPoint> ReadPoint::Take(Storage& storage, uint64_t ts, Instant now) {
  std::shared_ptr<ReadPoint> p(new ReadPoint(ts, now));
  for (;;) {
    // What the catalog names must be in the store's part. It is, if nothing was dropped in between:
    // the data of what is dropped goes after the catalog has changed.
    p->catalog_ = storage.catalog().PinMoment();
    p->snapshot_ = storage.kv().Snapshot();
    if (storage.catalog().Version() == p->catalog_->version()) return p;
  }
}

ReadViewPtr ReadPoint::View() {
  std::lock_guard l(mutex_);
  if (snapshot_ == nullptr) return nullptr;
  return std::make_shared<const ReadView>(snapshot_, catalog_, shared_from_this());
}

void ReadPoint::Release() {
  KvSnapshotPtr snapshot;
  std::shared_ptr<const CatalogMoment> catalog;
  std::lock_guard l(mutex_);
  snapshot = std::move(snapshot_);
  catalog = std::move(catalog_);
}

bool ReadPoint::held() const {
  std::lock_guard l(mutex_);
  return snapshot_ != nullptr;
}

Result<CollectionInfoPtr> FindCollection(Catalog& catalog, const Operation& op, std::string_view db,
                                         std::string_view collection) {
  if (op.view == nullptr) [[likely]]
    return catalog.Find(db, collection);
  return op.view->Find(catalog, db, collection);
}

}  // namespace mayfly

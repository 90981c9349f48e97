#include "query/plan/index_filter.h"

#include "protocol/bson_compare.h"

namespace mayfly {

bool IndexFilter::Allows(std::string_view name, BsonView key) const {
  for (const BsonElement& e : indexes.view()) {
    if (e.value.IsString() ? e.value.String() == name
                           : e.value.IsDocument() && CompareDocuments(e.value.Document(), key) == 0)
      return true;
  }
  return false;
}

IndexFilters& IndexFilters::Global() {
  static auto* filters = new IndexFilters;  // outlives queries at exit
  return *filters;
}

std::shared_ptr<const IndexFilter> IndexFilters::Find(const Uuid& collection,
                                                      std::string_view shape) const {
  std::lock_guard l(mutex_);
  auto coll = filters_.find(collection);
  if (coll == filters_.end()) return nullptr;
  auto filter = coll->second.find(shape);
  return filter == coll->second.end() ? nullptr : filter->second;
}

void IndexFilters::Set(const Uuid& collection, std::string_view shape, IndexFilter filter) {
  std::lock_guard l(mutex_);
  auto& slot = filters_[collection][std::string(shape)];
  if (!slot) ++count_;
  slot = std::make_shared<const IndexFilter>(std::move(filter));
}

void IndexFilters::Clear(const Uuid& collection, const std::string* shape) {
  std::lock_guard l(mutex_);
  auto coll = filters_.find(collection);
  if (coll == filters_.end()) return;
  if (shape != nullptr) {
    count_ -= coll->second.erase(*shape);
  } else {
    count_ -= coll->second.size();
    coll->second.clear();
  }
  if (coll->second.empty()) filters_.erase(coll);
}

void IndexFilters::ForEach(const Uuid& collection,
                           const std::function<void(const IndexFilter&)>& f) const {
  std::lock_guard l(mutex_);
  auto coll = filters_.find(collection);
  if (coll == filters_.end()) return;
  for (const auto& [shape, filter] : coll->second) f(*filter);
}

}  // namespace mayfly

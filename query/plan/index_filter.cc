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

size_t IndexFilter::bytes() const {
  return query.view().size() + sort.view().size() + projection.view().size() +
         indexes.view().size();
}

std::shared_ptr<const IndexFilter> IndexFilters::Find(const Uuid& collection,
                                                      std::string_view shape) const {
  std::lock_guard l(mutex_);
  auto coll = filters_.find(collection);
  if (coll == filters_.end()) return nullptr;
  auto filter = coll->second.filters.find(shape);
  return filter == coll->second.filters.end() ? nullptr : filter->second;
}

void IndexFilters::ForgetDropped() {
  for (auto coll = filters_.begin(); coll != filters_.end();) {
    if (coll->second.alive.expired()) {
      count_ -= coll->second.filters.size();
      coll = filters_.erase(coll);
    } else {
      ++coll;
    }
  }
}

Result<void> IndexFilters::Set(const CollectionInfo& collection, std::string_view shape,
                               IndexFilter filter) {
  if (const size_t bytes = shape.size() + filter.bytes(); bytes > kMaxBytes)
    return Error{ErrorCode::kBSONObjectTooLarge,
                 "an index filter takes " + std::to_string(kMaxBytes) +
                     " bytes at most, with its query, sort, projection and indexes; this one has " +
                     std::to_string(bytes)};
  std::lock_guard l(mutex_);
  ForgetDropped();
  auto of = filters_.find(collection.uuid);
  if (of == filters_.end() || !of->second.filters.contains(shape)) {
    if (of != filters_.end() && of->second.filters.size() >= kMaxOfCollection)
      return Error{ErrorCode::kExceededMemoryLimit,
                   "a collection has " + std::to_string(kMaxOfCollection) +
                       " index filters at most: take some away with planCacheClearFilters"};
    if (count_ >= kMax)
      return Error{ErrorCode::kExceededMemoryLimit,
                   "there are " + std::to_string(kMax) +
                       " index filters at most, of all collections: take some away with "
                       "planCacheClearFilters"};
    ++count_;
  }
  OfCollection& slot = filters_[collection.uuid];
  slot.alive = collection.counters;
  slot.filters.insert_or_assign(std::string(shape),
                                std::make_shared<const IndexFilter>(std::move(filter)));
  return Ok();
}

void IndexFilters::Clear(const Uuid& collection, const std::string* shape) {
  std::lock_guard l(mutex_);
  auto coll = filters_.find(collection);
  if (coll == filters_.end()) return;
  if (shape != nullptr) {
    count_ -= coll->second.filters.erase(*shape);
  } else {
    count_ -= coll->second.filters.size();
    coll->second.filters.clear();
  }
  if (coll->second.filters.empty()) filters_.erase(coll);
}

void IndexFilters::ForEach(const Uuid& collection,
                           const std::function<void(const IndexFilter&)>& f) const {
  std::lock_guard l(mutex_);
  auto coll = filters_.find(collection);
  if (coll == filters_.end()) return;
  for (const auto& [shape, filter] : coll->second.filters) f(*filter);
}

}  // namespace mayfly

#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// Which indexes the planner may use for queries of one shape (manual: "Index Filters"). Set by
/// planCacheSetFilter, in memory only: gone with the process.
struct IndexFilter {
  BsonDocument query, sort, projection;
  BsonDocument indexes;  ///< an array of names and key patterns
  /// Whether the index is one of them.
  bool Allows(std::string_view name, BsonView key) const;
  size_t bytes() const;
};

/// All index filters of a store. Threads: any.
class IndexFilters {
 public:
  /// The limits for one collection (so that planCacheListFilters can show them all) and for all. A
  /// filter with its shape takes kMaxBytes at most.
  static constexpr size_t kMaxOfCollection = 500, kMax = 5000, kMaxBytes = 16 * 1024;

  /// Whether there is any: queries ask no further while there is none.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  /// `shape`: as QueryShape makes it. Null: none.
  std::shared_ptr<const IndexFilter> Find(const Uuid& collection, std::string_view shape) const;
  /// Errors: BSONObjectTooLarge 10334, ExceededMemoryLimit 146.
  Result<void> Set(const CollectionInfo& collection, std::string_view shape, IndexFilter filter);
  /// Removes the filter of one shape, or all of the collection's.
  void Clear(const Uuid& collection, const std::string* shape);
  void ForEach(const Uuid& collection, const std::function<void(const IndexFilter&)>& f) const;

 private:
  struct OfCollection {
    std::weak_ptr<const void> alive;  ///< ends with the last version of the collection's definition
    std::map<std::string, std::shared_ptr<const IndexFilter>, std::less<>> filters;
  };
  void ForgetDropped();  // REQUIRES: mutex_

  std::atomic<size_t> count_{0};
  mutable std::mutex mutex_;
  std::map<Uuid, OfCollection> filters_;
};

}  // namespace mayfly

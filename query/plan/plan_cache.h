#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "protocol/bson_view.h"
#include "protocol/seeded_hash.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

class MatchExpression;

/// The common part of queries with the same candidates: filter without its constants (null: none),
/// sort, projection.
std::string QueryShape(const MatchExpression* filter, BsonView sort, BsonView projection);

/// The winner of the last trial, by collection and query shape. An entry is valid only for the
/// definition of the collection it was made with: a change of indexes or options makes a new
/// CollectionInfo and so ends it. One per store; threads: any. Bounded by count and bytes: the
/// least recently used entry goes; a shape of more than kMaxEntryBytes is not kept.
class PlanCache {
 public:
  struct Entry {
    std::string signature;      ///< of the candidate
    int64_t works = 0;          ///< what it took in the trial
    BsonDocument created_from;  ///< {query, sort, projection}
    int64_t created_millis = 0;
    uint32_t shape_hash = 0;
  };

  /// Counts as a use. An entry of another definition of the collection is dropped and not found.
  std::optional<Entry> Find(const CollectionInfoPtr& coll, std::string_view shape);
  /// Replaces what was there for the shape. Too large an entry is not kept, and that is no error.
  void Put(const CollectionInfoPtr& coll, std::string_view shape, Entry entry);
  /// For the shape alone; nothing happens when there is no entry.
  void Remove(const CollectionInfoPtr& coll, std::string_view shape);
  /// Everything of the collection, by its UUID: entries of earlier definitions too.
  void Clear(const CollectionInfo& coll);
  /// The entries of this very definition, last used first. Holds the lock: `f` must not call back.
  void ForEach(const CollectionInfo& coll, const std::function<void(const Entry&)>& f);

 private:
  struct Slot {
    /// What the entry counts towards kMaxEntryBytes and kMaxBytes: an estimate, not exact.
    size_t bytes() const;
    std::string key;
    std::weak_ptr<const CollectionInfo> coll;
    Uuid uuid;
    Entry entry;
  };
  static std::string Key(const CollectionInfo& coll, std::string_view shape);
  static constexpr size_t kMaxEntries = 5000, kMaxEntryBytes = size_t{256} << 10,
                          kMaxBytes = size_t{32} << 20;
  void Drop(std::list<Slot>::iterator slot);  // REQUIRES: mutex_

  std::mutex mutex_;
  size_t bytes_ = 0;       ///< of all slots
  std::list<Slot> slots_;  ///< most recently used first
  ClientViewMap<std::list<Slot>::iterator> by_key_;
};

/// FNV-1a, folded to 32 bits: planCacheShapeHash and planCacheKey.
uint32_t ShapeHash(std::string_view bytes);
std::string HashText(uint32_t hash);  ///< eight hexadecimal digits, upper case

}  // namespace mayfly

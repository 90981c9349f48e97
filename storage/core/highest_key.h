#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "storage/catalog/catalog_types.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// The highest record key that a collection may have. An insert above it needs no look-up to know
/// that its `_id` is free, and that is what most inserts are: generated ids and counters grow. It
/// is correct only if every new record is reported to it before its lock is released; on a member
/// of a replica set the log brings others. Threads: any.
class HighestKey {
 public:
  /// Whether no record can have this key, which its writer has locked and may stage. Afterwards the
  /// highest key is not below it. False also if unknown.
  bool Passes(KvStore& kv, uint32_t collection, std::string_view key);

 private:
  /// Finds the highest record that is stored. False when there are too many deleted ones behind it.
  bool Look(KvStore& kv, uint32_t collection);

  std::mutex mutex_;
  std::string highest_;  ///< of reported keys; once known_, also of stored ones
  bool known_ = false;
  int wait_ = 8;  ///< inserts until the next Look: a small collection is not worth one
};

/// Those of a store, by collection. Threads: any.
class HighestKeys {
 public:
  /// The object of this collection's present definition, created if missing. Never null.
  std::shared_ptr<HighestKey> Of(const CollectionInfo& coll);

 private:
  struct Entry {
    std::weak_ptr<const void> collection;  ///< gone with its definitions: so is the entry, later
    std::shared_ptr<HighestKey> key;
  };
  std::mutex mutex_;
  std::unordered_map<uint32_t, Entry> entries_;
  size_t sweep_at_ = 64;
};

}  // namespace mayfly

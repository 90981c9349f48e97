#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "storage/core/open_storage.h"
#include "storage/read/read_view.h"

namespace mayfly {

/// Records looked up together, which costs about half as much each as one by one. Reusable; not
/// thread-safe.
class RecordBatch {
 public:
  /// One record of the batch.
  struct Entry {
    bool found = false;
    BsonView doc;  ///< valid until Reset or the next Fetch
    std::optional<Instant> expire_at;
  };
  /// `record_keys`: full keys in Keyspace::kRecords. Errors: those of the store; InternalError 1
  /// for a damaged record.
  Result<void> Fetch(Storage& storage, const CollectionInfo& coll,
                     std::span<const std::string_view> record_keys, const ReadView& view);
  size_t size() const { return entries_.size(); }
  const Entry& operator[](size_t i) const { return entries_[i]; }
  /// Releases the records.
  void Reset();

 private:
  std::vector<PinnedValue> pinned_;
  std::vector<Entry> entries_;
};

}  // namespace mayfly

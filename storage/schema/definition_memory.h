#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// The most bytes that the definitions of a catalog may keep in memory, as `catalogMaxBytes` says;
/// 0: a quarter of what large values may take. One for the process, whose memory it is about.
std::atomic<int64_t>& DefinitionLimit();

/// Bytes of memory that this version of a collection's definition keeps with all its indexes: the
/// structures, and every document in it as often as it is there. Not its compiled filters, which
/// count themselves (large_memory::Budget::compiled_filter_bytes).
int64_t DefinitionBytes(const CollectionInfo& coll);

/// Frees the unused capacity of its documents, whose builders grew by doubling.
void FitDefinition(CollectionInfo& coll);

/// What the definitions of one catalog keep in memory: those in its maps, those of transactions,
/// and earlier ones for as long as somebody holds them. Threads: any.
class DefinitionMemory {
 public:
  /// MongoDB keeps a collection with its indexes in one document, which bounds it by the size of a
  /// document.
  static constexpr int64_t kMaxDefinition = int64_t{16} << 20;

  /// The same definition, which counts until the last pointer to it has gone. Nobody may change it
  /// any more.
  CollectionInfoPtr Charge(CollectionInfoPtr coll) const;
  /// Bytes that are charged now.
  int64_t bytes() const { return bytes_->load(std::memory_order_relaxed); }
  /// Those of one database.
  int64_t BytesOf(std::string_view db) const;
  /// What may be charged, with compiled filters.
  static int64_t Most();
  /// Whether `after` may replace `before` (null: none). Always allowed: a definition that needs at
  /// most half of the replaced one, and a small one that does not grow. So a full catalog can be
  /// made smaller, and expiry and indexes can be changed. One database may take three quarters, and
  /// of the last quarter no more than is then left for all others: whoever owns a database can
  /// never keep others from making a collection. REQUIRES: both are charged. Errors:
  /// BSONObjectTooLarge 10334 for the one, ExceededMemoryLimit 146 for the database, and for all
  /// together.
  Result<void> Check(const CollectionInfo* before, const CollectionInfo& after) const;

 private:
  using Total = std::shared_ptr<std::atomic<int64_t>>;
  struct Charged;
  /// The total of the database, which lives as long as something is charged to it.
  Total TotalOf(const std::string& db) const;

  /// Shared with what is charged, which may outlive the catalog.
  Total bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::weak_ptr<std::atomic<int64_t>>, std::less<>> of_database_;
  mutable size_t look_at_ = 64;  ///< entries at which those without a total are removed
};

}  // namespace mayfly

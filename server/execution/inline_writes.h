#pragma once
#include <cstdint>

#include "protocol/error.h"
#include "server/execution/write_ops.h"
#include "storage/operation.h"

namespace mayfly {

/// Whether an update is cheap on any document of up to 64 KiB, whatever its content. Not:
/// pipelines, array filters, conditions and patterns in $pull, $sort, places far behind the end of
/// an array, many paths. Decided before any parsing. `*compares`: bytes of operands compared with
/// each element of an array; see CompareInline.
bool MayUpdateInline(const UpdateStatement& s, size_t* compares);

/// Whether this many bytes may be compared with each element of an array in the document.
inline bool CompareInline(size_t compares, size_t document_bytes) {
  return compares * document_bytes <= (size_t{1} << 20);
}

/// Whether it is cheap to decide if a document of the collection is past its deadline: there are
/// few rules, and each needs only a short look-up.
bool ExpiryIsShort(const CollectionInfo& coll);

/// A document larger than this takes longer to read than an io thread may be held.
inline constexpr int64_t kLongRead = 1 << 20;
/// How long after one was met all documents of its collection are read by workers: to learn how
/// large a document is means to read it.
inline constexpr int64_t kLargeRestMillis = 60'000;

/// Whether one document of the collection may be read on an io thread: documents are not large on
/// average, and no such read has met a large one lately.
inline bool ReadIsShort(const CollectionInfo& coll, Instant now) {
  const CollectionCounters& c = *coll.counters;
  if (const int64_t met = c.met_large.load(std::memory_order_relaxed);
      met != 0 && now.millis - met < kLargeRestMillis) [[unlikely]]
    return false;
  const int64_t bytes = c.bytes.load(std::memory_order_relaxed);
  return bytes <= kLongRead || bytes / kLongRead < c.documents.load(std::memory_order_relaxed);
}

/// A read on an io thread has met a document of this size.
inline void MetDocument(const CollectionInfo& coll, size_t bytes, Instant now) {
  if (bytes > size_t{kLongRead})
    coll.counters->met_large.store(now.millis, std::memory_order_relaxed);
}

}  // namespace mayfly

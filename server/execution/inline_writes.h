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

}  // namespace mayfly

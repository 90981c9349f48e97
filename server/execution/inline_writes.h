#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "protocol/error.h"
#include "server/execution/write_ops.h"
#include "storage/operation.h"

namespace mayfly {

/// Whether what an update asks for costs little on any document of up to 64 KiB, whatever it holds.
/// Not: pipelines, array filters, conditions and patterns in $pull, $sort, places far behind the
/// end of an array, many paths. Known before anything of it is parsed. `*compares`: bytes of what
/// is compared with each element of an array; see CompareInline.
bool MayUpdateInline(const UpdateStatement& s, size_t* compares);

/// Whether so many bytes may be compared with each element of an array in a document of so many.
inline bool CompareInline(size_t compares, size_t document_bytes) {
  return compares * document_bytes <= (size_t{1} << 20);
}

/// Whether it is cheap to decide if a document of the collection is past its deadline: there are
/// few rules, and each needs only a short look-up.
bool ExpiryIsShort(const CollectionInfo& coll);

/// A turn to stage and commit a unit of a large insert. Only a few units have a turn at the same
/// time, because each needs a multiple of its documents' memory, and more of them in parallel would
/// not be faster. Turns are given in order of arrival. Documents are validated before, without a
/// turn. Threads: any; blocking.
class LargeTurn {
 public:
  LargeTurn() = default;
  LargeTurn(const LargeTurn&) = delete;
  ~LargeTurn() { Give(); }
  /// Errors: those of CheckInterrupt.
  Result<void> Take(Operation& op);
  void Give();

 private:
  bool held_ = false;
};

}  // namespace mayfly

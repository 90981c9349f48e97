#pragma once
#include <cstdint>

#include "storage/kv/kv.h"

namespace mayfly {

/// A batch that knows by which number it was written. Threads: as KvBatch.
class NumberedBatch {
 public:
  /// After KvStore::Write: KvStore::LatestSequence of the moment when it became visible, whatever
  /// others have written since. 0: it was not written, or is empty.
  virtual uint64_t Number() const = 0;

 protected:
  ~NumberedBatch() = default;
};

/// Number of a batch that has been written; 0: its store does not say.
inline uint64_t NumberOf(const KvBatch& batch) {
  const auto* numbered = dynamic_cast<const NumberedBatch*>(&batch);
  return numbered == nullptr ? 0 : numbered->Number();
}

}  // namespace mayfly

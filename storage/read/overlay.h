#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// Changes that are not committed yet, as a ReadView lays them over what is stored. Made by a write
/// unit (storage/write/own_writes.h). What is numbered higher than `until` is not seen.
/// Threads: one at a time, the unit's.
class Overlay {
 public:
  virtual ~Overlay() = default;

  enum class State : uint8_t { kUnknown, kAbsent, kPresent };  ///< kUnknown: ask the store
  /// The newest version of the key. The value is *head and *tail together; they live as long as the
  /// unit.
  virtual State Find(Keyspace ks, std::string_view key, uint32_t until, std::string_view* head,
                     std::string_view* tail) = 0;
  /// `base` with the changes over it, in key order, in both directions. `lower`, `upper`: as in
  /// KvIterOptions; those of `base`.
  virtual std::unique_ptr<KvIterator> Over(std::unique_ptr<KvIterator> base, uint32_t until,
                                           Keyspace ks, std::string_view lower,
                                           std::string_view upper) = 0;
  /// Fields of the index that have met an array.
  virtual uint64_t Multikey(const IndexInfo& index) const = 0;
  /// By how much the number of the collection's documents changes.
  virtual int64_t Documents(const CollectionInfo& coll) const = 0;
  /// Whether a document of the collection got a deadline of its own.
  virtual bool Deadlines(const CollectionInfo& coll) const = 0;

  /// The unit has ended: nothing can be read any more.
  virtual bool closed() const = 0;
  static Error ClosedError() {
    return {ErrorCode::kInternalError, "the write unit that is read from has ended"};
  }
};

}  // namespace mayfly

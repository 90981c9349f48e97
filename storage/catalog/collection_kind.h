#pragma once
#include <cstdint>
#include <iterator>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

struct CollectionInfo;

/// What a collection is. A new kind is a line here, a row in kCollectionTraits, and a column in
/// what RefuseUse answers. Not stored: the rows of the catalog say it by their fields.
enum class CollectionKind : uint8_t {
  kOrdinary,         ///< records in `_id` order
  kCapped,           ///< records in the order of insertion, limited
  kClustered,        ///< made with clusteredIndex
  kCappedClustered,  ///< MongoDB's own; `create` makes none
  kView,             ///< a pipeline over another collection
  kOplog,            ///< shows the replication log; its documents come from a RecordSource
  kTimeSeries,       ///< points, which a pipeline takes out of its buckets
  kBuckets,          ///< the buckets of a time series, in the order of their lower bounds
};

/// The traits of all collections of a kind.
struct CollectionTraits {
  std::string_view type;   ///< in listCollections
  bool capped;             ///< keyed by insertion number; `_id` has an index of its own
  bool clustered;          ///< has the options of a clustered index
  bool pipeline;           ///< what reads see comes from a pipeline
  bool stored;             ///< has rows, counters and indexes in the store
  bool implicit_id_index;  ///< shows `_id_` although there is none: the record key is it
};
inline constexpr CollectionTraits kCollectionTraits[] = {
    {"collection", false, false, false, true, true},
    {"collection", true, false, false, true, false},
    {"collection", false, true, false, true, false},
    {"collection", true, true, false, true, false},
    {"view", false, false, true, false, false},
    {"collection", true, false, false, false, false},
    {"timeseries", false, false, true, false, false},
    {"collection", false, true, false, true, true},
};
/// The row of a kind. REQUIRES: one of the enumerators; nothing is checked.
constexpr const CollectionTraits& TraitsOf(CollectionKind kind) {
  return kCollectionTraits[static_cast<uint8_t>(kind)];
}
/// The kinds for which `member` is true, a bit each: for checks on hot paths.
constexpr uint8_t KindsWith(bool CollectionTraits::*member) {
  uint8_t bits = 0;
  static_assert(std::size(kCollectionTraits) <= 8);
  for (uint8_t k = 0; k < std::size(kCollectionTraits); ++k)
    if (kCollectionTraits[k].*member) bits |= static_cast<uint8_t>(1u << k);
  return bits;
}

/// An intended use of a collection. Reads are not among them: every kind can be
/// read.
enum class CollectionUse : uint8_t {
  kWrite,          ///< documents; it may be absent
  kReplace,        ///< be replaced by the result of $out; it may be absent
  kWatch,          ///< a change stream; it may be absent
  kStatistics,     ///< sizes and counts; it may be absent
  kCreateIndexes,  ///< it may be absent
  kExplain,        ///< a command that reads or writes records; it may be absent
  kIndexes,        ///< its indexes and rules of expiry
  kChange,         ///< its definition
  kRename,
  kConvertToCapped,
  kCompact,
  kValidate,
  kArchiveInto,  ///< be the archive of another collection
};

/// Out of line: the answer for collections of special kinds. For uses of a time series' indexes or
/// statistics, to compact or to validate it, OpenCollection opens its buckets.
Result<void> RefuseUse(const CollectionInfo& coll, CollectionUse use);

}  // namespace mayfly

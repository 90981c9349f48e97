#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "query/plan/interval.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// The part of an index that a scan visits: one list of intervals a field, all of them to be
/// satisfied; or one range of whole keys (`min` and `max` of a query).
struct IndexBounds {
  std::vector<IntervalList> fields;
  bool whole_key_range = false;
  BsonDocument min, max;  ///< with whole_key_range; min inclusive, max exclusive, empty: none

  /// True when no key can be inside.
  bool IsEmpty() const;
  /// Every field is one value.
  bool AllSinglePoints() const;
  /// explain's indexBounds: {a: ["[1, 1]"], …}, turned round for a backward scan. Of a field's
  /// intervals so many bytes are shown: a plan may have many stages, and is shown several times.
  static constexpr size_t kMaxExplained = 64 * 1024;
  void Explain(const IndexInfo& index, bool backward, BsonBuilder& out) const;
};

/// The byte string after every string that begins with `prefix`; empty when there is none.
std::string PrefixSuccessor(std::string_view prefix);

/// IndexBounds in the encoding of index keys: the byte range to scan, and for each key met there
/// whether it is inside, and if not, where to go on. Immutable but for its scratch space; one
/// thread.
class EncodedBounds {
 public:
  EncodedBounds(const IndexBounds& bounds, const IndexInfo& index, bool backward);

  bool empty() const { return empty_; }
  /// Every key in [lower, upper) is inside: no check needed.
  bool contiguous() const { return contiguous_; }
  const std::string& lower() const { return lower_; }
  const std::string& upper() const { return upper_; }  ///< empty: to the end

  enum class Verdict : uint8_t { kInside, kSeek, kEnd };
  /// kSeek: no key between this one and `*seek` (in scan direction) is inside.
  Verdict Check(std::string_view encoded, std::string* seek) const;

 private:
  struct Range {
    std::string low, high;  ///< in byte order, whatever the direction of the field
    bool low_inclusive, high_inclusive;
    /// Leaves so many bytes of each end, and takes in all values that begin with them: how much of
    /// a longer one is in a key depends on the values before it, and the rest has no order
    /// (AppendStoredValue). BoundsOf calls no such bounds exact.
    void Widen(size_t longest);
  };
  struct Field {
    std::vector<Range> ranges;
    bool descending;
    bool full;
  };
  bool EncodeOneValue(const IndexBounds& bounds, const IndexInfo& index, size_t used);
  Verdict SeekForward(std::string_view encoded, size_t at, size_t field, const Range* target,
                      std::string* seek) const;
  Verdict SeekBackward(std::string_view encoded, size_t at, const Range* target,
                       std::string* seek) const;

  std::vector<Field> fields_;  ///< up to the last one that is not full
  std::string lower_, upper_;
  bool backward_, empty_ = false, contiguous_ = false;
};

/// Encoded key of `doc`'s values in the order of the index's fields (names ignored), for `min` and
/// `max`.
std::string EncodeWholeKey(const IndexInfo& index, BsonView values);

}  // namespace mayfly

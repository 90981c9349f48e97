#pragma once
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "timeseries/integer_stream.h"

namespace mayfly {

/// Values of any BSON types, type by type: the values of each type form a separate stream, and a
/// stream of small integers gives the order of the types.
///
///   column  := kinds:u8 type:u8{kinds} [which:integers] stream{kinds}   which: if kinds > 1
///            | 0:u8                                each value is the bucket's meta value
///   stream  := (nothing)                           null, undefined, MinKey, MaxKey
///            | integers                            bool, int32, int64, date, timestamp
///            | doubles
///            | seconds:integers middle:integers counter:integers       objectId: 4, 5 and 3 bytes,
///                                                                      big-endian
///            | texts                               all others
///   texts   := 0:u8 lengths:integers bytes:compressed                  one after the other
///            | 1:u8 n:varint lengths:integers bytes:compressed which:integers     n different ones
///
/// What stands for a string, code or symbol is its text without length and NUL; for other values
/// of the last kind the bytes that BSON has.
/// REQUIRES: values of validated documents, none missing, at most kMaxColumnValues.
/// `meta`: the bucket's; a column that is equal to it in each value, and for which `is_meta`, takes
/// one byte.
void PutColumn(std::string& out, std::span<const BsonValue> values, bool is_meta, BsonValue meta);

/// The values of one column and the bytes that they are views of. Moving it keeps the views valid.
class ColumnValues {
 public:
  ColumnValues() = default;
  ColumnValues(ColumnValues&&) = default;
  ColumnValues& operator=(ColumnValues&&) = default;

  /// The value at this place of the column. REQUIRES: it was asked for.
  BsonValue At(size_t place) const { return values_[place - first_]; }
  /// Those from the place first() on.
  std::span<const BsonValue> values() const { return values_; }
  size_t first() const { return first_; }

 private:
  friend class ColumnDecoder;
  size_t first_ = 0;
  std::vector<BsonValue> values_;
  std::deque<std::string> bytes_;  ///< a deque: its strings never move
};

/// `count` values that PutColumn wrote, which must be all that `bytes` holds: those from the place
/// `from` to before `until`, or more. Each value has been checked as ValidateBson would, UTF-8 aside; documents may nest
/// `max_nesting` levels. `meta` must outlive the result. REQUIRES: count <= kMaxColumnValues.
/// Errors: damage, budget.
Result<ColumnValues> TakeColumn(std::string_view bytes, size_t count, BsonValue meta,
                                int max_nesting, DecodeBudget& budget,
                                size_t until = kMaxColumnValues, size_t from = 0);

/// Whether `bytes` are one value of this type, as ValidateBson would say, UTF-8 aside.
bool ValidValue(BsonType type, std::string_view bytes, int max_nesting);

}  // namespace mayfly

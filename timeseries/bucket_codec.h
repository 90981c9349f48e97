#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "timeseries/point_columns.h"
#include "timeseries/value_column.h"

namespace mayfly {

/// The most points in a bucket, and the most bytes as BSON: sealing stays far below, and a decoder
/// never exceeds them.
inline constexpr size_t kMaxBucketPoints = 1 << 16;
inline constexpr size_t kMaxBucketBytes = 48 << 20;

/// A sealed bucket: the points of one meta value within one span, by columns. Points are encoded in
/// the given order; decoding returns the same bytes in the same order. Each point's meta value
/// should be `meta` (missing: the field is missing); any other value is kept as well. REQUIRES:
/// validated documents. Errors: InternalError beyond the limits above, 146 without memory for what
/// is kept of each value. Threads: any.
///
///   points  := 1:u8 0:u8 n:varint bytes:compressed                as rows: BSON, one after the other
///            | 1:u8 2:u8 n:varint name:text bytes:compressed      rows without their meta value: the
///                                                              first field `name` of each is null
///                                                              and stands for the bucket's
///            | 1:u8 1:u8 n:varint paths shapes [shape:integers] sizes column*
///                                                              shape: of each point, if several
///   paths   := n:varint (parent:varint name:text)*             paths 1 .. n; 0 is the point, and
///                                                              parent < the path's own number
///   shapes  := n:varint (steps:varint step:varint*)*
///   step    := 2 * path                                        a value, the next of that column
///            | 2 * path + 1                                    a document begins
///            | 1                                               the innermost document ends
///   sizes   := size:varint*                                    one for each path with a column
///
/// A path has a column when a step of a shape that is used names a value of it; the columns stand in
/// the order of the paths. `integers`, `compressed`, `column`: see integer_stream.h, bucket_bytes.h,
/// value_column.h.
Result<std::string> SealPoints(std::span<const BsonView> points, const SeriesFields& fields,
                               BsonValue meta);
/// Points as rows that are not compressed: what an insert writes, which costs a copy. REQUIRES: as
/// SealPoints; each point's first value of the meta field has the bytes of `meta`.
Result<std::string> RowsOfPoints(std::span<const BsonView> points, const SeriesFields& fields,
                                 BsonValue meta);
/// Whether these bytes are rows, in either form: points that were not sealed, or cannot be.
bool AreRows(std::string_view points);

/// The points of a sealed bucket: columns are unpacked when they are asked for. Hostile bytes are an
/// error, and cost at most `limit` bytes of memory, which are charged to the server's budget.
/// One thread at a time.
class BucketReader {
 public:
  /// `points`, and the bytes of `meta` (the bucket's), must outlive this. Errors: damage, budget.
  static Result<BucketReader> Open(std::string_view points, BsonValue meta,
                                   size_t limit = 4 * kMaxBucketBytes);
  BucketReader(BucketReader&&) noexcept;
  BucketReader& operator=(BucketReader&&) noexcept;
  ~BucketReader();

  /// How many points there are.
  size_t count() const;
  /// From now on nobody asks for points before `from`, or from `to` on, so that columns need not be
  /// unpacked as a whole: Append has no others, and a list of Field may have none.
  void Only(size_t from, size_t to);
  /// Appends the points [from, to) to `out`, one BSON document after the other, and the end of each
  /// to `ends` (positions in `out`). With `fields` (names of top-level fields), points have only
  /// these, in their order, and only their columns are unpacked. Errors: damage, budget.
  Result<void> Append(size_t from, size_t to, const std::vector<std::string>* fields,
                      std::string& out, std::vector<size_t>& ends);
  /// The values of the top-level field `name`, one for each point, missing where it has none, the
  /// first if it is there twice. Null in place of the list when the points are rows or the field is
  /// a document in one of them: use Append then. Valid as long as this is.
  Result<const std::vector<BsonValue>*> Field(std::string_view name);

 private:
  struct Impl;
  explicit BucketReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mayfly

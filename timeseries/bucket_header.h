#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"
#include "timeseries/point_columns.h"

namespace mayfly {

/// A set of classes of comparison (CanonicalTypeOrder), as bits.
using TypeClasses = uint32_t;
/// The bit of a type's class. Missing and undefined, which compare alike, have bits of their own.
TypeClasses ClassBit(BsonType type);

/// The most paths in a header, and bytes of a minimum or maximum; anything beyond is left out, and
/// decides nothing.
inline constexpr size_t kMaxHeaderPaths = 1000;
inline constexpr size_t kMaxHeaderValue = 256;
/// The most bytes of an encoded header without its meta value, by these limits.
inline constexpr size_t kMaxHeaderBytes = 8 << 20;

/// What is known of a sealed bucket without unpacking it: how many points, from when to when, and
/// for each path which kinds of values there are and the least and greatest of them.
///
///   header := 1:u8 flags:u8 points:varint floor:zigzag first:zigzag last:zigzag
///             meta_type:u8 meta:text n:varint path*
///   flags  := 1 the points are in the order of their times | 2 there are paths that are not below
///   first, last := the least and greatest time of the points, less `floor`
///   path   := parent:varint name:text classes:varint seen:varint least greatest
///   least, greatest := type:u8 [value]          type 0: no such value, or it is not known
///   value  := zigzag                            int32, int64, date
///           | text                              what BSON has, all others
///
/// Times are milliseconds since 1970; paths are numbered from 1, path 0 is the point, and a parent
/// comes before its fields. `classes`: bits of the classes of all values of the path, documents and
/// arrays too; least and greatest are of what is neither. `seen`: how many documents of the parent
/// have the field. The meta field has no path.
struct BucketHeader {
  struct Path {
    uint32_t parent = 0;
    std::string name;
    TypeClasses classes = 0;
    uint32_t seen = 0;  ///< at most `documents` of the parent
    BsonType least_type = BsonType::kMissing, greatest_type = BsonType::kMissing;
    std::string least_bytes, greatest_bytes;
    /// The least value, missing if it is not known: a view of this path's bytes.
    BsonValue least() const {
      return {least_type, least_bytes.data(), static_cast<uint32_t>(least_bytes.size())};
    }
    /// The same of the greatest value.
    BsonValue greatest() const {
      return {greatest_type, greatest_bytes.data(), static_cast<uint32_t>(greatest_bytes.size())};
    }
  };

  uint32_t points = 0;
  bool in_order = false;  ///< of time
  bool complete = false;  ///< every path that a point has is in `paths`
  Instant floor;          ///< the bucket's lower bound
  Instant first, last;    ///< least and greatest time of the points
  BsonType meta_type = BsonType::kMissing;
  std::string meta_bytes;
  std::vector<Path> paths;  ///< path i + 1 of the grammar

  /// A view of this header's bytes; missing if the points have no meta field.
  BsonValue meta() const {
    return {meta_type, meta_bytes.data(), static_cast<uint32_t>(meta_bytes.size())};
  }
  /// The bytes of the grammar above.
  std::string Encode() const;
  /// Hostile bytes are an error (InternalError, or 146 without memory). Threads: any.
  static Result<BucketHeader> Decode(std::string_view bytes);
};

/// The header of these points. `split`: the points taken apart; null: only times are known. A point
/// whose time is no date counts as one at `floor`.
BucketHeader MakeBucketHeader(std::span<const BsonView> points, const PointColumns* split,
                              const SeriesFields& fields, BsonValue meta, Instant floor);

}  // namespace mayfly

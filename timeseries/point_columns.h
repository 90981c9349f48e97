#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"
#include "timeseries/integer_stream.h"

namespace mayfly {

/// Names of the fields that make a collection one of time series. `meta` empty: it has none.
struct SeriesFields {
  std::string time, meta;
};

/// The most paths that the points of one bucket may have to be stored by columns, and the most
/// steps of all shapes together; beyond it they are stored as rows.
inline constexpr size_t kMaxBucketPaths = 4096;
inline constexpr size_t kMaxShapeSteps = 1 << 16;
/// Levels of nested documents that are split; deeper ones stay whole.
inline constexpr int kMaxSplitDepth = 16;

/// Split points: a column of values for each path of field names, and for each point its shape,
/// which gives the order of the fields. Documents are split; arrays, and the meta field, stay
/// whole. Views into the points. One thread at a time.
class PointColumns {
 public:
  /// A path: the name of a field within the path `parent`. Path 0 is the point itself.
  struct Path {
    uint32_t parent = 0;
    std::string_view name;
    std::vector<BsonValue> values;  ///< in the order of the points; two of one point if named twice
  };
  // Steps of a shape: a value of path p is 2p, a document of path p that begins is 2p + 1, and
  // kClose ends the innermost document.
  static constexpr uint32_t kClose = 1;

  /// False, and useless, when the points have more paths or shapes than the limits allow.
  /// `depth`: how deep documents are taken apart, at most kMaxSplitDepth. What is kept for each
  /// value is charged. REQUIRES: validated documents that outlive this, at most kMaxColumnValues.
  /// Errors: ExceededMemoryLimit 146.
  Result<bool> Split(std::span<const BsonView> points, const SeriesFields& fields, int depth);

  const std::vector<Path>& paths() const { return paths_; }
  const std::vector<std::vector<uint32_t>>& shapes() const { return shapes_; }
  /// By point: which of the shapes.
  const std::vector<int64_t>& shape_of() const { return shape_of_; }
  /// The path of the meta field; 0 if no point has one.
  uint32_t meta_path() const { return meta_path_; }

 private:
  Result<bool> Walk(BsonView doc, uint32_t path, int depth, const SeriesFields& fields);
  /// The path of `name` within `parent`; made if there is none yet. 0: there are too many.
  uint32_t Find(uint32_t parent, std::string_view name);
  bool KeepShape();

  std::vector<Path> paths_;
  ClientStringMap<uint32_t> by_name_;  ///< parent and name
  std::vector<std::vector<uint32_t>> shapes_;
  ClientStringMap<int64_t> by_steps_;
  std::vector<int64_t> shape_of_;
  std::vector<uint32_t> steps_;         ///< of the point that is being walked
  const uint32_t* expected_ = nullptr;  ///< the next step of the point before; null: it had no more
  const uint32_t* expected_end_ = nullptr;
  size_t shape_steps_ = 0;
  size_t values_ = 0;  ///< of all paths
  large_memory::Hold hold_;
  uint32_t meta_path_ = 0;
};

}  // namespace mayfly

#include "timeseries/bucket_codec.h"

namespace mayfly {
namespace {

void PutRows(std::string& out, std::span<const BsonView> points) {
  std::string rows;
  for (const BsonView p : points) rows.append(p.bytes());
  out.push_back(0);
  PutVarint(out, points.size());
  PutCompressed(out, rows);
}

void PutColumns(std::string& out, const PointColumns& split, BsonValue meta) {
  out.push_back(1);
  PutVarint(out, split.shape_of().size());
  const auto& paths = split.paths();
  PutVarint(out, paths.size() - 1);
  for (size_t i = 1; i < paths.size(); ++i) {
    PutVarint(out, paths[i].parent);
    PutText(out, paths[i].name);
  }
  PutVarint(out, split.shapes().size());
  for (const auto& shape : split.shapes()) {
    PutVarint(out, shape.size());
    for (const uint32_t step : shape) PutVarint(out, step);
  }
  if (split.shapes().size() > 1) PutIntegers(out, split.shape_of());
  std::string columns;
  for (size_t i = 1; i < paths.size(); ++i) {
    if (paths[i].values.empty()) continue;
    const size_t before = columns.size();
    PutColumn(columns, paths[i].values, i == split.meta_path(), meta);
    PutVarint(out, columns.size() - before);
  }
  out.append(columns);
}

}  // namespace

Result<SealedBucket> SealBucket(std::span<const BsonView> points, const SeriesFields& fields,
                                BsonValue meta, Instant floor) {
  size_t bytes = 0;
  for (const BsonView p : points) bytes += p.size();
  if (points.size() > kMaxBucketPoints || bytes > kMaxBucketBytes)
    return Error{ErrorCode::kInternalError, "a bucket of a time-series collection is too large"};
  SealedBucket out;
  out.points.push_back(1);
  // Documents are taken apart if that gives a bearable number of paths; at least the points are.
  for (const int depth : {kMaxSplitDepth, 0}) {
    PointColumns split;
    if (!split.Split(points, fields, depth)) continue;
    PutColumns(out.points, split, meta);
    out.header = MakeBucketHeader(points, &split, fields, meta, floor).Encode();
    return out;
  }
  PutRows(out.points, points);
  out.header = MakeBucketHeader(points, nullptr, fields, meta, floor).Encode();
  return out;
}

}  // namespace mayfly

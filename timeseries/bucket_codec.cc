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

Result<void> CheckLimits(std::span<const BsonView> points) {
  size_t bytes = 0;
  for (const BsonView p : points) bytes += p.size();
  if (points.size() > kMaxBucketPoints || bytes > kMaxBucketBytes)
    return Error{ErrorCode::kInternalError, "a bucket of a time-series collection is too large"};
  return Ok();
}

}  // namespace

Result<std::string> SealPoints(std::span<const BsonView> points, const SeriesFields& fields,
                               BsonValue meta) {
  MAYFLY_TRY(CheckLimits(points));
  std::string out(1, 1);
  // Documents are split if that gives a bearable number of paths; at least the points are.
  for (const int depth : {kMaxSplitDepth, 0}) {
    PointColumns split;
    MAYFLY_TRY(const bool fits, split.Split(points, fields, depth));
    if (!fits) continue;
    PutColumns(out, split, meta);
    return out;
  }
  PutRows(out, points);
  return out;
}

Result<std::string> RowsOfPoints(std::span<const BsonView> points, const SeriesFields& fields,
                                 BsonValue meta) {
  MAYFLY_TRY(CheckLimits(points));
  const bool marked = !meta.missing();
  std::string rows;
  size_t bytes = 0;
  for (const BsonView p : points) bytes += p.size();
  rows.reserve(bytes);
  for (const BsonView p : points) {
    const BsonValue own = marked ? p.Find(fields.meta) : BsonValue();
    if (own.missing()) {
      rows.append(p.bytes());
      continue;
    }
    // [size, fields up to the type of the meta value), null, its name, [what comes behind it).
    const std::string_view all = p.bytes();
    const auto value = static_cast<size_t>(own.data() - all.data());
    const size_t type = value - fields.meta.size() - 2, behind = value + own.size();
    const size_t begin = rows.size();
    rows.append(all.substr(0, type));
    rows.push_back(static_cast<char>(BsonType::kNull));
    rows.append(all.substr(type + 1, value - type - 1));
    rows.append(all.substr(behind));
    StoreLe<int32_t>(rows.data() + begin, static_cast<int32_t>(rows.size() - begin));
  }
  std::string out{1, static_cast<char>(marked ? 2 : 0)};
  out.reserve(rows.size() + fields.meta.size() + 16);
  PutVarint(out, points.size());
  if (marked) PutText(out, fields.meta);
  PutVarint(out, rows.size());
  PutText(out, rows);
  return out;
}

bool AreRows(std::string_view points) { return points.size() > 1 && points[1] != 1; }

}  // namespace mayfly

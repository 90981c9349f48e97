#include <algorithm>
#include <tuple>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "timeseries/bucket_codec.h"

namespace mayfly {
namespace {

constexpr uint32_t kClose = PointColumns::kClose;

/// A path of the bucket, and its column once that was asked for.
struct PathColumn {
  uint32_t parent = 0, depth = 0, top = 0;  ///< top: the path right below the point
  std::string_view name;
  bool opened = false;                ///< documents of it are taken apart
  size_t count = 0;                   ///< of its values
  size_t from = 0, until = SIZE_MAX;  ///< of those, which are asked for
  std::string_view bytes;
  bool read = false;
  ColumnValues values;
};

}  // namespace

struct BucketReader::Impl {
  explicit Impl(size_t limit) : budget(limit) {}

  Result<void> Open(std::string_view points, BsonValue meta_value);
  Result<void> OpenRows(BucketBytes& in, bool marked);
  /// Puts the meta value into row `row`, where null stands for it.
  Result<void> AppendRowWithMeta(BsonView row, std::string_view name, std::string& out) const;
  Result<void> OpenPaths(BucketBytes& in);
  Result<void> CheckNames() const;
  Result<void> OpenShapes(BucketBytes& in);
  Result<void> CheckShape(const std::vector<uint32_t>& shape) const;
  Result<void> CountValues();
  Result<void> ReadColumn(PathColumn& p);
  /// The steps of each shape that belong to the wanted fields; their columns are read.
  Result<std::vector<std::vector<uint32_t>>> Wanted(const std::vector<std::string>* fields);
  /// False when the point becomes larger than a document may be.
  bool AppendSteps(const std::vector<uint32_t>& steps, std::vector<size_t>& next,
                   std::string& out) const;
  Result<void> AppendRows(size_t from, size_t to, const std::vector<std::string>* fields,
                          std::string& out, std::vector<size_t>& ends) const;

  DecodeBudget budget;
  BsonValue meta;
  size_t count = 0;                  ///< points
  size_t begin = 0, end = SIZE_MAX;  ///< of those, which are asked for
  std::vector<PathColumn> paths;
  std::vector<std::vector<uint32_t>> shapes;
  std::vector<int64_t> shape_of;  ///< empty: all points have shape 0
  bool is_rows = false;
  std::string rows;
  std::vector<size_t> row_ends;
  std::vector<std::unique_ptr<std::vector<BsonValue>>> fields_given;
  std::vector<std::string> fields_named;

  size_t ShapeOf(size_t point) const {
    return shape_of.empty() ? 0 : static_cast<size_t>(shape_of[point]);
  }
  /// How many of the points before this one have each shape.
  std::vector<size_t> ShapesBefore(size_t point) const {
    std::vector<size_t> used(shapes.size(), 0);
    if (shape_of.empty() && !used.empty()) used[0] = point;
    for (size_t i = 0; i < point && !shape_of.empty(); ++i)
      ++used[static_cast<size_t>(shape_of[i])];
    return used;
  }
};

Result<void> BucketReader::Impl::Open(std::string_view points, BsonValue meta_value) {
  meta = meta_value;
  BucketBytes in(points);
  const uint8_t version = in.Byte(), kind = in.Byte();
  count = in.VarintUpTo(kMaxBucketPoints);
  if (!in.ok() || version != 1 || kind > 2) return DamagedBucket("points of an unknown kind");
  is_rows = kind != 1;
  if (is_rows) return OpenRows(in, kind == 2);
  MAYFLY_TRY(OpenPaths(in));
  MAYFLY_TRY(OpenShapes(in));
  MAYFLY_TRY(CountValues());
  std::vector<size_t> sizes;
  for (const PathColumn& p : paths) sizes.push_back(p.count > 0 ? in.Varint() : 0);
  for (size_t i = 0; i < paths.size(); ++i) paths[i].bytes = in.Take(sizes[i]);
  if (!in.done()) return DamagedBucket("its columns are cut or too long");
  return Ok();
}

Result<void> BucketReader::Impl::AppendRowWithMeta(BsonView row, std::string_view name,
                                                   std::string& out) const {
  const std::string_view all = row.bytes();
  const BsonValue own = row.Find(name);
  if (own.missing()) {
    out.append(all);
    return Ok();
  }
  if (!own.IsNull()) return DamagedBucket("the meta value of a row");
  const auto value = static_cast<size_t>(own.data() - all.data());
  const size_t type = value - name.size() - 2, begin = out.size();
  out.append(all.substr(0, type));
  out.push_back(static_cast<char>(meta.type()));
  out.append(all.substr(type + 1, value - type - 1));
  out.append(meta.data(), meta.size());
  out.append(all.substr(value));
  const size_t size = out.size() - begin;
  if (size > static_cast<size_t>(kMaxBsonInternalSize)) return DamagedBucket("a row is too large");
  StoreLe<int32_t>(out.data() + begin, static_cast<int32_t>(size));
  return Ok();
}

Result<void> BucketReader::Impl::OpenRows(BucketBytes& in, bool marked) {
  const std::string_view name = marked ? in.Text() : std::string_view();
  if (!in.ok() || (marked && meta.missing()) || name.find('\0') != std::string_view::npos)
    return DamagedBucket("the meta field of its rows");
  MAYFLY_TRY(std::string stored, TakeCompressed(in, budget));
  if (!in.done()) return DamagedBucket("its rows are too long");
  MAYFLY_TRY(budget.Charge(count * sizeof(size_t)));
  if (marked) {
    MAYFLY_TRY(budget.Charge(stored.size() + count * meta.size()));
    rows.reserve(stored.size() + count * meta.size());
  }
  size_t at = 0;
  while (at < stored.size()) {
    const auto size = ValidateBsonPrefix(std::string_view(stored).substr(at), false);
    if (!size.has_value() || row_ends.size() == count) return DamagedBucket("its rows");
    if (marked) {
      MAYFLY_TRY(AppendRowWithMeta(BsonView(stored.data() + at), name, rows));
    }
    at += size.value();
    row_ends.push_back(marked ? rows.size() : at);
  }
  if (!marked) rows = std::move(stored);
  if (row_ends.size() != count) return DamagedBucket("the number of its rows");
  return Ok();
}

Result<void> BucketReader::Impl::OpenPaths(BucketBytes& in) {
  const size_t n = in.VarintUpTo(kMaxBucketPaths);
  if (!in.ok()) return DamagedBucket("its paths");
  MAYFLY_TRY(budget.Charge((n + 1) * sizeof(PathColumn)));
  paths.resize(1);
  paths.reserve(n + 1);
  for (uint32_t i = 1; i <= n; ++i) {
    PathColumn p;
    p.parent = static_cast<uint32_t>(in.VarintUpTo(i - 1));
    p.name = in.Text();
    if (!in.ok() || p.name.find('\0') != std::string_view::npos)
      return DamagedBucket("the name of a field");
    p.depth = paths[p.parent].depth + 1;
    if (p.depth > kMaxSplitDepth + 1) return DamagedBucket("its paths are too deep");
    p.top = p.parent == 0 ? i : paths[p.parent].top;
    paths.push_back(std::move(p));
  }
  return CheckNames();
}

Result<void> BucketReader::Impl::CheckNames() const {
  // Field() takes one path for a name: what a second one has would be missing in some answers.
  constexpr size_t kFew = 24;
  const auto equal = [](const PathColumn& a, const PathColumn& b) {
    return a.parent == b.parent && a.name == b.name;
  };
  bool twice = false;
  if (paths.size() <= kFew) {
    for (size_t i = 2; i < paths.size(); ++i)
      for (size_t j = 1; j < i; ++j) twice = twice || equal(paths[i], paths[j]);
  } else {
    std::vector<uint32_t> order;
    order.reserve(paths.size());  // bounded: by kMaxBucketPaths
    for (uint32_t i = 1; i < paths.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
      return std::tie(paths[a].parent, paths[a].name) < std::tie(paths[b].parent, paths[b].name);
    });
    for (size_t i = 1; i < order.size(); ++i)
      twice = twice || equal(paths[order[i - 1]], paths[order[i]]);
  }
  return twice ? Result<void>(DamagedBucket("two columns of one name")) : Ok();
}

Result<void> BucketReader::Impl::CheckShape(const std::vector<uint32_t>& shape) const {
  uint32_t path = 0;
  for (const uint32_t step : shape) {
    if (step == kClose) {
      if (path == 0) return DamagedBucket("a shape ends too often");
      path = paths[path].parent;
      continue;
    }
    const uint32_t p = step / 2;
    if (p == 0 || p >= paths.size() || paths[p].parent != path)
      return DamagedBucket("a step of a shape");
    if (step % 2 == 1) path = p;
  }
  if (path != 0) return DamagedBucket("a shape does not end");
  return Ok();
}

Result<void> BucketReader::Impl::OpenShapes(BucketBytes& in) {
  const size_t n = in.VarintUpTo(count);
  if (!in.ok() || (count > 0 && n == 0)) return DamagedBucket("its shapes");
  MAYFLY_TRY(budget.Charge(n * sizeof(shapes[0])));
  size_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t steps = in.VarintUpTo(kMaxShapeSteps - total);
    // Each step takes a byte at least.
    if (!in.ok() || steps > in.left()) return DamagedBucket("a shape");
    total += steps;
    MAYFLY_TRY(budget.Charge(steps * sizeof(uint32_t)));
    auto& shape = shapes.emplace_back();
    shape.reserve(steps);
    for (size_t s = 0; s < steps; ++s)
      shape.push_back(static_cast<uint32_t>(in.VarintUpTo(2 * kMaxBucketPaths + 1)));
    if (!in.ok()) return DamagedBucket("a shape is cut");
    MAYFLY_TRY(CheckShape(shape));
  }
  if (n > 1) {
    MAYFLY_TRY(shape_of, TakeIntegers(in, count, budget));
    for (const int64_t s : shape_of)
      if (s < 0 || static_cast<size_t>(s) >= n) return DamagedBucket("the shape of a point");
  }
  return Ok();
}

Result<void> BucketReader::Impl::CountValues() {
  std::vector<size_t> used(shapes.size(), 0);
  if (shape_of.empty() && count > 0) used[0] = count;
  for (const int64_t s : shape_of) ++used[static_cast<size_t>(s)];
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const uint32_t step : shapes[i]) {
      if (step == kClose) continue;
      PathColumn& p = paths[step / 2];
      if (step % 2 == 1) p.opened |= used[i] > 0;
      if (step % 2 == 0) p.count += used[i];
      if (p.count > kMaxColumnValues) return DamagedBucket("a column has too many values");
    }
  }
  return Ok();
}

Result<void> BucketReader::Impl::ReadColumn(PathColumn& p) {
  if (p.read || p.count == 0) return Ok();
  const int nesting = kMaxBsonDepth - static_cast<int>(p.depth) + 1;
  MAYFLY_TRY(p.values, TakeColumn(p.bytes, p.count, meta, nesting, budget, p.until, p.from));
  p.read = true;
  return Ok();
}

Result<std::vector<std::vector<uint32_t>>> BucketReader::Impl::Wanted(
    const std::vector<std::string>* fields) {
  std::vector<bool> wanted(paths.size(), fields == nullptr);
  if (fields != nullptr)
    for (size_t i = 1; i < paths.size(); ++i)
      wanted[i] =
          std::find(fields->begin(), fields->end(), paths[paths[i].top].name) != fields->end();
  for (size_t i = 1; i < paths.size(); ++i) {
    if (wanted[i]) {
      MAYFLY_TRY(ReadColumn(paths[i]));
    }
  }
  std::vector<std::vector<uint32_t>> out(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    uint32_t path = 0;
    for (const uint32_t step : shapes[i]) {
      const uint32_t p = step == kClose ? path : step / 2;
      if (wanted[p]) out[i].push_back(step);
      if (step == kClose) path = paths[path].parent;
      if (step > kClose && step % 2 == 1) path = p;
    }
  }
  return out;
}

bool BucketReader::Impl::AppendSteps(const std::vector<uint32_t>& steps, std::vector<size_t>& next,
                                     std::string& out) const {
  // Where each document that is open begins.
  size_t begins[kMaxSplitDepth + 2];
  int depth = 0;
  const auto open = [&] {
    begins[depth++] = out.size();
    out.append(4, '\0');
  };
  const auto close = [&] {
    out.push_back('\0');
    const size_t begin = begins[--depth];
    StoreLe<int32_t>(out.data() + begin, static_cast<int32_t>(out.size() - begin));
  };
  const size_t begin = out.size();
  open();
  for (const uint32_t step : steps) {
    if (out.size() - begin > static_cast<size_t>(kMaxBsonInternalSize)) return false;
    if (step == kClose) {
      close();
      continue;
    }
    const PathColumn& p = paths[step / 2];
    const bool document = step % 2 == 1;
    const BsonValue v = document ? BsonValue() : p.values.At(next[step / 2]++);
    out.push_back(static_cast<char>(document ? BsonType::kDocument : v.type()));
    AppendCString(out, p.name);
    if (document)
      open();
    else
      out.append(v.data(), v.size());
  }
  close();
  return out.size() - begin <= static_cast<size_t>(kMaxBsonInternalSize);
}

Result<void> BucketReader::Impl::AppendRows(size_t from, size_t to,
                                            const std::vector<std::string>* fields,
                                            std::string& out, std::vector<size_t>& ends) const {
  for (size_t i = from; i < to; ++i) {
    const BsonView row(rows.data() + (i == 0 ? 0 : row_ends[i - 1]));
    if (fields == nullptr) {
      out.append(row.bytes());
    } else {
      BsonBuilder b(out);
      for (const BsonElement& e : row)
        if (std::find(fields->begin(), fields->end(), e.name) != fields->end()) b.Append(e);
    }
    ends.push_back(out.size());
  }
  return Ok();
}

BucketReader::BucketReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BucketReader::BucketReader(BucketReader&&) noexcept = default;
BucketReader& BucketReader::operator=(BucketReader&&) noexcept = default;
BucketReader::~BucketReader() = default;

Result<BucketReader> BucketReader::Open(std::string_view points, BsonValue meta, size_t limit) {
  auto impl = std::make_unique<Impl>(limit);
  MAYFLY_TRY(impl->Open(points, meta));
  return BucketReader(std::move(impl));
}

size_t BucketReader::count() const { return impl_->count; }

void BucketReader::Only(size_t from, size_t to) {
  Impl& b = *impl_;
  // What was left out once is not there any more.
  b.begin = std::max(b.begin, std::min(from, b.count));
  b.end = std::min(b.end, to);
  if (b.is_rows) return;
  const size_t end = std::max(b.begin, std::min(b.end, b.count));
  const std::vector<size_t> before = b.ShapesBefore(b.begin), until = b.ShapesBefore(end);
  for (PathColumn& p : b.paths) p.from = p.until = 0;
  for (size_t s = 0; s < b.shapes.size(); ++s) {
    for (const uint32_t step : b.shapes[s]) {
      if (step % 2 != 0) continue;
      b.paths[step / 2].from += before[s];
      b.paths[step / 2].until += until[s];
    }
  }
}

Result<void> BucketReader::Append(size_t from, size_t to, const std::vector<std::string>* fields,
                                  std::string& out, std::vector<size_t>& ends) {
  Impl& b = *impl_;
  from = std::max(from, b.begin);
  to = std::min({to, b.count, b.end});
  if (from >= to) return Ok();
  if (b.is_rows) return b.AppendRows(from, to, fields, out, ends);
  MAYFLY_TRY(const auto shapes, b.Wanted(fields));
  // The first value of each column that belongs to these points.
  const std::vector<size_t> used = b.ShapesBefore(from);
  std::vector<size_t> next(b.paths.size(), 0);
  for (size_t s = 0; s < shapes.size(); ++s)
    for (const uint32_t step : shapes[s])
      if (step % 2 == 0) next[step / 2] += used[s];
  const size_t begin = out.size();
  for (size_t i = from; i < to; ++i) {
    if (!b.AppendSteps(shapes[b.ShapeOf(i)], next, out) || out.size() - begin > kMaxBucketBytes)
      return DamagedBucket("its points are too large");
    ends.push_back(out.size());
  }
  return Ok();
}

Result<const std::vector<BsonValue>*> BucketReader::Field(std::string_view name) {
  Impl& b = *impl_;
  if (b.is_rows) return nullptr;
  for (size_t i = 0; i < b.fields_named.size(); ++i)
    if (b.fields_named[i] == name) return b.fields_given[i].get();
  uint32_t path = 0;
  for (uint32_t i = 1; i < b.paths.size(); ++i)
    if (b.paths[i].parent == 0 && b.paths[i].name == name) path = i;
  MAYFLY_TRY(b.budget.Charge(b.count * sizeof(BsonValue)));
  auto values = std::make_unique<std::vector<BsonValue>>(b.count);
  if (path != 0) {
    if (b.paths[path].opened) return nullptr;
    MAYFLY_TRY(b.ReadColumn(b.paths[path]));
    std::vector<size_t> times(b.shapes.size(), 0);
    for (size_t s = 0; s < b.shapes.size(); ++s)
      times[s] = static_cast<size_t>(std::count(b.shapes[s].begin(), b.shapes[s].end(), 2 * path));
    const ColumnValues& column = b.paths[path].values;
    size_t next = 0;
    for (size_t i = 0, end = std::min(b.count, b.end); i < end; ++i) {
      const size_t n = times[b.ShapeOf(i)];
      if (n > 0 && i >= b.begin) (*values)[i] = column.At(next);
      next += n;
    }
  }
  b.fields_named.emplace_back(name);
  b.fields_given.push_back(std::move(values));
  return b.fields_given.back().get();
}

}  // namespace mayfly

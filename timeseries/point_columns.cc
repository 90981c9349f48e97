#include "timeseries/point_columns.h"

namespace mayfly {

uint32_t PointColumns::Find(uint32_t parent, std::string_view name) {
  std::string key(reinterpret_cast<const char*>(&parent), sizeof parent);
  key.append(name);
  const auto [it, added] = by_name_.try_emplace(std::move(key), paths_.size());
  if (!added) return it->second;
  if (paths_.size() > kMaxBucketPaths) return 0;
  paths_.push_back({.parent = parent, .name = name});
  return it->second;
}

Result<bool> PointColumns::Walk(BsonView doc, uint32_t path, int depth,
                                const SeriesFields& fields) {
  for (const BsonElement& e : doc) {
    if (steps_.size() >= kMaxShapeSteps) return false;
    // Most points have the fields of the one before: its next step then names the path.
    uint32_t p = 0;
    const uint32_t step = expected_ < expected_end_ ? *expected_++ : 0;
    if (step > kClose && paths_[step / 2].parent == path && paths_[step / 2].name == e.name)
      p = step / 2;
    else if ((p = Find(path, e.name)) == 0)
      return false;
    const bool meta = path == 0 && !fields.meta.empty() && e.name == fields.meta;
    if (meta) meta_path_ = p;
    if (e.value.IsDocument() && !meta && depth > 0) {
      steps_.push_back(2 * p + 1);
      MAYFLY_TRY(const bool fits, Walk(e.value.Document(), p, depth - 1, fields));
      if (!fits) return false;
      steps_.push_back(kClose);
      if (expected_ < expected_end_) ++expected_;  // the end of this document, in the point before
      continue;
    }
    if (paths_[p].values.size() == kMaxColumnValues) return false;
    steps_.push_back(2 * p);
    paths_[p].values.push_back(e.value);
    // A list that grows may have room for twice as many.
    constexpr size_t kValuesPerCheck = 4096, kBytes = 2 * sizeof(BsonValue);
    if (++values_ % kValuesPerCheck == 0) {
      MAYFLY_TRY(hold_.Set(values_ * kBytes));
    }
  }
  return true;
}

bool PointColumns::KeepShape() {
  if (!shape_of_.empty() && shapes_[static_cast<size_t>(shape_of_.back())] == steps_) {
    shape_of_.push_back(shape_of_.back());
    return true;
  }
  const std::string key(reinterpret_cast<const char*>(steps_.data()),
                        steps_.size() * sizeof(uint32_t));
  const auto [it, added] = by_steps_.try_emplace(key, static_cast<int64_t>(shapes_.size()));
  if (added) {
    shape_steps_ += steps_.size();
    if (shape_steps_ > kMaxShapeSteps) return false;
    shapes_.push_back(steps_);
  }
  shape_of_.push_back(it->second);
  return true;
}

Result<bool> PointColumns::Split(std::span<const BsonView> points, const SeriesFields& fields,
                                 int depth) {
  paths_.assign(1, {});
  for (const BsonView point : points) {
    steps_.clear();
    const bool first = shape_of_.empty();
    const auto& before = first ? steps_ : shapes_[static_cast<size_t>(shape_of_.back())];
    expected_ = first ? nullptr : before.data();
    expected_end_ = first ? nullptr : before.data() + before.size();
    MAYFLY_TRY(const bool fits, Walk(point, 0, depth, fields));
    if (!fits || !KeepShape()) return false;
  }
  return true;
}

}  // namespace mayfly

#pragma once
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "timeseries/point_columns.h"

namespace mayfly {

/// The least or greatest values of fields over many documents, as a bucket's `control.min` and
/// `control.max` have them: each field for itself in the order of BSON, documents field by field
/// and arrays element by element, whatever the others have; where kinds differ, the kind decides
/// which is lower. Keeps views. One thread at a time.
class FieldExtremes {
 public:
  /// `sign`: -1 for the least, 1 for the greatest.
  explicit FieldExtremes(int sign);
  FieldExtremes(FieldExtremes&&) noexcept;
  FieldExtremes& operator=(FieldExtremes&&) noexcept;
  ~FieldExtremes();
  /// `v` must outlive this. REQUIRES: not missing.
  void Add(BsonValue v);
  /// One more value of a field within this one.
  void AddField(std::string_view name, BsonValue v);
  /// As the value `name`; nothing if nothing was added.
  void AppendTo(BsonBuilder& b, std::string_view name) const;

 private:
  struct Field;
  int sign_;
  BsonValue value_;  ///< a document or an array stands for its kind: `fields_` are what is in it
  std::vector<Field> fields_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

/// Appends what `system.buckets.X` shows of a bucket, in the documented layout: `_id`, `control`
/// (version 1, min, max; the least time is the bucket's lower bound), `meta` if there is one, and
/// `data`: a document for each field, with the number of the point as the name of each value.
/// `id`: 12 bytes.
void AppendBucketDocument(BsonBuilder& b, std::span<const BsonView> points,
                          const SeriesFields& fields, std::string_view id, BsonValue meta,
                          Instant floor);

/// What AppendBucketDocument wrote, or a tool that restores buckets: the points, as BSON one after
/// the other, with the end of each in `ends`. The fields of a point come in the order of `data`,
/// the meta field last. Errors: BadValue 2 if the layout is another.
Result<void> PointsOfBucketDocument(BsonView bucket, const SeriesFields& fields, std::string& out,
                                    std::vector<size_t>& ends);

}  // namespace mayfly

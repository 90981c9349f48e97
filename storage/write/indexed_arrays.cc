#include "storage/write/indexed_arrays.h"

#include <set>
#include <string>
#include <utility>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "storage/catalog/index_keys.h"
#include "storage/operation.h"
#include "timeseries/bucket_control.h"

namespace mayfly {
namespace {

/// Whether there is an array at the path or on the way to it, in any field of that name. As deep as
/// the path has parts.
bool HasArrayAt(BsonView doc, std::string_view path) {
  const size_t dot = path.find('.');
  const std::string_view part = path.substr(0, dot);
  for (const BsonElement& e : doc) {
    if (e.name != part) continue;
    if (e.value.IsArray()) return true;
    if (dot != std::string_view::npos && e.value.IsDocument() &&
        HasArrayAt(e.value.Document(), path.substr(dot + 1)))
      return true;
  }
  return false;
}

enum class HasArray : uint8_t { kNo, kMaybe, kYes };

/// What the least and the greatest values say of it. Values of a class between theirs leave no
/// trace in them.
HasArray ArrayByControl(BsonView least, BsonView greatest, std::string_view path) {
  const int array = CanonicalTypeOrder(BsonType::kArray);
  const int document = CanonicalTypeOrder(BsonType::kDocument);
  for (;;) {
    const size_t dot = path.find('.');
    const BsonValue low = least[path.substr(0, dot)], high = greatest[path.substr(0, dot)];
    if (low.missing() && high.missing()) return HasArray::kNo;
    if (low.missing() || high.missing()) return HasArray::kMaybe;
    if (low.IsArray() || high.IsArray()) return HasArray::kYes;
    const int from = CanonicalTypeOrder(low.type()), to = CanonicalTypeOrder(high.type());
    if (from <= array && array <= to) return HasArray::kMaybe;
    if (dot == std::string_view::npos || document < from || to < document) return HasArray::kNo;
    if (!low.IsDocument() || !high.IsDocument()) return HasArray::kMaybe;
    least = low.Document();
    greatest = high.Document();
    path.remove_prefix(dot + 1);
  }
}

Error ArrayIn(const IndexInfo& index, std::string_view field) {
  return {LocationCode(kIndexedArray),
          "Indexed measurement field contains an array value: '" + std::string(field) +
              "' of the index '" + index.name +
              "'. Keep arrays out of the field, or do without the index"};
}

/// Whether a point in a bucket that may have an array there has one.
Result<bool> AnyPointHasArray(BsonView bucket, const SeriesFields& fields, std::string_view path,
                              Operation& op) {
  const std::set<std::string> wanted{std::string(path.substr(0, path.find('.')))};
  BucketPoints points;
  MAYFLY_TRY(points.Open(bucket, fields, &wanted));
  for (;;) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(const std::optional<BsonView> point, points.Next());
    if (!point) return false;
    if (HasArrayAt(*point, path)) return true;
  }
}

/// Whether a partial index has nothing of this document. Errors: those of an interrupt.
Result<bool> IsOutside(const IndexInfo& index, BsonView doc, Operation& op) {
  if (!index.filter) return false;
  const FilteringFor filtering(&op);
  if (index.filter->Matches(doc)) return false;
  MAYFLY_TRY(op.CheckInterruptNow());  // a filter that was stopped has said no
  return true;
}

}  // namespace

Result<void> CheckIndexedArraysOfPoint(const CollectionInfo& buckets, BsonView point,
                                       Operation& op) {
  for (const IndexInfoPtr& index : buckets.indexes) {
    for (size_t i = 0; index->measured >> i != 0; ++i) {
      if ((index->measured >> i & 1) == 0 || !HasArrayAt(point, MeasuredField(index->fields[i])))
        continue;
      const BsonDocument meta = BuildBson([&](BsonBuilder& b) {
        const std::string& name = buckets.series->meta_field;
        const BsonValue v = name.empty() ? BsonValue() : point[name];
        if (!v.missing()) b.Append("meta", v);
      });
      MAYFLY_TRY(const bool outside, IsOutside(*index, meta, op));
      if (outside) break;
      return ArrayIn(*index, MeasuredField(index->fields[i]));
    }
  }
  return Ok();
}

Result<void> CheckIndexedArrays(const CollectionInfo& buckets, const IndexInfo& index,
                                BsonView bucket, Operation& op, bool may_unpack) {
  if (index.measured == 0) return Ok();
  const BsonValue least = bucket.FindPath("control.min");
  const BsonValue greatest = bucket.FindPath("control.max");
  if (!least.IsDocument() || !greatest.IsDocument()) return Ok();
  std::string_view before;
  for (size_t i = 0; index.measured >> i != 0; ++i) {
    if ((index.measured >> i & 1) == 0) continue;
    // The least and the greatest value of one field stand side by side.
    const std::string_view field = MeasuredField(index.fields[i]);
    if (field == std::exchange(before, field)) continue;
    const HasArray has = ArrayByControl(least.Document(), greatest.Document(), field);
    if (has == HasArray::kNo) continue;
    MAYFLY_TRY(const bool outside, IsOutside(index, bucket, op));
    if (outside) return Ok();
    bool there = has == HasArray::kYes;
    if (!there) {
      if (!may_unpack)
        return Error{ErrorCode::kWriteConflict, "the points of a bucket are for a worker thread"};
      MAYFLY_TRY(there,
                 AnyPointHasArray(bucket, {buckets.series->time_field, buckets.series->meta_field},
                                  field, op));
    }
    if (there) return ArrayIn(index, field);
  }
  return Ok();
}

}  // namespace mayfly

#include "storage/catalog/catalog_types.h"

#include "protocol/bson_builder.h"
#include "protocol/system_names.h"
#include "storage/catalog/expire_reads.h"

namespace mayfly {
namespace {

constexpr std::string_view kLeastOf = "control.min.", kGreatestOf = "control.max.";
static_assert(kLeastOf.size() == kGreatestOf.size());

}  // namespace

std::string BucketsName(std::string_view name) { return std::string(kBucketsPrefix).append(name); }

void AppendSeriesOptions(const CollectionInfo& buckets, BsonBuilder& out) {
  const SeriesOptions& s = *buckets.series;
  if (buckets.expire_after_seconds) out.Append("expireAfterSeconds", *buckets.expire_after_seconds);
  if (const BsonValue v = buckets.options.view()["onExpire"]; !v.missing())
    out.Append("onExpire", v);
  if (const ExpireReads reads = ExpireReadsOf(buckets); reads != ExpireReads::kDefault)
    out.Append(kExpireReadsOption, ExpireReadsName(reads));
  BsonBuilder b = out.OpenDocument("timeseries");
  b.Append("timeField", s.time_field);
  if (!s.meta_field.empty()) b.Append("metaField", s.meta_field);
  if (!s.granularity.empty()) {
    b.Append("granularity", s.granularity);
    b.Append("bucketMaxSpanSeconds", s.max_span_seconds);
  } else {
    b.Append("bucketMaxSpanSeconds", s.max_span_seconds);
    b.Append("bucketRoundingSeconds", s.rounding_seconds);
  }
}

Error DamagedRecord(const CollectionInfo& coll) {
  return {ErrorCode::kInternalError, "damaged record in " + coll.ns + ": run validate"};
}

Error DamagedEntry(const CollectionInfo& coll, const IndexInfo& index) {
  return {ErrorCode::kInternalError, "damaged entry in index " + index.name + " of " + coll.ns +
                                         ": run validate, then drop and build it again"};
}

uint64_t MeasuredFields(const CollectionInfo& coll, std::span<const IndexField> fields) {
  if (!coll.is_buckets() || !coll.series) return 0;
  const std::string& time = coll.series->time_field;
  uint64_t bits = 0;
  for (size_t i = 0; i < fields.size() && i < 64; ++i) {
    const IndexField& f = fields[i];
    if (!f.path.starts_with(kLeastOf) && !f.path.starts_with(kGreatestOf)) continue;
    // Nothing but a date is stored as the time.
    const std::string_view field = MeasuredField(f);
    if (field.starts_with(time) && (field.size() == time.size() || field[time.size()] == '.'))
      continue;
    bits |= uint64_t{1} << i;
  }
  return bits;
}

std::string_view MeasuredField(const IndexField& field) {
  return std::string_view(field.path).substr(kLeastOf.size());
}

}  // namespace mayfly

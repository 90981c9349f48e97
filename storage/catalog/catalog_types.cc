#include "storage/catalog/catalog_types.h"

#include "protocol/bson_builder.h"
#include "protocol/system_names.h"
#include "storage/catalog/expire_reads.h"

namespace mayfly {

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

}  // namespace mayfly

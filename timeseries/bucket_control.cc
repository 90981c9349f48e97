#include "timeseries/bucket_control.h"

#include <charconv>
#include <map>

#include "protocol/bson_compare.h"
#include "timeseries/bucket_codec.h"

namespace mayfly {

/// One field of a document or an array.
struct FieldExtremes::Field {
  std::string_view name;
  FieldExtremes extremes;
};

FieldExtremes::FieldExtremes(int sign) : sign_(sign) {}
FieldExtremes::FieldExtremes(FieldExtremes&&) noexcept = default;
FieldExtremes& FieldExtremes::operator=(FieldExtremes&&) noexcept = default;
FieldExtremes::~FieldExtremes() = default;

void FieldExtremes::AddField(std::string_view name, BsonValue v) {
  const auto [it, added] = by_name_.try_emplace(name, fields_.size());
  if (added) fields_.push_back({name, FieldExtremes(sign_)});
  fields_[it->second].extremes.Add(v);
}

void FieldExtremes::Add(BsonValue v) {
  const int kinds =
      value_.missing() ? sign_ : CanonicalTypeOrder(v.type()) - CanonicalTypeOrder(value_.type());
  const bool container = v.IsDocument() || v.IsArray();
  if (kinds * sign_ > 0) {
    value_ = v;
    fields_.clear();
    by_name_.clear();
  } else if (kinds != 0) {
    return;
  } else if (!container && CompareValues(v, value_) * sign_ > 0) {
    value_ = v;
  }
  if (!container) return;
  for (const BsonElement& e : v.Document()) AddField(e.name, e.value);
}

void FieldExtremes::AppendTo(BsonBuilder& b, std::string_view name) const {
  if (value_.IsArray()) {
    BsonArrayBuilder array = b.OpenArray(name);
    for (const Field& f : fields_) f.extremes.AppendTo(array.raw(), array.NextName());
  } else if (value_.IsDocument()) {
    BsonBuilder document = b.OpenDocument(name);
    for (const Field& f : fields_) f.extremes.AppendTo(document, f.name);
  } else {
    b.Append(name, value_);
  }
}

namespace {

void AppendControl(BsonBuilder& b, std::span<const BsonView> points, const SeriesFields& fields,
                   Instant floor) {
  // Fields in the order in which they first came.
  std::vector<std::string_view> names;
  std::map<std::string_view, std::pair<FieldExtremes, FieldExtremes>> extremes;
  for (const BsonView p : points) {
    for (const BsonElement& e : p) {
      if (!fields.meta.empty() && e.name == fields.meta) continue;
      auto it = extremes.find(e.name);
      if (it == extremes.end()) {
        names.push_back(e.name);
        it = extremes.try_emplace(e.name, FieldExtremes(-1), FieldExtremes(1)).first;
      }
      it->second.first.Add(e.value);
      it->second.second.Add(e.value);
    }
  }
  BsonBuilder control = b.OpenDocument("control");
  control.Append("version", 1);
  {
    BsonBuilder min = control.OpenDocument("min");
    for (const auto name : names) {
      if (name == fields.time)
        min.Append(name, floor);
      else
        extremes.at(name).first.AppendTo(min, name);
    }
  }
  BsonBuilder max = control.OpenDocument("max");
  for (const auto name : names) extremes.at(name).second.AppendTo(max, name);
}

Error WrongLayout(std::string_view what) {
  return Error{ErrorCode::kBadValue,
               "this is no bucket of a time-series collection as system.buckets shows it: " +
                   std::string(what)};
}

}  // namespace

void AppendBucketDocument(BsonBuilder& b, std::span<const BsonView> points,
                          const SeriesFields& fields, std::string_view id, BsonValue meta,
                          Instant floor) {
  b.AppendObjectId("_id", id);
  AppendControl(b, points, fields, floor);
  b.Append("meta", meta);
  std::vector<std::string_view> names;
  std::map<std::string_view, std::vector<std::pair<size_t, BsonValue>>> columns;
  for (size_t i = 0; i < points.size(); ++i) {
    for (const BsonElement& e : points[i]) {
      if (!fields.meta.empty() && e.name == fields.meta) continue;
      const auto [it, added] = columns.try_emplace(e.name);
      if (added) names.push_back(e.name);
      // A field that is there twice is shown once.
      if (it->second.empty() || it->second.back().first != i) it->second.emplace_back(i, e.value);
    }
  }
  BsonBuilder data = b.OpenDocument("data");
  for (const auto name : names) {
    BsonBuilder column = data.OpenDocument(name);
    for (const auto& [i, v] : columns.at(name)) column.Append(std::to_string(i), v);
  }
}

Result<void> PointsOfBucketDocument(BsonView bucket, const SeriesFields& fields, std::string& out,
                                    std::vector<size_t>& ends) {
  const BsonValue control = bucket["control"], data = bucket["data"], meta = bucket["meta"];
  if (!control.IsDocument() || !data.IsDocument())
    return WrongLayout("`control` and `data` must be documents");
  const BsonValue version = control.Document()["version"];
  int64_t number = 0;
  if (!version.ExactInt64(&number) || number != 1)
    return WrongLayout("control.version must be 1; other versions are compressed");
  if (!meta.missing() && fields.meta.empty())
    return WrongLayout("it has `meta`, and the collection has no metaField");
  const BsonValue times = data.Document()[fields.time];
  if (!times.IsDocument()) return WrongLayout("data has no dates of the timeField");
  const auto count = static_cast<size_t>(times.Document().Count());
  if (count > kMaxBucketPoints) return WrongLayout("it has too many points");
  std::vector<std::vector<BsonElement>> points(count);
  for (const BsonElement& column : data.Document()) {
    if (!column.value.IsDocument()) return WrongLayout("each field of data must be a document");
    size_t least = 0;
    for (const BsonElement& e : column.value.Document()) {
      size_t i = 0;
      const char* end = e.name.data() + e.name.size();
      const auto [at, error] = std::from_chars(e.name.data(), end, i);
      if (error != std::errc() || at != end || i < least || i >= count)
        return WrongLayout("names of values must be the numbers of points, in order");
      if (column.name == fields.time && (!e.value.IsDate() || i != least))
        return WrongLayout("each point needs a date in its timeField");
      least = i + 1;
      points[i].push_back({column.name, e.value});
    }
  }
  for (const auto& point : points) {
    BsonBuilder b(out);
    for (const BsonElement& e : point) b.Append(e.name, e.value);
    if (!meta.missing()) b.Append(fields.meta, meta);
    b.Done();
    ends.push_back(out.size());
  }
  return Ok();
}

}  // namespace mayfly

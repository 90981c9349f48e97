#include "timeseries/bucket_control.h"

#include <algorithm>
#include <memory>
#include <utility>

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

Result<void> FieldExtremes::AddField(std::string_view name, BsonValue v, ControlWork& work) {
  // About: with room that the list has for more, and the node of the table.
  constexpr size_t kBytesOfField = 2 * sizeof(Field) + 64;
  const auto [it, added] = by_name_.try_emplace(name, fields_.size());
  MAYFLY_TRY(work.Part(added ? kBytesOfField : 0));
  if (added) fields_.push_back({name, FieldExtremes(sign_)});
  return fields_[it->second].extremes.Add(v, work);
}

Result<void> FieldExtremes::Add(BsonValue v, ControlWork& work) {
  const int kinds =
      value_.missing() ? sign_ : CanonicalTypeOrder(v.type()) - CanonicalTypeOrder(value_.type());
  const bool container = v.IsDocument() || v.IsArray();
  if (kinds * sign_ > 0) {
    value_ = v;
    fields_.clear();
    by_name_.clear();
  } else if (kinds != 0) {
    return Ok();
  } else if (!container && CompareValues(v, value_) * sign_ > 0) {
    value_ = v;
  }
  if (!container) return Ok();
  for (const BsonElement& e : v.Document()) {
    MAYFLY_TRY(AddField(e.name, e.value, work));
  }
  return Ok();
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

/// Least and greatest values of one field: plain ones at no cost, until a document or an array
/// comes.
struct FieldRange {
  std::string_view name;
  BsonValue least, greatest;
  std::unique_ptr<FieldExtremes> low, high;
  size_t seen = 0;  ///< the number of the last point that has it, from 1

  Result<void> Add(BsonValue v, ControlWork& work) {
    if (low == nullptr && !v.IsDocument() && !v.IsArray()) [[likely]] {
      AddPlain(v);
      return Ok();
    }
    if (low == nullptr) {
      low = std::make_unique<FieldExtremes>(-1);
      high = std::make_unique<FieldExtremes>(1);
      if (!least.missing()) {
        MAYFLY_TRY(low->Add(least, work));
        MAYFLY_TRY(high->Add(greatest, work));
      }
    }
    MAYFLY_TRY(low->Add(v, work));
    return high->Add(v, work);
  }
  void AddPlain(BsonValue v) {
    if (least.missing()) {
      least = greatest = v;
    } else if (v.type() == least.type() && v.type() == greatest.type() &&
               (v.type() == BsonType::kDate || v.type() == BsonType::kInt64)) {
      const int64_t n = v.Int64();
      if (n < least.Int64()) least = v;
      if (n > greatest.Int64()) greatest = v;
    } else if (v.Is(BsonType::kDouble) && least.Is(BsonType::kDouble) &&
               greatest.Is(BsonType::kDouble) && v.Double() == v.Double() &&
               least.Double() == least.Double()) {
      if (v.Double() < least.Double()) least = v;
      if (v.Double() > greatest.Double()) greatest = v;
    } else {
      if (CompareValues(v, least) < 0) least = v;
      if (CompareValues(v, greatest) > 0) greatest = v;
    }
  }
  void AppendTo(BsonBuilder& b, bool greatest_of) const {
    if (low != nullptr)
      (greatest_of ? high : low)->AppendTo(b, name);
    else
      b.Append(name, greatest_of ? greatest : least);
  }
};

/// Fields in the order in which they first came.
class FieldRanges {
 public:
  /// Once. Errors: those of `work`.
  Result<void> Add(std::span<const BsonView> points, const SeriesFields& fields,
                   ControlWork& work) {
    size_t point = 0;
    for (const BsonView p : points) {
      ++point;
      size_t next = 0;  // most points have the fields of the one before, in their order
      for (const BsonElement& e : p) {
        if (!fields.meta.empty() && e.name == fields.meta) continue;
        if (next >= ranges_.size() || ranges_[next].name != e.name) {
          MAYFLY_TRY(next, Find(e.name, work));
        }
        FieldRange& range = ranges_[next++];
        // If a field occurs twice, queries see the first value.
        if (std::exchange(range.seen, point) == point) continue;
        MAYFLY_TRY(range.Add(e.value, work));
      }
    }
    return Ok();
  }
  const std::vector<FieldRange>& ranges() const { return ranges_; }

 private:
  Result<size_t> Find(std::string_view name, ControlWork& work) {
    const auto [it, added] = by_name_.try_emplace(name, ranges_.size());
    MAYFLY_TRY(work.Part(added ? 2 * sizeof(FieldRange) + 64 : 0));
    if (added)
      ranges_.push_back(
          {.name = name, .least = {}, .greatest = {}, .low = {}, .high = {}, .seen = 0});
    return it->second;
  }
  std::vector<FieldRange> ranges_;
  ClientViewMap<size_t> by_name_;
};

Result<void> AppendControl(BsonBuilder& b, std::span<const BsonView> points,
                           const SeriesFields& fields, Instant floor, const InterruptCheck& check) {
  ControlWork work(check);
  FieldRanges all;
  MAYFLY_TRY(all.Add(points, fields, work));
  BsonBuilder control = b.OpenDocument("control");
  control.Append("version", kBucketVersion);
  {
    BsonBuilder min = control.OpenDocument("min");
    for (const FieldRange& f : all.ranges()) {
      if (f.name == fields.time)
        min.Append(f.name, floor);
      else
        f.AppendTo(min, false);
    }
  }
  {
    BsonBuilder max = control.OpenDocument("max");
    for (const FieldRange& f : all.ranges()) f.AppendTo(max, true);
  }
  control.Append("count", static_cast<int32_t>(points.size()));
  return Ok();
}

Error WrongLayout(std::string_view what) {
  return Error{ErrorCode::kBadValue,
               "this is no bucket of a time-series collection as system.buckets shows it: " +
                   std::string(what)};
}

/// Points that BucketPoints unpacks at once.
constexpr size_t kMaxBatchOfPoints = 256;

bool IsOwn(BsonView bucket) {
  const BsonValue control = bucket["control"];
  int64_t version = 0;
  return control.IsDocument() && control.Document()["version"].ExactInt64(&version) &&
         version == kBucketVersion;
}

Result<std::string_view> OwnData(BsonView bucket) {
  const BsonValue data = bucket["data"];
  if (!data.Is(BsonType::kBinary) || data.BinarySubtype() != kBucketSubtype)
    return WrongLayout("data of version 128 must be BinData of subtype 128");
  return data.BinaryData();
}

/// How many points the layout by field has.
Result<size_t> CountByField(BsonView bucket, const SeriesFields& fields) {
  const BsonValue control = bucket["control"], data = bucket["data"], meta = bucket["meta"];
  if (!control.IsDocument() || !data.IsDocument())
    return WrongLayout("`control` and `data` must be documents");
  const BsonValue version = control.Document()["version"];
  int64_t number = 0;
  if (!version.ExactInt64(&number) || number != 1)
    return WrongLayout("control.version must be 1 or 128; MongoDB's 2 and 3 are compressed");
  if (!meta.missing() && fields.meta.empty())
    return WrongLayout("it has `meta`, and the collection has no metaField");
  const BsonValue times = data.Document()[fields.time];
  if (!times.IsDocument()) return WrongLayout("data has no dates of the timeField");
  const auto count = static_cast<size_t>(times.Document().Count());
  if (count > kMaxBucketPoints) return WrongLayout("it has too many points");
  return count;
}

}  // namespace

Result<void> AppendBucketDocument(BsonBuilder& b, std::span<const BsonView> points,
                                  const SeriesFields& fields, std::string_view id, BsonValue meta,
                                  Instant floor, BucketForm form, const InterruptCheck& check) {
  // The bytes of the points once more while they are encoded, and the result.
  size_t bytes = 0;
  for (const BsonView p : points) bytes += p.size();
  large_memory::Hold hold;
  MAYFLY_TRY(hold.Set(2 * bytes));
  MAYFLY_TRY(const std::string data, form == BucketForm::kRows ? RowsOfPoints(points, fields, meta)
                                                               : SealPoints(points, fields, meta));
  b.AppendObjectId("_id", id);
  MAYFLY_TRY(AppendControl(b, points, fields, floor, check));
  if (!meta.missing()) b.Append("meta", meta);
  b.AppendBinary("data", kBucketSubtype, data);
  return Ok();
}

Result<void> BucketPoints::Column::Read(size_t least, size_t count) {
  point = count;
  if (at == std::default_sentinel) return Ok();
  // Digits, as from_chars has them, but for one pass over very few.
  size_t i = 0;
  bool number = !at->name.empty() && at->name.size() < 10;
  for (const char c : at->name) {
    number = number && c >= '0' && c <= '9';
    i = i * 10 + static_cast<size_t>(static_cast<unsigned char>(c) - '0');
  }
  if (!number || i < least || i >= count)
    return WrongLayout("names of values must be the numbers of points, in order");
  point = i;
  return Ok();
}

Result<void> BucketPoints::Open(BsonView bucket, const SeriesFields& fields,
                                const std::set<std::string>* wanted) {
  columns_.clear();
  meta_.clear();
  data_ = {};
  reader_.reset();
  next_ = end_ = count_ = 0;
  if (!IsOwn(bucket)) return OpenByField(bucket, fields, wanted);
  MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(bucket, fields));
  data_ = facts.data;
  stored_meta_ = bucket["meta"];
  all_ = wanted == nullptr;
  only_.clear();
  if (!all_) only_.assign(wanted->begin(), wanted->end());
  batch_.clear();
  batch_ends_.clear();
  batch_from_ = 0;
  batch_size_ = 1;
  count_ = end_ = facts.count;
  return Ok();
}

void BucketPoints::Only(size_t from, size_t to) {
  next_ = from;
  end_ = std::min(to, count_);
  // Known to be wanted: as one batch.
  batch_size_ = std::clamp(end_ - std::min(from, end_), size_t{1}, kMaxBatchOfPoints);
  reader_->Only(next_, end_);
}

Result<void> BucketPoints::OpenByField(BsonView bucket, const SeriesFields& fields,
                                       const std::set<std::string>* wanted) {
  MAYFLY_TRY(const size_t count, CountByField(bucket, fields));
  const BsonValue data = bucket["data"], meta = bucket["meta"];
  if (fields.meta.find('\0') != std::string::npos) return WrongLayout("metaField has a NUL");
  for (const BsonElement& column : data.Document()) {
    if (!column.value.IsDocument()) return WrongLayout("each field of data must be a document");
    if (wanted != nullptr && !wanted->contains(std::string(column.name))) continue;
    const BsonView values = column.value.Document();
    Column& c = columns_.emplace_back(
        Column{std::string(column.name) + '\0', values.begin(), 0, column.name == fields.time});
    MAYFLY_TRY(c.Read(0, count));
  }
  if (!meta.missing() && (wanted == nullptr || wanted->contains(fields.meta))) {
    meta_.push_back(static_cast<char>(meta.type()));
    meta_.append(fields.meta).push_back('\0');
    meta_.append(meta.data(), meta.size());
  }
  count_ = end_ = count;
  return Ok();
}

Result<void> BucketPoints::Advance(std::string* out) {
  for (Column& column : columns_) {
    if (column.time && (column.point != next_ || !column.at->value.IsDate()))
      return WrongLayout("each point needs a date in its timeField");
    if (column.point != next_) continue;
    if (out != nullptr) {
      const BsonValue value = column.at->value;
      out->push_back(static_cast<char>(value.type()));
      out->append(column.name);
      out->append(value.data(), value.size());
    }
    ++column.at;
    MAYFLY_TRY(column.Read(next_ + 1, count_));
  }
  ++next_;
  return Ok();
}

Result<void> BucketPoints::OpenReader() {
  if (reader_) return Ok();
  MAYFLY_TRY(BucketReader reader, BucketReader::Open(data_, stored_meta_));
  if (reader.count() != count_) return WrongLayout("control.count is not that of its points");
  reader_.emplace(std::move(reader));
  return Ok();
}

Result<const std::vector<BsonValue>*> BucketPoints::Field(std::string_view name) {
  // Rows are unpacked for their points only.
  if (data_.empty() || AreRows(data_)) return nullptr;
  MAYFLY_TRY(OpenReader());
  return reader_->Field(name);
}

Result<void> BucketPoints::FillBatch() {
  MAYFLY_TRY(OpenReader());
  batch_.clear();
  batch_ends_.clear();
  batch_from_ = next_;
  MAYFLY_TRY(reader_->Append(next_, std::min(next_ + batch_size_, end_), all_ ? nullptr : &only_,
                             batch_, batch_ends_));
  MAYFLY_TRY(hold_.Set(batch_.capacity()));
  if (batch_ends_.empty()) return WrongLayout("it has fewer points than control.count says");
  // One point is unpacked alone: a batch costs a pass over the points before it.
  batch_size_ = std::min(batch_size_ * 2, kMaxBatchOfPoints);
  return Ok();
}

Result<std::optional<BsonView>> BucketPoints::Next() {
  if (next_ >= end_) return std::optional<BsonView>();
  if (!data_.empty()) {
    if (next_ - batch_from_ >= batch_ends_.size()) {
      MAYFLY_TRY(FillBatch());
    }
    const size_t i = next_++ - batch_from_, from = i == 0 ? 0 : batch_ends_[i - 1];
    return std::optional(BsonView(batch_.data() + from));
  }
  point_.assign(4, '\0');
  MAYFLY_TRY(Advance(&point_));
  point_.append(meta_);
  point_.push_back('\0');
  StoreLe<uint32_t>(point_.data(), static_cast<uint32_t>(point_.size()));
  return std::optional(BsonView(point_.data()));
}

Result<void> BucketPoints::Skip() {
  if (next_ >= end_) return Ok();
  if (data_.empty()) return Advance(nullptr);
  ++next_;
  return Ok();
}

Result<void> PointsOfBucketDocument(BsonView bucket, const SeriesFields& fields, std::string& out,
                                    std::vector<size_t>& ends, large_memory::Hold& hold) {
  BucketPoints points;
  MAYFLY_TRY(points.Open(bucket, fields));
  for (;;) {
    MAYFLY_TRY(const std::optional<BsonView> point, points.Next());
    if (!point) return Ok();
    out.append(point->bytes());
    ends.push_back(out.size());
    MAYFLY_TRY(hold.Set(out.capacity()));
    if (out.size() > kMaxBytesOfPoints)
      return WrongLayout("its points have more than " + std::to_string(kMaxBytesOfPoints) +
                         " bytes, since each has the meta value");
  }
}

Result<BucketFacts> FactsOfBucketDocument(BsonView bucket, const SeriesFields& fields) {
  BucketFacts facts;
  if (!IsOwn(bucket)) {
    MAYFLY_TRY(facts.count, CountByField(bucket, fields));
    return facts;
  }
  if (!bucket["meta"].missing() && fields.meta.empty())
    return WrongLayout("it has `meta`, and the collection has no metaField");
  MAYFLY_TRY(facts.data, OwnData(bucket));
  if (facts.data.empty()) return WrongLayout("data has no bytes");
  facts.rows = AreRows(facts.data);
  int64_t count = 0;
  if (!bucket.FindPath("control.count").ExactInt64(&count) || count <= 0 ||
      count > static_cast<int64_t>(kMaxBucketPoints))
    return WrongLayout("control.count must be the number of its points");
  facts.count = static_cast<size_t>(count);
  return facts;
}

Result<bool> ControlIsRight(BsonView bucket, std::span<const BsonView> points,
                            const SeriesFields& fields, Instant floor,
                            const InterruptCheck& check) {
  std::string bytes;
  BsonBuilder b(bytes);
  MAYFLY_TRY(AppendControl(b, points, fields, floor, check));
  b.Done();
  const BsonView made(bytes);
  if (!IsOwn(bucket)) {
    for (const std::string_view side : {"control.min", "control.max"})
      if (CompareValues(bucket.FindPath(side), made.FindPath(side)) != 0) return false;
    return true;
  }
  for (const BsonElement& e : bucket)
    if (e.name != "_id" && e.name != "control" && e.name != "meta" && e.name != "data")
      return false;
  return made["control"].BinaryEquals(bucket["control"]);
}

}  // namespace mayfly

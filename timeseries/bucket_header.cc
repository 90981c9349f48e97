#include "timeseries/bucket_header.h"

#include <algorithm>

#include "protocol/bson_compare.h"
#include "timeseries/bucket_bytes.h"
#include "timeseries/value_column.h"

namespace mayfly {
namespace {

constexpr uint8_t kInOrder = 1, kIncomplete = 2;

/// Whether values of this type have a least and a greatest one in the header.
bool IsPlain(BsonType type) { return type != BsonType::kDocument && type != BsonType::kArray; }
bool IsInteger(BsonType type) {
  return type == BsonType::kInt32 || type == BsonType::kInt64 || type == BsonType::kDate;
}

/// The least and the greatest of what is neither document nor array, and all classes.
struct Extremes {
  TypeClasses classes = 0;
  BsonValue least, greatest;

  void Add(BsonValue v) {
    classes |= ClassBit(v.type());
    if (!IsPlain(v.type())) return;
    if (least.missing() || CompareValues(v, least) < 0) least = v;
    if (greatest.missing() || CompareValues(v, greatest) > 0) greatest = v;
  }
};

/// For values that are all of one type, which `load` reads and `<` orders.
template <class Load>
Extremes OfOneType(std::span<const BsonValue> values, Load load) {
  size_t least = 0, greatest = 0;
  auto low = load(values[0]), high = low;
  for (size_t i = 1; i < values.size(); ++i) {
    const auto v = load(values[i]);
    if (v < low) low = v, least = i;
    if (high < v) high = v, greatest = i;
  }
  return {ClassBit(values[0].type()), values[least], values[greatest]};
}

Extremes ExtremesOf(std::span<const BsonValue> values) {
  if (values.empty()) return {};
  const BsonType type = values[0].type();
  const auto plain_double = [](BsonValue v) { return v.Double() == v.Double(); };
  if (std::all_of(values.begin(), values.end(), [&](BsonValue v) { return v.type() == type; })) {
    if (type == BsonType::kInt32) return OfOneType(values, [](BsonValue v) { return v.Int32(); });
    if (type == BsonType::kInt64 || type == BsonType::kDate)
      return OfOneType(values, [](BsonValue v) { return v.Int64(); });
    if (type == BsonType::kDouble && std::all_of(values.begin(), values.end(), plain_double))
      return OfOneType(values, [](BsonValue v) { return v.Double(); });
    if (type == BsonType::kObjectId)
      return OfOneType(values, [](BsonValue v) { return v.ObjectId(); });
  }
  Extremes e;
  for (const BsonValue v : values) e.Add(v);
  return e;
}

void PutExtreme(std::string& out, BsonType type, std::string_view bytes) {
  out.push_back(static_cast<char>(type));
  if (type == BsonType::kMissing) return;
  if (!IsInteger(type)) return PutText(out, bytes);
  PutSigned(out, bytes.size() == 4 ? LoadLe<int32_t>(bytes.data()) : LoadLe<int64_t>(bytes.data()));
}

/// False when the bytes are damaged.
bool TakeExtreme(BucketBytes& in, BsonType* type, std::string* bytes) {
  *type = static_cast<BsonType>(in.Byte());
  if (!in.ok()) return false;
  if (*type == BsonType::kMissing) return true;
  if (IsInteger(*type)) {
    const int64_t v = in.Signed();
    if (*type == BsonType::kInt32 && v != static_cast<int32_t>(v)) return false;
    bytes->assign(reinterpret_cast<const char*>(&v), *type == BsonType::kInt32 ? 4 : 8);
    return in.ok();
  }
  const std::string_view text = in.Text();
  if (!in.ok() || text.size() > kMaxHeaderValue || !IsPlain(*type) ||
      !ValidValue(*type, text, kMaxBsonDepth))
    return false;
  bytes->assign(text);
  return true;
}

void Keep(BsonValue v, BsonType* type, std::string* bytes) {
  if (v.missing() || v.size() > kMaxHeaderValue) return;
  *type = v.type();
  bytes->assign(v.bytes());
}

/// The times of the points: from, to, and whether in order.
void TimesOf(std::span<const BsonView> points, std::string_view field, BucketHeader& h) {
  h.first = h.last = h.floor;
  h.in_order = true;
  Instant before{INT64_MIN};
  for (size_t i = 0; i < points.size(); ++i) {
    const BsonValue v = points[i].Find(field);
    const Instant t = v.IsDate() ? v.Date() : h.floor;
    h.first = i == 0 ? t : std::min(h.first, t);
    h.last = i == 0 ? t : std::max(h.last, t);
    h.in_order &= before <= t;
    before = t;
  }
}

}  // namespace

TypeClasses ClassBit(BsonType type) {
  // In the order of comparison. On disk: a bit never gets another meaning.
  switch (type) {
    case BsonType::kMissing:
      return 1u << 0;
    case BsonType::kUndefined:
      return 1u << 1;
    case BsonType::kNull:
      return 1u << 2;
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128:
      return 1u << 3;
    case BsonType::kString:
    case BsonType::kSymbol:
      return 1u << 4;
    case BsonType::kDocument:
      return 1u << 5;
    case BsonType::kArray:
      return 1u << 6;
    case BsonType::kBinary:
      return 1u << 7;
    case BsonType::kObjectId:
      return 1u << 8;
    case BsonType::kBool:
      return 1u << 9;
    case BsonType::kDate:
      return 1u << 10;
    case BsonType::kTimestamp:
      return 1u << 11;
    case BsonType::kRegex:
      return 1u << 12;
    case BsonType::kDbPointer:
      return 1u << 13;
    case BsonType::kCode:
      return 1u << 14;
    case BsonType::kCodeWithScope:
      return 1u << 15;
    case BsonType::kMinKey:
      return 1u << 16;
    case BsonType::kMaxKey:
      return 1u << 17;
  }
  return 0;
}

BucketHeader MakeBucketHeader(std::span<const BsonView> points, const PointColumns* split,
                              const SeriesFields& fields, BsonValue meta, Instant floor) {
  BucketHeader h;
  h.points = static_cast<uint32_t>(points.size());
  h.floor = floor;
  h.meta_type = meta.type();
  h.meta_bytes.assign(meta.data() == nullptr ? "" : meta.data(), meta.size());
  TimesOf(points, fields.time, h);
  if (split == nullptr) return h;
  h.complete = !split->documents_whole();
  const auto& paths = split->paths();
  std::vector<uint32_t> number(paths.size(), 0);
  size_t bytes = 0;
  for (size_t i = 1; i < paths.size(); ++i) {
    const PointColumns::Path& from = paths[i];
    if (i == split->meta_path()) continue;
    bytes += from.name.size();
    // A field within one that is left out is left out as well.
    if (h.paths.size() == kMaxHeaderPaths || bytes > kMaxHeaderBytes / 4 ||
        (from.parent != 0 && number[from.parent] == 0)) {
      h.complete = false;
      continue;
    }
    const Extremes e = ExtremesOf(from.values);
    BucketHeader::Path p;
    p.parent = number[from.parent];
    p.name.assign(from.name);
    p.classes = e.classes | (from.documents > 0 ? ClassBit(BsonType::kDocument) : 0);
    if (from.seen_in < paths[from.parent].documents) p.classes |= ClassBit(BsonType::kMissing);
    p.seen = from.seen_in;
    Keep(e.least, &p.least_type, &p.least_bytes);
    Keep(e.greatest, &p.greatest_type, &p.greatest_bytes);
    h.paths.push_back(std::move(p));
    number[i] = static_cast<uint32_t>(h.paths.size());
  }
  return h;
}

std::string BucketHeader::Encode() const {
  std::string out;
  out.push_back(1);
  out.push_back(static_cast<char>((in_order ? kInOrder : 0) | (complete ? 0 : kIncomplete)));
  PutVarint(out, points);
  PutSigned(out, floor.millis);
  // Differences as the machine has them: times are any int64.
  const auto since_floor = [&](Instant t) {
    return static_cast<int64_t>(static_cast<uint64_t>(t.millis) -
                                static_cast<uint64_t>(floor.millis));
  };
  PutSigned(out, since_floor(first));
  PutSigned(out, since_floor(last));
  out.push_back(static_cast<char>(meta_type));
  PutText(out, meta_bytes);
  PutVarint(out, paths.size());
  for (const Path& p : paths) {
    PutVarint(out, p.parent);
    PutText(out, p.name);
    PutVarint(out, p.classes);
    PutVarint(out, p.seen);
    PutExtreme(out, p.least_type, p.least_bytes);
    PutExtreme(out, p.greatest_type, p.greatest_bytes);
  }
  return out;
}

Result<BucketHeader> BucketHeader::Decode(std::string_view bytes) {
  BucketBytes in(bytes);
  BucketHeader h;
  const uint8_t version = in.Byte(), flags = in.Byte();
  h.points = static_cast<uint32_t>(in.VarintUpTo(kMaxColumnValues));
  h.floor.millis = in.Signed();
  const auto after_floor = [&](int64_t since) {
    return Instant{
        static_cast<int64_t>(static_cast<uint64_t>(since) + static_cast<uint64_t>(h.floor.millis))};
  };
  h.first = after_floor(in.Signed());
  h.last = after_floor(in.Signed());
  h.meta_type = static_cast<BsonType>(in.Byte());
  const std::string_view meta = in.Text();
  const size_t n = in.VarintUpTo(kMaxHeaderPaths);
  if (!in.ok() || version != 1 || flags > (kInOrder | kIncomplete) || h.last < h.first)
    return DamagedBucket("its header");
  if (h.meta_type == BsonType::kMissing ? !meta.empty()
                                        : !ValidValue(h.meta_type, meta, kMaxBsonDepth))
    return DamagedBucket("its meta value");
  if (bytes.size() - meta.size() > kMaxHeaderBytes) return DamagedBucket("its header is too large");
  h.in_order = (flags & kInOrder) != 0;
  h.complete = (flags & kIncomplete) == 0;
  h.meta_bytes.assign(meta);
  for (size_t i = 1; i <= n; ++i) {
    Path p;
    p.parent = static_cast<uint32_t>(in.VarintUpTo(i - 1));
    const std::string_view name = in.Text();
    p.classes = static_cast<TypeClasses>(in.VarintUpTo((1u << 18) - 1));
    p.seen = static_cast<uint32_t>(in.VarintUpTo(UINT32_MAX));
    if (!in.ok() || name.find('\0') != std::string_view::npos ||
        !TakeExtreme(in, &p.least_type, &p.least_bytes) ||
        !TakeExtreme(in, &p.greatest_type, &p.greatest_bytes))
      return DamagedBucket("a path of its header");
    p.name.assign(name);
    h.paths.push_back(std::move(p));
  }
  if (!in.done()) return DamagedBucket("its header is too long");
  return h;
}

}  // namespace mayfly

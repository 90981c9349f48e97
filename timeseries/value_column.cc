#include "timeseries/value_column.h"

#include <algorithm>
#include <numeric>

#include "protocol/bson_validate.h"
#include "protocol/seeded_hash.h"
#include "timeseries/double_stream.h"

namespace mayfly {
namespace {

constexpr uint8_t kPlain = 0, kDictionary = 1;

/// How the values of a type are stored.
enum class StreamKind { kNothing, kIntegers, kDoubles, kObjectIds, kTexts };

StreamKind KindOf(BsonType type) {
  switch (type) {
    case BsonType::kNull:
    case BsonType::kUndefined:
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return StreamKind::kNothing;
    case BsonType::kBool:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDate:
    case BsonType::kTimestamp:
      return StreamKind::kIntegers;
    case BsonType::kDouble:
      return StreamKind::kDoubles;
    case BsonType::kObjectId:
      return StreamKind::kObjectIds;
    default:
      return StreamKind::kTexts;
  }
}

bool IsText(BsonType type) {
  return type == BsonType::kString || type == BsonType::kCode || type == BsonType::kSymbol;
}
bool KnownType(uint8_t type) {
  return (type >= 0x01 && type <= 0x13) || type == 0x7F || type == 0xFF;
}

int64_t IntegerOf(BsonValue v) {
  if (v.type() == BsonType::kBool) return *v.data();
  if (v.type() == BsonType::kInt32) return v.Int32();
  return LoadLe<int64_t>(v.data());
}

uint64_t BigEndian(const char* p, int n) {
  uint64_t v = 0;
  for (int i = 0; i < n; ++i) v = v << 8 | static_cast<uint8_t>(p[i]);
  return v;
}
void PutBigEndian(char* p, uint64_t v, int n) {
  for (int i = n; i-- > 0; v >>= 8) p[i] = static_cast<char>(v);
}

void PutObjectIds(std::string& out, std::span<const BsonValue> values) {
  static constexpr struct {
    int at, bytes;
  } kParts[] = {{0, 4}, {4, 5}, {9, 3}};
  std::vector<int64_t> part(values.size());
  for (const auto& p : kParts) {
    for (size_t i = 0; i < values.size(); ++i)
      part[i] = static_cast<int64_t>(BigEndian(values[i].data() + p.at, p.bytes));
    PutIntegers(out, part);
  }
}

void PutTexts(std::string& out, std::span<const BsonValue> values, BsonType type) {
  std::vector<int64_t> lengths, which;
  std::string bytes;
  const auto put_lengths_and_bytes = [&] {
    PutIntegers(out, lengths);
    PutCompressed(out, bytes);
  };
  const auto text_of = [&](BsonValue v) { return IsText(type) ? v.String() : v.bytes(); };
  ClientViewMap<int64_t> known;
  for (const BsonValue v : values) {
    const std::string_view text = text_of(v);
    const auto [it, added] = known.try_emplace(text, static_cast<int64_t>(known.size()));
    if (added) {
      // More than half of what was seen are different: a dictionary would save little.
      if (known.size() > 16 && known.size() * 2 > which.size()) break;
      lengths.push_back(static_cast<int64_t>(text.size()));
      bytes.append(text);
    }
    which.push_back(it->second);
  }
  if (which.size() == values.size() &&
      (lengths.size() == 1 || lengths.size() * 2 <= which.size())) {
    out.push_back(static_cast<char>(kDictionary));
    PutVarint(out, lengths.size());
    put_lengths_and_bytes();
    PutIntegers(out, which);
    return;
  }
  lengths.clear();
  bytes.clear();
  for (const BsonValue v : values) {
    lengths.push_back(static_cast<int64_t>(text_of(v).size()));
    bytes.append(text_of(v));
  }
  out.push_back(static_cast<char>(kPlain));
  put_lengths_and_bytes();
}

void PutStream(std::string& out, std::span<const BsonValue> values, BsonType type) {
  switch (KindOf(type)) {
    case StreamKind::kNothing:
      break;
    case StreamKind::kIntegers: {
      std::vector<int64_t> integers(values.size());
      for (size_t i = 0; i < values.size(); ++i) integers[i] = IntegerOf(values[i]);
      PutIntegers(out, integers);
      break;
    }
    case StreamKind::kDoubles: {
      std::vector<uint64_t> bits(values.size());
      for (size_t i = 0; i < values.size(); ++i) bits[i] = LoadLe<uint64_t>(values[i].data());
      PutDoubles(out, bits);
      break;
    }
    case StreamKind::kObjectIds:
      PutObjectIds(out, values);
      break;
    case StreamKind::kTexts:
      PutTexts(out, values, type);
  }
}

}  // namespace

void PutColumn(std::string& out, std::span<const BsonValue> values, bool is_meta, BsonValue meta) {
  if (is_meta && !meta.missing() &&
      std::all_of(values.begin(), values.end(), [&](BsonValue v) { return v.BinaryEquals(meta); }))
    return out.push_back(0);
  std::vector<BsonType> types;
  int place[256];
  std::fill(std::begin(place), std::end(place), -1);
  for (const BsonValue v : values) {
    int& p = place[static_cast<uint8_t>(v.type())];
    if (p >= 0) continue;
    p = static_cast<int>(types.size());
    types.push_back(v.type());
  }
  out.push_back(static_cast<char>(types.size()));
  for (const BsonType t : types) out.push_back(static_cast<char>(t));
  if (types.size() == 1) return PutStream(out, values, types[0]);
  std::vector<int64_t> which;
  std::vector<std::vector<BsonValue>> parts(types.size());
  for (const BsonValue v : values) {
    which.push_back(place[static_cast<uint8_t>(v.type())]);
    parts[static_cast<size_t>(which.back())].push_back(v);
  }
  PutIntegers(out, which);
  for (size_t i = 0; i < types.size(); ++i) PutStream(out, parts[i], types[i]);
}

bool ValidValue(BsonType type, std::string_view bytes, int max_nesting) {
  switch (type) {
    case BsonType::kDocument:
    case BsonType::kArray: {
      if (max_nesting < 1) return false;
      const auto size = ValidateBsonPrefix(bytes, false, max_nesting - 1);
      return size.has_value() && size.value() == bytes.size();
    }
    case BsonType::kNull:
    case BsonType::kUndefined:
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return bytes.empty();
    case BsonType::kString:
    case BsonType::kCode:
    case BsonType::kSymbol:
      return bytes.size() >= 5 && bytes.size() <= kMaxBsonInternalSize &&
             LoadLe<uint32_t>(bytes.data()) == bytes.size() - 4 && bytes.back() == '\0';
    default:
      break;
  }
  if (!KnownType(static_cast<uint8_t>(type)) || bytes.size() > kMaxBsonInternalSize) return false;
  // The rest is rare: as the only value of a document.
  std::string doc(4, '\0');
  doc.push_back(static_cast<char>(type));
  doc.push_back('\0');
  doc.append(bytes).push_back('\0');
  StoreLe<int32_t>(doc.data(), static_cast<int32_t>(doc.size()));
  return ValidateBson(doc, false).has_value() &&
         BsonValueSize(type, doc.data() + 6) == bytes.size();
}

/// Decodes one column.
class ColumnDecoder {
 public:
  ColumnDecoder(std::string_view bytes, size_t count, BsonValue meta, int max_nesting,
                DecodeBudget& budget, size_t until, size_t from)
      : in_(bytes),
        count_(count),
        until_(std::min(until, count)),
        from_(std::min(from, until_)),
        meta_(meta),
        max_nesting_(max_nesting),
        budget_(budget) {}

  Result<ColumnValues> Run() {
    MAYFLY_TRY(budget_.Charge(until_ * sizeof(BsonValue)));
    const size_t kinds = in_.Byte();
    if (in_.ok() && kinds == 0) {
      if (meta_.missing() || !in_.done()) return DamagedBucket("a column");
      out_.values_.assign(until_, meta_);
      return std::move(out_);
    }
    const std::string_view types = in_.Take(kinds);
    if (!in_.ok() || !AllKnown(types)) return DamagedBucket("the types of a column");
    std::vector<int64_t> which;
    std::vector<size_t> counts(kinds, 0);
    counts[0] = count_;
    if (kinds > 1) {
      MAYFLY_TRY(which, TakeIntegers(in_, count_, budget_));
      counts[0] = 0;
      for (const int64_t w : which) {
        if (w < 0 || static_cast<size_t>(w) >= kinds) return DamagedBucket("the types of a column");
        ++counts[static_cast<size_t>(w)];
      }
    }
    if (kinds == 1) {
      MAYFLY_TRY(TakeOnly(TypeAt(types, 0)));
    } else {
      MAYFLY_TRY(TakeParts(types, which, counts));
    }
    if (!in_.done()) return DamagedBucket("a column is too long");
    return std::move(out_);
  }

 private:
  static BsonType TypeAt(std::string_view types, size_t i) {
    return static_cast<BsonType>(static_cast<uint8_t>(types[i]));
  }
  static bool AllKnown(std::string_view types) {
    return std::all_of(types.begin(), types.end(),
                       [](char t) { return KnownType(static_cast<uint8_t>(t)); });
  }

  /// The stream of a column that has no other. Where values are of one size, those before from_ are
  /// left out.
  Result<void> TakeOnly(BsonType type) {
    const StreamKind kind = KindOf(type);
    if (kind != StreamKind::kIntegers && kind != StreamKind::kDoubles)
      return TakeStream(type, count_, until_, out_.values_);
    out_.first_ = from_;
    return kind == StreamKind::kIntegers
               ? TakeIntegerValues(type, count_, until_, from_, out_.values_)
               : TakeDoubleValues(type, count_, until_, from_, out_.values_);
  }

  Result<void> TakeParts(std::string_view types, const std::vector<int64_t>& which,
                         const std::vector<size_t>& counts) {
    MAYFLY_TRY(budget_.Charge(count_ * sizeof(BsonValue)));
    std::vector<std::vector<BsonValue>> parts(types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      MAYFLY_TRY(TakeStream(TypeAt(types, i), counts[i], counts[i], parts[i]));
    }
    std::vector<size_t> next(types.size(), 0);
    out_.values_.reserve(count_);
    for (const int64_t w : which) {
      const auto part = static_cast<size_t>(w);
      out_.values_.push_back(parts[part][next[part]++]);
    }
    return Ok();
  }

  /// Bytes for values of `n` times `size`.
  Result<char*> Room(size_t n, size_t size) {
    MAYFLY_TRY(budget_.Charge(n * size));
    return out_.bytes_.emplace_back(n * size, '\0').data();
  }

  /// A stream of `count` values, of which the first `n` come into `out`.
  Result<void> TakeStream(BsonType type, size_t count, size_t n, std::vector<BsonValue>& out) {
    switch (KindOf(type)) {
      case StreamKind::kNothing:
        out.assign(n, BsonValue(type, "", 0));
        return Ok();
      case StreamKind::kIntegers:
        return TakeIntegerValues(type, count, n, 0, out);
      case StreamKind::kDoubles:
        return TakeDoubleValues(type, count, n, 0, out);
      case StreamKind::kObjectIds:
        return TakeObjectIds(count, n, out);
      case StreamKind::kTexts:
        break;
    }
    return TakeTexts(type, count, n, out);
  }

  /// As TakeStream, from the place `from` on.
  Result<void> TakeDoubleValues(BsonType type, size_t count, size_t n, size_t from,
                                std::vector<BsonValue>& out) {
    MAYFLY_TRY(const std::vector<uint64_t> bits, TakeDoubles(in_, count, budget_, n, from));
    MAYFLY_TRY(char* at, Room(bits.size(), 8));
    if (!bits.empty()) std::memcpy(at, bits.data(), bits.size() * 8);
    out.reserve(bits.size());
    for (size_t i = 0; i < bits.size(); ++i, at += 8) out.emplace_back(type, at, 8u);
    return Ok();
  }

  Result<void> TakeIntegerValues(BsonType type, size_t count, size_t n, size_t from,
                                 std::vector<BsonValue>& out) {
    MAYFLY_TRY(const std::vector<int64_t> integers, TakeIntegers(in_, count, budget_, n));
    const uint32_t size = type == BsonType::kBool ? 1 : type == BsonType::kInt32 ? 4 : 8;
    MAYFLY_TRY(char* at, Room(n - from, size));
    out.reserve(n - from);
    for (const int64_t v : std::span(integers).subspan(from)) {
      if ((size == 1 && (v < 0 || v > 1)) || (size == 4 && v != static_cast<int32_t>(v)))
        return DamagedBucket("a number is too large for its type");
      std::memcpy(at, &v, size);  // little-endian: the lowest bytes are the number
      out.emplace_back(type, at, size);
      at += size;
    }
    return Ok();
  }

  Result<void> TakeObjectIds(size_t count, size_t n, std::vector<BsonValue>& out) {
    MAYFLY_TRY(char* const ids, Room(n, 12));
    struct Part {
      int at, bytes;
    };
    for (const Part p : {Part{0, 4}, Part{4, 5}, Part{9, 3}}) {
      MAYFLY_TRY(const std::vector<int64_t> part, TakeIntegers(in_, count, budget_, n));
      for (size_t i = 0; i < n; ++i) {
        const auto v = static_cast<uint64_t>(part[i]);
        if (v >> (8 * p.bytes) != 0) return DamagedBucket("an ObjectId");
        PutBigEndian(ids + 12 * i + p.at, v, p.bytes);
      }
    }
    out.reserve(n);
    for (size_t i = 0; i < n; ++i) out.emplace_back(BsonType::kObjectId, ids + 12 * i, 12u);
    return Ok();
  }

  Result<void> TakeTexts(BsonType type, size_t count, size_t n, std::vector<BsonValue>& out) {
    const uint8_t kind = in_.Byte();
    if (!in_.ok() || kind > kDictionary) return DamagedBucket("texts");
    const size_t different = kind == kDictionary ? in_.VarintUpTo(count) : count;
    const size_t wanted = kind == kDictionary ? different : n;
    if (!in_.ok()) return DamagedBucket("texts");
    MAYFLY_TRY(std::vector<int64_t> lengths, TakeIntegers(in_, different, budget_));
    MAYFLY_TRY(std::string bytes, TakeCompressed(in_, budget_));
    std::vector<BsonValue> texts;
    MAYFLY_TRY(budget_.Charge(wanted * sizeof(BsonValue)));
    MAYFLY_TRY(CutTexts(type, std::move(lengths), wanted, std::move(bytes), texts));
    if (kind == kPlain) {
      out = std::move(texts);
      return Ok();
    }
    MAYFLY_TRY(const std::vector<int64_t> which, TakeIntegers(in_, count, budget_, n));
    out.reserve(n);
    for (const int64_t w : which) {
      if (w < 0 || static_cast<size_t>(w) >= texts.size()) return DamagedBucket("a dictionary");
      out.push_back(texts[static_cast<size_t>(w)]);
    }
    return Ok();
  }

  /// The single texts as values: the first `n`.
  Result<void> CutTexts(BsonType type, std::vector<int64_t> lengths, size_t n, std::string bytes,
                        std::vector<BsonValue>& out) {
    size_t total = 0;
    for (const int64_t length : lengths) {
      if (length < 0 || static_cast<uint64_t>(length) > bytes.size() - total)
        return DamagedBucket("texts are cut");
      total += static_cast<size_t>(length);
    }
    if (total != bytes.size()) return DamagedBucket("texts are too long");
    if (n < lengths.size()) {
      lengths.resize(n);
      total = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
    }
    const bool text = IsText(type);
    if (text) {
      MAYFLY_TRY(char* at, Room(1, total + 5 * lengths.size()));
      const char* from = bytes.data();
      out.reserve(lengths.size());
      for (const int64_t length : lengths) {
        const auto n = static_cast<uint32_t>(length);
        if (static_cast<int64_t>(n) > kMaxBsonInternalSize) return DamagedBucket("a string");
        StoreLe<uint32_t>(at, n + 1);
        std::memcpy(at + 4, from, n);
        out.emplace_back(type, at, n + 5);
        at += n + 5;
        from += n;
      }
      return Ok();
    }
    const char* at = out_.bytes_.emplace_back(std::move(bytes)).data();
    out.reserve(lengths.size());
    for (const int64_t length : lengths) {
      const auto n = static_cast<uint32_t>(length);
      if (!ValidValue(type, {at, n}, max_nesting_)) return DamagedBucket("a value");
      out.emplace_back(type, at, n);
      at += n;
    }
    return Ok();
  }

  BucketBytes in_;
  const size_t count_, until_, from_;
  const BsonValue meta_;
  const int max_nesting_;
  DecodeBudget& budget_;
  ColumnValues out_;
};

Result<ColumnValues> TakeColumn(std::string_view bytes, size_t count, BsonValue meta,
                                int max_nesting, DecodeBudget& budget, size_t until, size_t from) {
  return ColumnDecoder(bytes, count, meta, max_nesting, budget, until, from).Run();
}

}  // namespace mayfly

#include "query/sort/sorter.h"

#include <algorithm>
#include <bit>
#include <random>

#include "protocol/bson_builder.h"
#include "query/expression/operator.h"
#include "storage/catalog/catalog_types.h"
#include "storage/catalog/index_keys.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {

Result<SortPattern> SortPattern::Parse(BsonView spec) {
  SortPattern pattern;
  pattern.spec_ = BsonDocument(spec);
  auto fields = std::make_shared<IndexInfo>();
  for (const BsonElement& e : spec) {
    Part part;
    part.path = e.name;
    if (e.value.IsDocument()) {
      BsonElement meta = e.value.Document().First();
      if (meta.name != "$meta" || e.value.Document().Count() != 1)
        return LocationError(17312, "$meta is the only expression supported by $sort right now");
      std::string_view what = meta.value.IsString() ? meta.value.String() : "";
      if (what == "textScore")
        part.meta = Meta::kTextScore;
      else if (what == "randVal")
        part.meta = Meta::kRandom;
      else if (what == "expireAt" || what == "ttlMillis")  // one follows from the other
        part.meta = Meta::kExpireAt;
      else
        return LocationError(31138, "Illegal $meta sort: " + ValueText(e.value));
      part.descending = part.meta == Meta::kTextScore;
      pattern.needs_metadata_ = pattern.needs_metadata_ || part.meta != Meta::kRandom;
    } else {
      if (!e.value.IsNumber())
        return LocationError(15974, "Illegal key in $sort specification: " + std::string(e.name) +
                                        ": " + ValueText(e.value));
      int64_t order;
      if (!e.value.ExactInt64(&order) || (order != 1 && order != -1))
        return LocationError(15975,
                             "$sort key ordering must be 1 (for ascending) or -1 (for descending)");
      MAYFLY_TRY(ParseFieldPath(e.name));
      part.descending = order < 0;
      fields->fields.push_back({part.path, part.descending, ""});
    }
    for (auto& other : pattern.parts_)
      if (other.path == part.path)
        return LocationError(
            7472500, "$sort key must not contain duplicate keys (duplicate: '" + part.path + "')");
    pattern.parts_.push_back(std::move(part));
    // At once: each is compared with those before it.
    if (pattern.parts_.size() > 32) return LocationError(13103, "too many compound keys");
  }
  if (pattern.parts_.empty())
    return LocationError(15976, "$sort stage must have at least one sort key");
  pattern.fields_ = std::move(fields);
  return pattern;
}

Result<void> SortPattern::AppendKey(BsonView doc, const DocumentMetadata* metadata,
                                    std::string& out) const {
  return Encode(doc, metadata, out, nullptr);
}

Result<void> SortPattern::Encode(BsonView doc, const DocumentMetadata* metadata, std::string& out,
                                 std::string* type_bits) const {
  const Part& first = parts_[0];
  if (parts_.size() == 1 && first.meta == Meta::kNone && first.path.find('.') == first.path.npos) {
    BsonValue v = doc.Find(first.path);
    if (!v.IsArray()) {
      Value null = Value::Null();
      if (v.missing()) v = null.view();
      EncodeKeyValue(v, first.descending, out);
      if (type_bits) EncodeTypeBits(v, *type_bits);
      return Ok();
    }
  }
  thread_local KeySet keys;
  std::string_view values;
  if (!fields_->fields.empty()) {
    keys.Clear();
    Result<void> extracted = ExtractKeys(*fields_, doc, &keys);
    if (!extracted) {
      if (extracted.error().code == ErrorCode::kCannotIndexParallelArrays)
        return Error{ErrorCode::kBadValue, "cannot sort with keys that are parallel arrays"};
      return extracted.error();
    }
    // The entries are in key order, and the key has the directions in it: the first is the one that
    // counts.
    values = keys.values(0);
    // bounded: by the key of one document
    if (type_bits) type_bits->append(keys.type_bits(0));
  }
  if (fields_->fields.size() == parts_.size()) {
    out.append(values);
    return Ok();
  }
  for (const Part& part : parts_) {
    Value v = Value::Null();
    switch (part.meta) {
      case Meta::kNone: {
        size_t n = EncodedValueLength(values, part.descending);
        out.append(values.substr(0, n));
        values.remove_prefix(n);
        continue;
      }
      case Meta::kTextScore:
        if (metadata && metadata->text_score) v = Value::Double(*metadata->text_score);
        break;
      case Meta::kExpireAt:
        if (metadata && metadata->expire_at) v = Value::Date(*metadata->expire_at);
        break;
      case Meta::kRandom: {
        thread_local std::mt19937_64 random{std::random_device{}()};
        v = Value::Int64(static_cast<int64_t>(random()));
        break;
      }
    }
    EncodeKeyValue(v.view(), part.descending, out);
  }
  return Ok();
}

Result<Value> SortPattern::KeyValues(BsonView doc, const DocumentMetadata* metadata) const {
  std::string key, bits;
  MAYFLY_TRY(Encode(doc, metadata, key, &bits));
  std::string_view rest = key, rest_bits = bits;
  std::string bytes;
  BsonArrayBuilder out(bytes);
  for (const Part& part : parts_) {
    std::string_view none;
    MAYFLY_TRY(Value v, DecodeKeyValue(&rest, part.descending,
                                       part.meta == Meta::kNone ? &rest_bits : &none));
    AppendOrNull(out, v.view());
  }
  out.Done();
  return Value::Array(std::move(bytes));
}

Result<int> SortPattern::Compare(BsonView a, BsonView b) const {
  std::string x, y;
  MAYFLY_TRY(AppendKey(a, nullptr, x));
  MAYFLY_TRY(AppendKey(b, nullptr, y));
  return x.compare(y);
}

struct Sorter::Run {
  explicit Run(SpillFile f) : file(std::move(f)) {}
  Result<void> Advance() {
    MAYFLY_TRY(bool more, file.Read(&head.key, &head.payload));
    done = !more;
    return Ok();
  }
  SpillFile file;
  Entry head;
  bool done = false;
};

namespace {

constexpr size_t kMaxRuns = 64;  ///< open files; beyond it runs are merged into one

enum : char {
  kHasExpireAt = 1,
  kHasTextScore = 2,
  kHasRecordId = 4,
  kHasSortKey = 8,
  kHasIndexKey = 16
};

void AppendTypedValue(std::string& out, BsonValue v) {
  out += static_cast<char>(v.type());
  uint32_t n = v.size();
  out.append(reinterpret_cast<const char*>(&n), 4).append(v.bytes());
}
Value TakeValue(std::string_view* in) {
  auto type = static_cast<BsonType>(static_cast<uint8_t>((*in)[0]));
  auto n = LoadLe<uint32_t>(in->data() + 1);
  Value v = Value::Copy(BsonValue(type, in->data() + 5, n));
  in->remove_prefix(5 + n);
  return v;
}
template <class T>
T Take(std::string_view* in) {
  T v = LoadLe<T>(in->data());
  in->remove_prefix(sizeof v);
  return v;
}

void Pack(std::string& out, BsonView doc, const DocumentMetadata* m, const Value& sort_key,
          std::string_view extra) {
  out.reserve(doc.size() + 1 + extra.size() + (m ? 64 : 0));
  out.append(doc.bytes());
  char flags = 0;
  if (m && m->expire_at) flags |= kHasExpireAt;
  if (m && m->text_score) flags |= kHasTextScore;
  if (m && !m->record_id.missing()) flags |= kHasRecordId;
  if (m && !m->index_key.missing()) flags |= kHasIndexKey;
  if (!sort_key.missing()) flags |= kHasSortKey;
  out += flags;
  if (flags & kHasExpireAt) out.append(reinterpret_cast<const char*>(&m->expire_at->millis), 8);
  if (flags & kHasTextScore) out.append(reinterpret_cast<const char*>(&*m->text_score), 8);
  if (flags & kHasRecordId) AppendTypedValue(out, m->record_id.view());
  if (flags & kHasIndexKey) AppendTypedValue(out, m->index_key.view());
  if (flags & kHasSortKey) AppendTypedValue(out, sort_key.view());
  out.append(extra);
}

/// Heap memory of a string of this capacity: allocators round up to a quarter of a power of
/// two.
size_t HeapBytes(const std::string& s) {
  const size_t n = s.capacity() + 1;
  if (n <= 16) return 0;  // inside the string
  const size_t step = std::max<size_t>(16, std::bit_ceil(n) / 8);
  return (n + step - 1) / step * step;
}

}  // namespace

/// Twice its own size, because a vector that grows has its old entries and room for as many more.
size_t Sorter::Cost(const Entry& e) {
  return 2 * sizeof(Entry) + HeapBytes(e.key) + HeapBytes(e.payload);
}

Sorter::Sorter(SortPattern pattern, SorterOptions options)
    : pattern_(std::move(pattern)), options_(std::move(options)) {}
Sorter::~Sorter() = default;

Result<void> Sorter::Add(BsonView doc, const DocumentMetadata* metadata, std::string_view extra) {
  scratch_key_.clear();
  MAYFLY_TRY(pattern_.AppendKey(doc, metadata, scratch_key_));
  for (int shift = 56; shift >= 0; shift -= 8)
    scratch_key_ += static_cast<char>(added_ >> shift & 0xff);
  ++added_;
  bool full = options_.limit > 0 && entries_.size() == static_cast<size_t>(options_.limit);
  if (full) {
    if (!heap_) {
      std::make_heap(entries_.begin(), entries_.end(), &Less);
      heap_ = true;
    }
    if (scratch_key_ >= entries_.front().key) return Ok();
    std::pop_heap(entries_.begin(), entries_.end(), &Less);
    memory_ -= Cost(entries_.back());
    entries_.pop_back();
  }
  Entry entry;
  entry.key = scratch_key_;
  Value sort_key;
  if (options_.want_sort_key) {
    MAYFLY_TRY(sort_key, pattern_.KeyValues(doc, metadata));
  }
  Pack(entry.payload, doc, metadata, sort_key, extra);
  bytes_sorted_ += static_cast<int64_t>(entry.payload.size());
  memory_ += Cost(entry);
  entries_.push_back(std::move(entry));
  if (full) std::push_heap(entries_.begin(), entries_.end(), &Less);
  // With others using much it spills earlier, but not so early that runs become many.
  const bool room = hold_.Set(memory_).has_value() || memory_ < options_.memory_limit / 8;
  if (room && memory_ <= options_.memory_limit) return Ok();
  if (!options_.allow_disk_use && !room) return large_memory::TooMuch();
  if (!options_.allow_disk_use)
    return Error{ErrorCode::kQueryExceededMemoryLimitNoDiskUseAllowed,
                 "Sort exceeded memory limit of " + std::to_string(options_.memory_limit) +
                     " bytes, but did not opt in to external sorting."};
  return Spill();
}

Result<void> Sorter::Spill() {
  if (entries_.empty()) return Ok();
  std::sort(entries_.begin(), entries_.end(), &Less);
  MAYFLY_TRY(SpillFile file, SpillFile::Create(options_.temp_dir));
  for (auto& e : entries_) {
    MAYFLY_TRY(file.Write(e.key, e.payload));
  }
  spilled_bytes_ += file.bytes();
  ++spills_;
  entries_.clear();
  heap_ = false;
  memory_ = 0;
  hold_.Release();
  runs_.push_back(std::make_unique<Run>(std::move(file)));
  return runs_.size() >= kMaxRuns ? MergeRuns() : Result<void>(Ok());
}

/// Merges the runs on disk into one, so that a small limit cannot use up the process's files.
Result<void> Sorter::MergeRuns() {
  for (auto& run : runs_) {
    MAYFLY_TRY(run->file.Rewind());
    MAYFLY_TRY(run->Advance());
  }
  MAYFLY_TRY(SpillFile merged, SpillFile::Create(options_.temp_dir));
  Entry entry;
  for (int64_t n = 0; options_.limit == 0 || n < options_.limit; ++n) {
    MAYFLY_TRY(bool more, NextMerged(&entry));
    if (!more) break;
    MAYFLY_TRY(merged.Write(entry.key, entry.payload));
  }
  runs_.clear();
  runs_.push_back(std::make_unique<Run>(std::move(merged)));  // bounded: one file
  return Ok();
}

Result<void> Sorter::Finish() {
  if (finished_) return Ok();
  finished_ = true;
  if (runs_.empty()) {
    std::sort(entries_.begin(), entries_.end(), &Less);
    return Ok();
  }
  MAYFLY_TRY(Spill());
  for (auto& run : runs_) {
    MAYFLY_TRY(run->file.Rewind());
    MAYFLY_TRY(run->Advance());
  }
  return Ok();
}

Result<bool> Sorter::NextMerged(Entry* out) {
  Run* best = nullptr;
  for (auto& run : runs_)
    if (!run->done && (!best || run->head.key < best->head.key)) best = run.get();
  if (!best) return false;
  std::swap(*out, best->head);
  MAYFLY_TRY(best->Advance());
  return true;
}

Result<bool> Sorter::Next(StreamDocument* out) {
  if (options_.limit > 0 && returned_ >= options_.limit) return false;
  if (runs_.empty()) {
    if (next_ >= entries_.size()) return false;
    current_ = std::move(entries_[next_++]);
    memory_ -= std::min(memory_, Cost(current_));
    (void)hold_.Set(memory_);
  } else {
    MAYFLY_TRY(bool more, NextMerged(&current_));
    if (!more) return false;
  }
  ++returned_;
  MAYFLY_TRY(Unpack(current_, out));
  return true;
}

Result<void> Sorter::Unpack(const Entry& entry, StreamDocument* out) {
  out->doc = BsonView(entry.payload.data());
  std::string_view rest = std::string_view(entry.payload).substr(out->doc.size());
  char flags = rest[0];
  rest.remove_prefix(1);
  out->metadata = nullptr;
  if (flags != 0) {
    metadata_ = {};
    if (flags & kHasExpireAt) metadata_.expire_at = Instant{Take<int64_t>(&rest)};
    if (flags & kHasTextScore) metadata_.text_score = Take<double>(&rest);
    if (flags & kHasRecordId) metadata_.record_id = TakeValue(&rest);
    if (flags & kHasIndexKey) metadata_.index_key = TakeValue(&rest);
    if (flags & kHasSortKey) metadata_.sort_key = TakeValue(&rest);
    out->metadata = &metadata_;
  }
  extra_ = rest;
  return Ok();
}

}  // namespace mayfly

#include "storage/catalog/index_keys.h"

#include <boost/container/small_vector.hpp>
#include <utility>

#include "protocol/bson_builder.h"
#include "storage/keys/key_encoding.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

constexpr BsonValue kNullValue(BsonType::kNull, "", 0);
constexpr BsonValue kUndefinedValue(BsonType::kUndefined, "", 0);

std::string_view FirstPart(std::string_view path) { return path.substr(0, path.find('.')); }

std::string_view AfterFirstPart(std::string_view path) {
  size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
}

/// A path part that can be an array position: digits without a leading zero.
bool IsPosition(std::string_view part) {
  if (part.empty() || part.size() > 9 || (part[0] == '0' && part.size() > 1)) return false;
  for (char c : part)
    if (c < '0' || c > '9') return false;
  return true;
}

struct Resolved {
  BsonValue value;        ///< missing when there is nothing at the path
  std::string_view name;  ///< field name of `value`, for messages
  std::string_view rest;  ///< path behind `value`; non-empty only when it is an array
};

/// Follows `path` from `doc` through sub-documents to its end or to the first array.
Resolved Resolve(BsonView doc, std::string_view path) {
  for (;;) {
    std::string_view part = FirstPart(path);
    BsonValue v = doc.Find(part);
    path = AfterFirstPart(path);
    if (v.missing()) return {};
    if (path.empty() || v.IsArray()) return {v, part, path};
    if (!v.IsDocument()) return {};
    doc = v.Document();
  }
}

Error ParallelArrays(std::string_view a, std::string_view b) {
  return {ErrorCode::kCannotIndexParallelArrays,
          "cannot index parallel arrays [" + std::string(a) + "] [" + std::string(b) + "]"};
}

constexpr ErrorCode kAmbiguousPosition = LocationCode(16746);

Error AmbiguousPosition(std::string_view field, std::string_view array) {
  return {kAmbiguousPosition,
          "Ambiguous field name found in array (do not use numeric field names in embedded "
          "elements in an array), "
          "field: '" +
              std::string(field) + "' for array: " + std::string(array)};
}

}  // namespace

/// One extraction. All fields of the index are followed together: fields that reach the same array
/// expand together, one key for each element, so {"a.b": 1, "a.c": 1} pairs the b and c of one
/// element.
class KeyExtraction {
 public:
  KeyExtraction(const IndexInfo& index, KeySet& out) : index_(index), out_(out) {}

  /// One state a field: a value found, or a path still to follow from `base`.
  struct Field {
    BsonValue value;        ///< the key's value once `done`; missing counts as null
    std::string_view rest;  ///< path still to follow
    BsonValue base;  ///< where to follow it from: a document or, behind a position, an array; else
                     ///< a dead end
    std::string_view name;  ///< field name of `base`, for messages
    bool done = false;
    bool base_is_array =
        false;  ///< `base` is the value itself and may be an array to expand, with `rest` behind it
  };
  using Fields = boost::container::small_vector<Field, 4>;

  Result<void> Run(BsonView doc) {
    if (index_.fields.size() == 1 && RunSingle(doc)) return Ok();
    Fields fields;
    fields.resize(index_.fields.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      fields[i].rest = index_.fields[i].path;
      fields[i].base = doc.AsValue();
    }
    if (index_.measured == 0) {
      MAYFLY_TRY(Expand(std::move(fields)));
    } else {
      MAYFLY_TRY(ExpandMeasured(std::move(fields)));
    }
    if (out_.size() > 1) out_.SortUnique();
    return Ok();
  }

 private:
  /// The common case without any state: one field, no array on its path. False when there is one.
  bool RunSingle(BsonView doc) {
    Resolved r = Resolve(doc, index_.fields[0].path);
    if (r.value.IsArray()) return false;
    if (r.value.missing() && index_.sparse) return true;
    BeginKey();
    AppendValue(0, r.value);
    EndValues();
    AppendBits(0, r.value);
    EndKey();
    if (out_.budget_ != nullptr) --*out_.budget_;
    return true;
  }

  /// As Expand, for a bucket. Points with arrays in an indexed measurement are refused, but not
  /// those that were there before an index of an earlier version: their buckets must still be
  /// merged, and lose points. Where arrays leave a bucket without entries, they are not followed.
  Result<void> ExpandMeasured(Fields fields) {
    Result<void> r = Expand(fields);
    if (r || (r.error().code != ErrorCode::kCannotIndexParallelArrays &&
              r.error().code != kAmbiguousPosition))
      return r;
    out_.buffer_.clear();
    out_.keys_.clear();
    keep_arrays_ = true;
    return Expand(std::move(fields));
  }

  /// The value of an open field, or the first array on its path.
  static Resolved Reach(const Field& f) {
    if (!f.base_is_array)
      return f.base.IsDocument() ? Resolve(f.base.Document(), f.rest) : Resolved{};
    if (f.rest.empty() || f.base.IsArray()) return {f.base, f.name, f.rest};
    return f.base.IsDocument() ? Resolve(f.base.Document(), f.rest) : Resolved{};
  }

  bool KeepsArray(uint32_t field) const {
    return keep_arrays_ && (index_.measured >> field & 1) != 0;
  }

  Result<void> Expand(Fields fields) {
    // Follow every open field to its value or to an array; there may be one array only.
    BsonValue array;
    std::string_view array_name;
    boost::container::small_vector<uint32_t, 4> at_array;
    for (uint32_t i = 0; i < fields.size(); ++i) {
      Field& f = fields[i];
      if (f.done) continue;
      const Resolved r = Reach(f);
      if (!r.value.IsArray()) {
        f.value = r.value;
        f.done = true;
        continue;
      }
      if (KeepsArray(i)) [[unlikely]] {
        // No plan uses such an index (HasMeasuredArrays), so any value will do.
        f.value = kUndefinedValue;
        f.done = true;
        out_.multikey_ |= uint64_t{1} << i;
        continue;
      }
      if (array.missing()) {
        array = r.value;
        array_name = r.name;
      } else if (array.data() != r.value.data()) {
        return ParallelArrays(r.name, array_name);
      }
      f.base = r.value;
      f.name = r.name;
      f.rest = r.rest;
      at_array.push_back(i);
    }
    if (at_array.empty()) {
      const size_t before = out_.buffer_.size();
      Emit(fields);
      MAYFLY_TRY(Spend(1 + fields.size() / 4 + (out_.buffer_.size() - before) / 128));
      if (out_.buffer_.size() > kMaxKeyBytes) [[unlikely]]
        return Error{
            ErrorCode::kCannotBuildIndexKeys,
            "the keys of one document for " + Subject() + " take more than " +
                std::to_string(kMaxKeyBytes >> 20) +
                " MB: every element of an array is stored with the values of all other fields"};
      return Ok();
    }

    // A number as next part of the path means the position, when the array has it.
    bool any_expands = false;
    // What is there, by the order of `at_array`: to find it means to go through the array.
    boost::container::small_vector<BsonValue, 4> positions;
    for (uint32_t i : at_array) {
      Field& f = fields[i];
      if (!f.rest.empty() && IsPosition(FirstPart(f.rest))) {
        MAYFLY_TRY(Spend(1 + array.size() / 64));
        MAYFLY_TRY(Look(array.size()));
      }
      const BsonValue at = positions.emplace_back(ValueAtPosition(array, f.rest));
      if (at.missing()) {
        any_expands = true;
        out_.multikey_ |= uint64_t{1} << std::min<uint32_t>(i, 63);
        continue;
      }
      std::string_view part = FirstPart(f.rest);
      for (const BsonElement& e : array.Document())
        if (e.value.IsDocument() && e.value.Document().Has(part))
          return AmbiguousPosition(part, array_name);
    }
    BsonView elements = array.Document();
    if (elements.empty()) {
      // At the end of the path an empty array is undefined; behind it nothing is there.
      for (uint32_t i : at_array) {
        fields[i].done = true;
        fields[i].value = fields[i].rest.empty() ? kUndefinedValue : BsonValue();
      }
      return Expand(std::move(fields));
    }
    for (const BsonElement& e : elements) {
      MAYFLY_TRY(Look(kElement));
      Fields next = fields;
      for (size_t n = 0; n < at_array.size(); ++n) {
        Field& f = next[at_array[n]];
        const BsonValue at = positions[n];
        if (!at.missing()) {
          f.name = FirstPart(f.rest);
          f.rest = AfterFirstPart(f.rest);
          f.base = at;
          f.base_is_array = true;
        } else if (f.rest.empty()) {
          f.value = e.value;  // a nested array is a value of its own
          f.done = true;
        } else {
          // Arrays directly inside arrays are not followed: only a position goes into them.
          f.base = e.value.IsDocument() ? e.value : BsonValue();
          f.base_is_array = false;
        }
      }
      MAYFLY_TRY(Expand(std::move(next)));
      if (!any_expands) break;  // positions only: every element would give the same keys
    }
    return Ok();
  }

  /// This many bytes are about to be walked: where a sparse index leaves all of it out no bytes of
  /// keys bound the work, which two fields below one array may make the square of its length.
  /// Errors: those of Operation::CheckInterrupt.
  Result<void> Look(size_t bytes) {
    if (bytes < left_) [[likely]] {
      left_ -= bytes;
      return Ok();
    }
    left_ = kBetween;
    return out_.op_ == nullptr ? Ok() : out_.op_->CheckInterruptNow();
  }

  /// Errors: WriteConflict 112 when the budget does not hold it.
  Result<void> Spend(size_t cost) {
    if (out_.budget_ == nullptr || (*out_.budget_ -= static_cast<int64_t>(cost)) >= 0) [[likely]]
      return Ok();
    return Error{ErrorCode::kWriteConflict, "so many index keys are for a worker thread"};
  }

  static BsonValue ValueAtPosition(BsonValue array, std::string_view rest) {
    if (rest.empty()) return {};
    std::string_view part = FirstPart(rest);
    return IsPosition(part) ? array.Document().Find(part) : BsonValue();
  }

  void Emit(const Fields& fields) {
    if (index_.sparse) {
      bool all_missing = true;
      for (const Field& f : fields) all_missing = all_missing && f.value.missing();
      if (all_missing) return;
    }
    BeginKey();
    for (size_t i = 0; i < fields.size(); ++i) AppendValue(i, fields[i].value);
    EndValues();
    for (size_t i = 0; i < fields.size(); ++i) AppendBits(i, fields[i].value);
    EndKey();
  }

  /// No index is without a name.
  bool of_sort() const { return index_.name.empty(); }
  std::string Subject() const { return of_sort() ? std::string("a sort") : "index " + index_.name; }
  void BeginKey() {
    begin_ = out_.buffer_.size();
    cut_ = 0;
  }
  void AppendValue(size_t field, BsonValue v) {
    if (v.missing()) v = kNullValue;
    const bool descending = index_.fields[field].descending;
    if (of_sort())
      EncodeKeyValue(v, descending, out_.buffer_);  // its values are read back
    else if (AppendStoredValue(v, descending, begin_, out_.buffer_)) [[unlikely]]
      cut_ |= uint64_t{1} << field;
  }
  void EndValues() { values_end_ = out_.buffer_.size(); }
  void AppendBits(size_t field, BsonValue v) {
    if ((cut_ >> field & 1) == 0) [[likely]]
      EncodeTypeBits(v.missing() ? kNullValue : v, out_.buffer_);
  }
  void EndKey() {
    TrimTypeBits(out_.buffer_, values_end_);
    out_.keys_.push_back({static_cast<uint32_t>(begin_),
                          static_cast<uint32_t>(values_end_ - begin_),
                          static_cast<uint32_t>(out_.buffer_.size() - values_end_)});
  }

  static constexpr size_t kBetween = 64 << 10;  ///< bytes to walk until the operation is asked
  static constexpr size_t kElement = 64;        ///< what an element takes, as bytes

  const IndexInfo& index_;
  KeySet& out_;
  size_t left_ = kBetween;
  size_t begin_ = 0, values_end_ = 0;
  uint64_t cut_ = 0;          ///< bit i: that value of the key is cut (an index has 32 fields)
  bool keep_arrays_ = false;  ///< no array of a measurement is followed
};

void KeySet::SortUnique() {
  auto text = [this](const Key& k) {
    return std::string_view(buffer_).substr(k.begin, k.values_size);
  };
  // If keys encode equal (1 and 1.0), the first element's type bits stay.
  std::sort(keys_.begin(), keys_.end(), [&](const Key& a, const Key& b) {
    int c = text(a).compare(text(b));
    return c < 0 || (c == 0 && a.begin < b.begin);
  });
  keys_.erase(std::unique(keys_.begin(), keys_.end(),
                          [&](const Key& a, const Key& b) { return text(a) == text(b); }),
              keys_.end());
}

Result<void> ExtractOrdinaryKeys(const IndexInfo& index, BsonView doc, KeySet* out) {
  return KeyExtraction(index, *out).Run(doc);
}

namespace {

thread_local constinit Operation* filtering_for = nullptr;

/// A field that is not there is looked for in the whole document.
constexpr size_t kLongDocument = 64 << 10;

}  // namespace

FilteringFor::FilteringFor(Operation* op) : outer_(filtering_for) {
  if (op != nullptr) filtering_for = op;
}

FilteringFor::~FilteringFor() { filtering_for = outer_; }

Operation* FilteringFor::Asked() { return filtering_for; }

Result<void> ExtractKeys(const IndexInfo& index, BsonView doc, KeySet* out) {
  out->Clear();
  if (!index.kind->maintained()) return Ok();
  Operation* const op = out->op_;
  if (op != nullptr && doc.size() >= kLongDocument) [[unlikely]] {
    MAYFLY_TRY(op->CheckInterruptNow());
  }
  if (index.filter) {
    const FilteringFor filtering(op);
    if (!index.filter->Matches(doc)) {
      Operation* const asked = FilteringFor::Asked();
      return asked == nullptr ? Ok() : asked->CheckInterruptNow();
    }
  }
  // The most common kind is called directly.
  Result<void> r = index.kind->id == IndexKindId::kOrdinary ? KeyExtraction(index, *out).Run(doc)
                                                            : index.kind->extract(index, doc, out);
  if (!r) out->Clear();
  return r;
}

Error NewKeys::Refusal(const CollectionInfo& coll) const {
  const std::string has = TooLarge() ? std::to_string(bytes_ >> 20) + " MB of new keys"
                                     : std::to_string(keys_) + " new keys";
  const std::string most =
      TooLarge() ? std::to_string(kMostBytes >> 20) + " MB" : std::to_string(kMost);
  return {ErrorCode::kCannotBuildIndexKeys,
          "a document has " + has + " in the indexes of " + coll.ns + ", more than the " + most +
              " there may be at once: keep long arrays out of indexes, have fewer indexes on them, "
              "or keep the elements in documents of their own"};
}

bool HasCutValue(const IndexInfo& index, std::string_view values) {
  if (values.size() <= kLeastCut) [[likely]]
    return false;
  size_t at = 0;
  for (const IndexField& f : index.fields) {
    const size_t n = StoredValueLength(values, at, f.descending);
    if (n > LongestWhole(at)) return true;
    if (n == 0) return false;  // damaged: whoever decodes it says so
    at += n;
  }
  return false;
}

std::string TooLongToShow(size_t bytes) {
  return "(a value of " + std::to_string(bytes) + " bytes)";
}

Result<void> ExtractNewKeys(const IndexInfo& index, BsonView doc, KeySet* out) {
  MAYFLY_TRY(ExtractKeys(index, doc, out));
  if (out->size() <= kMaxKeysPerDocument) [[likely]]
    return Ok();
  Error e{ErrorCode::kCannotBuildIndexKeys,
          "a document has " + std::to_string(out->size()) + " keys in index " + index.name +
              ", more than the " + std::to_string(kMaxKeysPerDocument) +
              " there may be: keep long arrays out of indexes, or in several documents"};
  out->Clear();
  return e;
}

Result<BsonDocument> DecodeIndexKey(const IndexInfo& index, std::string_view values,
                                    std::string_view type_bits) {
  std::string bytes;
  BsonBuilder b(bytes);
  size_t at = 0;
  for (const IndexField& f : index.fields) {
    const size_t n = StoredValueLength(values, at, f.descending);
    if (n > LongestWhole(at)) {
      b.Append(f.path, "(a value of more than " + std::to_string(LongestWhole(at)) + " bytes)");
      at += n;
      continue;
    }
    MAYFLY_TRY(Value v, DecodeStoredValue(values, &at, f.descending, &type_bits));
    b.Append(f.path, v.view());
  }
  b.Done();
  return BsonDocument(std::move(bytes));
}

}  // namespace mayfly

#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

class Operation;

/// The index entries of one document in one index: encoded key and type bits of each, sorted by
/// key, no key twice. Owned by the caller and meant to be reused: once its buffers have grown,
/// filling it again does not allocate. Views are valid until the next Clear() or extraction. Not
/// thread-safe.
class KeySet {
 public:
  size_t size() const { return keys_.size(); }
  bool empty() const { return keys_.empty(); }
  /// The bytes of all keys together, also of those that were equal.
  size_t bytes() const { return buffer_.size(); }
  /// The values of the index's fields (AppendStoredValue); of a sort EncodeKeyValue.
  std::string_view values(size_t i) const {
    return {buffer_.data() + keys_[i].begin, keys_[i].values_size};
  }
  /// Concatenated EncodeTypeBits, but of what is cut; empty when all values have the default kind.
  std::string_view type_bits(size_t i) const {
    return {buffer_.data() + keys_[i].begin + keys_[i].values_size, keys_[i].bits_size};
  }
  /// Bit i: field i met an array on its path (fields above 63 share the last bit).
  uint64_t multikey() const { return multikey_; }
  /// The remaining cost of extractions, about one per key; null: no limit. Once it is negative,
  /// they end with WriteConflict 112: for threads that others wait for.
  void set_budget(int64_t* left) { budget_ = left; }
  /// The operation that is checked before extraction from a long document, and by a partial filter
  /// inside one; null: none. Its error ends the extraction, which never counts as "no keys".
  void set_operation(Operation* op) { op_ = op; }
  void Clear() {
    buffer_.clear();
    keys_.clear();
    multikey_ = 0;
  }

 private:
  friend class KeyExtraction;
  friend Result<void> ExtractKeys(const IndexInfo& index, BsonView doc, KeySet* out);
  struct Key {
    uint32_t begin, values_size, bits_size;
  };
  void SortUnique();

  std::string buffer_;
  std::vector<Key> keys_;
  uint64_t multikey_ = 0;
  int64_t* budget_ = nullptr;
  Operation* op_ = nullptr;
};

/// While it lives, the filters that this thread runs on documents (of partial indexes and of holds)
/// check `op` for an interrupt; null: the operation of the enclosing one. A stopped filter answers
/// false, so its caller must check the operation again.
class FilteringFor {
 public:
  explicit FilteringFor(Operation* op);
  ~FilteringFor();
  FilteringFor(const FilteringFor&) = delete;
  /// The operation to check; null: there is none.
  static Operation* Asked();

 private:
  Operation* const outer_;
};

/// Fills `out` with the entries of `doc` in `index`, as its kind has them; a document outside a
/// partial index has none. On error `out` is empty. Errors: those of its kind; those of an
/// interrupt, given an operation.
Result<void> ExtractKeys(const IndexInfo& index, BsonView doc, KeySet* out);

/// IndexKind::extract of ordinary indexes. Rules of MongoDB's manual ("Multikey Indexes",
/// "Sparse Indexes", "Partial Indexes") and observed behaviour:
/// - a dotted path goes through sub-documents; an array on the way stands for each of its elements,
///   unless the next part of the path is a number that is a position in it: then for that element
///   alone;
/// - an array at the end of the path gives one key for each distinct element (a nested array is a
///   value), an empty one gives undefined;
/// - what is missing counts as null; a sparse index leaves a key out when all its fields are
///   missing.
/// Errors: CannotIndexParallelArrays 171 (two fields go through different arrays), Location16746 (a
/// numeric path part is both a position in an array and a field name in one of its elements).
/// CannotBuildIndexKeys 201: the keys take more than kMaxKeyBytes. Arrays of measurements in
/// buckets are no reason for either of the first two: see IndexInfo::HasMeasuredArrays.
Result<void> ExtractOrdinaryKeys(const IndexInfo& index, BsonView doc, KeySet* out);
inline constexpr size_t kMaxKeyBytes = size_t{32} << 20;

/// The same for a document on its way in, which may have so many keys (manual:
/// "indexMaxNumGeneratedKeysPerDocument"). Errors besides: CannotBuildIndexKeys 201.
Result<void> ExtractNewKeys(const IndexInfo& index, BsonView doc, KeySet* out);
inline constexpr size_t kMaxKeysPerDocument = 100'000;

/// Whether a value of the key is cut (AppendStoredValue): only its document tells it.
bool HasCutValue(const IndexInfo& index, std::string_view values);
/// What messages have in place of a value of more than kMaxKeySize bytes.
std::string TooLongToShow(size_t bytes);

/// What one document adds to all indexes of its collection together, but for those where it has one
/// key only. It is one commit, which holds the keys several times and lets nobody else's write go
/// on meanwhile. Where a single index has many, its own limits hold.
class NewKeys {
 public:
  /// One more index, where it has `keys` of so many bytes.
  void Add(size_t keys, size_t bytes) {
    if (keys <= 1) return;
    keys_ += keys;
    bytes_ += bytes;
    ++indexes_;
  }
  size_t bytes() const { return bytes_; }
  bool TooMany() const { return indexes_ > 1 && (keys_ > kMost || TooLarge()); }
  /// TooMany, by bytes alone.
  bool TooLarge() const { return indexes_ > 1 && bytes_ > kMostBytes; }
  /// CannotBuildIndexKeys 201, which says what to do.
  Error Refusal(const CollectionInfo& coll) const;

  static constexpr size_t kMost = 64'000, kMostBytes = size_t{64} << 20;

 private:
  size_t keys_ = 0, bytes_ = 0, indexes_ = 0;
};

/// Calls `removed(i)` for every key of `before` that is not in `after`, and `added(j)` for the
/// reverse. A key that is in both but with other type bits counts as removed and added. Linear in
/// the number of keys.
template <class Removed, class Added>
void DiffKeys(const KeySet& before, const KeySet& after, Removed&& removed, Added&& added) {
  size_t i = 0, j = 0;
  while (i < before.size() && j < after.size()) {
    int c = before.values(i).compare(after.values(j));
    if (c == 0) {
      if (before.type_bits(i) != after.type_bits(j)) {
        removed(i);
        added(j);
      }
      ++i, ++j;
    } else if (c < 0) {
      removed(i++);
    } else {
      added(j++);
    }
  }
  while (i < before.size()) removed(i++);
  while (j < after.size()) added(j++);
}

/// The key of a document without arrays on the indexed paths as {path: value, …} for messages: what
/// keyValue of a duplicate-key error shows. Decodes `values` with `type_bits`; fields of
/// `index.key` name the values. A text stands for a value that is cut.
Result<BsonDocument> DecodeIndexKey(const IndexInfo& index, std::string_view values,
                                    std::string_view type_bits);

}  // namespace mayfly

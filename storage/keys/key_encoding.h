#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/value.h"

namespace mayfly {

/// Order-preserving encoding of one BSON value: memcmp order of the encodings is CompareValues
/// order, and equal values (1, 1.0, NumberLong(1), NumberDecimal("1")) encode equal.
/// Self-delimiting and prefix-free, so encodings concatenate into compound keys. Grammar:
/// storage/keys/key_encoding.cc and docs/on-disk-format.md. `descending` inverts every byte.
/// Missing encodes as null does in an index key: the caller passes null.
void EncodeKeyValue(BsonValue v, bool descending, std::string& out);

/// Bytes that tell apart what the encoding made equal (int32/int64/double/decimal, -0.0, decimal
/// exponents, string/symbol, null/undefined), appended for one value.
void EncodeTypeBits(BsonValue v, std::string& out);

/// Drops trailing default bytes behind `from`, once all values of a key are appended: they read
/// back as defaults.
void TrimTypeBits(std::string& bits, size_t from = 0);

/// Reads one value back, consuming it from `*key` and its type bits from `*type_bits`. Errors:
/// InternalError 1 on corrupt bytes (never reads past them).
Result<Value> DecodeKeyValue(std::string_view* key, bool descending, std::string_view* type_bits);

/// Length of the first encoded value in `key`; 0 when corrupt.
size_t EncodedValueLength(std::string_view key, bool descending);

/// The bytes that the values of a key in the store have together, also an `_id`, before what is
/// longer is cut. The store keeps the first and the last key of every file in memory, several times
/// over, and writes them to its manifest: with keys of megabytes that is more than the data.
inline constexpr size_t kMaxKeySize = size_t{1} << 20;
/// A value that is not longer is never cut.
inline constexpr size_t kLeastCut = 4096;
/// What follows the beginning of a value that is cut: the SHA-256 of all its bytes.
inline constexpr size_t kCutHashSize = 32;
/// The longest that a value stays whole which begins `at` bytes behind the first of its key.
constexpr size_t LongestWhole(size_t at) {
  return at + kLeastCut < kMaxKeySize ? kMaxKeySize - at : kLeastCut;
}

/// Appends a value to a key in the store, whose first value is at `begin` in `out`: as
/// EncodeKeyValue, but cut if it is longer than LongestWhole; then it answers true. Values that are
/// equal still have equal bytes, others have not, but the order of two that are cut at the same
/// bytes is by chance: a range that ends at such a value is to be taken wider
/// (query/plan/index_bounds.cc). Only the document has the value of what is cut.
bool AppendStoredValue(BsonValue v, bool descending, size_t begin, std::string& out);

/// Length of the value that begins at `values[at]`, with the hash if it is cut; 0 when corrupt.
/// `values`: from the first value of a key in the store.
size_t StoredValueLength(std::string_view values, size_t at, bool descending);

/// As DecodeKeyValue, for a key in the store: reads the value at `values[*at]`, and moves `*at`
/// behind it. Errors: InternalError 1 on corrupt bytes, and for a value that is cut.
Result<Value> DecodeStoredValue(std::string_view values, size_t* at, bool descending,
                                std::string_view* type_bits);

/// The bytes of an index key (be32 index, values) up to the end of the first value, which entries
/// with equal first values share and no others have; 0: the value is a document, an array, code
/// with a scope, or the bytes are not a key. The first byte says whether the field descends.
size_t IndexGroupSize(std::string_view index_key);

// Bounds for scans: every value of a canonical type class lies in [EncodeTypeClassBegin,
// EncodeTypeClassEnd).
void EncodeTypeClassBegin(BsonType type, std::string& out);
void EncodeTypeClassEnd(BsonType type, std::string& out);

}  // namespace mayfly

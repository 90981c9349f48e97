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

/// The bytes of an index key (be32 index, values) up to the end of the first value, which entries
/// with equal first values share and no others have; 0: the value is a document, an array, code
/// with a scope, or the bytes are not a key. The first byte says whether the field descends.
size_t IndexGroupSize(std::string_view index_key);

// Bounds for scans: every value of a canonical type class lies in [EncodeTypeClassBegin,
// EncodeTypeClassEnd).
void EncodeTypeClassBegin(BsonType type, std::string& out);
void EncodeTypeClassEnd(BsonType type, std::string& out);

}  // namespace mayfly

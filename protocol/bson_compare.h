#pragma once
#include <cstdint>

#include "protocol/bson_view.h"

namespace mayfly {

/// MongoDB's comparison order of types (manual: "Comparison/Sort Order"): MinKey,
/// undefined/missing, null, numbers, symbol/string, object, array, binData, objectId, bool, date,
/// timestamp, regex, dbPointer, code, codeWScope, MaxKey. Types of one class return the same
/// number.
int CanonicalTypeOrder(BsonType type);

/// <0, 0, >0. Across classes by CanonicalTypeOrder; numbers by exact numeric value across
/// int32/int64/double/decimal (NaN equal to itself and below every number); documents field by
/// field: canonical type of the value, then name, then value; arrays likewise without names; binary
/// by length, subtype, bytes. A missing value compares as undefined does. Threads: any.
int CompareValues(BsonValue a, BsonValue b);
int CompareDocuments(BsonView a, BsonView b);
inline bool ValuesEqual(BsonValue a, BsonValue b) { return CompareValues(a, b) == 0; }

/// A hash that agrees with CompareValues: equal values hash equal, whatever their numeric type.
uint64_t HashValue(BsonValue v, uint64_t seed = 0);

/// For hash tables keyed by values: equal numbers of different types are one key.
struct BsonValueHash {
  size_t operator()(const BsonValue& v) const { return HashValue(v); }
};
/// Whether two values compare as equal; goes with BsonValueHash.
struct BsonValueEqual {
  bool operator()(const BsonValue& a, const BsonValue& b) const { return CompareValues(a, b) == 0; }
};

}  // namespace mayfly

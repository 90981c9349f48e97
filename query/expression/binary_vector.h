#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "protocol/error.h"
#include "protocol/value.h"
#include "query/expression/expression.h"

namespace mayfly {

/// A view of a vector: a binary value of subtype 9 (driver specification "BSON Binary Vector"): a
/// byte with the type of its elements, a byte with the number of unused bits at its end, then the
/// elements. Does not own the bytes. Threads: any.
class BinaryVector {
 public:
  static constexpr uint8_t kSubtype = 9;
  enum class Kind : uint8_t { kInt8 = 0x03, kPackedBit = 0x10, kFloat32 = 0x27 };

  /// Nothing if `v` is no vector, or not a well-formed one.
  static std::optional<BinaryVector> Read(BsonValue v);

  Kind kind() const { return kind_; }
  size_t size() const { return size_; }  ///< in elements
  /// The element at `i`; a bit is 0 or 1. REQUIRES: i < size().
  double At(size_t i) const;

 private:
  BinaryVector(Kind kind, std::string_view data, size_t size)
      : kind_(kind), size_(size), data_(data) {}
  Kind kind_;
  size_t size_;
  std::string_view data_;
};

/// The elements of a vector: ints, doubles or booleans. Errors: ConversionFailure 241 for any other
/// binary value, those of GrowingArray.
Result<Value> VectorToArray(EvalContext& ctx, BsonValue binary);

/// A vector of the numbers of an array: whole ones as INT8, doubles as FLOAT32. Errors:
/// ConversionFailure 241 for other elements, for both kinds of numbers in one array, for those that
/// do not fit, and for an empty array, which has no type; those of GrowingBytes.
Result<Value> ArrayToVector(EvalContext& ctx, BsonValue array);

}  // namespace mayfly

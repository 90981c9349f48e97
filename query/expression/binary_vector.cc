#include "query/expression/binary_vector.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "query/expression/growth.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

constexpr size_t kVectorHead = 2;

Error NoVector(std::string_view why) {
  return {ErrorCode::kConversionFailure, std::string(why) + " in $convert with no onError value"};
}

/// The elements of `kind` in so many bytes, the last `unused` bits of which count for nothing.
std::optional<size_t> ElementsIn(BinaryVector::Kind kind, size_t bytes, uint8_t unused) {
  switch (kind) {
    case BinaryVector::Kind::kInt8:
      if (unused != 0) return std::nullopt;
      return bytes;
    case BinaryVector::Kind::kFloat32:
      if (unused != 0 || bytes % sizeof(float) != 0) return std::nullopt;
      return bytes / sizeof(float);
    case BinaryVector::Kind::kPackedBit:
      if (unused > 7 || (bytes == 0 && unused != 0)) return std::nullopt;
      return 8 * bytes - unused;
  }
  return std::nullopt;
}

}  // namespace

std::optional<BinaryVector> BinaryVector::Read(BsonValue v) {
  if (!v.Is(BsonType::kBinary) || v.BinarySubtype() != kSubtype) return std::nullopt;
  const std::string_view bytes = v.BinaryData();
  if (bytes.size() < kVectorHead) return std::nullopt;
  const auto kind = static_cast<Kind>(bytes[0]);
  const std::string_view data = bytes.substr(kVectorHead);
  const std::optional<size_t> size = ElementsIn(kind, data.size(), static_cast<uint8_t>(bytes[1]));
  if (!size) return std::nullopt;
  return BinaryVector(kind, data, *size);
}

double BinaryVector::At(size_t i) const {
  switch (kind_) {
    case Kind::kInt8:
      return static_cast<int8_t>(data_[i]);
    case Kind::kFloat32:
      return LoadLe<float>(data_.data() + i * sizeof(float));
    case Kind::kPackedBit:
      return static_cast<uint8_t>(data_[i / 8]) >> (7 - i % 8) & 1;
  }
  return 0;
}

Result<Value> VectorToArray(EvalContext& ctx, BsonValue binary) {
  const std::optional<BinaryVector> vector = BinaryVector::Read(binary);
  if (!vector) return NoVector("Only a valid vector (binData of subtype 9) becomes an array");
  GrowingArray out(ctx);
  for (size_t i = 0; i < vector->size(); ++i) {
    MAYFLY_TRY(out.Room(sizeof(double)));
    const double element = vector->At(i);
    switch (vector->kind()) {
      case BinaryVector::Kind::kInt8:
        out.raw().Append(static_cast<int32_t>(element));
        break;
      case BinaryVector::Kind::kFloat32:
        out.raw().Append(element);
        break;
      case BinaryVector::Kind::kPackedBit:
        out.raw().Append(element != 0);
        break;
    }
  }
  return out.Finish();
}

Result<Value> ArrayToVector(EvalContext& ctx, BsonValue array) {
  constexpr size_t kLength = sizeof(int32_t), kBinaryHead = kLength + 1;
  GrowingBytes out(ctx);
  MAYFLY_TRY(out.Append(std::string_view("\0\0\0\0", kLength)));
  const BsonType first = array.Document().First().value.type();
  const bool floats = first == BsonType::kDouble;
  const char head[] = {
      BinaryVector::kSubtype,
      static_cast<char>(floats ? BinaryVector::Kind::kFloat32 : BinaryVector::Kind::kInt8), 0};
  MAYFLY_TRY(out.Append({head, sizeof head}));
  if (array.Document().empty()) return NoVector("An empty array has no type of a vector");
  for (const BsonElement& e : array.Document()) {
    const bool whole = e.value.Is(BsonType::kInt32) || e.value.Is(BsonType::kInt64);
    if (floats ? !e.value.Is(BsonType::kDouble) : !whole)
      return NoVector("Only arrays of whole numbers or of doubles become a vector, found: " +
                      TypeText(e.value));
    if (whole) {
      const int64_t n = e.value.NumberAsInt64();
      if (n < INT8_MIN || n > INT8_MAX)
        return NoVector("A whole number of a vector is from -128 to 127, found: " +
                        std::to_string(n));
      const char byte = static_cast<char>(n);
      MAYFLY_TRY(out.Append({&byte, 1}));
      continue;
    }
    const double d = e.value.Double();
    if (std::isfinite(d) && std::abs(d) > std::numeric_limits<float>::max())
      return NoVector("A number is too large for a vector: " + ValueText(e.value));
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(d));
    char bytes[sizeof bits];
    StoreLe(bytes, bits);
    MAYFLY_TRY(out.Append({bytes, sizeof bytes}));
  }
  std::string bytes = out.Take();
  StoreLe(bytes.data(), static_cast<int32_t>(bytes.size() - kBinaryHead));
  return Value::Owned(BsonType::kBinary, std::move(bytes));
}

}  // namespace mayfly

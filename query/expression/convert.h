#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/value.h"

namespace mayfly {

/// $convert: `v` (not null) as another type. Errors: ConversionFailure 241, with the reason.
Result<Value> ConvertValue(BsonValue v, BsonType to);

/// How binary values are written as text (manual: "$convert", "Convert to BinData").
enum class BinaryFormat : uint8_t { kNone, kAuto, kBase64, kBase64Url, kHex, kUtf8, kUuid };
/// By the name that $convert's `format` takes; nothing if there is none.
std::optional<BinaryFormat> ParseBinaryFormat(std::string_view name);

inline constexpr uint8_t kUuidSubtype = 4;
/// The other options of $convert. Only those that the two types need are read.
struct ConvertOptions {
  uint8_t subtype = 0;         ///< of the binary value to make
  bool subtype_given = false;  ///< `subtype` was written, and is not only the usual one
  BinaryFormat format = BinaryFormat::kNone;
  bool big_endian = false;
  int base = 0;  ///< of numbers written as text: 2, 8, 10 or 16; 0: not given
};
/// As ConvertValue, with the options of $convert. Errors: ConversionFailure 241.
Result<Value> ConvertWith(BsonValue v, BsonType to, const ConvertOptions& options);

/// A type by its alias ("int") or its number; nothing if there is none.
std::optional<BsonType> ParseTypeName(BsonValue v);
/// A double as MongoDB writes it in text: the shortest of 15 to 17 digits that reads back the same.
std::string DoubleText(double d);

}  // namespace mayfly

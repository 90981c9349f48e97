#pragma once
#include "protocol/error.h"
#include "protocol/value.h"

namespace mayfly {

/// $convert: `v` (not null) as another type. Errors: ConversionFailure 241, with the reason.
Result<Value> ConvertValue(BsonValue v, BsonType to);
/// A type by its alias ("int") or its number; nothing if there is none.
std::optional<BsonType> ParseTypeName(BsonValue v);
/// A double as MongoDB writes it in text: the shortest of 15 to 17 digits that reads back the same.
std::string DoubleText(double d);

}  // namespace mayfly

#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// Extended JSON v2 (driver specification "Extended JSON").
std::string ToCanonicalJson(BsonView doc);
std::string ToRelaxedJson(BsonView doc);
std::string ToRelaxedJson(BsonValue value);  ///< one value: for messages and logs
/// Parses relaxed or canonical extended JSON, one document. Errors: FailedToParse 9.
Result<BsonDocument> ParseJson(std::string_view json);

}  // namespace mayfly

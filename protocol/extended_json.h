#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// Extended JSON v2 (driver specification "Extended JSON"), spaced as libbson spaces it: `{ "a" : 1
/// }`. Doubles are written in the shortest form that reads back exactly. Threads: any.
std::string ToCanonicalJson(BsonView doc);
std::string ToRelaxedJson(BsonView doc);
std::string ToRelaxedJson(BsonValue value);  ///< one value: for messages and logs
/// `s` as a string of JSON, in quotes. Invalid UTF-8 bytes become U+FFFD. Characters that end a
/// line for some reader, or control a terminal, are escaped, so that no name can forge a line of a
/// log. Threads: any.
void AppendJsonString(std::string& out, std::string_view s);
/// The text of a $date: YYYY-MM-DDTHH:MM[:SS[.digits]](Z | ±HH[[:]MM]), in milliseconds since 1970,
/// UTC. False for any other text. Threads: any.
bool ParseIsoDate(std::string_view s, int64_t* millis);
/// Parses relaxed or canonical extended JSON: one document, or one array (whose bytes come as a
/// document named "0", "1", …). Of the older version 1 only {$binary, $type} is read: `$regex`,
/// `$options` and `$type` stay the operators they are in filters. Errors: FailedToParse 9.
Result<BsonDocument> ParseJson(std::string_view json);

}  // namespace mayfly

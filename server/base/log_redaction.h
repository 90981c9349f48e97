#pragma once
#include <atomic>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

/// redactClientLogData: attributes of log lines with data from clients appear as ###. One setting
/// per process, like its log.
std::atomic<bool>& LogRedaction();

/// The replacement for clients' data.
inline constexpr std::string_view kRedactedData = "###";
/// The document with kRedactedData in place of every value; names of fields, documents and arrays
/// stay.
BsonDocument RedactedValues(BsonView doc);
/// The attributes of a line without clients' data: commands, documents and filters keep the names
/// of their fields; the text of errors is removed, since it may quote a document. Codes, names of
/// collections, plans and counts stay.
BsonDocument RedactAttributes(int id, BsonView attr);

/// RenameLogAway, and the file's new path; empty: it stayed, since it is empty or not a file.
Result<std::string> RenameLogTo(const std::string& path, Instant now);

}  // namespace mayfly

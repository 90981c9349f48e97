#pragma once
#include <atomic>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

/// redactClientLogData: attributes of log lines that hold what clients have sent show as ###. Of
/// the process, as its log is.
std::atomic<bool>& LogRedaction();

/// What stands in place of what clients have sent.
inline constexpr std::string_view kRedactedData = "###";
/// The document with kRedactedData in place of every value; names of fields, documents and arrays
/// stay.
BsonDocument RedactedValues(BsonView doc);
/// The attributes of a line without what clients have sent: commands, documents and filters keep
/// the names of their fields, and the text of errors goes, since it may quote a document. Codes,
/// names of collections, plans and counts stay.
BsonDocument RedactAttributes(int id, BsonView attr);

/// RenameLogAway, and the file's new path; empty: it stayed.
Result<std::string> RenameLogTo(const std::string& path, Instant now);

}  // namespace mayfly

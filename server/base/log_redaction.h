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

/// The collections with the credentials of users: those of users, and of users that are being
/// restored.
inline constexpr std::string_view kUsersNamespace = "admin.system.users";
inline constexpr std::string_view kRestoredUsersNamespace = "admin.tempusers";
/// Whether the attributes of a line tell of these: then they are shown as RedactAttributes has
/// them, whatever redactClientLogData says. Lines about commands have been looked at by who writes
/// them (ShownCommand).
bool TellsOfCredentials(int id, BsonView attr);

/// Whether the text of an error among the attributes quotes a field with a secret name. Errors come
/// from everywhere and go to the log as they are, so every line is looked at.
bool QuotesSecretInError(BsonView attr);
/// The attributes with kRedacted in place of such texts.
BsonDocument WithoutSecretErrors(BsonView attr);

/// RenameLogAway, and the file's new path; empty: it stayed, since it is empty or not a file.
Result<std::string> RenameLogTo(const std::string& path, Instant now);

}  // namespace mayfly

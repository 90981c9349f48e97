#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

class Storage;

/// {_id: "authSchema", currentVersion: kAuthSchemaVersion} of this collection of `admin`: mongodump
/// and mongorestore look there, and ask for the parameter authSchemaVersion, whether they know the
/// format of users and roles.
inline constexpr std::string_view kVersionCollection = "system.version";
inline constexpr std::string_view kAuthSchemaId = "authSchema";
inline constexpr int32_t kAuthSchemaVersion = 5;

/// The document of this `_id` in a collection of `admin`; none if there is no such document, none
/// that has not expired, or no such collection. Reads storage: not for threads that serve sockets.
/// Threads: any. Errors: the store's.
Result<std::optional<BsonDocument>> ReadAccessDocument(Storage& storage,
                                                       std::string_view collection,
                                                       const std::string& id);

}  // namespace mayfly

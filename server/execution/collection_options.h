#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// Sets the validator, its level and action on a definition (absent: as they are) and compiles it.
/// Errors: BadValue 2 and those of filters.
Result<void> SetValidator(DataServices& server, CollectionInfo& c,
                          std::optional<BsonView> validator, std::optional<std::string_view> level,
                          std::optional<std::string_view> action);
/// Whether the log is told of documents that the validator does not accept: validationAction "warn"
/// and "errorAndLog". For documents that have failed: it looks through the options.
bool LogsFailedValidation(const CollectionInfo& coll);

/// `expireAfterSeconds` of a whole collection, `kind` (for messages) "clustered" or "time-series":
/// an int64, not negative, not beyond the time since the epoch. Errors: InvalidOptions 72
/// (docs/expiry.md, "What is refused").
Result<int64_t> ParseCollectionExpiry(std::string_view kind, BsonValue v, Instant now);

/// `expiry: {field, maxTTL, onUpdate, recoverSeconds}` of create and collMod: sets what is given.
/// With `change`, maxTTL is refused (it is fixed at creation) and `field: null` takes the field
/// away. Errors: TypeMismatch 14, BadValue 2, InvalidOptions 72, unknown field 40415.
Result<void> ParseExpiryOptions(BsonView given, bool change, ExpiryOptions* options);
/// As listCollections shows it: what is not the default.
BsonDocument DescribeExpiryOptions(const ExpiryOptions& options);

/// The `create` command. `uuid`: of the new collection, which a replayed oplog names; none: a new
/// one. Errors: NamespaceExists 48 (also for a UUID that is taken) and those of the options.
Result<void> CreateCollection(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply,
                              std::optional<Uuid> uuid);

/// `changeStreamPreAndPostImages: {enabled: bool}` of create and collMod: whether it is on.
/// `command`: for messages. Errors: InvalidOptions 72 in databases that have no change streams,
/// TypeMismatch 14, missing field 40414, unknown field 40415.
Result<bool> ParsePreImages(std::string_view command, std::string_view db, BsonView given);
/// `enabled` as listCollections shows it.
void AppendPreImages(BsonBuilder& options);

}  // namespace mayfly

#pragma once
#include <string>
#include <vector>

#include "server/dispatch/expiry_services.h"
#include "storage/catalog/catalog.h"

namespace mayfly {

/// Reads and checks one entry of createIndexes' `indexes` for the collection (null: it does not
/// exist yet). `note` gets a remark for the reply, if there is one. Errors: CannotCreateIndex 67,
/// InvalidIndexSpecificationOption 197, FailedToParse 9, TypeMismatch 14, BadValue 2 (manual
/// "createIndexes"; docs/expiry.md, "What is refused"). `ignore_unknown`: options that no index has
/// are left out (createIndexes' ignoreUnknownIndexOptions, which mongorestore sends), rather than
/// refused.
Result<IndexInfo> ParseIndexSpec(ExpiryServices& server, const CollectionInfo* coll, BsonView spec,
                                 std::string* note, bool ignore_unknown = false);

/// The longest name of an index in bytes: each listing, each statistic and many messages show it.
inline constexpr size_t kMaxIndexName = 8192;

/// What any index may be called, that of a clustered collection too. Errors: CannotCreateIndex 67,
/// BadValue 2 for "*".
Result<void> CheckIndexName(std::string_view name);

/// `expireReads` of an index: "exact" or "lazy" (docs/expiry.md, "Exact reads of TTL indexes").
/// Errors: TypeMismatch 14, BadValue 2.
Result<ExpireReads> ParseExpireReads(BsonValue v, std::string_view where);
/// `expireReads` of a collection. `has_rule`: one that may have a rule of its own. Errors: also
/// InvalidOptions 72 for others.
Result<ExpireReads> ParseCollectionExpireReads(BsonValue v, std::string_view where, bool has_rule);

/// The reading of a TTL index's seconds at creation. Errors: CannotCreateIndex 67.
Result<int32_t> ParseExpireAfterSeconds(BsonValue v, std::string_view index_name);

}  // namespace mayfly

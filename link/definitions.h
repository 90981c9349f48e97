#pragma once
#include <optional>
#include <string_view>

#include "protocol/bson_view.h"

namespace mayfly {

// Definitions of collections, as listCollections and events of change streams have them, and the
// commands that carry them to a target. Limits of expiry (`expiry.maxTTL`) are never carried
// (docs/expiry.md C16). Views of the arguments are not kept. Threads: any.

/// Whether a definition is that of a time series or of its buckets, which a link does not carry.
bool IsTimeSeries(BsonView options);

/// `create` with the options.
BsonDocument CreateCommand(std::string_view collection, BsonView options);

/// Whether collMod can turn one into the other: both are views, or collections that agree in what
/// is fixed at their creation (capped, clustered, collation).
bool SameKind(BsonView a, BsonView b);

/// collMod of the options in which `after` differs from `before`. `whole`: `after` has all options,
/// so one that it lacks is set back. Nullopt: there is nothing to change.
std::optional<BsonDocument> ModifyCommand(std::string_view collection, BsonView before,
                                          BsonView after, bool whole);

/// collMod of an index, with those fields of an event's `index` that the command knows. Nullopt:
/// there is none of them.
std::optional<BsonDocument> ModifyIndexCommand(std::string_view collection, BsonView index);

}  // namespace mayfly

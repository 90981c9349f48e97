#pragma once
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

class Operation;
class Storage;

/// Where a target keeps what its links report.
inline constexpr std::string_view kLinkStatusDb = "mayflyLink", kLinkStatusCollection = "links";

/// Appends `links`, if any write here: each mayfly-link's progress as stored in its target
/// (mayflyLink. links), and the effect of both sides' clocks on deadlines. Anybody may have written
/// these documents: unexpected content is omitted, and so are links beyond the first 20. Blocking.
/// Errors: those of the store, and what interrupts the operation.
Result<void> AppendLinks(Storage& storage, Operation& op, BsonBuilder& reply);

}  // namespace mayfly

#pragma once
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// The options of currentOp and $currentOp.
struct CurrentOpOptions {
  bool idle_connections = false;
  bool idle_cursors = false;
  bool own_only = false;  ///< only operations of the asking client
  bool truncate = true;   ///< commands longer than 1000 bytes are shown as {$truncated: "…"}
};

/// What runs now, one document an operation, as currentOp and `{$currentOp: {}}` show it.
std::vector<BsonDocument> CollectOperations(const CommandContext& ctx,
                                            const CurrentOpOptions& options);

}  // namespace mayfly

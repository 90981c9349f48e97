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
  bool idle_sessions = true;  ///< transactions that wait for their clients
  /// Only what belongs to whoever asks: with access control operations of the same user, on any
  /// connection; without, those of the same client. Builds and cursors that wait belong to nobody.
  bool own_only = false;
  bool truncate = true;  ///< commands longer than 1000 bytes are shown as {$truncated: "…"}
};

/// What runs now, one document an operation, as currentOp and `{$currentOp: {}}` show it.
std::vector<BsonDocument> CollectOperations(const CommandContext& ctx,
                                            const CurrentOpOptions& options);

}  // namespace mayfly

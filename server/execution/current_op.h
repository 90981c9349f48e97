#pragma once
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "security/names.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

/// The options of currentOp and $currentOp.
struct CurrentOpOptions {
  bool idle_connections = false;
  bool idle_cursors = false;
  bool idle_sessions = true;  ///< transactions that wait for their clients
  /// Only the user's own operations: with access control those of the same user, on any connection;
  /// without, those of the same client. Builds and waiting cursors belong to nobody.
  bool own_only = false;
  bool truncate = true;  ///< commands longer than 1000 bytes are shown as {$truncated: "…"}
};

/// Who asks what belongs to whom.
struct Asker {
  bool access_control = false;  ///< else everything is everybody's
  UserName user;                ///< empty: nobody has logged in
  /// Set by currentOp alone; 0, as AskerOf leaves it: no client's. Matters without access control.
  int64_t connection_id = 0;
};
/// Who runs `op` now: its user. A cursor's pipeline asks again in each batch, which may be another
/// operation's.
Asker AskerOf(ServerContext& server, const Operation& op);

/// What runs now, one document per operation, as currentOp and `{$currentOp: {}}` show it.
std::vector<BsonDocument> CollectOperations(ServerContext& server, const Asker& asker,
                                            const CurrentOpOptions& options);

}  // namespace mayfly

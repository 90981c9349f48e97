#pragma once
#include "server/dispatch/server_context.h"

namespace mayfly {

/// config.system.sessions: one document a logical session, {_id: {id, uid}, lastUse}, with the TTL
/// index lsidTTLIndex on lastUse, so that sessions that nobody uses go by this server's own expiry
/// (manual: "Server Sessions"). What is in memory is written every `logicalSessionRefreshMillis`
/// and by refreshLogicalSessionCacheNow. Blocking. Nothing happens where writes are not possible.
Result<void> RefreshSessionRecords(ServerContext& server, Operation& op);

/// Removes the documents of sessions that clients have ended.
Result<void> RemoveSessionRecords(ServerContext& server, Operation& op,
                                  const std::vector<std::string_view>& ids);

/// SHA-256 of the user's name, the `uid` of an lsid: of nobody's, without access control.
const std::string& UserDigest();

/// The documents of config.system.sessions, for $listSessions.
Result<std::vector<BsonDocument>> ListSessionRecords(ServerContext& server, Operation& op);

}  // namespace mayfly

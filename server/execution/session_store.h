#pragma once
#include <functional>
#include <vector>

#include "server/dispatch/expiry_services.h"

namespace mayfly {

/// config.system.sessions: one document {_id: {id, uid}, lastUse} per logical session, with the TTL
/// index lsidTTLIndex on lastUse, so unused sessions are removed by this server's own expiry
/// (manual: "Server Sessions"). What is in memory is written every `logicalSessionRefreshMillis`
/// and by refreshLogicalSessionCacheNow, some hundred in a commit. Blocking. Nothing happens where
/// writes are not possible.
Result<void> RefreshSessionRecords(ExpiryServices& server, Operation& op);

/// Removes the documents of sessions that clients have ended.
Result<void> RemoveSessionRecords(DataServices& server, Operation& op,
                                  const std::vector<std::string>& keys);

/// The `uid` of sessions without access control: SHA-256 of nothing, 32 bytes.
std::string_view NobodysDigest();
/// The fields id and uid of an lsid, of a session's key.
void AppendSessionId(BsonBuilder& out, std::string_view key);

/// The documents of config.system.sessions that `shown` admits, for $listSessions; null: all of
/// them. Errors: ExceededMemoryLimit 146.
Result<std::vector<BsonDocument>> ListSessionRecords(
    DataServices& server, Operation& op,
    const std::function<bool(BsonView record)>& shown = nullptr);

}  // namespace mayfly

#pragma once
#include "protocol/bson_builder.h"
#include "replication/replica_set.h"

namespace mayfly {

class ServerContext;

/// As replies show it: {ts, t}.
void AppendOpTime(BsonBuilder& out, std::string_view name, const OpTime& t);

/// The reply of replSetGetStatus. REQUIRES: the set is initiated.
void AppendReplSetStatus(ServerContext& server, ReplicaSet& set, BsonBuilder& reply);
/// serverStatus.repl.
void AppendServerStatusRepl(ServerContext& server, ReplicaSet& set, BsonBuilder& reply);

}  // namespace mayfly

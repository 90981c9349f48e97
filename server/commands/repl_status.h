#pragma once
#include "protocol/bson_builder.h"
#include "replication/replica_set.h"

namespace mayfly {

class ServerContext;

/// The reply of replSetGetStatus. REQUIRES: the set is initiated.
void AppendReplSetStatus(ServerContext& server, ReplicaSet& set, BsonBuilder& reply);
/// serverStatus.repl.
void AppendServerStatusRepl(ServerContext& server, ReplicaSet& set, BsonBuilder& reply);

}  // namespace mayfly

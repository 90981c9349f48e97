#pragma once
#include <memory>

#include "protocol/error.h"
#include "replication/replica_set.h"

namespace mayfly {

class ServerContext;
struct ServerConfig;

/// Exit code of RequestShutdown that means: end in order, then start this program again with the
/// same arguments.
inline constexpr int kExitRestart = -1;

/// Opens this process' part in its replica set as the configuration asks and wires it to the rest
/// of the server. REQUIRES: the storage is open (with `logged`), no client is there yet. Errors:
/// BadValue 2 about the key file, what the data directory says.
/// `archive_from`: ReplicaSetOptions.
Result<std::unique_ptr<ReplicaSet>> MakeReplicaSet(
    ServerContext& server, std::shared_ptr<const std::atomic<uint64_t>> archive_from = {});

/// The default address of this member for others: the host's name, or the loopback address if it
/// listens to nothing else.
std::string SelfHost(const ServerConfig& config, int port);

/// A data directory that was a member of a set, opened as a standalone: writes are then in no log.
/// Notes that, and warns.
Result<void> CheckStandaloneStart(ServerContext& server);

}  // namespace mayfly

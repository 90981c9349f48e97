#pragma once
#include "replication/repl_config.h"

namespace mayfly {

/// What a client may make of a configuration: every `hello` shows the hosts of all members and the
/// tags of one, and every heartbeat is followed by the whole. Errors: InvalidReplicaSetConfig 93
/// with what to change.
Result<void> CheckConfigSize(const ReplConfig& config);

}  // namespace mayfly

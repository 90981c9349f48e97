#pragma once
#include "replication/repl_config.h"

namespace mayfly {

/// Limits the size of a configuration: every `hello` shows the hosts of all members and the tags of
/// one, and every heartbeat carries the whole. Errors: InvalidReplicaSetConfig 93 with what to
/// change.
Result<void> CheckConfigSize(const ReplConfig& config);

}  // namespace mayfly

#pragma once
#include "protocol/error.h"
#include "storage/clock.h"

namespace mayfly {

class Log;
struct ServerConfig;

/// mayflyd --backup: adds a backup of a data directory that no server uses. The store is opened as
/// by a start of this version, which recovers it after a crash; nothing else of a server runs, so
/// nothing expires and no index is built. SIGTERM and SIGINT end it; the folder is then as before.
/// Blocks. `rocksdb_env`: as RunServer's. Errors: InvalidOptions 72 (no data, or what belongs to
/// something else first), LockBusy 46 (a server runs on it, or the folder is in use), those of
/// CopyIntoBackup and of the store.
Result<void> RunOfflineBackup(const ServerConfig& config, SystemClock& clock, Log& log,
                              void* rocksdb_env);

}  // namespace mayfly

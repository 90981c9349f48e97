#pragma once
#include <cstdint>
#include <string>

#include "protocol/error.h"
#include "storage/clock.h"

namespace mayfly {

class Log;
struct ServerConfig;

/// Of work on a store while no server runs on it: the cache for the store, and how often the log is
/// told how far it is.
inline constexpr uint64_t kOfflineCacheBytes = 128 << 20;
inline constexpr int64_t kOfflineTellMicros = 5'000'000;

/// mayflyd --restore: copies a backup into the data directory, which must be empty, and makes it
/// that of a new node. While it is not complete there is the file RESTORING in the directory, which
/// no server opens then; the next restore starts again. After an error the directory is empty, as
/// it was. Blocks. `rocksdb_env`: as RunServer's. Errors: InvalidOptions 72, BadValue 2, NoSuchKey
/// 4 (no such backup), InternalError 1 (a damaged file, by its name), OutOfDiskSpace 14031,
/// FileNotOpen 38, LockBusy 46, those of the store.
Result<void> RunRestore(const ServerConfig& config, SystemClock& clock, Log& log,
                        void* rocksdb_env);

/// Whether no restore was broken off in the data directory. Errors: InvalidOptions 72.
Result<void> CheckRestoreEnded(const std::string& data_directory);

}  // namespace mayfly

#pragma once
#include <rocksdb/env.h>

#include <string>

#include "protocol/error.h"

namespace mayfly {

/// Looks through the write-ahead logs before RocksDB replays them, because its point-in-time
/// recovery takes any damage for the point of a power loss and silently drops everything after it.
/// The marks of a real power loss are accepted: a log that ends inside a record, or whose last
/// pages never arrived (zeros). A damaged record with good ones behind it is refused:
/// InternalError 1 that names the file and the offset. Logs with a number below `first` are left
/// out.
Result<void> CheckLogs(rocksdb::Env& env, const std::string& directory, uint64_t first = 0);

/// The number of a log file by its name; 0: not one.
uint64_t LogNumberOf(std::string_view name);

/// CRC-32C (Castagnoli) of `data`, continuing from `crc`.
uint32_t Crc32c(uint32_t crc, const char* data, size_t n);

}  // namespace mayfly

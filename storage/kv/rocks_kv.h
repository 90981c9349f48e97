#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "storage/kv/kv.h"

namespace mayfly {

/// What a store is opened with.
struct RocksKvOptions {
  std::string path;          ///< data directory; created if absent
  uint64_t cache_bytes = 0;  ///< block cache with memtables charged to it; 0: DefaultCacheBytes()
  void* env = nullptr;       ///< a rocksdb::Env*; null: the system's. Outlives the store.
  /// Severity 'I' 'W' 'E' and one line: background errors and recoveries. Any thread.
  std::function<void(char severity, std::string_view message)> log;
};

/// Bytes that the process may have: by the cgroup, by `ulimit`, or all that the machine has.
uint64_t MemoryLimit();
/// How many of `limit` descriptors (RLIMIT_NOFILE) the store may take: its table files, and what it
/// needs besides them (logs, outputs of compactions, directories).
int64_t StoreDescriptors(int64_t limit);
/// What the process's cgroup and those around it allow; UINT64_MAX: no limit.
uint64_t CgroupMemoryLimit();
/// 25% of it, at least 32 MiB.
uint64_t DefaultCacheBytes();

/// Opens or creates the store. Errors, each naming the directory or the file at fault: another
/// process has it open, it cannot be written, a file is corrupt or missing, keyspaces that this
/// version does not know.
Result<std::unique_ptr<KvStore>> OpenRocksKv(RocksKvOptions options);

/// Whether the store takes writes now; else the error that they are answered with. Never waits for
/// the disk. Any thread.
Result<void> WritesPossible(KvStore& store);

}  // namespace mayfly

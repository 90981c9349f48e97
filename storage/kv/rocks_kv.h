#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "storage/kv/kv.h"

namespace mayfly {

/// Bytes that the process may have: by the cgroup, by `ulimit`, or all that the machine has.
uint64_t MemoryLimit();
/// How many of `limit` descriptors (RLIMIT_NOFILE) the store may take: its table files, and what it
/// needs besides them (logs, outputs of compactions, directories).
int64_t StoreDescriptors(int64_t limit);
/// What the process's cgroup and those around it allow; UINT64_MAX: no limit.
uint64_t CgroupMemoryLimit();
/// 25% of it, at least 32 MiB.
uint64_t DefaultCacheBytes();

/// RocksDB as the store. `env`: a rocksdb::Env*, for tests with a faulty file layer, which outlives
/// the stores that are opened; null: the system's.
KvEnginePtr MakeRocksEngine(void* env = nullptr);
/// KvEngine::Open of it, over the system's files.
Result<std::unique_ptr<KvStore>> OpenRocksKv(KvOptions options);

}  // namespace mayfly

#pragma once
#include <rocksdb/statistics.h>

#include <memory>

#include "storage/kv/store_activity.h"

namespace mayfly {

/// RocksDB's counts, for all stores of the process. Each thread counts in its own memory,
/// so a count costs one addition; reading the sums visits all threads. RocksDB's own
/// object counts everything, with locked instructions, ten of them per look-up. Threads:
/// any.
std::shared_ptr<rocksdb::Statistics> RocksCounters();

/// The sums since the process began. `stalls` and `slowdowns` are not counted here.
KvCounters ReadRocksCounters();

}  // namespace mayfly

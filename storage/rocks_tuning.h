#pragma once
#include <rocksdb/options.h>

#include <memory>
#include <vector>

#include "storage/rocks_kv.h"

namespace mayfly {

/// Name of the column family of a keyspace. DO NOT RENAME.
const char* ColumnFamilyName(Keyspace ks);

/// What all column families share: the block cache that memtables are charged to.
struct RocksMemory {
  std::shared_ptr<rocksdb::Cache> cache;
  std::shared_ptr<rocksdb::WriteBufferManager> write_buffers;
};
RocksMemory MakeRocksMemory(uint64_t cache_bytes);

rocksdb::DBOptions MakeDbOptions(const RocksKvOptions& options, const RocksMemory& memory);
rocksdb::ColumnFamilyOptions MakeColumnFamilyOptions(Keyspace ks, const RocksMemory& memory);

}  // namespace mayfly

#pragma once
#include <rocksdb/options.h>

#include <memory>
#include <vector>

#include "storage/kv/rocks_kv.h"

namespace mayfly {

/// Name of the column family of a keyspace. DO NOT RENAME.
const char* ColumnFamilyName(Keyspace ks);

/// What all column families share: the block cache that memtables are charged to.
struct RocksMemory {
  std::shared_ptr<rocksdb::Cache> cache;
  std::shared_ptr<rocksdb::WriteBufferManager> write_buffers;
  /// Index and filter blocks stay in the cache: two look-ups in it fewer for each file that is
  /// read.
  bool pin_metadata = false;
};
/// `path`: the data directory, whose size decides whether metadata is pinned.
RocksMemory MakeRocksMemory(uint64_t cache_bytes, const std::string& path);

/// While one lives, what this thread writes is in order of key and much: each entry is looked for
/// from where the one before it of the same index or collection went, which costs a third. For
/// others that would cost more.
class ManyInOrder {
 public:
  ManyInOrder();
  ~ManyInOrder();
  ManyInOrder(const ManyInOrder&) = delete;
};

/// The settings of a store, and of one of its column families: sized by the machine's memory and
/// cores, or measured; the code says which. `env` must outlive the store.
rocksdb::DBOptions MakeDbOptions(const KvOptions& options, rocksdb::Env* env,
                                 const RocksMemory& memory);
rocksdb::ColumnFamilyOptions MakeColumnFamilyOptions(Keyspace ks, const RocksMemory& memory);

}  // namespace mayfly

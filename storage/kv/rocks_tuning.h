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
/// from where the one before it of the same index or collection went, which costs a third. Of other
/// writes their keys tell (KeyStreams): without order it would cost more.
class ManyInOrder {
 public:
  ManyInOrder();
  ~ManyInOrder();
  ManyInOrder(const ManyInOrder&) = delete;
};

/// While one lives, in any thread, no store of the process looks for a place from where another
/// entry went. RocksDB keeps range deletes in a list of their own, but the places by family: one
/// that was found in the other list would be followed out of it. Whoever writes a range delete, or
/// has logs read that may have one, holds it; a flag of the thread would not do, since whoever
/// leads a group of writers writes for all.
class NoHints {
 public:
  NoHints();
  ~NoHints();
  NoHints(const NoHints&) = delete;
};

/// The settings of a store, and of one of its column families: sized by the machine's memory and
/// cores, or measured; the code says which. `env` must outlive the store.
rocksdb::DBOptions MakeDbOptions(const KvOptions& options, rocksdb::Env* env,
                                 const RocksMemory& memory);
rocksdb::ColumnFamilyOptions MakeColumnFamilyOptions(Keyspace ks, const KvOptions& options,
                                                     const RocksMemory& memory);

/// Whether `upper` is above all keys of the group of `lower` or inside it, so that a walk up from
/// `lower` stays in the group. `group` may be null.
bool StaysInGroup(KvGroupSize group, std::string_view lower, std::string_view upper);

}  // namespace mayfly

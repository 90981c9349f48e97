#include "storage/kv/rocks_tuning.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <rocksdb/write_buffer_manager.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "storage/kv/key_streams.h"
#include "storage/kv/rocks_counters.h"

namespace mayfly {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// Memory one cgroup file allows; "max" and v1's huge numbers mean no limit.
uint64_t LimitIn(const char* file) {
  std::ifstream in(file);
  uint64_t n = 0;
  return in >> n ? n : UINT64_MAX;
}

/// The least that one of a cgroup and those around it allow: `folder` is the top one's, `path`
/// leads from there to the process's.
uint64_t LimitAlong(const std::string& folder, std::string path, const char* file) {
  uint64_t least = LimitIn((folder + "/" + file).c_str());
  for (; path.size() > 1; path.erase(path.rfind('/')))
    least = std::min(least, LimitIn((folder + path + "/" + file).c_str()));
  return least;
}

/// Below it the store keeps less in memory at once: documents of 16 MB are then what takes most.
constexpr uint64_t kSmallMemory = 1024 * kMiB;

constexpr uint64_t kMaxPinnedTableBytes = uint64_t{8} << 30;

uint64_t TableBytes(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code ec;
  for (const auto& file : std::filesystem::directory_iterator(path, ec)) {
    if (file.path().extension() != ".sst") continue;
    const uint64_t size = file.file_size(ec);
    if (!ec) bytes += size;
  }
  return bytes;
}

/// Logs, outputs of compactions, directories, the manifest.
constexpr int64_t kOtherStoreFiles = 64;

/// What table files may take of `limit` descriptors.
int64_t TableDescriptors(int64_t limit) {
  return limit >= 4096 ? limit / 2 : std::max<int64_t>(limit / 4, 64);
}

thread_local int g_many_in_order = 0;
std::atomic<int> g_no_hints{0};

/// Whose splice an entry of a memtable is put in with: that of its index or collection, where keys
/// come in order or ManyInOrder says so; in the catalog that of its key, where the same is put
/// again and again, as the counters of a collection are. Asked by whoever writes to the memtables
/// of one family, one thread at a time (allow_concurrent_memtable_write).
class HintPrefix final : public rocksdb::SliceTransform {
 public:
  explicit HintPrefix(bool whole_key) : whole_key_(whole_key) {}
  const char* Name() const override { return "mayfly.HintPrefix"; }
  rocksdb::Slice Transform(const rocksdb::Slice& key) const override {
    return whole_key_ ? key : rocksdb::Slice(key.data(), kSize);
  }
  bool InDomain(const rocksdb::Slice& key) const override {
    if (key.size() < kSize || g_no_hints.load(std::memory_order_acquire) != 0) return false;
    const std::string_view view(key.data(), key.size());
    if (whole_key_) return streams_.InOrder(std::hash<std::string_view>()(view), view);
    if (g_many_in_order > 0) return true;
    uint32_t id;
    std::memcpy(&id, key.data(), sizeof id);
    return streams_.InOrder(__builtin_bswap32(id), view.substr(kSize));
  }

 private:
  static constexpr size_t kSize = 4;
  const bool whole_key_;
  mutable KeyStreams streams_;
};

/// The group of a key (KvOptions::index_group), for filters. Its name is in each table file: a
/// table of another name is read without its filter of groups.
class GroupPrefix final : public rocksdb::SliceTransform {
 public:
  explicit GroupPrefix(KvGroupSize size) : size_(size) {}
  const char* Name() const override { return "mayfly.IndexGroup.1"; }
  rocksdb::Slice Transform(const rocksdb::Slice& key) const override {
    return {key.data(), Size(key)};
  }
  bool InDomain(const rocksdb::Slice& key) const override { return Size(key) != 0; }

 private:
  size_t Size(const rocksdb::Slice& key) const { return size_({key.data(), key.size()}); }
  const KvGroupSize size_;
};

int64_t TableFiles(const std::string& path) {
  int64_t n = 0;
  std::error_code ec;
  for (const auto& file : std::filesystem::directory_iterator(path, ec))
    n += file.path().extension() == ".sst";
  return n;
}

int MaxOpenFiles(const std::string& path) {
  rlimit r{};
  if (getrlimit(RLIMIT_NOFILE, &r) != 0) return 512;
  const auto limit = static_cast<int64_t>(std::min<rlim_t>(r.rlim_cur, INT32_MAX));
  // Opened once and kept when there is room, also for what is still to come: no look-up in the
  // table cache on every read, and damaged footers are found at open. Otherwise the store's share;
  // the rest is for connections.
  if (limit >= 32768 && TableFiles(path) < limit / 8) return -1;
  return static_cast<int>(TableDescriptors(limit));
}

/// What `ulimit -v` or `-d` allow.
uint64_t ProcessLimit() {
  uint64_t least = UINT64_MAX;
  for (auto what : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit r{};
    if (getrlimit(what, &r) == 0 && r.rlim_cur != RLIM_INFINITY)
      least = std::min<uint64_t>(least, r.rlim_cur);
  }
  return least;
}

}  // namespace

uint64_t MemoryLimit() {
  uint64_t host =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min({host, ProcessLimit(), CgroupMemoryLimit()});
}

uint64_t CgroupMemoryLimit() {
  // A container sees its own cgroup at the top; a service of systemd has a path to its own.
  uint64_t least = std::min(LimitIn("/sys/fs/cgroup/memory.max"),
                            LimitIn("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/path" or "4:memory:/path"
    const size_t kinds = line.find(':'), path = line.find(":/");
    if (kinds == std::string::npos || path == std::string::npos || path < kinds) continue;
    const std::string which = path > kinds ? line.substr(kinds + 1, path - kinds - 1) : "";
    const std::string to = line.substr(path + 1);
    if (which.empty())
      least = std::min(least, LimitAlong("/sys/fs/cgroup", to, "memory.max"));
    else if (("," + which + ",").find(",memory,") != std::string::npos)
      least = std::min(least, LimitAlong("/sys/fs/cgroup/memory", to, "memory.limit_in_bytes"));
  }
  return least;
}

NoHints::NoHints() { g_no_hints.fetch_add(1, std::memory_order_acq_rel); }
NoHints::~NoHints() { g_no_hints.fetch_sub(1, std::memory_order_acq_rel); }

ManyInOrder::ManyInOrder() { ++g_many_in_order; }
ManyInOrder::~ManyInOrder() { --g_many_in_order; }

int64_t StoreDescriptors(int64_t limit) { return TableDescriptors(limit) + kOtherStoreFiles; }

uint64_t DefaultCacheBytes() { return std::max(MemoryLimit() / 4, 32 * kMiB); }

const char* ColumnFamilyName(Keyspace ks) {
  switch (ks) {
    case Keyspace::kCatalog:
      return "default";  // RocksDB insists on a family of this name
    case Keyspace::kRecords:
      return "records";
    case Keyspace::kIndexes:
      return "indexes";
    case Keyspace::kExpiry:
      return "expiry";
    case Keyspace::kOplog:
      return "oplog";
    case Keyspace::kTombstones:
      return "tombstones";
  }
  return "";
}

RocksMemory MakeRocksMemory(uint64_t cache_bytes, const std::string& path) {
  rocksdb::LRUCacheOptions c;
  c.capacity = cache_bytes;
  c.high_pri_pool_ratio = 0.4;  // index and filter blocks stay when a scan passes through
  RocksMemory m;
  m.cache = rocksdb::NewLRUCache(c);
  m.write_buffers = std::make_shared<rocksdb::WriteBufferManager>(
      std::clamp(cache_bytes / 3, 24 * kMiB, 192 * kMiB), m.cache);
  // Metadata is about 1.5% of the tables: pinned as long as it is a small part of the cache and
  // soon read at open.
  m.pin_metadata = TableBytes(path) <= std::min(8 * cache_bytes, kMaxPinnedTableBytes);
  return m;
}

rocksdb::DBOptions MakeDbOptions(const KvOptions& options, rocksdb::Env* env,
                                 const RocksMemory& memory) {
  rocksdb::DBOptions o;
  o.env = env;
  o.create_if_missing = true;
  o.create_missing_column_families = true;
  o.paranoid_checks = true;
  // After power loss the log ends where the disk stopped, possibly inside a record or with a hole:
  // what follows is dropped, so that the state is one that has existed. Damage elsewhere is found
  // before (CheckLogs).
  o.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  o.manual_wal_flush = false;        // every write hands its record to the operating system
  o.max_total_wal_size = 96 * kMiB;  // bounds the replay at open
  // A quarter of them flush. Measured on two cores; with more, one compaction would not keep up.
  o.max_background_jobs =
      static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 2U, 8U));
  o.max_open_files = MaxOpenFiles(options.path);
  o.write_buffer_manager = memory.write_buffers;
  o.bytes_per_sync = kMiB;  // table files reach the disk smoothly, not in one burst at their end
  // Likewise the log: a large batch would otherwise all go there with the next small one's sync.
  o.wal_bytes_per_sync = kMiB;
  // One combining writer: nobody to share the memtable with.
  o.allow_concurrent_memtable_write = false;
  o.enable_write_thread_adaptive_yield = false;
  o.avoid_unnecessary_blocking_io = true;
  o.avoid_flush_during_shutdown = true;  // Storage flushes by itself
  o.skip_stats_update_on_db_open = true;
  o.statistics = RocksCounters();
  o.stats_dump_period_sec = 0;
  o.stats_persist_period_sec = 0;
  o.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  o.max_log_file_size = 4 * kMiB;
  o.keep_log_file_num = 2;
  return o;
}

bool StaysInGroup(KvGroupSize group, std::string_view lower, std::string_view upper) {
  if (group == nullptr || upper.empty()) return false;
  const size_t n = group(lower);
  if (n == 0) return false;
  const std::string_view front = lower.substr(0, n);
  if (upper.starts_with(front)) return true;
  // Else not above the first key behind the group: the front with one added to its last byte that
  // is not the highest, and nothing behind that.
  const size_t last = front.find_last_not_of('\xFF');
  if (last == std::string_view::npos) return false;
  const int order = upper.substr(0, last).compare(front.substr(0, last));
  if (order != 0 || upper.size() <= last) return order < 0;
  const int byte = static_cast<uint8_t>(upper[last]), end = static_cast<uint8_t>(front[last]) + 1;
  return byte < end || (byte == end && upper.size() == last + 1);
}

rocksdb::ColumnFamilyOptions MakeColumnFamilyOptions(Keyspace ks, const KvOptions& options,
                                                     const RocksMemory& memory) {
  rocksdb::ColumnFamilyOptions o;
  bool looked_up =
      ks == Keyspace::kRecords || ks == Keyspace::kIndexes || ks == Keyspace::kTombstones;
  bool queue = ks == Keyspace::kExpiry || ks == Keyspace::kOplog;

  o.memtable_insert_with_hint_prefix_extractor =
      std::make_shared<HintPrefix>(ks == Keyspace::kCatalog);
  o.write_buffer_size = (ks == Keyspace::kCatalog ? 2 : 16) * kMiB;
  o.max_write_buffer_number = 4;
  o.max_write_buffer_size_to_maintain = 0;
  o.level0_file_num_compaction_trigger = 4;
  o.level0_slowdown_writes_trigger = 32;
  o.level0_stop_writes_trigger = 64;
  if (ks == Keyspace::kOplog) {
    // Written in order and hardly ever read back: it gains nothing from a large memtable, which
    // would be the largest part of what a member needs more than a standalone server. As much
    // gathers in level 0, and may wait for a flush that is behind one of another family.
    o.write_buffer_size = 4 * kMiB;
    o.max_write_buffer_number = 8;
    o.level0_file_num_compaction_trigger = 16;
    o.level0_slowdown_writes_trigger = 64;
    o.level0_stop_writes_trigger = 128;
  }
  if (MemoryLimit() < kSmallMemory) {
    // A memtable takes its size and the document that filled it. Of those with documents of 16 MB
    // four are 120 MB, and a compaction has a block of every file in memory: writers wait for the
    // flush instead, and files are merged when there are few.
    o.max_write_buffer_number = 2;
    o.write_buffer_size = std::min<size_t>(o.write_buffer_size, 8 * kMiB);
    o.level0_file_num_compaction_trigger = ks == Keyspace::kOplog ? 4 : 2;
  }
  o.soft_pending_compaction_bytes_limit = uint64_t{64} << 30;
  o.hard_pending_compaction_bytes_limit = uint64_t{256} << 30;
  o.level_compaction_dynamic_level_bytes = true;
  o.max_bytes_for_level_base = 128 * kMiB;
  o.target_file_size_base = 32 * kMiB;
  o.compression = rocksdb::kLZ4Compression;
  o.compression_per_level = {rocksdb::kNoCompression, rocksdb::kNoCompression,
                             rocksdb::kLZ4Compression};
  if (ks == Keyspace::kRecords) {
    // An insert asks for an `_id` that is not there: a small filter answers without walking the
    // skip list.
    o.memtable_whole_key_filtering = true;
    o.memtable_prefix_bloom_size_ratio = 0.03;
  }

  if (ks == Keyspace::kIndexes && options.index_group != nullptr) {
    // A look-up by an indexed value asks every sorted run: without these filters each costs a
    // search, and what is not in the cache a read.
    o.prefix_extractor = std::make_shared<GroupPrefix>(options.index_group);
    o.memtable_prefix_bloom_size_ratio = 0.02;
  }

  rocksdb::BlockBasedTableOptions t;
  t.block_cache = memory.cache;
  t.format_version = 5;
  t.block_size = queue ? 16 << 10 : 8 << 10;
  // The first key of each block is in the index: a seek that ends before it, at the bound of a scan
  // or behind what was reaped, leaves the block where it is.
  if (queue) t.index_type = rocksdb::BlockBasedTableOptions::kBinarySearchWithFirstKey;
  t.cache_index_and_filter_blocks = true;
  t.cache_index_and_filter_blocks_with_high_priority = true;
  t.metadata_cache_options.unpartitioned_pinning =
      memory.pin_metadata ? rocksdb::PinningTier::kAll : rocksdb::PinningTier::kFlushedAndSimilar;
  t.whole_key_filtering = looked_up;
  if (looked_up) t.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  if (ks == Keyspace::kRecords) {
    t.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
    // Four bytes of it for each document: with fewer, half of the look-ups found the place taken by
    // another key and searched the block after all.
    t.data_block_hash_table_util_ratio = 0.25;
    // The hash leads to a restart point, and from there entries are parsed one by one: few of them.
    // Keys are short beside documents, so that what their shared prefixes would save is little.
    t.block_restart_interval = 4;
  }
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(t));

  // Files full of deletions are compacted away soon, so that a seek to the head of a queue does not
  // walk them.
  if (queue || ks == Keyspace::kCatalog) {
    o.table_properties_collector_factories.push_back(rocksdb::NewCompactOnDeletionCollectorFactory(
        /*sliding_window_size=*/1024, /*deletion_trigger=*/512, 0.5));
  } else if (looked_up) {
    o.table_properties_collector_factories.push_back(rocksdb::NewCompactOnDeletionCollectorFactory(
        /*sliding_window_size=*/16384, /*deletion_trigger=*/12288, 0.7));
  }
  return o;
}

}  // namespace mayfly

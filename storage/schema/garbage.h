#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "storage/catalog/catalog_format.h"
#include "storage/core/open_storage.h"

namespace mayfly {

/// Removes in the background what dropped collections and indexes left in the store: nobody can
/// reach it any more, and a row in the catalog remembers it until it is gone, across crashes too.
/// Threads: any may call Add.
class GarbageCollector {
 public:
  explicit GarbageCollector(Storage& storage) : storage_(storage) {}
  ~GarbageCollector() { Stop(); }
  /// REQUIRES: the row is committed.
  void Add(GarbageRow row);
  void Start();
  void Stop();
  /// For tests: waits until nothing is left to remove (or removing fails).
  void WaitIdle();
  /// What is done once a minute; tests do it, too.
  void Tend() {
    std::lock_guard l(tend_mutex_);
    CompactCatalog();
    Reclaim();
  }

 private:
  void Loop();
  Result<void> Remove(const GarbageRow& row);
  /// Rewrites the catalog's files when most of their bytes must be removed rows. The catalog is
  /// written rarely, so RocksDB would keep large removed rows for long.
  void CompactCatalog();
  /// Gives back the disk that large dropped collections and indexes took: a few large documents are
  /// too few deletions for RocksDB to rewrite a file because of them.
  void Reclaim();

  Storage& storage_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<GarbageRow> rows_;
  std::thread thread_;
  bool stop_ = false, busy_ = false, failed_ = false;
  struct Range {
    Keyspace keyspace;
    std::string begin, end;
    uint64_t bytes;
    auto operator<=>(const Range&) const = default;
  };
  std::mutex tend_mutex_;       ///< for what follows; mutex_ is not held while it is taken
  std::vector<Range> emptied_;  ///< what Reclaim is to look at
  int tends_ = 0;               ///< since the catalog's files were last rewritten
  uint64_t catalog_bytes_ = 0;  ///< of the catalog's files when they were last rewritten
};

}  // namespace mayfly

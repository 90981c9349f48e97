#pragma once
#include <pthread.h>
#include <rocksdb/listener.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "storage/kv/thread_scheduling.h"

namespace mayfly {

/// Reports errors of RocksDB's background threads to the log, and tells the store to recover.
/// Threads: RocksDB's own.
class RocksListener final : public rocksdb::EventListener {
 public:
  /// How often a family came to delay writers, and to stop them: of all stores, as RocksCounters.
  static inline std::atomic<uint64_t> slowdowns{0}, stalls{0};

  /// `log`: takes a severity and a text; may be empty. `failed`: any thread; must not block.
  RocksListener(std::function<void(char, std::string_view)> log, std::function<void()> failed)
      : log_(std::move(log)), failed_(std::move(failed)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* s) override {
    if (s->IsShutdownInProgress()) return;
    if (log_)
      log_('E', "Storage error: writes may be refused until it is resolved. " + s->ToString());
    failed_();
  }
  /// RocksDB's own recovery goes by the free space that the file system reports; when it then meets
  /// a full disk again, the error becomes final. RocksKv tries the disk first.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
  void OnStallConditionsChanged(const rocksdb::WriteStallInfo& info) override {
    const auto now = info.condition.cur;
    if (now == info.condition.prev) return;
    if (now == rocksdb::WriteStallCondition::kDelayed) ++slowdowns;
    if (now == rocksdb::WriteStallCondition::kStopped) ++stalls;
  }
  void OnFlushBegin(rocksdb::DB*, const rocksdb::FlushJobInfo&) override { Background(); }
  void OnCompactionBegin(rocksdb::DB*, const rocksdb::CompactionJobInfo&) override { Background(); }

 private:
  /// Once for each thread of RocksDB's own; a flush may also be done by whoever asks for it.
  static void Background() {
    thread_local bool done = false;
    if (std::exchange(done, true)) return;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (std::string_view(name).starts_with("rocksdb:")) UseBackgroundScheduling();
  }
  std::function<void(char, std::string_view)> log_;
  std::function<void()> failed_;
};

}  // namespace mayfly

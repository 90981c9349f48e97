#include "storage/kv/rocks_counters.h"

#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <vector>

namespace mayfly {
namespace {

/// Where the count of a ticker goes.
struct CountedTicker {
  rocksdb::Tickers ticker;
  uint64_t KvCounters::*field;
};
constexpr CountedTicker kCounted[] = {
    {rocksdb::BLOCK_CACHE_DATA_HIT, &KvCounters::data_hits},
    {rocksdb::BLOCK_CACHE_DATA_MISS, &KvCounters::data_misses},
    {rocksdb::BLOCK_CACHE_INDEX_HIT, &KvCounters::index_hits},
    {rocksdb::BLOCK_CACHE_INDEX_MISS, &KvCounters::index_misses},
    {rocksdb::BLOCK_CACHE_FILTER_HIT, &KvCounters::filter_hits},
    {rocksdb::BLOCK_CACHE_FILTER_MISS, &KvCounters::filter_misses},
    {rocksdb::BLOCK_CACHE_BYTES_WRITE, &KvCounters::missed_bytes},
    {rocksdb::BLOOM_FILTER_USEFUL, &KvCounters::key_filters_useful},
    {rocksdb::BLOOM_FILTER_FULL_POSITIVE, &KvCounters::key_filters_passed},
    {rocksdb::BLOOM_FILTER_FULL_TRUE_POSITIVE, &KvCounters::key_filters_right},
    {rocksdb::BLOOM_FILTER_PREFIX_CHECKED, &KvCounters::group_filters_asked},
    {rocksdb::BLOOM_FILTER_PREFIX_USEFUL, &KvCounters::group_filters_useful},
    {rocksdb::STALL_MICROS, &KvCounters::stall_micros},
    {rocksdb::BYTES_WRITTEN, &KvCounters::written_bytes},
    {rocksdb::WAL_FILE_BYTES, &KvCounters::log_bytes},
    {rocksdb::FLUSH_WRITE_BYTES, &KvCounters::flushed_bytes},
    {rocksdb::COMPACT_READ_BYTES, &KvCounters::compaction_read_bytes},
    {rocksdb::COMPACT_WRITE_BYTES, &KvCounters::compaction_written_bytes},
};
constexpr size_t kSlots = std::size(kCounted);

/// 1 + the place in kCounted; 0: not counted.
constexpr auto kSlotOf = [] {
  std::array<uint8_t, rocksdb::TICKER_ENUM_MAX> slots{};
  for (size_t i = 0; i < kSlots; ++i) slots[kCounted[i].ticker] = static_cast<uint8_t>(i + 1);
  return slots;
}();

using Sums = std::array<uint64_t, kSlots>;
class ThreadTicks;

/// The threads that count, and the counts of threads that have ended. Never destroyed: threads of
/// RocksDB end after everything else.
struct TickingThreads {
  std::mutex mutex;
  std::vector<const ThreadTicks*> threads;
  Sums gone{};
};
TickingThreads& Threads() {
  static auto* const threads = new TickingThreads;
  return *threads;
}

class ThreadTicks {
 public:
  ThreadTicks() {
    TickingThreads& t = Threads();
    std::lock_guard l(t.mutex);
    t.threads.push_back(this);
  }
  ~ThreadTicks() {
    TickingThreads& t = Threads();
    std::lock_guard l(t.mutex);
    AddTo(t.gone);
    std::erase(t.threads, this);
  }
  /// Only its own thread: no other one writes.
  void Add(size_t slot, uint64_t n) {
    ticks_[slot].store(ticks_[slot].load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void AddTo(Sums& sums) const {
    for (size_t i = 0; i < kSlots; ++i) sums[i] += ticks_[i].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, kSlots> ticks_{};
};

Sums SumOfThreads() {
  TickingThreads& t = Threads();
  std::lock_guard l(t.mutex);
  Sums sums = t.gone;
  for (const ThreadTicks* thread : t.threads) thread->AddTo(sums);
  return sums;
}

/// RocksDB's counts of what kCounted names, and nothing else: no times, no distributions.
class TickCounters final : public rocksdb::Statistics {
 public:
  TickCounters() { set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers); }
  const char* Name() const override { return "mayfly.TickCounters"; }
  uint64_t getTickerCount(uint32_t ticker) const override {
    const size_t slot = ticker < kSlotOf.size() ? kSlotOf[ticker] : 0;
    return slot == 0 ? 0 : SumOfThreads()[slot - 1];
  }
  void recordTick(uint32_t ticker, uint64_t count) override {
    const size_t slot = ticker < kSlotOf.size() ? kSlotOf[ticker] : 0;
    if (slot == 0) return;
    thread_local ThreadTicks ticks;
    ticks.Add(slot - 1, count);
  }
  // RocksDB asks for these nowhere that matters here: nothing is reset.
  void setTickerCount(uint32_t, uint64_t) override {}
  uint64_t getAndResetTickerCount(uint32_t ticker) override { return getTickerCount(ticker); }
  void histogramData(uint32_t, rocksdb::HistogramData* const data) const override {
    *data = rocksdb::HistogramData();
  }
  void recordInHistogram(uint32_t, uint64_t) override {}
  void measureTime(uint32_t, uint64_t) override {}
  bool HistEnabledForType(uint32_t) const override { return false; }
};

}  // namespace

std::shared_ptr<rocksdb::Statistics> RocksCounters() {
  static const auto* const counters =
      new std::shared_ptr<rocksdb::Statistics>(std::make_shared<TickCounters>());
  return *counters;
}

KvCounters ReadRocksCounters() {
  const Sums sums = SumOfThreads();
  KvCounters c;
  for (size_t i = 0; i < kSlots; ++i) c.*kCounted[i].field = sums[i];
  return c;
}

}  // namespace mayfly

#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "protocol/bson_view.h"
#include "server/dispatch/server_context.h"
#include "storage/expiry/expiry_policy.h"
#include "storage/storage.h"

namespace mayfly {

/// Short reads run on the io thread, because a look-up by an index costs less than a trip to a
/// worker and back. Which reads are short is not known in advance. So each read gets a slice of
/// time on the io thread; if it needs longer, it starts again on a worker, and reads of the same
/// shape go to a worker at once for a while. Threads: any.
class ShortReads {
 public:
  /// How long an io thread, and so every client of it, may be held by one read; 0: reads that need
  /// more than one look-up all go to a worker. The parameter shortReadSliceMicros.
  std::atomic<int64_t> slice_micros{500};

  /// Reads that prove long: how many threads may help them all together (the parameter
  /// internalQueryScanHelpers), and after how many documents of a scan
  /// (internalQueryScanHelpAfter). As server/base/scan_threads.h reads them.
  std::atomic<int64_t> scan_helpers{MostScanHelpers()}, scan_help_after{16384};
  static int64_t MostScanHelpers();  ///< one less than there are processors, at most 8

  /// Whether a read of this shape should be tried now. Shape 0: never.
  bool ShouldTry(uint32_t shape);
  /// The outcome of a trial on the io thread.
  void Tried(uint32_t shape, bool finished);
  /// Reads of data that went to a worker. serverStatus: metrics.operation.readsOnWorkers.
  std::atomic<int64_t> on_workers{0};
  /// How long a read took on a worker, including the trip there.
  void Took(uint32_t shape, int64_t micros);

 private:
  /// After n tries in a row without success 2^n - 1 reads go to a worker before the next try.
  struct Luck {
    std::atomic<uint8_t> failures{0};
    std::atomic<uint8_t> to_worker{0};
  };
  static constexpr uint8_t kMaxFailures = 7;
  static constexpr size_t kEntries = 4096;
  Luck& Of(uint32_t shape) { return luck_[shape % kEntries]; }
  std::array<Luck, kEntries> luck_;  ///< shapes that share an entry share their luck
};

/// The shape of reads of one kind: the command, the namespace, and the structure of its documents
/// (filter, sort, pipeline …) without constants. 0: not to be tried on an io thread, because it is
/// large, or uses an operator whose cost on a single document has no bound that matters (regular
/// expressions, computed expressions, joins). `path`: one more that is followed through documents,
/// as distinct's.
uint32_t ReadShape(std::string_view command, std::string_view db, std::string_view collection,
                   std::initializer_list<BsonView> documents, std::string_view path = {});

/// Reads of it are not tried: a view has a pipeline, and an entry of the oplog may be of any size.
inline bool IsNeverShort(const CollectionInfo& coll) {
  return coll.is_view() || coll.source != nullptr;
}

/// Whether a read of `coll` may have to ask the filters of its holds, which may be any: only of
/// what is due they are asked.
inline bool MayAskHolds(Storage& storage, const CollectionInfo& coll, Instant now) {
  return storage.expiry_policy().HasHolds(coll) &&
         (coll.HasTtlRules() || coll.document_expiry->Earliest() <= now.millis);
}

/// A document larger than this takes longer to read than an io thread may be held.
inline constexpr int64_t kLongRead = 1 << 20;
/// How long after one was met all documents of its collection are read by workers: to learn how
/// large a document is means to read it.
inline constexpr int64_t kLargeRestMillis = 60'000;

/// Whether one document of the collection may be read on an io thread: documents are not large on
/// average, and no such read has met a large one lately.
inline bool ReadIsShort(const CollectionInfo& coll, Instant now) {
  const CollectionCounters& c = *coll.counters;
  if (const int64_t met = c.met_large.load(std::memory_order_relaxed);
      met != 0 && now.millis - met < kLargeRestMillis) [[unlikely]]
    return false;
  const int64_t bytes = c.bytes.load(std::memory_order_relaxed);
  return bytes <= kLongRead || bytes / kLongRead < c.documents.load(std::memory_order_relaxed);
}

/// A read on an io thread has met a document of this size.
inline void MetDocument(const CollectionInfo& coll, size_t bytes, Instant now) {
  if (bytes > size_t{kLongRead})
    coll.counters->met_large.store(now.millis, std::memory_order_relaxed);
}

/// Runs `attempt` within a slice: a read of `coll` (null: there is none) that returns Result<void>
/// and may be dropped in the middle. Not tried where documents are large (ReadIsShort): a slice can
/// end only after one was read. nullopt: it has to be done on a worker, from the beginning.
/// Errors are left to the worker too: they may be the slice's.
template <class F>
std::optional<Result<void>> TryShortRead(CommandContext& ctx, const CollectionInfo* coll,
                                         uint32_t shape, F&& attempt) {
  ShortReads& reads = ctx.server.short_reads();
  ctx.read_shape = shape;
  if (!reads.ShouldTry(shape)) return std::nullopt;
  if (coll != nullptr &&
      (!ReadIsShort(*coll, ctx.op.now) || MayAskHolds(ctx.server.storage(), *coll, ctx.op.now)))
    return std::nullopt;
  ctx.op.BeginSlice(reads.slice_micros.load(std::memory_order_relaxed));
  Result<void> result = attempt();
  const bool finished = result.has_value();
  ctx.op.EndSlice(finished);
  reads.Tried(shape, finished);
  if (coll != nullptr) MetDocument(*coll, ctx.op.largest_in_slice(), ctx.op.now);
  if (finished) return result;
  return std::nullopt;
}

}  // namespace mayfly

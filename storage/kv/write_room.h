#pragma once
#include <cstddef>
#include <memory>

namespace mayfly {

class KvBatch;
class KvStore;

/// An optional interface of a store: whether it has room for a large batch now. A store whose
/// flushes lag slows down its writer (RocksDB: 16 MB a second once three memtables wait to be
/// flushed), and everybody queued behind it. A large batch waits outside instead, while small ones
/// go on. Threads: any.
class WriteRoom {
 public:
  virtual ~WriteRoom() = default;
  /// False while flushes are behind. Takes microseconds; may begin a flush.
  virtual bool HasRoom() = 0;
  /// A batch that will take about `bytes`: it does not grow, which copies, while it is
  /// filled.
  virtual std::unique_ptr<KvBatch> NewLargeBatch(size_t bytes) = 0;
};

/// True for a store without this interface.
bool HasRoom(KvStore& kv);
/// How many bytes the batch of a unit takes that has so many in the log.
inline size_t LargeBatchBytes(size_t unit) { return unit + unit / 8; }
/// KvStore::NewBatch for a store without this interface.
std::unique_ptr<KvBatch> NewLargeBatch(KvStore& kv, size_t bytes);

}  // namespace mayfly

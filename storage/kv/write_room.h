#pragma once

namespace mayfly {

class KvStore;

/// What a store may say besides KvStore: whether it has room for a large batch now. A store whose
/// flushes are behind makes whoever writes wait (RocksDB: 16 MB a second once three memtables wait
/// to be flushed), and everybody else behind it. Who has a large batch waits outside instead, while
/// small ones go on. Threads: any.
class WriteRoom {
 public:
  virtual ~WriteRoom() = default;
  /// False while flushes are behind. Takes microseconds; may begin a flush.
  virtual bool HasRoom() = 0;
};

/// True for a store that does not say.
bool HasRoom(KvStore& kv);

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace mayfly {

/// The waiters for one kind of room. Any request may take free room until the first waiter has
/// waited for kPatienceMicros; after that, only the first waiter may. So nobody starves while new
/// requests arrive. Times are MonotonicMicros. Threads: any.
class WaitLine {
 public:
  static constexpr int64_t kPatienceMicros = 1'000'000;

  /// A waiter. Its destructor removes it from the line.
  class Place {
   public:
    explicit Place(WaitLine& line) : line_(line) {}
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    /// Joins the end of the line. No-op when it is in the line already.
    void Enter(int64_t now);
    /// Whether this waiter may take free room now.
    bool MayTake(int64_t now) const {
      const int64_t since = line_.since_.load(std::memory_order_relaxed);
      return since == 0 || now - since < kPatienceMicros ||
             line_.first_.load(std::memory_order_relaxed) == number_;
    }

   private:
    WaitLine& line_;
    uint64_t number_ = 0;  // 0: not in the line
  };

  bool empty() const { return since_.load(std::memory_order_relaxed) == 0; }
  /// How long the first waiter has waited.
  int64_t Waited(int64_t now) const {
    const int64_t since = since_.load(std::memory_order_relaxed);
    return since == 0 ? 0 : std::max<int64_t>(0, now - since);
  }

 private:
  void Tell();  // REQUIRES: mutex_ is held
  std::mutex mutex_;
  std::map<uint64_t, int64_t> waiting_;  // number -> since when
  uint64_t last_ = 0;
  std::atomic<int64_t> since_{0};
  std::atomic<uint64_t> first_{0};
};

/// Bytes of the messages that are being received and the replies that are being sent, over a
/// whole server (without a small buffer for each connection). They are limited: a hundred clients
/// that send 48 MB each, or that do not read their replies, must not exhaust the memory. Threads:
/// any.
///
/// A message waits in the client's socket until there is room for all of it. A batch of documents
/// is read when there is room for replies. Replies may use half of the room and messages above
/// kModest three quarters, so that no kind blocks the others. A client that holds room while others
/// wait, and makes no progress, is disconnected (Connection::Tick).
class NetworkBuffers {
 public:
  static constexpr size_t kSmall = 64 * 1024;  ///< a buffer up to this waits for no room
  static constexpr size_t kModest = 1 << 20;   ///< messages up to this have the last quarter

  /// Whether `bytes` more fit; if so, they are counted. Always true when nothing is held yet.
  bool TryTake(size_t bytes) {
    const auto n = static_cast<int64_t>(bytes);
    const int64_t limit = limit_.load(std::memory_order_relaxed);
    const int64_t before = used_.fetch_add(n, std::memory_order_relaxed);
    if (before == 0 || before + n <= (bytes > kModest ? limit / 4 * 3 : limit)) return true;
    used_.fetch_sub(n, std::memory_order_relaxed);
    return false;
  }
  /// Undoes TryTake, with the same number of bytes.
  void Give(size_t bytes) {
    used_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  /// Counts a reply that exists already, even if there is no room for it.
  void TakeReply(size_t bytes) {
    used_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    replies_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  /// Undoes TakeReply, with the same number of bytes.
  void GiveReply(size_t bytes) {
    replies_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    used_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  /// Whether another large reply may be made.
  bool ReplyRoom() const {
    const int64_t limit = limit_.load(std::memory_order_relaxed);
    return replies() < limit / 2 && used() < limit;
  }
  /// Buffers up to kSmall of clients that are not idle. They never wait. They have a limit of their
  /// own, of the same size, so that many small buffers do not block a large message.
  void TakeSmall(size_t bytes) {
    small_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  /// Undoes TakeSmall, with the same number of bytes.
  void GiveSmall(size_t bytes) {
    small_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  int64_t small() const { return small_.load(std::memory_order_relaxed); }
  void AddWaiter(int n) { waiting_.fetch_add(n, std::memory_order_relaxed); }
  /// True when somebody waits for room, or when replies or small buffers exceed their share.
  bool Short() const {
    return waiting_.load(std::memory_order_relaxed) > 0 || !reply_line.empty() ||
           used() > limit_.load(std::memory_order_relaxed) ||
           small() > limit_.load(std::memory_order_relaxed);
  }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t replies() const { return replies_.load(std::memory_order_relaxed); }
  int64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }
  void SetLimit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  /// While others wait for room: how long a client may make no progress with its reply or message.
  int64_t stuck_micros() const { return stuck_micros_.load(std::memory_order_relaxed); }
  void SetStuckMicros(int64_t n) { stuck_micros_.store(n, std::memory_order_relaxed); }
  /// The number of progress checks so far; tests wait for it to grow.
  int64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  void AddLook() { looks_.fetch_add(1, std::memory_order_relaxed); }

  /// The line for room for a message of this size, or for replies.
  WaitLine& message_line(size_t bytes) { return bytes > kModest ? large_line_ : modest_line_; }
  WaitLine reply_line;
  /// The longest wait of a current waiter, over all lines.
  int64_t LongestWait(int64_t now) const {
    return std::max({large_line_.Waited(now), modest_line_.Waited(now), reply_line.Waited(now)});
  }

 private:
  std::atomic<int64_t> used_{0}, replies_{0}, waiting_{0}, limit_{int64_t{512} << 20},
      stuck_micros_{5'000'000}, looks_{0}, small_{0};
  WaitLine large_line_, modest_line_;
};

/// Whether the process already uses so much memory that large requests should wait. Not everything
/// that a large document needs on its way to the disk is counted (copies, memtables, blocks of a
/// flush and a compaction). With little memory, the resident size is measured instead. Threads:
/// any.
class MemoryPressure {
 public:
  static constexpr int64_t kSmallMemory = int64_t{1} << 30;  ///< with more it is not looked at
  static constexpr int64_t kLarge = 1 << 20;        ///< messages and inserts above this size wait
  static constexpr int64_t kMaxMicros = 5'000'000;  ///< … this long, and then proceed anyway
  /// Sets the memory limit of the process, in bytes. Called once at start.
  void SetMemory(int64_t bytes) { most_ = bytes < kSmallMemory ? bytes / 2 : 0; }
  bool High() const { return most_ != 0 && Resident() > most_; }

 private:
  static int64_t Resident();  ///< bytes that are the process's own
  int64_t most_ = 0;
};

}  // namespace mayfly

#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mayfly {

/// What messages on their way in and replies on their way out take, beyond a small buffer a
/// connection, over the whole process: a hundred clients that send 48 MB each, or that do not read
/// what they asked for, must not end it. Threads: any.
///
/// A message waits in the client's socket until there is room for all of it. Clients that make
/// others wait and do not get on with their own are disconnected (Connection::Tick).
class NetworkBuffers {
 public:
  static constexpr size_t kSmall = 64 * 1024;  ///< a buffer up to this waits for no room

  /// Whether `bytes` more may be held; then they are counted. Always when nothing is held yet.
  bool TryTake(size_t bytes) {
    const auto n = static_cast<int64_t>(bytes);
    const int64_t before = used_.fetch_add(n, std::memory_order_relaxed);
    if (before == 0 || before + n <= limit_.load(std::memory_order_relaxed)) return true;
    used_.fetch_sub(n, std::memory_order_relaxed);
    return false;
  }
  /// What is there already, room or not.
  void Take(size_t bytes) {
    used_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  void Give(size_t bytes) {
    used_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  /// The buffers up to kSmall that are not an idle client's: they never wait, and a limit of the
  /// same size is theirs alone, so that many of them do not keep a large message out.
  void TakeSmall(size_t bytes) {
    small_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  void GiveSmall(size_t bytes) {
    small_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  int64_t small() const { return small_.load(std::memory_order_relaxed); }
  void AddWaiter(int n) { waiting_.fetch_add(n, std::memory_order_relaxed); }
  /// Somebody waits for room, or replies or small buffers have taken more than there is.
  bool Short() const {
    return waiting_.load(std::memory_order_relaxed) > 0 ||
           used() > limit_.load(std::memory_order_relaxed) ||
           small() > limit_.load(std::memory_order_relaxed);
  }
  bool Full() const { return used() >= limit_.load(std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }
  void SetLimit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  /// While others wait for room: how long a client may take nothing of a reply or send nothing of a
  /// message.
  int64_t stuck_micros() const { return stuck_micros_.load(std::memory_order_relaxed); }
  void SetStuckMicros(int64_t n) { stuck_micros_.store(n, std::memory_order_relaxed); }
  /// How often it was looked whether a client that holds something gets on (tests wait for it).
  int64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  void AddLook() { looks_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> used_{0}, waiting_{0}, limit_{int64_t{512} << 20}, stuck_micros_{5'000'000},
      looks_{0}, small_{0};
};

NetworkBuffers& TheNetworkBuffers();

/// Whether the process has so much memory already that what is large had better wait. What one
/// large document takes on its way to the disk (copies, memtables, blocks of a flush and a
/// compaction) is not all counted: where there is little memory it is looked at instead. Threads:
/// any.
class MemoryPressure {
 public:
  static constexpr int64_t kSmallMemory = int64_t{1} << 30;  ///< with more it is not looked at
  static constexpr int64_t kLarge = 1 << 20;  ///< what waits: messages and inserts above this
  static constexpr int64_t kMostMicros = 5'000'000;  ///< … so long, and then goes on all the same
  /// What the process may have; called once at start.
  void SetMemory(int64_t bytes) { most_ = bytes < kSmallMemory ? bytes / 2 : 0; }
  bool High() const { return most_ != 0 && Resident() > most_; }

 private:
  static int64_t Resident();  ///< bytes that are the process's own
  int64_t most_ = 0;
};

MemoryPressure& TheMemoryPressure();

}  // namespace mayfly

#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace mayfly {

/// Of which indexes the records lie next to each other in the order of the keys, so that it is
/// worth walking them (RecordWalk): learned from how walks went. A walk that was in vain costs two
/// or three look-ups, so they become rare where they are. Threads: any.
class Neighbours {
 public:
  /// What to do when several keys of the index come in the order of their records.
  enum class Try : uint8_t {
    kNo,
    kLater,  ///< when many more follow
    kNow,
  };
  /// `index`: its id.
  Try Ask(uint32_t index) {
    Luck& luck = Of(index);
    if (luck.lucky.load(std::memory_order_relaxed)) return Try::kNow;
    const uint8_t n = luck.to_skip.load(std::memory_order_relaxed);
    if (n == 0) return Try::kLater;
    luck.to_skip.store(static_cast<uint8_t>(n - 1), std::memory_order_relaxed);
    return Try::kNo;
  }
  /// A walk of this index has ended. `well`: it found its records near each other.
  void Walked(uint32_t index, bool well) {
    Luck& luck = Of(index);
    luck.lucky.store(well, std::memory_order_relaxed);
    const uint8_t failures =
        well ? uint8_t{0}
             : std::min<uint8_t>(luck.failures.load(std::memory_order_relaxed) + 1, kMaxFailures);
    luck.failures.store(failures, std::memory_order_relaxed);
    luck.to_skip.store(static_cast<uint8_t>((1u << failures) - 1), std::memory_order_relaxed);
  }

 private:
  struct Luck {
    std::atomic<bool> lucky{false};
    std::atomic<uint8_t> failures{0}, to_skip{0};
  };
  static constexpr uint8_t kMaxFailures = 7;
  static constexpr size_t kEntries = 4096;
  Luck& Of(uint32_t index) { return luck_[index % kEntries]; }
  std::array<Luck, kEntries> luck_;  ///< indexes that share an entry share their luck
};

}  // namespace mayfly

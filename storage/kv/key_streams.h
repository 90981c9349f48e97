#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace mayfly {

/// Whether what is written to an index or a collection comes in order of key, as generated ids,
/// dates and counters do: learned from the keys. An entry of a memtable is then looked for from
/// where the one before it went, which takes a fraction; for keys in no order it would take more.
/// One thread at a time.
class KeyStreams {
 public:
  /// Takes note of a key of a stream, and answers whether its last ones came in order. Keys that
  /// are equal in their first kKept bytes count as in order.
  bool InOrder(uint64_t stream, std::string_view key) {
    Stream& s = streams_[stream % kStreams];
    key = key.substr(0, kKept);
    if (s.id != stream) {
      s.id = stream;
      s.score = 0;
    } else if (key < std::string_view(s.last, s.size)) {
      s.score = static_cast<int8_t>(std::max(s.score - kBackward, 0));
    } else {
      s.score = static_cast<int8_t>(std::min<int>(s.score + 1, kMost));
    }
    s.size = static_cast<uint8_t>(key.size());
    std::memcpy(s.last, key.data(), key.size());
    return s.score >= kEnough;
  }

 private:
  static constexpr size_t kStreams = 256;  ///< those that share a place push each other out
  static constexpr size_t kKept = 38;
  /// Of keys in no order every second is behind the one before it: six at a time are rare.
  static constexpr int kEnough = 6, kMost = 12, kBackward = 3;
  struct Stream {
    uint64_t id = UINT64_MAX;
    int8_t score = 0;
    uint8_t size = 0;
    char last[kKept];
  };
  std::array<Stream, kStreams> streams_;
};

}  // namespace mayfly

#include "protocol/object_id.h"

#include <array>
#include <atomic>
#include <random>

#include "protocol/hex.h"

namespace mayfly {

std::string NewObjectId(Instant now) {
  struct Process {
    std::array<char, 5> random;
    std::atomic<uint32_t> counter;
    Process() {
      std::random_device device;
      for (char& c : random) c = static_cast<char>(device());
      counter = device();
    }
  };
  static Process process;
  auto seconds = static_cast<uint32_t>(now.millis / 1000);
  uint32_t n = process.counter.fetch_add(1, std::memory_order_relaxed);
  std::string id(12, '\0');
  for (int i = 0; i < 4; ++i)
    id[static_cast<size_t>(i)] = static_cast<char>(seconds >> (24 - 8 * i));
  std::copy(process.random.begin(), process.random.end(), id.begin() + 4);
  for (int i = 0; i < 3; ++i) id[static_cast<size_t>(9 + i)] = static_cast<char>(n >> (16 - 8 * i));
  return id;
}

std::string ObjectIdToHex(std::string_view oid12) { return HexDigits(oid12); }

}  // namespace mayfly

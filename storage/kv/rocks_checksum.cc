// RocksDB computes CRC-32C over all that goes into the write-ahead log, by the processor's own
// instruction if it was compiled for a processor that has it. As distributions compile it, for
// every x86-64, it looks up tables: 1.2 GB a second, which was a seventh of all instructions of a
// small write, and nearly half of the time for which a large one kept others waiting. The function
// here has the name of RocksDB's, so the dynamic linker puts it in its place, as it would another
// malloc; the numbers are the same. Where it does not (a RocksDB without that function, or linked
// statically), everything is as before.
#include "storage/kv/rocks_checksum.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)

#include <nmmintrin.h>

namespace rocksdb::crc32c {

uint32_t Extend(uint32_t crc, const char* data, size_t n);

namespace {

using Function = uint32_t (*)(uint32_t, const char*, size_t);
constexpr const char* kName = "_ZN7rocksdb6crc32c6ExtendEjPKcm";

__attribute__((target("sse4.2"))) uint32_t ByInstruction(uint32_t crc, const char* data, size_t n) {
  uint64_t c = ~crc;
  for (; n >= 8; n -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    c = _mm_crc32_u64(c, word);
  }
  auto rest = static_cast<uint32_t>(c);
  for (; n > 0; --n, ++data) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*data));
  return ~rest;
}

/// Where there is neither.
uint32_t BySteps(uint32_t crc, const char* data, size_t n) {
  uint32_t c = ~crc;
  for (; n > 0; --n, ++data) {
    c ^= static_cast<uint8_t>(*data);
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (0x82F63B78U & (0U - (c & 1)));
  }
  return ~c;
}

/// RocksDB's own.
Function Theirs() { return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, kName)); }

Function Best() {
  if (__builtin_cpu_supports("sse4.2")) return &ByInstruction;
  const Function theirs = Theirs();
  return theirs != nullptr ? theirs : &BySteps;
}

}  // namespace

uint32_t Extend(uint32_t crc, const char* data, size_t n) {
  static const Function best = Best();
  return best(crc, data, n);
}

}  // namespace rocksdb::crc32c

namespace mayfly {

bool HasFastChecksum() {
  using namespace rocksdb::crc32c;
  return Theirs() != nullptr && __builtin_cpu_supports("sse4.2") &&
         ::dlsym(RTLD_DEFAULT, kName) == reinterpret_cast<void*>(&Extend);
}

}  // namespace mayfly

#else

namespace mayfly {

bool HasFastChecksum() { return false; }

}  // namespace mayfly

#endif

#pragma once
#include <zlib.h>

#include <cstdint>
#include <string_view>

namespace mayfly {

/// CRC-32 as zlib has it; `before`: of the bytes before these.
inline uint32_t Crc32(std::string_view s, uint32_t before = 0) {
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(s.data()), s.size()));
}

}  // namespace mayfly

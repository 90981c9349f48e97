#include "storage/kv/rocks_log_check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include "storage/kv/rocks_status.h"
#include "storage/kv/zeros.h"

namespace mayfly {
namespace {

// Format: RocksDB wiki, "Write Ahead Log File Format".
//   log    := block*           32 KiB each, the last one shorter
//   block  := record* zeros    no record starts in the last 6 bytes
//   record := masked_crc:le32 size:le16 type:u8 [log_number:le32 when type is 5 to 8 or 11] payload
constexpr size_t kBlock = 32768;
constexpr size_t kHeader = 7;

uint32_t Load32(const char* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

enum class Found { kRecord, kEnd, kTruncated, kZeros, kDamaged };

/// What is at `offset` of a block of `size` bytes (less than kBlock only at the end of the file);
/// `*next` behind it.
Found RecordAt(const char* block, size_t size, size_t offset, size_t* next) {
  if (kBlock - offset < kHeader) return Found::kEnd;
  if (offset == size) return Found::kEnd;
  if (size - offset < kHeader) return Found::kTruncated;
  const char* p = block + offset;
  uint32_t length = static_cast<uint8_t>(p[4]) | static_cast<uint32_t>(static_cast<uint8_t>(p[5]))
                                                     << 8;
  if (AllZero(p, kHeader)) return Found::kZeros;
  *next = offset + kHeader + length;
  if (*next > kBlock) return Found::kDamaged;
  if (*next > size) return Found::kTruncated;
  uint32_t crc = Crc32c(0, p + 6, length + 1);
  uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  return masked == Load32(p) ? Found::kRecord : Found::kDamaged;
}

struct LogState {
  bool any_record = false;
  bool damaged = false;  ///< a whole record whose bytes are wrong
  bool hole = false;     ///< pages that never reached the disk, at or behind the damage
  uint64_t damage_offset = 0;
  bool record_behind = false;  ///< a good record behind the damage
};

Result<LogState> ReadLog(rocksdb::Env& env, const std::string& file) {
  std::unique_ptr<rocksdb::SequentialFile> in;
  rocksdb::Status s = env.NewSequentialFile(file, &in, rocksdb::EnvOptions());
  if (!s.ok()) return FromStorage(s);
  LogState state;
  std::vector<char> buffer(kBlock);
  for (uint64_t start = 0;; start += kBlock) {
    size_t size = 0;
    while (size < kBlock) {  // a read may be short
      rocksdb::Slice got;
      s = in->Read(kBlock - size, &got, buffer.data() + size);
      if (!s.ok()) return FromStorage(s);
      if (got.empty()) break;
      if (got.data() != buffer.data() + size)
        std::memmove(buffer.data() + size, got.data(), got.size());
      size += got.size();
    }
    if (size == 0) break;
    size_t offset = 0, next = 0;
    for (bool more = true; more;) {
      switch (RecordAt(buffer.data(), size, offset, &next)) {
        case Found::kRecord:
          (state.damaged ? state.record_behind : state.any_record) = true;
          offset = next;
          break;
        case Found::kEnd:
        case Found::kTruncated:
          more = false;
          break;
        case Found::kZeros:
          // The rest of a block that was never written; RocksDB skips it, too. If records follow,
          // that is a hole.
          state.hole = true;
          more = false;
          break;
        case Found::kDamaged:
          if (!state.damaged) state.damage_offset = start + offset;
          state.damaged = true;
          for (size_t at = (offset + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
               at + kSectorBytes <= size; at += kSectorBytes)
            state.hole |= AllZero(buffer.data() + at, kSectorBytes);
          more = false;  // its length cannot be trusted: the next block starts with a record
          break;
      }
    }
    if (size < kBlock) break;
  }
  return state;
}

}  // namespace

Result<void> CheckLogs(rocksdb::Env& env, const std::string& directory, uint64_t first) {
  std::vector<std::string> names;
  rocksdb::Status s = env.GetChildren(directory, &names);
  if (!s.ok()) return FromStorage(s);
  std::vector<std::pair<uint64_t, std::string>> logs;
  for (const std::string& n : names)
    if (uint64_t k = LogNumberOf(n); k >= std::max<uint64_t>(first, 1)) logs.emplace_back(k, n);
  std::sort(logs.begin(), logs.end());
  std::string suspect;  // damage at the end of the last log may come from a power loss
  bool data_behind = false;
  for (const auto& [number, name] : logs) {
    MAYFLY_TRY(LogState state, ReadLog(env, directory + "/" + name));
    if (!suspect.empty()) {
      data_behind = state.any_record;
    } else if (state.damaged && !state.hole) {
      suspect = directory + "/" + name + " at byte " + std::to_string(state.damage_offset);
      data_behind = state.record_behind;
    }
    if (data_behind) break;
  }
  if (!data_behind) return Ok();
  return Error{ErrorCode::kInternalError,
               "the log file " + suspect +
                   " is damaged in the middle; opening it would lose acknowledged writes behind "
                   "that place. Restore the data directory from a backup or resync"};
}

uint64_t LogNumberOf(std::string_view name) {
  if (!name.ends_with(".log")) return 0;
  uint64_t k = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), k);
  return error == std::errc() && end == name.data() + name.size() - 4 ? k : 0;
}

uint32_t Crc32c(uint32_t crc, const char* data, size_t n) {
  static const auto kTable = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (size_t k = 1; k < 8; ++k) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
    return t;
  }();
  crc = ~crc;
  for (; n >= 8; n -= 8, data += 8) {
    uint32_t lo = Load32(data) ^ crc, hi = Load32(data + 4);
    crc = kTable[7][lo & 255] ^ kTable[6][lo >> 8 & 255] ^ kTable[5][lo >> 16 & 255] ^
          kTable[4][lo >> 24] ^ kTable[3][hi & 255] ^ kTable[2][hi >> 8 & 255] ^
          kTable[1][hi >> 16 & 255] ^ kTable[0][hi >> 24];
  }
  for (; n; --n, ++data) crc = (crc >> 8) ^ kTable[0][(crc ^ static_cast<uint8_t>(*data)) & 255];
  return ~crc;
}

}  // namespace mayfly

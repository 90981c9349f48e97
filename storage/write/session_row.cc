#include "storage/write/session_row.h"

#include "storage/keys/key_format.h"
#include "storage/write/log_format.h"

namespace mayfly {
namespace {

constexpr char kPlain = 1, kPlaced = 2;
constexpr size_t kLastWriteAt = 1 + 8, kPlaceAt = 1 + 8 + 8 + 4;
constexpr size_t kPlainBytes = kPlaceAt, kPlacedBytes = kPlaceAt + 8 + 8;

}  // namespace

bool IsSessionRowKey(std::string_view key) {
  if (!key.starts_with(kSessionRowPrefix)) return false;
  const size_t n = key.size() - kSessionRowPrefix.size();
  return n == kSessionRowIdBytes || n == kSessionRowIdBytes + kSessionRowUidBytes;
}

std::string SessionRowKey(std::string_view id) { return std::string(kSessionRowPrefix).append(id); }

std::string EncodeSessionRow(const SessionRow& row, bool placed) {
  std::string v;
  v.reserve(kPlacedBytes + row.entries.size());
  v.resize(placed ? kPlacedBytes : kPlainBytes);
  v[0] = placed ? kPlaced : kPlain;
  StoreLe<int64_t>(v.data() + 1, row.number);
  StoreLe<int64_t>(v.data() + kLastWriteAt, row.last_write);
  StoreLe<uint32_t>(v.data() + kLastWriteAt + 8, row.chunks);
  if (placed) {
    StoreLe<uint64_t>(v.data() + kPlaceAt, row.ts);
    StoreLe<uint64_t>(v.data() + kPlaceAt + 8, row.term);
  }
  return v.append(row.entries);
}

Result<SessionRow> DecodeSessionRow(std::string_view v) {
  const bool placed = !v.empty() && v[0] == kPlaced;
  const size_t head = placed ? kPlacedBytes : kPlainBytes;
  if (v.size() < head || (!placed && v[0] != kPlain))
    return Error{ErrorCode::kInternalError, "a session's row is damaged or of a later version"};
  SessionRow row;
  row.number = LoadLe<int64_t>(v.data() + 1);
  row.last_write = LoadLe<int64_t>(v.data() + kLastWriteAt);
  row.chunks = LoadLe<uint32_t>(v.data() + kLastWriteAt + 8);
  if (placed) {
    row.ts = LoadLe<uint64_t>(v.data() + kPlaceAt);
    row.term = LoadLe<uint64_t>(v.data() + kPlaceAt + 8);
  }
  row.entries = v.substr(head);
  return row;
}

bool PlaceSessionRow(const LogUnit& unit, const LogEffect& e, std::string* out) {
  if (unit.lsid.empty() || unit.ticks == 0 || e.op != LogEffect::kPut ||
      e.keyspace != Keyspace::kCatalog || e.value.size() < kPlacedBytes || e.value[0] != kPlaced ||
      !IsSessionRowKey(e.key))
    return false;
  out->assign(e.value);
  StoreLe<int64_t>(out->data() + kLastWriteAt, unit.wall);
  StoreLe<uint64_t>(out->data() + kPlaceAt, unit.ts + unit.ticks - 1);
  StoreLe<uint64_t>(out->data() + kPlaceAt + 8, unit.term);
  return true;
}

}  // namespace mayfly

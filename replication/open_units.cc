#include "replication/open_units.h"

#include <algorithm>

#include "replication/byte_text.h"
#include "replication/log_store.h"

namespace mayfly {

Result<void> OpenUnits::Load(KvStore& kv) {
  MAYFLY_TRY(const std::string row, ReadOpenUnits(kv));
  std::string_view in = row;
  units_.clear();
  while (!in.empty()) {
    Unit u;
    if (!TakeNumber(&in, &u.id.origin) || !TakeNumber(&in, &u.id.sequence) ||
        !TakeNumber(&in, &u.first.index) || !TakeNumber(&in, &u.first.term))
      return Error{ErrorCode::kInternalError,
                   "the replication log is damaged (open units): resync this member"};
    units_.push_back(u);
  }
  first_.store(First(), std::memory_order_release);
  return Ok();
}

void OpenUnits::Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) {
  bool changed = false;
  for (const CommittedEntry& e : entries) {
    changed |=
        std::erase_if(units_, [&](const Unit& u) { return u.first.term < e.position.term; }) > 0;
    const bool chunk = e.kind == CommittedEntry::Kind::kData && IsLogChunk(e.data);
    const bool end = e.kind == CommittedEntry::Kind::kData && IsLogEnd(e.data);
    if (!chunk && !end) continue;
    Result<LogEntryHeader> id = ReadLogEntryHeader(e.data);
    if (!id) continue;  // damaged: the applier reports it
    uint64_t number = 0;
    const bool given_up = chunk && ReadLogChunk(e.data, &number) && number == kLogChunkGivenUp;
    auto it = std::find_if(units_.begin(), units_.end(),
                           [&](const Unit& u) { return u.id == id.value(); });
    if (given_up && it == units_.end()) continue;
    if (chunk && it == units_.end()) {
      units_.push_back({id.value(), e.position});
      // Before it is applied: from then on the log may be trimmed up to here.
      first_.store(std::min(first_index(), e.position.index), std::memory_order_release);
      changed = true;
    } else if ((end || given_up) && it != units_.end()) {
      units_.erase(it);
      changed = true;
    }
  }
  if (!changed) return;
  std::string row;
  for (const Unit& u : units_) {
    AppendNumber(row, u.id.origin);
    AppendNumber(row, u.id.sequence);
    AppendNumber(row, u.first.index);
    AppendNumber(row, u.first.term);
  }
  StageOpenUnits(batch, row);
}

void OpenUnits::Applied() { first_.store(First(), std::memory_order_release); }

uint64_t OpenUnits::First() const {
  uint64_t first = UINT64_MAX;
  for (const Unit& u : units_) first = std::min(first, u.first.index);
  return first;
}

Result<std::string> JoinFromLog(std::string_view end, LogCursor& chunks) {
  uint64_t at = 0;
  return JoinLogUnit(end, [&](uint64_t index) -> Result<std::string_view> {
    if (at != 0 && index == at + 1 && chunks.Valid())
      chunks.Next();
    else
      chunks.Seek(index);
    at = index;
    MAYFLY_TRY(chunks.status());
    if (!chunks.Valid() || chunks.entry().position.index != index)
      return Error{ErrorCode::kNoSuchKey, "the log does not reach back to the chunk of a unit at " +
                                              std::to_string(index)};
    return chunks.entry().data;
  });
}

bool IsTrimmed(const Error& e) { return e.code == ErrorCode::kNoSuchKey; }

}  // namespace mayfly

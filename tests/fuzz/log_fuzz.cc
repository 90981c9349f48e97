// Entries of the replication log: whatever bytes they are, they are units whose every view lies
// inside, or damaged; and skipping says of a unit what reading says. Chunks and ends of large units
// likewise, with the times that move in them. Rows of sessions get their place once.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "replication/log_store.h"
#include "storage/write/log_format.h"
#include "storage/write/session_row.h"

namespace {

using namespace mayfly;

void PlaceRow(const LogUnit& u, const LogEffect& e) {
  std::string placed;
  if (!PlaceSessionRow(u, e, &placed)) return;
  Require(placed.size() == e.value.size(), "a row keeps its size");
  const auto was = DecodeSessionRow(e.value), is = DecodeSessionRow(placed);
  Require(was && is, "a row that has room for its place can be read");
  Require(is.value().ts == u.ts + u.ticks - 1 && is.value().term == u.term &&
              is.value().last_write == u.wall,
          "it has the unit's");
  Require(is.value().entries == was.value().entries && is.value().number == was.value().number &&
              is.value().chunks == was.value().chunks,
          "the rest of it stays");
}

void ReadUnits(const std::string& entry) {
  auto inside = [&](std::string_view v) {
    Require(v.empty() ||
                (v.data() >= entry.data() && v.data() + v.size() <= entry.data() + entry.size()),
            "a view lies inside its entry");
  };
  if (!ReadLogEntryHeader(entry)) return;
  std::string_view rest = std::string_view(entry).substr(kLogEntryHeader), skipped = rest;
  LogUnit u;
  for (size_t units = 0; units <= entry.size(); ++units) {
    const size_t had = rest.size();
    uint64_t ts = 0;
    uint32_t ticks = 0;
    int64_t wall = 0;
    auto skips = SkipLogUnit(&skipped, &ts, &ticks, &wall);
    auto reads = ReadLogUnit(&rest, &u);
    if (!reads) return Require(!reads.error().message.empty(), "a damaged unit says so");
    Require(skips.has_value() && skips.value() == reads.value(), "what can be read can be skipped");
    if (!reads.value()) return;
    Require(ts == u.ts && ticks == u.ticks && wall == u.wall, "skipping tells the same times");
    Require(rest.size() == skipped.size() && rest.size() < had, "a unit has an end");
    for (const LogCollection& c : u.collections) inside(c.uuid), inside(c.ns);
    for (const LogEffect& e : u.effects) inside(e.key), inside(e.value);
    for (const LogRecord& r : u.records) {
      inside(r.detail), inside(r.o2), inside(r.db), inside(r.uuid), inside(r.rule),
          inside(r.before);
      Require(r.kind > LogRecord::kUpdate || r.effect < u.effects.size(), "a place that is there");
    }
    inside(u.lsid);
    u.term = 9;
    for (const LogEffect& e : u.effects) PlaceRow(u, e);
  }
  Require(false, "there are no more units than bytes");
}

/// As a chunk, as an end, and as an end whose chunks are all the same bytes.
void ReadChunks(const std::string& entry) {
  uint64_t number = 0;
  if (auto bytes = ReadLogChunk(entry, &number))
    Require(bytes.value().size() < entry.size(), "a chunk has no more than its bytes");
  auto end = ReadLogEnd(entry);
  if (!end || end.value().bytes > (1 << 20)) return;  // room is made for as many bytes as it says
  number = 0;
  Require(end.value().indexes.size() <= entry.size(), "there are no more chunks than bytes");
  std::string chunk;
  auto joined = JoinLogUnit(entry, [&](uint64_t) -> Result<std::string_view> {
    EncodeLogChunk(ReadLogEntryHeader(entry).value(), 0, number++, entry, chunk);
    return std::string_view(chunk);
  });
  if (joined) ReadUnits(joined.value());
}

/// A unit cut into chunks of `size` bytes, and an end that names them. What is behind the unit, if
/// `moves`, are times that move.
void ReadCut(const std::string& unit, size_t size, bool moves) {
  if (unit.empty()) return;
  const LogEntryHeader header{3, 4};
  LogChunks of{unit.size(), {}};
  for (size_t at = 0, index = 7; at < unit.size(); at += size, index += 2)
    of.indexes.push_back(index);
  std::string end, chunk;
  EncodeLogEnd(header, 5, of, moves, end);
  SetUnitTime(end.data() + kLogEntryHeader, 11, 13);
  Require(IsLogEnd(end) && ReadLogEnd(end).value().indexes == of.indexes, "an end names chunks");
  auto joined = JoinLogUnit(end, [&](uint64_t index) -> Result<std::string_view> {
    const uint64_t number = (index - 7) / 2;
    EncodeLogChunk(header, 0, number, std::string_view(unit).substr(number * size, size), chunk);
    return std::string_view(chunk);
  });
  if (!joined) return Require(moves || unit.size() < 20, "chunks and end belong together");
  const std::string& whole = joined.value();
  Require(whole.size() <= kLogEntryHeader + unit.size(), "joining adds nothing");
  if (!moves)
    Require(
        std::string_view(whole).substr(kLogEntryHeader + 20) == std::string_view(unit).substr(20),
        "what was cut is joined");
  ReadUnits(whole);
}

void ReadEntry(const std::string& value) {
  LogEntry e;
  if (!DecodeLogEntry(value, &e)) return;
  for (std::string_view v : {std::string_view(e.data), std::string_view(e.context)})
    Require(v.size() <= value.size(), "an entry has no more than its bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] >= 0xE0 && data[0] < 0xF0) {
    ReadCut(input, 1 + (data[0] & 14) * 12, (data[0] & 1) != 0);
  } else if (data[0] >= 0xF0) {
    ReadChunks(input);
    // Behind a good header, as either.
    for (const uint8_t version : {kLogEntryChunk, kLogEntryEnd, kLogEntryEndMoves}) {
      std::string entry(1, static_cast<char>(version));
      ReadChunks(entry.append(kLogEntryHeader - 1, '\1') + input);
    }
  } else if (data[0] % 4 == 0) {
    ReadEntry(input);
  } else if (data[0] % 4 == 1) {
    ReadUnits(input);
  } else {
    // Behind a good header, and as one unit of the right size.
    std::string entry;
    BeginLogEntry(1, 2, entry);
    if (data[0] % 4 == 3) {
      const auto n = static_cast<uint32_t>(input.size());
      entry.append(reinterpret_cast<const char*>(&n), 4);
    }
    ReadUnits(entry + input);
  }
  return 0;
}

// Entries of the replication log: whatever bytes they are, they are units whose every view lies
// inside, or damaged; and skipping says of a unit what reading says. Chunks and ends of large units
// likewise.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "replication/log_store.h"
#include "storage/write/log_format.h"

namespace {

using namespace mayfly;

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
  if (data[0] >= 0xF0) {
    ReadChunks(input);
    // Behind a good header, as either.
    std::string entry(1, static_cast<char>(data[0] % 2 == 0 ? kLogEntryChunk : kLogEntryEnd));
    ReadChunks(entry.append(kLogEntryHeader - 1, '\1') + input);
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

#include "storage/write/log_format.h"

#include <catch2/catch.hpp>
#include <map>

#include "protocol/extended_json.h"
#include "storage/keys/key_format.h"
#include "storage/write/document_diff.h"
#include "storage/write/log_apply.h"
#include "tests/unit/storage/storage_fixture.h"

namespace mayfly {
namespace {

BsonDocument J(std::string_view json) { return ParseJson(json).value(); }

/// What ApplyDocumentDiff makes of `before`.
BsonDocument Patch(BsonView before, BsonView diff) {
  std::string out;
  REQUIRE(ApplyDocumentDiff(before, diff, out));
  return BsonDocument(std::move(out));
}

TEST_CASE("A diff of two documents makes the second of the first", "[replication]") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"_id":1,"a":1,"pad":"0123456789012345678901234567890"})",
       R"({"_id":1,"a":2,"pad":"0123456789012345678901234567890"})"},
      {R"({"_id":1,"a":1,"pad":"0123456789012345678901234567890"})",
       R"({"_id":1,"pad":"0123456789012345678901234567890"})"},
      {R"({"_id":1,"a":1,"c":3,"pad":"012345678901234567890123456789001234567890"})",
       R"({"_id":1,"a":1,"b":2,"c":3,"pad":"012345678901234567890123456789001234567890"})"},
      {R"({"_id":1,"pad":"0123456789012345678901234567890","o":{"x":1,"y":{"z":2}}})",
       R"({"_id":1,"pad":"0123456789012345678901234567890","o":{"x":1,"y":{"z":3,"w":4}}})"},
      {R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1,2,3,{"k":1}]})",
       R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1,5,3,{"k":2},9]})"},
      {R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1,2,3]})",
       R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1]})"},
      {R"({"_id":1,"b":1,"a":{"q":[1]},"pad":"01234567890123456789012345678900123456789001234567890"})",
       R"({"_id":1,"a":[2],"b":2,"pad":"01234567890123456789012345678900123456789001234567890"})"},
  };
  for (const auto& [before, after] : cases) {
    const BsonDocument a = J(before), b = J(after);
    std::string diff;
    CAPTURE(before, after);
    AppendDocumentDiff(a, b, diff);
    CAPTURE(ToRelaxedJson(BsonView(diff).AsValue()));
    CHECK(ToRelaxedJson(Patch(a, BsonView(diff)).view().AsValue()) ==
          ToRelaxedJson(b.view().AsValue()));
  }
}

TEST_CASE("A diff of many fields, and one that makes too many elements", "[replication]") {
  // Each name was looked for among all others: 40,000,000,000 comparisons.
  auto fields = [](char letter) {
    return BuildBson([&](BsonBuilder& b) {
      for (int i = 0; i < 200'000; ++i) b.Append(letter + std::to_string(i), i);
    });
  };
  const BsonDocument before = fields('a'), after = fields('b');
  std::string diff;
  AppendDocumentDiff(before, after, diff);
  CHECK(Patch(before, BsonView(diff)).bytes() == after.bytes());

  std::string out;
  const Result<void> grown = ApplyDocumentDiff(
      J(R"({"_id":1,"a":[],"b":[],"c":[]})"),
      J(R"({"sa":{"a":true,"u5000000":1},"sb":{"a":true,"u5000000":1},"sc":{"a":true,"u5000000":1}})"),
      out);
  REQUIRE_FALSE(grown);
  CHECK(grown.error().code == ErrorCode::kBSONObjectTooLarge);
  CHECK(out.size() < size_t{2} * kMaxBsonUserSize);
}

TEST_CASE("What is no replacement is a diff, however small the document", "[replication]") {
  const BsonDocument a = J(R"({"_id":1,"a":1})"),
                     b = J(R"({"_id":1,"b":"something else entirely"})");
  std::string diff;
  AppendDocumentDiff(a, b, diff);
  CHECK(BsonView(diff).bytes() ==
        J(R"({"d":{"a":false},"i":{"b":"something else entirely"}})").view().bytes());
}

std::string JsonText(std::string_view json) { return ToRelaxedJson(J(json).view().AsValue()); }

TEST_CASE("Diffs of other servers", "[replication]") {
  const BsonDocument before = J(R"({"_id":1,"a":{"b":1},"l":[1,2,3],"z":1})");
  auto apply = [&](const char* diff) {
    std::string out;
    Result<void> done = ApplyDocumentDiff(before, J(diff), out);
    return done ? ToRelaxedJson(BsonView(out).AsValue())
                : "error " + std::to_string(static_cast<int>(done.error().code));
  };
  CHECK(apply(R"({})") == JsonText(R"({"_id":1,"a":{"b":1},"l":[1,2,3],"z":1})"));
  CHECK(apply(R"({"u":{"new":5,"z":2}})") ==
        JsonText(R"({"_id":1,"a":{"b":1},"l":[1,2,3],"z":2,"new":5})"));
  CHECK(apply(R"({"i":{"a":7}})") == JsonText(R"({"_id":1,"l":[1,2,3],"z":1,"a":7})"));
  CHECK(apply(R"({"sl":{"a":true,"u5":6}})") ==
        JsonText(R"({"_id":1,"a":{"b":1},"l":[1,2,3,null,null,6],"z":1})"));
  CHECK(apply(R"({"sl":{"a":true,"l":2,"u0":9}})") ==
        JsonText(R"({"_id":1,"a":{"b":1},"l":[9,2],"z":1})"));
  // What is no diff, or does not fit the document.
  for (const char* diff :
       {R"({"x":{}})", R"({"u":1})", R"({"sa":1})", R"({"sl":{"a":true,"l":-1}})",
        R"({"sl":{"a":true,"q":1}})", R"({"sl":{"a":true,"u99999999999":1}})",
        R"({"sl":{"a":true,"u1x":1}})", R"({"b":{}})"}) {
    CAPTURE(diff);
    CHECK(apply(diff) == "error 9");
  }
  // What changes parts of a value that is not of that kind by now leaves it: a later entry says
  // what it is.
  for (const char* diff :
       {R"({"sz":{"u":{"b":1}}})", R"({"snone":{"u":{"b":1}}})", R"({"sa":{"a":true,"u0":1}})",
        R"({"sl":{"a":true,"s0":{"u":{"x":1}}}})"}) {
    CAPTURE(diff);
    CHECK(apply(diff) == JsonText(R"({"_id":1,"a":{"b":1},"l":[1,2,3],"z":1})"));
  }
  CHECK(apply(R"({"sl":{"a":true,"s4":{"u":{"x":1}}}})") ==
        JsonText(R"({"_id":1,"a":{"b":1},"l":[1,2,3,null,null],"z":1})"));
}

TEST_CASE("A damaged entry of the log is an error wherever it ends", "[replication]") {
  std::string entry;
  BeginLogEntry(7, 9, entry);
  EncodeNoopUnit(J(R"({"msg":"hello"})"), entry);
  SetUnitTime(entry.data() + kLogEntryHeader, 5ull << 32 | 1, 5000);
  auto header = ReadLogEntryHeader(entry);
  REQUIRE(header);
  CHECK(header.value().origin == 7);
  CHECK(header.value().sequence == 9);
  std::string_view rest = std::string_view(entry).substr(kLogEntryHeader);
  LogUnit u;
  REQUIRE(ReadLogUnit(&rest, &u).value());
  CHECK(u.ts == (5ull << 32 | 1));
  CHECK(u.ticks == 1);
  REQUIRE(u.records.size() == 1);
  CHECK(u.records[0].kind == LogRecord::kNoop);
  CHECK_FALSE(ReadLogUnit(&rest, &u).value());
  for (size_t n = kLogEntryHeader + 1; n < entry.size(); ++n) {
    std::string_view cut = std::string_view(entry).substr(kLogEntryHeader, n - kLogEntryHeader);
    CAPTURE(n);
    CHECK_FALSE(ReadLogUnit(&cut, &u).has_value());
  }
  for (const uint8_t version : {0, kLogEntryLatest + 1, 127}) {
    entry[0] = static_cast<char>(version);
    CHECK(ReadLogEntryHeader(entry).error().code == ErrorCode::kUnsupportedFormat);
  }
}

TEST_CASE("A bucket that was merged is in entries that earlier versions refuse by their number",
          "[replication]") {
  // They took the reason, which they do not know, for damage.
  testing::TestStore s;
  testing::TestCollection c;
  REQUIRE(s.Insert(c, R"({"_id":1})"));
  const auto [reason, version] = GENERATE(std::pair(DeleteReason::kDeleted, kLogEntryPlain),
                                          std::pair(DeleteReason::kCapped, kLogEntryPlain),
                                          std::pair(DeleteReason::kMerged, kLogEntryWithMerge));
  WriteUnit unit = s.Unit();
  std::string key;
  Storage::AppendRecordKey(*c, J(R"({"_id":1})").view().First().value, key);
  WriteUnit::Locked locked;
  REQUIRE(unit.LockAndRead(*c, key, &locked).value());
  REQUIRE(unit.Delete(*c, locked, reason));
  std::string entry;
  BeginLogEntry(7, 9, entry);
  const EncodedUnit encoded = EncodeLogUnit(unit, entry);
  CHECK(encoded.version == version);
  RequireLogEntryVersion(entry, encoded.version);
  CHECK(entry[0] == version);
  REQUIRE(ReadLogEntryHeader(entry));
  std::string_view rest = std::string_view(entry).substr(kLogEntryHeader);
  LogUnit u;
  REQUIRE(ReadLogUnit(&rest, &u).value());
  REQUIRE(u.records.size() == 1);
  CHECK(u.records[0].reason == reason);
}

TEST_CASE("An expiry by a TTL index says its field and date once all members read that",
          "[replication]") {
  testing::TestStore s;
  testing::TestCollection c;
  const IndexInfoPtr index = c.AddIndex(7, R"({"t":1})");
  REQUIRE(s.Insert(c, R"({"_id":1,"t":{"$date":{"$numberLong":"5000"}}})"));
  s.storage->impl().logged = true;
  const int all_read = GENERATE(int{kLogEntryLatest}, int{kLogEntryWithMerge});
  WriteUnit unit = s.Unit();
  std::string key;
  Storage::AppendRecordKey(*c, J(R"({"_id":1})").view().First().value, key);
  WriteUnit::Locked locked;
  REQUIRE(unit.LockAndRead(*c, key, &locked).value());
  DeleteCause cause(DeleteReason::kExpiredTtlIndex);
  cause.index = index->id;
  cause.deadline = {15000};
  REQUIRE(unit.Delete(*c, locked, cause));
  std::string entry;
  BeginLogEntry(7, 9, entry);
  const EncodedUnit encoded = EncodeLogUnit(unit, entry, [&] { return all_read; });
  const bool says = all_read == kLogEntryLatest;
  CHECK(encoded.version == (says ? kLogEntryWithRule : kLogEntryPlain));
  std::string_view rest = std::string_view(entry).substr(kLogEntryHeader);
  LogUnit u;
  REQUIRE(ReadLogUnit(&rest, &u).value());
  REQUIRE(u.records.size() == 1);
  CHECK(u.records[0].reason == DeleteReason::kExpiredTtlIndex);
  CHECK(u.records[0].rule == index->name);
  CHECK(u.records[0].deadline == 15000);
  CHECK(u.records[0].field == (says ? "t" : ""));
  CHECK(u.records[0].date == (says ? 5000 : 0));
}

TEST_CASE("A unit in chunks is joined again, and only from its own chunks in their order",
          "[replication]") {
  const LogEntryHeader id{7, 9};
  std::string whole;
  EncodeNoopUnit(J(R"({"msg":"as long as it must be to be cut into some parts"})"), whole);
  std::map<uint64_t, std::string> log;
  LogChunks chunks{whole.size(), {}};
  constexpr size_t kPart = 20;
  for (size_t at = 0, n = 0; at < whole.size(); at += kPart, ++n) {
    const uint64_t index = 300 + n * n;
    EncodeLogChunk(id, 5, n, std::string_view(whole).substr(at, kPart), log[index]);
    chunks.indexes.push_back(index);
    CHECK(IsLogChunk(log[index]));
    CHECK_FALSE(IsLogEnd(log[index]));
    CHECK_FALSE(ReadLogEnd(log[index]).has_value());
  }
  REQUIRE(chunks.indexes.size() > 3);
  std::string end;
  EncodeLogEnd(id, 1, chunks, false, end);
  SetUnitTime(end.data() + kLogEntryHeader, 5ull << 32 | 1, 5000);
  uint64_t number = 0;
  CHECK_FALSE(ReadLogChunk(end, &number).has_value());
  // Whoever steps over entries sees a chunk that takes no time, and an end that takes the unit's.
  auto times = [](std::string_view entry) {
    std::string_view rest = entry.substr(kLogEntryHeader);
    uint64_t ts = 0;
    uint32_t ticks = 0;
    int64_t wall = 0;
    REQUIRE(SkipLogUnit(&rest, &ts, &ticks, &wall).value());
    CHECK(rest.empty());
    return std::tuple(ts, ticks, wall);
  };
  CHECK(times(log.begin()->second) == std::tuple(0ull, 0u, 5));
  CHECK(times(end) == std::tuple(5ull << 32 | 1, 1u, 5000));
  auto join = [&](std::string_view by) {
    return JoinLogUnit(by, [&](uint64_t index) -> Result<std::string_view> {
      return log.contains(index) ? log[index] : std::string_view();
    });
  };
  auto joined = join(end);
  REQUIRE(joined);
  SetUnitTime(whole.data(), 5ull << 32 | 1, 5000);
  CHECK(joined.value().substr(kLogEntryHeader) == whole);
  CHECK(ReadLogEntryHeader(joined.value()).value() == id);
  // Whatever is not the unit is an error: cut, missing, another's, in another order.
  for (size_t n = 0; n < end.size(); ++n) CHECK_FALSE(join(end.substr(0, n)).has_value());
  const auto all = log;
  for (auto& [index, entry] : log) {
    const std::string had = entry;
    for (size_t n = 0; n < had.size(); ++n) {
      entry = had.substr(0, n);
      CHECK_FALSE(join(end).has_value());
    }
    EncodeLogChunk({7, 10}, 5, 0, "x", entry);
    CHECK_FALSE(join(end).has_value());
    entry = had;
  }
  std::swap(log[chunks.indexes[0]], log[chunks.indexes[1]]);
  CHECK_FALSE(join(end).has_value());
  log = all;
  for (LogChunks wrong : {LogChunks{whole.size() + 1, chunks.indexes},
                          LogChunks{whole.size() - 1, chunks.indexes}, LogChunks{whole.size(), {}},
                          LogChunks{whole.size(), {5, 5}}, LogChunks{UINT64_MAX, chunks.indexes}}) {
    EncodeLogEnd(id, 1, wrong, false, end);
    CHECK_FALSE(join(end).has_value());
  }
}

}  // namespace

TEST_CASE("Times in chunks that count from the end of a unit move with it, to their latest",
          "[replication]") {
  const LogEntryHeader id{7, 9};
  std::string unit;
  EncodeNoopUnit(J(R"({"a":"01234567","b":"01234567"})"), unit);
  SetUnitTime(unit.data(), 0, 1000);
  const auto place = [&](size_t n) {
    size_t at = 0;
    for (size_t i = 0; i <= n; ++i) at = unit.find("01234567", at + 1);
    return static_cast<uint32_t>(at);
  };
  const uint32_t a = place(0), b = place(1);
  const auto set = [&](std::string& bytes, uint32_t at, int64_t time) {
    StoreBe64(bytes.data() + at, static_cast<uint64_t>(time) ^ kTimeSign);
  };
  set(unit, a, 5000);
  set(unit, b, 5000);
  const std::vector<LogMove> moves{{a, Instant{INT64_MAX}}, {b, Instant{5600}}};
  std::string bytes = unit;
  AppendLogMoves(moves, bytes);
  std::map<uint64_t, std::string> log;
  EncodeLogChunk(id, 5, 0, std::string_view(bytes).substr(0, 30), log[300]);
  EncodeLogChunk(id, 5, 1, std::string_view(bytes).substr(30), log[301]);
  const LogChunks chunks{bytes.size(), {300, 301}};
  const auto join = [&](int64_t wall, bool with_moves = true) {
    std::string end;
    EncodeLogEnd(id, 1, chunks, with_moves, end);
    CHECK(IsLogEnd(end));
    SetUnitTime(end.data() + kLogEntryHeader, 5ull << 32 | 1, wall);
    return JoinLogUnit(end,
                       [&](uint64_t index) -> Result<std::string_view> { return log.at(index); });
  };
  const auto expected = [&](int64_t wall, int64_t first, int64_t second) {
    std::string whole = unit;
    set(whole, a, first);
    set(whole, b, second);
    SetUnitTime(whole.data(), 5ull << 32 | 1, wall);
    return whole;
  };
  CHECK(join(1500).value().substr(kLogEntryHeader) == expected(1500, 5500, 5500));
  CHECK(join(3000).value().substr(kLogEntryHeader) == expected(3000, 7000, 5600));
  CHECK(join(900).value().substr(kLogEntryHeader) == expected(900, 5000, 5000));
  // The primary, which has the unit at hand, comes to the same.
  std::string own = unit;
  MoveLogTimes(own.data(), moves, 3000);
  SetUnitTime(own.data(), 5ull << 32 | 1, 3000);
  CHECK(own == expected(3000, 7000, 5600));
  std::string_view rest = own;
  LogUnit u;
  CHECK(ReadLogUnit(&rest, &u).value());
  // Places outside of the unit, and lengths that cannot be, are damage.
  for (const std::vector<LogMove>& wrong :
       {std::vector<LogMove>{{19, Instant{INT64_MAX}}},
        std::vector<LogMove>{{static_cast<uint32_t>(unit.size()) - 7, Instant{INT64_MAX}}}}) {
    bytes = unit;
    AppendLogMoves(wrong, bytes);
    EncodeLogChunk(id, 5, 1, std::string_view(bytes).substr(30), log[301]);
    std::string end;
    EncodeLogEnd(id, 1, {bytes.size(), {300, 301}}, true, end);
    CHECK_FALSE(JoinLogUnit(end, [&](uint64_t index) -> Result<std::string_view> {
                  return log.at(index);
                }).has_value());
  }
  for (size_t cut = 1; cut < bytes.size() - unit.size(); ++cut) {
    const std::string damaged = bytes.substr(0, bytes.size() - cut);
    EncodeLogChunk(id, 5, 1, std::string_view(damaged).substr(30), log[301]);
    std::string end;
    EncodeLogEnd(id, 1, {damaged.size(), {300, 301}}, true, end);
    CHECK_FALSE(JoinLogUnit(end, [&](uint64_t index) -> Result<std::string_view> {
                  return log.at(index);
                }).has_value());
  }
}

}  // namespace mayfly

#include "replication/log_store.h"

#include <catch2/catch.hpp>
#include <thread>

#include "replication/member_link.h"
#include "replication/new_node.h"
#include "replication/raft_node.h"
#include "simulation.h"
#include "storage/keys/key_format.h"

namespace mayfly {

namespace {

std::unique_ptr<LogStore> MustOpen(MemoryKv& kv) {
  auto log = LogStore::Open(kv);
  if (!log) FAIL(log.error().message);
  return std::move(log.value());
}
void Append(MemoryKv& kv, LogStore& log, uint64_t first, uint64_t last, uint64_t term,
            std::string_view data, int64_t now = 0) {
  std::vector<LogEntry> entries;
  for (uint64_t i = first; i <= last; ++i) {
    LogEntry e{.term = term, .index = i};
    e.data = data;
    entries.push_back(e);
  }
  auto batch = kv.NewBatch();
  log.StageAppend(*batch, entries, {now});
  REQUIRE(kv.Write(*batch, true));
}
void Apply(MemoryKv& kv, LogStore& log, uint64_t index, uint64_t term) {
  auto batch = kv.NewBatch();
  log.StageApplied(*batch, {term, index}, "conf", {});
  REQUIRE(kv.Write(*batch, false));
  log.Applied({term, index});
}
std::vector<uint64_t> Indexes(LogStore& log) {
  std::vector<uint64_t> out;
  auto c = log.Cursor();
  for (c->Seek(0); c->Valid(); c->Next()) out.push_back(c->entry().position.index);
  REQUIRE(c->status());
  return out;
}

}  // namespace

TEST_CASE("The log remembers what was written, and only applied entries show", "[log]") {
  MemoryKv kv;
  auto log = MustOpen(kv);
  CHECK(log->last_index() == 0);
  REQUIRE(log->MakeNodeId(77));
  Append(kv, *log, 1, 5, 2, "x");
  auto batch = kv.NewBatch();
  log->StageHardState(*batch, {3, 9, 4});
  REQUIRE(kv.Write(*batch, true));
  Apply(kv, *log, 3, 2);
  log = MustOpen(kv);
  CHECK(log->node() == 77);
  CHECK(log->hard_state() == HardState{3, 9, 4});
  CHECK(log->last_index() == 5);
  CHECK(log->applied() == LogPosition{2, 3});
  CHECK(log->stored_conf_state() == "conf");
  CHECK(Indexes(*log) == std::vector<uint64_t>{1, 2, 3});
  CHECK(log->Term(4).value() == 2);
  CHECK(log->Term(6).error().code == ErrorCode::kNoSuchKey);
}

// The two were stored one after the other: a copy of the data could be handed out under the index
// of one entry and the term of another.
TEST_CASE("The term and the index of what is applied belong to one entry", "[log]") {
  constexpr uint64_t kPositions = 500'000;
  MemoryKv kv;
  auto log = MustOpen(kv);
  std::thread applier([&] {
    for (uint64_t i = 1; i <= kPositions; ++i) log->Applied({i, i});
  });
  uint64_t torn = 0;
  for (LogPosition p; p.index < kPositions;) {
    p = log->applied();
    if (p.term != p.index) ++torn;
  }
  applier.join();
  CHECK(torn == 0);
}

TEST_CASE("A new leader's entries replace the end of the log", "[log]") {
  MemoryKv kv;
  auto log = MustOpen(kv);
  Append(kv, *log, 1, 9, 1, "old");
  Append(kv, *log, 4, 6, 2, "new");
  for (auto& l : {MustOpen(kv)}) {
    CHECK(l->last_index() == 6);
    CHECK(l->Term(3).value() == 1);
    CHECK(l->Term(4).value() == 2);
    CHECK_FALSE(l->Term(7));
  }
}

TEST_CASE("Retention goes by size, and not below the age or what is still wanted", "[log]") {
  MemoryKv kv;
  auto log = MustOpen(kv);
  log->set_segment_bytes(1000);
  for (uint64_t i = 1; i <= 50; ++i)
    Append(kv, *log, i, i, 1, std::string(200, 'd'), static_cast<int64_t>(i) * 1000);
  Apply(kv, *log, 50, 1);
  const Instant now{60'000};
  CHECK(log->TrimPoint(1 << 20, 0, UINT64_MAX, now) == 0);
  const uint64_t all = log->TrimPoint(2000, 0, UINT64_MAX, now);
  CHECK(all > 35);
  CHECK(all <= 46);
  const uint64_t young = log->TrimPoint(2000, 40'000, UINT64_MAX, now);
  CHECK(young > 10);
  CHECK(young <= 21);  // what came after second 20 is kept
  CHECK(log->TrimPoint(2000, 0, 12, now) <= 12);

  auto batch = kv.NewBatch();
  log->StageTrim(*batch, all, 1);
  REQUIRE(kv.Write(*batch, true));
  CHECK(log->bytes() < 3500);
  log = MustOpen(kv);
  CHECK(log->first_index() == all);
  CHECK(log->trimmed() == LogPosition{1, all - 1});
  CHECK(log->Term(all - 1).value() == 1);
  CHECK(Indexes(*log).front() == all);
  CHECK(Indexes(*log).back() == 50);
}

TEST_CASE("Rows that nobody wrote are refused", "[log]") {
  auto broken = [](std::string_view key, std::string_view value) {
    MemoryKv kv;
    Append(kv, *MustOpen(kv), 1, 3, 1, "x");
    auto batch = kv.NewBatch();
    batch->Put(Keyspace::kOplog, key, value);
    REQUIRE(kv.Write(*batch, true));
    auto log = LogStore::Open(kv);
    return log ? ErrorCode::kOk : log.error().code;
  };
  CHECK(broken(std::string("\x00hard_state", 11), "short") == ErrorCode::kInternalError);
  CHECK(broken(std::string("\x00trimmed", 8), "short") == ErrorCode::kInternalError);
  CHECK(broken(std::string("\x01odd", 4), "key") == ErrorCode::kInternalError);
  CHECK(broken(std::string("\0format", 7), "8") == ErrorCode::kUnsupportedFormat);
  CHECK(broken(std::string("\0format", 7), "0") == ErrorCode::kUnsupportedFormat);
  // Promises beyond the end of the log: entries were lost.
  std::string promised(16, '\0');
  promised += std::string("\x09\0\0\0\0\0\0\0", 8);
  CHECK(broken(std::string("\x00hard_state", 11), promised) == ErrorCode::kInternalError);
}

TEST_CASE("A log of the format before becomes one that the version before does not open", "[log]") {
  MemoryKv kv;
  Append(kv, *MustOpen(kv), 1, 3, 1, "x");
  const std::string key("\0format", 7);
  auto batch = kv.NewBatch();
  const char* before = GENERATE("1", "2", "3", "4", "5", "6");
  batch->Put(Keyspace::kOplog, key, before);
  REQUIRE(kv.Write(*batch, true));
  auto log = MustOpen(kv);
  CHECK(log->last_index() == 3);
  PinnedValue v;
  REQUIRE(kv.Get(Keyspace::kOplog, key, &v, nullptr).value());
  CHECK(v.view() == kLogFormatVersion);
}

TEST_CASE("Configurations survive their encoding; cut ones are refused", "[log]") {
  ConsensusConfiguration c;
  c.set_id = "twelve bytes";
  c.members = {{1, "a:1", true, 1.5}, {UINT64_MAX, "[::1]:27017", false, 0}};
  c.payload = std::string("\0payload", 8);
  const std::string bytes = EncodeConfiguration(c);
  ConsensusConfiguration d;
  REQUIRE(DecodeConfiguration(bytes, &d));
  CHECK(d.set_id == c.set_id);
  REQUIRE(d.members.size() == 2);
  CHECK(d.members[1].address == "[::1]:27017");
  CHECK(d.members[0].priority == 1.5);
  CHECK_FALSE(d.members[1].voter);
  CHECK(d.payload == c.payload);
  for (size_t n = 0; n < bytes.size() - c.payload.size(); ++n)
    CHECK_FALSE(DecodeConfiguration(bytes.substr(0, n), &d));
}

TEST_CASE("A copy takes the joiner's promises and no others", "[log]") {
  MemoryKv donor;
  {
    auto log = MustOpen(donor);
    REQUIRE(log->MakeNodeId(1));
    Append(donor, *log, 1, 8, 3, "x");
    auto batch = donor.NewBatch();
    log->StageHardState(*batch, {7, 1, 8});
    REQUIRE(donor.Write(*batch, true));
    Apply(donor, *log, 6, 3);
  }
  auto copy = donor.Copy();
  auto at = AdoptCheckpoint(*copy, 2, {5, 4, 1});
  REQUIRE(at);
  CHECK(at.value() == LogPosition{3, 6});
  auto log = MustOpen(*copy);
  CHECK(log->node() == 2);
  CHECK(log->hard_state() == HardState{5, 4, 6});  // its own vote, not the donor's term
  CHECK(log->last_index() == 6);                   // not what the donor had not applied
  auto older = donor.Copy();
  REQUIRE(AdoptCheckpoint(*older, 2, {1, 4, 0}));
  CHECK(MustOpen(*older)->hard_state() ==
        HardState{3, 0, 6});  // a vote of before the entries' term is none
}

TEST_CASE("A store that becomes a new node has no log, no sessions and nothing of the member",
          "[log]") {
  MemoryKv kv;
  {
    auto log = MustOpen(kv);
    REQUIRE(log->MakeNodeId(1));
    Append(kv, *log, 1, 8, 3, "x");
    Apply(kv, *log, 6, 3);
  }
  const char* const goes[] = {"replication/applied", "txn/abc", "setting/local/oplogBytes",
                              "setting/access/timeKeys", "setting/ttl.clock"};
  const char* const stays[] = {"format", "setting/ttl/controls", "setting/access/decoySecret",
                               "next_id"};
  auto batch = kv.NewBatch();
  for (const char* key : goes) batch->Put(Keyspace::kCatalog, key, "v");
  for (const char* key : stays) batch->Put(Keyspace::kCatalog, key, "v");
  std::string of_set, of_member;
  AppendBe32(of_set, 7);
  AppendBe32(of_member, 0x80000001);
  batch->Put(Keyspace::kRecords, of_set + "k", "v");
  batch->Put(Keyspace::kRecords, of_member + "k", "v");
  REQUIRE(kv.Write(*batch, true));
  PinnedValue v;
  auto has = [&](Keyspace ks, std::string_view key) {
    return kv.Get(ks, key, &v, nullptr).value();
  };
  SECTION("of a member") {
    REQUIRE(BecomeNewNode(kv, {5000}));
    CHECK_FALSE(has(Keyspace::kRecords, of_member + "k"));
    CHECK(FormerSetUntil(kv).value() == uint64_t{5} << 32);
  }
  SECTION("of a standalone, whose local collections are its own") {
    auto empty = kv.NewBatch();
    empty->DeleteRange(Keyspace::kOplog, std::string(1, '\0'), "\xFF");
    REQUIRE(kv.Write(*empty, true));
    REQUIRE(BecomeNewNode(kv, {5000}));
    CHECK(has(Keyspace::kRecords, of_member + "k"));
    CHECK(FormerSetUntil(kv).value() == 0);
  }
  for (const char* key : goes) CHECK_FALSE(has(Keyspace::kCatalog, key));
  for (const char* key : stays) CHECK(has(Keyspace::kCatalog, key));
  CHECK(has(Keyspace::kRecords, of_set + "k"));
  auto it = kv.NewIterator(Keyspace::kOplog, {});
  it->SeekToFirst();
  CHECK_FALSE(it->Valid());
}

TEST_CASE("Addresses are names or IPs", "[log]") {
  std::string host, port;
  auto split = [&](std::string_view a) {
    return SplitAddress(a, &host, &port) ? host + " " + port : "-";
  };
  CHECK(split("db1.example:27018") == "db1.example 27018");
  CHECK(split("db1") == "db1 27017");
  CHECK(split("10.0.0.1:1") == "10.0.0.1 1");
  CHECK(split("[::1]:27019") == "::1 27019");
  CHECK(split("[::1]") == "::1 27017");
  CHECK(split("") == "-");
  CHECK(split("a:b") == "-");
  CHECK(split("a:123456") == "-");
  CHECK(split("[::1") == "-");
}

}  // namespace mayfly

#include <algorithm>
#include <catch2/catch.hpp>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "replication/change_stream.h"
#include "storage/kv/rocks_kv.h"
#include "storage/write/log_format.h"
#include "tests/unit/storage/storage_fixture.h"

namespace mayfly {
namespace {

using testing::Json;
using testing::ScratchDir;

std::string Describe(const char* diff, bool expanded) {
  const BsonDocument d = Json(diff);
  return ToRelaxedJson(
      BuildBson([&](BsonBuilder& b) { AppendUpdateDescription(d, expanded, b); }).view());
}
std::string Text(const char* json) { return ToRelaxedJson(Json(json).view()); }

/// A log in memory: entries of no-ops, whose times are all that matters here.
struct FakeLog {
  struct Entry {
    uint64_t index, ts;
    std::string data;
  };
  std::vector<Entry> entries;
  uint64_t applied_ts = 0, applied_index = 0;

  void Add(uint64_t index, uint64_t ts) {
    Entry e{index, ts, {}};
    BeginLogEntry(1, index, e.data);
    EncodeNoopUnit(BuildBson([](BsonBuilder& b) { b.Append("msg", "x"); }), e.data);
    SetUnitTime(e.data.data() + kLogEntryHeader, ts, 0);
    entries.push_back(std::move(e));
    applied_ts = ts;
    applied_index = index;
  }
  void TrimBefore(uint64_t index) {
    std::erase_if(entries, [&](const Entry& e) { return e.index < index; });
  }
};

class FakeCursor final : public LogCursor {
 public:
  explicit FakeCursor(std::vector<FakeLog::Entry> entries) : entries_(std::move(entries)) {}
  void Seek(uint64_t index) override {
    at_ = std::find_if(entries_.begin(), entries_.end(),
                       [&](const auto& e) { return e.index >= index; }) -
          entries_.begin();
  }
  void SeekToLast() override { at_ = std::ssize(entries_) - 1; }
  void Next() override { ++at_; }
  void Prev() override { --at_; }
  bool Valid() const override { return at_ >= 0 && at_ < std::ssize(entries_); }
  CommittedEntry entry() const override {
    CommittedEntry c;
    c.position = {1, entries_[static_cast<size_t>(at_)].index};
    c.data = entries_[static_cast<size_t>(at_)].data;
    return c;
  }
  Result<void> status() const override { return Ok(); }

 private:
  std::vector<FakeLog::Entry> entries_;
  std::ptrdiff_t at_ = -1;
};

class FakeStreamLog final : public StreamLog {
 public:
  explicit FakeStreamLog(FakeLog& log) : log_(log) {}
  uint64_t applied_index() const override { return log_.applied_index; }
  uint64_t applied_ts() const override { return log_.applied_ts; }
  std::unique_ptr<LogCursor> Read() override { return std::make_unique<FakeCursor>(log_.entries); }

 private:
  FakeLog& log_;
};

struct Fixture {
  ScratchDir dir;
  SystemClock clock;
  std::unique_ptr<Storage> storage;
  FakeLog log;
  Fixture() {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = dir.path() + "/data";
    o.cache_bytes = 32 << 20;
    o.clock = &clock;
    storage = std::move(Storage::Open(std::move(o)).value());
  }
  Result<std::unique_ptr<ChangeStream>> Open(std::optional<StreamPosition> after) {
    Operation op(clock);
    return ChangeStream::Open(*storage, std::make_unique<FakeStreamLog>(log), {}, after, op);
  }
  /// Reads to the end, where there is no event.
  Result<StreamPosition> ReadAll(ChangeStream& stream) {
    Operation op(clock);
    MAYFLY_TRY(const ChangeEvent* event, stream.Next(op));
    CHECK(event == nullptr);
    stream.Park();
    return stream.position();
  }
};

}  // namespace

TEST_CASE("Resume tokens are in the order of events, as text too, and come back as they went",
          "[replication][streams]") {
  const std::vector<StreamPosition> ordered = {
      {1, 0, StreamPosition::kEvent},
      {1, 0, StreamPosition::kEvent, 1},
      {1, 0, StreamPosition::kEvent, 2},
      {1, 0, StreamPosition::kEvent, 300},
      {1, 0, StreamPosition::kEvent, StreamPosition::kAllFragments},
      {1, 0, StreamPosition::kInvalidate},
      {1, 1, StreamPosition::kEvent},
      {1, 300, StreamPosition::kEvent},
      StreamPosition::After(1),
      {2, 0, StreamPosition::kEvent},
      {uint64_t{4'000'000'000} << 32 | 7, 0, StreamPosition::kEvent},
      StreamPosition::After(UINT64_MAX),
  };
  for (size_t i = 0; i < ordered.size(); ++i) {
    auto back = StreamPosition::FromToken(ordered[i].ToToken());
    REQUIRE(back);
    CHECK(back.value() == ordered[i]);
    if (i == 0) continue;
    CHECK(ordered[i - 1] < ordered[i]);
    CHECK(ordered[i - 1].ToToken() < ordered[i].ToToken());
  }
  CHECK(ordered[0].ToToken() == "0100000000000000010000000000");
  // Small letters are the same token.
  CHECK(StreamPosition::FromToken("01ffffffffffffffffffffffff02").value() ==
        StreamPosition::After(UINT64_MAX));
}

TEST_CASE("What is no resume token is refused", "[replication][streams]") {
  for (const char* token :
       {"", "0", "01", "zz00000000000000010000000000", "0200000000000000010000000000",
        "0100000000000000010000000003", "010000000000000001000000000000",
        "8265A5B5F5000000012B022C0100296E5A1004", "01000000000000000100000000000000"}) {
    CAPTURE(token);
    auto r = StreamPosition::FromToken(token);
    REQUIRE_FALSE(r);
    CHECK(r.error().code == ErrorCode::kInvalidResumeToken);
  }
}

TEST_CASE("updateDescription says a diff in paths", "[replication][streams]") {
  CHECK(
      Describe(
          R"({"d":{"x":false},"u":{"a":1},"i":{"b":{"c":2}},"sn":{"d":{"y":false},"u":{"z":3}}})",
          false) ==
      Text(
          R"({"updatedFields":{"a":1,"b":{"c":2},"n.z":3},"removedFields":["x","n.y"],"truncatedArrays":[]})"));
  CHECK(
      Describe(R"({"sl":{"a":true,"l":2,"u0":5,"s1":{"u":{"q":1}}}})", false) ==
      Text(
          R"({"updatedFields":{"l.0":5,"l.1.q":1},"removedFields":[],"truncatedArrays":[{"field":"l","newSize":2}]})"));
  // A field that is called "a" in a document is no array.
  CHECK(Describe(R"({"sn":{"u":{"a":true}}})", false) ==
        Text(R"({"updatedFields":{"n.a":true},"removedFields":[],"truncatedArrays":[]})"));
  CHECK(
      Describe(R"({"u":{"home.town":1},"sl":{"a":true,"s0":{"u":{"1":2}}},"sd":{"d":{"7":false}}})",
               true) ==
      Text(
          R"({"updatedFields":{"home.town":1,"l.0.1":2},"removedFields":["d.7"],"truncatedArrays":[],)"
          R"("disambiguatedPaths":{"home.town":["home.town"],"l.0.1":["l",0,"1"],"d.7":["d","7"]}})"));
}

TEST_CASE("A filter goes by names", "[replication][streams]") {
  ChangeStreamSpec s;
  s.db = "app";
  s.collection = "a";
  const ChangeStreamFilter one(s);
  CHECK(one.Watches("app.a"));
  CHECK_FALSE(one.Watches("app.ab"));
  CHECK_FALSE(one.Watches("ap.a"));
  CHECK(one.WatchesDatabase("app"));
  CHECK_FALSE(one.WatchesDatabase("ap"));
  s.scope = ChangeStreamSpec::Scope::kDatabase;
  const ChangeStreamFilter db(s);
  CHECK(db.Watches("app.a"));
  CHECK(db.Watches("app.b.c"));
  CHECK_FALSE(db.Watches("app.system.views"));
  CHECK_FALSE(db.Watches("app2.a"));
  s.scope = ChangeStreamSpec::Scope::kCluster;
  const ChangeStreamFilter all(s);
  CHECK(all.Watches("app2.a"));
  for (const char* ns : {"admin.a", "local.a", "config.a", "app.system.js"})
    CHECK_FALSE(all.Watches(ns));
}

TEST_CASE("A place that the log does not reach is lost, one that it does is not",
          "[replication][streams]") {
  Fixture f;
  for (uint64_t i = 1; i <= 20; ++i) f.log.Add(i, 100 + 10 * i);
  // The whole log since the set began: any time will do.
  CHECK(f.Open(StreamPosition::After(5)));
  f.log.TrimBefore(8);  // its time is 180
  CHECK(f.Open(std::nullopt));
  CHECK(f.Open(StreamPosition{180, 0, StreamPosition::kEvent}));
  CHECK(f.Open(StreamPosition::After(179)));
  CHECK(f.Open(StreamPosition::After(1'000)));  // yet to come
  for (const StreamPosition lost :
       {StreamPosition::After(178), StreamPosition{179, 0, StreamPosition::kEvent},
        StreamPosition::After(5)}) {
    auto r = f.Open(lost);
    REQUIRE_FALSE(r);
    CHECK(r.error().code == ErrorCode::kChangeStreamHistoryLost);
  }
  // Right where we are, nothing is missing however little there is.
  f.log.TrimBefore(21);
  CHECK(f.Open(StreamPosition::After(300)));
}

TEST_CASE("A stream whose log is dropped under it says so instead of leaving events out",
          "[replication][streams]") {
  Fixture f;
  for (uint64_t i = 1; i <= 5; ++i) f.log.Add(i, 100 + i);
  auto stream = std::move(f.Open(StreamPosition::After(102)).value());
  CHECK(f.ReadAll(*stream).value() == StreamPosition::After(105));
  for (uint64_t i = 6; i <= 9; ++i) f.log.Add(i, 100 + i);
  f.log.TrimBefore(6);  // nothing that it still needs
  CHECK(f.ReadAll(*stream).value() == StreamPosition::After(109));
  for (uint64_t i = 10; i <= 12; ++i) f.log.Add(i, 100 + i);
  f.log.TrimBefore(11);
  auto r = f.ReadAll(*stream);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kChangeStreamHistoryLost);
}

}  // namespace mayfly

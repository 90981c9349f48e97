#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "protocol/large_memory.h"
#include "replication/oplog.h"
#include "storage/write/session_row.h"
#include "tests/unit/patience.h"
#include "tests/unit/replication/member_fixture.h"

namespace mayfly {

using namespace testing;

TEST_CASE("What the log says makes another member the same, in memory and on disk",
          "[replication]") {
  Member a;
  a.Lead();
  Workload(a);
  const size_t batch = GENERATE(1u, 3u, 1000u);
  Member b;
  Follow(a, b, batch);
  CHECK(Memory(*a.storage) == Memory(*b.storage));
  a.storage->impl().catalog->WaitForGarbage();
  b.storage->impl().catalog->WaitForGarbage();
  const auto want = Contents(*a.storage), got = Contents(*b.storage);
  for (const auto& [key, value] : want) {
    CAPTURE(key);
    if (!got.contains(key) || got.at(key) != value) FAIL_CHECK("missing or another value");
  }
  CHECK(want.size() == got.size());
  // What a start reads is what was in memory.
  const std::string before = Memory(*b.storage);
  b.Close();
  b.Open();
  CHECK(Memory(*b.storage) == before);
  for (const CollectionInfoPtr& c : b.catalog().ListAll()) {
    std::string bytes;
    BsonBuilder reply(bytes);
    REQUIRE(b.storage->Validate(*b.op, c, true, reply));
    reply.Done();
    CHECK(BsonView(bytes)["valid"].Bool());
  }
}

TEST_CASE("A point in time has the clock of its newest record, whenever it is asked for",
          "[replication]") {
  Member m;
  m.Lead();
  const CollectionInfoPtr c = m.Make("c");
  REQUIRE(m.Insert(c, {Json(R"({"_id": 1})")}));
  const test::Deadline deadline;
  while (m.set->last_applied().ts != m.set->committer().last_ts() && deadline.Holds())
    std::this_thread::yield();
  const auto point = m.set->TakeReadPoint().value();
  CHECK(point->ts() == m.set->last_applied().ts);
  CHECK(point->now().millis == m.set->last_applied().wall_millis);
  m.clock.Advance(60'000);
  const auto again = m.set->TakeReadPoint().value();
  CHECK(again->ts() == point->ts());
  CHECK(again->now() == point->now());
  // The time goes on with the log.
  m.op = std::make_unique<Operation>(m.clock);
  REQUIRE(m.Insert(c, {Json(R"({"_id": 2})")}));
  CHECK(m.set->TakeReadPoint().value()->now().millis >= point->now().millis + 60'000);
}

TEST_CASE("What is written into the log is what every member reads that has said so",
          "[replication]") {
  const auto of = [](std::initializer_list<std::pair<bool, const char*>> list) {
    std::vector<MemberStatus> members;
    for (const auto& [self, payload] : list) {
      MemberStatus& m = members.emplace_back();
      m.self = self;
      if (payload != nullptr) m.payload = std::string(Json(payload).bytes());
    }
    return ReplicaSet::ReadBy(members);
  };
  constexpr const char* kSilent = nullptr;
  CHECK(of({}) == kLogEntryLatest);
  CHECK(of({{true, R"({"log": 1})"}, {false, kSilent}}) == kLogEntryLatest);
  CHECK(of({{false, R"({"log": 7})"}, {false, R"({"log": 6})"}}) == kLogEntryEndMoves);
  CHECK(of({{false, R"({"log": 9})"}}) == kLogEntryLatest);
  // From before there were transactions: one such entry would stop it.
  CHECK(of({{false, R"({"log": 7})"}, {false, R"({"state": 2})"}}) < kLogEntryWithTransaction);
}

TEST_CASE("What is each member's own is in no log and has ids apart", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr own = a.catalog().GetOrCreate(*a.op, "local", "mine").value();
  CHECK(own->unreplicated);
  CHECK(own->id >= kFirstLocalId);
  REQUIRE(a.Insert(own, {Json(R"({"_id":1})")}));
  REQUIRE(a.catalog().PutLocalSetting(*a.op, "local/x", "1"));
  REQUIRE(a.Insert(a.Make("c"), {Json(R"({"_id":1})")}));
  Member b;
  Follow(a, b, 1);
  CHECK(b.catalog().Find("local", "mine") == nullptr);
  CHECK(b.catalog().GetSetting("local/x").value() == std::nullopt);
  REQUIRE(b.Coll("c"));
  CHECK(b.Coll("c")->id == a.Coll("c")->id);
  auto renamed = a.catalog().Rename(*a.op, *own, "db", "mine", false);
  REQUIRE_FALSE(renamed);
  CHECK(renamed.error().code == ErrorCode::kIllegalOperation);
}

TEST_CASE("An entry has the version of what is in it: documents as they were need 2",
          "[replication]") {
  Member a;
  a.Lead();
  CollectionInfo with;
  with.db = "db";
  with.name = "with";
  with.options = Json(R"({"changeStreamPreAndPostImages":{"enabled":true}})");
  with.pre_images = true;
  REQUIRE(a.catalog().Create(*a.op, with));
  const BsonDocument next = Json(R"({"_id":1,"a":2})");
  for (const char* name : {"without", "with"}) {
    REQUIRE(a.Insert(a.Make(name), {Json(R"({"_id":1})")}));
    REQUIRE(a.Change(a.Coll(name), R"({"_id":1})", &next));
    REQUIRE(a.Change(a.Coll(name), R"({"_id":1})", nullptr));
  }
  int plain = 0, images = 0;
  auto cursor = a.set->consensus().ReadLog();
  for (cursor->Seek(0); cursor->Valid(); cursor->Next()) {
    const CommittedEntry e = cursor->entry();
    if (e.kind != CommittedEntry::Kind::kData) continue;
    REQUIRE(ReadLogEntryHeader(e.data));
    std::string_view rest = e.data.substr(kLogEntryHeader);
    LogUnit u;
    bool before = false;
    while (ReadLogUnit(&rest, &u).value())
      for (const LogRecord& r : u.records) before |= !r.before.empty();
    CHECK(e.data[0] == (before ? 2 : 1));
    ++(before ? images : plain);
  }
  REQUIRE(cursor->status());
  CHECK(images == 2);
  CHECK(plain > 4);
}

TEST_CASE("A large unit is chunks and an end, and of chunks without an end nothing is left",
          "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  const std::string text(5'000'000, 'x');
  auto large = [&](int id) {
    return BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("text", text); });
  };
  const uint64_t before = a.set->consensus().Status().last.index;
  REQUIRE(a.Insert(c, {large(1), Json(R"({"_id":2})")}));
  int chunks = 0, ends = 0;
  LogPosition first;
  std::string chunk;
  auto cursor = a.set->consensus().ReadLog();
  for (cursor->Seek(before + 1); cursor->Valid(); cursor->Next()) {
    const CommittedEntry e = cursor->entry();
    if (IsLogChunk(e.data) && chunks++ == 0) {
      first = e.position;
      chunk = e.data;
    }
    if (!IsLogEnd(e.data)) continue;
    ++ends;
    const LogChunks of = ReadLogEnd(e.data).value();
    CHECK(of.indexes.front() == first.index);
    CHECK(of.indexes.size() == static_cast<size_t>(chunks));
    CHECK(of.bytes > text.size());
    std::vector<BsonDocument> shown;
    REQUIRE(ForEachOplogDocument(JoinFromLog(e.data, *a.set->consensus().ReadLog()).value(), 1,
                                 [&](uint64_t, BsonDocument d) { shown.push_back(std::move(d)); }));
    REQUIRE(shown.size() == 2);
    CHECK(shown[1].view()["o"].Document()["_id"].Int32() == 2);
  }
  CHECK(chunks > 4);
  CHECK(ends == 1);
  CHECK(Storage::DocumentCount(*c) == 2);
  CHECK(a.set->KeepLogFrom() == UINT64_MAX);
  REQUIRE(a.Change(c, R"({"_id":1})", nullptr));

  // What a leader left behind that died before the end: kept while its term lasts, also by a
  // member that starts meanwhile; then it means nothing.
  OpenUnits open, again;
  KvStore& kv = a.storage->kv();
  REQUIRE(open.Load(kv));
  auto apply = [&](LogPosition at, std::string_view data) {
    CommittedEntry e;
    e.position = at;
    e.data = data;
    if (data.empty()) e.kind = CommittedEntry::Kind::kNoop;
    auto batch = kv.NewBatch();
    open.Prepare({&e, 1}, *batch);
    REQUIRE(kv.Write(*batch, false));
    open.Applied();
  };
  std::string other;
  // One that its leader has given up is forgotten within the term, once or never heard of.
  EncodeLogChunk({1, 1}, 0, 0, "x", other);
  apply({3, 97}, other);
  CHECK(open.first_index() == 97);
  EncodeLogChunk({1, 1}, 0, kLogChunkGivenUp, {}, other);
  apply({3, 98}, other);
  CHECK(open.first_index() == UINT64_MAX);
  apply({3, 99}, other);
  CHECK(open.first_index() == UINT64_MAX);
  EncodeLogChunk({1, 1}, 0, 0, "x", other);
  apply({3, 100}, other);
  apply({3, 101}, chunk);
  apply({3, 102}, other);
  CHECK(open.first_index() == 100);
  REQUIRE(again.Load(kv));
  CHECK(again.first_index() == 100);
  EncodeLogEnd({1, 1}, 1, {2, {100, 102}}, false, other);
  apply({3, 103}, other);
  CHECK(open.first_index() == 101);
  apply({4, 104}, {});
  CHECK(open.first_index() == UINT64_MAX);
  REQUIRE(again.Load(kv));
  CHECK(again.first_index() == UINT64_MAX);
}

TEST_CASE("A session's row gets its place in the log on every member, also by a large unit",
          "[replication]") {
  Member a, b;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  const BsonDocument lsid = Json(R"({"id": 1})");
  const std::string plain = SessionRowKey(std::string(16, 'a')),
                    large = SessionRowKey(std::string(16, 'b')),
                    other = SessionRowKey(std::string(16, 'c'));
  auto row = [&](const std::string& key) {
    PinnedValue v;
    REQUIRE(a.storage->kv().Get(Keyspace::kCatalog, key, &v).value());
    const SessionRow r = DecodeSessionRow(v.view()).value();
    CHECK(r.entries == "entries");
    return r;
  };
  auto write = [&](const std::string& key, int id, size_t bytes, bool placed, bool session) {
    WriteUnit u(*a.storage, *a.op);
    const std::string text(bytes, 'x');
    // The unit keeps views of them.
    const BsonDocument first =
        BuildBson([&](BsonBuilder& d) { d.Append("_id", id).Append("t", text); });
    const BsonDocument second = BuildBson([&](BsonBuilder& d) { d.Append("_id", id + 1); });
    REQUIRE(u.Insert(*c, first).has_value());
    REQUIRE(u.Insert(*c, second).has_value());
    u.Put(Keyspace::kCatalog, key,
          EncodeSessionRow({.number = 1, .last_write = 5, .entries = "entries"}, placed));
    if (session) u.SetLogSession(lsid, 1);
    REQUIRE(a.storage->committer().Commit(std::move(u)).has_value());
    return a.op->commit_ts;
  };
  // The term of the entry that ends at `ts`.
  auto term_of = [&](uint64_t ts) {
    auto log = a.set->consensus().ReadLog();
    uint64_t first = 0, last = 0;
    for (log->SeekToLast(); log->Valid(); log->Prev())
      if (TimesOfEntry(log->entry(), &first, &last) && last == ts)
        return log->entry().position.term;
    return uint64_t{0};
  };
  uint64_t ts = write(plain, 1, 10, true, true);
  CHECK(ts != 0);
  CHECK(row(plain).ts == ts);  // of the last of its records
  CHECK(term_of(ts) != 0);
  CHECK(row(plain).term == term_of(ts));
  CHECK(row(plain).last_write > 5);
  ts = write(large, 3, 3'000'000, true, true);
  CHECK(row(large).ts == ts);
  CHECK(row(large).term == term_of(ts));
  CHECK(row(large).last_write > 5);
  // As an earlier version writes it, and what is of no session.
  write(plain, 5, 10, false, true);
  CHECK(row(plain).ts == 0);
  CHECK(row(plain).last_write == 5);
  write(other, 7, 10, true, false);
  CHECK(row(other).ts == 0);
  Follow(a, b, 2);
  CHECK(Contents(*a.storage) == Contents(*b.storage));
}

TEST_CASE("A large transaction for which there is no memory is refused, and leaves nothing",
          "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  const std::string text(6'000'000, 'x');
  auto large = [&](int id) {
    return BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("text", text); });
  };
  auto commit = [&] {
    Txn t(a);
    for (int id = 1; id <= 3; ++id) REQUIRE(t.unit.Insert(*c, large(id)).has_value());
    return t.Commit(a);
  };
  const int64_t limit = large_memory::Limit(), used = large_memory::Used();
  const uint64_t before = a.set->consensus().Status().last.index;
  // Its bytes have room, what is made of them has not.
  large_memory::SetLimit(used + 30'000'000);
  Result<void> refused = commit();
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(large_memory::Used() == used);
  // Nothing of it is in the log; the engine may have written an entry of its own meanwhile.
  const auto log = a.set->consensus().ReadLog();
  for (log->Seek(before + 1); log->Valid(); log->Next()) CHECK(log->entry().data.size() < 1000);
  CHECK(Storage::DocumentCount(*c) == 0);
  // Its locks are free.
  REQUIRE(a.Insert(c, {Json(R"({"_id":1})")}));
  REQUIRE(a.Change(c, R"({"_id":1})", nullptr));
  large_memory::SetLimit(used + 100'000'000);
  REQUIRE(commit().has_value());
  large_memory::SetLimit(limit);
  CHECK(Storage::DocumentCount(*c) == 3);
  // Given back behind the answer.
  while (large_memory::Used() != used) std::this_thread::yield();
}

TEST_CASE("What a member makes of another's large unit is counted until it is applied",
          "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  constexpr int kDocuments = 30'000;
  std::vector<BsonDocument> docs;
  for (int i = 0; i < kDocuments; ++i)
    docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("_id", i).Append("x", int64_t{i}); }));
  REQUIRE(a.Insert(c, docs));
  auto cursor = a.set->consensus().ReadLog();
  cursor->SeekToLast();
  while (cursor->Valid() && !IsLogEnd(cursor->entry().data)) cursor->Prev();
  REQUIRE(cursor->Valid());
  const std::string data(cursor->entry().data);
  CommittedEntry end = cursor->entry();
  end.data = data;
  const auto joined =
      static_cast<int64_t>(JoinFromLog(data, *a.set->consensus().ReadLog()).value().size());
  // As if it were another's: no context says what it was made of.
  const int64_t used = large_memory::Used();
  auto batch = a.set->BatchFor(end);
  REQUIRE(batch != nullptr);
  a.set->Prepare({&end, 1}, *batch);
  const auto lists = static_cast<int64_t>(kDocuments * (sizeof(LogEffect) + sizeof(LogRecord)));
  CHECK(large_memory::Used() - used > 2 * joined + lists);
  CHECK(large_memory::Used() - used < 3 * joined + 3 * lists);
  REQUIRE(a.storage->kv().Write(*batch, false));
  a.set->Applied({&end, 1});
  CHECK(large_memory::Used() == used);
}

TEST_CASE("A large unit of a leader that stops leading is refused, and leaves nothing",
          "[replication]") {
  const bool goes_on = GENERATE(true, false);
  CAPTURE(goes_on);
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  const uint64_t term = a.set->consensus().Status().last.term;
  const std::string text(5'000'000, 'x');
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 4; ++i)
    docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("_id", i).Append("text", text); }));
  WriteUnit u(*a.storage, *a.op);
  for (const BsonDocument& d : docs) REQUIRE(u.Insert(*c, d));
  std::promise<Result<void>> ended;
  const uint64_t before = a.set->consensus().Status().last.index;
  a.storage->committer().Submit(std::move(u), {}, [&](Result<void> r) { ended.set_value(r); });
  while (a.set->consensus().Status().last.index < before + 3) std::this_thread::yield();
  a.set->committer().SetWritable(false);
  const Result<void> r = ended.get_future().get();
  if (!r) {
    CHECK(r.error().code == ErrorCode::kNotWritablePrimary);
    CHECK(Storage::DocumentCount(*c) == 0);
    CHECK(a.set->KeepLogFrom() < UINT64_MAX);
  }
  if (goes_on) {
    a.set->committer().SetWritable(true, term);
    // Its locks are free, and the next one is not disturbed by what the first one left.
    if (!r) REQUIRE(a.Insert(c, docs));
    CHECK(Storage::DocumentCount(*c) == 4);
    // The same term goes on, and the log says that the first one does not.
    const test::Deadline deadline;
    while (a.set->KeepLogFrom() < UINT64_MAX && deadline.Holds()) std::this_thread::yield();
    CHECK(a.set->KeepLogFrom() == UINT64_MAX);
    CHECK(a.set->consensus().Status().last.term == term);
  }
  // The next term forgets it.
  a.Close();
  a.Open();
  a.Lead();
  REQUIRE(a.Insert(a.Coll("c"), {Json(R"({"_id":"last"})")}));
  CHECK(a.set->KeepLogFrom() == UINT64_MAX);
  CHECK(Storage::DocumentCount(*a.Coll("c")) == (goes_on || r ? 5 : 1));
}

TEST_CASE("A member that does not lead refuses units and leaves nothing behind", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  a.set->committer().SetWritable(false);
  auto refused = a.Insert(c, {Json(R"({"_id":1})")});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kNotWritablePrimary);
  a.set->committer().SetWritable(true);
  REQUIRE(a.Insert(c, {Json(R"({"_id":1})")}));
  CHECK(Storage::DocumentCount(*c) == 1);
}

TEST_CASE("A transaction of an earlier time as primary is not committed in a later one",
          "[replication]") {
  Member a;
  a.Lead();
  const CollectionInfoPtr c = a.Make("c");
  const BsonDocument doc = Json(R"({"_id":1})");
  Txn before(a);
  REQUIRE(before.unit.Insert(*c, doc));
  a.set->committer().SetWritable(false);
  a.set->committer().SetWritable(true);
  const Result<void> r = before.Commit(a);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kNotWritablePrimary);
  // Its lock is free, and it was not written.
  Txn now(a);
  REQUIRE(now.unit.Insert(*c, doc));
  REQUIRE(now.Commit(a));
  CHECK(Storage::DocumentCount(*c) == 1);
}

TEST_CASE("Units that come while the engine is busy become one entry", "[replication]") {
  constexpr int kUnits = 50;
  Member a;
  a.Lead();
  const CollectionInfoPtr c = a.Make("c");
  std::promise<void> busy, go_on, refused, all;
  std::atomic<int> left{kUnits};
  std::atomic<bool> good{true};
  Proposal p;
  p.seal = [&](std::string*) {
    busy.set_value();
    go_on.get_future().wait();
    return false;  // so nothing of it is written
  };
  p.done = [&](Result<LogPosition> r) {
    good = good && !r && r.error().code == ErrorCode::kNotWritablePrimary;
    refused.set_value();
  };
  a.set->consensus().Propose(std::move(p));
  busy.get_future().wait();
  const ReplicatedCommitter::Totals before = a.set->committer().totals();
  for (int i = 0; i < kUnits; ++i) {
    WriteUnit u(*a.storage, *a.op);
    u.OwnDocuments();
    REQUIRE(u.Insert(*c, Json("{\"_id\": " + std::to_string(i) + "}")));
    a.storage->committer().Submit(std::move(u), {}, [&](Result<void> r) {
      if (!r) good = false;
      if (--left == 0) all.set_value();
    });
  }
  CHECK(left == kUnits);
  go_on.set_value();
  all.get_future().wait();
  refused.get_future().wait();
  CHECK(good);
  CHECK(Storage::DocumentCount(*c) == kUnits);
  const ReplicatedCommitter::Totals after = a.set->committer().totals();
  CHECK(after.units - before.units == kUnits);
  CHECK(after.entries - before.entries == 1);
}

TEST_CASE("Units that gather are refused when this member ceases to lead", "[replication]") {
  Member a;
  a.Lead();
  const CollectionInfoPtr c = a.Make("c");
  std::promise<void> busy, go_on, answered;
  std::optional<Error> why;
  Proposal p;
  p.seal = [&](std::string*) {
    busy.set_value();
    go_on.get_future().wait();
    return false;
  };
  p.done = [](const Result<LogPosition>&) {};
  a.set->consensus().Propose(std::move(p));
  busy.get_future().wait();
  const BsonDocument doc = Json(R"({"_id":1})");
  WriteUnit u(*a.storage, *a.op);
  REQUIRE(u.Insert(*c, doc));
  a.storage->committer().Submit(std::move(u), {}, [&](Result<void> r) {
    if (!r) why = r.error();
    answered.set_value();
  });
  // What it was made from may have changed in between.
  a.set->committer().SetWritable(false);
  a.set->committer().SetWritable(true);
  go_on.set_value();
  answered.get_future().wait();
  REQUIRE(why);
  CHECK(why->code == ErrorCode::kNotWritablePrimary);
  CHECK(Storage::DocumentCount(*c) == 0);
  // Its lock is free.
  CHECK(a.Insert(c, {doc}));
}

TEST_CASE("Names and ids of what transactions make", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfo plain;
  plain.db = "db";
  plain.name = "x";
  auto code = [](const auto& r) { return r ? ErrorCode::kOk : r.error().code; };
  std::optional<Txn> first(std::in_place, a);
  const uint32_t id = CreateInTransaction(*a.storage, first->unit, first->op, plain).value()->id;
  // Another one that makes it fails at once; one that comes when the first is gone does not.
  {
    Txn second(a);
    CHECK(code(CreateInTransaction(*a.storage, second.unit, second.op, plain)) ==
          ErrorCode::kWriteConflict);
  }
  first.reset();
  CHECK(a.Coll("x") == nullptr);
  {
    Txn third(a);
    CHECK(CreateInTransaction(*a.storage, third.unit, third.op, plain).value()->id > id);
    // Whoever does not wait for it is first.
    REQUIRE(a.Make("x"));
    CHECK(code(third.Commit(a)) == ErrorCode::kWriteConflict);
  }
  // A start gives no id again, though nothing has the last ones.
  a.Close();
  a.Open();
  a.Lead();
  CHECK(a.Make("y")->id > id + 1);
}

TEST_CASE("Everything is there after the process was started again", "[replication]") {
  Member a;
  a.Lead();
  CollectionInfoPtr c = a.Make("c");
  for (int i = 0; i < 50; ++i)
    REQUIRE(a.Insert(c, {BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })}));
  const OpTime before = a.set->last_applied();
  a.Close();
  a.Open();
  a.Lead();
  CHECK(Storage::DocumentCount(*a.Coll("c")) == 50);
  CHECK(a.set->last_applied().ts >= before.ts);
  // A clock that was set back does not take the timestamps with it.
  a.clock.Set(Instant{1'000'000'000'000});
  REQUIRE(a.Insert(a.Coll("c"), {Json(R"({"_id":"later"})")}));
  CHECK(a.set->last_applied().ts > before.ts);
}

}  // namespace mayfly

#include "replication/log_archive.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <source_location>

#include "replication/archive_command.h"
#include "replication/log_archiver.h"
#include "security/at_rest.h"
#include "tests/unit/patience.h"
#include "tests/unit/replication/member_fixture.h"

namespace mayfly {

using namespace testing;
namespace fs = std::filesystem;

namespace {

const std::string kSet = "twelve bytes";

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// An entry that changes nothing, of one tick.
std::string Note(uint64_t ts) {
  std::string entry;
  BeginLogEntry(1, ts, entry);
  (void)EncodeNoopUnit(Json(R"({"msg":"x"})"), entry);
  SetUnitTime(entry.data() + kLogEntryHeader, ts, static_cast<int64_t>(ts >> 32) * 1000);
  return entry;
}

/// Writes entries [first, last] of term 3; returns the path.
std::string MakeSegment(const std::string& folder, uint64_t first, uint64_t last,
                        const FileCiphers* ciphers = nullptr,
                        SegmentFollows follows = SegmentFollows::kPrevious) {
  SegmentHeader h{.set_id = kSet,
                  .node = 7,
                  .first = first,
                  .previous = {3, first - 1},
                  .follows = follows,
                  .created_millis = 5};
  const std::string path = folder + "/" + SegmentName({kSet, first, last});
  auto w = SegmentWriter::Create(path, h, ciphers).value();
  for (uint64_t i = first; i <= last; ++i) {
    const std::string note = Note(i << 32 | 1);
    REQUIRE(w->Add({.position = {3, i}, .data = note}));
  }
  REQUIRE(w->Finish());
  return path;
}

/// The first error of reading all of it; empty: it is whole.
std::string ReadAll(const std::string& path, const std::vector<FileCiphersPtr>& ciphers = {}) {
  auto r = SegmentReader::Open(path, ciphers);
  if (!r) return r.error().message;
  std::vector<CommittedEntry> entries;
  std::string bytes;
  for (;;) {
    auto more = r.value()->NextBlock(&entries, &bytes);
    if (!more) return more.error().message;
    if (!more.value()) return {};
  }
}

/// A member whose log is archived, and what it was like at the start.
struct Archived {
  Member m;
  ScratchDir at;
  LogArchiveLimits limits;
  std::shared_ptr<std::atomic<uint64_t>> keep_from = std::make_shared<std::atomic<uint64_t>>();
  std::unique_ptr<LogArchiver> archiver;
  std::vector<std::string> command;
  FileCiphersPtr ciphers;
  std::mutex mutex;
  std::condition_variable looked;
  std::atomic<bool> throws{false};  ///< the next round, once
  std::string folder = at.path() + "/archive", base = at.path() + "/base";

  explicit Archived(int64_t segment_mb = 1) {
    limits.segment_mb = segment_mb;
    limits.segment_secs = 3600;
    m.Lead();
  }
  ~Archived() { archiver.reset(); }
  std::string Set() { return m.set->consensus().Status().configuration.set_id; }
  void TakeBase() { REQUIRE(m.storage->kv().Checkpoint(base)); }
  void Start() {
    LogArchiverOptions o;
    o.folder = folder;
    o.command = command;
    o.ciphers = ciphers;
    o.clock = &m.clock;
    o.kv = &m.storage->kv();
    o.consensus = &m.set->consensus();
    o.limits = &limits;
    o.log_max_bytes = [this] {
      if (throws.exchange(false)) throw std::bad_alloc();
      return uint64_t{1} << 30;
    };
    o.keep_from = keep_from;
    o.looked = [this] {
      std::lock_guard l(mutex);
      looked.notify_all();
    };
    archiver = std::make_unique<LogArchiver>(std::move(o));
    archiver->Start();
  }
  void Await(const std::function<bool()>& holds,
             std::source_location waits = std::source_location::current()) {
    const test::Deadline deadline(std::chrono::minutes(1), waits);
    std::unique_lock l(mutex);
    const bool held = looked.wait_until(l, deadline.at, holds);
    if (!held) UNSCOPED_INFO(deadline.InVain());
    CAPTURE(archiver->Status().error);
    REQUIRE(held);
  }
  /// Until everything that is applied is archived, in segments that end early.
  void Finish() {
    limits.segment_secs = 0;
    const uint64_t wanted = m.set->consensus().Status().applied.index;
    Await([&] { return archiver->Status().archived.index >= wanted; });
    limits.segment_secs = 3600;
  }
  /// Replays on a copy of the base.
  Result<ReplayProgress> Restore(std::optional<uint64_t> until, Member& into) {
    into.Close();
    fs::remove_all(into.dir.path() + "/data");
    fs::copy(base, into.dir.path() + "/data", fs::copy_options::recursive);
    into.Open();
    ReplayRequest r{.archive = {folder, {}}, .until = until, .progress = {}};
    if (ciphers) r.archive.ciphers = {ciphers};
    return ReplayArchive(*into.storage, r);
  }
};

void CheckSame(const std::map<std::string, std::string>& want, Storage& s) {
  s.impl().catalog->WaitForGarbage();
  const auto got = Contents(s);
  for (const auto& [key, value] : want) {
    CAPTURE(key);
    if (!got.contains(key) || got.at(key) != value) FAIL_CHECK("missing or another value");
  }
  CHECK(want.size() == got.size());
}

}  // namespace

TEST_CASE("A segment is what was written, and damage anywhere in it is found", "[archive]") {
  ScratchDir dir;
  FileCiphersPtr ciphers;
  if (GENERATE(false, true)) {
    Put(dir.path() + "/key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
    fs::permissions(dir.path() + "/key", fs::perms::owner_read);
    const MasterKey key = MasterKey::Read("key", dir.path() + "/key").value();
    REQUIRE(MakeKeystore(dir.path(), key));
    ciphers = OpenKeystoreFile(dir.path() + "/" + std::string(kKeystoreFile), key).value();
  }
  const std::string path = MakeSegment(dir.path(), 11, 40, ciphers.get());
  std::vector<FileCiphersPtr> keys;
  if (ciphers) keys.push_back(ciphers);
  auto r = SegmentReader::Open(path, keys).value();
  CHECK(r->header().set_id == kSet);
  CHECK(r->header().previous == LogPosition{3, 10});
  CHECK(r->trailer().last == 40);
  CHECK(r->trailer().first_ts == (uint64_t{11} << 32 | 1));
  CHECK(r->trailer().last_ts == (uint64_t{40} << 32 | 1));
  CHECK(r->trailer().last_wall == 40'000);
  std::vector<CommittedEntry> entries;
  std::string bytes;
  REQUIRE(r->NextBlock(&entries, &bytes).value());
  REQUIRE(entries.size() == 30);
  CHECK(entries[4].position == LogPosition{3, 15});
  CHECK(entries[4].data == Note(uint64_t{15} << 32 | 1));
  CHECK_FALSE(r->NextBlock(&entries, &bytes).value());
  if (ciphers) {
    auto none = SegmentReader::Open(path, {});
    REQUIRE_FALSE(none);
    CHECK(none.error().code == ErrorCode::kInvalidOptions);
  }
  const std::string whole = Bytes(path);
  // What stands in the prefix behind the wrapped key is not looked at.
  const size_t from = ciphers ? FileCiphers::kPrefixBytes : 0;
  for (size_t i = from; i < whole.size(); i += i < from + 200 || i + 200 > whole.size() ? 1 : 17) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    Put(path, damaged);
    const std::string why = ReadAll(path, keys);
    if (why.find(path) == std::string::npos) FAIL_CHECK("byte " << i << ": '" << why << "'");
  }
  for (size_t size = 0; size < whole.size(); size += 13) {
    Put(path, whole.substr(0, size));
    if (ReadAll(path, keys).empty()) FAIL_CHECK("cut at " << size);
  }
  Put(path, whole + "x");
  CHECK_FALSE(ReadAll(path, keys).empty());
  Put(path, whole);
  CHECK(ReadAll(path, keys).empty());
  // Under another name it is not what the name says.
  const std::string other = dir.path() + "/" + SegmentName({kSet, 11, 41});
  fs::rename(path, other);
  CHECK(ReadAll(other, keys).find("its name") != std::string::npos);
  // Nor is it of another set; a name of an earlier version says none.
  const std::string foreign = dir.path() + "/" + SegmentName({"twelve other", 11, 40});
  fs::rename(other, foreign);
  CHECK(ReadAll(foreign, keys).find("its name") != std::string::npos);
  const std::string early = dir.path() + "/00000000000000000011-00000000000000000040.segment";
  CHECK(early == dir.path() + "/" + SegmentName({{}, 11, 40}));
  fs::rename(foreign, early);
  CHECK(ReadAll(early, keys).empty());
}

TEST_CASE("What an archive lacks or has twice is said with the files' names", "[archive]") {
  ScratchDir dir;
  auto faults = [&] { return VerifyArchive({dir.path(), {}}, {}).value().faults; };
  MakeSegment(dir.path(), 1, 10, nullptr, SegmentFollows::kNothing);
  const std::string second = MakeSegment(dir.path(), 11, 20);
  const std::string third = MakeSegment(dir.path(), 21, 30);
  CHECK(faults().empty());
  CHECK(VerifyArchive({dir.path(), {}}, {}).value().entries == 30);
  fs::rename(second, second + ".away");
  REQUIRE(faults().size() == 1);
  CHECK(faults()[0].find("entries 11 to 20") != std::string::npos);
  CHECK(faults()[0].find(third) != std::string::npos);
  fs::remove(third);
  MakeSegment(dir.path(), 21, 30, nullptr, SegmentFollows::kGap);
  CHECK(faults()[0].find("trimmed before they could be archived") != std::string::npos);
  MakeSegment(dir.path(), 11, 25);
  REQUIRE(faults().size() == 1);
  CHECK(faults()[0].find("overlap") != std::string::npos);
  auto stopped = VerifyArchive({dir.path(), {}}, [](uint64_t) -> Result<void> {
    return Error{ErrorCode::kInterrupted, "stop"};
  });
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().code == ErrorCode::kInterrupted);
}

TEST_CASE("A command is split into words, and run without a shell for a bounded time",
          "[archive]") {
  CHECK(SplitCommandLine(R"(rclone copy '{}' "a b" c\ d $HOME ;)").value() ==
        std::vector<std::string>{"rclone", "copy", "{}", "a b", "c d", "$HOME", ";"});
  CHECK_FALSE(SplitCommandLine("a 'b"));
  CHECK_FALSE(SplitCommandLine("  "));
  ScratchDir dir;
  const std::string file = dir.path() + "/a file; touch x";
  Put(file, "text");
  const auto never = [] { return false; };
  REQUIRE(RunArchiveCommand({"cp", "{}", dir.path() + "/copy"}, file, 30, never));
  CHECK(Bytes(dir.path() + "/copy") == "text");
  REQUIRE(RunArchiveCommand({"test", "-s"}, file, 30, never));
  auto failed = RunArchiveCommand({"sh", "-c", "echo wrong >&2; exit 3"}, file, 30, never);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().message.find("status 3; it wrote: wrong") != std::string::npos);
  CHECK_FALSE(RunArchiveCommand({"no-such-program-here"}, file, 30, never));
  auto late = RunArchiveCommand({"sh", "-c", "sleep 600 & sleep 600"}, file, 1, never);
  REQUIRE_FALSE(late);
  CHECK(late.error().message.find("within 1 seconds") != std::string::npos);
  // One that writes as fast as it is read would never have been looked at again.
  auto loud = RunArchiveCommand({"sh", "-c", "yes & yes & yes"}, file, 1, never);
  REQUIRE_FALSE(loud);
  CHECK(loud.error().message.find("within 1 seconds") != std::string::npos);
  auto ended = RunArchiveCommand({"sleep", "600", "#"}, file, 600, [] { return true; });
  REQUIRE_FALSE(ended);
}

TEST_CASE("A backup with the archive of the log behind it is the member at each time",
          "[archive]") {
  Archived a;
  a.Start();
  REQUIRE(a.m.Insert(a.m.Make("before"), {Json(R"({"_id":1})")}));
  a.TakeBase();
  struct Moment {
    uint64_t ts;
    std::map<std::string, std::string> contents;
  };
  std::vector<Moment> moments;
  auto moment = [&] {
    a.m.storage->impl().catalog->WaitForGarbage();
    moments.push_back({a.m.set->applied_ts(), Contents(*a.m.storage)});
  };
  moment();
  CollectionInfoPtr c = a.m.Make("counted");
  for (int i = 0; i < 12; ++i) {
    // Some in one unit, of several ticks; some large, in chunks.
    const std::string text(i % 4 == 3 ? 3'000'000 : 10, 'x');
    std::vector<BsonDocument> docs;
    for (int k = 0; k <= i % 3; ++k)
      docs.push_back(
          BuildBson([&](BsonBuilder& b) { b.Append("_id", i * 10 + k).Append("text", text); }));
    REQUIRE(a.m.Insert(c, docs));
    if (i % 4 == 0) {
      moment();
      a.Finish();
    }
    moment();
  }
  Workload(a.m);
  moment();
  a.Finish();
  CHECK(*a.keep_from == a.archiver->Status().archived.index + 1);
  const auto list = ListArchive({a.folder, {}}).value();
  CHECK(list.size() > 5);
  CHECK(VerifyArchive({a.folder, {}}, {}).value().faults.empty());
  Member b;
  for (const Moment& at : moments) {
    const auto done = a.Restore(at.ts, b);
    REQUIRE(done);
    CHECK(done.value().ts == at.ts);
    CheckSame(at.contents, *b.storage);
  }
  auto all = a.Restore({}, b);
  REQUIRE(all);
  CheckSame(moments.back().contents, *b.storage);
  CHECK(Memory(*a.m.storage) == Memory(*b.storage));
  CHECK(all.value().operations > 500);
  // Inside of a unit of three records: it is left out whole.
  const auto third = a.Restore(moments[4].ts - 1, b);
  REQUIRE(third);
  CHECK(third.value().ts < moments[4].ts - 1);
  // A set of its own is what remains once its log is forgotten.
  REQUIRE(ForgetSet(b.storage->kv()));
  const std::string before = Memory(*b.storage);
  b.Close();
  b.Open();
  CHECK(Memory(*b.storage) == before);
  b.Lead();
  REQUIRE(b.Insert(b.Make("counted"), {Json(R"({"_id":"new"})")}));
}

TEST_CASE("A replay refuses what it cannot do before it has done anything", "[archive]") {
  Archived a;
  a.Start();
  CollectionInfoPtr c = a.m.Make("c");
  REQUIRE(a.m.Insert(c, {Json(R"({"_id":0})")}));
  a.TakeBase();
  const uint64_t base_ts = a.m.set->applied_ts();
  for (int i = 1; i < 6; ++i) {
    REQUIRE(a.m.Insert(c, {BuildBson([&](BsonBuilder& b) { b.Append("_id", i); })}));
    a.Finish();
  }
  const uint64_t end = a.m.set->applied_ts();
  a.archiver.reset();
  Member b;
  auto refused = [&](std::optional<uint64_t> until) {
    auto r = a.Restore(until, b);
    REQUIRE_FALSE(r);
    CHECK(b.storage->catalog().Find("db", "c")->counters->documents == 1);
    return r.error().message;
  };
  CHECK(refused(base_ts - 1).find("earlier backup") != std::string::npos);
  CHECK(refused(end + 1).find("ends at") != std::string::npos);
  const auto list = ListArchive({a.folder, {}}).value();
  REQUIRE(list.size() >= 5);
  const std::string middle = list[list.size() - 2].path, last = list.back().path;
  const std::string whole = Bytes(middle);
  fs::remove(middle);
  CHECK(refused(end).find("lacks") != std::string::npos);
  // As far as the archive goes, it can be used.
  REQUIRE(a.Restore(list[list.size() - 3].trailer.last_ts, b));
  Put(middle, whole.substr(0, whole.size() - 1));
  CHECK(refused(end).find(middle) != std::string::npos);
  Put(middle, whole);
  REQUIRE(a.Restore(end, b));
  // A block that is damaged is found when its turn comes: nothing of it is applied.
  std::string damaged = whole;
  damaged[120] = static_cast<char>(damaged[120] ^ 1);
  Put(middle, damaged);
  auto found = a.Restore(end, b);
  REQUIRE_FALSE(found);
  CHECK(found.error().message.find(middle) != std::string::npos);
  Put(middle, whole);
  Archived other;
  other.Start();
  other.Finish();
  fs::copy(
      other.folder + "/" + SegmentName({other.Set(), 1, other.archiver->Status().archived.index}),
      a.folder + "/" + SegmentName({a.Set(), 1, 99999}));
  CHECK_FALSE(a.Restore(end, b));
}

TEST_CASE("The archives of two sets are in one folder, and each backup takes its own",
          "[archive]") {
  // As when a set is restored, and begun again with the same options: its log has the same indexes.
  const bool early = GENERATE(false, true);
  Archived a, b;
  for (Archived* x : {&a, &b}) {
    x->TakeBase();
    CollectionInfoPtr c = x->m.Make("c");
    REQUIRE(x->m.Insert(c, {Json(x == &a ? R"({"_id":"a"})" : R"({"_id":"b"})")}));
    if (x == &b) x->folder = a.folder;
    x->Start();
    x->Finish();
    x->archiver.reset();
    REQUIRE_FALSE(ListArchive({x->folder, {}}, x->Set()).value().empty());
    // Of an earlier version, under names that do not say the set.
    if (!early || x == &b) continue;
    const auto segments = ListArchive({x->folder, {}});
    for (const ArchivedSegment& s : segments.value())
      fs::rename(s.path, x->folder + "/" + SegmentName({{}, s.header.first, s.trailer.last}));
  }
  CHECK(VerifyArchive({a.folder, {}}, {}).value().faults.empty());
  for (Archived* x : {&a, &b}) {
    Member into;
    auto done = x->Restore({}, into);
    if (!done) FAIL_CHECK(done.error().message);
    REQUIRE(into.Coll("c"));
    CHECK(into.Coll("c")->counters->documents == 1);
  }
  // A folder that has only others' is the wrong one.
  const auto of_a = ListArchive({a.folder, {}}, a.Set());
  for (const ArchivedSegment& s : of_a.value()) fs::remove(s.path);
  Member into;
  auto none = a.Restore({}, into);
  REQUIRE_FALSE(none);
  CHECK(none.error().message.find("another set") != std::string::npos);
}

TEST_CASE("A unit may have its chunks in the backup and its end in the archive", "[archive]") {
  Archived a;
  a.TakeBase();
  CollectionInfoPtr c = a.m.Make("c");
  const std::string text(8'000'000, 'x');
  REQUIRE(
      a.m.Insert(c, {BuildBson([&](BsonBuilder& b) { b.Append("_id", 1).Append("t", text); })}));
  std::vector<uint64_t> chunks;
  std::vector<std::pair<CommittedEntry, std::string>> entries;
  auto cursor = a.m.set->consensus().ReadLog();
  for (cursor->Seek(0); cursor->Valid(); cursor->Next()) {
    entries.emplace_back(cursor->entry(), cursor->entry().data);
    if (IsLogChunk(entries.back().second)) chunks.push_back(entries.back().first.position.index);
  }
  REQUIRE(chunks.size() > 2);
  REQUIRE(entries.front().first.position.index == 1);
  const uint64_t cut = chunks[1], last = entries.back().first.position.index;
  fs::create_directories(a.folder);
  auto put = [&](uint64_t first, uint64_t end) {
    SegmentHeader h{.set_id = a.m.set->consensus().Status().configuration.set_id,
                    .node = 1,
                    .first = first,
                    .previous = {},
                    .follows = SegmentFollows::kNothing};
    if (first > 1) {
      h.previous = entries[first - 2].first.position;
      h.follows = SegmentFollows::kPrevious;
    }
    // Under a name of an earlier version.
    auto w =
        SegmentWriter::Create(a.folder + "/" + SegmentName({{}, first, end}), h, nullptr).value();
    for (uint64_t i = first; i <= end; ++i) {
      CommittedEntry e = entries[i - 1].first;
      e.data = entries[i - 1].second;
      REQUIRE(w->Add(e));
    }
    REQUIRE(w->Finish());
  };
  put(1, cut);
  Member b;
  REQUIRE(a.Restore({}, b));
  REQUIRE(b.Coll("c"));
  CHECK(b.Coll("c")->counters->documents == 0);
  put(cut + 1, last);
  // On what the first replay has left, as on a backup of that moment.
  REQUIRE(ReplayArchive(*b.storage, {.archive = {a.folder, {}}, .until = {}, .progress = {}}));
  CheckSame(Contents(*a.m.storage), *b.storage);
  CHECK(b.Coll("c")->counters->documents == 1);
}

TEST_CASE("An archiver that starts again goes on without gap or overlap", "[archive]") {
  Archived a;
  ScratchDir far;
  // The command takes the file away, and fails at times.
  if (GENERATE(false, true))
    a.command = {"sh", "-c",
                 "test ! -e '" + far.path() + "/full' && mv \"$1\" '" + far.path() + "/'", "mv"};
  const std::string where = a.command.empty() ? a.folder : far.path();
  CollectionInfoPtr c = a.m.Make("c");
  a.TakeBase();
  int id = 0;
  for (int round = 0; round < 6; ++round) {
    a.Start();
    for (int i = 0; i < 20; ++i, ++id)
      REQUIRE(a.m.Insert(c, {BuildBson([&](BsonBuilder& b) { b.Append("_id", id); })}));
    if (round % 2 == 0) a.Finish();
    if (round == 3 && !a.command.empty()) {
      Put(far.path() + "/full", "");
      a.limits.segment_secs = 0;
      a.Await([&] { return a.archiver->Status().failures > 0; });
      CHECK(a.archiver->Status().state == LogArchiveStatus::State::kFailing);
      fs::remove(far.path() + "/full");
    }
    a.archiver.reset();
    // As if the process had died before the row was written: what is there is found again.
    if (round == 2 && a.command.empty()) {
      auto row = ReadArchived(a.m.storage->kv()).value().value();
      const auto list = ListArchive({a.folder, {}}).value();
      row.cut = row.position.index;
      row.position = list.back().header.previous;
      auto batch = a.m.storage->kv().NewBatch();
      StageArchived(*batch, row);
      REQUIRE(a.m.storage->kv().Write(*batch, true));
    }
  }
  a.Start();
  a.Finish();
  const ArchiveSummary all = VerifyArchive({where, {}}, {}).value();
  CHECK(all.faults.empty());
  CHECK(all.entries == a.m.set->consensus().Status().applied.index);
  for (size_t i = 1; i < all.segments.size(); ++i)
    CHECK(all.segments[i].header.follows == SegmentFollows::kPrevious);
  a.folder = where;
  Member b;
  REQUIRE(a.Restore({}, b));
  CheckSame(Contents(*a.m.storage), *b.storage);
}

TEST_CASE("A member that is stopped leaves nothing out of its archive", "[archive]") {
  Archived a;
  a.limits.segment_secs = 86'400;
  CollectionInfoPtr c = a.m.Make("c");
  a.TakeBase();
  a.Start();
  a.Await([&] { return a.archiver->Status().state == LogArchiveStatus::State::kRunning; });
  REQUIRE(a.m.Insert(c, {Json(R"({"_id":1})")}));
  a.archiver.reset();
  Member b;
  REQUIRE(a.Restore({}, b));
  CheckSame(Contents(*a.m.storage), *b.storage);
  // The next one goes on behind it.
  a.Start();
  a.Await([&] { return a.archiver->Status().state == LogArchiveStatus::State::kRunning; });
  REQUIRE(a.m.Insert(c, {Json(R"({"_id":2})")}));
  a.archiver.reset();
  const ArchiveSummary all = VerifyArchive({a.folder, {}}, {}).value();
  CHECK(all.faults.empty());
  CHECK(all.segments.size() == 2);
  CHECK(all.entries == a.m.set->consensus().Status().applied.index);
}

TEST_CASE("An archiver that had no memory tries again", "[archive]") {
  // The exception ended the process.
  Archived a;
  a.throws = true;
  a.Start();
  a.Await([&] { return a.archiver->Status().failures == 1; });
  REQUIRE(a.m.Insert(a.m.Make("c"), {Json(R"({"_id":1})")}));
  a.Finish();
  a.Await([&] { return a.archiver->Status().error.empty(); });
}

TEST_CASE("The log waits for its archive, up to a bound", "[archive]") {
  Archived a;
  Put(a.at.path() + "/file", "");
  const std::string good = a.folder;
  a.TakeBase();
  a.Start();
  REQUIRE(a.m.Insert(a.m.Make("c"), {Json(R"({"_id":1})")}));
  a.Finish();
  a.archiver.reset();
  a.folder = a.at.path() + "/file/below";  // no folder can be made there
  a.limits.max_wait_hours = 1;
  a.Start();
  auto until = [&](LogArchiveStatus::State state) {
    a.Await([&] { return a.archiver->Status().state == state; });
  };
  REQUIRE(a.m.Insert(a.m.Make("c"), {Json(R"({"_id":2})")}));
  until(LogArchiveStatus::State::kFailing);
  CHECK(*a.keep_from != UINT64_MAX);
  CHECK(a.archiver->Status().waiting_entries > 0);
  a.m.clock.Advance(3'700'000);
  until(LogArchiveStatus::State::kGivenUp);
  CHECK(*a.keep_from == UINT64_MAX);
  a.limits.max_wait_hours = 0;
  until(LogArchiveStatus::State::kFailing);
  CHECK(*a.keep_from != UINT64_MAX);
  // What waited is archived where that is possible, with nothing missing.
  a.archiver.reset();
  a.folder = good;
  a.Start();
  a.Finish();
  CHECK(a.archiver->Status().gaps == 0);
  CHECK(VerifyArchive({good, {}}, {}).value().faults.empty());
}

}  // namespace mayfly

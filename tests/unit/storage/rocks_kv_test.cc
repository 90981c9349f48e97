#include "storage/kv/rocks_kv.h"

#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "../patience.h"
#include "../test_ciphers.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/memory_kv.h"
#include "storage/kv/read_once.h"
#include "storage/kv/rocks_checksum.h"
#include "storage/kv/rocks_fault_env.h"
#include "storage/kv/write_room.h"
#include "storage_fixture.h"

#if defined(__x86_64__)
namespace rocksdb::crc32c {
uint32_t Extend(uint32_t crc, const char* data, size_t n);
}
#endif

namespace mayfly {
using testing::ScratchDir;
using testing::TestStore;
namespace fs = std::filesystem;

namespace {

std::unique_ptr<KvStore> MustOpen(const std::string& path,
                                  const KvEnginePtr& engine = MakeRocksEngine()) {
  KvOptions o;
  o.path = path;
  o.cache_bytes = 16 << 20;
  auto kv = engine->Open(o);
  if (!kv) FAIL(kv.error().message);
  return std::move(kv.value());
}
Error MustFail(const std::string& path, const KvEnginePtr& engine = MakeRocksEngine()) {
  KvOptions o;
  o.path = path;
  o.cache_bytes = 16 << 20;
  auto kv = engine->Open(o);
  REQUIRE(!kv);
  return kv.error();
}
void PutOne(KvStore& kv, std::string_view key, std::string_view value,
            Keyspace ks = Keyspace::kRecords) {
  auto b = kv.NewBatch();
  b->Put(ks, key, value);
  REQUIRE(kv.Write(*b, false));
}
std::string GetOne(KvStore& kv, std::string_view key, const KvSnapshot* at = nullptr,
                   Keyspace ks = Keyspace::kRecords) {
  PinnedValue v;
  auto found = kv.Get(ks, key, &v, at);
  REQUIRE(found);
  return found.value() ? std::string(v.view()) : "-";
}
/// The files of a kind, oldest first.
std::vector<std::string> FilesEndingWith(const std::string& dir, std::string_view end) {
  std::vector<std::string> out;
  for (auto& e : fs::directory_iterator(dir))
    if (e.path().string().ends_with(end)) out.push_back(e.path().string());
  std::sort(out.begin(), out.end());
  return out;
}
void FlipByte(const std::string& file, uint64_t offset) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(static_cast<std::streamoff>(offset));
  char c = static_cast<char>(f.get() ^ 0x55);
  f.seekp(static_cast<std::streamoff>(offset));
  f.put(c);
  REQUIRE(f.good());
}
void ZeroBytes(const std::string& file, uint64_t offset, size_t n) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(static_cast<std::streamoff>(offset));
  f << std::string(n, '\0');
  REQUIRE(f.good());
}

}  // namespace

TEST_CASE("The store keeps keyspaces apart and snapshots fixed", "[kv]") {
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  PutOne(*kv, "a", "1");
  PutOne(*kv, "a", "index", Keyspace::kIndexes);
  KvSnapshotPtr before = kv->Snapshot();
  PutOne(*kv, "a", "2");
  PutOne(*kv, "empty", "");
  CHECK(GetOne(*kv, "a") == "2");
  CHECK(GetOne(*kv, "a", before.get()) == "1");
  CHECK(GetOne(*kv, "a", nullptr, Keyspace::kIndexes) == "index");
  CHECK(GetOne(*kv, "b") == "-");
  PinnedValue v;
  CHECK(kv->Get(Keyspace::kRecords, "empty", &v).value());
  CHECK(v.view().data() != nullptr);

  std::vector<std::string_view> keys = {"a", "b", "empty"};
  std::vector<PinnedValue> values(3);
  REQUIRE(kv->MultiGet(Keyspace::kRecords, keys, values));
  CHECK(values[0].view() == "2");
  CHECK(values[1].view().data() == nullptr);
  CHECK(values[2].view().data() != nullptr);
  REQUIRE(kv->MultiGet(Keyspace::kRecords, keys, values, before.get()));
  CHECK(values[0].view() == "1");
}

TEST_CASE("A pinned value moves with its bytes", "[kv]") {
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  bool flushed = GENERATE(false, true);  // copied out of a memtable, or pinned in the cache
  PutOne(*kv, "k", "short");
  PutOne(*kv, "l", std::string(1000, 'x'));
  if (flushed) REQUIRE(kv->Flush());
  PinnedValue a, b;
  REQUIRE(kv->Get(Keyspace::kRecords, "k", &a).value());
  b = std::move(a);
  CHECK(b.view() == "short");
  CHECK(a.view().empty());
  PinnedValue c(std::move(b));
  CHECK(c.view() == "short");
  REQUIRE(kv->Get(Keyspace::kRecords, "l", &c).value());
  PinnedValue d(std::move(c));
  CHECK(d.view() == std::string(1000, 'x'));
  d.Assign("own");
  CHECK(d.view() == "own");
}

TEST_CASE("Iterators respect bounds both ways", "[kv]") {
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  for (const char* k : {"a", "b", "c", "d"}) PutOne(*kv, k, k);
  KvIterOptions o;
  o.lower = "b";
  o.upper = "d";
  auto it = kv->NewIterator(Keyspace::kRecords, o);
  std::string seen;
  for (it->SeekToFirst(); it->Valid(); it->Next()) seen += it->key();
  for (it->SeekToLast(); it->Valid(); it->Prev()) seen += it->value();
  CHECK(seen == "bccb");
  it->SeekForPrev("z");
  CHECK(it->key() == "c");
  CHECK(it->status());

  auto b = kv->NewBatch();
  b->DeleteRange(Keyspace::kRecords, "b", "d");
  CHECK(b->Count() == 1);
  REQUIRE(kv->Write(*b, false));
  CHECK(GetOne(*kv, "b") == "-");
  CHECK(GetOne(*kv, "d") == "d");
}

TEST_CASE("Large batches in order of key come out as they went in", "[kv]") {
  // They are put in with a hint for each index, among what is there already and small batches
  // without one.
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  std::map<std::string, std::string> expected;
  std::mt19937 random(7);
  auto batch = kv->NewBatch();
  for (int round = 0; round < 40; ++round) {
    const int n = round % 4 == 3 ? 20 : 2000;
    std::map<std::string, std::string> changes;  // empty: a deletion
    for (int i = 0; i < n; ++i) {
      std::string key = {0, 0, 0, static_cast<char>(random() % 5)};
      key += std::to_string(random() % 20000);
      if (random() % 50 == 0) key.resize(random() % 5);
      changes[key + "k"] = random() % 3 == 0 ? "" : std::to_string(round);
    }
    batch->Clear();
    for (const auto& [key, value] : changes) {
      if (value.empty()) {
        batch->Delete(Keyspace::kIndexes, key);
        expected.erase(key);
      } else {
        batch->Put(Keyspace::kIndexes, key, value);
        expected[key] = value;
      }
    }
    REQUIRE(kv->Write(*batch, false));
    if (round == 25) REQUIRE(kv->Flush());
  }
  auto it = kv->NewIterator(Keyspace::kIndexes, {});
  it->SeekToFirst();
  for (const auto& [key, value] : expected) {
    REQUIRE(it->Valid());
    REQUIRE(it->key() == key);
    REQUIRE(it->value() == value);
    it->Next();
  }
  CHECK_FALSE(it->Valid());
}

TEST_CASE("Single writes that come in order, and others among them, come out as they went in",
          "[kv]") {
  // Where keys come in order each is put in from where the one before it went.
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  std::map<std::string, std::string> expected;
  std::mt19937 random(11);
  auto batch = kv->NewBatch();
  auto key = [](int stream, uint32_t n) {
    std::string k = {0, 0, 0, static_cast<char>(stream)};
    for (int shift = 24; shift >= 0; shift -= 8) k.push_back(static_cast<char>(n >> shift));
    return k;
  };
  std::string counted;
  for (uint32_t i = 0; i < 20'000; ++i) {
    batch->Clear();
    // Three streams that grow; once in a while somebody writes among what is there.
    const int stream = static_cast<int>(i % 3);
    const std::string k =
        random() % 20 == 0 ? key(stream, random() % (i + 1)) : key(stream, i / 3 * 3);
    if (i % 400 == 399) {
      // RocksDB keeps these in a list of their own.
      const std::string begin = key(stream, i - i / 4), end = key(stream, i - i / 5);
      batch->DeleteRange(Keyspace::kIndexes, begin, end);
      expected.erase(expected.lower_bound(begin), expected.lower_bound(end));
    } else if (random() % 8 == 0) {
      batch->Delete(Keyspace::kIndexes, k);
      expected.erase(k);
    } else {
      batch->Put(Keyspace::kIndexes, k, std::to_string(i));
      expected[k] = std::to_string(i);
    }
    counted = std::to_string(i);
    batch->Put(Keyspace::kCatalog, "counters/" + std::to_string(stream), counted);
    REQUIRE(kv->Write(*batch, false));
    if (i % 1000 == 0) {
      PinnedValue v;
      REQUIRE(kv->Get(Keyspace::kCatalog, "counters/" + std::to_string(stream), &v).value());
      REQUIRE(v.view() == counted);
    }
    if (i == 9000) REQUIRE(kv->Flush());
  }
  if (GENERATE(false, true)) {
    kv.reset();
    kv = MustOpen(dir.path());  // reads all of it out of the log
  }
  auto it = kv->NewIterator(Keyspace::kIndexes, {});
  it->SeekToFirst();
  for (const auto& [k, value] : expected) {
    REQUIRE(it->Valid());
    REQUIRE(it->key() == k);
    REQUIRE(it->value() == value);
    it->Next();
  }
  CHECK_FALSE(it->Valid());
}

TEST_CASE("A second process on the directory is refused", "[kv]") {
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  Error e = MustFail(dir.path());
  CHECK(e.code == ErrorCode::kLockBusy);
  CHECK_THAT(e.message,
             Catch::Contains("another process is using the data directory " + dir.path()));
}

TEST_CASE("A directory that cannot be used is refused by name", "[kv]") {
  ScratchDir dir;
  std::ofstream(dir.path() + "/file") << "x";
  CHECK_THAT(MustFail(dir.path() + "/file").message, Catch::Contains(dir.path() + "/file"));
  CHECK_THAT(MustFail(dir.path() + "/file/sub").message,
             Catch::Contains("cannot create the data directory"));
  if (geteuid() != 0) {
    fs::create_directory(dir.path() + "/readonly");
    fs::permissions(dir.path() + "/readonly", fs::perms::owner_read | fs::perms::owner_exec);
    CHECK_THAT(MustFail(dir.path() + "/readonly").message, Catch::Contains("cannot be written"));
  }
}

TEST_CASE("Another format version is refused", "[kv]") {
  TestStore s;
  s.Close();
  { PutOne(*MustOpen(s.dir.path()), kFormatKey, "99", Keyspace::kCatalog); }
  auto opened = Storage::Open(s.Options());
  REQUIRE(!opened);
  CHECK(opened.error().code == ErrorCode::kUnsupportedFormat);
  CHECK_THAT(opened.error().message, Catch::Contains("format version 99"));
}

TEST_CASE("Damaged files are refused by name", "[kv]") {
  const bool encrypted = GENERATE(false, true);
  const KvEnginePtr engine =
      MakeRocksEngine(nullptr, encrypted ? testing::MakeCiphers() : FileCiphersPtr());
  ScratchDir dir;
  {
    auto kv = MustOpen(dir.path(), engine);
    PutOne(*kv, "k", std::string(5000, 'x'));
    REQUIRE(kv->Flush());
  }
  std::string file;
  SECTION("a table file that is gone") {
    file = FilesEndingWith(dir.path(), ".sst").at(0);
    fs::remove(file);
  }
  SECTION("a table file that was cut") {
    file = FilesEndingWith(dir.path(), ".sst").at(0);
    fs::resize_file(file, fs::file_size(file) / 2);
  }
  SECTION("the manifest") {
    for (auto& e : fs::directory_iterator(dir.path()))
      if (e.path().filename().string().starts_with("MANIFEST")) file = e.path().string();
    const uint64_t prefix = encrypted ? FileCiphers::kPrefixBytes : 0;
    FlipByte(file, prefix + (fs::file_size(file) - prefix) / 2);
    file = "MANIFEST";
  }
  Error e = MustFail(dir.path(), engine);
  CHECK_THAT(e.message, Catch::Contains(fs::path(file).filename().string()));
}

TEST_CASE("A damaged block is reported with its file when it is read", "[kv]") {
  ScratchDir dir;
  {
    auto kv = MustOpen(dir.path());
    for (int i = 0; i < 50; ++i)
      PutOne(*kv, "k" + std::to_string(i), std::string(5000, static_cast<char>('a' + i % 26)));
    REQUIRE(kv->Flush());
  }
  std::string file = FilesEndingWith(dir.path(), ".sst").at(0);
  FlipByte(file, 100);
  auto kv = MustOpen(dir.path());
  auto it = kv->NewIterator(Keyspace::kRecords, {});
  it->SeekToFirst();
  CHECK_FALSE(it->Valid());
  REQUIRE(!it->status());
  CHECK_THAT(it->status().error().message, Catch::Contains(fs::path(file).filename().string()));
}

TEST_CASE("A log that ends where the power went is cut there; damage inside is refused", "[kv]") {
  const bool encrypted = GENERATE(false, true);
  const KvEnginePtr engine =
      MakeRocksEngine(nullptr, encrypted ? testing::MakeCiphers() : FileCiphersPtr());
  ScratchDir dir;
  std::string log;
  constexpr int kRecords = 400;
  {
    auto kv = MustOpen(dir.path(), engine);
    for (int i = 0; i < kRecords; ++i) PutOne(*kv, "k" + std::to_string(i), std::string(1000, 'v'));
    // As the process leaves it when it dies: copied while the store is open.
    log = FilesEndingWith(dir.path(), ".log").back();
    fs::create_directory(dir.path() + "/copy");
    for (auto& e : fs::directory_iterator(dir.path())) {
      std::error_code deleted_meanwhile;
      if (e.is_regular_file(deleted_meanwhile))
        fs::copy(e.path(), dir.path() + "/copy/" + e.path().filename().string(), deleted_meanwhile);
    }
  }
  std::string copy = dir.path() + "/copy";
  log = copy + "/" + fs::path(log).filename().string();
  uint64_t size = fs::file_size(log);
  int expected = -1;  // records that must be there; -1: refused
  SECTION("whole") { expected = kRecords; }
  SECTION("cut inside the last record") {
    fs::resize_file(log, size - 10);
    expected = kRecords - 1;
  }
  SECTION("the last record is garbage") {
    FlipByte(log, size - 10);
    expected = kRecords - 1;
  }
  SECTION("pages that never arrived") {
    ZeroBytes(log, size / 2 / 4096 * 4096, 8192);
    expected = -2;  // some of the first half
  }
  SECTION("a byte changed in the middle") { FlipByte(log, size / 2); }
  SECTION("a byte changed near the start") { FlipByte(log, (encrypted ? 4096 : 0) + 200); }
  if (expected == -1) {
    Error e = MustFail(copy, engine);
    CHECK_THAT(e.message, Catch::Contains(log) && Catch::Contains("damaged in the middle"));
    return;
  }
  auto kv = MustOpen(copy, engine);
  int n = 0;
  while (n < kRecords && GetOne(*kv, "k" + std::to_string(n)) != "-") ++n;
  for (int i = n; i < kRecords; ++i) REQUIRE(GetOne(*kv, "k" + std::to_string(i)) == "-");
  if (expected >= 0)
    CHECK(n == expected);
  else
    CHECK((n > kRecords / 4 && n < kRecords * 3 / 4));
}

TEST_CASE("A store has room unless its flushes are behind", "[kv]") {
  ScratchDir dir;
  auto disk = FaultDisk::Make();
  KvOptions o;
  o.path = dir.path();
  auto opened = MakeRocksEngine(disk->env())->Open(o);
  REQUIRE(opened);
  std::unique_ptr<KvStore> kv = std::move(opened).value();
  CHECK(HasRoom(*kv));
  // A flush ends with a sync. With the second full memtable, one waits for it.
  disk->SlowSyncs(3000);
  const std::string large(9 << 20, 'x');
  int written = 0;
  while (HasRoom(*kv) && written < 20) PutOne(*kv, "k" + std::to_string(written++), large);
  CHECK(written > 1);
  CHECK(written < 20);
  PutOne(*kv, "small", "x");  // goes on
  disk->SlowSyncs(0);
  while (!HasRoom(*kv)) std::this_thread::yield();
  CHECK(GetOne(*kv, "small") == "x");
}

TEST_CASE("A store that does not say has room", "[kv]") {
  ScratchDir dir;
  KvOptions o;
  o.path = dir.path();
  auto kv = MakeMemoryEngine()->Open(o);
  REQUIRE(kv);
  CHECK(HasRoom(*kv.value()));
}

TEST_CASE("A directory with data and without CURRENT is not made a new store", "[kv]") {
  ScratchDir dir;
  KvOptions k;
  k.path = dir.path();
  k.cache_bytes = 16 << 20;
  {
    auto kv = std::move(OpenRocksKv(k).value());
    auto batch = kv->NewBatch();
    batch->Put(Keyspace::kRecords, "key", "", "value");
    REQUIRE(kv->Write(*batch, true));
    REQUIRE(kv->Flush());
  }
  std::filesystem::rename(dir.path() + "/CURRENT", dir.path() + "/aside");
  auto opened = OpenRocksKv(k);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message.find("CURRENT") != std::string::npos);
  std::filesystem::rename(dir.path() + "/aside", dir.path() + "/CURRENT");
  auto kv = std::move(OpenRocksKv(k).value());
  PinnedValue value;
  CHECK(kv->Get(Keyspace::kRecords, "key", &value).value());
}

TEST_CASE("A range delete does not stay in a memtable that others look up", "[kv]") {
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  for (Keyspace ks : {Keyspace::kRecords, Keyspace::kIndexes}) {
    for (const char* key : {"a", "b", "c", "d"}) PutOne(*kv, key, "1", ks);
    auto b = kv->NewBatch();
    b->DeleteRange(ks, "b", "d");
    REQUIRE(kv->Write(*b, false));
    const test::Deadline deadline;
    while (kv->Stats(ks).memtable_entries != 0 && deadline.Holds()) std::this_thread::yield();
    CHECK(kv->Stats(ks).memtable_entries == 0);
    PinnedValue v;
    CHECK(kv->Get(ks, "a", &v, nullptr).value());
    CHECK_FALSE(kv->Get(ks, "b", &v, nullptr).value());
    CHECK_FALSE(kv->Get(ks, "c", &v, nullptr).value());
    CHECK(kv->Get(ks, "d", &v, nullptr).value());
  }
}

#if defined(__x86_64__)
TEST_CASE("RocksDB's checksum is computed by the processor's instruction, with the same result",
          "[kv]") {
  using rocksdb::crc32c::Extend;
  // Its definition (RFC 3720, B.4): bit by bit.
  auto defined = [](uint32_t crc, std::string_view bytes) {
    uint32_t c = ~crc;
    for (unsigned char b : bytes) {
      c ^= b;
      for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82F63B78U : 0);
    }
    return ~c;
  };
  CHECK(Extend(0, "123456789", 9) == 0xE3069283U);
  CHECK(Extend(0, std::string(32, '\0').data(), 32) == 0x8A9136AAU);
  std::mt19937_64 random(5);
  std::string bytes;
  while (bytes.size() < 400) bytes.push_back(static_cast<char>(random()));
  for (size_t at = 0; at < 9; ++at)
    for (size_t n = 0; n < 300; n += 1 + n / 9) {
      const auto crc = static_cast<uint32_t>(random());
      const std::string_view part = std::string_view(bytes).substr(at, n);
      REQUIRE(Extend(crc, part.data(), n) == defined(crc, part));
      REQUIRE(Extend(Extend(crc, part.data(), n / 3), part.data() + n / 3, n - n / 3) ==
              Extend(crc, part.data(), n));
    }
  // RocksDB gets this one, not its own.
  CHECK(HasFastChecksum() == (__builtin_cpu_supports("sse4.2") != 0));
}
#endif

TEST_CASE("What is read once does not go into the cache", "[kv]") {
  ScratchDir dir;
  auto kv = MustOpen(dir.path());
  for (char c = 'a'; c <= 'z'; ++c) PutOne(*kv, std::string(1, c), std::string(4096, c));
  REQUIRE(kv->Flush());
  const auto read = [&] {
    const std::vector<std::string_view> keys{"c", "m", "x"};
    std::vector<PinnedValue> values(keys.size());
    REQUIRE(kv->MultiGet(Keyspace::kRecords, keys, values, nullptr));
    CHECK(values[1].view() == std::string(4096, 'm'));
  };
  const uint64_t before = kv->MemoryBytes();
  {
    const ReadOnce once;
    read();
  }
  CHECK(kv->MemoryBytes() < before + 4096);
  read();
  CHECK(kv->MemoryBytes() > before + 4096);
}

}  // namespace mayfly

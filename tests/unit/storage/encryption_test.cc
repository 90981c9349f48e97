// A store whose files are encrypted: what is on the disk, what a crash and a loss of power leave,
// files that are not whole, and other keys.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "../test_ciphers.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"
#include "storage/kv/store_file.h"
#include "storage_fixture.h"

namespace mayfly {
namespace fs = std::filesystem;
using testing::Json;
using testing::MakeCiphers;
using testing::ScratchDir;
using testing::TestCollection;
using testing::TestStore;

namespace {

constexpr uint64_t kPrefix = FileCiphers::kPrefixBytes;
constexpr std::string_view kCanary = "canary-7d1f90aa";

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Files below the directory that have the text in them.
std::set<std::string> FilesWith(const std::string& directory, std::string_view text) {
  std::set<std::string> out;
  for (const auto& f : fs::recursive_directory_iterator(directory))
    if (f.is_regular_file() && ReadFile(f.path()).find(text) != std::string::npos)
      out.insert(f.path().filename().string());
  return out;
}

std::unique_ptr<KvStore> OpenWith(const std::string& path, const KvEnginePtr& engine) {
  auto kv = engine->Open({.path = path, .cache_bytes = 16 << 20, .log = {}});
  if (!kv) FAIL(kv.error().message);
  return std::move(kv.value());
}
void PutRecord(KvStore& kv, const std::string& key, std::string_view value) {
  auto b = kv.NewBatch();
  b->Put(Keyspace::kRecords, key, value);
  REQUIRE(kv.Write(*b, false));
}
bool Has(KvStore& kv, const std::string& key) {
  PinnedValue v;
  auto found = kv.Get(Keyspace::kRecords, key, &v, nullptr);
  REQUIRE(found);
  return found.value();
}
/// A TestStore whose files are encrypted, on its disk that can fail.
struct EncryptedStore : TestStore {
  EncryptedStore() : TestStore(false) { Open(); }
  void Open() {
    StorageOptions o = Options();
    o.engine = MakeRocksEngine(disk->env(), ciphers);
    auto opened = Storage::Open(o);
    if (!opened) FAIL(opened.error().message);
    storage = std::move(opened.value());
    storage->impl().catalog->StopBackground();
    storage->impl().catalog.reset();
    op = std::make_unique<Operation>(clock);
  }
  void Crash(bool power_loss) {
    disk->CutPower();
    storage.reset();
    if (power_loss) REQUIRE(disk->DropUnsynced());
    disk->RestorePower();
    Open();
  }
  FileCiphersPtr ciphers = MakeCiphers();
};

std::string SecretDoc(int i) {
  return R"({"_id": )" + std::to_string(i) + R"(, "a": ")" + std::string(kCanary) +
         std::to_string(i) + "\"}";
}

}  // namespace

TEST_CASE("Nothing that is stored is in the files of an encrypted store", "[encryption]") {
  const bool encrypted = GENERATE(false, true);
  ScratchDir dir;
  const KvEnginePtr engine = MakeRocksEngine(nullptr, encrypted ? MakeCiphers() : FileCiphersPtr());
  auto kv = OpenWith(dir.path(), engine);
  for (int i = 0; i < 100; ++i) PutRecord(*kv, std::string(kCanary) + std::to_string(i), kCanary);
  REQUIRE(kv->Flush());
  PutRecord(*kv, std::string(kCanary) + "log", kCanary);
  REQUIRE(kv->SyncWal());
  std::set<std::string> seen = FilesWith(dir.path(), kCanary);
  REQUIRE(kv->Checkpoint(dir.path() + "/copy"));
  seen.merge(FilesWith(dir.path(), kCanary));
  if (!encrypted) {  // else this could not fail
    CHECK(std::any_of(seen.begin(), seen.end(), [](auto& f) { return f.ends_with(".sst"); }));
    CHECK(std::any_of(seen.begin(), seen.end(), [](auto& f) { return f.ends_with(".log"); }));
    CHECK(std::any_of(seen.begin(), seen.end(), [](auto& f) { return f.starts_with("MANIFEST"); }));
    return;
  }
  CHECK(seen.empty());
  std::set<std::string> beginnings;
  size_t files = 0;
  for (const auto& f : fs::directory_iterator(dir.path())) {
    const std::string name = f.path().filename().string();
    // LOCK is empty, LOG for humans; spare.tmp becomes a log, which begins with its key then.
    if (!f.is_regular_file() || name.starts_with("LO") || name == "spare.tmp") continue;
    const std::string text = ReadFile(f.path());
    CHECK(BeginsEncrypted(text));
    beginnings.insert(text.substr(0, 85));
    ++files;
  }
  CHECK(files >= 5);
  CHECK(beginnings.size() == files);
  auto copy = OpenWith(dir.path() + "/copy", engine);
  CHECK(Has(*copy, std::string(kCanary) + "log"));
}

TEST_CASE("An encrypted store has what was acknowledged after a crash", "[encryption]") {
  EncryptedStore s;
  TestCollection c;
  auto a = c.AddIndex(10, R"({"a": 1})");
  int n = 0;
  for (int round = 0; round < 5; ++round) {
    // Syncs open the log's file again, and so does the start that cuts its end.
    for (int i = 0; i < 20; ++i, ++n) REQUIRE(s.Insert(c, Json(SecretDoc(n)), {}, i % 7 == 0));
    if (round % 2 == 1) REQUIRE(s.storage->kv().Flush());
    for (int i = 0; i < 20; ++i, ++n) REQUIRE(s.Insert(c, Json(SecretDoc(n)), {}, i % 7 == 0));
    s.Crash(false);
    REQUIRE(s.Scan(c).size() == static_cast<size_t>(n));
    REQUIRE(s.ScanIndex(c, a).size() == static_cast<size_t>(n));
    REQUIRE(s.Counters(c).documents == n);
    REQUIRE(FilesWith(s.dir.path(), kCanary).empty());
  }
}

TEST_CASE("An encrypted store has what was journaled after a loss of power", "[encryption]") {
  EncryptedStore s;
  TestCollection c;
  size_t least = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 10; ++i) REQUIRE(s.Insert(c, Json(SecretDoc(round * 100 + i)), {}, i == 6));
    least += 7;
    s.Crash(true);
    const size_t n = s.Scan(c).size();
    REQUIRE(n >= least);
    least = n;
  }
}

TEST_CASE("A full disk under an encrypted store", "[encryption]") {
  EncryptedStore s;
  TestCollection c;
  for (int i = 0; i < 20; ++i) REQUIRE(s.Insert(c, SecretDoc(i)));
  s.disk->SetFreeBytes(50);
  auto refused = s.Insert(c, SecretDoc(20));
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::kOutOfDiskSpace);
  s.disk->SetFreeBytes({});
  Result<void> r = s.Insert(c, SecretDoc(30));
  while (!r) {  // the store notices soon
    REQUIRE(r.error().code == ErrorCode::kOutOfDiskSpace);
    std::this_thread::yield();
    r = s.Insert(c, SecretDoc(30));
  }
  s.Crash(false);
  CHECK(s.Scan(c).size() == 21);
}

TEST_CASE("A log that the process died before its prefix was whole is empty", "[encryption]") {
  ScratchDir dir;
  const KvEnginePtr engine = MakeRocksEngine(nullptr, MakeCiphers());
  {
    auto kv = OpenWith(dir.path(), engine);
    PutRecord(*kv, "k", "v");
  }
  std::string last;
  for (const auto& f : fs::directory_iterator(dir.path()))
    if (f.path().extension() == ".log") last = std::max(last, f.path().filename().string());
  REQUIRE(!last.empty());
  const std::string next = std::to_string(std::stoi(last) + 50);
  const std::string log = dir.path() + "/" + std::string(6 - next.size(), '0') + next + ".log";
  const size_t size = GENERATE(0, 1, 85, 4095, 4096, 9000);
  CAPTURE(size);
  std::ofstream(log, std::ios::binary) << std::string(size, '\0');
  {
    auto kv = OpenWith(dir.path(), engine);
    CHECK(Has(*kv, "k"));
    PutRecord(*kv, "after", "v");
    REQUIRE(kv->SyncWal());
  }
  CHECK(Has(*OpenWith(dir.path(), engine), "after"));
}

TEST_CASE("Other keys open nothing of an encrypted store, and change nothing", "[encryption]") {
  ScratchDir dir;
  const KvEnginePtr engine = MakeRocksEngine(nullptr, MakeCiphers());
  {
    auto kv = OpenWith(dir.path(), engine);
    PutRecord(*kv, "k", "v");
    REQUIRE(kv->Flush());
  }
  for (const KvEnginePtr& other : {MakeRocksEngine(nullptr, MakeCiphers()), MakeRocksEngine()}) {
    auto opened = other->Open({.path = dir.path(), .cache_bytes = 16 << 20, .log = {}});
    REQUIRE(!opened);
    CHECK_THAT(opened.error().message, Catch::Contains(dir.path()));
  }
  CHECK(engine->FileNamedByRoot(dir.path()).starts_with("MANIFEST-"));
  CHECK(Has(*OpenWith(dir.path(), engine), "k"));
}

TEST_CASE("Files of a store are read and written in its own bytes", "[encryption]") {
  const bool encrypted = GENERATE(false, true);
  const FileCiphersPtr ciphers = encrypted ? MakeCiphers() : FileCiphersPtr();
  ScratchDir dir;
  const std::string path = dir.path() + "/file";
  const std::string text = "0123456789" + std::string(kCanary) + std::string(5000, 'x');
  {
    StoreFile f = std::move(StoreFile::OpenToWrite(path, ciphers).value());
    CHECK(f.Size().value() == 0);
    REQUIRE(f.Write(0, text.substr(0, 17)));
    REQUIRE(f.Write(17, text.substr(17)));
    REQUIRE(f.Sync());
  }
  {
    StoreFile f = std::move(StoreFile::OpenToWrite(path, ciphers).value());  // keeps its key
    CHECK(f.Size().value() == text.size());
    REQUIRE(f.Truncate(4000));
    REQUIRE(f.Write(4000, text.substr(4000)));
  }
  StoreFile f = std::move(StoreFile::OpenToRead(path, ciphers).value());
  CHECK(f.Read(0, 9999).value() == text);
  CHECK(f.Read(13, 7).value() == text.substr(13, 7));
  CHECK(f.Read(text.size(), 7).value().empty());
  CHECK(f.Read(text.size() + 100, 7).value().empty());
  CHECK(FilesWith(dir.path(), kCanary).empty() == encrypted);
  CHECK(fs::file_size(path) == text.size() + (encrypted ? kPrefix : 0));
  if (encrypted) {
    CHECK_FALSE(StoreFile::OpenToRead(path, MakeCiphers()));
    fs::resize_file(path, 100);  // as a process leaves it that dies early
    CHECK(StoreFile::OpenToRead(path, ciphers).value().Size().value() == 0);
    StoreFile again = std::move(StoreFile::OpenToWrite(path, ciphers).value());
    REQUIRE(again.Write(0, text));
    CHECK(StoreFile::OpenToRead(path, ciphers).value().Read(0, 9999).value() == text);
  }
  CHECK(StoreFile::OpenToRead(dir.path() + "/none", ciphers).error().code ==
        ErrorCode::kFileNotOpen);
}

}  // namespace mayfly

#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "backup/copy.h"
#include "backup/folder.h"
#include "tests/unit/scratch_dir.h"

using namespace mayfly;
using mayfly::testing::ScratchDir;
namespace fs = std::filesystem;

namespace {

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Result<void> GoOn(uint64_t, uint64_t) { return Ok(); }

std::string no_sync_of;  ///< files and folders whose path ends so cannot be synced; empty: all can

/// A data directory with files as of a store, and a folder of backups beside it.
class World {
 public:
  World() {
    fs::create_directories(data());
    Write(data() + "/1.sst", std::string(300'000, 'a'));
    Write(data() + "/2.sst", std::string(100, 'b'));
    Write(data() + "/CURRENT", "MANIFEST-1\n");
  }
  std::string data() const { return dir_.path() + "/data"; }
  std::string path() const { return dir_.path() + "/backups"; }
  BackupFolder Open() const {
    auto f = BackupFolder::OpenOrMake(path(), data());
    REQUIRE(f);
    return std::move(f).value();
  }
  std::vector<SourceFile> Sources() const {
    std::vector<SourceFile> out;
    for (const auto& e : fs::directory_iterator(data())) {
      const std::string name = e.path().filename().string();
      out.push_back({e.path().string(), name, name.ends_with(".sst")});
    }
    return out;
  }
  Result<CopyCounts> Make(const std::string& id, bool incremental = true, CopyStep step = GoOn) {
    BackupFolder f = Open();
    BackupManifest m;
    m.id = id;
    m.server_version = "0";
    return CopyIntoBackup(f, Sources(), incremental, step, &m);
  }
  Result<void> Restore(const std::string& id, const std::string& to) {
    auto f = BackupFolder::Open(path(), BackupFolder::Use::kRead);
    if (!f) return f.error();
    MAYFLY_TRY(const BackupManifest m, f.value().Choose(id));
    fs::create_directories(to);
    MAYFLY_TRY(DiskFile d, DiskFile::Directory(to));
    return CopyOutOfBackup(f.value(), m, d, GoOn);
  }
  size_t Stored() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& e : fs::directory_iterator(path() + "/files")) ++n;
    return n;
  }
  std::string root() const { return dir_.path(); }

 private:
  ScratchDir dir_;
};

}  // namespace

/// In place of the C library's: a test may let it fail.
extern "C" int fsync(int fd) {
  if (!no_sync_of.empty()) {
    std::error_code ec;
    const auto path = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), ec).string();
    if (path.ends_with(no_sync_of)) {
      errno = EIO;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

TEST_CASE("What a folder has is not copied again, and comes back byte for byte", "[backup]") {
  World w;
  auto first = w.Make("b1");
  REQUIRE(first);
  CHECK(first.value().copied_files == 3);
  Write(w.data() + "/3.sst", "new");
  Write(w.data() + "/CURRENT", "MANIFEST-2\n");
  auto second = w.Make("b2");
  REQUIRE(second);
  CHECK(second.value().files == 4);
  CHECK(second.value().copied_files == 2);
  CHECK(second.value().copied_bytes == 14);
  CHECK(w.Stored() == 5);
  REQUIRE(w.Restore("b1", w.root() + "/r1"));
  REQUIRE(w.Restore("", w.root() + "/r2"));
  CHECK(ReadAll(w.root() + "/r1/CURRENT") == "MANIFEST-1\n");
  CHECK_FALSE(fs::exists(w.root() + "/r1/3.sst"));
  for (const char* n : {"1.sst", "2.sst", "3.sst", "CURRENT"})
    CHECK(ReadAll(w.root() + "/r2/" + n) == ReadAll(w.data() + "/" + n));
  BackupFolder f = w.Open();
  REQUIRE(f.Remove("b1"));
  auto removed = f.Collect();
  REQUIRE(removed);
  CHECK(removed.value().files == 1);
  CHECK(f.Ids().value() == std::vector<std::string>{"b2"});
  CHECK(fs::status(w.path()).permissions() == fs::perms::owner_all);
}

TEST_CASE("A file that differs only in its middle is another file", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  // The tag is of the ends alone, so such a file of a store would have to have the same name, and
  // the store never writes one twice. Read in full it is told apart.
  std::string bytes(300'000, 'a');
  bytes[150'000] = 'x';
  Write(w.data() + "/1.sst", bytes);
  auto full = w.Make("b2", false);
  REQUIRE(full);
  REQUIRE(w.Restore("b2", w.root() + "/r"));
  CHECK(ReadAll(w.root() + "/r/1.sst") == bytes);
}

TEST_CASE("A backup that is stopped leaves the folder as it was", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  const size_t before = w.Stored();
  Write(w.data() + "/3.sst", std::string(3 << 20, 'c'));
  for (int at = 1; at < 8; ++at) {
    int n = 0;
    auto stopped = w.Make("b2", true, [&](uint64_t, uint64_t) -> Result<void> {
      if (++n > at) return Error{ErrorCode::kInterrupted, "stopped"};
      return Ok();
    });
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().code == ErrorCode::kInterrupted);
    CHECK(w.Stored() == before);
    CHECK(w.Open().Ids().value() == std::vector<std::string>{"b1"});
  }
  REQUIRE(w.Make("b2"));
}

TEST_CASE("What a dead process left goes with the next backup", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  Write(w.path() + "/files/new.partial", "half");
  Write(w.path() + "/backups/b2.partial", "half");
  fs::create_directories(w.path() + "/verify.partial/x");
  CHECK(w.Open().Ids().value() == std::vector<std::string>{"b1"});
  REQUIRE(w.Make("b3"));
  CHECK_FALSE(fs::exists(w.path() + "/files/new.partial"));
  CHECK_FALSE(fs::exists(w.path() + "/backups/b2.partial"));
  CHECK_FALSE(fs::exists(w.path() + "/verify.partial"));
}

TEST_CASE("Damage is found and named", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  std::string victim;
  for (const auto& e : fs::directory_iterator(w.path() + "/files"))
    if (fs::file_size(e) == 300'000) victim = e.path().string();
  const std::string whole = ReadAll(victim);
  auto says = [&](const std::string& words) {
    auto r = w.Restore("b1", w.root() + "/r");
    fs::remove_all(w.root() + "/r");
    return !r && r.error().code == ErrorCode::kInternalError &&
           r.error().message.find("1.sst") != std::string::npos &&
           r.error().message.find(words) != std::string::npos;
  };
  std::string bytes = whole;
  bytes[200'000] ^= 1;
  Write(victim, bytes);
  CHECK(says("does not have its checksum"));
  Write(victim, whole.substr(1));
  CHECK(says("bytes instead of"));
  fs::remove(victim);
  CHECK(says("is missing"));
  // A file that is not whole is not taken for one that is there.
  REQUIRE(w.Make("b2"));
  REQUIRE(w.Restore("b1", w.root() + "/r"));
  fs::remove_all(w.root() + "/r");
  // One that was damaged in its place is written anew by a full backup.
  Write(victim, bytes);
  REQUIRE(w.Make("b3"));
  CHECK(says("does not have its checksum"));
  REQUIRE(w.Make("b4", false));
  CHECK(ReadAll(victim) == whole);
}

TEST_CASE("Several files are copied out at a time, and told of one after the other", "[backup]") {
  World w;
  for (int i = 10; i < 60; ++i)
    Write(w.data() + "/" + std::to_string(i) + ".sst",
          std::string(2'500'000 / (i % 7 + 1), 'a' + i));
  REQUIRE(w.Make("b1"));
  auto f = BackupFolder::Open(w.path(), BackupFolder::Use::kRead);
  REQUIRE(f);
  const BackupManifest m = f.value().Choose("b1").value();
  const auto copy = [&](size_t threads, const CopyStep& step) {
    const std::string to = w.root() + "/r";
    fs::remove_all(to);
    fs::create_directories(to);
    const DiskFile d = DiskFile::Directory(to).value();
    return CopyOutOfBackup(f.value(), m, d, step, threads);
  };
  for (const size_t threads : {size_t{1}, size_t{4}, size_t{100}}) {
    int inside = 0;
    uint64_t seen = 0;
    REQUIRE(copy(threads, [&](uint64_t done, uint64_t total) -> Result<void> {
      CHECK(++inside == 1);
      CHECK(total == m.TotalBytes());
      CHECK(done > seen);
      seen = done;
      --inside;
      return Ok();
    }));
    CHECK(seen == m.TotalBytes());
    for (const BackupFile& file : m.files)
      CHECK(ReadAll(w.root() + "/r/" + file.name) == ReadAll(w.data() + "/" + file.name));
  }
  // An error of one ends all, and it is the error that is given.
  int calls = 0;
  const auto stopped = copy(4, [&](uint64_t done, uint64_t) -> Result<void> {
    ++calls;
    if (done > 5'000'000) return Error{ErrorCode::kInterrupted, "enough"};
    return Ok();
  });
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().message == "enough");
  CHECK(calls < 50);
}

TEST_CASE("A damaged manifest keeps every file", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  Write(w.path() + "/backups/b1", "damaged");
  BackupFolder f = w.Open();
  CHECK_FALSE(f.Collect());
  CHECK(w.Stored() == 3);
  auto r = f.Read("b1");
  REQUIRE_FALSE(r);
  CHECK(r.error().message.find(w.path() + "/backups/b1") != std::string::npos);
}

TEST_CASE("A folder is used by one that changes it, or by several that read", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  {
    BackupFolder changing = w.Open();
    for (auto use : {BackupFolder::Use::kRead, BackupFolder::Use::kChange}) {
      auto other = BackupFolder::Open(w.path(), use);
      REQUIRE_FALSE(other);
      CHECK(other.error().code == ErrorCode::kLockBusy);
    }
  }
  auto one = BackupFolder::Open(w.path(), BackupFolder::Use::kRead);
  auto two = BackupFolder::Open(w.path(), BackupFolder::Use::kRead);
  REQUIRE(one);
  REQUIRE(two);
  CHECK_FALSE(BackupFolder::Open(w.path(), BackupFolder::Use::kChange));
}

TEST_CASE("A folder must be where it says, and nobody else's", "[backup]") {
  World w;
  auto code = [&](const std::string& path) {
    auto f = BackupFolder::OpenOrMake(path, w.data());
    return f ? ErrorCode::kOk : f.error().code;
  };
  CHECK(code("") == ErrorCode::kBadValue);
  CHECK(code("relative/path") == ErrorCode::kBadValue);
  CHECK(code(std::string("/tmp/x\0y", 8)) == ErrorCode::kBadValue);
  CHECK(code(w.data()) == ErrorCode::kBadValue);
  CHECK(code(w.data() + "/backups") == ErrorCode::kBadValue);
  CHECK(code(w.data() + "/../data/backups") == ErrorCode::kBadValue);
  CHECK(code(w.root()) == ErrorCode::kBadValue);  // around the data directory
  CHECK(code(w.root() + "/none/backups") == ErrorCode::kFileNotOpen);
  fs::create_directory_symlink(w.data(), w.root() + "/link");
  CHECK(code(w.root() + "/link/backups") == ErrorCode::kBadValue);
  CHECK(code(w.root() + "/link") == ErrorCode::kBadValue);
  fs::create_directories(w.root() + "/other");
  Write(w.root() + "/other/mine", "x");
  CHECK(code(w.root() + "/other") == ErrorCode::kBadValue);
  Write(w.root() + "/file", "x");
  CHECK(code(w.root() + "/file") == ErrorCode::kFileNotOpen);
  fs::create_directories(w.root() + "/fine");
  CHECK(code(w.root() + "/fine") == ErrorCode::kOk);
  CHECK_FALSE(BackupFolder::Open(w.root() + "/other", BackupFolder::Use::kRead));
}

TEST_CASE("Links in the folder are not followed", "[backup]") {
  World w;
  REQUIRE(w.Make("b1"));
  // A manifest and a file that lead elsewhere: read is what is in the folder, or nothing.
  Write(w.root() + "/elsewhere", ReadAll(w.path() + "/backups/b1"));
  fs::remove(w.path() + "/backups/b1");
  fs::create_symlink(w.root() + "/elsewhere", w.path() + "/backups/b1");
  CHECK_FALSE(w.Open().Read("b1"));
  fs::remove_all(w.path() + "/files");
  fs::create_directories(w.root() + "/target");
  fs::create_directory_symlink(w.root() + "/target", w.path() + "/files");
  CHECK_FALSE(BackupFolder::Open(w.path(), BackupFolder::Use::kChange));
}

TEST_CASE("The folder that was examined is the one that is used", "[backup]") {
  // The normalised path was examined, and the given one was made: behind a link another folder.
  World w;
  fs::create_directories(w.root() + "/other/deep");
  fs::create_directory_symlink(w.root() + "/other/deep", w.root() + "/link");
  const std::string through = w.root() + "/link/../backups";
  REQUIRE(BackupFolder::OpenOrMake(through, w.data()));
  CHECK_FALSE(fs::exists(w.root() + "/other/backups"));
  CHECK(fs::exists(w.path() + "/LOCK"));
  CHECK(BackupFolder::Open(through, BackupFolder::Use::kRead));
}

TEST_CASE("The archive of the log may have been in the folder first", "[backup]") {
  // "is not empty" was said of the place that the manual names for it.
  World w;
  fs::create_directories(w.path() + "/log");
  Write(w.path() + "/log/1-2.log", "x");
  REQUIRE(w.Make("b1"));
  CHECK(ReadAll(w.path() + "/log/1-2.log") == "x");
  World other;
  fs::create_directories(other.path() + "/logs");
  CHECK_FALSE(BackupFolder::OpenOrMake(other.path(), other.data()));
}

TEST_CASE("A backup whose manifest cannot be synced leaves no manifest", "[backup]") {
  // The manifest stood, and its files were taken back: a backup that cannot be restored.
  World w;
  no_sync_of = "/backups/backups";
  const auto made = w.Make("b1");
  no_sync_of.clear();
  CHECK_FALSE(made);
  CHECK(w.Stored() == 0);
  CHECK(w.Open().Ids().value().empty());
  REQUIRE(w.Make("b2"));
  REQUIRE(w.Restore("", w.root() + "/r"));
}

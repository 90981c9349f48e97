#include "replication/data_copy.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "replication/byte_text.h"
#include "storage/rocks_kv.h"

namespace mayfly {
namespace fs = std::filesystem;
namespace {

enum : uint8_t { kRefusal = 4, kList = 20, kFiles = 21, kRead = 22, kData = 23, kDone = 24 };
constexpr uint32_t kChunk = 1 << 20;
constexpr int64_t kKeepMicros = 600'000'000;

uint32_t Crc(std::string_view s) {
  return static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(s.data()), static_cast<uInt>(s.size())));
}
/// A name that stays in its directory.
bool PlainName(std::string_view name) {
  return !name.empty() && name.size() < 200 && name[0] != '.' &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}
Error Malformed() {
  return {ErrorCode::kProtocolError, "the donor of the copy sends what no donor sends"};
}
Error Disk(const std::string& what, const std::string& path) {
  const int e = errno;
  return {e == ENOSPC ? ErrorCode::kOutOfDiskSpace : ErrorCode::kFileNotOpen,
          what + " " + path + ": " + std::strerror(e)};
}
Result<void> SyncPath(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Disk("cannot open", path);
  const bool ok = ::fsync(fd) == 0;
  Error e = Disk("cannot sync", path);
  ::close(fd);
  if (!ok) return e;
  return Ok();
}
Result<void> Rename(const fs::path& from, const fs::path& to) {
  std::error_code ec;
  fs::rename(from, to, ec);
  if (ec)
    return Error{ErrorCode::kFileRenameFailed,
                 "cannot move " + from.string() + " to " + to.string() + ": " + ec.message()};
  return Ok();
}

}  // namespace

CheckpointStore::CheckpointStore(KvStore& kv, std::string data_directory, const Clock& clock)
    : kv_(kv), root_(std::move(data_directory) + "/.checkpoints"), clock_(clock) {
  std::error_code ec;
  fs::remove_all(root_, ec);
}

Result<std::string> CheckpointStore::Make(LogPosition position) {
  std::error_code ec;
  fs::create_directories(root_, ec);
  std::string id;
  {
    std::lock_guard l(mutex_);
    id = std::to_string(position.index) + "-" + std::to_string(++made_) + "-" +
         std::to_string(clock_.Now().millis);
  }
  Entry e{root_ + "/" + id, position, clock_.MonotonicMicros()};
  MAYFLY_TRY(kv_.Checkpoint(e.directory));
  std::lock_guard l(mutex_);
  e.used_us = clock_.MonotonicMicros();
  entries_[id] = e;
  return id;
}

void CheckpointStore::Touch(const std::string& id) {
  std::lock_guard l(mutex_);
  auto it = entries_.find(id);
  if (it != entries_.end()) it->second.used_us = clock_.MonotonicMicros();
}

std::string CheckpointStore::Begin(const std::string& id) {
  std::lock_guard l(mutex_);
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.done) return {};
  ++it->second.users;
  return it->second.directory;
}

void CheckpointStore::End(const std::string& id, bool done) {
  std::string gone;
  {
    std::lock_guard l(mutex_);
    auto it = entries_.find(id);
    if (it == entries_.end()) return;
    it->second.done |= done;
    if (--it->second.users > 0 || !it->second.done) return;
    gone = it->second.directory;
    entries_.erase(it);
  }
  std::error_code ec;
  fs::remove_all(gone, ec);
}

bool CheckpointStore::Has(const std::string& id) const {
  std::lock_guard l(mutex_);
  auto it = entries_.find(id);
  return it != entries_.end() && !it->second.done;
}

void CheckpointStore::RemoveStale() {
  std::vector<std::string> gone;
  {
    std::lock_guard l(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.users > 0 || clock_.MonotonicMicros() - it->second.used_us < kKeepMicros) {
        ++it;
        continue;
      }
      gone.push_back(it->second.directory);
      it = entries_.erase(it);
    }
  }
  std::error_code ec;
  for (const std::string& d : gone) fs::remove_all(d, ec);
}

uint64_t CheckpointStore::KeepFrom() const {
  std::lock_guard l(mutex_);
  uint64_t keep = UINT64_MAX;
  for (auto& [id, e] : entries_) keep = std::min(keep, e.position.index);
  return keep;
}

LinkTask<void> CheckpointStore::Serve(std::shared_ptr<MemberLink> link) {
  std::string id, directory;
  bool done = false;
  for (;;) {
    auto frame = co_await link->Read(4096);
    if (!frame) break;
    std::string_view in = frame.value().body;
    if (frame.value().type == kList && directory.empty()) {
      id = in;
      directory = Begin(id);
      if (directory.empty()) {
        std::string text;
        AppendNumber(text, static_cast<uint32_t>(ErrorCode::kInitialSyncFailure));
        const std::string_view why = "the copy asked for is no longer kept";
        AppendNumber(text, static_cast<uint16_t>(why.size()));
        link->Add(kRefusal, text, why);
      } else {
        std::string body;
        uint32_t n = 0;
        std::error_code ec;
        for (auto& f : fs::directory_iterator(directory, ec)) {
          const std::string name = f.path().filename().string();
          AppendNumber(body, static_cast<uint64_t>(f.file_size(ec)));
          AppendNumber(body, static_cast<uint16_t>(name.size()));
          body += name;
          ++n;
        }
        link->Add(kFiles, std::string_view(reinterpret_cast<const char*>(&n), 4), body);
      }
    } else if (frame.value().type == kRead && !directory.empty()) {
      uint64_t offset = 0;
      uint32_t size = 0;
      if (!TakeNumber(&in, &offset) || !TakeNumber(&in, &size) || size > kChunk || !PlainName(in)) break;
      std::ifstream file(directory + "/" + std::string(in), std::ios::binary);
      std::string bytes(size, '\0');
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(bytes.data(), static_cast<std::streamsize>(size));
      bytes.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
      const uint32_t crc = Crc(bytes);
      link->Add(kData, std::string_view(reinterpret_cast<const char*>(&crc), 4), bytes);
      Touch(id);
    } else if (frame.value().type == kDone) {
      done = true;
      break;
    } else {
      break;
    }
    auto flushed = co_await link->Flush();
    if (!flushed) break;
  }
  if (!directory.empty()) End(id, done);
  link->Close();
}

Result<void> DataCopy::Begin() {
  std::error_code ec;
  std::string there;
  {
    std::ifstream in(root_ + "/checkpoint");
    std::getline(in, there);
  }
  if (there != checkpoint_) fs::remove_all(root_, ec);  // of another one
  fs::create_directories(root_ + "/incoming", ec);
  if (ec) return Error{ErrorCode::kFileNotOpen, "cannot create " + root_ + ": " + ec.message()};
  std::ofstream(root_ + "/checkpoint") << checkpoint_ << "\n";
  return Ok();
}

LinkTask<Result<void>> DataCopy::Fetch(MemberLink& link) {
  MAYFLY_CO_TRY(Begin());
  link.Add(kList, checkpoint_);
  MAYFLY_CO_TRY(co_await link.Flush());
  struct File {
    std::string name;
    uint64_t size;
  };
  std::vector<File> files;
  uint64_t total = 0, done = 0;
  {
    MAYFLY_CO_TRY(MemberLink::Frame frame, co_await link.Read());
    std::string_view in = frame.body;
    uint32_t n = 0;
    if (frame.type == kRefusal)
      co_return Error{ErrorCode::kInitialSyncFailure, "the copy asked for is no longer kept"};
    if (frame.type != kFiles || !TakeNumber(&in, &n)) co_return Malformed();
    for (uint32_t i = 0; i < n; ++i) {
      File f;
      uint16_t size = 0;
      if (!TakeNumber(&in, &f.size) || !TakeNumber(&in, &size) || in.size() < size) co_return Malformed();
      f.name = in.substr(0, size);
      in.remove_prefix(size);
      if (!PlainName(f.name)) co_return Malformed();
      total += f.size;
      files.push_back(std::move(f));
    }
  }
  progress_.total = total;
  for (const File& f : files) {
    const std::string path = root_ + "/incoming/" + f.name;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) co_return Disk("cannot create", path);
    struct Closer {
      int fd;
      ~Closer() { ::close(fd); }
    } closer{fd};
    // Whole chunks that are there were written after their checksum was right.
    uint64_t have = static_cast<uint64_t>(::lseek(fd, 0, SEEK_END));
    if (have > f.size) have = 0;
    if (have < f.size) have -= have % kChunk;
    if (::ftruncate(fd, static_cast<off_t>(have)) != 0) co_return Disk("cannot write", path);
    done += have;
    progress_.done = done;
    for (uint64_t offset = have; offset < f.size;) {
      const uint32_t want = static_cast<uint32_t>(std::min<uint64_t>(kChunk, f.size - offset));
      std::string ask;
      AppendNumber(ask, offset);
      AppendNumber(ask, want);
      link.Add(kRead, ask, f.name);
      MAYFLY_CO_TRY(co_await link.Flush());
      MAYFLY_CO_TRY(MemberLink::Frame frame, co_await link.Read());
      std::string_view in = frame.body;
      uint32_t crc = 0;
      if (frame.type != kData || !TakeNumber(&in, &crc) || in.size() != want) co_return Malformed();
      if (Crc(in) != crc)
        co_return Error{ErrorCode::kHostUnreachable,
                        "a piece of " + f.name + " was damaged on its way"};
      if (::pwrite(fd, in.data(), in.size(), static_cast<off_t>(offset)) !=
          static_cast<ssize_t>(in.size()))
        co_return Disk("cannot write", path);
      offset += want;
      done += want;
      progress_.done = done;
    }
    if (::fsync(fd) != 0) co_return Disk("cannot sync", path);
  }
  MAYFLY_CO_TRY(SyncPath(root_ + "/incoming"));
  link.Add(kDone, {});
  (void)co_await link.Flush();
  co_return Ok();
}

Result<LogPosition> DataCopy::Adopt(NodeId self, const HardState& own) {
  RocksKvOptions o;
  o.path = root_ + "/incoming";
  o.cache_bytes = 32 << 20;
  MAYFLY_TRY(std::unique_ptr<KvStore> copy, OpenRocksKv(o));
  MAYFLY_TRY(LogPosition at, AdoptCheckpoint(*copy, self, own));
  MAYFLY_TRY(copy->Flush());
  return at;
}

Result<void> DataCopy::MarkReady() {
  std::ofstream(root_ + "/ready") << checkpoint_ << "\n";
  MAYFLY_TRY(SyncPath(root_ + "/ready"));
  return SyncPath(root_);
}

Result<bool> ApplyPendingResync(const std::string& data_directory) {
  const fs::path data(data_directory), root = data / ".resync", incoming = root / "incoming",
                                       old = root / "old";
  std::error_code ec;
  const bool ready = fs::exists(root / "ready", ec), moving = fs::exists(root / "moving", ec);
  if (!ready && !moving) return false;
  if (ready) {
    // CURRENT first: a directory without it is no store, so nobody takes half of one for a whole.
    fs::create_directories(old, ec);
    std::vector<fs::path> ours;
    for (auto& f : fs::directory_iterator(data, ec)) {
      const std::string name = f.path().filename().string();
      const bool store =
          name == "CURRENT" || name == "IDENTITY" || name == "LOCK" ||
          name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-") ||
          name.starts_with("LOG") || name.ends_with(".sst") ||
          (name.ends_with(".log") && name.find_first_not_of("0123456789") == name.size() - 4);
      if (store) ours.push_back(f.path());
    }
    std::sort(ours.begin(), ours.end(), [](const fs::path& a, const fs::path& b) {
      return std::pair(a.filename() != "CURRENT", a) < std::pair(b.filename() != "CURRENT", b);
    });
    for (const fs::path& f : ours) {
      MAYFLY_TRY(Rename(f, old / f.filename()));
    }
    MAYFLY_TRY(SyncPath(data.string()));
    MAYFLY_TRY(Rename(root / "ready", root / "moving"));
    MAYFLY_TRY(SyncPath(root.string()));
  }
  std::vector<fs::path> theirs;
  for (auto& f : fs::directory_iterator(incoming, ec)) theirs.push_back(f.path());
  std::sort(theirs.begin(), theirs.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.filename() == "CURRENT", a) < std::pair(b.filename() == "CURRENT", b);
  });
  for (const fs::path& f : theirs) {
    MAYFLY_TRY(Rename(f, data / f.filename()));
  }
  MAYFLY_TRY(SyncPath(data.string()));
  fs::remove(root / "moving", ec);
  MAYFLY_TRY(SyncPath(root.string()));
  fs::remove_all(root, ec);
  return true;
}

}  // namespace mayfly

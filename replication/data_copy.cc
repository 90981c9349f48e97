#include "replication/data_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "replication/byte_text.h"
#include "replication/crc.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/store_file.h"

// Sizes and bytes of files on a link are those that they have without encryption at rest: each
// member has a key of its own, or none, and encrypts what it takes. TLS keeps them private on their
// way.
namespace mayfly {
namespace fs = std::filesystem;
namespace {

enum : uint8_t { kCopyRefusal = 4, kList = 20, kFiles = 21, kRead = 22, kData = 23, kDone = 24 };
constexpr uint32_t kChunk = 1 << 20;
constexpr int64_t kKeepMicros = 600'000'000, kLookMicros = 30'000'000;

/// Whether it is a plain file name, which cannot lead out of its directory.
bool PlainName(std::string_view name) {
  return !name.empty() && name.size() < 200 && name[0] != '.' &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}
Error MalformedCopy() {
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
/// Lists everything or fails. With an incomplete list, a removal or move of files would lose the
/// rest.
Result<std::vector<fs::path>> List(const fs::path& directory) {
  std::error_code ec;
  std::vector<fs::path> out;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec))
    out.push_back(it->path());
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot list " + directory.string() + ": " + ec.message()};
  return out;
}
Result<bool> Exists(const fs::path& path) {
  std::error_code ec;
  const fs::file_status s = fs::symlink_status(path, ec);
  if (s.type() == fs::file_type::not_found) return false;
  if (ec)
    return Error{ErrorCode::kFileNotOpen, "cannot look at " + path.string() + ": " + ec.message()};
  return true;
}
/// Whether there is a file of that size.
bool HasFile(const fs::path& path, uint64_t size) {
  std::error_code ec;
  return fs::is_regular_file(path, ec) && !ec && fs::file_size(path, ec) == size && !ec;
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

Result<std::vector<CopyFile>> ParseCopyList(std::string_view in) {
  uint32_t n = 0;
  if (!TakeNumber(&in, &n)) return MalformedCopy();
  std::vector<CopyFile> files;
  for (uint32_t i = 0; i < n; ++i) {
    CopyFile f;
    uint16_t size = 0;
    if (!TakeNumber(&in, &f.size) || !TakeNumber(&in, &size) || in.size() < size)
      return MalformedCopy();
    f.name = in.substr(0, size);
    in.remove_prefix(size);
    if (!PlainName(f.name)) return MalformedCopy();
    files.push_back(std::move(f));
  }
  if (!in.empty()) return MalformedCopy();
  return files;
}

CheckpointStore::CheckpointStore(KvStore& kv, std::string data_directory, const Clock& clock,
                                 int silence_ms, LogLine log)
    : kv_(kv),
      root_(std::move(data_directory) + "/.checkpoints"),
      clock_(clock),
      silence_ms_(silence_ms),
      log_(std::move(log)) {
  std::error_code ec;
  fs::remove_all(root_, ec);
}

Result<std::string> CheckpointStore::Make(LogPosition position) {
  std::error_code ec;
  fs::create_directories(root_, ec);
  std::string id, oldest;
  {
    std::lock_guard l(mutex_);
    if (entries_.size() >= kMost) {
      auto unused = entries_.end();
      for (auto it = entries_.begin(); it != entries_.end(); ++it)
        if (it->second.users == 0 &&
            (unused == entries_.end() || it->second.used_us < unused->second.used_us))
          unused = it;
      if (unused == entries_.end())
        return Error{ErrorCode::kInitialSyncFailure,
                     std::to_string(kMost) + " members copy at this moment: others wait"};
      oldest = unused->second.directory;
      entries_.erase(unused);
    }
    id = std::to_string(position.index) + "-" + std::to_string(++made_) + "-" +
         std::to_string(clock_.Now().millis);
  }
  if (!oldest.empty()) fs::remove_all(oldest, ec);
  Entry e{root_ + "/" + id, position, clock_.MonotonicMicros()};
  MAYFLY_TRY(kv_.Checkpoint(e.directory));
  std::lock_guard l(mutex_);
  e.used_us = clock_.MonotonicMicros();
  entries_[id] = e;
  return id;
}

bool CheckpointStore::Touch(const std::string& id) {
  std::lock_guard l(mutex_);
  auto it = entries_.find(id);
  if (it == entries_.end()) return false;
  it->second.used_us = clock_.MonotonicMicros();
  return true;
}

std::string CheckpointStore::Begin(const std::string& id) {
  std::lock_guard l(mutex_);
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.done) return {};
  ++it->second.users;
  it->second.used_us = clock_.MonotonicMicros();
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

bool CheckpointStore::Full() const {
  std::lock_guard l(mutex_);
  size_t used = 0;
  for (auto& [id, e] : entries_) used += e.users > 0;
  return used >= kMost;
}

void CheckpointStore::GiveUp(uint64_t index, const std::string& why) {
  std::vector<std::string> gone;
  {
    std::lock_guard l(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.position.index >= index) {
        ++it;
        continue;
      }
      gone.push_back(it->second.directory);
      it = entries_.erase(it);
    }
  }
  std::error_code ec;
  for (const std::string& d : gone) {
    if (log_) log_('W', "A copy of the data that a member is to take is given up, because " + why);
    fs::remove_all(d, ec);
  }
}

void CheckpointStore::RemoveStale() {
  std::vector<std::string> gone;
  std::vector<std::pair<uint64_t, std::string>> kept;
  const int64_t now = clock_.MonotonicMicros();
  {
    std::lock_guard l(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.users > 0 || now - it->second.used_us < kKeepMicros) {
        kept.emplace_back(it->second.position.index, it->second.directory);
        ++it;
        continue;
      }
      gone.push_back(it->second.directory);
      it = entries_.erase(it);
    }
  }
  std::error_code ec;
  for (const std::string& d : gone) {
    if (log_) log_('I', "A copy of the data that nobody has asked for in ten minutes is removed");
    fs::remove_all(d, ec);
  }
  if (kept.empty() || now - looked_us_ < kLookMicros) return;
  looked_us_ = now;
  // A file with one name exists nowhere else: without the checkpoint it would have been removed.
  uint64_t all = 0, most = 0, of = 0;
  for (const auto& [index, directory] : kept) {
    uint64_t held = 0;
    auto files = List(directory);
    if (!files) continue;
    for (const fs::path& f : files.value())
      if (fs::hard_link_count(f, ec) == 1 && !ec) {
        const uint64_t size = fs::file_size(f, ec);
        if (!ec) held += size;
      }
    all += held;
    if (held > most) most = held, of = index;
  }
  const fs::space_info space = fs::space(root_, ec);
  if (!ec && all > space.available)
    GiveUp(of + 1, "it keeps " + std::to_string(most >> 20) +
                       " MB of files that nothing else needs, and the disk has " +
                       std::to_string(space.available >> 20) + " MB left");
}

uint64_t CheckpointStore::KeepFrom() const {
  std::lock_guard l(mutex_);
  uint64_t keep = UINT64_MAX;
  for (auto& [id, e] : entries_) keep = std::min(keep, e.position.index);
  return keep;
}

namespace {

void AddRefusal(MemberLink& link, std::string_view why) {
  std::string text;
  AppendNumber(text, static_cast<uint32_t>(ErrorCode::kInitialSyncFailure));
  AppendNumber(text, static_cast<uint16_t>(why.size()));
  link.Add(kCopyRefusal, text, why);
}
constexpr std::string_view kNotKept = "the copy asked for is no longer kept";

}  // namespace

bool CheckpointStore::AddList(MemberLink& link, const std::string& directory) {
  auto files = List(directory);
  if (!files) {
    if (log_) log_('E', "A copy of the data cannot be given: " + files.error().message);
    return false;
  }
  std::string body;
  uint32_t n = 0;
  for (const fs::path& f : files.value()) {
    const std::string name = f.filename().string();
    auto file = StoreFile::OpenToRead(f.string(), CiphersOf(kv_));
    Result<uint64_t> size = file ? file.value().Size() : Result<uint64_t>(file.error());
    if (!size) {
      if (log_) log_('E', "A copy of the data cannot be given: " + size.error().message);
      return false;
    }
    AppendNumber(body, size.value());
    AppendNumber(body, static_cast<uint16_t>(name.size()));
    body += name;
    ++n;
  }
  link.Add(kFiles, std::string_view(reinterpret_cast<const char*>(&n), 4), body);
  return true;
}

LinkTask<void> CheckpointStore::Serve(std::shared_ptr<MemberLink> link) {
  std::string id, directory;
  bool done = false;
  link->CloseAfterSilence(silence_ms_);
  for (;;) {
    auto frame = co_await link->Read(4096);
    if (!frame) break;
    std::string_view in = frame.value().body;
    if (frame.value().type == kList && directory.empty()) {
      id = in;
      directory = Begin(id);
      if (directory.empty() || !AddList(*link, directory)) AddRefusal(*link, kNotKept);
    } else if (frame.value().type == kRead && !directory.empty()) {
      uint64_t offset = 0;
      uint32_t size = 0;
      if (!TakeNumber(&in, &offset) || !TakeNumber(&in, &size) || size > kChunk || !PlainName(in))
        break;
      if (Touch(id)) {
        auto file = StoreFile::OpenToRead(directory + "/" + std::string(in), CiphersOf(kv_));
        Result<std::string> read =
            file ? file.value().Read(offset, size) : Result<std::string>(file.error());
        // Unreadable data is not the requested data; the joiner notices that.
        const std::string bytes = read ? std::move(read).value() : std::string();
        const uint32_t crc = Crc32(bytes);
        link->Add(kData, std::string_view(reinterpret_cast<const char*>(&crc), 4), bytes);
      } else {
        AddRefusal(*link, kNotKept);
      }
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
  // If one of these exists, the next start of this node uses it.
  for (const char* pending : {"/ready", "/moving"}) {
    MAYFLY_TRY(const bool waits, Exists(root_ + pending));
    if (waits)
      return Error{ErrorCode::kInitialSyncFailure,
                   "a complete copy waits in " + root_ + ": start the server again"};
  }
  {
    std::ifstream in(root_ + "/checkpoint");
    std::getline(in, there);
  }
  if (there != checkpoint_) fs::remove_all(root_, ec);  // files of another checkpoint
  fs::create_directories(root_ + "/incoming", ec);
  if (ec) return Error{ErrorCode::kFileNotOpen, "cannot create " + root_ + ": " + ec.message()};
  std::ofstream(root_ + "/checkpoint") << checkpoint_ << "\n";
  return Ok();
}

Result<void> DataCopy::Discard() {
  std::error_code ec;
  fs::remove(root_ + "/checkpoint", ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot remove " + root_ + "/checkpoint: " + ec.message()};
  return SyncPath(root_);
}

LinkTask<Result<void>> DataCopy::Fetch(MemberLink& link) {
  MAYFLY_CO_TRY(Begin());
  link.Add(kList, checkpoint_);
  MAYFLY_CO_TRY(co_await link.Flush());
  std::vector<CopyFile> files;
  uint64_t total = 0, done = 0;
  {
    MAYFLY_CO_TRY(MemberLink::Frame frame, co_await link.Read());
    if (frame.type == kCopyRefusal)
      co_return Error{ErrorCode::kInitialSyncFailure, std::string(kNotKept)};
    if (frame.type != kFiles) co_return MalformedCopy();
    MAYFLY_CO_TRY(files, ParseCopyList(frame.body));
    bool whole = false;
    for (const CopyFile& f : files) {
      total += f.size;
      whole |= f.name == store_->RootFile();
    }
    if (!whole) co_return MalformedCopy();  // not a complete store
  }
  progress_.total = total;
  for (const CopyFile& f : files) {
    const std::string path = root_ + "/incoming/" + f.name;
    MAYFLY_CO_TRY(StoreFile file, StoreFile::OpenToWrite(path, CiphersOf(*store_)));
    // Whole chunks on disk were written only after their checksums were verified.
    MAYFLY_CO_TRY(uint64_t have, file.Size());
    if (have > f.size) have = 0;
    if (have < f.size) have -= have % kChunk;
    MAYFLY_CO_TRY(file.Truncate(have));
    done += have;
    progress_.done = done;
    for (uint64_t offset = have; offset < f.size;) {
      const uint32_t want = static_cast<uint32_t>(std::min<uint64_t>(kChunk, f.size - offset));
      std::string ask;
      AppendNumber(ask, offset);
      AppendNumber(ask, want);
      link.Add(kRead, ask, f.name);
      MAYFLY_CO_TRY(co_await link.Flush());
      MAYFLY_CO_TRY(MemberLink::Frame frame, co_await link.Read(kChunk + 64));
      std::string_view in = frame.body;
      uint32_t crc = 0;
      if (frame.type == kCopyRefusal)
        co_return Error{ErrorCode::kInitialSyncFailure, std::string(kNotKept)};
      if (frame.type != kData || !TakeNumber(&in, &crc) || in.size() != want)
        co_return MalformedCopy();
      if (Crc32(in) != crc)
        co_return Error{ErrorCode::kHostUnreachable,
                        "a piece of " + f.name + " was damaged on its way"};
      MAYFLY_CO_TRY(file.Write(offset, in));
      offset += want;
      done += want;
      progress_.done = done;
    }
    MAYFLY_CO_TRY(file.Sync());
  }
  MAYFLY_CO_TRY(SyncPath(root_ + "/incoming"));
  link.Add(kDone, {});
  (void)co_await link.Flush();
  co_return Ok();
}

Result<LogPosition> DataCopy::Adopt(NodeId self, const HardState& own,
                                    const std::optional<ArchivedRow>& archived) {
  // From here on the files change and are not the donor's any more. If this is interrupted, the
  // copy begins again.
  MAYFLY_TRY(Discard());
  KvOptions o;
  o.path = root_ + "/incoming";
  o.cache_bytes = 32 << 20;
  MAYFLY_TRY(std::unique_ptr<KvStore> copy, store_->Open(std::move(o)));
  MAYFLY_TRY(LogPosition at, AdoptCheckpoint(*copy, self, own, archived));
  MAYFLY_TRY(copy->Flush());
  return at;
}

Result<void> DataCopy::MarkReady() {
  MAYFLY_TRY(const std::vector<fs::path> files, List(root_ + "/incoming"));
  std::string text = checkpoint_ + "\n";
  bool whole = false;
  for (const fs::path& f : files) {
    std::error_code ec;
    const bool plain = fs::is_regular_file(f, ec);
    const uint64_t size = plain && !ec ? fs::file_size(f, ec) : 0;
    if (ec)
      return Error{ErrorCode::kFileNotOpen, "cannot look at " + f.string() + ": " + ec.message()};
    if (!plain) continue;
    MAYFLY_TRY(SyncPath(f.string()));
    const std::string name = f.filename().string();
    whole |= name == store_->RootFile();
    text += std::to_string(size) + " " + name + "\n";
  }
  if (!whole)
    return Error{ErrorCode::kInitialSyncFailure,
                 "the copy has no file " + std::string(store_->RootFile())};
  MAYFLY_TRY(SyncPath(root_ + "/incoming"));
  {
    std::ofstream out(root_ + "/ready.new", std::ios::trunc);
    out << text;
    out.close();
    if (!out) return Disk("cannot write", root_ + "/ready.new");
  }
  MAYFLY_TRY(SyncPath(root_ + "/ready.new"));
  MAYFLY_TRY(Rename(root_ + "/ready.new", root_ + "/ready"));
  return SyncPath(root_);
}

namespace {

/// The list of the copy's files in `ready` or `moving`. Nothing if an earlier version wrote
/// it.
Result<std::vector<CopyFile>> ReadReady(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::vector<CopyFile> files;
  if (!std::getline(in, line))
    return Error{ErrorCode::kFileNotOpen, "cannot read " + path.string()};
  while (std::getline(in, line)) {
    CopyFile f;
    const size_t space = line.find(' ');
    const auto [end, bad] = std::from_chars(line.data(), line.data() + line.size(), f.size);
    if (bad != std::errc() || space == std::string::npos || end != line.data() + space)
      return Error{ErrorCode::kFileNotOpen, "cannot understand " + path.string()};
    f.name = line.substr(space + 1);
    if (!PlainName(f.name))
      return Error{ErrorCode::kFileNotOpen, "cannot understand " + path.string()};
    files.push_back(std::move(f));
  }
  if (in.bad()) return Error{ErrorCode::kFileNotOpen, "cannot read " + path.string()};
  return files;
}

/// The first file of the copy that is complete in neither directory; empty if the copy is complete.
std::string MissingFile(const KvEngine& store, const std::vector<CopyFile>& files,
                        const fs::path& one, const fs::path& other) {
  for (const CopyFile& f : files)
    if (!HasFile(one / f.name, f.size) && !HasFile(other / f.name, f.size)) return f.name;
  if (!files.empty()) return {};
  // From an earlier version, which recorded no list: checks the files that no store can be without.
  for (const fs::path& d : {one, other}) {
    const std::string named = store.FileNamedByRoot(d.string());
    std::error_code ec;
    if (PlainName(named) && (fs::exists(one / named, ec) || fs::exists(other / named, ec)))
      return {};
  }
  return std::string(store.RootFile());
}

Error Incomplete(const fs::path& root, const std::string& file) {
  return {ErrorCode::kInitialSyncFailure,
          "the copy of another member's data in " + root.string() + " lacks " + file +
              ": nothing was removed. This member's own files are in " + (root / "old").string() +
              ". Empty the data directory, and the member copies everything again"};
}

}  // namespace

Result<bool> ResyncIsPending(const std::string& data_directory) {
  const fs::path root = fs::path(data_directory) / ".resync";
  MAYFLY_TRY(const bool ready, Exists(root / "ready"));
  MAYFLY_TRY(const bool moving, Exists(root / "moving"));
  return ready || moving;
}

Result<bool> ApplyPendingResync(const KvEngine& store, const std::string& data_directory) {
  const fs::path data(data_directory), root = data / ".resync", incoming = root / "incoming",
                                       old = root / "old";
  const auto root_file = [&](const fs::path& f) {
    return f.filename().string() == store.RootFile();
  };
  std::error_code ec;
  MAYFLY_TRY(const bool ready, Exists(root / "ready"));
  MAYFLY_TRY(const bool moving, Exists(root / "moving"));
  if (!ready && !moving) return false;
  MAYFLY_TRY(const std::vector<CopyFile> files, ReadReady(root / (ready ? "ready" : "moving")));
  MAYFLY_TRY(std::vector<fs::path> theirs, List(incoming));
  if (ready) {
    if (const std::string lost = MissingFile(store, files, incoming, incoming); !lost.empty()) {
      MAYFLY_TRY(const bool begun, Exists(old));
      if (begun) return Incomplete(root, lost);
      // No file was moved yet: this member continues with its own data and copies again.
      fs::remove(root / "ready", ec);
      if (ec)
        return Error{ErrorCode::kFileNotOpen,
                     "cannot remove " + (root / "ready").string() + ": " + ec.message()};
      return false;
    }
    // The root file goes first. A directory without it is not a store, so a directory that was
    // moved half is never opened.
    MAYFLY_TRY(std::vector<fs::path> ours, List(data));
    std::erase_if(ours,
                  [&](const fs::path& f) { return !store.IsStoreFile(f.filename().string()); });
    std::sort(ours.begin(), ours.end(), [&](const fs::path& a, const fs::path& b) {
      return std::pair(!root_file(a), a) < std::pair(!root_file(b), b);
    });
    fs::create_directories(old, ec);
    if (ec)
      return Error{ErrorCode::kFileNotOpen, "cannot create " + old.string() + ": " + ec.message()};
    for (const fs::path& f : ours) {
      MAYFLY_TRY(Rename(f, old / f.filename()));
    }
    MAYFLY_TRY(SyncPath(data.string()));
    MAYFLY_TRY(Rename(root / "ready", root / "moving"));
    MAYFLY_TRY(SyncPath(root.string()));
  } else if (const std::string lost = MissingFile(store, files, incoming, data); !lost.empty()) {
    return Incomplete(root, lost);
  }
  std::sort(theirs.begin(), theirs.end(), [&](const fs::path& a, const fs::path& b) {
    return std::pair(root_file(a), a) < std::pair(root_file(b), b);
  });
  for (const fs::path& f : theirs) {
    MAYFLY_TRY(Rename(f, data / f.filename()));
  }
  MAYFLY_TRY(SyncPath(data.string()));
  // The old files are replaced only when all new ones are proven to be here.
  if (const std::string lost = MissingFile(store, files, data, data); !lost.empty())
    return Incomplete(root, lost);
  fs::remove(root / "moving", ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot remove " + (root / "moving").string() + ": " + ec.message()};
  MAYFLY_TRY(SyncPath(root.string()));
  fs::remove_all(root, ec);
  return true;
}

}  // namespace mayfly

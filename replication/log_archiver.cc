#include "replication/log_archiver.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <utility>

#include "replication/archive_command.h"
#include "replication/log_archive.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLookMillis = 200;  ///< how often it looks for new entries
constexpr int64_t kFirstBackoffMillis = 500, kMaxBackoffMillis = 60'000;
/// Entries copied in one round, so that the end of the process need not wait for more.
constexpr uint64_t kRoundBytes = 4 << 20;
constexpr int64_t kRestMicros = 5'000'000;  ///< how long the end of a member may archive
constexpr std::string_view kPartial = ".partial-", kLock = ".lock";

std::string Hex(NodeId id) {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

}  // namespace

std::string ArchiveKeystoreName(NodeId node) { return Hex(node).append(kArchiveKeystoreSuffix); }

std::string_view LogArchiveStateName(LogArchiveStatus::State state) {
  switch (state) {
    case LogArchiveStatus::State::kStarting:
      return "starting";
    case LogArchiveStatus::State::kRunning:
      return "running";
    case LogArchiveStatus::State::kFailing:
      return "failing";
    case LogArchiveStatus::State::kGivenUp:
      return "givenUp";
  }
  return "failing";
}

LogArchiver::LogArchiver(LogArchiverOptions options) : o_(std::move(options)) {
  status_.folder = o_.folder;
  // Nothing goes before it is known what is archived; Hold bounds that.
  o_.keep_from->store(0, std::memory_order_release);
}

LogArchiver::~LogArchiver() { Stop(); }

void LogArchiver::Start() {
  thread_ = std::thread([this] { Run(); });
}

void LogArchiver::Stop() {
  {
    std::lock_guard l(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
}

LogArchiveStatus LogArchiver::Status() const {
  LogArchiveStatus s;
  {
    std::lock_guard l(mutex_);
    s = status_;
  }
  // Entries applied since the thread last looked count too.
  const uint64_t applied = o_.consensus->Status().applied.index;
  s.waiting_entries = applied > s.archived.index ? applied - s.archived.index : 0;
  using State = LogArchiveStatus::State;
  if (s.state == State::kRunning && !s.error.empty()) s.state = State::kFailing;
  return s;
}

template <class F>
void LogArchiver::Guarded(F&& work) noexcept {
  const char* failed = nullptr;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    failed = "there is no memory to archive the log";
  } catch (...) {
    failed = "the log could not be archived: an exception in the archiver";
  }
  backoff_ms_ = std::max(backoff_ms_, kFirstBackoffMillis);
  try {
    Told(Error{ErrorCode::kInternalError, failed});
  } catch (...) {
    // Without memory even for that: the next attempt tells.
  }
}

void LogArchiver::Run() {
  self_ = o_.consensus->self();
  started_us_ = o_.clock->MonotonicMicros();
  // What Hold goes by until Begin has looked at the folder, too.
  Guarded([this] { (void)ReadRow(); });
  bool more = false;
  while (Wait(more)) {
    more = false;
    bool end = false;
    Guarded([&] { end = !Round(&more); });
    if (end) return;
    if (o_.looked) o_.looked();
  }
  // What failed before is tried again after the next start.
  if (begun_ && backoff_ms_ <= 0 && o_.command.empty()) Guarded([this] { (void)ArchiveRest(); });
}

bool LogArchiver::Wait(bool more) {
  std::unique_lock l(mutex_);
  const int64_t wait = more ? 0 : std::max(kLookMillis, backoff_ms_);
  // In pieces: the bound on the log is looked at while an attempt is waited for.
  wake_.wait_for(l, std::chrono::milliseconds(std::min<int64_t>(wait, 1000)),
                 [this] { return Stopping(); });
  if (Stopping()) return false;
  if (!more) backoff_ms_ = std::max<int64_t>(0, backoff_ms_ - 1000);
  return true;
}

bool LogArchiver::Round(bool* more) {
  Hold();
  if (backoff_ms_ > 0) return true;
  const Result<bool> step = Step();
  *more = step && step.value();
  if (!step && step.error().code == ErrorCode::kInterruptedAtShutdown) return false;
  Told(step);
  Hold();
  return true;
}

Result<void> LogArchiver::ArchiveRest() {
  const int64_t until = o_.clock->MonotonicMicros() + kRestMicros;
  while (o_.clock->MonotonicMicros() < until) {
    if (!to_ship_.empty()) {
      MAYFLY_TRY(Ship());
    }
    MAYFLY_TRY(bool finish, Copy());
    const bool rest = copied_all_ && cut_ == 0 && writer_ && writer_->entries() > 0;
    if (!finish && !rest && copied_all_) return Ok();
    if (finish || rest) {
      MAYFLY_TRY(FinishSegment());
    }
  }
  return Ok();
}

void LogArchiver::Told(const Result<bool>& step) {
  if (step) {
    // A written part of a segment proves nothing yet.
    if (told_.empty() || (archived_.index == failed_at_ && Status().waiting_entries > 0)) return;
    told_.clear();
    attempts_failed_ = 0;
    Log('I', 9000312, "The log is archived again");
    std::lock_guard l(mutex_);
    status_.error.clear();
    return;
  }
  // The unfinished segment starts again after the archived part.
  writer_.reset();
  failed_at_ = archived_.index;
  const int64_t doubled = std::min<int64_t>(attempts_failed_++, 10);
  backoff_ms_ = std::min(kMaxBackoffMillis, kFirstBackoffMillis << doubled);
  const std::string& error = step.error().message;
  if (error != told_)
    Log('E', 9000311, "The log cannot be archived: it is tried again, and the log grows", error);
  told_ = error;
  std::lock_guard l(mutex_);
  ++status_.failures;
  status_.error = error;
}

Result<bool> LogArchiver::Step() {
  if (!begun_) {
    set_id_ = o_.consensus->Status().configuration.set_id;
    if (set_id_.empty()) return false;  // it is of no set yet
    MAYFLY_TRY(Begin());
    begun_ = true;
  }
  if (!keystore_there_) {
    MAYFLY_TRY(PutKeystore(self_));
    keystore_there_ = true;
  }
  if (!to_ship_.empty()) {
    MAYFLY_TRY(Ship());
    return true;
  }
  MAYFLY_TRY(const bool finish, Copy());
  if (finish) {
    MAYFLY_TRY(FinishSegment());
  }
  return finish || !copied_all_;
}

// --- where it begins -----------------------------------------------------------------------------

Result<void> LogArchiver::LockFolder() {
  if (lock_ >= 0) return Ok();
  std::error_code ec;
  fs::create_directories(o_.folder, ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot create the archive " + o_.folder + ": " + ec.message()};
  const std::string path = Path(kLock);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("cannot create", path);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return Error{ErrorCode::kLockBusy,
                 "another member archives its log in " + o_.folder +
                     ": each needs a folder of its own, or only one may be told to"};
  }
  lock_ = fd;
  return Ok();
}

Result<void> LogArchiver::Begin() {
  MAYFLY_TRY(LockFolder());
  std::error_code ec;
  for (fs::directory_iterator it(o_.folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code unused;
    if (it->path().filename().string().starts_with(kPartial)) fs::remove(it->path(), unused);
  }
  MAYFLY_TRY(ReadRow());
  MAYFLY_TRY(FindEnd());
  {
    std::lock_guard l(mutex_);
    status_.archived = archived_;
  }
  Log('I', 9000310,
      "The log is archived in " + o_.folder + ", behind entry " + std::to_string(archived_.index));
  return Ok();
}

Result<void> LogArchiver::ReadRow() {
  MAYFLY_TRY(const std::optional<ArchivedRow> row, ReadArchived(*o_.kv));
  if (!row || row->node != self_) return Ok();
  archived_ = row->position;
  known_ = archived_.index > 0;
  cut_ = row->cut;
  history_lost_ = row->history_lost && known_;
  return Ok();
}

Result<void> LogArchiver::FindEnd() {
  // Newest first.
  std::vector<std::pair<SegmentId, std::string>> found;
  std::error_code ec;
  fs::directory_iterator it(o_.folder, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    const auto id = ParseSegmentName(it->path().filename().string());
    // Those of other sets, such as the one whose backup this one was restored from, may stay there.
    if (id && id->last > archived_.index && (id->set_id.empty() || id->set_id == set_id_))
      found.emplace_back(*id, it->path().string());
  }
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot list the archive " + o_.folder + ": " + ec.message()};
  std::ranges::sort(found, std::greater<>(), [](const auto& f) { return f.first.last; });
  std::vector<FileCiphersPtr> ciphers;
  if (o_.ciphers) ciphers.push_back(o_.ciphers);
  std::unique_ptr<SegmentReader> opened;
  std::string newest;
  for (const auto& [id, path] : found) {
    auto reader = SegmentReader::Open(path, ciphers);
    if (!reader) {
      // Encrypted by another member, whose key is not here.
      if (reader.error().code == ErrorCode::kInvalidOptions)
        return InvalidOptions(
            reader.error().message +
            ". Another member wrote it: archive in a folder of this member's own");
      return reader.error();
    }
    // A name of an earlier version does not say it.
    if (reader.value()->header().set_id != set_id_) continue;
    opened = std::move(reader).value();
    newest = path;
    break;
  }
  if (!opened) return Ok();
  const SegmentHeader& head = opened->header();
  const SegmentTrailer& tail = opened->trailer();
  // Behind what is archived for certain: the segment that the process died with, or those of a
  // member that did this before.
  const bool mine = known_ && head.first == archived_.index + 1;
  if (known_ && !mine && head.first <= archived_.index)
    return InvalidOptions("the segment " + newest +
                          " overlaps with what this member has archived, up to " +
                          std::to_string(archived_.index) + ": archive in another folder");
  to_ship_ = newest;
  to_ship_end_ = {tail.last_term, tail.last};
  to_ship_ts_ = tail.last_ts;
  to_ship_bytes_ = 0;
  cut_ = 0;
  gap_ = head.follows == SegmentFollows::kGap;
  gap_entries_ = gap_ ? head.first - head.previous.index - 1 : 0;
  return Ok();
}

Result<void> LogArchiver::PutKeystore(NodeId self) {
  if (o_.keystore.empty()) return Ok();
  const std::string name = ArchiveKeystoreName(self), path = Path(name), partial = Path(kPartial);
  std::error_code ec;
  fs::remove(partial + "keystore", ec);  // a link that is in its place is not followed
  fs::copy_file(o_.keystore, partial + "keystore", fs::copy_options::overwrite_existing, ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot copy " + o_.keystore + " to " + o_.folder + ": " + ec.message()};
  const int fd = ::open((partial + "keystore").c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  Error failed = FileError("cannot sync", partial + "keystore");
  if (fd >= 0) ::close(fd);
  if (!synced) return failed;
  if (::rename((partial + "keystore").c_str(), path.c_str()) != 0)
    return FileError("cannot create", path);
  MAYFLY_TRY(SyncFolder());
  if (o_.command.empty()) return Ok();
  return RunArchiveCommand(o_.command, path, o_.limits->command_secs,
                           [this] { return Stopping(); });
}

Result<void> LogArchiver::SyncFolder() {
  const int fd = ::open(o_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", o_.folder);
  Result<void> synced = Ok();
  // A file system that cannot sync folders says so; a name is then safe as it is.
  if (::fsync(fd) != 0 && errno != EINVAL) synced = FileError("cannot sync", o_.folder);
  ::close(fd);
  return synced;
}

// --- segments ------------------------------------------------------------------------------------

Result<void> LogArchiver::OpenSegment(uint64_t first) {
  SegmentHeader h;
  h.set_id = set_id_;
  h.node = self_;
  h.first = first;
  h.created_millis = o_.clock->Now().millis;
  if (known_) {
    h.previous = archived_;
    h.follows = first == archived_.index + 1 && !history_lost_ ? SegmentFollows::kPrevious
                                                               : SegmentFollows::kGap;
  }
  if (h.follows == SegmentFollows::kGap) cut_ = 0;
  gap_ = h.follows == SegmentFollows::kGap;
  gap_entries_ = gap_ ? first - archived_.index - 1 : 0;
  MAYFLY_TRY(writer_, SegmentWriter::Create(Path(std::string(kPartial) + Hex(self_)), std::move(h),
                                            o_.ciphers.get()));
  writer_since_us_ = o_.clock->MonotonicMicros();
  return Ok();
}

void LogArchiver::TellOfGap(uint64_t behind) {
  const std::string entry = std::to_string(behind);
  Log('E', 9000313,
      (gap_entries_ == 0 ? "The data was changed without the log, behind entry " + entry
                         : std::to_string(gap_entries_) + " entries of the log, behind entry " +
                               entry + ", are not in the archive") +
          ": it cannot be restored across that. Take a backup");
  std::lock_guard l(mutex_);
  ++status_.gaps;
  status_.gap_entries += gap_entries_;
}

Result<bool> LogArchiver::Copy() {
  copied_all_ = true;
  const uint64_t max_bytes = static_cast<uint64_t>(o_.limits->segment_mb.load()) << 20;
  const uint64_t next =
      writer_ ? writer_->header().first + writer_->entries() : archived_.index + 1;
  const uint64_t applied = o_.consensus->Status().applied.index;
  if (applied >= next) {
    auto cursor = o_.consensus->ReadLog();
    uint64_t round = 0, expected = next;
    for (cursor->Seek(writer_ || !known_ ? next : archived_.index); cursor->Valid();
         cursor->Next()) {
      const CommittedEntry e = cursor->entry();
      if (e.position.index == archived_.index && e.position == archived_) continue;
      if (known_ && !writer_ &&
          (e.position.index <= archived_.index || e.position.term < archived_.term))
        return InvalidOptions(
            "the archive in " + o_.folder + " ends in term " + std::to_string(archived_.term) +
            ", and this member's log goes on in term " + std::to_string(e.position.term) +
            ": they are of different histories; archive in an empty folder");
      if (e.position.index != expected) {
        // Trimmed. A segment that has something ends here; else it begins behind the gap.
        if (writer_ && writer_->entries() > 0) return true;
        writer_.reset();
      }
      if (!writer_) {
        MAYFLY_TRY(OpenSegment(e.position.index));
      }
      MAYFLY_TRY(writer_->Add(e));
      expected = e.position.index + 1;
      round += e.data.size();
      if (e.position.index == cut_ || (cut_ == 0 && writer_->bytes() >= max_bytes)) return true;
      if (round >= kRoundBytes) {
        copied_all_ = false;
        break;
      }
    }
    MAYFLY_TRY(cursor->status());
  }
  const int64_t age = o_.clock->MonotonicMicros() - writer_since_us_;
  return cut_ == 0 && writer_ && writer_->entries() > 0 &&
         age >= o_.limits->segment_secs * 1'000'000;
}

Result<void> LogArchiver::PutRow(uint64_t cut) {
  try {
    auto batch = o_.kv->NewBatch();
    StageArchived(*batch, {self_, archived_, cut, history_lost_});
    return o_.kv->Write(*batch, true);
  } catch (const std::bad_alloc&) {
    // An error, because the caller takes back what the row was to say.
    return Error{ErrorCode::kExceededMemoryLimit, "there is no memory to archive the log"};
  }
}

Result<void> LogArchiver::FinishSegment() {
  MAYFLY_TRY(writer_->Finish());
  const SegmentTrailer t = writer_->trailer();
  const std::string name = SegmentName({set_id_, writer_->header().first, t.last});
  const uint64_t bytes = writer_->bytes();
  writer_.reset();
  // Before the command can see it: should the process die, this very segment is made again, and no
  // other one that overlaps with it.
  MAYFLY_TRY(PutRow(t.last));
  cut_ = t.last;
  const std::string partial = Path(std::string(kPartial) + Hex(self_));
  if (::rename(partial.c_str(), Path(name).c_str()) != 0)
    return FileError("cannot create", Path(name));
  MAYFLY_TRY(SyncFolder());
  to_ship_ = Path(name);
  to_ship_end_ = {t.last_term, t.last};
  to_ship_ts_ = t.last_ts;
  to_ship_bytes_ = bytes;
  return Ok();
}

Result<void> LogArchiver::Ship() {
  if (!o_.command.empty() && !commanded_) {
    MAYFLY_TRY(RunArchiveCommand(o_.command, to_ship_, o_.limits->command_secs,
                                 [this] { return Stopping(); }));
  }
  commanded_ = true;  // and may have taken the file away
  const LogPosition before = archived_;
  const bool lost = history_lost_;
  if (gap_) history_lost_ = false;  // the segment says so
  archived_ = to_ship_end_;
  if (Result<void> put = PutRow(0); !put) {
    archived_ = before;
    history_lost_ = lost;
    return put;
  }
  commanded_ = false;
  if (std::exchange(gap_, false)) TellOfGap(before.index);
  known_ = true;
  cut_ = 0;
  to_ship_.clear();
  oldest_wall_ = 0;
  std::lock_guard l(mutex_);
  status_.archived = archived_;
  if (to_ship_ts_ != 0) status_.archived_ts = to_ship_ts_;
  if (to_ship_bytes_ != 0) {
    ++status_.segments;
    status_.bytes += static_cast<int64_t>(to_ship_bytes_);
  }
  return Ok();
}

// --- the log waits -------------------------------------------------------------------------------

int64_t LogArchiver::WaitedMillis() {
  // For a log that was never archived, only from the time of the first request.
  if (!known_) return (o_.clock->MonotonicMicros() - started_us_) / 1000;
  constexpr int kLookAt = 100;  // entries without a time come one by one between others
  auto cursor = o_.consensus->ReadLog();
  cursor->Seek(archived_.index + 1);
  for (int i = 0; oldest_wall_ == 0 && i < kLookAt && cursor->Valid(); ++i, cursor->Next()) {
    uint64_t first = 0, last = 0;
    (void)EntryTimes(cursor->entry(), &first, &last, &oldest_wall_);
  }
  return oldest_wall_ == 0 ? 0 : std::max<int64_t>(0, o_.clock->Now().millis - oldest_wall_);
}

void LogArchiver::Hold() {
  const ConsensusStatus s = o_.consensus->Status();
  const uint64_t applied = s.applied.index;
  const uint64_t waiting = applied > archived_.index ? applied - archived_.index : 0;
  const int64_t waited = waiting == 0 ? 0 : WaitedMillis();
  const uint64_t lost =
      known_ && s.first.index > archived_.index + 1 ? s.first.index - archived_.index - 1 : 0;
  const auto wait_mb = static_cast<uint64_t>(o_.limits->max_wait_mb.load());
  const uint64_t wait_bytes = wait_mb != 0 ? wait_mb << 20 : 2 * o_.log_max_bytes();
  const double hours = o_.limits->max_wait_hours;
  const bool too_large = s.log_bytes > wait_bytes;
  const bool too_old = hours > 0 && static_cast<double>(waited) > hours * 3'600'000;
  const bool give_up = waiting > 0 && (too_large || too_old);
  if (give_up && !given_up_)
    Log('E', 9000314,
        too_large ? "The log has grown to " + std::to_string(s.log_bytes >> 20) +
                        " MB because it cannot be archived, and is trimmed without that from now "
                        "on: the archive will have a gap"
                  : "The log could not be archived for " + std::to_string(waited / 3'600'000) +
                        " hours, and is trimmed without that from now on: the archive may have a "
                        "gap",
        Status().error);
  else if (!give_up && given_up_)
    Log('I', 9000315, "The log waits for its archive again before it is trimmed");
  given_up_ = give_up;
  o_.keep_from->store(give_up ? UINT64_MAX : archived_.index + 1, std::memory_order_release);
  std::lock_guard l(mutex_);
  status_.waiting_entries = waiting;
  status_.waiting_millis = waited;
  using State = LogArchiveStatus::State;
  status_.lost_entries = lost;
  status_.state = give_up || lost > 0      ? State::kGivenUp
                  : !status_.error.empty() ? State::kFailing
                  : begun_                 ? State::kRunning
                                           : State::kStarting;
}

}  // namespace mayfly

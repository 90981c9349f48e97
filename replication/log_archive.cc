#include "replication/log_archive.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "replication/applied_row.h"
#include "replication/log_archiver.h"
#include "replication/log_store.h"
#include "replication/open_units.h"
#include "security/at_rest.h"
#include "storage/storage.h"
#include "storage/write/log_apply.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

/// The content of one batch of the store.
constexpr size_t kBatchBytes = 4 << 20, kBatchEntries = 20'000;

Error NotInArchive(std::string what) { return {ErrorCode::kNoSuchKey, std::move(what)}; }

std::string Range(uint64_t from, uint64_t to) {
  return from == to ? "entry " + std::to_string(from)
                    : "entries " + std::to_string(from) + " to " + std::to_string(to);
}

std::string Time(uint64_t ts) {
  return "Timestamp(" + std::to_string(ts >> 32) + ", " + std::to_string(ts & 0xFFFFFFFF) + ")";
}

/// `set_id`: only those whose names do not say another one; empty: all. By their first index.
Result<std::vector<std::string>> SegmentPaths(const std::string& folder, std::string_view set_id) {
  std::vector<std::tuple<uint64_t, uint64_t, std::string>> found;
  std::error_code ec;
  fs::directory_iterator it(folder, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    const auto id = ParseSegmentName(it->path().filename().string());
    if (!id || (!set_id.empty() && !id->set_id.empty() && id->set_id != set_id)) continue;
    found.emplace_back(id->first, id->last, it->path().string());
  }
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot list the archive " + folder + ": " + ec.message()};
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [first, last, path] : found) paths.push_back(std::move(path));
  return paths;
}

void OneSetAfterTheOther(std::vector<ArchivedSegment>& segments) {
  std::stable_sort(segments.begin(), segments.end(),
                   [](const ArchivedSegment& a, const ArchivedSegment& b) {
                     return a.header.set_id < b.header.set_id;
                   });
}

/// For a segment that follows but says that something is missing before it.
Error Changed(const ArchivedSegment& s) {
  return NotInArchive("the data was changed without the log (by a standalone) before entry " +
                      std::to_string(s.header.first) + ", where " + s.path +
                      " begins: only a backup from behind that can be brought to a later time");
}

/// Why `next` does not continue at the end of `s`.
Result<void> CheckFollows(const ArchivedSegment& s, const ArchivedSegment& next) {
  if (next.header.first <= s.trailer.last)
    return Error{ErrorCode::kInternalError,
                 "the segments " + s.path + " and " + next.path + " overlap: both have " +
                     Range(next.header.first, std::min(s.trailer.last, next.trailer.last)) +
                     ". Take the one away that is not of this archive"};
  if (next.header.first != s.trailer.last + 1)
    return NotInArchive("the archive lacks " + Range(s.trailer.last + 1, next.header.first - 1) +
                        " of the log, between " + s.path + " and " + next.path +
                        (next.header.follows == SegmentFollows::kGap
                             ? ": they were trimmed before they could be archived"
                             : ": a segment is missing"));
  if (next.header.follows == SegmentFollows::kGap) return Changed(next);
  if (next.header.follows == SegmentFollows::kPrevious &&
      next.header.previous != LogPosition{s.trailer.last_term, s.trailer.last})
    return Error{ErrorCode::kInternalError,
                 "the segments " + s.path + " and " + next.path +
                     " are of different histories: the second one follows entry " +
                     std::to_string(next.header.previous.index) + " of term " +
                     std::to_string(next.header.previous.term) + ", the first one ends in term " +
                     std::to_string(s.trailer.last_term)};
  if (next.trailer.first_term < s.trailer.last_term)
    return Error{ErrorCode::kInternalError, "terms go back from " + s.path + " to " + next.path};
  return Ok();
}

/// Where the store stands, and which set it is of.
struct Start {
  LogPosition applied;
  AppliedRow row;
  std::string set_id;
};

/// ListArchive of the backup's set. Errors: InvalidOptions 72 also when all are of other sets.
Result<std::vector<ArchivedSegment>> ListOfSet(const ArchiveSource& source,
                                               const std::string& set_id) {
  MAYFLY_TRY(std::vector<ArchivedSegment> own, ListArchive(source, set_id));
  if (!own.empty()) return own;
  MAYFLY_TRY(const std::vector<std::string> all, SegmentPaths(source.folder, {}));
  if (all.empty()) return own;
  return InvalidOptions("none of the segments in " + source.folder +
                        " is of the backup's set: " + all.front() + " is of another set");
}

/// The segments that are needed, in order.
Result<std::vector<ArchivedSegment>> Plan(const ReplayRequest& request, const Start& start) {
  MAYFLY_TRY(std::vector<ArchivedSegment> all, ListOfSet(request.archive, start.set_id));
  const uint64_t next = start.applied.index + 1;
  const std::string& folder = request.archive.folder;
  if (request.until && *request.until < start.row.ts)
    return InvalidOptions("the backup is of " + Time(start.row.ts) + ", which is after " +
                          Time(*request.until) + ": take an earlier backup");
  std::vector<ArchivedSegment> plan;
  bool enough = request.until && *request.until == start.row.ts;
  for (ArchivedSegment& s : all) {
    // The one in which the store's own position is has to be there only if it has more.
    if (s.trailer.last < next || enough) continue;
    if (plan.empty() && s.header.first > next)
      return NotInArchive("the archive lacks " + Range(next, s.header.first - 1) +
                          " of the log, which follow the backup: it begins with " + s.path);
    if (!plan.empty()) {
      MAYFLY_TRY(CheckFollows(plan.back(), s));
    } else if (s.header.first == next && s.header.follows == SegmentFollows::kGap &&
               s.header.previous.index + 1 == next) {
      return Changed(s);
    } else if (s.header.first == next && s.header.follows == SegmentFollows::kPrevious &&
               s.header.previous != start.applied) {
      return InvalidOptions("the segment " + s.path + " and the backup are of different histories");
    }
    enough = request.until && s.trailer.last_ts >= *request.until;
    plan.push_back(std::move(s));
  }
  if (!request.until || enough) return plan;
  uint64_t end = start.row.ts;
  for (const ArchivedSegment& s : plan) end = std::max(end, s.trailer.last_ts);
  return InvalidOptions("the archive in " + folder + " ends at " + Time(end) + ", before " +
                        Time(*request.until) +
                        (plan.empty() ? "" : ": its last segment is " + plan.back().path));
}

/// Whether `next` follows, unless what is missing between the two may be in the backup.
Result<void> CheckFollowsBehind(const ArchivedSegment& s, const ArchivedSegment& next,
                                uint64_t latest_index) {
  if (next.header.first > s.trailer.last + 1 && next.header.first <= latest_index + 1) return Ok();
  return CheckFollows(s, next);
}

class Replay {
 public:
  Replay(Storage& storage, const ReplayRequest& request, LogStore& log, const Start& start)
      : storage_(storage),
        request_(request),
        log_(log),
        applier_(storage),
        at_(start.applied),
        row_(start.row),
        batch_(storage.kv().NewBatch()) {
    progress_.index = start.applied.index;
    progress_.ts = start.row.ts;
    progress_.wall_millis = start.row.wall_millis;
  }

  Result<void> Segment(const ArchivedSegment& s) {
    MAYFLY_TRY(auto reader, SegmentReader::Open(s.path, request_.archive.ciphers));
    path_ = s.path;
    for (;;) {
      auto bytes = std::make_shared<std::string>();
      std::vector<CommittedEntry> entries;
      MAYFLY_TRY(const bool more, reader->NextBlock(&entries, bytes.get()));
      if (!more) return Ok();
      current_ = bytes;
      held_.push_back(bytes);
      held_bytes_ += bytes->size();
      progress_.bytes += bytes->size();
      for (const CommittedEntry& e : entries) {
        MAYFLY_TRY(Entry(e));
        if (done_) return Ok();
      }
      if (held_bytes_ >= kBatchBytes || entries_.size() >= kBatchEntries) {
        MAYFLY_TRY(Flush());
      }
    }
  }

  /// Applies what is gathered.
  Result<void> Flush() {
    if (staged_ != at_) {
      if (!entries_.empty()) {
        const uint64_t before = applier_.last_ts();
        Result<void> prepared = applier_.Prepare(entries_, *batch_);
        if (!prepared)
          return Error{prepared.error().code,
                       "an entry in " + path_ + " or before it: " + prepared.error().message};
        if (applier_.last_ts() != before)
          row_ = {applier_.last_ts(), applier_.last_wall(), static_cast<int64_t>(at_.term)};
        StageAppliedRow(*batch_, row_);
      }
      log_.StageApplied(*batch_, at_, {}, {});
      MAYFLY_TRY(storage_.kv().Write(*batch_, false));
      log_.Applied(at_);
      if (!entries_.empty()) applier_.Applied(entries_);
      applier_.Forget();
      batch_->Clear();
      staged_ = at_;
    }
    entries_.clear();
    held_.assign(1, current_);  // what follows in its block points into it, too
    held_bytes_ = 0;
    Count();
    return request_.progress ? request_.progress(progress_) : Ok();
  }

  bool done() const { return done_; }
  const ReplayProgress& progress() const { return progress_; }

 private:
  Result<void> Entry(const CommittedEntry& e) {
    if (e.position.index < at_.index) return Ok();
    if (e.position.index == at_.index) {
      if (e.position.term != at_.term)
        return InvalidOptions("the archive and the backup are of different histories: entry " +
                              std::to_string(at_.index) + " has term " +
                              std::to_string(e.position.term) + " in " + path_ + ", and " +
                              std::to_string(at_.term) + " in the backup");
      return Ok();
    }
    if (e.kind == CommittedEntry::Kind::kData) {
      if (IsLogChunk(e.data)) {
        LogEntry kept{.term = e.position.term, .index = e.position.index};
        kept.data = e.data;
        log_.StageAppend(*batch_, std::span(&kept, 1), {});
      } else {
        MAYFLY_TRY(Data(e));
        if (done_) return Ok();
      }
    }
    at_ = e.position;
    return Ok();
  }

  Result<void> Data(const CommittedEntry& e) {
    MAYFLY_TRY(const std::string_view wanted, UpTo(e.data));
    if (wanted.empty()) return Ok();
    if (!IsLogEnd(e.data)) {
      entries_.push_back({.data = wanted, .term = e.position.term});
      if (done_) at_ = e.position;
      return Ok();
    }
    // Its chunks are in the store, also those of this batch.
    MAYFLY_TRY(Flush());
    auto joined = JoinFromLog(e.data, *log_.Cursor(true));
    if (!joined)
      return Error{joined.error().code, "the unit that ends in entry " +
                                            std::to_string(e.position.index) + " in " + path_ +
                                            ": " + joined.error().message};
    held_.push_back(std::make_shared<std::string>(std::move(joined).value()));
    held_bytes_ += held_.back()->size();
    entries_.push_back({.data = *held_.back(), .term = e.position.term});
    return Ok();
  }

  /// The entry without the units that are later than wanted; empty: all of them are.
  Result<std::string_view> UpTo(std::string_view data) {
    if (!request_.until) return data;
    MAYFLY_TRY(ReadLogEntryHeader(data));
    std::string_view rest = data.substr(kLogEntryHeader);
    size_t units = 0;
    for (;; ++units) {
      const size_t end = data.size() - rest.size();
      uint64_t ts = 0;
      uint32_t ticks = 0;
      int64_t wall = 0;
      MAYFLY_TRY(const bool more, SkipLogUnit(&rest, &ts, &ticks, &wall));
      if (!more) return data;
      if (ticks == 0 || ts + ticks - 1 <= *request_.until) continue;
      done_ = true;
      return units == 0 ? std::string_view() : data.substr(0, end);
    }
  }

  void Count() {
    const LogApplier::Counts& c = applier_.counts();
    progress_.operations = c.inserts + c.updates + c.deletes + c.commands;
    progress_.index = at_.index;
    progress_.ts = row_.ts;
    progress_.wall_millis = row_.wall_millis;
  }

  Storage& storage_;
  const ReplayRequest& request_;
  LogStore& log_;
  LogApplier applier_;
  LogPosition at_, staged_;
  AppliedRow row_;
  std::unique_ptr<KvBatch> batch_;
  std::vector<LogApplier::Entry> entries_;
  std::vector<std::shared_ptr<std::string>> held_;  ///< what entries_ point into
  std::shared_ptr<std::string> current_;            ///< the block at hand
  size_t held_bytes_ = 0;
  std::string path_;
  ReplayProgress progress_;
  bool done_ = false;
};

}  // namespace

Result<std::vector<FileCiphersPtr>> OpenArchiveKeys(const std::string& folder,
                                                    const std::vector<const MasterKey*>& keys) {
  std::vector<FileCiphersPtr> out;
  std::optional<Error> failed;
  bool any = false;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string path = it->path().string();
    std::error_code unused;
    // A pipe of such a name would be waited for without end.
    if (!path.ends_with(kArchiveKeystoreSuffix) || !it->is_regular_file(unused)) continue;
    any = true;
    for (const MasterKey* key : keys) {
      auto opened = OpenKeystoreFile(path, *key);
      if (opened)
        out.push_back(std::move(opened).value());
      else
        failed = opened.error();
      if (opened) break;
    }
  }
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot list the archive " + folder + ": " + ec.message()};
  if (!any || !out.empty()) return out;
  if (failed) return *failed;
  return InvalidOptions("the archive in " + folder +
                        " is encrypted: give --encryptionKeyFile (and mayflyd --enableEncryption)");
}

Result<std::vector<ArchivedSegment>> ListArchive(const ArchiveSource& source,
                                                 std::string_view set_id) {
  MAYFLY_TRY(const std::vector<std::string> paths, SegmentPaths(source.folder, set_id));
  std::vector<ArchivedSegment> out;
  for (const std::string& path : paths) {
    MAYFLY_TRY(auto reader, SegmentReader::Open(path, source.ciphers));
    if (!set_id.empty() && reader->header().set_id != set_id) continue;
    out.push_back({path, reader->header(), reader->trailer()});
  }
  OneSetAfterTheOther(out);
  return out;
}

Result<ArchiveSummary> VerifyArchive(const ArchiveSource& source,
                                     const std::function<Result<void>(uint64_t bytes)>& progress) {
  MAYFLY_TRY(const std::vector<std::string> paths, SegmentPaths(source.folder, {}));
  ArchiveSummary out;
  std::vector<CommittedEntry> entries;
  std::string bytes;
  for (const std::string& path : paths) {
    auto reader = SegmentReader::Open(path, source.ciphers);
    if (!reader) {
      out.faults.push_back(reader.error().message);
      continue;
    }
    for (;;) {
      auto more = reader.value()->NextBlock(&entries, &bytes);
      if (!more) out.faults.push_back(more.error().message);
      if (!more || !more.value()) break;
      out.entries += entries.size();
      out.bytes += bytes.size();
      if (!progress) continue;
      MAYFLY_TRY(progress(bytes.size()));
    }
    out.segments.push_back({path, reader.value()->header(), reader.value()->trailer()});
  }
  OneSetAfterTheOther(out.segments);
  for (size_t i = 1; i < out.segments.size(); ++i) {
    if (out.segments[i - 1].header.set_id != out.segments[i].header.set_id) continue;
    if (auto follows = CheckFollows(out.segments[i - 1], out.segments[i]); !follows)
      out.faults.push_back(follows.error().message);
  }
  return out;
}

Result<void> CheckArchive(const ArchiveQuestion& q) {
  MAYFLY_TRY(const std::vector<ArchivedSegment> all, ListOfSet(q.archive, q.set_id));
  if (q.until && *q.until < q.from_ts)
    return InvalidOptions("the backup is of " + Time(q.from_ts) + ", which is after " +
                          Time(*q.until) + ": take an earlier backup");
  if (all.empty())
    return NotInArchive("there are no segments of an archive in " + q.archive.folder);
  const uint64_t next = q.from.index + 1;
  const uint64_t latest_index = std::max(q.from.index, q.latest_index);
  uint64_t end = std::max(q.from_ts, q.latest_ts);
  const ArchivedSegment* before = nullptr;
  bool enough = q.until && *q.until <= end;
  for (const ArchivedSegment& s : all) {
    if (s.trailer.last < next || enough) continue;
    if (before != nullptr) {
      MAYFLY_TRY(CheckFollowsBehind(*before, s, latest_index));
    } else if (s.header.first > latest_index + 1) {
      return NotInArchive("the archive lacks " + Range(latest_index + 1, s.header.first - 1) +
                          " of the log, which follow the backup: it begins with " + s.path);
    }
    before = &s;
    end = std::max(end, s.trailer.last_ts);
    enough = q.until && *q.until <= end;
  }
  if (!q.until || enough) return Ok();
  return InvalidOptions("the archive in " + q.archive.folder + " ends at " + Time(end) +
                        ", before " + Time(*q.until) + ": its last segment is " + all.back().path);
}

Result<ReplayProgress> ReplayArchive(Storage& storage, const ReplayRequest& request) {
  MAYFLY_TRY(std::unique_ptr<LogStore> log, LogStore::Open(storage.kv()));
  Start start{.applied = log->applied()};
  ConsensusConfiguration configuration;
  if (start.applied.index == 0 || !DecodeConfiguration(log->stored_configuration(), &configuration))
    return InvalidOptions(
        "the backup is not of a member of a replica set: there is no log that could be replayed "
        "on it");
  start.set_id = configuration.set_id;
  MAYFLY_TRY(ReadAppliedRow(storage.kv(), nullptr, &start.row));
  MAYFLY_TRY(const std::vector<ArchivedSegment> plan, Plan(request, start));
  Replay replay(storage, request, *log, start);
  for (const ArchivedSegment& s : plan) {
    MAYFLY_TRY(replay.Segment(s));
    if (replay.done()) break;
  }
  MAYFLY_TRY(replay.Flush());
  MAYFLY_TRY(storage.kv().SyncWal());
  return replay.progress();
}

}  // namespace mayfly

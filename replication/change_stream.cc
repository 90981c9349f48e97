#include "replication/change_stream.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "replication/new_node.h"
#include "replication/open_units.h"
#include "replication/oplog.h"

namespace mayfly {
namespace {

/// A log that begins at or before this entry has everything since the set was initiated.
constexpr uint64_t kWholeLog = 2;

Error HistoryLost() {
  Error e{ErrorCode::kChangeStreamHistoryLost,
          "Resume of change stream was not possible, as the resume point may no longer be in the "
          "oplog: read the collection anew and "
          "begin a new stream, or keep more of the log (--oplogSize, --oplogMinRetentionHours)"};
  e.details = BuildBson([](BsonBuilder& b) {
                b.OpenArray("errorLabels").Append("NonResumableChangeStreamError");
              }).bytes();
  return e;
}

}  // namespace

ChangeStream::ChangeStream(Storage& storage, std::unique_ptr<StreamLog> log, ChangeStreamSpec spec)
    : storage_(storage), log_(std::move(log)), spec_(std::move(spec)), filter_(spec_) {}

Result<std::unique_ptr<ChangeStream>> ChangeStream::Open(Storage& storage,
                                                         std::unique_ptr<StreamLog> log,
                                                         ChangeStreamSpec spec,
                                                         std::optional<StreamPosition> after,
                                                         Operation& op) {
  MAYFLY_TRY(op.CheckInterrupt());
  std::unique_ptr<ChangeStream> stream(new ChangeStream(storage, std::move(log), std::move(spec)));
  // The index is read first: no entry up to it has a later time than the one that is read
  // afterwards.
  stream->index_ = stream->log_->applied_index() + 1;
  const StreamPosition now = StreamPosition::After(stream->log_->applied_ts());
  stream->position_ = after.value_or(now);
  // If events are lost already, the client is told at once.
  if (stream->position_ < now) {
    MAYFLY_TRY(stream->SeekPosition(*stream->log_->Read()));
  }
  return stream;
}

void ChangeStream::Park() {
  cursor_.reset();
  if (in_entry_) --index_;  // this entry is read again, up to position_
  in_entry_ = in_unit_ = false;
  rest_ = {};
  LetGoOfJoined();
}

void ChangeStream::LetGoOfJoined() {
  if (joined_.empty()) return;
  std::string().swap(joined_);
  unit_ = {};
  hold_.Release();
}

Result<void> ChangeStream::ReadEntry(const CommittedEntry& e) {
  rest_ = {};
  LetGoOfJoined();
  if (e.kind != CommittedEntry::Kind::kData || IsLogChunk(e.data)) return Ok();
  std::string_view data = e.data;
  if (IsLogEnd(data)) {
    std::string_view frame = data.substr(kLogEntryHeader);
    uint64_t ts = 0;
    uint32_t ticks = 0;
    int64_t wall = 0;
    MAYFLY_TRY(const LogChunks chunks, ReadLogEnd(data));
    MAYFLY_TRY(SkipLogUnit(&frame, &ts, &ticks, &wall));
    // Units delivered already need not be joined.
    if (StreamPosition::After(ts + ticks - 1) <= position_) return Ok();
    MAYFLY_TRY(hold_.Set(chunks.bytes));
    Result<std::string> joined = JoinFromLog(data, *log_->Read());
    if (!joined && IsTrimmed(joined.error())) return HistoryLost();
    MAYFLY_TRY(joined_, std::move(joined));
    data = joined_;
  }
  MAYFLY_TRY(ReadLogEntryHeader(data));
  rest_ = data.substr(kLogEntryHeader);
  return Ok();
}

StreamPosition ChangeStream::position() const {
  // A stream that began behind an `invalidate` event must not resume from such an event.
  return position_.kind == StreamPosition::kInvalidate && !closed_
             ? StreamPosition::After(position_.ts)
             : position_;
}

Result<void> ChangeStream::SeekPosition(LogCursor& log) {
  log.Seek(0);
  MAYFLY_TRY(log.status());
  if (!log.Valid()) return HistoryLost();
  // Changes before a restore are not in this set's log, nor are those that the former set has made
  // since then.
  MAYFLY_TRY(const uint64_t former, FormerSetUntil(storage_.kv()));
  if (position_.ts <= former && former != 0) return HistoryLost();
  if (const uint64_t first = log.entry().position.index; first > kWholeLog || former != 0) {
    uint64_t begins = 0, ends = 0;
    while (log.Valid() && !TimesOfEntry(log.entry(), &begins, &ends)) log.Next();
    MAYFLY_TRY(log.status());
    // The timestamps between two records belong to no event, so starting right behind a high-water
    // mark misses nothing.
    const uint64_t reach =
        position_.kind == StreamPosition::kHighWater ? position_.ts + 1 : position_.ts;
    if (!log.Valid() || begins > reach) return HistoryLost();
  }
  MAYFLY_TRY(SeekOplog(log, position_.ts));
  if (log.Valid()) index_ = log.entry().position.index;
  return Ok();
}

Result<bool> ChangeStream::NextEntry() {
  if (cursor_) {
    cursor_->Next();
  } else {
    cursor_ = log_->Read();
    cursor_->Seek(index_);
  }
  MAYFLY_TRY(cursor_->status());
  if (!cursor_->Valid()) {
    cursor_.reset();
    return false;
  }
  const CommittedEntry e = cursor_->entry();
  if (e.position.index > index_) return HistoryLost();
  index_ = e.position.index + 1;
  MAYFLY_TRY(ReadEntry(e));
  in_entry_ = true;
  return true;
}

Result<bool> ChangeStream::Advance(Operation& op) {
  const int64_t until = op.clock().MonotonicMicros() + kReadMicros;
  for (int n = 1;; ++n) {
    if (in_unit_) {
      const bool batch = unit_.IsBatch();
      while (record_ < unit_.records.size()) {
        const size_t i = record_++;
        StreamPosition at;
        // A transaction happens with the last of its entries.
        at.ts = batch ? unit_.ts + unit_.ticks - 1 : unit_.ts + i;
        at.step = batch ? static_cast<uint32_t>(i) : 0;
        StreamPosition last = at;
        last.kind = StreamPosition::kInvalidate;
        if (last <= position_) continue;
        events_.clear();
        next_event_ = 0;
        const ImageLife images{log_->image_expiry_seconds(),
                               static_cast<int64_t>(log_->applied_ts() >> 32) * 1000};
        MAYFLY_TRY(AppendChangeEvents(spec_, filter_, storage_, op, images, unit_, unit_.records[i],
                                      at, &events_));
        std::erase_if(events_, [&](const ChangeEvent& e) { return e.position <= position_; });
        if (!events_.empty()) return true;
      }
      in_unit_ = false;
      // The token of an event remains the stream's last token until something newer exists.
      const uint64_t end = unit_.ts + unit_.ticks - 1;
      if (end > position_.ts) position_ = StreamPosition::After(end);
    }
    if (in_entry_) {
      std::string_view peek = rest_;
      uint64_t ts = 0;
      uint32_t ticks = 0;
      int64_t wall = 0;
      MAYFLY_TRY(bool more, SkipLogUnit(&peek, &ts, &ticks, &wall));
      if (!more) {
        in_entry_ = false;
        continue;
      }
      // Chunks of index builds have no timestamps. Entries before the position were delivered
      // already.
      if (ticks == 0 || StreamPosition::After(ts + ticks - 1) <= position_) {
        rest_ = peek;
        continue;
      }
      MAYFLY_TRY(ReadLogUnit(&rest_, &unit_));
      in_unit_ = true;
      record_ = 0;
      continue;
    }
    MAYFLY_TRY(op.CheckInterrupt());
    if (n % 64 == 0 && op.clock().MonotonicMicros() > until) {
      behind_ = true;
      return false;
    }
    MAYFLY_TRY(bool more, NextEntry());
    if (!more) return false;
  }
}

Result<const ChangeEvent*> ChangeStream::Next(Operation& op) {
  behind_ = false;
  if (next_event_ == events_.size()) {
    if (closed_) return static_cast<const ChangeEvent*>(nullptr);
    MAYFLY_TRY(bool more, Advance(op));
    if (!more) return static_cast<const ChangeEvent*>(nullptr);
  }
  const ChangeEvent& e = events_[next_event_++];
  position_ = e.position;
  closed_ = e.position.kind == StreamPosition::kInvalidate;
  return &e;
}

}  // namespace mayfly

#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/large_memory.h"
#include "replication/change_event.h"
#include "replication/consensus.h"

namespace mayfly {

/// The part of a set's log that streams may see. Threads: any.
class StreamLog {
 public:
  virtual ~StreamLog() = default;
  /// The newest entry that is applied here, and the time of the newest record up to it.
  virtual uint64_t applied_index() const = 0;
  virtual uint64_t applied_ts() const = 0;
  /// How long documents as they were before a change are shown.
  virtual int64_t image_expiry_seconds() const { return -1; }
  /// Up to applied_index() at least.
  virtual std::unique_ptr<LogCursor> Read() = 0;
};

/// Reads the set's log as change events, in the order of the log, on any member: only entries of a
/// majority are applied, and only applied entries are read. Records of other namespaces are skipped
/// by their names, without reading their documents. One thread at a time; between batches it holds
/// nothing (Park).
class ChangeStream {
 public:
  /// `after`: the place behind which it begins; nullopt: what comes from now on. Errors:
  /// ChangeStreamHistoryLost 286 when the log does not reach back there.
  static Result<std::unique_ptr<ChangeStream>> Open(Storage& storage,
                                                    std::unique_ptr<StreamLog> log,
                                                    ChangeStreamSpec spec,
                                                    std::optional<StreamPosition> after,
                                                    Operation& op);

  /// The next event, good until the next call. Null: there is none now (or ever, when closed()).
  /// Errors: ChangeStreamHistoryLost 286, and those of AppendChangeEvents.
  Result<const ChangeEvent*> Next(Operation& op);
  /// The `invalidate` event was given.
  bool closed() const { return closed_; }
  /// The last Next stopped because it had read for a long time, not at the end.
  bool behind() const { return behind_; }
  /// Where a new stream continues after the events that Next has returned or skipped. REQUIRES:
  /// Next has answered null, or nothing was read yet.
  StreamPosition position() const;
  /// Gives up the iterator over the log; Next goes on where it was.
  void Park();

 private:
  ChangeStream(Storage& storage, std::unique_ptr<StreamLog> log, ChangeStreamSpec spec);
  /// Makes the events of the next record that has any; false: the end.
  Result<bool> Advance(Operation& op);
  void LetGoOfJoined();
  /// Puts the units of the entry into rest_.
  Result<void> ReadEntry(const CommittedEntry& e);
  /// To the entry to read next; false: the end.
  Result<bool> NextEntry();
  /// Sets index_ by position_.
  Result<void> SeekPosition(LogCursor& log);

  static constexpr int64_t kReadMicros = 500'000;  ///< of one Next without an event

  Storage& storage_;
  const std::unique_ptr<StreamLog> log_;
  const ChangeStreamSpec spec_;
  const ChangeStreamFilter filter_;

  StreamPosition position_;  ///< everything up to here was given or stepped over
  uint64_t index_ = 0;       ///< of the entry to read next
  bool closed_ = false, behind_ = false;

  std::unique_ptr<LogCursor> cursor_;  ///< at the entry before index_; null: parked
  std::string_view rest_;              ///< units of the entry at hand that are not read yet
  std::string joined_;                 ///< of a unit in chunks: what rest_ is in
  large_memory::Hold hold_;            ///< of joined_
  bool in_entry_ = false, in_unit_ = false;
  LogUnit unit_;
  size_t record_ = 0;
  std::vector<ChangeEvent> events_;
  size_t next_event_ = 0;
};

}  // namespace mayfly

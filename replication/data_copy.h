#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "replication/member_link.h"
#include "replication/raft_node.h"

// clang-format off
/// Initial sync: a member that the log no longer reaches pulls a checkpoint of the store, file by
/// file, and takes it in place of its own at the next start. On a fetch link (member_link.h):
///   20 list      body := checkpoint id                       21 files  body := n:le32 (size:le64
///   text(name))*
///   22 read      body := offset:le64 size:le32 name          23 data   body := crc32:le32 bytes
///   24 done      body := empty: the donor may forget the checkpoint     04 refusal (member_link.h)
// clang-format on
namespace mayfly {

/// A file of a checkpoint: its name without a folder, and its bytes.
struct CopyFile {
  std::string name;
  uint64_t size = 0;
};
/// The body of a `files` frame. ProtocolError: it is none, or has a name that leads elsewhere.
Result<std::vector<CopyFile>> ParseCopyList(std::string_view body);

/// The donor's side: checkpoints under DATA/.checkpoints. A checkpoint is removed at start, 10
/// minutes after its last use, and earlier when it keeps too much log or disk (GiveUp,
/// RemoveStale); a member that was copying it then starts again with a newer one.
class CheckpointStore {
 public:
  static constexpr size_t kMost = 4;  ///< at the same time
  using LogLine = std::function<void(char severity, std::string_view message)>;
  /// `silence_ms`: a joiner that sends nothing for this time counts as gone.
  CheckpointStore(KvStore& kv, std::string data_directory, const Clock& clock, int silence_ms,
                  LogLine log);
  /// Makes one that holds at least `position`. Blocks (hard links and a flush). Its id.
  Result<std::string> Make(LogPosition position);
  /// Serves one joiner until it has all. On the thread for copies.
  LinkTask<void> Serve(std::shared_ptr<MemberLink> link);
  /// Removes checkpoints unused for a while. If files held only by checkpoints take more than the
  /// free disk space, also the one that holds most of them, and older ones. Looks at files: on the
  /// thread for copies.
  void RemoveStale();
  /// Whether kMost are being copied now: there can be no other.
  bool Full() const;
  /// Removes all that need entries before `index`, and logs the reason.
  void GiveUp(uint64_t index, const std::string& why);
  /// Whether it is still there for somebody who begins now.
  bool Has(const std::string& id) const;
  /// Entries from here on are still needed by a copy; UINT64_MAX: by none.
  uint64_t KeepFrom() const;

 private:
  struct Entry {
    std::string directory;
    LogPosition position;
    int64_t used_us = 0;
    int users = 0;      ///< joiners that copy it now
    bool done = false;  ///< one of them has it all: it goes with the last
  };
  /// False: it is not there any more.
  bool Touch(const std::string& id);
  bool AddList(MemberLink& link, const std::string& directory);
  /// Its directory, for one more joiner; empty: it is not there any more.
  std::string Begin(const std::string& id);
  void End(const std::string& id, bool done);

  KvStore& kv_;
  const std::string root_;
  const Clock& clock_;
  const int silence_ms_;
  const LogLine log_;
  int64_t looked_us_ = 0;  ///< thread for copies: when RemoveStale looked at files last
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  int made_ = 0;
};

/// The joiner's side. Files land in DATA/.resync/incoming; what is there of the same checkpoint is
/// not fetched again.
class DataCopy {
 public:
  struct Progress {
    std::atomic<uint64_t> done{0}, total{0};
  };
  /// `store`: what kind of store is copied.
  DataCopy(KvEnginePtr store, std::string data_directory, std::string checkpoint,
           Progress& progress)
      : store_(std::move(store)),
        root_(std::move(data_directory) + "/.resync"),
        checkpoint_(std::move(checkpoint)),
        progress_(progress) {}

  /// Pulls what is missing over the link, which ends itself when it is silent. Errors:
  /// HostUnreachable (try again, it goes on where it was), InitialSyncFailure (the checkpoint is
  /// gone: ask for another), OutOfDiskSpace.
  LinkTask<Result<void>> Fetch(MemberLink& link);
  /// With the copy complete: makes it this node's, as AdoptCheckpoint does. Blocks.
  Result<LogPosition> Adopt(NodeId self, const HardState& own,
                            const std::optional<ArchivedRow>& archived);
  /// Marks it as ready to be put in place, with the list of its files (ApplyPendingResync).
  Result<void> MarkReady();
  /// The present files are not continued: the next copy starts from scratch.
  Result<void> Discard();

 private:
  Result<void> Begin();
  const KvEnginePtr store_;
  const std::string root_, checkpoint_;
  Progress& progress_;
};

/// Whether the directory has a copy of another member's data that ApplyPendingResync would put in
/// place, or has begun to. Errors: FileNotOpen 38.
Result<bool> ResyncIsPending(const std::string& data_directory);

}  // namespace mayfly

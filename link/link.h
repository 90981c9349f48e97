#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "link/change_reader.h"
#include "link/cluster.h"
#include "link/conflicts.h"
#include "link/options.h"
#include "link/progress.h"
#include "link/read_ahead.h"
#include "link/target_writer.h"

namespace mayfly {

/// What a running link shows. Threads: any.
class LinkStatus {
 public:
  /// Replaces what it shows.
  void Set(BsonDocument status);
  /// What was set last, with `lagMillis` and `stalled` as they are now.
  BsonDocument Get() const;
  /// The same as Prometheus' text.
  std::string Metrics() const;
  /// Why the link is not well; empty: it is, or is paused or stands by.
  std::string Unwell() const;
  LinkProgress progress;

 private:
  mutable std::mutex mutex_;
  BsonDocument status_;
};

/// One link: copies the data of its source, then follows changes, and stores its position in its
/// target (`mayflyLink.links`). After any failure it resumes from there: writing twice gives the
/// same result. Threads: Run one; Stop any.
class Link {
 public:
  Link(LinkOptions options, LinkStatus& status);
  ~Link();
  /// Until Stop, or until it cannot go on. It waits out lost connections, failovers and slow
  /// targets. Errors: what an operator must fix (a login, a source that is no replica set, another
  /// process that runs this link, a link in the other direction).
  Result<void> Run();
  void Stop() { stopped_ = true; }

 private:
  enum class Phase : uint8_t { kCopy, kFollow };
  ClusterResult<void> Begin();
  ClusterResult<void> CheckOtherDirection();
  ClusterResult<void> Lease(bool first);
  ClusterResult<void> LoadState();
  /// That the source is the one of the stored state. Errors: IllegalOperation 20.
  ClusterResult<void> CheckSource(BsonView before) const;
  ClusterResult<void> BeginCopy(bool again);
  ClusterResult<void> CopyAll();
  ClusterResult<void> EndCopy();
  /// One collection with its definition, as it is now; nothing if it is gone.
  ClusterResult<void> CopyWhole(std::string_view ns);
  /// Counts and names the documents that cannot be sent.
  ClusterResult<void> NameRefused();
  /// With a version field: what the target remembers of deletes, and so what comes back.
  ClusterResult<void> FindTombstones();
  /// What was refused for a unique index, once something was.
  ClusterResult<void> SolveConflicts();
  /// Clocks of both sides, once a minute.
  void WatchClocks();
  /// How far the target's clock is ahead of the source's.
  int64_t ClocksApart() const {
    return target_facts_.clock_skew_millis - source_facts_.clock_skew_millis;
  }
  ClusterResult<void> CopyDefinitions(std::string_view db, BsonView collection);
  /// After lost history: gives the target's collection, if there is one, the source's options. One
  /// of another kind goes.
  ClusterResult<void> AdaptOptions(std::string_view db, BsonView collection);
  ClusterResult<void> CopyCollection(std::string_view db, std::string_view name);
  ClusterResult<void> RemoveWhatIsGone(std::string_view db, std::string_view name);
  ClusterResult<void> Follow();
  ClusterResult<void> ApplyChange(EventTranslator::Change& change);
  /// A change of a definition with the documents before it. The position is saved before and after
  /// it: earlier documents must not be written again under a name that now belongs to another
  /// collection. `before`: the position before its event, `behind`: after it; either may be empty.
  ClusterResult<void> ApplyDefinition(EventTranslator::Change& change, const BsonDocument& before,
                                      const BsonDocument& behind);
  /// Collections of earlier copies that the source no longer has.
  ClusterResult<void> DropWhatIsGone(const std::set<std::string, std::less<>>& there);
  /// Between two steps: the lease, a pause, the limit of documents a second.
  ClusterResult<void> Turn(size_t documents);
  /// Where following goes on if it is resumed: behind what was translated so far.
  void GoTo(BsonDocument token);
  BsonDocument State() const;
  /// Brings the operations and what changed of State to the target.
  ClusterResult<void> Write(const std::vector<LinkOperation>& operations);
  /// Saves what changed of State.
  ClusterResult<void> Save() { return Write({}); }
  void Show(std::string_view state, std::string_view error = {});
  /// Sleeps unless it is stopped meanwhile.
  void Wait(int64_t millis) const;

  const LinkOptions options_;
  LinkStatus& status_;
  std::string told_;          ///< the last error that was shown on the terminal
  const std::string runner_;  ///< this process, among those that may run the link
  std::unique_ptr<Cluster> source_, target_;
  Cluster::Facts source_facts_, target_facts_;
  Selection selection_;
  std::unique_ptr<TargetWriter> writer_;
  std::unique_ptr<Echoes> echoes_;  ///< with a version field
  BsonDocument echoes_at_;          ///< what they are at token_
  std::unique_ptr<EventTranslator> translator_;
  std::unique_ptr<ReadAhead> reader_;
  std::unique_ptr<ConflictSolver> conflicts_;
  int64_t conflicts_seen_ = 0;  ///< refusals when they were tried last
  std::atomic<bool> stopped_{false};

  Phase phase_ = Phase::kCopy;
  bool copied_once_ = false;  ///< a copy was whole before: this one removes what is gone
  uint64_t copy_time_ = 0;    ///< where following begins
  BsonDocument token_;        ///< kFollow: behind the last event; empty: from copy_time_ on
  std::string copy_id_;       ///< of the copy that runs, or ran last
  std::set<std::string, std::less<>> copied_;  ///< collections of this copy that are whole
  BsonDocument saved_;  ///< State as the target has it; empty: that is not known
  LinkCounters counters_;
  int64_t leased_ = 0;       ///< steady milliseconds
  int64_t clocks_seen_ = 0;  ///< likewise
  bool paused_ = false;
  int64_t window_start_ = 0, window_documents_ = 0;  ///< of the limit
};

/// `status`, `pause` and `resume`: the target's state of its links. Returns the text to print.
Result<std::string> RunLinkAction(const LinkOptions& options);

}  // namespace mayfly

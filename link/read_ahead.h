#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "link/change_reader.h"
#include "link/cluster.h"
#include "link/options.h"
#include "link/progress.h"

namespace mayfly {

/// Reads what comes next at the source while what came before is written to the target: a thread
/// with a connection of its own, and a queue that is bounded in bytes. Threads: one, and its own.
class ReadAhead {
 public:
  /// Events in their order, and where to go on behind them; `token` may be empty.
  struct Batch {
    std::vector<BsonDocument> events;
    BsonDocument token;
    size_t bytes = 0;
    std::optional<int64_t> oldest;  ///< the time of its first event; nullopt: there is none
  };
  /// How much waits to be written.
  struct Waiting {
    int64_t events = 0, bytes = 0;
  };
  /// More is read while the queue has less than this, so it holds one batch more at most (the
  /// source sends no larger ones than 16 MB and an event).
  static constexpr size_t kMostBytes = 64 << 20;
  /// Next joins batches up to this: the lease is extended after what it gives was written.
  static constexpr size_t kMostJoined = 16 << 20;

  /// `source`: for the thread alone. `progress`: is told what has been read.
  ReadAhead(const LinkOptions& options, std::unique_ptr<Cluster> source, bool mayfly,
            LinkProgress& progress)
      : source_(std::move(source)), reader_(options, *source_, mayfly), progress_(progress) {}
  ~ReadAhead() { Close(); }

  /// Begins behind a resume token, or with the operation at `time`. What was read before is
  /// forgotten. Its errors come with Next.
  void Open(BsonView token, uint64_t time);
  /// What has been read, in its order: batches of up to `most` events together, one at least. Waits
  /// for a second at most, then it is empty. Errors: those of the source, behind all that had been
  /// read before; after one, Open must be called. ChangeStreamHistoryLost 286.
  ClusterResult<Batch> Next(size_t most);
  Waiting waiting() const;
  /// All that Next has given is at the target: the last event was so old then (0: there was none).
  void Written(int64_t lag_millis);
  /// Ends the thread, which may be within a request to the source, and the cursor.
  void Close();

 private:
  void Read(BsonDocument token, uint64_t time);

  const std::unique_ptr<Cluster> source_;
  ChangeReader reader_;  ///< the thread's
  LinkProgress& progress_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> queue_;
  Waiting waiting_;
  std::optional<ClusterError> failed_;
  bool closed_ = true;
};

}  // namespace mayfly

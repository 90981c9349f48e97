#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "storage/write_unit_impl.h"

namespace mayfly {

/// Commits to this node's store alone. Whoever comes first writes its own unit and those that
/// arrive meanwhile as one batch: two threads that write to the store at once cost more than one.
/// Its thread syncs the log to disk every `sync_interval_ms` after a write, and at once, for all
/// that wait, when somebody asks for a journaled commit.
class LocalCommitter final : public Committer {
 public:
  LocalCommitter(Storage::Impl& storage, int sync_interval_ms);
  ~LocalCommitter() override;  ///< waits for what was submitted, syncs

  void Submit(WriteUnit unit, CommitOptions options,
              std::function<void(Result<void>)> done) override;

 private:
  using Done = std::function<void(Result<void>)>;
  struct Queue {
    std::vector<WriteUnit> units;
    std::vector<Done> done;
    std::vector<bool> journal;
  };
  /// Writes what is queued until nothing is; after `rounds` batches the sync thread goes on, so
  /// that a client's thread does not work for others without end. REQUIRES: leading_ is set, by
  /// this thread.
  void Lead(int rounds);
  void WriteBatch(Queue& q);
  void SyncLoop();

  Storage::Impl& storage_;
  const int sync_interval_ms_;

  std::mutex queue_mutex_;
  Queue waiting_;
  bool leading_ = false;
  bool closed_ = false;

  // The leader's alone.
  Queue working_;
  std::unique_ptr<KvBatch> batch_;
  UnitApplier applier_;

  std::mutex sync_mutex_;
  std::condition_variable sync_wake_;
  std::vector<Done> sync_waiters_;
  std::atomic<bool> dirty_{false};  ///< written since the last sync
  bool take_lead_ = false;
  bool stop_ = false;
  std::thread sync_thread_;
};

}  // namespace mayfly

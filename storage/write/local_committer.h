#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "storage/write/write_unit_impl.h"

namespace mayfly {

/// Commits to this node's store only. The first thread that arrives writes its own unit, and the
/// units that arrive meanwhile, as one batch, because two threads that write to the store at once
/// cost more than one. Large units (in bytes or changes) take long. The writer thread commits them,
/// each as a batch of its own between the small ones, and only while the store has room (HasRoom),
/// so that they hold neither a client's thread, perhaps the one that serves all connections, nor
/// small units, for which the store would otherwise have no room either. Another thread syncs the
/// log to disk every `sync_interval_ms` after a write, and at once when a journaled commit waits.
/// It is another one because a sync takes as long as the disk likes: batches go on meanwhile, and
/// all journaled commits that arrive during a sync share the next one.
class LocalCommitter final : public Committer {
 public:
  LocalCommitter(Storage::Impl& storage, int sync_interval_ms);
  /// Waits for what was submitted, syncs. REQUIRES: nobody submits any more.
  ~LocalCommitter() override;

  void Submit(WriteUnit unit, CommitOptions options,
              std::function<void(Result<void>)> done) override;

 private:
  using Done = std::function<void(Result<void>)>;
  struct Queue {
    std::vector<WriteUnit> units;
    std::vector<Done> done;
    std::vector<bool> journal;
    size_t ops = 0;    ///< changes of `units`
    size_t bytes = 0;  ///< of `units`
    /// `changes` and `size`: of the unit, counted before it is moved here. REQUIRES: queue_mutex_
    /// is held.
    void Push(WriteUnit unit, Done callback, bool journaled, size_t changes, size_t size) {
      ops += changes;
      bytes += size;
      units.push_back(std::move(unit));
      done.push_back(std::move(callback));
      journal.push_back(journaled);
    }
  };
  struct Large {
    WriteUnit unit;
    Done done;
    bool journal;
    size_t bytes;
    std::chrono::steady_clock::time_point until;  ///< it waits for room no longer
  };
  static constexpr int kWithoutEnd = -1;
  /// Writes the queued units until the queue is empty. After `rounds` batches or some thousand
  /// changes, or when only large units are left, the writer thread continues, so that a client's
  /// thread does not work for others without end. kWithoutEnd: this is the writer thread. REQUIRES:
  /// this thread has set leading_.
  void Lead(int rounds);
  void WriterLoop();
  /// Whether the first of large_ may be written now. The writer thread's, which leads; gives the
  /// lock up meanwhile. REQUIRES: large_ is not empty.
  bool MayWriteLarge(std::unique_lock<std::mutex>& l);
  void WriteBatch(Queue& q);
  void SyncLoop();

  Storage::Impl& storage_;
  const int sync_interval_ms_;

  std::mutex queue_mutex_;
  Queue waiting_;
  std::deque<Large> large_;
  bool leading_ = false;
  bool take_lead_ = false;  ///< the writer thread shall go on leading
  bool no_room_ = false;    ///< large_ waits: the writer thread looks again by itself
  bool closed_ = false;
  std::condition_variable writer_wake_;

  /// No room was left at the last look: units that are not quite small count as large.
  std::atomic<bool> crowded_{false};

  // The leader's alone.
  Queue working_;
  size_t unseen_bytes_ = 0;  ///< written since the last look at the store's room
  std::unique_ptr<KvBatch> batch_;
  UnitApplier applier_;

  std::mutex sync_mutex_;
  std::condition_variable sync_wake_;
  std::vector<Done> sync_waiters_;
  std::atomic<bool> dirty_{false};  ///< written since the last sync
  bool stop_ = false;
  std::thread writer_thread_, sync_thread_;
};

}  // namespace mayfly
